"""What a run has said and was told: the conversation, and what is open in it."""

from __future__ import annotations

import msgspec

from hookline.calls import Denial, Message, ToolCalling
from hookline.events import PendingTool, ToolOutcome
from hookline.runtime._given import system_message
from hookline.runtime._result import tool_message
from hookline.runtime._state import Decision, WaitingCall

__all__ = ["Conversation"]


class Conversation:
    """The part of a run that is its conversation."""

    __slots__ = (
        "decisions",
        "history",
        "instructions",
        "last_content",
        "messages",
        "open_calls",
        "outcomes",
        "pending",
        "said_from",
        "waiting",
        "waiting_since_unix_nano",
    )

    messages: list[Message]
    history: int
    instructions: str
    last_content: str
    said_from: int
    pending: list[PendingTool]
    decisions: dict[str, Decision]
    open_calls: list[ToolCalling]
    outcomes: dict[str, ToolOutcome]
    waiting: dict[str, WaitingCall]
    waiting_since_unix_nano: int | None

    def first_input(self) -> int:
        """Where in the conversation the input of this run begins: behind the instructions and what was said before."""
        if self.history:
            return self.history
        first = self.messages[0] if self.messages else None
        return int(first is not None and bool(self.instructions) and first == system_message(self.instructions))

    def restate(self, content: str) -> None:
        """Hooks have changed what the agent said last; nobody is to see the old text."""
        self.last_content = content
        for at in range(len(self.messages) - 1, self.said_from - 1, -1):
            message = self.messages[at]
            if message.role == "assistant":
                self.messages[at] = msgspec.structs.replace(message, content=content)
                return
        self.messages.append(Message(role="assistant", content=content))

    def withhold(self, denial: Denial) -> None:
        """A hook does not let the agent's last words be seen."""
        self.restate(f"Withheld by hook {denial.hook_id!r}: {denial.reason}")
        self.last_content = ""

    def undecided(self) -> list[PendingTool]:
        """The calls that still wait for a person."""
        return [pending for pending in self.pending if pending.tool_call_id not in self.decisions]

    def conversation(self) -> list[Message]:
        """All messages, with the results known so far of a step that waits for a person."""
        known = [self.outcomes[call.tool_call_id] for call in self.open_calls if call.tool_call_id in self.outcomes]
        return [*self.messages, *(tool_message(outcome) for outcome in known)]

    def close_step(self, unanswered: str) -> None:
        """Append the results of the open calls, one message each, in the model's order.

        Args:
            unanswered: What the model is told of a call that has no result.
        """
        for call in self.open_calls:
            outcome = self.outcomes.get(call.tool_call_id)
            content = outcome.content if outcome is not None else unanswered
            self.messages.append(Message(role="tool", content=content, tool_call_id=call.tool_call_id))
        self.open_calls, self.outcomes, self.pending, self.decisions, self.waiting = [], {}, [], {}, {}
        self.waiting_since_unix_nano = None
