"""Between the messages of LangChain and those of hookline, both ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from hookline.calls import Message, ModelCall, ToolRequest, ToolResult, ToolSpec, Usage
from hookline.calls import ModelResponse as Answer
from hookline.events import PendingTool
from hookline.runtime import Approve, Reject

__all__ = [
    "answer_of",
    "answered",
    "call_of",
    "callings_of",
    "changed_request",
    "decisions_of",
    "kept",
    "message_of",
    "messages_of",
    "misfit",
    "model_of",
    "names_of",
    "pending_of",
    "put",
    "result_of",
    "reviewed",
    "said_last",
    "shown",
    "specs_of",
    "tool_message",
    "unknown",
    "with_args",
]

Named = Callable[[str], tuple[str, str]]
"""Where a tool comes from and what it is called there, by the name that the model knows."""

EDITED = "hitl_edited_tool_calls"
"""In the state: calls that a person has edited, for a `HumanInTheLoopMiddleware` to put in place when they are made."""

ROLES: Mapping[str, Any] = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def shown(given: object) -> list[BaseMessage]:
    """The messages of what a graph is given, or of its state."""
    found = given.get("messages", []) if isinstance(given, Mapping) else getattr(given, "messages", [])
    if isinstance(found, str) or (found and not isinstance(found, list | tuple)):
        found = [found]
    if all(isinstance(each, BaseMessage) for each in found):  # as in every state of a graph
        return list(found)
    return convert_to_messages(found)


def said_last(state: object) -> str:
    """What the agent said last."""
    last = next((each for each in reversed(shown(state)) if isinstance(each, AIMessage)), None)
    return str(last.text) if last is not None else ""


def callings_of(message: AIMessage, named: Named) -> list[ToolRequest]:
    """The calls for which a model asks."""
    callings = []
    for each in message.tool_calls:
        toolset, name = named(each["name"])
        callings.append(ToolRequest(toolset=toolset, tool_name=name, args=each["args"], tool_call_id=each["id"] or ""))
    return callings


def message_of(message: BaseMessage, named: Named) -> Message:
    """A message in the words of hookline; LangChain's own kind of text is no plain `str`, which nobody could encode."""
    role = ROLES.get(message.type, "user")
    if isinstance(message, AIMessage):
        return Message(role="assistant", content=str(message.text), tool_calls=callings_of(message, named))
    call = message.tool_call_id if isinstance(message, ToolMessage) else None
    return Message(role=role, content=str(message.text), tool_call_id=call)


def messages_of(request: ModelRequest[Any], named: Named) -> list[Message]:
    """What a model is asked; the instructions are the first message."""
    first = [] if request.system_message is None else [request.system_message]
    return [message_of(each, named) for each in (*first, *request.messages)]


def put(message: Message, names: Mapping[tuple[str, str], str]) -> BaseMessage:
    """A message in the words of LangChain.

    Args:
        message: One that hooks have made or changed.
        names: What the model calls the tools, by where they come from and what they are called there.
    """
    if message.role == "user":
        return HumanMessage(message.content)
    if message.role == "system":
        return SystemMessage(message.content)
    if message.role == "tool":
        return ToolMessage(message.content, tool_call_id=message.tool_call_id or "")
    return AIMessage(message.content, tool_calls=[call_of(each, names) for each in message.tool_calls])


def call_of(calling: ToolRequest, names: Mapping[tuple[str, str], str]) -> Any:
    """A call in the words of LangChain."""
    args = calling.args if not isinstance(calling.args, str) else json.loads(calling.args)
    name = names.get((calling.toolset, calling.tool_name), calling.tool_name)
    return {"name": name, "args": dict(args), "id": calling.tool_call_id}


def changed_request(
    request: ModelRequest[Any], call: ModelCall, given: Sequence[Message], specs: Sequence[ToolSpec], named: Named
) -> ModelRequest[Any]:
    """The request as hooks have left the call; messages that they have not changed stay as they are."""
    changes: dict[str, Any] = {}
    if call.messages != given:
        first = [] if request.system_message is None else [request.system_message]
        left = list(zip(given, (*first, *request.messages), strict=True))
        names = names_of(request.tools, named)
        found: list[BaseMessage] = []
        for message in call.messages:
            at = next((at for at, (each, _) in enumerate(left) if each == message), None)
            found.append(put(message, names) if at is None else left.pop(at)[1])
        system = found.pop(0) if found and isinstance(found[0], SystemMessage) else None
        changes |= {"messages": found, "system_message": system}
    if call.tools != specs:
        kept = {(spec.toolset, spec.name) for spec in call.tools}
        changes["tools"] = [tool for tool in request.tools if named(tool_name(tool)) in kept]
    if call.settings != request.model_settings:
        changes["model_settings"] = dict(call.settings)
    return request.override(**changes) if changes else request


