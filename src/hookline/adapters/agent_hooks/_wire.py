"""hookline's calls and results as the JSON of AGENT-HOOKS-0.1, and what policies made of it back again."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from hookline.adapters.agent_hooks._errors import PolicyTransformError
from hookline.calls import Message, ModelResponse, ToolCall, ToolRequest, ToolSpec

__all__ = [
    "args_from",
    "bound",
    "called",
    "content_of",
    "message_shown",
    "messages_from",
    "plain",
    "response_from",
    "response_shown",
    "still_bound",
    "text_of",
    "tool_name",
    "tools_shown",
    "value_of",
]

T = TypeVar("T")

EXACT = 2**53 - 1
"""The largest integer that every reader of JSON reads alike."""

ROLES = ("system", "user", "assistant", "tool")


def plain(value: Any) -> Any:
    """A JSON-like value that its reader may edit: a copy of every object and list in it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def tool_name(toolset: str, name: str) -> str:
    """The name under which a policy knows a tool: its own, or `agent/<id>` for a sub-agent."""
    return f"agent/{name}" if toolset == "agent" else name


def tools_shown(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The tools that a model is offered."""
    return [
        {
            "name": tool_name(spec.toolset, spec.name),
            "description": spec.description,
            "schema": plain(spec.schema),
        }
        for spec in specs
    ]


def bound(call: ToolCall) -> list[Any]:
    """What a decision about a call is bound to: the tool, and its arguments."""
    return [call.toolset, call.tool_name, call.args]


def still_bound(decided: list[Any], call: ToolCall) -> bool:
    """Whether a call is the one that was decided about, which a pause may have carried through JSON."""
    if call.args is decided[2] and call.tool_name == decided[1] and call.toolset == decided[0]:
        return True
    return _text(decided) == _text(bound(call))


def args_from(target: object) -> dict[str, Any]:
    """The arguments that policies left.

    Raises:
        PolicyTransformError: If they are no object any more.
    """
    if not isinstance(target, dict):
        raise PolicyTransformError("pre_tool_call", f"arguments are an object; they became {type(target).__name__}")
    return target


def called(calling: ToolRequest) -> dict[str, Any]:
    """A model's call of a tool. Arguments that are no object show as none, for with such the tool does not run."""
    args: object = calling.args
    if isinstance(args, str):
        try:
            args = msgspec.json.decode(args) if args.strip() else {}
        except (ValueError, RecursionError):
            args = {}
    return {
        "id": calling.tool_call_id,
        "name": tool_name(calling.toolset, calling.tool_name),
        "args": plain(args) if isinstance(args, Mapping) else {},
    }


def message_shown(message: Message) -> dict[str, Any]:
    """One message of a conversation."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [called(calling) for calling in message.tool_calls]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def messages_from(point: str, target: object, given: Sequence[Message]) -> list[Message]:
    """The conversation that policies made of another one; messages that they left alone stay what they were.

    Raises:
        PolicyTransformError: If it is none.
    """
    if not isinstance(target, list):
        raise PolicyTransformError(point, "the messages are no list any more")
    untouched = _Untouched((message_shown(message), message) for message in given)
    return [untouched.take(shown) or _message(point, shown) for shown in target]


def _message(point: str, shown: object) -> Message:
    if not isinstance(shown, Mapping) or shown.get("role") not in ROLES:
        raise PolicyTransformError(point, f"a message has a `role`, one of {', '.join(ROLES)}")
    answered = shown.get("tool_call_id")
    if answered is not None and not isinstance(answered, str):
        raise PolicyTransformError(point, "`tool_call_id` of a message is text")
    return Message(
        role=shown["role"],
        content=text_of(point, shown, empty=True),
        tool_calls=_callings(point, shown.get("tool_calls") or [], ()),
        tool_call_id=answered,
    )


def response_shown(response: ModelResponse) -> dict[str, Any]:
    """A model's answer: what `post_model_call` decides about."""
    return {
        "content": None if response.tool_calls and not response.content else response.content,
        "tool_calls": [called(calling) for calling in response.tool_calls],
        "finish_reason": response.finish_reason,
    }


def response_from(point: str, target: object, given: ModelResponse) -> ModelResponse:
    """The answer that policies made of a model's.

    Raises:
        PolicyTransformError: If it is none.
    """
    if not isinstance(target, Mapping) or not isinstance(target.get("finish_reason"), str):
        raise PolicyTransformError(point, "a response has `content`, `tool_calls` and a `finish_reason`")
    return msgspec.structs.replace(
        given,
        content=text_of(point, target, empty=True),
        tool_calls=_callings(point, target.get("tool_calls"), given.tool_calls),
        finish_reason=target["finish_reason"],
        details={},  # what the provider wants back may hold the very text that was taken out
    )


def _callings(point: str, shown: object, given: Sequence[ToolRequest]) -> list[ToolRequest]:
    if not isinstance(shown, list):
        raise PolicyTransformError(point, "`tool_calls` are a list")
    untouched = _Untouched((called(calling), calling) for calling in given)
    return [untouched.take(calling) or _calling(point, calling) for calling in shown]


def _calling(point: str, shown: object) -> ToolRequest:
    if not isinstance(shown, Mapping) or not isinstance(shown.get("name"), str):
        raise PolicyTransformError(point, "a tool call has a `name`")
    args, call_id = shown.get("args"), shown.get("id")
    if not isinstance(args, dict) or not isinstance(call_id, str | None):
        raise PolicyTransformError(point, "`args` of a tool call are an object, and its `id` is text")
    return ToolRequest(tool_name=shown["name"], args=args, tool_call_id=call_id or "")


def text_of(point: str, target: object, *, empty: bool = False) -> str:
    """The `content` that policies left.

    Args:
        point: Where.
        target: What holds it.
        empty: Whether `null` stands for no text.

    Raises:
        PolicyTransformError: If it is no text.
    """
    content = target.get("content") if isinstance(target, Mapping) else target
    if content is None and empty and isinstance(target, Mapping):
        return ""
    if not isinstance(target, Mapping) or not isinstance(content, str):
        raise PolicyTransformError(point, f"`content` is text; it became {type(content).__name__}")
    return content


def value_of(content: str) -> Any:
    """What a tool gave: the object or list whose JSON the text is, if every reader reads that alike; else the text."""
    if not content.startswith(("{", "[")):
        return content
    try:
        return json.loads(
            content, object_pairs_hook=_object, parse_constant=_refused, parse_float=_number, parse_int=_integer
        )
    except (ValueError, RecursionError):
        return content


def content_of(target: object) -> str:
    """The text that a model reads of what policies left of a tool's result."""
    return target if isinstance(target, str) else json.dumps(target, ensure_ascii=False, allow_nan=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):  # the model would read both, a policy only the last
        raise ValueError("a name stands twice in one object")
    return members


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _integer(digits: str) -> int:
    number = int(digits)
    if abs(number) > EXACT:
        raise ValueError("too large an integer")
    return number


def _number(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("too large a number")
    return number


class _Untouched(Generic[T]):
    """What policies were shown, to find what they left alone: it may hold more than was shown."""

    def __init__(self, shown: Iterable[tuple[object, T]]) -> None:
        self._by_text: dict[str, deque[T]] = {}
        for value, own in shown:
            self._by_text.setdefault(_text(value), deque()).append(own)

    def take(self, value: object) -> T | None:
        """The first of those that look like this, which is then gone."""
        found = self._by_text.get(_text(value))
        return found.popleft() if found else None


def _text(value: object) -> str:
    return json.dumps(value, default=repr, sort_keys=True)
