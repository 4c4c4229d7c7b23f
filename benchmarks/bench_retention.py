"""Old operations deleted: a day of events at once on PostgreSQL, against batches; how long a writer waits meanwhile.

The same rows are pruned twice in each round: in a day that has a partition, which is dropped, and in one that has none,
so that PostgreSQL deletes its rows in batches, as SQLite does. Another store commits one event after another meanwhile.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter_ns

from sqlalchemy import Double, Integer, LargeBinary, bindparam, literal, text

from benchmarks.harness import Row, Samples
from benchmarks.postgresql import PostgreSQL
from hookline import BeforeStep
from hookline.events import encode
from hookline.runtime import JournalEntry, OperationState
from hookline.store import SqlStore
from hookline.store._partitions import DAY, KEPT, _make_partition, today

OPERATIONS, EACH = 1_000, 200
"""Operations of the day, and events of each: 200,000 events."""
OLD, RETENTION = 40, 30
"""Days since the operations ended, and days for which they are kept."""
ROUNDS = 5
DROP_GOAL, WAIT_GOAL, BATCHES_GOAL = 0.5, 5.0, 10.0

WIRE = encode(BeforeStep(operation_id="op", step_index=1, time_unix_nano=1)).ljust(400)
FILL = (
    f"""
INSERT INTO operations (operation_id, agent_id, tenant_id, user_id, status, version, write_id, format, state, steps,
    llm_calls, tool_calls, total_tokens, cost_usd, events, created_at, updated_at, day)
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {OPERATIONS})
SELECT 'old' || n, 'agent', '', '', 'done', 1, 'w', 1, :wire, 0, 0, 0, 0, 0, {EACH}, :ago, :ago, :day FROM number""",
    f"""
INSERT INTO events (operation_id, number, tenant_id, type, time_unix_nano, wire, day)
WITH RECURSIVE number(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n < {OPERATIONS * EACH} - 1)
SELECT 'old' || (n / {EACH} + 1), n % {EACH} + 1, '', 'beforeStep', 1, :wire, :day FROM number""",
)


class Writer:
    """Commits one event after another, and notes how long each commit takes."""

    def __init__(self, store: SqlStore, name: str) -> None:
        self._store, self._name = store, name
        self.waits: list[float] = []

    async def run(self) -> None:
        version = 0
        while True:
            version += 1
            state = OperationState(operation_id=self._name, agent_id="agent", version=version, events=version)
            event = BeforeStep(operation_id=self._name, step_index=version, time_unix_nano=version)
            entry = JournalEntry(number=version, type=event.hook_type, time_unix_nano=version, wire=encode(event))
            started = perf_counter_ns()
            await self._store.commit(state, expected_version=version - 1 or None, entries=[entry])
            self.waits.append(perf_counter_ns() - started)


async def bench(rounds: int) -> list[Row]:
    found: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(PostgreSQL())
        urls = {"PostgreSQL": await server.new_database("retention"), "SQLite": f"sqlite:///{folder / 'store.db'}"}
        for kind, url in urls.items():
            store, writing = [await stack.enter_async_context(SqlStore(url)) for _ in range(2)]
            for nth in range(min(rounds, ROUNDS)):
                for way in ("dropped", "in batches") if kind == "PostgreSQL" else ("in batches",):
                    taken, longest, quiet = await prune(store, writing, f"{kind} {way} {nth}", drop=way == "dropped")
                    case = f"[{kind}, {way}]"
                    for name, value in (("pruned", taken), ("longest commit", longest), ("longest alone", quiet)):
                        found.setdefault(f"{name} {case}", []).append(value)
    samples = Samples(found)
    return [
        samples.row("pruned [PostgreSQL, in batches]"),
        samples.row("pruned [PostgreSQL, dropped]", "pruned [PostgreSQL, in batches]", at_most=DROP_GOAL),
        samples.row("pruned [SQLite, in batches]"),
        *(row for case, goal in GOALS.items() for row in waits(samples, case, goal)),
    ]


GOALS = {
    "[PostgreSQL, dropped]": WAIT_GOAL,
    "[PostgreSQL, in batches]": None,
    "[SQLite, in batches]": BATCHES_GOAL,
}
"""How many times as long as without pruning a commit may take."""


def waits(samples: Samples, case: str, goal: float | None) -> list[Row]:
    """The longest commit while nothing was pruned, and while rows were."""
    alone = f"longest alone {case}"
    return [samples.row(alone), samples.row(f"longest commit {case}", alone, at_most=goal)]


async def prune(store: SqlStore, writing: SqlStore, name: str, *, drop: bool) -> tuple[float, float, float]:
    """Store a day of operations and prune it while another store writes.

    Returns:
        Nanoseconds of the pruning, of the longest commit meanwhile, and of the longest commit in as long a time before.
    """
    day = today(store.dialect) - OLD if store.dialect == "postgresql" else KEPT
    if drop:
        await _make_partition(store._database, "events", day)
    ago = await store.now() - OLD * DAY
    values = {"wire": literal(WIRE, LargeBinary), "ago": literal(ago, Double), "day": literal(day, Integer)}
    async with store.writing() as connection:
        for statement in FILL:
            used = [bindparam(key, it.value, it.type) for key, it in values.items() if f":{key}" in statement]
            await connection.execute(text(statement).bindparams(*used))
    if store.dialect == "postgresql":
        async with store.writing() as connection:
            await connection.execute(text("ANALYZE operations, events"))
    async with written(Writer(writing, f"{name} while pruning")) as during:
        started = perf_counter_ns()
        count = await store.prune(RETENTION * DAY)
        taken = perf_counter_ns() - started
        assert count == OPERATIONS, count
        longest = max(during.waits)
    async with written(Writer(writing, f"{name} alone")) as alone:
        await asyncio.sleep(taken / 1e9)
        return taken, longest, max(alone.waits)


@asynccontextmanager
async def written(writer: Writer) -> AsyncIterator[Writer]:
    """Let a writer write."""
    task = asyncio.create_task(writer.run())
    await asyncio.sleep(0.05)  # its first commits make its connections
    writer.waits.clear()
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
