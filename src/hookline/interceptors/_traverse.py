"""Fold the interceptors of a call into one chain, run each in its turn, and apply what it answers."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from inspect import isawaitable
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
    "Around",
    "CompiledChain",
    "CompiledInterceptor",
    "NextStep",
    "Outermost",
    "Placed",
    "RunPolicy",
    "Terminal",
    "Traversal",
    "after_error",
    "apply_after",
    "apply_around",
    "apply_before",
    "apply_guard",
    "apply_late_before",
    "ask_person",
    "check_depth",
    "come_back",
    "executions_of",
    "fail_closed",
    "failed",
    "finish_around",
    "keep_approved",
    "late_call_next_error",
    "may_start",
    "next_call",
    "ran_too_long",
    "repeat_call_next",
    "run_interceptor",
    "short_way",
    "timeout_error",
]

Terminal = Callable[[Any], Awaitable[Any]]
"""What a chain surrounds: `async (call) -> result`."""


class CompiledInterceptor(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An interceptor as a chain runs it, with everything decided that can be decided before a call comes.

    Attributes:
        index: Its place among the hooks of its chain for one class of calls.
        id: The interceptor's id.
        kind: How it stands there.
        control: Whether it meets an approved call again: see `ControlInterceptor`.
        call: The class of the calls.
        point: Its name, for records and errors.
        result: The class of their results.
        handler: For an async one, a function that surely returns a coroutine.
        is_async: Decided once.
        timeout: Seconds of own time, for messages; its limit on the clock is the same.
        closed: Whether its failure denies the call.
        matches: Whether a call is for this hook; `None` if every one is.
        lane: The lane of its bundle, for one that is not waited for.
        outer: Index of the `around` that it is inside of; -1 for none.
        start: Where the clock marks its begin.
        end: Where it marks its end.
        inside: Where it marks the begin of its `call_next`; -1 for a hook that has none.
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


class RunPolicy(Protocol):
    """What a run of an agent adds to a chain.

    Attributes:
        interrupted: Whether no further hook may start.
        pinned: Whether nothing may rewrite the call: it was on its way before, and waited for a person.
        decided: Whether a person has approved the call: guards and controls judge it again, no other hook that has.
        approved: Whether the approval holds, so that no `Ask` is asked again: until a control changes the call.
        suspended: Whether the call goes on at another time, so that no `after` runs yet.
        asked_by: Who had the person asked before hooks further inside were heard, if not all were: its id, and how many
            hooks of that id stand before it.
        resumed: Whether it went on at another time before, so that what starts beside it has started already.
        sender: Of the records.
    """

    @property
    def interrupted(self) -> bool: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def decided(self) -> bool: ...
    @property
    def approved(self) -> bool: ...
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

    async def asks(self, call: Any) -> Ask | None:
        """Whether a person must be asked about the final call, although no hook said so."""
        ...

    def background(self, hook: CompiledInterceptor, args: tuple[Any, ...]) -> None:
        """Run a hook that is not waited for."""
        ...


NextStep = Callable[["Traversal", Any], Coroutine[Any, Any, Any]]
"""The rest of a chain, from some hook on: `async (passage, call) -> result`."""


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
"""What a hook that fails open said when it failed: nothing."""


class Raised:
    """The outcome of what raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Traversal(msgspec.Struct, eq=False):
    """One call on its way through a chain.

    Attributes:
        call: The call as it is now.
        terminal: What the chain surrounds.
        outcomes: What the terminal, first, and each `call_next` came to.
        clock: Whose time it is, where that matters.
        control: The run that the call belongs to.
        watched: Whether a hook may find that it must not start: its run was interrupted, or the budget is gone.
        recording: Whether it is noted what each hook did.
        refusal: Raised wherever somebody waits for the call, once it is denied.
        denied: By whom, and why.
        stop: Whether the denial asks for the end of the run.
        asked: What a person is to be asked.
        asked_by: The hook that asks.
        asked_nth: How many hooks of the same id stand before it.
        raised: What the terminal raised: nobody's failure.
        answered_by: The hook that answered in the terminal's place.
        answer: Its answer.
        result: What came out at the end.
        continues: The inputs of `Continue`.
        finished: Set when a `call_next` ends, where somebody waits for that.
        sender: Of the records.
        spawn: Starts a hook that is not waited for, where there is no run.
        started: The hooks that ran, in the order of their start.
        executions: What each did, by index.
    """

    # A struct and not a class with defaults, because in Python 3.11 a default that is read from the class is slow.
    call: Any
    terminal: Terminal
    outcomes: list[Any]
    clock: Clock | None = None
    control: RunPolicy | None = None
    watched: bool = False
    recording: bool = False
    refusal: HookDenied | None = None
    denied: Denial | None = None
    stop: bool = False
    asked: Ask | None = None
    asked_by: CompiledInterceptor | None = None
    asked_nth: int = 0
    unheard_from: int = 0
    """Of a call that a person approved: the index of the first hook that had not judged it then. Those before it do not
    run, but for guards, controls and `after` hooks."""
    raised: BaseException | None = None
    answered_by: str | None = None
    answer: Any = None
    result: Any = None
    continues: tuple[str, ...] = ()
    finished: anyio.Event | None = None
    sender: object = None
    spawn: Callable[[CompiledInterceptor, tuple[Any, ...]], None] | None = None
    started: Any = None
    executions: Any = None

    @property
    def reached(self) -> bool:
        """Whether the terminal was called."""
        outcome = self.outcomes[0]
        return outcome is not IDLE and outcome is not CLOSED and outcome is not ABSENT

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
        """Note the outcome of a `call_next`, and wake whoever waits for it."""
        self.outcomes[slot] = outcome
        if self.finished is not None:
            self.finished.set()

    def start(self, hook: CompiledInterceptor, *args: Any) -> None:
        """Start a hook that is not waited for."""
        if self.control is not None:
            if not self.control.interrupted:
                self.control.background(hook, args)
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
        """Record how a hook's run has ended."""
        if not self.recording:
            return
        now, clock = perf_counter(), self.clock
        began = (clock.marks[hook.start] if clock is not None else 0.0) or now
        if duration_ms is None:
            duration_ms = clock.own(hook, now) * 1e3 if clock is not None else 0.0
        self.executions[hook.index] = execution = HookExecution(
            hook_id=hook.id,
            hook_type=hook.point,
            operation_id=self.call.operation_id,
            status=status,
            duration_ms=duration_ms,
            error=error,
            time_unix_nano=time_ns() - int((now - began) * 1e9),
            step_index=getattr(self.call, "step_index", None),
            tool_call_id=getattr(self.call, "tool_call_id", None),
            tenant_id=self.call.tenant_id,
            in_chain=True,
        )
        announce_execution(execution, self.sender)


