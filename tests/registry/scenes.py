"""What the tests of the registry arrange with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from hookline.calls import ToolCall, ToolResult
from hookline.hooks import AnyHook
from hookline.interceptors import Chain, Outcome
from hookline.registry import HookDefinition

FACTORIES = "tests.registry.factories"
PAY = ToolCall(toolset="bank", tool_name="pay", args={"amount": 3}, operation_id="op")


def definition(**fields: Any) -> HookDefinition:
    given = {"name": "a hook", "point": "ToolCall.guard"}
    if not {"webhook", "script"} & set(fields):
        given["handler"] = "deny"
    return HookDefinition(**(given | fields))


def ids(hooks: Iterable[AnyHook]) -> list[str]:
    return [hook.id for hook in hooks]  # type: ignore[union-attr]


async def pay(hooks: Iterable[AnyHook], call: ToolCall = PAY) -> Outcome:
    async def tool(call: ToolCall) -> ToolResult:
        return ToolResult(content="paid")

    return await Chain(hooks).run(call, tool)


async def until(holds: Callable[[], object], *, seconds: float = 20.0) -> float:
    """Wait for something; returns how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)
    return loop.time() - began
