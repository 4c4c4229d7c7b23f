"""The state of one call on its way through a chain: the compiled hooks, the outcomes, the policy of the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter, perf_counter_ns, time_ns
from typing import Any, Protocol, cast

import anyio
import anyio.lowlevel
import msgspec

from hookline.calls import AddedContext, Ask, Call, Denial, ToolCall, put_context
from hookline.errors import (
    HookDenied,
    HookExecutionError,
    HookUsageError,
)
from hookline.execution import (
    announce_execution,
    tool_of,
)
from hookline.hooks import Kind, TextParts
from hookline.interceptors._clock import Clock
from hookline.signals import ExecutionStatus, HookDecision, HookExecution

__all__ = [
    "ABSENT",
    "CLOSED",
    "FAILED",
    "IDLE",
    "NEVER_INTERRUPTED",
    "NO_RESULT",
    "RUNNING",
    "CompiledInterceptor",
    "Interruptible",
    "NextStep",
    "Raised",
    "RunPolicy",
    "Terminal",
    "Traversal",
    "executions_of",
]

Terminal = Callable[[Any], Awaitable[Any]]
"""What a chain wraps: `async (call) -> result`."""


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
        inside: Where it marks the begin of its `call_next`; `NEVER` for a hook that has none.
        leave: Where it marks the end of that; `NEVER` too.
        alone: For a shadow hook, the compiled chain of this hook alone, by which it judges a call without any effect.
        parts: How it judges text in parts; `None` for no parts.
        part_chain: For such a hook, the compiled chain of this hook alone, by which it judges a part.
        revision: The revision of the stored definition that made it; 0 for any other hook.
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
    alone: Any = None
    parts: TextParts | None = None
    part_chain: Any = None
    revision: int = 0


class Interruptible(Protocol):
    """A run that can be interrupted."""

    @property
    def halted(self) -> bool:
        """Whether nothing further of the run may start."""
        ...


class _NeverInterrupted:
    def __init__(self) -> None:
        self.halted = False  # of the instance, since Python 3.11 is slow to read a default from the class


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
        suspended: Whether the call continues in a later segment, so that no `after` runs yet.
        asked_by: The hook that had the person asked before hooks further inside judged the call, if not all did: its
            id, and how many hooks of that id stand before it.
        resumed: Whether the call went on at another time before, so that hooks beside it have started already.
        asks_again: Whether the model is asked again if a hook returns `Guide`; not if it was asked too often.
        guides: Whether hooks of the run can return `Guide` at all; not in every framework.
        adds_context: The calls to which hooks of the run can add text for the model.
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
    def asks_again(self) -> bool: ...
    @property
    def guides(self) -> bool: ...
    @property
    def adds_context(self) -> frozenset[type[Call]]: ...
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
        watched: Whether an `around` may find that it must not start: the call belongs to a run, or there is a budget.
        pinned: Whether nothing may rewrite the call.
        unheard_from: Of a call that a person approved: the index of the first hook that had not judged it then. Those
            before it do not run, but for guards, controls and `after` hooks.
        started: The hooks that ran, in the order of their start; `None` if they are not recorded.
        executions: What a hook did, by its index; of one that did nothing special only where it is announced.
        announcing: Whether each execution is announced when it ends.
        refusal: Raised wherever somebody waits for the call, once it is denied.
        denied: By whom, and why.
        stop: Whether the denial asks for the end of the run.
        asked: What a person is to be asked.
        asked_by: The hook that asks.
        asked_nth: How many hooks of the same id stand before it.
        raised: The exception of the terminal, which is not a hook's failure.
        answered_by: The hook that answered in the terminal's place.
        answer: Its answer.
        result: The result at the end.
        continues: The inputs of `Continue`.
        guides: The feedback of each `Guide`, with the id of its hook.
        rewrote: The indexes of the `around`s that have passed a changed call to `call_next`.
        context: The texts that hooks have added for the model.
        finished: Set when a `call_next` ends, if a task waits for it.
        sender: Of the records.
        spawn: Starts a `wait=False` hook, or a shadow hook, outside a run.
        shadow_metadata: The `metadata` of the call as the shadow hooks of each bundle see it, by the id of its lane.
        released: The text that readers got of the answer while the model wrote it, by the index of the hook that let
            it pass; `None` if it was not read in parts.
        logged: Whether failures of hooks are logged; not those about a stored call.
        superseded: Whether other `after` hooks have judged the result in place of those of the chain, since a fenced
            change has replaced some of them while the call was running.
    """

    # A struct and not a class with defaults, because in Python 3.11 a default that is read from the class is slow.
    call: Any
    terminal: Terminal
    outcomes: list[Any]
    clock: Clock
    policy: RunPolicy | None = None
    watch: Interruptible = NEVER_INTERRUPTED
    watched: bool = False
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
    guides: tuple[tuple[str, str], ...] = ()
    rewrote: tuple[int, ...] = ()
    context: tuple[AddedContext, ...] = ()
    finished: anyio.Event | None = None
    sender: object = None
    spawn: Callable[[CompiledInterceptor, tuple[Any, ...]], None] | None = None
    shadow_metadata: dict[int, dict[str, Any]] | None = None
    released: dict[int, str] | None = None
    logged: bool = True
    superseded: bool = False

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

    def take_context(self, text: str) -> None:
        """Take a text for the model from the hook whose time the clock counts.

        Raises:
            HookUsageError: If there is none: the caller is a task beside the hooks.
        """
        clock = self.clock
        if clock.on < 0 or not clock.stepping:
            raise HookUsageError(
                f"{type(self.call).__name__}.add_context was called while no hook was running. Call it in the hook "
                "itself, not in a task that runs beside `call_next` or after the hook."
            )
        if self.policy is not None and type(self.call) not in self.policy.adds_context:
            raise HookUsageError(
                f"{type(self.call).__name__}.add_context is not supported by the framework of this run. Its adapter's "
                "`Capabilities.adds_context` lists the calls that support it."
            )
        hooks = cast(Sequence[CompiledInterceptor], clock.hooks)
        hook_id = hooks[clock.on].id
        nth = sum(hook.id == hook_id for hook in hooks[: clock.on])
        self.context = put_context(self.context, AddedContext(hook_id=hook_id, text=text, nth=nth))

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
        decision: HookDecision = "",
        reason: str = "",
        duration_ms: float | None = None,
    ) -> None:
        """Record how the run of a hook ended, if executions are recorded."""
        plain = status == "ok" and error is None and not decision and duration_ms is None
        if self.executions is None or (plain and not self.announcing):
            return  # `executions_of` makes the record of a hook that did nothing special
        now = perf_counter()
        execution = execution_of(
            self,
            hook,
            now,
            time_ns() - int(now * 1e9),
            status=status,
            error=error,
            decision=decision,
            reason=reason,
            duration_ms=duration_ms,
        )
        self.keep(hook, execution)

    def keep(self, hook: CompiledInterceptor, execution: HookExecution) -> None:
        """Keep the record of a hook, and announce it, if executions are recorded."""
        if self.executions is not None:
            self.executions[hook.index] = execution
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
    decision: HookDecision = "",
    reason: str = "",
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
        decision: What it decided.
        reason: Its reason.
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
        agent_id=call.agent_id,
        tool=tool_of(call),
        in_chain=True,
        decision=decision or ("changed" if hook.index in traversal.rewrote else ""),
        reason=reason,
        revision=hook.revision,
    )


