"""Do to the operations in a store what a person does on the page: approve the first call that waits, or interrupt.

As `python approve.py STORE approve [PID]` or `python approve.py STORE interrupt`. A process that is named is killed before
the call is approved.
"""

import asyncio
import os
import signal
import sys

from hookline import Approve
from hookline.store import SqlStore


async def approve(store: SqlStore, kill: int | None) -> bool:
    for each in (await store.operations(status="waiting_for_human")).items:
        state = await store.load(each.operation_id)
        assert state is not None
        if kill is not None:
            os.kill(kill, signal.SIGKILL)
        await store.decide(each.operation_id, Approve(state.pending[0].tool_call_id), by="key:ada")
        return True
    return False


async def interrupt(store: SqlStore) -> bool:
    for each in (await store.operations(status="running")).items:
        await store.request_interrupt(each.operation_id, by="key:ada")
        return True
    return False


async def main(url: str, action: str, *pid: str) -> None:
    async with SqlStore(url) as store:
        for _ in range(600):
            done = interrupt(store) if action == "interrupt" else approve(store, int(pid[0]) if pid else None)
            if await done:
                return
            await asyncio.sleep(0.1)


asyncio.run(main(*sys.argv[1:]))
