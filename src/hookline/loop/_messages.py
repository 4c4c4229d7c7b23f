"""`Messages`: the protocol of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookline._readonly import writable
from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec
from hookline.loop._format import Format, Group, Price, Told, arguments, get, given, plain, text_of, to_usage
from hookline.loop._names import ToolNames

__all__ = ["Messages"]

DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The kinds of streamed pieces of a block, each with the field that it adds to."""


class Messages(Format):
    """The protocol of Anthropic's Messages API."""

    name = "messages"
    path = "/v1/messages"
    last_event = rb"^event: ?message_stop"
    conversation = "messages"

    def read_conversation(self, body: Mapping[str, Any], names: ToolNames) -> list[Group]:
        system = given(body.get("system"))
        groups = [_system_group(system)] if system else []
        entries = given(body.get("messages")) or ()
        return [*groups, *(Group(theirs=entry, ours=list(self._read_entry(entry, names))) for entry in entries)]

    def _read_entry(self, entry: Any, names: ToolNames) -> Iterator[Message]:
        role, content = get(entry, "role", "user"), get(entry, "content", "")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        texts = [get(block, "text", "") for block in blocks if get(block, "type") == "text"]
        if role == "assistant":
            calls = [self.read_call(block, names) for block in blocks if get(block, "type") == "tool_use"]
            yield Message(role="assistant", content="".join(texts), tool_calls=calls)
            return
        results = [block for block in blocks if get(block, "type") == "tool_result"]
        for block in results:
            told = text_of(get(block, "content", ""))
            yield Message(role="tool", content=told, tool_call_id=get(block, "tool_use_id", ""))
        if texts or not results:
            yield Message(role="system" if role == "system" else "user", content="\n".join(texts))

    def write_message(self, message: Message, names: ToolNames) -> dict[str, Any]:
        if message.role == "tool":
            block = {"type": "tool_result", "tool_use_id": message.tool_call_id or "", "content": message.content}
            return {"role": "user", "content": [block]}
        if not message.tool_calls:
            return {"role": message.role, "content": message.content}
        blocks = [{"type": "text", "text": message.content}] if message.content else []
        return {"role": message.role, "content": [*blocks, *(_write_call(call, names) for call in message.tool_calls)]}

    def put_conversation(self, body: dict[str, Any], entries: Sequence[Group]) -> None:
        body.pop("system", None)
        kept: list[Any] = []
        systems: list[Any] = []
        for each in entries:
            if each.place == "system":
                systems.append(each.theirs)
            elif not each.place and get(each.theirs, "role") == "system" and each.ours[0].role == "system" and not kept:
                systems.append(get(each.theirs, "content"))
            else:
                kept.append(each.theirs)
        body["messages"] = kept
        if len(systems) == 1:
            body["system"] = systems[0]
        elif systems:
            body["system"] = [{"type": "text", "text": text_of(each)} for each in systems]

    def read_tool(self, tool: Any, names: ToolNames) -> ToolSpec | None:
        schema = get(tool, "input_schema")
        if schema is None:
            return None
        toolset, name = names.identify(get(tool, "name", ""))
        return ToolSpec(toolset=toolset, name=name, description=get(tool, "description", ""), schema=plain(schema))

    def write_tool(self, spec: ToolSpec, names: ToolNames) -> dict[str, Any]:
        tool: dict[str, Any] = {"name": names.name(spec.toolset, spec.name)}
        if spec.description:
            tool["description"] = spec.description
        return {**tool, "input_schema": {"type": "object", **writable(spec.schema)}}

    def wrote(self, answer: object) -> bool:
        return get(answer, "type") == "message" and get(answer, "content") is not None

    def read_answer(self, answer: Any, names: ToolNames, price: Price) -> ModelResponse:
        blocks, model = get(answer, "content", ()), get(answer, "model", "")
        tokens = _read_tokens(get(answer, "usage"))
        cost = price(tokens, model)
        return ModelResponse(
            content="".join(get(block, "text", "") for block in blocks if get(block, "type") == "text"),
            tool_calls=[self.read_call(block, names) for block in self.read_calls(answer)],
            reasoning="".join(get(block, "thinking", "") for block in blocks if get(block, "type") == "thinking"),
            usage=to_usage(tokens, cost),
            finish_reason=get(answer, "stop_reason", ""),
            model=model,
            response_id=get(answer, "id", ""),
            cost_known=cost is not None,
        )

    def read_calls(self, answer: Any) -> list[Any]:
        return [block for block in get(answer, "content", ()) if get(block, "type") == "tool_use"]

    def read_call(self, call: Any, names: ToolNames) -> ToolRequest:
        toolset, name = names.identify(get(call, "name", ""))
        args = arguments(get(call, "input"))
        return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=get(call, "id", ""))

    def write_answer(
        self, answer: ModelResponse, own: Mapping[str, Any] | None, model: str, names: ToolNames
    ) -> dict[str, Any]:
        whole = dict(own) if own is not None else _empty_message(answer, model)
        blocks: list[dict[str, Any]] = list(whole.get("content") or ())
        texts = [block for block in blocks if block.get("type") == "text"]
        known = [(self.read_call(block, names), block) for block in blocks if block.get("type") == "tool_use"]
        kept = [block for block in blocks if block.get("type") not in ("text", "tool_use")]
        reasoning = "".join(block.get("thinking", "") for block in kept if block.get("type") == "thinking")
        if answer.reasoning != reasoning:
            kept = [block for block in kept if block.get("type") != "thinking"]
            if answer.reasoning:
                kept.insert(0, {"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.content != "".join(block.get("text", "") for block in texts):
            texts = [{"type": "text", "text": answer.content, "citations": None}] if answer.content else []
        calls = [
            next((block for request, block in known if request == wanted), _write_call(wanted, names))
            for wanted in answer.tool_calls
        ]
        whole["content"] = [*kept, *texts, *calls]
        if bool(calls) != bool(known) or own is None:
            whole["stop_reason"] = "tool_use" if calls else "end_turn"
        return whole

    def write_events(self, answer: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        usage = answer.get("usage") or {}

        def event(kind: str, **fields: Any) -> tuple[str, Any]:
            return kind, {"type": kind, **fields}

        start = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
        yield event("message_start", message={**start, "usage": {**usage, "output_tokens": 0}})
        for index, block in enumerate(answer.get("content") or ()):
            empty, deltas = _cut_block(block)
            yield event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        stop = {"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")}
        yield event("message_delta", delta=stop, usage={"output_tokens": usage.get("output_tokens", 0)})
        yield event("message_stop")

    def read_text(self, data: Mapping[str, Any]) -> tuple[object, str] | None:
        delta = data.get("delta") or {}
        if data.get("type") != "content_block_delta" or delta.get("type") != "text_delta":
            return None
        return data.get("index"), str(delta.get("text") or "")

    def with_text(self, data: Mapping[str, Any], text: str) -> dict[str, Any]:
        return {**data, "delta": {**data["delta"], "text": text}}

    def is_frame(self, data: Mapping[str, Any]) -> bool:
        if data.get("type") in ("message_start", "ping"):
            return True
        block = data.get("content_block") or {}
        return data.get("type") == "content_block_start" and block.get("type") == "text" and not block.get("text")

    def join_events(self, events: Iterable[tuple[str, Any]]) -> dict[str, Any] | None:
        whole: dict[str, Any] | None = None
        blocks: dict[int, dict[str, Any]] = {}
        inputs: dict[int, str] = {}
        stopped: set[int] = set()
        for _, event in events:
            kind = event.get("type") if isinstance(event, dict) else None
            if kind == "message_start":
                whole = dict(event["message"])
            elif whole is None:
                continue
            elif kind == "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            elif kind == "content_block_delta" and event["index"] in blocks:
                _add_delta(blocks[event["index"]], event["index"], event["delta"], inputs)
            elif kind == "content_block_stop":
                stopped.add(event["index"])
            elif kind == "message_delta":
                whole.update(event.get("delta") or {})
                whole["usage"] = {**(whole.get("usage") or {}), **_without_null(event.get("usage") or {})}
        if whole is None:
            return None
        for index, text in inputs.items():
            blocks[index]["input"] = arguments(text)
        # A call that broke off is none: its arguments are not whole.
        whole["content"] = [
            blocks[index] for index in sorted(blocks) if index in stopped or blocks[index].get("type") != "tool_use"
        ]
        return whole

    def write_entries(self, answer: Any) -> list[Any]:
        blocks = [plain(block) for block in get(answer, "content", ())]
        for block in blocks:
            block.pop("parsed_output", None)
        return [{"role": "assistant", "content": blocks}]

    def join_entries(self, entries: Sequence[Any]) -> dict[str, Any]:
        return {"content": entries[-1]["content"]}

    def write_result(self, told: Told) -> dict[str, Any]:
        block = {"type": "tool_result", "tool_use_id": get(told.call, "id", ""), "content": told.content}
        return block if told.success else {**block, "is_error": True}

    def write_results(self, told: Sequence[Told]) -> list[Any]:
        if not told:
            return []
        return [{"role": "user", "content": [self.write_result(each) for each in told]}]


def _system_group(system: Any) -> Group:
    return Group(theirs=system, ours=[Message(role="system", content=text_of(system))], place="system")


def _read_tokens(usage: Any) -> dict[str, int]:
    """Return the tokens of an answer, by the names that `genai_prices` uses."""
    found = {
        "input_tokens": _input_tokens(usage),
        "output_tokens": get(usage, "output_tokens", 0),
        "cache_read_tokens": get(usage, "cache_read_input_tokens", 0),
        "cache_write_tokens": get(usage, "cache_creation_input_tokens", 0),
    }
    return {name: count for name, count in found.items() if count}


def _input_tokens(usage: Any) -> int:
    """Return the number of input tokens, including cached ones, which Anthropic counts separately."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(int(get(usage, name, 0)) for name in names)


def _write_call(request: ToolRequest, names: ToolNames) -> dict[str, Any]:
    args = {} if isinstance(request.args, str) else writable(request.args)
    name = names.name(request.toolset, request.tool_name)
    return {"type": "tool_use", "id": request.tool_call_id, "name": name, "input": args}


def _empty_message(answer: ModelResponse, model: str) -> dict[str, Any]:
    return {
        "id": answer.response_id or "hookline",
        "type": "message",
        "role": "assistant",
        "model": answer.model or model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": answer.usage.input_tokens, "output_tokens": answer.usage.output_tokens},
    }


def _cut_block(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Split a block into its empty start and the pieces that a stream sends after it."""
    kind = block.get("type")
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text", "")}]
    if kind == "thinking":
        pieces = [{"type": "thinking_delta", "thinking": block.get("thinking", "")}]
        if block.get("signature"):
            pieces.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, pieces
    if kind in ("tool_use", "server_tool_use"):
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}]
    return dict(block), []


def _add_delta(block: dict[str, Any], index: int, delta: Mapping[str, Any], inputs: dict[int, str]) -> None:
    """Add a streamed piece to a block."""
    kind = delta.get("type", "")
    if kind == "input_json_delta":
        inputs[index] = inputs.get(index, "") + delta.get("partial_json", "")
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
    elif kind in DELTAS:
        name = DELTAS[kind]
        block[name] = block.get(name, "") + delta.get(name, "")


def _without_null(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in usage.items() if value is not None}
