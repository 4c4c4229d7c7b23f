"""Hooks that are not waited for, in a chain that belongs to no operation: they run beside the call, lane by lane."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from time import perf_counter_ns
from typing import Any

import anyio
import anyio.abc

from hookline._deadline import HandlerTimeoutError, bounded_for_this_backend
from hookline._passages import HookInChain, Passage
from hookline._records import report_failure
from hookline.errors import HookTimeoutError
from hookline.execution import refuse_awaitable
from hookline.signals import ExecutionStatus

__all__ = ["run_beside"]


async def run_beside(passage: Passage, through: Awaitable[Any]) -> Any:
    """Lead a call through its chain, and let hooks that it starts on its way run beside it; all end before this does.

    Raises:
        BaseException: What `through` raises.
    """
    lanes: dict[int, deque[tuple[HookInChain, tuple[Any, ...]]]] = {}
    result: Any = None
    failure: Exception | None = None
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
        except Exception as error:  # kept out of the group, which would wrap it
            failure = error
    if failure is not None:
        raise failure
    return result


async def run_unwaited(passage: Passage, hook: HookInChain, args: tuple[Any, ...]) -> None:
    """Run a hook whose failure is only recorded."""
    if passage.recording:
        passage.started.append(hook)
    started = perf_counter_ns()
    status: ExecutionStatus = "ok"
    problem: str | None = None
    try:
        value = hook.handler(*args)
        if hook.is_async:
            await bounded_for_this_backend()(value, hook.timeout, None)
        else:
            refuse_awaitable(value)
    except Exception as raised:
        late = isinstance(raised, HandlerTimeoutError)
        error = HookTimeoutError(hook.id, hook.point, hook.timeout) if late else raised
        status, problem = "timeout" if late else "error", str(error) or type(error).__name__
        report_failure(hook.id, f"{hook.kind} {hook.point}", passage.call.operation_id, error)
    passage.note(hook, status, problem, duration_ms=(perf_counter_ns() - started) / 1e6)
