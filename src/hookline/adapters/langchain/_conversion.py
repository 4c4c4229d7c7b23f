"""Convert messages, tools, responses and decisions between LangChain and hookline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.runnables import RunnableBinding
from langgraph.prebuilt.tool_node import INVALID_TOOL_NAME_ERROR_TEMPLATE, TOOL_INVOCATION_ERROR_TEMPLATE
from langgraph.types import Command, Interrupt

from hookline.adapters._conversion import restore_messages
from hookline.calls import Message, ModelCall, ToolRequest, ToolResult, ToolSpec, Usage, join_texts
from hookline.calls import ModelResponse as Answer
from hookline.events import PendingTool
from hookline.runtime import Approve, Reject

__all__ = [
    "apply_edit",
    "apply_model_call",
    "argument_error",
    "from_langchain_message",
    "from_model_request",
    "is_unknown_tool",
    "last_answer_text",
    "merge_response",
    "messages_in",
    "model_name",
    "read_decisions",
    "replace_args",
    "to_ai_message",
    "to_langchain_messages",
    "to_model_response",
    "to_pending_tools",
    "to_tool_result",
    "to_tool_specs",
    "tool_message",
    "tool_names",
]

IdentifyTool = Callable[[str], tuple[str, str]]
"""Returns a tool's toolset and name, given the model's name for it."""

EDITED_CALLS_KEY = "hitl_edited_tool_calls"
"""State key for calls that a person edited; `HumanInTheLoopMiddleware` applies the edits when the calls are made."""

ROLES: Mapping[str, Any] = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def messages_in(given: object) -> list[BaseMessage]:
    """Return the messages in a graph's input or state."""
    found = given.get("messages", []) if isinstance(given, Mapping) else getattr(given, "messages", [])
    if isinstance(found, str) or (found and not isinstance(found, list | tuple)):
        found = [found]
    for each in found:
        if not isinstance(each, BaseMessage):  # in no state of a graph
            return convert_to_messages(found)
    return list(found)


def last_answer_text(state: object) -> str:
    """Return the text of the agent's last message."""
    for message in reversed(messages_in(state)):
        if isinstance(message, AIMessage):
            return str(message.text)
    return ""


def to_tool_requests(message: AIMessage, named: IdentifyTool) -> list[ToolRequest]:
    """Convert the tool calls of a model's message."""
    requests = []
    for each in message.tool_calls:
        toolset, name = named(each["name"])
        requests.append(ToolRequest(toolset=toolset, tool_name=name, args=each["args"], tool_call_id=each["id"] or ""))
    return requests


def from_langchain_message(message: BaseMessage, named: IdentifyTool) -> Message:
    """Convert a message.

    The text becomes a plain `str`: LangChain's subclass of it cannot be encoded.
    """
    role = ROLES.get(message.type, "user")
    if isinstance(message, AIMessage):
        return Message(role="assistant", content=str(message.text), tool_calls=to_tool_requests(message, named))
    call = message.tool_call_id if isinstance(message, ToolMessage) else None
    return Message(role=role, content=str(message.text), tool_call_id=call)


def from_model_request(request: ModelRequest[Any], named: IdentifyTool) -> list[Message]:
    """Return the messages of a model request; the system message comes first."""
    first = [] if request.system_message is None else [request.system_message]
    return [from_langchain_message(each, named) for each in (*first, *request.messages)]


def to_langchain_message(message: Message, names: Mapping[tuple[str, str], str]) -> BaseMessage:
    """Convert a message that hooks wrote or changed.

    Args:
        message: The message.
        names: The model's name for each tool, by toolset and name.
    """
    if message.role == "user":
        return HumanMessage(message.content)
    if message.role == "system":
        return SystemMessage(message.content)
    if message.role == "tool":
        return ToolMessage(message.content, tool_call_id=message.tool_call_id or "")
    return AIMessage(message.content, tool_calls=[to_tool_call(each, names) for each in message.tool_calls])


def to_langchain_messages(
    messages: Sequence[Message],
    given: Sequence[Message],
    originals: Sequence[BaseMessage],
    names: Mapping[tuple[str, str], str],
) -> list[BaseMessage]:
    """Convert messages that hooks may have changed; see `restore_messages`.

    Args:
        messages: The messages that hooks left.
        given: The messages that hooks were given.
        originals: LangChain's message for each of those.
        names: The model's name for each tool, by toolset and name.
    """
    known = [(theirs, [ours]) for theirs, ours in zip(originals, given, strict=True)]
    return restore_messages(messages, known, partial(to_langchain_message, names=names))


