"""Real servers on loopback, one of which receives OTLP over HTTP; and answers of a model, for the runs that call them."""

from __future__ import annotations

import contextlib
import gzip
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from hookline import ModelResponse, ToolRequest, Usage

T = TypeVar("T")


def call(name: str, call_id: str = "t1", /, toolset: str = "local", **args: Any) -> ToolRequest:
    return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call_id)


def ask(agent_id: str, call_id: str = "t1") -> ToolRequest:
    return call(agent_id, call_id, toolset="agent", instruction="go")


def calls(*callings: ToolRequest, read: int = 0, wrote: int = 0) -> ModelResponse:
    usage = Usage(input_tokens=read, output_tokens=wrote)
    return ModelResponse(tool_calls=list(callings), usage=usage, finish_reason="tool_calls")


def says(content: str = "done", read: int = 0, wrote: int = 0) -> ModelResponse:
    return ModelResponse(content=content, usage=Usage(input_tokens=read, output_tokens=wrote))


class Request(NamedTuple):
    """What a client has sent."""

    method: str
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes


class Answer(NamedTuple):
    """What a server answers."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain"
    headers: tuple[tuple[str, str], ...] = ()


class Server:
    """An HTTP server on loopback, with a thread of its own; a context manager, which leaves nothing behind.

    Args:
        answer: What it answers to a request.
    """

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self.arrived = threading.Event()
        """Whether there was a request."""
        self._open = threading.Event()
        self._open.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, self.rfile.read(length))
                with server._lock:
                    server.requests.append(request)
                server.arrived.set()
                server._open.wait()
                status, body, content_type, further = answer(request)
                with contextlib.suppress(ConnectionError):  # a client that has given up
                    self.send_response(status)
                    for name, value in (("content-type", content_type), ("content-length", str(len(body))), *further):
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                    self.wfile.flush()

            do_GET = do_POST = handle_one

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # so that closing waits for every answer
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="loopback server")

    def hold(self) -> None:
        """Take requests, but answer none before `release`."""
        self._open.clear()

    def release(self) -> None:
        """Answer what waits, and everything from now on."""
        self._open.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Received(NamedTuple, Generic[T]):
    """One span, metric or log record, with where it comes from."""

    resource: dict[str, Any]
    scope: str
    item: T


class Receiver(Server):
    """Takes traces, metrics and logs by OTLP over HTTP, as protobuf, plain or compressed.

    Attributes:
        status: What it answers; anything but 200 means that it keeps nothing.
        spans: What has arrived.
        metrics: What has arrived.
        logs: What has arrived.
    """

    def __init__(self, status: int = 200) -> None:
        super().__init__(self._take)
        self.status = status
        self.spans: list[Received[Span]] = []
        self.metrics: list[Received[Metric]] = []
        self.logs: list[Received[LogRecord]] = []

    def endpoint(self, signal: str) -> str:
        """Where a signal goes: `"traces"`, `"metrics"` or `"logs"`."""
        return f"{self.url}/v1/{signal}"

    def _take(self, request: Request) -> Answer:
        if self.status != 200:
            return Answer(self.status)
        if request.headers.get("content-type") != "application/x-protobuf":
            return Answer(415)
        body = unpacked(request)
        match request.path:
            case "/v1/traces":
                self._take_traces(ExportTraceServiceRequest.FromString(body))
                answer: Any = ExportTraceServiceResponse()
            case "/v1/metrics":
                self._take_metrics(ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse()
            case "/v1/logs":
                self._take_logs(ExportLogsServiceRequest.FromString(body))
                answer = ExportLogsServiceResponse()
            case _:
                return Answer(404)
        return Answer(200, answer.SerializeToString(), "application/x-protobuf")

    def _take_traces(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [received(resource, scope, span) for span in scope.spans]

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics += [received(resource, scope, metric) for metric in scope.metrics]

    def _take_logs(self, request: ExportLogsServiceRequest) -> None:
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                self.logs += [received(resource, scope, record) for record in scope.log_records]


def received(resource: Any, scope: Any, item: T) -> Received[T]:
    return Received(attributes_of(resource.resource.attributes), scope.scope.name, item)


def unpacked(request: Request) -> bytes:
    match request.headers.get("content-encoding"):
        case "gzip":
            return gzip.decompress(request.body)
        case "deflate":
            return zlib.decompress(request.body)
        case _:
            return request.body


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes as Python values; lists as tuples, as the SDK keeps them."""
    found: dict[str, Any] = {}
    for pair in pairs:
        assert isinstance(pair, KeyValue)
        assert pair.key not in found, f"{pair.key} was sent twice"
        found[pair.key] = value_of(pair.value)
    return found


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(value_of(each) for each in value.array_value.values)
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind) if kind is not None else None
