"""Compact a conversation: choose the messages that a summary replaces, and emit the events around it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from hookline._checks import quote
from hookline._deadlines import own_cancellation
from hookline.calls import CompactCall, CompactResult, Message, is_from_user
from hookline.errors import message_of
from hookline.events import AfterCompact, BeforeCompact, OnCompactError
from hookline.runtime._agent import Compaction
from hookline.runtime._run import Run
from hookline.runtime._seams import instrument, run_through_chain
from hookline.runtime._state import Step

__all__ = ["compact", "compact_if_needed", "emit_compacted"]

CHARACTERS_PER_TOKEN = 4
"""The usual rule of thumb for English text, where a model reports no usage."""

INTERRUPTED_SUMMARY = "The run was interrupted before the summary was written."

SUMMARY_PREFIX = "Summary of the conversation so far:\n"


async def compact_if_needed(run: Run, step: Step, policy: Compaction) -> None:
    """Replace old messages by a summary, before a model call, if the last input was too long. Never fatal."""
    tokens = run.last_input_tokens or estimate_tokens(run.messages)
    if tokens <= policy.max_tokens:
        return
    kept, removed = split_messages(run.messages, policy.keep_last)
    if not removed:
        return
    call = CompactCall(messages=removed, token_count=tokens, **run.ids)
    summary = await compact(run, step, call, policy.summarize, message_count=len(run.messages))
    if summary is None:
        return
    before = len(run.messages)
    run.messages = insert_summary(kept, summary)
    run.said_from = min(run.said_from, len(run.messages))
    run.history = min(run.history, len(run.messages))
    run.last_input_tokens = 0
    emit_compacted(run, step, summary, messages_before=before, messages_after=len(run.messages))


async def compact(
    run: Run,
    step: Step,
    call: CompactCall,
    summarize: Callable[[list[Message]], Awaitable[str]],
    *,
    message_count: int,
) -> str | None:
    """Run a compaction through its interceptors, and emit the events of its begin and of its failure.

    Args:
        run: The run.
        step: The step that needs it.
        call: The messages that the summary will replace.
        summarize: Writes the summary.
        message_count: Messages of the whole conversation.

    Returns:
        The summary; `None` if it failed or a hook denied it. The caller replaces the messages, then calls
        `emit_compacted`.
    """
    ids: dict[str, Any] = {**run.ids, "step_index": step.index, "token_count": call.token_count}

    async def terminal(final: CompactCall) -> CompactResult:
        work = write_summary(summarize, final)
        return await (instrument(run, final, work) if CompactCall in run.enclosing else work)

    if run.hooked(BeforeCompact):
        run.emit(BeforeCompact(**ids, message_count=message_count))
    try:
        if CompactCall not in run.intercepted:
            return (await terminal(call)).summary
        traversal = await run_through_chain(run, call, terminal)
        if traversal.refusal is not None:
            raise traversal.refusal
        result: CompactResult = traversal.result
        return result.summary
    except BaseException as error:
        failed = isinstance(error, Exception)
        if run.hooked(OnCompactError):
            run.emit(OnCompactError(**ids, error=message_of(error) if failed else INTERRUPTED_SUMMARY))
        if failed:
            return None
        raise


def emit_compacted(run: Run, step: Step, summary: str, *, messages_before: int, messages_after: int) -> None:
    """Emit the event of a compaction that succeeded."""
    if run.hooked(AfterCompact):
        run.emit(
            AfterCompact(
                **run.ids,
                step_index=step.index,
                group_id=f"compact_{os.urandom(16).hex()}",
                messages_before=messages_before,
                messages_after=messages_after,
                summary=summary,
            )
        )


async def write_summary(summarize: Callable[[list[Message]], Awaitable[str]], call: CompactCall) -> CompactResult:
    """Have the summary written, and check that it is text."""
    try:
        summary: object = await summarize(list(call.messages))
    except anyio.get_cancelled_exc_class() as error:
        if own_cancellation():
            raise RuntimeError("`summarize` ended as cancelled although nobody had cancelled it") from error
        raise
    if not isinstance(summary, str):
        raise TypeError(f"`summarize` must return text; it returned {quote(summary)}")
    return CompactResult(summary=summary)


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Estimate the tokens of a conversation from its text."""
    return (
        sum(len(message.content) + len(str(message.tool_calls or "")) for message in messages) // CHARACTERS_PER_TOKEN
    )


def split_messages(messages: Sequence[Message], keep_last: int) -> tuple[list[Message], list[Message]]:
    """Split a conversation into the messages that stay and those that a summary replaces.

    System messages stay, the newest message of the user stays, and the newest `keep_last` exchanges stay whole, so that
    no tool result is without its call.
    """
    newest_user = max((at for at, message in enumerate(messages) if is_from_user(message)), default=-1)
    starts = [at for at, message in enumerate(messages) if message.role == "assistant"]
    tail = starts[-keep_last] if 0 < keep_last <= len(starts) else (0 if keep_last else len(messages))
    kept: list[Message] = []
    removed: list[Message] = []
    for at, message in enumerate(messages):
        stays = message.role == "system" or at == newest_user or at >= tail
        (kept if stays else removed).append(message)
    return kept, removed


def insert_summary(kept: Sequence[Message], summary: str) -> list[Message]:
    """Return the conversation with the summary behind its system messages, ahead of everything that was kept."""
    at = next((at for at, message in enumerate(kept) if message.role != "system"), len(kept))
    return [*kept[:at], Message(role="user", content=SUMMARY_PREFIX + summary), *kept[at:]]
