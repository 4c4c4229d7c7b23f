"""A policy whose guard waits until the test lets it go on."""

import asyncio

from hookline import Hooks, ToolCall

entered, go_on = asyncio.Event(), asyncio.Event()
hooks = Hooks("held")


@hooks.guard(ToolCall)
async def wait(call: ToolCall) -> None:
    entered.set()
    await go_on.wait()
