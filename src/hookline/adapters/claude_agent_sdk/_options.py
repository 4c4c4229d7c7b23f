"""Options of Claude with callbacks that say what it does, and that hear what the caller's own callbacks decide."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
from claude_agent_sdk import ClaudeAgentOptions, HookMatcher

from hookline.adapters.claude_agent_sdk._calls import Task
from hookline.calls import AgentCall, SubAgentCall, ToolCall
from hookline.runtime import KINDS, Capabilities

__all__ = ["DRIVES", "driven_by", "given_to", "hooked_options"]

DRIVES = Capabilities(framework="Claude Agent SDK", calls={AgentCall: KINDS, ToolCall: KINDS, SubAgentCall: KINDS})
"""What of hookline the Claude Agent SDK can drive; Claude asks its model, and compacts, in a process of its own."""

ASKING = msgspec.structs.replace(DRIVES, asks=True)


def driven_by(options: ClaudeAgentOptions) -> Capabilities:
    """What can be driven with these options: only with `can_use_tool` is there somebody to ask."""
    return DRIVES if options.can_use_tool is None else ASKING


def given_to(options: ClaudeAgentOptions) -> dict[str, Any]:
    """What a run is given unless the caller says otherwise."""
    return {"agent_id": "claude", "model": options.model or "", "provider": "anthropic"}


Find = Callable[[], Task | None]
"""Finds the task that Claude works on; callbacks may come when there is none."""


def hooked_options(options: ClaudeAgentOptions, find: Find) -> tuple[ClaudeAgentOptions, frozenset[str]]:
    """The options with callbacks.

    Args:
        options: The options of the caller; they stay as they are.
        find: Finds the task.

    Returns:
        The options, and the names of the MCP servers whose calls are led where they arrive.
    """
    hooks: dict[Any, list[HookMatcher]] = {}
    for name, matchers in (options.hooks or {}).items():
        heard = {"PreToolUse": _listened, "PermissionRequest": _requested}.get(name)
        hooks[name] = [
            dataclasses.replace(each, hooks=[heard(hook, find) for hook in each.hooks]) if heard is not None else each
            for each in matchers
        ]
    callbacks: tuple[tuple[str, Callable[[Task], Any]], ...] = (
        ("PreToolUse", lambda task: task.before_tool),
        ("PostToolUse", lambda task: task.after_tool),
        ("PostToolUseFailure", lambda task: task.after_failure),
        ("SubagentStart", lambda task: task.sub_agent_starts),
        ("PreCompact", lambda task: task.compacting.begins),
        ("PostCompact", lambda task: task.compacting.ends),
    )
    for name, which in callbacks:
        guards = name == "PreToolUse"  # one that fails must not let the call through
        matcher = HookMatcher(hooks=[_told(which, find)], on_failure="block" if guards else None)
        hooks.setdefault(name, []).append(matcher)
    changes: dict[str, Any] = {"hooks": hooks}
    own: set[str] = set()
    if isinstance(options.mcp_servers, dict):
        servers: dict[str, Any] = dict(options.mcp_servers)
        for name, config in servers.items():
            hooked = _hooked_server(name, config["instance"], find) if config.get("type") == "sdk" else None
            if hooked is not None:
                servers[name] = {**config, "instance": hooked}
                own.add(name)
        changes["mcp_servers"] = servers
    if options.can_use_tool is not None:
        changes["can_use_tool"] = _permitted(options.can_use_tool, find)
    return dataclasses.replace(options, **changes), frozenset(own)


def _told(which: Callable[[Task], Any], find: Find) -> Any:
    async def tell(given: Any, call_id: str | None, context: Any) -> Any:
        task = find()
        return await which(task)(given, call_id, context) if task is not None else {}

    return tell


def _listened(hook: Any, find: Find) -> Any:
    async def listen(given: Any, call_id: str | None, context: Any) -> Any:
        task = find()
        if task is None:
            return await hook(given, call_id, context)
        return await task.people.listen(hook, given, call_id, context)

    return listen


def _requested(hook: Any, find: Find) -> Any:
    async def request(given: Any, call_id: str | None, context: Any) -> Any:
        task = find()
        if task is None:
            return await hook(given, call_id, context)
        return await task.people.request(hook, task.run_of(given.get("agent_id")), given, call_id, context)

    return request


def _permitted(can_use_tool: Any, find: Find) -> Any:
    async def permit(name: str, args: dict[str, Any], context: Any) -> Any:
        task = find()
        if task is None:
            return await can_use_tool(name, args, context)
        return await task.people.ask(task.run_of(context.agent_id), name, args, context)

    return permit


def _hooked_server(name: str, server: Any, find: Find) -> Any:
    """An in-process MCP server like this one, whose tool calls are led through the hooks; they can be answered.

    `None` for one of a version of `mcp` that cannot be copied so; it is left as it is, like one of another process.
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
        return await task.call(name, context, params, entry.handler)

    hooked.add_request_handler("tools/call", entry.params_type, handle)
    return hooked
