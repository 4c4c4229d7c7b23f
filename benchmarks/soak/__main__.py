"""Sends traced runs to a real viewer, Arize Phoenix, and asks what it shows; exits 0 if that is what was sent."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
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

MOST_DIFFERENCES = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--phoenix", type=Path, required=True, metavar="COMMAND", help="the `phoenix` to start")
    parser.add_argument("--keep", action="store_true", help="leave it up for a look, until Ctrl-C")
    options = parser.parse_args()
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = HOST
    # Phoenix is to be stopped however this ends; a shell ignores SIGINT for what it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = options.phoenix.absolute()
    if not os.access(command, os.X_OK):
        parser.error(f"{command} is no command; `make soak` installs one")
    try:
        with tempfile.TemporaryDirectory(prefix="hookline-soak-") as directory:
            problems = soak(command, Path(directory), keep=options.keep)
    except PhoenixError as error:
        problems = [str(error)]
    for problem in problems[:MOST_DIFFERENCES]:
        print(f"  {problem}")
    if len(problems) > MOST_DIFFERENCES:
        print(f"  and {len(problems) - MOST_DIFFERENCES} more")
    print("FAIL" if problems else "OK: what is shown is what was sent")
    return 1 if problems else 0


def soak(command: Path, directory: Path, *, keep: bool) -> list[str]:
    """Start the viewer, run, ask, stop it.

    Returns:
        What is wrong.
    """
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


if __name__ == "__main__":
    sys.exit(main())
