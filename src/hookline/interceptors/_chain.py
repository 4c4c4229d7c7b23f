"""`Chain`: sort interceptors by priority and run a call through them, in time, failing open or closed."""

from __future__ import annotations

import math
import types
from collections import Counter, deque
from collections.abc import Awaitable, Generator, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import anyio
import anyio.abc
import msgspec

from hookline._checks import check_timeout, quote
from hookline._deadlines import HandlerTimeoutError, runs_on_trio
from hookline.calls import (
    CALLS,
    AddedContext,
    AgentCall,
    AgentResult,
    Ask,
    Call,
    CompactCall,
    CompactResult,
    Continue,
    Denial,
    Deny,
    Guide,
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
    background_of,
    context_takers,
    shadow_of,
)
from hookline.errors import HookDefinitionError, HookDenied, HookTimeoutError, HookUsageError
from hookline.execution import announce_chain, describe_failure, refuse_return, report_failure, run_timed
from hookline.hooks import AnyHook, Hooks, Interceptor, hook_batch, refuse_scoped
from hookline.interceptors._clock import Clock, ScopedClock, drive, drive_through
from hookline.interceptors._fold import CompiledChain, Placed, first_unheard
from hookline.interceptors._shadow import judge_in_shadow
from hookline.interceptors._text_judge import judged_calls
from hookline.interceptors._traversal import (
    NEVER_INTERRUPTED,
    CompiledInterceptor,
    NextStep,
    RunPolicy,
    Terminal,
    Traversal,
    executions_of,
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
    "Guide",
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
]

MAX_AROUNDS = 100
"""Each takes up to seven frames (with a `before` and an `after` between two of them), and Python has a thousand."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a call with interceptors.

    Attributes:
        call: The final call, or the call at the time when it was denied or answered.
        result: The result; `None` after a denial.
        denied: The hook that denied the call, and its reason; `None` if none did.
        asked: The question to a person, if an `Ask` denied the call.
        stop: Whether the denial also ends the run.
        continues: The inputs of `Continue`, in the order in which the hooks ran.
        guides: The feedback of each `Guide`, in the order in which the hooks ran. A run asks the model again; a chain
            by itself does not.
        context: The texts that hooks have added for the model with `add_context`.
        executions: One record per hook that ran, in the order of their start; empty with `record=False`.
        duration_ms: Time from the start of the first hook to the end, including the call.
        refusal: The denial as an exception; its cause is the failure of the hook, if it failed.
    """

    call: Any
    result: Any
    denied: Denial | None = None
    asked: Ask | None = None
    stop: bool = False
    continues: list[str] = []
    guides: list[str] = []
    context: list[AddedContext] = []
    executions: list[HookExecution] = []
    duration_ms: float = 0.0
    refusal: HookDenied | None = None

    def unwrap(self) -> Any:
        """The result.

        Raises:
            HookDenied: If a hook denied the call; `__cause__` is the failure of the hook, if it failed.
        """
        if self.refusal is not None:
            raise self.refusal
        return self.result


