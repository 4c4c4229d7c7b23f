"""Sessions of the OpenAI Agents SDK that compact themselves, through the hooks of the run that has them do so."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from agents.memory.openai_responses_compaction_session import select_compaction_candidate_items

from hookline.adapters._openai_attached import Attached, present
from hookline.adapters._openai_items import spoken
from hookline.calls import Message
from hookline.errors import HookUsageError

__all__ = ["twin_session"]


class TwinSession:
    """A session that compacts itself, through the hooks of the run that has it do so."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._told = "wrapper" in inspect.signature(inner.run_compaction).parameters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run_compaction(self, args: Any = None, *, wrapper: Any = None) -> None:
        """Compact the conversation, if it is time to."""
        attached = present.get()

        async def compact() -> None:
            await self._inner.run_compaction(args, **({"wrapper": wrapper} if self._told else {}))

        if attached is None or not await self._is_due(args or {}):
            await compact()
        else:
            await compact_session(attached, self._inner, compact)

    async def _is_due(self, args: Any) -> bool:
        """Whether it will compact, by the session's own rule where it has one."""
        decide = getattr(self._inner, "should_trigger_compaction", None)
        if decide is None or args.get("force"):
            return True
        found = await self._inner.get_items()
        shown = {
            "response_id": args.get("response_id"),
            "compaction_mode": getattr(self._inner, "compaction_mode", "auto"),
            "compaction_candidate_items": select_compaction_candidate_items(found),
            "session_items": found,
        }
        return bool(decide(shown))


def twin_session(session: Any) -> Any:
    """The twin of a session that compacts itself; others stay as they are."""
    aware = callable(getattr(session, "run_compaction", None)) and not isinstance(session, TwinSession)
    return TwinSession(session) if aware else session


async def compact_session(attached: Attached, session: Any, compact: Callable[[], Awaitable[None]]) -> None:
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
