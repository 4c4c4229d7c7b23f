"""Fold the interceptors of a call into one chain, run each in its turn, and apply what it answers."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from time import perf_counter, perf_counter_ns, time_ns
from types import MethodType
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.lowlevel
import msgspec

from hookline._checks import quote
from hookline._deadlines import HandlerCancelledError, own_cancellation, runs_on_asyncio
from hookline.calls import CALLS, Ask, Call, Continue, Denial, Deny, Respond
from hookline.errors import (
    HookDefinitionError,
    HookDenied,
    HookExecutionError,
    HookReturnError,
    HookTimeoutError,
    HookUsageError,
)
from hookline.execution import (
    announce_execution,
    awaiting,
    describe_failure,
    is_async_handler,
    matcher,
    refuse_awaitable,
    report_failure,
)
from hookline.hooks import ControlInterceptor, Interceptor, Kind
from hookline.interceptors._clock import NO_HOOK, NOT_EXPIRED, Clock, drive_elsewhere
from hookline.interceptors._validate import check_changed, check_result, result_of
from hookline.signals import ExecutionStatus, HookExecution

__all__ = [
    "NEVER_INTERRUPTED",
    "CompiledChain",
    "CompiledInterceptor",
    "Interruptible",
    "NextStep",
    "Placed",
    "RunPolicy",
    "Terminal",
    "Traversal",
    "check_depth",
    "executions_of",
    "first_unheard",
]

Terminal = Callable[[Any], Awaitable[Any]]
"""What a chain wraps: `async (call) -> result`."""

INF = math.inf


class CompiledInterceptor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An interceptor as a chain runs it, with everything decided that can be decided before a call comes.

    Attributes:
        index: Its place among the hooks of its chain for one class of calls.
        id: The interceptor's id.
        kind: How it wraps the call.
        control: Whether it judges an approved call again: see `ControlInterceptor`.
        call: The class of the calls.
        point: Its name, for records and errors.
        result: The class of their results.
        handler: For an async one, and for every `around`, a function that always returns a coroutine.
        is_async: Whether the handler returns a coroutine.
        timeout: Seconds of own time.
        closed: Whether its failure denies the call.
        matches: Whether a call is for this hook; `None` if every one is.
        lane: The lane of its bundle, for one that is not waited for.
        outer: Index of the `around` that it is inside of; `NO_HOOK` for none.
        start: Where the clock marks its begin.
        end: Where it marks its end.
        inside: Where it marks the begin of its `call_next`; `NO_HOOK` for a hook that has none.
        leave: Where it marks the end of that.
    """

    index: int
    id: str
    kind: Kind
    control: bool
    call: type[Call]
    point: str
    result: type[msgspec.Struct]
    handler: Callable[..., Any]
    is_async: bool
    timeout: float
    closed: bool
    matches: Callable[[Any], object] | None
    lane: object
    outer: int
    start: int
    end: int
    inside: int
    leave: int


class Interruptible(Protocol):
    """A run that somebody may interrupt."""

    @property
    def halted(self) -> bool:
        """Whether nothing further of the run may start."""
        ...


class _NeverInterrupted:
    halted = False


NEVER_INTERRUPTED: Interruptible = _NeverInterrupted()
"""Stands for the run of a call that belongs to none."""


class RunPolicy(Protocol):
    """The rules that a run of an agent adds to a chain.

    Attributes:
        watch: Says whether the run was interrupted, so that no further hook may start.
        pinned: Whether nothing may rewrite the call: it began before, and waited for a person.
        decided: Whether a person has approved the call: guards and controls judge it again, no other hook that has.
        approved: Whether the approval holds, so that no `Ask` is asked again: until a control changes the call.
        ask: Whether a person must be asked about the final call although no hook said so: an awaitable that says it, or
            `None` for no. `None` in its place asks never.
        suspended: Whether the call goes on at another time, so that no `after` runs yet.
        asked_by: The hook that had the person asked before hooks further inside judged the call, if not all did: its
            id, and how many hooks of that id stand before it.
        resumed: Whether the call went on at another time before, so that hooks beside it have started already.
        sender: Of the records.
    """

    @property
    def watch(self) -> Interruptible: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def decided(self) -> bool: ...
    @property
    def approved(self) -> bool: ...
    @property
    def ask(self) -> Callable[[Any], Awaitable[Ask | None] | None] | None: ...
    @property
    def asked_by(self) -> tuple[str, int] | None: ...
    @property
    def suspended(self) -> bool: ...
    @property
    def resumed(self) -> bool: ...
    @property
    def sender(self) -> object: ...

    async def stop(self) -> None:
        """Raise the cancellation of a run that was interrupted."""
        ...

    def change(self, hook_id: str) -> None:
        """Note that a control has changed a call which a person has approved, so that the person is asked again."""
        ...

    def background(self, hook: CompiledInterceptor, args: tuple[Any, ...]) -> None:
        """Run a hook that is not waited for."""
        ...


