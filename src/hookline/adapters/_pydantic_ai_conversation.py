"""The messages of a model request of Pydantic AI in hookline's words, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext

from hookline import calls
from hookline.adapters import _pydantic_ai_words as words
from hookline.calls import Message, ToolSpec

__all__ = ["Conversation"]


class Conversation:
    """The messages of a model request, as hookline shows them, with what each of them was.

    Args:
        context: The request.
        naming: Says where a tool comes from.
    """

    def __init__(self, context: ModelRequestContext, naming: words.Naming) -> None:
        self.messages: list[Message] = []
        self.tools = [
            ToolSpec(
                identifier=naming(tool.name),
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
                answer = words.answer_of(message, naming)
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
            return words.response_of(answer)
        if message == shown:
            return was
        before = calls.ModelResponse(content=shown.content, tool_calls=list(shown.tool_calls))
        was = replace(was, parts=[part for part in was.parts if not isinstance(part, ThinkingPart)])  # it is text too
        return words.changed_response(answer, before, was, self._naming)


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
            return Message(role="user", content=words.text_of(getattr(part, "content", None)))


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
    first = next((at for at, each in enumerate(was.content) if words.is_text(each)), 0)
    rest = [each for each in was.content[first:] if not words.is_text(each)]
    return replace(was, content=[*was.content[:first], *text, *rest])
