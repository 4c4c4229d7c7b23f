"""Interceptors as one onion: sorted, and folded into one function that leads from the outermost hook to the terminal.

Compiled once per chain and class of calls. Neighbours of one kind share a frame; guards are innermost.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from inspect import isawaitable
from time import perf_counter
from types import MethodType
from typing import Any, NamedTuple

from hookline._answers import (
    again,
    ask_person,
    ended,
    final,
    heed,
    judged,
    keep_approved,
    next_call,
    object_to,
    returned,
)
from hookline._own_time import NOBODY, drive_elsewhere
from hookline._passages import ABSENT, CLOSED, FAILED, IDLE, RUNNING, Enter, HookInChain, Passage, Raised
from hookline._short_ways import Around, Outermost, come_back, short_way
from hookline._turns import admits, ask, too_late
from hookline.calls import CALLS, Call
from hookline.errors import HookDefinitionError
from hookline.execution import awaiting, is_async_handler, matcher
from hookline.hooks import ControlInterceptor, Interceptor

__all__ = ["Onion", "Placed", "check_depth"]

MAX_AROUNDS = 100
"""Each takes up to seven frames (with a `before` and an `after` between two of them), and Python has a thousand."""

Placed = tuple[Interceptor, object]
"""An interceptor and the lane of its bundle."""


class Onion:
    """The hooks of one class of calls and one tenant, compiled.

    Attributes:
        hooks: In order of priority, guards last.
        enter: The way through all of them.
        plain: A shorter way on asyncio, where there is no budget and no run to look after; `None` if there
            is none.
        outermost: The first hook of that way: itself, its handler, and the slot and the way of its `call_next`.
        slots: How many outcomes a passage keeps; the first is the terminal's.
        idle: The outcomes that a passage begins with.
        marks: What a clock begins with.
        timed: Whether their times matter: one of them is limited, or they are to be recorded.
        background: Whether any of them is not waited for.
        background_after: The `after` hooks that are not waited for.
    """

    __slots__ = (
        "background",
        "background_after",
        "enter",
        "hooks",
        "idle",
        "marks",
        "outermost",
        "plain",
        "slots",
        "timed",
    )

    def __init__(self, placed: Sequence[Placed], *, hook_timeout: float, record: bool = False) -> None:
        ordered = sorted(placed, key=lambda each: (each[0].kind == "guard", each[0].priority, each[0].tenant_id != ""))
        places = _places([hook for hook, _ in ordered])
        self.hooks = tuple(
            _compile(index, *ordered[index], places[index], hook_timeout=hook_timeout) for index in range(len(ordered))
        )
        self.marks = [0.0] * (4 * len(ordered))
        pairs = list(zip(self.hooks, ordered, strict=True))
        waited = [hook for hook, (given, _) in pairs if given.wait]
        unwaited = [hook for hook, (given, _) in pairs if not given.wait]
        self.background = bool(unwaited)
        self.background_after = tuple(hook for hook in reversed(unwaited) if hook.kind == "after")
        self.timed = record or any(hook.timeout < math.inf for hook in self.hooks)
        guards = tuple(hook for hook in waited if hook.kind == "guard")
        onion = [hook for hook in waited if hook.kind != "guard"]
        arounds = [hook for hook in onion if hook.kind == "around"]
        self.slots = 1  # the first is for the terminal
        innermost = _innermost(
            guards,
            tuple(hook for hook in unwaited if hook.kind == "before"),
            arounds[-1].index if arounds else NOBODY,
        )
        self.enter = self._fold(onion, innermost)
        simple = not guards and not unwaited and len(arounds) == len(onion)
        simple = simple and all(hook.is_async and hook.matches is None for hook in onion)
        self.plain: Enter | None = None
        self.outermost: Outermost | None = None
        if simple:
            self.plain, self.outermost = short_way(arounds, timed=self.timed)
        self.idle = [IDLE] * self.slots

    def _fold(self, onion: Sequence[HookInChain], innermost: Enter) -> Enter:
        """From the inside to the outside."""
        enter = innermost
        inside: Around | None = None
        for kind, group in itertools.groupby(reversed(onion), key=lambda hook: hook.kind):
            inwards = tuple(group)
            if kind == "around":
                for hook in inwards:
                    slot = self._slot()
                    call_next = _into(inside, hook, slot) if inside else _call_next(hook, slot, enter)
                    inside = Around(hook, slot, call_next)
                continue
            if inside is not None:
                enter, inside = _into(inside, None, self._slot()), None
            enter = _through_befores(inwards[::-1], enter) if kind == "before" else _through_afters(inwards, enter)
        return enter if inside is None else _into(inside, None, self._slot())

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1


class _Places(NamedTuple):
    """Where a hook stands and where its times are marked; see `HookInChain`."""

    outer: int
    start: int
    end: int
    inside: int
    leave: int


def _places(ordered: Sequence[Interceptor]) -> list[_Places]:
    """Four marks per hook. An `around` right inside of another one begins where the other one's `call_next` does."""
    onion = [index for index, hook in enumerate(ordered) if hook.wait and hook.kind != "guard"]
    following = dict(itertools.pairwise(onion))
    places, outer = [], NOBODY
    for index, hook in enumerate(ordered):
        start = 4 * index
        inside = leave = NOBODY
        around = hook.kind == "around"
        if around:
            inner = following.get(index)
            inside = 4 * inner if inner is not None and ordered[inner].kind == "around" else start + 2
            leave = start + 3
        places.append(_Places(outer, start, start + 1, inside, leave))
        if around:
            outer = index
    return places


