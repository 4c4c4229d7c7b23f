"""`Run`: one segment of an operation, with its conversation, totals, cancellation and events."""

from __future__ import annotations

import asyncio
import threading
import traceback
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, cast

import anyio.lowlevel
import msgspec
from msgspec import UNSET, UnsetType

from hookline._deadlines import new_scope, present_asyncio_task, runs_on_asyncio
from hookline._readonly import NO_LIST, ReadOnlyList
from hookline.calls import (
    CALLS,
    AgentCall,
    Call,
    Denial,
    Message,
    ModelResponse,
    ToolCall,
    ToolRequest,
    ToolResult,
    ToolSpec,
    Usage,
)
from hookline.dispatcher import (
    HookDispatcher,
    RequiredDeliveries,
    has_webhooks,
    hooks_of_this_process,
    with_delivering_observers,
)
from hookline.errors import message_of
from hookline.events import (
    AfterStep,
    BeforeStep,
    BeforeToolCall,
    CompletionReason,
    Event,
    OnComplete,
    OnError,
    PendingTool,
    ToolOutcome,
)
from hookline.hooks import (
    AnyHook,
    Hook,
    Hooks,
    Interceptor,
    check_hook,
    has_scopes,
    hooks_for_store,
    select_hooks,
)
from hookline.instrumentation import Instrumentation
from hookline.interceptors import Chain, FencedChain, FencedHooks, Interruptible, is_fenced
from hookline.phases import PhaseMachine
from hookline.runtime._agent import Agent, find_offered, restore_tools
from hookline.runtime._hooks_at_resume import all_interceptor_keys, interceptor_keys
from hookline.runtime._inputs import RunOptions, system_message
from hookline.runtime._journal import NO_JOURNAL, Journal
from hookline.runtime._models import RunText, make_run_text
from hookline.runtime._state import (
    CallingOperation,
    Decision,
    DurableStore,
    InMemoryStore,
    InterceptorKey,
    OperationResult,
    OperationState,
    RemoteHearer,
    Steering,
    Step,
    WaitingCall,
    tool_message,
)
from hookline.runtime._tools import Tool
from hookline.webhooks import HookData

__all__ = ["Run", "after_step", "before_step", "end_events", "find_hearers", "live", "wants_no_event"]


_NO_CALLS: frozenset[type[Call]] = frozenset()
_ALL_CALLS: frozenset[type[Call]] = frozenset(CALLS)


def are_plain(hooks: Sequence[AnyHook]) -> bool:
    """Return whether a run takes hooks as they are: functions of this process, for every operation and store."""
    for entry in hooks:
        if entry.__class__ is Hooks or isinstance(entry, Hooks):
            if entry.scope is not None or entry.needs_store or entry.hearer or isinstance(entry, FencedHooks):
                return False
        elif not isinstance(entry, Interceptor):
            return False
    return True


def compile_chain(hooks: Sequence[AnyHook], dispatcher: HookDispatcher) -> tuple[Chain | None, frozenset[type[Call]]]:
    """Return the chain of a run's interceptors, and the calls that it has any for."""
    owners: list[Hooks | Interceptor] = []
    for entry in hooks:
        if isinstance(entry, Hooks):
            if entry.interceptors:
                owners.append(entry)
        elif isinstance(entry, Interceptor):
            owners.append(entry)
    if not owners:
        return None, _NO_CALLS
    budget, hook_timeout = dispatcher.chain_budget, dispatcher.hook_timeout
    if len(owners) > 1 or not isinstance(only := owners[0], Hooks):
        chain = Chain(owners, budget=budget, hook_timeout=hook_timeout, record=False)
        return chain, chain.calls
    # A bundle keeps its own chain, which dies with it. Of several together nobody may keep it: one of them may be of
    # this run alone.
    key = (only.interceptors, budget, hook_timeout)
    if only._chain is None or only._chain[0] != key:
        only._chain = (key, Chain([only], budget=budget, hook_timeout=hook_timeout, record=False))
    kept: Chain = only._chain[1]
    return kept, kept.calls


