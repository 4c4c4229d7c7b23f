"""Between the items of the OpenAI Agents SDK and the messages of hookline, both ways."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
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

from hookline.calls import Message, ToolRequest, ToolSpec, Usage
from hookline.calls import ModelResponse as Answer
from hookline.errors import HookUsageError
from hookline.events import PendingTool

__all__ = [
    "AGENT",
    "Spoken",
    "answer_of",
    "call_id_of",
    "completed",
    "input_of",
    "named",
    "names_of",
    "output_of",
    "parsed",
    "pending_of",
    "retyped",
    "said_last",
    "specs_of",
    "spoken",
    "told",
]


def said_last(result: Any) -> str:
    """What a run of the SDK gave, as text: JSON where its agent has an output type."""
    output = result.final_output
    if output is None or isinstance(output, str):
        return output or ""
    if result.last_agent.output_type is not None:
        with contextlib.suppress(ValueError):  # what is no data
            return to_json(output, fallback=str).decode()
    return told(output)


def retyped(agent: Agent[Any], text: str) -> Any:
    """What a hook made of an agent's output, in the output type of the agent.

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
    for written in _writings(schema, text):
        with contextlib.suppress(ModelBehaviorError):
            return schema.validate_json(written)
    raise HookUsageError(
        f"A hook gave an output that does not fit agent {agent.name!r}. Its output type is {schema.name()}; "
        f"return JSON of that type from hooks of its AgentCall."
    )


def _writings(schema: AgentOutputSchemaBase, text: str) -> list[str]:
    """The text as the model would have written it; the SDK wraps types that are no JSON objects."""
    if not getattr(schema, "_is_wrapped", False):
        return [text]
    found = [text, json.dumps({"response": text})]
    with contextlib.suppress(ValueError):
        found.insert(0, json.dumps({"response": json.loads(text)}))
    return found


Spoken = list[tuple[Message, list[Any]]]
"""Messages, each with the items that it stands for."""

AGENT = "agent"
"""Where sub-agents come from, as the runtime has it."""


def named(tool: object) -> tuple[str, str]:
    """Where a tool comes from, and its name there: that of the agent for one that calls an agent."""
    if isinstance(tool, Handoff):
        return AGENT, tool.agent_name
    name = str(getattr(tool, "name", type(tool).__name__))
    origin = get_function_tool_origin(tool) if isinstance(tool, FunctionTool) else None
    if origin is None or origin.type is ToolOriginType.FUNCTION:
        return "local", name
    if origin.type is ToolOriginType.AGENT_AS_TOOL:
        return AGENT, origin.agent_name or name
    return origin.mcp_server_name or "mcp", name


def specs_of(tools: Sequence[Any], handoffs: Sequence[Any]) -> list[ToolSpec]:
    """The tools that a model is offered."""
    specs = []
    for tool in (*tools, *handoffs):
        toolset, name = named(tool)
        schema = getattr(tool, "params_json_schema", None) or getattr(tool, "input_json_schema", None) or {}
        text = getattr(tool, "description", None) or getattr(tool, "tool_description", None) or ""
        specs.append(ToolSpec(toolset=toolset, name=name, description=str(text), schema=schema))
    return specs


def said(content: object) -> str:
    """The text of a message or of a tool's output, whatever parts it has."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return str(content.get("text") or content.get("refusal") or "")
    if isinstance(content, list | tuple):
        return "".join(said(part) for part in content)
    text = getattr(content, "text", None) or getattr(content, "refusal", None)
    return text if isinstance(text, str) else "" if content is None else str(content)


def told(output: object) -> str:
    """What the model reads of a tool's output."""
    if isinstance(output, str):
        return output
    try:
        text = said(output) if isinstance(output, Mapping | list | tuple) or hasattr(output, "text") else ""
    except RecursionError:  # a list that holds itself
        text = ""
    return text or str(output)


def call_id_of(item: ToolApprovalItem) -> str:
    """The id of the call that waits."""
    raw = item.raw_item
    found = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return str(found or "")


def pending_of(item: ToolApprovalItem) -> PendingTool:
    """What a person is shown."""
    origin = item.tool_origin
    toolset, name = "local", item.tool_name or ""
    if origin is not None and origin.type is ToolOriginType.AGENT_AS_TOOL:
        toolset, name = AGENT, origin.agent_name or name
    elif origin is not None and origin.type is ToolOriginType.MCP:
        toolset = origin.mcp_server_name or "mcp"
    args = parsed(item.arguments)
    return PendingTool(
        toolset=toolset, tool_name=name, tool_call_id=call_id_of(item), args=args if isinstance(args, dict) else {}
    )


