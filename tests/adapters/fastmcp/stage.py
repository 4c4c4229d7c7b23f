"""The stage of FastMCP: the scene's turns are played by a client that is connected in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
from fastmcp import Client, FastMCP

from hookline import ToolRequest
from hookline.adapters import hooked
from hookline.adapters.fastmcp import CALL_ID, DRIVES
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from tests.adapters.suspending import suspend

IDS = ("operation_id", "user_id", "tenant_id")


class FastMCPStage:
    capabilities = DRIVES
    toolset = "stage"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        ids = {name: attach.pop(name) for name in IDS if name in attach}
        server = hooked(server_of(scene), hooks, identify=lambda context: ids, **attach)
        return await as_client(server, scene)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        server, given = server_of(scene), list(bundles)
        hooked(server, lambda context: given[context.request_context.meta["number"]])
        return await asyncio.gather(*(as_client(server, scene, number) for number in range(len(given))))


def server_of(scene: Scene, name: str = "stage") -> FastMCP:
    server = FastMCP(name)
    for work in scene.tools.values():
        server.tool(work, output_schema=None)  # so that hooks may answer with any text
    return server


async def as_client(server: FastMCP, scene: Scene, number: int = 0) -> Ran:
    told: list[str] = []
    client = Client(server, mode="legacy")  # with a session, so that a scene is one operation

    async def call(calling: ToolRequest) -> str:
        await suspend()
        meta = {CALL_ID: calling.tool_call_id, "number": number}
        result = await client.call_tool(calling.tool_name, dict(calling.args), raise_on_error=False, meta=meta)
        return result.content[0].text

    try:
        async with client:
            for turn in scene.turns:
                told += await asyncio.gather(*(call(calling) for calling in turn.tool_calls))
                if "enough" in told:  # the words of the hook that stops the session
                    return Ran(told=told)
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
    return Ran(output=scene.turns[-1].content, told=told)
