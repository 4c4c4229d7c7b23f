"""A process of its own that commits and wakes: `python -m tests.wakeups.children <url>` commits once for each line that it reads."""

from __future__ import annotations

import asyncio
import sys

from hookline.store import SqlStore
from tests.store.records import entries, hook, state


async def main(url: str) -> None:
    async with SqlStore(url) as store:
        print("ready", flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            told = entries(line, 1, 1)
            await store.commit(state(line, events=1, hooks=[hook()]), expected_version=None, entries=told)
            print("committed", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
