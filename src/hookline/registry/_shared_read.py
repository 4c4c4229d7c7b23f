"""`SharedRead`: run one read of the database for all callers that ask for it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["SharedRead"]


class SharedRead:
    """Runs a read for all callers that ask for it before it begins, one read after another.

    Whoever asks while a read is under way waits for the next one, since the present one may miss what the caller knows
    to be written. So 32 clients that read definitions at the same time cost one or two reads, not 32 (`bench_server`).

    Args:
        read: Reads, and keeps what it has read.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._waiting: list[asyncio.Future[None]] = []
        self._next: asyncio.Task[None] | None = None
        self._present: asyncio.Task[None] | None = None

    async def share(self) -> None:
        """Wait for a read that begins after this call. If the caller is cancelled, the read goes on for the others.

        Raises:
            Exception: What the read raised.
        """
        # Each caller waits for a future of its own, so that all go on in one turn of the event loop. With a lock that
        # they hand on, each takes one.
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._run())
        await waiter

    async def aclose(self, *, patience: float) -> None:
        """End the reads whose callers were cancelled.

        Args:
            patience: Seconds that they have before they are cancelled.
        """
        left = [each for each in (self._present, self._next) if each is not None and not each.done()]
        if left:
            await asyncio.wait(left, timeout=patience)
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _run(self) -> None:
        async with self._turn:
            waiting, self._waiting = self._waiting, []
            self._present, self._next = self._next, None
            try:
                await self._read()
            except Exception as error:
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(None)
            finally:
                for waiter in waiting:
                    waiter.cancel()  # does nothing unless the event loop has cancelled this read, as when it closes