def check_depth(hooks: Iterable[Interceptor]) -> None:
    """Refuse more `around`s around one call than Python's stack holds.

    Raises:
        HookDefinitionError: That names the class of calls.
    """
    counts = Counter((hook.call, hook.tenant_id) for hook in hooks if hook.kind == "around")
    for call, tenant in counts:
        if counts[call, tenant] + (counts[call, ""] if tenant else 0) > MAX_AROUNDS:
            raise HookDefinitionError(
                f"Chain for {call.__name__}",
                f"more than {MAX_AROUNDS} `around` hooks: they are nested calls, and Python's stack ends; use "
                "`before`, `guard` and `after`, of which there may be many more",
            )


def _compile(index: int, hook: Interceptor, lane: object, places: _Places, *, hook_timeout: float) -> HookInChain:
    is_async = is_async_handler(hook.handler)
    return HookInChain(
        index=index,
        id=hook.id,
        kind=hook.kind,
        control=isinstance(hook, ControlInterceptor),
        call=hook.call,
        point=hook.call.__name__,
        result=CALLS[hook.call],
        handler=awaiting(hook.handler) if is_async else hook.handler,
        is_async=is_async,
        timeout=hook_timeout if hook.timeout is None else hook.timeout,
        closed=hook.on_error == "closed",
        matches=matcher(hook.tool, ""),
        lane=lane,
        **places._asdict(),
    )


def _innermost(guards: Sequence[HookInChain], background: Sequence[HookInChain], outer: int) -> Enter:
    async def enter(passage: Passage, call: Any) -> Any:
        for guard in guards:
            if guard.matches is None or guard.matches(call):
                judged(passage, guard, await ask(passage, guard, call))
        control = passage.control
        if control is not None:
            await ask_person(passage, call)
        if control is None or not control.resumed:
            for hook in background:
                if hook.matches is None or hook.matches(call):
                    passage.start(hook, call)
        clock = passage.clock
        if clock is not None:
            clock.on = NOBODY
        passage.outcomes[0] = RUNNING
        try:
            result = await passage.terminal(call)
        except BaseException as error:
            passage.raised = error
            raise
        finally:
            if clock is not None:
                clock.on = outer
        return result

    return enter


def _through_befores(hooks: Sequence[HookInChain], inner: Enter) -> Enter:
    async def enter(passage: Passage, call: Any) -> Any:
        control = passage.control
        for hook in hooks:
            if hook.matches is not None and not hook.matches(call):
                continue
            if control is not None and control.pinned and not (hook.control and control.decided):
                # What a person approved is not rewritten; but who was not heard before may still refuse it.
                if control.decided and hook.index >= passage.unheard_from:
                    object_to(passage, hook, await ask(passage, hook, call))
                continue
            said = heed(passage, hook, await ask(passage, hook, call), call)
            if not isinstance(said, Call):
                return said
            if control is not None and control.pinned:
                said = keep_approved(passage, hook, call, said)
            call = said
        return await inner(passage, call)

    return enter


