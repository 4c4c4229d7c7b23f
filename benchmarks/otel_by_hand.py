"""The telemetry of a run of ten steps, written by hand, and the proof that it is the same as ours."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from hookline import (
    Agent,
    HookDispatcher,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolRequest,
    Usage,
    exec_agent,
    tool,
)
from hookline.otel import MetricsHooks, TracingHooks
from hookline.otel._attributes import HISTOGRAMS

STEPS = 10
USAGE = Usage(input_tokens=10, output_tokens=5)
TURNS = [
    *(
        ModelResponse(
            tool_calls=[ToolRequest(tool_name="add", tool_call_id=f"call_{index}", args={"a": index, "b": 2})],
            usage=USAGE,
        )
        for index in range(STEPS - 1)
    ),
    ModelResponse(content="done", usage=USAGE),
]


@tool(in_thread=False)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def play(call: ModelCall) -> ModelResponse:
    return TURNS[call.step_index]


def dropping() -> TracerProvider:
    """An SDK whose processor does nothing with the spans that it is given."""
    provider = TracerProvider()
    provider.add_span_processor(SpanProcessor())
    return provider


class ByHand:
    """The telemetry of the same run as somebody writes it who has no hooks, with the SDK's own ways."""

    def __init__(self, traces: TracerProvider, meters: MeterProvider) -> None:
        self.tracer = traces.get_tracer("by hand")
        meter = meters.get_meter("by hand")
        self.histograms = {
            key: meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)
            for key, (name, unit, description, bounds) in HISTOGRAMS.items()
        }
        self.agent = Agent(id="adder", model=ScriptedModel(self.play), tools=[add])

    def play(self, call: ModelCall) -> ModelResponse:
        """Answer as `play` does; the telemetry of the whole step is made here, in the middle of a real run."""
        self.step("op", call.step_index)
        return TURNS[call.step_index]

    async def run(self, dispatcher: HookDispatcher) -> None:
        """A run that is not traced but by hand."""
        began = perf_counter()
        with self.root("op") as root:
            await exec_agent(self.agent, "Add.", dispatcher=dispatcher)
            self.end(root, began)

    def loop(self) -> None:
        """The telemetry alone."""
        began = perf_counter()
        with self.root("op") as root:
            for index in range(STEPS):
                self.step("op", index)
            self.end(root, began)

    def root(self, operation_id: str) -> Any:
        return self.tracer.start_as_current_span("invoke_agent adder", attributes=root_attributes(operation_id))

    def end(self, root: trace.Span, began: float) -> None:
        root.set_attributes(
            {
                "hookline.outcome": "done",
                "hookline.steps": STEPS,
                "hookline.llm_calls": STEPS,
                "hookline.tool_calls": STEPS - 1,
                "gen_ai.response.finish_reasons": ("stop",),
            }
        )
        agent = {"gen_ai.agent.name": "adder"}
        self.histograms["agent"].record(perf_counter() - began, {**agent, "gen_ai.request.model": "scripted"})
        self.histograms["inferences"].record(STEPS, agent)
        self.histograms["tool_calls"].record(STEPS - 1, agent)

    def step(self, operation_id: str, index: int) -> None:
        began = perf_counter()
        attributes = {"hookline.operation.id": operation_id, "hookline.step.index": index}
        with self.tracer.start_as_current_span("agent_step", attributes=attributes) as step:
            self.chat(operation_id)
            last = index == STEPS - 1
            if not last:
                self.tool(operation_id, index)
            step.set_attributes(
                {
                    "hookline.step.type": "call_llm" if last else "call_tool",
                    "hookline.step.should_continue": not last,
                    "hookline.step.tool_calls": int(not last),
                }
            )
        self.histograms["step"].record(perf_counter() - began, {"gen_ai.agent.name": "adder"})

    def chat(self, operation_id: str) -> None:
        began = perf_counter()
        call = {
            "gen_ai.provider.name": "hookline",
            "gen_ai.request.model": "scripted",
            "gen_ai.operation.name": "chat",
        }
        attributes = {"hookline.operation.id": operation_id, **call}
        with self.tracer.start_as_current_span("chat scripted", kind=SpanKind.CLIENT, attributes=attributes) as chat:
            chat.set_attributes(
                {
                    "gen_ai.response.finish_reasons": ("stop",),
                    "gen_ai.usage.input_tokens": 10,
                    "gen_ai.usage.output_tokens": 5,
                }
            )
        self.histograms["model"].record(perf_counter() - began, call)
        self.histograms["tokens"].record(10, {**call, "gen_ai.token.type": "input"})
        self.histograms["tokens"].record(5, {**call, "gen_ai.token.type": "output"})

    def tool(self, operation_id: str, index: int) -> None:
        began = perf_counter()
        with self.tracer.start_as_current_span("execute_tool add", attributes=tool_attributes(operation_id, index)):
            pass
        attributes = {"gen_ai.tool.name": "add", "gen_ai.tool.type": "function", "gen_ai.agent.name": "adder"}
        self.histograms["tool"].record(perf_counter() - began, attributes)


