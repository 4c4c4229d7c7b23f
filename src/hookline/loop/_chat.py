"""`ChatCompletions`: the protocol of OpenAI's chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from hookline._readonly import writable
from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec
from hookline.loop._format import Format, Group, Price, Told, arguments, fields, get, given, plain, text_of, to_usage
from hookline.loop._names import ToolNames

__all__ = ["ChatCompletions"]

ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class ChatCompletions(Format):
    """The protocol of OpenAI's chat completions, which many other providers also speak."""

    name = "chat.completions"
    path = "/chat/completions"
    last_event = rb"^data: ?\[DONE\]"
    conversation = "messages"

    def read_conversation(self, body: Mapping[str, Any], names: ToolNames) -> list[Group]:
        return [
            Group(theirs=entry, ours=[self._read_message(entry, names)]) for entry in given(body.get("messages")) or ()
        ]

    def _read_message(self, entry: Any, names: ToolNames) -> Message:
        role = ROLES.get(get(entry, "role", "user"), "user")
        content = text_of(get(entry, "content")) or get(entry, "refusal", "")
        if role == "assistant":
            calls = [self.read_call(call, names) for call in get(entry, "tool_calls", ())]
            return Message(role=role, content=content, tool_calls=calls)
        if role == "tool":
            return Message(role=role, content=content, tool_call_id=get(entry, "tool_call_id", ""))
        return Message(role=role, content=content)

    def write_message(self, message: Message, names: ToolNames) -> dict[str, Any]:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            entry["content"] = message.content or None
            entry["tool_calls"] = [_write_call(call, names) for call in message.tool_calls]
        if message.role == "tool":
            entry["tool_call_id"] = message.tool_call_id or ""
        return entry

    def read_tool(self, tool: Any, names: ToolNames) -> ToolSpec | None:
        function = get(tool, "function") or get(tool, "custom")
        if function is None:
            return None
        toolset, name = names.identify(get(function, "name", ""))
        schema = plain(get(function, "parameters", {}))
        return ToolSpec(toolset=toolset, name=name, description=get(function, "description", ""), schema=schema)

    def write_tool(self, spec: ToolSpec, names: ToolNames) -> dict[str, Any]:
        function = {"name": names.name(spec.toolset, spec.name), "parameters": writable(spec.schema)}
        if spec.description:
            function["description"] = spec.description
        return {"type": "function", "function": function}

    def wrote(self, answer: object) -> bool:
        return get(answer, "choices") is not None

    def read_answer(self, answer: Any, names: ToolNames, price: Price) -> ModelResponse:
        whole = fields(answer)
        choice = fields(next(iter(whole.get("choices") or ()), None))
        message, model = fields(choice.get("message")), whole.get("model") or ""
        tokens = _read_tokens(whole.get("usage"))
        cost = price(tokens, model)
        return ModelResponse(
            content=message.get("content") or message.get("refusal") or "",
            tool_calls=[self.read_call(call, names) for call in message.get("tool_calls") or ()],
            reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
            usage=to_usage(tokens, cost),
            finish_reason=choice.get("finish_reason") or "",
            model=model,
            response_id=whole.get("id") or "",
            cost_known=cost is not None,
        )

    def read_calls(self, answer: Any) -> list[Any]:
        choice = fields(next(iter(get(answer, "choices", ())), None))
        return list(fields(choice.get("message")).get("tool_calls") or ())

    def read_call(self, call: Any, names: ToolNames) -> ToolRequest:
        whole = fields(call)
        is_custom = whole.get("type") == "custom" and whole.get("custom") is not None
        function = fields(whole.get("custom" if is_custom else "function"))
        toolset, name = names.identify(function.get("name") or "")
        args = {"input": function.get("input") or ""} if is_custom else arguments(function.get("arguments"))
        return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=whole.get("id") or "")

    def write_answer(
        self, answer: ModelResponse, own: Mapping[str, Any] | None, model: str, names: ToolNames
    ) -> dict[str, Any]:
        whole = dict(own) if own is not None else _empty_completion(answer, model)
        choice = dict(next(iter(whole.get("choices") or ()), {"index": 0, "finish_reason": "stop", "logprobs": None}))
        message = {"role": "assistant", **dict(choice.get("message") or {})}
        message["content"] = answer.content or (None if answer.tool_calls else "")
        message.pop("refusal", None)
        message.pop("parsed", None)
        known = [(self.read_call(call, names), call) for call in message.pop("tool_calls", None) or ()]
        calls = [
            next((call for request, call in known if request == wanted), None) or _write_call(wanted, names)
            for wanted in answer.tool_calls
        ]
        if calls:
            message["tool_calls"] = calls
        if answer.reasoning != _text(message.get("reasoning_content") or message.get("reasoning")):
            message.pop("reasoning", None)
            message["reasoning_content"] = answer.reasoning
        if bool(calls) != bool(known) or own is None:
            stopped = answer.finish_reason if answer.finish_reason not in ("", "tool_calls") else "stop"
            choice["finish_reason"] = "tool_calls" if calls else stopped
        choice["message"] = message
        whole["choices"] = [choice, *list(whole.get("choices") or ())[1:]]
        return whole

    def write_events(self, answer: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        head = {
            "id": answer.get("id", ""),
            "object": "chat.completion.chunk",
            "created": answer.get("created", 0),
            "model": answer.get("model", ""),
        }

        def chunk(choice: Mapping[str, Any], delta: dict[str, Any], finish: str | None = None) -> tuple[str, Any]:
            piece = {"index": choice.get("index", 0), "delta": delta, "logprobs": None, "finish_reason": finish}
            return "", {**head, "choices": [piece]}

        for choice in answer.get("choices") or ():
            message = choice["message"]
            yield chunk(choice, {"role": "assistant", "content": ""})
            for name in ("reasoning_content", "content", "refusal"):
                if message.get(name):
                    yield chunk(choice, {name: message[name]})
            for index, call in enumerate(message.get("tool_calls") or ()):
                yield chunk(choice, {"tool_calls": [{"index": index, **call}]})
            yield chunk(choice, {}, choice.get("finish_reason") or "stop")
        if get(given(body.get("stream_options")), "include_usage") and answer.get("usage"):
            yield "", {**head, "choices": [], "usage": answer["usage"]}
        yield "", "[DONE]"

    def read_text(self, data: Mapping[str, Any]) -> tuple[object, str] | None:
        choices = data.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or choices[0].get("index", 0) != 0:
            return None
        delta = choices[0].get("delta") or {}
        text, others = delta.get("content"), {name for name, value in delta.items() if value} - {"role", "content"}
        if not isinstance(text, str) or not text or others or choices[0].get("finish_reason"):
            return None
        return 0, text

    def with_text(self, data: Mapping[str, Any], text: str) -> dict[str, Any]:
        choice = data["choices"][0]
        return {**data, "choices": [{**choice, "delta": {**choice["delta"], "content": text}, "logprobs": None}]}

    def is_frame(self, data: Mapping[str, Any]) -> bool:
        choices = data.get("choices") or []
        filled = {name for each in choices for name, value in (each.get("delta") or {}).items() if value}
        return filled <= {"role"} and not any(each.get("finish_reason") for each in choices)

    def join_events(self, events: Iterable[tuple[str, Any]]) -> dict[str, Any] | None:
        whole: dict[str, Any] | None = None
        choices: dict[int, dict[str, Any]] = {}
        for _, chunk in events:
            if not isinstance(chunk, dict) or "choices" not in chunk:
                continue
            if whole is None:
                whole = {**chunk, "object": "chat.completion"}
            if chunk.get("usage"):
                whole["usage"] = chunk["usage"]
            for piece in chunk["choices"] or ():
                index = piece.get("index", 0)
                fresh = {"index": index, "finish_reason": None, "message": {"role": "assistant", "content": None}}
                choice = choices.setdefault(index, fresh)
                choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]
                _add_delta(choice["message"], piece.get("delta") or {})
        if whole is None:
            return None
        for choice in choices.values():
            calls = choice["message"].get("tool_calls")
            if calls and choice["finish_reason"] is None:  # it broke off: only calls that came whole are calls
                choice["message"]["tool_calls"] = [call for call in calls if _is_whole(call)]
        whole["choices"] = [choices[index] for index in sorted(choices)]
        return whole

    def write_entries(self, answer: Any) -> list[Any]:
        choice = next(iter(get(answer, "choices", ())), None)
        message = plain(get(choice, "message", {"role": "assistant", "content": ""}))
        message.pop("parsed", None)
        for call in message.get("tool_calls") or ():
            if isinstance(call.get("function"), dict):
                call["function"].pop("parsed_arguments", None)
        return [message]

    def join_entries(self, entries: Sequence[Any]) -> dict[str, Any]:
        return {"choices": [{"message": entries[-1]}]}

    def write_result(self, told: Told) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": get(told.call, "id", ""), "content": told.content}