NextStep = Callable[["Traversal", Any], Coroutine[Any, Any, Any]]
"""The rest of a chain, from some hook on: `async (traversal, call) -> result`."""


class _Mark:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


IDLE = _Mark("IDLE")
"""The outcome of a `call_next` that was not called."""
RUNNING = _Mark("RUNNING")
"""The outcome of one that has not ended."""
CLOSED = _Mark("CLOSED")
"""The outcome of one that was not called before its hook returned."""
ABSENT = _Mark("ABSENT")
"""The outcome of one that is to be called on behalf of its hook, which failed and fails open."""
FAILED = _Mark("FAILED")
"""Stands for the return value of a hook that failed and fails open."""
NO_RESULT = _Mark("NO_RESULT")
"""Stands for the result of a call that has not happened."""


class Raised:
    """The outcome of a `call_next` that raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Traversal(msgspec.Struct, eq=False):
    """One call on its way through a chain.

    Attributes:
        call: The call as it is now.
        terminal: What the chain wraps.
        outcomes: The outcome of the terminal, first, and of each `call_next`.
        clock: Measures the own time of the hooks.
        policy: Of the run that the call belongs to.
        watch: Says whether that run was interrupted, so that no further hook may start.
        pinned: Whether nothing may rewrite the call.
        unheard_from: Of a call that a person approved: the index of the first hook that had not judged it then. Those
            before it do not run, but for guards, controls and `after` hooks.
        started: The hooks that ran, in the order of their start; `None` where nobody records that.
        executions: What a hook did, by its index; of one that did nothing special only where it is announced.
        announcing: Whether each execution is announced when it ends.
        refusal: Raised wherever somebody waits for the call, once it is denied.
        denied: By whom, and why.
        stop: Whether the denial asks for the end of the run.
        asked: What a person is to be asked.
        asked_by: The hook that asks.
        asked_nth: How many hooks of the same id stand before it.
        raised: The exception of the terminal: nobody's failure.
        answered_by: The hook that answered in the terminal's place.
        answer: Its answer.
        result: The result at the end.
        continues: The inputs of `Continue`.
        finished: Set when a `call_next` ends, where somebody waits for that.
        sender: Of the records.
        spawn: Starts a hook that is not waited for, where there is no run.
    """

    # A struct and not a class with defaults, because in Python 3.11 a default that is read from the class is slow.
    call: Any
    terminal: Terminal
    outcomes: list[Any]
    clock: Clock
    policy: RunPolicy | None = None
    watch: Interruptible = NEVER_INTERRUPTED
    pinned: bool = False
    unheard_from: int = 0
    started: list[CompiledInterceptor] | None = None
    executions: dict[int, HookExecution] | None = None
    announcing: bool = False
    refusal: HookDenied | None = None
    denied: Denial | None = None
    stop: bool = False
    asked: Ask | None = None
    asked_by: CompiledInterceptor | None = None
    asked_nth: int = 0
    raised: BaseException | None = None
    answered_by: str | None = None
    answer: Any = None
    result: Any = None
    continues: tuple[str, ...] = ()
    finished: anyio.Event | None = None
    sender: object = None
    spawn: Callable[[CompiledInterceptor, tuple[Any, ...]], None] | None = None

    @property
    def reached(self) -> bool:
        """Whether the terminal was called."""
        return self.outcomes[0] is not IDLE

    def deny(
        self, hook: CompiledInterceptor, reason: str, *, stop: bool = False, cause: HookExecutionError | None = None
    ) -> HookDenied:
        """Deny the call, unless it is denied already: the first denial stands."""
        if self.refusal is None:
            self.denied = Denial(hook_id=hook.id, reason=reason)
            self.stop = stop
            self.refusal = HookDenied(hook.id, reason)
            self.refusal.__cause__ = cause
        return self.refusal

    def settle(self, slot: int, outcome: Any) -> None:
        """Note the outcome of a `call_next`, and wake those who wait for it."""
        self.outcomes[slot] = outcome
        if self.finished is not None:
            self.finished.set()

    def start(self, hook: CompiledInterceptor, *args: Any) -> None:
        """Start a hook that is not waited for."""
        if self.policy is not None:
            if not self.watch.halted:
                self.policy.background(hook, args)
        elif self.spawn is not None:
            self.spawn(hook, args)

    def note(
        self,
        hook: CompiledInterceptor,
        status: ExecutionStatus,
        error: str | None = None,
        *,
        duration_ms: float | None = None,
    ) -> None:
        """Record how the run of a hook has ended, where anybody records that."""
        if self.executions is None or (status == "ok" and not self.announcing and duration_ms is None):
            return  # `executions_of` makes the record of a hook that did nothing special
        now = perf_counter()
        self.executions[hook.index] = execution = execution_of(
            self, hook, now, time_ns() - int(now * 1e9), status=status, error=error, duration_ms=duration_ms
        )
        if self.announcing:
            announce_execution(execution, self.sender)


def execution_of(
    traversal: Traversal,
    hook: CompiledInterceptor,
    now: float,
    epoch: int,
    *,
    status: ExecutionStatus = "ok",
    error: str | None = None,
    duration_ms: float | None = None,
) -> HookExecution:
    """Make the record of one run of a hook.

    Args:
        traversal: The call.
        hook: The hook.
        now: The present time, of `perf_counter`.
        epoch: Nanoseconds of Unix time at which `perf_counter` was 0.
        status: How it ended.
        error: What went wrong.
        duration_ms: Its own time; that of the clock if it is not given.
    """
    call, clock = traversal.call, traversal.clock
    return HookExecution(
        hook_id=hook.id,
        hook_type=hook.point,
        operation_id=call.operation_id,
        status=status,
        duration_ms=clock.own(hook, now) * 1e3 if duration_ms is None else duration_ms,
        error=error,
        time_unix_nano=epoch + int((clock.marks[hook.start] or now) * 1e9),
        step_index=getattr(call, "step_index", None),
        tool_call_id=getattr(call, "tool_call_id", None),
        tenant_id=call.tenant_id,
        in_chain=True,
    )


def executions_of(traversal: Traversal) -> list[HookExecution]:
    """Return one record per hook that ran, in the order of their start."""
    if not traversal.started or traversal.executions is None:
        return []
    noted, now, epoch = traversal.executions, perf_counter(), time_ns() - perf_counter_ns()
    return [noted.get(hook.index) or execution_of(traversal, hook, now, epoch) for hook in traversal.started]


# One turn of a `before`, `guard` or `after`.

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
    marks, limited = clock.marks, clock.budget < INF
    now = perf_counter()
    for hook, handler, is_async, matches, index, start, end, timeout in turns:
        if matches is not None and not matches(traversal.call):
            continue
        if watch.halted or limited:
            clock.on = outer
            starts = await may_start(traversal, hook)
            now = perf_counter()
            if not starts:
                continue
        if started is not None:
            started.append(hook)
        marks[start] = began = now  # the end of the hook before: one look at the time per hook
        clock.on = index
        try:
            value = handler(traversal.call) if result is NO_RESULT else handler(traversal.call, result)
            if is_async:
                value = await (clock.bounded(index, value) if clock.scoped else value)
            elif value is not None:
                refuse_awaitable(value)
        except BaseException as error:
            marks[end] = now = perf_counter()
            clock.on = outer
            value = finish_turn(traversal, hook, error, None)
        else:
            marks[end] = now = perf_counter()
            if now - began > timeout or clock.special:
                clock.on = outer
                value = finish_turn(traversal, hook, None, value)
        if value is not None or traversal.announcing:
            clock.on = outer
            if result is not NO_RESULT:
                result = apply(traversal, hook, value, result)
            elif (answer := apply(traversal, hook, value)) is not None:
                return answer
            now = perf_counter()
    clock.on = outer
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
    if clock.budget == INF or clock.spent(perf_counter()) < clock.budget:
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


def ran_too_long(traversal: Traversal, hook: CompiledInterceptor, error: BaseException | None) -> bool:
    """Return whether a hook that has ended took too long.

    Raises:
        CancelledError: If the hook swallowed a cancellation that was not meant for it.
    """
    clock = traversal.clock
    alarm, expired = clock.alarm, clock.expired == hook.index
    elsewhere = alarm is not None and alarm.settle(hook.index)
    over = clock.is_over(hook.index)
    if expired:
        clock.expired = NOT_EXPIRED
    if elsewhere and (over or not isinstance(error, asyncio.CancelledError)):
        traversal.note(hook, "dropped", "cancelled")
        raise original_cancellation(traversal, error)
    if isinstance(error, asyncio.CancelledError):
        return expired
    return over and (error is None or isinstance(error, Exception))


def original_cancellation(traversal: Traversal, error: BaseException | None) -> asyncio.CancelledError:
    """Return the cancellation that a hook swallowed; the very one if possible, as its scope knows it by its text."""
    while error is not None:
        if isinstance(error, asyncio.CancelledError):
            return error
        error = error.__context__
    return traversal.raised if isinstance(traversal.raised, asyncio.CancelledError) else asyncio.CancelledError()


def after_error(traversal: Traversal, hook: CompiledInterceptor, error: BaseException) -> Any:
    """Handle the exception of a handler: its own failure, or somebody else's exception that it passed on."""
    if hook.kind == "around" and (theirs := downstream_error(traversal, error)) is not None:
        traversal.note(hook, "ok")
        raise theirs
    if isinstance(error, asyncio.CancelledError) and own_cancellation():
        error = HandlerCancelledError("it ended as cancelled although nobody had cancelled it")
    if not isinstance(error, Exception):
        traversal.note(hook, "dropped", "cancelled")
        raise error
    return fail(traversal, hook, error, "error")


