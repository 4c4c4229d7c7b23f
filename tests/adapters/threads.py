"""A thread as that of a sync program, for frameworks whose sync methods use the event loop of their thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

__all__ = ["in_sync_thread"]

T = TypeVar("T")


async def in_sync_thread(work: Callable[[], T]) -> T:
    """Call a sync function in a thread that has an event loop of its own, which is closed afterwards."""

    def call() -> T:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            return work()
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    return await anyio.to_thread.run_sync(call)
