"""One call on its way through a chain: what each hook said, what that means, and who is to blame for what."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import msgspec

from hookline._deadline import HandlerCancelledError, own_cancellation
from hookline._hook_records import Kind
from hookline._own_time import Clock, ScopedClock, drive_elsewhere
from hookline._records import announce_execution, described, report_failure
from hookline._verdicts import check_changed, result_of
from hookline.calls import Ask, Call, Continue, Denial, Deny, Respond
from hookline.errors import HookDenied, HookExecutionError, HookReturnError, HookTimeoutError, HookUsageError
from hookline.signals import ExecutionStatus, HookExecution

__all__ = ["Control", "Enter", "HookInChain", "Passage", "Terminal"]

Terminal = Callable[[Any], Awaitable[Any]]
"""What a chain surrounds: `async (call) -> result`."""


class HookInChain(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An interceptor as a chain runs it, with everything decided that can be decided before a call comes.

    Attributes:
        index: Its place among the hooks of its chain for one class of calls.
        id: The interceptor's id.
        kind: How it stands there.
        call: The class of the calls.
        result: The class of their results.
        handler: For an async one, a function that surely returns a coroutine.
        is_async: Decided once.
        timeout: Seconds of own time, for messages; its limit on the clock is the same.
        closed: Whether its failure denies the call.
        matches: Whether a call is for this hook; `None` if every one is.
        lane: The lane of its bundle, for one that is not waited for.
    """

    index: int
    id: str
    kind: Kind
    call: type[Call]
    result: type[msgspec.Struct]
    handler: Callable[..., Any]
    is_async: bool
    timeout: float
    closed: bool
    matches: Callable[[Any], object] | None
    lane: object

    @property
    def point(self) -> str:
        """The name of the calls, for records and errors."""
        return self.call.__name__


class Control(Protocol):
    """What a run of an agent adds to a chain.

    Attributes:
        interrupted: Whether no further hook may start.
        pinned: Whether nothing may rewrite the call: it was on its way before, and waited for a person.
        approved: Whether a person has let it through, so that no `Ask` is asked again.
        suspended: Whether the call goes on at another time, so that no `after` runs yet.
        sender: Of the records.
    """

    @property
    def interrupted(self) -> bool: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def approved(self) -> bool: ...
    @property
    def suspended(self) -> bool: ...
    @property
    def sender(self) -> object: ...

    async def asks(self, call: Any) -> Ask | None:
        """Whether a person must be asked about the final call, although no hook said so."""
        ...

    def background(self, hook: HookInChain, args: tuple[Any, ...]) -> None:
        """Run a hook that is not waited for."""
        ...


Enter = Callable[["Passage", Any], Coroutine[Any, Any, Any]]
"""The rest of a chain, from some hook on: `async (passage, call) -> result`."""


class _Mark:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


FAILED = _Mark("FAILED")
"""What a hook that fails open said when it failed: nothing."""
RUNNING = _Mark("RUNNING")
CLOSED = _Mark("CLOSED")


