"""`exec_agent`, `resume_agent`, `interrupt`: a run from its start to its clean end, on every path."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Coroutine, Iterable, Sequence
from time import perf_counter_ns
from typing import Any

import anyio

from hookline._enclosing import EnclosingHooks
from hookline.calls import AgentCall, Message
from hookline.dispatcher import HookDispatcher
from hookline.errors import (
    HookUsageError,
    OperationBusyError,
    OperationExistsError,
    OperationFinishedError,
    OperationMismatchError,
    OperationNotFoundError,
    StaleStateError,
)
from hookline.events import CompletionReason
from hookline.hooks import AnyHook, Hooks, hook_batch
from hookline.runtime._agent import Agent
from hookline.runtime._agent_call import run_agent
from hookline.runtime._calls import INTERRUPTED
from hookline.runtime._enclosing import begin_enclosing, end_enclosing
from hookline.runtime._given import check_ids, checked_decisions, checked_id, conversation
from hookline.runtime._keeping import save
from hookline.runtime._live import live
from hookline.runtime._loop import run_segment
from hookline.runtime._offer import keep_here
from hookline.runtime._result import OperationResult
from hookline.runtime._run import Run
from hookline.runtime._sources import opened
from hookline.runtime._state import Approve, Decision, OperationState, OperationStore, Reject, default_store
from hookline.runtime._streaming import OnToken, Release
from hookline.runtime._telling import complete

__all__ = [
    "exec_agent",
    "exec_child",
    "exec_run",
    "interrupt",
    "resume_agent",
    "waiting_state",
]

LAST_SAVE_SECONDS = 5.0
"""How long a store may take to save a run that was cancelled from outside; the cancellation waits for that."""


async def exec_agent(
    agent: Agent,
    prompt: str | Sequence[Message],
    *,
    hooks: Iterable[AnyHook] = (),
    operation_id: str | None = None,
    user_id: str = "",
    tenant_id: str = "",
    parent_operation_id: str | None = None,
    dispatcher: HookDispatcher | None = None,
    store: OperationStore | None = None,
    drain_timeout: float = 5.0,
    on_token: OnToken | None = None,
    release: Release = "checked",
) -> OperationResult:
    """Run an agent until it is done, fails, is stopped, or waits for a person.

    Args:
        agent: What to run.
        prompt: What the user says, or a conversation to go on with.
        hooks: Hooks of this run; the agent's own come first. They are gone when it returns.
        operation_id: Id of the run; a fresh one unless given.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that this one belongs to.
        dispatcher: An open dispatcher to share with other runs; one of its own unless given.
        store: Where the operation is kept while it runs or waits; this process's memory unless given.
        drain_timeout: Seconds that queued observers may take at the end; the rest is cancelled.
        on_token: Takes the text of the model calls while it is written, piece by piece; may be async. Sub-agents
            write to their caller only. If it raises, that is logged, and it is called no more.
        release: `"checked"` keeps text back until every hook that may change or withhold it has run: those `around` and
            `after` a `ModelCall`, a `StepCall` or the `AgentCall`. `"incremental"` gives it away as it comes, unseen
            by those hooks.

    Returns:
        What the run came to, for every reason. An error of the model is in `error`, not raised.

    Raises:
        HookDefinitionError: If a hook cannot work.
        OperationExistsError: If the operation id is taken.
        HookUsageError: If the prompt is no text and no messages.
    """
    if not isinstance(agent, Agent):
        raise HookUsageError(f"exec_agent runs an Agent; got {agent!r}.")
    check_ids(user_id=user_id, tenant_id=tenant_id)
    state = OperationState(
        operation_id=checked_id(operation_id),
        agent_id=agent.id,
        user_id=user_id,
        tenant_id=tenant_id,
        parent_operation_id=parent_operation_id,
        messages=conversation(agent, prompt),
    )
    batch = [*agent.hooks, *hook_batch(hooks)]
    return await _with_dispatcher(agent, state, None, (), batch, dispatcher, store, drain_timeout, on_token, release)


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
) -> OperationResult:
    """Go on with an operation that waits for a person: the same operation, here or in another process.

    Args:
        agent: The agent that started it.
        operation_id: The operation.
        decisions: What a person decided about one or more of its pending calls. While others are undecided the
            operation goes on waiting. A plain `Reject` stops the run and wins over approvals given with it.
        hooks: Hooks of this segment; the agent's own come first.
        store: Where the operation is kept; this process's memory unless given.
        dispatcher: An open dispatcher to share with other runs; one of its own unless given.
        drain_timeout: Seconds that queued observers may take at the end; the rest is cancelled.
        on_token: Takes the text of the model calls of this segment; see `exec_agent`.
        release: When it is given away; see `exec_agent`.

    Raises:
        OperationNotFoundError: If the store does not know the operation.
        OperationFinishedError: If it has ended.
        OperationBusyError: If it is running, or somebody else is resuming it.
        OperationMismatchError: If another agent started it.
        DecisionError: If a decision is about no pending call, or about one twice.
    """
    store = store or default_store()
    if not isinstance(agent, Agent):
        raise HookUsageError(f"resume_agent runs an Agent; got {agent!r}.")
    batch = [*agent.hooks, *hook_batch(hooks)]
    state = await waiting_state(agent, operation_id, store)
    decisions = checked_decisions(state, decisions)
    return await _with_dispatcher(
        agent, state, state.version, decisions, batch, dispatcher, store, drain_timeout, on_token, release
    )


async def waiting_state(agent: Agent, operation_id: str, store: OperationStore) -> OperationState:
    """The stored state of an operation that waits for a person.

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
    if state.agent_id != agent.id:
        raise OperationMismatchError(operation_id, state.agent_id, agent.id)
    return state


