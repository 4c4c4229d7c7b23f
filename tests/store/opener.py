"""A process of its own that opens a store once it is told to: `python -m tests.store.opener <url>`."""

from __future__ import annotations

import asyncio
import sys

from hookline.store import SqlStore


async def main(url: str) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    async with SqlStore(url, retry_seconds=30) as store:
        print(store.worker_id, "with" if "alembic" in sys.modules else "without", "alembic", flush=True)


asyncio.run(main(sys.argv[1]))
