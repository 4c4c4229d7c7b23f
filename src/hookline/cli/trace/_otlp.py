"""Keep the spans of a command in memory while it runs, then send them by OTLP/HTTP or write them as OTLP/JSON.

Nothing is sent while operations run: that would be measured with them, and a queue that is full loses spans that nobody
counts. OpenTelemetry's exporter sends, and its encoder and protobuf's JSON write OTLP/JSON; only the ids are rewritten
here, since the library that does that too, `opentelemetry-exporter-otlp-json-common` 0.66b1, is a beta that would bind
everybody who installs the extra `otel` to an SDK from 1.45.1.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from hookline.cli.errors import EndpointError, TracingDisabledError
from hookline.errors import MissingExtraError
from hookline.otel import TracingHooks

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["PROJECT", "SendReport", "Tracing", "otlp_json", "send", "traces_url"]

PROJECT = "hookline"
"""Name of the service, and of the project that Phoenix puts the traces into."""

BATCH = 200
"""Spans of one request: with content, a few hundred are some megabytes."""

GIVE_UP_AFTER = 2
"""Failed requests after which no other is tried: each has its own retries behind it, some seconds long."""

PORTS = {"http": 80, "https": 443}


class Tracing:
    """A tracer provider of the command's own, and the bundle that fills it.

    Args:
        endpoint: Where the spans are to be sent at the end, if they are.
        content: Whether prompts, answers, arguments and results are recorded; otherwise the environment decides.
        hook_spans: Whether each hook becomes a span.

    Attributes:
        url: Where the spans are to be sent.
        hooks: Give it to runs.

    Raises:
        EndpointError: If spans cannot be sent to such a URL.
        MissingExtraError: If the SDK is not installed.
        TracingDisabledError: If the environment turns it off.
    """

    def __init__(self, endpoint: str | None, *, content: bool = False, hook_spans: bool = False) -> None:
        self.url = traces_url(endpoint) if endpoint is not None else None
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            raise TracingDisabledError
        try:
            import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401  (better found now than at the end)
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "opentelemetry":
                raise
            raise MissingExtraError("otel", "Tracing") from error
        resource = Resource.create({"service.name": PROJECT, "openinference.project.name": PROJECT})
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._kept = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.hooks = TracingHooks(
            provider,
            capture_content=True if content else None,
            hook_spans=hook_spans,
            aggregate_usage="hookline",
            openinference=True,
        )

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Every span that has ended, in the order of their ends."""
        return self._kept.get_finished_spans()


@dataclass(frozen=True, kw_only=True)
class SendReport:
    """How many spans arrived, and how many were lost.

    Attributes:
        url: The URL that they were sent to.
        sent: Spans that were accepted.
        lost: Spans that were not.
        reason: Why spans were lost.
    """

    url: str
    sent: int
    lost: int
    reason: str = ""


def traces_url(endpoint: str) -> str:
    """Return the URL for traces of an endpoint: `/v1/traces`, unless the endpoint has a path itself.

    Raises:
        EndpointError: If OTLP/HTTP cannot be sent to it.
    """
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in PORTS and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise EndpointError(endpoint)
    return endpoint if parts.path.strip("/") else urlunsplit(parts._replace(path="/v1/traces"))


def send(spans: Sequence[ReadableSpan], url: str) -> SendReport:
    """Send spans by OTLP/HTTP. Spans that are lost are counted; nothing is raised."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    reason = find_connection_error(url)
    if reason is not None:
        return SendReport(url=url, sent=0, lost=len(spans), reason=reason)
    sent = failures = 0
    with ExporterLog() as log:
        try:
            exporter = OTLPSpanExporter(endpoint=url)
        except Exception as error:  # what the environment says of compression, timeouts or certificates
            return SendReport(url=url, sent=0, lost=len(spans), reason=str(error))
        for start in range(0, len(spans), BATCH):
            batch = spans[start : start + BATCH]
            if exporter.export(batch) is SpanExportResult.SUCCESS:
                sent += len(batch)
                continue
            failures += 1
            if failures == GIVE_UP_AFTER:
                break
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return SendReport(url=url, sent=sent, lost=len(spans) - sent, reason=log.text)


def find_connection_error(url: str) -> str | None:
    """Return why a URL cannot be connected to, at once rather than after seconds of retries; `None` if it can."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return None
    try:
        socket.create_connection((host, parts.port or PORTS[parts.scheme]), timeout=5).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


class ExporterLog(logging.Handler):
    """Keeps the latest message of the exporter, which would otherwise go to stderr.

    Attributes:
        text: The message, in one line.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        self._logger = logging.getLogger("opentelemetry")
        self._propagate = self._logger.propagate

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, in one line."""
        self.text = " ".join(record.getMessage().split())[:300]

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logger.propagate = self._propagate
        self._logger.removeHandler(self)


def otlp_json(spans: Sequence[ReadableSpan]) -> str:
    """Return spans as one OTLP/JSON document, an `ExportTraceServiceRequest`.

    Only the ids differ from protobuf's JSON: OTLP writes them in hex, protobuf in base64.

    Source:
        OpenTelemetry Protocol 1.9, "JSON Protobuf Encoding".
    """
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    document: dict[str, Any] = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    for resource in document.get("resourceSpans", ()):
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for holder in (span, *span.get("links", ())):
                    for name in ("traceId", "spanId", "parentSpanId"):
                        if name in holder:
                            holder[name] = base64.b64decode(holder[name]).hex()
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
