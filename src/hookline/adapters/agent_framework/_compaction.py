"""Pass the compactions of a Microsoft Agent Framework run through its hooks."""

from __future__ import annotations

from copy import copy
from typing import Any

from agent_framework import ChatResponse
from agent_framework import Message as Theirs

from hookline.adapters.agent_framework import _conversion as convert
from hookline.calls import Message
from hookline.runtime import AdapterRun

__all__ = ["HookedCompactionStrategy"]

EXCLUDED_KEY = "_excluded"


class HookedCompactionStrategy:
    """Replaces the compaction strategy of a run.

    For a strategy that asks a model for the summary, the hooks run around that request. Any other strategy shows only
    afterwards that it compacted, so if a hook denies then, its changes are undone.

    Args:
        run: The run.
        strategy: The strategy.
    """

    def __init__(self, run: AdapterRun, strategy: Any) -> None:
        self._run = run
        self.tokenizer = getattr(strategy, "tokenizer", None)
        self._strategy = self._hook_summarizers(strategy)
        self._messages: list[Any] = []
        self._hooked = False

    def _hook_summarizers(self, strategy: Any) -> Any:
        """Return the strategy with hooks around the client that writes its summaries."""
        strategy = copy(strategy) if hasattr(strategy, "client") or hasattr(strategy, "strategies") else strategy
        if hasattr(strategy, "client"):
            strategy.client = _Summarizer(self, strategy.client)
        elif hasattr(strategy, "strategies"):
            strategy.strategies = [self._hook_summarizers(each) for each in strategy.strategies]
        return strategy

    async def __call__(self, messages: list[Any]) -> bool:
        """Compact a conversation in place.

        Args:
            messages: The conversation.

        Returns:
            Whether the conversation was changed.
        """
        self._messages, self._hooked = messages, False
        before = [(each, dict(each.additional_properties)) for each in messages]
        failed: Exception | None = None
        changed = False
        try:
            changed = bool(await self._strategy(messages))
        except Exception as error:
            failed = error
        if self._hooked or (not changed and failed is None):
            if failed is not None:
                raise failed
            return changed

        async def summarize(_: list[Message]) -> str:
            if failed is not None:
                raise failed
            known = {id(each) for each, _ in before}
            return "\n".join(each.text for each in messages if id(each) not in known)

        if await self.compact([each for each, _ in before], summarize) is None:
            if failed is not None:
                raise failed
            messages[:] = [each for each, _ in before]
            for each, properties in before:
                each.additional_properties.clear()
                each.additional_properties.update(properties)
            return False
        return True

    async def compact(self, messages: list[Any] | None, summarize: Any) -> str | None:
        """Run a compaction through the hooks."""
        self._hooked = True
        known = self._messages if messages is None else messages
        included = [each for each in known if not each.additional_properties.get(EXCLUDED_KEY, False)]
        own = [ours for each in included for ours in convert.from_agent_framework_message(each, {})]
        return await self._run.compact(own, self._run.run.last_input_tokens or 0, summarize)


class _Summarizer:
    """Replaces the client that writes the summary."""

    def __init__(self, compacting: HookedCompactionStrategy, client: Any) -> None:
        self._compacting, self._client = compacting, client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def get_response(self, messages: Any, **given: Any) -> Any:
        own: Any = None

        async def summarize(_: list[Message]) -> str:
            nonlocal own
            own = await self._client.get_response(messages, **given)
            return str(own.text or "").strip()

        summary = await self._compacting.compact(None, summarize)
        if summary is None:
            raise RuntimeError("The summary was not written: it failed, or a hook denied it.")
        if own is not None and own.text.strip() == summary:
            return own
        return ChatResponse(messages=[Theirs("assistant", [summary])])
