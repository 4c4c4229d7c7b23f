"""A real meter provider and what was measured with it; small agents, and a runtime that is not ours, to measure."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from hookline import (
    AfterStep,
    Agent,
    BeforeStep,
    Compaction,
    Event,
    HookDispatcher,
    Message,
    ModelResponse,
    OnComplete,
    ScriptedModel,
    ToolResult,
    tool,
)
from hookline.otel import MetricsHooks, TracingHooks
from hookline.runtime import ModelRetry

from .capture import RESOURCE
from .receiver import call, calls, says

AGENT, TOOL, MODEL, ERROR = "gen_ai.agent.name", "gen_ai.tool.name", "gen_ai.request.model", "error.type"


class Gauge:
    """A meter provider of the SDK, and what was measured with it."""

    def __init__(self, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], RESOURCE, shutdown_on_exit=False, **options)

    def hooks(self, **options: Any) -> MetricsHooks:
        return MetricsHooks(self.provider, **options)

    def tracing(self, **options: Any) -> TracingHooks:
        return TracingHooks(
            TracerProvider(resource=RESOURCE, shutdown_on_exit=False), meter_provider=self.provider, **options
        )

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured so far; exemplars are given once only."""
        data = self.reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        assert len({metric.name for metric in found}) == len(found)
        return {metric.name: metric for metric in found}

    def points(self, name: str) -> list[Any]:
        metric = self.metrics.get(name)
        return list(metric.data.data_points) if metric is not None else []

    def point(self, name: str) -> Any:
        """The one point of a metric."""
        found = self.points(name)
        assert len(found) == 1, (name, self.attributes(name))
        return found[0]

    def attributes(self, name: str) -> list[dict[str, Any]]:
        return [dict(point.attributes) for point in self.points(name)]

    def values(self, name: str, key: str) -> set[Any]:
        return {attributes.get(key) for attributes in self.attributes(name)}

    def count(self, name: str) -> int:
        return sum(point.count if isinstance(point, HistogramDataPoint) else point.value for point in self.points(name))

    def sums(self, name: str, key: str) -> dict[Any, tuple[int, float]]:
        """Count and sum by the value of an attribute."""
        points = self.points(name)
        found = {dict(point.attributes).get(key): (point.count, point.sum) for point in points}
        assert len(found) == len(points)
        return found

    def counts(self, name: str, *keys: str) -> dict[Any, Any]:
        """Count or value by the values of attributes; that of a single one stands for itself."""
        found: dict[Any, Any] = {}
        for point in self.points(name):
            values = tuple(dict(point.attributes).get(key) for key in keys)
            at = values[0] if len(keys) == 1 else values
            assert at not in found, f"{name} has several series for {at}"
            found[at] = point.count if isinstance(point, HistogramDataPoint) else point.value
        return found


def agent_of(*turns: Any, id: str = "tester", **parts: Any) -> Agent:  # noqa: A002
    return Agent(id=id, model=ScriptedModel(turns), retry=ModelRetry(first_wait=0.0), **parts)


@tool
async def look_up() -> str:
    return "3 left"


@tool
async def complain() -> ToolResult:
    return ToolResult(content="none left", success=False)


@tool
def break_down() -> str:
    raise LookupError("no database")


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


async def summarize(messages: list[Message]) -> str:
    return "summary"


def compacting(*turns: ModelResponse, **parts: Any) -> Agent:
    """An agent that compacts before its third model call, if its second answer says that it has read 900 tokens."""
    policy = Compaction(max_tokens=100, summarize=parts.pop("summarize", summarize))
    return agent_of(*turns, tools=[look_up], compaction=policy, **parts)


LONG = (calls(call("look_up"), read=1), calls(call("look_up"), read=900), says(read=1))


class Foreign:
    """A runtime that only sends events, with a clock of its own."""

    def __init__(self, dispatcher: HookDispatcher, operation_id: str = "op") -> None:
        self.dispatcher = dispatcher
        self.ids = {"operation_id": operation_id, "agent_id": "foreign"}
        self.now = 10**18

    def tell(self, kind: type[Event], seconds: float = 0.0, **fields: Any) -> None:
        self.now += int(seconds * 1e9)
        self.dispatcher.dispatch(kind(**self.ids, time_unix_nano=self.now, **fields))

    def step(self, index: int, *, milliseconds: float = 1.0) -> None:
        self.tell(BeforeStep, step_index=index)
        self.after_step(index, milliseconds=milliseconds)

    def after_step(self, index: int, *, milliseconds: float = 1.0) -> None:
        self.tell(
            AfterStep, step_index=index, step_type="call_llm", content="", reasoning="", tools_calling=[], tools_result=[],
            should_continue=False, execution_time_ms=milliseconds, elapsed_ms=1.0, step_cost_usd=0.0,
            total_cost_usd=0.0, total_input_tokens=0, total_output_tokens=0, total_steps=1, total_tool_calls=0,
        )  # fmt: skip

    def complete(self, seconds: float = 0.0, *, reason: Any = "done", llm_calls: int = 1, tool_calls: int = 0) -> None:
        self.tell(
            OnComplete, seconds, reason=reason, steps=1, llm_calls=llm_calls, tool_calls=tool_calls, total_tokens=0,
            cost_usd=0.0, duration_ms=1.0, last_assistant_content="", error_type=None, error_message=None,
        )  # fmt: skip

    def tool_fields(self) -> dict[str, Any]:
        return {
            "toolset": "local",
            "tool_name": "look_up",
            "args": {},
            "call_index": 1,
            "step_index": 0,
            "tool_call_id": "t1",
        }
