"""The table of dialects: how each host spells events, keys and tool names, and which exit codes block there.

Events are named as Claude Code names them. Codex, Cursor, Qwen and others use its names and its wire format; a dialect
says where another host differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "DIALECTS",
    "HOST_EVENTS",
    "Dialect",
    "DialectName",
    "HostEvent",
    "HostEventName",
    "events_at",
    "find_event",
]

DialectName: TypeAlias = Literal["hookline", "claude", "codex", "gemini", "copilot"]
"""`"hookline"` is the protocol of hookline itself; it is not in `DIALECTS`."""
HostEventName: TypeAlias = Literal[
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "PermissionRequest",
    "Notification",
    "UserPromptSubmit",
    "SessionStart",
    "Stop",
    "SubagentStart",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "SessionEnd",
]


class HostEvent(NamedTuple):
    """An event of the hosts, and the points at which a hook of hookline stands in for it.

    Attributes:
        name: Its name in Claude Code.
        point: The point of an imported hook.
        others: Further points at which a hook can be for this event.
        observer: The event of hookline that tells of it, for webhooks and for hooks whose answer is ignored; `""` if
            there is none.
        subject: The key of the question that a matcher is compared with; `""` if a matcher has no effect.
    """

    name: HostEventName
    point: str
    others: tuple[str, ...] = ()
    observer: str = ""
    subject: str = ""

    @property
    def points(self) -> frozenset[str]:
        """All points at which a hook can be for this event."""
        return frozenset(filter(None, (self.point, *self.others, self.observer)))


HOST_EVENTS: Mapping[str, HostEvent] = {
    event.name: event
    for event in (
        HostEvent(
            "PreToolUse", "ToolCall.before", ("ToolCall.guard", "SubAgentCall.before"), "beforeToolCall", "tool_name"
        ),
        HostEvent("PostToolUse", "ToolCall.after", (), "afterToolCall", "tool_name"),
        HostEvent("PostToolUseFailure", "ToolCall.after", (), "onToolCallError", "tool_name"),
        HostEvent("Notification", "beforeHumanIntervention", (), "beforeHumanIntervention", "notification_type"),
        HostEvent("PermissionRequest", "beforeHumanIntervention", (), "", "tool_name"),
        HostEvent("UserPromptSubmit", "AgentCall.before", ("AgentCall.guard",)),
        HostEvent("SessionStart", "AgentCall.before", (), "", "source"),
        HostEvent("Stop", "AgentCall.after", (), "onComplete"),
        HostEvent("SubagentStart", "SubAgentCall.before", ("SubAgentCall.guard",), "beforeCallAgent", "agent_type"),
        HostEvent("SubagentStop", "SubAgentCall.after", (), "afterCallAgent", "agent_type"),
        HostEvent("PreCompact", "CompactCall.before", ("CompactCall.guard",), "beforeCompact", "trigger"),
        HostEvent("PostCompact", "CompactCall.after", (), "afterCompact", "trigger"),
        HostEvent("SessionEnd", "onComplete", (), "onComplete", "reason"),
    )
}
"""The events by Claude Code's name. Of several with one `point`, the first is the default there."""


class Dialect(NamedTuple):
    """How a host speaks to its hooks.

    Attributes:
        name: The name of the dialect.
        events: The host's names of the events that it has, by Claude Code's names.
        keys: Its names of the keys of a question, where they differ; `None` leaves a key out.
        mcp_tool: Its name of a tool of an MCP server, made of the server's name and the tool's.
        agent_tool: Its name of the tool that calls a sub-agent.
        blocking_exits: The exit codes that block besides 2: `"none"`; `"told"`: all but 0 and 1, if stderr has text;
            `"all"` but 0.
        args: Where its answers have changed arguments.
        result: Where its answers have a changed result.
        deny_is_read: Whether the host itself reads `decision: "deny"`.
        replaces_result: Whether a block after a call replaces its result; else the reason is added to it.
        text_is_context: Whether plain text at the start of a session and at a prompt is context for the model.
    """

    name: DialectName
    events: Mapping[str, str]
    keys: Mapping[str, str | None]
    mcp_tool: str
    agent_tool: str
    blocking_exits: Literal["none", "told", "all"]
    args: tuple[tuple[str, ...], ...]
    result: tuple[tuple[str, ...], ...]
    deny_is_read: bool
    replaces_result: bool
    text_is_context: bool


