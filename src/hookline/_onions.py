"""Interceptors as one onion: sorted, and folded into one function that leads from the outermost hook to the terminal.

Compiled once per chain and class of calls. Neighbours of one kind share a frame; guards are innermost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Coroutine, Sequence
from types import MethodType
from typing import Any

from hookline._observers import awaiting, is_async_handler, matcher
from hookline._passages import RUNNING, Enter, HookInChain, Passage, Raised
from hookline.calls import CALLS, Call
from hookline.errors import HookTimeoutError
from hookline.hooks import Interceptor

__all__ = ["Onion", "Placed"]

Placed = tuple[Interceptor, object]
"""An interceptor and the lane of its bundle."""


class Onion:
    """The hooks of one class of calls and one tenant, compiled.

    Attributes:
        hooks: In order of priority, guards last.
        enter: The way through all of them.
        arounds: How many of them are `around`s.
        limits: Nanoseconds of own time per hook, and one more for nobody.
        timed: Whether any of them is limited.
        background_after: The `after` hooks that are not waited for.
    """

    __slots__ = ("arounds", "background", "background_after", "enter", "hooks", "limits", "plain", "timed")

    def __init__(self, placed: Sequence[Placed], *, hook_timeout: float) -> None:
        ordered = sorted(placed, key=lambda each: (each[0].kind == "guard", each[0].priority, each[0].tenant_id != ""))
        self.hooks = tuple(_compile(index, hook, lane, hook_timeout) for index, (hook, lane) in enumerate(ordered))
        waited = [hook for hook, (given, _) in zip(self.hooks, ordered, strict=True) if given.wait]
        unwaited = [hook for hook in self.hooks if hook not in waited]
        self.background = bool(unwaited)
        self.background_after = tuple(hook for hook in unwaited if hook.kind == "after")
        self.arounds = sum(hook.kind == "around" for hook in waited)
        self.limits = (*(hook.timeout * 1e9 for hook in self.hooks), math.inf)
        self.timed = any(limit < math.inf for limit in self.limits)
        guards = tuple(hook for hook in waited if hook.kind == "guard")
        self.enter = _innermost(guards, tuple(hook for hook in unwaited if hook.kind == "before"))
        position = self.arounds
        onion = [hook for hook in waited if hook.kind != "guard"]
        for kind, group in itertools.groupby(reversed(onion), key=lambda hook: hook.kind):
            inwards = tuple(group)
            if kind == "before":
                self.enter = _through_befores(inwards[::-1], self.enter)
            elif kind == "after":
                self.enter = _through_afters(inwards, self.enter)
            else:
                for hook in inwards:
                    position -= 1
                    self.enter = _through_around(hook, position, self.enter)


def _compile(index: int, hook: Interceptor, lane: object, hook_timeout: float) -> HookInChain:
    is_async = is_async_handler(hook.handler)
    return HookInChain(
        index=index,
        id=hook.id,
        kind=hook.kind,
        call=hook.call,
        result=CALLS[hook.call],
        handler=awaiting(hook.handler) if is_async else hook.handler,
        is_async=is_async,
        timeout=hook_timeout if hook.timeout is None else hook.timeout,
        closed=hook.on_error == "closed",
        matches=matcher(hook.tool, ""),
        lane=lane,
    )


def _innermost(guards: Sequence[HookInChain], background: Sequence[HookInChain]) -> Enter:
    async def enter(passage: Passage, call: Any) -> Any:
        for guard in guards:
            if guard.matches is not None and not guard.matches(call):
                continue
            value = await passage.ask(guard, call)
            passage.judged(guard, value)
        if passage.control is not None:
            await passage.ask_person(call)
        for hook in background:
            if hook.matches is None or hook.matches(call):
                passage.start(hook, call)
        clock = passage.clock
        before = clock.turn(len(clock.limits) - 1) if clock is not None else -1
        passage.reached = True
        try:
            return await passage.terminal(call)
        except BaseException as error:
            passage.raised = error
            raise
        finally:
            if clock is not None:
                clock.turn(before)

    return enter


def _through_befores(hooks: Sequence[HookInChain], inner: Enter) -> Enter:
    async def enter(passage: Passage, call: Any) -> Any:
        control = passage.control
        if control is None or not control.pinned:
            for hook in hooks:
                if hook.matches is not None and not hook.matches(call):
                    continue
                said = passage.heed(hook, await passage.ask(hook, call), call)
                if not isinstance(said, Call):
                    return said
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
                result = passage.final(hook, await passage.ask(hook, passage.call, result), result)
        return result

    return enter


def _through_around(hook: HookInChain, position: int, inner: Enter) -> Enter:
    call_next = _call_next(hook, position, inner)

    async def enter(passage: Passage, call: Any) -> Any:
        if hook.matches is not None and not hook.matches(call):
            return await inner(passage, call)
        value = await passage.ask(hook, call, MethodType(call_next, passage))
        return await passage.returned(hook, position, value, inner, call)

    return enter


def _call_next(hook: HookInChain, position: int, inner: Enter) -> Callable[[Passage, Any], Coroutine[Any, Any, Any]]:
    async def call_next(passage: Passage, call: Any) -> Any:
        outcomes = passage.outcomes
        if outcomes[position] is not None:
            return await passage.again(hook, position)
        if call is not passage.call:
            call = passage.next_call(hook, call)
        clock = passage.clock
        if clock is not None and passage.is_late(hook):
            raise HookTimeoutError(hook.id, hook.point, hook.timeout)
        outcomes[position] = RUNNING
        try:
            result = await passage.go_on(inner, call)
        except BaseException as error:
            outcomes[position] = Raised(error)
            raise
        else:
            outcomes[position] = result
        finally:
            if passage.finished is not None:
                passage.finished.set()
        return result

    return call_next
