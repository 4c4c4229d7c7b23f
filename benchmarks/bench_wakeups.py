"""Changes noticed by another process, with wake-ups and with polling; what wake-ups cost, and idle processes.

PostgreSQL alone, a real server of the benchmark's own, and real processes. Each ratio is taken in one run: woken and
polling processes take turns, on databases of their own.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
from sqlalchemy import text

from benchmarks.harness import Row
from benchmarks.postgresql import PostgreSQL
from benchmarks.wakeups_process import RECEIVER, WRITERS, build_payer, wakeups_of, write_until
from hookline import Approve, exec_agent
from hookline.events import HookType
from hookline.registry import Registry
from hookline.store import SqlStore, build_delivery_rows, insert_deliveries
from hookline.webhooks import Envelope, HookData, Webhook

WAYS = ("polling", "wakeups")
DELIVERY_GOAL, DEFINITION_GOAL, DECISION_GOAL = 0.15, 0.3, 0.55
COMMITS_GOAL, IDLE_GOAL, KILLS = 0.85, 0.5, 100
PROCESSES, SECONDS, PAIRS, FILLED = 4, 0.5, 48, 1_000
IDLE_SECONDS, SETTLING_SECONDS = 60.0, 15.0
"""Seconds that an idle process is watched, and those before: PostgreSQL counts a transaction up to ten seconds late."""
NOTICED_SECONDS = 9.0
"""Seconds within which a delivery counts as noticed after a kill: the slow net does not look before ten."""
LISTENERS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND (query ~* '^LISTEN "?hookline"?' OR query ~ 'NOTIFY hookline')
AND pid <> pg_backend_pid()
"""


async def bench(rounds: int) -> list[Row]:
    with PostgreSQL() as server:
        rows = [
            *await noticed(server, "delivery", "outbox", publish, rounds=rounds, goal=DELIVERY_GOAL),
            *await noticed(server, "definition", "registry", define, rounds=rounds, goal=DEFINITION_GOAL),
            *await noticed(server, "decision to done", "worker", decide, rounds=rounds, goal=DECISION_GOAL),
        ]
        rows += await commits(server)
        rows += await idle(server)
        rows += await killed(server)
    return rows


class Child:
    """Another process, and what it says."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def read(self, within: float = 60.0) -> list[str]:
        """Return the words of the next line."""
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), within)).decode().split()

    def write(self, *words: object) -> None:
        """Write a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    async def read_time(self, name: str, within: float = 60.0) -> float:
        """Return the time at which it noticed something."""
        async with asyncio.timeout(within):
            while (words := await self.read(within))[0] != name:
                pass
        return float(words[1])


@asynccontextmanager
async def child(*words: str) -> AsyncIterator[Child]:
    command = sys.executable, "-m", "benchmarks.wakeups_process", *words
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        other = Child(process)
        assert await other.read() == ["ready"]
        yield other
    finally:
        process.kill()
        await process.communicate()


class Side:
    """A store of this process, and another process that waits for its changes."""

    def __init__(self, store: SqlStore, other: Child) -> None:
        self.store, self.other = store, other
        self.count = 0
        self.registry: Registry | None = None


Change = Callable[[Side], Awaitable[tuple[str, float]]]
"""Changes something; returns what the other process calls it, and when it was changed."""


async def publish(side: Side) -> tuple[str, float]:
    side.count += 1
    name = f"msg_{side.count}"
    hook = HookData(id="bench", type=HookType.ON_COMPLETE, webhook=Webhook(url=f"local://{RECEIVER}"))
    rows = build_delivery_rows([Envelope(id=name, hook=hook, operation_id=name, payload=b"{}")])
    async with side.store.writing() as connection:
        await insert_deliveries(connection, rows, now=side.store.now_sql())
    changed = time.time()
    side.store.wakeups.wake("deliveries")
    return name, changed


async def define(side: Side) -> tuple[str, float]:
    side.count += 1
    assert side.registry is not None
    changed = time.time()
    await side.registry.create({"name": f"log{side.count}", "point": "afterStep", "handler": "log"})
    return str(side.count), changed


async def decide(side: Side) -> tuple[str, float]:
    side.count += 1
    name = f"op{side.count}"
    await exec_agent(build_payer(), "Pay", operation_id=name, store=side.store)
    await asyncio.sleep(random.uniform(0.3, 1.3))
    changed = time.time()
    await side.store.decide(name, Approve("t0"))
    return name, changed


async def noticed(server: PostgreSQL, what: str, part: str, change: Change, *, rounds: int, goal: float) -> list[Row]:
    """Measure the time from a change in this process until another one has noticed it."""
    took: dict[str, list[float]] = {how: [] for how in WAYS}
    async with AsyncExitStack() as stack:
        sides: dict[str, Side] = {}
        for how in WAYS:
            url = await server.new_database(f"{part}_{how}")
            store = await stack.enter_async_context(SqlStore(url, wakeups=wakeups_of(how)))
            sides[how] = Side(store, await stack.enter_async_context(child("watch", url, how, part)))
            if part == "registry":
                sides[how].registry = await stack.enter_async_context(Registry(store))
        for nth in range(max(rounds, 25) + 1):
            for how, side in sides.items():
                # Idle before, and at any moment between two looks of the one that polls.
                await asyncio.sleep(random.uniform(0.3, 1.3))
                name, changed = await change(side)
                seconds = await side.other.read_time(name) - changed
                if nth:
                    took[how].append(seconds * 1000)
    rows = []
    for rank, percent in ((0.5, "p50"), (0.99, "p99")):
        ranked = {how: sorted(each)[min(int(len(each) * rank), len(each) - 1)] for how, each in took.items()}
        polled, woken = f"{what}, polling [{percent}]", f"{what}, woken [{percent}]"
        rows.append(Row(case=polled, value=round(ranked["polling"], 1), unit="ms"))
        ratio = ranked["wakeups"] / ranked["polling"]
        rows.append(
            Row(
                case=woken,
                value=round(ranked["wakeups"], 1),
                unit="ms",
                against=polled,
                ratio=ratio,
                at_most=goal if percent == "p50" else None,
            )
        )
    return rows


