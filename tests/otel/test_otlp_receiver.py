"""A run as a back end gets it: sent by the SDK's OTLP exporters over HTTP to a real receiver; and receivers that fail."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import anyio.to_thread
import msgspec
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hookline import (
    AfterToolCall,
    Agent,
    Approve,
    Deny,
    Hooks,
    InMemoryStore,
    ModelCall,
    OperationResult,
    ScriptedModel,
    ToolCall,
    TransientModelError,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.otel import MetricsHooks, TracingHooks
from hookline.runtime import ModelRetry

from .receiver import Received, Receiver, ask, attributes_of, call, calls, says

pytestmark = pytest.mark.anyio

RESOURCE = {"service.name": "shop", "service.version": "1.2"}


class Pipeline:
    """Providers of the SDK that send to a receiver, and keep what they send."""

    def __init__(
        self, url: str, *, compression: Compression = Compression.NoCompression, timeout: float = 10.0, **batch: Any
    ) -> None:
        resource = Resource.create(RESOURCE)

        def options(signal: str) -> dict[str, Any]:
            return {"endpoint": f"{url}/v1/{signal}", "compression": compression, "timeout": timeout}

        self.kept, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(**options("traces")), **batch))
        periodic = PeriodicExportingMetricReader(
            OTLPMetricExporter(**options("metrics")), export_interval_millis=math.inf
        )
        self.meters = MeterProvider([self.reader, periodic], resource=resource, shutdown_on_exit=False)
        self.loggers = LoggerProvider(resource=resource, shutdown_on_exit=False)
        self.loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(**options("logs"))))

    def tracing(self, **options: Any) -> TracingHooks:
        return TracingHooks(self.tracers, meter_provider=self.meters, logger_provider=self.loggers, **options)

    def hooks(self, **options: Any) -> list[Hooks]:
        return [self.tracing(**options), MetricsHooks(self.meters)]

    def flush(self) -> None:
        for provider in (self.tracers, self.meters, self.loggers):
            provider.force_flush()

    def close(self) -> None:
        for provider in (self.tracers, self.meters, self.loggers):
            provider.shutdown()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def pipeline_to() -> Iterator[Callable[..., Pipeline]]:
    made: list[Pipeline] = []

    def make(url: str, **options: Any) -> Pipeline:
        made.append(Pipeline(url, **options))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


@tool
async def look_up(item: str) -> str:
    return f"{item}: 3 left"


@tool
def break_down() -> str:
    raise ValueError("no database")


@tool(needs_approval=True)
async def pay() -> str:
    return "paid"


def shop() -> Agent:
    """Parallel tools of which one fails, and a sub-agent that has a tool itself."""
    helper = Agent(
        id="helper",
        tools=[look_up],
        model=ScriptedModel([calls(call("look_up", "h1", item="tea"), read=7, wrote=2), says("3", read=9, wrote=1)]),
    )
    step = calls(call("look_up", "t1", item="tea"), call("break_down", "t2"), ask("helper", "t3"), read=20, wrote=5)
    return Agent(
        id="shop",
        tools=[look_up, break_down],
        sub_agents=[helper],
        model=ScriptedModel([step, says("done", read=30, wrote=4)]),
    )


def as_kept(span: ReadableSpan) -> dict[str, Any]:
    assert span.context is not None
    assert span.attributes is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": span.context.trace_id,
        "span": span.context.span_id,
        "parent": span.parent.span_id if span.parent else 0,
        "begin": span.start_time,
        "end": span.end_time,
        "attributes": dict(span.attributes),
        "status": (span.status.status_code.name, span.status.description or ""),
        "links": [(link.context.trace_id, link.context.span_id, dict(link.attributes or {})) for link in span.links],
        "events": [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events],
        "lost": (span.dropped_attributes, span.dropped_events, span.dropped_links),
    }


def as_sent(received: Received[Any]) -> dict[str, Any]:
    span = received.item
    return {
        "name": span.name,
        "kind": trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        "trace": int.from_bytes(span.trace_id),
        "span": int.from_bytes(span.span_id),
        "parent": int.from_bytes(span.parent_span_id),
        "begin": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "attributes": attributes_of(span.attributes),
        "status": (
            trace_pb2.Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
            span.status.message,
        ),
        "links": [
            (int.from_bytes(link.trace_id), int.from_bytes(link.span_id), attributes_of(link.attributes))
            for link in span.links
        ],
        "events": [(event.name, event.time_unix_nano, attributes_of(event.attributes)) for event in span.events],
        "lost": (span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count),
    }


def tree_of(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """Names under names, `{name: [subtree, ...]}`, siblings in the order in which they began."""
    known = {span["span"] for span in spans}

    def under(parent: int) -> list[Any]:
        children = [span for span in spans if span["parent"] == parent]
        return [(child["name"], under(child["span"])) for child in sorted(children, key=lambda each: each["begin"])]

    (root,) = [span for span in spans if span["parent"] not in known]
    return {root["name"]: under(root["span"])}


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_the_tree_that_arrives_is_the_one_that_was_made(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline], compression: Compression
) -> None:
    pipeline = pipeline_to(receiver.url, compression=compression)

    await exec_agent(shop(), "go", hooks=pipeline.hooks(hook_spans=True), operation_id="op-1")
    pipeline.flush()

    arrived = sorted((as_sent(each) for each in receiver.spans), key=lambda span: span["span"])
    assert arrived == sorted(map(as_kept, pipeline.kept.get_finished_spans()), key=lambda span: span["span"])
    (tree,) = tree_of(arrived).items()
    helper = ("invoke_agent helper", [("agent_step", [("chat scripted", []), ("execute_tool look_up", [])]), ("agent_step", [("chat scripted", [])])])  # fmt: skip
    name, (first, last) = tree
    assert name == "invoke_agent shop"
    assert first[0] == "agent_step"
    assert first[1][0] == ("chat scripted", [])
    assert sorted(first[1][1:]) == [
        ("call_agent helper", [helper]),
        ("execute_tool break_down", []),
        ("execute_tool look_up", []),
    ]
    assert last == ("agent_step", [("chat scripted", [])])


async def test_no_child_that_arrives_begins_before_its_parent_or_outlives_it(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_to(receiver.url)

    await exec_agent(shop(), "go", hooks=pipeline.hooks())
    pipeline.flush()

    spans = {span["span"]: span for span in map(as_sent, receiver.spans)}
    assert {span["trace"] for span in spans.values()} == {next(iter(spans.values()))["trace"]}
    for span in spans.values():
        assert span["begin"] <= span["end"]
        if span["parent"]:
            parent = spans[span["parent"]]
            assert parent["begin"] <= span["begin"], (parent["name"], span["name"])
            assert span["end"] <= parent["end"], (parent["name"], span["name"])


async def test_everything_that_arrives_names_the_users_service_and_our_scope(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_to(receiver.url)
    broken = Agent(id="broken", model=ScriptedModel([ValueError("no model")]))

    await exec_agent(broken, "go", hooks=pipeline.hooks())
    pipeline.flush()

    everything = [*receiver.spans, *receiver.metrics, *receiver.logs]
    assert receiver.spans
    assert receiver.metrics
    assert receiver.logs
    assert {each.scope for each in everything} == {"hookline"}
    for each in everything:
        assert RESOURCE.items() <= each.resource.items()


async def test_both_segments_of_a_paused_run_arrive_and_the_second_is_linked_to_the_first(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline]
) -> None:
    pipeline, store = pipeline_to(receiver.url), InMemoryStore()
    agent = Agent(id="buyer", tools=[pay], model=ScriptedModel([calls(call("pay")), says()]))

    paused = await exec_agent(agent, "go", hooks=pipeline.hooks(), store=store)
    await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=pipeline.hooks(), store=store)
    pipeline.flush()

    spans = [as_sent(each) for each in receiver.spans]
    first, second = sorted((span for span in spans if not span["parent"]), key=lambda span: span["begin"])
    assert first["trace"] != second["trace"]
    assert first["links"] == []
    assert second["links"] == [(first["trace"], first["span"], {"hookline.link": "first_segment"})]
    assert second["attributes"]["hookline.resumed"] is True
    (decision,) = [span for span in spans if span["name"] == "human_intervention" and span["trace"] == second["trace"]]
    assert [link[:2] for link in decision["links"]] == [(first["trace"], first["span"])]


async def test_the_metrics_that_arrive_are_those_that_were_measured(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_to(receiver.url)

    await exec_agent(shop(), "go", hooks=pipeline.hooks())
    pipeline.flush()

    data = pipeline.reader.get_metrics_data()
    assert data is not None
    (kept,) = data.resource_metrics[0].scope_metrics
    arrived = {each.item.name: each.item for each in receiver.metrics}
    assert len(arrived) == len(receiver.metrics)
    assert arrived.keys() == {metric.name for metric in kept.metrics}
    for metric in kept.metrics:
        sent = arrived[metric.name]
        assert (sent.unit, sent.description) == (metric.unit, metric.description)
        points = {frozenset((point.attributes or {}).items()): point for point in metric.data.data_points}
        sent_points = getattr(sent, sent.WhichOneof("data") or "").data_points
        assert {frozenset(attributes_of(point.attributes).items()) for point in sent_points} == points.keys()
        for point in sent_points:
            own = points[frozenset(attributes_of(point.attributes).items())]
            if isinstance(own, HistogramDataPoint):
                assert (point.count, point.sum) == (own.count, own.sum)
                assert tuple(point.explicit_bounds) == tuple(own.explicit_bounds)
                assert tuple(point.bucket_counts) == tuple(own.bucket_counts)
            else:
                assert getattr(point, point.WhichOneof("value")) == own.value


class NoModelError(Exception):
    """Of a module, unlike the exceptions that Python brings along."""


async def test_a_failed_model_arrives_as_log_events_in_the_trace_of_its_spans(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_to(receiver.url)
    error = NoModelError("secret of the provider")
    broken = Agent(id="broken", model=ScriptedModel([error]))

    await exec_agent(broken, "go", hooks=pipeline.hooks())
    pipeline.flush()

    spans = {span["name"]: span for span in map(as_sent, receiver.spans)}
    places = {
        each.item.event_name: (int.from_bytes(each.item.trace_id), int.from_bytes(each.item.span_id))
        for each in receiver.logs
    }
    chat, root = spans["chat scripted"], spans["invoke_agent broken"]
    assert places == {
        "gen_ai.client.operation.exception": (chat["trace"], chat["span"]),
        "hookline.error": (root["trace"], root["span"]),
    }
    (exception,) = [each.item for each in receiver.logs if each.item.event_name == "gen_ai.client.operation.exception"]
    assert attributes_of(exception.attributes)["exception.type"] == f"{__name__}.NoModelError"
    assert all(b"secret of the provider" not in request.body for request in receiver.requests)


async def test_retries_of_a_model_arrive_as_one_chat_span(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_to(receiver.url)
    model = ScriptedModel([TransientModelError("busy"), TransientModelError("busy"), says()])
    agent = Agent(id="patient", model=model, retry=ModelRetry(first_wait=0.0))

    result = await exec_agent(agent, "go", hooks=pipeline.hooks())
    pipeline.flush()

    assert result.reason == "done"
    (chat,) = [span for span in map(as_sent, receiver.spans) if span["name"] == "chat scripted"]
    assert chat["status"] == ("UNSET", "")


async def test_broken_unicode_anywhere_costs_nothing(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    broken, hooks = "\ud800\N{PILE OF POO}\x00\udfff", Hooks("\udc00", inherit=True)
    pipeline = pipeline_to(receiver.url)

    @hooks.on(AfterToolCall, id=broken)
    def watch(event: AfterToolCall) -> None:
        """Something to record."""

    @hooks.before(ModelCall)
    def put(call: ModelCall) -> ModelCall:
        settings = {"stop_sequences": [broken], "temperature": 0.5, broken: broken}
        return msgspec.structs.replace(call, settings=settings, model=broken)

    @hooks.guard(ToolCall, tool="*/denied")
    def deny(call: ToolCall) -> Deny:
        return Deny(broken)

    @tool
    async def echo(text: str) -> str:
        return text * 2

    def turns() -> list[Any]:
        step = calls(
            call("echo", broken, text=broken),
            call(broken, "t2", **{broken: broken}),
            call("denied", "t3"),
            ask("helper", "t4"),
        )
        return [step, msgspec.structs.replace(says(broken), finish_reason=broken, reasoning=broken)]

    def agent(name: str, model: ScriptedModel, **parts: Any) -> Agent:
        model.provider = broken  # type: ignore[misc]
        return Agent(id=name, model=model, tools=[echo], instructions=broken, **parts)

    bundles = pipeline.hooks(capture_content="SPAN_AND_EVENT", hook_spans=True, user_ids=True, conversation_id=broken)
    helper = agent("helper", ScriptedModel([ValueError(broken)], name=broken))
    whole = agent(broken, ScriptedModel(turns(), name=broken), sub_agents=[helper])
    ids = {"operation_id": broken, "user_id": broken, "tenant_id": broken}
    result = await exec_agent(whole, broken, hooks=[*bundles, hooks], **ids)
    pipeline.flush()

    assert result.reason == "done"
    made = pipeline.kept.get_finished_spans()
    assert len(receiver.spans) == len(made)
    assert sorted(map(repr, map(as_sent, receiver.spans))) == sorted(map(repr, map(as_kept, made)))
    assert {each.item.name for each in receiver.metrics} >= {"gen_ai.execute_tool.duration", "hookline.hook.duration"}
    assert {each.item.event_name for each in receiver.logs} >= {"gen_ai.client.operation.exception", "hookline.error"}
    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []


def told(result: OperationResult) -> tuple[Any, ...]:
    messages = [(message.role, message.content, message.tool_call_id) for message in result.messages]
    return result.reason, result.output, messages, result.steps, result.tool_calls, result.usage, result.error


@pytest.mark.parametrize("status", [None, 400, 503])
async def test_a_receiver_that_is_down_or_refuses_changes_nothing_about_the_run(
    pipeline_to: Callable[..., Pipeline], status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with Receiver(status or 200) as receiver:
        bare = await exec_agent(shop(), "go")
        pipeline = pipeline_to(receiver.url, timeout=0.3, max_export_batch_size=1)
        if status is not None:
            traced = await exec_agent(shop(), "go", hooks=pipeline.hooks())
            await anyio.to_thread.run_sync(pipeline.flush)
    if status is None:  # it is closed by now
        traced = await exec_agent(shop(), "go", hooks=pipeline.hooks())
        await anyio.to_thread.run_sync(pipeline.flush)

    assert told(traced) == told(bare)
    assert receiver.spans == []
    assert bool(receiver.requests) == (status is not None)
    assert len(pipeline.kept.get_finished_spans()) == 14


async def test_a_run_does_not_wait_for_a_receiver_that_does_not_answer(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_to(receiver.url, max_export_batch_size=1)
    receiver.hold()

    @tool
    def until_something_is_sent() -> str:
        assert receiver.arrived.wait(10)
        return "sent"

    agent = Agent(
        id="eager",
        tools=[until_something_is_sent],
        model=ScriptedModel([calls(call("until_something_is_sent")), says()]),
    )

    result = await exec_agent(agent, "go", hooks=pipeline.hooks())

    assert (result.reason, receiver.spans) == ("done", [])  # it was over before the first answer
    receiver.release()
    await anyio.to_thread.run_sync(pipeline.flush)
    assert len(receiver.spans) == len(pipeline.kept.get_finished_spans()) == 6


async def test_a_full_queue_costs_spans_but_not_the_run_and_not_the_metrics(
    receiver: Receiver, pipeline_to: Callable[..., Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    pipeline = pipeline_to(receiver.url, max_queue_size=2, max_export_batch_size=1)
    receiver.hold()
    steps = [calls(call("look_up", f"t{at}", item="tea")) for at in range(20)]
    agent = Agent(id="busy", tools=[look_up], model=ScriptedModel([*steps, says()]))

    result = await exec_agent(agent, "go", hooks=pipeline.hooks())
    receiver.release()
    await anyio.to_thread.run_sync(pipeline.flush)

    assert (result.reason, result.tool_calls) == ("done", 20)
    made = len(pipeline.kept.get_finished_spans())
    assert made == 1 + 21 + 21 + 20
    assert len(receiver.spans) < made
    (duration,) = [each.item for each in receiver.metrics if each.item.name == "gen_ai.execute_tool.duration"]
    assert sum(point.count for point in duration.histogram.data_points) == 20
