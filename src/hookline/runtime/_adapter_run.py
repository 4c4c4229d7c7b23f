"""`AdapterRun`: a run of another framework, or of a loop of your own, as an operation with hooks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import UNSET

from hookline._deadlines import new_scope
from hookline.calls import (
    AgentCall,
    AgentResult,
    Call,
    CompactCall,
    Denial,
    Message,
    ModelCall,
    ModelResponse,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
    ToolSpec,
    Usage,
    context_message,
    context_takers,
    describe_context,
    join_texts,
)
from hookline.dispatcher import HookDispatcher
from hookline.errors import (
    HookUsageError,
    OperationBusyError,
    OperationExistsError,
    OperationMismatchError,
    RunStopped,
    message_of,
)
from hookline.events import CompletionReason, PendingTool, ToolOutcome
from hookline.hooks import AnyHook, hook_batch
from hookline.instrumentation import Instrumentation, StreamTimes
from hookline.interceptors import FencedChain
from hookline.runtime._agent import Agent
from hookline.runtime._approvals import emit_decision, emit_pause, emit_stop, note_pending, rejection_text
from hookline.runtime._capabilities import Capabilities
from hookline.runtime._compaction import compact, emit_compacted
from hookline.runtime._hooks_at_resume import check_interceptors
from hookline.runtime._inherited_hooks import inherited_hooks, without_definitions_of
from hookline.runtime._inputs import (
    RunOptions,
    check_ids,
    check_operation_id,
    check_tags,
    join_tags,
    new_operation_id,
)
from hookline.runtime._lifecycle import Lifecycle
from hookline.runtime._persistence import LOST_HERE, checkpoint
from hookline.runtime._run import Run, after_step, before_step, live
from hookline.runtime._seams import RunControl, instrument, run_through_chain, tell_context, tell_failed_step
from hookline.runtime._state import (
    Approve,
    InMemoryStore,
    ModelCallRecord,
    OperationState,
    OperationStore,
    Reject,
    Step,
    WaitingCall,
    default_store,
)
from hookline.runtime._steps import lead_model_call
from hookline.runtime._sub_agents import (
    emit_called,
    emit_completed,
    emit_failed,
    emit_unrun_agent,
    lead_agent_call,
)
from hookline.runtime._tool_calls import (
    InterceptedToolJob,
    ToolJob,
    call_tool,
    failed_outcome,
    make_call,
    record_outcome,
    to_pending,
    tool_job,
)
from hookline.runtime._tools import Approval, Tool, as_result
from hookline.runtime._unsupported_hooks import check_driven

__all__ = ["AdapterRun", "AgentDone", "ToolDone"]

logger = logging.getLogger("hookline")


class ToolDone(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a tool call of another framework.

    Attributes:
        result: The result for the model.
        ran: Whether the tool has run.
        changed: Whether `result` differs from the tool's own result; true if the tool did not run.
        added: The text that hooks have added for the model, if the tool's own result or exception is unchanged but for
            this text at the end of `result`. An adapter adds it to the own result, which may hold more than text.
        error: The exception that the tool raised, for an adapter that raises it again.
        asked: The call that a person must decide about first; the call is not over then.
        stop: The denial that is to end the run, if there is one.
    """

    result: ToolResult
    ran: bool
    changed: bool = True
    added: str = ""
    error: Exception | None = None
    asked: PendingTool | None = None
    stop: Denial | None = None


