"""`Responses`: the protocol of OpenAI's Responses API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookline._readonly import writable
from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec
from hookline.loop._format import Format, Group, Price, Told, arguments, get, given, plain, text_of, to_usage
from hookline.loop._names import ToolNames

__all__ = ["Responses"]

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The kinds of calls that the loop runs, each with the field of its input."""

RESULTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


class Responses(Format):
    """The protocol of OpenAI's Responses API."""

    name = "responses"
    path = "/responses"
    last_event = rb"^event: ?response\.(completed|incomplete|failed)"
    conversation = "input"

    def list_entries(self, body: Mapping[str, Any]) -> list[Any]:
        entries = given(body.get("input")) or ()
        return [{"role": "user", "content": entries}] if isinstance(entries, str) else list(entries)

    def read_conversation(self, body: Mapping[str, Any], names: ToolNames) -> list[Group]:
        groups: list[Group] = []
        instructions = given(body.get("instructions"))
        if isinstance(instructions, str) and instructions:
            own = [Message(role="system", content=instructions)]
            groups.append(Group(theirs=instructions, ours=own, place="instructions"))
        entries = self.list_entries(body)
        return [*groups, *(Group(theirs=entry, ours=self._read_item(entry, names)) for entry in entries)]

    def _read_item(self, item: Any, names: ToolNames) -> list[Message]:
        kind = get(item, "type", "message")
        if kind == "message":
            role = {"developer": "system", "system": "system", "assistant": "assistant"}.get(get(item, "role"), "user")
            return [Message(role=role, content=text_of(get(item, "content")))]  # type: ignore[arg-type]
        if kind in CALLS:
            return [Message(role="assistant", content="", tool_calls=[self.read_call(item, names)])]
        if kind in RESULTS:
            return [Message(role="tool", content=text_of(get(item, "output")), tool_call_id=get(item, "call_id", ""))]
        return []

    def write_message(self, message: Message, names: ToolNames) -> list[dict[str, Any]]:
        if message.role == "tool":
            call_id = message.tool_call_id or ""
            return [{"type": "function_call_output", "call_id": call_id, "output": message.content}]
        calls = [_write_call(call, names) for call in message.tool_calls]
        text = [{"role": message.role, "content": message.content}] if message.content or not calls else []
        return [*text, *calls]

    def put_conversation(self, body: dict[str, Any], entries: Sequence[Group]) -> None:
        body.pop("instructions", None)
        items: list[Any] = []
        for each in entries:
            if each.place == "instructions":
                body["instructions"] = each.theirs
            elif isinstance(each.theirs, list):  # a message that a hook wrote, which may be several items
                items += each.theirs
            else:
                items.append(each.theirs)
        body["input"] = items

    def read_tool(self, tool: Any, names: ToolNames) -> ToolSpec | None:
        if get(tool, "type") not in ("function", "custom"):
            return None
        toolset, name = names.identify(get(tool, "name", ""))
        schema = plain(get(tool, "parameters", {}))
        return ToolSpec(toolset=toolset, name=name, description=get(tool, "description", ""), schema=schema)

    def write_tool(self, spec: ToolSpec, names: ToolNames) -> dict[str, Any]:
        tool: dict[str, Any] = {"type": "function", "name": names.name(spec.toolset, spec.name)}
        if spec.description:
            tool["description"] = spec.description
        return {**tool, "parameters": writable(spec.schema), "strict": False}

    def wrote(self, answer: object) -> bool:
        return get(answer, "object") == "response" and get(answer, "output") is not None

    def read_answer(self, answer: Any, names: ToolNames, price: Price) -> ModelResponse:
        items, model = get(answer, "output", ()), get(answer, "model", "")
        tokens = _read_tokens(get(answer, "usage"))
        cost = price(tokens, model)
        return ModelResponse(
            content=_output_text(items),
            tool_calls=[self.read_call(item, names) for item in self.read_calls(answer)],
            reasoning=_reasoning(items),
            usage=to_usage(tokens, cost),
            finish_reason=get(get(answer, "incomplete_details"), "reason") or get(answer, "status", ""),
            model=model,
            response_id=get(answer, "id", ""),
            cost_known=cost is not None,
        )

    def read_calls(self, answer: Any) -> list[Any]:
        return [item for item in get(answer, "output", ()) if get(item, "type") in CALLS]

    def read_call(self, call: Any, names: ToolNames) -> ToolRequest:
        toolset, name = names.identify(get(call, "name", ""))
        custom = get(call, "type") == "custom_tool_call"
        args = {"input": get(call, "input", "")} if custom else arguments(get(call, "arguments"))
        return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=get(call, "call_id", ""))

    def write_answer(
        self, answer: ModelResponse, own: Mapping[str, Any] | None, model: str, names: ToolNames
    ) -> dict[str, Any]:
        whole = dict(own) if own is not None else _empty_response(answer, model)
        items: list[dict[str, Any]] = [dict(item) for item in whole.get("output") or ()]
        texts = [item for item in items if item.get("type") == "message"]
        known = [(self.read_call(item, names), item) for item in items if item.get("type") in CALLS]
        kept = [item for item in items if item.get("type") != "message" and item.get("type") not in CALLS]
        if answer.reasoning != _reasoning(kept):
            kept = [item for item in kept if item.get("type") != "reasoning"]
        if answer.content != _output_text(texts):
            texts = [_write_text(answer.content)] if answer.content else []
        calls = [
            next((item for request, item in known if request == wanted), _write_call(wanted, names))
            for wanted in answer.tool_calls
        ]
        whole["output"] = [*kept, *texts, *calls]
        return whole

    def write_events(self, answer: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        begun = {**answer, "status": "in_progress", "output": [], "usage": None}
        kinds: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(answer.get("output") or ()):
            kinds += _item_events(index, item)
        kinds.append({"type": f"response.{answer.get('status') or 'completed'}", "response": dict(answer)})
        for number, event in enumerate(kinds):
            yield event["type"], {**event, "sequence_number": number}

    def read_text(self, data: Mapping[str, Any]) -> tuple[object, str] | None:
        if data.get("type") != "response.output_text.delta":
            return None
        return (data.get("output_index"), data.get("content_index")), str(data.get("delta") or "")

    def with_text(self, data: Mapping[str, Any], text: str) -> dict[str, Any]:
        return {**data, "delta": text, "logprobs": []}

    def is_frame(self, data: Mapping[str, Any]) -> bool:
        if data.get("type") in ("response.created", "response.queued", "response.in_progress"):
            return True
        if data.get("type") == "response.content_part.added":
            return not (data.get("part") or {}).get("text")
        item = data.get("item") or {}
        return (
            data.get("type") in ("response.output_item.added", "response.output_item.done")
            and item.get("type") in ("message", "reasoning")
            and not (item.get("content") or item.get("summary"))
        )

    def join_events(self, events: Iterable[tuple[str, Any]]) -> dict[str, Any] | None:
        whole: dict[str, Any] | None = None
        items: dict[int, dict[str, Any]] = {}
        texts: dict[int, str] = {}
        for _, event in events:
            kind = event.get("type") if isinstance(event, dict) else None
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                found: dict[str, Any] = event["response"]
                return found
            if kind in ("response.created", "response.in_progress"):
                whole = dict(event["response"])
            elif kind == "response.output_text.delta":
                index = event.get("output_index", 0)
                texts[index] = texts.get(index, "") + event.get("delta", "")
            elif kind == "response.output_item.done":
                items[event.get("output_index", 0)] = event["item"]
        if whole is None:
            return None
        written = {index: _write_text(text) for index, text in texts.items()} | items
        whole["output"] = [written[index] for index in sorted(written)]
        return whole

    def write_entries(self, answer: Any) -> list[Any]:
        entries = [plain(item) for item in get(answer, "output", ())]
        for entry in entries:
            entry.pop("parsed_arguments", None)
            for part in entry.get("content") or () if entry.get("type") == "message" else ():
                part.pop("parsed", None)
        return entries

    def join_entries(self, entries: Sequence[Any]) -> dict[str, Any]:
        return {"output": list(entries)}

    def write_result(self, told: Told) -> dict[str, Any]:
        custom = get(told.call, "type") == "custom_tool_call"
        kind = "custom_tool_call_output" if custom else "function_call_output"
        return {"type": kind, "call_id": get(told.call, "call_id", ""), "output": told.content}


def _read_tokens(usage: Any) -> dict[str, int]:
    """Return the tokens of an answer, by the names that `genai_prices` uses."""
    found = {
        "input_tokens": get(usage, "input_tokens", 0),
        "output_tokens": get(usage, "output_tokens", 0),
        "cache_read_tokens": get(get(usage, "input_tokens_details"), "cached_tokens", 0),
    }
    return {name: count for name, count in found.items() if count}


def _output_text(items: Iterable[Any]) -> str:
    parts = [part for item in items if get(item, "type") == "message" for part in get(item, "content", ())]
    return "".join(get(part, "text") or get(part, "refusal", "") for part in parts)


def _reasoning(items: Iterable[Any]) -> str:
    found = [item for item in items if get(item, "type") == "reasoning"]
    return "\n".join(get(part, "text", "") for item in found for part in get(item, "summary", ()))


def _write_text(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_hookline", "role": "assistant", "status": "completed", "content": [part]}


def _write_call(request: ToolRequest, names: ToolNames) -> dict[str, Any]:
    text = request.args if isinstance(request.args, str) else json.dumps(writable(request.args))
    name = names.name(request.toolset, request.tool_name)
    return {"type": "function_call", "call_id": request.tool_call_id, "name": name, "arguments": text}


def _empty_response(answer: ModelResponse, model: str) -> dict[str, Any]:
    used = answer.usage
    return {
        "id": answer.response_id or "hookline",
        "object": "response",
        "created_at": int(time.time()),
        "model": answer.model or model,
        "status": "completed",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "total_tokens": used.input_tokens + used.output_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _item_events(index: int, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream with an item of the output."""
    kind, item_id = item.get("type"), item.get("id") or f"item_{index}"
    place = {"output_index": index, "item_id": item_id}
    inside: list[dict[str, Any]] = []
    begun = dict(item)
    if kind == "message":
        begun["content"] = []
        for number, part in enumerate(item.get("content") or ()):
            at = {**place, "content_index": number}
            inside.append({"type": "response.content_part.added", **at, "part": {**part, "text": ""}})
            if part.get("type") == "output_text":
                text = part.get("text", "")
                inside.append({"type": "response.output_text.delta", **at, "delta": text, "logprobs": []})
                inside.append({"type": "response.output_text.done", **at, "text": text, "logprobs": []})
            inside.append({"type": "response.content_part.done", **at, "part": part})
    elif kind in CALLS:
        name = CALLS[kind]
        begun[name] = ""
        prefix = "response.function_call_arguments" if kind == "function_call" else "response.custom_tool_call_input"
        inside.append({"type": f"{prefix}.delta", **place, "delta": item.get(name, "")})
        inside.append({"type": f"{prefix}.done", **place, name: item.get(name, ""), "name": item.get("name", "")})
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *inside,
        {"type": "response.output_item.done", "output_index": index, "item": dict(item)},
    ]