def executions_of(traversal: Traversal) -> list[HookExecution]:
    """Return one record per hook that ran, in the order of their start."""
    if not traversal.started or traversal.executions is None:
        return []
    noted, rewrote, marks, call = traversal.executions, traversal.rewrote, traversal.clock.marks, traversal.call
    epoch = time_ns() - perf_counter_ns()
    operation_id, tenant_id, agent_id = call.operation_id, call.tenant_id, call.agent_id
    step_index: int | None
    tool_call_id: str | None
    if call.__class__ is ToolCall:  # mostly, and an attribute takes a tenth of a `getattr`
        step_index, tool_call_id, tool = call.step_index, call.tool_call_id, f"{call.toolset}/{call.tool_name}"
    else:
        step_index, tool_call_id = getattr(call, "step_index", None), getattr(call, "tool_call_id", None)
        tool = tool_of(call)
    executions = []
    for hook in traversal.started:
        execution = noted.get(hook.index) if noted else None
        if execution is None:  # as `execution_of` makes it of a hook that did nothing special, at half the price
            start, end = marks[hook.start], marks[hook.end]
            inside = marks[hook.inside]
            if end:
                own = end - start - (marks[hook.leave] - inside if inside else 0.0)
            else:  # an `around` outside of it has gone on without it, in another task
                own = traversal.clock.own(hook, perf_counter())
            execution = HookExecution(
                hook_id=hook.id,
                hook_type=hook.point,
                operation_id=operation_id,
                status="ok",
                duration_ms=own * 1e3,
                time_unix_nano=epoch + int(start * 1e9),
                step_index=step_index,
                tool_call_id=tool_call_id,
                tenant_id=tenant_id,
                agent_id=agent_id,
                tool=tool,
                in_chain=True,
                decision="changed" if rewrote and hook.index in rewrote else "",
                revision=hook.revision,
            )
        executions.append(execution)
    return executions
