"""A cluster on one machine, whose parts are killed at random: PostgreSQL, NATS, workers, deciders and servers.

It runs a load of operations with remote hooks, kills parts without a warning for some minutes, and prints the ledger:
what was lost, repeated, late and unanswered. It exits with 1 if there is anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic

from benchmarks.cluster.ledger import Ledger, write_ledger
from benchmarks.cluster.load import Load
from benchmarks.cluster.orders import HEARD, REVISION
from benchmarks.cluster.pieces import ROOT, Piece
from benchmarks.postgresql import PostgreSQL
from hookline.bus import NatsBus
from hookline.relay import relay_status
from hookline.store import SqlStore
from tests.nats_servers import NatsServer

WORKERS, DECIDERS, OBSERVERS, SERVERS = 3, 2, 2, 2
WINDING_DOWN = 120.0
"""Seconds within which all orders must end, and all events be heard, once nothing is killed any more."""
QUIET_SECONDS = 12.0
"""Seconds without an event after which all have been heard: longer than NATS waits for a killed observer."""
ORDERS = "benchmarks.cluster.orders"
CLI = ("-c", "from hookline.cli import main; main()")
MASTER_KEY = "Y2x1c3RlciBvbiBvbmUgbWFjaGluZSwgMzIgYnl0ZXM="


class Cluster:
    """The parts of the cluster.

    Args:
        folder: Where they write.
        postgres: The database server.
        nats: The NATS server.
        store_url: The store.
        random: Chooses what is killed, and when.
    """

    def __init__(
        self, folder: Path, postgres: PostgreSQL, nats: NatsServer, store_url: str, random: random.Random
    ) -> None:
        self.effects, self.heard = folder / "effects", folder / "heard"
        self.kills: list[str] = []
        self._postgres, self._nats, self._random = postgres, nats, random
        self._begun = monotonic()
        ports = [_free_port() for _ in range(SERVERS)]
        self.addresses = [f"http://127.0.0.1:{port}" for port in ports]
        worker = ("-m", "benchmarks.cluster.worker", store_url, nats.url, str(self.effects))
        serving = (*CLI, "hooks", "serve", "--bus", nats.url, "--bus-wait", "60")
        web = (*CLI, "serve", "--store", store_url, "--bus", nats.url)
        secrets = {"HOOKLINE_MASTER_KEY": MASTER_KEY, "HOOKLINE_SESSION_KEY": "s" * 32, HEARD: str(self.heard)}

        def piece(name: str, command: tuple[str, ...], ready: str) -> Piece:
            return Piece(name, command, ready=ready, log=folder / f"{name}.log", environment=secrets)

        self.workers = [piece(f"worker {nth + 1}", worker, "ready") for nth in range(WORKERS)]
        self.deciders = [
            piece(f"decider {nth + 1}", (*serving, f"{ORDERS}:policy", "--revision", REVISION), "hookline serves")
            for nth in range(DECIDERS)
        ]
        self.observers = [
            piece(f"observer {nth + 1}", (*serving, f"{ORDERS}:audit"), "hookline serves") for nth in range(OBSERVERS)
        ]
        self.servers = [
            piece(f"server {nth + 1}", (*web, "--port", str(port)), "hookline listens")
            for nth, port in enumerate(ports)
        ]

    async def __aenter__(self) -> Cluster:
        try:
            await self.servers[0].start()  # makes the tables
            await asyncio.gather(*(each.start() for each in self._pieces if each is not self.servers[0]))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(each.stop() for each in self._pieces))

    @property
    def _pieces(self) -> list[Piece]:
        return [*self.servers, *self.deciders, *self.observers, *self.workers]

    async def kill_at_random(self, seconds: float) -> None:
        """Kill a part every few seconds, and start it again; two parts may be away at once."""
        ends = monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            while monotonic() < ends:
                await asyncio.sleep(self._random.uniform(1.0, 4.0))
                tasks.create_task(self._choose_kill()())

    def _choose_kill(self) -> Callable[[], Awaitable[None]]:
        kinds = self._random.choices(
            (self.workers, self.deciders, self.observers, self.servers, None), weights=(5, 4, 3, 2, 2)
        )
        if (kind := kinds[0]) is None:
            return self._random.choice((self._kill_nats, self._kill_postgres))
        ready = [each for each in kind if each.is_ready]
        if len(ready) < 2:  # the last one of a kind is left alone: without a decider, all calls are denied at once
            return _do_nothing
        chosen = self._random.choice(ready)

        async def kill() -> None:
            self._note(chosen.name)
            await chosen.kill()
            await asyncio.sleep(self._random.uniform(0.0, 2.0))
            await chosen.start()

        return kill

    async def _kill_nats(self) -> None:
        self._note("NATS")
        await asyncio.to_thread(self._nats.kill)
        await asyncio.sleep(self._random.uniform(0.0, 1.0))
        await asyncio.to_thread(self._nats.start)

    async def _kill_postgres(self) -> None:
        self._note("PostgreSQL")
        await asyncio.to_thread(self._postgres.crash)
        await asyncio.to_thread(self._postgres.start)

    def _note(self, name: str) -> None:
        self.kills.append(name)
        print(f"{monotonic() - self._begun:6.1f} s  {name} is killed", flush=True)


async def _do_nothing() -> None:
    return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _make_key(store_url: str) -> str:
    command = [sys.executable, *CLI, "keys", "create", "cluster", "--scope", "operations:read"]
    command += ["--scope", "approvals:decide", "--store", store_url, "--json"]
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    key: str = json.loads(made.stdout)["key"]
    return key


async def run_cluster(folder: Path, seconds: float, each_second: float, seed: int) -> tuple[Ledger, list[str]]:
    """Run the cluster, and return its ledger and what was killed.

    Args:
        folder: Where the parts write.
        seconds: How long parts are killed, and orders placed.
        each_second: How many orders are placed in a second.
        seed: Of the random choices.
    """
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(PostgreSQL())
        nats = stack.enter_context(NatsServer(folder / "nats"))
        store_url = await postgres.new_database("cluster")
        cluster = await stack.enter_async_context(Cluster(folder, postgres, nats, store_url, random.Random(seed)))
        key = await asyncio.to_thread(_make_key, store_url)
        bus = await stack.enter_async_context(NatsBus(nats.url))
        store = await stack.enter_async_context(SqlStore(store_url, wakeups=bus))
        load = Load(store, cluster.addresses, key)
        killing = asyncio.create_task(cluster.kill_at_random(seconds))
        try:
            async with asyncio.timeout(seconds + WINDING_DOWN):
                await load.place_orders(each_second, seconds)
        except TimeoutError:
            print(f"{len(load.placed) - len(load.ended)} orders have not ended in time")
        await killing
        if not await wait_until_relayed(store, cluster.heard):
            print(f"not all events were heard within {WINDING_DOWN:g} s")
        return await write_ledger(store, load.placed, cluster.effects, cluster.heard), cluster.kills


async def wait_until_relayed(store: SqlStore, heard: Path) -> bool:
    """Wait until no commit waits for the relay, and nothing more is heard; return whether that was in time."""
    ends, size = monotonic() + WINDING_DOWN, -1
    while monotonic() < ends:
        now = heard.stat().st_size if heard.exists() else 0
        if now == size and not (await relay_status(store)).waiting:
            return True
        size = now
        await asyncio.sleep(QUIET_SECONDS)
    return False


def print_ledger(ledger: Ledger, kills: list[str]) -> None:
    """Print what was counted, and an example of each problem."""
    print(f"\n{len(kills)} kills: " + ", ".join(f"{kills.count(each)} x {each}" for each in sorted(set(kills))))
    for name, figure in ledger.figures.items():
        print(f"{figure:>8}  {name}")
    print()
    for name in ("lost", "repeated", "late", "unanswered", "wrong"):
        problems: list[str] = getattr(ledger, name)
        print(f"{len(problems):>8}  {name}" + (f": {problems[0]}" if problems else ""))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long parts are killed (default: 3)")
    parser.add_argument("--orders", type=float, default=4.0, help="operations that begin in a second (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed, and when (default: 0)")
    options = parser.parse_args()
    logging.getLogger("hookline").addHandler(logging.NullHandler())
    folder = Path(tempfile.mkdtemp(prefix="hookline-cluster-"))
    ledger, kills = asyncio.run(run_cluster(folder, options.minutes * 60, options.orders, options.seed))
    print_ledger(ledger, kills)
    if not ledger.is_clean:
        print(f"\nFAIL; what the parts have written is in {folder}")
        return 1
    shutil.rmtree(folder)
    print("\nOK: nothing is lost, repeated, late or unanswered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
