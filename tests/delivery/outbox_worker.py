"""Processes that work on the outbox of a store until they are killed: `python outbox_worker.py URL SECRET`.

For each line that comes one is started, and its number is said. They are forks of a process that does nothing else:
to import all takes longer than most of them live.
"""

from __future__ import annotations

import asyncio
import os
import signal
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


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they have ended
    for _ in sys.stdin:
        if not (pid := os.fork()):
            sys.exit(asyncio.run(main(*sys.argv[1:])))
        print(pid, flush=True)
