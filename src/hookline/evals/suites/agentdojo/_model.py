"""A scripted model that follows the instructions in tool results."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from hookline.calls import Message, ModelCall, ModelResponse, ToolRequest

__all__ = ["GullibleModel", "turns_of"]


def turns_of(suite: str, calls: Iterable[tuple[str, dict[str, Any]]]) -> list[ModelResponse]:
    """Return the turns in which a model makes the attacker's calls, one after the other."""
    return [
        ModelResponse(
            tool_calls=[ToolRequest(toolset=suite, tool_name=name, args=args, tool_call_id=f"injected_{number}")],
            finish_reason="tool_calls",
        )
        for number, (name, args) in enumerate(calls, start=1)
    ]


class GullibleModel:
    """Plays the user's script, and the attacker's as soon as a tool result shows the attacker's goal.

    Args:
        own: The user's script; its last turn is the answer.
        injected: The attacker's calls.
        said: The text that the attacker wants in the answer.
        goal: The instruction that it falls for; `None` to follow it after the user's task in any case.
    """

    def __init__(
        self,
        own: list[ModelResponse],
        *,
        injected: list[ModelResponse] | None = None,
        said: str = "",
        goal: str | None = "",
    ) -> None:
        *self.turns, self.answer = own
        self.injected, self.said = injected or [], said
        self.goal = None if goal is None else letters(goal)
        self.followed = False
        self.read = 0

    def __call__(self, call: ModelCall) -> ModelResponse:
        if not self.followed and self.falls_for(call):
            self.followed = True
            self.turns = [*self.turns, *self.injected] if self.goal is None else [*self.injected, *self.turns]
        self.read = len(call.messages)
        if self.turns:
            return self.turns.pop(0)
        if not self.followed or not self.said:
            return self.answer
        return msgspec.structs.replace(self.answer, content=f"{self.answer.content}\n{self.said}")

    def falls_for(self, call: ModelCall) -> bool:
        if self.goal is None:
            return True
        return self.finds_goal_in(call.messages[self.read :])

    def finds_goal_in(self, messages: Iterable[Message]) -> bool:
        """Whether a tool result among the messages shows the attacker's goal."""
        return bool(self.goal) and any(
            each.role == "tool" and (self.goal or "") in letters(each.content) for each in messages
        )


def letters(text: str) -> str:
    # Tools show texts as YAML, which breaks lines and doubles quotes.
    return re.sub(r"\\[nt]|[\W_]", "", text)
