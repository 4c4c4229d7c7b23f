"""Pass the compactions of OpenAI Agents SDK sessions through the hooks of the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agents.memory.openai_responses_compaction_session import select_compaction_candidate_items

from hookline.adapters.openai_agents._conversion import from_items
from hookline.adapters.openai_agents._run_binding import OpenAIBinding, present_binding
from hookline.calls import Message
from hookline.errors import HookUsageError

__all__ = ["wrap_call_session"]


def wrap_call_session(call_session: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the SDK's function that calls a method of a session."""

    async def call(method: Any, /, *given: Any, **options: Any) -> Any:
        binding = present_binding()
        if binding is None or getattr(method, "__name__", "") != "run_compaction":
            return await call_session(method, *given, **options)
        session = binding.session if binding.session is not None else method.__self__

        async def compact() -> None:
            await call_session(method, *given, **options)

        if not await _is_due(session, (given[0] if given else None) or {}):
            await compact()
        else:
            await _compact_session(binding, session, compact)
        return None

    return call


async def _is_due(session: Any, args: Any) -> bool:
    """Return whether a session will compact, by its own rule if it has one."""
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


async def _compact_session(binding: OpenAIBinding, session: Any, compact: Callable[[], Awaitable[None]]) -> None:
    """Compact a session through the hooks.

    The session itself chooses the items; a summary that a hook provides replaces the whole history.
    """
    shown = [message for message, _ in from_items(None, await session.get_items(), {})]
    own: list[str] = []
    failures: list[Exception] = []

    async def summarize(messages: list[Message]) -> str:
        if messages != shown:
            raise HookUsageError(
                "A session chooses what it compacts, so hooks cannot change the messages. They can replace the summary."
            )
        try:
            await compact()
        except Exception as error:
            failures.append(error)
            raise
        own.append("\n".join(message.content for message, _ in from_items(None, await session.get_items(), {})))
        return own[0]

    summary = await binding.run.compact(shown, binding.run.run.last_input_tokens, summarize)
    if failures:
        raise failures[0]
    if summary is not None and own != [summary]:
        await session.clear_session()
        await session.add_items([{"role": "user", "content": summary}])