def to_tool_call(calling: ToolRequest, names: Mapping[tuple[str, str], str]) -> Any:
    """Convert a tool request to LangChain's form."""
    args = calling.args if not isinstance(calling.args, str) else json.loads(calling.args)
    name = names.get((calling.toolset, calling.tool_name), calling.tool_name)
    return {"name": name, "args": dict(args), "id": calling.tool_call_id}


def apply_model_call(
    request: ModelRequest[Any],
    call: ModelCall,
    given: Sequence[Message],
    specs: Sequence[ToolSpec],
    named: IdentifyTool,
) -> ModelRequest[Any]:
    """Return the request as hooks left the call; messages that they did not change stay the originals."""
    changes: dict[str, Any] = {}
    if call.messages != given:
        first = [] if request.system_message is None else [request.system_message]
        names = tool_names(request.tools, named)
        found = to_langchain_messages(call.messages, given, (*first, *request.messages), names)
        system = found.pop(0) if found and isinstance(found[0], SystemMessage) else None
        changes |= {"messages": found, "system_message": system}
    if call.tools != specs:
        offered = {(spec.toolset, spec.name) for spec in call.tools}
        changes["tools"] = [tool for tool in request.tools if named(tool_name(tool)) in offered]
    if call.settings != request.model_settings:
        changes["model_settings"] = dict(call.settings)
    return request.override(**changes) if changes else request


def tool_name(tool: Any) -> str:
    """Return the model's name for a tool; provider tools are mappings."""
    if isinstance(tool, Mapping):
        return str(tool.get("name") or tool.get("type") or "")
    return str(tool.name)


def tool_names(tools: Iterable[Any], named: IdentifyTool) -> dict[tuple[str, str], str]:
    """Return the model's name for each tool, by toolset and name."""
    return {named(tool_name(tool)): tool_name(tool) for tool in tools}


def to_tool_specs(tools: Iterable[Any], named: IdentifyTool) -> list[ToolSpec]:
    """Convert the tools that a model is offered."""
    specs = []
    for tool in tools:
        toolset, name = named(tool_name(tool))
        described = tool.get("description", "") if isinstance(tool, Mapping) else tool.description
        schema = dict(tool) if isinstance(tool, Mapping) else tool.tool_call_schema
        shape = schema if isinstance(schema, dict) else schema.model_json_schema()
        specs.append(ToolSpec(toolset=toolset, name=name, description=str(described), schema=shape))
    return specs


def to_tool_result(given: Any) -> ToolResult:
    """Convert what a tool returned: a message, a command, or several of them."""
    message = _find_tool_message(given)
    if message is None:
        return ToolResult(content="")
    return ToolResult(content=str(message.text), success=message.status != "error")


def add_text(given: Any, text: str) -> Any:
    """Return what a tool returned with a text at the end of its message, and everything else as it is."""
    message = _find_tool_message(given)
    if message is None:
        return given
    content = message.content
    more = join_texts(content, text) if isinstance(content, str) else [*content, {"type": "text", "text": text}]
    return _replace_message(given, message, message.model_copy(update={"content": more}))


def _replace_message(given: Any, message: ToolMessage, changed: ToolMessage) -> Any:
    if given is message:
        return changed
    if isinstance(given, list | tuple):
        return [_replace_message(each, message, changed) for each in given]
    if isinstance(given, Command) and message in messages_in(given.update):
        messages = [changed if each == message else each for each in messages_in(given.update)]
        update = {**given.update, "messages": messages} if isinstance(given.update, Mapping) else messages
        return replace(given, update=update)
    return given


def _find_tool_message(given: Any) -> ToolMessage | None:
    if isinstance(given, ToolMessage):
        return given
    if isinstance(given, Command):
        return _find_tool_message(messages_in(given.update))
    if isinstance(given, list | tuple):
        return next((found for each in given if (found := _find_tool_message(each)) is not None), None)
    return None


def is_unknown_tool(request: ToolCallRequest, given: Any) -> bool:
    """Return whether LangGraph told the model that the tool does not exist.

    A middleware may run a tool that the graph does not have.
    """
    if request.tool is not None:
        return False
    message, name = _find_tool_message(given), request.tool_call["name"]
    prefix = INVALID_TOOL_NAME_ERROR_TEMPLATE.partition(",")[0].format(requested_tool=name)
    return message is not None and message.text.startswith(prefix)


