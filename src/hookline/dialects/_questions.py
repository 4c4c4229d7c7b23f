"""Build the JSON that a hook of a host reads, from the wire form of a call or an event of hookline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hookline.dialects._table import HOST_EVENTS, Dialect, HostEvent, events_at

__all__ = ["HostQuestion", "build_question", "host_tool_name"]

Wire = Mapping[str, Any]

OWN_TOOLSETS = frozenset({"local", "claude_code"})
"""Toolsets whose tools the hosts name without a prefix: functions of the process, and Claude Code's own tools."""


class HostQuestion(NamedTuple):
    """A question to a hook: the event of the host, and the document that the hook reads.

    Attributes:
        event: The event.
        document: The JSON document that it reads.
        subject: What its matcher is compared with; `""` if the event has nothing to match.
        applies: Whether the event happened at all: a call that failed is no `PostToolUse`, for example.
    """

    event: HostEvent
    document: dict[str, Any]
    subject: str
    applies: bool


def build_question(
    dialect: Dialect,
    point: str,
    wire: Wire,
    result: Wire | None = None,
    *,
    host_event: str = "",
    stop_hook_active: bool = False,
    cwd: str = "",
) -> HostQuestion:
    """Build the question for a hook of a host.

    Args:
        dialect: The dialect of the hook.
        point: The point at which the hook stands; one that has events in the dialect.
        wire: The call or event in its wire form, with keys in camelCase.
        result: The result of the call in its wire form, for a hook after the call.
        host_event: The event that the hook is for, by Claude Code's name; `""` for what happened at the point.
        stop_hook_active: Whether the run continues because a hook asked for it.
        cwd: The working directory; that of the process by default.

    Raises:
        KeyError: If the dialect has no such event.
    """
    failed = _has_failed(wire, result)
    if host_event:
        event = HOST_EVENTS[host_event]
    else:
        events = events_at(dialect, point)
        event = next((each for each in events if each.name == "PostToolUseFailure" and failed), events[0])
    known: dict[str, Any] = {
        "session_id": wire.get("operationId", ""),
        "transcript_path": "",
        "cwd": cwd or os.getcwd(),
        "hook_event_name": dialect.events[event.name],
    }
    parent = wire.get("parentOperationId")
    if parent:
        known |= {"session_id": parent, "agent_id": wire["operationId"], "agent_type": wire.get("agentId", "")}
    known |= BUILD[event.name](dialect, wire, result or {})
    if event.name in ("Stop", "SubagentStop"):
        known["stop_hook_active"] = stop_hook_active
    subject = known.get(event.subject, "") if event.subject else ""
    return HostQuestion(
        event, _spell(dialect, event.name, known, wire), str(subject), _applies(dialect, event, wire, result)
    )


def host_tool_name(dialect: Dialect, toolset: str, tool_name: str) -> str:
    """Return a host's name of a tool: `mcp__server__tool` for one of an MCP server."""
    return tool_name if toolset in OWN_TOOLSETS else dialect.mcp_tool.format(toolset, tool_name)


def _has_failed(wire: Wire, result: Wire | None) -> bool:
    return wire.get("type") == "onToolCallError" or not (result or wire).get("success", True)


def _applies(dialect: Dialect, event: HostEvent, wire: Wire, result: Wire | None) -> bool:
    """Return whether the host would have this event at all."""
    failed = _has_failed(wire, result)
    if event.name == "PostToolUse":
        # A host without the other event has this one for failed calls too.
        return not failed or "PostToolUseFailure" not in dialect.events
    if event.name == "PostToolUseFailure":
        return failed
    reason = (result or wire).get("reason")
    if event.name == "Stop":
        return reason == "done"
    if event.name == "SessionEnd":
        return bool(reason != "waiting_for_human")
    return True


