"""A process that runs operations on a shared store, and goes on with those of processes that have died.

`python -m tests.durable.process START STORE TOOLS [ID ...]`: with `start` it runs the operations of these ids; with
`work` it only goes on with others'. Every tool writes a line to the file TOOLS when it takes effect.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from hookline import Agent, ModelResponse, OnComplete, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.delivery import KeyRing, Outbox
from hookline.errors import HooklineError
from hookline.hooks import Hook
from hookline.otel import TracingHooks
from hookline.store import SqlStore, Worker

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw1234567890ab"
LEASE_SECONDS = 1.5


def calling(name: str, tool_name: str, **args: object) -> ToolRequest:
    return ToolRequest(tool_name=tool_name, args=args, tool_call_id=name)


def agents_of(tools: Path, *, quick: bool) -> list[Agent]:
    """A planner that books twice at a time, calls a guide, and pays once a person has approved."""

    def took_effect(what: str) -> None:
        with tools.open("a") as file:  # a single write of a short line is atomic
            file.write(f"{what}\n")

    async def effect(operation_id: str, what: str) -> str:
        if not quick:
            await asyncio.sleep(random.uniform(0, 0.02))
        took_effect(f"{operation_id} {what}")
        if not quick:
            await asyncio.sleep(random.uniform(0, 0.02))
        return f"done: {what}"

    @tool(in_thread=False)
    async def book(trip: str, what: str) -> str:
        return await effect(trip, what)

    @tool(in_thread=False, needs_approval=True)
    async def pay(trip: str, amount: int) -> str:
        return await effect(trip, f"pay {amount}")

    def told(call: object) -> list[str]:
        return [message.content for message in call.messages if message.role == "tool"]  # type: ignore[attr-defined]

    def trip_of(call: object) -> str:
        said = [message.content for message in call.messages if message.role == "user"]  # type: ignore[attr-defined]
        return str(said[0])

    def guide_says(call: object) -> ModelResponse:
        if not told(call):
            return ModelResponse(tool_calls=[calling("c1", "book", trip=trip_of(call), what="hotel")])
        return ModelResponse(content="hotel booked")

    def planner_says(call: object) -> ModelResponse:
        trip, results = trip_of(call), told(call)
        if not results:
            guide = ToolRequest(toolset="agent", tool_name="guide", args={"instruction": trip}, tool_call_id="a1")
            train, ferry = (calling(f"t{n}", "book", trip=trip, what=what) for n, what in enumerate(("train", "ferry")))
            return ModelResponse(tool_calls=[train, ferry, guide])
        if len(results) == 3:
            return ModelResponse(tool_calls=[calling("p1", "pay", trip=trip, amount=7)])
        return ModelResponse(content="all done")

    guide = Agent(id="guide", model=ScriptedModel(guide_says), tools=[book])
    return [Agent(id="planner", model=ScriptedModel(planner_says), tools=[book, pay], sub_agents=[guide])]


async def main(mode: str, url: str, tools: Path, ids: list[str]) -> None:
    hooks = [TracingHooks(tracer_provider=TracerProvider())]
    receiver = os.environ.get("RECEIVER")
    webhooks = [Hook(id="end", type=OnComplete, webhook={"url": receiver})] if receiver else []
    agents = agents_of(tools, quick=mode == "start-quick")
    random.shuffle(ids)
    async with (
        SqlStore(url, lease_seconds=LEASE_SECONDS) as store,
        Outbox(store, keys=KeyRing({"": [KEY]}), allow_private=["127.0.0.0/8"]),
    ):

        async def begin() -> None:
            for name in ids:
                if await store.load(name) is not None:
                    continue
                try:
                    result = await exec_agent(
                        agents[0], name, operation_id=name, store=store, hooks=[*hooks, *webhooks], tenant_id="acme"
                    )
                    print(name, result.reason, flush=True)
                except HooklineError as error:  # another process was faster
                    print(name, error, flush=True)

        if mode == "start-quick":
            await begin()
            await asyncio.sleep(3600)
        async with Worker(store, agents, hooks=hooks, poll_seconds=0.25):
            print("working", flush=True)
            await asyncio.gather(*(begin() for _ in range(4)))
            await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:]))
