"""Convert messages, tools, responses and approvals between Microsoft Agent Framework and hookline."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent_framework import AgentResponse, ChatResponse, Content, FunctionTool, normalize_tools
from agent_framework import Message as Theirs

from hookline.adapters._conversion import restore_messages, to_pending_tool
from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec, Usage
from hookline.events import PendingTool
from hookline.runtime import Approve, Reject, ToolDone

__all__ = [
    "OPERATION_KEY",
    "REJECTED_KEY",
    "add_text",
    "agent_of",
    "approval_request",
    "from_agent_framework_message",
    "is_frame",
    "model_name",
    "read_decisions",
    "replace_output",
    "text_of",
    "to_agent_framework_message",
    "to_agent_framework_messages",
    "to_chat_response",
    "to_model_response",
    "to_pending_tools",
    "to_tool_request",
    "to_tool_specs",
    "toolset_of",
    "update_text_reader",
    "with_update_text",
]

OPERATION_KEY = "hookline_operation_id"
"""Key under which an approval request names the operation that waits."""
REJECTED_KEY = "hookline_rejected"
"""Key under which a rejection by `answers` holds the reason and whether the run continues."""

_encode = json.JSONEncoder(default=str).encode


# Tools.


def agent_of(tool: Any) -> Any | None:
    """Return the agent that a tool calls, if the tool was made with `as_tool`."""
    function: Any = getattr(tool, "func", None)
    if not getattr(function, "__qualname__", "").endswith("as_tool.<locals>._agent_wrapper"):
        return None
    code, cells = function.__code__, function.__closure__ or ()
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=False)).get("self")


def toolset_of(tool: Any) -> str:
    """Return the toolset of a tool: the name of its MCP server, `"agent"`, or `"local"`."""
    if agent_of(tool) is not None:
        return "agent"
    function = getattr(tool, "func", None)
    if not getattr(function, "__qualname__", "").startswith("_make_mcp_"):
        return "local"
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return next((str(each.name) for each in held if hasattr(each, "session") and hasattr(each, "name")), "mcp")


def to_tool_request(content: Any, tools: Mapping[str, str]) -> ToolRequest:
    """Convert a `function_call` content.

    Args:
        content: The `function_call`.
        tools: The toolset of each tool, by tool name.
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


def to_tool_specs(offered: Any) -> list[ToolSpec]:
    """Convert the tools that a model is offered."""
    found = [tool for tool in normalize_tools(offered) if isinstance(tool, FunctionTool)]
    return [
        ToolSpec(toolset=toolset_of(each), name=each.name, description=each.description, schema=each.parameters())
        for each in found
    ]


# Messages.


def text_of(contents: Any) -> str:
    """Return the text of what a tool returned."""
    if isinstance(contents, str):
        return contents
    if isinstance(contents, Content):
        return str(contents.text or "")
    if not isinstance(contents, list):
        return _encode(contents)
    texts: list[str] = []
    for each in contents:
        if not isinstance(each, Content):
            return _encode(contents)
        if each.text:
            texts.append(each.text)
    return "\n".join(texts)


def add_text(result: Any, done: ToolDone) -> Any:
    """Return what a tool returned with the text that hooks have added for the model, and the contents that it has."""
    contents = result if isinstance(result, list) else [result]
    if contents and all(isinstance(each, Content) for each in contents):
        return [*contents, Content.from_text(done.added)]
    return done.result.content


def from_agent_framework_message(message: Any, tools: Mapping[str, str]) -> list[Message]:
    """Convert a message; each tool result in it becomes a message of its own."""
    contents = message.contents
    found = [
        Message(role="tool", content=str(each.result or ""), tool_call_id=each.call_id)
        for each in contents
        if each.type == "function_result"
    ]
    calls = [to_tool_request(each, tools) for each in contents if each.type == "function_call"]
    if message.text or calls or not found:
        role: Any = message.role if message.role in ("system", "assistant", "tool") else "user"
        found.append(Message(role=role, content=message.text, tool_calls=calls))
    return found


def to_agent_framework_message(message: Message) -> Theirs:
    """Convert a message that a hook wrote."""
    if message.role == "tool":
        result = Content.from_function_result(call_id=message.tool_call_id or "", result=message.content)
        return Theirs("tool", [result])
    text = [Content.from_text(message.content)] if message.content else []
    return Theirs(message.role, [*text, *map(_to_function_call, message.tool_calls)])


def _to_function_call(call: ToolRequest) -> Content:
    given = call.args if isinstance(call.args, str) else json.dumps(call.args)
    return Content.from_function_call(call_id=call.tool_call_id, name=call.tool_name, arguments=given)


def to_agent_framework_messages(messages: Sequence[Message], known: Sequence[tuple[Any, list[Message]]]) -> list[Any]:
    """Convert messages that hooks may have changed; see `restore_messages`."""
    return restore_messages(messages, known, to_agent_framework_message)


