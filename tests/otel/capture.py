"""A real SDK that keeps in memory what it would export, and small agents to trace with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import StatusCode

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, Usage
from hookline.otel import MetricsHooks, TracingHooks
from hookline.runtime import ModelRetry

AT_ONCE = ModelRetry(first_wait=0.0)

RESOURCE = Resource.create()
"""Made once: the SDK starts threads to find out where it runs, and a provider without one does so again."""


class Sink:
    """A tracer, a meter and a logger provider of the SDK, and everything that came out of them.

    Args:
        limits: Of spans.
        sampler: Of spans; every one unless given.
        processors: Span processors that come before the exporter.
    """

    def __init__(
        self,
        *,
        limits: SpanLimits | None = None,
        sampler: Sampler | None = None,
        processors: Iterable[SpanProcessor] = (),
    ) -> None:
        self._spans, self._logs, self.reader = (
            InMemorySpanExporter(),
            InMemoryLogRecordExporter(),
            InMemoryMetricReader(),
        )
        self.tracer_provider = TracerProvider(sampler, RESOURCE, span_limits=limits, shutdown_on_exit=False)
        for processor in processors:
            self.tracer_provider.add_span_processor(processor)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meter_provider = MeterProvider([self.reader], RESOURCE, shutdown_on_exit=False)
        self.logger_provider = LoggerProvider(RESOURCE, shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self._logs))

    @property
    def providers(self) -> dict[str, Any]:
        return {
            "tracer_provider": self.tracer_provider,
            "meter_provider": self.meter_provider,
            "logger_provider": self.logger_provider,
        }

    def tracing(self, **options: Any) -> TracingHooks:
        return TracingHooks(**{**self.providers, **options})

    def metrics(self, **options: Any) -> MetricsHooks:
        return MetricsHooks(**{"meter_provider": self.meter_provider, **options})

    # What came out.

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name or span.name.startswith(f"{name} ")]

    def one(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} spans {name!r} among {self.names()}"
        return found[0]

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        if span.parent is None:
            return None
        above = span.parent.span_id  # read once: a test asks for the parents of thousands of spans
        return next((each for each in self.spans if each.context.span_id == above), None)

    @property
    def logs(self) -> list[Any]:
        return [each.log_record for each in self._logs.get_finished_logs()]

    def log(self, event_name: str) -> Any:
        found = [record for record in self.logs if record.event_name == event_name]
        assert len(found) == 1, f"{len(found)} events {event_name!r}"
        return found[0]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def losses(self) -> dict[str, int]:
        """How often the telemetry has failed, by callback."""
        found: dict[str, int] = {}
        for point in self.points("hookline.tracer.errors"):
            callback = point.attributes["hookline.tracer.callback"]
            found[callback] = found.get(callback, 0) + point.value
        return found

    def exported(self) -> bytes:
        """Everything, as an OTLP exporter sends it."""
        return self.exported_spans() + self.exported_logs() + self.exported_metrics()

    def exported_spans(self) -> bytes:
        return encode_spans(self.spans).SerializeToString() if self.spans else b""

    def exported_logs(self) -> bytes:
        finished = self._logs.get_finished_logs()
        return encode_logs(finished).SerializeToString() if finished else b""

    def exported_metrics(self) -> bytes:
        data = self.reader.get_metrics_data()
        return encode_metrics(data).SerializeToString() if data is not None else b""

    def assert_whole(self) -> None:
        """No span outlives its parent or begins before it, and every parent was exported."""
        known = {span.context.span_id: span for span in self.spans}
        for span in self.spans:
            assert span.start_time <= span.end_time, span.name
            if span.parent is None or span.parent.is_remote:
                continue
            parent = known.get(span.parent.span_id)
            assert parent is not None, f"{span.name} is under a span that nobody has exported"
            assert parent.start_time <= span.start_time, f"{span.name} begins before {parent.name}"
            assert span.end_time <= parent.end_time, f"{span.name} outlives {parent.name}"


def content(holder: Any, name: str) -> Any:
    """The value of an attribute that is JSON."""
    return json.loads(holder.attributes[name])


def failed(span: ReadableSpan) -> bool:
    return span.status.status_code is StatusCode.ERROR


def call(name: str, call_id: str = "t1", /, toolset: str = "local", **args: Any) -> ToolRequest:
    return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call_id)


def asks(agent_id: str, call_id: str = "t1", instruction: str = "go") -> ToolRequest:
    return call(agent_id, call_id, toolset="agent", instruction=instruction)


def calls(*callings: ToolRequest, content: str = "", tokens: int = 0, reasoning: str = "") -> ModelResponse:
    usage = Usage(input_tokens=tokens)
    return ModelResponse(content=content, reasoning=reasoning, tool_calls=list(callings), usage=usage)


def says(content: str = "done", *, tokens: int = 0, reasoning: str = "") -> ModelResponse:
    return ModelResponse(content=content, reasoning=reasoning, usage=Usage(input_tokens=tokens))


def agent_of(*turns: Any, id: str = "tester", **parts: Any) -> Agent:  # noqa: A002
    """An agent whose model plays these turns."""
    model = parts.pop("model", None) or ScriptedModel(turns)
    return Agent(id=id, model=model, retry=parts.pop("retry", AT_ONCE), **parts)
