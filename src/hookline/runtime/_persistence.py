"""Save a run between its steps and at its end, or release it for another process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from typing import Literal, cast

import msgspec
from msgspec import UNSET

from hookline._readonly import keep_jsonable
from hookline.calls import Message
from hookline.errors import OperationBusyError, StaleStateError, StateFormatError, StoreUnavailableError, message_of
from hookline.events import CompletionReason, OnError
from hookline.runtime._agent import storable_tools
from hookline.runtime._journal import Journal, storable_text
from hookline.runtime._run import Run, end_events
from hookline.runtime._state import DurableStore, InMemoryStore, OperationState, Steering

__all__ = [
    "LOST_HERE",
    "await_required_deliveries",
    "checkpoint",
    "has_lost_store",
    "is_end_stored",
    "let_go_when_cancelled",
    "release",
    "return_claim",
    "save",
    "save_end",
    "save_end_in_memory",
    "save_minimal_end",
]

logger = logging.getLogger("hookline")

LOST_HERE = (StoreUnavailableError, StateFormatError, OperationBusyError, StaleStateError)
"""What keeps a run from going on in this process, and is no failure of the operation."""

let_go_when_cancelled: ContextVar[bool] = ContextVar("let_go_when_cancelled", default=False)
"""Whether a run that is cancelled from outside is left to other processes, rather than ended."""


async def save(run: Run, status: CompletionReason | Literal["running"]) -> None:
    """Store the state between two steps."""
    store = run.store
    if status == "running" and store.__class__ is InMemoryStore:
        run.version = store._keep_live(
            run.operation_id, partial(make_state, run, "running"), expected_version=run.version
        )
        return
    if run.attempted is not None:
        await confirm_write(run, run.attempted)
    expected, journal = run.version, run.journal
    state = run.attempted = make_state(run, status, (expected or 0) + 1)
    try:
        if journal.durable:
            await write(cast(DurableStore, store), journal, state, expected)
        else:
            await store.save(state, expected_version=expected)
    except StaleStateError:
        run.attempted = None
        raise
    run.attempted = None
    run.version = state.version


async def write(store: DurableStore, journal: Journal, state: OperationState, expected: int | None) -> None:
    """Write a state to a durable store: the first of an operation whole, a later one by what it adds."""
    written, entries = journal.written, tuple(journal.entries)
    if expected is None or written is None:
        await store.commit(state, expected_version=expected, entries=entries)
    else:
        kept, model_calls = written.outcomes, tuple(journal.model_calls)
        journal.attempted_model_calls = len(model_calls)
        await store.append(
            state,
            expected_version=expected,
            entries=entries,
            kept_messages=count_equal(written.messages, state.messages),
            kept_outcomes=frozenset(name for name, outcome in state.outcomes.items() if kept.get(name) == outcome),
            model_calls=model_calls,
        )
    journal.note_written(state)


def count_equal(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Return how many messages two conversations have in common at their beginning."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count


def make_state(run: Run, status: CompletionReason | Literal["running"], version: int) -> OperationState:
    """Return what a store keeps of a run."""
    state = OperationState(
        operation_id=run.operation_id,
        agent_id=run.agent.id,
        user_id=run.user_id,
        tenant_id=run.tenant_id,
        parent_operation_id=run.parent_operation_id,
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
        steering=make_steering(run) if run.steered else None,
        conversation_id=run.conversation_id,
        traceparents=list(run.traceparents),
        waiting_since_unix_nano=run.waiting_since_unix_nano,
        active_ms=run.active_ms(),
        hooks=run.data,
        interceptors=run.interceptors,
        framework=run.framework,
        retry_of=run.retry_of,
        agent_version=run.agent_version,
        callers=list(run.callers) or UNSET,
        hearers=list(run.hearers) or UNSET,
        tags=list(run.tags) or UNSET,
        version=version,
    )
    return run.journal.complete(state, run.step) if run.journal.durable else state


async def checkpoint(run: Run) -> None:
    """Write a run with a durable store, before something happens that must not happen twice."""
    await run.journal.checkpoint(partial(save, run, "running"))


async def confirm_write(run: Run, attempted: OperationState) -> None:
    """Find out whether a write that was cut short or failed has happened after all."""
    stored = await run.store.load(run.operation_id)
    if stored is None or stored.version != attempted.version:
        return
    # A store need not keep more of a finished operation than its status.
    finished = attempted.status not in ("running", "waiting_for_human")
    if (
        stored == attempted
        or (finished and stored.status == attempted.status)
        or _equal_as_json(run, stored, attempted)
    ):
        run.version = attempted.version
        run.journal.note_written(attempted)


def _equal_as_json(run: Run, stored: OperationState, attempted: OperationState) -> bool:
    """Whether two states are equal once both went through JSON."""
    return run.journal.durable and msgspec.json.encode(stored) == msgspec.json.encode(attempted)


def make_steering(run: Run) -> Steering:
    """Return the changes that hooks made to a run, as they are stored."""
    return Steering(
        instructions=run.instructions if run.instructions != run.agent.instructions else None,
        continues=run.continues,
        waiting=dict(run.waiting),
        metadata=keep_jsonable(run.metadata),
        offered=storable_tools(run.agent, run.offered) if run.offered is not None else None,
        offer=run.offer,
        said_from=run.said_from,
        input_from=UNSET if run.framework else run.input_from,
        denied=run.denied,
        context=list(run.context) or UNSET,
    )


def save_end_in_memory(run: Run, reason: CompletionReason) -> bool:
    """Save how a run ended in the memory of this process, which keeps no more than the reason.

    Returns:
        Whether that was possible; `False` for a pause, for any other store, and for an operation that is another's now.
    """
    store = run.store
    if reason == "waiting_for_human" or store.__class__ is not InMemoryStore:
        return False
    try:
        run.version = store._finish(run.operation_id, run.agent.id, reason, expected_version=run.version)
    except StaleStateError:
        return False
    return True


async def save_end(run: Run, reason: CompletionReason, error: Exception | None) -> None:
    """Store how a segment ended; in a durable store together with its last events."""
    journal = run.journal
    if reason == "error" and error is not None:
        run.failure = type(error).__name__, storable_text(message_of(error))
    if not journal.durable:
        await save(run, reason)
        return
    events = end_events(run, reason, error)
    for event in events:
        journal.note(event)
    try:
        await save(run, reason)
    except BaseException:
        journal.drop(len(events))
        raise


def has_lost_store(run: Run | None) -> bool:
    """Whether a run, or one that called it, can no longer reach its store."""
    while run is not None:
        if run.journal.lost:
            return True
        run = run.parent
    return False


async def release(run: Run) -> None:
    """Release an operation in its durable store, so that another process can continue it."""
    if isinstance(run.store, DurableStore):
        with contextlib.suppress(Exception):
            await run.store.release(run.operation_id)


async def return_claim(run: Run, version: int | None) -> None:
    """Give back a claim that was cancelled: if it was written all the same, the store must not say that it runs here.

    Args:
        run: The run.
        version: What it had claimed; `None` for a new operation.
    """
    if run.attempted is not None:
        await confirm_write(run, run.attempted)
    if run.version == version:
        return
    run.attempted = None
    if run.journal.orphaned or (run.journal.durable and version is not None and let_go_when_cancelled.get()):
        await release(run)
    elif version is None:
        await save_end(run, "interrupted", None)
    else:
        run.journal.settle_decisions()
        await save(run, "waiting_for_human")


async def is_end_stored(run: Run, reason: CompletionReason) -> bool:
    """Whether the end is stored, although the write raised an error."""
    if run.attempted is None:
        return False
    with contextlib.suppress(Exception):
        stored = await run.store.load(run.operation_id)
        return stored is not None and (stored.version, stored.status) == (run.attempted.version, reason)
    return False


async def save_minimal_end(run: Run, unsaved: Exception) -> None:
    """Store the least of an end that could not be written: its error alone, without what may have been the reason."""
    if isinstance(unsaved, LOST_HERE):
        await release(run)
        return
    run.messages, run.last_content, run.data, run.attempted = [], "", [], None
    run.pending, run.open_calls, run.outcomes, run.decisions = [], [], {}, {}
    run.steered, run.step = False, None
    run.journal.clear()
    try:
        await save_end(run, "error", unsaved)
    except Exception:
        logger.exception("Operation %s cannot be stored at all", run.operation_id)
        await release(run)


async def await_required_deliveries(
    run: Run, reason: CompletionReason, error: Exception | None
) -> tuple[CompletionReason, Exception | None]:
    """Wait for the deliveries that the run requires; one that failed makes the run fail."""
    failure = await run.critical.settle(run.drain_timeout) if run.critical is not None else None
    if failure is None or reason == "error":
        return reason, error
    for event in end_events(run, "error", failure):
        if isinstance(event, OnError):
            run.dispatcher.dispatch(event)
    return "error", failure
