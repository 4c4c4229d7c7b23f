"""Hooks for a share of operations or for some tags: how exact the share is, and what a run pays to select its hooks.

The agent calls one tool that does nothing, thirty times, and the hook is one guard of these calls. A page of the
operations with a tag is read from a store with few other operations, and from one with many.
"""

from __future__ import annotations

import itertools
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

from benchmarks.bench_shadow import searcher
from benchmarks.harness import Row, interleave, statement
from benchmarks.postgresql import PostgreSQL
from hookline import Agent, Hooks, ToolCall, exec_agent, tool
from hookline._hook_scopes import HookScope, is_drawn
from hookline.hooks import copy_bundle
from hookline.runtime import OperationState
from hookline.store import SqlStore, operations
from hookline.store._tables import operation_tags

CALLS = 30
OPERATIONS = 100_000
TAGS = ("eu", "vip-7")
TAGGED, OTHERS = 200, (1_000, 100_000)
BATCH = 5_000
PERCENTAGES = (0.01, 1, 5, 25, 50, 75, 99.99)


@tool
async def skip(number: int) -> str:
    """Do nothing."""
    return str(number)


async def bench(rounds: int) -> list[Row]:
    return [*shares(), *await time_added(rounds), *await time_of_pages(rounds)]


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
    tagged = copy_bundle(policy, revision=1, scope=HookScope(key="policy", tags=("vip*",)))
    scoped = [copy_bundle(policy, revision=1, scope=HookScope(key="policy", percent=each)) for each in (99.99, 0.0)]
    agent = searcher(skip, CALLS)
    cases = {
        "run [hooks=0]": run_of(agent, []),
        "run [guard]": run_of(agent, [policy]),
        "run [guard for 99.99 %]": run_of(agent, [scoped[0]]),
        "run [guard for 0 %]": run_of(agent, [scoped[1]]),
        "run with 2 tags [guard]": run_of(agent, [policy], TAGS),
        "run with 2 tags [guard for a tag]": run_of(agent, [tagged], TAGS),
    }
    samples = await interleave(cases, rounds, times=1)
    return [
        samples.row("run [hooks=0]"),
        samples.row("run [guard]", "run [hooks=0]"),
        samples.row("run [guard for 99.99 %]", "run [guard]"),
        samples.row("run [guard for 0 %]", "run [hooks=0]"),
        samples.row("run with 2 tags [guard]", "run [guard]"),
        samples.row("run with 2 tags [guard for a tag]", "run with 2 tags [guard]"),
    ]


def run_of(agent: Agent, hooks: list[Hooks], tags: tuple[str, ...] = ()) -> Any:
    async def run() -> None:
        result = await exec_agent(agent, "Skip", hooks=hooks, tags=tags)
        assert result.tool_calls == CALLS

    return statement("await run()", run=run, unroll=1)


async def time_of_pages(rounds: int) -> list[Row]:
    """Time the first page of the operations with a tag, on both databases."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, PostgreSQL() as server:
        for name in ("sqlite", "postgresql"):
            stores: dict[int, SqlStore] = {}
            async with AsyncExitStack() as stack:
                for others in OTHERS:
                    url = f"sqlite:///{Path(folder) / f'{others}.db'}"
                    if name == "postgresql":
                        url = await server.new_database(f"tagged_{others}")
                    stores[others] = await stack.enter_async_context(SqlStore(url, durability="process"))
                    await fill(stores[others], others)
                rows += await time_of_one(name, stores, rounds)
    return rows


async def time_of_one(name: str, stores: dict[int, SqlStore], rounds: int) -> list[Row]:
    few, many = OTHERS
    rows: list[Row] = []
    for what, wanted in (("tag", {}), ("tag and tenant", {"tenant_id": "acme"}), ("tag and agent", {"agent_id": "a"})):
        cases = {
            f"page by {what} [{name}, {others:,} others]": statement(
                "await read(store, wanted)", read=read_page, store=store, wanted=wanted, unroll=1
            )
            for others, store in stores.items()
        }
        samples = await interleave(cases, rounds)
        first, last = (f"page by {what} [{name}, {others:,} others]" for others in (few, many))
        rows += [samples.row(first), samples.row(last, first, at_most=1.5)]
    return rows


async def read_page(store: SqlStore, wanted: dict[str, Any]) -> None:
    page = await store.operations(tag="vip", **wanted)
    assert len(page.items) == 50


async def fill(store: SqlStore, others: int) -> None:
    """Store operations with a tag, and others after and before them."""
    state = OperationState(operation_id="first", agent_id="a", tenant_id="acme", status="done", tags=["vip"])
    await store.commit(state, expected_version=None, entries=())
    async with store.reading() as connection:
        one = dict((await connection.execute(select(operations))).mappings().one())
    names = [f"op_{nth}" for nth in range(TAGGED + others)]
    step = max(1, len(names) // TAGGED)
    for first in range(0, len(names), BATCH):
        some = [
            one | {"operation_id": names[nth], "created_at": one["created_at"] - nth - 1}
            for nth in range(first, min(first + BATCH, len(names)))
        ]
        kept = ("operation_id", "tenant_id", "created_at")
        tagged = [{name: row[name] for name in kept} | {"tag": "vip"} for row in some[::step]]
        async with store.writing() as connection:
            await connection.execute(insert(operations), some)
            await connection.execute(insert(operation_tags), tagged)
    async with store.writing() as connection:
        await connection.exec_driver_sql("ANALYZE")
