"""Convert messages, tools and callback outputs between the Claude Agent SDK and hookline."""

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
from hookline.calls import ModelResponse, ToolRequest, ToolResult, Usage, join_texts
from hookline.events import CompletionReason, PendingTool
from hookline.runtime import AgentDone, ToolDone

__all__ = [
    "AGENT_TOOLS",
    "BUILT_IN",
    "BY_STRICTNESS",
    "ask_output",
    "completion_of",
    "decision_of",
    "final_args",
    "from_mcp_result",
    "instruction_of",
    "join_tool_name",
    "reason_of",
    "refusal_output",
    "replacement_output",
    "rewrite_output",
    "split_tool_name",
    "stop_output",
    "text_of",
    "to_mcp_result",
    "to_model_response",
    "to_pending_tool",
    "to_result_messages",
    "tool_results",
]

BUILT_IN = "claude_code"
"""The toolset of Claude Code's built-in tools."""

AGENT_TOOLS = ("Task", "Agent")
"""The names of the tool with which Claude calls a sub-agent."""


def split_tool_name(name: str) -> tuple[str, str]:
    """Return the toolset and the name of a tool, given Claude's name for it."""
    parts = name.split("__", 2)
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == "mcp" else (BUILT_IN, name)


def join_tool_name(server: str, name: str) -> str:
    """Return Claude's name for a tool of an MCP server."""
    return f"mcp__{server}__{name}"


def text_of(value: Any) -> str:
    """Return the output of a tool as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), list):
        value = value["content"]
    if isinstance(value, list) and all(isinstance(block, Mapping) and "text" in block for block in value):
        return "\n".join(block["text"] for block in value)
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:  # a lone surrogate, where the CLI has truncated a text
        return json.dumps(value, default=str)


# Messages.


def to_model_response(message: AssistantMessage) -> ModelResponse:
    """Convert an assistant message of Claude."""
    usage, blocks = message.usage or {}, message.content
    names = [(block, *split_tool_name(block.name)) for block in blocks if isinstance(block, ToolUseBlock)]
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
        cost_known=False,
        finish_reason=message.stop_reason or "stop",
        model=message.model,
        response_id=message.message_id or "",
    )


def tool_results(message: UserMessage) -> Iterator[tuple[str, str, bool]]:
    """Yield the tool results in a message: call id, content, and whether the tool failed."""
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, ToolResultBlock):
            yield block.tool_use_id, text_of(block.content or ""), bool(block.is_error)


def completion_of(message: ResultMessage) -> tuple[CompletionReason, Exception | None]:
    """Return why a task of Claude ended, and its error if it failed."""
    if message.subtype == "error_max_turns":
        return "max_steps", None
    if message.subtype == "error_max_budget_usd":
        return "cost_limit", None
    if not message.is_error:
        return "done", None
    reason = "; ".join(message.errors or ()) or message.result or message.subtype
    return "error", RuntimeError(reason)


def to_result_messages(text: str) -> list[Any]:
    """Return the messages of a task whose output a hook provided."""
    answer = AssistantMessage(content=[TextBlock(text=text)], model="hookline")
    result = ResultMessage(
        subtype="success", duration_ms=0, duration_api_ms=0, is_error=False, num_turns=0, session_id="", result=text
    )
    return [answer, result]


# Tools.


def instruction_of(args: Mapping[str, Any]) -> str:
    """Return the instruction in the arguments of a sub-agent call."""
    return str(args.get("prompt", ""))


def from_mcp_result(answer: Any) -> ToolResult:
    """Convert the result of an in-process MCP tool."""
    blocks = getattr(answer, "content", None) or []
    texts = [block.text if isinstance(block, TextContent) else block.model_dump_json() for block in blocks]
    return ToolResult(content="\n".join(texts), success=not getattr(answer, "is_error", False))


def to_mcp_result(text: str, *, failed: bool) -> CallToolResult:
    """Return the MCP result that tells Claude what hooks or a person decided about an in-process tool call."""
    return CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})


def add_text(answer: Any, text: str) -> Any:
    """Return the result of an in-process MCP tool with a text at its end."""
    blocks = list(answer.content or ())
    if blocks and isinstance(last := blocks[-1], TextContent):
        blocks[-1] = last.model_copy(update={"text": join_texts(last.text, text)})
    else:
        blocks.append(TextContent(type="text", text=text))
    return answer.model_copy(update={"content": blocks})


def final_args(name: str, args: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """Return the arguments to make a call with, after hooks; for a sub-agent, its instruction is replaced."""
    return {**args, "prompt": given} if name in AGENT_TOOLS else writable(given)


def to_pending_tool(name: str, args: dict[str, Any], call_id: str, prompt: str) -> PendingTool:
    """Return a call as it is shown to the person who decides."""
    toolset, tool_name = split_tool_name(name)
    return PendingTool(toolset=toolset, tool_name=tool_name, tool_call_id=call_id, args=args, prompt=prompt)


# Outputs of callbacks.


BY_STRICTNESS = ("", "allow", "ask", "defer", "deny")
"""The decisions of a `PreToolUse` hook. If several hooks differ, Claude applies the last one in this order."""


def decision_of(output: Any) -> dict[str, Any]:
    """Return the decision of a `PreToolUse` hook, its reason, and whether it ends the task.

    Empty if the hook decides nothing.
    """
    own = output.get("hookSpecificOutput") or {}
    decision = own.get("permissionDecision") or ("deny" if output.get("decision") == "block" else "")
    if decision not in BY_STRICTNESS[1:]:
        return {}
    reason = own.get("permissionDecisionReason") or output.get("reason") or ""
    stops = output.get("continue_", output.get("continue", True)) is False
    return {"decision": decision, "reason": reason, "stops": stops}


def ask_output(asked: PendingTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hook output that asks a person, showing the arguments that would run."""
    final = writable(asked.args)
    decision: dict[str, Any] = {"permissionDecision": "ask", "permissionDecisionReason": asked.prompt}
    if final != args:
        decision["updatedInput"] = final
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def reason_of(answer: Mapping[str, Any]) -> str:
    """Return the reason in a hook output that denies a call."""
    reason: str = answer["hookSpecificOutput"]["permissionDecisionReason"]
    return reason


