"""Hooks that are not waited for, in a chain that belongs to no operation: they run beside the call, lane by lane."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from time import perf_counter
from typing import Any

import anyio
import anyio.abc

from hookline._deadlines import HandlerCancelledError, HandlerTimeoutError, bounded_for_this_backend, own_cancellation
from hookline._passages import HookInChain, Passage
from hookline.errors import HookTimeoutError
from hookline.execution import described, refuse_return, report_failure
from hookline.signals import ExecutionStatus

__all__ = ["run_beside"]


async def run_beside(passage: Passage, through: Awaitable[Any]) -> Any:
    """Lead a call through its chain, and let hooks that it starts on its way run beside it; all end before this does.

    Raises:
        BaseException: What `through` raises.
    """
    lanes: dict[int, deque[tuple[HookInChain, tuple[Any, ...]]]] = {}
    result: Any = None
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:

        async def work(lane: int) -> None:
            queue = lanes[lane]
            while queue:
                await run_unwaited(passage, *queue.popleft())
            del lanes[lane]

        def spawn(hook: HookInChain, args: tuple[Any, ...]) -> None:
            lane = id(hook.lane)
            idle = lane not in lanes
            lanes.setdefault(lane, deque()).append((hook, args))
            if idle:
                group.start_soon(work, lane)

        passage.spawn = spawn
        try:
            result = await through
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # kept out of the group, which would wrap it
            failure = error
            if not isinstance(error, Exception):
                group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


async def run_unwaited(passage: Passage, hook: HookInChain, args: tuple[Any, ...]) -> None:
    """Run a hook whose failure is only recorded."""
    if passage.recording:
        passage.started.append(hook)
    started = perf_counter()
    error: Exception | None = None
    try:
        value = hook.handler(*args)
        if hook.is_async:
            value = await bounded_for_this_backend()(value, hook.timeout, None)
        elif perf_counter() - started > hook.timeout:
            raise HandlerTimeoutError
        refuse_return(value)
    except asyncio.CancelledError as raised:
        if not own_cancellation():
            passage.note(hook, "dropped", "cancelled", duration_ms=(perf_counter() - started) * 1e3)
            raise
        error = HandlerCancelledError(str(raised))
    except HandlerTimeoutError:
        error = HookTimeoutError(hook.id, hook.point, hook.timeout)
    except Exception as raised:
        error = raised
    except BaseException:
        passage.note(hook, "dropped", "cancelled", duration_ms=(perf_counter() - started) * 1e3)
        raise
    status: ExecutionStatus = "ok"
    if error is not None:
        status = "timeout" if isinstance(error, HookTimeoutError) else "error"
        report_failure(hook.id, f"{hook.kind} {hook.point}", passage.call.operation_id, error)
    problem = described(error) if error is not None else None
    passage.note(hook, status, problem, duration_ms=(perf_counter() - started) * 1e3)
