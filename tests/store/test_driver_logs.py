"""DEBUG for all loggers does not write what is stored into logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from hookline.runtime import OperationState
from hookline.store import SqlStore, operations

pytestmark = pytest.mark.anyio

SECRET = "hunter2-in-a-conversation"


@pytest.fixture(autouse=True)
def driver() -> Iterator[logging.Logger]:
    """The logger of the driver, as a new process has it."""
    logger = logging.getLogger("aiosqlite")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(before)


async def keep(folder: Path) -> None:
    async with SqlStore(f"sqlite:///{folder / 's.db'}") as store:
        await store.commit(
            OperationState(operation_id=SECRET, agent_id="a", version=1), expected_version=None, entries=[]
        )
        await store.load(SECRET)
        async with store.reading() as connection:
            await connection.execute(select(operations).where(operations.c.operation_id == SECRET))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_values_of_statements_are_in_no_debug_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    await keep(tmp_path)

    assert SECRET not in caplog.text


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_gives_the_driver_a_level_gets_its_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, driver: logging.Logger
) -> None:
    caplog.set_level(logging.DEBUG)
    driver.setLevel(logging.DEBUG)

    await keep(tmp_path)

    assert SECRET in caplog.text
