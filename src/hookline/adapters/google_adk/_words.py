"""What Google's Agent Development Kit says, in hookline's words, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from google.adk.flows.llm_flows.functions import (
    REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
    generate_client_function_call_id,
)
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

from hookline._readonly import writable
from hookline.calls import Denial, Message, ModelCall, ModelResponse, ToolRequest, ToolResult, ToolSpec, Usage
from hookline.errors import ToolResultError
from hookline.events import PendingTool
from hookline.runtime import Approve, Reject, as_result

__all__ = [
    "Request",
    "asked_in",
    "content",
    "decisions_in",
    "instruction",
    "llm_response",
    "model_of",
    "model_response",
    "origin",
    "pending",
    "refused",
    "rejection",
    "replace_args",
    "text_of",
    "text_of_result",
    "tool_result",
]


def text_of(given: types.Content | None) -> str:
    """The text of a content, without its thoughts."""
    return _Said(given).text


def content(role: str, text: str) -> types.Content:
    """A content that is text."""
    return types.Content(role=role, parts=[types.Part(text=text)])


# Models.


def model_of(agent: Any) -> dict[str, Any]:
    """The model's name and provider, as a `AdapterRun` takes them; empty for an agent without a model."""
    model = getattr(agent, "model", "") or ""
    name = model if isinstance(model, str) else str(getattr(model, "model", ""))
    return {"model": name, "provider": "gcp.gemini" if name.startswith("gemini") else ""}


class _Said:
    """What a content holds, by kind."""

    __slots__ = ("callings", "results", "text", "thoughts")

    def __init__(self, given: types.Content | None) -> None:
        self.text = self.thoughts = ""
        self.callings: list[ToolRequest] = []
        self.results: list[types.FunctionResponse] = []
        for part in (given.parts or ()) if given is not None else ():
            if part.text:
                if part.thought:
                    self.thoughts += part.text
                else:
                    self.text += part.text
            elif (call := part.function_call) is not None:
                called = ToolRequest(tool_name=call.name or "", args=call.args or {}, tool_call_id=call.id or "")
                self.callings.append(called)
            elif part.function_response is not None:
                self.results.append(part.function_response)


def messages_of(given: types.Content) -> list[Message]:
    """A content as messages: each answer of a tool is one."""
    said, found = _Said(given), list[Message]()
    if said.text or said.callings or not said.results:
        model = given.role == "model"
        found.append(Message(role="assistant" if model else "user", content=said.text, tool_calls=said.callings))
    for result in said.results:
        told = text_of_result(result.response or {})
        found.append(Message(role="tool", content=told, tool_call_id=result.id or ""))
    return found


def _content_of(message: Message, names: Mapping[str, str]) -> types.Content:
    if message.role == "tool":
        call_id = message.tool_call_id or ""
        answer = types.FunctionResponse(id=call_id, name=names.get(call_id, ""), response={"result": message.content})
        return types.Content(role="user", parts=[types.Part(function_response=answer)])
    return types.Content(role="model" if message.role == "assistant" else "user", parts=_parts(message))


def _parts(given: Message | ModelResponse) -> list[types.Part]:
    parts = [types.Part(text=given.content)] if given.content else []
    for call in given.tool_calls:
        function = types.FunctionCall(id=call.tool_call_id, name=call.tool_name, args=writable(call.args))
        parts.append(types.Part(function_call=function))
    return parts


class Request:
    """A request to a model, as a `ModelCall` shows it."""

    def __init__(self, request: Any) -> None:
        self._request, config = request, request.config
        self.settings: dict[str, Any] = {
            name: value for name in _SETTINGS if config is not None and (value := getattr(config, name)) is not None
        }
        system = config.system_instruction if config is not None else None
        self._system = [Message(role="system", content=system)] if isinstance(system, str) and system else []
        self._contents = [(given, messages_of(given)) for given in request.contents]
        self.messages = [*self._system, *(each for _, found in self._contents for each in found)]
        self.tools = [_spec(tool) for tool in request.tools_dict.values()]

    def change(self, call: ModelCall) -> None:
        """Make the request what hooks have made of the call; what they have left alone stays as it is."""
        if call.messages != self.messages:
            self._change_messages(call.messages)
        if dict(call.settings) != self.settings:
            for name, value in call.settings.items():
                setattr(self._request.config, name, writable(value))
        if call.model and call.model != self._request.model and self._request.model:
            self._request.model = call.model
        left = {spec.name for spec in call.tools}
        if len(left) < len(self.tools):
            self._offer_only(left)

    def _change_messages(self, messages: Sequence[Message]) -> None:
        system = "\n\n".join(each.content for each in messages if each.role == "system")
        if system != "".join(each.content for each in self._system):
            self._request.config.system_instruction = system or None
        names = {call.tool_call_id: call.tool_name for each in messages for call in each.tool_calls}
        left, known = [each for each in messages if each.role != "system"], list(self._contents)
        found: list[types.Content] = []
        while left:
            same = next((at for at, (_, said) in enumerate(known) if said and left[: len(said)] == said), None)
            if same is None:
                found.append(_content_of(left.pop(0), names))
            else:
                given, said = known.pop(same)
                found.append(given)
                del left[: len(said)]
        self._request.contents = found

    def _offer_only(self, names: set[str]) -> None:
        for tool in self._request.config.tools or ():
            if isinstance(tool, types.Tool) and tool.function_declarations:
                tool.function_declarations = [each for each in tool.function_declarations if each.name in names]


