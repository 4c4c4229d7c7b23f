"""A process that works on the outbox of a store until it is killed: `python -m tests.delivery.outbox_worker URL SECRET`."""

from __future__ import annotations

import asyncio
import sys

from hookline.delivery import KeyRing, Outbox
from hookline.store import SqlStore


async def main(url: str, secret: str) -> None:
    async with SqlStore(url) as store:
        await Outbox(
            store,
            keys=KeyRing({"": [secret]}),
            allow_private=["127.0.0.0/8"],
            schedule=(0.0, *(0.05,) * 9),
            lease_seconds=1.0,
        ).run()


asyncio.run(main(sys.argv[1], sys.argv[2]))
