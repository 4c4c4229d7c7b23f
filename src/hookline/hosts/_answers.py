"""Write verdicts in the words of each coding agent; no single JSON is understood by all of them.

Each agent has one function. What it writes follows what the programs were seen to do, which differs from their
documentation: Codex drops an answer with one key too many, and Gemini obeys `decision` only if nothing else decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from hookline.hosts._moments import Moment

__all__ = [
    "HookVerdict",
    "HostReply",
    "write_claude",
    "write_codex",
    "write_copilot",
    "write_cursor",
    "write_gemini",
]

LONGEST_TEXT = 8000
"""Characters of a reason; a hook that floods must not fill the conversation."""
REPLACED_BY_CLAUDE = ("Bash", "Agent", "Task")
"""Built-in tools of Claude Code whose result a hook can replace."""
NO_REASON = "A hook denied this call."
"""Sent where a hook gave no reason: Codex lets a call run whose denial has none."""


class HookVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of hooks at one moment, in no agent's words.

    Attributes:
        decision: `"deny"` refuses the call, the prompt or the compaction, or withholds the result; `"ask"` has the
            person in front of the agent decide; `"continue"` makes an agent that would stop go on.
        reason: The reason, or the input to go on with.
        args: The arguments to run the tool with, if hooks changed them.
        result: What the model is to read instead of the tool's result.
        tool: The host's name of the tool whose result it is.
        response: The tool's own result, as the host sent it: what replaces it must often have its shape.
        context: Text that the model reads besides.
        stop: Why the turn is to end, if it is.
    """

    decision: Literal["", "deny", "ask", "continue"] = ""
    reason: str = ""
    args: Mapping[str, Any] | None = None
    result: str | None = None
    tool: str = ""
    response: Any = None
    context: str = ""
    stop: str | None = None


class HostReply(msgspec.Struct, frozen=True):
    """The output of the installed command, and its exit code.

    Attributes:
        out: Its stdout.
        err: Its stderr.
        code: Its exit code.
    """

    out: bytes = b""
    err: bytes = b""
    code: int = 0


def write_claude(moment: Moment, event: str, verdict: HookVerdict) -> HostReply:
    """Write an answer for Claude Code.

    `continue: false` alone lets the very tool run that it was said of, so a stop is a denial too.
    """
    own: dict[str, Any] = {"hookEventName": event}
    top: dict[str, Any] = {}
    if verdict.stop is not None:
        top |= {"continue": False, "stopReason": _text(verdict.stop)}
    if verdict.context:
        own["additionalContext"] = _text(verdict.context)
    if moment is Moment.BEFORE_TOOL:
        if verdict.decision in ("deny", "ask"):
            own |= {"permissionDecision": verdict.decision, "permissionDecisionReason": _text(verdict.reason)}
        if verdict.args is not None and verdict.decision != "deny":
            own["updatedInput"] = verdict.args
    elif moment in (Moment.AFTER_TOOL, Moment.FAILED_TOOL):
        if verdict.result is not None and moment is Moment.AFTER_TOOL:
            own["updatedToolOutput"] = _claude_output(verdict.tool, verdict.result, verdict.response)
            if not verdict.tool.startswith("mcp__") and verdict.tool not in REPLACED_BY_CLAUDE:
                # Claude falls back to the tool's own output where the new one does not fit, and the model must not
                # see that.
                top.setdefault("stopReason", f"A hook changed the result of {verdict.tool}, which Claude cannot show.")
                top["continue"] = False
        elif verdict.result is not None:
            top |= {"decision": "block", "reason": _text(verdict.result)}
    elif verdict.decision in ("deny", "continue"):
        top |= {"decision": "block", "reason": _text(verdict.reason)}
    if len(own) > 1:
        top["hookSpecificOutput"] = own
    return _json(top)


def _claude_output(tool: str, text: str, response: object) -> Any:
    """Return a result in the shape that Claude Code expects of a tool; in another shape it is ignored."""
    if tool == "Bash":
        return {"stdout": text, "stderr": "", "interrupted": False}
    if tool in ("Agent", "Task") and isinstance(response, Mapping):
        return {**response, "content": [{"type": "text", "text": text}]}
    return text


