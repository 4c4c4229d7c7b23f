"""Applications to put hooks in front of, a caller without a server, and a real server."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import msgspec
import uvicorn

from hookline import Hooks
from hookline.asgi import HookMiddleware

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]
Lines = Iterable[tuple[str, str]]


class Answer:
    """What a caller got, message by message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    @property
    def start(self) -> Message:
        (start,) = (message for message in self.messages if message["type"] == "http.response.start")
        return start

    @property
    def status(self) -> int:
        return self.start["status"]

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(name.decode(), value.decode("latin-1")) for name, value in self.start["headers"]]

    @property
    def headers(self) -> dict[str, str]:
        assert len(dict(self.lines)) == len(self.lines)
        return dict(self.lines)

    @property
    def body(self) -> bytes:
        return b"".join(
            message.get("body", b"") for message in self.messages if message["type"] == "http.response.body"
        )

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["content-length"] == str(len(self.body))
        return msgspec.json.decode(self.body)


def scope(path: str = "/", *, method: str = "GET", headers: Lines = (), **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        **more,
    }


async def call(
    app: App, path: str = "/", *, answer: Answer | None = None, body: Iterable[bytes] = (b"",), **more: Any
) -> Answer:
    """Call an application; the caller stays until it has ended."""
    answer = Answer() if answer is None else answer
    parts = [*body]

    async def receive() -> Message:
        if not parts:
            await anyio.sleep_forever()
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        answer.messages.append(message)

    with anyio.fail_after(5):
        await app(scope(path, **more), receive, send)
    return answer


def hello(
    *, status: int = 200, headers: Lines = (("content-type", "text/plain"),), chunks: Iterable[bytes] = (b"hello",)
) -> App:
    """An application that answers every request alike, and keeps the scopes that it saw in `hello.scopes`."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        lines = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    scopes: list[Any] = []
    app.scopes = scopes  # type: ignore[attr-defined]
    return app


def hooked(app: App, hooks: Hooks, **options: Any) -> HookMiddleware:
    return HookMiddleware(app, hooks=[hooks], **options)


class Server(uvicorn.Server):
    """A server that says when it has started."""

    def __init__(self, app: App, lifespan: str) -> None:
        config = uvicorn.Config(app, log_config=None, ws="none", lifespan=lifespan, timeout_graceful_shutdown=5)  # type: ignore[arg-type]
        super().__init__(config)
        self.ready = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextlib.asynccontextmanager
async def serving(app: App, *, lifespan: str = "off") -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server on a free port."""
    server = Server(app, lifespan)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            with anyio.fail_after(10):
                await server.ready.wait()
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                    yield client
                server.should_exit = True
