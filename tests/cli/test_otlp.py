"""Spans that leave a command: as OTLP/JSON, and by OTLP/HTTP to a real server; and what is said of those that do not."""

from __future__ import annotations

import json
import logging
import math
import socket

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, set_span_in_context

from cli.receiver import Receiver, closed_port, parsed
from cli.scenes import Tape
from hookline.cli.errors import EndpointError, TracingDisabledError
from hookline.cli.trace import _otlp
from hookline.cli.trace._otlp import SendReport, Tracing, otlp_json, send, traces_url
from hookline.cli.trace._recorded import replay_events


def a_run(steps: int = 1) -> Tracing:
    tape = Tape()
    for index in range(steps):
        tape.step(index * 10, index).tool("search", index * 10 + 1, index * 10 + 2, step=index)
        tape.stepped(index * 10 + 3, index)
    tracing = Tracing(None)
    replay_events(tracing.hooks, tape.done(steps * 10).events)
    return tracing


# OTLP/JSON.


def test_everything_in_a_span_is_in_the_document_and_comes_back() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("hookline", "1.0")
    root = tracer.start_span("root")
    attributes = {
        "text": "é 🔎 \x00",
        "empty": "",
        "large": 2**53 + 1,
        "zero": 0,
        "float": 0.5,
        "infinite": math.inf,
        "yes": True,
        "no": False,
        "texts": ("a", ""),
        "bytes": b"\x00\xff",
        # what ids are called is data here
        "traceId": "not an id",
    }
    links = [Link(root.get_span_context(), {"spanId": "text"})]
    child = tracer.start_span("chat", set_span_in_context(root), SpanKind.CLIENT, attributes, links)
    child.add_event("event", {"n": 1})
    child.set_status(Status(StatusCode.ERROR, "bad"))
    child.end()
    root.end()

    assert parsed(otlp_json(kept.get_finished_spans())) == encode_spans(kept.get_finished_spans())


def test_ids_are_lower_case_hex_enums_are_numbers_and_large_numbers_are_text() -> None:
    tracing = a_run()

    document = json.loads(otlp_json(tracing.spans))

    [resource] = document["resourceSpans"]
    [scope] = resource["scopeSpans"]
    for written, span in zip(scope["spans"], tracing.spans, strict=True):
        assert written["traceId"] == f"{span.context.trace_id:032x}"
        assert written["spanId"] == f"{span.context.span_id:016x}"
        assert written.get("parentSpanId") == (f"{span.parent.span_id:016x}" if span.parent else None)
        assert written["kind"] == 1
        assert written["startTimeUnixNano"] == str(span.start_time)
    step = next(each for each in scope["spans"] if each["name"] == "agent_step")
    assert {"key": "hookline.step.index", "value": {"intValue": "0"}} in step["attributes"]
    assert scope["scope"]["name"] == "hookline"


def test_the_document_names_the_service_and_the_project_of_the_viewer() -> None:
    document = json.loads(otlp_json(a_run().spans))

    resource = {each["key"]: each["value"] for each in document["resourceSpans"][0]["resource"]["attributes"]}
    assert resource["service.name"] == {"stringValue": "hookline"}
    assert resource["openinference.project.name"] == {"stringValue": "hookline"}


def test_the_environment_may_name_the_service_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=shop,team=x")

    [resource] = {span.resource for span in a_run().spans}

    assert resource.attributes["service.name"] == "shop"
    assert resource.attributes["openinference.project.name"] == "shop"
    assert resource.attributes["team"] == "x"


