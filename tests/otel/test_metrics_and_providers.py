"""Metrics and the process around them: exemplars, threads, exporters, providers that come late or fail."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from opentelemetry.metrics import Histogram, NoOpMeter
from opentelemetry.metrics import MeterProvider as AnyMeterProvider
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    HookDispatcher,
    Hooks,
    ToolCall,
    exec_agent,
)
from hookline.otel import MetricsHooks, TracingHooks
from hookline.signals import hook_executed

from .gauge import (
    AGENT,
    ERROR,
    Foreign,
    Gauge,
    agent_of,
    look_up,
)
from .receiver import ask, call, calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


# Exemplars, and telemetry that fails.


@pytest.mark.parametrize("swapped", [False, True], ids=["tracing first", "metrics first"])
async def test_every_exemplar_is_in_the_trace_of_its_run(swapped: bool) -> None:
    gauge, kept = Gauge(exemplar_filter=AlwaysOnExemplarFilter()), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    watching = Hooks("watching", inherit=True)

    @watching.on(AfterToolCall)
    async def queued(event: AfterToolCall) -> None:
        await anyio.sleep(0)

    @watching.guard(ToolCall)
    def guard(call: ToolCall) -> None:
        """Something to measure."""

    async def run(name: str) -> None:
        helper = agent_of(calls(call("look_up")), says(read=1), id=f"{name}-helper", tools=[look_up])
        step = calls(call("look_up", "t1"), call("look_up", "t2"), ask(helper.id, "t3"), read=1)
        agent = agent_of(step, says(), id=name, tools=[look_up], sub_agents=[helper])
        bundles: list[Hooks] = [TracingHooks(provider, meter_provider=gauge.provider), gauge.hooks()]
        await exec_agent(agent, "go", hooks=[*(bundles[::-1] if swapped else bundles), watching])

    async with anyio.create_task_group() as group:
        group.start_soon(run, "ann")
        group.start_soon(run, "bob")

    spans = {span.context.span_id: span for span in kept.get_finished_spans()}
    traces = {
        str((span.attributes or {})[AGENT]): span.context.trace_id
        for span in spans.values()
        if span.name.startswith("invoke_agent")
    }
    assert traces["ann"] == traces["ann-helper"] != traces["bob"]
    checked = 0
    for name, metric in gauge.metrics.items():
        for point in metric.data.data_points if hasattr(metric.data.data_points[0], "bucket_counts") else ():
            for exemplar in point.exemplars:
                assert exemplar.span_id in spans, name
                if AGENT in point.attributes:
                    assert exemplar.trace_id == traces[point.attributes[AGENT]], name
                    checked += 1
    assert checked >= 4 * 5


class BrokenHistogram(Histogram):
    def __init__(self) -> None:
        super().__init__("broken")

    def record(self, amount: Any, attributes: Any = None, context: Any = None) -> None:
        raise OSError("secret of the back end")


class BrokenMeter(NoOpMeter):
    """A meter whose histograms raise and whose counters work."""

    def __init__(self, real: Any) -> None:
        super().__init__("broken")
        self.real = real

    def create_histogram(self, *args: Any, **options: Any) -> Histogram:
        return BrokenHistogram()

    def create_counter(self, *args: Any, **options: Any) -> Any:
        return self.real.create_counter(*args, **options)


class BrokenProvider(AnyMeterProvider):
    def __init__(self, real: MeterProvider) -> None:
        self.real = real

    def get_meter(self, name: str, *args: Any, **options: Any) -> BrokenMeter:
        return BrokenMeter(self.real.get_meter(name))


async def test_instruments_that_raise_leave_the_run_as_it_was_and_are_counted_and_told_once(
    gauge: Gauge, caplog: pytest.LogCaptureFixture
) -> None:
    def agent() -> Agent:
        return agent_of(calls(call("look_up"), read=3), calls(call("look_up")), says(), tools=[look_up])

    bare = await exec_agent(agent(), "go")
    measured = await exec_agent(agent(), "go", hooks=[MetricsHooks(BrokenProvider(gauge.provider))])

    assert (measured.reason, measured.messages) == (bare.reason, bare.messages)
    failures = {
        point.attributes["hookline.tracer.callback"]: (point.attributes[ERROR], point.value)
        for point in gauge.points("hookline.tracer.errors")
    }
    assert failures == {
        "leave": ("OSError", 3),
        "afterToolCall": ("OSError", 2),
        "afterStep": ("OSError", 3),
        "onComplete": ("OSError", 1),
    }
    assert len(caplog.records) == len(failures)


async def test_measurements_that_make_no_sense_are_left_out(gauge: Gauge) -> None:
    async with HookDispatcher() as dispatcher, dispatcher.operation("op", [gauge.hooks()]):
        foreign = Foreign(dispatcher)
        for milliseconds in (float("nan"), float("inf"), -5.0, 3.0):
            foreign.step(0, milliseconds=milliseconds)
        foreign.complete()

    assert gauge.point("hookline.step.duration").sum == 0.003


# Threads.


def test_one_bundle_counts_runs_of_several_threads_exactly() -> None:
    gauge, watching = Gauge(), Hooks("watching")
    bundles = [gauge.hooks(), TracingHooks(TracerProvider(shutdown_on_exit=False), hook_spans=True), watching]

    @watching.on(AfterStep)
    async def queued(event: AfterStep) -> None:
        await anyio.sleep(0)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                agent = agent_of(calls(call("look_up")), says(), tools=[look_up])
                group.start_soon(functools.partial(exec_agent, agent, "go", hooks=bundles))

    threads = [
        threading.Thread(target=anyio.run, args=(main,), kwargs={"backend": each}) for each in ("asyncio", "trio") * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for name, times in (
        ("gen_ai.invoke_agent.duration", 80),
        ("gen_ai.execute_tool.duration", 80),
        ("hookline.step.duration", 160),
    ):
        assert gauge.count(name) == times
    assert gauge.count("hookline.hook.duration") == 160
    assert not hook_executed.receivers


# The process's own provider.


DEFAULTS = """
import asyncio, json, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from hookline import Agent, AfterStep, HookDispatcher, ModelResponse, ScriptedModel, exec_agent, tool
from hookline.otel import MetricsHooks
from hookline.signals import hook_executed

