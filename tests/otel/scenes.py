"""What the tests of the span tree arrange with: a real SDK that keeps what it exports, a view of it as a tree, its laws.

A `Scene` is left with `with`: every span that was begun must then have ended, once, inside of its parent, and neither
OpenTelemetry nor our own telemetry may have complained.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from opentelemetry.context import get_current
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import StatusCode, Tracer, get_current_span

from hookline import (
    Agent,
    HookDispatcher,
    ModelCall,
    ModelResponse,
    OperationResult,
    ScriptedModel,
    ToolRequest,
    Usage,
    exec_agent,
    resume_agent,
)
from hookline.otel import TracingHooks
from hookline.runtime import ModelRetry
from tests.otel.capture import RESOURCE

AT_ONCE = ModelRetry(first_wait=0.0)

Tree = tuple[Any, ...]
"""A span as the tuple of its name and its children's trees, in the order in which they began."""


class Scene:
    """A tracer provider, a logger provider and a meter provider of the SDK, and all that came out of them.

    Args:
        sampler: Of spans; every one unless given.
        limits: Of spans.
        tolerated: Loggers that may complain in this scene.
    """

    def __init__(
        self, *, sampler: Sampler | None = None, limits: SpanLimits | None = None, tolerated: Collection[str] = ()
    ) -> None:
        self.begun = Begun()
        self.exporter, self.log_exporter, self.reader = (
            InMemorySpanExporter(),
            InMemoryLogRecordExporter(),
            InMemoryMetricReader(),
        )
        self.provider = TracerProvider(sampler, RESOURCE, span_limits=limits, shutdown_on_exit=False)
        self.provider.add_span_processor(self.begun)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.logger_provider = LoggerProvider(RESOURCE, shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))
        self.meter_provider = MeterProvider([self.reader], RESOURCE, shutdown_on_exit=False)
        self.complaints = Complaints(tolerated)
        self.traces: int | None = None
        """How many traces there must be in the end, where a test says so."""

    def __enter__(self) -> Self:
        self.complaints.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.complaints.listen_no_more()
        if error is None:
            self.assert_sound()

    def tracing(self, **options: Any) -> TracingHooks:
        given: dict[str, Any] = {
            "tracer_provider": self.provider,
            "logger_provider": self.logger_provider,
            "meter_provider": self.meter_provider,
        }
        return TracingHooks(**{**given, **options})

    @property
    def tracer(self) -> Tracer:
        """For spans of the test's own."""
        return self.provider.get_tracer("tests")

    # What came out.

    @property
    def spans(self) -> list[ReadableSpan]:
        """What was exported, in the order in which it began."""
        return sorted(self.exporter.get_finished_spans(), key=self.begun.position)

    @property
    def still_open(self) -> list[str]:
        return [span.name for span in self.begun.spans if span.end_time is None]

    def tree(self) -> Tree:
        """The one tree that was exported."""
        trees = self.trees()
        assert len(trees) == 1, f"{len(trees)} trees: {trees}"
        return trees[0]

    def trees(self) -> list[Tree]:
        return trees(self.spans)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of that name, or of that kind: the first word of a name."""
        return [span for span in self.spans if span.name == name or span.name.split(" ")[0] == name]

    def one(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} spans {name!r} in {self.trees()}"
        return found[0]

    def of(self, operation_id: str) -> list[ReadableSpan]:
        return [span for span in self.spans if attributes(span).get("hookline.operation.id") == operation_id]

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        if span.parent is None:
            return None
        return next((each for each in self.spans if id_of(each) == span.parent.span_id), None)

    def logs(self, event_name: str) -> list[Any]:
        finished = self.log_exporter.get_finished_logs()
        return [each.log_record for each in finished if each.log_record.event_name == event_name]

    def measured(self, metric: str) -> dict[str, float]:
        """The values of a metric by the values of its attributes, joined with blanks."""
        data = self.reader.get_metrics_data()
        return {
            " ".join(str(point.attributes[key]) for key in sorted(point.attributes)): point.value
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        }

    def forget(self) -> None:
        """Begin anew: what was exported so far is not looked at any more."""
        self.exporter.clear()
        self.begun.spans.clear()

    # The laws.

    def assert_sound(self) -> None:
        """All that must be true of spans whoever sent the events, when everything is over."""
        assert not self.still_open, f"open still: {self.still_open}"
        exported = self.exporter.get_finished_spans()
        assert len(exported) == len(self.begun.spans), "a span was exported twice, or not at all"
        assert_sound(exported, traces=self.traces)
        assert not self.measured("hookline.tracer.errors"), self.measured("hookline.tracer.errors")
        self.complaints.assert_none()


def assert_sound(
    spans: Iterable[ReadableSpan], *, traces: int | None = None, outside: Collection[ReadableSpan] = ()
) -> None:
    """Every parent was exported, no child begins before it or outlives it, nothing has ended twice.

    Args:
        spans: What was exported.
        traces: How many traces there must be, if that matters.
        outside: Spans that may be parents although they were not exported.
    """
    spans = list(spans)
    known = {id_of(span): span for span in spans}
    assert len(known) == len(spans), "a span was exported twice"
    allowed = {id_of(span) for span in outside}
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None, f"{span.name} was exported without an end"
        assert span.start_time <= span.end_time, f"{span.name} ends before it begins"
        if span.parent is None or span.parent.is_remote or span.parent.span_id in allowed:
            continue
        parent = known.get(span.parent.span_id)
        assert parent is not None, f"{span.name} is under a span that nobody has exported"
        assert parent.context.trace_id == span.context.trace_id, f"{span.name} is in another trace than {parent.name}"
        assert parent.start_time <= span.start_time, f"{span.name} begins before {parent.name}"
        assert span.end_time <= parent.end_time, f"{span.name} outlives {parent.name}"
    if traces is not None:
        found = {span.context.trace_id for span in spans}
        assert len(found) == traces, f"{len(found)} traces"


def trees(spans: Sequence[ReadableSpan]) -> list[Tree]:
    """Spans, in the order in which they began, as nested tuples; one whose parent is not among them is a root."""
    known = {id_of(span) for span in spans}
    below: dict[int | None, list[ReadableSpan]] = {}
    for span in spans:
        above = span.parent.span_id if span.parent is not None else None
        below.setdefault(above if above in known else None, []).append(span)

    def tree(span: ReadableSpan) -> Tree:
        return (span.name, *(tree(child) for child in below.get(id_of(span), ())))

    return [tree(root) for root in below.get(None, ())]


def unordered(tree: Tree) -> Tree:
    """A tree whose parallel branches are in an order of names, as it does not matter which of them began first."""
    name, *below = tree
    return (name, *sorted(map(unordered, below), key=repr))


def id_of(span: ReadableSpan) -> int:
    return span.context.span_id


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def own(span: ReadableSpan, *names: str) -> tuple[Any, ...]:
    """Attributes of our namespace, by the rest of their names."""
    return tuple(attributes(span).get(f"hookline.{name}") for name in names)


def status(span: ReadableSpan) -> str:
    return span.status.status_code.name


def failed(span: ReadableSpan) -> bool:
    return span.status.status_code is StatusCode.ERROR


def error_type(span: ReadableSpan) -> Any:
    return attributes(span).get("error.type")


def linked(span: ReadableSpan) -> dict[Any, str]:
    """What a span links to, as `trace/span`, by how it is related."""
    return {
        (link.attributes or {}).get("hookline.link"): f"{link.context.trace_id:032x}/{link.context.span_id:016x}"
        for link in span.links
    }


def place(span: ReadableSpan) -> str:
    """Where a span is, in the form of `linked`."""
    return f"{span.context.trace_id:032x}/{span.context.span_id:016x}"


class Begun(SpanProcessor):
    """Knows every span that has begun, so that one that never ends is noticed."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self._positions: dict[int, int] = {}

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._positions[id_of(span)] = len(self._positions)
        self.spans.append(span)

    def position(self, span: ReadableSpan) -> int:
        return self._positions[id_of(span)]


