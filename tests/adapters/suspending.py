"""A wait such as a client of a network has: fakes that never suspend hide what goes wrong when somebody really waits."""

from __future__ import annotations

import asyncio

import anyio
import sniffio

__all__ = ["suspend"]


async def suspend() -> None:
    """Give way to other tasks twice: once without saying for what (asyncio gets None), and once for a future."""
    await anyio.sleep(0)
    if sniffio.current_async_library() == "asyncio":
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(lambda: future.cancelled() or future.set_result(None))
        await future