class Raised:
    """The outcome of what raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Passage:
    """One call on its way through a chain."""

    # Class-level defaults: a passage is made for every call, and most change few of these.
    control: Control | None = None
    clock: Clock | None = None
    recording = False
    denied: Denial | None = None
    refusal: HookDenied | None = None
    """Raised wherever somebody waits for the call, once it is denied."""
    stop = False
    asked: Ask | None = None
    raised: BaseException | None = None
    """What the terminal raised: nobody's failure."""
    reached = False
    """Whether the terminal was called."""
    answered_by: str | None = None
    answer: Any = None
    """What a hook answered in the terminal's place."""
    result: Any = None
    finished: anyio.Event | None = None
    spawn: Callable[[HookInChain, tuple[Any, ...]], None] | None = None

    def __init__(self, call: Any, terminal: Terminal, arounds: int) -> None:
        self.call = call
        self.terminal = terminal
        self.outcomes: list[Any] = [None] * arounds
        """Per `around`, what its `call_next` came to."""
        self.continues: list[str] = []
        self.started: list[HookInChain] = []
        self.executions: dict[int, HookExecution] = {}

    # Running a hook.

    async def ask(self, hook: HookInChain, *args: Any) -> Any:
        """What a hook says.

        Returns:
            Its return value; `FAILED` if it failed and fails open.

        Raises:
            HookDenied: If it failed and fails closed, or the call is denied already.
            BaseException: What the terminal raised inside of an `around`, and cancellations.
        """
        control = self.control
        if control is not None and control.interrupted:
            await anyio.lowlevel.checkpoint()
        clock = self.clock
        before = -1
        if clock is not None:
            before = clock.turn(hook.index)
            if clock.budget < math.inf and clock.left(hook.index) <= 0:
                clock.turn(before)
                return self.failed(hook, self.too_long(hook), None)  # the budget is gone: it is not even started
        if self.recording:
            self.started.append(hook)
        error: BaseException | None = None
        value: Any = None
        try:
            value = hook.handler(*args)
            if hook.is_async or (hook.kind == "around" and inspect.isawaitable(value)):
                value = await (clock.bounded(hook.index, value) if isinstance(clock, ScopedClock) else value)
            elif value is not None and inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                error = self.wrong(hook, "is a plain function that returned an awaitable; register an `async def`")
        except BaseException as raised:
            error = raised
        if clock is not None and self.stopped(clock, hook, before, error):
            return self.failed(hook, self.too_long(hook), "timeout")
        return value if error is None else self.after_error(hook, error)

    def stopped(self, clock: Clock, hook: HookInChain, before: int, error: BaseException | None) -> bool:
        """A hook's turn is over; whether it took too long."""
        clock.turn(before)
        alarm, expired = clock.alarm, clock.expired == hook.index
        elsewhere = alarm is not None and alarm.settle(hook.index)
        over = clock.is_over(hook.index)
        if expired:
            clock.expired = -1
        if elsewhere and (over or not isinstance(error, asyncio.CancelledError)):
            self.note(hook, "dropped", "cancelled")
            raise asyncio.CancelledError  # swallowed by the hook, and not meant for it
        if isinstance(error, asyncio.CancelledError):
            return expired
        return over and (error is None or isinstance(error, Exception))

    def after_error(self, hook: HookInChain, error: BaseException) -> Any:
        """A hook's handler raised: its own failure, or what somebody else did."""
        if error is self.raised or (error is self.refusal and hook.kind == "around"):
            self.note(hook, "ok")
            raise error
        if isinstance(error, asyncio.CancelledError) and own_cancellation():
            error = HandlerCancelledError("it ended as cancelled although nobody had cancelled it")
        if not isinstance(error, Exception):
            self.note(hook, "dropped", "cancelled")
            raise error
        return self.failed(hook, error, "error")

    def failed(self, hook: HookInChain, error: Exception, status: ExecutionStatus | None) -> Any:
        """A hook has failed: the call is denied or goes on without it, as it was declared."""
        problem = str(error) if isinstance(error, HookTimeoutError | HookReturnError) else described(error)
        if status is not None:
            self.note(hook, status, problem)
        report_failure(hook.id, f"{hook.kind} {hook.point}", self.call.operation_id, error)
        if self.refusal is not None:
            raise self.refusal
        if not hook.closed:
            return FAILED
        cause = HookExecutionError(hook.id, hook.point, hook.kind, problem)
        cause.__cause__ = error
        raise self.deny(hook, f"the hook failed, and it fails closed: {problem}", cause=cause)

    def deny(
        self, hook: HookInChain, reason: str, *, stop: bool = False, cause: HookExecutionError | None = None
    ) -> HookDenied:
        """Deny the call, unless it is denied already: the first denial stands."""
        if self.refusal is None:
            self.denied = Denial(hook_id=hook.id, reason=reason)
            self.stop = stop
            self.refusal = HookDenied(hook.id, reason)
            self.refusal.__cause__ = cause
        return self.refusal

    def too_long(self, hook: HookInChain) -> HookTimeoutError:
        """The failure of a hook that took too long."""
        clock = self.clock
        if clock is not None and clock.spent[hook.index] <= clock.limits[hook.index] and clock.budget < math.inf:
            return HookTimeoutError(hook.id, hook.point, min(hook.timeout, clock.budget / 1e9))
        return HookTimeoutError(hook.id, hook.point, hook.timeout)

    def wrong(self, hook: HookInChain, problem: str) -> HookReturnError:
        """The failure of a hook that returned what it may not."""
        return HookReturnError(hook.id, hook.point, problem)

    # What its answer means.

    def heed(self, hook: HookInChain, value: object, call: Any) -> Any:
        """What a `before` said: the call to go on with, or the result that answers it."""
        if value is None or value is FAILED:
            if value is None:
                self.note(hook, "ok")
            return call
        if isinstance(value, hook.call):
            problem = check_changed(value, call)
            if problem is None:
                self.note(hook, "ok")
                self.call = value
                return value
            self.failed(hook, self.wrong(hook, problem), "error")
            return call
        if isinstance(value, Respond):
            answer = self.respond(hook, value)
            return call if answer is FAILED else answer
        self.judge(hook, value, "None, a changed call, Respond, Deny or Ask")
        return call

    def judge(self, hook: HookInChain, value: object, allowed: str) -> None:
        """What a hook said that is neither a call nor a result: a refusal, or a mistake."""
        if isinstance(value, Deny) and isinstance(value.reason, str):
            self.note(hook, "denied", value.reason)
            raise self.deny(hook, value.reason, stop=bool(value.stop))
        if isinstance(value, Ask) and isinstance(value.prompt, str):
            if self.control is not None and self.control.approved:
                self.note(hook, "ok")
                return  # a person has lifted it
            self.note(hook, "denied", value.prompt)
            if self.refusal is None and not self.reached and self.answered_by is None:
                self.asked = value
            raise self.deny(hook, value.prompt)
        self.failed(hook, self.wrong(hook, f"returned {value!r:.200}; it may return {allowed}"), "error")

    def judged(self, guard: HookInChain, value: object) -> None:
        """What a guard said."""
        if value is None:
            self.note(guard, "ok")
        elif value is not FAILED:
            self.judge(guard, value, "None, Deny or Ask")

    def respond(self, hook: HookInChain, value: Respond) -> Any:
        """What a hook answers in the call's place.

        Raises:
            Exception: The answer itself, if it is one and the call has no result for that.
        """
        try:
            answer = result_of(hook.result, value.answer)
        except HookUsageError as error:
            return self.failed(hook, error, "error")
        self.note(hook, "mocked")
        self.answered(hook, answer)
        if isinstance(answer, Exception):
            self.raised = answer
            raise answer
        return answer

    def answered(self, hook: HookInChain, answer: Any) -> None:
        """A hook answers the call; whoever answers first did it in the terminal's place."""
        if not self.reached and self.answered_by is None:
            self.answered_by, self.answer = hook.id, answer

    async def returned(self, hook: HookInChain, position: int, value: Any, enter: Enter, call: Any) -> Any:
        """What an `around` came to, whatever it returned."""
        outcome = self.outcomes[position]
        if self.refusal is not None:
            self.note(hook, "denied" if isinstance(value, Deny | Ask) else "ok")
            raise self.refusal
        called = outcome is not None
        if outcome is None:
            self.outcomes[position] = CLOSED
        if called and value is outcome:
            self.note(hook, "ok")
            return value
        if isinstance(value, hook.result):
            self.note(hook, "ok" if called else "mocked")
            if not called:
                self.answered(hook, value)
            return value
        if value is None and called and outcome is not RUNNING:
            self.note(hook, "ok")
        elif isinstance(value, Respond):
            answer = self.respond(hook, value)
            if answer is not FAILED:
                return answer
        elif value is not FAILED:
            problem = "returned None without having called `call_next`" if value is None else None
            if problem is not None:
                self.failed(hook, self.wrong(hook, problem), "error")
            else:
                self.judge(hook, value, "a result, None after call_next, Respond, Deny or Ask")
        return await self.downstream(position, enter, call)

    async def downstream(self, position: int, enter: Enter, call: Any) -> Any:
        """What an `around` that failed or changed nothing surrounds: run now if it was not yet, else its outcome."""
        outcome = self.outcomes[position]
        if outcome is CLOSED:
            return await enter(self, call)
        if outcome is RUNNING:
            while self.outcomes[position] is RUNNING:
                self.finished = self.finished or anyio.Event()
                await self.finished.wait()
            outcome = self.outcomes[position]
        if isinstance(outcome, Raised):
            raise outcome.error
        return outcome

    async def again(self, hook: HookInChain, position: int) -> Any:
        """`call_next` once more: its first outcome."""
        if self.outcomes[position] is CLOSED:
            raise HookUsageError(f"`call_next` of hook {hook.id!r} was called after the hook had returned.")
        return await self.downstream(position, _never, None)

    def next_call(self, hook: HookInChain, call: Any) -> Any:
        """The call that an `around` gives to `call_next`, checked."""
        if call is self.call:
            return call
        if not isinstance(call, hook.call):
            raise HookUsageError(
                f"`call_next` takes the {hook.point}, changed or not; hook {hook.id!r} gave {call!r:.200}."
            )
        problem = check_changed(call, self.call)
        if problem is not None:
            raise HookUsageError(f"Hook {hook.id!r} {problem}.")
        if self.control is not None and self.control.pinned:
            return self.call
        self.call = call
        return call

    def final(self, hook: HookInChain, value: object, result: Any) -> Any:
        """What an `after` said: the result to go on with."""
        if value is None or value is FAILED:
            if value is None:
                self.note(hook, "ok")
            return result
        if isinstance(value, hook.result):
            self.note(hook, "ok")
            return value
        if isinstance(value, Continue) and hook.point == "AgentCall" and isinstance(value.input, str):
            self.note(hook, "ok")
            if value.input:
                self.continues.append(value.input)
            return result
        allowed = "None, a changed result or Deny" + (", or Continue" if hook.point == "AgentCall" else "")
        if isinstance(value, Ask):
            self.failed(hook, self.wrong(hook, f"returned an Ask, but the call has happened; {allowed}"), "error")
        else:
            self.judge(hook, value, allowed)
        return result

    # Going on.

    async def ask_person(self, call: Any) -> None:
        """After the guards: whether a person must decide, although no hook said so."""
        control = self.control
        if control is None or control.approved:
            return
        asked = await control.asks(call)
        if asked is not None:
            self.asked = asked
            self.denied = Denial(hook_id="", reason=asked.prompt)
            self.refusal = HookDenied("", asked.prompt)
            raise self.refusal

    def start(self, hook: HookInChain, *args: Any) -> None:
        """Start a hook that is not waited for."""
        if self.control is not None:
            self.control.background(hook, args)
        elif self.spawn is not None:
            self.spawn(hook, args)

    def is_late(self, hook: HookInChain) -> bool:
        """Whether a hook asks for the rest of the chain although its time is over."""
        clock = self.clock
        if clock is None:
            return False
        clock.turn(clock.on)
        return clock.is_over(hook.index)

    async def go_on(self, enter: Enter, call: Any) -> Any:
        """The rest of the chain, on behalf of an `around`."""
        clock = self.clock
        if clock is None or clock.stepping:
            return await enter(self, call)
        return await drive_elsewhere(clock, enter(self, call))

    # Records.

    def note(
        self, hook: HookInChain, status: ExecutionStatus, error: str | None = None, *, duration_ms: float | None = None
    ) -> None:
        """Record how a hook's run has ended."""
        if not self.recording:
            return
        if duration_ms is None:
            duration_ms = self.clock.spent[hook.index] / 1e6 if self.clock is not None else 0.0
        self.executions[hook.index] = execution = HookExecution(
            hook_id=hook.id,
            hook_type=hook.point,
            operation_id=self.call.operation_id,
            status=status,
            duration_ms=duration_ms,
            error=error,
        )
        announce_execution(execution, self.control.sender if self.control is not None else self)


async def _never(passage: Passage, call: Any) -> Any:
    raise AssertionError