async def run_interceptor(passage: Traversal, hook: CompiledInterceptor, *args: Any) -> Any:
    """What a `before`, a `guard` or an `after` says.

    Returns:
        Its return value; `FAILED` if it failed and fails open.

    Raises:
        HookDenied: If it failed and fails closed.
        BaseException: A cancellation.
    """
    if passage.watched and not await may_start(passage, hook):
        return FAILED
    if passage.recording:
        passage.started.append(hook)
    clock = passage.clock
    began = 0.0
    if clock is not None:
        began = clock.marks[hook.start] = perf_counter()
        clock.on = hook.index
    error: BaseException | None = None
    value: Any = None
    try:
        value = hook.handler(*args)
        if hook.is_async:
            value = await (value if clock is None or not clock.scoped else clock.bounded(hook.index, value))
        elif value is not None:
            refuse_awaitable(value)
    except BaseException as raised:
        error = raised
    if clock is not None:
        clock.marks[hook.end] = now = perf_counter()
        clock.on = hook.outer
        closer = error is not None or clock.special or now - began > hook.timeout
        if closer and ran_too_long(passage, hook, error):
            return failed(passage, hook, timeout_error(passage, hook), "timeout")
    return value if error is None else after_error(passage, hook, error)


async def may_start(passage: Traversal, hook: CompiledInterceptor) -> bool:
    """Whether a hook may start. If not, it fails by its policy.

    Raises:
        BaseException: The cancellation, if the run was interrupted.
    """
    if passage.control is not None and passage.control.interrupted:
        await passage.control.stop()
    clock = passage.clock
    if clock is None or clock.budget == math.inf or clock.spent(perf_counter()) < clock.budget:
        return True
    failed(passage, hook, timeout_error(passage, hook), None)
    return False


