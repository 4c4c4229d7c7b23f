"""Compaction: Claude tells of it by callbacks and messages, and goes on without a word where it fails."""

from __future__ import annotations

from typing import Any

from hookline.adapters.claude_agent_sdk._tasks import Between
from hookline.calls import Message
from hookline.runtime import AdapterRun

__all__ = ["Compacting"]

FAILED = "Claude went on without a summary."


class Compacting:
    """The conversation of a run as far as it was heard, and the compaction of it that is under way.

    Args:
        run: The run.
    """

    def __init__(self, run: AdapterRun) -> None:
        self._run = run
        self._heard: list[Message] = []
        self._between: Between | None = None
        self._marked = False
        self._opens = False

    def heard(self, message: Message, *, goes_on: bool = False) -> None:
        """Take a message into the conversation.

        Args:
            message: The message.
            goes_on: Whether it is the last one of the model, which has grown.
        """
        if goes_on and self._heard and self._heard[-1].role == "assistant":
            self._heard.pop()
        self._heard.append(message)

    def opened_step(self) -> bool:
        """Whether the compaction has begun the step of the model call that it makes room for; says so once."""
        opens, self._opens = self._opens, False
        return opens

    async def begins(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PreCompact`: no counts come with it, so those of what was heard are told."""
        if given.get("agent_id"):
            return {}
        await self.settle()
        self._run.begin_step()
        self._opens, self._marked, between = True, False, Between()
        self._between = between
        await between.begin(self._run.compact(list(self._heard), self._run.run.last_input_tokens or 0, between.work))
        return {}

    async def ends(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PostCompact`: the summary is written."""
        if not given.get("agent_id"):
            await self._over(str(given.get("compact_summary") or ""))
        return {}

    async def saw(self, message: Any) -> None:
        """Take a message of the system."""
        if message.subtype == "compact_boundary":
            self._marked = True
        elif message.subtype == "status" and message.data.get("compact_result") == "failed":
            await self._over("", RuntimeError(message.data.get("compact_error") or FAILED))

    async def settle(self, why: str = FAILED) -> None:
        """Claude is past it: without a word of its end it has failed."""
        await self._over("", None if self._marked else RuntimeError(why))

    async def _over(self, summary: str, error: Exception | None = None) -> None:
        between, self._between = self._between, None
        if between is None:
            return
        if error is None:
            self._heard = [Message(role="user", content=summary)]
        await between.end(summary, error)
