"""A provider on loopback: a real HTTP server that speaks OpenAI's protocols, well or badly, as each request is scripted."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import httpx2
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from hookline import Message, ModelCall, ModelResponse
from hookline.adapters.models import PydanticModel

KEY = "sk-proj-Zq83hTq0LoopbackSecret7"
MODEL = "gpt-loopback-1"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

Play = Callable[["Exchange"], None]
"""What the provider does with one request."""


class Exchange:
    """One request, and the ways to answer it."""

    def __init__(self, handler: Any, path: str, headers: dict[str, str], body: Any) -> None:
        self.handler, self.path, self.headers, self.body = handler, path, headers, body
        self.left = threading.Event()
        """The client has closed the connection, while it was kept waiting."""

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))

    def send(self, status: int, body: bytes, *, kind: str = "application/json", **headers: str) -> None:
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", kind)
        self.handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def send_json(self, status: int, value: Any, **headers: str) -> None:
        self.send(status, json.dumps(value).encode(), **headers)

    def begin(self) -> None:
        """Begin to stream events."""
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream")
        self.handler.send_header("Transfer-Encoding", "chunked")
        self.handler.end_headers()

    def raw(self, data: bytes) -> None:
        self.handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.handler.wfile.flush()

    def event(self, value: Any, name: str = "") -> None:
        head = f"event: {name}\n" if name else ""
        self.raw(f"{head}data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode())

    def end(self) -> None:
        self.handler.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Close the connection in the middle of what it carries."""
        self.handler.close_connection = True
        self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handler.connection.close()

    def wait_for_leave(self, every: Callable[[], None] | None = None) -> None:
        """Say nothing, or the same again and again, until the client has gone."""
        self.handler.connection.settimeout(0.03 if every else 10)
        while True:
            try:
                if not self.handler.connection.recv(1):
                    break
            except TimeoutError:
                if every is None:
                    return
                every()
            except OSError:
                break
        self.left.set()
        self.handler.close_connection = True


class Provider:
    """The server. Requests are answered by the plays in order; the last one goes on for ever.

    Attributes:
        url: The base URL for clients.
        exchanges: The requests that it got, as they came.
    """

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.plays: list[Play] = []
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def setup(self) -> None:
                super().setup()
                self.done = threading.Event()
                """The connection is closed."""

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                exchange = Exchange(self, self.path, headers, body)
                with provider._lock:
                    play = provider.plays[min(len(provider.exchanges), len(provider.plays) - 1)]
                    provider.exchanges.append(exchange)
                try:
                    play(exchange)
                    if not self.close_connection:
                        self.wfile.flush()
                except OSError:
                    exchange.left.set()
                    self.close_connection = True

            def finish(self) -> None:
                try:
                    super().finish()
                except (OSError, ValueError):
                    self.rfile.close()  # not reached where writing the rest fails, and it holds the socket open
                self.done.set()

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 100

            def shutdown_request(self, request: Any) -> None:
                try:
                    super().shutdown_request(request)
                except OSError:
                    pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def script(self, *plays: Play) -> None:
        """Forget what was, and answer with these from now on."""
        self.plays, self.exchanges = list(plays), []

    @property
    def bodies(self) -> list[Any]:
        return [exchange.body for exchange in self.exchanges]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def function(name: str, arguments: str, call_id: str | None) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(
    content: str | None = None,
    *calls: dict[str, Any],
    pieces: Iterable[str] | None = None,
    finish: str | None = None,
    usage: dict[str, int] | None = USAGE,
    model: str = MODEL,
    **further: Any,
) -> Play:
    """A good answer, in one piece or streamed as it was asked for.

    Args:
        content: Its text.
        calls: Its tool calls.
        pieces: The text as it is streamed; whole unless given.
        finish: Why it ended.
        usage: What it used; `None` says nothing of it.
        model: Who says it.
        further: Further fields of the message, such as `reasoning_content`.
    """
    reason = finish or ("tool_calls" if calls else "stop")

    def part(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**chunk(delta, finish), "model": model}

    def play(exchange: Exchange) -> None:
        if not exchange.streamed:
            message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}
            choice = {"index": 0, "finish_reason": reason, "message": {**message, **further}}
            exchange.send_json(200, {**completion([choice], usage), "model": model})
            return
        exchange.begin()
        exchange.event(part({"role": "assistant", **further}))
        for piece in pieces if pieces is not None else [content] * bool(content):
            exchange.event(part({"content": piece}))
        for index, call in enumerate(calls):
            arguments = call["function"]["arguments"]
            first, rest = arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]
            head = {**call, "function": {"name": call["function"]["name"], "arguments": first}}
            exchange.event(part({"tool_calls": [{"index": index, **head}]}))
            exchange.event(part({"tool_calls": [{"index": index, "function": {"arguments": rest}}]}))
        exchange.event(part({}, finish=reason))
        if usage is not None:
            exchange.event({**part({}), "choices": [], "usage": usage})
        exchange.event("[DONE]")
        exchange.end()

    return play


