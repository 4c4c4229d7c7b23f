"""Convert items, tools and responses between the OpenAI Agents SDK and hookline."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    FunctionTool,
    Handoff,
    ModelBehaviorError,
    ModelResponse,
    ToolApprovalItem,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from agents.tool import ToolOriginType, get_function_tool_origin
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic_core import to_json

from hookline.adapters._conversion import restore_messages
from hookline.calls import Message, ToolRequest, ToolSpec, Usage
from hookline.calls import ModelResponse as Answer
from hookline.errors import HookUsageError
from hookline.events import PendingTool
from hookline.runtime import ToolDone

__all__ = [
    "AGENT_TOOLSET",
    "ItemsByMessage",
    "add_text",
    "call_id_of",
    "completed_event",
    "from_items",
    "from_model_response",
    "is_frame",
    "items_text",
    "output_text",
    "parse_arguments",
    "parse_output",
    "text_reader",
    "to_items",
    "to_output_items",
    "to_pending_tool",
    "to_tool_specs",
    "tool_identities",
    "tool_identity",
    "tool_output_text",
    "with_text",
]


def output_text(result: Any) -> str:
    """Return a run's final output as text; as JSON if its agent has an output type."""
    output = result.final_output
    if output is None or isinstance(output, str):
        return output or ""
    if result.last_agent.output_type is not None:
        with contextlib.suppress(ValueError):  # a value that is not JSON-serializable
            return to_json(output, fallback=str).decode()
    return tool_output_text(output)


def parse_output(agent: Agent[Any], text: str) -> Any:
    """Parse the output that a hook wrote as the agent's output type.

    Raises:
        HookUsageError: If the text does not fit that type.
    """
    schema = agent.output_type
    if schema is None or schema is str:
        return text
    if not isinstance(schema, AgentOutputSchemaBase):
        schema = AgentOutputSchema(schema)
    if schema.is_plain_text():
        return text
    for written in _possible_json(schema, text):
        with contextlib.suppress(ModelBehaviorError):
            return schema.validate_json(written)
    raise HookUsageError(
        f"A hook returned an output that does not match agent {agent.name!r}. Its output type is {schema.name()}; "
        f"return JSON of that type from hooks of its AgentCall."
    )


def _possible_json(schema: AgentOutputSchemaBase, text: str) -> list[str]:
    """Return the JSON texts to try; the SDK wraps output types that are not JSON objects."""
    if not getattr(schema, "_is_wrapped", False):
        return [text]
    found = [text, json.dumps({"response": text})]
    with contextlib.suppress(ValueError):
        found.insert(0, json.dumps({"response": json.loads(text)}))
    return found


ItemsByMessage = list[tuple[Message, list[Any]]]
"""Messages, each with the items that it was converted from."""

AGENT_TOOLSET = "agent"
"""The toolset of sub-agents."""


def tool_identity(tool: object) -> tuple[str, str]:
    """Return a tool's toolset and name; for an agent as a tool or a handoff, the agent's name."""
    if isinstance(tool, Handoff):
        return AGENT_TOOLSET, tool.agent_name
    name = str(getattr(tool, "name", type(tool).__name__))
    origin = get_function_tool_origin(tool) if isinstance(tool, FunctionTool) else None
    if origin is None or origin.type is ToolOriginType.FUNCTION:
        return "local", name
    if origin.type is ToolOriginType.AGENT_AS_TOOL:
        return AGENT_TOOLSET, origin.agent_name or name
    return origin.mcp_server_name or "mcp", name


def to_tool_specs(tools: Sequence[Any], handoffs: Sequence[Any]) -> list[ToolSpec]:
    """Convert the tools and handoffs that a model is offered."""
    specs = []
    for tool in (*tools, *handoffs):
        toolset, name = tool_identity(tool)
        schema = getattr(tool, "params_json_schema", None) or getattr(tool, "input_json_schema", None) or {}
        text = getattr(tool, "description", None) or getattr(tool, "tool_description", None) or ""
        specs.append(ToolSpec(toolset=toolset, name=name, description=str(text), schema=schema))
    return specs


def content_text(content: object) -> str:
    """Return the text of a message's or tool output's content, of any shape."""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(map(content_text, content))
    text = getattr(content, "text", None)
    if text and isinstance(text, str):
        return text
    if isinstance(content, Mapping):
        return str(content.get("text") or content.get("refusal") or "")
    text = text or getattr(content, "refusal", None)
    return text if isinstance(text, str) else "" if content is None else str(content)


