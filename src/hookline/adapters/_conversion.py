"""Conversions that several adapters share: changed messages, copies of arguments, pending calls, refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hookline.calls import Message, ToolRequest, is_from_hooks
from hookline.events import PendingTool
from hookline.runtime import Reject

__all__ = ["copy_json", "rejection_text", "restore_messages", "split_input", "to_pending_tool"]


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
    originals = {id(ours[0]): (theirs, ours) for theirs, ours in known if ours}
    # Messages of the same text may differ in what hookline cannot see, such as images, so a message is first looked up
    # by identity. Equal messages that a hook has built anew stand for the remaining originals, in order.
    left = {id(message) for message in messages}
    remaining = [own for first, own in originals.items() if first not in left]
    found: list[Any] = []
    at = 0
    while at < len(messages):
        same = originals.get(id(messages[at]))
        candidates = remaining if same is None else [same]
        own = next((each for each in candidates if messages[at : at + len(each[1])] == each[1]), None)
        if own is None:
            found.append(convert(messages[at]))
            at += 1
            continue
        found.append(own[0])
        at += len(own[1])
        remaining = [each for each in remaining if each is not own]
    return found


def split_input(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """Split the input of an `AgentCall` into the prompt, and the text that hooks have added for the model."""
    prompt = [message for message in messages if not is_from_hooks(message)]
    return prompt, "\n\n".join(message.content for message in messages if is_from_hooks(message))


def copy_json(value: Any) -> Any:
    """Return a JSON value with every object and list copied, so that its reader may edit it."""
    if isinstance(value, Mapping):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copy_json(item) for item in value]
    return value


def to_pending_tool(request: ToolRequest) -> PendingTool:
    """Convert a tool call to what the person who decides sees; arguments that are not an object are left out."""
    return PendingTool(
        toolset=request.toolset,
        tool_name=request.tool_name,
        tool_call_id=request.tool_call_id,
        args=copy_json(request.args) if isinstance(request.args, Mapping) else {},
    )


def rejection_text(decision: Reject) -> str:
    """Return the tool result that tells the model that a person refused its call."""
    return f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."
