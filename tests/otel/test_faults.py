"""Whatever is wrong with the telemetry, or with what it is told: the run does not notice, and the loss is counted."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from opentelemetry import baggage, context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, Tracer, TracerProvider, get_current_span

from hookline import (
    AgentCall,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    CompactCall,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    ModelResponse,
    OnComplete,
    OperationResult,
    StepCall,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    Usage,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.events import EVENTS, Event
from hookline.otel import MetricsHooks, RunContextFilter, TracingHooks
from hookline.runtime import Approve, Compaction, InMemoryStore
from tests.otel.capture import Sink, agent_of, asks, call, calls, failed, says
from tests.tables import for_each

pytestmark = pytest.mark.anyio

ASYNCIO_ONLY = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Nasty:
    """Something that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("cannot be shown")

    __repr__ = __str__


def busy() -> tuple[Any, list[Hooks]]:
    """An agent whose run has everything in it, and the hooks that see to that."""

    @tool
    async def fine(x: int = 0) -> str:
        return f"fine {x}"

    @tool
    def broken() -> str:
        raise LookupError("not there")

    @tool
    def forbidden() -> str:
        return "never"

    async def summarize(messages: Any) -> str:
        return "short"

    hooks = Hooks("mine")
    hooks.guard(ToolCall, tool="*/forbidden")(lambda asked: Deny("no"))
    hooks.on(BeforeToolCall, tool="*/mocked")(lambda event: event.mock("made up") and None)
    child = agent_of(calls(call("fine", x=3)), says("child"), id="child", tools=[fine])
    turns = (
        calls(call("fine", "t1", x=1), call("broken", "t2"), call("forbidden", "t3"), call("mocked", "t4")),
        calls(asks("child", "t5"), call("fine", "t6", x=2), tokens=99),
        says("the end"),
    )
    agent = agent_of(
        *turns,
        tools=[fine, broken, forbidden],
        sub_agents=[child],
        compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=1),
    )
    return agent, [hooks]


def told(result: OperationResult) -> tuple[Any, ...]:
    """All that a caller learns of a run."""
    error = (type(result.error), str(result.error)) if result.error is not None else None
    return (
        result.reason,
        result.output,
        result.messages,
        result.steps,
        result.usage,
        result.tool_calls,
        error,
        result.denied,
    )


async def untraced() -> tuple[Any, ...]:
    agent, hooks = busy()
    return told(await exec_agent(agent, "go", hooks=hooks))


async def traced(*telemetry: Hooks) -> tuple[Any, ...]:
    agent, hooks = busy()
    return told(await exec_agent(agent, "go", hooks=[*hooks, *telemetry]))


# Tracers that raise.


class BrokenSpan(Span):
    """A real span of which one method raises."""

    def __init__(self, inner: Any, method: str) -> None:
        self._inner, self._method = inner, method

    @property
    def dropped_attributes(self) -> int:
        return self._inner.dropped_attributes

    def _do(self, name: str, *given: Any, **named: Any) -> Any:
        if name == self._method:
            raise RuntimeError(f"{name} is broken")
        return getattr(self._inner, name)(*given, **named)

    def end(self, *given: Any, **named: Any) -> Any:
        return self._do("end", *given, **named)

    def get_span_context(self) -> Any:
        return self._do("get_span_context")

    def set_attributes(self, *given: Any, **named: Any) -> Any:
        return self._do("set_attributes", *given, **named)

    def set_attribute(self, *given: Any, **named: Any) -> Any:
        return self._do("set_attribute", *given, **named)

    def add_event(self, *given: Any, **named: Any) -> Any:
        return self._do("add_event", *given, **named)

    def update_name(self, *given: Any, **named: Any) -> Any:
        return self._do("update_name", *given, **named)

    def is_recording(self) -> Any:
        return self._do("is_recording")

    def set_status(self, *given: Any, **named: Any) -> Any:
        return self._do("set_status", *given, **named)

    def record_exception(self, *given: Any, **named: Any) -> Any:
        return self._do("record_exception", *given, **named)


class BrokenTracing(TracerProvider, Tracer):
    """A provider and its tracer, of which `start_span`, or one method of its spans, raises.

    Args:
        inner: The real one.
        method: What raises.
        only: For spans of this kind only.
    """

    def __init__(self, inner: Any, method: str, only: str = "") -> None:
        self._inner, self._method, self._only = inner, method, only
        self._tracer = inner.get_tracer("broken")

    def get_tracer(self, *given: Any, **named: Any) -> Tracer:
        return self

    def start_span(self, name: str, *given: Any, **named: Any) -> Span:
        span = self._tracer.start_span(name, *given, **named)
        if not name.startswith(self._only):
            return span
        if self._method == "start_span":
            raise RuntimeError("start_span is broken")
        return BrokenSpan(span, self._method)

    def start_as_current_span(self, *given: Any, **named: Any) -> Any:
        raise AssertionError("nobody may attach spans behind the run's back")


KINDS = ("", "invoke_agent", "agent_step", "chat", "execute_tool", "call_agent", "compact_context")
METHODS = ("start_span", "end", "set_attributes", "set_status", "get_span_context", "is_recording")


