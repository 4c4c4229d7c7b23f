"""The short ways through a chain of nothing but async `around`s, on asyncio and without a budget or a run.

They do what `_onions` does, with every line left out that such a chain does not need: it is what a chain's price is
measured by, and half of that price is frames, the other half the lines in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter, perf_counter_ns, time_ns
from types import MethodType
from typing import Any, NamedTuple

from hookline._answers import again, ended, next_call, returned
from hookline._own_time import NOBODY, Clock, drive_elsewhere
from hookline._passages import ABSENT, CLOSED, FAILED, IDLE, RUNNING, Enter, HookInChain, Passage, Raised
from hookline._turns import too_late
from hookline.signals import HookExecution

__all__ = ["Around", "Outermost", "come_back", "executions_of", "short_way"]


class Around(NamedTuple):
    hook: HookInChain
    slot: int
    """Where the outcome of its `call_next` is kept."""
    call_next: Enter


Outermost = tuple[HookInChain, Callable[..., Any], int, Enter]
"""A hook, its handler, and the slot and the way of its `call_next`; plain, because a named tuple unpacks slowly."""


def short_way(arounds: Sequence[HookInChain], *, timed: bool) -> tuple[Enter, Outermost | None]:
    """The way through these hooks: slot 0 holds the outcome of the terminal, and each hook's has the next one.

    Args:
        arounds: From the outside to the inside, each async and for every call.
        timed: Whether any of them has a limit, so that passages have a clock.

    Returns:
        The whole way, which leaves the result in the passage if it is timed; and the outermost hook, for whoever calls
        that himself.
    """
    into = _timed if timed else _untimed
    innermost = arounds[-1] if arounds else None
    enter = _timed_innermost(innermost) if timed and innermost is not None else _untimed_innermost(innermost)
    outermost: Outermost | None = None
    for slot, hook in enumerate(reversed(arounds)):
        outer = arounds[-2 - slot] if slot + 1 < len(arounds) else None
        outermost = (hook, hook.handler, slot, enter)
        enter = into(Around(hook, slot, enter), outer, slot + 1)
    return enter, outermost


def executions_of(passage: Passage, arounds: Sequence[HookInChain]) -> list[HookExecution]:
    """What each hook did: where nothing special was noted of it, it is in the marks."""
    marks = passage.clock.marks if passage.clock is not None else ()
    noted: dict[int, HookExecution] = passage.executions
    call, epoch = passage.call, time_ns() - perf_counter_ns()
    operation_id, step_index = call.operation_id, getattr(call, "step_index", None)
    tool_call_id = getattr(call, "tool_call_id", None)
    executions = []
    for hook in arounds:
        start, end, inside = marks[hook.start], marks[hook.end], marks[hook.inside]
        execution = noted.get(hook.index) if noted else None
        if execution is None and start and end:
            execution = HookExecution(
                hook_id=hook.id,
                hook_type=hook.point,
                operation_id=operation_id,
                status="ok",
                duration_ms=(end - start - (marks[hook.leave] - inside if inside else 0.0)) * 1e3,
                time_unix_nano=epoch + int(start * 1e9),
                step_index=step_index,
                tool_call_id=tool_call_id,
                tenant_id=call.tenant_id,
                in_chain=True,
            )
        if execution is not None:
            executions.append(execution)
    return executions


def come_back(clock: Clock | None, hook: HookInChain | None) -> None:
    """The `call_next` of an `around` is over, and its own time goes on."""
    if clock is not None and hook is not None:
        clock.marks[hook.leave] = perf_counter()
        clock.on = hook.index
        clock.resume(hook.index)


def _timed(around: Around, outer: HookInChain | None, slot: int) -> Enter:
    """The way into an `around`, which is at the same time the `call_next` of the one right outside of it."""
    hook, inner_slot, call_next = around
    index, handler, limit, on_return = hook.index, hook.handler, hook.timeout, hook.outer
    start, end = hook.start, hook.end
    outer_limit = outer.timeout if outer is not None else math.inf
    outer_start, leave = (outer.start, outer.leave) if outer is not None else (start, hook.leave)

    async def enter(passage: Passage, call: Any) -> Any:
        clock: Clock = passage.clock  # type: ignore[assignment]
        outcomes, marks, now = passage.outcomes, clock.marks, perf_counter()
        state = outcomes[slot]
        if state is not IDLE and state is not ABSENT:
            return await again(passage, outer, slot)
        if now - marks[outer_start] > outer_limit and state is IDLE:
            raise too_late(outer)
        if not clock.stepping:
            return await drive_elsewhere(clock, enter(passage, call))
        marks[start] = now
        clock.on = index
        if call is not passage.call:
            call = next_call(passage, outer, call)
        outcomes[slot] = RUNNING
        try:
            try:
                result = await handler(call, MethodType(call_next, passage))
            except BaseException as error:
                result = await failed_in_time(passage, hook, error, inner_slot)
                now = perf_counter()
            else:
                marks[end] = now = perf_counter()
                clock.on = on_return
                if now - marks[start] > limit or (clock.special and clock.disturbed(index)):
                    result = await ended(passage, hook, None, result, inner_slot)
            if result is not outcomes[inner_slot]:
                result = await returned(passage, hook, inner_slot, result, call_next)
        except BaseException as error:
            if outcomes[inner_slot] is IDLE:
                outcomes[inner_slot] = CLOSED
            come_back(clock, outer)
            passage.settle(slot, Raised(error))
            raise
        if outer is None:
            passage.result = result
            return None
        outcomes[slot] = result
        if clock.special:
            come_back(clock, outer)
        else:
            marks[leave] = now
        if passage.finished is not None:
            passage.finished.set()
        return result

    return enter


async def failed_in_time(passage: Passage, hook: HookInChain, error: BaseException, slot: int) -> Any:
    """The end of such an `around` that raised."""
    clock = passage.clock
    if clock is not None:
        clock.marks[hook.end] = perf_counter()
        clock.on = hook.outer
    return await ended(passage, hook, error, FAILED, slot)


def _timed_innermost(outer: HookInChain) -> Enter:
    limit, start, inside, leave, index = outer.timeout, outer.start, outer.inside, outer.leave, outer.index

    async def enter(passage: Passage, call: Any) -> Any:
        clock: Clock = passage.clock  # type: ignore[assignment]
        outcomes, marks, now = passage.outcomes, clock.marks, perf_counter()
        state = outcomes[0]
        if state is not IDLE and state is not ABSENT:
            return await again(passage, outer, 0)
        if now - marks[start] > limit and state is IDLE:
            raise too_late(outer)
        if not clock.stepping:
            return await drive_elsewhere(clock, enter(passage, call))
        marks[inside] = now
        clock.on = NOBODY
        if call is not passage.call:
            call = next_call(passage, outer, call)
        outcomes[0] = RUNNING
        try:
            result = await passage.terminal(call)
        except BaseException as error:
            passage.raised = error
            come_back(clock, outer)
            passage.settle(0, Raised(error))
            raise
        marks[leave] = perf_counter()
        clock.on = index
        outcomes[0] = result
        if passage.finished is not None:
            passage.finished.set()
        return result

    return enter


def _untimed(around: Around, outer: HookInChain | None, slot: int) -> Enter:
    """As `_timed`, where no hook has a limit."""
    hook, inner_slot, call_next = around
    handler = hook.handler

    async def enter(passage: Passage, call: Any) -> Any:
        outcomes = passage.outcomes
        if outcomes[slot] is not IDLE and outcomes[slot] is not ABSENT:
            return await again(passage, outer, slot)
        if call is not passage.call:
            call = next_call(passage, outer, call)
        outcomes[slot] = RUNNING
        try:
            try:
                result = await handler(call, MethodType(call_next, passage))
            except BaseException as error:
                result = await ended(passage, hook, error, FAILED, inner_slot)
            if result is not outcomes[inner_slot]:
                result = await returned(passage, hook, inner_slot, result, call_next)
        except BaseException as error:
            if outcomes[inner_slot] is IDLE:
                outcomes[inner_slot] = CLOSED
            passage.settle(slot, Raised(error))
            raise
        outcomes[slot] = result
        if passage.finished is not None:
            passage.finished.set()
        return result

    return enter


def _untimed_innermost(outer: HookInChain | None) -> Enter:
    async def enter(passage: Passage, call: Any) -> Any:
        outcomes = passage.outcomes
        if outcomes[0] is not IDLE and outcomes[0] is not ABSENT:
            return await again(passage, outer, 0)
        if call is not passage.call:
            call = next_call(passage, outer, call)
        outcomes[0] = RUNNING
        try:
            result = await passage.terminal(call)
        except BaseException as error:
            passage.raised = error
            passage.settle(0, Raised(error))
            raise
        outcomes[0] = result
        if passage.finished is not None:
            passage.finished.set()
        return result

    return enter
