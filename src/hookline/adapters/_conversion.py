"""Conversions that several adapters share: changed messages, and the text of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookline.calls import Message
from hookline.runtime import Reject

__all__ = ["rejection_text", "restore_messages"]


def restore_messages(
    messages: Sequence[Message], known: Sequence[tuple[Any, list[Message]]], convert: Callable[[Message], Any]
) -> list[Any]:
    """Convert messages that hooks may have changed back to a framework's messages.

    A message that hooks left alone becomes the framework's original again, with everything that hookline cannot see.

    Args:
        messages: The messages that hooks left.
        known: Each original message of the framework, with the messages that it was converted to.
        convert: Converts a message that a hook wrote.
    """
    found: list[Any] = []
    at = 0
    while at < len(messages):
        own = next(((theirs, ours) for theirs, ours in known if messages[at : at + len(ours)] == ours), None)
        at += len(own[1]) if own is not None else 1
        found.append(own[0] if own is not None else convert(messages[at - 1]))
    return found


def rejection_text(decision: Reject) -> str:
    """Return the tool result that tells the model that a person refused its call."""
    return f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."