@for_each("method", METHODS)
async def test_a_tracer_that_raises_changes_nothing_for_the_run(method, caplog):
    expected = await untraced()

    for only in KINDS:
        caplog.clear()
        sink = Sink()
        broken = BrokenTracing(sink.tracer_provider, method, only)

        got = await traced(sink.tracing(tracer_provider=broken), sink.metrics())

        assert got == expected, only
        assert get_current_span().get_span_context().is_valid is False, only
        always = (("set_status", "execute_tool"), ("is_recording", ""))
        if method in ("start_span", "end") or (method, only) in always:
            assert sum(sink.losses().values()) > 0, only
            assert any("the run continues" in record.getMessage() for record in caplog.records), only


@pytest.mark.parametrize("method", ["set_attributes", "set_status"])
async def test_a_span_that_cannot_be_written_to_is_ended_all_the_same(method, caplog):
    whole, sink = Sink(), Sink()

    await traced(whole.tracing())
    await traced(sink.tracing(tracer_provider=BrokenTracing(sink.tracer_provider, method)))

    assert sink.names() == whole.names()


@for_each("only", KINDS[2:])
async def test_a_span_that_cannot_be_ended_does_not_take_others_along(only, caplog):
    whole, sink = Sink(), Sink()

    await traced(whole.tracing())
    await traced(sink.tracing(tracer_provider=BrokenTracing(sink.tracer_provider, "end", only)))

    assert sink.names() == [name for name in whole.names() if not name.startswith(only)]
    losses = len(whole.named(only))
    assert sum(sink.losses().values()) == losses


async def test_one_broken_bundle_does_not_harm_the_next(caplog):
    whole, sink = Sink(), Sink()
    broken = sink.tracing(id="broken", tracer_provider=BrokenTracing(sink.tracer_provider, "start_span"))

    await traced(whole.tracing())
    await traced(broken, sink.tracing())

    healthy = [span for span in sink.spans if span.instrumentation_scope.name == "hookline"]
    assert sorted(span.name for span in healthy) == whole.names()


