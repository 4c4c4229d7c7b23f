"""A process that runs agents under a stored guard: `python -m benchmarks.fence_process URL BUS`.

It says each revision of the guard that it has in force, and when; and at the end of each call, by which revision the
guard has judged it, and when that was over. `BUS` is the URL of a NATS server, or `-` for the wake-ups of the store.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, exec_agent, signals, tool
from hookline.bus import NatsBus
from hookline.registry import Registry
from hookline.signals import HookExecution
from hookline.store import SqlStore

LEASE = 60.0
MODULES = ["tests.registry.factories"]
STEPS, CALLS = 50, 4
"""Steps of an operation, and the tool calls of each: an operation outlives several changes."""
PAUSE = 0.02


def note(sender: object, execution: HookExecution) -> None:
    """Say by which revision a call was judged."""
    print("judged", execution.revision, time.time(), flush=True)


async def follow(registry: Registry) -> None:
    """Say which revision is in force, whenever that changes."""
    known = 0
    while True:
        newest = max((getattr(hook, "revision", 0) for hook in registry.hooks()[1:]), default=0)
        if newest != known:
            known = newest
            print("seen", known, time.time(), flush=True)
        await asyncio.sleep(0.001)


async def work(registry: Registry) -> None:
    """Run one operation after the other."""

    @tool(in_thread=False)
    async def pay(amount: int) -> str:
        await asyncio.sleep(PAUSE)
        return f"paid {amount}"

    def answer(call: object) -> ModelResponse:
        said = sum(message.role == "assistant" for message in call.messages)  # type: ignore[attr-defined]
        if said == STEPS:
            return ModelResponse(content="done")
        asked = [ToolRequest(tool_name="pay", args={"amount": n}, tool_call_id=f"{said}-{n}") for n in range(CALLS)]
        return ModelResponse(tool_calls=asked)

    agent = Agent(id="payer", model=ScriptedModel(answer), tools=[pay])
    while True:
        await exec_agent(agent, "pay", hooks=[*registry.hooks()])


async def main(url: str, bus_url: str) -> None:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(NatsBus(bus_url)) if bus_url != "-" else None
        store = await stack.enter_async_context(SqlStore(url, wakeups=bus))
        registry = await stack.enter_async_context(Registry(store, modules=MODULES, lease_seconds=LEASE))
        print("ready", flush=True)
        following = asyncio.create_task(follow(registry))
        await asyncio.to_thread(sys.stdin.readline)
        with signals.hook_executed.connected_to(note):
            working = asyncio.create_task(work(registry))
            await asyncio.to_thread(sys.stdin.readline)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        following.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
