"""Convert conversations and answers between hookline and Pydantic AI."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from pydantic import TypeAdapter
from pydantic_ai import messages as wire
from pydantic_ai.tools import ToolDefinition

from hookline._readonly import writable
from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec, Usage

__all__ = ["WireNames", "to_model_response", "to_tool_definitions", "to_wire_messages"]

LONGEST_NAME = 64
DIGEST_LENGTH = 9
"""Characters of the `_` and the digest that make a changed name unique."""

_INVALID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_LOCAL_TOOLSET = "local"


class WireNames:
    """The names that the provider sees for the tools of one call.

    A local tool keeps its name; any other is named `toolset__name`. Characters that providers refuse are replaced; a
    digest keeps such names unique, so that a tool has the same name in every call.

    Args:
        tools: The tools that are offered.
        messages: The conversation, which may hold calls of tools that are no longer offered.
    """

    def __init__(self, tools: Iterable[ToolSpec], messages: Iterable[Message]) -> None:
        pairs = {(spec.toolset, spec.name) for spec in tools}
        for message in messages:
            for calling in message.tool_calls:
                pairs.add((calling.toolset, calling.tool_name))
        self._wire: dict[tuple[str, str], str] = {}
        self._tool: dict[str, tuple[str, str]] = {}
        for pair in sorted(pairs, key=_plain_names_first):
            name = _wire_name(*pair)
            if name in self._tool:
                name = _with_digest(name, *pair)
            self._wire[pair] = name
            self._tool[name] = pair

    def wire_name(self, toolset: str, name: str) -> str:
        """Return the provider's name for a tool."""
        return self._wire[toolset, name]

    def tool_identity(self, name: str) -> tuple[str, str]:
        """Return the toolset and name of a tool that the model called; an unknown name counts as local."""
        return self._tool.get(name) or (_LOCAL_TOOLSET, name)


def to_tool_definitions(tools: Iterable[ToolSpec], names: WireNames) -> list[ToolDefinition]:
    """Convert the offered tools."""
    return [
        ToolDefinition(
            name=names.wire_name(spec.toolset, spec.name),
            description=spec.description or None,
            parameters_json_schema={"type": "object", "properties": {}, **spec.schema},
        )
        for spec in tools
    ]


def _plain_names_first(pair: tuple[str, str]) -> tuple[bool, bool, tuple[str, str]]:
    toolset, name = pair
    return toolset != _LOCAL_TOOLSET, bool(_INVALID_CHARACTER.search(name)), pair


@lru_cache(maxsize=4096)
def _wire_name(toolset: str, name: str) -> str:
    full = name if toolset == _LOCAL_TOOLSET else f"{toolset}__{name}"
    fit = _INVALID_CHARACTER.sub("_", full)
    return fit if fit and fit == full and len(fit) <= LONGEST_NAME else _with_digest(fit, toolset, name)


def _with_digest(fit: str, toolset: str, name: str) -> str:
    digest = hashlib.sha256(f"{toolset}\0{name}".encode(errors="backslashreplace")).hexdigest()[: DIGEST_LENGTH - 1]
    return f"{fit[: LONGEST_NAME - DIGEST_LENGTH]}_{digest}"


DETAILS_KEY = "pydantic_ai"
"""Key in `details` for the parts of an answer beyond text and tool calls."""

NO_RESULT = "There is no result of this call."
NO_CALL = "A tool gave this result: "

_RESPONSE_TYPE: TypeAdapter[wire.ModelResponse] = TypeAdapter(wire.ModelResponse)
_STORED_FIELDS = {
    "parts",
    "provider_name",
    "provider_url",
    "provider_response_id",
    "provider_details",
    "canonical_system",
}


def to_wire_messages(messages: Sequence[Message], names: WireNames) -> list[wire.ModelMessage]:
    """Convert a conversation; every tool call is followed by exactly one result, as providers require.

    A call without a result gets one that says so, and a result without a call becomes text: hooks or compaction may
    have removed the other half, and providers refuse such a conversation.
    """
    converted: list[wire.ModelMessage] = []
    parts: list[wire.ModelRequestPart] = []
    open_calls: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            name = open_calls.pop(message.tool_call_id or "", None)
            if name is None:
                parts.append(wire.UserPromptPart(NO_CALL + message.content))
            else:
                parts.append(wire.ToolReturnPart(name, message.content, message.tool_call_id or ""))
            continue
        parts += _results_of_open_calls(open_calls)
        if message.role == "assistant":
            if parts:
                converted.append(wire.ModelRequest(parts))
                parts = []
            converted.append(_to_wire_response(message, names))
            open_calls = {
                calling.tool_call_id: names.wire_name(calling.toolset, calling.tool_name)
                for calling in message.tool_calls
            }
        elif message.role == "system":
            parts.append(wire.SystemPromptPart(message.content))
        else:
            parts.append(wire.UserPromptPart(message.content))
    parts += _results_of_open_calls(open_calls)
    if parts:
        converted.append(wire.ModelRequest(parts))
    return converted


