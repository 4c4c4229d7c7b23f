"""Async handlers, until all events are delivered. blinker's caller awaits them, pyee starts a task for each."""

from __future__ import annotations

import asyncio

import blinker
from pyee.asyncio import AsyncIOEventEmitter

from benchmarks.harness import Row, block, interleave
from hookline import BeforeStep, HookDispatcher, Hooks

UNTIL_DELIVERED = """
due = tally.seen + len(events)
for event in events: {send}
while tally.seen < due: await sleep(0)
"""
IN_LINE = """
for event in events: await send_async('op', event=event)
await sleep(0)
"""


class Tally:
    """Counts deliveries."""

    seen = 0


async def bench(rounds: int) -> list[Row]:
    tally = Tally()

    async def handler(event: object) -> None:
        tally.seen += 1

    async def receiver(sender: object, event: object) -> None:
        tally.seen += 1

    signal = blinker.Signal()
    signal.connect(receiver, sender="op", weak=False)
    emitter = AsyncIOEventEmitter()
    emitter.on("op", handler)
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(handler)
    rows = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])
        for burst in (1, 6):
            events = [BeforeStep(operation_id="op", step_index=index) for index in range(burst)]
            names = {"events": events, "tally": tally, "sleep": asyncio.sleep}
            ours = f"hookline, on a lane [burst={burst}]"
            samples = await interleave(
                {
                    ours: block(UNTIL_DELIVERED.format(send="send(event)"), send=dispatcher.dispatch, **names),
                    f"blinker send_async, awaited [burst={burst}]": block(
                        IN_LINE, send_async=signal.send_async, **names
                    ),
                    f"pyee emit, a task each [burst={burst}]": block(
                        UNTIL_DELIVERED.format(send="emit('op', event)"), emit=emitter.emit, **names
                    ),
                },
                rounds,
            )
            rows.append(samples.row(ours))
            rows += [samples.row(peer, ours) for peer in samples.by_case if peer != ours]
    return rows