def interrupt(operation_id: str) -> bool:
    """Stop a run of this process at once, wherever it is: in a model call, in a tool, between two steps.

    It returns with reason `"interrupted"`, and so do its sub-agents. May be called from any thread.

    Args:
        operation_id: The run.

    Returns:
        Whether there was such a run to stop.
    """
    run = live.get(operation_id)
    if run is None or run.finishing:
        return False
    run.interrupt()
    return True


async def _with_dispatcher(
    agent: Agent,
    state: OperationState,
    version: int | None,
    decisions: Sequence[Decision],
    hooks: Sequence[AnyHook],
    dispatcher: HookDispatcher | None,
    store: OperationStore | None,
    drain_timeout: float,
    on_token: OnToken | None,
    release: Release,
) -> OperationResult:
    if dispatcher is None:
        async with HookDispatcher() as own:
            return await _with_dispatcher(
                agent, state, version, decisions, hooks, own, store, drain_timeout, on_token, release
            )
    run = Run(
        agent,
        state,
        version=version,
        hooks=hooks,
        dispatcher=dispatcher,
        store=store or default_store(),
        drain_timeout=drain_timeout,
        exec_child=exec_child,
        on_token=on_token,
        release=release,
    )
    return await exec_run(run, decisions)


async def exec_child(parent: Run, agent: Agent, instruction: str, operation_id: str) -> OperationResult:
    """Run a sub-agent as an operation of its own, in its parent's task, so that whatever stops one stops both."""
    own = list(agent.hooks)
    inherited = [entry for entry in parent.hooks if isinstance(entry, Hooks) and entry.inherit and entry not in own]
    state = OperationState(
        operation_id=operation_id,
        agent_id=agent.id,
        user_id=parent.user_id,
        tenant_id=parent.tenant_id,
        parent_operation_id=parent.operation_id,
        conversation_id=parent.conversation_id,
        messages=conversation(agent, instruction),
    )
    run = Run(
        agent,
        state,
        version=None,
        hooks=[*inherited, *own],
        dispatcher=parent.dispatcher,
        store=parent.store,
        drain_timeout=parent.drain_timeout,
        exec_child=exec_child,
        parent=parent,
    )
    return await exec_run(run, ())


async def exec_run(run: Run, decisions: Sequence[Decision]) -> OperationResult:
    """One segment, guarded: whatever happens, its end is announced once and no hook stays behind."""
    operation_id = run.operation_id
    if operation_id in live:
        raise OperationBusyError(operation_id) if run.version is not None else OperationExistsError(operation_id)
    run.dispatcher.has_hooks(operation_id)  # raises if the dispatcher is not open, while nothing is stored yet
    left_out = run.dispatcher._left_out(operation_id)
    if left_out:  # rather than a run without its guards
        raise HookUsageError(
            f"The interceptors {', '.join(left_out)} of operation {operation_id!r} were given to the dispatcher, which "
            "calls observers only. Give their bundle to the run, in `hooks=[...]`."
        )
    live[operation_id] = None
    try:
        failed_at_start = await _claim(run)
        hooks = run.hooks
        if hooks:
            bundles = list(dict.fromkeys(entry for entry in hooks if isinstance(entry, EnclosingHooks)))
            hooks = begin_enclosing(run, bundles) if bundles else hooks
        run.dispatcher.register(operation_id, hooks)
        live[operation_id] = run
        return await _run_and_finish(run, decisions, failed_at_start)
    finally:
        if run.begun:
            end_enclosing(run)
        del live[operation_id]


