"""Build Claude options whose callbacks report to the present task, around the caller's own callbacks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher

from hookline.adapters.claude_agent_sdk._task import ClaudeTask
from hookline.calls import AgentCall, SubAgentCall, ToolCall
from hookline.runtime import KINDS, Capabilities

__all__ = ["DRIVES", "add_callbacks", "capabilities_for", "default_run_options"]

DRIVES = Capabilities(
    framework="Claude Agent SDK",
    calls={AgentCall: KINDS, ToolCall: KINDS, SubAgentCall: KINDS},
    adds_context=frozenset({ToolCall, AgentCall}),
)
"""The hooks that the Claude Agent SDK supports. Claude calls its model, and compacts, in another process."""

DRIVES_WITH_APPROVAL = msgspec.structs.replace(DRIVES, asks=True)


def capabilities_for(options: ClaudeAgentOptions) -> Capabilities:
    """Return the hooks that these options support; asking a person needs `can_use_tool`."""
    return DRIVES if options.can_use_tool is None else DRIVES_WITH_APPROVAL


def default_run_options(options: ClaudeAgentOptions) -> dict[str, Any]:
    """Return the options of a run that the caller has not set."""
    return {"agent_id": "claude", "model": options.model or "", "provider": "anthropic"}


FindTask = Callable[[], ClaudeTask | None]
"""Returns the task that Claude works on, or `None`: callbacks may also come between two tasks."""


def add_callbacks(options: ClaudeAgentOptions, find: FindTask) -> tuple[ClaudeAgentOptions, frozenset[str]]:
    """Return a copy of the options with hookline's callbacks added.

    Args:
        options: The options of the caller; they are not changed.
        find: Returns the present task.

    Returns:
        The options, and the names of the in-process MCP servers whose calls pass through the hooks where they arrive.
    """
    hooks: dict[Any, list[HookMatcher]] = {}
    for name, matchers in (options.hooks or {}).items():
        wrap = {"PreToolUse": _wrap_pre_tool_hook, "PermissionRequest": _wrap_permission_hook}.get(name)
        hooks[name] = [
            dataclasses.replace(each, hooks=[wrap(hook, find) for hook in each.hooks]) if wrap is not None else each
            for each in matchers
        ]
    callbacks: tuple[tuple[str, Callable[[ClaudeTask], Any]], ...] = (
        ("PreToolUse", lambda task: task.before_tool),
        ("PostToolUse", lambda task: task.after_tool),
        ("PostToolUseFailure", lambda task: task.after_failure),
        ("SubagentStart", lambda task: task.sub_agent_starts),
        ("PreCompact", lambda task: task.compacting.before_compact),
        ("PostCompact", lambda task: task.compacting.after_compact),
    )
    for name, which in callbacks:
        guards = name == "PreToolUse"  # a hook that fails must not let the call through
        matcher = HookMatcher(hooks=[_forward_to_task(which, find)], on_failure="block" if guards else None)
        hooks.setdefault(name, []).append(matcher)
    changes: dict[str, Any] = {"hooks": hooks}
    own_servers: set[str] = set()
    if isinstance(options.mcp_servers, dict):
        servers: dict[str, Any] = dict(options.mcp_servers)
        for name, config in servers.items():
            hooked = _hook_server(name, config["instance"], find) if config.get("type") == "sdk" else None
            if hooked is not None:
                servers[name] = {**config, "instance": hooked}
                own_servers.add(name)
        changes["mcp_servers"] = servers
    if options.can_use_tool is not None:
        changes["can_use_tool"] = _wrap_can_use_tool(options.can_use_tool, find)
    return dataclasses.replace(options, **changes), frozenset(own_servers)


def _forward_to_task(which: Callable[[ClaudeTask], Any], find: FindTask) -> Any:
    """Return a callback that calls a method of the present task."""

    async def tell(data: Any, call_id: str | None, context: Any) -> Any:
        task = find()
        return await which(task)(data, call_id, context) if task is not None else {}

    return tell


def _wrap_pre_tool_hook(hook: Any, find: FindTask) -> Any:
    """Return a `PreToolUse` hook of the caller that also reports its decision to the present task."""

    async def listen(data: Any, call_id: str | None, context: Any) -> Any:
        task = find()
        if task is None:
            return await hook(data, call_id, context)
        return await task.approvals.call_pre_tool_hook(hook, data, call_id, context)

    return listen


def _wrap_permission_hook(hook: Any, find: FindTask) -> Any:
    """Return a `PermissionRequest` hook of the caller that also reports its decision to the present task."""

    async def request(data: Any, call_id: str | None, context: Any) -> Any:
        task = find()
        if task is None:
            return await hook(data, call_id, context)
        return await task.approvals.call_permission_hook(
            hook, task.run_of(data.get("agent_id")), data, call_id, context
        )

    return request


def _wrap_can_use_tool(can_use_tool: Any, find: FindTask) -> Any:
    """Return a `can_use_tool` that also reports the question and the decision to the present task."""

    async def permit(name: str, args: dict[str, Any], context: Any) -> Any:
        task = find()
        if task is None:
            return await can_use_tool(name, args, context)
        return await task.approvals.ask(task.run_of(context.agent_id), name, args, context)

    return permit


def _hook_server(name: str, server: Any, find: FindTask) -> Any:
    """Return a copy of an in-process MCP server whose tool calls pass through the hooks.

    `None` for a version of `mcp` without replaceable handlers; its calls are treated like those of another process.
    """
    request_handler: Callable[[str], Any] | None = getattr(server, "get_request_handler", None)
    entry = request_handler("tools/call") if request_handler is not None else None
    if entry is None:
        return None
    hooked = copy.copy(server)
    hooked._request_handlers = dict(server._request_handlers)

    async def handle(context: Any, params: Any) -> Any:
        task = find()
        if task is None:
            return await entry.handler(context, params)
        return await task.call_own_tool(name, context, params, entry.handler)

    hooked.add_request_handler("tools/call", entry.params_type, handle)
    return hooked