def tool_name(tool: Any) -> str:
    """What the model calls a tool; those of providers are mappings."""
    if isinstance(tool, Mapping):
        return str(tool.get("name") or tool.get("type") or "")
    return str(tool.name)


def names_of(tools: Iterable[Any], named: Named) -> dict[tuple[str, str], str]:
    """What the model calls the tools, by where they come from."""
    return {named(tool_name(tool)): tool_name(tool) for tool in tools}


def specs_of(tools: Iterable[Any], named: Named) -> list[ToolSpec]:
    """The tools that a model is offered."""
    specs = []
    for tool in tools:
        toolset, name = named(tool_name(tool))
        described = tool.get("description", "") if isinstance(tool, Mapping) else tool.description
        schema = dict(tool) if isinstance(tool, Mapping) else tool.tool_call_schema
        shape = schema if isinstance(schema, dict) else schema.model_json_schema()
        specs.append(ToolSpec(toolset=toolset, name=name, description=str(described), schema=shape))
    return specs


def result_of(given: Any) -> ToolResult:
    """What a tool gave: a message, a command, or several of them."""
    told = _told(given)
    if told is None:
        return ToolResult(content="")
    return ToolResult(content=str(told.text), success=told.status != "error")


def _told(given: Any) -> ToolMessage | None:
    if isinstance(given, ToolMessage):
        return given
    if isinstance(given, Command):
        return _told(shown(given.update))
    if isinstance(given, list | tuple):
        return next((found for each in given if (found := _told(each)) is not None), None)
    return None


def unknown(request: ToolCallRequest, given: Any) -> bool:
    """Whether the model was told that it has made a tool up; a middleware may well run one that the graph lacks."""
    told, name = _told(given), request.tool_call["name"]
    words = INVALID_TOOL_NAME_ERROR_TEMPLATE.partition(",")[0].format(requested_tool=name)
    return request.tool is None and told is not None and told.text.startswith(words)


def misfit(request: ToolCallRequest, given: Any) -> str | None:
    """What the model was told of arguments that do not fit the tool; `None` if they did.

    LangGraph has made text of the error by then, in words of its own that are also in those of other handlers.
    """
    told = _told(given)
    if told is None or told.status != "error":
        return None
    begins, _, rest = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{tool_kwargs}")
    if begins.format(tool_name=request.tool_call["name"]) not in told.text:
        return None
    before, _, after = rest.partition("{error}")
    return told.text.partition(before)[2].rpartition(after)[0].strip()


def tool_message(call: Mapping[str, Any], content: str, *, success: bool) -> ToolMessage:
    """What the model is told in place of what a tool gave."""
    status: Any = "success" if success else "error"
    return ToolMessage(content, name=call["name"], tool_call_id=call["id"] or "", status=status)


# People.


def _requests(interrupt: Interrupt) -> list[Any]:
    """The actions about which an interrupt asks, in the form of `HumanInTheLoopMiddleware`."""
    found = interrupt.value.get("action_requests") if isinstance(interrupt.value, Mapping) else None
    return list(found) if isinstance(found, list | tuple) else []


def pending_of(
    interrupts: Sequence[Interrupt], messages: Sequence[BaseMessage], named: Named
) -> list[tuple[Interrupt, PendingTool]]:
    """What a person is shown. Who interrupts says which tools, but not which calls: those are found in the messages."""
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
            call_id = (meant[0]["id"] if meant else None) or interrupt.id
            pending = PendingTool(toolset=toolset, tool_name=tool_name, tool_call_id=call_id, args=dict(args))
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


def decisions_of(command: Command[Any], pending: Sequence[tuple[Interrupt, PendingTool]]) -> list[Approve | Reject]:
    """What a person has decided, by the answers with which a graph goes on."""
    given, found = command.resume, list[Approve | Reject]()
    by_id = [interrupt.id for interrupt, _ in pending if isinstance(given, Mapping) and interrupt.id in given]
    for interrupt, call in pending:
        if by_id and interrupt.id not in by_id:
            continue  # it goes on waiting
        mine = given.get(interrupt.id, given) if isinstance(given, Mapping) else given
        at = [each for other, each in pending if other.id == interrupt.id].index(call)
        decided = mine.get("decisions") if isinstance(mine, Mapping) else None
        decision = decided[at] if isinstance(decided, list) and at < len(decided) else {"type": "approve"}
        if decision.get("type") in ("approve", "edit"):
            found.append(Approve(call.tool_call_id))
            continue
        reason, ends = str(decision.get("message") or ""), bool(decision.get("ends_the_run"))
        found.append(Reject(call.tool_call_id, reason=reason, and_continue=not ends))
    return found


def _edited(request: ToolCallRequest) -> Mapping[str, Any]:
    return (request.state.get(EDITED) or {}) if isinstance(request.state, Mapping) else {}