def parsed(arguments: object) -> dict[str, Any] | str:
    """The arguments of a call as an object, or the text if it is none."""
    text = arguments if isinstance(arguments, str) else ""
    try:
        found = msgspec.json.decode(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def spoken(instructions: str | None, items: str | Sequence[Any], names: Mapping[str, tuple[str, str]]) -> Spoken:
    """The conversation as messages; a model's calls belong to the message before them.

    Args:
        instructions: The system message.
        items: What a model is given.
        names: Tools by the name that the model knows.
    """
    found: Spoken = [(Message(role="system", content=instructions), [])] if instructions else []
    if isinstance(items, str):
        return [*found, (Message(role="user", content=items), [{"role": "user", "content": items}])]
    ahead: list[Any] = []
    item: Any
    for item in items:
        kind, role = item.get("type", "message"), item.get("role")
        if kind not in ("message", "function_call", "function_call_output"):
            ahead.append(item)  # reasoning, and what hosted tools did, goes along with what follows
            continue
        parts, ahead = [*ahead, item], []
        if kind == "function_call":
            toolset, name = names.get(item["name"], ("local", item["name"]))
            calling = ToolRequest(
                toolset=toolset, tool_name=name, args=parsed(item["arguments"]), tool_call_id=item["call_id"]
            )
            last, before = found[-1] if found else (None, [])
            if last is not None and last.role == "assistant":
                message = Message(role="assistant", content=last.content, tool_calls=[*last.tool_calls, calling])
                found[-1] = message, [*before, *parts]
            else:
                found.append((Message(role="assistant", content="", tool_calls=[calling]), parts))
        elif kind == "function_call_output":
            text = said(item.get("output"))
            found.append((Message(role="tool", content=text, tool_call_id=item.get("call_id")), parts))
        else:
            speaker: Any = role if role in ("user", "assistant") else "system"
            found.append((Message(role=speaker, content=said(item.get("content"))), parts))
    if ahead:
        found.append((Message(role="assistant", content=""), ahead))
    return found


def input_of(messages: Sequence[Message], known: Spoken, instructions: str | None) -> tuple[str | None, list[Any]]:
    """The instructions and the items for messages that hooks have changed; unchanged ones keep their items."""
    items: list[Any] = []
    left = list(known)
    first = messages[0] if messages and messages[0].role == "system" and instructions else None
    for message in messages[1:] if first is not None else messages:
        at = next((at for at, (each, _) in enumerate(left) if each == message), None)
        if at is not None:
            items.extend(left.pop(at)[1])
        elif message.role == "tool":
            output = {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
            items.append(output)
        else:
            if message.content or not message.tool_calls:
                items.append({"role": message.role, "content": message.content})
            items.extend(_call(calling).model_dump(exclude_none=True) for calling in message.tool_calls)
    return (first.content if first is not None else None), items


def _call(calling: ToolRequest, name: str | None = None) -> ResponseFunctionToolCall:
    args = calling.args if isinstance(calling.args, str) else json.dumps(calling.args)
    return ResponseFunctionToolCall(
        type="function_call", name=name or calling.tool_name, arguments=args, call_id=calling.tool_call_id
    )


def names_of(tools: Sequence[Any], handoffs: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """Tools by the name that the model knows."""
    names = {each.name: named(each) for each in tools if hasattr(each, "name")}
    names.update((each.tool_name, named(each)) for each in handoffs)
    return names


def answer_of(response: ModelResponse, tools: Sequence[Any], handoffs: Sequence[Any]) -> Answer:
    """A model's answer in the words of hookline."""
    names: dict[str, tuple[str, str]] = {}
    content, reasoning, callings = "", "", list[ToolRequest]()
    for item in response.output:
        if isinstance(item, ResponseFunctionToolCall):
            names = names or names_of(tools, handoffs)
            toolset, name = names.get(item.name, ("local", item.name))
            args = parsed(item.arguments)
            callings.append(ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=item.call_id))
        elif getattr(item, "type", "") == "message":
            content += said(getattr(item, "content", ""))
        elif getattr(item, "type", "") == "reasoning":
            reasoning += said(getattr(item, "summary", ""))
    usage = Usage(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
    return Answer(
        content=content,
        tool_calls=callings,
        reasoning=reasoning,
        usage=usage,
        finish_reason="tool_calls" if callings else "stop",
        response_id=response.response_id or "",
    )


def output_of(answer: Answer, names: Mapping[str, tuple[str, str]]) -> list[Any]:
    """The items of an answer that a hook gave or changed."""
    known = {called: name for name, called in names.items()}
    output: list[Any] = []
    if answer.content or not answer.tool_calls:
        text = ResponseOutputText(type="output_text", text=answer.content, annotations=[])
        output.append(
            ResponseOutputMessage(id="hookline", type="message", role="assistant", status="completed", content=[text])
        )
    callings = answer.tool_calls
    return [*output, *(_call(each, known.get((each.toolset, each.tool_name))) for each in callings)]


def completed(output: list[Any]) -> ResponseCompletedEvent:
    """The end of a stream whose answer a hook gave."""
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
