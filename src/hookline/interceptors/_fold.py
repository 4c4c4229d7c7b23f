"""Fold the interceptors of a call into one chain, and run each in its turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from types import MethodType
from typing import Any, Literal, NamedTuple

import msgspec

from hookline.calls import CALLS, AgentCall, Denial, ToolCall
from hookline.errors import (
    HookDenied,
)
from hookline.execution import (
    awaiting,
    is_async_handler,
    matcher,
    refuse_awaitable,
)
from hookline.hooks import ControlInterceptor, Interceptor, Kind
from hookline.interceptors._clock import FIRST, INF, NEVER, NO_HOOK, NOBODYS, ON, Clock, drive_elsewhere
from hookline.interceptors._failures import after_error, fail, late_call_next_error, ran_too_long, timeout_error
from hookline.interceptors._return_values import (
    apply_after,
    apply_around,
    apply_before,
    apply_guard,
    apply_to_approved,
    judges_approved,
    next_call,
    outcome_of,
    repeat_call_next,
)
from hookline.interceptors._shadow import run_shadows
from hookline.interceptors._text_judge import check_released
from hookline.interceptors._traversal import (
    ABSENT,
    CLOSED,
    FAILED,
    IDLE,
    NO_RESULT,
    RUNNING,
    CompiledInterceptor,
    NextStep,
    Raised,
    RunPolicy,
    Traversal,
)

__all__ = [
    "CompiledChain",
    "Placed",
    "first_unheard",
]

Turn = tuple[CompiledInterceptor, Callable[..., Any], bool, Callable[[Any], object] | None, int, int, int, float]
"""A hook with what its turn reads, as one unpacked tuple is cheaper than seven attributes: the hook, its handler,
whether that is async, its filter, its index, the marks of its begin and its end, and its timeout."""


def turns_of(hooks: Iterable[CompiledInterceptor]) -> tuple[Turn, ...]:
    """Return the turns of some hooks, in their order."""
    return tuple(
        (hook, hook.handler, hook.is_async, hook.matches, hook.index, hook.start, hook.end, hook.timeout)
        for hook in hooks
    )


async def run_turns(
    traversal: Traversal, turns: Sequence[Turn], apply: Callable[..., Any], outer: int, result: Any = NO_RESULT
) -> Any:
    """Run hooks of one kind one after the other, and apply what each returns.

    Args:
        traversal: The call.
        turns: The hooks.
        apply: `apply_before`, `apply_guard` or `apply_after`. It is called only if there is something to apply.
        outer: Index of the `around` that they are inside of.
        result: For `after` hooks, the result so far.

    Returns:
        The answer of a `before` that answers, the result of `after` hooks, otherwise `None`.

    Raises:
        HookDenied: If one denied the call, or failed and fails closed.
        BaseException: A cancellation.
    """
    clock, watch, started = traversal.clock, traversal.watch, traversal.started
    marks, limited = clock.marks, clock.limited
    now = perf_counter()
    for hook, handler, is_async, matches, index, start, end, timeout in turns:
        if matches is not None and not matches(traversal.call):
            continue
        if watch.halted or limited:
            marks[ON] = outer
            starts = await may_start(traversal, hook)
            now = perf_counter()
            if not starts:
                continue
        if started is not None:
            started.append(hook)
        marks[start] = began = now  # the end of the hook before: one look at the time per hook
        marks[ON] = index
        try:
            value = handler(traversal.call) if result is NO_RESULT else handler(traversal.call, result)
            if is_async:
                value = await (clock.bounded(index, value) if clock.scoped else value)
            elif value is not None:
                refuse_awaitable(value)
        except BaseException as error:
            marks[end] = now = perf_counter()
            marks[ON] = outer
            value = finish_turn(traversal, hook, error, None)
        else:
            marks[end] = now = perf_counter()
            if now - began > timeout or clock.special:
                marks[ON] = outer
                value = finish_turn(traversal, hook, None, value)
        if value is not None or traversal.announcing:
            marks[ON] = outer
            if result is not NO_RESULT:
                result = apply(traversal, hook, value, result)
            elif (answer := apply(traversal, hook, value)) is not None:
                return answer
            now = perf_counter()
    marks[ON] = outer
    return None if result is NO_RESULT else result


async def may_start(traversal: Traversal, hook: CompiledInterceptor) -> bool:
    """Return whether a hook may start. If the budget is used up, it fails by its policy.

    Raises:
        HookDenied: If it fails closed.
        BaseException: The cancellation, if the run was interrupted.
    """
    if traversal.watch.halted and traversal.policy is not None:
        await traversal.policy.stop()
    clock = traversal.clock
    if not clock.limited or clock.spent(perf_counter()) < clock.budget:
        return True
    fail(traversal, hook, timeout_error(traversal, hook), None)
    return False


def finish_turn(traversal: Traversal, hook: CompiledInterceptor, error: BaseException | None, value: Any) -> Any:
    """End a turn that raised, or may have taken too long.

    Returns:
        What the hook returned; `FAILED` if it failed and fails open.
    """
    if ran_too_long(traversal, hook, error):
        return fail(traversal, hook, timeout_error(traversal, hook), "timeout")
    return value if error is None else after_error(traversal, hook, error)


async def consult_run(traversal: Traversal, policy: RunPolicy, call: Any) -> None:
    """Let the run of a call have its say, after all hooks: it may be interrupted, or a person must decide.

    Raises:
        HookDenied: If a person must decide although no hook said so.
        BaseException: The cancellation, if the run was interrupted.
    """
    if traversal.watch.halted:
        await policy.stop()
    if policy.ask is None or policy.approved or (asking := policy.ask(call)) is None:
        return
    asked = await asking
    if asked is not None:
        traversal.asked = asked
        traversal.denied = Denial(hook_id="", reason=asked.prompt)
        traversal.refusal = HookDenied("", asked.prompt)
        raise traversal.refusal


async def finish_around(
    traversal: Traversal, hook: CompiledInterceptor, error: BaseException | None, value: Any, slot: int
) -> Any:
    """End the turn of an `around` that raised, or may have taken too long.

    Returns:
        What it returned; `FAILED` if it failed and fails open.
    """
    late = ran_too_long(traversal, hook, error)
    if traversal.outcomes[slot] is RUNNING and (late or isinstance(error, Exception)):
        await outcome_of(traversal, slot)
    if late:
        return fail(traversal, hook, timeout_error(traversal, hook), "timeout")
    return value if error is None else after_error(traversal, hook, error)


Placed = tuple[Interceptor, object]
"""An interceptor and the lane of its bundle."""


class CompiledChain:
    """The hooks of one class of calls and one tenant, compiled.

    Args:
        ordered: The hooks, from the outermost to the innermost.
        hook_timeout: Limit of own time in seconds for hooks that have none.

    Attributes:
        hooks: In the same order.
        enter: Leads a call from the outermost hook to the terminal and back.
        idle: The outcomes that a traversal begins with: one for the terminal, one for each `call_next`.
        marks: What a clock begins with: the hook on it, `NEVER`, `NOBODYS`, and four marks per hook.
        background: Whether any of them is not waited for, shadow hooks among them.
        background_after: The `after` hooks that are not waited for.
        takes_context: Whether the hooks can add context for the model to the calls.
        part_hooks: The hooks that judge text in parts, from the inside to the outside; empty if any other hook can
            change or withhold a result.
        waits: Whether any of them may wait: it is async, or it runs beside the call.
    """

    __slots__ = (
        "background",
        "background_after",
        "enter",
        "hooks",
        "idle",
        "marks",
        "part_hooks",
        "takes_context",
        "waits",
    )

    def __init__(self, ordered: Sequence[Placed], *, hook_timeout: float) -> None:
        places, innermost_around = place_marks([hook for hook, _ in ordered])
        self.hooks = tuple(
            compile_interceptor(index, *ordered[index], places[index], hook_timeout=hook_timeout)
            for index in range(len(ordered))
        )
        self.marks = [NO_HOOK, 0.0, 0.0, *[0.0, 0.0, 0.0, 0.0] * len(ordered)]
        pairs = list(zip(self.hooks, ordered, strict=True))
        waited = [hook for hook, (given, _) in pairs if given.wait]
        enforced = [hook for hook in waited if hook.alone is None]
        background = [hook for hook, (given, _) in pairs if not given.wait]
        self.background = bool(background) or len(enforced) < len(waited)
        self.waits = self.background or any(hook.is_async for hook in self.hooks)
        self.takes_context = bool(enforced) and enforced[0].call in (ToolCall, AgentCall)
        self.background_after = tuple(hook for hook in reversed(background) if hook.kind == "after")
        holding = [hook for hook, (given, _) in pairs if given.hold_text and hook in enforced]
        judges = [hook for hook in reversed(holding) if hook.kind in ("after", "around")]
        self.part_hooks = tuple(judges) if all(hook.parts is not None for hook in judges) else ()
        layers = [hook for hook in waited if hook.kind != "guard"]
        self.idle: list[Any] = [IDLE]
        guards = [hook for hook in waited if hook.kind == "guard"]
        beside = [hook for hook in background if hook.kind == "before"]
        innermost: NextStep | None = None
        if guards or beside or not layers or layer_of(layers[-1]) != "around":
            innermost = fold_guards(guards, beside, innermost_around)
        self.enter = self._fold(layers, innermost)

    def _fold(self, layers: Sequence[CompiledInterceptor], innermost: NextStep | None) -> NextStep:
        """Wrap the innermost step into the hooks, from the inside to the outside.

        Args:
            layers: The hooks, from the outside to the inside.
            innermost: The guards and the terminal; `None` where an `around` has nothing but the terminal inside.
        """
        enter = innermost
        inside: Around | None = None
        for kind, group in itertools.groupby(reversed(layers), key=layer_of):
            inwards = tuple(group)
            if kind == "around":
                for hook in inwards:
                    slot = self._slot()
                    call_next = enter_around(inside, hook, slot) if inside else call_next_of(hook, slot, enter)
                    inside = Around(hook, slot, call_next)
                continue
            if inside is not None:
                enter, inside = enter_around(inside, None, self._slot()), None
            assert enter is not None
            if kind == "shadow":
                enter = run_shadows(inwards[::-1], enter)
            else:
                enter = run_befores(inwards[::-1], enter) if kind == "before" else run_afters(inwards, enter)
        if inside is not None:
            return enter_around(inside, None, self._slot())
        assert enter is not None
        return enter

    def _slot(self) -> int:
        """Return the place of one more outcome."""
        self.idle.append(IDLE)
        return len(self.idle) - 1


def layer_of(hook: CompiledInterceptor) -> Kind | Literal["shadow"]:
    """Return the kind of the layer that a hook belongs to."""
    return hook.kind if hook.alone is None else "shadow"


class _Places(NamedTuple):
    """The `outer` hook and the marks of a `CompiledInterceptor`."""

    outer: int
    start: int
    end: int
    inside: int
    leave: int


def place_marks(ordered: Sequence[Interceptor]) -> tuple[list[_Places], int]:
    """Give each hook four marks. An `around` right inside of another one begins where the other's `call_next` does.

    Returns:
        The places of each hook, and the index of the innermost `around`; `NO_HOOK` if there is none.
    """
    layers = [index for index, hook in enumerate(ordered) if hook.wait and not hook.shadow and hook.kind != "guard"]
    following = dict(itertools.pairwise(layers))
    places, outer = [], NO_HOOK
    for index, hook in enumerate(ordered):
        start = FIRST + 4 * index
        inside = leave = NEVER
        around = hook.kind == "around" and not hook.shadow
        if around:
            inner = following.get(index)
            inside = FIRST + 4 * inner if inner is not None and ordered[inner].kind == "around" else start + 2
            leave = start + 3
        places.append(_Places(outer, start, start + 1, inside, leave))
        if around:
            outer = index
    return places, outer


def compile_interceptor(
    index: int, hook: Interceptor, lane: object, places: _Places, *, hook_timeout: float
) -> CompiledInterceptor:
    """Decide everything about an interceptor that does not depend on the call."""
    is_async = hook.kind == "around" or is_async_handler(hook.handler)
    return CompiledInterceptor(
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
        alone=compile_alone(hook, lane, hook_timeout=hook_timeout) if hook.shadow and hook.wait else None,
        parts=None if hook.shadow else hook.parts,
        part_chain=compile_alone(hook, lane, hook_timeout=hook_timeout) if hook.parts and not hook.shadow else None,
        revision=hook.revision,
        **places._asdict(),
    )


def compile_alone(hook: Interceptor, lane: object, *, hook_timeout: float) -> CompiledChain:
    """Compile a chain in which a hook is the only one, decides, and judges what it is given as a whole."""
    return CompiledChain([(msgspec.structs.replace(hook, shadow=False, parts=None), lane)], hook_timeout=hook_timeout)


def first_unheard(compiled: CompiledChain, policy: RunPolicy) -> int:
    """Return the index of the first hook that had not judged a call when a person was asked about it."""
    if policy.asked_by is None:
        return len(compiled.hooks)
    asked_by, nth = policy.asked_by
    askers = [hook.index for hook in compiled.hooks if hook.id == asked_by][: nth + 1]
    return askers[-1] + 1 if askers else 0


def fold_guards(
    guards: Sequence[CompiledInterceptor], background: Sequence[CompiledInterceptor], outer: int
) -> NextStep:
    """Make the innermost steps, in which shadow guards stand between the guards.

    Args:
        guards: The guards.
        background: The `before` hooks that are not waited for.
        outer: Index of the innermost `around`.
    """
    groups = [(kind, tuple(group)) for kind, group in itertools.groupby(guards, key=layer_of)]
    last = groups.pop()[1] if groups and groups[-1][0] == "guard" else ()
    enter = run_guards_and_terminal(last, background, outer)
    for kind, group in reversed(groups):
        enter = run_shadows(group, enter) if kind == "shadow" else run_guards(group, enter, outer)
    return enter


def run_guards(guards: Sequence[CompiledInterceptor], inner: NextStep, outer: int) -> NextStep:
    """Make the step of guards that stand outside of shadow guards."""
    turns = turns_of(guards)

    async def enter(traversal: Traversal, call: Any) -> Any:
        await run_turns(traversal, turns, apply_guard, outer)
        return await inner(traversal, call)

    return enter


def run_guards_and_terminal(
    guards: Sequence[CompiledInterceptor], background: Sequence[CompiledInterceptor], outer: int
) -> NextStep:
    """Make the innermost step: the guards, a person if one must be asked, and the terminal.

    Args:
        guards: The guards.
        background: The `before` hooks that are not waited for, which start beside the terminal.
        outer: Index of the innermost `around`.
    """
    turns = turns_of(guards)

    async def enter(traversal: Traversal, call: Any) -> Any:
        if turns:
            await run_turns(traversal, turns, apply_guard, outer)
        policy, marks = traversal.policy, traversal.clock.marks
        if policy is not None:
            await consult_run(traversal, policy, call)
        if background and (policy is None or not policy.resumed):
            for hook in background:
                if hook.matches is None or hook.matches(call):
                    traversal.start(hook, call)
        marks[ON] = NO_HOOK
        traversal.outcomes[0] = RUNNING
        try:
            return await traversal.terminal(call)
        except BaseException as error:
            traversal.raised = error
            raise
        finally:
            marks[ON] = outer

    return enter


def run_befores(hooks: Sequence[CompiledInterceptor], inner: NextStep) -> NextStep:
    """Make the step of `before` hooks that stand next to each other."""
    turns, outer = turns_of(hooks), hooks[0].outer

    async def enter(traversal: Traversal, call: Any) -> Any:
        if traversal.pinned:
            theirs = [turn for turn in turns if judges_approved(traversal, turn[0])]
            answer = await run_turns(traversal, theirs, apply_to_approved, outer)
        else:
            answer = await run_turns(traversal, turns, apply_before, outer)
        return await inner(traversal, traversal.call) if answer is None else answer

    return enter


def run_afters(hooks: Sequence[CompiledInterceptor], inner: NextStep) -> NextStep:
    """Make the step of `after` hooks that stand next to each other."""
    turns, outer = turns_of(hooks), hooks[0].outer
    if any(hook.parts is not None for hook in hooks):
        return run_part_afters(hooks, turns, inner)

    async def enter(traversal: Traversal, call: Any) -> Any:
        result = await inner(traversal, call)
        if traversal.superseded or (traversal.policy is not None and traversal.policy.suspended):
            return result
        return await run_turns(traversal, turns, apply_after, outer, result)

    return enter


def run_part_afters(hooks: Sequence[CompiledInterceptor], turns: Sequence[Turn], inner: NextStep) -> NextStep:
    """Make the step of `after` hooks of which some have judged the answer in parts before."""
    outer = hooks[0].outer

    async def enter(traversal: Traversal, call: Any) -> Any:
        result = await inner(traversal, call)
        if traversal.superseded or (traversal.policy is not None and traversal.policy.suspended):
            return result
        for hook, turn in zip(hooks, turns, strict=True):
            result = await run_turns(traversal, (turn,), apply_after, outer, result)
            if traversal.released is not None:
                check_released(traversal, hook, result)
        return result

    return enter


class Around(NamedTuple):
    """An `around` and its way inside.

    Attributes:
        hook: The hook.
        slot: Where the outcome of its `call_next` is kept.
        call_next: What that does.
    """

    hook: CompiledInterceptor
    slot: int
    call_next: NextStep


def call_next_of(hook: CompiledInterceptor, slot: int, inner: NextStep | None) -> NextStep:
    """Make the `call_next` of an `around` that has no other right inside of it.

    Args:
        hook: The `around`.
        slot: Where the outcome of its `call_next` is kept.
        inner: What is inside; `None` for nothing but the terminal, which is a frame less for the commonest chain.
    """
    index, start, inside, leave, limit = hook.index, hook.start, hook.inside, hook.leave, hook.timeout

    async def call_next(traversal: Traversal, call: Any) -> Any:
        clock, outcomes, now = traversal.clock, traversal.outcomes, perf_counter()
        marks, state = clock.marks, outcomes[slot]
        if state is not IDLE or clock.special or now - marks[start] > limit:
            if state is not IDLE and state is not ABSENT:
                return await repeat_call_next(traversal, hook, slot)
            if state is IDLE and (
                now - marks[start] > limit or clock.expired == index or (clock.scoped and clock.is_stopping(index))
            ):
                raise late_call_next_error(hook)
            if not clock.stepping:
                return await drive_elsewhere(clock, call_next(traversal, call))
            if clock.scoped:
                clock.pause(index)
        marks[inside] = now
        if call is not traversal.call:
            call = next_call(traversal, hook, call)
        outcomes[slot] = RUNNING
        try:
            if inner is not None:
                result = await inner(traversal, call)
            else:
                if traversal.policy is not None:
                    await consult_run(traversal, traversal.policy, call)
                marks[ON] = NO_HOOK
                outcomes[0] = RUNNING
                result = await traversal.terminal(call)
        except BaseException as error:
            if inner is None and outcomes[0] is RUNNING:
                traversal.raised = error
            come_back(clock, hook)
            traversal.settle(slot, Raised(error))
            raise
        outcomes[slot] = result
        marks[leave] = perf_counter()
        marks[ON] = index
        if clock.scoped:
            clock.resume(index)
        if traversal.finished is not None:
            traversal.finished.set()
        return result

    return call_next


def enter_around(around: Around, outer: CompiledInterceptor | None, slot: int) -> NextStep:
    """Make the way into an `around`, which is also the `call_next` of the one right outside of it, if any.

    One frame does both, and runs the handler itself: at five `around`s each frame more is a fifth of what they cost
    (`bench_chains`, `bench_hooked_runs`).
    """
    hook, inner_slot, call_next = around
    handler, matches, index, limit = hook.handler, hook.matches, hook.index, hook.timeout
    start, end, on_return = hook.start, hook.end, hook.outer
    outer_limit, outer_start, leave, outer_index = INF, start, NOBODYS, NO_HOOK
    if outer is not None:
        outer_limit, outer_start, leave, outer_index = outer.timeout, outer.start, outer.leave, outer.index

    async def enter(traversal: Traversal, call: Any) -> Any:
        clock, outcomes, now = traversal.clock, traversal.outcomes, perf_counter()
        marks, state = clock.marks, outcomes[slot]
        if state is not IDLE or clock.special or now - marks[outer_start] > outer_limit:
            if state is not IDLE and state is not ABSENT:
                return await repeat_call_next(traversal, outer, slot)
            if state is IDLE and (
                now - marks[outer_start] > outer_limit
                or clock.expired == outer_index
                or (clock.scoped and clock.is_stopping(outer_index))
            ):
                raise late_call_next_error(outer)
            if not clock.stepping:
                return await drive_elsewhere(clock, enter(traversal, call))
            if clock.scoped:
                clock.pause(outer_index)
        marks[start] = now
        if call is not traversal.call:
            call = next_call(traversal, outer, call)
        outcomes[slot] = RUNNING
        try:
            if (matches is not None and not matches(call)) or (
                traversal.watched
                and (
                    (index < traversal.unheard_from and not hook.control)
                    or ((traversal.watch.halted or clock.limited) and not await may_start(traversal, hook))
                )
            ):
                marks[end] = now  # it does not run, so that none of the time is its own
                result = await call_next(traversal, call)
                marks[ON] = on_return
                now = perf_counter()
            else:
                if traversal.started is not None:
                    traversal.started.append(hook)
                marks[ON] = index
                try:
                    running = handler(call, MethodType(call_next, traversal))
                    result = await (clock.bounded(index, running) if clock.scoped else running)
                except BaseException as error:
                    marks[end] = perf_counter()
                    marks[ON] = on_return
                    result = await finish_around(traversal, hook, error, FAILED, inner_slot)
                else:
                    marks[end] = now = perf_counter()
                    marks[ON] = on_return
                    if now - marks[start] > limit or (clock.special and clock.disturbed()):
                        result = await finish_around(traversal, hook, None, result, inner_slot)
                        marks[ON] = on_return
                        now = perf_counter()
                if result is not outcomes[inner_slot]:
                    result = await apply_around(traversal, hook, inner_slot, result, call_next)
                    marks[ON] = on_return
                    now = perf_counter()
                elif traversal.announcing:
                    traversal.note(hook, "ok")
        except BaseException as error:
            if outcomes[inner_slot] is IDLE:
                outcomes[inner_slot] = CLOSED
            if outer is not None:
                come_back(clock, outer)
            traversal.settle(slot, Raised(error))
            raise
        outcomes[slot] = result
        marks[leave] = now
        if clock.scoped:
            clock.resume(outer_index)
        if traversal.finished is not None:
            traversal.finished.set()
        return result

    return enter


def come_back(clock: Clock, hook: CompiledInterceptor) -> None:
    """Let the own time of an `around` go on: its `call_next` is over."""
    clock.marks[hook.leave] = perf_counter()
    clock.marks[ON] = hook.index
    clock.resume(hook.index)