# Model responses.


def model_name(agent: Any) -> str:
    """Return the name of an agent's model."""
    options = getattr(agent, "default_options", None) or {}
    return str(options.get("model") or getattr(getattr(agent, "client", None), "model", None) or "")


def to_model_response(response: Any, tools: Mapping[str, str]) -> ModelResponse:
    """Convert a model's answer."""
    calls: list[ToolRequest] = []
    thoughts: list[str] = []
    for message in response.messages:
        for each in message.contents:
            if each.type == "function_call":
                calls.append(to_tool_request(each, tools))
            elif each.type == "text_reasoning" and each.text:
                thoughts.append(each.text)
    usage: Mapping[str, Any] = response.usage_details or {}
    return ModelResponse(
        content=response.text,
        tool_calls=calls,
        reasoning="\n".join(thoughts),
        usage=Usage(
            input_tokens=usage.get("input_token_count") or 0, output_tokens=usage.get("output_token_count") or 0
        ),
        cost_known=False,
        finish_reason=str(response.finish_reason or "stop"),
        model=response.model or "",
        response_id=response.response_id or "",
    )


def update_text_reader() -> Callable[[Any], str | None]:
    """Return a function that returns the text of an update of one stream; `None` for an update that is not only text.

    Text of a second message is none, because the framework joins messages by a line break.
    """
    messages: set[str | None] = set()

    def read_text(update: Any) -> str | None:
        contents = update.contents
        if len(contents) != 1 or contents[0].type != "text" or getattr(update, "merge_mode", None) == "replace":
            return None
        messages.add(update.message_id)
        return str(contents[0].text or "") if len(messages) == 1 else None

    return read_text


def with_update_text(update: Any, text: str) -> Any:
    """Return an update like another one, with other text."""
    changed = copy.copy(update)
    changed.contents = [Content.from_text(text)]
    changed.raw_representation = None
    return changed


def is_frame(update: Any) -> bool:
    """Return whether an update has no content of the model."""
    return all(each.type == "usage" for each in update.contents)


def to_chat_response(response: ModelResponse) -> ChatResponse[Any]:
    """Convert a response that a hook provided or changed."""
    message = to_agent_framework_message(
        Message(role="assistant", content=response.content, tool_calls=response.tool_calls)
    )
    tokens = response.usage.input_tokens, response.usage.output_tokens
    usage: Any = {
        "input_token_count": tokens[0],
        "output_token_count": tokens[1],
        "total_token_count": sum(tokens),
    }
    return ChatResponse(messages=[message], usage_details=usage, model=response.model or None, finish_reason="stop")


def replace_output(response: AgentResponse[Any], output: str, response_format: Any) -> AgentResponse[Any]:
    """Return a run's response with the output that a hook wrote.

    Args:
        response: The run's own response. Its raw representation holds the former output and is left out.
        output: The new output.
        response_format: The type as which `value` parses the output.
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


# Decisions of people.


def to_pending_tools(response: AgentResponse[Any], tools: Mapping[str, str]) -> list[PendingTool]:
    """Return the calls that wait for a person."""
    asked = [each for each in response.user_input_requests if each.type == "function_approval_request"]
    return [
        to_pending_tool(to_tool_request(each.function_call, tools)) for each in asked if each.function_call is not None
    ]


def read_decisions(
    messages: Iterable[Any], operation_key: str
) -> tuple[dict[str, Approve | Reject], set[str], str | None]:
    """Read a person's decisions from the messages of a run.

    Args:
        messages: The messages that the run starts with.
        operation_key: Key under which an approval names its operation.

    Returns:
        The decisions by tool call; the calls whose refusal hookline words, because `answers` made the approval; and the
        operation that the run resumes, if an approval names one.
    """
    found: dict[str, Approve | Reject] = {}
    reworded: set[str] = set()
    operation = None
    for message in messages:
        for each in message.contents:
            if each.type != "function_approval_response":
                continue
            call, more = each.function_call.call_id, each.additional_properties or {}
            why = more.get(REJECTED_KEY) or {}
            if why:
                reworded.add(call)
            reject = Reject(call, str(why.get("reason", "")), bool(why.get("and_continue", True)))
            found[call] = Approve(call) if each.approved else reject
            operation = more.get(operation_key) or operation
    return found, reworded, operation


def approval_request(occurrence: str, call_id: str, name: str, args: Mapping[str, Any]) -> Content:
    """Build the request for a person's approval of a call.

    Args:
        occurrence: The framework's own id of the call.
        call_id: The model's id of it.
        name: The tool's name.
        args: The arguments that the person sees.
    """
    call = Content.from_function_call(call_id=call_id, id=occurrence, name=name, arguments=json.dumps(args))
    return Content.from_function_approval_request(id=occurrence, function_call=call)