def compile_fenced_chain(
    hooks: Sequence[AnyHook], dispatcher: HookDispatcher, select: Callable[[Sequence[AnyHook]], list[AnyHook]]
) -> tuple[FencedChain, frozenset[type[Call]]]:
    """Return the chain of a run on whose hooks fenced changes take effect, and the calls that may get any: all.

    Args:
        hooks: The hooks that the run was given.
        dispatcher: The dispatcher of the run.
        select: Returns the hooks that are for the operation.
    """
    budget, hook_timeout = dispatcher.chain_budget, dispatcher.hook_timeout

    def compile_renewed(renewed: Sequence[AnyHook]) -> Chain:
        here = hooks_of_this_process(select(renewed), lambda: dispatcher.delivery)
        chain, _ = compile_chain(here, dispatcher)
        return chain or Chain(budget=budget, hook_timeout=hook_timeout, record=False)

    return FencedChain(hooks, compile_renewed, budget=budget, hook_timeout=hook_timeout), _ALL_CALLS


ExecChild = Callable[["Run", Agent, str, str, OperationState | None], Awaitable[OperationResult]]
"""Runs a sub-agent: parent run, sub-agent, instruction, operation id, and what is stored of it if it is to go on."""

Remember = Callable[["Run"], Awaitable[None]]
UNSTEERED = Steering()


def wants_event(event: type[Event]) -> bool:
    """Return that an event is wanted: a journal keeps all of them."""
    return True


def wants_no_event(event: type[Event]) -> bool:
    """Return that an event is not wanted: the operation has ended."""
    return False


