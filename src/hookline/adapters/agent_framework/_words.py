"""What Microsoft Agent Framework says in the words of hookline, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_framework import AgentResponse, ChatResponse, Content, FunctionTool, normalize_tools
from agent_framework import Message as Theirs

from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec, Usage
from hookline.events import PendingTool
from hookline.runtime import Approve, Reject

__all__ = [
    "OPERATION",
    "REJECTED",
    "agent_of",
    "calling",
    "chat_response",
    "decisions",
    "heard",
    "messages_again",
    "model_name",
    "model_response",
    "pending",
    "rejection",
    "request",
    "said",
    "said_instead",
    "server_of",
    "specs",
    "text_of",
]

OPERATION = "hookline_operation_id"
"""Where a request for approval says which operation waits for the answer."""
REJECTED = "hookline_rejected"
"""Where a rejection says why, and whether the run goes on."""

_encoded = json.JSONEncoder(default=str).encode


# Tools.


def agent_of(tool: Any) -> Any | None:
    """The agent that a tool calls, if `as_tool` has made it."""
    function: Any = getattr(tool, "func", None)
    if not getattr(function, "__qualname__", "").endswith("as_tool.<locals>._agent_wrapper"):
        return None
    code, cells = function.__code__, function.__closure__ or ()
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=False)).get("self")


def server_of(tool: Any) -> str:
    """Where a tool comes from: the name of its MCP server, `"agent"`, or `"local"`."""
    if agent_of(tool) is not None:
        return "agent"
    function = getattr(tool, "func", None)
    if not getattr(function, "__qualname__", "").startswith("_make_mcp_"):
        return "local"
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return next((str(each.name) for each in held if hasattr(each, "session") and hasattr(each, "name")), "mcp")


def calling(content: Any, tools: Mapping[str, str]) -> ToolRequest:
    """A call that a model asks for.

    Args:
        content: The `function_call`.
        tools: Where the tools come from, by name.
    """
    args = content.arguments
    if isinstance(args, str):
        try:
            args = json.loads(args or "{}")
        except ValueError:
            args = content.arguments
    given = args if isinstance(args, dict | str) else dict(args or {})
    return ToolRequest(
        toolset=tools.get(content.name, "local"), tool_name=content.name, args=given, tool_call_id=content.call_id
    )


def specs(offered: Any) -> list[ToolSpec]:
    """The tools that a model is offered."""
    found = [tool for tool in normalize_tools(offered) if isinstance(tool, FunctionTool)]
    return [
        ToolSpec(toolset=server_of(each), name=each.name, description=each.description, schema=each.parameters())
        for each in found
    ]


# Messages.


def text_of(contents: Any) -> str:
    """The text of what a tool gave."""
    if isinstance(contents, str):
        return contents
    if isinstance(contents, Content):
        return str(contents.text or "")
    if isinstance(contents, list) and all(isinstance(each, Content) for each in contents):
        return "\n".join(each.text for each in contents if each.text)
    return _encoded(contents)


def heard(message: Any, tools: Mapping[str, str]) -> list[Message]:
    """A message of theirs; each result of a tool in it is one of ours."""
    contents = message.contents
    found = [
        Message(role="tool", content=str(each.result or ""), tool_call_id=each.call_id)
        for each in contents
        if each.type == "function_result"
    ]
    calls = [calling(each, tools) for each in contents if each.type == "function_call"]
    if message.text or calls or not found:
        role: Any = message.role if message.role in ("system", "assistant", "tool") else "user"
        found.append(Message(role=role, content=message.text, tool_calls=calls))
    return found


def said(message: Message) -> Theirs:
    """A message that a hook has written."""
    if message.role == "tool":
        told = Content.from_function_result(call_id=message.tool_call_id or "", result=message.content)
        return Theirs("tool", [told])
    text = [Content.from_text(message.content)] if message.content else []
    return Theirs(message.role, [*text, *map(_call, message.tool_calls)])


def _call(call: ToolRequest) -> Content:
    given = call.args if isinstance(call.args, str) else json.dumps(call.args)
    return Content.from_function_call(call_id=call.tool_call_id, name=call.tool_name, arguments=given)


def messages_again(messages: Sequence[Message], known: Sequence[tuple[Any, list[Message]]]) -> list[Any]:
    """Messages that hooks have changed; those that they left alone are the ones that the framework gave.

    Args:
        messages: The messages now.
        known: Each message of theirs, and what it was in our words.
    """
    found: list[Any] = []
    at = 0
    while at < len(messages):
        own = next(((theirs, ours) for theirs, ours in known if messages[at : at + len(ours)] == ours), None)
        at += len(own[1]) if own is not None else 1
        found.append(own[0] if own is not None else said(messages[at - 1]))
    return found


# Answers of models.


def model_name(agent: Any) -> str:
    """The model's name."""
    options = getattr(agent, "default_options", None) or {}
    return str(options.get("model") or getattr(getattr(agent, "client", None), "model", None) or "")


