"""Runs where trio is a guest of an asyncio loop, so that one thread runs the code of both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

from hookline import Agent, Deny, Hooks, OnComplete, ScriptedModel, ToolCall, ToolRequest, exec_agent, tool


def host_trio(main: Callable[[], Awaitable[str]], beside: Callable[[], Awaitable[str]]) -> tuple[str, str]:
    """Run a function in trio, as a guest of the asyncio loop that runs another one; return both results."""

    async def host() -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            main, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=ended.set_result
        )
        own = await beside()
        return (await ended).unwrap(), own

    return asyncio.run(host())


async def run_agent() -> str:
    hooks, heard = Hooks("hooks"), list[str]()

    @tool(in_thread=False)
    async def price(item: str) -> str:
        await anyio.sleep(0.001)
        return f"{item}: 3"

    @hooks.guard(ToolCall, timeout=20)
    async def allow(call: ToolCall) -> Deny | None:
        await anyio.sleep(0.001)
        return Deny("no cups") if call.args["item"] == "cup" else None

    @hooks.on(OnComplete)
    async def done(event: OnComplete) -> None:
        await anyio.sleep(0.001)
        heard.append(event.reason)

    requests = [ToolRequest("price", {"item": item}) for item in ("tea", "cup")]
    agent = Agent(id="shop", model=ScriptedModel([requests, "done"]), tools=[price])
    result = await exec_agent(agent, "go", hooks=[hooks])
    told = [message.content for message in result.messages if message.role == "tool"]
    return f"{result.reason} {told} {heard}"


@pytest.mark.parametrize("repeats", [1, 20])
def test_runs_of_a_guest_and_of_its_host_are_like_any_others(repeats: int) -> None:
    async def run_several() -> str:
        found = {await run_agent() for _ in range(repeats)}
        return "; ".join(found)

    whole = "done ['tea: 3', 'no cups'] ['done']"
    assert host_trio(run_several, run_several) == (whole, whole)