def argument_error(request: ToolCallRequest, given: Any) -> str | None:
    """Return the error about arguments that do not fit the tool; `None` if they do.

    LangGraph has converted the error to text by then. Texts of other error handlers contain the same template.
    """
    message = _find_tool_message(given)
    if message is None or message.status != "error":
        return None
    begins, _, rest = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{tool_kwargs}")
    if begins.format(tool_name=request.tool_call["name"]) not in message.text:
        return None
    before, _, after = rest.partition("{error}")
    return message.text.partition(before)[2].rpartition(after)[0].strip()


def tool_message(call: Mapping[str, Any], content: str, *, success: bool) -> ToolMessage:
    """Build the tool message that replaces what a tool returned."""
    status: Any = "success" if success else "error"
    return ToolMessage(content, name=call["name"], tool_call_id=call["id"] or "", status=status)


# Decisions of people.


def _requests(interrupt: Interrupt) -> list[Any]:
    """Return the actions that an interrupt asks about, in the form of `HumanInTheLoopMiddleware`."""
    found = interrupt.value.get("action_requests") if isinstance(interrupt.value, Mapping) else None
    return list(found) if isinstance(found, list | tuple) else []


def to_pending_tools(
    interrupts: Sequence[Interrupt], messages: Sequence[BaseMessage], named: IdentifyTool
) -> list[tuple[Interrupt, PendingTool]]:
    """Return the calls that interrupts ask about.

    An interrupt names the tools but not the call ids; those are looked up in the messages.
    """
    last = next((each for each in reversed(messages) if isinstance(each, AIMessage) and each.tool_calls), None)
    calls = list(last.tool_calls) if last is not None else []
    found: list[tuple[Interrupt, PendingTool]] = []
    for interrupt in interrupts:
        requests = _requests(interrupt)
        for request in requests:
            name, args = request["name"], request["args"]
            meant = [each for each in calls if each["id"] == request.get("tool_call_id")]
            meant = meant or [each for each in calls if each["name"] == name and each["args"] == args]
            if meant:
                calls.remove(meant[0])
            toolset, tool_name = named(name)
            # The messages of a graph do not show the calls of a graph within it.
            call_id = (meant[0]["id"] if meant else request.get("tool_call_id")) or interrupt.id
            prompt = (
                request.get("description", "") if "tool_call_id" in request else ""
            )  # only a hook's question has one
            pending = PendingTool(
                toolset=toolset, tool_name=tool_name, tool_call_id=call_id, args=dict(args), prompt=prompt
            )
            found.append((interrupt, pending))
        if not requests:
            pending = PendingTool(
                toolset="langgraph",
                tool_name="interrupt",
                tool_call_id=interrupt.id,
                args={},
                prompt=str(interrupt.value),
            )
            found.append((interrupt, pending))
    return found


def read_decisions(command: Command[Any], pending: Sequence[tuple[Interrupt, PendingTool]]) -> list[Approve | Reject]:
    """Return a person's decisions from the command that resumes a graph."""
    given, found = command.resume, list[Approve | Reject]()
    by_id = [interrupt.id for interrupt, _ in pending if isinstance(given, Mapping) and interrupt.id in given]
    for interrupt, call in pending:
        if by_id and interrupt.id not in by_id:
            continue  # it keeps waiting
        mine = given.get(interrupt.id, given) if isinstance(given, Mapping) else given
        at = [each for other, each in pending if other.id == interrupt.id].index(call)
        answers = mine.get("decisions") if isinstance(mine, Mapping) else None
        decision = answers[at] if isinstance(answers, list) and at < len(answers) else {"type": "approve"}
        if decision.get("type") in ("approve", "edit"):
            found.append(Approve(call.tool_call_id))
            continue
        reason, ends = str(decision.get("message") or ""), bool(decision.get("ends_the_run"))
        found.append(Reject(call.tool_call_id, reason=reason, and_continue=not ends))
    return found


def _edited_calls(request: ToolCallRequest) -> Mapping[str, Any]:
    return (request.state.get(EDITED_CALLS_KEY) or {}) if isinstance(request.state, Mapping) else {}


def apply_edit(request: ToolCallRequest) -> ToolCallRequest:
    """Return a tool call as a person edited it, if an inner middleware has not applied the edit yet."""
    call = request.tool_call
    edited = _edited_calls(request).get(call["id"] or "")
    if edited is None:
        return request
    asked = (
        each for message in messages_in(request.state) if isinstance(message, AIMessage) for each in message.tool_calls
    )
    if not any(each["id"] == call["id"] and each["args"] == call["args"] for each in asked):
        return request  # the edit is applied, and may have been changed since
    tool = next((each for each in request.runtime.tools if each.name == edited["name"]), None)
    changed: Any = {**call, "name": edited["name"], "args": edited["args"]}
    return request if tool is None else request.override(tool_call=changed, tool=tool)


