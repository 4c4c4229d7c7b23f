"""Compaction of a Claude conversation, reported by callbacks and system messages; failures are silent."""

from __future__ import annotations

from typing import Any

from hookline.adapters.claude_agent_sdk._background import BackgroundCall
from hookline.calls import Message
from hookline.runtime import AdapterRun

__all__ = ["ClaudeCompaction"]

NO_SUMMARY = "Claude went on without a summary."


class ClaudeCompaction:
    """The messages of a run so far, and the compaction that is in progress.

    Args:
        run: The run.
    """

    def __init__(self, run: AdapterRun) -> None:
        self._run = run
        self._messages: list[Message] = []
        self._call: BackgroundCall | None = None
        self._compacted = False
        self._opened_step = False

    def record_message(self, message: Message, *, goes_on: bool = False) -> None:
        """Add a message to the conversation.

        Args:
            message: The message.
            goes_on: Whether it replaces the last message of the model, of which it is a longer version.
        """
        if goes_on and self._messages and self._messages[-1].role == "assistant":
            self._messages.pop()
        self._messages.append(message)

    def pop_opened_step(self) -> bool:
        """Return once whether the compaction has begun the step of the model call that follows it."""
        opened, self._opened_step = self._opened_step, False
        return opened

    async def before_compact(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PreCompact`: run the hooks up to the compaction.

        The callback gives no token counts, so those of the last model call are reported.
        """
        if given.get("agent_id"):
            return {}
        await self.settle()
        self._run.begin_step()
        self._opened_step, self._compacted, call = True, False, BackgroundCall()
        self._call = call
        await call.begin(self._run.compact(list(self._messages), self._run.run.last_input_tokens or 0, call.work))
        return {}

    async def after_compact(self, given: Any, call_id: str | None, _: Any) -> dict[str, Any]:
        """`PostCompact`: end the compaction with its summary."""
        if not given.get("agent_id"):
            await self._end(str(given.get("compact_summary") or ""))
        return {}

    async def record_system_message(self, message: Any) -> None:
        """Record a system message: a compaction succeeded or failed."""
        if message.subtype == "compact_boundary":
            self._compacted = True
        elif message.subtype == "status" and message.data.get("compact_result") == "failed":
            await self._end("", RuntimeError(message.data.get("compact_error") or NO_SUMMARY))

    async def settle(self, why: str = NO_SUMMARY) -> None:
        """End a compaction that is still open: Claude went on without reporting its end."""
        await self._end("", None if self._compacted else RuntimeError(why))

    async def _end(self, summary: str, error: Exception | None = None) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        if error is None:
            self._messages = [Message(role="user", content=summary)]
        await call.end(summary, error)