def tool_output_text(output: object) -> str:
    """Return a tool's output as the text that the model reads."""
    if isinstance(output, str):
        return output
    try:
        text = content_text(output) if isinstance(output, Mapping | list | tuple) or hasattr(output, "text") else ""
    except RecursionError:  # a list that holds itself
        text = ""
    return text or str(output)


def add_text(output: object, done: ToolDone) -> Any:
    """Return a tool's output with the text that hooks have added for the model, and the images and files in it."""
    parts = output if isinstance(output, list | tuple) else [output]
    if parts and all(_is_output_part(each) for each in parts):
        return [*parts, ToolOutputText(text=done.added)]
    return done.result.content


def _is_output_part(part: object) -> bool:
    if isinstance(part, Mapping):
        return part.get("type") in ("text", "image", "file")
    return isinstance(part, ToolOutputText | ToolOutputImage | ToolOutputFileContent)


def call_id_of(item: ToolApprovalItem) -> str:
    """Return the id of a call that waits for approval."""
    raw = item.raw_item
    found = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return str(found or "")


def to_pending_tool(item: ToolApprovalItem) -> PendingTool:
    """Return a call as it is shown to the person who decides."""
    origin = item.tool_origin
    toolset, name = "local", item.tool_name or ""
    if origin is not None and origin.type is ToolOriginType.AGENT_AS_TOOL:
        toolset, name = AGENT_TOOLSET, origin.agent_name or name
    elif origin is not None and origin.type is ToolOriginType.MCP:
        toolset = origin.mcp_server_name or "mcp"
    args = parse_arguments(item.arguments)
    return PendingTool(
        toolset=toolset, tool_name=name, tool_call_id=call_id_of(item), args=args if isinstance(args, dict) else {}
    )


