"""Convert calls and results to the JSON of AGENT-HOOKS-0.1, and the policies' changes back."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from hookline.adapters._conversion import copy_json
from hookline.adapters.agent_hooks._errors import PolicyTransformError
from hookline.calls import Message, ModelResponse, ToolCall, ToolRequest, ToolSpec

__all__ = [
    "content_text",
    "decided_call",
    "from_wire_args",
    "from_wire_messages",
    "from_wire_response",
    "from_wire_value",
    "is_decided_call",
    "to_wire_message",
    "to_wire_response",
    "to_wire_tool_call",
    "to_wire_tools",
    "to_wire_value",
    "tool_name",
]

T = TypeVar("T")

LARGEST_EXACT_INTEGER = 2**53 - 1
"""The largest integer that every JSON parser reads as the same number."""

ROLES = ("system", "user", "assistant", "tool")


def tool_name(toolset: str, name: str) -> str:
    """Return the name that policies see for a tool: its own, or `agent/<id>` for a sub-agent."""
    return f"agent/{name}" if toolset == "agent" else name


def to_wire_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Convert the tools that a model is offered."""
    return [
        {
            "name": tool_name(spec.toolset, spec.name),
            "description": spec.description,
            "schema": copy_json(spec.schema),
        }
        for spec in specs
    ]


def decided_call(call: ToolCall) -> list[Any]:
    """Return the parts of a call that a decision applies to: the tool and its arguments."""
    return [call.toolset, call.tool_name, call.args]


def is_decided_call(decided: list[Any], call: ToolCall) -> bool:
    """Return whether a call is the one that was decided, even if a pause has converted it to JSON and back."""
    if call.args is decided[2] and call.tool_name == decided[1] and call.toolset == decided[0]:
        return True
    return _canonical_json(decided) == _canonical_json(decided_call(call))


def from_wire_args(target: object) -> dict[str, Any]:
    """Return the arguments that policies left.

    Raises:
        PolicyTransformError: If they are no longer an object.
    """
    if not isinstance(target, dict):
        raise PolicyTransformError("pre_tool_call", f"arguments must be an object; they became {type(target).__name__}")
    return target


def to_wire_tool_call(calling: ToolRequest) -> dict[str, Any]:
    """Convert a model's tool call. Arguments that are not an object become `{}`, as the tool does not run then."""
    args: object = calling.args
    if isinstance(args, str):
        try:
            args = msgspec.json.decode(args) if args.strip() else {}
        except (ValueError, RecursionError):
            args = {}
    return {
        "id": calling.tool_call_id,
        "name": tool_name(calling.toolset, calling.tool_name),
        "args": copy_json(args) if isinstance(args, Mapping) else {},
    }


def to_wire_message(message: Message) -> dict[str, Any]:
    """Convert a message."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [to_wire_tool_call(calling) for calling in message.tool_calls]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def from_wire_messages(point: str, target: object, given: Sequence[Message]) -> list[Message]:
    """Return the conversation that policies left; messages that they did not change stay the originals.

    Raises:
        PolicyTransformError: If the value is not a conversation.
    """
    if not isinstance(target, list):
        raise PolicyTransformError(point, "the messages are no longer a list")
    originals = _Originals((to_wire_message(message), message) for message in given)
    return [originals.take(value) or _from_wire_message(point, value) for value in target]


def _from_wire_message(point: str, shown: object) -> Message:
    if not isinstance(shown, Mapping) or shown.get("role") not in ROLES:
        raise PolicyTransformError(point, f"a message must have a `role`, one of {', '.join(ROLES)}")
    answered = shown.get("tool_call_id")
    if answered is not None and not isinstance(answered, str):
        raise PolicyTransformError(point, "`tool_call_id` of a message must be text")
    return Message(
        role=shown["role"],
        content=content_text(point, shown, empty=True),
        tool_calls=_from_wire_tool_calls(point, shown.get("tool_calls") or [], ()),
        tool_call_id=answered,
    )


def to_wire_response(response: ModelResponse) -> dict[str, Any]:
    """Convert a model's answer to the target of `post_model_call`."""
    return {
        "content": None if response.tool_calls and not response.content else response.content,
        "tool_calls": [to_wire_tool_call(calling) for calling in response.tool_calls],
        "finish_reason": response.finish_reason,
    }