def model_response(response: Any, tools: Mapping[str, str]) -> ModelResponse:
    """A model's answer."""
    contents = [each for message in response.messages for each in message.contents]
    usage: Mapping[str, Any] = response.usage_details or {}
    return ModelResponse(
        content=response.text,
        tool_calls=[calling(each, tools) for each in contents if each.type == "function_call"],
        reasoning="\n".join(each.text for each in contents if each.type == "text_reasoning" and each.text),
        usage=Usage(
            input_tokens=usage.get("input_token_count") or 0, output_tokens=usage.get("output_token_count") or 0
        ),
        finish_reason=str(response.finish_reason or "stop"),
        model=response.model or "",
        response_id=response.response_id or "",
    )


def chat_response(response: ModelResponse) -> ChatResponse[Any]:
    """A model's answer that a hook has given or changed."""
    message = said(Message(role="assistant", content=response.content, tool_calls=response.tool_calls))
    tokens = response.usage.input_tokens, response.usage.output_tokens
    usage: Any = {
        "input_token_count": tokens[0],
        "output_token_count": tokens[1],
        "total_token_count": sum(tokens),
    }
    return ChatResponse(messages=[message], usage_details=usage, model=response.model or None, finish_reason="stop")


def said_instead(response: AgentResponse[Any], output: str, response_format: Any) -> AgentResponse[Any]:
    """A run's response in which a hook has written what was said last.

    Args:
        response: What the run gave; its raw representation, which holds what was said before, is left out.
        output: What the hook has written.
        response_format: What the text is to be read as, when somebody asks for its `value`.
    """
    before = response.messages[-1] if response.messages else None
    last = Theirs(
        "assistant",
        [output],
        author_name=before.author_name if before is not None else None,
        message_id=before.message_id if before is not None else None,
    )
    return AgentResponse(
        messages=[*response.messages[:-1], last],
        response_id=response.response_id,
        agent_id=response.agent_id,
        created_at=response.created_at,
        finish_reason=response.finish_reason,
        usage_details=response.usage_details,
        additional_properties=response.additional_properties,
        response_format=response_format,
    )


# People.


def pending(response: AgentResponse[Any], tools: Mapping[str, str]) -> list[PendingTool]:
    """The calls that wait for a person."""
    asked = [each for each in response.user_input_requests if each.type == "function_approval_request"]
    found = [calling(each.function_call, tools) for each in asked if each.function_call is not None]
    return [
        PendingTool(
            toolset=each.toolset,
            tool_name=each.tool_name,
            tool_call_id=each.tool_call_id,
            args=each.args if isinstance(each.args, dict) else {},
        )
        for each in found
    ]


def decisions(messages: Iterable[Any], mark: str) -> tuple[dict[str, Approve | Reject], set[str], str | None]:
    """Read what a person has decided.

    Args:
        messages: What the run is given.
        mark: Where the answers say for which operation they are.

    Returns:
        The decisions by tool call; the calls of which the model is to be told in our words, because `answers` made the
        answer; and the operation, if an answer says it.
    """
    answers = [each for message in messages for each in message.contents if each.type == "function_approval_response"]
    found: dict[str, Approve | Reject] = {}
    reworded: set[str] = set()
    operation = None
    for each in answers:
        call, more = each.function_call.call_id, each.additional_properties or {}
        why = more.get(REJECTED) or {}
        if why:
            reworded.add(call)
        reject = Reject(call, str(why.get("reason", "")), bool(why.get("and_continue", True)))
        found[call] = Approve(call) if each.approved else reject
        operation = more.get(mark) or operation
    return found, reworded, operation


def request(occurrence: str, call_id: str, name: str, args: Mapping[str, Any]) -> Content:
    """A call, as a request for a person's approval.

    Args:
        occurrence: The framework's own id of the call.
        call_id: The model's id of it.
        name: The tool.
        args: The arguments as the person is to see them.
    """
    call = Content.from_function_call(call_id=call_id, id=occurrence, name=name, arguments=json.dumps(args))
    return Content.from_function_approval_request(id=occurrence, function_call=call)


def rejection(decision: Reject) -> str:
    """What the model is told of a call that a person refused."""
    return f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."
