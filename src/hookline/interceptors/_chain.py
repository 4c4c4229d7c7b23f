"""`Chain`: the interceptors around one call, in order, bounded in time, failing open or closed as each declares."""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Awaitable, Iterable
from time import perf_counter
from types import MethodType
from typing import Any

import anyio
import anyio.abc
import msgspec

from hookline._checks import check_timeout, quote
from hookline._deadlines import (
    HandlerCancelledError,
    HandlerTimeoutError,
    bounded_for_this_backend,
    own_cancellation,
    runs_on_asyncio,
)
from hookline.calls import (
    CALLS,
    AgentCall,
    AgentResult,
    Ask,
    Call,
    CompactCall,
    CompactResult,
    Continue,
    Denial,
    Deny,
    MemoryCall,
    MemoryResult,
    ModelCall,
    ModelResponse,
    RequestCall,
    RequestResult,
    Respond,
    StepCall,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDefinitionError, HookDenied, HookTimeoutError, HookUsageError
from hookline.execution import announce_chain, describe_failure, refuse_return, report_failure
from hookline.hooks import AnyHook, Hooks, Interceptor, hook_batch
from hookline.interceptors._clock import Clock, ScopedClock, drive
from hookline.interceptors._traverse import (
    CLOSED,
    FAILED,
    IDLE,
    CompiledChain,
    CompiledInterceptor,
    Placed,
    RunPolicy,
    Terminal,
    Traversal,
    apply_around,
    check_depth,
    executions_of,
    finish_around,
)
from hookline.signals import ExecutionStatus, HookExecution, chain_ran, hook_executed

__all__ = [
    "AgentCall",
    "AgentResult",
    "Ask",
    "Chain",
    "CompactCall",
    "CompactResult",
    "Continue",
    "Denial",
    "Deny",
    "Interceptor",
    "MemoryCall",
    "MemoryResult",
    "ModelCall",
    "ModelResponse",
    "Outcome",
    "RequestCall",
    "RequestResult",
    "Respond",
    "StepCall",
    "StepResult",
    "SubAgentCall",
    "ToolCall",
    "ToolResult",
    "run_beside",
]


async def run_beside(passage: Traversal, through: Awaitable[Any]) -> Any:
    """Lead a call through its chain, and let hooks that it starts on its way run beside it; all end before this does.

    Raises:
        BaseException: What `through` raises.
    """
    lanes: dict[int, deque[tuple[CompiledInterceptor, tuple[Any, ...]]]] = {}
    result: Any = None
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:

        async def work(lane: int) -> None:
            queue = lanes[lane]
            while queue:
                await run_unwaited(passage, *queue.popleft())
            del lanes[lane]

        def spawn(hook: CompiledInterceptor, args: tuple[Any, ...]) -> None:
            lane = id(hook.lane)
            idle = lane not in lanes
            lanes.setdefault(lane, deque()).append((hook, args))
            if idle:
                group.start_soon(work, lane)

        passage.spawn = spawn
        try:
            result = await through
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # kept out of the group, which would wrap it
            failure = error
            if not isinstance(error, Exception):
                group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


async def run_unwaited(passage: Traversal, hook: CompiledInterceptor, args: tuple[Any, ...]) -> None:
    """Run a hook whose failure is only recorded."""
    if passage.recording:
        passage.started.append(hook)
    started = perf_counter()
    error: Exception | None = None
    try:
        value = hook.handler(*args)
        if hook.is_async:
            value = await bounded_for_this_backend()(value, hook.timeout, None)
        elif perf_counter() - started > hook.timeout:
            raise HandlerTimeoutError
        refuse_return(value)
    except asyncio.CancelledError as raised:
        if not own_cancellation():
            passage.note(hook, "dropped", "cancelled", duration_ms=(perf_counter() - started) * 1e3)
            raise
        error = HandlerCancelledError(str(raised))
    except HandlerTimeoutError:
        error = HookTimeoutError(hook.id, hook.point, hook.timeout)
    except Exception as raised:
        error = raised
    except BaseException:
        passage.note(hook, "dropped", "cancelled", duration_ms=(perf_counter() - started) * 1e3)
        raise
    status: ExecutionStatus = "ok"
    if error is not None:
        status = "timeout" if isinstance(error, HookTimeoutError) else "error"
        report_failure(hook.id, f"{hook.kind} {hook.point}", passage.call.operation_id, error)
    problem = describe_failure(error) if error is not None else None
    passage.note(hook, status, problem, duration_ms=(perf_counter() - started) * 1e3)


ENDED = object()
"""What the first step of a coroutine gives if it ended there; a `StopIteration` would be a thirtieth of the price."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a call in a chain.

    Attributes:
        call: The call as it really ran, or as it was when it was denied or answered.
        result: Its result; `None` after a denial.
        denied: Which hook refused it, and why; `None` if none did.
        asked: What a person is to be asked, where that is why it was denied.
        stop: Whether the denial asks for the end of the whole run.
        continues: The inputs of `Continue`, in the order in which the hooks ran.
        executions: One record per hook that ran, in the order of their start; empty with `record=False`.
        duration_ms: From the first hook's start to the end, the call itself included.
        refusal: The denial as an exception, with the failure of a hook as its cause.
    """

    call: Any
    result: Any
    denied: Denial | None = None
    asked: Ask | None = None
    stop: bool = False
    continues: list[str] = []
    executions: list[HookExecution] = []
    duration_ms: float = 0.0
    refusal: HookDenied | None = None

    def unwrap(self) -> Any:
        """The result.

        Raises:
            HookDenied: If a hook refused the call; its `__cause__` is the failure of a hook that fails closed.
        """
        if self.refusal is not None:
            raise self.refusal
        return self.result


class Chain:
    """Interceptors, sorted and compiled once; immutable. Any number of calls may run through it at the same time.

    Args:
        hooks: Bundles and plain interceptors. What is no interceptor is left out.
        budget: Seconds of own time that all hooks of one call may take together; `None` for no limit.
        hook_timeout: Seconds of own time that a hook may take unless it says otherwise.
        record: Whether outcomes list what each hook did.

    Raises:
        HookDefinitionError: If an entry or a number cannot work.
    """

    def __init__(
        self,
        hooks: Iterable[AnyHook] = (),
        *,
        budget: float | None = None,
        hook_timeout: float = 30.0,
        record: bool = True,
    ) -> None:
        check_timeout(budget, "Chain(budget=...)")
        check_timeout(hook_timeout, "Chain(hook_timeout=...)")
        if hook_timeout is None:
            raise HookDefinitionError("Chain", "`hook_timeout` is a number of seconds, or math.inf for no limit")
        placed = _placed(hook_batch(hooks))
        self._record = bool(record)
        self._budget = math.inf if budget is None else float(budget)
        self._tenants = frozenset(hook.tenant_id for hook, _ in placed if hook.tenant_id)
        check_depth(hook for hook, _ in placed)
        self._hook_timeout = hook_timeout
        self._placed: dict[type[Call], list[Placed]] = {call: [] for call in CALLS}
        for each in placed:
            self._placed[each[0].call].append(each)
        self._calls = frozenset(call for call, hooks in self._placed.items() if hooks)
        self._onions: dict[tuple[type[Call], str], CompiledChain] = {}
        # The commonest shape gets the shortest way: no budget, no tenant, nothing but async `around`s.
        short = not (self._tenants or self._budget < math.inf)
        onions = {call: self._onion(call, "") for call in CALLS}
        self._plain = {call: onion for call, onion in onions.items() if short and onion.plain}

    def _onion(self, call: type[Call], tenant_id: str) -> CompiledChain:
        """The hooks of a class of calls and a tenant, compiled when they are first needed."""
        key = (call, tenant_id if tenant_id in self._tenants else "")
        onion = self._onions.get(key)
        if onion is None:
            theirs = [each for each in self._placed[call] if each[0].tenant_id in ("", key[1])]
            onion = _NO_HOOKS[self._record]
            if theirs:
                onion = CompiledChain(theirs, hook_timeout=self._hook_timeout, record=self._record)
            self._onions[key] = onion
        return onion

    @property
    def calls(self) -> frozenset[type[Call]]:
        """The classes of calls that any hook stands in the way of."""
        return self._calls

    def __contains__(self, call: type[Call]) -> bool:
        """Whether any hook stands in the way of calls of that class."""
        return call in self._calls

    def judges_result(self, call: type[Call], tenant_id: str = "") -> bool:
        """Whether any hook may change or withhold what comes of calls of that class.

        Args:
            call: The class of the calls.
            tenant_id: Whose calls they are.
        """
        return any(
            hook.wait and hook.kind in ("around", "after") and hook.tenant_id in ("", tenant_id)
            for hook, _ in self._placed[call]
        )

    def order(self, call: type[Call], *, tenant_id: str = "") -> list[str]:
        """Ids of the hooks of a class of calls, from the outside to the inside, guards last.

        Args:
            call: The class of the calls.
            tenant_id: Whose call it is.
        """
        return [hook.id for hook in self._onion(call, tenant_id).hooks] if call in self._placed else []

    async def run(self, call: Call, terminal: Terminal) -> Outcome:
        """Lead a call through the hooks.

        Args:
            call: What is about to happen.
            terminal: `async (call) -> result`: what happens. It is called at most once, with the final call.

        Raises:
            HookUsageError: If that is no call.
            BaseException: What the terminal raises, unchanged.
        """
        started = perf_counter()
        onion = self._plain.get(call.__class__)
        if (
            onion is None
            or hook_executed.receivers
            or chain_ran.receivers
            or ("trio" in sys.modules and not runs_on_asyncio())
        ):
            passage = await self._lead(call, terminal)
            return self._outcome(passage, None, started)
        if not onion.hooks:
            result = await terminal(call)
            return Outcome(call=call, result=result, duration_ms=(perf_counter() - started) * 1e3)
        if not onion.timed:  # the outermost hook is run here, because one frame more is a twentieth of it all
            outcomes = onion.idle.copy()
            passage = Traversal(call, terminal, outcomes)
            hook, handler, slot, call_next = onion.outermost  # type: ignore[misc]
            try:
                try:
                    result = await handler(call, MethodType(call_next, passage))
                except BaseException as error:
                    result = await finish_around(passage, hook, error, FAILED, slot)
                if result is not outcomes[slot]:
                    result = await apply_around(passage, hook, slot, result, call_next)
                if passage.refusal is None:
                    return Outcome(call=passage.call, result=result, duration_ms=(perf_counter() - started) * 1e3)
                passage.result = result
            except BaseException as error:
                if outcomes[slot] is IDLE:
                    outcomes[slot] = CLOSED
                if error is not passage.refusal:
                    raise
        else:
            clock = Clock(onion.hooks, onion.marks.copy(), math.inf)
            if self._record:
                passage = Traversal(
                    call, terminal, onion.idle.copy(), clock, recording=True, sender=self, executions={}
                )
            else:
                passage = Traversal(call, terminal, onion.idle.copy(), clock)
            coroutine = onion.plain(passage, call)  # type: ignore[misc]
            try:
                waits_for = next(coroutine.__await__(), ENDED)
                if waits_for is not ENDED:
                    await drive(clock, coroutine, waits_for)
            except HookDenied as refusal:
                if refusal is not passage.refusal:
                    raise
        return self._outcome(passage, onion, started)

    def _outcome(self, passage: Traversal, short: CompiledChain | None, started: float) -> Outcome:
        """What came out.

        Args:
            passage: The call at the end of its way.
            short: The onion whose short way it took.
            started: When, by `perf_counter`.
        """
        executions: list[HookExecution] = []
        if self._record:
            executions = (
                executions_of(passage, short.hooks)
                if short is not None
                else [passage.executions[hook.index] for hook in passage.started]
            )
        duration_ms = (perf_counter() - started) * 1e3
        if passage.refusal is None and not passage.continues:
            return Outcome(call=passage.call, result=passage.result, executions=executions, duration_ms=duration_ms)
        return Outcome(
            call=passage.call,
            result=passage.result,
            denied=passage.denied,
            asked=passage.asked,
            stop=passage.stop,
            continues=list(passage.continues),
            executions=executions,
            duration_ms=duration_ms,
            refusal=passage.refusal,
        )

    async def _lead(self, call: Call, terminal: Terminal, control: RunPolicy | None = None) -> Traversal:
        """As `run`, for a run of an agent too, which adds its own control."""
        if call.__class__ not in self._placed:
            raise HookUsageError(
                f"A chain takes one of the eight calls, {', '.join(kind.__name__ for kind in CALLS)}; "
                f"got {quote(call)}."
            )
        onion = self._onion(call.__class__, call.tenant_id)
        passage = Traversal(call, terminal, [IDLE] * onion.slots)
        if control is not None or self._budget < math.inf:
            passage.control, passage.watched = control, True
            if control is not None and control.decided:
                passage.unheard_from = first_unheard(onion, control)
        if self._record or hook_executed.receivers or chain_ran.receivers:
            passage.recording, passage.started, passage.executions = True, [], {}
            passage.sender = self if control is None else control.sender
        began = perf_counter()
        try:
            if onion.background and control is None:
                passage.result = await run_beside(passage, self._through(onion, passage))
            else:
                passage.result = await self._through(onion, passage)
        except HookDenied as refusal:
            if refusal is not passage.refusal:
                raise
        finally:
            if passage.recording and chain_ran.receivers and passage.started:
                executions = [passage.executions[hook.index] for hook in passage.started]
                denied = None if passage.asked is not None else passage.denied
                announce_chain(passage.call, executions, denied, began, passage.sender)
        asker = passage.asked_by
        if asker is not None:  # ids need not be unique
            passage.asked_nth = sum(hook.id == asker.id for hook in onion.hooks[: asker.index])
        return passage

    async def _through(self, onion: CompiledChain, passage: Traversal) -> Any:
        """All the way in and out again, with a clock."""
        if runs_on_asyncio():
            clock = passage.clock = Clock(onion.hooks, onion.marks.copy(), self._budget)
            coroutine = onion.enter(passage, passage.call)
            try:
                waits_for = coroutine.send(None)
            except StopIteration as stop:
                result = stop.value
            else:
                result = await drive(clock, coroutine, waits_for)
        else:
            passage.clock = ScopedClock(onion.hooks, onion.marks.copy(), self._budget)
            result = await onion.enter(passage, passage.call)
        if onion.background_after and not (passage.control is not None and passage.control.suspended):
            for hook in onion.background_after:
                if hook.matches is None or hook.matches(passage.call):
                    passage.start(hook, passage.call, result)
        return result


def first_unheard(onion: CompiledChain, control: RunPolicy) -> int:
    """The index of the first hook that had not judged a call when a person was asked about it."""
    if control.asked_by is None:
        return len(onion.hooks)
    asked_by, nth = control.asked_by
    askers = [hook.index for hook in onion.hooks if hook.id == asked_by][: nth + 1]
    return askers[-1] + 1 if askers else 0


_NO_HOOKS = {record: CompiledChain((), hook_timeout=math.inf, record=record) for record in (False, True)}


def _placed(batch: Iterable[AnyHook]) -> list[Placed]:
    """The interceptors of a batch with the lane of each; plain ones share one lane."""
    own = object()
    placed: list[Placed] = []
    for entry in batch:
        if isinstance(entry, Hooks):
            placed.extend((hook, entry.lane) for hook in entry.interceptors)
        elif isinstance(entry, Interceptor):
            placed.append((entry, own))
    return placed