class AgentDone(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run of another framework, or of a sub-agent call in it.

    Attributes:
        output: The final text.
        ran: Whether the agent has run.
        changed: Whether `output` differs from the agent's own output.
        denied: The denial, if a hook denied the call or withheld its output.
        continues: Further inputs with which hooks of the `AgentCall` continue the run.
    """

    output: str
    ran: bool
    changed: bool = False
    denied: Denial | None = None
    continues: Sequence[str] = ()


class _NamedModel:
    """The name of a framework's model; the framework itself asks it."""

    def __init__(self, name: str, provider: str) -> None:
        self.name, self.provider = name, provider

    async def respond(self, call: ModelCall) -> ModelResponse:
        raise HookUsageError("The framework of this agent calls its model itself.")


@lru_cache(maxsize=1000)
def placeholder_agent(agent_id: str, model: str, provider: str) -> Agent:
    """Return an `Agent` that represents the framework's agent; cached, because agents are few and run often."""
    return Agent(id=agent_id, model=_NamedModel(model, provider))


class AdapterSegment(Run):
    """A segment of a run whose tools belong to another framework, and are known only during their calls."""

    has_foreign_scope = True

    __slots__ = (
        "adds_context",
        "at_hand",
        "can_ask",
        "framework",
        "given_specs",
        "guides",
        "notify_interrupted",
        "writes_ahead",
    )

    adds_context: frozenset[type[Call]]
    at_hand: dict[str, Tool]
    can_ask: bool
    framework: str
    given_specs: list[ToolSpec]
    guides: bool
    notify_interrupted: Callable[[], None] | None
    writes_ahead: bool

    @property
    def specs(self) -> list[ToolSpec]:
        return self.given_specs

    def nobody_cancelled(self) -> bool:
        """Return whether the cancellation that a tool raised is its own.

        A framework may cancel the task that a tool runs in, which may be the very task of its run.
        """
        if self.task is None or self.scope.cancel_called:
            return False
        present = asyncio.current_task()
        return present is not None and not present.cancelling()

    def cancel(self) -> None:
        super().cancel()
        if self.stopped and self.notify_interrupted is not None:
            self.notify_interrupted()

    def close_step(self, unanswered: str) -> None:
        """Forget the calls that waited; the framework's own conversation has their results."""
        self.open_calls, self.pending, self.waiting, self.waiting_since_unix_nano = [], [], {}, None

    def find(self, calling: ToolRequest | ToolCall) -> Tool | None:
        tool = self.at_hand.get(calling.tool_call_id)
        same = tool is not None and (tool.toolset, tool.name) == (calling.toolset, calling.tool_name)
        return tool if same else None


async def no_child(parent: Run, agent: Agent, instruction: str, operation_id: str, state: OperationState | None) -> Any:
    """Refuse to run a sub-agent, because the framework runs it itself."""
    raise HookUsageError("The framework of this agent runs its sub-agents itself.")


class AdapterRun:
    """Runs hooks for one run of another framework, or for the part of a run that resumes after a pause.

    Use it as `async with AdapterRun(...) as run:` around the framework's run. If the framework calls back from tasks of
    its own, call `open` and `close` instead. The run ends as `finish` says. Without `finish` it ends as done if the
    block ends normally, as interrupted if it is cancelled or stopped, and with an error if it raises.

    Args:
        hooks: The hooks of this run; hooks of the `parent` with `inherit=True` come first.
        capabilities: The events and calls that the adapter supports.
        agent_id: The agent's name.
        model: The model's name.
        provider: The model's provider.
        operation_id: Id of the run; a new one unless given. An operation that waits for a person is resumed.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        tags: The tags of the operation, in addition to those of the `parent`; see `exec_agent`.
        parent: The run that called this one as a sub-agent.
        conversation_id: The session that the run belongs to.
        dispatcher: An open dispatcher to share; the parent's, or a new one, unless given.
        store: Where the operation is kept while it waits for a person.
        drain_timeout: Seconds that queued observers may take at the end.
        best_effort: Whether hooks that the adapter does not support are only logged, instead of refused.
        allow_missing_hooks: Whether a paused operation may be resumed without interceptors that it had before; a
            warning is logged.
        writes_ahead: Whether a durable store learns of a tool call before the tool runs. If not, call `checkpoint`
            when there is time: a process that is killed meanwhile leaves no trace of the call.
        on_interrupt: A function that is called in the run's thread when the run is interrupted while no task of the
            framework is there to be cancelled.

    Attributes:
        operation_id: The id of the run.
        capabilities: The events and calls that the adapter supports.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
    """

    def __init__(
        self,
        hooks: Iterable[AnyHook],
        capabilities: Capabilities,
        *,
        agent_id: str = "agent",
        model: str = "",
        provider: str = "",
        operation_id: str | None = None,
        user_id: str = "",
        tenant_id: str = "",
        tags: Collection[str] = (),
        parent: AdapterRun | None = None,
        conversation_id: str | None = None,
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        drain_timeout: float = 5.0,
        best_effort: bool = False,
        allow_missing_hooks: bool = False,
        writes_ahead: bool = True,
        on_interrupt: Callable[[], None] | None = None,
    ) -> None:
        if user_id != "" or tenant_id != "":
            check_ids(user_id=user_id, tenant_id=tenant_id)
        self._hooks = own = hook_batch(hooks)
        if parent is not None:
            inherited = [entry for entry in parent.inherited if entry not in own]
            self._hooks = [*inherited, *without_definitions_of(inherited, own)]
        check_driven(self._hooks, capabilities, best_effort=best_effort)
        self.capabilities = capabilities
        self._fresh = operation_id is None
        self.operation_id = new_operation_id() if operation_id is None else check_operation_id(operation_id)
        self._agent = placeholder_agent(agent_id or "agent", model, provider)
        self._parent = parent
        self._tags = check_tags(tags) if tags != () else ()
        if parent is not None:
            user_id, tenant_id = user_id or parent.run.user_id, tenant_id or parent.run.tenant_id
            conversation_id = conversation_id or parent.run.conversation_id
            dispatcher = dispatcher or parent.run.dispatcher
            self._tags = join_tags(parent.run.tags, self._tags)
        self._user_id, self._tenant_id, self._conversation_id = user_id, tenant_id, conversation_id
        self._dispatcher = dispatcher
        self._own_dispatcher: HookDispatcher | None = None
        self._store = store or (parent.run.store if parent is not None else default_store())
        self._drain_timeout = drain_timeout
        self._allow_missing_hooks: bool = allow_missing_hooks or (parent is not None and parent._allow_missing_hooks)
        self._writes_ahead = writes_ahead
        self._on_interrupt = on_interrupt
        self._life: Lifecycle | None = None
        self._step: Step | None = None
        self._resumed = False
        self._ended: tuple[CompletionReason, Exception | None] | None = None
        self._lost: Exception | None = None
        self._rejected: Reject | None = None
        self._model_call: _TimedCall | None = None

    # Its life.

    @cached_property  # `open` sets it; a property would be one call more wherever it is read
    def run(self) -> AdapterSegment:
        """The open run; for adapters that need more than this class offers."""
        raise HookUsageError(f"Run {self.operation_id!r} of {self.capabilities.framework} is not open.")

    @property
    def is_open(self) -> bool:
        """Whether the run has begun and not ended; its background tasks may still be running after the end."""
        return self._life is not None and live.get(self.operation_id) is self.run

    @property
    def _opens_at_once(self) -> bool:
        """Whether `open` waits for nothing."""
        return self._fresh and self._store.__class__ is InMemoryStore

    @property
    def _closes_at_once(self) -> bool:
        """Whether `close` waits for nothing, unless the run failed."""
        return self._store.__class__ is InMemoryStore and not self.run.dispatcher._waits(self.operation_id)

    @property
    def _calls_tools_at_once(self) -> bool:
        """Whether `call_tool` waits for nothing but the tool, as all hooks are plain functions."""
        run = self.run
        if run.journal.durable or run.dispatcher._waits(run.operation_id):
            return False
        return run.chain is None or not run.chain._waits(ToolCall, run.tenant_id)

    @property
    def inherited(self) -> list[AnyHook]:
        """The hooks with `inherit=True`, which sub-agents get."""
        return inherited_hooks(self._hooks if self._life is None else self.run.given_hooks)

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted."""
        return self.run.interrupted

    @property
    def denied(self) -> Denial | None:
        """The denial that ends the run, if there is one."""
        return self.run.denied

    async def open(
        self, prompt: Sequence[Message] = (), instructions: str = "", tools: Sequence[ToolSpec] = ()
    ) -> Self:
        """Begin the run and register its hooks.

        Args:
            prompt: The input of the run.
            instructions: The system message.
            tools: The tools that the model may call.

        Raises:
            OperationExistsError: If the operation id is taken.
            OperationBusyError: If the operation is running, here or according to the store.
            OperationMismatchError: If the operation waits in another framework.
            MissingHooksError: If a paused operation is resumed without an interceptor that it had before.
        """
        dispatcher = self._dispatcher
        if dispatcher is None:
            self._own_dispatcher = self._own_dispatcher or HookDispatcher()
            dispatcher = await self._own_dispatcher.__aenter__()
        try:
            await self._register(dispatcher, prompt, instructions, tools)
        except BaseException as error:
            if self._own_dispatcher is not None:
                await self._own_dispatcher.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def _register(
        self, dispatcher: HookDispatcher, prompt: Sequence[Message], instructions: str, tools: Sequence[ToolSpec]
    ) -> None:
        state = None if self._fresh else await self._store.load(self.operation_id)
        self._resumed = state is not None and state.status == "waiting_for_human"
        if self.operation_id in live:
            raise OperationBusyError(self.operation_id) if self._resumed else OperationExistsError(self.operation_id)
        if state is not None and state.status == "running":
            raise OperationBusyError(self.operation_id)
        if state is None or not self._resumed:
            parent = self._parent.operation_id if self._parent is not None else None
            state = OperationState(
                operation_id=self.operation_id,
                agent_id=self._agent.id,
                parent_operation_id=parent,
                messages=list(prompt),
                user_id=self._user_id,
                tenant_id=self._tenant_id,
                conversation_id=self._conversation_id,
                tags=list(self._tags) or UNSET,
            )
        elif state.framework not in ("", self.capabilities.framework):
            raise OperationMismatchError(self.operation_id, state.framework, self.capabilities.framework)
        if self._resumed:
            check_interceptors(state, self._hooks, allow_missing=self._allow_missing_hooks)
        options = RunOptions(
            hooks=self._hooks, store=self._store, dispatcher=dispatcher, drain_timeout=self._drain_timeout
        )
        run = AdapterSegment(
            self._agent,
            state,
            options,
            dispatcher,
            version=state.version if self._resumed else None,
            exec_child=no_child,
            parent=self._parent.run if self._parent is not None else None,
        )
        run.at_hand, run.can_ask, run.given_specs = {}, self.capabilities.asks, list(tools)
        run.instructions, run.framework = instructions, self.capabilities.framework
        run.adds_context, run.guides = self.capabilities.adds_context, self.capabilities.guides
        if isinstance(run.chain, FencedChain):  # a fenced change may bring hooks of other calls
            run.intercepted &= {*self.capabilities.calls, *run.chain.calls}
        run.writes_ahead, run.notify_interrupted = self._writes_ahead, self._on_interrupt
        life = Lifecycle(run, claims=self._resumed or run.journal.durable)
        await life.__aenter__()
        self.run, self._life = run, life

    @property
    def is_stopped(self) -> bool:
        """Whether a hook denied the run, a person ended it, or it was interrupted."""
        return self.denied is not None or self._rejected is not None or self.interrupted

    def raise_if_stopped(self, error: type[RunStopped] = RunStopped) -> None:
        """Raise `RunStopped` if a hook denied the run, a person ended it, or it was interrupted.

        Call it after each model call and tool call, so that the framework's run ends too.

        Args:
            error: The class to raise; pass a subclass if the framework's users expect an error of the framework.

        Raises:
            RunStopped: With the reason, and with the id of the hook if one denied the run.
        """
        run, rejected = self.run, self._rejected
        denied = run.denied
        if denied is not None:
            raise error(denied.reason, denied.hook_id)
        if rejected is not None:
            raise error(
                f"A person rejected the call {rejected.tool_call_id!r} and ended the run: "
                f"{rejected.reason or 'no reason given'}. Use Reject(..., and_continue=True) to tell the model."
            )
        if run.interrupted:
            raise error("The run was interrupted.")

    def finish(self, reason: CompletionReason, output: str | None = None, error: Exception | None = None) -> None:
        """Set how the run ended; `close`, or the end of the block, then emits the event.

        Args:
            reason: Why the run ended.
            output: The final text, if it is not the model's last answer.
            error: The exception, if the reason is `"error"`.
        """
        if output is not None:
            self.run.last_content = output
        self._ended = reason, error

    async def close(self, error: BaseException | None = None) -> None:
        """End the run: emit its last events and unregister the hooks. A second call does nothing.

        Args:
            error: The exception that the framework's run raised, if `finish` was not called.
        """
        life = self._life
        if life is None or life.run.finishing:
            return
        run = life.run
        if error is not None:
            self._undo_done()
        life.reason, life.error = reason, known = self._ended or self._outcome(run, error)
        try:
            try:
                if self._step is not None:
                    if reason in ("interrupted", "error"):
                        self._tell_failed_step(run, self._step, reason, known)
                    self.end_step(should_continue=False)
            finally:
                await life.__aexit__(None, error, None)
        finally:
            if self._own_dispatcher is not None:
                await self._own_dispatcher.__aexit__(None, None, None)
        if life.error is None or life.error is known:
            return
        if error is None:
            raise life.error  # the end could not be stored, or a delivery that the run is for failed
        logger.error(
            "Operation %s of %s ended with %s, but %s",
            self.operation_id,
            self.capabilities.framework,
            reason,
            message_of(life.error),
        )

    async def checkpoint(self) -> None:
        """Write what happened so far to a durable store, which otherwise learns it before the next call.

        Call it where the framework waits, for example for the next prompt of a person.

        Raises:
            StoreUnavailableError: If the store cannot be reached.
        """
        if self.run.journal.durable and not self.run.finishing:
            await checkpoint(self.run)

    def _tell_failed_step(self, run: Run, step: Step, reason: CompletionReason, failure: Exception | None) -> None:
        """Tell the instrumentation why the open step ends, if the run failed or was interrupted in it."""
        if reason == "interrupted" and run.denied is None:
            tell_failed_step(run, step.index, asyncio.CancelledError())
        elif reason == "error" and failure is not None:
            tell_failed_step(run, step.index, failure)

    def _undo_done(self) -> None:
        """Withdraw a `finish("done")`: a run in which something was raised afterwards is not done."""
        if self._ended is not None and self._ended[0] == "done":
            self._ended = None

    def _outcome(self, run: Run, error: BaseException | None) -> tuple[CompletionReason, Exception | None]:
        if run.denied is not None or self._rejected is not None or run.stopped:
            return "interrupted", None
        if error is None:
            return "done", None
        return ("error", error) if isinstance(error, Exception) else ("interrupted", None)

    async def __aenter__(self) -> Self:
        await self.open()
        run = self.run
        run.scope = new_scope(on_asyncio=run.task is not None)
        run.scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        swallowed = self.run.scope.__exit__(kind, error, trace)
        if swallowed:
            self._undo_done()
        await self.close(None if swallowed else error)
        return bool(swallowed)

    # Steps and model calls.

    def begin_step(self) -> int:
        """Begin a step, and end the open one. Call it before each model call.

        Returns:
            The index of the step, from 0.

        Raises:
            StoreUnavailableError: If the store failed in the previous step, even if the framework ignored that.
            StaleStateError: If another process continues the operation.
        """
        if self._lost is not None:
            raise self._lost
        if self._step is not None:
            self.end_step(should_continue=True)
        self._step = step = before_step(self.run)
        return step.index

    def end_step(self, *, should_continue: bool) -> None:
        """End the open step, if there is one."""
        step, self._step = self._step, None
        if step is not None:
            run = self.run
            if run.journal.durable:  # a call that has not ended, or whose end nobody told
                run.journal.end_model_call(Usage(), "unknown")
            after_step(run, step, should_continue=should_continue)
            if self._ended is None:
                run.outcomes.clear()
            run.step_index = None

    @property
    def step(self) -> Step:
        """The open step; begins one if there is none."""
        if self._step is None:
            self.begin_step()
        assert self._step is not None
        return self._step

    def answered(self, response: ModelResponse) -> None:
        """Record a model's answer in the step and in the totals."""
        run, step = self.run, self._step or self.step
        run.count(step, run.journal.storable(response) if run.journal.durable else response)
        if response.tool_calls:
            step.calling, step.type = list(response.tool_calls), "call_tool"
        elif step.calling:
            step.calling = []

    # People.

    def pause(self, pending: Sequence[PendingTool] = ()) -> None:
        """Pause the run until a person has decided; this also calls `finish`.

        Args:
            pending: The calls that wait because of the framework; calls that hooks ask about are added.
        """
        run, step = self.run, self.step
        run.open_calls = list(step.calling)
        known = {each.tool_call_id: each for each in (*pending, *step.asked.values())}
        note_pending(run, step, list(known.values()))
        emit_pause(run, step)
        self.finish("waiting_for_human")

    def refused(self, calling: ToolRequest, decision: Reject) -> str:
        """Record a call that does not run because a person rejected it.

        Args:
            calling: The call.
            decision: The person's decision.

        Returns:
            The tool result for the model.
        """
        step, name = self.step, calling.tool_call_id
        step.type = "call_tool"
        step.calling.append(calling)
        refused = failed_outcome(calling, rejection_text(decision), self.run.waiting.get(name))
        step.outcomes[name] = refused
        return refused.content

    def decided(self, decisions: Iterable[Approve | Reject]) -> None:
        """Report a person's decisions to hooks; a `Reject` without `and_continue` stops the run."""
        run, stopped = self.run, False
        for decision in decisions:
            emit_decision(run, decision)
            if isinstance(decision, Reject) and not decision.and_continue and not stopped:
                stopped, self.step.type, self._rejected = True, "request_human_approve", decision
                emit_stop(run, decision)

    # Calls.

    def leads(self, call: type[Call]) -> bool:
        """Return whether calls of a class must go through this run; otherwise the framework may make them itself.

        Args:
            call: The class of the calls.
        """
        run = self.run
        return call in run.intercepted or call in run.enclosing

    def may_change_result(self, call: type[Call]) -> bool:
        """Return whether an `after` or `around` hook may change or withhold the results of such calls now.

        If so, show nothing of a result, for example in a stream, before the hooks have run. A fenced change may bring
        such hooks while a call runs.

        Args:
            call: The class of the calls.
        """
        run = self.run
        return run.chain is not None and run.chain.judges_result(call, run.tenant_id)

    def hold_stream(self, call: type[Call]) -> bool:
        """Decide whether the stream of the next call of a class is held until hooks have judged the result.

        Unlike `may_change_result`, which is to be asked again at each piece of a stream, the decision holds until the
        call has ended: a fenced change that brings the first hooks which judge the answers of models waits for a
        `ModelCall` whose stream is not held.

        Args:
            call: The class of the call.
        """
        is_held = self.may_change_result(call)
        chain = self.run.chain
        if call is ModelCall and isinstance(chain, FencedChain):
            chain.note_stream(call, is_held=is_held)
        return is_held

    def judges_parts(self) -> bool:
        """Return whether all hooks that may change or withhold a model's answer judge its text in parts."""
        run = self.run
        return run.chain is not None and run.chain.judges_parts(ModelCall, run.tenant_id)

    def begin_model_call(self) -> None:
        """Count a model call that the framework is about to make itself; see `leads`.

        A call that fails counts too. One that is tried again in the same step counts once.
        """
        self.run.begin_model_call(self._step or self.step)

    def asked_model(self, response: ModelResponse) -> None:
        """Record the answer of a model call that the framework made itself.

        The call is counted here, unless `begin_model_call` has counted it.

        Args:
            response: The model's answer.
        """
        run, step = self.run, self._step or self.step
        if not step.asking:
            run.begin_model_call(step)
        if run.journal.durable:
            run.journal.end_model_call(response.usage)
        self.answered(response)

    def report_model_call(self, call: ModelCallRecord) -> None:
        """Record a model call that ended some time ago, where the framework reports its calls late.

        It counts in the totals and is stored with the next write, and telemetry gets it. No event tells of it.

        Args:
            call: The call; its step may have ended.
        """
        run = self.run
        run.llm_calls += 1
        run.last_input_tokens = call.input_tokens
        run.journal.add_model_call(call)
        usage = Usage(input_tokens=call.input_tokens, output_tokens=call.output_tokens, cost_usd=call.cost_usd)
        self.add_usage(usage)
        asked = ModelCall(messages=[], model=call.model, step_index=call.step_index, **run.ids)
        response = ModelResponse(model=call.model, usage=usage)
        times = call.start_unix_nano, call.start_unix_nano + int(call.duration_ms * 1e6)
        for hooks, _ in run.begun:
            hooks.reported(asked, response, provider=call.provider, times=times)

    def add_usage(self, usage: Usage) -> None:
        """Add tokens or cost to the totals that belong to no single model call.

        Args:
            usage: The tokens and the cost.
        """
        self.run.usage = self.run.usage + usage

    async def ask_model(
        self,
        messages: Sequence[Message],
        ask: Callable[[ModelCall], Awaitable[ModelResponse]],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> ModelResponse | None:
        """Make a model call through the hooks of `ModelCall`.

        Args:
            messages: The conversation.
            ask: Calls the model. If no hook changes the call, its messages are equal to `messages`. If it reads a
                stream, it calls `begin_stream` first. It is called again, with one more message, if a hook returns
                `Guide`; nobody may have seen anything of the answer before.
            tools: The tools that the model is offered.
            settings: The settings of the call.

        Returns:
            The answer of the model or of a hook; `None` if a hook denied the call, which is to end the run.
        """
        run, step = self.run, self.step
        run.messages = run.journal.storable_messages(messages)
        run.given_specs = list(tools)
        model = run.agent.model
        call = ModelCall(
            messages=list(messages),
            tools=list(tools),
            model=getattr(model, "name", ""),
            settings=dict(settings or {}),
            step_index=step.index,
            **run.ids,
        )

        bundles = run.enclosing.get(ModelCall)
        response = await lead_model_call(run, step, call, ask if bundles is None else self._timed(ask, bundles))
        if response is not None:
            self.answered(response)
        return response

    def _timed(
        self, ask: Callable[[ModelCall], Awaitable[ModelResponse]], bundles: Sequence[Instrumentation]
    ) -> Callable[[ModelCall], Awaitable[ModelResponse]]:
        """Return a function that asks a model, and tells bundles when the pieces of its answer arrived."""

        async def ask_timed(call: ModelCall) -> ModelResponse:
            self._model_call = timed = _TimedCall()
            try:
                return await ask(call)
            finally:
                if self._model_call is timed:
                    self._model_call = None
                if timed.times is not None and (timed.known_to_stream or timed.times.first is not None):
                    for hooks in bundles:
                        hooks.streamed(call, timed.times)

        return ask_timed

    def begin_stream(self, *, known_to_stream: bool = True) -> Callable[[], None]:
        """Note that the model call is streamed, for the telemetry. Call it when `ask` of `ask_model` begins.

        Args:
            known_to_stream: Whether the model is known to stream its answer. If not, the call counts as streamed once
                a piece has arrived.

        Returns:
            A function to call for each piece of the answer that arrives; any thread may call it.
        """
        if self._model_call is None:
            return _ignore_piece
        self._model_call.known_to_stream = known_to_stream
        self._model_call.times = times = StreamTimes()
        return times.note_piece

    def name_model(self, name: str) -> None:
        """Set the name of the model, if it was not known when the run began."""
        run = self.run
        run.agent = placeholder_agent(run.agent.id, name, getattr(run.agent.model, "provider", ""))

    # Tools.

    async def call_tool(
        self,
        calling: ToolRequest,
        work: Callable[[Mapping[str, Any]], Awaitable[ToolResult]],
        *,
        approved: bool = False,
        needs_approval: Approval = False,
    ) -> ToolDone:
        """Call a tool through the hooks of `ToolCall`, with its events before and after.

        Args:
            calling: The call that the model requested.
            work: Runs the tool with the final arguments. An `Exception` that it raises becomes the result.
            approved: Whether a person has approved the call.
            needs_approval: Whether the tool requires a person's approval: a `bool`, or a function of the `ToolCall`.
        """
        return await self.prepare_tool_call(calling, work, approved=approved, needs_approval=needs_approval)()

    def prepare_tool_call(
        self,
        calling: ToolRequest,
        work: Callable[[Mapping[str, Any]], Awaitable[ToolResult]],
        *,
        approved: bool = False,
        needs_approval: Approval = False,
    ) -> Callable[[], Awaitable[ToolDone]]:
        """Reserve the index of a tool call, and return a function that makes it like `call_tool`.

        Prepare concurrent calls in the model's order, so that their indices do not depend on which one starts first.
        """
        run, step = self.run, self._step or self.step
        request = self._named(calling, step)
        made = _ToolCall(self, step, request, work)
        tool = Tool(
            toolset=calling.toolset,
            name=calling.tool_name,
            run=made.run_tool,
            needs_approval=not approved and needs_approval,
        )
        run.at_hand[request.tool_call_id] = tool
        call, problem = make_call(run, step, request, tool)
        if ToolCall not in run.intercepted:
            run.reserve_index(call)
            return partial(made.make, call, tool, problem)
        waiting = run.waiting.get(request.tool_call_id) if run.waiting else None
        asked_by = waiting.asked_by if waiting is not None and approved else None
        job = tool_job(run, step, request, call, tool, problem, approved=approved, asked_by=asked_by)
        return partial(made.make_through_hooks, job)

    def _named(self, calling: ToolRequest, step: Step) -> ToolRequest:
        """Add a call to the step, with an id that no other call under way has."""
        name, at_hand = calling.tool_call_id or f"t{step.index}.{len(step.calling)}", self.run.at_hand
        while name in at_hand or name in step.outcomes:
            name = f"{name}_again"
        if name != calling.tool_call_id:
            calling = msgspec.structs.replace(calling, tool_call_id=name)
        step.type = "call_tool"
        for known in step.calling:
            if known.tool_call_id == name:
                break
        else:
            step.calling.append(calling)
        return calling

    # Compaction, sub-agents, the whole run.

    async def compact(
        self, messages: Sequence[Message], token_count: int, summarize: Callable[[list[Message]], Awaitable[str]]
    ) -> str | None:
        """Compact a conversation through the hooks of `CompactCall`, with its events before and after.

        Args:
            messages: The messages that the summary will replace.
            token_count: The number of input tokens that made the compaction necessary.
            summarize: Writes the summary.

        Returns:
            The summary; `None` if it failed or a hook denied it.
        """
        run, step = self.run, self.step
        call = CompactCall(messages=list(messages), token_count=token_count, **run.ids)
        summary = await compact(run, step, call, summarize, message_count=len(messages))
        if summary is not None:
            emit_compacted(run, step, summary, messages_before=len(messages), messages_after=1)
        return summary

    async def call_agent(
        self, callee_id: str, instruction: str, work: Callable[[str, str], Awaitable[str]]
    ) -> AgentDone:
        """Call a sub-agent through the hooks of `SubAgentCall`, with its events before and after.

        Args:
            callee_id: The id of the sub-agent.
            instruction: The sub-agent's task.
            work: Runs the sub-agent with the final instruction and the operation id for its run. An exception is
                reported to hooks and raised again.
        """
        run, child = self.run, new_operation_id()
        call = SubAgentCall(callee_id=callee_id, instruction=instruction, **run.ids)
        said: list[str] = []

        async def terminal(final: SubAgentCall) -> AgentResult:
            if final.callee_id != callee_id:  # the framework calls the one that it has chosen
                final = msgspec.structs.replace(final, callee_id=callee_id)
            emit_called(run, final)
            inner = _agent_result(work, final.instruction, child)
            try:
                result = await (instrument(run, final, inner) if SubAgentCall in run.enclosing else inner)
            except BaseException as error:
                emit_failed(
                    run, final, message_of(error) if isinstance(error, Exception) else "The run was interrupted."
                )
                raise
            said.append(result.output)
            emit_completed(run, final, child, success=result.reason == "done")
            return result

        if SubAgentCall not in run.intercepted:
            result = await terminal(call)
            return AgentDone(output=result.output, ran=True)
        traversal = await lead_agent_call(run, call, terminal)
        denied = traversal.denied
        if not traversal.reached:
            return AgentDone(output=emit_unrun_agent(run, traversal).output, ran=False, changed=True, denied=denied)
        if denied is not None:
            return AgentDone(output=denied.reason, ran=True, changed=True, denied=denied)
        output = traversal.result.output
        return AgentDone(output=output, ran=True, changed=said != [output])

    async def lead_run(
        self,
        prompt: Sequence[Message],
        work: Callable[[AgentCall], Awaitable[str]],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
    ) -> AgentDone:
        """Run the framework's agent through the hooks of `AgentCall`.

        Args:
            prompt: The input of the run.
            work: Runs the agent with the call that hooks left, and returns the final text. If hooks have added context,
                its `input` has one more message.
            instructions: The system message.
            tools: The tools that the model may call.
        """
        run = self.run
        call = AgentCall(
            input=list(prompt), instructions=instructions, tools=list(tools), metadata=run.metadata, **run.ids
        )
        said: list[str] = []

        async def terminal(final: AgentCall) -> AgentResult:
            taker = context_takers.get(id(final.metadata))
            if taker is not None and taker.context:
                tell_context(run, final, taker.context)
                # A run that resumes has read its prompt and what hooks had added to it.
                message = None if self._resumed else context_message(taker.context)
                if message is not None:
                    final = msgspec.structs.replace(final, input=[*final.input, message])
                taker.context = ()  # what a hook adds on the way out is for the next input
            said.append(await work(final))
            reason = self._ended[0] if self._ended is not None else "done"
            control.suspended = reason == "waiting_for_human"
            return AgentResult(output=said[0], reason=reason)

        control = RunControl(run, run.watch, pinned=self._resumed)
        if AgentCall not in run.intercepted:
            await terminal(call)
            return AgentDone(output=said[0], ran=True)
        traversal = await run_through_chain(run, call, terminal, control)
        if traversal.denied is not None:
            run.denied = traversal.denied
            self.finish("interrupted", "")
            return AgentDone(output="", ran=traversal.reached, changed=True, denied=traversal.denied)
        output = run.last_content = traversal.result.output
        continues = traversal.continues
        if continues and traversal.reached and traversal.context:
            continues = (*continues, describe_context(traversal.context))
        return AgentDone(output=output, ran=traversal.reached, changed=said != [output], continues=continues)


class _ToolCall(msgspec.Struct, eq=False):
    """A tool call of another framework.

    Attributes:
        owner: The run.
        step: The step of the call.
        request: The call as the model asked for it, with its id in the step.
        work: Runs the tool.
        result: What the tool returned first.
        error: What the tool raised first.
    """

    owner: AdapterRun
    step: Step
    request: ToolRequest
    work: Callable[[Mapping[str, Any]], Awaitable[ToolResult]]
    result: ToolResult | None = None
    error: Exception | None = None

    async def run_tool(self, args: Mapping[str, Any]) -> ToolResult:
        """Run the tool, and keep what it returns or raises."""
        try:
            result = as_result(self.request.tool_name, await self.work(args))
        except Exception as error:
            if self.error is None:
                self.error = error
            raise
        if self.result is None:
            self.result = result
        return self.result

    # The tool is no attribute: it refers to this call, and a run must die without the collector.
    async def make(self, call: ToolCall, tool: Tool, problem: str | None) -> ToolDone:
        """Make a call that has no interceptors."""
        step, run, tool_call_id = self.step, self.owner.run, self.request.tool_call_id
        try:
            if tool.needs_approval is not False and problem is None and await tool.asks_first(call):
                step.asked[tool_call_id] = asked = to_pending(call)
                run.waiting[tool_call_id] = WaitingCall(call_index=call.call_index)
                run.steered = True
                return _done_by_question(asked)
            run.tool_calls += 1
            result = await call_tool(run, step, call, tool, problem)
            record_outcome(run, step, self.request, call, result)
        except LOST_HERE as error:
            self.owner._lost = error
            raise
        finally:
            del run.at_hand[tool_call_id]
        return self._done(step.outcomes[tool_call_id], "")

    async def make_through_hooks(self, job: ToolJob | InterceptedToolJob) -> ToolDone:
        """Make a call through its interceptors, which are asked before the tool is."""
        step, run, tool_call_id = self.step, self.owner.run, self.request.tool_call_id
        try:
            await job()
        except LOST_HERE as error:
            self.owner._lost = error
            raise
        finally:
            del run.at_hand[tool_call_id]
        asked = step.asked.get(tool_call_id)
        if asked is not None:
            return _done_by_question(asked)
        added = describe_context(job.context) if isinstance(job, InterceptedToolJob) and job.context else ""
        return self._done(step.outcomes[tool_call_id], added)

    def _done(self, outcome: ToolOutcome, added: str) -> ToolDone:
        own, error = self.result, self.error
        told = None if own is None else own.content
        if error is not None:
            told = f"{type(error).__name__}: {message_of(error)}"
        changed = told != outcome.content
        if added:
            success = own is not None and own.success
            if told is None or outcome.success is not success or outcome.content != join_texts(told, added):
                added = ""  # hooks have changed more than that
        return ToolDone(
            result=ToolResult(content=outcome.content, success=outcome.success),
            ran=own is not None or error is not None,
            changed=changed,
            added=added,
            error=None if changed else error,
            stop=self.owner.run.denied,
        )


def _done_by_question(pending: PendingTool) -> ToolDone:
    """Return the outcome of a call about which a person is asked first."""
    return ToolDone(result=ToolResult(content=pending.prompt, success=False), ran=False, asked=pending)


class _TimedCall(msgspec.Struct, eq=False):
    """A model call that is instrumented, with the times of its answer if that is streamed, or may be."""

    times: StreamTimes | None = None
    known_to_stream: bool = True


def _ignore_piece() -> None:
    """Ignore a piece of an answer, because nobody measures the call."""


async def _agent_result(work: Callable[[str, str], Awaitable[str]], instruction: str, child: str) -> AgentResult:
    return AgentResult(output=await work(instruction, child))
