"""How a segment ends on a store that keeps what happened: written with its last events, or let go of for others."""

from __future__ import annotations

import contextlib
import logging
from contextvars import ContextVar

from hookline.errors import OperationBusyError, StaleStateError, StateFormatError, StoreUnavailableError, message_of
from hookline.events import CompletionReason, OnError
from hookline.runtime._journal import storable_text
from hookline.runtime._keeping import look_up, save
from hookline.runtime._result import OperationResult
from hookline.runtime._run import Run
from hookline.runtime._state import DurableStore
from hookline.runtime._telling import endings

__all__ = [
    "LOST_HERE",
    "end_somehow",
    "given_up",
    "is_lost",
    "is_stored",
    "let_go_when_cancelled",
    "save_end",
    "settled",
    "take_back",
]

logger = logging.getLogger("hookline")

LOST_HERE = (StoreUnavailableError, StateFormatError, OperationBusyError)
"""What keeps a run from going on in this process, and is no failure of the operation."""

let_go_when_cancelled: ContextVar[bool] = ContextVar("let_go_when_cancelled", default=False)
"""Whether a run that is cancelled from outside is left to other processes, rather than ended."""


async def save_end(run: Run, reason: CompletionReason, error: Exception | None) -> None:
    """Store how the segment ended; on a store that keeps what happened, together with the events that tell of it."""
    journal = run.journal
    if reason == "error" and error is not None:
        run.failure = type(error).__name__, storable_text(message_of(error))
    if journal is None:
        await save(run, reason)
        return
    events = endings(run, reason, error)
    for event in events:
        journal.note(event)
    try:
        await save(run, reason)
    except BaseException:
        journal.forget(len(events))
        raise


def is_lost(run: Run | None) -> bool:
    """Whether a run, or one that called it, has lost its store."""
    while run is not None:
        if run.journal is not None and run.journal.lost:
            return True
        run = run.parent
    return False


async def given_up(run: Run, reason: CompletionReason, error: Exception | None) -> OperationResult:
    """The run cannot go on here. That is no end of the operation: whoever reaches the store goes on with it."""
    if error is not None:
        logger.error("Operation %s cannot go on here, and is left to others: %s", run.operation_id, error)
    try:
        await let_go(run)
        for event in endings(run, reason, error):
            run.dispatcher.dispatch(event)
    finally:
        await run.dispatcher.unregister(run.operation_id, drain_timeout=run.drain_timeout)
    return run.result(reason, error)


async def let_go(run: Run) -> None:
    """Whoever can is to go on from what the store knows."""
    if isinstance(run.store, DurableStore):
        with contextlib.suppress(Exception):
            await run.store.release(run.operation_id)


async def take_back(run: Run, version: int | None) -> None:
    """A claim was cancelled: if it is written all the same, the operation is not to look as if it ran here.

    Args:
        run: The run.
        version: What it had claimed; `None` for a new operation.
    """
    if run.attempted is not None:
        await look_up(run, run.attempted)
    if run.version == version:
        return
    run.attempted = None
    if run.recovering or (version is not None and let_go_when_cancelled.get()):
        await let_go(run)
    elif version is None:
        await save_end(run, "interrupted", None)
    else:
        assert run.journal is not None
        run.journal.taking = []
        await save(run, "waiting_for_human")


async def is_stored(run: Run, reason: CompletionReason) -> bool:
    """Whether the end was written although its answer was lost."""
    attempted = run.attempted
    with contextlib.suppress(Exception):
        stored = await run.store.load(run.operation_id)
        return (
            attempted is not None
            and stored is not None
            and (stored.version, stored.status) == (attempted.version, reason)
        )
    return False


async def end_somehow(run: Run, unsaved: Exception) -> None:
    """The end could not be written. What can never be written must not be tried for ever: the least of it is."""
    if isinstance(unsaved, StoreUnavailableError):
        await let_go(run)
        return
    if isinstance(unsaved, StaleStateError):
        return  # it is somebody else's
    journal = run.journal
    assert journal is not None
    journal.forget(len(journal.entries))
    run.messages, run.last_content, run.data, run.attempted = [], "", [], None
    run.pending, run.open_calls, run.outcomes, run.decisions = [], [], {}, {}
    journal.begun, journal.taking, journal.step, journal.left = {}, [], None, None
    run.steered = False
    try:
        await save_end(run, "error", unsaved)
    except Exception:
        logger.exception("Operation %s cannot be stored at all", run.operation_id)
        await let_go(run)


async def settled(
    run: Run, reason: CompletionReason, error: Exception | None
) -> tuple[CompletionReason, Exception | None]:
    """Wait for the deliveries that the operation is for; one that failed is the operation's failure."""
    failure = await run.critical.settle(run.drain_timeout) if run.critical is not None else None
    if failure is None or reason == "error":
        return reason, error
    for event in endings(run, "error", failure):
        if isinstance(event, OnError):
            run.dispatcher.dispatch(event)
    return "error", failure