class MetricsByHand(ByHand):
    """The metrics of the same run alone, written by hand."""

    def root(self, operation_id: str) -> Any:
        return nullcontext()

    def end(self, root: object, began: float) -> None:
        agent = {"gen_ai.agent.name": "adder"}
        self.histograms["agent"].record(perf_counter() - began, {**agent, "gen_ai.request.model": "scripted"})
        self.histograms["inferences"].record(STEPS, agent)
        self.histograms["tool_calls"].record(STEPS - 1, agent)

    def step(self, operation_id: str, index: int) -> None:
        began = perf_counter()
        self.chat(operation_id)
        if index < STEPS - 1:
            self.tool(operation_id, index)
        self.histograms["step"].record(perf_counter() - began, {"gen_ai.agent.name": "adder"})

    def chat(self, operation_id: str) -> None:
        began = perf_counter()
        call = {
            "gen_ai.provider.name": "hookline",
            "gen_ai.request.model": "scripted",
            "gen_ai.operation.name": "chat",
        }
        self.histograms["model"].record(perf_counter() - began, call)
        self.histograms["tokens"].record(10, {**call, "gen_ai.token.type": "input"})
        self.histograms["tokens"].record(5, {**call, "gen_ai.token.type": "output"})

    def tool(self, operation_id: str, index: int) -> None:
        began = perf_counter()
        attributes = {"gen_ai.tool.name": "add", "gen_ai.tool.type": "function", "gen_ai.agent.name": "adder"}
        self.histograms["tool"].record(perf_counter() - began, attributes)


def root_attributes(operation_id: str) -> dict[str, Any]:
    return {
        "hookline.operation.id": operation_id,
        "gen_ai.request.model": "scripted",
        "gen_ai.agent.name": "adder",
        "gen_ai.operation.name": "invoke_agent",
    }


def tool_attributes(operation_id: str, index: int) -> dict[str, Any]:
    return {
        "hookline.operation.id": operation_id,
        "hookline.tool.identifier": "local",
        "gen_ai.tool.call.id": f"call_{index}",
        "gen_ai.agent.name": "adder",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.name": "add",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.description": "Add two numbers.",
    }


# Whether both sides are the same.


async def emits_the_same() -> None:
    """Refuse to compare what is not alike."""
    ours, by_hand = Exported(), Exported()
    agent = Agent(id="adder", model=ScriptedModel(play), tools=[add])
    hooks = [TracingHooks(ours.traces, meter_provider=ours.meters), MetricsHooks(ours.meters)]
    result = await exec_agent(agent, "Add.", operation_id="op", hooks=hooks)
    assert (result.output, result.steps, result.tool_calls) == ("done", STEPS, STEPS - 1)
    hand = ByHand(by_hand.traces, by_hand.meters)
    async with HookDispatcher() as dispatcher:
        await hand.run(dispatcher)
    assert len(by_hand.spans()) == 3 * STEPS
    assert ours.spans() == by_hand.spans()
    assert ours.points() == by_hand.points()
    alone = Exported()
    ByHand(alone.traces, alone.meters).loop()
    assert (ours.spans(), ours.points()) == (alone.spans(), alone.points())
    measured, by_hand = Exported(), Exported()
    await exec_agent(agent, "Add.", hooks=[MetricsHooks(measured.meters)])
    async with HookDispatcher() as dispatcher:
        await MetricsByHand(by_hand.traces, by_hand.meters).run(dispatcher)
    assert (measured.spans(), measured.points()) == (by_hand.spans(), by_hand.points()) == (Counter(), ours.points())


class Exported:
    """Providers that keep what they export, in a form that can be compared: without times and random ids."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.traces, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> Counter[tuple[object, ...]]:
        """Name, kind, status, attributes, events and links of each span, and the same of its parents."""
        finished = {span.context.span_id: span for span in self.exporter.get_finished_spans()}

        def shape(span: ReadableSpan) -> tuple[object, ...]:
            attributes = frozenset((span.attributes or {}).items())
            above = shape(finished[span.parent.span_id]) if span.parent is not None else None
            return (span.name, span.kind, span.status.status_code, attributes, span.events, span.links, above)

        return Counter(map(shape, finished.values()))

    def points(self) -> set[tuple[object, ...]]:
        """Name, unit, buckets, attributes and count of each point of a histogram; the sum too, except of times."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            (
                metric.name,
                metric.unit,
                point.explicit_bounds,
                frozenset(point.attributes.items()),
                point.count,
                None if metric.unit == "s" else point.sum,
            )
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if hasattr(point, "explicit_bounds")  # without our gauges of open spans and lanes
        }
