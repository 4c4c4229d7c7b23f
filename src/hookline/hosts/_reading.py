"""Read what a coding agent sends to its hook, whatever its version: unknown keys are ignored."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from hookline.errors import HooklineError
from hookline.hosts._hosts import Host
from hookline.hosts._moments import Moment

__all__ = ["QuestionError", "SessionEvent", "read_event"]


KNOWN_KEYS = frozenset(
    """
    session_id sessionId conversation_id generation_id transcript_path transcriptPath agent_transcript_path cwd
    hook_event_name timestamp prompt_id turn_id permission_mode effort model source reason status trigger
    tool_name toolName tool_input toolArgs tool_use_id tool_call_id tool_response toolResult tool_output mcp_context
    original_request_name duration duration_ms error error_message is_interrupt permission_suggestions
    prompt prompt_response initialPrompt attachments stop_hook_active stopReason last_assistant_message loop_count
    background_tasks session_crons custom_instructions compact_summary
    agent_id agent_type agent_message subagent_id subagent_type is_background_agent composer_mode
    agentId agentType agentName parentAgentId response hookName toolInput permissionSuggestions
    workspace_roots cursor_version user_email command url file_path
    """.split()  # noqa: SIM905
)
"""Keys that some version of some coding agent was seen, or is documented, to send."""


class QuestionError(HooklineError):
    """A coding agent sent something that hookline does not understand."""

    def __init__(self, host: str, event: str, problem: str) -> None:
        super().__init__(host, event, problem)
        self.host, self.event, self.problem = host, event, problem

    def __str__(self) -> str:
        return f"hookline does not understand {self.event} of {self.host}: {self.problem}"


class SessionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a coding agent.

    Attributes:
        name: The host's name for it.
        moment: The moment that it is.
        session_id: The session.
        agent_id: The sub-agent in which it happened; `""` for the session's own agent.
        agent_type: The kind of the sub-agent.
        tool: The host's name of the tool.
        toolset: The toolset of the tool.
        tool_name: The common name of the tool.
        args: The arguments of the call.
        call_id: The id of the call; `""` if the host gives none.
        result: The result of the tool, as text.
        response: The result of the tool, as the host sent it.
        started_agent: The id of the sub-agent that the tool started.
        error: What a tool failed with.
        text: The prompt, or the last words of the agent.
        continued: Whether the agent goes on because a hook said so.
        summary: The summary of a compaction.
        model: The model.
        folder: The folder in which the agent works.
        source: Why the session begins.
        transcript: The file in which the host keeps the session.
        agent_transcript: The file in which it keeps the sub-agent's part.
        parent_id: The session or sub-agent that called the sub-agent, if the event names it.
        at: When it was read, in unix seconds.
        unknown: Keys that this version of hookline does not know.
    """

    name: str
    moment: Moment
    session_id: str
    agent_id: str = ""
    agent_type: str = ""
    tool: str = ""
    toolset: str = ""
    tool_name: str = ""
    args: dict[str, Any] = {}
    call_id: str = ""
    result: str = ""
    response: Any = None
    started_agent: str = ""
    error: str = ""
    text: str = ""
    continued: bool = False
    summary: str = ""
    model: str = ""
    folder: str = ""
    source: str = ""
    transcript: str = ""
    agent_transcript: str = ""
    parent_id: str = ""
    at: float = 0.0
    unknown: tuple[str, ...] = ()


