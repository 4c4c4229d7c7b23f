"""Approve the first call that waits in a store, as a person would on the page."""

import asyncio
import sys

from hookline import Approve
from hookline.store import SqlStore


async def approve(url: str) -> None:
    async with SqlStore(url) as store:
        for _ in range(600):
            for each in (await store.operations(status="waiting_for_human")).items:
                state = await store.load(each.operation_id)
                assert state is not None
                await store.decide(each.operation_id, Approve(state.pending[0].tool_call_id), by="key:ada")
                return
            await asyncio.sleep(0.1)


asyncio.run(approve(sys.argv[1]))
