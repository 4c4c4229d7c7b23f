"""Convert messages, model responses, tool arguments and results between Pydantic AI and hookline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import msgspec
from genai_prices.data_snapshot import get_snapshot
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRetry, ToolFailed, ToolFailedError, ToolRetryError
from pydantic_ai.messages import (
    CompactionPart,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
    is_multi_modal_content,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_core import to_json, to_jsonable_python

from hookline import calls
from hookline.adapters._conversion import copy_json
from hookline.calls import Message, ToolRequest, ToolSpec, Usage
from hookline.runtime import ToolDone

__all__ = [
    "RequestMessages",
    "ToolsetOf",
    "apply_changes",
    "final_args",
    "from_model_response",
    "is_text",
    "last_input_tokens",
    "may_rewrite_args",
    "original_error",
    "summary_text",
    "text_of",
    "to_model_response",
    "to_tool_request",
    "to_tool_result",
    "toolset_of",
    "validate_args",
]

_VALIDATION_METHODS = ("before_tool_validate", "wrap_tool_validate", "after_tool_validate")


def may_rewrite_args(ctx: RunContext[Any]) -> bool:
    """Return whether another capability of the run may change a call's arguments before hooks see them."""
    return any(map(_has_validation_methods, map(type, ctx.capabilities.values())))


@lru_cache(maxsize=256)
def _has_validation_methods(capability: type[AbstractCapability[Any]]) -> bool:
    return any(getattr(capability, name, None) is not getattr(AbstractCapability, name) for name in _VALIDATION_METHODS)


def final_args(
    ctx: RunContext[Any], tool: ToolsetTool[Any], part: ToolCallPart, args: dict[str, Any]
) -> dict[str, Any]:
    """Return a call's arguments as the model gave them, with the changes that other capabilities made.

    Args:
        ctx: The run.
        tool: The tool.
        part: The call.
        args: The validated arguments.
    """
    try:
        own = _to_json_values(_parse_args(ctx, tool, part.args))
    except Exception:  # another capability corrected invalid arguments
        own = {}
    given, final = part.args_as_dict(), _to_json_values(args)
    if own == final:
        return given
    shown = {name: value for name, value in given.items() if name in final}
    return shown | {name: value for name, value in final.items() if name not in own or own[name] != value}


async def validate_args(ctx: RunContext[Any], tool: ToolsetTool[Any], final: Mapping[str, Any]) -> dict[str, Any]:
    """Validate arguments that a hook changed, and return them as the tool takes them."""
    validated = _parse_args(ctx, tool, copy_json(final))
    if tool.args_validator_func is not None:
        outcome = tool.args_validator_func(ctx, **validated)
        if inspect.isawaitable(outcome):
            await outcome
    return validated


def _parse_args(ctx: RunContext[Any], tool: ToolsetTool[Any], args: str | dict[str, Any] | None) -> dict[str, Any]:
    validator, context = tool.args_validator, ctx.validation_context
    read: dict[str, Any] = (
        validator.validate_json(args or "{}", context=context)
        if isinstance(args, str)
        else validator.validate_python(args or {}, context=context)
    )
    return read


