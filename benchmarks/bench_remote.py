"""Remote hooks over NATS: a decider is killed under 50 askers, nobody serves, and what one decision costs.

A real server of the benchmark's own, and real processes. Every limit is taken from empty NATS requests of the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import nats

from benchmarks.harness import Row
from hookline import Hooks, ToolCall, ToolResult
from hookline.bus import NatsBus, remote, serve
from hookline.interceptors import Chain
from tests.nats_servers import NatsServer

ASKERS, FULL, SMALL = 50, 5_000, 1_000
"""Askers at once, and their decisions altogether: from `FULL_ROUNDS` rounds on, and in fewer."""
FULL_ROUNDS = 25
DEADLINE = 2.0
LATER_MS, EMPTY_P99S = 50.0, 5.0
"""How much later than its deadline a decision may be: the larger of these, in ms and in p99 of empty requests."""
DENIED_MS, ROUND_TRIPS = 20.0, 20.0
"""How long a denial may take where nobody serves, in milliseconds and in round trips."""
REQUESTS, DENIALS = 500, 100
DECIDING = 0.005
"""Seconds for which a decider thinks, so that the one that is killed has questions under way."""


async def bench(rounds: int) -> list[Row]:
    with TemporaryDirectory(prefix="hookline-nats-") as folder, NatsServer(Path(folder)) as server:
        async with NatsBus(server.url) as bus:
            empty = await time_empty_requests(server.url)
            return [
                Row(case="an empty NATS request", value=statistics.median(empty) * 1e3, unit="ms"),
                *await kill_a_decider(server.url, bus, FULL if rounds >= FULL_ROUNDS else SMALL),
                *await ask_nobody(bus, server.url),
                *await ask_one(bus, server.url),
            ]


async def time_empty_requests(url: str, at_once: int = 1) -> list[float]:
    """Return the seconds of empty requests to another process."""
    took: list[float] = []
    async with decider(url, "echo"):
        client = await nats.connect(url)

        async def ask() -> None:
            for _ in range(REQUESTS):
                began = time.perf_counter()
                await client.request("bench.echo", b"", timeout=60)
                took.append(time.perf_counter() - began)

        try:
            await client.request("bench.echo", b"", timeout=60)
            await asyncio.gather(*(ask() for _ in range(at_once)))
        finally:
            await client.close()
    return took


async def judge(chain: Chain, nth: int, seconds: float = 0.0) -> tuple[str, float]:
    """Lead a call through a remote hook, and return how it ended, and the seconds that it took."""

    async def run(call: ToolCall) -> ToolResult:
        return ToolResult(content="ran")

    call = ToolCall(tool_name="pay", args={"seconds": seconds}, operation_id=f"op{nth}")
    began = time.perf_counter()
    outcome = await chain.run(call, run)
    took = time.perf_counter() - began
    if outcome.denied is None:
        return "ran", took
    return "answered" if outcome.denied.reason == "no" else "unanswered", took


async def kill_a_decider(url: str, bus: NatsBus, decisions: int) -> list[Row]:
    """Ask 50 at once, and kill one of two deciders when half of the decisions were made."""
    empty = sorted(await time_empty_requests(url, ASKERS))
    p99 = empty[int(len(empty) * 0.99)]
    made: list[tuple[str, float]] = []
    halfway = asyncio.Event()
    chain = Chain([remote("bench", bus=bus, deadline=DEADLINE)])

    async def ask(first: int) -> None:
        for nth in range(first, decisions, ASKERS):
            made.append(await judge(chain, nth, DECIDING))
            if len(made) == decisions // 2:
                halfway.set()

    async with decider(url, "serve") as killed, decider(url, "serve"):
        asking = asyncio.gather(*(ask(first) for first in range(ASKERS)))
        await halfway.wait()
        killed.kill()
        await asking
    took = sorted(seconds for _, seconds in made)
    unanswered = sum(outcome != "answered" for outcome, _ in made)
    spare = max(LATER_MS / 1e3, EMPTY_P99S * p99)
    late = sum(seconds > DEADLINE + spare for seconds in took)
    return [
        Row(case=f"unanswered of {len(made):,}, a decider killed", value=unanswered, unit="decisions", at_most=0),
        Row(case=f"later than the deadline + {spare * 1e3:.0f} ms", value=late, unit="decisions", at_most=0),
        Row(case="the slowest of them", value=took[-1] * 1e3, unit="ms"),
        Row(case=f"half of them, [askers={ASKERS}]", value=statistics.median(took) * 1e3, unit="ms"),
        Row(case=f"an empty NATS request, p99 [askers={ASKERS}]", value=p99 * 1e3, unit="ms"),
    ]


async def ask_nobody(bus: NatsBus, url: str) -> list[Row]:
    """Ask a name that no process serves: the call is denied at once."""
    empty = statistics.median(await time_empty_requests(url))
    chain = Chain([remote("nobody", bus=bus, deadline=60.0)])
    made = [await judge(chain, nth) for nth in range(DENIALS)]
    took = statistics.median(seconds for _, seconds in made)
    allowed = sum(outcome == "ran" for outcome, _ in made)
    return [
        Row(case="allowed where nobody serves", value=allowed, unit="decisions", at_most=0),
        Row(case="denied where nobody serves", value=took * 1e3, unit="ms", at_most=DENIED_MS),
        Row(
            case="denied where nobody serves",
            value=took * 1e9,
            against="an empty NATS request",
            ratio=took / empty,
            at_most=ROUND_TRIPS,
        ),
    ]


async def ask_one(bus: NatsBus, url: str) -> list[Row]:
    """Ask for one decision after the other."""
    chain = Chain([remote("bench", bus=bus, deadline=60.0)])
    async with decider(url, "serve"):
        empty = statistics.median(await time_empty_requests(url))
        made = [await judge(chain, nth) for nth in range(REQUESTS)]
    took = statistics.median(seconds for _, seconds in made)
    return [Row(case="a remote decision", value=took * 1e9, against="an empty NATS request", ratio=took / empty)]


@asynccontextmanager
async def decider(url: str, what: str) -> AsyncIterator[Process]:
    """A process that serves, once it says so."""
    command = sys.executable, "-m", "benchmarks.bench_remote", what, url
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run_decider(what: str, url: str) -> None:
    """Serve until killed."""
    from hookline import Deny

    async with AsyncExitStack() as stack:
        if what == "echo":
            client = await nats.connect(url)

            async def echo(message: nats.aio.msg.Msg) -> None:
                await message.respond(b"")

            await client.subscribe("bench.echo", cb=echo)
            await client.flush()
        else:
            hooks = Hooks("bench")

            @hooks.guard(ToolCall)
            async def refuse(call: ToolCall) -> Deny:
                await asyncio.sleep(float(call.args.get("seconds", 0)))
                return Deny("no")

            bus = await stack.enter_async_context(NatsBus(url))
            await stack.enter_async_context(serve(bus, hooks))
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_decider(sys.argv[1], sys.argv[2]))
