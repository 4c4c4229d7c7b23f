"""A real receiver of webhooks on loopback, which can answer well, badly, slowly, never, or with lies.

async with Receiver(secrets=["whsec_..."]) as receiver:
    receiver.says(status(503, retry_after="1"), ok())  # then ok() for ever
    ...
    await receiver.received(2)
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any

import uvicorn
from standardwebhooks.webhooks import Webhook as StandardWebhook


@dataclass(frozen=True, kw_only=True)
class Received:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    header_lines: list[tuple[str, str]]
    body: bytes
    at: float = field(default_factory=perf_counter)

    @property
    def id(self) -> str:
        return self.headers.get("webhook-id", "")

    @property
    def payload(self) -> Any:
        return json.loads(self.body)

    def signed_by(self, secret: str) -> bool:
        """Whether the package `standardwebhooks`, which is not ours, takes the signature."""
        try:
            StandardWebhook(secret).verify(self.body, self.headers, json_parse=False)
        except Exception:
            return False
        return True


Answer = Callable[[Received, asyncio.StreamWriter], Awaitable[bool]]
"""Answers a request; whether the connection stays open."""


def status(code: int, *, body: bytes | str = b"", retry_after: str | None = None, **headers: str) -> Answer:
    """A plain answer; a header's `_` stands for `-`."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {code} X", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if retry_after is not None:
        lines.append(f"retry-after: {retry_after}")

    async def answer(request: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await writer.drain()
        return True

    return answer


def ok(body: bytes | str = b"") -> Answer:
    return status(200, body=body)


def says_json(value: object, code: int = 200) -> Answer:
    return status(code, body=json.dumps(value))


def redirect(to: str, code: int = 302) -> Answer:
    return status(code, location=to)


def raw(data: bytes, *, keep: bool = False) -> Answer:
    """Any bytes: lies about the length, garbage that is no HTTP, nothing at all. Then it hangs up, unless told not to."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keep

    return answer


def hangs_up() -> Answer:
    return raw(b"")


def garbage() -> Answer:
    return raw(b"\x00\xffthis is no HTTP\r\n\r\n")


def lies_about_its_length() -> Answer:
    return raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{}")


def hang() -> Answer:
    """Takes the request, and never answers while the receiver is open."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> bool:
        await asyncio.Event().wait()
        return False

    return answer


def drips(every: float = 0.05) -> Answer:
    """Begins its answer, and goes on with a byte at a time for ever."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(every)

    return answer


def enormous(size: int = 1 << 30) -> Answer:
    """Sends a body of that size, as long as somebody reads it."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n".encode())
        block, left = b"x" * 65_536, size
        while left > 0:
            writer.write(block[:left])
            await writer.drain()
            left -= len(block)
        return True

    return answer


def bomb(size: int = 50 << 20) -> Answer:
    """A small compressed answer that would become an enormous one."""
    return status(200, body=gzip.compress(b" " * size), content_encoding="gzip")


def after(event: asyncio.Event, then: Answer) -> Answer:
    """Answers when the event is set."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> bool:
        await event.wait()
        return await then(request, writer)

    return answer


class Receiver:
    """A server for webhooks on 127.0.0.1. It records what it receives, and answers as it is told.

    Args:
        secrets: Of the keys (`whsec_`) that a request must be signed with, each one; `unsigned` lists the others.
        port: To come back on the port of a receiver that is gone.
        host: Where it listens.
        tls: Its certificate, for https.
    """

    def __init__(
        self,
        secrets: Sequence[str] = (),
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.secrets = tuple(secrets)
        self.requests: list[Received] = []
        self.unsigned: list[Received] = []
        self.connections = 0
        """How many connections were made."""
        self.port, self.host, self.tls = port, host, tls
        self._answers: list[Answer] = [ok()]
        self._by_path: dict[str, Answer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()
        self._server: asyncio.Server | None = None

    def says(self, *answers: Answer) -> Receiver:
        """Answer the next requests like this, one after another, and then always like the last."""
        self._answers = list(answers)
        return self

    def says_at(self, path: str, answer: Answer) -> str:
        """Answer requests to that path like this; gives its URL."""
        self._by_path[path] = answer
        return self.url_of(path)

    @property
    def url(self) -> str:
        return self.url_of("/hook")

    def url_of(self, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{path}"

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._tasks)

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.requests]

    @property
    def payloads(self) -> list[Any]:
        return [request.payload for request in self.requests]

    async def received(self, count: int, *, within: float = 60.0) -> list[Received]:
        """Wait until there are that many requests; `TimeoutError` if they do not come."""
        async with asyncio.timeout(within), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(
            self._serve, self.host, self.port, limit=1 << 24, backlog=1024, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while (request := await self._read(reader)) is not None:
                if not await self._next_answer(request)(request, writer):
                    break
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass  # it ends, or the other side has
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except (asyncio.CancelledError, ConnectionError):
                pass

    async def _read(self, reader: asyncio.StreamReader) -> Received | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        headers = dict(pairs)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Received(method=method, path=path, headers=headers, header_lines=pairs, body=body)
        async with self._arrived:
            self.requests.append(request)
            if not all(request.signed_by(secret) for secret in self.secrets):
                self.unsigned.append(request)
            self._arrived.notify_all()
        return request

    def _next_answer(self, request: Received) -> Answer:
        answer = self._by_path.get(request.path)
        if answer is not None:
            return answer
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class _Server(uvicorn.Server):
    """A server that says when it has started."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, log_config=None, ws="none", lifespan="off", timeout_graceful_shutdown=5))
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """The URL of an ASGI application on a real server."""
    server = _Server(app)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listener]))
            async with asyncio.timeout(10):
                await server.ready.wait()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
            finally:
                server.should_exit = True
