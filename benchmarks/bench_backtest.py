"""Judging the past: its time beside reading, decoding and judging the same calls by hand, and its verdicts.

Each stored operation has ten calls of a tool. By hand means: the same rows through the same driver, each decoded with
`decode`, and `Chain.run` of the same guard on calls that were made before, with records.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from time import time, time_ns
from typing import Any

from sqlalchemy import insert, select

from benchmarks.harness import Row, interleave, statement
from benchmarks.postgresql import PostgreSQL
from hookline import BeforeToolCall, Deny, Hooks, ToolCall, ToolResult
from hookline.events import decode, encode, tool_event_fields
from hookline.interceptors import Chain
from hookline.registry import HookDefinition, Registry
from hookline.runtime import JournalEntry, OperationState
from hookline.store import SqlStore, events, operations
from tests.registry.past_runs import MODULE, LiveVerdicts, run_random_agent, verdicts_in

OPERATIONS, CALLS = 200, 10
OLD_OPERATIONS = 20_000
"""Operations that began too early to be looked at."""
JUDGED = 10_000
BATCH = 5_000
"""Operations that are copied in one transaction."""
YEAR = 365 * 86_400.0
GUARD = HookDefinition(name="limit", point="ToolCall.guard", handler=f"{__name__}:make_guard")


def make_guard() -> Any:
    """Deny payments that are too large."""

    def limit(call: ToolCall) -> Deny | None:
        return Deny("too much") if call.args["amount"] > 900 else None

    return limit


async def bench(rounds: int) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, PostgreSQL() as server:
        for name, few, many in (
            ("sqlite", f"sqlite:///{Path(folder) / 'few.db'}", f"sqlite:///{Path(folder) / 'many.db'}"),
            ("postgresql", await server.new_database("few"), await server.new_database("many")),
        ):
            rows += await time_beside_reading(name, few, many, rounds)
        rows.append(await count_other_verdicts(f"sqlite:///{Path(folder) / 'verdicts.db'}"))
    return rows


async def time_beside_reading(name: str, few: str, many: str, rounds: int) -> list[Row]:
    """Time a backtest in a store with nothing else, and in one that also has operations that are not looked at."""
    async with (
        SqlStore(few) as store,
        Registry(store, modules=[__name__]) as registry,
        SqlStore(many) as full_store,
        Registry(full_store, modules=[__name__]) as full_registry,
    ):
        await fill(store)
        await fill(full_store)
        await add_old_operations(full_store)
        since = time() - 3600
        ours, by_hand = f"backtest [{name}]", f"read, decode, Chain.run [{name}]"
        in_full = f"backtest [{name}, {OLD_OPERATIONS:,} older operations]"
        cases = {
            ours: statement("await judge(registry, since)", judge=judge, registry=registry, since=since, unroll=1),
            in_full: statement(
                "await judge(registry, since)", judge=judge, registry=full_registry, since=since, unroll=1
            ),
            by_hand: statement("await judge(store, since)", judge=judge_by_hand, store=store, since=since, unroll=1),
        }
        samples = await interleave(cases, rounds, times=1)
        return [
            samples.row(by_hand),
            samples.row(ours, by_hand, at_most=2.0),
            samples.row(in_full, ours, at_most=1.3),
        ]


async def judge(registry: Registry, since: float) -> None:
    found = await registry.backtest(GUARD, since=since)
    assert (found.calls, found.operations) == (OPERATIONS * CALLS, OPERATIONS)


READY: list[ToolCall] = []
CHAIN: list[Chain] = []


async def judge_by_hand(store: SqlStore, since: float) -> None:
    """Do the least that judging stored calls takes."""

    async def terminal(call: ToolCall) -> ToolResult:
        return RESULT

    if not READY:
        READY.extend(
            ToolCall(operation_id="op", toolset="bank", tool_name="pay", args={"amount": nth % 1000, "to": "ann"})
            for nth in range(OPERATIONS * CALLS)
        )
        hooks = Hooks("limit")
        hooks.guard(ToolCall)(make_guard())
        CHAIN.append(Chain([hooks], record=True))
    async with store.reading() as connection:
        newest = select(operations.c.operation_id).where(operations.c.created_at >= since)
        ids = list((await connection.execute(newest)).scalars())
        query = select(events.c.operation_id, events.c.number, events.c.type, events.c.wire)
        query = query.where(events.c.operation_id.in_(ids), events.c.type == "beforeToolCall")
        rows = (await connection.execute(query.order_by(events.c.operation_id, events.c.number))).all()
    for row in rows:
        decode(row.wire)
    chain = CHAIN[0]
    for call in READY:
        await chain.run(call, terminal)


RESULT = ToolResult(content="paid")


async def fill(store: SqlStore) -> None:
    """Store operations with their events, as runs store them."""
    for nth in range(OPERATIONS):
        operation_id = f"op_{nth}"
        rows: list[JournalEntry] = []
        for index in range(CALLS):
            call = ToolCall(
                operation_id=operation_id,
                agent_id="clerk",
                tenant_id="acme",
                toolset="bank",
                tool_name="pay",
                args={
                    "amount": (nth * CALLS + index) % 1000,
                    "to": "ann",
                    "why": "a book for all of us",
                },
                tool_call_id=f"t{index}.0",
                call_index=index + 1,
                step_index=index,
            )
            event = BeforeToolCall(
                operation_id=operation_id, agent_id="clerk", tenant_id="acme", **tool_event_fields(call)
            )
            rows.append(
                JournalEntry(number=len(rows) + 1, type=event.hook_type, time_unix_nano=time_ns(), wire=encode(event))
            )
        state = OperationState(
            operation_id=operation_id, agent_id="clerk", tenant_id="acme", status="done", events=len(rows)
        )
        await store.commit(state, expected_version=None, entries=rows)


async def add_old_operations(store: SqlStore) -> None:
    """Copy an operation and its events many times, as if they were a year old."""
    async with store.reading() as connection:
        one = dict((await connection.execute(select(operations).limit(1))).mappings().one())
        its = select(events).where(events.c.operation_id == one["operation_id"]).limit(2)
        wire = [dict(row) for row in (await connection.execute(its)).mappings()]
    for first in range(0, OLD_OPERATIONS, BATCH):
        names = [f"old_{nth}" for nth in range(first, first + BATCH)]
        async with store.writing() as connection:
            await connection.execute(
                insert(operations), [one | {"operation_id": name, "created_at": time() - YEAR} for name in names]
            )
            await connection.execute(insert(events), [row | {"operation_id": name} for name in names for row in wire])
    async with store.writing() as connection:
        await connection.exec_driver_sql("ANALYZE")


async def count_other_verdicts(url: str) -> Row:
    """Judge random calls of agents as they happen and afterwards, and count those that are judged differently."""
    chance, wrong, made = random.Random(25), 0, 0
    async with SqlStore(url) as store, Registry(store, modules=[MODULE]) as registry:
        for point, handler, mode in (
            ("ToolCall.guard", "policy", "enforce"),
            ("ToolCall.before", "steering", "shadow"),
            ("ToolCall.after", "policy", "shadow"),
        ):
            policy = HookDefinition(
                id="policy", name="policy", point=point, handler=f"{MODULE}:{handler}", config={"seed": 3}, mode=mode
            )
            began = await store.now()
            with LiveVerdicts("policy") as live:
                while len(live.found) < JUDGED / 3:
                    made += 1
                    hooks = registry._builder.build_new(policy)
                    await run_random_agent(store, chance, hooks, f"op{made}", calls=40)
            found = await registry.backtest(policy, since=began, examples=JUDGED)
            judged = verdicts_in(found)
            wrong += sum(judged.get(call, ("passed", "")) != verdict for call, verdict in live.found.items())
            wrong += len(judged.keys() - live.found.keys()) + abs(found.calls - len(live.found))
    return Row(
        case=f"calls that are judged differently afterwards, of {JUDGED:,}", value=wrong, unit="calls", at_most=0
    )
