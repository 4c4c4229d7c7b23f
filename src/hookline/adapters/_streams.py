"""Give the stream of a run to a framework's caller: values of a task of its own, and answers that hooks hold back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import anyio

from hookline.calls import Call
from hookline.errors import HookDenied
from hookline.runtime import AdapterRun, HeldEvents

__all__ = ["must_hold_stream", "read_parts", "stream_values", "wait_for_end"]

E = TypeVar("E")
Emit = Callable[[Any], Awaitable[None]]


def must_hold_stream(run: AdapterRun, call: type[Call]) -> bool:
    """Decide whether the stream of the next such call is held, since hooks may still change or withhold the result.

    If so, nothing of the result may be shown before the call has ended. If not, all of it may be shown.

    Args:
        run: The run.
        call: The class of the call.
    """
    return run.hold_stream(call)


async def read_parts(parts: HeldEvents[E], events: AsyncIterable[E]) -> AsyncGenerator[E, None]:
    """Read a model's stream to its end, and yield the events that hooks let pass.

    If a hook must judge after some time, the stream is read in a task of its own.

    Args:
        parts: Holds the events, and lets the hooks judge them.
        events: The stream.

    Raises:
        HookDenied: If a hook denies the answer.
    """
    if parts.is_timed:
        async with aclosing(stream_values(partial(parts.feed, events))) as released:
            async for event in released:
                yield event
        return
    try:
        async for event in events:
            for each in await parts.add(event):
                yield each
    except HookDenied:
        raise
    except Exception:
        await parts.judge_broken()
        raise


async def stream_values(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[Any, None]:
    """Yield the values that a coroutine emits; closing the generator cancels the coroutine and waits for its end.

    Args:
        work: Takes the function that emits a value, which returns when the value is taken.
    """
    send, receive = anyio.create_memory_object_stream[Any](0)

    async def run() -> None:
        with send:
            await work(send.send)

    with receive:
        # A task of its own, because a generator may be closed in another task than the one that started it.
        task = asyncio.create_task(run())
        try:
            async for value in receive:
                yield value
            await task
        finally:
            task.cancel()
            await wait_for_end(task)


async def wait_for_end(task: asyncio.Future[Any]) -> None:
    """Wait until a cancelled run has ended, even if this task is cancelled again meanwhile.

    A framework may cancel what it runs more than once, and would otherwise leave the run behind.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()  # mark as retrieved, or asyncio would log it
    if cancelled is not None:
        raise cancelled
