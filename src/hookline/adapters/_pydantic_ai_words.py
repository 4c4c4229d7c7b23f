"""Messages, answers and results of Pydantic AI in hookline's words, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import msgspec
from pydantic_ai.exceptions import ModelRetry, ToolFailed, ToolFailedError, ToolRetryError
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelResponse,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.toolsets import WrapperToolset
from pydantic_core import to_json

from hookline import calls
from hookline.calls import ToolCalling, Usage

__all__ = [
    "Naming",
    "answer_of",
    "calling_of",
    "cause_of",
    "changed_response",
    "is_text",
    "response_of",
    "result_of",
    "source_of",
    "summary_of",
    "text_of",
    "tokens_of",
]

Naming = Callable[[str], str]  # says where a tool comes from


def is_text(content: object) -> bool:
    """Whether a piece of a prompt is text."""
    return isinstance(content, str | TextContent)


def text_of(content: object) -> str:
    """The text of a prompt, or of anything else as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list | tuple) and any(is_text(each) for each in content):
        return "\n".join(each if isinstance(each, str) else each.content for each in content if is_text(each))
    return to_json(content, fallback=str).decode()


def result_of(tool: str, value: object) -> calls.ToolResult:
    """What the model is told of a value that a tool returned."""
    content = value.return_value if isinstance(value, ToolReturn) else value
    if isinstance(content, str) or type(content) is int:  # a part, with its id and its time, costs more than the rest
        return calls.ToolResult(content=content if isinstance(content, str) else str(content))
    return calls.ToolResult(content=ToolReturnPart(tool, content, tool_call_id="").model_response_str())


def cause_of(error: Exception) -> Exception:
    """What a tool raised, out of what the framework made of it."""
    wrapped = isinstance(error, ToolRetryError | ToolFailedError) and isinstance(
        error.__cause__, ModelRetry | ToolFailed
    )
    return error.__cause__ if wrapped and isinstance(error.__cause__, Exception) else error


def source_of(tool: Any) -> str:
    """Where a tool of a toolset comes from: the server's name, or `"local"`."""
    while tool is not None and hasattr(tool, "source_tool"):
        tool = tool.source_tool
    toolset = getattr(tool, "toolset", None)
    while isinstance(toolset, WrapperToolset):
        toolset = toolset.wrapped
    if toolset is None or not hasattr(type(toolset), "server_info"):
        return "local"
    return str(tool.tool_def.toolset_id or toolset.server_info.name)


def calling_of(part: ToolCallPart, naming: Naming) -> ToolCalling:
    """A tool call as the model asked for it."""
    args: Any = part.args_as_dict() if isinstance(part.args, dict) else part.args
    return ToolCalling(
        identifier=naming(part.tool_name), api_name=part.tool_name, args=args or {}, tool_call_id=part.tool_call_id
    )


def summary_of(response: ModelResponse) -> str:
    """What a compaction came to, as far as it can be read."""
    texts = [part.content for part in response.parts if isinstance(part, CompactionPart | TextPart)]
    return "".join(text for text in texts if text)


def tokens_of(messages: Sequence[ModelMessage]) -> int:
    """The input tokens of the last answer."""
    return next((each.usage.input_tokens for each in reversed(messages) if isinstance(each, ModelResponse)), 0)


def answer_of(response: ModelResponse, naming: Naming) -> calls.ModelResponse:
    """What the model answered.

    Args:
        response: Its answer; calls of tools that give the run's output count as what it said.
        naming: Says where a tool comes from; nowhere if it gives the run's output.
    """
    said = thought = ""
    calling: list[ToolCalling] = []
    for part in response.parts:
        match part:
            case TextPart():
                said += part.content
            case ThinkingPart():
                thought += part.content
            case ToolCallPart() if naming(part.tool_name) == "":
                said += part.args_as_json_str()
            case ToolCallPart():
                calling.append(calling_of(part, naming))
    used = response.usage
    usage = Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, cost_usd=_cost(response))
    return calls.ModelResponse(
        content=said,
        reasoning=thought,
        tool_calls=calling,
        usage=usage,
        finish_reason=response.finish_reason or "stop",
        model=response.model_name or "",
    )


def _cost(response: ModelResponse) -> float:
    """What an answer cost, where the framework knows its price."""
    if not response.model_name or not response.usage.has_values():
        return 0.0
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError):
        return 0.0


def response_of(answer: calls.ModelResponse) -> ModelResponse:
    """An answer that a hook gave."""
    thought = [ThinkingPart(answer.reasoning)] if answer.reasoning else []
    return ModelResponse(parts=[*thought, *_said(answer), *_calling(answer)])


def changed_response(
    answer: calls.ModelResponse, before: calls.ModelResponse, was: ModelResponse, naming: Naming
) -> ModelResponse:
    """An answer that a hook changed; what it left alone stays as the model gave it.

    Args:
        answer: The answer as it is to be.
        before: The answer as it was.
        was: The same in the framework's words.
        naming: Says where a tool comes from; nowhere if it gives the run's output.
    """

    def kept(part: object) -> bool:
        if isinstance(part, ToolCallPart) and naming(part.tool_name) != "":
            return answer.tool_calls == before.tool_calls
        return not isinstance(part, TextPart | ToolCallPart) or answer.content == before.content

    outputs = [part for part in was.parts if isinstance(part, ToolCallPart) and naming(part.tool_name) == ""]
    if answer.content and [part.args_as_json_str() for part in outputs] == [before.content]:  # the output, and no text
        changed = replace(outputs[0], args=answer.content)
        was = replace(was, parts=[changed if part is outputs[0] else part for part in was.parts])
        before = msgspec.structs.replace(before, content=answer.content)
    parts = [part for part in was.parts if kept(part)]
    if answer.content != before.content:
        parts.extend(_said(answer))
    if answer.tool_calls != before.tool_calls:
        parts.extend(_calling(answer))
    return replace(was, parts=parts)


def _said(answer: calls.ModelResponse) -> list[TextPart]:
    return [TextPart(answer.content)] if answer.content else []


def _calling(answer: calls.ModelResponse) -> list[ToolCallPart]:
    parts = [ToolCallPart(calling.api_name, copy(calling.args)) for calling in answer.tool_calls]
    named = zip(parts, (calling.tool_call_id for calling in answer.tool_calls), strict=True)
    return [replace(part, tool_call_id=name) if name else part for part, name in named]
