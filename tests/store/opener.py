"""Opens a store once it is told to: `python -m tests.store.opener <url> <file for its stderr>`."""

from __future__ import annotations

import asyncio
import os
import sys

from hookline.store import SqlStore


async def main(url: str) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    async with SqlStore(url, retry_seconds=30) as store:
        print(store.worker_id, "with" if "alembic" in sys.modules else "without", "alembic", flush=True)


os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
asyncio.run(main(sys.argv[1]))
