"""Traced runs: what spans and metrics add to a step, against the same ones written by hand with the SDK.

The run has ten steps; each but the last calls a tool. Both sides emit the same spans and the same points of the same
metrics, which is checked on what they export before anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import NoOpTracerProvider

from benchmarks.harness import Row, Samples, Timer, interleave, statement
from benchmarks.otel_by_hand import STEPS, ByHand, MetricsByHand, add, dropping, emits_the_same, play
from benchmarks.otel_crowd import many_at_once, memory
from hookline import AfterStep, Agent, HookDispatcher, Hooks, ScriptedModel, exec_agent
from hookline.otel import MetricsHooks, TracingHooks

STEP_RATIO = 1.28
METRICS_RATIO = 1.35
NOOP_MICROSECONDS = 10

NOTHING = "without TracingHooks"
BOTH = "TracingHooks + MetricsHooks"
OBSERVED = f"{BOTH}, one observer"
MEASURED = "MetricsHooks"
BY_HAND = "by hand, in the same place"
METRICS_BY_HAND = "metrics by hand, in the same place"
TIGHT = "by hand, in a loop of its own"
FRESH = f"{BOTH}, new for each run"


async def bench(rounds: int) -> list[Row]:
    await emits_the_same()
    return [*await steps(rounds), *await many_at_once(), *await memory()]


async def steps(rounds: int) -> list[Row]:
    """A run with each kind of telemetry, and with the same one made by hand."""
    traces, meters = dropping(), MeterProvider([InMemoryMetricReader()])
    hand = ByHand(dropping(), MeterProvider([InMemoryMetricReader()]))
    hand_metrics = MetricsByHand(dropping(), MeterProvider([InMemoryMetricReader()]))
    metrics, observer = MetricsHooks(meters), Hooks("observer")
    observer.on(AfterStep)(lambda event: None)
    given = {
        NOTHING: [],
        "TracingHooks, no-op provider": [TracingHooks(NoOpTracerProvider())],
        f"{BOTH}, no SDK": [TracingHooks(), MetricsHooks()],
        "TracingHooks, sampled out": [TracingHooks(TracerProvider(sampler=ParentBased(ALWAYS_OFF)))],
        "TracingHooks": [TracingHooks(traces, meter_provider=meters)],
        MEASURED: [metrics],
        BOTH: [TracingHooks(traces, meter_provider=meters), metrics],
        OBSERVED: [TracingHooks(traces, meter_provider=meters), metrics, observer],
        f"{OBSERVED}, hook_spans": [TracingHooks(traces, meter_provider=meters, hook_spans=True), metrics, observer],
        f"{BOTH}, content": [TracingHooks(traces, meter_provider=meters, capture_content=True), metrics],
    }
    agent = Agent(id="adder", model=ScriptedModel(play), tools=[add])
    async with HookDispatcher() as dispatcher:
        run = {"exec_agent": exec_agent, "agent": agent, "dispatcher": dispatcher}
        cases: dict[str, Timer] = {
            name: statement(
                "await exec_agent(agent, 'Add.', hooks=hooks, dispatcher=dispatcher)", unroll=1, hooks=hooks, **run
            )
            for name, hooks in given.items()
        }
        cases[FRESH] = statement(
            "await exec_agent(agent, 'Add.', hooks=fresh(), dispatcher=dispatcher)",
            unroll=1,
            fresh=lambda: [TracingHooks(traces, meter_provider=meters), MetricsHooks(meters)],
            **run,
        )
        cases[BY_HAND] = statement("await run(dispatcher)", unroll=1, run=hand.run, dispatcher=dispatcher)
        cases[METRICS_BY_HAND] = statement(
            "await run(dispatcher)", unroll=1, run=hand_metrics.run, dispatcher=dispatcher
        )
        cases[TIGHT] = statement("loop()", unroll=1, loop=hand.loop)
        samples = await interleave(cases, rounds)
    return [*step_rows(samples, given), *construction_rows(samples)]


def step_rows(samples: Samples, given: Iterable[str]) -> list[Row]:
    for name in (*given, FRESH, BY_HAND, METRICS_BY_HAND, TIGHT):
        samples.derive(f"a step [{name}]", lambda run: run / STEPS, name)
    rows = [
        samples.row(f"a step [{name}]", f"a step [{NOTHING}]" * (name != NOTHING))
        for name in (*given, BY_HAND, METRICS_BY_HAND)
    ]
    rows.append(samples.row(f"a step [{TIGHT}]"))
    for name in (*given, BY_HAND, METRICS_BY_HAND):
        samples.derive(f"adds to a step [{name}]", lambda run, bare: (run - bare) / STEPS, name, NOTHING)
    samples.derive(f"adds to a step [{TIGHT}]", lambda run: run / STEPS, TIGHT)
    for name in given:
        if name != NOTHING:
            added = samples.median(f"adds to a step [{name}]") / 1e3
            limit = NOOP_MICROSECONDS if "no-op" in name else None
            rows.append(Row(case=f"adds to a step [{name}]", value=round(added, 2), unit="µs", at_most=limit))
    full = f"adds to a step [{BOTH}]"
    rows.append(samples.row(full, f"adds to a step [{BY_HAND}]", at_most=STEP_RATIO))
    rows.append(samples.row(full, f"adds to a step [{TIGHT}]"))
    hand_metrics = f"adds to a step [{METRICS_BY_HAND}]"
    rows.append(samples.row(f"adds to a step [{MEASURED}]", hand_metrics, at_most=METRICS_RATIO))
    return rows


def construction_rows(samples: Samples) -> list[Row]:
    """What it costs that each run is given bundles of its own, and not the same two."""
    name = "adds to a run [new bundles instead of shared ones]"
    samples.derive(name, lambda fresh, shared: fresh - shared, FRESH, BOTH)
    return [samples.row(name), samples.row(FRESH, BOTH)]