def from_wire_response(point: str, target: object, given: ModelResponse) -> ModelResponse:
    """Return the model's answer that policies left.

    Raises:
        PolicyTransformError: If the value is not an answer.
    """
    if not isinstance(target, Mapping) or not isinstance(target.get("finish_reason"), str):
        raise PolicyTransformError(point, "a response must have `content`, `tool_calls` and a `finish_reason`")
    return msgspec.structs.replace(
        given,
        content=content_text(point, target, empty=True),
        tool_calls=_from_wire_tool_calls(point, target.get("tool_calls"), given.tool_calls),
        finish_reason=target["finish_reason"],
        details={},  # provider details may repeat the text that policies removed
    )


def _from_wire_tool_calls(point: str, shown: object, given: Sequence[ToolRequest]) -> list[ToolRequest]:
    if not isinstance(shown, list):
        raise PolicyTransformError(point, "`tool_calls` must be a list")
    originals = _Originals((to_wire_tool_call(calling), calling) for calling in given)
    return [originals.take(calling) or _from_wire_tool_call(point, calling) for calling in shown]


def _from_wire_tool_call(point: str, shown: object) -> ToolRequest:
    if not isinstance(shown, Mapping) or not isinstance(shown.get("name"), str):
        raise PolicyTransformError(point, "a tool call must have a `name`")
    args, call_id = shown.get("args"), shown.get("id")
    if not isinstance(args, dict) or not isinstance(call_id, str | None):
        raise PolicyTransformError(point, "`args` of a tool call must be an object, and its `id` text")
    return ToolRequest(tool_name=shown["name"], args=args, tool_call_id=call_id or "")


def content_text(point: str, target: object, *, empty: bool = False) -> str:
    """Return the text of the `content` that policies left.

    Args:
        point: The interception point.
        target: The object with the `content`.
        empty: Whether `null` means no text.

    Raises:
        PolicyTransformError: If the content is not text.
    """
    content = target.get("content") if isinstance(target, Mapping) else target
    if content is None and empty and isinstance(target, Mapping):
        return ""
    if not isinstance(target, Mapping) or not isinstance(content, str):
        raise PolicyTransformError(point, f"`content` must be text; it became {type(content).__name__}")
    return content


def to_wire_value(content: str) -> Any:
    """Return a tool's text as the object or list that it encodes, if every JSON parser reads it alike; else as text."""
    if not content.startswith(("{", "[")):
        return content
    try:
        return json.loads(
            content,
            object_pairs_hook=_parse_object,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_integer,
        )
    except (ValueError, RecursionError):
        return content


def from_wire_value(target: object) -> str:
    """Return the text for the model from the tool result that policies left."""
    return target if isinstance(target, str) else json.dumps(target, ensure_ascii=False, allow_nan=False)


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):  # the model would read both values, a policy only the last
        raise ValueError("a name appears twice in one object")
    return members


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _parse_integer(digits: str) -> int:
    number = int(digits)
    if abs(number) > LARGEST_EXACT_INTEGER:
        raise ValueError("the integer is too large")
    return number


def _parse_float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("the number is too large")
    return number


class _Originals(Generic[T]):
    """The originals of values shown to policies, which may hold more than was shown, by what was shown."""

    def __init__(self, shown: Iterable[tuple[object, T]]) -> None:
        self._by_text: dict[str, deque[T]] = {}
        for value, own in shown:
            self._by_text.setdefault(_canonical_json(value), deque()).append(own)

    def take(self, value: object) -> T | None:
        """Return and remove the first original that was shown like this."""
        found = self._by_text.get(_canonical_json(value))
        return found.popleft() if found else None


def _canonical_json(value: object) -> str:
    return json.dumps(value, default=repr, sort_keys=True)