async def _claim(run: Run) -> Exception | None:
    """Take the operation in the store, so that nobody else does.

    Returns:
        What a broken store raised; the run then ends with it, in the usual way.
    """
    version = run.version
    try:
        await save(run, "running")
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
            await save(run, "interrupted" if version is None else "waiting_for_human")
        raise
    except StaleStateError:
        raise (
            OperationExistsError(run.operation_id) if version is None else OperationBusyError(run.operation_id)
        ) from None
    except Exception as error:
        return error
    run.claimed = True
    return None


async def _run_and_finish(run: Run, decisions: Sequence[Decision], error: Exception | None) -> OperationResult:
    reason: CompletionReason = "error"
    try:
        if error is None:
            try:
                with run.scope:
                    work = (run_agent if AgentCall in run.intercepted else run_segment)(run, decisions)
                    reason = await (_equipped(run, work) if run.agent.sources else work)
            except Exception as raised:
                error = raised
            if run.stopped:  # a model or a store may have turned its cancellation into an error
                reason, error = "interrupted", None
        if run.remember is not None:
            reason, error = await _remembered(run, reason, error)
    except BaseException:
        # Cancelled from outside (or worse): say so and clean up, then let it go on.
        with anyio.CancelScope(shield=True):
            if run.remember is not None:
                with anyio.move_on_after(LAST_SAVE_SECONDS):
                    await _remembered(run, "interrupted", None)
            await _finish(run, "interrupted", None, save_timeout=LAST_SAVE_SECONDS)
        raise
    return await _finish(run, reason, error)


async def _equipped(run: Run, work: Coroutine[Any, Any, CompletionReason]) -> CompletionReason:
    """Run a segment with the tools of the agent's sources."""
    try:
        async with opened(run.agent.sources) as tools:
            run.equip(run.agent.equipped(tools))
            return await work
    finally:
        work.close()  # if it was never begun


async def _remembered(
    run: Run, reason: CompletionReason, error: Exception | None
) -> tuple[CompletionReason, Exception | None]:
    """Let the session keep the conversation, once the operation has ended; that can be interrupted too."""
    if run.remember is None or reason == "waiting_for_human" or not run.claimed:
        return reason, error
    run.close_step(INTERRUPTED)
    stopped, run.stopped = run.stopped, False
    try:
        with anyio.CancelScope() as run.scope:
            await run.remember(run)
    except Exception as unsaved:
        return ("interrupted", None) if run.stopped and not error else ("error", error or unsaved)
    finally:
        stopped_meanwhile, run.stopped = run.stopped, run.stopped or stopped
    return ("interrupted", None) if stopped_meanwhile else (reason, error)


async def _finish(
    run: Run, reason: CompletionReason, error: Exception | None, *, save_timeout: float = math.inf
) -> OperationResult:
    """The end of a segment: state saved, end announced, hooks gone."""
    run.finishing = True
    run.ended = perf_counter_ns()
    if run.offered is not None:
        keep_here(run.offer, run.offered, waiting=reason == "waiting_for_human")
    if reason != "waiting_for_human":
        run.close_step(INTERRUPTED)
    try:
        if not run.claimed and run.version is not None:
            pass  # a resume that the store did not take note of: the operation goes on waiting there
        elif save_timeout == math.inf:
            await save(run, reason)
        else:
            with anyio.move_on_after(save_timeout):
                await save(run, reason)
    except Exception as unsaved:
        reason, error = "error", error or unsaved
        run.close_step(INTERRUPTED)
        with contextlib.suppress(Exception):
            await save(run, reason)
    finally:
        try:
            complete(run, reason, error)
        finally:
            await run.dispatcher.unregister(run.operation_id, drain_timeout=run.drain_timeout)
    return run.result(reason, error)
