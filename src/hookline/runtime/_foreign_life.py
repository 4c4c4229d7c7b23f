"""The life of a run of another framework: hooks registered, steps counted, its end announced once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from time import perf_counter_ns, time_ns
from types import TracebackType
from typing import Self

import anyio

from hookline.calls import (
    Denial,
    Message,
    ModelResponse,
    ToolCalling,
    ToolSpec,
)
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError, OperationBusyError, OperationExistsError, OperationMismatchError
from hookline.events import (
    AfterHumanIntervention,
    BeforeHumanIntervention,
    CompletionReason,
    OnStopByHumanIntervention,
    PendingTool,
    ToolOutcome,
)
from hookline.hooks import AnyHook, Hooks, hook_batch
from hookline.instrumentation import EnclosingHooks
from hookline.runtime._drives import Drives, check_driven
from hookline.runtime._enclosing import begin_enclosing, end_enclosing, failed_step
from hookline.runtime._foreign_keeping import cause_of, claim, keep_end
from hookline.runtime._foreign_segment import Segment, no_child, stand_in
from hookline.runtime._given import check_ids, checked_id
from hookline.runtime._given_hooks import check_interceptors
from hookline.runtime._journal import storable
from hookline.runtime._letting_go import settled
from hookline.runtime._live import live
from hookline.runtime._result import Step
from hookline.runtime._resume import decided, rejection
from hookline.runtime._run import Run
from hookline.runtime._running import LAST_SAVE_SECONDS
from hookline.runtime._state import Approve, OperationState, OperationStore, Reject, default_store
from hookline.runtime._telling import after_step, before_step, endings

__all__ = ["ForeignLife"]


class ForeignLife:
    """The life of one run of another framework: its beginning, its steps, its pauses, its end; see `ForeignRun`."""

    def __init__(
        self,
        hooks: Iterable[AnyHook],
        drives: Drives,
        *,
        agent_id: str = "agent",
        model: str = "",
        provider: str = "",
        operation_id: str | None = None,
        user_id: str = "",
        tenant_id: str = "",
        parent: ForeignLife | None = None,
        conversation_id: str | None = None,
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        drain_timeout: float = 5.0,
        best_effort: bool = False,
        allow_missing_hooks: bool = False,
    ) -> None:
        check_ids(user_id=user_id, tenant_id=tenant_id)
        own = hook_batch(hooks)
        inherited = [entry for entry in parent.inherited if entry not in own] if parent is not None else []
        self._hooks = [*inherited, *own]
        check_driven(self._hooks, drives, best_effort=best_effort)
        self.drives = drives
        self.operation_id = checked_id(operation_id)
        self._fresh = operation_id is None
        self._agent = stand_in(agent_id or "agent", model, provider)
        self._parent = parent
        if parent is not None:
            user_id, tenant_id = user_id or parent.run.user_id, tenant_id or parent.run.tenant_id
            conversation_id = conversation_id or parent.run.conversation_id
            dispatcher = dispatcher or parent.run.dispatcher
        self._user_id, self._tenant_id, self._conversation_id = user_id, tenant_id, conversation_id
        self._dispatcher = dispatcher
        self._own_dispatcher: HookDispatcher | None = None
        self._store = store or (parent.run.store if parent is not None else default_store())
        self._drain_timeout = drain_timeout
        self._allow_missing_hooks: bool = allow_missing_hooks or (parent is not None and parent._allow_missing_hooks)
        self._run: Segment | None = None
        self._step: Step | None = None
        self._resumed = False
        self._ended: tuple[CompletionReason, Exception | None] | None = None
        self._lost: Exception | None = None

    # Its life.

    @property
    def run(self) -> Run:
        """What the runtime knows of it, once it is open."""
        return self._opened

    @property
    def _opened(self) -> Segment:
        if self._run is None:
            raise HookUsageError(f"Run {self.operation_id!r} of {self.drives.framework} is not open.")
        return self._run

    @property
    def is_open(self) -> bool:
        """Whether it has begun and not ended: what was started in it may outlive it."""
        return self._run is not None and live.get(self.operation_id) is self._run

    @property
    def inherited(self) -> list[AnyHook]:
        """The hooks that go along into the runs of sub-agents."""
        return [entry for entry in self._hooks if isinstance(entry, Hooks) and entry.inherit]

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked for its end."""
        return self._opened.interrupted

    @property
    def denied(self) -> Denial | None:
        """The denial that ends it."""
        return self._opened.denied

    async def open(
        self, prompt: Sequence[Message] = (), instructions: str = "", tools: Sequence[ToolSpec] = ()
    ) -> Self:
        """Begin: register the hooks.

        Args:
            prompt: What it is to work on.
            instructions: The system message.
            tools: What the model may call.

        Raises:
            OperationExistsError: If the operation id is taken.
            OperationBusyError: If the store knows that it is running, or somebody else goes on with it.
            OperationMismatchError: If it waits in another framework.
            MissingHooksError: If it waits for a person, and an interceptor that it was given before is missing.
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
            )
        elif state.framework not in ("", self.drives.framework):
            raise OperationMismatchError(self.operation_id, state.framework, self.drives.framework)
        if self._resumed:
            check_interceptors(state, self._hooks, allow_missing=self._allow_missing_hooks)
        run = Segment(
            self._agent,
            state,
            version=state.version if self._resumed else None,
            hooks=self._hooks,
            dispatcher=dispatcher,
            store=self._store,
            drain_timeout=self._drain_timeout,
            exec_child=no_child,
            parent=self._parent.run if self._parent is not None else None,
        )
        run.at_hand, run.can_ask, run.given_specs, run.closed = {}, self.drives.asks, list(tools), False
        run.instructions, run.framework = instructions, self.drives.framework
        self._run = live[self.operation_id] = run
        try:
            bundles = [entry for entry in self._hooks if isinstance(entry, EnclosingHooks)]
            hooks = begin_enclosing(run, list(dict.fromkeys(bundles))) if bundles else run.hooks
            dispatcher.register(self.operation_id, hooks)
            if self._resumed or run.journal is not None:
                await claim(run)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await dispatcher.unregister(self.operation_id, drain_timeout=self._drain_timeout)
            end_enclosing(run)
            del live[self.operation_id]
            self._run = None
            raise

    def finish(self, reason: CompletionReason, output: str | None = None, error: Exception | None = None) -> None:
        """Say what it came to, for the end that follows.

        Args:
            reason: Why it ends.
            output: What was said last, if the model's last answer was not it.
            error: On `"error"`: what was raised.
        """
        if output is not None:
            self._opened.last_content = output
        self._ended = reason, error

    async def close(self, error: BaseException | None = None) -> None:
        """End: announce it, and forget the hooks. A second time does nothing.

        Args:
            error: What the framework's run raised, if `finish` was not called.
        """
        run = self._run
        if run is None or live.get(self.operation_id) is not run:
            return
        if error is not None:
            self._undo_done()
        reason, known = self._ended or self._outcome(run, error)
        failure = known
        try:
            if error is None:
                failure = await self._end(run, reason, known)
            else:
                seconds = math.inf if isinstance(error, Exception) else LAST_SAVE_SECONDS
                with anyio.CancelScope(shield=True):
                    await self._end(run, reason, known, save_timeout=seconds)
        finally:
            if self._own_dispatcher is not None:
                await self._own_dispatcher.__aexit__(None, None, None)
        if failure is not None and failure is not known:
            raise failure

    async def _end(
        self, run: Segment, reason: CompletionReason, failure: Exception | None, *, save_timeout: float = math.inf
    ) -> Exception | None:
        """Keep the end in the store, announce it, and forget the hooks.

        Returns:
            Why it failed, be it in the end.
        """
        try:
            run.finishing = True
            run.ended = perf_counter_ns()
            if self._step is not None and (cause := cause_of(run, reason, failure)) is not None:
                failed_step(run, self._step.index, cause)
            self.end_step(should_continue=False)
            if reason == "waiting_for_human" or self._resumed or run.journal is not None:
                if save_timeout == math.inf:
                    reason, failure = await keep_end(run, reason, failure)
                else:
                    with anyio.move_on_after(save_timeout):
                        reason, failure = await keep_end(run, reason, failure)
        finally:
            try:
                for event in endings(run, reason, failure):
                    run.dispatcher.dispatch(event)
                reason, failure = await settled(run, reason, failure)
            finally:
                run.closed = True
                await run.dispatcher.unregister(self.operation_id, drain_timeout=self._drain_timeout)
                end_enclosing(run)
                del live[self.operation_id]
        return failure

    def _undo_done(self) -> None:
        """A run in which something is raised after its last words is not done."""
        if self._ended is not None and self._ended[0] == "done":
            self._ended = None

    def _outcome(self, run: Run, error: BaseException | None) -> tuple[CompletionReason, Exception | None]:
        if run.denied is not None or run.stopped:
            return "interrupted", None
        if error is None:
            return "done", None
        return ("error", error) if isinstance(error, Exception) else ("interrupted", None)

    async def __aenter__(self) -> Self:
        await self.open()
        self._opened.scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        swallowed = self._opened.scope.__exit__(kind, error, trace)
        if swallowed:
            self._undo_done()
        await self.close(None if swallowed else error)
        return bool(swallowed)

    # Steps and model calls.

    def begin_step(self) -> int:
        """A step begins; one that is under way ends.

        Returns:
            Its index, from 0.

        Raises:
            StoreUnavailableError: If the store was lost in the step before, whatever the framework made of that.
            StaleStateError: If somebody else goes on with the operation.
        """
        if self._lost is not None:
            raise self._lost
        if self._step is not None:
            self.end_step(should_continue=True)
        self._step = step = before_step(self._opened)
        return step.index

    def end_step(self, *, should_continue: bool) -> None:
        """The step that is under way ends, if there is one."""
        step, self._step = self._step, None
        if step is not None:
            run = self._opened
            after_step(run, step, should_continue=should_continue)
            if self._ended is None:
                run.outcomes.clear()
            run.step_index = None

    @property
    def step(self) -> Step:
        """The step that is under way; one begins where there is none."""
        if self._step is None:
            self.begin_step()
        assert self._step is not None
        return self._step

    def answered(self, response: ModelResponse) -> None:
        """Take a model's answer into the step and the totals."""
        step = self.step
        self._opened.count(step, response if self._opened.journal is None else storable(response))
        if response.tool_calls:
            step.calling, step.type = list(response.tool_calls), "call_tool"
        elif step.calling:
            step.calling = []

    # People.

    def pause(self, pending: Sequence[PendingTool] = ()) -> None:
        """The run is about to wait for a person; `finish` is said as well.

        Args:
            pending: The calls that wait; those about which hooks have asked come by themselves.
        """
        run, step = self._opened, self.step
        step.type = "request_human_approve"
        known = {each.tool_call_id: each for each in (*pending, *step.asked.values())}
        run.pending = list(known.values())
        run.open_calls = list(step.calling)
        run.waiting_since_unix_nano = time_ns()
        if run.hooked(BeforeHumanIntervention):
            run.tell(BeforeHumanIntervention(**run.ids, step_index=step.index, pending_tools=run.pending))
        self.finish("waiting_for_human")

    def refused(self, calling: ToolCalling, decision: Reject) -> str:
        """A call will not run, because a person has refused it.

        Args:
            calling: The call.
            decision: What the person decided.

        Returns:
            What the model is to be told.
        """
        step, content = self.step, rejection(decision)
        step.type = "call_tool"
        step.calling.append(calling)
        step.outcomes[calling.tool_call_id] = ToolOutcome(
            identifier=calling.identifier,
            api_name=calling.api_name,
            tool_call_id=calling.tool_call_id,
            content=content,
            success=False,
        )
        return content

    def decided(self, decisions: Iterable[Approve | Reject]) -> None:
        """A person has decided; a plain `Reject` stops the run."""
        run, stopped = self._opened, False
        for decision in decisions:
            reject = decision if isinstance(decision, Reject) else None
            if run.hooked(AfterHumanIntervention):
                run.tell(decided(run, decision))
            if reject is not None and not reject.and_continue and not stopped:
                stopped, self.step.type = True, "request_human_approve"
                if run.hooked(OnStopByHumanIntervention):
                    run.tell(
                        OnStopByHumanIntervention(
                            **run.ids, tool_call_id=reject.tool_call_id, rejection_reason=reject.reason or None
                        )
                    )
