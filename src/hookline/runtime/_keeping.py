"""Keeping a run's state in its store, so that each write follows on the one before."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from hookline.errors import StaleStateError
from hookline.events import CompletionReason
from hookline.runtime._offer import jsonable, kept
from hookline.runtime._run import Run
from hookline.runtime._state import DurableStore, OperationState, Steering

__all__ = ["checkpoint", "look_up", "save"]


async def save(run: Run, status: CompletionReason | Literal["running"]) -> None:
    """Store the state between two steps."""
    if run.attempted is not None:
        await look_up(run, run.attempted)
    expected, journal = run.version, run.journal
    state = OperationState(
        operation_id=run.operation_id,
        agent_id=run.agent.id,
        user_id=run.user_id,
        tenant_id=run.tenant_id,
        parent_operation_id=run.ids["parent_operation_id"],
        status=status,
        messages=list(run.messages),
        open_calls=list(run.open_calls),
        outcomes=dict(run.outcomes),
        pending=list(run.pending),
        decisions=dict(run.decisions),
        steps=run.steps,
        llm_calls=run.llm_calls,
        tool_calls=run.tool_calls,
        usage=run.usage,
        call_indices=dict(run.call_indices),
        last_input_tokens=run.last_input_tokens,
        last_content=run.last_content,
        error_type=run.failure[0] if run.failure is not None else None,
        error_message=run.failure[1] if run.failure is not None else None,
        steering=steering(run) if run.steered else None,
        conversation_id=run.conversation_id,
        traceparents=list(run.traceparents),
        waiting_since_unix_nano=run.waiting_since_unix_nano,
        active_ms=run.active_ms(),
        hooks=run.data,
        interceptors=run.interceptors,
        taking=list(journal.taking) if journal is not None else [],
        begun=dict(journal.begun) if journal is not None else {},
        open_step=journal.open_step() if journal is not None else None,
        framework=run.framework,
        events=journal.numbered if journal is not None else 0,
        version=(expected or 0) + 1,
    )
    run.attempted = state
    try:
        if journal is None:
            await run.store.save(state, expected_version=expected)
        else:
            durable = cast(DurableStore, run.store)
            await durable.commit(state, expected_version=expected, entries=tuple(journal.entries))
            journal.wrote(state.events)
    except StaleStateError:
        run.attempted = None
        raise
    run.attempted = None
    run.version = state.version


async def checkpoint(run: Run) -> None:
    """On a durable store: write what happened so far, before something happens that must not happen twice.

    Parallel calls share a write: one that comes while another is under way is part of the next.
    """
    journal = run.journal
    if journal is None:
        return
    journal.wanted += 1
    mine = journal.wanted
    async with journal.lock:
        if journal.written < mine:
            latest = journal.wanted
            await save(run, "running")
            journal.written = latest


async def look_up(run: Run, attempted: OperationState) -> None:
    """A write was cut short or failed: find out whether it had happened, and was not somebody else's."""
    stored = await run.store.load(run.operation_id)
    if stored is None or stored.version != attempted.version:
        return
    # A store need not keep more of a finished operation than its status.
    finished = attempted.status not in ("running", "waiting_for_human")
    if stored == attempted or (finished and stored.status == attempted.status) or _same(run, stored, attempted):
        run.version = attempted.version
        if run.journal is not None:
            run.journal.wrote(attempted.events)


def _same(run: Run, stored: OperationState, attempted: OperationState) -> bool:
    """Whether they are equal once both went through JSON."""
    return run.journal is not None and msgspec.json.encode(stored) == msgspec.json.encode(attempted)


def steering(run: Run) -> Steering:
    """What hooks have made of a run."""
    return Steering(
        instructions=run.instructions if run.instructions != run.agent.instructions else None,
        continues=run.continues,
        waiting=dict(run.waiting),
        metadata=jsonable(run.metadata),
        offered=kept(run.agent, run.offered) if run.offered is not None else None,
        offer=run.offer,
        said_from=run.said_from,
        denied=run.denied,
    )