def fail(traversal: Traversal, hook: CompiledInterceptor, error: Exception, status: ExecutionStatus | None) -> Any:
    """Fail a hook: deny the call, or go on without the hook, as it was declared.

    Args:
        traversal: The call.
        hook: The hook.
        error: Its failure.
        status: How its run is recorded; `None` if it has not started.

    Returns:
        `FAILED`.

    Raises:
        HookDenied: If it fails closed, or the call is denied already.
    """
    problem = str(error) if isinstance(error, HookTimeoutError | HookReturnError) else describe_failure(error)
    if status is not None:
        traversal.note(hook, status, problem)
    report_failure(hook.id, f"{hook.kind} {hook.point}", traversal.call.operation_id, error)
    if traversal.refusal is not None:
        raise traversal.refusal
    if not hook.closed:
        return FAILED
    raise fail_closed(traversal, hook, error, problem)


def fail_closed(traversal: Traversal, hook: CompiledInterceptor, error: Exception, problem: str) -> HookDenied:
    """Deny the call because of the failure of a hook."""
    cause = HookExecutionError(hook.id, hook.point, hook.kind, problem)
    cause.__cause__ = error
    return traversal.deny(hook, f"the hook failed, and it fails closed: {problem}", cause=cause)


def timeout_error(traversal: Traversal, hook: CompiledInterceptor) -> HookTimeoutError:
    """Return the failure of a hook that took too long, or may not start because the others did."""
    clock = traversal.clock
    if clock.budget < INF and clock.own(hook, perf_counter()) <= hook.timeout:
        return HookTimeoutError(hook.id, hook.point, clock.budget, of_chain=True)
    return HookTimeoutError(hook.id, hook.point, hook.timeout)


