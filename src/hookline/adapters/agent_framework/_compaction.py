"""Compaction in Microsoft Agent Framework, led through the hooks of the run that needs it."""

from __future__ import annotations

from copy import copy
from typing import Any

from agent_framework import ChatResponse
from agent_framework import Message as Theirs

from hookline.adapters.agent_framework import _words as words
from hookline.calls import Message
from hookline.runtime import AdapterRun

__all__ = ["Compacting"]

EXCLUDED = "_excluded"


class Compacting:
    """Stands in for the compaction strategy of a run.

    A strategy that asks a model for the summary is led at that point; of any other it is known only afterwards that it
    compacts, and then a hook that denies has what it did taken back.

    Args:
        run: The run.
        strategy: The strategy.
    """

    def __init__(self, run: AdapterRun, strategy: Any) -> None:
        self._run = run
        self.tokenizer = getattr(strategy, "tokenizer", None)
        self._strategy = self._led(strategy)
        self._messages: list[Any] = []
        self._told = False

    def _led(self, strategy: Any) -> Any:
        """The strategy, with hooks around what summarizes in it."""
        strategy = copy(strategy) if hasattr(strategy, "client") or hasattr(strategy, "strategies") else strategy
        if hasattr(strategy, "client"):
            strategy.client = _Summarizer(self, strategy.client)
        elif hasattr(strategy, "strategies"):
            strategy.strategies = [self._led(each) for each in strategy.strategies]
        return strategy

    async def __call__(self, messages: list[Any]) -> bool:
        """Compact a conversation in place.

        Args:
            messages: The conversation.

        Returns:
            Whether anything was changed.
        """
        self._messages, self._told = messages, False
        before = [(each, dict(each.additional_properties)) for each in messages]
        failed: Exception | None = None
        changed = False
        try:
            changed = bool(await self._strategy(messages))
        except Exception as error:
            failed = error
        if self._told or (not changed and failed is None):
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
        """Lead a compaction through the hooks."""
        self._told = True
        known = self._messages if messages is None else messages
        included = [each for each in known if not each.additional_properties.get(EXCLUDED, False)]
        own = [ours for each in included for ours in words.heard(each, {})]
        return await self._run.compact(own, self._run.run.last_input_tokens or 0, summarize)


class _Summarizer:
    """Stands in for the client that writes the summary."""

    def __init__(self, compacting: Compacting, client: Any) -> None:
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