def _to_json_values(args: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable_python(dict(args), bytes_mode="base64", fallback=str)
    return plain


class RequestMessages:
    """The messages, tools and settings of a model request as hooks see them, with their originals.

    Args:
        context: The request.
        toolset_of: Returns the toolset of a tool.
    """

    def __init__(self, context: ModelRequestContext, toolset_of: ToolsetOf) -> None:
        self.messages: list[Message] = []
        self.tools = [
            ToolSpec(
                toolset=toolset_of(tool.name),
                name=tool.name,
                description=tool.description or "",
                schema=tool.parameters_json_schema,
            )
            for tool in context.model_request_parameters.function_tools
        ]
        self._context, self._toolset_of = context, toolset_of
        self._originals: dict[int, tuple[ModelMessage, ModelRequestPart | None]] = {}
        parts = context.model_request_parameters.instruction_parts or []
        self._instructions = "\n\n".join(part.content for part in parts)
        if self._instructions:
            self.messages.append(Message(role="system", content=self._instructions))
        for message in context.messages:
            if isinstance(message, ModelResponse):
                answer = to_model_response(message, toolset_of)
                shown = Message(role="assistant", content=answer.content, tool_calls=answer.tool_calls)
                self._add(shown, message, None)
            else:
                for part in message.parts:
                    self._add(_from_part(part), message, part)

    def _add(self, shown: Message, message: ModelMessage, part: ModelRequestPart | None) -> None:
        self.messages.append(shown)
        self._originals[id(shown)] = message, part

    def request(self, call: calls.ModelCall) -> ModelRequestContext:
        """Return the request as hooks left it; the original request if they changed nothing.

        Args:
            call: The call after the hooks.
        """
        context, settings = self._context, dict(call.settings)
        if settings != dict(context.model_settings or {}):
            context = replace(context, model_settings=cast(Any, settings))
        offered, parameters = {spec.name for spec in call.tools}, context.model_request_parameters
        if any(tool.name not in offered for tool in parameters.function_tools):
            left = [tool for tool in parameters.function_tools if tool.name in offered]
            context = replace(context, model_request_parameters=replace(parameters, function_tools=left))
        if list(call.messages) == self.messages:
            return context
        messages = self._pair_with_originals(call.messages)
        first = messages[0][0] if messages and id(messages[0][1]) not in self._originals else None
        if first is not None and first.role == "system":
            del messages[0]
            if first.content != self._instructions:
                parameters = replace(
                    context.model_request_parameters, instruction_parts=[InstructionPart(content=first.content)]
                )
                context = replace(context, model_request_parameters=parameters)
        return replace(context, messages=self._to_history(messages))

    def _pair_with_originals(self, messages: Sequence[Message]) -> list[tuple[Message, Message | None]]:
        """Pair each message with its original: itself, or the message that it replaces."""
        if len(messages) != len(self.messages):
            return [(message, message) for message in messages]
        left = {id(message) for message in messages}
        return [
            (message, shown if id(shown) not in left and shown.role == message.role else message)
            for message, shown in zip(messages, self.messages, strict=True)
        ]

    def _to_history(self, messages: Sequence[tuple[Message, Message | None]]) -> list[ModelMessage]:
        history: list[ModelMessage] = []
        open_request: ModelMessage | None = None
        for message, shown in messages:
            was, part = self._originals.get(id(shown), (None, None))
            if message.role == "assistant":
                history.append(self._to_response(message, shown, was))
                open_request = None
                continue
            last = history[-1] if history else None
            if part is None or message != shown:
                part = _to_part(message, part)
            if isinstance(last, ModelRequest) and (was is None or was is open_request):
                history[-1] = replace(last, parts=[*last.parts, part])
            else:
                history.append(replace(was, parts=[part]) if isinstance(was, ModelRequest) else ModelRequest([part]))
                open_request = was
        return history

    def _to_response(self, message: Message, shown: Message | None, was: ModelMessage | None) -> ModelMessage:
        answer = calls.ModelResponse(content=message.content, tool_calls=list(message.tool_calls))
        if shown is None or not isinstance(was, ModelResponse):
            return from_model_response(answer)
        if message == shown:
            return was
        before = calls.ModelResponse(content=shown.content, tool_calls=list(shown.tool_calls))
        # The reasoning may repeat the text that a hook has changed, so it is left out.
        was = replace(was, parts=[part for part in was.parts if not isinstance(part, ThinkingPart)])
        return apply_changes(answer, before, was, self._toolset_of)


def _from_part(part: ModelRequestPart) -> Message:
    match part:
        case SystemPromptPart():
            return Message(role="system", content=part.content)
        case ToolReturnPart():
            return Message(role="tool", content=part.model_response_str(), tool_call_id=part.tool_call_id)
        case RetryPromptPart(tool_name=str()):
            return Message(role="tool", content=part.model_response(), tool_call_id=part.tool_call_id)
        case RetryPromptPart():
            return Message(role="user", content=part.model_response())
        case _:
            return Message(role="user", content=text_of(getattr(part, "content", None)))


def _to_part(message: Message, was: ModelRequestPart | None) -> ModelRequestPart:
    """Convert a message of a hook, keeping the non-text content of the part that it replaces."""
    if message.role == "system":
        return SystemPromptPart(message.content)
    if message.role == "tool":
        tool = was.tool_name if isinstance(was, ToolReturnPart | RetryPromptPart) else None
        files = was.files if isinstance(was, ToolReturnPart) else []
        content = [message.content, *files] if files else message.content
        return ToolReturnPart(tool or "", content, tool_call_id=message.tool_call_id or "")
    if not isinstance(was, UserPromptPart):
        return UserPromptPart(message.content)
    if isinstance(was.content, str):
        return replace(was, content=message.content)
    text = [message.content] if message.content else []
    first = next((at for at, each in enumerate(was.content) if is_text(each)), 0)
    rest = [each for each in was.content[first:] if not is_text(each)]
    return replace(was, content=[*was.content[:first], *text, *rest])


ToolsetOf = Callable[[str], str]
"""Returns the toolset of a tool, by the tool's name."""


def is_text(content: object) -> bool:
    """Return whether a piece of a prompt is text."""
    return isinstance(content, str | TextContent)


def text_of(content: object) -> str:
    """Return a prompt's text, or any other value as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list | tuple) and any(is_text(each) for each in content):
        return "\n".join(each if isinstance(each, str) else each.content for each in content if is_text(each))
    return to_json(content, fallback=str).decode()


def to_tool_result(tool: str, value: object) -> calls.ToolResult:
    """Convert a tool's return value to the result that the model reads."""
    content = value.return_value if isinstance(value, ToolReturn) else value
    if isinstance(content, str) or type(content) is int:  # creating a part, with id and time, costs more than the rest
        return calls.ToolResult(content=content if isinstance(content, str) else str(content))
    return calls.ToolResult(content=ToolReturnPart(tool, content, tool_call_id="").model_response_str())


def add_text(value: Any, done: ToolDone) -> Any:
    """Return what a tool returned with the text that hooks have added for the model, and all that is not text."""
    inner = value.return_value if isinstance(value, ToolReturn) else value
    several = inner if isinstance(inner, list | tuple) else [inner]
    kept = any(is_multi_modal_content(each) for each in several)
    changed = [*several, done.added] if kept else done.result.content
    return replace(value, return_value=changed) if isinstance(value, ToolReturn) else changed


def original_error(error: Exception) -> Exception:
    """Return the exception that a tool raised, unwrapped from the framework's."""
    wrapped = isinstance(error, ToolRetryError | ToolFailedError) and isinstance(
        error.__cause__, ModelRetry | ToolFailed
    )
    return error.__cause__ if wrapped and isinstance(error.__cause__, Exception) else error


def toolset_of(tool: Any) -> str:
    """Return a tool's toolset: the name of its MCP server, or `"local"`."""
    while tool is not None and hasattr(tool, "source_tool"):
        tool = tool.source_tool
    toolset = getattr(tool, "toolset", None)
    while isinstance(toolset, WrapperToolset):
        toolset = toolset.wrapped
    if toolset is None or not hasattr(type(toolset), "server_info"):
        return "local"
    return str(tool.tool_def.toolset_id or toolset.server_info.name)


def to_tool_request(part: ToolCallPart, toolset_of: ToolsetOf) -> ToolRequest:
    """Convert a tool call of the model."""
    return _to_tool_request(part, toolset_of(part.tool_name))


def _to_tool_request(part: ToolCallPart, toolset: str) -> ToolRequest:
    args: Any = part.args_as_dict() if isinstance(part.args, dict) else part.args
    return ToolRequest(toolset=toolset, tool_name=part.tool_name, args=args or {}, tool_call_id=part.tool_call_id)


def summary_text(response: ModelResponse) -> str:
    """Return the readable text of a compaction."""
    texts = [part.content for part in response.parts if isinstance(part, CompactionPart | TextPart)]
    return "".join(text for text in texts if text)


def last_input_tokens(messages: Sequence[ModelMessage]) -> int:
    """Return the input tokens of the last answer."""
    return next((each.usage.input_tokens for each in reversed(messages) if isinstance(each, ModelResponse)), 0)


def to_model_response(response: ModelResponse, toolset_of: ToolsetOf) -> calls.ModelResponse:
    """Convert a model's answer.

    Args:
        response: The answer. Calls of tools that give the run's output count as its content.
        toolset_of: Returns the toolset of a tool; `""` if the tool gives the run's output.
    """
    text = reasoning = ""
    requests: list[ToolRequest] = []
    for part in response.parts:
        match part:
            case TextPart():
                text += part.content
            case ThinkingPart():
                reasoning += part.content
            case ToolCallPart():
                toolset = toolset_of(part.tool_name)
                if toolset == "":
                    text += part.args_as_json_str()
                else:
                    requests.append(_to_tool_request(part, toolset))
    used = response.usage
    cost_usd = _cost_of(response)
    usage = Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, cost_usd=cost_usd or 0.0)
    return calls.ModelResponse(
        content=text,
        reasoning=reasoning,
        tool_calls=requests,
        usage=usage,
        cost_known=cost_usd is not None,
        finish_reason=response.finish_reason or "stop",
        model=response.model_name or "",
    )


