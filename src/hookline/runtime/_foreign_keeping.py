"""A run of another framework in its store: taken when it begins, its end kept, or let go of for others to see."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from time import perf_counter_ns

import anyio
import msgspec

from hookline.calls import Message
from hookline.errors import OperationBusyError, OperationExistsError, StaleStateError
from hookline.events import CompletionReason
from hookline.runtime._journal import storable_text
from hookline.runtime._keeping import save
from hookline.runtime._letting_go import end_somehow, is_stored, save_end, take_back
from hookline.runtime._run import Run
from hookline.runtime._telling import endings

__all__ = ["cause_of", "claim", "keep_end", "storable_messages"]


async def claim(run: Run) -> None:
    """Take the operation in the store, so that nobody else does; a claim that is cancelled is given back.

    Raises:
        OperationExistsError: If it is known there.
        OperationBusyError: If somebody else was quicker to go on with it.
    """
    version = run.version
    try:
        await save(run, "running")
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(Exception):
                if run.journal is not None:
                    await take_back(run, version)
                else:
                    await save(run, "waiting_for_human")
            if version is None:
                _cancelled_at_start(run)
        raise
    except StaleStateError:
        taken = OperationExistsError if version is None else OperationBusyError
        raise taken(run.operation_id) from None


def _cancelled_at_start(run: Run) -> None:
    """A new operation was cancelled before its first step: hooks are told of its end."""
    run.finishing, run.ended = True, perf_counter_ns()
    for event in endings(run, "interrupted", None):
        run.dispatcher.dispatch(event)


def cause_of(run: Run, reason: CompletionReason, failure: Exception | None) -> BaseException | None:
    """What the last step is to be remembered for, if it did not come to its end."""
    interrupted = reason == "interrupted" and run.denied is None
    return asyncio.CancelledError() if interrupted else failure if reason == "error" else None


async def keep_end(
    run: Run, reason: CompletionReason, error: Exception | None
) -> tuple[CompletionReason, Exception | None]:
    """Store how the segment ended.

    Returns:
        What it came to: an end that cannot be stored is an error.
    """
    if reason != "waiting_for_human":
        run.open_calls, run.pending, run.waiting, run.waiting_since_unix_nano = [], [], {}, None
    try:
        await save_end(run, reason, error)
    except Exception as unsaved:
        if run.journal is None:
            with contextlib.suppress(Exception):
                await save(run, "error")
        elif await is_stored(run, reason):
            return reason, error
        else:
            await end_somehow(run, unsaved)
        return "error", error or unsaved
    return reason, error


def storable_messages(messages: Sequence[Message]) -> list[Message]:
    """Messages of a framework that every store keeps."""
    return [
        message
        if message.content.isascii()
        else msgspec.structs.replace(message, content=storable_text(message.content))
        for message in messages
    ]