_SETTINGS = ("temperature", "top_p", "top_k", "max_output_tokens", "seed", "stop_sequences")


def _spec(tool: Any) -> ToolSpec:
    return ToolSpec(toolset=origin(tool), name=tool.name, description=tool.description or "")


def model_response(given: Any) -> ModelResponse:
    """A model's answer. Calls without an id get one, as ADK itself would give them a moment later."""
    if given is None:
        return ModelResponse()
    for part in (given.content.parts or ()) if given.content is not None else ():
        if part.function_call is not None and not part.function_call.id:
            part.function_call.id = generate_client_function_call_id()
    said, usage = _Said(given.content), given.usage_metadata
    return ModelResponse(
        content=said.text,
        reasoning=said.thoughts,
        tool_calls=said.callings,
        usage=Usage(
            input_tokens=(usage.prompt_token_count or 0) if usage is not None else 0,
            output_tokens=(
                (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0) if usage is not None else 0
            ),
        ),
        finish_reason=given.finish_reason.value.lower() if given.finish_reason is not None else "stop",
        model=given.model_version or "",
        response_id=given.interaction_id or "",
    )


def llm_response(answer: ModelResponse | None, denied: Denial | None, *, given: Any = None) -> Any:
    """The answer of a hook, or what one has made of the model's."""
    if answer is None:
        return refused(denied.reason if denied is not None else "The model was not to be asked.")
    said = types.Content(role="model", parts=_parts(answer))
    return LlmResponse(content=said) if given is None else given.model_copy(update={"content": said})


def refused(reason: str) -> Any:
    """The answer that ends an agent's run, because its model is not to be asked."""
    return LlmResponse(error_code="DENIED", error_message=reason)


# Tools.


def origin(tool: Any) -> str:
    """Where a tool comes from: `"mcp"` for one of an MCP server, whose name ADK does not tell."""
    return _origin_of(tool.__class__)


@cache
def _origin_of(kind: type) -> str:
    return "mcp" if any(base.__name__ == "McpTool" for base in kind.__mro__) else "local"


def tool_result(name: str, result: Any) -> ToolResult:
    """What a tool returned; ADK has tools say by an `error` that they failed."""
    failed = isinstance(result, dict) and "error" in result
    try:
        return ToolResult(content=text_of_result(result), success=False) if failed else as_result(name, result)
    except ToolResultError:  # ADK takes anything at all, and hands it on
        return ToolResult(content=str(result))


def text_of_result(result: Any) -> str:
    """What a tool returned, as text."""
    if isinstance(result, dict) and len(result) == 1:
        result = next(iter(result.values())) if set(result) <= {"result", "error"} else result
    return result if isinstance(result, str) else _encoded(result)


def _encoded(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # such as half a character
        return str(value)


def instruction(args: Mapping[str, Any]) -> str:
    """What the arguments of a call tell a sub-agent to do."""
    request = args.get("request")
    return request if isinstance(request, str) else _encoded(args)


def replace_args(args: dict[str, Any], final: Mapping[str, Any]) -> None:
    """Make arguments those that hooks have decided on, in place: ADK runs the tool with the same dictionary."""
    args.clear()
    args.update(final)


# People.


def pending(calling: ToolRequest) -> PendingTool:
    """A call that a person is asked about."""
    return PendingTool(
        toolset=calling.toolset,
        tool_name=calling.tool_name,
        tool_call_id=calling.tool_call_id,
        args=writable(calling.args),
    )


def asked_in(event: Any) -> list[str]:
    """Ids of the calls about which an event asks a person."""
    return [
        call.args["originalFunctionCall"]["id"]
        for call in event.get_function_calls()
        if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
    ]


def decisions_in(given: types.Content | None) -> dict[str, ToolConfirmation]:
    """A person's decisions in a message, by the ids of ADK's own requests."""
    parts = (given.parts or ()) if given is not None else ()
    answers = [part.function_response for part in parts if part.function_response is not None]
    return {
        answer.id: ToolConfirmation.from_response_dict(answer.response or {})
        for answer in answers
        if answer.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME and answer.id
    }


def decision(call_id: str, person: ToolConfirmation) -> Approve | Reject:
    """A person's decision about a call. A rejection whose payload says `stop` ends the run."""
    if person.confirmed:
        return Approve(call_id)
    said = person.payload if isinstance(person.payload, dict) else {}
    return Reject(call_id, reason=str(said.get("reason", "")), and_continue=not said.get("stop"))


def rejection(person: ToolConfirmation) -> str:
    """What the model is told of a call that a person has refused."""
    reason = person.payload.get("reason") if isinstance(person.payload, dict) else None
    return f"A person refused this call: {reason}" if reason else "A person refused this call."
