"""A poll of the page's feed and a search for orphans, by the number of live operations that have not changed.

Both databases, each with no operation and with a hundred thousand that run; nothing changes while they are asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter_ns

from sqlalchemy import insert, text

from benchmarks.harness import Row, Samples
from benchmarks.postgresql import PostgreSQL
from hookline.server._feed import ChangedOperations
from hookline.store import SqlStore
from hookline.store._tables import operations

LIVE = 100_000
BATCH = 2_000
AN_HOUR = 3_600.0
FLAT = 1.5

Ask = Callable[[], Awaitable[object]]


async def bench(rounds: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(PostgreSQL())
        asks: dict[str, Ask] = {}
        for kind in ("SQLite", "PostgreSQL"):
            for live in (0, LIVE):
                sqlite = f"sqlite:///{folder / f'{live}.db'}"
                url = sqlite if kind == "SQLite" else await server.new_database(f"live{live}")
                store = await stack.enter_async_context(SqlStore(url))
                await fill(store, live)
                if kind == "PostgreSQL":  # it gathers statistics by itself after a while, and SQLite never does
                    async with store.writing() as connection:
                        await connection.execute(text("ANALYZE"))
                changes = ChangedOperations(store)
                await changes.poll()
                asks[f"feed, {kind} [live={live:,}]"] = changes.poll
                asks[f"orphans, {kind} [live={live:,}]"] = store.orphans
        found: dict[str, list[float]] = {name: [] for name in asks}
        for _ in range(max(rounds, 25)):
            for name, ask in asks.items():
                started = perf_counter_ns()
                await ask()
                found[name].append(perf_counter_ns() - started)
    samples = Samples(found)
    rows = []
    for kind in ("SQLite", "PostgreSQL"):
        for what in ("feed", "orphans"):
            none = f"{what}, {kind} [live=0]"
            rows += [samples.row(none), samples.row(f"{what}, {kind} [live={LIVE:,}]", none, at_most=FLAT)]
    return rows


async def fill(store: SqlStore, live: int) -> None:
    """Store operations that run in this process, and have not changed for an hour."""
    long_ago = await store.now() - AN_HOUR
    counts = dict.fromkeys(("steps", "llm_calls", "tool_calls", "total_tokens", "events"), 0)
    row = {
        **counts,
        "agent_id": "agent",
        "tenant_id": "acme",
        "user_id": "",
        "status": "running",
        "version": 1,
        "write_id": "w",
        "format": 1,
        "state": b"{}" * 200,
        "owner": store.worker_id,
        "cost_usd": 0.0,
        "created_at": long_ago,
        "updated_at": long_ago,
    }
    for start in range(0, live, BATCH):
        async with store.writing() as connection:
            ids = range(start, min(start + BATCH, live))
            await connection.execute(insert(operations), [{**row, "operation_id": f"op{number}"} for number in ids])