def write_codex(moment: Moment, event: str, verdict: HookVerdict) -> HostReply:
    """Write an answer for Codex, with exactly the keys that it knows: one more, and it runs the call.

    It can neither ask nor stop before a tool.
    """
    own: dict[str, Any] = {"hookEventName": event}
    top: dict[str, Any] = {}
    if verdict.context:
        own["additionalContext"] = _text(verdict.context)
    if moment is Moment.BEFORE_TOOL:
        if verdict.decision in ("deny", "ask"):
            own |= {"permissionDecision": "deny", "permissionDecisionReason": _text(verdict.reason)}
        elif verdict.args is not None:
            own |= {"permissionDecision": "allow", "updatedInput": verdict.args}
    elif moment is Moment.AFTER_TOOL:
        said = verdict.stop if verdict.result is None else verdict.result
        if said is not None:
            top |= {"decision": "block", "reason": _text(said)}
    elif moment in (Moment.PROMPT, Moment.STOP, Moment.AGENT_STOP) and verdict.decision in ("deny", "continue"):
        top |= {"decision": "block", "reason": _text(verdict.reason)}
    if len(own) > 1 and moment not in (Moment.STOP, Moment.AGENT_STOP):
        top["hookSpecificOutput"] = own
    return _json(top)


def write_gemini(moment: Moment, event: str, verdict: HookVerdict) -> HostReply:
    """Write an answer for Gemini CLI; `decision: "ask"` would hang for ever without a terminal, so it is a denial."""
    own: dict[str, Any] = {"hookEventName": event}
    top: dict[str, Any] = {}
    if verdict.context:
        own["additionalContext"] = _text(verdict.context)
    if verdict.stop is not None:
        top |= {"continue": False, "stopReason": _text(verdict.stop)}
    if moment is Moment.BEFORE_TOOL:
        if verdict.decision in ("deny", "ask"):
            top |= {"decision": "deny", "reason": _text(verdict.reason)}
        elif verdict.args is not None:
            own["tool_input"] = verdict.args
    elif moment is Moment.AFTER_TOOL:
        if verdict.result is not None:
            top |= {"decision": "deny", "reason": _text(verdict.result)}
    elif verdict.decision in ("deny", "continue"):
        top |= {"decision": "deny", "reason": _text(verdict.reason)}
    if len(own) > 1:
        top["hookSpecificOutput"] = own
    return _json(top)


def write_cursor(moment: Moment, event: str, verdict: HookVerdict) -> HostReply:
    """Write an answer for Cursor, as its documentation says: it was not tried."""
    top: dict[str, Any] = {}
    if moment in (Moment.BEFORE_TOOL, Moment.PERMISSION, Moment.AGENT_START):
        if verdict.decision in ("deny", "ask"):
            said = _text(verdict.reason)
            top |= {"permission": "deny", "user_message": said, "agent_message": said}
        elif verdict.args is not None:
            top |= {"permission": "allow", "updated_input": verdict.args}
    elif moment is Moment.PROMPT:
        if verdict.decision == "deny":
            top |= {"continue": False, "user_message": _text(verdict.reason)}
    elif moment in (Moment.STOP, Moment.AGENT_STOP):
        if verdict.decision == "continue":
            top |= {"followup_message": _text(verdict.reason)}
    elif verdict.result is not None:
        replaces = moment is Moment.AFTER_TOOL and verdict.tool.startswith("MCP:")
        top |= {"updated_mcp_tool_output" if replaces else "additional_context": _text(verdict.result)}
    if verdict.context and moment in (Moment.SESSION_START, Moment.AFTER_TOOL):
        top["additional_context"] = _text(verdict.context)
    return _json(top)


def write_copilot(moment: Moment, event: str, verdict: HookVerdict) -> HostReply:
    """Write an answer for Copilot CLI, in the flat form of its own events."""
    top: dict[str, Any] = {}
    if moment is Moment.BEFORE_TOOL:
        if verdict.decision in ("deny", "ask"):
            top |= {"permissionDecision": "deny", "permissionDecisionReason": _text(verdict.reason)}
        elif verdict.args is not None:
            top |= {"permissionDecision": "allow", "modifiedArgs": verdict.args}
    elif moment is Moment.AFTER_TOOL and verdict.result is not None:
        top["modifiedResult"] = {"resultType": "success", "textResultForLlm": _text(verdict.result)}
    elif (moment, verdict.decision) in ((Moment.PROMPT, "deny"), (Moment.STOP, "continue")):
        top |= {"decision": "block", "reason": _text(verdict.reason)}
    if verdict.context:
        top["additionalContext"] = _text(verdict.context)
    return _json(top)


def _text(text: str) -> str:
    """Return a text that is neither blank nor endless."""
    if not text.strip():
        return NO_REASON
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} … ({len(text)} characters)"


def _json(top: dict[str, Any]) -> HostReply:
    """Return an answer on stdout; none at all if nothing was said."""
    if not top:
        return HostReply()
    try:
        return HostReply(out=msgspec.json.encode(top))
    except UnicodeEncodeError:  # half of a surrogate pair, which `json` escapes
        return HostReply(out=json.dumps(top).encode())
