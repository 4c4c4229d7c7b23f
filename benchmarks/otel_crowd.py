"""Two thousand traced runs at the same time: whether every span is where it belongs, and what an open one weighs."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from time import perf_counter_ns

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_span_in_context

from benchmarks.harness import Row
from benchmarks.otel_by_hand import STEPS, TURNS, USAGE, ByHand, dropping, root_attributes, tool_attributes
from hookline import (
    Agent,
    HookDispatcher,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.otel import MetricsHooks, TracingHooks
from hookline.runtime import InMemoryStore

CONCURRENT = 2_000


class Crowd:
    """Operations that all wait in the same step, inside of their tool, until the last of them has arrived there."""

    def __init__(self, size: int, hooks: list[Hooks], arrived: Callable[[], None] = lambda: None) -> None:
        self.size, self.hooks, self.arrived = size, hooks, arrived
        self.inside: dict[tuple[str, int], int] = {}
        """Which span was current inside of which tool call."""
        self._waiting = 0
        self._gate = asyncio.Event()

    async def run(self) -> int:
        """Run them all.

        Returns:
            Nanoseconds.
        """
        wait_turn = tool(name="add")(self.wait_turn)
        agent = Agent(id="adder", model=ScriptedModel(self.play), tools=[wait_turn])
        began = perf_counter_ns()
        async with HookDispatcher() as dispatcher, asyncio.TaskGroup() as group:
            for number in range(self.size):
                running = exec_agent(
                    agent,
                    "Add.",
                    operation_id=f"op_{number}",
                    hooks=self.hooks,
                    dispatcher=dispatcher,
                    store=InMemoryStore(),
                )
                group.create_task(running)
        return perf_counter_ns() - began

    def play(self, call: ModelCall) -> ModelResponse:
        if call.step_index == STEPS - 1:
            return TURNS[-1]
        args = {"operation": call.operation_id, "step": call.step_index}
        calling = ToolRequest(tool_name="add", tool_call_id=f"call_{call.step_index}", args=args)
        return ModelResponse(tool_calls=[calling], usage=USAGE)

    async def wait_turn(self, operation: str, step: int) -> str:
        """Add two numbers."""
        self.inside[operation, step] = trace.get_current_span().get_span_context().span_id
        await asyncio.sleep(0)  # so that all of them take turns
        if step == STEPS // 2:
            self._waiting += 1
            if self._waiting == self.size:
                self.arrived()
                self._gate.set()
            await self._gate.wait()
        return "3"


async def many_at_once() -> list[Row]:
    exporter, traces = InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([InMemoryMetricReader()])
    tracing = TracingHooks(traces, meter_provider=meters)
    most: list[int] = []
    crowd = Crowd(CONCURRENT, [tracing, MetricsHooks(meters)], lambda: most.append(len(tracing.open_kinds())))
    took = await crowd.run()
    axis = f"[operations={CONCURRENT:,}, steps={STEPS}]"
    finished = exporter.get_finished_spans()
    assert most == [3 * CONCURRENT]  # the root, the step and the tool of each, all open at the same time
    bare = await Crowd(CONCURRENT, []).run()
    return [
        Row(case=f"a step of concurrent runs {axis}", value=took / CONCURRENT / STEPS),
        Row(case=f"a step of concurrent runs, not traced {axis}", value=bare / CONCURRENT / STEPS),
        Row(case=f"spans open at the same time {axis}", value=most[0], unit=""),
        Row(case=f"spans open afterwards {axis}", value=len(tracing.open_kinds()), unit="", at_most=0),
        Row(case=f"spans missing or too many {axis}", value=miscounted(finished), unit="", at_most=0),
        Row(case=f"spans with a wrong parent {axis}", value=misplaced(finished), unit="", at_most=0),
        Row(case=f"tools in a wrong span {axis}", value=astray(crowd, finished), unit="", at_most=0),
    ]


def miscounted(finished: Iterable[ReadableSpan]) -> int:
    """How far the exported spans are from what there should be: by operation and name, so many of each."""
    found = Counter((span.attributes["hookline.operation.id"], span.name) for span in finished)
    due = {"invoke_agent adder": 1, "agent_step": STEPS, "chat scripted": STEPS, "execute_tool add": STEPS - 1}
    wanted = Counter({(f"op_{number}", name): many for number in range(CONCURRENT) for name, many in due.items()})
    return (found - wanted).total() + (wanted - found).total()


def misplaced(finished: Iterable[ReadableSpan]) -> int:
    """How many spans are under another one than theirs.

    Steps are under their operation's root; under each step is one `chat`, and the tool call that bears its number.
    """
    by_id = {span.context.span_id: span for span in finished}
    chats: Counter[int] = Counter()
    wrong = 0
    for span in by_id.values():
        above = by_id.get(span.parent.span_id) if span.parent is not None else None
        if span.name.startswith("invoke_agent"):
            wrong += span.parent is not None
            continue
        due = "invoke_agent adder" if span.name == "agent_step" else "agent_step"
        right = (
            above is not None
            and above.name == due
            and above.context.trace_id == span.context.trace_id
            and above.attributes["hookline.operation.id"] == span.attributes["hookline.operation.id"]
            and above.start_time <= span.start_time <= span.end_time <= above.end_time
        )
        if right and span.name.startswith("chat"):
            chats[above.context.span_id] += 1
            right = chats[above.context.span_id] == 1
        elif right and span.name.startswith("execute_tool"):
            right = span.attributes["gen_ai.tool.call.id"] == f"call_{above.attributes['hookline.step.index']}"
        wrong += not right
    return wrong


def astray(crowd: Crowd, finished: Iterable[ReadableSpan]) -> int:
    """In how many tools another span was current than the one of that very call."""
    own = {
        (span.attributes["hookline.operation.id"], span.attributes["gen_ai.tool.call.id"]): span.context.span_id
        for span in finished
        if span.name == "execute_tool add"
    }
    assert len(crowd.inside) == CONCURRENT * (STEPS - 1)
    return sum(own.get((operation, f"call_{step}")) != span for (operation, step), span in crowd.inside.items())


async def memory() -> list[Row]:
    """Bytes that telemetry adds to an operation of which the root, a step and a tool call are open."""
    traces, meters = dropping(), MeterProvider([InMemoryMetricReader()])
    await Crowd(10, [TracingHooks(traces, meter_provider=meters), MetricsHooks(meters)]).run()
    bare = await bytes_at_the_gate([])
    traced = await bytes_at_the_gate([TracingHooks(traces, meter_provider=meters), MetricsHooks(meters)])
    by_hand = bytes_by_hand(dropping())
    case, against = "bytes per open operation", "the same three spans, open by hand"
    return [
        Row(case=against, value=by_hand, unit="B"),
        Row(case=case, value=traced - bare, unit="B", against=against, ratio=(traced - bare) / by_hand),
    ]


async def bytes_at_the_gate(hooks: list[Hooks]) -> int:
    sizes: list[int] = []

    def measure() -> None:
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])

    gc.collect()
    tracemalloc.start()
    await Crowd(CONCURRENT, hooks, measure).run()
    tracemalloc.stop()
    return sizes[0] // CONCURRENT


def bytes_by_hand(traces: TracerProvider) -> int:
    hand = ByHand(traces, MeterProvider([InMemoryMetricReader()]))
    ids = [f"op_{number}" for number in range(CONCURRENT)]
    gc.collect()
    tracemalloc.start()
    kept = []
    for operation_id in ids:
        root = hand.tracer.start_span("invoke_agent adder", attributes=root_attributes(operation_id))
        in_root = set_span_in_context(root)
        attributes = {"hookline.operation.id": operation_id, "hookline.step.index": STEPS // 2}
        step = hand.tracer.start_span("agent_step", in_root, attributes=attributes)
        in_step = set_span_in_context(step)
        added = hand.tracer.start_span(
            "execute_tool add", in_step, attributes=tool_attributes(operation_id, STEPS // 2)
        )
        kept.append((root, in_root, step, in_step, added, set_span_in_context(added)))
    size = tracemalloc.get_traced_memory()[0] // CONCURRENT
    tracemalloc.stop()
    del kept
    return size
