"""Conversations and answers, as hookline has them and as Pydantic AI has them."""

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

__all__ = ["WireNames", "answer", "conversation", "definitions"]

LONGEST = 64
TAIL = 9
"""Characters of `_` and the digest that makes a changed name unique."""

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_LOCAL = "local"


class WireNames:
    """What the tools of one call are named towards the provider.

    A local tool keeps its name, any other is `identifier__name`. What providers would refuse is replaced, and told
    apart by a digest, so that a tool has the same name in every call.

    Args:
        tools: The tools that are offered.
        messages: The conversation; it may hold calls of tools that are not offered any more.
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

    def of(self, toolset: str, name: str) -> str:
        """What the provider calls a tool."""
        return self._wire[toolset, name]

    def tool(self, name: str) -> tuple[str, str]:
        """The toolset and name of the tool that a model asked for; a name that it made up is a local one."""
        return self._tool.get(name) or (_LOCAL, name)


def definitions(tools: Iterable[ToolSpec], names: WireNames) -> list[ToolDefinition]:
    """The offered tools, as the provider's library takes them."""
    return [
        ToolDefinition(
            name=names.of(spec.toolset, spec.name),
            description=spec.description or None,
            parameters_json_schema={"type": "object", "properties": {}, **spec.schema},
        )
        for spec in tools
    ]


def _plain_names_first(pair: tuple[str, str]) -> tuple[bool, bool, tuple[str, str]]:
    toolset, name = pair
    return toolset != _LOCAL, bool(_UNFIT.search(name)), pair


@lru_cache(maxsize=4096)
def _wire_name(toolset: str, name: str) -> str:
    full = name if toolset == _LOCAL else f"{toolset}__{name}"
    fit = _UNFIT.sub("_", full)
    return fit if fit and fit == full and len(fit) <= LONGEST else _with_digest(fit, toolset, name)


def _with_digest(fit: str, toolset: str, name: str) -> str:
    digest = hashlib.sha256(f"{toolset}\0{name}".encode(errors="backslashreplace")).hexdigest()[: TAIL - 1]
    return f"{fit[: LONGEST - TAIL]}_{digest}"


DETAILS = "pydantic_ai"
"""The key of `details` under which an answer is kept that has more to it than text and tool calls."""

UNANSWERED = "There is no result of this call."
UNASKED = "A tool gave this result: "

_ANSWERS: TypeAdapter[wire.ModelResponse] = TypeAdapter(wire.ModelResponse)
_KEPT = {"parts", "provider_name", "provider_url", "provider_response_id", "provider_details", "canonical_system"}


def conversation(messages: Sequence[Message], names: WireNames) -> list[wire.ModelMessage]:
    """The conversation as providers take it: every tool call is followed by its one result.

    A call without a result gets one that says so, and a result without a call is told as text: hooks and compaction may
    have taken the other half away, and providers refuse such a conversation.
    """
    told: list[wire.ModelMessage] = []
    parts: list[wire.ModelRequestPart] = []
    open_calls: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            name = open_calls.pop(message.tool_call_id or "", None)
            if name is None:
                parts.append(wire.UserPromptPart(UNASKED + message.content))
            else:
                parts.append(wire.ToolReturnPart(name, message.content, message.tool_call_id or ""))
            continue
        parts += _missing(open_calls)
        if message.role == "assistant":
            if parts:
                told.append(wire.ModelRequest(parts))
                parts = []
            told.append(_said(message, names))
            open_calls = {
                calling.tool_call_id: names.of(calling.toolset, calling.tool_name) for calling in message.tool_calls
            }
        elif message.role == "system":
            parts.append(wire.SystemPromptPart(message.content))
        else:
            parts.append(wire.UserPromptPart(message.content))
    parts += _missing(open_calls)
    if parts:
        told.append(wire.ModelRequest(parts))
    return told


