"""Exemplars lead to the span that a point measures, and metrics do not depend on the tracing beside them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from hookline import AfterStep, BeforeToolCall, Deny, Hooks, ToolCall, exec_agent, tool
from hookline.instrumentation import SegmentInfo
from hookline.otel import TracingHooks, _pairing

from .gauge import AGENT, LONG, TOOL, Gauge, agent_of, compacting, complain
from .receiver import call, calls, says

pytestmark = pytest.mark.anyio

IN_ORDER = pytest.mark.parametrize("swapped", [False, True], ids=["tracing first", "metrics first"])

SPAN_OF = {
    "gen_ai.execute_tool.duration": "execute_tool",
    "gen_ai.client.operation.duration": "chat",
    "gen_ai.client.token.usage": "chat",
    "hookline.step.duration": "agent_step",
    "hookline.compaction.duration": "compact_context",
    "gen_ai.invoke_agent.duration": "invoke_agent",
    "gen_ai.invoke_agent.inference_calls": "invoke_agent",
    "gen_ai.invoke_agent.tool_calls": "invoke_agent",
}


class Traced:
    """A bundle that traces into memory, and one that measures, in one order or the other."""

    def __init__(self, *, swapped: bool, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.gauge = Gauge(**options)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = TracingHooks(provider, meter_provider=self.gauge.provider)
        self.hooks: list[Hooks] = [self.tracing, self.gauge.hooks()]
        if swapped:
            self.hooks.reverse()

    def exemplars(self) -> dict[str, list[tuple[Any, Any]]]:
        """By metric: the attributes of a point, and the span of its exemplar."""
        spans = {span.context.span_id: span for span in self.exporter.get_finished_spans()}
        return {
            name: [
                (dict(point.attributes), spans[exemplar.span_id])
                for point in metric.data.data_points
                for exemplar in point.exemplars
            ]
            for name, metric in self.gauge.metrics.items()
            if name in SPAN_OF
        }


@tool
async def look_up() -> str:
    return "3 left"


@tool
async def fail() -> str:
    raise ValueError("no")


@IN_ORDER
async def test_the_exemplar_of_a_point_is_the_span_that_it_measures(swapped: bool) -> None:
    traced = Traced(swapped=swapped)
    names = ("look_up", "complain", "fail")
    work = calls(*(call(name, name) for name in names), read=1)

    await exec_agent(agent_of(work, says(read=1), tools=[look_up, complain, fail]), "go", hooks=traced.hooks)
    await exec_agent(compacting(*LONG), "go " * 300, hooks=traced.hooks)

    found = traced.exemplars()
    assert found.keys() == SPAN_OF.keys()
    for name, pairs in found.items():
        assert pairs, name
        assert {span.name.split()[0] for _, span in pairs} == {SPAN_OF[name]}, name
    tools = [(point[TOOL], span.attributes[TOOL]) for point, span in found["gen_ai.execute_tool.duration"]]
    assert {(name, name) for name in names} <= set(tools)
    assert all(point == span for point, span in tools)


@IN_ORDER
async def test_the_exemplar_of_a_call_that_a_hook_answered_or_denied_is_its_span(swapped: bool) -> None:
    traced, hooks = Traced(swapped=swapped), Hooks()
    hooks.on(BeforeToolCall, tool="*/complain")(lambda event: event.mock("made up") and None)
    hooks.guard(ToolCall, tool="*/fail")(lambda call: Deny("no"))
    work = calls(call("complain", "t1"), call("fail", "t2"))

    await exec_agent(agent_of(work, says(), tools=[complain, fail]), "go", hooks=[*traced.hooks, hooks])

    pairs = traced.exemplars()["gen_ai.execute_tool.duration"]
    assert {(point[TOOL], span.name) for point, span in pairs} == {
        ("complain", "execute_tool complain"),
        ("fail", "execute_tool fail"),
    }


@IN_ORDER
async def test_parallel_calls_of_one_tool_have_exemplars_of_their_own(swapped: bool) -> None:
    traced, arrived = Traced(swapped=swapped), anyio.Event()
    waiting = 0

    @tool
    async def meet() -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            arrived.set()
        await arrived.wait()
        return "met"

    async def run(name: str) -> None:
        agent = agent_of(calls(call("meet")), says(), id=name, tools=[meet])
        await exec_agent(agent, "go", hooks=traced.hooks)

    async with anyio.create_task_group() as group:
        group.start_soon(run, "ann")
        group.start_soon(run, "bob")

    pairs = traced.exemplars()["gen_ai.execute_tool.duration"]
    assert {(point[AGENT], span.attributes[AGENT]) for point, span in pairs} == {("ann", "ann"), ("bob", "bob")}


@IN_ORDER
async def test_a_run_that_is_not_sampled_is_measured_without_exemplars(swapped: bool) -> None:
    gauge = Gauge()
    tracing = TracingHooks(TracerProvider(sampler=ALWAYS_OFF), meter_provider=gauge.provider)
    hooks: list[Hooks] = [gauge.hooks(), tracing] if swapped else [tracing, gauge.hooks()]

    await exec_agent(agent_of(calls(call("look_up")), says(), tools=[look_up]), "go", hooks=hooks)

    metrics = gauge.metrics
    assert counts(metrics) == {"gen_ai.execute_tool.duration": 1, "hookline.step.duration": 2, "chat": 2, "run": 1}
    points = [point for name in SPAN_OF if name in metrics for point in metrics[name].data.data_points]
    assert not any(point.exemplars for point in points)


@IN_ORDER
async def test_a_run_is_measured_to_its_end_although_the_tracing_was_closed(swapped: bool) -> None:
    traced = Traced(swapped=swapped)

    @tool
    async def close() -> str:
        traced.tracing.close()
        return "closed"

    agent = agent_of(calls(call("close")), calls(call("look_up")), says(), tools=[close, look_up])
    await exec_agent(agent, "go", hooks=traced.hooks)

    expected = {"gen_ai.execute_tool.duration": 2, "hookline.step.duration": 3, "chat": 3, "run": 1}
    assert counts(traced.gauge.metrics) == expected


@IN_ORDER
async def test_every_bundle_that_measures_is_called_once_beside_several_that_trace(swapped: bool) -> None:
    traced, other = Traced(swapped=swapped), Traced(swapped=swapped)
    agent = agent_of(calls(call("look_up")), says(), tools=[look_up])

    await exec_agent(agent, "go", hooks=[*traced.hooks, *other.hooks])

    expected = {"gen_ai.execute_tool.duration": 1, "hookline.step.duration": 2, "chat": 2, "run": 1}
    assert counts(traced.gauge.metrics) == counts(other.gauge.metrics) == expected
    assert len(traced.exporter.get_finished_spans()) == len(other.exporter.get_finished_spans()) == 6


@IN_ORDER
def test_a_segment_that_begins_while_the_one_before_is_open_is_measured_once(swapped: bool) -> None:
    gauge = Gauge()
    tracing, metrics = gauge.tracing(), gauge.hooks()
    bundles: list[Any] = [metrics, tracing] if swapped else [tracing, metrics]
    before, after = [begin_all(bundles) for _ in range(2)]

    def tell(event: AfterStep) -> None:
        for bundle in bundles:
            for observer in bundle.observers:
                if observer.type is AfterStep:
                    observer.handler(event)

    tell(step_ended(0))
    assert gauge.count("hookline.step.duration") == 1
    end_all(before)
    tell(step_ended(1))
    assert gauge.count("hookline.step.duration") == 2
    end_all(after)
    tell(step_ended(2))
    assert gauge.count("hookline.step.duration") == 2
    assert _pairing._beginning == {}


def begin_all(bundles: list[Any]) -> list[tuple[Any, Any]]:
    segment = SegmentInfo(operation_id="op", agent_id="tester")
    return [(bundle, bundle.begin(segment)) for bundle in bundles]


def end_all(begun: list[tuple[Any, Any]]) -> None:
    for bundle, (value, _) in reversed(begun):
        bundle.end(value)


def step_ended(index: int) -> AfterStep:
    return AfterStep(
        operation_id="op", agent_id="tester", step_index=index, step_type="call_llm", content="", reasoning="",
        tools_calling=[], tools_result=[], should_continue=True, execution_time_ms=1.0, elapsed_ms=1.0,
        step_cost_usd=0.0, total_cost_usd=0.0, total_input_tokens=0, total_output_tokens=0, total_steps=1,
        total_tool_calls=0,
    )  # fmt: skip


def counts(metrics: dict[str, Any]) -> dict[str, int]:
    """How many points of a kind were recorded."""
    names = {
        "gen_ai.execute_tool.duration": "gen_ai.execute_tool.duration",
        "hookline.step.duration": "hookline.step.duration",
        "gen_ai.client.operation.duration": "chat",
        "gen_ai.invoke_agent.duration": "run",
    }
    return {
        shown: sum(point.count for point in metrics[name].data.data_points)
        for name, shown in names.items()
        if name in metrics
    }
