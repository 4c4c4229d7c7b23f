"""Start a segment of a run and bring it to its end, on every path."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Coroutine, Sequence
from time import perf_counter_ns
from typing import Any

import anyio

from hookline.calls import AgentCall, AgentResult, Message
from hookline.errors import (
    HookUsageError,
    OperationBusyError,
    OperationExistsError,
    StaleStateError,
    message_of,
)
from hookline.events import CompletionReason
from hookline.instrumentation import Instrumentation
from hookline.runtime._agent import keep_here
from hookline.runtime._loop import limit_reached
from hookline.runtime._persistence import (
    LOST_HERE,
    await_required_deliveries,
    is_lost,
    is_stored,
    leave_for_recovery,
    let_go_when_cancelled,
    save,
    save_end,
    save_minimal_end,
    take_back,
)
from hookline.runtime._recovery import run_segment
from hookline.runtime._run import Run, endings, live
from hookline.runtime._seams import RunControl, begin_instrumentation, end_instrumentation, run_through_chain
from hookline.runtime._state import Decision, OperationResult
from hookline.runtime._tool_calls import INTERRUPTED
from hookline.runtime._tools import opened

__all__ = ["exec_run", "run_agent"]

logger = logging.getLogger("hookline")


async def run_agent(run: Run, decisions: Sequence[Decision] = ()) -> CompletionReason:
    """Run a segment whose `AgentCall` has hooks, and go on with more input as long as they give it.

    Args:
        run: The segment.
        decisions: On a resume, what a person decided.

    Returns:
        Why it ended.
    """
    resumed = bool(decisions) or run.recovering
    given = resumed_input(run) if resumed else run.messages[run.first_input() :]
    while True:
        call = AgentCall(
            input=given,
            instructions=run.instructions,
            tools=run.specs,
            metadata=run.metadata if resumed else {},
            **run.call_ids,
        )
        run.metadata = call.metadata
        reason, continues = await intercepted(run, call, decisions, resumed=resumed)
        decisions, resumed = (), False
        if reason != "done" or not continues or run.interrupted:
            return reason
        if run.continues >= run.agent.max_continues:
            logger.warning(
                "Operation %s: hooks ask to continue it once more, but it was continued %d time(s) already, which is "
                "the agent's `max_continues`",
                run.operation_id,
                run.continues,
            )
            return reason
        limit = limit_reached(run)
        if limit is not None:
            return limit
        run.continues += 1
        given = [Message(role="user", content="\n\n".join(continues))]
        run.history = len(run.messages)
        run.messages.extend(given)
        run.said_from = len(run.messages)


async def intercepted(
    run: Run, call: AgentCall, decisions: Sequence[Decision], *, resumed: bool
) -> tuple[CompletionReason, Sequence[str]]:
    """One run of the chain; why the run ended, and what it is to be continued with."""
    control = RunControl(run, run.watch, pinned=resumed)
    reason: CompletionReason = "done"
    earlier = run.last_content if resumed else ""

    async def terminal(final: AgentCall) -> AgentResult:
        nonlocal reason
        if not resumed:
            begin(run, call, final)
        reason = await run_segment(run, decisions)
        control.suspended = reason == "waiting_for_human"
        return AgentResult(output=run.last_content, reason=reason)

    passage = await run_through_chain(run, call, terminal, control)
    if passage.denied is not None:
        run.denied = passage.denied
        if passage.reached:
            run.withhold(passage.denied)
        elif not resumed:
            run.refused_from = run.first_input()
        if run.text is not None:
            run.text.withheld(AgentCall)
        return "interrupted", ()
    result: AgentResult = passage.result
    if not passage.reached:
        if resumed:
            run.close_step("Not run, because a hook answered in place of the run.")
        else:
            begin(run, call, passage.call)
        run.messages.append(Message(role="assistant", content=result.output))
        run.last_content = result.output
    elif result.output != run.last_content and not control.suspended:
        run.restate(result.output)
    if run.text is not None:
        # A segment that said nothing ends with the words of the one before, which the reader has.
        silent = resumed and run.last_content == earlier and not run.text.keeps
        await run.text.passed(AgentCall, None if silent else run.last_content)
    return reason, passage.continues


def begin(run: Run, given: AgentCall, final: AgentCall) -> None:
    """Take what hooks made of the input, the instructions and the tools into the conversation."""
    if final.tools is not given.tools and final.tools != given.tools:
        run.offered, run.offer = list(final.tools), os.urandom(16).hex()
    before = run.messages[: run.first_input()]
    if final.instructions != given.instructions:
        system = Message(role="system", content=given.instructions)
        before = [message for message in before if message != system]
        if final.instructions:
            before.insert(0, Message(role="system", content=final.instructions))
        run.instructions = final.instructions
    run.messages = [*before, *final.input]
    run.said_from = len(run.messages)


def resumed_input(run: Run) -> list[Message]:
    """What the user said last, for a run that goes on after a pause."""
    return [message for message in run.messages if message.role == "user"][-1:]


LAST_SAVE_SECONDS = 5.0
"""How long a store may take to save a run that was cancelled from outside; the cancellation waits for that."""


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
    if decisions:
        run.journal.take_decisions(decisions)
    try:
        failed_at_start = await _claim(run)
        _register(run)
        live[operation_id] = run
        run.join_parent()
        return await _run_and_finish(run, decisions, failed_at_start)
    finally:
        run.leave_parent()
        if run.begun:
            end_instrumentation(run)
        del live[operation_id]


def _register(run: Run) -> None:
    hooks = run.hooks
    if hooks:
        bundles = list(dict.fromkeys(entry for entry in hooks if isinstance(entry, Instrumentation)))
        hooks = begin_instrumentation(run, bundles) if bundles else hooks
    run.dispatcher.register(run.operation_id, hooks)


async def _claim(run: Run) -> Exception | None:
    """Take the operation in the store, so that nobody else does.

    Returns:
        What a broken store raised; the run then ends with it, in the usual way.
    """
    version = run.version
    try:
        await save(run, "running")
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(Exception):
                if run.journal.durable:
                    await take_back(run, version)
                else:
                    await save(run, "interrupted" if version is None else "waiting_for_human")
            if version is None:
                await _ended_at_start(run)
        raise
    except StaleStateError:
        raise (
            OperationExistsError(run.operation_id) if version is None else OperationBusyError(run.operation_id)
        ) from None
    except Exception as error:
        return error
    run.claimed = True
    return None


async def _ended_at_start(run: Run) -> None:
    """A new operation was cancelled before its first step: hooks are told of its end."""
    run.finishing, run.ended = True, perf_counter_ns()
    _register(run)
    try:
        for event in endings(run, "interrupted", None):
            run.dispatcher.dispatch(event)
    finally:
        await run.dispatcher.unregister(run.operation_id, drain_timeout=run.drain_timeout)


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
            if run.journal.durable and (let_go_when_cancelled.get() or is_lost(run.parent)):
                await leave_for_recovery(run, "interrupted", None)
            else:
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
    if run.journal.durable and isinstance(error, LOST_HERE):
        return await leave_for_recovery(run, "error", error)
    try:
        if not run.claimed and run.version is not None:
            pass  # a resume that the store did not take note of: the operation goes on waiting there
        elif save_timeout == math.inf:
            await save_end(run, reason, error)
        else:
            with anyio.move_on_after(save_timeout):
                await save_end(run, reason, error)
    except Exception as unsaved:
        if not run.journal.durable:
            reason, error = "error", error or unsaved
            run.close_step(INTERRUPTED)
            with contextlib.suppress(Exception):
                await save(run, reason)
        elif not await is_stored(run, reason):
            reason, error = "error", error or unsaved
            await save_minimal_end(run, unsaved)
    finally:
        try:
            for event in endings(run, reason, error):
                run.dispatcher.dispatch(event)
            reason, error = await await_required_deliveries(run, reason, error)
        finally:
            await run.dispatcher.unregister(run.operation_id, drain_timeout=run.drain_timeout)
    if reason == "error" and error is not None:
        logger.error(
            "Operation %s of agent %r ended with an error: %s: %s",
            run.operation_id,
            run.agent.id,
            type(error).__name__,
            message_of(error),
            exc_info=error,
            extra={"failed_operation_id": run.operation_id},
        )
    return run.result(reason, error)
