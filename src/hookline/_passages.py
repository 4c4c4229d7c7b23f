"""A hook as a chain runs it, and a passage: one call on its way through a chain, with all that is known of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter, time_ns
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import msgspec

from hookline._own_time import Clock
from hookline.calls import Ask, Call, Denial
from hookline.errors import HookDenied, HookExecutionError
from hookline.execution import announce_execution
from hookline.hooks import Kind
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


class Control(Protocol):
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


class Passage(msgspec.Struct, eq=False):
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
    control: Control | None = None
    watched: bool = False
    recording: bool = False
    refusal: HookDenied | None = None
    denied: Denial | None = None
    stop: bool = False
    asked: Ask | None = None
    asked_by: HookInChain | None = None
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
    spawn: Callable[[HookInChain, tuple[Any, ...]], None] | None = None
    started: Any = None
    executions: Any = None

    @property
    def reached(self) -> bool:
        """Whether the terminal was called."""
        outcome = self.outcomes[0]
        return outcome is not IDLE and outcome is not CLOSED and outcome is not ABSENT

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

    def settle(self, slot: int, outcome: Any) -> None:
        """Note the outcome of a `call_next`, and wake whoever waits for it."""
        self.outcomes[slot] = outcome
        if self.finished is not None:
            self.finished.set()

    def start(self, hook: HookInChain, *args: Any) -> None:
        """Start a hook that is not waited for."""
        if self.control is not None:
            if not self.control.interrupted:
                self.control.background(hook, args)
        elif self.spawn is not None:
            self.spawn(hook, args)

    def note(
        self, hook: HookInChain, status: ExecutionStatus, error: str | None = None, *, duration_ms: float | None = None
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
