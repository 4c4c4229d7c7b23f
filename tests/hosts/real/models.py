"""A scripted model server on loopback, which speaks the APIs of Anthropic, OpenAI (both of them) and Gemini.

A conversation says in its prompt which plan it follows, as `PLAN:name`. A plan is a list of turns, each a text or a tool
call; the server finds the present turn by the number of tool results that it was sent. It keeps what it was sent.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Turn = str | tuple[str, dict[str, Any]]


class ModelServer:
    """Serves plans while its `with` is open."""

    def __init__(self, plans: Mapping[str, Sequence[Turn]]) -> None:
        self.plans = plans
        self.requests: list[dict[str, Any]] = []
        self._calls = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.send(200, {"data": [], "models": []})

            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(length)
                try:
                    body = json.loads(raw)
                except ValueError:
                    body = {}
                path = self.path.partition("?")[0]
                if path.endswith("/messages"):
                    events = outer.anthropic(body)
                    self.stream(events, named=True)
                elif path.endswith("/chat/completions"):
                    self.stream([(None, each) for each in outer.chat(body)], named=False)
                elif path.endswith("/responses"):
                    self.stream(outer.responses(body), named=True)
                elif "GenerateContent" in path or "generateContent" in path:
                    found = outer.gemini(body)
                    if "stream" in path:
                        self.stream([(None, each) for each in found], named=False)
                    else:
                        self.send(200, found[-1])
                elif path.endswith("count_tokens") or "countTokens" in path:
                    self.send(200, {"input_tokens": 10, "totalTokens": 10})
                else:
                    self.send(404, {"error": {"message": f"no {path} here"}})

            def send(self, status: int, body: object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self, events: Sequence[tuple[str | None, Any]], *, named: bool) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                for name, data in events:
                    head = f"event: {name}\n" if named else ""
                    self.wfile.write(f"{head}data: {json.dumps(data)}\n\n".encode())
                self.wfile.flush()
                self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ModelServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def told(self) -> str:
        """Everything that the model was sent, as one text."""
        with self._lock:
            return "\n".join(json.dumps(each, ensure_ascii=False) for each in self.requests)

    def turn(self, body: dict[str, Any], text: str, results: int) -> Turn:
        """Return the present turn of the plan that a conversation follows."""
        with self._lock:
            self.requests.append(body)
        plans = re.findall(r"PLAN:(\w+)", text)
        if not plans:
            return "ok"
        plan = self.plans[plans[0]]
        if callable(plan):
            return plan(body)
        return plan[results] if results < len(plan) else "All done."

    def call_id(self, prefix: str) -> str:
        with self._lock:
            self._calls += 1
            return f"{prefix}_{self._calls:06d}"

    # The three APIs.

    def anthropic(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        messages = body.get("messages", [])
        first = json.dumps([each for each in messages if each["role"] == "user"][:1])
        results = sum(
            block.get("type") == "tool_result"
            for each in messages
            if isinstance(each.get("content"), list)
            for block in each["content"]
        )
        turn = self.turn(body, first, results)
        if isinstance(turn, str):
            block: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": turn}
            stop = "end_turn"
        else:
            block = {"type": "tool_use", "id": self.call_id("toolu"), "name": turn[0], "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(turn[1])}
            stop = "tool_use"
        message = {
            "id": self.call_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "m"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1},
        }
        return [
            ("message_start", {"type": "message_start", "message": message}),
            ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}),
            ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
            ("content_block_stop", {"type": "content_block_stop", "index": 0}),
            (
                "message_delta",
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": stop, "stop_sequence": None},
                    "usage": {"output_tokens": 5},
                },
            ),
            ("message_stop", {"type": "message_stop"}),
        ]

    def responses(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        items = body.get("input", [])
        text = json.dumps([each for each in items if each.get("role") == "user"])
        results = sum(each.get("type") == "function_call_output" for each in items)
        turn = self.turn(body, text, results)
        if callable(turn):
            turn = turn(body)
        name = self.call_id("item")
        item: dict[str, Any]
        if isinstance(turn, str):
            part = {"type": "output_text", "text": turn, "annotations": []}
            item = {"type": "message", "id": name, "role": "assistant", "status": "completed", "content": [part]}
        else:
            namespace, _, tool = turn[0].rpartition(".")
            item = {
                "type": "function_call",
                "id": name,
                "call_id": self.call_id("call"),
                "name": tool,
                "arguments": json.dumps(turn[1]),
                "status": "completed",
            }
            if namespace:
                item["namespace"] = namespace
        response = {"id": self.call_id("resp"), "object": "response", "status": "completed", "output": [item]}
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        }
        return [
            ("response.created", {"type": "response.created", "response": {**response, "output": []}}),
            ("response.output_item.added", {"type": "response.output_item.added", "output_index": 0, "item": item}),
            ("response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}),
            ("response.completed", {"type": "response.completed", "response": {**response, "usage": usage}}),
        ]

    def chat(self, body: dict[str, Any]) -> list[Any]:
        messages = body.get("messages", [])
        first = json.dumps([each for each in messages if each["role"] == "user"][:1])
        results = sum(each["role"] == "tool" for each in messages)
        turn = self.turn(body, first, results)
        delta: dict[str, Any] = {"role": "assistant"}
        if isinstance(turn, str):
            delta["content"] = turn
        else:
            function = {"name": turn[0], "arguments": json.dumps(turn[1])}
            delta["tool_calls"] = [{"index": 0, "id": self.call_id("call"), "type": "function", "function": function}]
        common = {
            "id": self.call_id("chat"),
            "object": "chat.completion.chunk",
            "model": body.get("model", "m"),
            "created": 1,
        }
        end = "stop" if isinstance(turn, str) else "tool_calls"
        return [
            {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]},
            {**common, "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}},
        ]

    def gemini(self, body: dict[str, Any]) -> list[Any]:
        contents = body.get("contents", [])
        first = json.dumps([each for each in contents if each.get("role") == "user"])
        results = sum("functionResponse" in part for each in contents for part in each.get("parts", []))
        turn = self.turn(body, first, results)
        part: dict[str, Any]
        part = {"text": turn} if isinstance(turn, str) else {"functionCall": {"name": turn[0], "args": turn[1]}}
        return [
            {
                "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
                "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
                "modelVersion": "gemini-2.5-flash",
            }
        ]
