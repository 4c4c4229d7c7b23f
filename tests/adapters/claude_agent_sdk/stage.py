"""The stage of the Claude Agent SDK: a stand-in for the CLI calls tools of this process.

A tool that needs approval is deferred by a hook of the options, as the documentation of Claude has it: the task ends,
and when the session is taken up again that hook says what was decided.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anyio
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage
from mcp.server import Server
from mcp.types import CallToolResult, TextContent

from hookline.adapters.claude_agent_sdk import DRIVES, query
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

from .cli import FakeCli


class ClaudeStage:
    capabilities = DRIVES
    toolset = "stage"

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


Decisions = Sequence[Approve | Reject]


async def ran_of(
    scene: Scene,
    options: ClaudeAgentOptions,
    hooks: Iterable[AnyHook],
    *,
    decisions: Decisions | None = None,
    **attach: Any,
) -> Ran:
    cli, output, pending = FakeCli(scene, resumed=decisions is not None), "", []
    attach.setdefault("operation_id", f"claude-{uuid.uuid4().hex}")
    if scene.approval:
        options = deferring(options, scene, decisions or ())
    async for message in query(prompt=scene.prompt, options=options, transport=cli, hooks=hooks, **attach):
        if isinstance(message, ResultMessage):
            output = message.result or ""
            pending = [message.deferred_tool_use.id] if message.deferred_tool_use is not None else []

    async def resume(decisions: Decisions, hooks: Iterable[AnyHook]) -> Ran:
        return await ran_of(scene, options, hooks, decisions=decisions, **attach)

    return Ran(output=output, told=cli.told, asked=cli.asked, pending=pending, resume=resume if pending else None)


def deferring(options: ClaudeAgentOptions, scene: Scene, decisions: Decisions) -> ClaudeAgentOptions:
    """The options with a hook that leaves calls to a person, and says what that person decided."""
    known = {each.tool_call_id: each for each in decisions}

    async def decide(given: Any, call_id: str | None, context: Any) -> Mapping[str, Any]:
        decision = known.get(call_id or "")
        if given["tool_name"].rpartition("__")[2] not in scene.approval:
            return {}
        if decision is None:
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "defer"}}
        if isinstance(decision, Approve):
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}
        own = {"permissionDecision": "deny", "permissionDecisionReason": decision.reason}
        stops = {} if decision.and_continue else {"continue_": False, "stopReason": decision.reason}
        return {**stops, "hookSpecificOutput": {"hookEventName": "PreToolUse", **own}}

    return dataclasses.replace(options, hooks={"PreToolUse": [HookMatcher(hooks=[decide])]})


def options_of(scene: Scene) -> ClaudeAgentOptions:
    async def call(context: Any, params: Any) -> CallToolResult:
        result = await scene.tools[params.name](**(params.arguments or {}))
        return CallToolResult(content=[TextContent(type="text", text=str(result))])

    server = Server("stage", version="1", on_call_tool=call)
    return ClaudeAgentOptions(mcp_servers={"stage": {"type": "sdk", "name": "stage", "instance": server}})
