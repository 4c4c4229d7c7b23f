"""An MCP endpoint of the sort of 2025 over HTTP without any library, as well-behaved as it is told to be."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Web", "serving"]


class Web(ThreadingHTTPServer):
    """The endpoint; a test changes how it behaves while it runs.

    Attributes:
        mode: How it answers `tools/call`, or every request where it is a number (an HTTP status).
        session: The id of the one session that it knows.
        seen: `(method, headers, message)` of every request.
        release: Set at the end, so that what hangs goes on.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Endpoint)
        self.mode: str | int = "good"
        self.session = 1
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.release = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is nobody's error."""


class Endpoint(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def reply(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.reply(405)

    def do_DELETE(self) -> None:
        self.server.seen.append(("DELETE", dict(self.headers), None))
        if self.server.mode == "hangs":
            self.server.release.wait()
        self.reply(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((message["method"], dict(self.headers), message))
        mode = self.server.mode
        if isinstance(mode, int):
            self.reply(mode, b"no")
        elif message["method"] == "server/discover":
            self.reply(404)
        elif message["method"] == "initialize":
            info = {"name": "web", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            self.answer(message, result, Mcp_Session_Id=str(self.server.session))
        elif self.headers["Mcp-Session-Id"] != str(self.server.session):
            self.reply(404)
        elif message["method"] == "notifications/cancelled" and mode == "hangs":
            self.server.release.wait()
        elif "id" not in message:
            self.reply(202)
        elif message["method"] == "tools/list":
            self.answer(message, {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]})
        else:
            self.call(message, mode)

    def answer(self, message: dict[str, Any], result: object, **headers: str) -> None:
        self.reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode(), **headers)

    def call(self, message: dict[str, Any], mode: str) -> None:
        text = "x" * 10_000_000 if mode == "large events" else f"did {json.dumps(message['params']['arguments'])}"
        result = {"content": [{"type": "text", "text": text}]}
        if mode == "hangs":
            self.server.release.wait()
        elif mode == "echoes":  # what it was sent, and no message
            self.reply(200, json.dumps({"headers": dict(self.headers), "path": self.path}).encode())
        elif mode == "cut":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b": wait\n\n")
            self.wfile.flush()
            self.close_connection = True
        elif mode == "html":
            self.reply(200, b"<html>", "text/html")
        elif mode == "accepts":
            self.reply(202)
        elif mode == "large events":
            data = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
            self.reply(200, f"event: message\ndata: {data}\n\n".encode(), "text/event-stream")
        else:
            self.answer(message, result)


@contextlib.contextmanager
def serving() -> Iterator[Web]:
    """An endpoint in a thread, for as long as this is open."""
    with Web() as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield web
        finally:
            web.release.set()
            web.shutdown()
            thread.join()