def downstream_error(traversal: Traversal, error: BaseException) -> BaseException | None:
    """Return the terminal's exception or the denial, if the error is that, or a group that holds nothing else."""
    if error is traversal.raised or error is traversal.refusal:
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    theirs = [downstream_error(traversal, each) for each in error.exceptions]
    return theirs[0] if all(each is not None for each in theirs) else None


def late_call_next_error(hook: CompiledInterceptor | None) -> HookTimeoutError:
    """Return the exception for a hook that calls `call_next` when its time is over."""
    assert hook is not None
    return HookTimeoutError(hook.id, hook.point, hook.timeout)


def return_error(hook: CompiledInterceptor, problem: str) -> HookReturnError:
    """Return the failure of a hook that returned what it may not."""
    return HookReturnError(hook.id, hook.point, problem)


# What the return values mean.


def apply_before(traversal: Traversal, hook: CompiledInterceptor, value: object) -> Any:
    """Apply the return value of a `before`: the traversal goes on with the call that it returned.

    Returns:
        The result, if the hook answered the call.
    """
    if value is None or value is FAILED:
        if value is None:
            traversal.note(hook, "ok")
        return None
    if isinstance(value, hook.call):
        problem = check_changed(value, traversal.call)
        if problem is None:
            traversal.note(hook, "ok")
            traversal.call = value
        else:
            fail(traversal, hook, return_error(hook, problem), "error")
        return None
    if isinstance(value, Respond):
        answer = respond(traversal, hook, value)
        return None if answer is FAILED else answer
    apply_refusal(traversal, hook, value, "None, a changed call, Respond, Deny or Ask")
    return None


