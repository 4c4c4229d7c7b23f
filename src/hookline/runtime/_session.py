"""`AgentSession`: an agent that works on several tasks, with a conversation, phases and hooks of its own."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import anyio
from msgspec import UNSET

from hookline._checks import quote
from hookline.calls import MemoryCall, MemoryResult, Message, ToolSpec
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError, OperationFinishedError, OperationNotFoundError
from hookline.hooks import AnyHook, Hooks, hook_batch
from hookline.interceptors import NEVER_INTERRUPTED
from hookline.phases import Phase, PhaseMachine
from hookline.runtime._agent import Agent
from hookline.runtime._exec import exec_child, waiting_state
from hookline.runtime._hooks_at_resume import check_hooks
from hookline.runtime._inputs import (
    RunOptions,
    check_decisions,
    check_ids,
    check_operation_id,
    check_tags,
    join_tags,
    opening_messages,
    system_message,
)
from hookline.runtime._lifecycle import exec_run
from hookline.runtime._models import OnToken, Release
from hookline.runtime._run import Run
from hookline.runtime._seams import RunControl, run_through_chain
from hookline.runtime._state import (
    Approve,
    Decision,
    InMemoryHistory,
    OperationResult,
    OperationState,
    OperationStore,
    Reject,
    SessionMemory,
    default_store,
)
from hookline.runtime._tools import open_sources

__all__ = ["AgentSession"]

SHUTDOWN_SECONDS = 5.0
"""How long the hooks of each of the two last moves may hold up a session that is left by a cancellation."""


class AgentSession:
    """An agent that works on several tasks in one conversation.

    It is an async context manager, which can be entered again. A session runs one task at a time. Each task is an
    operation, and continues the conversation. The hooks of the agent, of the session and of the task run in this order.

    Args:
        agent: The agent.
        hooks: Hooks of every task, and phase hooks.
        session_id: The id under which the conversation is saved; a new one by default.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        tags: The tags of each operation; see `exec_agent`.
        dispatcher: An open dispatcher to share; by default the session has its own.
        store: The store of the operations; the memory of this process by default.
        memory: Where the conversation is saved; in this object by default.
        drain_timeout: Seconds that queued observers have to finish at the end of a task.

    Attributes:
        id: The session's id.
        hooks: The bundle of the session. Hooks that you add apply from the next task on.
        history: The conversation so far, without the instructions.
        pending: The id of the operation that waits for a person, if any.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        hooks: Iterable[AnyHook] = (),
        session_id: str | None = None,
        user_id: str = "",
        tenant_id: str = "",
        tags: Collection[str] = (),
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        memory: SessionMemory | None = None,
        drain_timeout: float = 5.0,
    ) -> None:
        if not isinstance(agent, Agent):
            raise HookUsageError(f"AgentSession takes an Agent; got {quote(agent)}.")
        check_ids(user_id=user_id, tenant_id=tenant_id)
        self.agent = agent
        self._equipped = agent
        self.id = session_id or f"session_{os.urandom(16).hex()}"
        check_ids(session_id=self.id)
        self.hooks = Hooks("session", tenant_id=tenant_id)
        self.history: list[Message] = []
        self.pending: str | None = None
        self._last_input_tokens = 0
        self._task_hooks: tuple[str | None, list[AnyHook]] = (None, [])
        """The operation that waits for a person, and the hooks that its task was given, for its resume."""
        self._given = [*agent.hooks, *hook_batch(hooks)]
        self._user_id, self._tenant_id, self._tags = user_id, tenant_id, check_tags(tags)
        self._shared_dispatcher = dispatcher
        self._store = store or default_store()
        self._memory = memory or InMemoryHistory()
        self._drain_timeout = drain_timeout
        self._phases = PhaseMachine(
            agent.id,
            self._given,
            tenant_id=tenant_id,
            hook_timeout=dispatcher.hook_timeout if dispatcher is not None else 30.0,
        )
        self._stack = contextlib.AsyncExitStack()
        self._dispatcher: HookDispatcher | None = None
        self._task_over: anyio.Event | None = None
        self._run: Run | None = None
        self._leaving = False

    def __repr__(self) -> str:
        return f"AgentSession({self.id!r}, agent={self.agent.id!r}, phase={self.phase.value!r})"

    @property
    def phase(self) -> Phase:
        """The current phase of the agent."""
        return self._phases.phase

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools and sub-agents of the agent; inside `async with` also those of its sources."""
        return self._equipped.specs

    async def __aenter__(self) -> Self:
        if not (self.phase is Phase.UNINITIALIZED or self.phase.is_terminal):
            raise HookUsageError(f"Session {self.id!r} is already open.")
        await self._phases.move(Phase.UNINITIALIZED)
        self._leaving = False
        with self._phases.hooked([self.hooks]):
            try:
                await self._phases.move(Phase.BOOTSTRAPPING)
                self._stack = contextlib.AsyncExitStack()
                self._dispatcher = self._shared_dispatcher or await self._stack.enter_async_context(HookDispatcher())
                self.history = check_messages(await self._memory.load(self.id) or self.history)
                if self.agent.sources:
                    tools = await self._stack.enter_async_context(open_sources(self.agent.sources))
                    self._equipped = self.agent.equipped(tools)
                await self._phases.move(Phase.IDLE)
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await self._phases.move(Phase.ERROR, reason=f"{type(error).__name__}: {error}")
                self._dispatcher = None
                await self._stack.__aexit__(type(error), error, error.__traceback__)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._leaving = True
        self.interrupt()
        try:
            if self._task_over is not None:
                await self._task_over.wait()
        finally:
            try:
                await self._shut_down(shield=error is not None)
            finally:
                self._dispatcher = None
                swallowed = await self._stack.__aexit__(kind, error, trace)
        return swallowed

    async def _shut_down(self, *, shield: bool) -> None:
        """Make the last two moves of the session, whatever becomes of their hooks."""
        with self._phases.hooked([self.hooks]):
            limit = SHUTDOWN_SECONDS if shield else math.inf
            try:
                with anyio.move_on_after(limit, shield=shield):
                    await self._phases.move(Phase.SHUTTING_DOWN)
            finally:
                with anyio.move_on_after(limit, shield=shield):
                    await self._phases.move(Phase.SHUTDOWN_COMPLETE)

    async def run(
        self,
        prompt: str | Sequence[Message],
        *,
        hooks: Iterable[AnyHook] = (),
        operation_id: str | None = None,
        tags: Collection[str] = (),
        on_token: OnToken | None = None,
        release: Release = "checked",
    ) -> OperationResult:
        """Run a task, which continues the conversation.

        Args:
            prompt: The user's message.
            hooks: Hooks of this task only.
            operation_id: Id of the task's operation; a new one by default.
            tags: Tags of this task, in addition to those of the session.
            on_token: A function for the model's text; see `exec_agent`.
            release: When to release text; see `exec_agent`.

        Returns:
            The result, as from `exec_agent`. Afterwards the session is idle again.

        Raises:
            HookUsageError: Outside `async with`, while another task runs, or while a task waits for a person.
            OperationExistsError: If the operation id is taken.
        """
        own = hook_batch(hooks)
        new = opening_messages(self.agent, prompt)
        self._check_idle()
        if self.pending is not None:
            raise HookUsageError(
                f"Operation {self.pending!r} of session {self.id!r} waits for a person. Decide with "
                "`session.resume([...])`; a plain Reject drops it."
            )
        system = [system_message(self.agent.instructions)] if self.agent.instructions else []
        given = [message for message in new if message not in system]
        state = OperationState(
            operation_id=check_operation_id(operation_id),
            agent_id=self.agent.id,
            user_id=self._user_id,
            tenant_id=self._tenant_id,
            conversation_id=self.id,
            tags=list(join_tags(self._tags, check_tags(tags))) or UNSET,
            messages=[*system, *self.history, *given],
            last_input_tokens=self._last_input_tokens,
        )
        with self._claimed():
            history = len(system) + len(self.history)
            options = self._options(own, on_token, release)
            return await self._task(state, options, own, Phase.PROCESSING_USER_INPUT, history=history)

    async def resume(
        self,
        decisions: Sequence[Approve | Reject],
        *,
        hooks: Iterable[AnyHook] = (),
        on_token: OnToken | None = None,
        release: Release = "checked",
        allow_missing_hooks: bool = False,
    ) -> OperationResult:
        """Continue the task that waits for a person, with its hooks.

        Args:
            decisions: Decisions, as for `resume_agent`.
            hooks: More hooks of the task.
            on_token: A function for the model's text; see `exec_agent`.
            release: When to release text; see `exec_agent`.
            allow_missing_hooks: Continue without missing interceptors, with a warning in the log.

        Raises:
            MissingHooksError: If an interceptor of the operation is missing, which is possible if another session
                started it. Nothing was changed.
            HookUsageError: Outside `async with`, while a task runs, or if no task waits.
            OperationError: If the operation cannot be resumed; see `resume_agent`.
        """
        own = hook_batch(hooks)
        self._check_idle()
        if self.pending is None:
            raise HookUsageError(f"No task of session {self.id!r} waits for a person.")
        waiting, earlier = self._task_hooks
        if waiting == self.pending:
            own = [*earlier, *(entry for entry in own if entry not in earlier)]
        with self._claimed():
            try:
                state = await waiting_state(self.agent, self.pending, self._store)
            except (OperationFinishedError, OperationNotFoundError):
                self._wait_for(None)  # somebody else has seen to it
                raise
            checked = check_decisions(state, decisions)
            options = self._options(own, on_token, release)
            await check_hooks(self.agent, state, options.hooks, self._store, allow_missing=allow_missing_hooks)
            return await self._task(state, options, own, Phase.AWAITING_TOOL_APPROVAL, checked)

    def interrupt(self) -> bool:
        """Stop the running task, which returns with reason `"interrupted"`.

        Returns:
            Whether a task was running.
        """
        run = self._run
        if run is None or run.finishing:
            return False
        run.interrupt()
        return True

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """Claim the session for one task, from its first moment on."""
        over = self._task_over = anyio.Event()
        try:
            yield
        finally:
            self._task_over = None
            over.set()

    def _options(self, hooks: Sequence[AnyHook], on_token: OnToken | None, release: Release) -> RunOptions:
        """Return the options of a task's run.

        Args:
            hooks: The hooks of the task, which run after those of the agent and of the session.
            on_token: What the caller gave.
            release: What the caller gave.
        """
        return RunOptions(
            hooks=[*self._given, self.hooks, *hooks],
            store=self._store,
            dispatcher=self._dispatcher,
            drain_timeout=self._drain_timeout,
            on_token=on_token,
            release=release,
        )

    async def _task(
        self,
        state: OperationState,
        options: RunOptions,
        hooks: Sequence[AnyHook],
        phase: Phase,
        decisions: Sequence[Decision] = (),
        *,
        history: int = 0,
    ) -> OperationResult:
        """Run one segment of one task, from idle to idle."""
        assert self._dispatcher is not None
        run = self._run = Run(
            self._equipped,
            state,
            options,
            self._dispatcher,
            version=state.version if decisions else None,
            exec_child=exec_child,
            phases=self._phases,
            history=history,
            remember=self._remember,
        )
        if self._leaving:
            run.interrupt()
        self._phases.operation_id = state.operation_id
        with self._phases.hooked([self.hooks, *hooks]):
            try:
                await self._phases.move(phase)
                result = await exec_run(run, decisions)
                self._wait_for(result.operation_id if result.reason == "waiting_for_human" else None, hooks)
            except BaseException:
                if run.claimed:
                    self._wait_for(None)
                raise
            finally:
                self._run = None
                try:
                    if self.phase.is_processing:
                        await self._phases.move(Phase.IDLE)
                finally:
                    self._phases.operation_id = ""
        return result

    async def _remember(self, run: Run) -> None:
        """Keep the conversation of a task that has ended, as the hooks of `MemoryCall` leave it."""
        said = run.messages[: run.refused_from]
        said = said[1:] if said[:1] == [system_message(run.instructions)] else said

        async def write(call: MemoryCall) -> MemoryResult:
            await self._memory.save(call.key, check_messages(call.value))
            return MemoryResult()

        call = MemoryCall(key=self.id, value=said, **run.ids)
        kept = call
        if MemoryCall not in run.intercepted:
            await write(call)
        else:
            traversal = await run_through_chain(run, call, write, RunControl(run, NEVER_INTERRUPTED))
            if traversal.denied is not None or not traversal.result.stored:
                return
            kept = traversal.call
        self.history = check_messages(kept.value)
        whole = run.refused_from is None and kept.value == call.value
        self._last_input_tokens = run.last_input_tokens if whole else 0  # what is counted then is the text

    def _wait_for(self, operation_id: str | None, hooks: Sequence[AnyHook] = ()) -> None:
        """Note which operation waits for a person, and the hooks of its task."""
        self.pending, self._task_hooks = operation_id, (operation_id, list(hooks))

    def _check_idle(self) -> None:
        if self._dispatcher is None:
            raise HookUsageError(f"Session {self.id!r} is not open; use it inside `async with`.")
        if self.phase is not Phase.IDLE or self._task_over is not None:
            raise HookUsageError(
                f"Session {self.id!r} is {self.phase.value}: it runs one task at a time. Wait for the task, or "
                "open another session."
            )


def check_messages(value: object) -> list[Message]:
    """Return a conversation as a list, if it is one.

    Raises:
        HookUsageError: If it is no list of messages.
    """
    if not isinstance(value, Sequence) or not all(isinstance(message, Message) for message in value):
        raise HookUsageError(f"The history of a session must be a list of Messages; got {quote(value)}.")
    return list(value)
