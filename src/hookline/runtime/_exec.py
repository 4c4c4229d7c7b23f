"""Start or stop a run: `exec_agent`, `stream_agent`, `resume_agent`, `recover_agent`, `interrupt`."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, cast

import anyio
from msgspec import UNSET

from hookline._checks import quote
from hookline.calls import Message
from hookline.dispatcher import HookDispatcher
from hookline.errors import (
    HookUsageError,
    OperationBusyError,
    OperationFinishedError,
    OperationMismatchError,
    OperationNotFoundError,
    StoreUnavailableError,
    message_of,
)
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime._agent import Agent
from hookline.runtime._begin import check_engine_arguments, exec_on_engine
from hookline.runtime._engine import Engine
from hookline.runtime._hooks_at_resume import check_hooks
from hookline.runtime._inherited_hooks import hooks_of_child
from hookline.runtime._inputs import (
    RunOptions,
    check_decisions,
    check_ids,
    check_operation_id,
    check_tags,
    join_tags,
    opening_messages,
)
from hookline.runtime._lifecycle import exec_run
from hookline.runtime._models import OnToken, Release
from hookline.runtime._run import Run, live
from hookline.runtime._state import (
    Approve,
    Decision,
    DurableStore,
    OperationResult,
    OperationState,
    OperationStore,
    Reject,
    default_store,
)

__all__ = [
    "TextStream",
    "exec_agent",
    "exec_child",
    "interrupt",
    "recover_agent",
    "resume_agent",
    "stream_agent",
    "waiting_state",
]


async def exec_agent(
    agent: Agent,
    prompt: str | Sequence[Message],
    *,
    hooks: Iterable[AnyHook] = (),
    operation_id: str | None = None,
    user_id: str = "",
    tenant_id: str = "",
    parent_operation_id: str | None = None,
    tags: Collection[str] = (),
    dispatcher: HookDispatcher | None = None,
    store: OperationStore | None = None,
    drain_timeout: float = 5.0,
    on_token: OnToken | None = None,
    release: Release = "checked",
    engine: Engine | None = None,
    queue: str = "",
    agent_version: str = "",
) -> OperationResult:
    """Run an agent until it is done, fails, is stopped, or waits for a person.

    With an `engine`, the operation is stored, and runs in a process with a `Worker` of that engine that has the agent.
    This function waits for it there. If it is cancelled, or its process dies, the operation goes on.

    Args:
        agent: The agent.
        prompt: The user's message, or a conversation to continue.
        hooks: Hooks of this run, after the agent's own. They are removed when the run ends.
        operation_id: Id of the run; a new one by default.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that this run belongs to.
        tags: Words to find the operation by, and for hooks that are only for some operations: at most 20 strings of up
            to 100 printable characters. Its sub-agents have them too.
        dispatcher: An open dispatcher to share with other runs; by default the run has its own.
        store: The store of the operation; the memory of this process by default.
        drain_timeout: Seconds that queued observers have to finish at the end; the rest is cancelled.
        on_token: A function, plain or async, that is called with each piece of the model's text. It does not get the
            text of sub-agents. If it raises, the exception is logged and the function is not called again.
        release: `"checked"` holds text back until every hook that can change or withhold it has run: `around` and
            `after` hooks of `ModelCall`, `StepCall` and `AgentCall`. `"incremental"` releases it at once, before those
            hooks see it.
        engine: Says which process runs the operation, and when; `None` to run it here. It needs a durable store. Hooks
            that are functions, `dispatcher` and `on_token` cannot be given with it: they belong to the `Worker`.
        queue: The queue of the engine; `""` for its default.
        agent_version: Your version of the agent. It is stored, and workers with other `agent_versions` leave the
            operation to others; `""` for any.

    Returns:
        The result, for every `reason`. Errors of the model are not raised; they are in `error`.

    Raises:
        HookDefinitionError: If a hook is invalid.
        OperationExistsError: If the operation id is taken.
        HookUsageError: If the prompt is neither a string nor messages, a tag is not valid, the store is not open, or an
            argument cannot be given with an `engine`.
        StoreUnavailableError: With an `engine`, if the store could not be reached. The operation goes on if it was
            stored.
    """
    if not isinstance(agent, Agent):
        raise HookUsageError(f"exec_agent runs an Agent; got {quote(agent)}.")
    check_ids(user_id=user_id, tenant_id=tenant_id, queue=queue, agent_version=agent_version)
    if store is not None and isinstance(store, DurableStore):
        with contextlib.suppress(StoreUnavailableError):  # the run reports it
            store.check_open()
    parent = live.get(parent_operation_id) if parent_operation_id is not None else None
    if parent is not None or tags != ():
        tags = join_tags(parent.tags if parent is not None else (), check_tags(tags))
    state = OperationState(
        operation_id=check_operation_id(operation_id),
        agent_id=agent.id,
        user_id=user_id,
        tenant_id=tenant_id,
        parent_operation_id=parent_operation_id,
        messages=opening_messages(agent, prompt),
        agent_version=agent_version,
        tags=list(tags) or UNSET,
    )
    if engine is not None:
        check_engine_arguments(engine, store, dispatcher=dispatcher, on_token=on_token)
        return await exec_on_engine(agent, state, hook_batch(hooks), cast("DurableStore", store), engine, queue)
    if queue:
        raise HookUsageError(f"`queue` is a queue of an engine; give it with `engine`; got {quote(queue)}.")
    options = RunOptions(
        hooks=[*agent.hooks, *hook_batch(hooks)],
        store=store or default_store(),
        dispatcher=dispatcher,
        drain_timeout=drain_timeout,
        on_token=on_token,
        release=release,
    )
    return await _exec_segment(agent, state, options)


async def resume_agent(
    agent: Agent,
    operation_id: str,
    decisions: Sequence[Approve | Reject],
    *,
    hooks: Iterable[AnyHook] = (),
    store: OperationStore | None = None,
    dispatcher: HookDispatcher | None = None,
    drain_timeout: float = 5.0,
    on_token: OnToken | None = None,
    release: Release = "checked",
    allow_missing_hooks: bool = False,
) -> OperationResult:
    """Continue an operation that waits for a person, here or in another process.

    Args:
        agent: The agent that started it.
        operation_id: The operation.
        decisions: Decisions about one or more pending calls. The operation keeps waiting until all are decided. A plain
            `Reject` stops the run and overrides approvals given with it.
        hooks: Hooks of this segment, after the agent's own. Every interceptor that the operation had before must be
            among them or the agent's; new ones belong to it from now on.
        store: The store of the operation; the memory of this process by default.
        dispatcher: An open dispatcher to share with other runs; by default the run has its own.
        drain_timeout: Seconds that queued observers have to finish at the end; the rest is cancelled.
        on_token: A function for the model's text; see `exec_agent`.
        release: When to release text; see `exec_agent`.
        allow_missing_hooks: Continue this segment without missing interceptors, with a warning in the log.

    Raises:
        MissingHooksError: If an interceptor of the operation is missing. Nothing was changed.
        OperationNotFoundError: If the operation is not in the store.
        OperationFinishedError: If it has ended.
        OperationBusyError: If it is running or being resumed.
        OperationMismatchError: If another agent started it.
        DecisionError: If a decision is about a call that is not pending, or a call is decided twice.
    """
    store = store or default_store()
    if not isinstance(agent, Agent):
        raise HookUsageError(f"resume_agent runs an Agent; got {quote(agent)}.")
    options = RunOptions(
        hooks=[*agent.hooks, *hook_batch(hooks)],
        store=store,
        dispatcher=dispatcher,
        drain_timeout=drain_timeout,
        on_token=on_token,
        release=release,
    )
    state = await waiting_state(agent, operation_id, store)
    decisions = check_decisions(state, decisions)
    await check_hooks(agent, state, options.hooks, store, allow_missing=allow_missing_hooks)
    return await _exec_segment(agent, state, options, decisions, version=state.version)


async def recover_agent(
    agent: Agent,
    operation_id: str,
    *,
    store: DurableStore,
    hooks: Iterable[AnyHook] = (),
    dispatcher: HookDispatcher | None = None,
    drain_timeout: float = 5.0,
    on_token: OnToken | None = None,
    release: Release = "checked",
    abandon: bool = False,
    allow_missing_hooks: bool = False,
) -> OperationResult:
    """Continue an operation whose process has died, from its last stored state.

    No event fires twice. A tool that was running is not run again: it is reported as failed, since its effect is
    unknown. A model call that was running is repeated. A sub-agent continues, too.

    Args:
        agent: The agent that started it.
        operation_id: The operation.
        store: The store of the operation.
        hooks: Hooks of this segment, after the agent's own; hooks that are data are stored with the operation. Every
            interceptor that the operation had before must be there, as for `resume_agent`.
        dispatcher: As for `exec_agent`.
        drain_timeout: As for `exec_agent`.
        on_token: As for `exec_agent`.
        release: As for `exec_agent`.
        abandon: End the operation instead, with reason `"interrupted"` and all closing events, also one that waits for
            a person. This needs no interceptors, since nothing runs.
        allow_missing_hooks: Continue this segment without missing interceptors, with a warning in the log.

    Raises:
        MissingHooksError: If an interceptor of the operation or of its sub-agent is missing. Nothing was changed.
        OperationNotFoundError: If the operation is not in the store.
        OperationFinishedError: If it has ended, or waits for a person and is not to be abandoned.
        OperationBusyError: If it is running in a living process, or being recovered.
        OperationMismatchError: If another agent started it.
        HookUsageError: If the store is not a durable one.
    """
    if not isinstance(agent, Agent) or not isinstance(store, DurableStore):
        raise HookUsageError(
            f"recover_agent takes an Agent and a durable store, such as SqlStore; got {quote(agent)}, {quote(store)}."
        )
    options = RunOptions(
        hooks=[*agent.hooks, *hook_batch(hooks)],
        store=store,
        dispatcher=dispatcher,
        drain_timeout=drain_timeout,
        on_token=on_token,
        release=release,
    )
    state = await _orphan(agent, operation_id, store, abandon=abandon)
    if not abandon:
        await check_hooks(agent, state, options.hooks, store, allow_missing=allow_missing_hooks)
    return await _exec_segment(agent, state, options, version=state.version, recovered=True, abandon=abandon)


async def _orphan(agent: Agent, operation_id: str, store: DurableStore, *, abandon: bool) -> OperationState:
    """Load the state of an operation whose process has died, or that waits for a person and is to be abandoned."""
    state = await store.load(operation_id)
    if state is None:
        raise OperationNotFoundError(operation_id)
    waits = abandon and state.status == "waiting_for_human"
    if state.status != "running" and not waits:
        raise OperationFinishedError(operation_id, state.status)
    if operation_id in live or (not waits and not await store.orphaned(operation_id)):
        raise OperationBusyError(operation_id)
    _check_started_by(agent, state, framework="" if not abandon else state.framework)
    return state


def _check_started_by(agent: Agent, state: OperationState, *, framework: str = "") -> None:
    if state.framework != framework:
        raise OperationMismatchError(state.operation_id, f"{state.agent_id} of {state.framework}", agent.id)
    if state.agent_id != agent.id:
        raise OperationMismatchError(state.operation_id, state.agent_id, agent.id)


async def waiting_state(agent: Agent, operation_id: str, store: OperationStore) -> OperationState:
    """Load the state of an operation that waits for a person.

    Raises:
        OperationError: If it cannot be resumed, each reason with an error of its own.
    """
    if operation_id in live:
        raise OperationBusyError(operation_id)
    state = await store.load(operation_id)
    if state is None:
        raise OperationNotFoundError(operation_id)
    if state.status == "running":
        raise OperationBusyError(operation_id)
    if state.status != "waiting_for_human":
        raise OperationFinishedError(operation_id, state.status)
    _check_started_by(agent, state)
    return state


def interrupt(operation_id: str) -> bool:
    """Stop a run of this process at once, in a model call, a tool or between steps.

    The run and its sub-agents return with reason `"interrupted"`. You can call this from any thread.

    Args:
        operation_id: The run.

    Returns:
        Whether the run was running in this process.
    """
    run = live.get(operation_id)
    if run is None or run.finishing:
        return False
    run.interrupt()
    return True


async def _exec_segment(
    agent: Agent,
    state: OperationState,
    options: RunOptions,
    decisions: Sequence[Decision] = (),
    *,
    version: int | None = None,
    recovered: bool = False,
    abandon: bool = False,
) -> OperationResult:
    """Run one segment of an operation, in the given dispatcher or in one of its own.

    Args:
        agent: The agent.
        state: The operation as it is stored, or as it begins.
        options: The options of the caller.
        decisions: On a resume, what a person decided.
        version: The stored version to continue from; `None` for a new operation.
        recovered: Whether the process that ran it has died.
        abandon: Whether to end it at once.
    """
    dispatcher = options.dispatcher or HookDispatcher()
    run = Run(agent, state, options, dispatcher, version=version, exec_child=exec_child, recovered=recovered)
    if abandon:
        run.interrupt()
    if options.dispatcher is not None:
        return await exec_run(run, decisions)
    async with dispatcher:
        return await exec_run(run, decisions)


async def exec_child(
    parent: Run, agent: Agent, instruction: str, operation_id: str, state: OperationState | None
) -> OperationResult:
    """Run a sub-agent as an operation of its own, in its parent's task, so that both stop together.

    If its process has died, it continues from its `state`.
    """
    recovered = state is not None
    state = state or OperationState(
        operation_id=operation_id,
        agent_id=agent.id,
        user_id=parent.user_id,
        tenant_id=parent.tenant_id,
        parent_operation_id=parent.operation_id,
        conversation_id=parent.conversation_id,
        messages=opening_messages(agent, instruction),
        agent_version=parent.agent_version,
        tags=list(parent.tags) or UNSET,
    )
    options = RunOptions(
        hooks=hooks_of_child(parent.given_hooks, agent),
        store=parent.store,
        dispatcher=parent.dispatcher,
        drain_timeout=parent.drain_timeout,
    )
    run = Run(
        agent,
        state,
        options,
        parent.dispatcher,
        version=state.version if recovered else None,
        exec_child=exec_child,
        parent=parent,
        recovered=recovered,
    )
    return await exec_run(run, ())


def stream_agent(
    agent: Agent,
    prompt: str | Sequence[Message],
    *,
    hooks: Iterable[AnyHook] = (),
    operation_id: str | None = None,
    user_id: str = "",
    tenant_id: str = "",
    parent_operation_id: str | None = None,
    tags: Collection[str] = (),
    dispatcher: HookDispatcher | None = None,
    store: OperationStore | None = None,
    drain_timeout: float = 5.0,
    release: Release = "checked",
) -> TextStream:
    """Run an agent, and read its text while the model writes it.

    It has the arguments of `exec_agent`, except `on_token`.

    Returns:
        The stream, which you can enter once. Leaving it before its end interrupts the run.
    """
    return TextStream(
        agent,
        prompt,
        hooks=hooks,
        operation_id=check_operation_id(operation_id),
        user_id=user_id,
        tenant_id=tenant_id,
        parent_operation_id=parent_operation_id,
        tags=tags,
        dispatcher=dispatcher,
        store=store,
        drain_timeout=drain_timeout,
        release=release,
    )


class TextStream:
    """The text of a run: an async context manager and, inside it, an async iterator of pieces of text.

    A slow reader does not delay the run; unread text is kept.

    Attributes:
        operation_id: The run.
    """

    def __init__(self, agent: Agent, prompt: str | Sequence[Message], *, operation_id: str, **given: Any) -> None:
        self.operation_id = operation_id
        self._agent, self._prompt, self._given = agent, prompt, given
        self._group: Any = None
        self._pieces: deque[str] = deque()
        self._news: anyio.Event | None = None
        self._over = False
        self._result: OperationResult | None = None
        self._error: Exception | None = None

    @property
    def result(self) -> OperationResult:
        """The result of the run.

        Raises:
            HookUsageError: While the run is running, and if it could not start or was cancelled.
        """
        if self._result is not None:
            return self._result
        why = "yet: read the stream to its end, or leave its `async with`."
        if self._error is not None:
            why = f"because it could not begin: {message_of(self._error)}"
        elif self._over:
            why = "because it was cancelled."
        raise HookUsageError(f"Operation {self.operation_id!r} has no result {why}") from self._error

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise HookUsageError(
                f"The stream of operation {self.operation_id!r} was already entered; a stream can be entered only once."
            )
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over and not interrupt(self.operation_id):
            self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        if self._error is not None and error is None:
            raise self._error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._group is None:
            raise HookUsageError("Read a stream inside its `async with`.")
        while not self._pieces:
            if self._over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            if self._news is None:  # else another task waits for the same piece, and must hear of it too
                self._news = anyio.Event()
            await self._news.wait()
        return self._pieces.popleft()

    def _take(self, piece: str) -> None:
        self._pieces.append(piece)
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _run(self) -> None:
        try:
            self._result = await exec_agent(
                self._agent, self._prompt, operation_id=self.operation_id, on_token=self._take, **self._given
            )
        except Exception as error:
            self._error = error
        finally:
            self._over = True
            self._tell()