def _through_afters(hooks: Sequence[HookInChain], inner: Enter) -> Enter:
    async def enter(passage: Passage, call: Any) -> Any:
        result = await inner(passage, call)
        if passage.control is not None and passage.control.suspended:
            return result
        for hook in hooks:
            if hook.matches is None or hook.matches(passage.call):
                result = final(passage, hook, await ask(passage, hook, passage.call, result), result)
        return result

    return enter


def _call_next(hook: HookInChain, slot: int, inner: Enter) -> Enter:
    """The `call_next` of an `around` that has no other right inside of it."""
    index, start, inside, leave, limit = hook.index, hook.start, hook.inside, hook.leave, hook.timeout

    async def call_next(passage: Passage, call: Any) -> Any:
        state, clock = passage.outcomes[slot], passage.clock
        if state is not IDLE and state is not ABSENT:
            return await again(passage, hook, slot)
        if clock is not None:
            now = perf_counter()
            if state is IDLE and (now - clock.marks[start] > limit or clock.expired == index):
                raise too_late(hook)
            clock.marks[inside] = now
            if clock.scoped:
                clock.pause(index)
        if call is not passage.call:
            call = next_call(passage, hook, call)
        passage.outcomes[slot] = RUNNING
        try:
            if clock is None or clock.stepping:
                result = await inner(passage, call)
            else:
                result = await drive_elsewhere(clock, inner(passage, call))
        except BaseException as error:
            come_back(clock, hook)
            passage.settle(slot, Raised(error))
            raise
        if clock is not None:
            clock.marks[leave] = perf_counter()
            clock.on = index
            if clock.scoped:
                clock.resume(index)
        passage.settle(slot, result)
        return result

    return call_next


def _into(around: Around, outer: HookInChain | None, slot: int) -> Enter:
    """The way into an `around`, which is at the same time the `call_next` of the one right outside of it, if any.

    One frame for both, because frames are most of what a chain costs.
    """
    hook, inner_slot, call_next = around
    matches, start, on_return = hook.matches, hook.start, hook.outer
    outer_limit = outer.timeout if outer is not None else math.inf
    outer_start = outer.start if outer is not None else start

    async def enter(passage: Passage, call: Any) -> Any:
        outcomes, clock = passage.outcomes, passage.clock
        state = outcomes[slot]
        if state is not IDLE and state is not ABSENT:
            return await again(passage, outer, slot)
        if clock is not None:
            marks, now = clock.marks, perf_counter()
            if outer is not None and state is IDLE:
                if now - marks[outer_start] > outer_limit or clock.expired == on_return:
                    raise too_late(outer)
                if not clock.stepping:
                    return await drive_elsewhere(clock, enter(passage, call))
                if clock.scoped:
                    clock.pause(on_return)
            marks[start] = now
        if call is not passage.call:
            call = next_call(passage, outer, call)
        outcomes[slot] = RUNNING
        try:
            if (
                (matches is not None and not matches(call))
                or (hook.index < passage.unheard_from and not hook.control)
                or (passage.watched and not await admits(passage, hook))
            ):
                result = await call_next(passage, call)
            else:
                result = await _run_around(passage, around, call)
        except BaseException as raised:
            if outcomes[inner_slot] is IDLE:
                outcomes[inner_slot] = CLOSED
            come_back(clock, outer)
            passage.settle(slot, Raised(raised))
            raise
        come_back(clock, outer)
        passage.settle(slot, result)
        return result

    return enter


async def _run_around(passage: Passage, around: Around, call: Any) -> Any:
    """An `around` itself, and what it came to."""
    hook, slot, call_next = around
    clock = passage.clock
    result: Any = FAILED
    error: BaseException | None = None
    if passage.recording:
        passage.started.append(hook)
    try:
        result = hook.handler(call, MethodType(call_next, passage))
        if clock is not None:
            clock.on = hook.index
            result = await (result if hook.is_async and not clock.scoped else clock.bounded(hook.index, result))
        elif isawaitable(result):
            result = await result
    except BaseException as raised:
        error, result = raised, FAILED
    late = False
    if clock is not None:
        clock.marks[hook.end] = now = perf_counter()
        clock.on = hook.outer
        late = clock.special or now - clock.marks[hook.start] > hook.timeout
    if late or error is not None:
        result = await ended(passage, hook, error, result, slot)
    if result is not passage.outcomes[slot]:
        return await returned(passage, hook, slot, result, call_next)
    passage.note(hook, "ok")
    return result