def judges_approved(traversal: Traversal, hook: CompiledInterceptor) -> bool:
    """Return whether a `before` judges a call that began before: a control, or one that was not heard then."""
    policy = traversal.policy
    return policy is not None and policy.decided and (hook.control or hook.index >= traversal.unheard_from)


def apply_to_approved(traversal: Traversal, hook: CompiledInterceptor, value: object) -> Any:
    """Apply the return value of a `before` to a call that a person has approved.

    Of a control everything counts; if it changed the call, the person is asked again. Of others only a refusal counts.
    """
    if not hook.control:
        if isinstance(value, Deny):
            apply_refusal(traversal, hook, value, "Deny")
        elif value is not FAILED:
            traversal.note(hook, "ok")
        return None
    approved = traversal.call
    answer = apply_before(traversal, hook, value)
    if answer is None and traversal.call is not approved:
        # Values are compared as JSON shows them, where `1`, `1.0` and `true` are three.
        if _args_as_json(traversal.call) == _args_as_json(approved):
            traversal.call = approved
        elif traversal.policy is not None:
            traversal.policy.change(hook.id)
    return answer


def _args_as_json(call: Any) -> bytes:
    return msgspec.json.encode(call.args, enc_hook=repr, order="deterministic")


def apply_refusal(traversal: Traversal, hook: CompiledInterceptor, value: object, allowed: str) -> None:
    """Apply a return value that is neither a call nor a result: a refusal, or a mistake.

    Args:
        traversal: The call.
        hook: The hook.
        value: What it returned.
        allowed: What it may return, for the error.
    """
    if isinstance(value, Deny) and isinstance(value.reason, str):
        traversal.note(hook, "denied", value.reason)
        raise traversal.deny(hook, value.reason, stop=bool(value.stop))
    if isinstance(value, Ask) and isinstance(value.prompt, str):
        if traversal.policy is not None and traversal.policy.approved:
            traversal.note(hook, "ok")
            return  # a person has lifted it
        traversal.note(hook, "denied", value.prompt)
        if traversal.refusal is None and not traversal.reached and traversal.answered_by is None:
            traversal.asked, traversal.asked_by = value, hook
        raise traversal.deny(hook, value.prompt)
    fail(traversal, hook, return_error(hook, f"returned {quote(value)}; it may return {allowed}"), "error")


def apply_guard(traversal: Traversal, guard: CompiledInterceptor, value: object) -> None:
    """Apply the return value of a guard."""
    if value is None:
        traversal.note(guard, "ok")
    elif value is not FAILED:
        apply_refusal(traversal, guard, value, "None, Deny or Ask")


def apply_after(traversal: Traversal, hook: CompiledInterceptor, value: object, result: Any) -> Any:
    """Apply the return value of an `after`.

    Returns:
        The result to go on with.
    """
    if value is None or value is FAILED:
        if value is None:
            traversal.note(hook, "ok")
        return result
    if isinstance(value, hook.result):
        problem = None if value is result else check_result(value)
        if problem is None:
            traversal.note(hook, "ok")
            return value
        fail(traversal, hook, return_error(hook, problem), "error")
        return result
    if isinstance(value, Continue) and hook.point == "AgentCall" and isinstance(value.input, str):
        traversal.note(hook, "ok")
        if value.input:
            traversal.continues = (*traversal.continues, value.input)
        return result
    allowed = "None, a changed result or Deny" + (", or Continue" if hook.point == "AgentCall" else "")
    if isinstance(value, Ask):
        problem = f"returned an Ask, but the call has happened; {allowed}"
        fail(traversal, hook, return_error(hook, problem), "error")
    else:
        apply_refusal(traversal, hook, value, allowed)
    return result


def respond(traversal: Traversal, hook: CompiledInterceptor, value: Respond) -> Any:
    """Answer the call in its place.

    Raises:
        Exception: The answer itself, if it is one and the call has no result for that.
    """
    try:
        answer = result_of(hook.result, value.answer)
    except Exception as error:
        return fail(traversal, hook, error, "error")
    traversal.note(hook, "mocked")
    record_answer(traversal, hook, answer)
    if isinstance(answer, Exception):
        traversal.raised = answer
        raise answer
    return answer


def record_answer(traversal: Traversal, hook: CompiledInterceptor, answer: Any) -> None:
    """Record that a hook answered the call; the first to answer did it in the terminal's place."""
    if not traversal.reached and traversal.answered_by is None:
        traversal.answered_by, traversal.answer = hook.id, answer