class _UnknownPrices:
    """The models that a list of prices does not have: to look for one takes longer than all else in a conversion.

    Args:
        prices: The list.
    """

    def __init__(self, prices: object) -> None:
        self.prices = prices
        self.models: set[tuple[str | None, ...]] = set()


_unknown_prices = _UnknownPrices(None)

MOST_UNKNOWN = 1000
"""The most models of unknown price that are remembered."""


def _cost_of(response: ModelResponse) -> float | None:
    """Return the cost of an answer in dollars; `None` if the framework does not know the price."""
    global _unknown_prices
    prices, unknown = get_snapshot(), _unknown_prices
    if unknown.prices is not prices or len(unknown.models) > MOST_UNKNOWN:  # the list has been updated
        unknown = _unknown_prices = _UnknownPrices(prices)
    model = response.model_name, response.provider_name, response.provider_url
    if not response.model_name or model in unknown.models or not response.usage.has_values():
        return None
    try:
        return float(response.cost().total_price)
    except LookupError:
        unknown.models.add(model)
    except ValueError:
        pass
    return None


def from_model_response(answer: calls.ModelResponse) -> ModelResponse:
    """Convert a response that a hook provided."""
    thought = [ThinkingPart(answer.reasoning)] if answer.reasoning else []
    return ModelResponse(parts=[*thought, *_to_text_parts(answer), *_to_tool_call_parts(answer)])