class Refusing(SpanProcessor):
    """A span processor that raises at the end of spans of one kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def on_end(self, span: Any) -> None:
        if span.name.startswith(self._kind):
            raise RuntimeError(f"no {self._kind}")


async def test_a_processor_that_refuses_a_pause_loses_only_that(caplog):
    sink = Sink(processors=[Refusing("human_intervention")])

    @tool(needs_approval=True)
    def send() -> str:
        return "sent"

    result = await exec_agent(agent_of(calls(call("send")), tools=[send]), "go", hooks=[sink.tracing()])

    assert result.reason == "waiting_for_human"
    assert sink.names() == ["agent_step", "chat scripted", "invoke_agent tester"]
    assert sink.one("agent_step").attributes["hookline.step.type"] == "request_human_approve"
    assert "hookline.span.truncated" not in sink.one("agent_step").attributes
    assert sum(sink.losses().values()) == 1


async def test_a_processor_that_refuses_a_tool_loses_only_that_when_a_run_breaks_off(caplog):
    sink = Sink(processors=[Refusing("execute_tool")])
    tracing = sink.tracing()

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=0))
        await dispatcher.dispatch_before_tool_call(before_tool("foreign"))
        dispatcher.dispatch(complete("foreign", reason="interrupted"))

    assert sink.names() == ["agent_step", "invoke_agent"]
    assert tracing.open_kinds() == []


def before_tool(operation_id: str, **parts: Any) -> BeforeToolCall:
    fields = {
        "toolset": "local",
        "tool_name": "find",
        "args": {},
        "call_index": 1,
        "step_index": 0,
        "tool_call_id": "t1",
    }
    return BeforeToolCall(operation_id=operation_id, **{**fields, **parts})


def complete(operation_id: str, reason: Any = "done", **parts: Any) -> OnComplete:
    numbers = {"steps": 1, "llm_calls": 1, "tool_calls": 1, "total_tokens": 1, "cost_usd": 0.0, "duration_ms": 1.0}
    said = {"last_assistant_content": "", "error_type": None, "error_message": None}
    return OnComplete(operation_id=operation_id, reason=reason, **{**numbers, **said, **parts})


# Meters and loggers that raise.


class BrokenInstrument:
    def add(self, *given: Any, **named: Any) -> None:
        raise RuntimeError("add is broken")

    record = add


class BrokenMeters:
    """A meter provider, its meter and its instruments."""

    def get_meter(self, *given: Any, **named: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("create_"):
            return lambda *given, **named: BrokenInstrument()
        raise AttributeError(name)


class BrokenLogs:
    """A logger provider and its logger."""

    def get_logger(self, *given: Any, **named: Any) -> Any:
        return self

    def emit(self, *given: Any, **named: Any) -> None:
        raise RuntimeError("emit is broken")


async def test_meters_that_raise_change_nothing_for_the_run_nor_for_its_spans(caplog):
    expected, whole, sink, meters = await untraced(), Sink(), Sink(), BrokenMeters()

    await traced(whole.tracing(), whole.metrics())
    got = await traced(sink.tracing(meter_provider=meters, hook_spans=False), MetricsHooks(meters))

    assert got == expected
    assert sink.names() == whole.names()
    assert any("Telemetry of 'metrics' failed" in record.getMessage() for record in caplog.records)


async def test_a_broken_meter_does_not_keep_a_run_that_breaks_off_from_being_seen(caplog):
    sink = Sink()
    tracing = sink.tracing(meter_provider=BrokenMeters())

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [tracing])
        dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=0))
        dispatcher.dispatch(complete("foreign", reason="interrupted"))
        dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=1))
        tracing.close()

    assert sink.names() == ["agent_step", "agent_step", "invoke_agent", "invoke_agent"]
    assert tracing.open_kinds() == []


@for_each("mode", ["NO_CONTENT", "SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT"])
async def test_loggers_that_raise_change_nothing_for_the_run_nor_for_its_spans(mode, caplog):
    whole, sink = Sink(), Sink()
    turns = (calls(call("gone"), tokens=7), ValueError("broke"))

    expected = await exec_agent(agent_of(*turns), "go", hooks=[whole.tracing(capture_content=mode)])
    got = await exec_agent(
        agent_of(*turns),
        "go",
        hooks=[sink.tracing(logger_provider=BrokenLogs(), capture_content=mode, hook_spans="events")],
    )

    assert told(got) == told(expected)
    assert sink.names() == whole.names()
    assert [keys(span) for span in sink.spans] == [keys(span) for span in whole.spans]
    assert sum(sink.losses().values()) >= 2


def keys(span: Any) -> tuple[str, list[str]]:
    return span.name, sorted(span.attributes)


@for_each("only", ["invoke_agent", "chat", "execute_tool"])
async def test_a_log_handler_that_raises_does_not_carry_a_failure_into_the_run(only):
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the log is broken")

    sink, handler, logger = Sink(), Broken(), logging.getLogger("hookline.otel")
    expected = await untraced()
    logger.addHandler(handler)
    try:
        got = await traced(sink.tracing(tracer_provider=BrokenTracing(sink.tracer_provider, "start_span", only)))
    finally:
        logger.removeHandler(handler)

    assert got == expected
    assert sum(sink.losses().values()) > 0


# Providers and exporters.


async def test_a_provider_that_was_shut_down_before_changes_nothing(caplog):
    expected, sink = await untraced(), Sink()
    sink.tracer_provider.shutdown()
    sink.meter_provider.shutdown()
    sink.logger_provider.shutdown()

    assert await traced(sink.tracing(capture_content="SPAN_AND_EVENT"), sink.metrics()) == expected
    assert sink.spans == []


async def test_a_provider_that_is_shut_down_during_a_run_changes_nothing(caplog):
    sink = Sink()

    @tool
    def end() -> str:
        sink.tracer_provider.shutdown()
        sink.meter_provider.shutdown()
        return "ended"

    tracing = sink.tracing()
    result = await exec_agent(agent_of(calls(call("end")), says(), tools=[end]), "go", hooks=[tracing, sink.metrics()])

    assert result.reason == "done"
    assert tracing.open_kinds() == []


async def test_a_bundle_that_is_closed_in_the_middle_of_a_run_leaves_nothing_open_and_nothing_crooked():
    sink = Sink()
    tracing = sink.tracing()

    @tool
    async def close() -> str:
        tracing.close()
        return "closed"

    agent = agent_of(calls(call("close")), calls(call("close", "t2")), says(), tools=[close])
    result = await exec_agent(agent, "go", hooks=[tracing])

    assert result.reason == "done"
    assert tracing.open_kinds() == []
    assert len(sink.named("invoke_agent")) == 1
    assert get_current_span().get_span_context().is_valid is False
    sink.assert_whole()


class Exporter(SpanExporter):
    """An exporter that does what it is told."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def export(self, spans: Any) -> SpanExportResult:
        self._act()
        return SpanExportResult.SUCCESS


def give_up() -> None:
    raise ConnectionError("nobody there")


async def test_an_exporter_that_raises_changes_nothing(caplog):
    expected, sink = await untraced(), Sink()
    sink.tracer_provider.add_span_processor(SimpleSpanProcessor(Exporter(give_up)))

    assert await traced(sink.tracing()) == expected
    assert len(sink.named("invoke_agent")) == 2


