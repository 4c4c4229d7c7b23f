"""A process of its own that takes part in fenced changes: `python -m tests.registry.fence_member <url> <lease> <what>`."""

from __future__ import annotations

import asyncio
import sys
import time

from hookline.registry import Registry
from hookline.store import SqlStore
from tests.registry.scenes import FACTORIES


async def main(url: str, lease: float, what: str) -> None:
    async with SqlStore(url) as store, Registry(store, modules=[FACTORIES], lease_seconds=lease):
        print("ready", flush=True)
        if what == "stuck":
            time.sleep(3600)  # it neither confirms nor renews its lease, like a process that was stopped
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
