"""A worker of the cluster: `python -m benchmarks.cluster.worker STORE BUS EFFECTS`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from benchmarks.cluster.orders import audit, make_agent, policy
from hookline.bus import NatsBus, remote
from hookline.registry import ExecutionLog
from hookline.relay import Relay
from hookline.store import SqlStore, Worker

__all__ = ["DEADLINE", "LEASE_SECONDS"]

LEASE_SECONDS = 5.0
DEADLINE = 5.0
"""Seconds that a decision may take; a NATS server that was killed is back sooner."""


async def work(store_url: str, bus_url: str, effects: Path) -> None:
    """Run operations until this process is killed."""
    async with (
        NatsBus(bus_url, wait=60) as bus,
        SqlStore(store_url, wakeups=bus, lease_seconds=LEASE_SECONDS) as store,
        ExecutionLog(store),
        Relay(store, bus, lease_seconds=LEASE_SECONDS),
        Worker(
            store,
            [make_agent(effects)],
            hooks=[remote(policy.id, deadline=DEADLINE), remote(audit.id, observes=True)],
            concurrency=16,
        ),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    asyncio.run(work(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
