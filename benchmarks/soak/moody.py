"""Receivers that take webhooks, fail, hang, are late, go away and come back; and a journal of what they took."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from tests.delivery.receivers import Received, Receiver, status

WELL, AWAY = "well", "away"
MOODS = (WELL, "failing", "busy", "hanging", "hanging up", "late", AWAY)


class Told(msgspec.Struct):
    """Whom a payload is about."""

    operation_id: str = msgspec.field(name="operationId")


@dataclass(kw_only=True)
class Taken:
    """What came under one id.

    Attributes:
        digests: Of the bodies: one, however often it came.
        requests: How often it came.
        answers: How often it was answered that it was taken.
    """

    digests: set[bytes] = field(default_factory=set)
    requests: int = 0
    answers: int = 0


class Journal:
    """What all receivers took.

    Attributes:
        taken: By id.
        order: The ids of each operation at each receiver, as they came first.
        unsigned: Requests without a valid signature.
        moods: How often each mood has begun.
    """

    def __init__(self) -> None:
        self.taken: dict[str, Taken] = {}
        self.order: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.unsigned = 0
        self.moods: defaultdict[str, int] = defaultdict(int)

    def came(self, request: Received, url: str) -> Taken:
        """A request comes."""
        taken = self.taken.get(request.id)
        if taken is None:
            taken = self.taken[request.id] = Taken()
            told = msgspec.json.decode(request.body, type=Told)
            self.order[told.operation_id, url].append(request.id)
        taken.digests.add(sha256(request.body).digest())
        taken.requests += 1
        return taken


class Moody:
    """A receiver whose mood changes."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.mood = WELL
        self._changed = asyncio.Event()
        self.receiver = Receiver().says(self._answer)

    @property
    def url(self) -> str:
        return self.receiver.url

    async def run(self, wind_down: asyncio.Event) -> None:
        """Live through moods until it is time to wind down; be well from then on."""
        while not wind_down.is_set():
            self._become(random.choices(MOODS, [4, *[1] * (len(MOODS) - 1)])[0])
            if self.mood == AWAY:
                await self.receiver.__aexit__(None, None, None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(4, 12) if self.mood == WELL else random.uniform(2, 6)):
                    await wind_down.wait()
            if self.mood == AWAY:
                await self.receiver.__aenter__()
        self._become(WELL)

    def _become(self, mood: str) -> None:
        self.mood = mood
        self.journal.moods[mood] += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def _answer(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        self.journal.unsigned += len(self.receiver.unsigned)
        self.receiver.requests.clear()
        self.receiver.unsigned.clear()
        mood, changed = self.mood, self._changed
        taken = self.journal.came(request, self.url)
        if mood in ("failing", "busy"):
            refusal = status(503, retry_after="1") if mood == "busy" else status(500)
            return await refusal(request, writer)
        if mood == "hanging":
            await changed.wait()
            return False
        if mood == "hanging up":
            return False
        if mood == "late":
            await asyncio.sleep(random.uniform(0.0, 2.0))
        stays = await status(200)(request, writer)
        taken.answers += 1
        return stays
