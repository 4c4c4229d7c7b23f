"""The answers of a model, in the words of LangChain and in those of hookline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableBinding

from hookline.adapters._langchain_messages import Named, call_of, callings_of
from hookline.calls import ModelResponse as Answer
from hookline.calls import Usage

__all__ = ["answer_of", "answered", "kept", "model_of"]


def model_of(request: ModelRequest[Any]) -> str:
    """What the model that is asked is called, where it says so."""
    model: Any = request.model.bound if isinstance(request.model, RunnableBinding) else request.model
    if not isinstance(model, BaseChatModel):  # one of `init_chat_model` may be made anew by each question
        return ""
    found = (getattr(model, name, None) for name in ("model", "model_name"))
    return next((each for each in found if each and isinstance(each, str)), "")


def answer_of(messages: Sequence[BaseMessage], named: Named) -> Answer:
    """A model's answer in the words of hookline; a call that gives the run's output counts as what it said."""
    message = next((each for each in messages if isinstance(each, AIMessage)), None) or AIMessage("")
    usage, told = message.usage_metadata, message.response_metadata
    over = {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}
    given = [json.dumps(each["args"]) for each in message.tool_calls if each["id"] in over]
    return Answer(
        content=str(message.text) or "".join(given),
        tool_calls=[each for each in callings_of(message, named) if each.tool_call_id not in over],
        reasoning="" if isinstance(message.content, str) else _reasoning(message),
        usage=Usage(input_tokens=usage["input_tokens"], output_tokens=usage["output_tokens"]) if usage else Usage(),
        finish_reason=str(told.get("finish_reason") or told.get("stop_reason") or "stop"),
        model=str(told.get("model_name") or told.get("model") or ""),
        response_id=message.id or "",
    )


def _reasoning(message: AIMessage) -> str:
    blocks: list[Any] = list(message.content_blocks)
    return "".join(str(block.get("reasoning", "")) for block in blocks if block.get("type") == "reasoning")


def answered(answer: Answer, names: Mapping[tuple[str, str], str]) -> AIMessage:
    """An answer that a hook gave or changed."""
    return AIMessage(answer.content, tool_calls=[call_of(each, names) for each in answer.tool_calls])


def kept(response: Any, before: Answer, answer: Answer, names: Mapping[tuple[str, str], str]) -> ModelResponse[Any]:
    """An answer that hooks have changed; what they left alone stays as the model gave it."""
    was = next((each for each in response.result if isinstance(each, AIMessage)), AIMessage(""))
    output = before.content if not was.text else ""  # given by a call
    # Calls are also named in the content, by every provider in its own way.
    if answer.tool_calls != before.tool_calls or (output and answer.content != output):
        kept = {"id": was.id, "usage_metadata": was.usage_metadata, "response_metadata": was.response_metadata}
        return ModelResponse(result=[answered(answer, names).model_copy(update=kept)])
    others = [each for each in response.result if each is not was]
    structured = response.structured_response if others or answer.content == before.content else None
    told = was.model_copy(update={"content": _content(was.content, before, answer)})
    return ModelResponse(result=[told, *others], structured_response=structured)


def _content(was: str | list[Any], before: Answer, answer: Answer) -> str | list[Any]:
    """The text of an answer as hooks have left it, among what else it was made of."""
    if isinstance(was, str):
        return was if answer.content == before.content else answer.content
    gone = set() if answer.reasoning == before.reasoning else {"reasoning", "thinking", "reasoning_content"}
    left = [each for each in was if isinstance(each, str) or each.get("type") not in gone]
    if answer.content == before.content:
        return left
    said = [isinstance(each, str) or each.get("type") == "text" for each in left]
    at = said.index(True) if True in said else len(left)
    others = [each for each, text in zip(left, said, strict=True) if not text]
    return [*others[:at], *([{"type": "text", "text": answer.content}] if answer.content else []), *others[at:]]
