"""Workers that are killed at any moment lose nothing, and what comes twice has the same id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hookline.delivery import KeyRing, Outbox, generate_key
from hookline.store import DeliveryLog, SqlStore
from tests.delivery.receivers import Receiver, status
from tests.delivery.test_outbox import in_order, told

pytestmark = pytest.mark.anyio

SECRET = generate_key()
WORKERS = 3


class Workers:
    """Processes that work on an outbox, the oldest first."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, str(Path(__file__).with_name("outbox_worker.py")), url, SECRET]
        self._starter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._pids: list[int] = []

    def start(self) -> None:
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        print(file=self._starter.stdin, flush=True)
        self._pids.append(int(self._starter.stdout.readline()))

    def kill_one(self) -> None:
        """Kill the oldest, and wait until it is gone."""
        pid = self._pids.pop(0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            while True:
                os.kill(pid, 0)
                time.sleep(0.001)

    def end(self) -> None:
        while self._pids:
            self.kill_one()
        self._starter.communicate()


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
        box = Outbox(store, keys=KeyRing({"": [SECRET]}))
        workers = Workers(database_url)
        try:
            for _ in range(WORKERS):
                workers.start()
            for nth in range(kills):
                part = deliveries // kills
                await box.publish(envelopes[nth * part : (nth + 1) * part])
                arrived = len(steady.requests)
                await steady.received(min(arrived + chance.randrange(1, part // 3), deliveries // 2), within=60)
                workers.kill_one()
                workers.start()
            async with asyncio.timeout(90):
                while (await DeliveryLog(store).counts())["delivered"] < deliveries:
                    await asyncio.sleep(0.05)
        finally:
            workers.end()
            await box.aclose()

        assert {*steady.ids, *moody.ids} == {each.id for each in envelopes}
        assert steady.unsigned == moody.unsigned == []
        bodies = {(request.id, request.body) for request in (*steady.requests, *moody.requests)}
        assert len(bodies) == deliveries
        assert in_order(steady.payloads)
        assert in_order(moody.payloads)
        print(len(steady.ids) + len(moody.ids) - deliveries, "repeats")