class Run:
    """One segment of an operation: from `exec_agent` or `resume_agent` to its return."""

    can_ask = True
    """Whether a person can be asked about a tool call."""
    adds_context: frozenset[type[Call]] = frozenset({ToolCall, AgentCall})
    """The calls to which hooks can add text for the model."""
    guides = True
    """Whether the model is asked again if a hook returns `Guide`."""
    framework = ""
    """Name of the other framework that runs it, if one does."""
    has_foreign_scope = False
    """Whether a framework may cancel its scope without calling `interrupt`."""
    writes_ahead = True
    """Whether a durable store learns of a tool call before the tool runs."""

    # Slots, because a run has more attributes than Python shares the keys of.
    __slots__ = (
        "__weakref__",
        "agent",
        "agent_id",
        "agent_version",
        "ask_observers",
        "attempted",
        "begun",
        "call_indices",
        "callers",
        "cancellations",
        "chain",
        "children",
        "claimed",
        "closed",
        "context",
        "continues",
        "conversation_id",
        "critical",
        "data",
        "decisions",
        "denied",
        "dispatcher",
        "drain_timeout",
        "earlier_ms",
        "emit",
        "enclosing",
        "ended",
        "exec_child",
        "failure",
        "finishing",
        "given_hooks",
        "halted",
        "hearers",
        "history",
        "hooked",
        "hooks",
        "input_from",
        "instructions",
        "intercepted",
        "interceptors",
        "journal",
        "last_content",
        "last_input_tokens",
        "llm_calls",
        "messages",
        "metadata",
        "offer",
        "offered",
        "open_calls",
        "operation_id",
        "outcomes",
        "parent",
        "parent_operation_id",
        "pending",
        "phases",
        "polls",
        "refused_from",
        "remember",
        "retry_of",
        "said_from",
        "scope",
        "started",
        "steered",
        "step",
        "step_index",
        "steps",
        "stopped",
        "store",
        "stored_offer",
        "tags",
        "task",
        "tenant_id",
        "text",
        "thread",
        "token",
        "tool_calls",
        "traceparents",
        "usage",
        "user_id",
        "version",
        "waiting",
        "waiting_since_unix_nano",
    )

    def __init__(
        self,
        agent: Agent,
        state: OperationState,
        options: RunOptions,
        dispatcher: HookDispatcher,
        *,
        version: int | None,
        exec_child: ExecChild,
        parent: Run | None = None,
        phases: PhaseMachine | None = None,
        history: int = 0,
        remember: Remember | None = None,
        recovered: bool = False,
    ) -> None:
        store, hooks = options.store, options.hooks
        self.agent = agent
        self.store = store
        self.hooks = hooks
        self.given_hooks: Sequence[AnyHook] = hooks
        """Its hooks as they were given or stored, which sub-agents may inherit."""
        self.dispatcher = dispatcher
        self.callers: tuple[CallingOperation, ...] = ()
        """The runs that called it, the outermost first."""
        if parent is not None or state.parent_operation_id is not None or state.callers is not UNSET:
            self.callers = find_callers(state, parent)
        self.tags = tuple(state.tags or ())
        self.parent = parent
        self.phases = phases
        self.remember = remember
        """Keeps the conversation of a session; called when the operation ends."""
        self.history = history
        """How many of the first messages are no input of this run: a session's conversation so far."""
        self.journal: Journal = NO_JOURNAL
        self.emit: Callable[[Event], None] = dispatcher.dispatch
        """Dispatches an event. Callers ask `hooked` first, so that an event is built only if somebody wants it."""
        self.ask_observers: Callable[[BeforeToolCall], Awaitable[ToolResult | None]]
        """Dispatches the event that observers may answer."""
        self.ask_observers = dispatcher.dispatch_before_tool_call
        self.hooked: Callable[[type[Event]], bool] = partial(dispatcher.has_hooks, state.operation_id)
        """Returns whether any hook wants an event, so that others are not built."""
        if store.__class__ is not InMemoryStore and isinstance(store, DurableStore):
            self.hooked = wants_event
            self.journal = Journal(state, dispatcher, stored=version is not None, recovered=recovered)
            self.emit, self.ask_observers = self.journal.emit, self.journal.ask_observers
        self.critical: RequiredDeliveries | None = None
        """The deliveries without which the operation fails, where this process makes them."""
        self.interceptors: list[InterceptorKey] = []
        """The interceptors without which nobody may go on with it."""
        self.data = state.hooks
        self.hearers: Sequence[RemoteHearer] = ()
        """Who hears its stored events in other processes."""
        self.chain: Chain | None = None
        self.intercepted = _NO_CALLS
        """The calls that the chain has hooks for."""
        is_heard = state.hearers is not UNSET or (parent is not None and parent.hearers)
        if state.hooks or state.interceptors or is_heard or (hooks and not are_plain(hooks)):
            self._take_up_hooks(state)
        elif hooks:
            self.chain, self.intercepted = compile_chain(hooks, dispatcher)
            if self.chain is not None:
                self.interceptors = interceptor_keys(hooks, state.tenant_id)
        self.text: RunText | None = None
        """Takes the text of its model calls while it is written."""
        if options.on_token is not None or options.release != "checked":
            self.text = make_run_text(options.on_token, options.release, self.chain, state.tenant_id)
        self.begun: list[tuple[Instrumentation, Any]] = []
        self.enclosing: dict[type[Call], tuple[Instrumentation, ...]] = {}
        """The bundles that instrument its calls, by class of call."""
        self.exec_child = exec_child
        self.drain_timeout = options.drain_timeout
        self.halted = False
        """Whether somebody has stopped it, or a run that called it, so that nothing further of it may start."""
        self.polls: bool = self.has_foreign_scope or (parent is not None and parent.polls)
        """Whether it may be stopped without being told, so that `halted` does not say it."""
        self.children: Sequence[Run] = ()
        """The runs that it has called and that have not ended."""
        self.stopped = False
        """Whether somebody asked for its end; the scope may hear of it a moment later."""
        self.claimed = False
        """Whether the store has taken note of this segment."""
        self.finishing = False
        """Whether its work is over and its end is being stored and announced."""
        self.closed = False
        """Whether its end was announced."""
        self.failure: tuple[str, str] | None = None
        """Class and message of the exception with which it ends; not the exception, whose frames refer to the run."""
        self.task = present_asyncio_task()
        self.scope: anyio.CancelScope
        if self.has_foreign_scope:
            self.scope = CancelMark()  # type: ignore[assignment]  # until the adapter sets one
        else:
            self.scope = new_scope(on_asyncio=self.task is not None or runs_on_asyncio())
        self.cancellations = self.task.cancelling() if self.task is not None else 0
        self.thread = threading.get_ident()
        self.token = anyio.lowlevel.current_token() if self.task is None else None
        self.started = perf_counter_ns()
        self.ended: int | None = None
        self.step: Step | None = None
        """The step that is under way."""
        self.step_index: int | None = None
        self.version = version
        self._take_up(state)

    def _take_up_hooks(self, state: OperationState) -> None:
        """Take up hooks of which some are for some operations or stores only, or belong to the stored operation."""
        dispatcher = self.dispatcher
        hooks = self.hooks = self.given_hooks = hooks_for_store(self.given_hooks, self.store)
        self.interceptors = all_interceptor_keys(state, hooks)
        root = self.callers[0].operation_id if self.callers else state.parent_operation_id or state.operation_id
        agent_ids = [self.agent.id, *(caller.agent_id for caller in self.callers)]
        select = partial(select_hooks, root_operation_id=root, agent_ids=agent_ids, tags=self.tags)
        if has_scopes(hooks):
            hooks = self.hooks = select(hooks)
        self.hearers = find_hearers(state, hooks, self.parent)
        if state.hooks or has_webhooks(hooks):
            attach_travelling_hooks(self, hooks)
        self.chain, self.intercepted = compile_chain(self.hooks, dispatcher)
        if is_fenced(self.given_hooks):
            self.chain, self.intercepted = compile_fenced_chain(self.given_hooks, dispatcher, select)

    def _take_up(self, state: OperationState) -> None:
        """Load the state of the operation."""
        self.operation_id = state.operation_id
        self.agent_id = self.agent.id
        self.tenant_id = state.tenant_id
        self.user_id = state.user_id
        self.parent_operation_id = state.parent_operation_id
        self.retry_of = state.retry_of
        self.agent_version = state.agent_version
        self.attempted: OperationState | None = None
        self.earlier_ms = state.active_ms
        self.messages: list[Message] = list(state.messages)
        self.open_calls: list[ToolRequest] = list(state.open_calls)
        self.outcomes: dict[str, ToolOutcome] = dict(state.outcomes)
        self.pending: list[PendingTool] = list(state.pending)
        self.decisions: dict[str, Decision] = dict(state.decisions)
        self.steps = state.steps
        self.llm_calls = state.llm_calls
        self.tool_calls = state.tool_calls
        self.usage = state.usage
        self.call_indices: dict[str, int] = dict(state.call_indices)
        self.last_input_tokens = state.last_input_tokens
        self.last_content = state.last_content
        self.conversation_id = state.conversation_id
        self.traceparents = tuple(state.traceparents)
        self.waiting_since_unix_nano = state.waiting_since_unix_nano
        steering = state.steering or UNSTEERED
        self.steered = self.chain is not None or state.steering is not None or self.journal.durable
        self.instructions = self.agent.instructions if steering.instructions is None else steering.instructions
        self.continues = steering.continues
        self.context = tuple(steering.context or ())
        """The texts that hooks of the `AgentCall` have added after the prompt."""
        self.waiting: dict[str, WaitingCall] = dict(steering.waiting)
        self.metadata: dict[str, Any] = dict(steering.metadata)
        self.offered: list[ToolSpec] | None = None
        if steering.offered is not None:
            self.offered = restore_tools(self.agent, steering.offer, steering.offered)
        self.stored_offer = steering.offered
        self.offer = steering.offer
        self.said_from = len(state.messages) if steering.said_from is None else steering.said_from
        """Where in the conversation begins what this operation has said."""
        self.input_from: int | UnsetType = 0
        if state.steps:
            self.input_from = steering.input_from
        elif self.history or self.instructions:
            self.input_from = self.first_input()
        """Where in the conversation begins the first input of this operation."""
        self.denied: Denial | None = steering.denied if self.journal.recovered else None
        self.refused_from: int | None = None
        """Where input begins that hooks have refused: a session does not keep it, so that no later task reads it."""

    @property
    def ids(self) -> dict[str, Any]:
        """The fields that the run gives to each of its events and calls.

        What every run makes names them one by one: a `BeforeStep` made from this dictionary takes three times as long.
        """
        return {
            "operation_id": self.operation_id,
            "agent_id": self.agent_id,
            "user_id": self.user_id,
            "tenant_id": self.tenant_id,
            "parent_operation_id": self.parent_operation_id,
            "tags": self.tags,
        }

    # Its conversation.

    def first_input(self) -> int:
        """Return the index of the first message that is input of this run, not instructions or earlier conversation."""
        if self.history:
            return self.history
        first = self.messages[0] if self.messages else None
        return int(first is not None and bool(self.instructions) and first == system_message(self.instructions))

    def restate(self, content: str) -> None:
        """Replace what the agent said last by what hooks have made of it."""
        self.last_content = content
        for at in range(len(self.messages) - 1, self.said_from - 1, -1):
            message = self.messages[at]
            if message.role == "assistant":
                self.messages[at] = msgspec.structs.replace(message, content=content)
                return
        self.messages.append(Message(role="assistant", content=content))

    def withhold(self, denial: Denial) -> None:
        """Hide what the agent said last, because a hook denied it."""
        self.restate(f"Withheld by hook {denial.hook_id!r}: {denial.reason}")
        self.last_content = ""

    def undecided(self) -> list[PendingTool]:
        """Return the calls that still wait for a person."""
        return [pending for pending in self.pending if pending.tool_call_id not in self.decisions]

    def conversation(self) -> list[Message]:
        """Return all messages, with the results known so far of a step that waits for a person."""
        known = [self.outcomes[call.tool_call_id] for call in self.open_calls if call.tool_call_id in self.outcomes]
        return [*self.messages, *(tool_message(outcome) for outcome in known)]

    def close_step(self, unanswered: str) -> None:
        """Append the results of the open calls, one message each, in the model's order.

        Args:
            unanswered: The result for the model of a call that has none.
        """
        for call in self.open_calls:
            outcome = self.outcomes.get(call.tool_call_id)
            content = outcome.content if outcome is not None else unanswered
            self.messages.append(Message(role="tool", content=content, tool_call_id=call.tool_call_id))
        self.open_calls, self.outcomes, self.pending, self.decisions, self.waiting = [], {}, [], {}, {}
        self.waiting_since_unix_nano = None

    # What the model may call.

    def equip(self, agent: Agent) -> None:
        """Replace the agent by one that has the tools of its sources."""
        self.agent = agent
        self.offered = restore_tools(agent, self.offer, self.stored_offer)

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools that the model is offered."""
        return self.agent.specs if self.offered is None else self.offered

    def find(self, calling: ToolRequest | ToolCall) -> Tool | Agent | None:
        """Return the tool or sub-agent that a call names, if the model was offered it."""
        return self.agent.find(calling) if self.offered is None else find_offered(self.agent, self.offered, calling)

    # Events, cancellation.

    @types.coroutine
    def take_turn(self) -> Generator[Any, Any, None]:
        """Let other tasks run even if model and tools never wait, and take note of an interrupt or a cancellation.

        asyncio asks a task only once to be cancelled; a tool that swallowed that must not keep the run alive.
        """
        if self.task is None:
            yield from anyio.lowlevel.checkpoint().__await__()
            return
        yield  # as `asyncio.sleep(0)` does, in a frame of its own
        if self.task.cancelling() > self.cancellations:
            raise asyncio.CancelledError

    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the task of the run from outside, which its next turn takes note of."""
        return self.task is not None and self.task.cancelling() > self.cancellations

    def nobody_cancelled(self) -> bool:
        """Whether the cancellation that a tool raised, in this task or in that of a parallel call, is its own.

        Only asyncio lets code cancel itself, or raise it by awaiting a future that somebody else cancelled.
        """
        if self.task is None or self.scope.cancel_called:
            return False
        present = asyncio.current_task()
        if present is not None and not present.cancelling():
            return True
        return present is not self.task and self.task.cancelling() <= self.cancellations

    @property
    def interrupted(self) -> bool:
        """Whether this run, or a run that called it, was interrupted."""
        if not self.polls:
            return self.halted
        return self.stopped or self.scope.cancel_called or (self.parent is not None and self.parent.interrupted)

    @property
    def watch(self) -> Interruptible:
        """Says in `halted` whether nothing further may start. Not kept, as a run must die without the collector."""
        return _PolledRun(self) if self.polls else self

    def halt(self) -> None:
        """Let nothing further start, of this run and of those that it has called."""
        self.halted = True
        for child in self.children:
            child.halt()

    def join_parent(self) -> None:
        """Be halted from now on when the run that called this one is."""
        if self.parent is not None:
            self.parent.children = [*self.parent.children, self]
            self.halted = self.halted or self.parent.halted

    def leave_parent(self) -> None:
        """Undo `join_parent`, once the run has ended."""
        if self.parent is not None:
            self.parent.children = [child for child in self.parent.children if child is not self]

    def interrupt(self) -> None:
        """Cancel the segment's scope, from any thread, without waiting."""
        self.stopped = True
        self.halt()
        if threading.get_ident() == self.thread:
            self.cancel()
        elif self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.cancel)
        elif self.token is not None:
            cast(Any, self.token.native_token).run_sync_soon(self.cancel)

    def cancel(self) -> None:
        """In its own thread: cancel whatever scope it is in, if somebody asked for its end."""
        if self.parent is not None:
            self.parent.cancel()
        if self.stopped:
            self.scope.cancel()

    # Counting.

    def active_ms(self) -> float:
        """Return the milliseconds that the operation has been running, without its pauses."""
        ended = self.ended or perf_counter_ns()
        return self.earlier_ms + (ended - self.started) / 1e6

    def reserve_index(self, call: ToolCall) -> None:
        """Reserve the index of a call, so that no other call of its tool gets it.

        With a durable store the call keeps its index also if this process dies before the call has begun.
        """
        path = f"{call.toolset}/{call.tool_name}"
        self.call_indices[path] = max(call.call_index, self.call_indices.get(path, 0))
        if self.journal.durable:
            self.waiting.setdefault(call.tool_call_id, WaitingCall(call_index=call.call_index))

    def begin_model_call(self, step: Step) -> None:
        """Count a model call, also if it will fail; one that failed and is tried again in the same step counts once."""
        if not step.asking:
            step.asking = True
            self.llm_calls += 1
            if self.journal.durable:
                self.journal.begin_model_call(step.index, self.agent.model)

    def count(self, step: Step, response: ModelResponse) -> None:
        """Count a model's answer in the step and the totals."""
        usage = response.usage
        self.usage = Usage(
            input_tokens=self.usage.input_tokens + usage.input_tokens,
            output_tokens=self.usage.output_tokens + usage.output_tokens,
            cost_usd=self.usage.cost_usd + usage.cost_usd,
        )
        self.last_input_tokens = usage.input_tokens
        self.last_content = step.content = response.content
        step.reasoning = response.reasoning
        step.cost_usd += usage.cost_usd
        step.asking = False

    # Ending.

    def result(self, reason: CompletionReason, error: BaseException | None) -> OperationResult:
        """Return the result for the caller of the run."""
        return OperationResult(
            operation_id=self.operation_id,
            reason=reason,
            output=self.last_content,
            messages=self.conversation() if self.open_calls else list(self.messages),
            steps=self.steps,
            usage=self.usage,
            tool_calls=self.tool_calls,
            pending=self.undecided() if reason == "waiting_for_human" else [],
            error=error,
            denied=self.denied,
        )


