"""Changes of a stored guard that processes follow, and fenced changes while these judge calls of running operations.

Each process says which revision it has in force, and by which revision it has judged each call. A call counts as judged
by an older revision if its guard was still judging by it when the fenced change had returned.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Row
from benchmarks.postgresql import PostgreSQL
from hookline.bus import NatsBus
from hookline.registry import Registry
from hookline.store import SqlStore
from tests.nats_servers import NatsServer

MOST_PROCESSES = 20
CHANGES, CALLS = 4, 400
"""Changes that each process must see, and calls of all of them, for each round: 100 and 10,000 in 25 rounds."""
PATIENCE = 60.0
"""Seconds within which a process must see a change."""
GUARD = {"id": "guard", "name": "guard", "point": "ToolCall.guard", "handler": "tests.registry.factories:counting"}


class Judged(NamedTuple):
    """By which revision a call was judged, and when that was over, in unix seconds."""

    revision: int
    at: float


class Member:
    """A process, and what it has said."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.seen: dict[int, float] = {}
        self.judged: list[Judged] = []
        self.ready = asyncio.Event()

    async def listen(self) -> None:
        """Take what the process says."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            what, *more = line.decode().split()
            match what:
                case "ready":
                    self.ready.set()
                case "seen":
                    self.seen[int(more[0])] = float(more[1])
                case "judged":
                    self.judged.append(Judged(int(more[0]), float(more[1])))

    async def say(self) -> None:
        """Let the process go on to what it does next."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()


async def bench(rounds: int) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, PostgreSQL() as server, NatsServer(Path(folder) / "nats") as nats:
        for name, bus in {"postgresql": "", "nats": nats.url}.items():
            rows += await measure(await server.new_database(f"fence_{name}"), bus, name, rounds)
    return rows


async def measure(url: str, bus_url: str, name: str, rounds: int) -> list[Row]:
    """Make changes with and without a fence, and compare what processes say with when these returned."""
    processes = min(MOST_PROCESSES, max(3, rounds))
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(NatsBus(bus_url)) if bus_url else None
        store = await stack.enter_async_context(SqlStore(url, wakeups=bus))
        modules = ["tests.registry.factories"]
        registry = await stack.enter_async_context(Registry(store, modules=modules, fence_timeout=120.0))
        await registry.create({**GUARD, "config": {"most": 1_000_000}})
        members = [await start(stack, url, bus_url) for _ in range(processes)]
        await asyncio.gather(*[each.ready.wait() for each in members])
        took = await follow(registry, members, CHANGES * rounds)
        for member in members:
            await member.say()
        fences = await fence(registry, members, CALLS * rounds)
        for member in members:
            await member.say()
        await asyncio.gather(*[each.process.wait() for each in members])
    judged = [each for member in members for each in member.judged]
    late = sum(each.at > fence.returned_at and each.revision < fence.revision for each in judged for fence in fences)
    where = f"[{name}, {processes} processes]"
    expected = processes * CHANGES * rounds
    return [
        Row(case=f"changes not seen, of {expected:,} {where}", value=expected - len(took), unit="changes", at_most=0),
        Row(case=f"seen after, median {where}", value=statistics.median(took) * 1e9),
        Row(case=f"seen after, 99th percentile {where}", value=sorted(took)[len(took) * 99 // 100] * 1e9),
        Row(
            case=f"calls judged by an older revision after {len(fences)} fences, of {len(judged):,} {where}",
            value=late,
            unit="calls",
            at_most=0,
        ),
        Row(case=f"calls judged {where}", value=len(judged), unit="calls", at_least=CALLS * rounds),
        Row(case=f"a fenced change, median {where}", value=statistics.median(each.seconds for each in fences) * 1e9),
    ]


async def start(stack: AsyncExitStack, url: str, bus_url: str) -> Member:
    """Start a process that lives as long as the stack."""
    words = ("-m", "benchmarks.fence_process", url, bus_url or "-")
    member = Member(await asyncio.create_subprocess_exec(sys.executable, *words, stdin=PIPE, stdout=PIPE))

    async def end(listening: asyncio.Task[None]) -> None:
        if member.process.returncode is None:
            member.process.kill()
        await member.process.wait()
        await listening

    stack.push_async_callback(end, asyncio.create_task(member.listen()))
    return member


async def follow(registry: Registry, members: list[Member], changes: int) -> list[float]:
    """Make changes one after the other; gives the seconds after which each process has seen each that it has seen."""
    took: list[float] = []
    for number in range(changes):
        began = time.time()
        revision = (await registry.update("guard", {"priority": number % 7})).revision
        await wait_until(lambda revision=revision: all(revision in each.seen for each in members))
        took += [each.seen[revision] - began for each in members if revision in each.seen]
    return took


class Fence(NamedTuple):
    """A fenced change: its revision, when it returned, in unix seconds, and how long it took."""

    revision: int
    returned_at: float
    seconds: float


async def fence(registry: Registry, members: list[Member], calls: int) -> list[Fence]:
    """Make fenced changes until so many calls were judged."""
    fences: list[Fence] = []
    await wait_until(lambda: all(each.judged for each in members))
    while len(fences) < 5 or sum(len(each.judged) for each in members) < calls:
        began = time.time()
        revision = (await registry.update("guard", {"priority": len(fences) % 7}, fence=True)).revision
        returned_at = time.time()
        fences.append(Fence(revision, returned_at, returned_at - began))
        await wait_until(
            lambda revision=revision: any(each.revision >= revision for m in members for each in m.judged[-1:])
        )
    return fences


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, but not for ever."""
    ends = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < ends:
        await asyncio.sleep(0.001)