def run(hooks):
    seen = []
    async def main():
        async with HookDispatcher() as dispatcher:
            def answer(call):
                seen.append((dispatcher.has_hooks("op", AfterStep), bool(hook_executed.receivers)))
                return ModelResponse()
            agent = Agent(id="a", model=ScriptedModel(answer))
            await exec_agent(agent, "go", hooks=[hooks], dispatcher=dispatcher, operation_id="op")
    asyncio.run(main())
    return seen[0]

early = MetricsHooks()
before = run(early)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
after = [run(early), run(MetricsHooks())]
deaf = run(MetricsHooks(metrics.NoOpMeterProvider()))
counts = {
    metric.name: sum(point.count for point in metric.data.data_points)
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    if hasattr(metric.data.data_points[0], "count")
}
print(json.dumps([before, after, deaf, counts]))
"""


def test_without_a_provider_the_bundle_is_not_even_registered_and_with_a_later_one_it_is() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", DEFAULTS], capture_output=True, timeout=60, check=False)

    assert done.stderr == b""
    before, after, deaf, counted = json.loads(done.stdout)
    assert before == deaf == [False, False]
    assert after == [[True, True], [True, True]]
    assert counted["gen_ai.invoke_agent.duration"] == counted["gen_ai.client.operation.duration"] == 2


def collecting(gauge: Gauge) -> Iterator[Callable[[], None]]:
    """An exporter's thread that collects all the time."""
    over = threading.Event()

    def collect() -> None:
        while not over.is_set():
            gauge.reader.get_metrics_data()

    thread = threading.Thread(target=collect)
    thread.start()
    yield over.set
    over.set()
    thread.join()


async def test_an_exporter_may_collect_while_bundles_and_runs_are_made(
    gauge: Gauge, caplog: pytest.LogCaptureFixture
) -> None:
    provider, interval = TracerProvider(shutdown_on_exit=False), sys.getswitchinterval()
    kept = [TracingHooks(provider, meter_provider=gauge.provider) for _ in range(300)]
    sys.setswitchinterval(1e-6)
    try:
        for _ in collecting(gauge):
            kept += [TracingHooks(provider, meter_provider=gauge.provider) for _ in range(300)]
            for _ in range(30):
                await exec_agent(agent_of(says()), "go", hooks=[kept[0], gauge.hooks()])
    finally:
        sys.setswitchinterval(interval)

    assert [record for record in caplog.records if record.name != "asyncio"] == []
    assert gauge.count("gen_ai.invoke_agent.duration") == 30
