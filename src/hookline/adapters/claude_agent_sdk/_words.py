"""What the Claude Agent SDK says, in hookline's words, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from claude_agent_sdk import (
    AssistantMessage,
    ResultMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from mcp.types import CallToolResult, TextContent

from hookline._readonly import writable
from hookline.calls import ModelResponse, ToolRequest, ToolResult, Usage
from hookline.events import CompletionReason, PendingTool
from hookline.runtime import AgentDone, ToolDone

__all__ = [
    "AGENT_TOOLS",
    "BUILT_IN",
    "STRICT",
    "asked_of",
    "asks",
    "decision_of",
    "ending",
    "final_args",
    "joined",
    "mcp_result",
    "model_response",
    "pending",
    "reason_of",
    "refused",
    "replaced",
    "results_in",
    "rewritten",
    "said",
    "split",
    "stopped",
    "text_of",
    "tool_result",
]

BUILT_IN = "claude_code"
"""The toolset of the tools that Claude Code brings along."""

AGENT_TOOLS = ("Task", "Agent")
"""The tools by which Claude calls a sub-agent."""


def split(name: str) -> tuple[str, str]:
    """Where a tool comes from, and its name there."""
    parts = name.split("__", 2)
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == "mcp" else (BUILT_IN, name)


def joined(server: str, name: str) -> str:
    """What Claude calls a tool of an MCP server."""
    return f"mcp__{server}__{name}"


def text_of(value: Any) -> str:
    """What a tool gave, as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), list):
        value = value["content"]
    if isinstance(value, list) and all(isinstance(block, Mapping) and "text" in block for block in value):
        return "\n".join(block["text"] for block in value)
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:  # half a character, where the CLI has cut a text
        return json.dumps(value, default=str)


# Messages.


def model_response(message: AssistantMessage) -> ModelResponse:
    """A message of the model."""
    usage, blocks = message.usage or {}, message.content
    names = [(block, *split(block.name)) for block in blocks if isinstance(block, ToolUseBlock)]
    return ModelResponse(
        content="".join(block.text for block in blocks if isinstance(block, TextBlock)),
        reasoning="".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)),
        tool_calls=[
            ToolRequest(toolset=origin, tool_name=name, args=block.input, tool_call_id=block.id)
            for block, origin, name in names
        ],
        usage=Usage(
            input_tokens=sum(
                usage.get(key) or 0
                for key in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
            ),
            output_tokens=usage.get("output_tokens") or 0,
        ),
        finish_reason=message.stop_reason or "stop",
        model=message.model,
        response_id=message.message_id or "",
    )


def results_in(message: UserMessage) -> Iterator[tuple[str, str, bool]]:
    """The results of tools in a message: the call, what it gave, and whether it failed."""
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, ToolResultBlock):
            yield block.tool_use_id, text_of(block.content or ""), bool(block.is_error)


def ending(message: ResultMessage) -> tuple[CompletionReason, Exception | None]:
    """Why a task of Claude is over."""
    if message.subtype == "error_max_turns":
        return "max_steps", None
    if message.subtype == "error_max_budget_usd":
        return "cost_limit", None
    if not message.is_error:
        return "done", None
    told = "; ".join(message.errors or ()) or message.result or message.subtype
    return "error", RuntimeError(told)


def said(text: str) -> list[Any]:
    """The messages of a task whose answer a hook has given."""
    answer = AssistantMessage(content=[TextBlock(text=text)], model="hookline")
    result = ResultMessage(
        subtype="success", duration_ms=0, duration_api_ms=0, is_error=False, num_turns=0, session_id="", result=text
    )
    return [answer, result]


# Tools.


def asked_of(args: Mapping[str, Any]) -> str:
    """What a sub-agent is asked to do."""
    return str(args.get("prompt", ""))