def ran_too_long(passage: Traversal, hook: CompiledInterceptor, error: BaseException | None) -> bool:
    """A hook's turn is over, and needs a closer look; whether it took too long.

    Raises:
        CancelledError: If the hook swallowed a cancellation that was not meant for it.
    """
    clock = passage.clock
    if clock is None:
        return False
    alarm, expired = clock.alarm, clock.expired == hook.index
    elsewhere = alarm is not None and alarm.settle(hook.index)
    over = clock.is_over(hook.index)
    if expired:
        clock.expired = NOT_EXPIRED
    if elsewhere and (over or not isinstance(error, asyncio.CancelledError)):
        passage.note(hook, "dropped", "cancelled")
        raise original_cancellation(passage, error)
    if isinstance(error, asyncio.CancelledError):
        return expired
    return over and (error is None or isinstance(error, Exception))


def original_cancellation(passage: Traversal, error: BaseException | None) -> asyncio.CancelledError:
    """The cancellation that a hook swallowed, itself if it can be found: a cancel scope knows its own by its text."""
    while error is not None:
        if isinstance(error, asyncio.CancelledError):
            return error
        error = error.__context__
    return passage.raised if isinstance(passage.raised, asyncio.CancelledError) else asyncio.CancelledError()


def after_error(passage: Traversal, hook: CompiledInterceptor, error: BaseException) -> Any:
    """A hook's handler raised: its own failure, or what somebody else did."""
    if hook.kind == "around" and (theirs := downstream_error(passage, error)) is not None:
        passage.note(hook, "ok")
        raise theirs
    if isinstance(error, asyncio.CancelledError) and own_cancellation():
        error = HandlerCancelledError("it ended as cancelled although nobody had cancelled it")
    if not isinstance(error, Exception):
        passage.note(hook, "dropped", "cancelled")
        raise error
    return failed(passage, hook, error, "error")


def failed(passage: Traversal, hook: CompiledInterceptor, error: Exception, status: ExecutionStatus | None) -> Any:
    """A hook has failed: the call is denied or goes on without it, as it was declared."""
    problem = str(error) if isinstance(error, HookTimeoutError | HookReturnError) else describe_failure(error)
    if status is not None:
        passage.note(hook, status, problem)
    report_failure(hook.id, f"{hook.kind} {hook.point}", passage.call.operation_id, error)
    if passage.refusal is not None:
        raise passage.refusal
    if not hook.closed:
        return FAILED
    raise fail_closed(passage, hook, error, problem)


def fail_closed(passage: Traversal, hook: CompiledInterceptor, error: Exception, problem: str) -> HookDenied:
    """The denial of a call because of a hook's failure."""
    cause = HookExecutionError(hook.id, hook.point, hook.kind, problem)
    cause.__cause__ = error
    return passage.deny(hook, f"the hook failed, and it fails closed: {problem}", cause=cause)


def timeout_error(passage: Traversal, hook: CompiledInterceptor) -> HookTimeoutError:
    """The failure of a hook that took too long, or that may not start because the others did."""
    clock = passage.clock
    if clock is not None and clock.budget < math.inf and clock.own(hook, perf_counter()) <= hook.timeout:
        return HookTimeoutError(hook.id, hook.point, clock.budget, of_chain=True)
    return HookTimeoutError(hook.id, hook.point, hook.timeout)


def downstream_error(passage: Traversal, error: BaseException) -> BaseException | None:
    """What the terminal raised, or the denial, if the error is that, or a task group's wrapping of nothing else."""
    if error is passage.raised or error is passage.refusal:
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    theirs = [downstream_error(passage, each) for each in error.exceptions]
    return theirs[0] if all(each is not None for each in theirs) else None


