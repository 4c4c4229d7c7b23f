"""Runs of other frameworks, each with one tool call: bare, with hookline attached, and with hooks of their own.

`python -m benchmarks.bench_adapters` runs these alone, in an environment that may hold a single framework.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from time import process_time_ns

from benchmarks.adapters_frameworks import FRAMEWORKS, Goals, Workload, version_of
from benchmarks.harness import Row, Timer, interleave, statement, table
from benchmarks.otel_by_hand import dropping
from hookline import Hooks, HookType
from hookline.events import EVENTS
from hookline.otel import TracingHooks

SAMPLES_PER_ROUND = 4
"""A run lasts milliseconds and wavers by more than hooks cost, so that 25 rounds say too little."""

GOALS = {
    "Pydantic AI": Goals(zero=1.15, against_own=1.12),
    "OpenAI Agents": Goals(zero=1.10, against_bare=1.15),
    "LangChain": Goals(zero=1.10, against_own=1.0),
    "Agent Framework": Goals(zero=1.10, against_own=1.45),
}
"""In CPU time. Hooks of the framework's own that do nothing cost up to 1.4 times a bare run."""


async def bench(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for name, (distribution, make) in FRAMEWORKS.items():
        version = version_of(distribution)
        print(f"{distribution:<20} {version or 'not installed here, so left out'}", flush=True)
        if version is None:
            continue
        workload = make()
        async with workload.closing:
            await tells_of_the_run(name, workload)
            rows += await overhead(name, workload, rounds * SAMPLES_PER_ROUND)
    return rows


async def overhead(name: str, workload: Workload, rounds: int) -> list[Row]:
    """What hookline adds to a run of a framework."""
    goals = GOALS.get(name, Goals())
    observers = Hooks("observers")
    for kind in workload.capabilities.events:
        observers.on(EVENTS[kind])(make_observer())
    observed = f"{name} [hooks={len(workload.capabilities.events)}]"
    bare, empty, traced, own = (f"{name} [{case}]" for case in ("bare", "hooks=0", "TracingHooks", "own hooks"))
    runs = {
        bare: workload.bare,
        empty: workload.hooked([]),
        observed: workload.hooked([observers]),
        traced: workload.hooked([TracingHooks(dropping())]),
        own: workload.own,
    }
    cases: dict[str, Timer] = {
        case: statement("await run()", unroll=1, clock=process_time_ns, run=run) for case, run in runs.items()
    }
    samples = await interleave(cases, rounds)
    adds, on_top = f"{observed} adds", f"{observed} adds to hooks=0"
    samples.derive(adds, lambda with_hooks, without: with_hooks - without, observed, bare)
    samples.derive(on_top, lambda with_hooks, without: with_hooks - without, observed, empty)
    return [
        samples.row(bare),
        samples.row(empty, bare, at_most=goals.zero),
        samples.row(observed, bare, at_most=goals.against_bare),
        samples.row(traced, bare),
        samples.row(own, bare),
        samples.row(observed, own, at_most=goals.against_own),
        samples.row(adds),
        samples.row(on_top, bare),
    ]


async def tells_of_the_run(name: str, workload: Workload) -> None:
    """See that the hooks that are about to be measured are called at all."""
    heard, hooks = Counter[HookType](), Hooks("heard")
    for kind in workload.capabilities.events:
        hooks.on(EVENTS[kind])(lambda event: heard.update([event.hook_type]))
    before, complete = HookType.BEFORE_TOOL_CALL, HookType.ON_COMPLETE
    expected = {
        kind: 1 for kind in (before, HookType.AFTER_TOOL_CALL, complete) if kind in workload.capabilities.events
    }
    await workload.hooked([hooks])()
    assert {kind: heard[kind] for kind in expected} == expected, f"{name} told {dict(heard)}"


def make_observer():
    def handler(event: object) -> None:
        pass

    return handler


if __name__ == "__main__":
    print(table(asyncio.run(bench(int(sys.argv[1]) if len(sys.argv) > 1 else 25))))
