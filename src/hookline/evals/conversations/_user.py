"""A model that plays the user of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hookline._checks import quote
from hookline.calls import Message, ModelCall
from hookline.errors import HookUsageError
from hookline.evals.running import ConversationTurn
from hookline.hooks import Hooks
from hookline.runtime import Agent, Model

__all__ = ["DONE", "SimulatedUser", "user_messages"]

DONE = "[DONE]"
"""What the model writes when the user has nothing more to say."""

OPENING = "Write your first message."


@dataclass(frozen=True, kw_only=True)
class SimulatedUser:
    """A model that plays the user: it reads the agent's answers, but not its tool calls, and writes what the user says.

    Attributes:
        goal: What the user wants, and what the user knows.
        model: The model: a `Model`, a name such as `"openai:gpt-5"`, or a function that makes one per conversation.
        persona: Who the user is, and how the user talks.
        settings: Settings of the model calls, such as `{"temperature": 0}`.

    Raises:
        HookUsageError: If an attribute is invalid.
    """

    goal: str
    model: Model | str | Callable[[], Model]
    persona: str = ""
    settings: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value in (("goal", self.goal), ("persona", self.persona)):
            if not isinstance(value, str) or (name == "goal" and not value.strip()):
                raise HookUsageError(f"`{name}` of a simulated user is a text; got {quote(value)}.")
        if self.settings is not None and not isinstance(self.settings, Mapping):
            raise HookUsageError(f"`settings` of a simulated user is a mapping; got {quote(self.settings)}.")

    def agent(self) -> Agent:
        """Return the agent that asks the model.

        Raises:
            AgentDefinitionError: If no installed adapter knows the model's name.
        """
        model: Any = self.model
        if not isinstance(model, str) and not hasattr(model, "respond") and callable(model):
            model = model()
        hooks = Hooks("user")
        settings = dict(self.settings or {})
        if settings:

            @hooks.before(ModelCall, id="user.settings")
            def use_settings(call: ModelCall) -> ModelCall:
                return msgspec.structs.replace(call, settings={**call.settings, **settings})

        own = [hooks] if settings else []
        return Agent(id="user", model=model, instructions=self._instructions(), hooks=own, max_steps=1)

    def _instructions(self) -> str:
        persona = f"Who you are: {self.persona.strip()}\n" if self.persona.strip() else ""
        return (
            "You play a user who talks to an assistant. Stay in this role: never write what the assistant says, and "
            "never say that you are a model.\n"
            f"{persona}What you want: {self.goal.strip()}\n"
            "Write only your next message, short and as this user would write it. Say one thing at a time, and tell "
            "what you know when you are asked for it.\n"
            f"When you have what you want, or see that you cannot have it, write {DONE}. You may write a last message "
            "before it."
        )


def user_messages(turns: Sequence[ConversationTurn]) -> list[Message]:
    """Return a conversation as the model of the user sees it: its own messages are those of the user.

    Args:
        turns: The turns so far.
    """
    messages = [Message(role="user", content=OPENING)]
    for turn in turns:
        messages.append(Message(role="assistant", content=turn.user))
        messages.append(Message(role="user", content=turn.output or "(The assistant did not answer.)"))
    return messages