def parse_arguments(arguments: object) -> dict[str, Any] | str:
    """Return a call's arguments as an object, or as text if they are not a JSON object."""
    text = arguments if isinstance(arguments, str) else ""
    try:
        found = msgspec.json.decode(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def from_items(
    instructions: str | None, items: str | Sequence[Any], names: Mapping[str, tuple[str, str]]
) -> ItemsByMessage:
    """Convert instructions and input items to messages; tool calls are added to the assistant message before them.

    Args:
        instructions: The system message.
        items: The input of a model call.
        names: Toolset and name of each tool, by the model's name for it.
    """
    found: ItemsByMessage = [(Message(role="system", content=instructions), [])] if instructions else []
    if isinstance(items, str):
        return [*found, (Message(role="user", content=items), [{"role": "user", "content": items}])]
    ahead: list[Any] = []
    item: Any
    for item in items:
        kind, role = item.get("type", "message"), item.get("role")
        if kind not in ("message", "function_call", "function_call_output"):
            ahead.append(item)  # reasoning and hosted tool calls belong to the item that follows
            continue
        parts, ahead = [*ahead, item], []
        if kind == "function_call":
            toolset, name = names.get(item["name"], ("local", item["name"]))
            calling = ToolRequest(
                toolset=toolset, tool_name=name, args=parse_arguments(item["arguments"]), tool_call_id=item["call_id"]
            )
            last, before = found[-1] if found else (None, [])
            if last is not None and last.role == "assistant":
                message = Message(role="assistant", content=last.content, tool_calls=[*last.tool_calls, calling])
                found[-1] = message, [*before, *parts]
            else:
                found.append((Message(role="assistant", content="", tool_calls=[calling]), parts))
        elif kind == "function_call_output":
            text = content_text(item.get("output"))
            found.append((Message(role="tool", content=text, tool_call_id=item.get("call_id")), parts))
        else:
            speaker: Any = role if role in ("user", "assistant") else "system"
            found.append((Message(role=speaker, content=content_text(item.get("content"))), parts))
    if ahead:
        found.append((Message(role="assistant", content=""), ahead))
    return found


def to_items(
    messages: Sequence[Message], known: ItemsByMessage, instructions: str | None
) -> tuple[str | None, list[Any]]:
    """Convert messages that hooks may have changed to instructions and items; unchanged messages keep their items."""
    first = messages[0] if messages and messages[0].role == "system" and instructions else None
    rest = messages[1:] if first is not None else messages
    found = restore_messages(rest, [(items, [message]) for message, items in known], _message_items)
    return (first.content if first is not None else None), [item for items in found for item in items]


def _message_items(message: Message) -> list[Any]:
    """Return the items of a message that a hook wrote."""
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
    text = [{"role": message.role, "content": message.content}] if message.content or not message.tool_calls else []
    return [*text, *(_to_function_call(calling).model_dump(exclude_none=True) for calling in message.tool_calls)]


def _to_function_call(calling: ToolRequest, name: str | None = None) -> ResponseFunctionToolCall:
    args = calling.args if isinstance(calling.args, str) else json.dumps(calling.args)
    return ResponseFunctionToolCall(
        type="function_call", name=name or calling.tool_name, arguments=args, call_id=calling.tool_call_id
    )


def tool_identities(tools: Sequence[Any], handoffs: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """Return toolset and name of each tool, by the model's name for it."""
    names = {each.name: tool_identity(each) for each in tools if hasattr(each, "name")}
    names.update((each.tool_name, tool_identity(each)) for each in handoffs)
    return names


def find_identity(name: str, tools: Sequence[Any], handoffs: Sequence[Any]) -> tuple[str, str]:
    """Return toolset and name of the tool that the model calls by a name, as `tool_identities` has it."""
    for handoff in reversed(handoffs):
        if handoff.tool_name == name:
            return tool_identity(handoff)
    for tool in reversed(tools):
        if getattr(tool, "name", None) == name:
            return tool_identity(tool)
    return "local", name


def from_model_response(response: ModelResponse, tools: Sequence[Any], handoffs: Sequence[Any]) -> Answer:
    """Convert a model's response."""
    content, reasoning, callings = "", "", list[ToolRequest]()
    for item in response.output:
        kind = getattr(item, "type", "")
        if kind == "function_call" and isinstance(item, ResponseFunctionToolCall):
            toolset, name = find_identity(item.name, tools, handoffs)
            args = parse_arguments(item.arguments)
            callings.append(ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=item.call_id))
        elif kind == "message":
            content += content_text(getattr(item, "content", ""))
        elif kind == "reasoning":
            reasoning += content_text(getattr(item, "summary", ""))
    usage = Usage(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
    return Answer(
        content=content,
        tool_calls=callings,
        reasoning=reasoning,
        usage=usage,
        cost_known=False,
        finish_reason="tool_calls" if callings else "stop",
        response_id=response.response_id or "",
    )


def items_text(output: Iterable[Any]) -> str:
    """Return the text of a model's output items."""
    return "".join(content_text(getattr(item, "content", "")) for item in output if item.type == "message")


def text_reader() -> Callable[[Any], str | None]:
    """Return a function that returns the text of an event of one stream, if it adds to the first text of the answer."""
    places: set[tuple[str, int]] = set()

    def read_text(event: Any) -> str | None:
        if event.type != "response.output_text.delta":
            return None
        places.add((event.item_id, event.content_index))
        return str(event.delta) if len(places) == 1 else None

    return read_text


def with_text(event: Any, text: str) -> Any:
    """Return an event with other text."""
    return event.model_copy(update={"delta": text, "logprobs": []})


FRAMES = ("response.created", "response.queued", "response.in_progress", "response.content_part.added")
"""The types of events that come before text and have none."""


def is_frame(event: Any) -> bool:
    """Return whether an event has no content of the model."""
    if event.type in FRAMES:
        return True
    if event.type not in ("response.output_item.added", "response.output_item.done"):
        return False
    item = event.item
    return item.type in ("message", "reasoning") and not (
        content_text(getattr(item, "content", None) or "") or content_text(getattr(item, "summary", None) or "")
    )


def to_output_items(answer: Answer, names: Mapping[str, tuple[str, str]]) -> list[Any]:
    """Convert a response that a hook provided or changed to output items."""
    known = {called: name for name, called in names.items()}
    output: list[Any] = []
    if answer.content or not answer.tool_calls:
        text = ResponseOutputText(type="output_text", text=answer.content, annotations=[])
        output.append(
            ResponseOutputMessage(id="hookline", type="message", role="assistant", status="completed", content=[text])
        )
    callings = answer.tool_calls
    return [*output, *(_to_function_call(each, known.get((each.toolset, each.tool_name))) for each in callings)]


def completed_event(output: list[Any]) -> ResponseCompletedEvent:
    """Build the event that ends a stream whose response a hook provided."""
    response = Response(
        id="hookline",
        created_at=0,
        model="hookline",
        object="response",
        output=output,
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    return ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)