class Complaints(logging.Handler):
    """What OpenTelemetry and our own telemetry have to say: a span ended twice, a context that cannot be detached."""

    LOGGERS = ("opentelemetry", "hookline.otel")

    def __init__(self, tolerated: Collection[str]) -> None:
        super().__init__(logging.WARNING)
        self._tolerated = tolerated
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not any(record.name == name or record.name.startswith(f"{name}.") for name in self._tolerated):
            self.records.append(record)

    def listen(self) -> None:
        for name in self.LOGGERS:
            logging.getLogger(name).addHandler(self)

    def listen_no_more(self) -> None:
        for name in self.LOGGERS:
            logging.getLogger(name).removeHandler(self)

    def assert_none(self) -> None:
        assert not self.records, [f"{record.name}: {record.getMessage()}" for record in self.records]


# Runs that leave the caller's context as they found it.


async def run(agent: Agent, prompt: Any = "go", **options: Any) -> OperationResult:
    """`exec_agent`; the caller's context is the same before and after."""
    before = get_current()
    result = await exec_agent(agent, prompt, **options)
    assert get_current() == before, "the run has left something in the caller's context"
    return result


async def resume(agent: Agent, operation_id: str, *decisions: Any, **options: Any) -> OperationResult:
    """`resume_agent`; the caller's context is the same before and after."""
    before = get_current()
    result = await resume_agent(agent, operation_id, decisions, **options)
    assert get_current() == before, "the run has left something in the caller's context"
    return result


def send(dispatcher: HookDispatcher, *events: Any) -> None:
    """Dispatch events; the caller's context is the same before and after each."""
    for event in events:
        before = get_current()
        dispatcher.dispatch(event)
        assert get_current() == before, f"{event.hook_type} has left something in the caller's context"


def here() -> str:
    """Name of the current span; empty outside of every one."""
    return getattr(get_current_span(), "name", "")


# Agents and what their models say.


def call(name: str, call_id: str = "t1", /, toolset: str = "local", **args: Any) -> ToolRequest:
    return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call_id)


def ask(agent_id: str, call_id: str = "t1", instruction: str = "go") -> ToolRequest:
    return call(agent_id, call_id, toolset="agent", instruction=instruction)


def calls(*callings: ToolRequest, content: str = "", tokens: int = 0, output: int = 0) -> ModelResponse:
    usage = Usage(input_tokens=tokens, output_tokens=output)
    return ModelResponse(content=content, tool_calls=list(callings), usage=usage)


def says(content: str = "done", tokens: int = 0, output: int = 0) -> ModelResponse:
    return ModelResponse(content=content, usage=Usage(input_tokens=tokens, output_tokens=output))


def agent_of(*turns: Any, id: str = "tester", **parts: Any) -> Agent:  # noqa: A002
    """An agent whose model plays these turns."""
    model = parts.pop("model", None) or ScriptedModel(turns)
    return Agent(id=id, model=model, retry=parts.pop("retry", AT_ONCE), **parts)


class CallbackModel:
    """A model that asks an async function for each answer."""

    name = "callback"
    provider = "tests"

    def __init__(self, answer: Callable[[ModelCall], Any]) -> None:
        self._answer = answer

    async def respond(self, call: ModelCall) -> ModelResponse:
        answer: ModelResponse = await self._answer(call)
        return answer
