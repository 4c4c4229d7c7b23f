"""The coding agents that hookline can be the hook of: their events, their tools, and where they keep their settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from hookline.hosts._answers import (
    HookVerdict,
    HostReply,
    write_claude,
    write_codex,
    write_copilot,
    write_cursor,
    write_gemini,
)
from hookline.hosts._moments import Moment
from hookline.hosts._tool_names import split_server_name

__all__ = ["HOSTS", "Host", "Scope"]


class Scope(StrEnum):
    """The settings that name the hook: those of one project, or those of the user for all projects."""

    PROJECT = "project"
    USER = "user"


Writer = Callable[[Moment, str, HookVerdict], HostReply]


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A coding agent, and how it speaks.

    Attributes:
        name: The word for it on the command line.
        title: Its name in texts.
        toolset: The toolset of its built-in tools.
        events: The moments that its events are, by the names of the events.
        installed: The events that `install` names in the settings.
        tools: Its names of tools that all coding agents have, and the common names.
        spawns: The tools that start a sub-agent.
        mcp: How it spells the tools of MCP servers: what stands before the server's name, and after it; `""` after it
            if the server is not named.
        server_files: The files that name its MCP servers, where the spelling does not show where a server's name ends:
            in the folder of the user's settings with `~`, else in the project.
        write: Writes an answer in its words.
        asks: Whether it can ask the person in front of it about a call.
        refuses_compaction: Whether a hook can keep it from compacting the conversation.
        names_agents: Whether an event inside a sub-agent says so.
        adds_context_to_task: Whether what hooks add to the prompt of a sub-agent goes into its task, as the host has no
            event at which the sub-agent could read it.
        own_prompts: How the prompts begin that the host writes itself, such as the end of a background agent.
        milliseconds: Whether its settings give timeouts in milliseconds.
        shape: How its settings nest a command: `"groups"`, `"list"` or `"bash"`.
        files: The file of the settings, by scope; `~` is the home of the host's settings.
        home: The environment variable that moves the user's settings.
        longest: The longest timeout of some events, in seconds, where the host has one.
        restart: What a person must do before new settings hold.
    """

    name: str
    title: str
    toolset: str
    events: Mapping[str, Moment]
    installed: tuple[str, ...]
    tools: Mapping[str, str] = {}
    spawns: frozenset[str] = frozenset()
    mcp: tuple[str, str] = ("mcp__", "__")
    server_files: tuple[str, ...] = ()
    write: Writer
    asks: bool = False
    refuses_compaction: bool = False
    names_agents: bool = True
    adds_context_to_task: bool = False
    own_prompts: tuple[str, ...] = ()
    milliseconds: bool = False
    shape: str = "groups"
    files: Mapping[Scope, str]
    home: str = ""
    longest: Mapping[str, float] = {}
    restart: str = "It holds in sessions that begin from now on."

    def settings_file(self, scope: Scope, project: Path) -> Path:
        """Return the file of the settings that name the hook.

        Args:
            scope: Whose settings.
            project: The folder of the project.
        """
        return self._path(self.files[scope], project)

    def _path(self, path: str, project: Path) -> Path:
        if not path.startswith("~/"):
            return project / path
        moved = os.environ.get(self.home, "") if self.home else ""
        if moved:
            return Path(moved) / path.split("/", 2)[2]
        return Path.home() / path[2:]

    def split_tool(self, name: str, server: str = "", tool: str = "", folder: str = "") -> tuple[str, str]:
        """Return the toolset and the common name of a tool.

        Args:
            name: The host's name for it.
            server: The MCP server, if the event names it.
            tool: The server's name for the tool, if the event names it.
            folder: The folder in which the agent works.
        """
        if server and tool:
            return server, tool
        files = [self._path(path, Path(folder)) for path in self.server_files if folder or path.startswith("~/")]
        found = split_server_name(name, *self.mcp, files=files if self.server_files else None)
        return found or (self.toolset, self.tools.get(name, name))

    def judges(self, event: str) -> bool:
        """Return whether an event judges a call, so that a hook that fails must deny it."""
        return self.events.get(event) in (Moment.BEFORE_TOOL, Moment.PERMISSION)


CLAUDE = Host(
    name="claude",
    title="Claude Code",
    toolset="claude_code",
    events={
        "SessionStart": Moment.SESSION_START,
        "UserPromptSubmit": Moment.PROMPT,
        "PreToolUse": Moment.BEFORE_TOOL,
        "PermissionRequest": Moment.PERMISSION,
        "PostToolUse": Moment.AFTER_TOOL,
        "PostToolUseFailure": Moment.FAILED_TOOL,
        "SubagentStart": Moment.AGENT_START,
        "SubagentStop": Moment.AGENT_STOP,
        "PreCompact": Moment.BEFORE_COMPACT,
        "PostCompact": Moment.AFTER_COMPACT,
        "Stop": Moment.STOP,
        "SessionEnd": Moment.SESSION_END,
    },
    installed=(
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "SubagentStart",
        "SubagentStop",
        "PreCompact",
        "PostCompact",
        "Stop",
        "SessionEnd",
    ),
    spawns=frozenset({"Agent", "Task"}),
    write=write_claude,
    asks=True,
    refuses_compaction=True,
    own_prompts=("<task-notification>",),
    files={Scope.PROJECT: ".claude/settings.local.json", Scope.USER: "~/.claude/settings.json"},
    home="CLAUDE_CONFIG_DIR",
)

