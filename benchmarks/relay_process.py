"""A process of its own that serves remote hooks: `python -m benchmarks.relay_process URL PREFIX FILE`.

It decides about calls of tools, and observes: each event that it hears is a line in the file. It says `ready`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from hookline import BeforeStep, Hooks, OnComplete, ToolCall
from hookline.bus import NatsBus, heard_event_id, serve

NAME = "ledger"
PARTITIONS, ACK_SECONDS = 16, 2.0


def build_hooks(file: int) -> Hooks:
    """Hooks that let each call pass, and note each event in a file that is open for appending."""
    hooks = Hooks(NAME)

    @hooks.before(ToolCall)
    async def judge(call: ToolCall) -> None:
        return

    @hooks.on(BeforeStep)
    @hooks.on(OnComplete)
    async def note(event: BeforeStep | OnComplete) -> None:
        os.write(file, f"{heard_event_id()}\n".encode())

    return hooks


async def main(url: str, prefix: str, file: str) -> None:
    logging.getLogger("hookline").addHandler(logging.NullHandler())  # the server is killed on purpose
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with (
        NatsBus(url, prefix=prefix, wait=30, partitions=PARTITIONS, ack_seconds=ACK_SECONDS) as bus,
        serve(bus, build_hooks(opened)),
        bus.answer("echo", echo),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def echo(question: bytes) -> bytes:
    """Answer with the question."""
    await asyncio.sleep(0)
    return question


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