async def test_an_exporter_that_hangs_does_not_hold_up_the_run_and_what_the_queue_lost_is_counted(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    expected, sink, go_on, hanging = await untraced(), Sink(), threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        go_on.wait()

    batch = BatchSpanProcessor(
        Exporter(hang),
        max_queue_size=4,
        max_export_batch_size=2,
        schedule_delay_millis=1,
        meter_provider=sink.meter_provider,
    )
    sink.tracer_provider.add_span_processor(batch)
    try:
        got = [await traced(sink.tracing()) for _ in range(3)]
        assert hanging.wait(10)
        processed = sink.points("otel.sdk.processor.span.processed")
        lost = sum(point.value for point in processed if point.attributes.get("error.type") == "queue_full")
    finally:
        go_on.set()
        batch.shutdown()

    assert got == [expected] * 3
    assert lost >= len(sink.spans) - 4 - 2
    assert sink.losses() == {}


@ASYNCIO_ONLY
async def test_a_dead_endpoint_changes_nothing(caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    expected, sink = await untraced(), Sink()
    exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{port}/v1/traces", timeout=0.05)
    batch = BatchSpanProcessor(exporter, max_queue_size=4, max_export_batch_size=1, schedule_delay_millis=1)
    sink.tracer_provider.add_span_processor(batch)

    got = await traced(sink.tracing())
    await anyio.to_thread.run_sync(batch.shutdown)

    assert got == expected
    assert len(sink.named("invoke_agent")) == 2


# Limits of spans.


@for_each("capture_content", [False, True])
@for_each("limit", [1, 3, 5])
async def test_where_a_span_holds_few_attributes_the_important_ones_are_among_them(limit, capture_content, caplog):
    sink = Sink(limits=SpanLimits(max_span_attributes=limit))

    await traced(sink.tracing(capture_content=capture_content))
    await exec_agent(agent_of(ValueError("broke")), "go", hooks=[sink.tracing(capture_content=capture_content)])

    for span in sink.spans:
        assert len(span.attributes) <= limit
        kind, _, name = span.name.partition(" ")
        wanted = {"gen_ai.operation.name": kind} if kind in ("chat", "execute_tool", "invoke_agent") else {}
        if kind == "execute_tool" and limit >= 3:
            wanted["gen_ai.tool.name"] = name
        if kind == "invoke_agent" and limit >= 3:
            wanted["gen_ai.agent.name"] = name
        if kind == "chat" and limit >= 3:
            wanted["gen_ai.request.model"] = name
        if failed(span):
            assert "error.type" in span.attributes
            if limit == 1:
                continue
        assert wanted.items() <= dict(span.attributes).items(), span.name


async def test_a_tool_that_fills_its_span_does_not_push_out_what_says_what_it_is(caplog):
    sink = Sink()

    @tool(in_thread=False)
    def chatty() -> str:
        for number in range(200):
            get_current_span().set_attribute(f"mine.{number}", number)
        raise LookupError("and then")

    await exec_agent(agent_of(calls(call("chatty")), says(), tools=[chatty]), "go", hooks=[sink.tracing()])

    span = sink.one("execute_tool")
    assert len(span.attributes) == 128
    assert span.attributes["gen_ai.operation.name"] == "execute_tool"
    assert span.attributes["gen_ai.tool.name"] == "chatty"
    assert span.attributes["gen_ai.tool.call.id"] == "t1"
    assert span.attributes["hookline.operation.id"] == sink.one("invoke_agent").attributes["hookline.operation.id"]
    assert span.attributes["error.type"] == "LookupError"
    assert "mine.199" in span.attributes


async def test_code_that_ends_the_span_it_runs_in_harms_nobody(caplog):
    sink = Sink()

    @tool(in_thread=False)
    def rude() -> str:
        get_current_span().end()
        return "done"

    result = await exec_agent(agent_of(calls(call("rude")), says(), tools=[rude]), "go", hooks=[sink.tracing()])

    assert result.reason == "done"
    assert len(sink.named("execute_tool")) == 1
    assert len(sink.named("invoke_agent")) == 1


@pytest.mark.parametrize("limit", [1, 10, 50, 200, 1000])
@pytest.mark.parametrize("variable", ["OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT"])
async def test_content_is_cut_to_the_length_that_the_sdk_allows_and_stays_json(variable, limit, monkeypatch, caplog):
    monkeypatch.setenv(variable, str(limit))
    sink = Sink()

    @tool
    def find(text: str) -> str:
        return "y" * 5000

    agent = agent_of(calls(call("find", text='"\\' * 2000)), says("z" * 5000), tools=[find], instructions="i" * 5000)
    await exec_agent(agent, "p" * 5000, hooks=[sink.tracing(capture_content=True)])

    for span in sink.spans:
        for name, value in span.attributes.items():
            if isinstance(value, str):
                assert len(value) <= limit
            if limit >= 200 and name.startswith("gen_ai.") and isinstance(value, str) and value[:1] in "[{":
                json.loads(value)


# Things that are too large, or cannot be shown.


@ASYNCIO_ONLY
@pytest.mark.parametrize("size", [10**6, 5 * 10**7])
async def test_an_enormous_result_reaches_the_model_whole_and_the_trace_in_part(size):
    sink = Sink()

    @tool
    def huge() -> str:
        return "é" * size

    agent = agent_of(calls(call("huge")), says(), tools=[huge])
    result = await exec_agent(agent, "go", hooks=[sink.tracing(capture_content=True), sink.metrics()])

    (message,) = [each for each in result.messages if each.role == "tool"]
    assert len(message.content) == size
    span = sink.one("execute_tool")
    assert 16_000 <= len(span.attributes["gen_ai.tool.call.result"]) < 16_100
    assert span.attributes["hookline.content.length"] == (size,)
    assert len(sink.exported()) < 200_000
    assert sink.losses() == {}


def cyclic() -> dict[str, Any]:
    found: dict[str, Any] = {"name": "it"}
    found["self"] = found
    found["list"] = [found, found]
    return found


def deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"in": found}
    return found


ODD_VALUES = {
    "cyclic": cyclic,
    "deep": lambda: deep(5000),
    "rather deep": lambda: deep(60),
    "wide": lambda: {str(number): number for number in range(100_000)},
    "many numbers": lambda: {"rows": [1.5] * 300_000},
    "not a number": lambda: {"a": math.nan, "b": math.inf, "c": -math.inf},
    "halves of pairs": lambda: {"\ud800": "\udfff text", "ok": ["\ud83d"]},
    "cannot be shown": lambda: {"it": Nasty(), "list": [Nasty()]},
    "huge number": lambda: {"it": 10**400, "negative": -(2**70)},
    "bytes": lambda: {"it": b"\xff", "set": {1, 2}, "tuple": (1,)},
    "odd keys": lambda: {"": 1, "\x00": 2, "a" * 100_000: 3},
}


@for_each("odd", ODD_VALUES)
async def test_arguments_that_no_encoder_knows_change_nothing(odd, caplog):
    @tool
    async def find() -> str:
        return "found"

    def agent() -> Any:
        try:
            asked = ToolRequest(tool_name="find", args=ODD_VALUES[odd](), tool_call_id="t1")
        except RecursionError:  # a model cannot even ask for that
            asked = ToolRequest(tool_name="find", args="{", tool_call_id="t1")
        return agent_of(calls(asked), says(), tools=[find])

    sink = Sink()
    expected = await exec_agent(agent(), "go")

    got = await exec_agent(agent(), "go", hooks=[sink.tracing(capture_content="SPAN_AND_EVENT"), sink.metrics()])

    assert (got.reason, got.output, got.steps) == (expected.reason, expected.output, expected.steps)
    assert [each.content for each in got.messages if each.role == "tool"] == [
        each.content for each in expected.messages if each.role == "tool"
    ]
    span = sink.one("execute_tool")
    if "gen_ai.tool.call.arguments" in span.attributes:
        assert len(span.attributes["gen_ai.tool.call.arguments"]) < 400_000
        json.loads(span.attributes["gen_ai.tool.call.arguments"])
    sink.exported()
    assert encoder_complaints(caplog) == []
    sink.assert_whole()


def encoder_complaints(caplog: Any) -> list[str]:
    """What the SDK has said of attributes that it could not take or could not encode."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("opentelemetry") and "full" not in record.getMessage()
    ]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")

    __repr__ = __str__


@pytest.mark.parametrize("mode", [False, "SPAN_AND_EVENT"])
async def test_exceptions_that_cannot_be_shown_are_failures_like_others(mode, caplog):
    sink = Sink()

    @tool
    def find() -> str:
        raise Unspeakable

    async def summarize(messages: Any) -> str:
        raise Unspeakable

    def agent() -> Any:
        return agent_of(
            calls(call("find"), asks("child", "t2"), tokens=99),
            Unspeakable(),
            tools=[find],
            sub_agents=[agent_of(Unspeakable(), id="child")],
            compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=0),
        )

    expected = await exec_agent(agent(), "go")
    got = await exec_agent(agent(), "go", hooks=[sink.tracing(capture_content=mode, hook_spans=True), sink.metrics()])

    assert (got.reason, got.messages) == (expected.reason, expected.messages)
    for name in ("execute_tool", "call_agent", "compact_context", "invoke_agent tester", "invoke_agent child"):
        assert failed(sink.one(name))
        assert "hookline.span.truncated" not in sink.one(name).attributes
    broken = [span for span in sink.named("chat") if failed(span)]
    assert [span.attributes["error.type"] for span in broken] == ["Unspeakable", "Unspeakable"]
    assert sink.losses() == {}


HOSTILE = {
    "half of a pair": "\ud800",
    "a pair torn apart": "\udc00\ud800x",
    "a megabyte": "n" * 10**6,
    "zero bytes": "\x00\x00",
    "lines": "a\nb\r\n\tc",
    "right to left": "\u202eevil\u2066",
    "emoji": "👩‍👩‍👧‍👦" * 100,
    "braces": '{"a": %s %d {0}}',
    "space": " ",
}


@for_each("what", HOSTILE)
async def test_a_hostile_name_is_exported_in_a_form_that_every_back_end_can_take(what, caplog):
    name, sink = HOSTILE[what], Sink()
    hooks = Hooks(name, inherit=True)

    @hooks.on(BeforeStep, id=name)
    def looked(event: BeforeStep) -> None:
        return None

    @hooks.guard(ToolCall, id=name)
    def judged(asked: ToolCall) -> Deny | None:
        return Deny(name) if asked.tool_call_id == "denied" else None

    @tool(name=name)
    async def find() -> str:
        return name

    class Model:
        def __init__(self, *turns: ModelResponse) -> None:
            self.name = self.provider = name
            self.turns = list(turns)

        async def respond(self, asked: Any) -> ModelResponse:
            return self.turns.pop(0)

    def agent() -> Any:
        child = agent_of(model=Model(says()), id=f"{name}2")
        asked = calls(
            call(name), call(name, name), call(name, "denied"), call(f"no {name}", "t9"), asks(child.id, "t3")
        )
        model = Model(replace(asked, finish_reason=name), says(name))
        return agent_of(model=model, id=name, tools=[find], sub_agents=[child])

    named = {"operation_id": f"op {name}", "tenant_id": name, "user_id": name}
    expected = await exec_agent(agent(), name, hooks=[hooks], **{**named, "operation_id": f"other {name}"})
    telemetry = [
        sink.tracing(capture_content="SPAN_AND_EVENT", hook_spans=True, conversation_id=name, user_ids=True),
        sink.metrics(),
    ]
    got = await exec_agent(agent(), name, hooks=[hooks, *telemetry], **named)

    assert told(got) == told(expected)
    assert sink.losses() == {}
    assert sink.exported()
    assert encoder_complaints(caplog) == []
    for span in sink.spans:
        assert len(span.name) < 300
        for value in span.attributes.values():
            assert len(value) < 17_000 if isinstance(value, str) else True
    assert len(sink.named("execute_tool")) == 4
    sink.assert_whole()


@for_each(
    "settings",
    [
        {"stop_sequences": ["\ud800"], "temperature": math.nan},
        {"stop_sequences": "\ud800" * 10**5},
        {"stop_sequences": ["x" * 10**6] * 3},
        {"stop_sequences": [1, None], "top_p": Nasty(), "max_tokens": [1], "seed": {}},
        {"temperature": True, 5: 1, None: None, "": ""},
    ],
)
async def test_settings_of_a_model_that_make_no_sense_harm_nobody(settings, caplog):
    sink, hooks = Sink(), Hooks("mine")

    @hooks.before(ModelCall)
    def tuned(asked: ModelCall) -> ModelCall:
        return replace(asked, settings=settings)

    result = await exec_agent(agent_of(says()), "go", hooks=[hooks, sink.tracing()])

    assert result.reason == "done"
    assert len(sink.exported()) < 50_000
    assert encoder_complaints(caplog) == []
    assert len(sink.named("chat")) == 1


@for_each("count", [2**63, 10**30, -5, True])
async def test_a_usage_that_makes_no_sense_harms_nobody(count, caplog):
    sink = Sink()
    answer = ModelResponse(content="x", usage=Usage(input_tokens=count, output_tokens=count))

    result = await exec_agent(agent_of(answer), "go", hooks=[sink.tracing(aggregate_usage="gen_ai"), sink.metrics()])

    assert result.reason == "done"
    assert sink.exported_spans()
    assert not [line for line in encoder_complaints(caplog) if "encode" in line.lower()]
    assert len(sink.spans) == 3


async def test_a_model_that_will_not_say_its_name_is_traced_all_the_same():
    class Shy:
        name = "shy"

        @property
        def provider(self) -> str:
            raise PermissionError("none of your business")

        async def respond(self, asked: Any) -> ModelResponse:
            return says("hello")

    sink, store = Sink(), InMemoryStore()

    result = await exec_agent(
        agent_of(model=Shy()), "go", hooks=[sink.tracing(), sink.metrics()], operation_id="it", store=store
    )

    assert (result.reason, result.output) == ("done", "hello")
    assert (await store.load("it")).status == "done"
    assert len(sink.named("chat")) == 1


# Events of runtimes that keep no rule.

WRONG = [
    None,
    Nasty(),
    [],
    {},
    [Nasty()],
    -1,
    10**400,
    math.nan,
    "\ud800",
    b"bytes",
    1.5,
    True,
    object,
    cyclic(),
    "x" * 10**5,  # six times what is recorded
]


def whole_event(kind: type[Event]) -> dict[str, Any]:
    """Fields of a right event of that kind."""
    texts = {"content", "reasoning", "summary", "group_id", "error", "instruction", "sub_operation_id", "thread_id",
             "last_assistant_content", "error_message", "error_detail", "toolset", "tool_name", "callee_id"}  # fmt: skip
    special: dict[str, Any] = {
        "operation_id": "foreign",
        "step_index": 0,
        "step_type": "call_llm",
        "reason": "done",
        "action": "approve",
        "args": {},
        "metadata": {},
        "tools_calling": [],
        "tools_result": [],
        "pending_tools": [],
        "tool_call_id": "t1",
        "error_type": "ValueError",
        "answered_by": None,
        "rejection_reason": None,
        "mocked": False,
        "success": True,
        "should_continue": True,
    }
    fields: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        if name in special:
            fields[name] = special[name]
        elif name in texts:
            fields[name] = "text"
        elif name.endswith(
            ("_ms", "_usd", "_tokens", "_count", "_calls", "_steps", "_before", "_after", "index", "steps")
        ):
            fields[name] = 1
    return fields


def before_all(operation_id: str) -> list[Event]:
    """What stands before the wrong event, so that there is a span for it to end."""
    return [
        BeforeStep(operation_id=operation_id, step_index=0),
        BeforeCallAgent(operation_id=operation_id, callee_id="text", instruction="text"),
        BeforeCompact(operation_id=operation_id, step_index=0, message_count=1, token_count=1),
        BeforeHumanIntervention(operation_id=operation_id, step_index=0, pending_tools=[]),
    ]


def wrong_events(kind: type[Event]) -> Iterator[Event]:
    """Each field of an event wrong in each way, as far as such an event can be made at all."""
    for name in kind.__struct_fields__:
        for number, value in enumerate(WRONG if name != "operation_id" else ()):
            with contextlib.suppress(Exception):
                yield kind(**{**whole_event(kind), name: value, "operation_id": f"{name} {number}"})


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@for_each("kind", EVENTS.values(), ids=EVENTS)
async def test_an_event_with_a_wrong_field_harms_neither_the_others_nor_the_batch(kind, caplog):
    caplog.set_level(logging.CRITICAL)
    sink, operations = Sink(), []
    tracing = sink.tracing(capture_content="SPAN_AND_EVENT")
    telemetry = [tracing, sink.metrics()]

    async with HookDispatcher() as dispatcher:
        for wrong in wrong_events(kind):
            operations.append(wrong.operation_id)
            dispatcher.register(wrong.operation_id, telemetry)
            for before in before_all(wrong.operation_id):
                dispatcher.dispatch(before)
            await dispatcher.dispatch_before_tool_call(before_tool(wrong.operation_id))
            if isinstance(wrong, BeforeToolCall):
                await dispatcher.dispatch_before_tool_call(wrong)
            else:
                dispatcher.dispatch(wrong)
            dispatcher.dispatch(complete(wrong.operation_id))
            await dispatcher.unregister(wrong.operation_id)

    assert len(operations) > 10
    assert tracing.open_kinds() == []
    for name in ("invoke_agent", "execute_tool", "agent_step", "call_agent"):
        assert {span.attributes["hookline.operation.id"] for span in sink.named(name)} == set(operations)
    assert sink.exported()
    sink.assert_whole()


async def test_a_clock_that_is_wrong_for_one_event_does_not_spoil_the_times_of_others():
    sink = Sink()

    async with HookDispatcher() as dispatcher:
        dispatcher.register("foreign", [sink.tracing()])
        dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=0))
        dispatcher.dispatch(BeforeStep(operation_id="foreign", step_index=1, time_unix_nano=10**30))
        dispatcher.dispatch(complete("foreign"))

    assert all(span.end_time < 2**62 for span in sink.spans)
    assert sink.exported()


# The context of a run.


@for_each("around", [AgentCall, StepCall, ToolCall, ModelCall, SubAgentCall, CompactCall])
async def test_what_a_hook_puts_into_the_context_is_there_whether_the_run_is_traced_or_not(around):
    seen: list[list[Any]] = [[], []]

    async def watched(run: int, sink: Sink | None) -> None:
        def look() -> None:
            seen[run].append((baggage.get_baggage("tenant"), baggage.get_baggage("caller")))

        @tool
        async def find() -> str:
            look()
            return "found"

        async def summarize(messages: Any) -> str:
            look()
            return "short"

        class Model:
            name, provider = "watching", "tests"

            def __init__(self, *turns: ModelResponse) -> None:
                self.turns = list(turns)

            async def respond(self, asked: Any) -> ModelResponse:
                look()
                return self.turns.pop(0)

        hooks = Hooks("mine")

        @hooks.around(around)
        async def inside(given: Any, call_next: Any) -> Any:
            token = context.attach(baggage.set_baggage("tenant", "acme"))
            try:
                return await call_next(given)
            finally:
                context.detach(token)

        agent = agent_of(
            model=Model(calls(call("find"), asks("child", "t2"), tokens=99), says()),
            tools=[find],
            sub_agents=[agent_of(model=Model(says()), id="child")],
            compaction=Compaction(max_tokens=50, summarize=summarize, keep_last=0),
        )
        token = context.attach(baggage.set_baggage("caller", "me"))
        try:
            await exec_agent(agent, "go", hooks=[hooks, *([sink.tracing()] if sink else [])])
        finally:
            context.detach(token)

    await watched(0, None)
    await watched(1, Sink())

    assert sorted(map(str, seen[1])) == sorted(map(str, seen[0]))
    assert any(tenant == "acme" for tenant, _ in seen[0])
    assert all(caller == "me" for _, caller in seen[1])


async def test_the_callers_context_is_the_same_after_a_run_whatever_became_of_it(caplog):
    sink = Sink()
    caplog.set_level(logging.WARNING, "opentelemetry")
    before = context.get_current()

    with anyio.move_on_after(0.01):

        @tool
        async def forever() -> str:
            await anyio.sleep_forever()
            return ""

        await exec_agent(agent_of(calls(call("forever")), tools=[forever]), "go", hooks=[sink.tracing()])
    await exec_agent(agent_of(ValueError("broke")), "go", hooks=[sink.tracing()])
    await traced(sink.tracing(tracer_provider=BrokenTracing(sink.tracer_provider, "end")))

    assert context.get_current() == before
    assert not [record for record in caplog.records if record.name == "opentelemetry.context"]


async def test_an_interrupt_in_the_middle_of_broken_telemetry_still_stops_the_run(caplog):
    sink, tool_begun = Sink(), anyio.Event()

    @tool
    async def forever() -> str:
        tool_begun.set()
        await anyio.sleep_forever()
        return ""

    results = []

    async def run() -> None:
        tracing = sink.tracing(
            tracer_provider=BrokenTracing(sink.tracer_provider, "end"), meter_provider=BrokenMeters()
        )
        agent = agent_of(calls(call("forever")), tools=[forever])
        results.append(await exec_agent(agent, "go", hooks=[tracing], operation_id="stuck"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await tool_begun.wait()
        assert interrupt("stuck")

    assert results[0].reason == "interrupted"


async def test_a_pause_can_be_resumed_with_broken_telemetry(caplog):
    sink = Sink()
    broken = sink.tracing(tracer_provider=BrokenTracing(sink.tracer_provider, "get_span_context"))

    @tool(needs_approval=True)
    def send() -> str:
        return "sent"

    agent = agent_of(calls(call("send")), says("sent it"), tools=[send])
    paused = await exec_agent(agent, "go", hooks=[broken])
    result = await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[broken])

    assert (result.reason, result.output) == ("done", "sent it")


async def test_a_log_record_made_in_a_broken_span_is_made_all_the_same(caplog):
    sink, seen = Sink(), []
    logger = logging.getLogger("an application")
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign]
    handler.addFilter(RunContextFilter())
    logger.addHandler(handler)

    @tool(in_thread=False)
    def find() -> str:
        logger.warning("inside")
        return "found"

    broken = sink.tracing(tracer_provider=BrokenTracing(sink.tracer_provider, "get_span_context", "execute_tool"))
    try:
        result = await exec_agent(agent_of(calls(call("find")), says(), tools=[find]), "go", hooks=[broken])
    finally:
        logger.removeHandler(handler)

    assert [message.content for message in result.messages if message.role == "tool"] == ["found"]
    assert [record.getMessage() for record in seen] == ["inside"]


# Without an SDK.


WITHOUT_SDK = """
    import logging, sys
    import anyio

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name == "opentelemetry.sdk" or name.startswith(("opentelemetry.sdk.", "opentelemetry.exporter")):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Absent())
    from hookline import Agent, Hooks, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool, BeforeStep
    from hookline.otel import MetricsHooks, RunContextFilter, TracingHooks

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.operation_id, record.trace_id, record.span_id, record.trace_sampled))
    handler.addFilter(RunContextFilter())
    logging.getLogger("app").addHandler(handler)

    @tool
    def find() -> str:
        logging.getLogger("app").warning("here")
        return "found"

    async def main():
        for options in ({}, {"capture_content": "SPAN_AND_EVENT", "hook_spans": True}, {"hook_spans": "events"}):
            turns = [ModelResponse(tool_calls=[ToolRequest(tool_name="find", tool_call_id="t1")]), ModelResponse(content="hi")]
            agent = Agent(id="a", model=ScriptedModel(turns), tools=[find])
            tracing = TracingHooks(**options)
            result = await exec_agent(agent, "go", hooks=[tracing, MetricsHooks()], operation_id="it")
            assert (result.reason, result.output) == ("done", "hi"), result
            assert tracing.open_kinds() == []
            tracing.close()
        assert [line[1:] for line in lines] == [("", "", False)] * 3, lines
        assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules)
        print("well")

    anyio.run(main)
