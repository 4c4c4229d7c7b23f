"""Keeping a run's state in its store, so that each write follows on the one before."""

from __future__ import annotations

from typing import Literal

from hookline.errors import StaleStateError
from hookline.events import CompletionReason
from hookline.runtime._offer import jsonable, kept
from hookline.runtime._run import Run
from hookline.runtime._state import OperationState, Steering

__all__ = ["save"]


async def save(run: Run, status: CompletionReason | Literal["running"]) -> None:
    """Store the state between two steps."""
    if run.attempted is not None:
        await look_up(run, run.attempted)
    expected = run.version
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
        steering=steering(run) if run.steered else None,
        conversation_id=run.conversation_id,
        traceparents=list(run.traceparents),
        waiting_since_unix_nano=run.waiting_since_unix_nano,
        active_ms=run.active_ms(),
        version=(expected or 0) + 1,
    )
    run.attempted = state
    try:
        await run.store.save(state, expected_version=expected)
    except StaleStateError:
        run.attempted = None
        raise
    run.attempted = None
    run.version = state.version


async def look_up(run: Run, attempted: OperationState) -> None:
    """A write was cut short or failed: find out whether it had happened, and was not somebody else's."""
    stored = await run.store.load(run.operation_id)
    if stored is None or stored.version != attempted.version:
        return
    # A store need not keep more of a finished operation than its status.
    finished = attempted.status not in ("running", "waiting_for_human")
    if stored == attempted or (finished and stored.status == attempted.status):
        run.version = attempted.version


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
    )
