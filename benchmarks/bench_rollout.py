"""Hooks for a share of operations: how exact the share is, what it costs a run to select its hooks, and a call nothing.

The agent calls one tool that does nothing, thirty times, and the hook is one guard of these calls.
"""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.bench_shadow import searcher
from benchmarks.harness import Row, interleave, statement
from hookline import Agent, Hooks, ToolCall, exec_agent, tool
from hookline.hooks import HookScope, copy_bundle, is_drawn

CALLS = 30
OPERATIONS = 100_000
PERCENTAGES = (0.01, 1, 5, 25, 50, 75, 99.99)


@tool
async def skip(number: int) -> str:
    """Do nothing."""
    return str(number)


async def bench(rounds: int) -> list[Row]:
    return [*shares(), *await time_added(rounds)]


def shares() -> list[Row]:
    """Measure how far shares are from their percentages, and how many operations a higher one loses."""
    ids = [f"op_{nth:032x}" for nth in range(OPERATIONS)]
    drawn = {percent: {each for each in ids if is_drawn("policy", each, percent)} for percent in PERCENTAGES}
    off = max(abs(100 * len(found) / OPERATIONS - percent) for percent, found in drawn.items())
    lost = sum(len(drawn[low] - drawn[high]) for low, high in itertools.pairwise(PERCENTAGES))
    return [
        Row(
            case=f"share of {OPERATIONS:,} operations, furthest from its percentage",
            value=off,
            unit="points",
            at_most=1,
        ),
        Row(case="operations that leave when the percentage is raised", value=lost, unit="operations", at_most=0),
    ]


async def time_added(rounds: int) -> list[Row]:
    def plain(call: ToolCall) -> None:
        pass

    policy = Hooks("policy")
    policy.guard(ToolCall)(plain)
    scoped = [copy_bundle(policy, revision=1, scope=HookScope(key="policy", percent=each)) for each in (99.99, 0.0)]
    agent = searcher(skip, CALLS)
    cases = {
        "run [hooks=0]": run_of(agent, []),
        "run [guard]": run_of(agent, [policy]),
        "run [guard for 99.99 %]": run_of(agent, [scoped[0]]),
        "run [guard for 0 %]": run_of(agent, [scoped[1]]),
    }
    samples = await interleave(cases, rounds, times=1)
    return [
        samples.row("run [hooks=0]"),
        samples.row("run [guard]", "run [hooks=0]"),
        samples.row("run [guard for 99.99 %]", "run [guard]"),
        samples.row("run [guard for 0 %]", "run [hooks=0]"),
    ]


def run_of(agent: Agent, hooks: list[Hooks]) -> Any:
    async def run() -> None:
        result = await exec_agent(agent, "Skip", hooks=hooks)
        assert result.tool_calls == CALLS

    return statement("await run()", run=run, unroll=1)
