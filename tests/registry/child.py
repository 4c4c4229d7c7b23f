"""A process of its own with a registry: `python -m tests.registry.child watch|fill <url>`."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from hookline.registry import QuotaError, Registry
from hookline.store import SqlStore


async def watch(registry: Registry) -> None:
    """Say which hooks a run of a tenant would be given, whenever they change, and when that was seen."""
    seen: list[str] | None = None
    while True:
        now = [hook.id for hook in registry.hooks("acme")]  # type: ignore[union-attr]
        if now != seen:
            print(time.time(), *now, flush=True)
            seen = now
        await asyncio.sleep(0.005)


async def fill(registry: Registry) -> None:
    """Store as many definitions as the quota allows, once a signal comes."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    made = refused = 0
    for number in range(20):
        try:
            await registry.create(
                {"name": f"{os.getpid()}-{number}", "point": "afterStep", "handler": "log", "tenantId": "acme"}
            )
            made += 1
        except QuotaError:
            refused += 1
    print(made, refused, flush=True)


async def main(what: str, url: str) -> None:
    async with SqlStore(url, retry_seconds=30) as store, Registry(store, quota=20) as registry:
        await (watch if what == "watch" else fill)(registry)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