def answer(response: wire.ModelResponse, names: WireNames, *, cost_usd: float) -> ModelResponse:
    """A provider's answer.

    Args:
        response: As Pydantic AI has it.
        names: The names of the tools in this call.
        cost_usd: What it cost.
    """
    content, callings = _text(response.parts), _callings(response.parts, names)
    said = (response.provider_details or {}).get("finish_reason")
    return ModelResponse(
        content=content,
        tool_calls=callings,
        reasoning="\n".join(part.content for part in response.parts if isinstance(part, wire.ThinkingPart)),
        usage=Usage(
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            cost_usd=cost_usd,
        ),
        finish_reason=said if isinstance(said, str) else response.finish_reason or "stop",
        model=response.model_name or "",
        response_id=response.provider_response_id or "",
        details={DETAILS: _kept(response, content, callings)} if _has_more(response) else {},
    )


def _missing(open_calls: dict[str, str]) -> list[wire.ModelRequestPart]:
    """Results of the calls that have none."""
    parts: list[wire.ModelRequestPart] = [
        wire.ToolReturnPart(name, UNANSWERED, call_id, outcome="interrupted") for call_id, name in open_calls.items()
    ]
    open_calls.clear()
    return parts


def _said(message: Message, names: WireNames) -> wire.ModelResponse:
    """What the model said: with everything that its provider gave with it, if hooks have not changed it since."""
    whole = _restored(message, names) if DETAILS in message.details else None
    if whole is not None:
        return whole
    parts: list[wire.ModelResponsePart] = [wire.TextPart(message.content)] if message.content else []
    parts += [
        wire.ToolCallPart(names.of(calling.toolset, calling.tool_name), writable(calling.args), calling.tool_call_id)
        for calling in message.tool_calls
    ]
    return wire.ModelResponse(parts)


def _kept(response: wire.ModelResponse, content: str, callings: list[ToolRequest]) -> dict[str, Any]:
    """Everything of an answer that the message itself does not hold, and a digest of what the message must still be."""
    kept: dict[str, Any] = _ANSWERS.dump_python(response, mode="json", include=_KEPT)
    if "@" in (kept["provider_url"] or ""):
        kept["provider_url"] = None  # it may hold a password
    for part in kept["parts"]:
        if part["part_kind"] == "text":
            part["content"] = len(part["content"])
        elif part["part_kind"] == "tool-call":
            for field in ("tool_name", "args", "tool_call_id"):
                del part[field]
    return {**kept, "digest": _digest(content, callings)}


def _restored(message: Message, names: WireNames) -> wire.ModelResponse | None:
    try:
        kept: dict[str, Any] = writable(message.details[DETAILS])
        if kept.pop("digest") != _digest(message.content, message.tool_calls):
            return None
        rest, callings = message.content, iter(message.tool_calls)
        for part in kept["parts"]:
            if part["part_kind"] == "text":
                length = part["content"]
                part["content"], rest = rest[:length], rest[length:]
            elif part["part_kind"] == "tool-call":
                calling = next(callings)
                part["tool_name"] = names.of(calling.toolset, calling.tool_name)
                part["args"], part["tool_call_id"] = writable(calling.args), calling.tool_call_id
        return _ANSWERS.validate_python({"kind": "response", **kept})
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration):
        return None  # written by another version, or by somebody else


def _digest(content: str, callings: Iterable[ToolRequest]) -> str:
    said = [content, *([calling.toolset, calling.tool_name, calling.args] for calling in callings)]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()


def _text(parts: Iterable[wire.ModelResponsePart]) -> str:
    return "".join(part.content for part in parts if isinstance(part, wire.TextPart))


def _callings(parts: Iterable[wire.ModelResponsePart], names: WireNames) -> list[ToolRequest]:
    callings = []
    for part in parts:
        if isinstance(part, wire.ToolCallPart):
            toolset, name = names.tool(part.tool_name)
            callings.append(
                ToolRequest(toolset=toolset, tool_name=name, args=_args(part), tool_call_id=part.tool_call_id)
            )
    return callings


def _args(part: wire.ToolCallPart) -> dict[str, Any] | str:
    """The arguments as a JSON object, or the model's own text if they are none."""
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
