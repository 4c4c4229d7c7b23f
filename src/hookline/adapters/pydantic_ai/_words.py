"""Messages, answers and results of Pydantic AI in hookline's words, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, cast

import msgspec
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
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_core import to_json, to_jsonable_python

from hookline import calls
from hookline.calls import Message, ToolRequest, ToolSpec, Usage

__all__ = [
    "Conversation",
    "Naming",
    "answer_of",
    "as_it_will_run",
    "calling_of",
    "cause_of",
    "changed_response",
    "is_text",
    "may_change",
    "response_of",
    "result_of",
    "source_of",
    "summary_of",
    "text_of",
    "tokens_of",
    "validated",
]

_SEAMS = ("before_tool_validate", "wrap_tool_validate", "after_tool_validate")


def may_change(ctx: RunContext[Any]) -> bool:
    """Whether another capability of the run may change arguments before a call is led."""
    return any(
        getattr(type(each), seam, None) is not getattr(AbstractCapability, seam)
        for each in ctx.capabilities.values()
        for seam in _SEAMS
    )


def as_it_will_run(
    ctx: RunContext[Any], tool: ToolsetTool[Any], part: ToolCallPart, args: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call: as the model gave them, but for those that another capability has changed.

    Args:
        ctx: The run.
        tool: The tool.
        part: The call.
        args: Its arguments as the tool takes them.
    """
    try:
        own = _plain_values(_read(ctx, tool, part.args))
    except Exception:  # another capability has mended what is wrong with them
        own = {}
    given, final = part.args_as_dict(), _plain_values(args)
    if own == final:
        return given
    shown = {name: value for name, value in given.items() if name in final}
    return shown | {name: value for name, value in final.items() if name not in own or own[name] != value}


async def validated(ctx: RunContext[Any], tool: ToolsetTool[Any], final: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a hook has changed, as the tool takes them."""
    taken = _read(ctx, tool, _plain(final))
    if tool.args_validator_func is not None:
        judged = tool.args_validator_func(ctx, **taken)
        if inspect.isawaitable(judged):
            await judged
    return taken


def _read(ctx: RunContext[Any], tool: ToolsetTool[Any], args: str | dict[str, Any] | None) -> dict[str, Any]:
    validator, context = tool.args_validator, ctx.validation_context
    read: dict[str, Any] = (
        validator.validate_json(args or "{}", context=context)
        if isinstance(args, str)
        else validator.validate_python(args or {}, context=context)
    )
    return read


def _plain_values(args: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable_python(dict(args), bytes_mode="base64", fallback=str)
    return plain


def _plain(value: Any) -> Any:
    """Arguments as their own, with lists and objects that may be changed."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


class Conversation:
    """The messages of a model request, as hookline shows them, with what each of them was.

    Args:
        context: The request.
        naming: Says where a tool comes from.
    """

    def __init__(self, context: ModelRequestContext, naming: Naming) -> None:
        self.messages: list[Message] = []
        self.tools = [
            ToolSpec(
                toolset=naming(tool.name),
                name=tool.name,
                description=tool.description or "",
                schema=tool.parameters_json_schema,
            )
            for tool in context.model_request_parameters.function_tools
        ]
        self._context, self._naming = context, naming
        self._was: dict[int, tuple[ModelMessage, ModelRequestPart | None]] = {}
        parts = context.model_request_parameters.instruction_parts or []
        self._instructions = "\n\n".join(part.content for part in parts)
        if self._instructions:
            self.messages.append(Message(role="system", content=self._instructions))
        for message in context.messages:
            if isinstance(message, ModelResponse):
                answer = answer_of(message, naming)
                shown = Message(role="assistant", content=answer.content, tool_calls=answer.tool_calls)
                self._add(shown, message, None)
            else:
                for part in message.parts:
                    self._add(_shown(part), message, part)

    def _add(self, shown: Message, message: ModelMessage, part: ModelRequestPart | None) -> None:
        self.messages.append(shown)
        self._was[id(shown)] = message, part

    def request(self, call: calls.ModelCall) -> ModelRequestContext:
        """The request, as hooks have left it; the very same if they changed nothing.

        Args:
            call: The call at its last.
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
        messages = self._paired(call.messages)
        first = messages[0][0] if messages and id(messages[0][1]) not in self._was else None
        if first is not None and first.role == "system":
            del messages[0]
            if first.content != self._instructions:
                parameters = replace(
                    context.model_request_parameters, instruction_parts=[InstructionPart(content=first.content)]
                )
                context = replace(context, model_request_parameters=parameters)
        return replace(context, messages=self._history(messages))

    def _paired(self, messages: Sequence[Message]) -> list[tuple[Message, Message | None]]:
        """Each message with the one that it was: itself, or that in whose place it stands."""
        if len(messages) != len(self.messages):
            return [(message, message) for message in messages]
        left = {id(message) for message in messages}
        return [
            (message, shown if id(shown) not in left and shown.role == message.role else message)
            for message, shown in zip(messages, self.messages, strict=True)
        ]

    def _history(self, messages: Sequence[tuple[Message, Message | None]]) -> list[ModelMessage]:
        history: list[ModelMessage] = []
        open_request: ModelMessage | None = None
        for message, shown in messages:
            was, part = self._was.get(id(shown), (None, None))
            if message.role == "assistant":
                history.append(self._answer(message, shown, was))
                open_request = None
                continue
            last = history[-1] if history else None
            if part is None or message != shown:
                part = _part(message, part)
            if isinstance(last, ModelRequest) and (was is None or was is open_request):
                history[-1] = replace(last, parts=[*last.parts, part])
            else:
                history.append(replace(was, parts=[part]) if isinstance(was, ModelRequest) else ModelRequest([part]))
                open_request = was
        return history

    def _answer(self, message: Message, shown: Message | None, was: ModelMessage | None) -> ModelMessage:
        answer = calls.ModelResponse(content=message.content, tool_calls=list(message.tool_calls))
        if shown is None or not isinstance(was, ModelResponse):
            return response_of(answer)
        if message == shown:
            return was
        before = calls.ModelResponse(content=shown.content, tool_calls=list(shown.tool_calls))
        was = replace(was, parts=[part for part in was.parts if not isinstance(part, ThinkingPart)])  # it is text too
        return changed_response(answer, before, was, self._naming)


def _shown(part: ModelRequestPart) -> Message:
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


def _part(message: Message, was: ModelRequestPart | None) -> ModelRequestPart:
    """A message that a hook gave, with what is no text of the part in whose place it stands."""
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


def calling_of(part: ToolCallPart, naming: Naming) -> ToolRequest:
    """A tool call as the model asked for it."""
    args: Any = part.args_as_dict() if isinstance(part.args, dict) else part.args
    return ToolRequest(
        toolset=naming(part.tool_name), tool_name=part.tool_name, args=args or {}, tool_call_id=part.tool_call_id
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
    calling: list[ToolRequest] = []
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
    parts = [ToolCallPart(calling.tool_name, copy(calling.args)) for calling in answer.tool_calls]
    named = zip(parts, (calling.tool_call_id for calling in answer.tool_calls), strict=True)
    return [replace(part, tool_call_id=name) if name else part for part, name in named]