async def commits(server: PostgreSQL) -> list[Row]:
    """Count commits of writers in several processes, with wake-ups and without, by turns."""
    url = await server.new_database("commits")
    rates: dict[str, list[float]] = {how: [] for how in WAYS}
    async with SqlStore(url) as store:
        # For empty tables PostgreSQL chooses plans that read them whole, and keeps these plans: the side that began
        # first would be the slower one.
        ends = time.monotonic() + 2 * SECONDS
        await asyncio.gather(*(write_until(store, f"before-{nth}", ends) for nth in range(FILLED)))
        async with store.writing() as connection:
            await connection.execute(text("ANALYZE"))
    async with AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(child("write", url)) for _ in range(PROCESSES)]
        await stack.enter_async_context(child("watch", url, "wakeups", "service"))
        for nth in range(PAIRS + 1):
            for how in WAYS if nth % 2 else reversed(WAYS):
                for writer in writers:
                    writer.write(how, SECONDS)
                count = sum([int((await writer.read())[0]) for writer in writers])
                if nth:
                    rates[how].append(count / SECONDS)
    writers_in_all = f"[writers={PROCESSES * WRITERS}, processes={PROCESSES}]"
    ratio = statistics.median(own / limit for own, limit in zip(rates["wakeups"], rates["polling"], strict=True))
    without, beside = f"commits/s without {writers_in_all}", f"commits/s with wake-ups {writers_in_all}"
    return [
        Row(case=without, value=round(statistics.median(rates["polling"])), unit="/s"),
        Row(
            case=beside,
            value=round(statistics.median(rates["wakeups"])),
            unit="/s",
            against=without,
            ratio=ratio,
            at_least=COMMITS_GOAL,
        ),
    ]


async def idle(server: PostgreSQL) -> list[Row]:
    """Count the transactions of an idle process with a store, a registry, an outbox and a worker."""
    rows = []
    async with AsyncExitStack() as stack:
        names = {how: f"idle_{how}" for how in (*WAYS, "nobody")}
        urls = {how: await server.new_database(name) for how, name in names.items()}
        for how in WAYS:
            await stack.enter_async_context(child("watch", urls[how], how, "service"))
        measurer = await asyncpg.connect(server.uri)  # in another database, so that it does not count itself
        stack.push_async_callback(measurer.close)
        # Its background workers count as transactions of the databases that they visit.
        await measurer.execute("ALTER SYSTEM SET autovacuum = off")
        await measurer.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(SETTLING_SECONDS)
        before = {how: await count_transactions(measurer, name) for how, name in names.items()}
        await asyncio.sleep(IDLE_SECONDS)
        after = {how: await count_transactions(measurer, name) for how, name in names.items()}
    background = after["nobody"] - before["nobody"]
    for how in WAYS:
        rate = (after[how] - before[how] - background) / IDLE_SECONDS
        case = f"transactions/s of an idle service process, {'polling' if how == 'polling' else 'woken'}"
        rows.append(Row(case=case, value=round(rate, 2), unit="/s", at_most=IDLE_GOAL if how == "wakeups" else None))
    return rows


async def count_transactions(measurer: asyncpg.Connection, database: str) -> int:
    query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1"
    return int(await measurer.fetchval(query, database))


async def killed(server: PostgreSQL) -> list[Row]:
    """Kill the connection of a listener again and again, and count the deliveries that are noticed all the same."""
    url = await server.new_database("killed")
    found, took = 0, []
    async with SqlStore(url) as store, child("watch", url, "wakeups", "outbox") as other:
        side = Side(store, other)
        killer = await asyncpg.connect(url)
        try:
            for _ in range(KILLS):
                async with asyncio.timeout(30):
                    while not (pids := [row["pid"] for row in await killer.fetch(LISTENERS)]):
                        await asyncio.sleep(0.005)
                for pid in pids:
                    await killer.execute(f"SELECT pg_terminate_backend({pid})")
                name, changed = await publish(side)
                try:
                    took.append((await other.read_time(name, NOTICED_SECONDS) - changed) * 1000)
                    found += 1
                except TimeoutError:
                    pass
        finally:
            await killer.close()
    return [
        Row(case=f"deliveries noticed, listener killed before each [of={KILLS}]", value=found, unit="", at_least=KILLS),
        Row(case="the same, time until noticed [p50]", value=round(statistics.median(took), 1), unit="ms"),
        Row(case="the same, time until noticed [longest]", value=round(max(took), 1), unit="ms"),
    ]