CLAUDE = Dialect(
    name="claude",
    events={name: name for name in HOST_EVENTS},
    keys={},
    mcp_tool="mcp__{}__{}",
    agent_tool="Agent",
    blocking_exits="none",
    args=(("hookSpecificOutput", "updatedInput"),),
    result=(("hookSpecificOutput", "updatedToolOutput"), ("hookSpecificOutput", "updatedMCPToolOutput")),
    deny_is_read=False,
    replaces_result=False,
    text_is_context=True,
)
NOT_IN_CODEX = ("PostToolUseFailure", "Notification")
CODEX = CLAUDE._replace(
    name="codex",
    events={name: name for name in HOST_EVENTS if name not in NOT_IN_CODEX},
    agent_tool="spawn_agent",
    result=(),
    replaces_result=True,
)
GEMINI = Dialect(
    name="gemini",
    events={
        "PreToolUse": "BeforeTool",
        "PostToolUse": "AfterTool",
        "Notification": "Notification",
        "UserPromptSubmit": "BeforeAgent",
        "SessionStart": "SessionStart",
        "Stop": "AfterAgent",
        "PreCompact": "PreCompress",
        "SessionEnd": "SessionEnd",
    },
    keys={
        "tool_use_id": None,
        "permission_mode": None,
        "duration_ms": None,
        "last_assistant_message": "prompt_response",
        "custom_instructions": None,
    },
    mcp_tool="mcp_{}_{}",
    agent_tool="invoke_agent",
    blocking_exits="told",
    args=(("hookSpecificOutput", "tool_input"),),
    result=(),
    deny_is_read=True,
    replaces_result=True,
    text_is_context=False,
)
COPILOT = Dialect(
    name="copilot",
    events={
        "PreToolUse": "preToolUse",
        "PostToolUse": "postToolUse",
        "PostToolUseFailure": "postToolUseFailure",
        "Notification": "notification",
        "PermissionRequest": "permissionRequest",
        "UserPromptSubmit": "userPromptSubmitted",
        "SessionStart": "sessionStart",
        "Stop": "agentStop",
        "SubagentStart": "subagentStart",
        "SubagentStop": "subagentStop",
        "PreCompact": "preCompact",
        "SessionEnd": "sessionEnd",
    },
    keys={
        "session_id": "sessionId",
        "transcript_path": "transcriptPath",
        "hook_event_name": None,
        "permission_mode": None,
        "tool_name": "toolName",
        "tool_input": "toolArgs",
        "tool_use_id": None,
        "tool_response": "toolResult",
        "duration_ms": None,
        "is_interrupt": None,
        "stop_hook_active": None,
        "last_assistant_message": None,
        "notification_type": "notificationType",
        "agent_id": "agentId",
        "agent_type": "agentType",
        "custom_instructions": "customInstructions",
    },
    mcp_tool="{}-{}",
    agent_tool="task",
    blocking_exits="all",
    args=(("modifiedArgs",), ("hookSpecificOutput", "updatedInput")),
    result=(("modifiedResult", "textResultForLlm"),),
    deny_is_read=False,
    replaces_result=False,
    text_is_context=False,
)
DIALECTS: Mapping[str, Dialect] = {each.name: each for each in (CLAUDE, CODEX, GEMINI, COPILOT)}


def events_at(dialect: Dialect, point: str) -> list[HostEvent]:
    """Return the events of a host that a hook at a point can be for, the default first."""
    found = [event for event in HOST_EVENTS.values() if point in event.points and event.name in dialect.events]
    return sorted(found, key=lambda event: event.point != point)


def find_event(dialect: Dialect, spelled: str) -> HostEvent | None:
    """Return the event that a host, or Claude Code, calls by a name; `None` if it is unknown."""
    known = HOST_EVENTS.get(spelled)
    if known is not None and known.name in dialect.events:
        return known
    return next((HOST_EVENTS[name] for name, own in dialect.events.items() if own == spelled), None)