class CancelMark:
    """Replaces the cancel scope of a run whose tasks belong to a framework, unless the adapter sets another."""

    cancel_called = False

    def cancel(self) -> None:
        """Note that the run is cancelled."""
        self.cancel_called = True


class _PolledRun:
    """A run whose scope, or that of a run which called it, somebody else may cancel."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def halted(self) -> bool:
        return self._run.interrupted


live: dict[str, Run | None] = {}
"""By operation id; `None` while one is being set up."""


DETAIL_CHARACTERS = 8_000
"""How much of a traceback `OnError.error_detail` carries, counted from its end."""


def before_step(run: Run) -> Step:
    """Begin a step and emit its first event."""
    step = Step(run.steps)
    run.step_index = step.index
    run.steps += 1
    run.step = step
    if run.hooked(BeforeStep):
        run.emit(
            BeforeStep(
                operation_id=run.operation_id,
                agent_id=run.agent_id,
                user_id=run.user_id,
                tenant_id=run.tenant_id,
                parent_operation_id=run.parent_operation_id,
                tags=run.tags,
                step_index=step.index,
            )
        )
    return step


def after_step(run: Run, step: Step, *, should_continue: bool) -> None:
    """End a step, and emit its closing event."""
    run.step = None
    if not run.hooked(AfterStep):
        return
    now = perf_counter_ns()
    run.emit(
        AfterStep(
            operation_id=run.operation_id,
            agent_id=run.agent_id,
            user_id=run.user_id,
            tenant_id=run.tenant_id,
            parent_operation_id=run.parent_operation_id,
            tags=run.tags,
            step_index=step.index,
            step_type=step.type,
            content=step.content,
            reasoning=step.reasoning,
            tools_calling=ReadOnlyList(step.calling),
            tools_result=ReadOnlyList(step.results()) if step.outcomes else NO_LIST,
            should_continue=should_continue,
            execution_time_ms=(now - step.started) / 1e6,
            elapsed_ms=run.active_ms(),
            step_cost_usd=step.cost_usd,
            total_cost_usd=run.usage.cost_usd,
            total_input_tokens=run.usage.input_tokens,
            total_output_tokens=run.usage.output_tokens,
            total_steps=run.steps,
            total_tool_calls=run.tool_calls,
        )
    )


def end_events(run: Run, reason: CompletionReason, error: BaseException | None) -> list[Event]:
    """Return the last events of a segment that any hook wants: `onComplete`, then `onError` if it failed."""
    events: list[Event] = []
    failed = reason == "error" and error is not None
    if run.hooked(OnComplete):
        events.append(
            OnComplete(
                operation_id=run.operation_id,
                agent_id=run.agent_id,
                user_id=run.user_id,
                tenant_id=run.tenant_id,
                parent_operation_id=run.parent_operation_id,
                tags=run.tags,
                reason=reason,
                steps=run.steps,
                llm_calls=run.llm_calls,
                tool_calls=run.tool_calls,
                total_tokens=run.usage.input_tokens + run.usage.output_tokens,
                cost_usd=run.usage.cost_usd,
                duration_ms=run.active_ms(),
                last_assistant_content=run.last_content,
                error_type=type(error).__name__ if failed else None,
                error_message=message_of(error) if failed and error else None,
            )
        )
    if failed and error is not None and run.hooked(OnError):
        events.append(
            OnError(
                **run.ids,
                error_message=message_of(error),
                error_type=type(error).__name__,
                error_detail="".join(traceback.format_exception(error))[-DETAIL_CHARACTERS:],
                step_index=run.step_index,
            )
        )
    return events


def find_callers(state: OperationState, parent: Run | None) -> tuple[CallingOperation, ...]:
    """Return the runs that called an operation, the outermost first.

    Args:
        state: The operation as it is stored, or as it begins.
        parent: The run that calls it here, if one does.
    """
    if state.callers is not UNSET:
        return tuple(state.callers)
    if parent is None and state.parent_operation_id is not None:
        parent = live.get(state.parent_operation_id)
    if parent is None:
        return ()
    return (*parent.callers, CallingOperation(parent.operation_id, parent.agent.id))


def find_hearers(state: OperationState, hooks: Sequence[AnyHook], parent: Run | None = None) -> list[RemoteHearer]:
    """Return who hears the stored events of an operation in other processes.

    Args:
        state: The operation as it is stored, or as it begins; who has heard it so far goes on hearing it.
        hooks: The hooks that it was given.
        parent: The run that calls it here, if one does.
    """
    inherited = [hearer for hearer in parent.hearers if hearer.inherit] if parent is not None else []
    kept = state.hearers or []
    given = [
        RemoteHearer(name=entry.hearer, inherit=entry.inherit, events=list(entry.heard_events))
        for entry in hooks
        if isinstance(entry, Hooks) and entry.hearer and entry.tenant_id in ("", state.tenant_id)
    ]
    merged: dict[tuple[str, bool], RemoteHearer] = {}
    for hearer in (*inherited, *kept, *given):
        key = hearer.name, hearer.inherit
        other = merged.get(key, hearer)
        is_partial = hearer.events and other.events
        events = list(dict.fromkeys((*other.events, *hearer.events))) if is_partial else []
        merged[key] = msgspec.structs.replace(hearer, events=events)
    return list(merged.values())


def attach_travelling_hooks(run: Run, hooks: Sequence[AnyHook]) -> None:
    """Keep the hooks of a run that are data, such as webhooks, with its state; those of earlier segments too.

    On a store that keeps what happened their deliveries are made with each write; else the run makes them.

    Args:
        run: The run; its `data` are the hooks of its earlier segments.
        hooks: Those that it was given. A definition that is given takes the place of its earlier revision.

    Raises:
        HookDefinitionError: If one that was kept could not be delivered by this version.
        MissingExtraError: If what delivers them is not installed.
    """
    given = [data for entry in hooks if isinstance(entry, Hook) and (data := entry.data()) is not None]
    newer = {(each.id, each.tenant_id) for each in run.given_hooks if isinstance(each, Hook) and each.revision}
    kept = [
        data for data in run.data if data not in given and not (data.revision and (data.id, data.tenant_id) in newer)
    ]
    run.data = [*kept, *given]
    restored = [_restore_hook(data) for data in kept]
    run.given_hooks, every = [*run.given_hooks, *restored], [*hooks, *restored]
    if run.journal.durable:
        run.hooks = hooks_of_this_process(every, lambda: run.dispatcher.delivery)
        return
    if any(data.webhook.fallback == "none" for data in run.data):
        run.critical = RequiredDeliveries()
    run.hooks = with_delivering_observers(every, run.dispatcher.delivery, run.critical)


def _restore_hook(data: HookData) -> Hook:
    hook = Hook(
        id=data.id,
        type=data.type,
        tool=data.tool,
        webhook=data.webhook,
        tenant_id=data.tenant_id,
        inherit=data.inherit,
        shadow=data.shadow,
        revision=data.revision,
    )
    check_hook(hook, f"Hook {data.id!r} of the stored operation")
    return hook