def _spell(dialect: Dialect, event: str, known: dict[str, Any], wire: Wire) -> dict[str, Any]:
    """Spell the keys of a question as the host does, and add those that only it has."""
    document = {dialect.keys.get(key, key): value for key, value in known.items()}
    document.pop(None, None)
    spelled: dict[str, Any] = {key: value for key, value in document.items() if key is not None}
    if dialect.name == "gemini":
        spelled["timestamp"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        toolset = wire.get("identifier", "local")
        if "tool_name" in spelled and toolset not in OWN_TOOLSETS:
            spelled["mcp_context"] = {"server_name": toolset, "tool_name": wire.get("apiName", "")}
        if "tool_response" in spelled:
            text = spelled["tool_response"]
            spelled["tool_response"] = {"llmContent": text, "returnDisplay": text}
    if dialect.name == "copilot":
        spelled["timestamp"] = time.time_ns() // 1_000_000
        if "toolResult" in spelled:
            kind = "failure" if event == "PostToolUseFailure" else "success"
            spelled["toolResult"] = {"resultType": kind, "textResultForLlm": spelled["toolResult"]}
        if event in ("SubagentStart", "SubagentStop"):
            spelled["agentName"] = spelled["agentType"]
    return spelled


def _tool(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    if "calleeId" in wire:
        asked = {"description": "", "prompt": wire.get("instruction", ""), "subagent_type": wire["calleeId"]}
        return {"permission_mode": "default", "tool_name": dialect.agent_tool, "tool_input": asked, "tool_use_id": ""}
    return {
        "permission_mode": "default",
        "tool_name": host_tool_name(dialect, wire.get("identifier", "local"), wire.get("apiName", "")),
        "tool_input": wire.get("args", {}),
        "tool_use_id": wire.get("toolCallId", ""),
    }


def _duration(wire: Wire) -> dict[str, Any]:
    return {"duration_ms": round(wire["executionTimeMs"])} if "executionTimeMs" in wire else {}


def _tool_result(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    content = result.get("content", wire.get("content", wire.get("error", "")))
    return {**_tool(dialect, wire, result), "tool_response": content, **_duration(wire)}


def _tool_failure(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    error = result.get("content", wire.get("error", wire.get("content", "")))
    return {**_tool(dialect, wire, result), "error": error, "is_interrupt": False, **_duration(wire)}


def _pending(wire: Wire) -> Wire:
    pending: list[Wire] = wire.get("pendingTools") or [{}]
    return pending[0]


def _permission(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    asked = _tool(dialect, _pending(wire), result)
    del asked["tool_use_id"]
    return {**asked, "permission_suggestions": []}


def _notification(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    pending: list[Wire] = wire.get("pendingTools") or []
    names = [host_tool_name(dialect, each.get("identifier", "local"), each.get("apiName", "")) for each in pending]
    return {
        "message": f"The agent needs your permission to use {', '.join(names) or 'a tool'}",
        "notification_type": "permission_prompt" if dialect.name != "gemini" else "ToolPermission",
    }


def _prompt(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    texts = [each.get("content", "") for each in wire.get("input", ()) if each.get("role") == "user"]
    return {"permission_mode": "default", "prompt": "\n\n".join(texts)}


def _stop(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    said = result.get("output", wire.get("lastAssistantContent", ""))
    prompt = {"prompt": _prompt(dialect, wire, result)["prompt"]} if dialect.name == "gemini" else {}
    return {"permission_mode": "default", "last_assistant_message": said, **prompt}


def _sub_agent(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    callee = wire.get("calleeId", "")
    found = {"agent_id": wire.get("subOperationId", callee), "agent_type": callee}
    return found | ({"last_assistant_message": result["output"]} if "output" in result else {})


def _compact(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    return {"trigger": "auto", "custom_instructions": ""}


def _compaction(dialect: Dialect, wire: Wire, result: Wire) -> dict[str, Any]:
    return {"trigger": "auto", "compact_summary": result.get("summary", wire.get("summary", ""))}


BUILD: Mapping[str, Callable[[Dialect, Wire, Wire], dict[str, Any]]] = {
    "PreToolUse": _tool,
    "PostToolUse": _tool_result,
    "PostToolUseFailure": _tool_failure,
    "PermissionRequest": _permission,
    "Notification": _notification,
    "UserPromptSubmit": _prompt,
    "SessionStart": lambda dialect, wire, result: {"source": "startup"},
    "Stop": _stop,
    "SubagentStart": _sub_agent,
    "SubagentStop": _sub_agent,
    "PreCompact": _compact,
    "PostCompact": _compaction,
    "SessionEnd": lambda dialect, wire, result: {"reason": "other"},
}
"""The keys of each event's question, by Claude Code's names."""