def replace_args(request: ToolCallRequest, args: Mapping[str, Any]) -> ToolCallRequest:
    """Return a tool call with other arguments, which an earlier edit of a person does not undo."""
    call: Any = {**request.tool_call, "args": dict(args)}
    edited = _edited_calls(request)
    if call["id"] not in edited:
        return request.override(tool_call=call)
    kept = {**edited, call["id"]: {"name": call["name"], "args": call["args"]}}
    return request.override(tool_call=call, state={**request.state, EDITED_CALLS_KEY: kept})


def model_name(request: ModelRequest[Any]) -> str:
    """Return the name of the requested model, if it has one."""
    model: Any = request.model.bound if isinstance(request.model, RunnableBinding) else request.model
    # A configurable model of `init_chat_model` may create a model on each attribute access.
    if not isinstance(model, BaseChatModel):
        return ""
    found = (getattr(model, name, None) for name in ("model", "model_name"))
    return next((each for each in found if each and isinstance(each, str)), "")


def to_model_response(messages: Sequence[BaseMessage], named: IdentifyTool) -> Answer:
    """Convert a model's answer; a tool call that provides the structured output counts as its content."""
    found: AIMessage | None = None
    answered: set[str] = set()
    for each in messages:
        if isinstance(each, ToolMessage):
            answered.add(each.tool_call_id)
        elif found is None and isinstance(each, AIMessage):
            found = each
    message = found or AIMessage("")
    usage, metadata = message.usage_metadata, message.response_metadata
    content, requests = str(message.text), to_tool_requests(message, named)
    if answered:
        given = [json.dumps(call["args"]) for call in message.tool_calls if call["id"] in answered]
        content = content or "".join(given)
        requests = [request for request in requests if request.tool_call_id not in answered]
    return Answer(
        content=content,
        tool_calls=requests,
        reasoning="" if isinstance(message.content, str) else _reasoning(message),
        usage=Usage(input_tokens=usage["input_tokens"], output_tokens=usage["output_tokens"]) if usage else Usage(),
        cost_known=False,
        finish_reason=str(metadata.get("finish_reason") or metadata.get("stop_reason") or "stop"),
        model=str(metadata.get("model_name") or metadata.get("model") or ""),
        response_id=message.id or "",
    )


def _reasoning(message: AIMessage) -> str:
    blocks: list[Any] = list(message.content_blocks)
    return "".join(str(block.get("reasoning", "")) for block in blocks if block.get("type") == "reasoning")


def to_ai_message(answer: Answer, names: Mapping[tuple[str, str], str]) -> AIMessage:
    """Convert a response that a hook provided or changed."""
    return AIMessage(answer.content, tool_calls=[to_tool_call(each, names) for each in answer.tool_calls])


def merge_response(
    response: Any, before: Answer, answer: Answer, names: Mapping[tuple[str, str], str]
) -> ModelResponse[Any]:
    """Return a model's response with the changes of hooks; everything else stays as the model gave it."""
    was = next((each for each in response.result if isinstance(each, AIMessage)), AIMessage(""))
    output = before.content if not was.text else ""  # provided by a tool call
    # The content repeats the tool calls, in a different way for each provider.
    if answer.tool_calls != before.tool_calls or (output and answer.content != output):
        metadata = {"id": was.id, "usage_metadata": was.usage_metadata, "response_metadata": was.response_metadata}
        return ModelResponse(result=[to_ai_message(answer, names).model_copy(update=metadata)])
    others = [each for each in response.result if each is not was]
    structured = response.structured_response if others or answer.content == before.content else None
    message = was.model_copy(update={"content": _merge_content(was.content, before, answer)})
    return ModelResponse(result=[message, *others], structured_response=structured)


def _merge_content(was: str | list[Any], before: Answer, answer: Answer) -> str | list[Any]:
    """Return the content of a message with the text that hooks left, among its other blocks."""
    if isinstance(was, str):
        return was if answer.content == before.content else answer.content
    removed = set() if answer.reasoning == before.reasoning else {"reasoning", "thinking", "reasoning_content"}
    left = [each for each in was if isinstance(each, str) or each.get("type") not in removed]
    if answer.content == before.content:
        return left
    is_text = [isinstance(each, str) or each.get("type") == "text" for each in left]
    at = is_text.index(True) if True in is_text else len(left)
    others = [each for each, text in zip(left, is_text, strict=True) if not text]
    return [*others[:at], *([{"type": "text", "text": answer.content}] if answer.content else []), *others[at:]]