async def ask_person(traversal: Traversal, asking: Awaitable[Ask | None]) -> None:
    """After the guards: have a person decide, if that must be although no hook said so."""
    asked = await asking
    if asked is not None:
        traversal.asked = asked
        traversal.denied = Denial(hook_id="", reason=asked.prompt)
        traversal.refusal = HookDenied("", asked.prompt)
        raise traversal.refusal


async def apply_around(
    traversal: Traversal, hook: CompiledInterceptor, slot: int, value: Any, call_next: NextStep
) -> Any:
    """Apply the return value of an `around`, whatever it is. What it left running in another task is waited for."""
    outcome = traversal.outcomes[slot]
    left_running = outcome is RUNNING
    if left_running:
        outcome = await outcome_of(traversal, slot)
    if traversal.refusal is not None:
        fine = value is None or value is FAILED or isinstance(value, hook.result | Respond | Deny | Ask)
        status: ExecutionStatus = "denied" if isinstance(value, Deny | Ask) else "ok" if fine else "error"
        traversal.note(hook, status, None if fine else f"returned {quote(value)} after a denial")
        raise traversal.refusal
    if isinstance(outcome, Raised) and isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        await notice_cancellation(outcome.error)
    called = outcome is not IDLE
    if not called:
        traversal.outcomes[slot] = CLOSED
    if called and value is outcome:
        traversal.note(hook, "ok")
        return value
    if isinstance(value, hook.result):
        problem = check_result(value)
        if problem is None:
            traversal.note(hook, "ok" if called else "mocked")
            if not called:
                record_answer(traversal, hook, value)
            return value
        fail(traversal, hook, return_error(hook, problem), "error")
        value = FAILED
    if isinstance(value, Respond):
        answer = respond(traversal, hook, value)
        if answer is not FAILED:
            return answer
    elif value is None and called and not left_running:
        traversal.note(hook, "ok")
    elif value is None:
        fail(traversal, hook, return_error(hook, "returned None without an outcome of `call_next`"), "error")
    elif value is not FAILED:
        apply_refusal(traversal, hook, value, "a result, None after call_next, Respond, Deny or Ask")
    return await resume_downstream(traversal, hook, slot, call_next)


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


async def notice_cancellation(error: BaseException) -> None:
    """Notice that a hook swallowed the cancellation of what it wraps, which may have been its own doing.

    Raises:
        BaseException: The cancellation, if the caller is cancelled.
    """
    if runs_on_asyncio():
        if not own_cancellation():
            raise error
    else:
        await anyio.lowlevel.checkpoint_if_cancelled()