def late_call_next_error(hook: CompiledInterceptor | None) -> HookTimeoutError:
    """What a hook gets that calls `call_next` when its time is over."""
    assert hook is not None
    return HookTimeoutError(hook.id, hook.point, hook.timeout)


def apply_before(passage: Traversal, hook: CompiledInterceptor, value: object, call: Any) -> Any:
    """What a `before` said: the call to go on with, or the result that answers it."""
    if value is None or value is FAILED:
        if value is None:
            passage.note(hook, "ok")
        return call
    if isinstance(value, hook.call):
        problem = check_changed(value, call)
        if problem is None:
            passage.note(hook, "ok")
            passage.call = value
            return value
        failed(passage, hook, wrong(hook, problem), "error")
        return call
    if isinstance(value, Respond):
        answer = respond(passage, hook, value)
        return call if answer is FAILED else answer
    apply_refusal(passage, hook, value, "None, a changed call, Respond, Deny or Ask")
    return call


async def notice_cancellation(error: BaseException) -> None:
    """A hook swallowed the cancellation of what it surrounds, which may have been its own doing.

    Raises:
        BaseException: The cancellation, if the caller is cancelled.
    """
    if runs_on_asyncio():
        if not own_cancellation():
            raise error
    else:
        await anyio.lowlevel.checkpoint_if_cancelled()


def apply_late_before(passage: Traversal, hook: CompiledInterceptor, value: object) -> None:
    """What a `before` said of a call that a person has let through already: only a refusal counts."""
    if isinstance(value, Deny):
        apply_refusal(passage, hook, value, "Deny")
    elif value is not FAILED:
        passage.note(hook, "ok")


def keep_approved(passage: Traversal, hook: CompiledInterceptor, approved: Any, said: Any) -> Any:
    """Keep the call that a person approved, unless a control has changed its arguments: then the person is asked again.

    Values are compared as JSON shows them, where `1`, `1.0` and `true` are three.
    """
    if said is not approved and _shown(said) == _shown(approved):
        passage.call = approved
        return approved
    if said is not approved and passage.control is not None:
        passage.control.change(hook.id)
    return said


def _shown(call: Any) -> bytes:
    return msgspec.json.encode(call.args, enc_hook=repr, order="deterministic")


def apply_refusal(passage: Traversal, hook: CompiledInterceptor, value: object, allowed: str) -> None:
    """What a hook said that is neither a call nor a result: a refusal, or a mistake."""
    if isinstance(value, Deny) and isinstance(value.reason, str):
        passage.note(hook, "denied", value.reason)
        raise passage.deny(hook, value.reason, stop=bool(value.stop))
    if isinstance(value, Ask) and isinstance(value.prompt, str):
        if passage.control is not None and passage.control.approved:
            passage.note(hook, "ok")
            return  # a person has lifted it
        passage.note(hook, "denied", value.prompt)
        if passage.refusal is None and not passage.reached and passage.answered_by is None:
            passage.asked, passage.asked_by = value, hook
        raise passage.deny(hook, value.prompt)
    failed(passage, hook, wrong(hook, f"returned {quote(value)}; it may return {allowed}"), "error")


def apply_guard(passage: Traversal, guard: CompiledInterceptor, value: object) -> None:
    """What a guard said."""
    if value is None:
        passage.note(guard, "ok")
    elif value is not FAILED:
        apply_refusal(passage, guard, value, "None, Deny or Ask")


def respond(passage: Traversal, hook: CompiledInterceptor, value: Respond) -> Any:
    """What a hook answers in the call's place.

    Raises:
        Exception: The answer itself, if it is one and the call has no result for that.
    """
    try:
        answer = result_of(hook.result, value.answer)
    except Exception as error:
        return failed(passage, hook, error, "error")
    passage.note(hook, "mocked")
    answered(passage, hook, answer)
    if isinstance(answer, Exception):
        passage.raised = answer
        raise answer
    return answer


