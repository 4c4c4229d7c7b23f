"""Signals as a terminal gives them: a shell starts what a script runs in the background with SIGINT ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["default_signals", "hearing_ctrl_c"]


def default_signals() -> None:
    """Let a command hear Ctrl-C and SIGTERM: the `preexec_fn` of every process that a test sends one of them to."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """Let this process hear Ctrl-C, for a test that sends it to itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