async def resume_downstream(traversal: Traversal, hook: CompiledInterceptor, slot: int, call_next: NextStep) -> Any:
    """Go on with what an `around` wraps that failed or changed nothing: run it if it has not run, else its outcome."""
    if traversal.outcomes[slot] is CLOSED:
        traversal.outcomes[slot] = ABSENT
        return await call_next(traversal, traversal.call)
    outcome = await outcome_of(traversal, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        # The hook did that, or it would have been cancelled too. Nothing is left to go on with, open or closed.
        error = return_error(hook, "stopped what is inside of `call_next`, and gave no result in its place")
        report_failure(hook.id, f"{hook.kind} {hook.point}", traversal.call.operation_id, error)
        raise fail_closed(traversal, hook, error, str(error))
    raise outcome.error


async def outcome_of(traversal: Traversal, slot: int) -> Any:
    """Wait for the outcome of a `call_next` that was called."""
    while traversal.outcomes[slot] is RUNNING:
        if traversal.finished is None or traversal.finished.is_set():
            traversal.finished = anyio.Event()
        await traversal.finished.wait()
    return traversal.outcomes[slot]


async def repeat_call_next(traversal: Traversal, hook: CompiledInterceptor | None, slot: int) -> Any:
    """Return the first outcome of a `call_next` that is called once more.

    Raises:
        HookUsageError: If there is none, and will be none.
    """
    name = hook.id if hook is not None else ""
    if traversal.outcomes[slot] is CLOSED:
        raise HookUsageError(f"`call_next` of hook {name!r} was called after the hook had returned.")
    outcome = await outcome_of(traversal, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        raise HookUsageError(f"`call_next` of hook {name!r} was cancelled; it cannot be called once more.")
    raise outcome.error


def next_call(traversal: Traversal, hook: CompiledInterceptor | None, call: Any) -> Any:
    """Check the call that an `around` gives to `call_next`, and go on with it.

    Raises:
        HookUsageError: If it is no call that may go on.
    """
    if hook is None:
        return call
    if not isinstance(call, hook.call):
        raise HookUsageError(
            f"`call_next` takes the {hook.point}, changed or not; hook {hook.id!r} gave {quote(call)}."
        )
    problem = check_changed(call, traversal.call)
    if problem is not None:
        raise HookUsageError(f"Hook {hook.id!r} {problem}.")
    if traversal.pinned:
        return traversal.call
    traversal.call = call
    return call


# The fold.

MAX_AROUNDS = 100
"""Each takes up to seven frames (with a `before` and an `after` between two of them), and Python has a thousand."""

Placed = tuple[Interceptor, object]
"""An interceptor and the lane of its bundle."""


class CompiledChain:
    """The hooks of one class of calls and one tenant, compiled.

    Attributes:
        hooks: In order of priority, guards last.
        enter: Leads a call from the outermost hook to the terminal and back.
        idle: The outcomes that a traversal begins with: one for the terminal, one for each `call_next`.
        marks: What a clock begins with: four per hook, and one more, which nobody reads.
        background: Whether any of them is not waited for.
        background_after: The `after` hooks that are not waited for.
    """

    __slots__ = ("background", "background_after", "enter", "hooks", "idle", "marks")

    def __init__(self, placed: Sequence[Placed], *, hook_timeout: float) -> None:
        ordered = sorted(placed, key=lambda each: (each[0].kind == "guard", each[0].priority, each[0].tenant_id != ""))
        places = place_marks([hook for hook, _ in ordered])
        self.hooks = tuple(
            compile_interceptor(index, *ordered[index], places[index], hook_timeout=hook_timeout)
            for index in range(len(ordered))
        )
        self.marks = [0.0] * (4 * len(ordered) + 1)
        pairs = list(zip(self.hooks, ordered, strict=True))
        waited = [hook for hook, (given, _) in pairs if given.wait]
        unwaited = [hook for hook, (given, _) in pairs if not given.wait]
        self.background = bool(unwaited)
        self.background_after = tuple(hook for hook in reversed(unwaited) if hook.kind == "after")
        layers = [hook for hook in waited if hook.kind != "guard"]
        arounds = [hook for hook in layers if hook.kind == "around"]
        self.idle: list[Any] = [IDLE]
        innermost = run_guards_and_terminal(
            [hook for hook in waited if hook.kind == "guard"],
            [hook for hook in unwaited if hook.kind == "before"],
            arounds[-1].index if arounds else NO_HOOK,
        )
        self.enter = self._fold(layers, innermost)

    def _fold(self, layers: Sequence[CompiledInterceptor], innermost: NextStep) -> NextStep:
        """Wrap the innermost step into the hooks, from the inside to the outside."""
        enter = innermost
        inside: Around | None = None
        for kind, group in itertools.groupby(reversed(layers), key=lambda hook: hook.kind):
            inwards = tuple(group)
            if kind == "around":
                for hook in inwards:
                    slot = self._slot()
                    call_next = enter_around(inside, hook, slot) if inside else call_next_of(hook, slot, enter)
                    inside = Around(hook, slot, call_next)
                continue
            if inside is not None:
                enter, inside = enter_around(inside, None, self._slot()), None
            enter = run_befores(inwards[::-1], enter) if kind == "before" else run_afters(inwards, enter)
        return enter if inside is None else enter_around(inside, None, self._slot())

    def _slot(self) -> int:
        """Return the place of one more outcome."""
        self.idle.append(IDLE)
        return len(self.idle) - 1


class _Places(NamedTuple):
    """The `outer` hook and the marks of a `CompiledInterceptor`."""

    outer: int
    start: int
    end: int
    inside: int
    leave: int


def place_marks(ordered: Sequence[Interceptor]) -> list[_Places]:
    """Give each hook four marks. An `around` right inside of another one begins where the other's `call_next` does."""
    layers = [index for index, hook in enumerate(ordered) if hook.wait and hook.kind != "guard"]
    following = dict(itertools.pairwise(layers))
    places, outer = [], NO_HOOK
    for index, hook in enumerate(ordered):
        start = 4 * index
        inside = leave = NO_HOOK
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
        **places._asdict(),
    )


def first_unheard(compiled: CompiledChain, policy: RunPolicy) -> int:
    """Return the index of the first hook that had not judged a call when a person was asked about it."""
    if policy.asked_by is None:
        return len(compiled.hooks)
    asked_by, nth = policy.asked_by
    askers = [hook.index for hook in compiled.hooks if hook.id == asked_by][: nth + 1]
    return askers[-1] + 1 if askers else 0


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
        policy, clock = traversal.policy, traversal.clock
        if policy is not None:
            if traversal.watch.halted:
                await policy.stop()
            if policy.ask is not None and not policy.approved and (asking := policy.ask(call)) is not None:
                await ask_person(traversal, asking)
        if background and (policy is None or not policy.resumed):
            for hook in background:
                if hook.matches is None or hook.matches(call):
                    traversal.start(hook, call)
        clock.on = NO_HOOK
        traversal.outcomes[0] = RUNNING
        try:
            return await traversal.terminal(call)
        except BaseException as error:
            traversal.raised = error
            raise
        finally:
            clock.on = outer

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

    async def enter(traversal: Traversal, call: Any) -> Any:
        result = await inner(traversal, call)
        if traversal.policy is not None and traversal.policy.suspended:
            return result
        return await run_turns(traversal, turns, apply_after, outer, result)

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


def call_next_of(hook: CompiledInterceptor, slot: int, inner: NextStep) -> NextStep:
    """Make the `call_next` of an `around` that has no other right inside of it."""
    index, start, inside, leave, limit = hook.index, hook.start, hook.inside, hook.leave, hook.timeout

    async def call_next(traversal: Traversal, call: Any) -> Any:
        clock, outcomes, now = traversal.clock, traversal.outcomes, perf_counter()
        state = outcomes[slot]
        if state is not IDLE and state is not ABSENT:
            return await repeat_call_next(traversal, hook, slot)
        if state is IDLE and (now - clock.marks[start] > limit or clock.expired == index):
            raise late_call_next_error(hook)
        if not clock.stepping:
            return await drive_elsewhere(clock, call_next(traversal, call))
        clock.marks[inside] = now
        if clock.scoped:
            clock.pause(index)
        if call is not traversal.call:
            call = next_call(traversal, hook, call)
        outcomes[slot] = RUNNING
        try:
            result = await inner(traversal, call)
        except BaseException as error:
            come_back(clock, hook)
            traversal.settle(slot, Raised(error))
            raise
        outcomes[slot] = result
        clock.marks[leave] = perf_counter()
        clock.on = index
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
    outer_limit, outer_start, leave, outer_index = INF, start, -1, NO_HOOK  # the last mark is nobody's
    if outer is not None:
        outer_limit, outer_start, leave, outer_index = outer.timeout, outer.start, outer.leave, outer.index

    async def enter(traversal: Traversal, call: Any) -> Any:
        clock, outcomes, now = traversal.clock, traversal.outcomes, perf_counter()
        marks, state = clock.marks, outcomes[slot]
        if state is not IDLE and state is not ABSENT:
            return await repeat_call_next(traversal, outer, slot)
        if state is IDLE and (now - marks[outer_start] > outer_limit or clock.expired == outer_index):
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
            if (
                (matches is not None and not matches(call))
                or (index < traversal.unheard_from and not hook.control)
                or ((traversal.watch.halted or clock.budget < INF) and not await may_start(traversal, hook))
            ):
                marks[end] = now  # it does not run, so that none of the time is its own
                result = await call_next(traversal, call)
                now = perf_counter()
            else:
                if traversal.started is not None:
                    traversal.started.append(hook)
                clock.on = index
                try:
                    running = handler(call, MethodType(call_next, traversal))
                    result = await (clock.bounded(index, running) if clock.scoped else running)
                except BaseException as error:
                    marks[end] = perf_counter()
                    clock.on = on_return
                    result = await finish_around(traversal, hook, error, FAILED, inner_slot)
                else:
                    marks[end] = now = perf_counter()
                    clock.on = on_return
                    if now - marks[start] > limit or (clock.special and clock.disturbed(index)):
                        result = await finish_around(traversal, hook, None, result, inner_slot)
                        now = perf_counter()
                if result is not outcomes[inner_slot]:
                    result = await apply_around(traversal, hook, inner_slot, result, call_next)
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
        clock.on = on_return
        if clock.scoped:
            clock.resume(outer_index)
        if traversal.finished is not None:
            traversal.finished.set()
        return result

    return enter


def come_back(clock: Clock, hook: CompiledInterceptor) -> None:
    """Let the own time of an `around` go on: its `call_next` is over."""
    clock.marks[hook.leave] = perf_counter()
    clock.on = hook.index
    clock.resume(hook.index)