def to_model_response(response: wire.ModelResponse, names: WireNames, *, cost_usd: float | None) -> ModelResponse:
    """Convert a provider's answer.

    Args:
        response: The answer.
        names: The names of the tools in this call.
        cost_usd: The cost in US dollars; `None` if it is not known.
    """
    content, requests = _text(response.parts), _to_tool_requests(response.parts, names)
    finish_reason = (response.provider_details or {}).get("finish_reason")
    return ModelResponse(
        content=content,
        tool_calls=requests,
        reasoning="\n".join(part.content for part in response.parts if isinstance(part, wire.ThinkingPart)),
        usage=Usage(
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cost_usd=cost_usd or 0.0,
        ),
        cost_known=cost_usd is not None,
        finish_reason=finish_reason if isinstance(finish_reason, str) else response.finish_reason or "stop",
        model=response.model_name or "",
        response_id=response.provider_response_id or "",
        details={DETAILS_KEY: _to_details(response, content, requests)} if _has_more(response) else {},
    )


def _results_of_open_calls(open_calls: dict[str, str]) -> list[wire.ModelRequestPart]:
    """Return a placeholder result for each call that has none."""
    parts: list[wire.ModelRequestPart] = [
        wire.ToolReturnPart(name, NO_RESULT, call_id, outcome="interrupted") for call_id, name in open_calls.items()
    ]
    open_calls.clear()
    return parts


def _to_wire_response(message: Message, names: WireNames) -> wire.ModelResponse:
    """Convert an assistant message, with the original parts of the answer if hooks have not changed it."""
    whole = _from_details(message, names) if DETAILS_KEY in message.details else None
    if whole is not None:
        return whole
    parts: list[wire.ModelResponsePart] = [wire.TextPart(message.content)] if message.content else []
    parts += [
        wire.ToolCallPart(
            names.wire_name(calling.toolset, calling.tool_name), writable(calling.args), calling.tool_call_id
        )
        for calling in message.tool_calls
    ]
    return wire.ModelResponse(parts)


def _to_details(response: wire.ModelResponse, content: str, callings: list[ToolRequest]) -> dict[str, Any]:
    """Return the parts of an answer that the message does not hold, and a digest of what the message must still be."""
    details: dict[str, Any] = _RESPONSE_TYPE.dump_python(response, mode="json", include=_STORED_FIELDS)
    if "@" in (details["provider_url"] or ""):
        details["provider_url"] = None  # the URL may hold a password
    for part in details["parts"]:
        if part["part_kind"] == "text":
            part["content"] = len(part["content"])
        elif part["part_kind"] == "tool-call":
            for field in ("tool_name", "args", "tool_call_id"):
                del part[field]
    return {**details, "digest": _digest(content, callings)}


def _from_details(message: Message, names: WireNames) -> wire.ModelResponse | None:
    try:
        details: dict[str, Any] = writable(message.details[DETAILS_KEY])
        if details.pop("digest") != _digest(message.content, message.tool_calls):
            return None
        rest, callings = message.content, iter(message.tool_calls)
        for part in details["parts"]:
            if part["part_kind"] == "text":
                length = part["content"]
                part["content"], rest = rest[:length], rest[length:]
            elif part["part_kind"] == "tool-call":
                calling = next(callings)
                part["tool_name"] = names.wire_name(calling.toolset, calling.tool_name)
                part["args"], part["tool_call_id"] = writable(calling.args), calling.tool_call_id
        return _RESPONSE_TYPE.validate_python({"kind": "response", **details})
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration):
        return None  # written by another version or another program


def _digest(content: str, callings: Iterable[ToolRequest]) -> str:
    parts = [content, *([calling.toolset, calling.tool_name, calling.args] for calling in callings)]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _text(parts: Iterable[wire.ModelResponsePart]) -> str:
    return "".join(part.content for part in parts if isinstance(part, wire.TextPart))


def _to_tool_requests(parts: Iterable[wire.ModelResponsePart], names: WireNames) -> list[ToolRequest]:
    requests = []
    for part in parts:
        if isinstance(part, wire.ToolCallPart):
            toolset, name = names.tool_identity(part.tool_name)
            requests.append(
                ToolRequest(toolset=toolset, tool_name=name, args=_args(part), tool_call_id=part.tool_call_id)
            )
    return requests


def _args(part: wire.ToolCallPart) -> dict[str, Any] | str:
    """Return the arguments as a JSON object, or the model's own text if they are not one."""
    if not isinstance(part.args, str):
        return part.args or {}
    if not part.args.strip():
        return {}
    try:
        parsed = msgspec.json.decode(part.args)
    except (ValueError, RecursionError):
        return part.args
    return parsed if isinstance(parsed, dict) else part.args


def _has_more(response: wire.ModelResponse) -> bool:
    for part in response.parts:
        if not isinstance(part, wire.TextPart | wire.ToolCallPart):
            return True
        if part.id is not None or part.provider_details is not None:
            return True
    return False