class Chain:
    """The interceptors around calls, sorted and compiled once. Calls can run through it concurrently.

    Args:
        hooks: Bundles and interceptors. Other hooks are ignored.
        budget: Limit of the own time of all hooks of one call together, in seconds; `None` for no limit.
        hook_timeout: Limit of own time in seconds for hooks that have none.
        record: Whether outcomes have `executions`.

    Raises:
        HookDefinitionError: If a hook or a number is invalid.
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
            raise HookDefinitionError("Chain", "`hook_timeout` must be a number of seconds, or math.inf for no limit")
        placed = sort_by_priority(_with_lanes(hook_batch(hooks)))
        self._record = bool(record)
        self._budget = math.inf if budget is None else float(budget)
        self._limited = self._budget < math.inf
        self._tenants = frozenset(hook.tenant_id for hook, _ in placed if hook.tenant_id)
        check_depth(hook for hook, _ in placed)
        self._hook_timeout = hook_timeout
        self._placed: dict[type[Call], list[Placed]] = {call: [] for call in CALLS}
        for each in placed:
            self._placed[each[0].call].append(each)
        self._calls = frozenset(call for call, hooks in self._placed.items() if hooks)
        self._compiled: dict[tuple[type[Call], str], CompiledChain] = {}
        compiled = {call: self._compile(call, "") for call in CALLS}
        self._of_all_tenants = {} if self._tenants else compiled
        """The compiled chain by class of calls, where no hook is of one tenant only."""

    def _compile(self, call: type[Call], tenant_id: str) -> CompiledChain:
        """Return the hooks of a class of calls and a tenant, compiled when they are first needed."""
        key = (call, tenant_id if tenant_id in self._tenants else "")
        compiled = self._compiled.get(key)
        if compiled is None:
            theirs = [each for each in self._placed[call] if each[0].tenant_id in ("", key[1])]
            compiled = CompiledChain(theirs, hook_timeout=self._hook_timeout) if theirs else _NO_HOOKS
            self._compiled[key] = compiled
        return compiled

    def _compiled_for(self, call: Call) -> CompiledChain:
        """Return the hooks of a call.

        Raises:
            HookUsageError: If `call` is not a call.
        """
        compiled = self._of_all_tenants.get(call.__class__)
        if compiled is not None:
            return compiled
        if call.__class__ not in self._placed:
            raise HookUsageError(
                f"Chain.run takes one of the eight calls, {', '.join(kind.__name__ for kind in CALLS)}; "
                f"got {quote(call)}."
            )
        return self._compile(call.__class__, call.tenant_id)

    @property
    def calls(self) -> frozenset[type[Call]]:
        """The classes of calls that have interceptors."""
        return self._calls

    def __contains__(self, call: type[Call]) -> bool:
        """Return whether calls of that class have interceptors."""
        return call in self._calls

    def judges_result(self, call: type[Call], tenant_id: str = "") -> bool:
        """Return whether text of calls of that class is held until a hook has judged the result.

        Args:
            call: The class of the calls.
            tenant_id: The tenant of the calls.
        """
        return any(
            hook.wait
            and not hook.shadow
            and hook.hold_text
            and hook.kind in ("around", "after")
            and hook.tenant_id in ("", tenant_id)
            for hook, _ in self._placed[call]
        )

    def judges_parts(self, call: type[Call], tenant_id: str = "") -> bool:
        """Return whether all hooks that can change or withhold the result of such calls judge its text in parts.

        Args:
            call: The class of the calls.
            tenant_id: The tenant of the calls.
        """
        return bool(self._compile(call, tenant_id).part_hooks)

    def _waits(self, call: type[Call], tenant_id: str = "") -> bool:
        """Return whether a hook of calls of that class may wait: it is async, or it runs beside the call.

        Args:
            call: The class of the calls.
            tenant_id: The tenant of the calls.
        """
        return self._compile(call, tenant_id).waits

    def order(self, call: type[Call], *, tenant_id: str = "") -> list[str]:
        """Return the ids of the hooks of a class of calls, outermost first, guards last.

        Args:
            call: The class of the calls.
            tenant_id: The tenant of the call.
        """
        return [hook.id for hook in self._compile(call, tenant_id).hooks] if call in self._placed else []

    async def run(self, call: Call, terminal: Terminal) -> Outcome:
        """Run a call through its hooks.

        Args:
            call: The call.
            terminal: `async (call) -> result`: performs the call. It is called at most once, with the final call.

        Raises:
            HookUsageError: If `call` is not a call.
            BaseException: The exception of the terminal, unchanged.
        """
        started = perf_counter()
        compiled = self._of_all_tenants.get(call.__class__) or self._compiled_for(call)  # one frame less, mostly
        if not compiled.hooks:
            result = await terminal(call)
            return Outcome(call=call, result=result, duration_ms=(perf_counter() - started) * 1e3)
        traversal = await self._traverse(compiled, call, terminal)
        executions = executions_of(traversal) if self._record else []
        duration_ms = (perf_counter() - started) * 1e3
        plain = not (traversal.continues or traversal.guides or traversal.context)
        if plain and traversal.refusal is None:
            return Outcome(call=traversal.call, result=traversal.result, executions=executions, duration_ms=duration_ms)
        return Outcome(
            call=traversal.call,
            result=traversal.result,
            denied=traversal.denied,
            asked=traversal.asked,
            stop=traversal.stop,
            continues=list(traversal.continues),
            guides=[feedback for _, feedback in traversal.guides],
            context=list(traversal.context),
            executions=executions,
            duration_ms=duration_ms,
            refusal=traversal.refusal,
        )

    async def _traverse(
        self, compiled: CompiledChain, call: Call, terminal: Terminal, policy: RunPolicy | None = None
    ) -> Traversal:
        """Run a call through its hooks.

        Args:
            compiled: The hooks of the call.
            call: The call.
            terminal: What the hooks wrap.
            policy: The rules of the run that the call belongs to.

        Returns:
            The traversal at its end. A denial is not raised: it is the traversal's `refusal`.

        Raises:
            BaseException: The exception of the terminal, unchanged.
        """
        on_trio = runs_on_trio()
        kind = ScopedClock if on_trio else Clock
        clock = kind(compiled.hooks, [*compiled.marks], self._budget, self._limited, self._limited)
        outcomes = [*compiled.idle]
        if policy is None:
            traversal = Traversal(call, terminal, outcomes, clock, None, NEVER_INTERRUPTED, self._limited)
        else:
            traversal = Traversal(
                call, terminal, outcomes, clock, policy, policy.watch, watched=True, pinned=policy.pinned
            )
            if policy.decided:
                traversal.unheard_from = first_unheard(compiled, policy)
        # Kept, since receivers may connect and leave meanwhile. A call of `bool` takes ten times as long as `not`.
        announcing = not (not hook_executed.receivers and not chain_ran.receivers)
        if self._record or announcing:
            traversal.started, traversal.executions = [], {}
        if announcing:
            traversal.announcing, traversal.sender = True, self if policy is None else policy.sender
            began = perf_counter()
        if compiled.takes_context:
            shared = id(call.metadata)
            # A hook of this very call may run it through another chain.
            outer = context_takers.get(shared) if context_takers else None
            context_takers[shared] = traversal
        if compiled.part_hooks:
            judged_calls[id(call.metadata)] = traversal, compiled.part_hooks
        try:
            if compiled.background:
                await self._traverse_with_background(compiled, traversal)
            elif compiled.waits and not on_trio:  # as `drive_through`, but a frame less: each call of a run comes here
                coroutine = enter_chain(compiled.enter, traversal)
                for waits_for in coroutine:  # once at most, since `drive` drives it to its end
                    await drive(clock, coroutine, waits_for)
            else:
                traversal.result = await compiled.enter(traversal, call)
        except HookDenied as refusal:
            if refusal is not traversal.refusal:
                raise
            asker = traversal.asked_by
            if asker is not None:  # ids need not be unique
                traversal.asked_nth = sum(hook.id == asker.id for hook in compiled.hooks[: asker.index])
        finally:
            if compiled.part_hooks:
                judged_calls.pop(id(call.metadata), None)
            if compiled.takes_context:
                if outer is not None:
                    context_takers[shared] = outer
                else:
                    del context_takers[shared]
            if announcing and chain_ran.receivers and traversal.started:
                denied = None if traversal.asked is not None else traversal.denied
                announce_chain(traversal.call, executions_of(traversal), denied, began, traversal.sender)
        return traversal

    async def _traverse_with_background(self, compiled: CompiledChain, traversal: Traversal) -> None:
        """Run a call through its hooks, some of which are background hooks."""

        async def through() -> Any:
            result = await drive_through(traversal.clock, compiled.enter(traversal, traversal.call))
            if not traversal.superseded and (traversal.policy is None or not traversal.policy.suspended):
                for hook in compiled.background_after:
                    if hook.matches is None or hook.matches(traversal.call):
                        traversal.start(hook, traversal.call, result)
            return result

        if traversal.policy is None:
            traversal.result = await run_with_background(traversal, through())
        else:
            traversal.result = await through()


@types.coroutine
def enter_chain(enter: NextStep, traversal: Traversal) -> Generator[Any, Any, None]:
    """Lead a call through a chain, and keep the result in its traversal.

    A generator, since a loop ends with it without a `StopIteration`, which costs more than the generator does.
    """
    traversal.result = yield from enter(traversal, traversal.call)


_NO_HOOKS = CompiledChain((), hook_timeout=math.inf)


class PastVerdict(NamedTuple):
    """What hooks did with a stored call.

    Attributes:
        duration_ms: Their own time.
        executions: One record per hook that ran, in the order of their start; empty if all let the call be.
    """

    duration_ms: float
    executions: Sequence[HookExecution]


class PastChain:
    """The interceptors that judge stored calls. Nothing that they decide has an effect.

    Nothing is announced or logged, and text for the model that a hook adds to a call reaches nobody.

    Args:
        hooks: The hooks; they are for all tenants whose calls are judged, and none of them is a background hook.
        hook_timeout: Limit of own time in seconds for hooks that have none.
    """

    def __init__(self, hooks: Iterable[Interceptor], *, hook_timeout: float = 30.0) -> None:
        placed: dict[type[Call], list[Placed]] = {}
        lane = object()  # not the chain: a cycle of both would wait for the garbage collector, once per operation
        for each in sort_by_priority((hook, lane) for hook in hooks):
            placed.setdefault(each[0].call, []).append(each)
        self._compiled = {call: CompiledChain(each, hook_timeout=hook_timeout) for call, each in placed.items()}
        self._clock = ScopedClock if runs_on_trio() else Clock

    async def judge(self, call: Call, outcome: object) -> PastVerdict | None:
        """Run a stored call through the hooks.

        Args:
            call: The call.
            outcome: The result of the call, or an exception that the call raises.

        Returns:
            What the hooks did; `None` if the call is for none of them.

        Raises:
            BaseException: A cancellation, or an error that is no `Exception`.
        """
        compiled = self._compiled.get(call.__class__)
        if compiled is None:
            return None

        async def terminal(call: Any) -> Any:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        clock = self._clock(compiled.hooks, compiled.marks.copy(), math.inf, limited=False)
        traversal = Traversal(call, terminal, compiled.idle.copy(), clock, started=[], executions={}, logged=False)
        shadow_of.set(call.metadata)
        coroutine = compiled.enter(traversal, call)
        try:
            if clock.scoped:
                await coroutine
            else:  # as `drive_through` does, but a frame less
                try:
                    waits_for = coroutine.send(None)
                except StopIteration:
                    pass
                else:
                    await drive(clock, coroutine, waits_for)
        except anyio.get_cancelled_exc_class():
            raise
        except Exception as error:
            if error is not traversal.refusal and error is not traversal.raised:
                raise
        ran = traversal.started
        if not ran:
            return None
        now = perf_counter()
        noted = executions_of(traversal) if traversal.executions or traversal.rewrote else ()
        return PastVerdict(sum([clock.own(hook, now) for hook in ran]) * 1e3, noted)


def _with_lanes(batch: Iterable[AnyHook]) -> list[Placed]:
    """Pair the interceptors of a batch with the lane of each; plain ones share one lane."""
    own = object()
    placed: list[Placed] = []
    for entry in batch:
        if isinstance(entry, Hooks):
            refuse_scoped(entry, "Chain")
            placed.extend((hook, entry.lane) for hook in entry.interceptors)
        elif isinstance(entry, Interceptor):
            placed.append((entry, own))
    return placed


def check_depth(hooks: Iterable[Interceptor]) -> None:
    """Refuse more `around`s around one call than Python's stack holds.

    Raises:
        HookDefinitionError: That names the class of calls.
    """
    counts = Counter((hook.call, hook.tenant_id) for hook in hooks if hook.kind == "around" and not hook.shadow)
    for call, tenant in counts:
        if counts[call, tenant] + (counts[call, ""] if tenant else 0) > MAX_AROUNDS:
            raise HookDefinitionError(
                f"Chain for {call.__name__}",
                f"more than {MAX_AROUNDS} `around` hooks, whose nested calls would overflow Python's stack; use "
                "`before`, `guard` and `after` instead, whose number is not limited",
            )


def sort_by_priority(placed: Iterable[Placed]) -> list[Placed]:
    """Sort interceptors from the outermost to the innermost: by priority, guards last.

    Of two with the same priority, that of all tenants comes first, then the one that was given first.
    """
    return sorted(placed, key=lambda each: (each[0].kind == "guard", each[0].priority, each[0].tenant_id != ""))


async def run_with_background(traversal: Traversal, through: Awaitable[Any]) -> Any:
    """Run a call through its chain, with its background hooks (`wait=False`) beside it, and wait for all of them.

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
                await run_background_hook(traversal, *queue.popleft())
            del lanes[lane]

        def spawn(hook: CompiledInterceptor, args: tuple[Any, ...]) -> None:
            lane = id(hook.lane)
            idle = lane not in lanes
            lanes.setdefault(lane, deque()).append((hook, args))
            if idle:
                group.start_soon(work, lane)

        traversal.spawn = spawn
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


