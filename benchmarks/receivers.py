"""Receivers of webhooks in a process of their own: one that answers at once, and one that never does."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

ANSWER = b"HTTP/1.1 204 X\r\n\r\n"
HUNG = b"POST /hung"


class Answering(asyncio.Protocol):
    """One connection; what comes is only counted.

    Args:
        answered: The count.
    """

    def __init__(self, answered: Any) -> None:
        self._answered = answered
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            head = self._rest[:end].lower()
            length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            if len(self._rest) < end + 4 + length:
                return
            hung = self._rest.startswith(HUNG)
            self._rest = self._rest[end + 4 + length :]
            if not hung:
                self._answered.value += 1
                self._transport.write(ANSWER)  # type: ignore[attr-defined]


class Receivers:
    """Where they are, and how much they have answered."""

    def __init__(self, port: int, answered: Any) -> None:
        self._port, self._answered = port, answered

    def url(self, path: str) -> str:
        """The address of one of them; that of `hung` never answers."""
        return f"http://127.0.0.1:{self._port}/{path}"

    @property
    def answered(self) -> int:
        """How many requests were answered so far."""
        return self._answered.value


@contextmanager
def receiving() -> Iterator[Receivers]:
    """Receivers that run until the end of the block."""
    context = multiprocessing.get_context("spawn")
    answered = context.Value("q", 0, lock=False)
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, answered), daemon=True)
    process.start()
    try:
        yield Receivers(ours.recv(), answered)
    finally:
        process.terminate()
        process.join()


def serve(connection: Connection, answered: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Answering(answered), "127.0.0.1", 0, backlog=1024)
        connection.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())
