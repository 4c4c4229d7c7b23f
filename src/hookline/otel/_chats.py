"""Model calls as `chat` spans. No event tells of them: a run lets its telemetry in when it asks the model."""

from __future__ import annotations

from time import time_ns
from typing import Any

from opentelemetry.trace import SpanKind

from hookline.calls import ModelCall, ModelResponse
from hookline.errors import message_of
from hookline.otel import _attributes as names
from hookline.otel._content import Content, answer_parts, split_system, tool_definitions
from hookline.otel._log_events import LogEvents
from hookline.otel._spans import OpenSpan, OperationSpans, merge
from hookline.otel._text import clean, count, error_type

__all__ = ["begin_chat", "end_chat"]


def begin_chat(spans: OperationSpans, call: ModelCall, content: Content) -> OpenSpan | None:
    """A model is asked; retries of the same call are part of it."""
    model = clean(call.model) or spans.model
    attributes: dict[str, Any] = {}
    if content.on_spans:
        content.building(put_request, attributes, call, content)
    attributes[names.OPERATION_ID] = spans.id
    if spans.conversation_id is not None:
        attributes[names.CONVERSATION_ID] = spans.conversation_id
    if spans.compacted:
        attributes[names.CONVERSATION_COMPACTED] = True
    for key, value in call.settings.items():
        setting = names.REQUEST_SETTINGS.get(key)
        if setting is not None and (isinstance(value, bool | int | float | str) or _is_texts(value)):
            attributes[setting] = as_setting(value)
    # The most important last: a span that has too many attributes forgets the oldest.
    attributes[names.PROVIDER_NAME] = spans.provider
    if model:
        attributes[names.REQUEST_MODEL] = model
    attributes[names.OPERATION_NAME] = names.CHAT
    name = f"{names.CHAT} {model}" if model else names.CHAT
    return spans.begin(
        ("chat", call.step_index),
        names.CHAT,
        name,
        spans.step_of(call.step_index),
        time_ns(),
        attributes,
        span_kind=SpanKind.CLIENT,
    )


def end_chat(
    spans: OperationSpans,
    opened: OpenSpan,
    call: ModelCall,
    result: object,
    error: BaseException | None,
    content: Content,
    logs: LogEvents,
) -> None:
    """The model has answered, or failed, or was interrupted."""
    at = time_ns()
    if isinstance(error, Exception):
        message = content.message(names.CHAT, names.ERROR_MESSAGE, message_of(error)) if content.on_spans else None
        spans.end(opened, at, error_type=error_type(type(error).__name__), message=message)
        logs.exception(spans.inside(opened), {names.OPERATION_NAME: names.CHAT}, error, content)
        return
    if not isinstance(result, ModelResponse):
        spans.end(opened, at, {names.OUTCOME: "interrupted"})
        return
    spans.finish_reason = clean(result.finish_reason)
    attributes: dict[str, Any] = {names.RESPONSE_FINISH_REASONS: (spans.finish_reason,)}
    if result.model:
        attributes[names.RESPONSE_MODEL] = clean(result.model)
    if result.response_id:
        attributes[names.RESPONSE_ID] = clean(result.response_id)
    usage = result.usage
    if usage.input_tokens or usage.output_tokens:
        attributes[names.USAGE_INPUT_TOKENS] = count(usage.input_tokens)
        attributes[names.USAGE_OUTPUT_TOKENS] = count(usage.output_tokens)
    details = {**opened.attributes, **attributes} if content.on_events else None
    if content.on_spans or details is not None:
        answer: dict[str, Any] = {}
        content.building(put_answer, answer, result, content)
        if content.on_spans:
            attributes |= answer
        elif details is not None:
            content.building(put_request, details, call, content)
        if details is not None:
            merge(details, answer)
    spans.end(opened, at, attributes)
    if details is not None:
        logs.emit(names.INFERENCE_DETAILS_EVENT, spans.inside(opened), details, at=at)


def put_answer(attributes: dict[str, Any], response: ModelResponse, content: Content) -> None:
    """What the model has answered, for whoever records content."""
    content.put(attributes, names.CHAT, names.OUTPUT_MESSAGES, answer_parts(response))


def put_request(attributes: dict[str, Any], call: ModelCall, content: Content) -> None:
    """What the model is asked, for whoever records content."""
    instructions, messages = split_system(call.messages)
    if instructions:
        content.put(attributes, names.CHAT, names.SYSTEM_INSTRUCTIONS, instructions)
    content.put(attributes, names.CHAT, names.INPUT_MESSAGES, messages, newest_first=True)
    if call.tools:
        content.put(attributes, names.CHAT, names.TOOL_DEFINITIONS, tool_definitions(call.tools))


def as_setting(value: Any) -> Any:
    """A setting of a model as an attribute can carry it."""
    if isinstance(value, list | tuple):
        return tuple(clean(each) for each in value)
    if isinstance(value, str):
        return clean(value)
    return count(value) if value.__class__ is int else value


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