def read_event(host: Host, name: str, question: bytes) -> SessionEvent:
    """Read an event.

    Args:
        host: The host that sends it.
        name: The event's name, from the installed command line.
        question: The JSON that the host wrote.

    Raises:
        QuestionError: If it is no JSON object, or a tool call without a tool.
    """
    given = _decode(host, name, question)
    moment = host.events.get(name, Moment.OTHER)
    tool = _text(given, "tool_name", "toolName")
    if moment in (Moment.BEFORE_TOOL, Moment.AFTER_TOOL, Moment.FAILED_TOOL) and not tool:
        raise QuestionError(host.title, name, "it names no tool")
    context = given.get("mcp_context")
    server = context if isinstance(context, Mapping) else {}
    toolset, tool_name = host.split_tool(
        tool, _text(server, "server_name"), _text(server, "tool_name"), _text(given, "cwd")
    )
    response = next((given[key] for key in ("tool_response", "toolResult", "tool_output") if key in given), "")
    agent_id, parent_id = _text(given, "agent_id", "subagent_id", "agentId"), _text(given, "parentAgentId")
    session_id = _text(given, "session_id", "sessionId", "conversation_id") or "unknown"
    return SessionEvent(
        name=name,
        moment=moment,
        # In a sub-agent of Copilot CLI, its id stands in the place of the session's.
        session_id=parent_id if parent_id and session_id == agent_id else session_id,
        agent_id=agent_id,
        agent_type=_text(given, "agent_type", "subagent_type", "agentType"),
        tool=tool,
        toolset=toolset,
        tool_name=tool_name,
        args=_read_args(host, name, given) if tool else {},
        call_id=_text(given, "tool_use_id", "tool_call_id"),
        result=text_of(response),
        response=response,
        started_agent=_find_agent(response),
        error=_text(given, "error", "error_message"),
        text=_text(given, "prompt", "last_assistant_message", "prompt_response", "response")
        if moment is not Moment.STOP
        else _text(given, "last_assistant_message", "prompt_response"),
        continued=given.get("stop_hook_active") is True or bool(given.get("loop_count")),
        summary=_text(given, "compact_summary"),
        model=_text(given, "model"),
        folder=_text(given, "cwd"),
        source=_text(given, "source"),
        transcript=_text(given, "transcript_path", "transcriptPath"),
        agent_transcript=_text(given, "agent_transcript_path"),
        parent_id=parent_id,
        at=time.time(),
        unknown=tuple(key for key in given if key not in KNOWN_KEYS),
    )


def _decode(host: Host, name: str, question: bytes) -> dict[str, Any]:
    try:
        try:
            given = msgspec.json.decode(question)
        except (msgspec.DecodeError, UnicodeDecodeError):  # half of a surrogate pair, where the host cut a text
            given = _whole(json.loads(question.decode(errors="replace")))
    except RecursionError:
        raise QuestionError(host.title, name, "it is nested too deeply") from None
    except ValueError as error:
        raise QuestionError(host.title, name, f"it is no JSON ({error})") from None
    if not isinstance(given, dict):
        raise QuestionError(host.title, name, "it is no JSON object")
    return given


def _whole(value: Any) -> Any:
    """Return a value whose texts can be stored: half of a surrogate pair becomes `�`."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(each) for key, each in value.items()}
    return value


def _text(given: Mapping[str, Any], *names: str) -> str:
    """Return the first of some fields that is a text."""
    return next((value for name in names if isinstance(value := given.get(name), str)), "")


def _read_args(host: Host, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    args: Any = given.get("tool_input", given.get("toolArgs", {}))
    if isinstance(args, str):  # some versions send the text that the model wrote
        try:
            args = msgspec.json.decode(args) if args.strip() else {}
        except msgspec.DecodeError:
            args = {"input": args}
    if not isinstance(args, dict):
        raise QuestionError(host.title, name, "its arguments are no JSON object")
    return args


def text_of(value: Any) -> str:
    """Return a tool's response as text: that of its text blocks, its stdout, or its JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        for key in ("llmContent", "content", "textResultForLlm"):
            if key in value:
                return text_of(value[key])
        if isinstance(value.get("stdout"), str):
            return "\n".join(filter(None, (value["stdout"], str(value.get("stderr") or ""))))
    if isinstance(value, list) and value and all(isinstance(each, Mapping) and "text" in each for each in value):
        return "\n".join(str(each["text"]) for each in value)
    return json.dumps(value, ensure_ascii=False, default=str) if value not in (None, "") else ""


def _find_agent(response: Any) -> str:
    """Return the id of the sub-agent that a response names."""
    if isinstance(response, str) and response.startswith("{"):
        try:
            response = msgspec.json.decode(response)
        except msgspec.DecodeError:
            return ""
    return _text(response, "agent_id", "agentId") if isinstance(response, Mapping) else ""