"""


@ASYNCIO_ONLY
async def test_without_an_sdk_everything_works_and_nothing_is_told():
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(WITHOUT_SDK)]

    done = await anyio.to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, text=True, timeout=60))

    assert done.stdout == "well\n", done.stderr
    assert done.stderr == ""


# Arguments.


@for_each(
    ("name", "value"),
    [
        ("tracer_provider", 42),
        ("tracer_provider", "otlp"),
        ("meter_provider", object()),
        ("logger_provider", logging.getLogger("it")),
        ("capture_content", "sometimes"),
        ("capture_content", 1),
        ("redact", "password"),
        ("max_content_chars", 0),
        ("max_content_chars", 1.5),
        ("max_content_chars", True),
        ("max_content_chars", None),
        ("model_spans", "no"),
        ("model_spans", None),
        ("hook_spans", "span"),
        ("hook_spans", 1),
        ("hook_spans", None),
        ("resume", "same"),
        ("resume", None),
        ("aggregate_usage", True),
        ("conversation_id", 5),
        ("user_ids", "no"),
        ("openinference", 0),
        ("max_span_age", 0),
        ("max_span_age", -1),
        ("max_span_age", math.nan),
        ("max_span_age", "1"),
    ],
)
def test_tracing_hooks_refuse_an_argument_that_makes_no_sense_and_say_which(name, value):
    with pytest.raises(HookUsageError) as refused:
        TracingHooks(**{name: value})

    assert f"`{name}`" in str(refused.value)


@for_each(
    ("name", "value"),
    [
        ("meter_provider", 42),
        ("model_metrics", "no"),
        ("hook_metrics", None),
        ("max_values", 0),
        ("max_values", 2.5),
        ("max_values", True),
    ],
)
def test_metrics_hooks_refuse_an_argument_that_makes_no_sense_and_say_which(name, value):
    with pytest.raises(HookUsageError) as refused:
        MetricsHooks(**{name: value})

    assert f"`{name}`" in str(refused.value)


@for_each("bundle", [TracingHooks, MetricsHooks])
@for_each("name", ["", 5, None])
def test_a_bundle_needs_a_name(bundle, name):
    with pytest.raises((HookUsageError, HookDefinitionError), match="id"):
        bundle(id=name)


async def test_a_provider_that_cannot_be_told_apart_by_a_weak_reference_is_taken_all_the_same():
    class Plain:
        __slots__ = ("inner",)

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def get_meter(self, *given: Any, **named: Any) -> Any:
            return self.inner.get_meter(*given, **named)

    sink = Sink()

    await exec_agent(agent_of(says()), "go", hooks=[MetricsHooks(Plain(sink.meter_provider))])

    assert sink.points("gen_ai.invoke_agent.duration")