def apply_changes(
    answer: calls.ModelResponse, before: calls.ModelResponse, was: ModelResponse, toolset_of: ToolsetOf
) -> ModelResponse:
    """Apply a hook's changes to a model's answer; everything else stays as the model gave it.

    Args:
        answer: The response that hooks left.
        before: The response that hooks were given.
        was: The model's original answer.
        toolset_of: Returns the toolset of a tool; `""` if the tool gives the run's output.
    """

    def is_unchanged(part: object) -> bool:
        if isinstance(part, ToolCallPart) and toolset_of(part.tool_name) != "":
            return answer.tool_calls == before.tool_calls
        return not isinstance(part, TextPart | ToolCallPart) or answer.content == before.content

    outputs = [part for part in was.parts if isinstance(part, ToolCallPart) and toolset_of(part.tool_name) == ""]
    only_output = [part.args_as_json_str() for part in outputs] == [before.content]
    if answer.content and only_output:  # the content is the arguments of an output tool, with no text beside them
        changed = replace(outputs[0], args=answer.content)
        was = replace(was, parts=[changed if part is outputs[0] else part for part in was.parts])
        before = msgspec.structs.replace(before, content=answer.content)
    parts = [part for part in was.parts if is_unchanged(part)]
    if answer.content != before.content:
        parts.extend(_to_text_parts(answer))
    if answer.tool_calls != before.tool_calls:
        parts.extend(_to_tool_call_parts(answer))
    return replace(was, parts=parts)


def _to_text_parts(answer: calls.ModelResponse) -> list[TextPart]:
    return [TextPart(answer.content)] if answer.content else []


def _to_tool_call_parts(answer: calls.ModelResponse) -> list[ToolCallPart]:
    parts = [ToolCallPart(calling.tool_name, copy(calling.args)) for calling in answer.tool_calls]
    named = zip(parts, (calling.tool_call_id for calling in answer.tool_calls), strict=True)
    return [replace(part, tool_call_id=name) if name else part for part, name in named]