CODEX = Host(
    name="codex",
    title="Codex",
    toolset="codex",
    events={
        "SessionStart": Moment.SESSION_START,
        "UserPromptSubmit": Moment.PROMPT,
        "PreToolUse": Moment.BEFORE_TOOL,
        "PermissionRequest": Moment.PERMISSION,
        "PostToolUse": Moment.AFTER_TOOL,
        "SubagentStart": Moment.AGENT_START,
        "SubagentStop": Moment.AGENT_STOP,
        "PreCompact": Moment.BEFORE_COMPACT,
        "PostCompact": Moment.AFTER_COMPACT,
        "Stop": Moment.STOP,
        "SessionEnd": Moment.SESSION_END,
    },
    installed=(
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "SubagentStart",
        "SubagentStop",
        "PreCompact",
        "PostCompact",
        "Stop",
        "SessionEnd",
    ),
    spawns=frozenset({"spawn_agent"}),
    write=write_codex,
    files={Scope.PROJECT: ".codex/hooks.json", Scope.USER: "~/.codex/hooks.json"},
    home="CODEX_HOME",
    longest={"SessionEnd": 3.0},
)

GEMINI = Host(
    name="gemini",
    title="Gemini CLI",
    toolset="gemini_cli",
    events={
        "SessionStart": Moment.SESSION_START,
        "BeforeAgent": Moment.PROMPT,
        "BeforeTool": Moment.BEFORE_TOOL,
        "AfterTool": Moment.AFTER_TOOL,
        "AfterAgent": Moment.STOP,
        "SessionEnd": Moment.SESSION_END,
    },
    installed=("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"),
    tools={"run_shell_command": "Bash", "read_file": "Read", "write_file": "Write", "replace": "Edit"},
    spawns=frozenset({"invoke_agent"}),
    mcp=("", ""),  # `mcp_server_tool`, where either may have underscores: the event names both
    write=write_gemini,
    names_agents=False,
    adds_context_to_task=True,
    milliseconds=True,
    files={Scope.PROJECT: ".gemini/settings.json", Scope.USER: "~/.gemini/settings.json"},
)

CURSOR = Host(
    name="cursor",
    title="Cursor",
    toolset="cursor",
    events={
        "sessionStart": Moment.SESSION_START,
        "beforeSubmitPrompt": Moment.PROMPT,
        "preToolUse": Moment.BEFORE_TOOL,
        "beforeShellExecution": Moment.PERMISSION,
        "beforeMCPExecution": Moment.PERMISSION,
        "postToolUse": Moment.AFTER_TOOL,
        "postToolUseFailure": Moment.FAILED_TOOL,
        "subagentStart": Moment.AGENT_START,
        "subagentStop": Moment.AGENT_STOP,
        "stop": Moment.STOP,
        "sessionEnd": Moment.SESSION_END,
    },
    installed=(
        "sessionStart",
        "beforeSubmitPrompt",
        "preToolUse",
        "postToolUse",
        "postToolUseFailure",
        "subagentStart",
        "subagentStop",
        "stop",
        "sessionEnd",
    ),
    tools={"Shell": "Bash"},
    spawns=frozenset({"Task"}),
    mcp=("MCP:", ""),
    adds_context_to_task=True,
    write=write_cursor,
    shape="list",
    files={Scope.PROJECT: ".cursor/hooks.json", Scope.USER: "~/.cursor/hooks.json"},
)

COPILOT = Host(
    name="copilot",
    title="Copilot CLI",
    toolset="copilot",
    events={
        "sessionStart": Moment.SESSION_START,
        "userPromptSubmitted": Moment.PROMPT,
        "preToolUse": Moment.BEFORE_TOOL,
        "postToolUse": Moment.AFTER_TOOL,
        "postToolUseFailure": Moment.FAILED_TOOL,
        "subagentStart": Moment.AGENT_START,
        "subagentStop": Moment.AGENT_STOP,
        "agentStop": Moment.STOP,
        "sessionEnd": Moment.SESSION_END,
    },
    # Not `subagentStart`: it does not tell the task, by which the first event inside finds the call that started it.
    installed=(
        "sessionStart",
        "userPromptSubmitted",
        "preToolUse",
        "postToolUse",
        "postToolUseFailure",
        "subagentStop",
        "agentStop",
        "sessionEnd",
    ),
    tools={"bash": "Bash", "view": "Read", "create": "Write", "edit": "Edit"},
    spawns=frozenset({"task"}),
    mcp=("", "-"),  # `server-tool`, where either may have hyphens; its own tools have none
    server_files=("~/.copilot/mcp-config.json", ".mcp.json", ".github/mcp.json", ".vscode/mcp.json"),
    write=write_copilot,
    shape="bash",
    files={Scope.PROJECT: ".github/hooks/hookline.json", Scope.USER: "~/.copilot/hooks/hookline.json"},
    home="COPILOT_HOME",
)

HOSTS: Mapping[str, Host] = {host.name: host for host in (CLAUDE, CODEX, GEMINI, CURSOR, COPILOT)}
"""The coding agents, by their words on the command line."""