def reviewed(request: ToolCallRequest) -> ToolCallRequest:
    """A tool call as a person has edited it, if a middleware further inside is yet to put that in place."""
    call = request.tool_call
    edited = _edited(request).get(call["id"] or "")
    if edited is None:
        return request
    asked = (each for message in shown(request.state) if isinstance(message, AIMessage) for each in message.tool_calls)
    if not any(each["id"] == call["id"] and each["args"] == call["args"] for each in asked):
        return request  # it is in place, and maybe changed since
    tool = next((each for each in request.runtime.tools if each.name == edited["name"]), None)
    changed: Any = {**call, "name": edited["name"], "args": edited["args"]}
    return request if tool is None else request.override(tool_call=changed, tool=tool)


def with_args(request: ToolCallRequest, args: Mapping[str, Any]) -> ToolCallRequest:
    """A tool call with other arguments, which a person's edit of those before does not undo."""
    call: Any = {**request.tool_call, "args": dict(args)}
    edited = _edited(request)
    if call["id"] not in edited:
        return request.override(tool_call=call)
    kept = {**edited, call["id"]: {"name": call["name"], "args": call["args"]}}
    return request.override(tool_call=call, state={**request.state, EDITED: kept})


def model_of(request: ModelRequest[Any]) -> str:
    """What the model that is asked is called, where it says so."""
    model: Any = request.model.bound if isinstance(request.model, RunnableBinding) else request.model
    if not isinstance(model, BaseChatModel):  # one of `init_chat_model` may be made anew by each question
        return ""
    found = (getattr(model, name, None) for name in ("model", "model_name"))
    return next((each for each in found if each and isinstance(each, str)), "")


def answer_of(messages: Sequence[BaseMessage], named: Named) -> Answer:
    """A model's answer in the words of hookline; a call that gives the run's output counts as what it said."""
    message = next((each for each in messages if isinstance(each, AIMessage)), None) or AIMessage("")
    usage, told = message.usage_metadata, message.response_metadata
    over = {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}
    given = [json.dumps(each["args"]) for each in message.tool_calls if each["id"] in over]
    return Answer(
        content=str(message.text) or "".join(given),
        tool_calls=[each for each in callings_of(message, named) if each.tool_call_id not in over],
        reasoning="" if isinstance(message.content, str) else _reasoning(message),
        usage=Usage(input_tokens=usage["input_tokens"], output_tokens=usage["output_tokens"]) if usage else Usage(),
        finish_reason=str(told.get("finish_reason") or told.get("stop_reason") or "stop"),
        model=str(told.get("model_name") or told.get("model") or ""),
        response_id=message.id or "",
    )


def _reasoning(message: AIMessage) -> str:
    blocks: list[Any] = list(message.content_blocks)
    return "".join(str(block.get("reasoning", "")) for block in blocks if block.get("type") == "reasoning")


def answered(answer: Answer, names: Mapping[tuple[str, str], str]) -> AIMessage:
    """An answer that a hook gave or changed."""
    return AIMessage(answer.content, tool_calls=[call_of(each, names) for each in answer.tool_calls])


def kept(response: Any, before: Answer, answer: Answer, names: Mapping[tuple[str, str], str]) -> ModelResponse[Any]:
    """An answer that hooks have changed; what they left alone stays as the model gave it."""
    was = next((each for each in response.result if isinstance(each, AIMessage)), AIMessage(""))
    output = before.content if not was.text else ""  # given by a call
    # Calls are also named in the content, by every provider in its own way.
    if answer.tool_calls != before.tool_calls or (output and answer.content != output):
        kept = {"id": was.id, "usage_metadata": was.usage_metadata, "response_metadata": was.response_metadata}
        return ModelResponse(result=[answered(answer, names).model_copy(update=kept)])
    others = [each for each in response.result if each is not was]
    structured = response.structured_response if others or answer.content == before.content else None
    told = was.model_copy(update={"content": _content(was.content, before, answer)})
    return ModelResponse(result=[told, *others], structured_response=structured)


def _content(was: str | list[Any], before: Answer, answer: Answer) -> str | list[Any]:
    """The text of an answer as hooks have left it, among what else it was made of."""
    if isinstance(was, str):
        return was if answer.content == before.content else answer.content
    gone = set() if answer.reasoning == before.reasoning else {"reasoning", "thinking", "reasoning_content"}
    left = [each for each in was if isinstance(each, str) or each.get("type") not in gone]
    if answer.content == before.content:
        return left
    said = [isinstance(each, str) or each.get("type") == "text" for each in left]
    at = said.index(True) if True in said else len(left)
    others = [each for each, text in zip(left, said, strict=True) if not text]
    return [*others[:at], *([{"type": "text", "text": answer.content}] if answer.content else []), *others[at:]]
