"""The operations of the durable soak: what happens in each, what takes effect, and which webhooks hear of it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from hookline import Agent, ModelCall, ModelResponse, ScriptedModel, ToolRequest, tool
from hookline.events import AfterToolCall, BeforeStep, OnComplete, OnToolCallError
from hookline.hooks import Hook

MASTER_KEY = "dGhlIG1hc3RlciBrZXkgb2Ygc29ha3MsIDMyIGJ5dGU="
"""Opens the secrets of the receivers, which sign what these are sent, and are rotated meanwhile."""
TENANT = "acme"
HEARD = (OnComplete, BeforeStep, AfterToolCall, OnToolCallError)
WEBHOOK_SECONDS = 1.0

EFFECTS = {"t0": "train", "t1": "ferry", "c1": "hotel", "p1": "pay"}
"""What each call of a tool brings about. The hotel is booked by the sub-agent."""


def refused(trip: str) -> bool:
    """Whether the person refuses to pay for it: one in ten."""
    return crc32(trip.encode()) % 10 == 0


def hooks_of(trip: str, urls: Sequence[str]) -> list[Hook]:
    """Webhooks to two of the receivers, so that events of several kinds queue up for one of them."""
    first = crc32(trip.encode()) // 10
    near, far = urls[first % len(urls)], urls[(first // 7 + 1) % len(urls)]
    given = [Hook(id=f"near-{kind.__name__}", type=kind, webhook=webhook(near), tenant_id=TENANT) for kind in HEARD]
    return [*given, Hook(id="far", type=OnComplete, webhook=webhook(far), tenant_id=TENANT)]


def webhook(url: str) -> dict[str, object]:
    return {"url": url, "timeout": WEBHOOK_SECONDS, "body": {"soak": True}}


def agents_of(effects: Path) -> list[Agent]:
    """A planner that books twice at a time, calls a guide, and pays once a person has approved.

    Args:
        effects: Where each tool writes a line when it takes effect.
    """

    async def effect(trip: str, what: str) -> str:
        await asyncio.sleep(pause())
        file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{trip} {what}\n".encode())  # a short line is written whole or not at all
        os.close(file)
        await asyncio.sleep(pause())
        return f"done: {what}"

    @tool(in_thread=False)
    async def book(trip: str, what: str) -> str:
        return await effect(trip, what)

    @tool(in_thread=False, needs_approval=True)
    async def pay(trip: str, amount: int) -> str:
        return await effect(trip, "pay")

    guide = Agent(id="guide", model=ScriptedModel(guide_says), tools=[book])
    return [Agent(id="planner", model=ScriptedModel(planner_says), tools=[book, pay], sub_agents=[guide])]


def pause() -> float:
    """Mostly short; one in ten is long enough to be killed in."""
    return random.uniform(0.0, 0.3 if random.random() < 0.1 else 0.02)


async def guide_says(call: ModelCall) -> ModelResponse:
    await asyncio.sleep(pause())
    if not told(call):
        return ModelResponse(tool_calls=[calling("c1", "book", trip=trip_of(call), what="hotel")])
    return ModelResponse(content="hotel booked")


async def planner_says(call: ModelCall) -> ModelResponse:
    await asyncio.sleep(pause())
    trip, results = trip_of(call), told(call)
    if not results:
        guide = ToolRequest(toolset="agent", tool_name="guide", args={"instruction": trip}, tool_call_id="a1")
        train, ferry = (calling(name, "book", trip=trip, what=EFFECTS[name]) for name in ("t0", "t1"))
        return ModelResponse(tool_calls=[train, ferry, guide])
    if len(results) == 3:
        return ModelResponse(tool_calls=[calling("p1", "pay", trip=trip, amount=7)])
    return ModelResponse(content="all done")


def told(call: ModelCall) -> list[str]:
    return [message.content for message in call.messages if message.role == "tool"]


def trip_of(call: ModelCall) -> str:
    return next(message.content for message in call.messages if message.role == "user")


def calling(name: str, tool_name: str, **args: object) -> ToolRequest:
    return ToolRequest(tool_name=tool_name, args=args, tool_call_id=name)
