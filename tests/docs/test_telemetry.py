"""The page of the telemetry lists what runs really export: every attribute, on the spans and metrics that have it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import anyio
import pytest
from msgspec import structs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hookline import (
    AfterStep,
    Agent,
    AgentSession,
    Approve,
    BeforeStep,
    BeforeToolCall,
    Compaction,
    Deny,
    Guide,
    HookDispatcher,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    OnComplete,
    Reject,
    Respond,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    Usage,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.builtin import budget
from hookline.hooks import copy_bundle
from hookline.instrumentation import EvaluationResult, await_verdicts
from hookline.otel import MetricsHooks, TracingHooks
from hookline.otel import _attributes as names
from hookline.signals import DenialRateAlert, FallbackAlert, denial_rate_changed, fell_back_to_shadow

from .markdown import ROOT, rows

PAGE = (ROOT / "docs" / "reference" / "telemetry.md").read_text()
LONG = "word " * 100


def first_of(heading: str) -> set[str]:
    """The first names of the rows under a heading of the page."""
    return {row[0].split("`")[1] for row in rows(PAGE, heading)}


SPANS = {row[0].partition("(#")[2].rstrip(")") for row in rows(PAGE, "Spans")}
COMMON = first_of("On every span") | first_of("Denials")


class Exported:
    """What all the scenes below have exported: attributes by kind of span, by event, by metric."""

    def __init__(self) -> None:
        self.spans, self.logs, self.metrics = (
            InMemorySpanExporter(),
            InMemoryLogRecordExporter(),
            InMemoryMetricReader(),
        )
        tracers, loggers = TracerProvider(shutdown_on_exit=False), LoggerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self.logs))
        meters = MeterProvider([self.metrics], shutdown_on_exit=False)
        providers = {"tracer_provider": tracers, "logger_provider": loggers, "meter_provider": meters}
        kinds: Iterable[dict[str, Any]] = (
            {
                "hook_spans": True,
                "openinference": True,
                "aggregate_usage": "gen_ai",
                "capture_content": True,
                "max_content_chars": 20,
            },
            {"hook_spans": "events", "aggregate_usage": "hookline", "capture_content": "SPAN_AND_EVENT"},
            {
                "openinference": True,
                "user_ids": True,
                "redact": lambda kind, name, value: 1 / 0,
                "capture_content": True,
            },
        )
        self.hooks = [TracingHooks(**providers, **kind, id=f"tracing{at}") for at, kind in enumerate(kinds)]
        self.hooks.append(MetricsHooks(meters))

    def of_spans(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for span in self.spans.get_finished_spans():
            found[span.name.partition(" ")[0]] |= set(span.attributes)
        return found

    def measure(self) -> None:
        about = {"definition_id": "a", "name": "a", "tenant_id": "", "revision": 1, "window": 60, "count": 9}
        figures = {"denied": 8, "denied_before": 1, "count_before": 9, "until": 120, "p_value": 0.0}
        denial_rate_changed.send(None, alert=DenialRateAlert(**about, **figures))  # type: ignore[arg-type]
        limits = {"cause": "failures", "limit": 0.1, "failed": 9, "denied": 0, "time": 1.0}
        fell_back_to_shadow.send(None, alert=FallbackAlert(**about, **limits))  # type: ignore[arg-type]
        data = self.metrics.get_metrics_data()
        self.of_metrics = {
            metric.name: {key for point in metric.data.data_points for key in point.attributes}
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def events(self) -> set[str]:
        of_spans = {event.name for span in self.spans.get_finished_spans() for event in span.events}
        return of_spans | {each.log_record.event_name for each in self.logs.get_finished_logs()}

    def links(self) -> set[str]:
        links = [link for span in self.spans.get_finished_spans() for link in span.links]
        return {str(link.attributes[names.LINK]) for link in links if link.attributes}


@tool
async def find() -> str:
    """Find it."""
    return LONG


@tool
async def fails() -> str:
    """Fail."""
    raise ValueError(LONG)


@tool
async def hangs() -> str:
    """Never answer."""
    await anyio.sleep_forever()
    return ""


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def calls(*tools: str, toolset: str = "local", **args: str) -> ModelResponse:
    usage = Usage(input_tokens=500, output_tokens=5)
    callings = [
        ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=f"c{at}") for at, name in enumerate(tools)
    ]
    return ModelResponse(tool_calls=callings, usage=usage)


def says(text: str = "done") -> ModelResponse:
    return ModelResponse(content=text)


def agent(*turns: ModelResponse | Exception, **options: Any) -> Agent:
    options = {"id": "agent", "tools": [find, fails, hangs, pay], "instructions": LONG, **options}
    return Agent(model=ScriptedModel([*turns]), **options)


async def summarize(messages: list[Message]) -> str:
    return LONG


async def cannot(messages: list[Message]) -> str:
    raise OSError(LONG)


async def interrupts(_: object) -> Any:
    interrupt("op")
    await anyio.sleep_forever()


def deciding() -> Hooks:
    hooks = Hooks("deciding")

    @hooks.before(ModelCall)
    def set_all(call: ModelCall) -> ModelCall:
        return structs.replace(call, settings=dict.fromkeys(names.REQUEST_SETTINGS, 1))

    @hooks.guard(ToolCall, tool="*/find")
    def deny(call: ToolCall) -> Deny | None:
        return Deny(LONG, stop=True) if call.call_index > 1 else None

    @hooks.after(ToolCall, tool="*/find")
    def withhold(call: ToolCall, result: ToolResult) -> Deny:
        return Deny(LONG)

    @hooks.on(BeforeToolCall, tool="*/pay")
    def mock(event: BeforeToolCall) -> None:
        provenance = {"rule": "rule", "fault": "fault", "cassette": "cassette"}
        event.mock(ToolResult(content="paid", metadata=provenance))

    @hooks.on(BeforeToolCall, tool="*/hangs")
    def stop(event: BeforeToolCall) -> None:
        interrupt(event.operation_id)

    @hooks.on(AfterStep)
    def raises(event: AfterStep) -> None:
        raise ValueError(LONG)

    @hooks.on(OnComplete)
    async def dropped(event: OnComplete) -> None:
        await anyio.sleep_forever()

    return hooks


def answering() -> Hooks:
    hooks = Hooks("answering")

    @hooks.before(ModelCall)
    def answer(call: ModelCall) -> Respond:
        return Respond(says())

    return copy_bundle(hooks, revision=1, scope=None)  # as a stored definition makes it


def guiding() -> Hooks:
    hooks = Hooks("guiding")

    @hooks.guard(ToolCall)
    def add(call: ToolCall) -> None:
        call.add_context(LONG)

    @hooks.after(ModelCall)
    def guide(call: ModelCall, response: ModelResponse) -> Guide | None:
        return Guide(LONG) if response.content == "no" else None

    return hooks


def limiting() -> list[Hooks]:
    """Budgets: the calls take a cost, tokens and calls from them, the first more than it reserves."""
    limits = {"cost_usd": 1, "tokens": 100, "reserve_usd": 0.1, "reserve_tokens": 1}
    return [budget(per="user", **limits), budget(calls=5, per="tool", id="calls")]


def starting(traced: list[Hooks]) -> Hooks:
    hooks = Hooks("starting")

    @hooks.on(OnComplete)
    async def another(event: OnComplete) -> None:
        await exec_agent(agent(says()), "Go on", hooks=traced)

    return hooks


async def play(found: Exported) -> None:
    """Run whatever makes an attribute."""
    hooks = found.hooks
    both = [deciding(), *hooks]
    ids = {"user_id": "user", "tenant_id": "tenant", "drain_timeout": 0.0}
    await exec_agent(agent(calls("find"), calls("find")), "Go", hooks=both, **ids)
    await exec_agent(agent(calls("fails"), calls("hangs")), "Go", hooks=both, **ids)
    streamed = ModelResponse(
        content="in pieces", model="scripted-1", response_id="response-1", usage=Usage(input_tokens=1, output_tokens=2)
    )
    await exec_agent(agent(streamed), "Go", hooks=both, on_token=lambda piece: None, **ids)
    await exec_agent(agent(ValueError(LONG)), "Go", hooks=both, **ids)
    callee = agent(says(), id="callee")
    await exec_agent(
        agent(calls("callee", toolset="agent", instruction=LONG), says(), sub_agents=[callee]), "Go", hooks=hooks
    )
    for summarizes in (summarize, cannot, interrupts):
        compacting = agent(
            calls("find"), calls("find"), says(), compaction=Compaction(max_tokens=10, summarize=summarizes)
        )
        await exec_agent(compacting, "Go", hooks=hooks, operation_id="op")
    await exec_agent(agent(says()), "Go", hooks=[*hooks, starting(hooks)])
    await exec_agent(agent(), "Go", hooks=[*hooks, answering()])
    with await_verdicts() as verdicts:
        judged = await exec_agent(agent(says()), "Go", hooks=hooks)
        verdicts.give(judged.operation_id, [EvaluationResult(name="polite", score=0.5, label="fail", explanation=LONG)])
    await exec_agent(Agent(id="agent", model=ScriptedModel(interrupts)), "Go", hooks=hooks, operation_id="op")
    paying = agent(calls("pay"), calls("pay"), says())
    await exec_agent(paying, "Go", hooks=hooks, operation_id="pays")
    await resume_agent(paying, "pays", [Approve("c0")], hooks=both, drain_timeout=0.0)
    await resume_agent(paying, "pays", [Reject("c0", LONG)], hooks=both)
    await exec_agent(agent(calls("find"), ModelResponse(content="no"), says()), "Go", hooks=[*hooks, guiding()])
    spending = ModelResponse(content="done", usage=Usage(input_tokens=5, cost_usd=0.5))
    for turn in (spending, calls("find")):
        await exec_agent(agent(turn), "Go", hooks=[*hooks, *limiting()])
    async with AgentSession(agent(says()), hooks=hooks) as session:
        await session.run("Go")
    async with HookDispatcher() as dispatcher:
        for operation_id in ("gone", "open"):
            dispatcher.register(operation_id, hooks)
            dispatcher.dispatch(BeforeStep(operation_id=operation_id, step_index=0))
        await dispatcher.unregister("gone")
        found.measure()  # while spans are open


@pytest.fixture(scope="module")
def exported() -> Exported:
    found = Exported()
    anyio.run(play, found)
    return found


@pytest.mark.parametrize("kind", sorted(SPANS))
def test_the_page_lists_the_attributes_that_a_span_really_has(exported: Exported, kind: str) -> None:
    common = COMMON | set(names.REQUEST_SETTINGS.values())

    found = exported.of_spans()[kind]

    assert found - common == first_of(kind) - common


def test_the_page_lists_what_is_on_every_span_and_what_tells_of_denials(exported: Exported) -> None:
    found = exported.of_spans()

    assert set(found) == SPANS
    assert set.union(*found.values()) >= COMMON
    assert set(names.REQUEST_SETTINGS.values()) <= found[names.CHAT]
    assert {kind for kind in found if names.OPENINFERENCE_KIND in found[kind]} == set(names.OPENINFERENCE_KINDS)


def test_the_page_lists_the_settings_of_models_that_are_attributes() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in rows(PAGE, "Model settings")}

    assert listed == names.REQUEST_SETTINGS


def test_the_page_lists_the_attributes_that_a_metric_really_has(exported: Exported) -> None:
    remark = re.compile(r"\([^()]*(?:\([^()]*\))?[^()]*\)")
    listed = {row[0].strip("`"): set(re.findall(r"`([^`]+)`", remark.sub("", row[4]))) for row in metrics()}

    assert exported.of_metrics == listed


def metrics() -> list[list[str]]:
    return [row for row in rows(PAGE, "Metrics") if len(row) == 5]


def test_the_page_lists_kind_unit_and_meaning_of_every_metric() -> None:
    code = {
        "histogram": names.HISTOGRAMS.values(),
        "counter": names.COUNTERS.values(),
        "up-down counter": (names.OPEN_SPANS, names.LANE_QUEUED),
        "gauge": (names.LANE_LENGTH,),
    }
    instruments = [(kind, *each[:3]) for kind, several in code.items() for each in several]

    listed = [(kind, name.strip("`"), unit.strip("`"), meaning) for name, kind, unit, meaning, _ in metrics()]

    assert sorted(listed) == sorted(instruments)


def test_the_page_lists_the_bounds_of_every_histogram() -> None:
    bounds = {name: tuple(buckets) for name, _, _, buckets in names.HISTOGRAMS.values() if buckets is not None}

    listed = {row[0].strip("`"): tuple(map(float, row[1].split())) for row in rows(PAGE, "Metrics") if len(row) == 2}

    assert listed == bounds


def test_the_page_lists_every_event(exported: Exported) -> None:
    assert exported.events() == first_of("Events")


def test_the_page_lists_every_kind_of_link(exported: Exported) -> None:
    listed = {row[2].split("`")[3] for row in rows(PAGE, "Links") if names.LINK in row[2]}

    assert exported.links() == listed
