"""The stage of the Claude Agent SDK: a stand-in for the CLI calls tools of this process.

A tool that needs approval is deferred by a hook of the options, as the documentation of Claude has it: the task ends,
and `resume` takes the session up again with the decision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage
from mcp.server import Server
from mcp.types import CallToolResult, TextContent

from hookline.adapters import hooked
from hookline.adapters.claude_agent_sdk import DRIVES, HookedClaude
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

from .cli import FakeCli


class ClaudeStage:
    capabilities = DRIVES
    toolset = "stage"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        return await ran_of(scene, options_of(scene), hooks, self.messages, **attach)

    def messages(self, claude: HookedClaude, prompt: str, cli: FakeCli) -> AsyncIterator[Any]:
        return query(claude, prompt, cli)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        options, found = options_of(scene), dict[int, Ran]()

        async def play(number: int, hooks: Iterable[AnyHook]) -> None:
            found[number] = await ran_of(scene, options, hooks)

        async with anyio.create_task_group() as group:
            for number, hooks in enumerate(bundles):
                group.start_soon(play, number, hooks)
        return [found[number] for number in range(len(bundles))]


Decisions = Sequence[Approve | Reject]


def query(claude: HookedClaude, prompt: str, cli: FakeCli) -> AsyncIterator[Any]:
    return claude.query(prompt, transport=cli)


async def ran_of(
    scene: Scene,
    options: ClaudeAgentOptions,
    hooks: Iterable[AnyHook],
    run: Callable[[HookedClaude, str, FakeCli], AsyncIterator[Any]] = query,
    *,
    paused: Any = None,
    **attach: Any,
) -> Ran:
    """Run a scene, or with `paused` (a result and the decisions) take it up again."""
    cli, output, pending = FakeCli(scene, resumed=paused is not None), "", list[str]()
    if scene.approval and paused is None:
        options = deferring(options, scene)
    claude = hooked(options, hooks, **attach)
    messages = run(claude, scene.prompt, cli) if paused is None else claude.resume(*paused, transport=cli)
    result: Any = None
    async for message in messages:
        if isinstance(message, ResultMessage):
            result, output = message, message.result or ""
            pending = [message.deferred_tool_use.id] if message.deferred_tool_use is not None else []

    async def resume(decisions: Decisions, hooks: Iterable[AnyHook]) -> Ran:
        return await ran_of(scene, options, hooks, paused=(result, decisions), **attach)

    return Ran(output=output, told=cli.told, asked=cli.asked, pending=pending, resume=resume if pending else None)


def deferring(options: ClaudeAgentOptions, scene: Scene) -> ClaudeAgentOptions:
    """The options with a hook that leaves calls to a person."""

    async def defer(given: Any, call_id: str | None, context: Any) -> Mapping[str, Any]:
        if given["tool_name"].rpartition("__")[2] not in scene.approval:
            return {}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "defer"}}

    return dataclasses.replace(options, hooks={"PreToolUse": [HookMatcher(hooks=[defer])]})


def tools_of(scene: Scene) -> dict[str, Callable[..., Any]]:
    """The tools of a scene and of its sub-agents, which have those of the session."""
    inner = [tools_of(each) for each in scene.agents.values()]
    return {name: work for tools in [scene.tools, *inner] for name, work in tools.items()}


def options_of(scene: Scene) -> ClaudeAgentOptions:
    tools = tools_of(scene)

    async def call(context: Any, params: Any) -> CallToolResult:
        result = await tools[params.name](**(params.arguments or {}))
        return CallToolResult(content=[TextContent(type="text", text=str(result))])

    server = Server("stage", version="1", on_call_tool=call)
    return ClaudeAgentOptions(mcp_servers={"stage": {"type": "sdk", "name": "stage", "instance": server}})
