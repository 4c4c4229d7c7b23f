"""Workers that are killed at any moment lose nothing, and what comes twice has the same id."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Self

import pytest

from hookline.delivery import KeyRing, Outbox, generate_key
from hookline.store import DeliveryLog, SqlStore
from tests.delivery.receivers import Receiver, status
from tests.delivery.test_outbox import in_order, told
from tests.programs import Program, run_program

pytestmark = pytest.mark.anyio

SECRET = generate_key()
WORKERS = 3


class Workers:
    """Processes that work on an outbox, the oldest first; `async with` kills them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._programs: list[Program] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        program = run_program("tests.delivery.outbox_worker", self._url, SECRET)
        self._programs.append(await self._stack.enter_async_context(program))

    async def kill_one(self) -> None:
        """Kill the oldest, and wait until it is gone."""
        program = self._programs.pop(0)
        program.kill()
        await program.wait()


@pytest.mark.parametrize(("deliveries", "kills"), [(150, 2), pytest.param(1000, 5, marks=pytest.mark.soak)])
async def test_killed_workers_lose_nothing_and_repeat_with_the_same_id_and_in_order(
    database_url: str, deliveries: int, kills: int
) -> None:
    chance = random.Random(7)
    async with SqlStore(database_url) as store, Receiver([SECRET]) as steady, Receiver([SECRET]) as moody:
        moody.says(*(status(503 if chance.random() < 0.2 else 200) for _ in range(500)), status(200))
        envelopes = [
            told(f"op{nth % 40}", nth // 80 + 1, (steady, moody)[nth // 40 % 2].url) for nth in range(deliveries)
        ]
        async with Workers(database_url) as workers:
            box = Outbox(store, keys=KeyRing({"": [SECRET]}))
            try:
                for _ in range(WORKERS):
                    await workers.start()
                for nth in range(kills):
                    part = deliveries // kills
                    await box.publish(envelopes[nth * part : (nth + 1) * part])
                    arrived = len(steady.requests)
                    await steady.received(min(arrived + chance.randrange(1, part // 3), deliveries // 2), within=60)
                    await workers.kill_one()
                    await workers.start()
                async with asyncio.timeout(90):
                    while (await DeliveryLog(store).counts())["delivered"] < deliveries:
                        await asyncio.sleep(0.05)
            finally:
                await box.aclose()

        assert {*steady.ids, *moody.ids} == {each.id for each in envelopes}
        assert steady.unsigned == moody.unsigned == []
        bodies = {(request.id, request.body) for request in (*steady.requests, *moody.requests)}
        assert len(bodies) == deliveries
        assert in_order(steady.payloads)
        assert in_order(moody.payloads)
        print(len(steady.ids) + len(moody.ids) - deliveries, "repeats")
