"""Events that a relay tells over NATS while consumers or the server are killed, and what remote hooks add to a run.

A real NATS server, two consumers as processes of their own, and a store in an SQLite file. Consumers and the server are
killed with SIGKILL; each kill has events of its own. An event is before its turn if an earlier one of its operation was
not heard yet.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic, perf_counter

from benchmarks.harness import Row
from benchmarks.relay_process import ACK_SECONDS, NAME, PARTITIONS
from hookline import Agent, BeforeStep, HookDispatcher, ScriptedModel, ToolCall, ToolRequest, exec_agent, tool
from hookline.bus import NatsBus, remote
from hookline.events import encode
from hookline.hooks import HookType
from hookline.relay import Relay, relay_status
from hookline.runtime import JournalEntry, OperationState, RemoteHearer
from hookline.store import SqlStore
from tests.nats_servers import NatsServer

KILLS, EVENTS, RUNS, FULL = 10, 10_000, 200, 25
"""Kills of each kind, events of each kill and runs, in the full size of 25 rounds."""
OPERATIONS, EVENTS_OF_A_COMMIT = 25, 4
EVENTS_OF_A_RUN = 3
"""Events of a run that the consumer notes: two steps and the end."""
RUN_GOAL = 6.0
AWAY_SECONDS = 0.5
"""Seconds for which the killed server is away."""
PATIENCE = 120.0


async def bench(rounds: int) -> list[Row]:
    kills, events = max(1, KILLS * rounds // FULL), max(400, EVENTS * min(rounds, FULL) // FULL)
    with tempfile.TemporaryDirectory() as name:
        rows = await kill_under_load(Path(name) / "consumer", "consumer", kills=kills, events=events)
        rows += await kill_under_load(Path(name) / "server", "NATS server", kills=kills, events=events)
        return rows + await time_runs(Path(name) / "runs", max(20, RUNS * min(rounds, FULL) // FULL))


class Ledger:
    """The file in which consumers note what they hear."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.touch()
        self._heard: list[tuple[str, int]] = []
        self._different: set[tuple[str, int]] = set()
        self._offset = 0

    def read(self) -> list[tuple[str, int]]:
        """Return the operation and number of each event, in the order in which they were heard."""
        with self.file.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._offset += len(new)
        parts = [line.rpartition(":") for line in new.decode().split()]
        self._heard += [(operation_id, int(number)) for operation_id, _, number in parts]
        self._different.update(self._heard[len(self._heard) - len(parts) :])
        return self._heard

    def count(self) -> int:
        """Return how many different events were heard."""
        self.read()
        return len(self._different)

    async def wait_for(self, count: int) -> None:
        """Wait until so many different events were heard, or nothing was heard for too long."""
        seen, last = -1, monotonic()
        while (found := self.count()) < count and monotonic() - last < PATIENCE:
            if found != seen:
                seen, last = found, monotonic()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def consumer(url: str, ledger: Ledger) -> AsyncIterator[Process]:
    """A process that serves."""
    arguments = [sys.executable, "-m", "benchmarks.relay_process", url, "bench", str(ledger.file)]
    process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE)
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def kill_under_load(folder: Path, what: str, *, kills: int, events: int) -> list[Row]:
    """Store events, and kill consumers or the server while they are told."""
    folder.mkdir()
    server, ledger = NatsServer(folder / "nats"), Ledger(folder / "ledger")
    server.start()
    began, reconnects = monotonic(), 0
    expected: set[tuple[str, int]] = set()
    try:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            bus = await enter(NatsBus(server.url, prefix="bench", partitions=PARTITIONS, ack_seconds=ACK_SECONDS))
            store = await enter(SqlStore(f"sqlite:///{folder}/bench.db", durability="process", wakeups=bus))
            await enter(Relay(store, bus))
            consumers = [await enter(consumer(server.url, ledger)) for _ in range(2)]
            for nth in range(kills):
                already = len(expected)
                writing = asyncio.create_task(store_events(store, f"kill-{nth}", events, expected))
                await ledger.wait_for(already + events // 3)
                if what == "consumer":
                    consumers.pop(0).kill()
                    consumers.append(await enter(consumer(server.url, ledger)))
                else:
                    server.kill()
                    await asyncio.sleep(AWAY_SECONDS)
                    await asyncio.to_thread(server.start)
                await writing
                await ledger.wait_for(already + events)
            reconnects = bus.reconnects
    finally:
        server.kill()
    return rows_of(what, kills, expected, ledger.read(), monotonic() - began, reconnects)


async def store_events(store: SqlStore, name: str, events: int, expected: set[tuple[str, int]]) -> None:
    """Store the events of some operations, in commits of a few events each."""
    await asyncio.gather(
        *(
            store_operation(store, f"{name}-{nth}", events // OPERATIONS // EVENTS_OF_A_COMMIT, expected)
            for nth in range(OPERATIONS)
        )
    )


async def store_operation(store: SqlStore, operation_id: str, commits: int, expected: set[tuple[str, int]]) -> None:
    hearers = [RemoteHearer(name=NAME)]
    for nth in range(commits):
        first = nth * EVENTS_OF_A_COMMIT + 1
        numbers = range(first, first + EVENTS_OF_A_COMMIT)
        state = OperationState(
            operation_id=operation_id, agent_id="bench", hearers=hearers, events=numbers[-1], version=nth + 1
        )
        entries = [
            JournalEntry(
                number=number,
                type=HookType.BEFORE_STEP,
                time_unix_nano=number,
                wire=encode(BeforeStep(operation_id=operation_id, agent_id="bench", step_index=number)),
            )
            for number in numbers
        ]
        await store.commit(state, expected_version=nth or None, entries=entries)
        expected |= {(operation_id, number) for number in numbers}


def rows_of(
    what: str, kills: int, expected: set[tuple[str, int]], heard: list[tuple[str, int]], seconds: float, reconnects: int
) -> list[Row]:
    """Return what was lost, early, repeated and unknown, and how often the bus of the relay was away."""
    last: dict[str, int] = {}
    early = 0
    for operation_id, number in dict.fromkeys(heard):
        early += number != last.get(operation_id, 0) + 1
        last[operation_id] = number
    case = f"[{what} killed {kills} x, {len(expected):,} events]"
    repeats = len(heard) - len(set(heard))
    return [
        Row(case=f"lost {case}", value=len(expected - set(heard)), unit="events", at_most=0),
        Row(case=f"before their turn {case}", value=early, unit="events", at_most=0),
        Row(case=f"with an unknown id {case}", value=len(set(heard) - expected), unit="events", at_most=0),
        Row(case=f"repeated, with the id that they had {case}", value=repeats, unit="events"),
        Row(case=f"heard a second {case}", value=len(heard) / seconds, unit="events"),
        Row(case=f"times that the bus of the relay was away {case}", value=reconnects, unit="times"),
    ]


async def time_runs(folder: Path, runs: int) -> list[Row]:
    """Time runs with a remote decision and a remote observer, beside requests to the same process."""
    folder.mkdir()
    server, ledger = NatsServer(folder / "nats"), Ledger(folder / "ledger")
    server.start()

    @tool(in_thread=False)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    def agent() -> Agent:
        return Agent(id="bench", model=ScriptedModel([ToolRequest("pay", {"amount": 1}), "Done."]), tools=[pay])

    try:
        async with (
            NatsBus(server.url, prefix="bench", partitions=PARTITIONS) as bus,
            SqlStore("sqlite:///:memory:", wakeups=bus) as store,
            Relay(store, bus),
            consumer(server.url, ledger),
            HookDispatcher() as dispatcher,
        ):
            hooks = [remote(NAME, bus=bus, calls=(ToolCall,), observes=True, deadline=60.0)]

            async def request() -> None:
                await bus.ask("echo", b"?", deadline=60.0)

            async def plain() -> None:
                await exec_agent(agent(), "pay", store=store, dispatcher=dispatcher)

            async def observed() -> None:
                await exec_agent(agent(), "pay", store=store, dispatcher=dispatcher, hooks=hooks)

            ways: dict[str, Callable[[], Awaitable[None]]] = {"request": request, "plain": plain, "remote": observed}
            times: dict[str, list[float]] = {name: [] for name in ways}
            for nth in range(runs + 5):
                for name, way in ways.items():
                    began = perf_counter()
                    await way()
                    if nth >= 5:
                        times[name].append((perf_counter() - began) * 1e9)
                    while (await relay_status(store)).waiting:  # the next one is not to pay for what is left of this
                        await asyncio.sleep(0.005)
                    await ledger.wait_for(nth * EVENTS_OF_A_RUN if name != "remote" else (nth + 1) * EVENTS_OF_A_RUN)
    finally:
        server.kill()
    medians = {name: statistics.median(each) for name, each in times.items()}
    added = [one - two for one, two in zip(times["remote"], times["plain"], strict=True)]
    missing = (runs + 5) * EVENTS_OF_A_RUN - len(set(ledger.read()))
    case = f"[{runs} runs]"
    return [
        Row(
            case=f"a durable run with one remote decision and one remote observer {case}",
            value=medians["remote"],
            against="a NATS request",
            ratio=medians["remote"] / medians["request"],
            at_most=RUN_GOAL,
        ),
        Row(
            case=f"the same run without them {case}",
            value=medians["plain"],
            against="a NATS request",
            ratio=medians["plain"] / medians["request"],
        ),
        Row(
            case=f"what the two add {case}",
            value=statistics.median(added),
            against="a NATS request",
            ratio=statistics.median(added) / medians["request"],
        ),
        Row(case=f"a NATS request {case}", value=medians["request"]),
        Row(case=f"events of these runs that were not heard {case}", value=missing, unit="events", at_most=0),
    ]