def stop_output(reason: str) -> dict[str, Any]:
    """Return the hook output that ends the task."""
    return {"continue_": False, "stopReason": reason, **_deny_output(reason)}


def _deny_output(reason: str) -> dict[str, Any]:
    decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}


def refusal_output(name: str, done: ToolDone | AgentDone) -> dict[str, Any]:
    """Return the hook output that refuses a call."""
    if isinstance(done, AgentDone):
        return _deny_output(done.denied.reason if done.denied is not None else _unusable_answer(name, done.output))
    if done.stop is not None:
        return stop_output(done.stop.reason)
    return _deny_output(_unusable_answer(name, done.result.content) if done.result.success else done.result.content)


def _unusable_answer(name: str, answer: str) -> str:
    return (
        f"{name} was not called, because a hook answered in its place, and Claude accepts such an answer only for "
        f"tools of an MCP server of this process. The answer was: {answer}"
    )


def rewrite_output(args: dict[str, Any]) -> dict[str, Any]:
    """Return the hook output that changes a tool's arguments."""
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": args}}


def context_output(event: str, text: str) -> dict[str, Any]:
    """Return the hook output that adds a text to what the model reads of a tool's result.

    Args:
        event: The event of Claude that is answered.
        text: The text.
    """
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def replacement_output(name: str, done: ToolDone | AgentDone) -> dict[str, Any]:
    """Return the hook output that replaces what the model reads of a tool's result."""
    content = done.output if isinstance(done, AgentDone) else done.result.content
    output: Any = content
    if name == "Bash":
        output = {"stdout": content, "stderr": "", "interrupted": False}
    answer: dict[str, Any] = {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": output}}
    if isinstance(done, ToolDone) and done.stop is not None:
        return {"continue_": False, "stopReason": done.stop.reason, **answer}
    if split_tool_name(name)[0] == BUILT_IN and name not in ("Bash", *AGENT_TOOLS):
        # The CLI falls back to the tool's own output if the new one does not fit the tool's schema, and the model must
        # not see that output.
        return {
            "continue_": False,
            "stopReason": f"A hook changed the result of {name}, and Claude does not support that for this tool.",
            **answer,
        }
    return answer
