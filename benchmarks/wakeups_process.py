"""A process of its own that waits for changes in a store, or writes into it: `python -m benchmarks.wakeups_process`.

It says `ready`, and then each thing that it notices with the time at which it did.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack

from hookline import Agent, Hooks, ModelResponse, OnComplete, ScriptedModel, ToolRequest, tool
from hookline.delivery import KeyRing, Outbox, generate_key
from hookline.hooks import HookType
from hookline.registry import Registry
from hookline.runtime import JournalEntry, OperationState
from hookline.store import SqlStore, Worker
from hookline.wakeups import PollingWakeups, Wakeups
from hookline.webhooks import Envelope

POLLED = {"registry": 0.3, "": 0.5}
"""Seconds between two looks of a registry, and of all others, where nobody is woken."""
WRITERS = 16
RECEIVER = "bench"


def wakeups_of(how: str, what: str = "") -> Wakeups | None:
    """Return the wake-ups of a store: none of its own if it shall choose them itself."""
    return PollingWakeups(POLLED.get(what, POLLED[""])) if how == "polling" else None


def build_payer() -> Agent:
    """An agent that asks a person whether it may pay, and then pays."""

    @tool(in_thread=False, needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    def answer(call: object) -> ModelResponse:
        if any(message.role == "tool" for message in call.messages):  # type: ignore[attr-defined]
            return ModelResponse(content="paid")
        return ModelResponse(tool_calls=[ToolRequest(tool_name="pay", args={"amount": 5}, tool_call_id="t0")])

    return Agent(id="payer", model=ScriptedModel(answer), tools=[pay])


def say(*words: object) -> None:
    print(*words, flush=True)


async def watch(url: str, how: str, what: str) -> None:
    """Wait for deliveries, decisions and definitions, and say when each is noticed."""
    hooks = Hooks("bench")

    @hooks.on(OnComplete)
    def note_end(event: OnComplete) -> None:
        if event.reason == "done":
            say(event.operation_id, time.time())

    async def receive(envelope: Envelope) -> None:
        say(envelope.id, time.time())

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(SqlStore(url, wakeups=wakeups_of(how, what)))
        registry = outbox = None
        if what in ("registry", "service"):
            registry = await stack.enter_async_context(Registry(store))
        if what in ("outbox", "service"):
            outbox = await stack.enter_async_context(Outbox(store, keys=KeyRing({"": [generate_key()]})))
            await stack.enter_async_context(outbox.serve(RECEIVER, receive))
        if what in ("worker", "service"):
            await stack.enter_async_context(Worker(store, [build_payer()], hooks=[hooks]))
        say("ready")
        known = 0
        while True:
            if what == "registry" and registry is not None and len(registry.hooks()) != known:
                known = len(registry.hooks())
                say(known, time.time())
            await asyncio.sleep(0.001 if what == "registry" else 3600)


def build_entry(operation_id: str, number: int) -> JournalEntry:
    """An event of a kilobyte."""
    wire = b'{"type":"beforeStep","operationId":"%b","stepIndex":0,"pad":"%b"}' % (operation_id.encode(), b"x" * 1000)
    return JournalEntry(number=number, type=HookType.BEFORE_STEP, time_unix_nano=number, wire=wire)


async def write(url: str) -> None:
    """Commit with several writers for as many seconds as a line says, with or without wake-ups; say how often."""
    async with SqlStore(url) as waking, SqlStore(url, wakeups=PollingWakeups()) as polling:
        stores = {"wakeups": waking, "polling": polling}
        say("ready")
        turn = 0
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            how, ends, turn = line[0], time.monotonic() + float(line[1]), turn + 1
            counts = await asyncio.gather(
                *(write_until(stores[how], f"{stores[how].worker_id}-{turn}-{nth}", ends) for nth in range(WRITERS))
            )
            say(sum(counts))


async def write_until(store: SqlStore, operation_id: str, ends: float) -> int:
    """Commit an operation again and again until a time; return how often."""
    version = 0
    while time.monotonic() < ends:
        version += 1
        state = OperationState(operation_id=operation_id, agent_id="bench", version=version, events=version)
        await store.commit(state, expected_version=version - 1 or None, entries=[build_entry(operation_id, version)])
    return version


if __name__ == "__main__":
    asyncio.run(write(sys.argv[2]) if sys.argv[1] == "write" else watch(sys.argv[2], sys.argv[3], sys.argv[4]))
