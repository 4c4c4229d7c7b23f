"""A process of its own that writes to a store, for tests that kill it or let it race: `python -m tests.store.child <what> <url>`."""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from hookline.errors import StaleStateError
from hookline.store import SqlStore
from tests.store.records import entries, grow, hook, state


async def write(store: SqlStore) -> None:
    """Let many operations grow until the process is killed."""
    print("writing", flush=True)

    async def one(number: int) -> None:
        while True:
            await grow(store, f"{store.worker_id}-{number}", commits=1, each=3, hooks=[hook()])

    await asyncio.gather(*(one(number) for number in range(20)))


async def race(store: SqlStore) -> None:
    """Write the next version of an operation, again and again, on the version that was read before a signal came."""
    won = 0
    for _ in range(20):
        print("ready", flush=True)
        version = int(await asyncio.to_thread(sys.stdin.readline))
        try:
            await store.commit(
                state(version=version + 1, events=version + 1, last_content=store.worker_id),
                expected_version=version or None,
                entries=entries("op", version + 1, version + 1),
            )
            won += 1
            print("won", flush=True)
        except StaleStateError:
            print("lost", flush=True)
    print(won, flush=True)


async def main(what: str, url: str) -> None:
    async with SqlStore(url, lease_seconds=1, retry_seconds=30) as store:
        await (write if what == "write" else race)(store)


def hold(path: str) -> None:
    """Hold the write lock of an SQLite file until something is said."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    sys.stdin.readline()
    connection.execute("ROLLBACK")
    print("free", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(sys.argv[2])
    else:
        asyncio.run(main(*sys.argv[1:]))
