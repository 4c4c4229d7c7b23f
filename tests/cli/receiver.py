"""A server on loopback that takes spans by OTLP/HTTP, and what reads OTLP/JSON back."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """Keeps the spans that it is sent, as long as it answers 200.

    Args:
        status: What it answers to the first, the second, … request.
    """

    def __init__(self, status: Callable[[int], int] = lambda number: 200) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = status(len(receiver.paths))
                receiver.paths.append(self.path)
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                if answer == 200:
                    receiver.keep(ExportTraceServiceRequest.FromString(body))
                self.send_response(answer)
                self.send_header("Content-Length", "0")
                self.send_header("Retry-After", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def keep(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in resource.resource.attributes})
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def parsed(text: str) -> ExportTraceServiceRequest:
    """An OTLP/JSON document as the message that it is of: protobuf's JSON has ids in base64, OTLP's in hex."""

    def with_base64(value: Any) -> Any:
        if isinstance(value, list):
            return [with_base64(each) for each in value]
        if not isinstance(value, dict):
            return value
        ids = {"traceId", "spanId", "parentSpanId"}
        return {
            key: base64.b64encode(bytes.fromhex(each)).decode() if key in ids else with_base64(each)
            for key, each in value.items()
        }

    return ParseDict(with_base64(json.loads(text)), ExportTraceServiceRequest())


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    return [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