def tool_result(answer: Any) -> ToolResult:
    """What a tool of this process gave."""
    blocks = getattr(answer, "content", None) or []
    texts = [block.text if isinstance(block, TextContent) else block.model_dump_json() for block in blocks]
    return ToolResult(content="\n".join(texts), success=not getattr(answer, "is_error", False))


def mcp_result(text: str, *, failed: bool) -> CallToolResult:
    """What hooks or people made of a call of a tool of this process."""
    return CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})


def final_args(name: str, args: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """What a call is made with, once hooks have seen it; a sub-agent is given its instruction."""
    return {**args, "prompt": given} if name in AGENT_TOOLS else writable(given)


def pending(name: str, args: dict[str, Any], call_id: str, prompt: str) -> PendingTool:
    """A call as a person is shown it."""
    toolset, tool_name = split(name)
    return PendingTool(toolset=toolset, tool_name=tool_name, tool_call_id=call_id, args=args, prompt=prompt)


# What callbacks answer.


STRICT = ("", "allow", "ask", "defer", "deny")
"""What hooks on `PreToolUse` may decide; where several differ, Claude heeds the one that stands last here."""


def decision_of(output: Any) -> dict[str, Any]:
    """What a hook on `PreToolUse` decides, why, and whether it ends the task; empty if it decides nothing."""
    own = output.get("hookSpecificOutput") or {}
    decision = own.get("permissionDecision") or ("deny" if output.get("decision") == "block" else "")
    if decision not in STRICT[1:]:
        return {}
    reason = own.get("permissionDecisionReason") or output.get("reason") or ""
    stops = output.get("continue_", output.get("continue", True)) is False
    return {"decision": decision, "reason": reason, "stops": stops}


def asks(asked: PendingTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """The answer that has a person asked, about the arguments that will run."""
    final = writable(asked.args)
    decision: dict[str, Any] = {"permissionDecision": "ask", "permissionDecisionReason": asked.prompt}
    if final != args:
        decision["updatedInput"] = final
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def reason_of(answer: Mapping[str, Any]) -> str:
    """Why an answer refuses a call."""
    reason: str = answer["hookSpecificOutput"]["permissionDecisionReason"]
    return reason


def stopped(reason: str) -> dict[str, Any]:
    """The answer that ends the task."""
    return {"continue_": False, "stopReason": reason, **_denied(reason)}


def _denied(reason: str) -> dict[str, Any]:
    decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def refused(name: str, done: ToolDone | AgentDone) -> dict[str, Any]:
    """The answer for a call that is not to be made."""
    if isinstance(done, AgentDone):
        return _denied(done.denied.reason if done.denied is not None else _unanswerable(name, done.output))
    if done.stop is not None:
        return stopped(done.stop.reason)
    return _denied(_unanswerable(name, done.result.content) if done.result.success else done.result.content)


def _unanswerable(name: str, answer: str) -> str:
    return (
        f"{name} was not called, because a hook has answered in its place, and Claude takes such an answer only for "
        f"tools of an MCP server of this process. The answer was: {answer}"
    )


def rewritten(args: dict[str, Any]) -> dict[str, Any]:
    """The answer that has a tool called with other arguments."""
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": args}}


def replaced(name: str, done: ToolDone | AgentDone) -> dict[str, Any]:
    """The answer that tells the model something else than what the tool gave."""
    content = done.output if isinstance(done, AgentDone) else done.result.content
    output: Any = content
    if name == "Bash":
        output = {"stdout": content, "stderr": "", "interrupted": False}
    answer: dict[str, Any] = {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": output}}
    if isinstance(done, ToolDone) and done.stop is not None:
        return {"continue_": False, "stopReason": done.stop.reason, **answer}
    if split(name)[0] == BUILT_IN and name not in ("Bash", *AGENT_TOOLS):
        # The CLI keeps the tool's own output where another does not fit its schema, and the model must not see that.
        return {
            "continue_": False,
            "stopReason": f"A hook changed what {name} gave, which Claude cannot take.",
            **answer,
        }
    return answer