async def run_background_hook(traversal: Traversal, hook: CompiledInterceptor, args: tuple[Any, ...]) -> None:
    """Run a background hook or a shadow hook: its failure is only recorded."""
    if traversal.started is not None:
        traversal.started.append(hook)
    if hook.alone is not None:
        traversal.keep(hook, await judge_in_shadow(hook, *args))
        return
    started = perf_counter()
    marks = traversal.clock.marks
    marks[hook.start] = marks[hook.end] = started  # for its record: none of its time is on the clock
    background_of.set(args[0].metadata)
    try:
        error = await run_timed(hook.handler, args, refuse_return, is_async=hook.is_async, timeout=hook.timeout)
    except BaseException:
        traversal.note(hook, "dropped", "cancelled", duration_ms=(perf_counter() - started) * 1e3)
        raise
    late = error is None and not hook.is_async and perf_counter() - started > hook.timeout
    if late or isinstance(error, HandlerTimeoutError):
        error = HookTimeoutError(hook.id, hook.point, hook.timeout)
    status: ExecutionStatus = "ok"
    if error is not None:
        status = "timeout" if isinstance(error, HookTimeoutError) else "error"
        report_failure(hook.id, f"{hook.kind} {hook.point}", traversal.call.operation_id, error)
    problem = describe_failure(error) if error is not None else None
    traversal.note(hook, status, problem, duration_ms=(perf_counter() - started) * 1e3)
