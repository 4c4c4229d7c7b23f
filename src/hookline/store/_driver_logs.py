"""Keep statements with their values out of logs, where somebody switches on DEBUG for all loggers."""

import logging

__all__ = ["quiet_driver"]


def quiet_driver() -> None:
    """Leave the debug lines of aiosqlite out unless its logger was given a level of its own.

    It writes every statement with all values at DEBUG: conversations, arguments and payloads.
    """
    driver = logging.getLogger("aiosqlite")
    if driver.level == logging.NOTSET:
        driver.setLevel(logging.INFO)