# Endpoints.


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:6006", "http://127.0.0.1:6006/v1/traces"),
        ("http://127.0.0.1:6006/", "http://127.0.0.1:6006/v1/traces"),
        ("https://collector.example", "https://collector.example/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/traces"),
        ("http://host/otlp?key=1", "http://host/otlp?key=1"),
        ("http://host?key=1", "http://host/v1/traces?key=1"),
    ],
)
def test_spans_go_to_the_usual_path_unless_one_is_given(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:6006",
        "localhost:6006",
        "grpc://host:4317",
        "file:///tmp/x",
        "http://",
        "http://h:99999",
        "http://[",
    ],
)
def test_what_spans_cannot_be_sent_to_is_refused(endpoint: str) -> None:
    with pytest.raises(EndpointError, match=r"give a URL, such as http://127\.0\.0\.1:6006"):
        traces_url(endpoint)


def test_an_environment_that_turns_the_sdk_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", " True ")

    with pytest.raises(TracingDisabledError, match="OTEL_SDK_DISABLED"):
        Tracing(None)


def test_an_environment_that_samples_nothing_does_not_count_for_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")

    assert len(a_run().spans) == 3


# Sending.


def test_every_span_arrives_once_however_many_requests_that_takes() -> None:
    tracing = a_run(steps=300)

    with Receiver() as receiver:
        told = send(tracing.spans, traces_url(receiver.url))

    assert told == SendReport(url=f"{receiver.url}/v1/traces", sent=601, lost=0)
    assert sorted(span.span_id for span in receiver.spans) == sorted(
        span.context.span_id.to_bytes(8, "big") for span in tracing.spans
    )
    assert receiver.paths == ["/v1/traces"] * 4


def test_headers_of_the_environment_are_sent_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")

    with Receiver() as receiver:
        send(a_run().spans, traces_url(receiver.url))

    assert receiver.headers[0]["authorization"] == "Bearer x"


def test_nobody_at_the_endpoint_is_found_out_without_a_request_and_its_retries() -> None:
    told = send(a_run().spans, f"http://127.0.0.1:{closed_port()}/v1/traces")

    assert (told.sent, told.lost, told.reason) == (0, 3, "Connection refused")


def test_a_host_that_does_not_exist_is_told() -> None:
    told = send(a_run().spans, "http://no-such-host.invalid:4318/v1/traces")

    assert (told.sent, told.lost) == (0, 3)
    assert told.reason


def test_a_refusal_is_told_with_its_code_and_nothing_of_it_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    with Receiver(lambda number: 404) as receiver:
        told = send(a_run().spans, receiver.url)

    assert (told.sent, told.lost) == (0, 3)
    assert "404" in told.reason
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("opentelemetry").propagate
    assert not logging.getLogger("opentelemetry").handlers


def test_one_lost_request_does_not_lose_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_otlp, "BATCH", 10)

    with Receiver(lambda number: 400 if number == 1 else 200) as receiver:
        told = send(a_run(steps=20).spans, receiver.url)

    assert (told.sent, told.lost) == (31, 10)
    assert len(receiver.spans) == 31


def test_after_two_lost_requests_no_other_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_otlp, "BATCH", 10)

    with Receiver(lambda number: 200 if number == 0 else 400) as receiver:
        told = send(a_run(steps=20).spans, receiver.url)

    assert (told.sent, told.lost) == (10, 31)
    assert len(receiver.paths) == 3


def test_a_server_that_is_busy_for_a_moment_gets_everything() -> None:
    with Receiver(lambda number: 503 if number == 0 else 200) as receiver:
        told = send(a_run().spans, receiver.url)

    assert (told.sent, told.lost, len(receiver.spans)) == (3, 0, 3)


def test_a_server_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = send(a_run().spans, f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces")

    assert (told.sent, told.lost) == (0, 3)
    assert told.reason


def test_an_environment_that_makes_no_sense_loses_spans_but_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "nobody")

    with Receiver() as receiver:
        told = send(a_run().spans, receiver.url)

    assert (told.sent, told.lost) == (0, 3)
    assert "nobody" in told.reason


def test_a_proxy_of_the_environment_is_used_and_not_the_host_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        told = send(a_run().spans, "http://collector.invalid/v1/traces")

    assert (told.sent, told.lost) == (3, 0)
    assert proxy.paths == ["http://collector.invalid/v1/traces"]
