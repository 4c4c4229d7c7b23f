"""The load of the cluster: orders that are placed at a steady rate, and the person who confirms some of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks.cluster.orders import make_agent
from hookline import exec_agent
from hookline.engines import StoreEngine
from hookline.errors import HooklineError
from hookline.store import SqlStore

__all__ = ["Load"]

AGAIN_SECONDS = 0.2


class Load:
    """Places orders, and confirms those that wait for a person.

    Args:
        store: The store of the operations.
        servers: The addresses of the servers; a person whose server is away asks another one.
        key: An API key that may decide.

    Attributes:
        placed: The ids of the operations.
        ended: Those that have ended.
        confirmed: How many a person has confirmed.
    """

    def __init__(self, store: SqlStore, servers: Sequence[str], key: str) -> None:
        self.placed: list[str] = []
        self.ended: set[str] = set()
        self.confirmed = 0
        self._store, self._servers = store, servers
        self._agent = make_agent(Path())
        self._client = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=5)

    async def place_orders(self, each_second: float, seconds: float) -> None:
        """Place orders for a time, and return when all have ended."""
        pause = 1 / each_second
        async with self._client, asyncio.TaskGroup() as tasks:
            for number in range(round(seconds * each_second)):
                self.placed.append(f"order-{number}")
                tasks.create_task(self._follow(f"order-{number}"))
                await asyncio.sleep(pause)

    async def _follow(self, order: str) -> None:
        while order not in self.ended:
            try:
                await self._go_on(order)
            except HooklineError:  # the database is away
                await asyncio.sleep(AGAIN_SECONDS)

    async def _go_on(self, order: str) -> None:
        stored = await self._store.operation(order)
        if stored is None:
            engine = StoreEngine(self._store)
            await exec_agent(self._agent, order, operation_id=order, store=self._store, engine=engine)
        elif stored.status == "running":
            await self._store.wait_until_stopped(order)
        elif stored.status != "waiting_for_human":
            self.ended.add(order)
        elif await self._confirm(order):
            while (stored := await self._store.operation(order)) is None or stored.status == "waiting_for_human":
                await asyncio.sleep(AGAIN_SECONDS)

    async def _confirm(self, order: str) -> bool:
        """Confirm an order as a person does, at one of the servers; return whether it was taken."""
        try:
            answer = await self._client.post(
                f"{random.choice(self._servers)}/v1/operations/{order}/decisions",
                json={"toolCallId": "confirm", "decision": "approve"},
            )
        except httpx.HTTPError:
            answer = None
        if answer is not None and answer.is_success:
            self.confirmed += 1
        elif answer is None or answer.status_code != httpx.codes.CONFLICT:  # a conflict: the answer before was lost
            await asyncio.sleep(AGAIN_SECONDS)
            return False
        return True