def responds(*output: dict[str, Any], pieces: Iterable[str] = (), status: str = "completed") -> Play:
    """A good answer in OpenAI's other protocol, the one of responses.

    Args:
        output: Its items.
        pieces: The text of its message as it is streamed.
        status: What it says of itself in the end.
    """

    def play(exchange: Exchange) -> None:
        if not exchange.streamed:
            exchange.send_json(200, response(output, status))
            return
        exchange.begin()
        for number, (name, event) in enumerate(events()):
            exchange.event({"type": name, "sequence_number": number, **event}, name)
        exchange.end()

    def events() -> Iterator[tuple[str, dict[str, Any]]]:
        yield "response.created", {"response": response((), "in_progress")}
        for index, item in enumerate(output):
            place = {"output_index": index, "item_id": item["id"]}
            yield "response.output_item.added", {**place, "item": {**item, "content": []}}
            if item["type"] == "message":
                part = {"type": "output_text", "text": "", "annotations": []}
                yield "response.content_part.added", {**place, "content_index": 0, "part": part}
                for piece in pieces:
                    delta = {**place, "content_index": 0, "delta": piece, "logprobs": []}
                    yield "response.output_text.delta", delta
            yield "response.output_item.done", {**place, "item": item}
        yield "response.completed", {"response": response(output, status)}

    return play


