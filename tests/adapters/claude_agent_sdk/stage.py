"""The stage of the Claude Agent SDK: a stand-in for the CLI calls tools of this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import anyio
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage
from mcp.server import Server
from mcp.types import CallToolResult, TextContent

from hookline.adapters.claude_agent_sdk import DRIVES, query
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook

from .cli import FakeCli


class ClaudeStage:
    drives = DRIVES
    identifier = "stage"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        return await ran_of(scene, options_of(scene), hooks, **attach)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        options, found = options_of(scene), dict[int, Ran]()

        async def play(number: int, hooks: Iterable[AnyHook]) -> None:
            found[number] = await ran_of(scene, options, hooks)

        async with anyio.create_task_group() as group:
            for number, hooks in enumerate(bundles):
                group.start_soon(play, number, hooks)
        return [found[number] for number in range(len(bundles))]


async def ran_of(scene: Scene, options: ClaudeAgentOptions, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
    cli, output = FakeCli(scene), ""
    async for message in query(prompt=scene.prompt, options=options, transport=cli, hooks=hooks, **attach):
        if isinstance(message, ResultMessage):
            output = message.result or ""
    return Ran(output=output, told=cli.told, asked=cli.asked)


def options_of(scene: Scene) -> ClaudeAgentOptions:
    async def call(context: Any, params: Any) -> CallToolResult:
        result = await scene.tools[params.name](**(params.arguments or {}))
        return CallToolResult(content=[TextContent(type="text", text=str(result))])

    server = Server("stage", version="1", on_call_tool=call)
    return ClaudeAgentOptions(mcp_servers={"stage": {"type": "sdk", "name": "stage", "instance": server}})
