"""Keeping a conversation short: which messages a summary may replace, and the pair of events around it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import anyio

from hookline._deadlines import own_cancellation
from hookline.calls import CompactCall, CompactResult, Message
from hookline.errors import message_of
from hookline.events import AfterCompact, BeforeCompact, OnCompactError
from hookline.runtime._agent import Compaction
from hookline.runtime._run import Run
from hookline.runtime._seams import instrumented, run_through_chain
from hookline.runtime._state import Step

__all__ = ["compact_if_needed"]

CHARACTERS_PER_TOKEN = 4
"""The usual rule of thumb for English text, where a model reports no usage."""

SUMMARY_PREFIX = "Summary of the conversation so far:\n"


async def compact_if_needed(run: Run, step: Step) -> None:
    """Before a model call: replace old messages by a summary if the last input was too long. Never fatal."""
    policy = run.agent.compaction
    if policy is None:
        return
    tokens = run.last_input_tokens or estimated_tokens(run.messages)
    if tokens <= policy.max_tokens:
        return
    kept, removed = split(run.messages, policy.keep_last)
    if not removed:
        return
    if run.hooked(BeforeCompact):
        run.tell(BeforeCompact(**run.ids, step_index=step.index, message_count=len(run.messages), token_count=tokens))
    call = CompactCall(messages=removed, token_count=tokens, **run.call_ids)
    try:
        result = await compact(run, policy, call)
    except Exception as error:
        tell_failure(run, step, tokens, message_of(error))
        return
    except BaseException:
        tell_failure(run, step, tokens, "The run was interrupted before the summary was written.")
        raise
    before = len(run.messages)
    run.messages = joined(kept, result.summary)
    run.said_from = min(run.said_from, len(run.messages))
    run.history = min(run.history, len(run.messages))
    run.last_input_tokens = 0
    if run.hooked(AfterCompact):
        run.tell(
            AfterCompact(
                **run.ids,
                step_index=step.index,
                group_id=f"compact_{os.urandom(16).hex()}",
                messages_before=before,
                messages_after=len(run.messages),
                summary=result.summary,
            )
        )


async def compact(run: Run, policy: Compaction, call: CompactCall) -> CompactResult:
    """The seam around one compaction.

    Raises:
        HookDenied: If a hook refused it.
    """

    async def terminal(final: CompactCall) -> CompactResult:
        work = summarized(policy, final)
        return await (instrumented(run, final, work) if CompactCall in run.enclosing else work)

    if CompactCall not in run.intercepted:
        return await terminal(call)
    passage = await run_through_chain(run, call, terminal)
    if passage.refusal is not None:
        raise passage.refusal
    result: CompactResult = passage.result
    return result


async def summarized(policy: Compaction, call: CompactCall) -> CompactResult:
    """The summary itself."""
    try:
        summary: object = await policy.summarize(list(call.messages))
    except anyio.get_cancelled_exc_class() as error:
        if own_cancellation():
            raise RuntimeError("`summarize` ended as cancelled although nobody had cancelled it") from error
        raise
    if not isinstance(summary, str):
        raise TypeError(f"`summarize` must return text; it returned {summary!r:.200}")
    return CompactResult(summary=summary)


def estimated_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a conversation, estimated from its text."""
    return (
        sum(len(message.content) + len(str(message.tool_calls or "")) for message in messages) // CHARACTERS_PER_TOKEN
    )


def split(messages: Sequence[Message], keep_last: int) -> tuple[list[Message], list[Message]]:
    """The messages that stay, and those that a summary replaces.

    System messages stay, the newest user message stays, and the newest `keep_last` exchanges stay whole, so that no
    tool result is without its call.
    """
    newest_user = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    starts = [at for at, message in enumerate(messages) if message.role == "assistant"]
    tail = starts[-keep_last] if 0 < keep_last <= len(starts) else (0 if keep_last else len(messages))
    kept: list[Message] = []
    removed: list[Message] = []
    for at, message in enumerate(messages):
        stays = message.role == "system" or at == newest_user or at >= tail
        (kept if stays else removed).append(message)
    return kept, removed


def joined(kept: Sequence[Message], summary: str) -> list[Message]:
    """The conversation with the summary in its place: behind the system messages, ahead of everything that was kept."""
    at = next((at for at, message in enumerate(kept) if message.role != "system"), len(kept))
    return [*kept[:at], Message(role="user", content=SUMMARY_PREFIX + summary), *kept[at:]]


def tell_failure(run: Run, step: Step, tokens: int, error: str) -> None:
    """The second event of the pair, for a compaction that failed."""
    if run.hooked(OnCompactError):
        run.tell(OnCompactError(**run.ids, step_index=step.index, token_count=tokens, error=error))