def _read_tokens(usage: Any) -> dict[str, int]:
    """Return the tokens of an answer, by the names that `genai_prices` uses."""
    known, tokens = fields(usage), dict[str, int]()
    if count := known.get("prompt_tokens"):
        tokens["input_tokens"] = count
    if count := known.get("completion_tokens"):
        tokens["output_tokens"] = count
    if (details := known.get("prompt_tokens_details")) and (count := get(details, "cached_tokens")):
        tokens["cache_read_tokens"] = count
    return tokens


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _write_call(request: ToolRequest, names: ToolNames) -> dict[str, Any]:
    text = request.args if isinstance(request.args, str) else json.dumps(writable(request.args))
    function = {"name": names.name(request.toolset, request.tool_name), "arguments": text}
    return {"id": request.tool_call_id, "type": "function", "function": function}


def _empty_completion(answer: ModelResponse, model: str) -> dict[str, Any]:
    used = answer.usage
    return {
        "id": answer.response_id or "hookline",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": answer.model or model,
        "usage": {
            "prompt_tokens": used.input_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.input_tokens + used.output_tokens,
        },
    }


def _add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a streamed piece to a message."""
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for piece in value or ():
                index = piece.get("index", len(calls))
                while len(calls) <= index:
                    calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                _add_call(calls[index], piece)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None and name != "role":
            message[name] = value


def _add_call(call: dict[str, Any], piece: Mapping[str, Any]) -> None:
    call["id"] = piece.get("id") or call["id"]
    call["type"] = piece.get("type") or call["type"]
    for kind, text in (("function", "arguments"), ("custom", "input")):
        part = piece.get(kind)
        if part:
            if kind == "custom":
                call.pop("function", None)
            held = call.setdefault(kind, {"name": "", text: ""})
            held["name"] = held["name"] or part.get("name") or ""
            held[text] += part.get(text) or ""


def _is_whole(call: Mapping[str, Any]) -> bool:
    text = get(call.get("function"), "arguments", "")
    return not text or isinstance(arguments(text), dict)