def answered(passage: Traversal, hook: CompiledInterceptor, answer: Any) -> None:
    """A hook answers the call; whoever answers first did it in the terminal's place."""
    if not passage.reached and passage.answered_by is None:
        passage.answered_by, passage.answer = hook.id, answer


async def apply_around(
    passage: Traversal, hook: CompiledInterceptor, slot: int, value: Any, call_next: NextStep
) -> Any:
    """What an `around` came to, whatever it returned. What it left running in another task is waited for."""
    outcome = passage.outcomes[slot]
    left_running = outcome is RUNNING
    if left_running:
        outcome = await outcome_of(passage, slot)
    if passage.refusal is not None:
        fine = value is None or value is FAILED or isinstance(value, hook.result | Respond | Deny | Ask)
        status: ExecutionStatus = "denied" if isinstance(value, Deny | Ask) else "ok" if fine else "error"
        passage.note(hook, status, None if fine else f"returned {quote(value)} after a denial")
        raise passage.refusal
    if isinstance(outcome, Raised) and isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        await notice_cancellation(outcome.error)
    called = outcome is not IDLE
    if not called:
        passage.outcomes[slot] = CLOSED
    if called and value is outcome:
        passage.note(hook, "ok")
        return value
    if isinstance(value, hook.result):
        problem = check_result(value)
        if problem is None:
            passage.note(hook, "ok" if called else "mocked")
            if not called:
                answered(passage, hook, value)
            return value
        failed(passage, hook, wrong(hook, problem), "error")
        value = FAILED
    if isinstance(value, Respond):
        answer = respond(passage, hook, value)
        if answer is not FAILED:
            return answer
    elif value is None and called and not left_running:
        passage.note(hook, "ok")
    elif value is None:
        failed(passage, hook, wrong(hook, "returned None without an outcome of `call_next`"), "error")
    elif value is not FAILED:
        apply_refusal(passage, hook, value, "a result, None after call_next, Respond, Deny or Ask")
    return await resume_downstream(passage, hook, slot, call_next)


async def finish_around(
    passage: Traversal, hook: CompiledInterceptor, error: BaseException | None, value: Any, slot: int
) -> Any:
    """The end of an `around` that needs a closer look: it raised, or may have taken too long.

    Returns:
        What it returned; `FAILED` if it failed and fails open.
    """
    late = passage.clock is not None and ran_too_long(passage, hook, error)
    if passage.outcomes[slot] is RUNNING and (late or isinstance(error, Exception)):
        await outcome_of(passage, slot)
    if late:
        return failed(passage, hook, timeout_error(passage, hook), "timeout")
    return value if error is None else after_error(passage, hook, error)


