"""A process that has imported everything, and forks a worker in milliseconds whenever it is told to.

Each line on stdin is an order, as JSON; each line on stdout tells of a worker that was forked, in the order of orders,
or has ended. When stdin ends, so does it, and its workers with it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import select
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import event

from benchmarks.soak import trips
from hookline import exec_agent
from hookline.delivery import KeyRing, MasterKeys, Outbox
from hookline.errors import HooklineError, StoreUnavailableError
from hookline.store import Breaker, SqlStore, Worker

LEASE_SECONDS, RETRY_SECONDS = 2.0, 3.0
SCHEDULE = (0.0, *[0.2] * 5, *[1.0] * 1000)
"""Nothing is given up: a receiver that is away comes back."""
BREAKER = Breaker(failures=5, pause=0.5, longest_pause=2.0)
NO_STORE = 3
"""The exit status of a worker that could not open its store."""
LOOK_SECONDS = 0.02


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process is to do.

    Attributes:
        url: The store.
        effects: Where tools write.
        urls: The receivers.
        trips: Ids of operations to start; beyond that it goes on with those that others left.
        full: While a file of this name is there, the SQLite file may not grow.
        lock_seconds: Instead, for how long to hold the write lock of this SQLite file.
    """

    url: str
    effects: str = ""
    urls: list[str] = []
    trips: list[str] = []
    full: str = ""
    lock_seconds: float = 0.0


class Word(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the nursery tells.

    Attributes:
        pid: Of the process.
        status: How it ended: the exit status, or less than 0 for a signal; `None` if it has just been forked.
    """

    pid: int
    status: int | None = None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the soak, and that ends this
    gc.freeze()
    lifeline = os.pipe()
    children: set[int] = set()
    rest = b""
    try:
        while True:
            if select.select([0], [], [], LOOK_SECONDS)[0]:
                if not (read := os.read(0, 1 << 20)):
                    return
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    order = msgspec.json.decode(line, type=Order)
                    children.add(pid := fork(order, lifeline))
                    tell(Word(pid=pid))
            while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                children.discard(ended[0])
                tell(Word(pid=ended[0], status=os.waitstatus_to_exitcode(ended[1])))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def tell(word: Word) -> None:
    os.write(1, msgspec.json.encode(word) + b"\n")


def fork(order: Order, lifeline: tuple[int, int]) -> int:
    if (pid := os.fork()) != 0:
        return pid
    status = 1
    try:
        os.close(lifeline[1])
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        random.seed()
        status = obey(order, lifeline[0])
    except BaseException:
        logging.getLogger("soak").exception("A worker failed")
    finally:
        os._exit(status)


def obey(order: Order, lifeline: int) -> int:
    if order.lock_seconds:
        return lock(order)
    try:
        asyncio.run(work(order, lifeline))
    except StoreUnavailableError as error:
        logging.getLogger("soak").warning("A worker could not open its store: %s", error)
        return NO_STORE
    return 0


def lock(order: Order) -> int:
    """Hold a lock, as a backup or a person with a shell may."""
    connection = sqlite3.connect(order.url.removeprefix("sqlite:///"), timeout=30, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(order.lock_seconds)
    connection.execute("ROLLBACK")
    return 0


async def work(order: Order, lifeline: int) -> None:
    """Start operations, go on with those of others, and deliver, until killed."""
    asyncio.get_running_loop().add_reader(lifeline, lambda: os._exit(0))
    agents = trips.agents_of(Path(order.effects))
    async with (
        SqlStore(order.url, lease_seconds=LEASE_SECONDS, retry_seconds=RETRY_SECONDS) as store,
        Outbox(
            store,
            keys=KeyRing(),
            master_key=MasterKeys([trips.MASTER_KEY]),
            allow_private=["127.0.0.0/8"],
            schedule=SCHEDULE,
            breaker=BREAKER,
            lease_seconds=2 * LEASE_SECONDS,
        ),
        Worker(store, agents, poll_seconds=0.2, concurrency=16),
    ):
        if order.full:
            limit_when_full(store, Path(order.full))
        waiting = list(order.trips)
        await asyncio.gather(*(start(store, agents[0], waiting, order.urls) for _ in range(4)))
        await asyncio.Event().wait()


def limit_when_full(store: SqlStore, flag: Path) -> None:
    """Have SQLite say that the disk is full while a file is there, where the soak has no disk that it may fill."""

    def begun(connection: Any) -> None:
        cursor = connection.connection.cursor()
        cursor.execute(f"PRAGMA max_page_count = {1 if flag.exists() else 0x7FFFFFFF}")
        cursor.close()

    event.listen(store._database._writer.sync_engine, "begin", begun)


async def start(store: SqlStore, agent: object, waiting: list[str], urls: list[str]) -> None:
    while waiting:
        trip = waiting.pop()
        try:
            if await store.load(trip) is None:
                await exec_agent(
                    agent,  # type: ignore[arg-type]
                    trip,
                    operation_id=trip,
                    store=store,
                    hooks=trips.hooks_of(trip, urls),
                    tenant_id=trips.TENANT,
                )
        except HooklineError as error:
            logging.getLogger("soak").warning("Trip %s: %s", trip, error)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    )
    main()
