"""Sends traced runs to a real viewer, Arize Phoenix, and asks what it shows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from pathlib import Path
from time import perf_counter

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.soak.comparison import differences, outline
from benchmarks.soak.phoenix import HOST, Phoenix, PhoenixError
from benchmarks.soak.runs import CONVERSATION, EXPECTED, run_clerk, run_task
from hookline.otel import TracingHooks

PROJECT = "hookline-soak"
SHOWN_SECONDS = 30.0
"""How long the viewer may take until it shows everything; it took 2 s at most."""


def soak(command: Path, *, keep: bool) -> list[str]:
    """Start the viewer, run, ask, stop it.

    Args:
        command: The `phoenix` to start.
        keep: Whether to leave it up for a look.

    Returns:
        What is wrong.
    """
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = HOST
    try:
        with tempfile.TemporaryDirectory(prefix="hookline-soak-") as directory:
            return compare(command, Path(directory), keep=keep)
    except PhoenixError as error:
        return [str(error)]


def compare(command: Path, directory: Path, *, keep: bool) -> list[str]:
    """What is shown must be what was sent."""
    began = perf_counter()
    with Phoenix(command, directory) as phoenix:
        print(f"Phoenix was up after {perf_counter() - began:.1f} s at {phoenix.url}", flush=True)
        began = perf_counter()
        sent = send_runs(phoenix)
        shown = phoenix.spans(PROJECT, len(sent), SHOWN_SECONDS)
        print(f"{len(sent)} spans sent, {len(shown)} shown after {perf_counter() - began:.1f} s\n")
        tree = outline(shown)
        print(tree)
        problems = differences(sent, shown)
        if tree != EXPECTED:
            problems.append(f"this tree was expected:\n{EXPECTED}")
        segments = {
            f"{span.context.trace_id:032x}" for span in sent if CONVERSATION in (span.attributes or {}).values()
        }
        if len(segments) != 2 or set(phoenix.traces_of_session(PROJECT, CONVERSATION)) != segments:
            problems.append("the two segments of the run that waited are not one conversation")
        if keep:
            print(f"Have a look: {phoenix.url} (Ctrl-C ends it)", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    print("Phoenix has stopped")
    return problems


def send_runs(phoenix: Phoenix) -> tuple[ReadableSpan, ...]:
    """Run everything, sent in the way in which a user sends it.

    Returns:
        The spans that were sent.
    """
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "hookline", "openinference.project.name": PROJECT}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{phoenix.url}/v1/traces")))
    try:
        asyncio.run(run_task(TracingHooks(provider, openinference=True)))
        tracing = TracingHooks(provider, openinference=True, capture_content=True, conversation_id=CONVERSATION)
        asyncio.run(run_clerk(tracing))
    finally:
        provider.shutdown()
    return kept.get_finished_spans()
