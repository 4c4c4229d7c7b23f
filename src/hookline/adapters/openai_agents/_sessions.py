"""Sessions of the OpenAI Agents SDK that compact themselves, through the hooks of the run that has them do so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agents.memory.openai_responses_compaction_session import select_compaction_candidate_items

from hookline.adapters.openai_agents._attached import Attached, here
from hookline.adapters.openai_agents._items import spoken
from hookline.calls import Message
from hookline.errors import HookUsageError

__all__ = ["compacting"]


def compacting(call_session: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that calls a method of a session."""

    async def call(method: Any, /, *given: Any, **options: Any) -> Any:
        attached = here()
        if attached is None or getattr(method, "__name__", "") != "run_compaction":
            return await call_session(method, *given, **options)
        session = attached.session if attached.session is not None else method.__self__

        async def compact() -> None:
            await call_session(method, *given, **options)

        if not await _is_due(session, (given[0] if given else None) or {}):
            await compact()
        else:
            await _compact_session(attached, session, compact)
        return None

    return call


async def _is_due(session: Any, args: Any) -> bool:
    """Whether a session will compact, by its own rule where it has one."""
    decide = getattr(session, "should_trigger_compaction", None)
    if decide is None or args.get("force"):
        return True
    found = await session.get_items()
    shown = {
        "response_id": args.get("response_id"),
        "compaction_mode": getattr(session, "compaction_mode", "auto"),
        "compaction_candidate_items": select_compaction_candidate_items(found),
        "session_items": found,
    }
    return bool(decide(shown))


async def _compact_session(attached: Attached, session: Any, compact: Callable[[], Awaitable[None]]) -> None:
    """A session compacts its history. It chooses itself what; a summary that a hook gives replaces the history."""
    shown = [message for message, _ in spoken(None, await session.get_items(), {})]
    own: list[str] = []
    failures: list[Exception] = []

    async def summarize(messages: list[Message]) -> str:
        if messages != shown:
            raise HookUsageError("A session chooses itself what it compacts; answer with a summary instead.")
        try:
            await compact()
        except Exception as error:
            failures.append(error)
            raise
        own.append("\n".join(message.content for message, _ in spoken(None, await session.get_items(), {})))
        return own[0]

    summary = await attached.run.compact(shown, attached.run.run.last_input_tokens, summarize)
    if failures:
        raise failures[0]
    if summary is not None and own != [summary]:
        await session.clear_session()
        await session.add_items([{"role": "user", "content": summary}])