async def resume_downstream(passage: Traversal, hook: CompiledInterceptor, slot: int, call_next: NextStep) -> Any:
    """What an `around` that failed or changed nothing surrounds: run now if it was not yet, else its outcome."""
    if passage.outcomes[slot] is CLOSED:
        passage.outcomes[slot] = ABSENT
        return await call_next(passage, passage.call)
    outcome = await outcome_of(passage, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        # The hook did that, or it would have been cancelled too. Nothing is left to go on with, open or closed.
        error = wrong(hook, "stopped what is inside of `call_next`, and gave no result in its place")
        report_failure(hook.id, f"{hook.kind} {hook.point}", passage.call.operation_id, error)
        raise fail_closed(passage, hook, error, str(error))
    raise outcome.error


async def outcome_of(passage: Traversal, slot: int) -> Any:
    """The outcome of a `call_next` that was called; waits for it."""
    while passage.outcomes[slot] is RUNNING:
        if passage.finished is None or passage.finished.is_set():
            passage.finished = anyio.Event()
        await passage.finished.wait()
    return passage.outcomes[slot]


async def repeat_call_next(passage: Traversal, hook: CompiledInterceptor | None, slot: int) -> Any:
    """`call_next` once more: its first outcome.

    Raises:
        HookUsageError: If there is none, and will be none.
    """
    name = hook.id if hook is not None else ""
    if passage.outcomes[slot] is CLOSED:
        raise HookUsageError(f"`call_next` of hook {name!r} was called after the hook had returned.")
    outcome = await outcome_of(passage, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        raise HookUsageError(f"`call_next` of hook {name!r} was cancelled; it cannot be called once more.")
    raise outcome.error


def next_call(passage: Traversal, hook: CompiledInterceptor | None, call: Any) -> Any:
    """The call that an `around` gives to `call_next`, checked."""
    if hook is None:
        return call
    if not isinstance(call, hook.call):
        raise HookUsageError(
            f"`call_next` takes the {hook.point}, changed or not; hook {hook.id!r} gave {quote(call)}."
        )
    problem = check_changed(call, passage.call)
    if problem is not None:
        raise HookUsageError(f"Hook {hook.id!r} {problem}.")
    if passage.control is not None and passage.control.pinned:
        return passage.call
    passage.call = call
    return call


def apply_after(passage: Traversal, hook: CompiledInterceptor, value: object, result: Any) -> Any:
    """What an `after` said: the result to go on with."""
    if value is None or value is FAILED:
        if value is None:
            passage.note(hook, "ok")
        return result
    if isinstance(value, hook.result):
        problem = None if value is result else check_result(value)
        if problem is None:
            passage.note(hook, "ok")
            return value
        failed(passage, hook, wrong(hook, problem), "error")
        return result
    if isinstance(value, Continue) and hook.point == "AgentCall" and isinstance(value.input, str):
        passage.note(hook, "ok")
        if value.input:
            passage.continues = (*passage.continues, value.input)
        return result
    allowed = "None, a changed result or Deny" + (", or Continue" if hook.point == "AgentCall" else "")
    if isinstance(value, Ask):
        failed(passage, hook, wrong(hook, f"returned an Ask, but the call has happened; {allowed}"), "error")
    else:
        apply_refusal(passage, hook, value, allowed)
    return result


async def ask_person(passage: Traversal, call: Any) -> None:
    """After the guards: whether a person must decide, although no hook said so."""
    control = passage.control
    if control is None:
        return
    if control.interrupted:
        await control.stop()
    if control.approved:
        return
    asked = await control.asks(call)
    if asked is not None:
        passage.asked = asked
        passage.denied = Denial(hook_id="", reason=asked.prompt)
        passage.refusal = HookDenied("", asked.prompt)
        raise passage.refusal


def wrong(hook: CompiledInterceptor, problem: str) -> HookReturnError:
    """The failure of a hook that returned what it may not."""
    return HookReturnError(hook.id, hook.point, problem)


class Around(NamedTuple):
    hook: CompiledInterceptor
    slot: int
    """Where the outcome of its `call_next` is kept."""
    call_next: NextStep


Outermost = tuple[CompiledInterceptor, Callable[..., Any], int, NextStep]
"""A hook, its handler, and the slot and the way of its `call_next`; plain, because a named tuple unpacks slowly."""


def short_way(arounds: Sequence[CompiledInterceptor], *, timed: bool) -> tuple[NextStep, Outermost | None]:
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


def executions_of(passage: Traversal, arounds: Sequence[CompiledInterceptor]) -> list[HookExecution]:
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


def come_back(clock: Clock | None, hook: CompiledInterceptor | None) -> None:
    """The `call_next` of an `around` is over, and its own time goes on."""
    if clock is not None and hook is not None:
        clock.marks[hook.leave] = perf_counter()
        clock.on = hook.index
        clock.resume(hook.index)


def _timed(around: Around, outer: CompiledInterceptor | None, slot: int) -> NextStep:
    """The way into an `around`, which is at the same time the `call_next` of the one right outside of it."""
    hook, inner_slot, call_next = around
    index, handler, limit, on_return = hook.index, hook.handler, hook.timeout, hook.outer
    start, end = hook.start, hook.end
    outer_limit = outer.timeout if outer is not None else math.inf
    outer_start, leave = (outer.start, outer.leave) if outer is not None else (start, hook.leave)

    async def enter(passage: Traversal, call: Any) -> Any:
        clock: Clock = passage.clock  # type: ignore[assignment]
        outcomes, marks, now = passage.outcomes, clock.marks, perf_counter()
        state = outcomes[slot]
        if state is not IDLE and state is not ABSENT:
            return await repeat_call_next(passage, outer, slot)
        if now - marks[outer_start] > outer_limit and state is IDLE:
            raise late_call_next_error(outer)
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
                    result = await finish_around(passage, hook, None, result, inner_slot)
            if result is not outcomes[inner_slot]:
                result = await apply_around(passage, hook, inner_slot, result, call_next)
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


async def failed_in_time(passage: Traversal, hook: CompiledInterceptor, error: BaseException, slot: int) -> Any:
    """The end of such an `around` that raised."""
    clock = passage.clock
    if clock is not None:
        clock.marks[hook.end] = perf_counter()
        clock.on = hook.outer
    return await finish_around(passage, hook, error, FAILED, slot)


def _timed_innermost(outer: CompiledInterceptor) -> NextStep:
    limit, start, inside, leave, index = outer.timeout, outer.start, outer.inside, outer.leave, outer.index

    async def enter(passage: Traversal, call: Any) -> Any:
        clock: Clock = passage.clock  # type: ignore[assignment]
        outcomes, marks, now = passage.outcomes, clock.marks, perf_counter()
        state = outcomes[0]
        if state is not IDLE and state is not ABSENT:
            return await repeat_call_next(passage, outer, 0)
        if now - marks[start] > limit and state is IDLE:
            raise late_call_next_error(outer)
        if not clock.stepping:
            return await drive_elsewhere(clock, enter(passage, call))
        marks[inside] = now
        clock.on = NO_HOOK
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


def _untimed(around: Around, outer: CompiledInterceptor | None, slot: int) -> NextStep:
    """As `_timed`, where no hook has a limit."""
    hook, inner_slot, call_next = around
    handler = hook.handler

    async def enter(passage: Traversal, call: Any) -> Any:
        outcomes = passage.outcomes
        if outcomes[slot] is not IDLE and outcomes[slot] is not ABSENT:
            return await repeat_call_next(passage, outer, slot)
        if call is not passage.call:
            call = next_call(passage, outer, call)
        outcomes[slot] = RUNNING
        try:
            try:
                result = await handler(call, MethodType(call_next, passage))
            except BaseException as error:
                result = await finish_around(passage, hook, error, FAILED, inner_slot)
            if result is not outcomes[inner_slot]:
                result = await apply_around(passage, hook, inner_slot, result, call_next)
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


def _untimed_innermost(outer: CompiledInterceptor | None) -> NextStep:
    async def enter(passage: Traversal, call: Any) -> Any:
        outcomes = passage.outcomes
        if outcomes[0] is not IDLE and outcomes[0] is not ABSENT:
            return await repeat_call_next(passage, outer, 0)
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


MAX_AROUNDS = 100
"""Each takes up to seven frames (with a `before` and an `after` between two of them), and Python has a thousand."""

Placed = tuple[Interceptor, object]
"""An interceptor and the lane of its bundle."""


class CompiledChain:
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
            arounds[-1].index if arounds else NO_HOOK,
        )
        self.enter = self._fold(onion, innermost)
        simple = not guards and not unwaited and len(arounds) == len(onion)
        simple = simple and all(hook.is_async and hook.matches is None for hook in onion)
        self.plain: NextStep | None = None
        self.outermost: Outermost | None = None
        if simple:
            self.plain, self.outermost = short_way(arounds, timed=self.timed)
        self.idle = [IDLE] * self.slots

    def _fold(self, onion: Sequence[CompiledInterceptor], innermost: NextStep) -> NextStep:
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
    """Where a hook stands and where its times are marked; see `CompiledInterceptor`."""

    outer: int
    start: int
    end: int
    inside: int
    leave: int


def _places(ordered: Sequence[Interceptor]) -> list[_Places]:
    """Four marks per hook. An `around` right inside of another one begins where the other one's `call_next` does."""
    onion = [index for index, hook in enumerate(ordered) if hook.wait and hook.kind != "guard"]
    following = dict(itertools.pairwise(onion))
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


def _compile(
    index: int, hook: Interceptor, lane: object, places: _Places, *, hook_timeout: float
) -> CompiledInterceptor:
    is_async = is_async_handler(hook.handler)
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


def _innermost(
    guards: Sequence[CompiledInterceptor], background: Sequence[CompiledInterceptor], outer: int
) -> NextStep:
    async def enter(passage: Traversal, call: Any) -> Any:
        for guard in guards:
            if guard.matches is None or guard.matches(call):
                apply_guard(passage, guard, await run_interceptor(passage, guard, call))
        control = passage.control
        if control is not None:
            await ask_person(passage, call)
        if control is None or not control.resumed:
            for hook in background:
                if hook.matches is None or hook.matches(call):
                    passage.start(hook, call)
        clock = passage.clock
        if clock is not None:
            clock.on = NO_HOOK
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


def _through_befores(hooks: Sequence[CompiledInterceptor], inner: NextStep) -> NextStep:
    async def enter(passage: Traversal, call: Any) -> Any:
        control = passage.control
        for hook in hooks:
            if hook.matches is not None and not hook.matches(call):
                continue
            if control is not None and control.pinned and not (hook.control and control.decided):
                # What a person approved is not rewritten; but who was not heard before may still refuse it.
                if control.decided and hook.index >= passage.unheard_from:
                    apply_late_before(passage, hook, await run_interceptor(passage, hook, call))
                continue
            said = apply_before(passage, hook, await run_interceptor(passage, hook, call), call)
            if not isinstance(said, Call):
                return said
            if control is not None and control.pinned:
                said = keep_approved(passage, hook, call, said)
            call = said
        return await inner(passage, call)

    return enter


def _through_afters(hooks: Sequence[CompiledInterceptor], inner: NextStep) -> NextStep:
    async def enter(passage: Traversal, call: Any) -> Any:
        result = await inner(passage, call)
        if passage.control is not None and passage.control.suspended:
            return result
        for hook in hooks:
            if hook.matches is None or hook.matches(passage.call):
                result = apply_after(passage, hook, await run_interceptor(passage, hook, passage.call, result), result)
        return result

    return enter


def _call_next(hook: CompiledInterceptor, slot: int, inner: NextStep) -> NextStep:
    """The `call_next` of an `around` that has no other right inside of it."""
    index, start, inside, leave, limit = hook.index, hook.start, hook.inside, hook.leave, hook.timeout

    async def call_next(passage: Traversal, call: Any) -> Any:
        state, clock = passage.outcomes[slot], passage.clock
        if state is not IDLE and state is not ABSENT:
            return await repeat_call_next(passage, hook, slot)
        if clock is not None:
            now = perf_counter()
            if state is IDLE and (now - clock.marks[start] > limit or clock.expired == index):
                raise late_call_next_error(hook)
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


def _into(around: Around, outer: CompiledInterceptor | None, slot: int) -> NextStep:
    """The way into an `around`, which is at the same time the `call_next` of the one right outside of it, if any.

    One frame for both, because frames are most of what a chain costs.
    """
    hook, inner_slot, call_next = around
    matches, start, on_return = hook.matches, hook.start, hook.outer
    outer_limit = outer.timeout if outer is not None else math.inf
    outer_start = outer.start if outer is not None else start

    async def enter(passage: Traversal, call: Any) -> Any:
        outcomes, clock = passage.outcomes, passage.clock
        state = outcomes[slot]
        if state is not IDLE and state is not ABSENT:
            return await repeat_call_next(passage, outer, slot)
        if clock is not None:
            marks, now = clock.marks, perf_counter()
            if outer is not None and state is IDLE:
                if now - marks[outer_start] > outer_limit or clock.expired == on_return:
                    raise late_call_next_error(outer)
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
                or (passage.watched and not await may_start(passage, hook))
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


async def _run_around(passage: Traversal, around: Around, call: Any) -> Any:
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
        result = await finish_around(passage, hook, error, result, slot)
    if result is not passage.outcomes[slot]:
        return await apply_around(passage, hook, slot, result, call_next)
    passage.note(hook, "ok")
    return result