def response(output: Iterable[dict[str, Any]], status: str) -> dict[str, Any]:
    usage = {
        "input_tokens": 11,
        "output_tokens": 7,
        "total_tokens": 18,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    return {
        "id": "resp_7",
        "object": "response",
        "created_at": 1_750_000_000,
        "model": MODEL,
        "status": status,
        "output": list(output),
        "usage": usage,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }


def message_item(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def call_item(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    call = {"type": "function_call", "id": "fc_1", "call_id": call_id, "status": "completed"}
    return {**call, "name": name, "arguments": arguments}


def reasoning_item(summary: str, signature: str) -> dict[str, Any]:
    told = [{"type": "summary_text", "text": summary}]
    return {"type": "reasoning", "id": "rs_1", "summary": told, "encrypted_content": signature}


def writes(
    content: str = "",
    *calls: dict[str, Any],
    pieces: Iterable[str] | None = None,
    thinking: str = "",
    usage: dict[str, int] | None = None,
    model: str = MODEL,
) -> Play:
    """A good answer in Anthropic's protocol, in one piece or streamed as it was asked for.

    Args:
        content: Its text.
        calls: Its `tool_use` blocks.
        pieces: The text as it is streamed; whole unless given.
        thinking: What it thought first.
        usage: What it used.
        model: Who says it.
    """
    blocks: list[dict[str, Any]] = []
    if thinking:
        blocks.append({"type": "thinking", "thinking": thinking, "signature": "signed"})
    if content:
        blocks.append({"type": "text", "text": content})
    blocks += calls
    used = {"input_tokens": 11, "output_tokens": 7, **(usage or {})}
    whole = {"id": "msg_7", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}
    reason = "tool_use" if calls else "end_turn"

    def play(exchange: Exchange) -> None:
        if not exchange.streamed:
            exchange.send_json(200, {**whole, "content": blocks, "stop_reason": reason, "usage": used})
            return

        def event(kind: str, **fields: Any) -> None:
            exchange.event({"type": kind, **fields}, kind)

        exchange.begin()
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**used, "output_tokens": 1}}
        event("message_start", message=begun)
        event("ping")
        for index, block in enumerate(blocks):
            empty, deltas = cut_block(block, pieces)
            event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                event("content_block_delta", index=index, delta=delta)
            event("content_block_stop", index=index)
        stop = {"stop_reason": reason, "stop_sequence": None}
        event("message_delta", delta=stop, usage={"output_tokens": used["output_tokens"]})
        event("message_stop")
        exchange.end()

    return play


def cut_block(block: dict[str, Any], pieces: Iterable[str] | None) -> tuple[dict[str, Any], Iterable[dict[str, Any]]]:
    """A block as a stream of Anthropic begins it, and the pieces that follow."""
    if block["type"] == "text":
        texts = pieces if pieces is not None else [block["text"]]
        return {**block, "text": ""}, ({"type": "text_delta", "text": piece} for piece in texts)
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [thought, signed]
    text = json.dumps(block["input"])
    halves = text[: len(text) // 2], text[len(text) // 2 :]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": half} for half in halves]


def tool_use(name: str, args: dict[str, Any], call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": args}


def completion(choices: list[Any], usage: dict[str, int] | None = USAGE) -> dict[str, Any]:
    whole = {"id": "chatcmpl-7", "object": "chat.completion", "created": 1_750_000_000, "model": MODEL}
    return {**whole, "choices": choices, **({"usage": usage} if usage is not None else {})}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "created": 1_750_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def refuses(status: int, message: str = "", *, code: str | None = None, **headers: str) -> Play:
    body = {"error": {"message": message or f"refused with {status}", "type": "some_error", "code": code}}
    return lambda exchange: exchange.send_json(status, body, **headers)


def sends(body: bytes, kind: str = "application/json", status: int = 200) -> Play:
    """Any bytes at all."""
    return lambda exchange: exchange.send(status, body, kind=kind)


def hangs(exchange: Exchange) -> None:
    """Never answers."""
    exchange.wait_for_leave()


def hangs_up(exchange: Exchange) -> None:
    """Closes the connection without an answer."""
    exchange.cut()


def streams(*events: Any, then: Callable[[Exchange], None] = Exchange.end) -> Play:
    """These events, as they are, and then whatever ends a stream."""

    def play(exchange: Exchange) -> None:
        exchange.begin()
        for event in events:
            exchange.event(event)
        then(exchange)

    return play


@asynccontextmanager
async def asked(provider: Provider, **options: Any) -> AsyncIterator[PydanticModel]:
    """A model of the provider on loopback, whose connections are closed at the end."""
    own = {"max_retries": 0, **options.pop("settings", {})}
    url = options.pop("url", provider.url)
    # Without certificates, which take longer to load than most tests to run.
    async with httpx2.AsyncClient(verify=False) as client:
        wire = OpenAIProvider(base_url=url, api_key=KEY, http_client=client)
        yield PydanticModel(OpenAIChatModel("gpt-4o", provider=wire), settings=own, **options)


async def answer_of(model: PydanticModel, call: ModelCall, *, streamed: bool) -> tuple[ModelResponse, list[str]]:
    """The answer, and the pieces of text that came before it."""
    if not streamed:
        return await model.respond(call), []
    async with aclosing(model.stream(call)) as stream:
        *pieces, response = [piece async for piece in stream]
    assert isinstance(response, ModelResponse)
    assert all(isinstance(piece, str) and piece for piece in pieces)
    return response, [str(piece) for piece in pieces]


def user(text: str = "Hi") -> ModelCall:
    return ModelCall(messages=[Message(role="user", content=text)])
