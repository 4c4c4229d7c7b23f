"""Where sessions keep their conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hookline.calls import Message

__all__ = ["InMemoryHistory", "SessionMemory"]


class SessionMemory(Protocol):
    """Where the conversation of a session is kept from one task to the next, and from one process to the next."""

    async def load(self, key: str) -> Sequence[Message] | None:
        """The conversation that was saved last under a session's id, or `None`."""
        ...

    async def save(self, key: str, messages: Sequence[Message]) -> None:
        """Keep a session's conversation in the place of the one before."""
        ...


class InMemoryHistory:
    """Keeps conversations for as long as the object lives."""

    def __init__(self) -> None:
        self._conversations: dict[str, tuple[Message, ...]] = {}

    async def load(self, key: str) -> Sequence[Message] | None:
        """The conversation that was saved last under a session's id, or `None`."""
        return self._conversations.get(key)

    async def save(self, key: str, messages: Sequence[Message]) -> None:
        """Keep a session's conversation in the place of the one before."""
        self._conversations[key] = tuple(messages)
