"""Convert contents, model requests, tool results and confirmations between Google ADK and hookline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
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
from hookline.adapters._conversion import restore_messages
from hookline.calls import Denial, Message, ModelCall, ModelResponse, ToolRequest, ToolResult, ToolSpec, Usage
from hookline.errors import ToolResultError
from hookline.runtime import Approve, Reject, as_result

__all__ = [
    "AdkModelRequest",
    "call_ids_to_confirm",
    "calls_to_confirm",
    "denied_response",
    "from_content",
    "from_llm_response",
    "instruction_of",
    "model_identity",
    "read_confirmations",
    "replace_args",
    "result_text",
    "text_content",
    "text_of",
    "to_confirmation",
    "to_llm_response",
    "to_tool_result",
    "toolset_of",
]


def text_of(given: types.Content | None) -> str:
    """Return the text of a content, without the model's thoughts."""
    return _ContentParts(given).text


def text_content(role: str, text: str) -> types.Content:
    """Build a content that holds a text."""
    return types.Content(role=role, parts=[types.Part(text=text)])


def add_text(given: types.Content | None, text: str) -> types.Content:
    """Return a user's message with a text at its end."""
    parts = (given.parts or ()) if given is not None else ()
    return types.Content(role="user", parts=[*parts, types.Part(text=text)])


# Models.


def model_identity(agent: Any) -> dict[str, Any]:
    """Return the name and provider of an agent's model, as options of `AdapterRun`.

    Both are empty for an agent without a model.
    """
    model = getattr(agent, "model", "") or ""
    name = model if isinstance(model, str) else str(getattr(model, "model", ""))
    return {"model": name, "provider": "gcp.gemini" if name.startswith("gemini") else ""}


async def ask_again(agent: Any, name: str, request: Any) -> Any:
    """Ask the model of an agent once more, and return its whole answer.

    Args:
        agent: The agent, or one that it is a sub-agent of.
        name: The name of the agent.
        request: The request.
    """
    answer = None
    async for response in agent.find_agent(name).canonical_model.generate_content_async(request, stream=False):
        answer = response
    return answer if answer is not None else LlmResponse()


class _ContentParts:
    """The parts of a content, sorted by kind."""

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


def from_content(given: types.Content) -> list[Message]:
    """Convert a content; each function response in it becomes a message of its own."""
    parts, found = _ContentParts(given), list[Message]()
    if parts.text or parts.callings or not parts.results:
        model = given.role == "model"
        found.append(Message(role="assistant" if model else "user", content=parts.text, tool_calls=parts.callings))
    for result in parts.results:
        text = result_text(result.response or {})
        found.append(Message(role="tool", content=text, tool_call_id=result.id or ""))
    return found


def _to_content(message: Message, names: Mapping[str, str]) -> types.Content:
    if message.role == "tool":
        call_id = message.tool_call_id or ""
        answer = types.FunctionResponse(id=call_id, name=names.get(call_id, ""), response={"result": message.content})
        return types.Content(role="user", parts=[types.Part(function_response=answer)])
    return types.Content(role="model" if message.role == "assistant" else "user", parts=_to_parts(message))


def _to_parts(given: Message | ModelResponse) -> list[types.Part]:
    parts = [types.Part(text=given.content)] if given.content else []
    for call in given.tool_calls:
        function = types.FunctionCall(id=call.tool_call_id, name=call.tool_name, args=writable(call.args))
        parts.append(types.Part(function_call=function))
    return parts


class AdkModelRequest:
    """A model request of ADK, with the messages, tools and settings that a `ModelCall` shows."""

    def __init__(self, request: Any) -> None:
        self._request, config = request, request.config
        self.settings: dict[str, Any] = {
            name: value for name in _SETTINGS if config is not None and (value := getattr(config, name)) is not None
        }
        system = config.system_instruction if config is not None else None
        self._system = [Message(role="system", content=system)] if isinstance(system, str) and system else []
        self._contents = [(given, from_content(given)) for given in request.contents]
        self.messages = [*self._system, *(each for _, found in self._contents for each in found)]
        self.tools = [_to_tool_spec(tool) for tool in request.tools_dict.values()]

    def change(self, call: ModelCall) -> None:
        """Apply what hooks changed in the call; everything else in the request stays as it is."""
        if call.messages != self.messages:
            self._change_messages(call.messages)
        if dict(call.settings) != self.settings:
            for name, value in call.settings.items():
                setattr(self._request.config, name, writable(value))
        if call.model and call.model != self._request.model and self._request.model:
            self._request.model = call.model
        offered = {spec.name for spec in call.tools}
        if len(offered) < len(self.tools):
            self._offer_only(offered)

    def _change_messages(self, messages: Sequence[Message]) -> None:
        system = "\n\n".join(each.content for each in messages if each.role == "system")
        if system != "".join(each.content for each in self._system):
            self._request.config.system_instruction = system or None
        names = {call.tool_call_id: call.tool_name for each in messages for call in each.tool_calls}
        rest = [each for each in messages if each.role != "system"]
        self._request.contents = restore_messages(rest, self._contents, partial(_to_content, names=names))

    def _offer_only(self, names: set[str]) -> None:
        for tool in self._request.config.tools or ():
            if isinstance(tool, types.Tool) and tool.function_declarations:
                tool.function_declarations = [each for each in tool.function_declarations if each.name in names]


_SETTINGS = ("temperature", "top_p", "top_k", "max_output_tokens", "seed", "stop_sequences")


def _to_tool_spec(tool: Any) -> ToolSpec:
    return ToolSpec(toolset=toolset_of(tool), name=tool.name, description=tool.description or "")


def from_llm_response(given: Any) -> ModelResponse:
    """Convert a model's answer.

    Calls without an id are given one, as ADK would do a moment later.
    """
    if given is None:
        return ModelResponse()
    for part in (given.content.parts or ()) if given.content is not None else ():
        if part.function_call is not None and not part.function_call.id:
            part.function_call.id = generate_client_function_call_id()
    parts, usage = _ContentParts(given.content), given.usage_metadata
    return ModelResponse(
        content=parts.text,
        reasoning=parts.thoughts,
        tool_calls=parts.callings,
        usage=Usage(
            input_tokens=(usage.prompt_token_count or 0) if usage is not None else 0,
            output_tokens=(
                (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0) if usage is not None else 0
            ),
        ),
        cost_known=False,
        finish_reason=given.finish_reason.value.lower() if given.finish_reason is not None else "stop",
        model=given.model_version or "",
        response_id=given.interaction_id or "",
    )


def to_llm_response(answer: ModelResponse | None, denied: Denial | None, *, given: Any = None) -> Any:
    """Convert a response that a hook provided or changed; a denial becomes an error response."""
    if answer is None:
        return denied_response(denied.reason if denied is not None else "A hook denied the model call.")
    changed = types.Content(role="model", parts=_to_parts(answer))
    return LlmResponse(content=changed) if given is None else given.model_copy(update={"content": changed})


def denied_response(reason: str) -> Any:
    """Build the response that ends an agent's run because its model may not be called."""
    return LlmResponse(error_code="DENIED", error_message=reason)


# Tools.


def toolset_of(tool: Any) -> str:
    """Return the toolset of a tool: `"mcp"` for all MCP servers, whose names ADK does not expose, or `"local"`."""
    return _toolset_of_class(tool.__class__)


@cache
def _toolset_of_class(kind: type) -> str:
    return "mcp" if any(base.__name__ == "McpTool" for base in kind.__mro__) else "local"


def to_tool_result(name: str, result: Any) -> ToolResult:
    """Convert what a tool returned; a dictionary with an `error` key means that the tool failed."""
    has_error = isinstance(result, dict) and "error" in result
    try:
        return ToolResult(content=result_text(result), success=False) if has_error else as_result(name, result)
    except ToolResultError:  # ADK accepts a value of any type
        return ToolResult(content=str(result))


def result_text(result: Any) -> str:
    """Return what a tool returned as text."""
    if isinstance(result, dict) and len(result) == 1:
        result = next(iter(result.values())) if set(result) <= {"result", "error"} else result
    return result if isinstance(result, str) else _encode(result)


def _encode(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # such as a lone surrogate
        return str(value)


def instruction_of(args: Mapping[str, Any]) -> str:
    """Return the instruction in the arguments of a sub-agent call."""
    request = args.get("request")
    return request if isinstance(request, str) else _encode(args)


def replace_args(args: dict[str, Any], final: Mapping[str, Any]) -> None:
    """Replace the arguments of a call in place, because ADK runs the tool with the same dictionary."""
    args.clear()
    args.update(final)


# Decisions of people.


def call_ids_to_confirm(event: Any) -> list[str]:
    """Return the ids of the calls that an event asks a person to confirm."""
    return list(calls_to_confirm(event))


def calls_to_confirm(event: Any) -> dict[str, str]:
    """Return the calls that an event asks a person to confirm, with the id of ADK's request for each."""
    return {
        call.args["originalFunctionCall"]["id"]: call.id
        for call in event.get_function_calls()
        if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
    }


def to_confirmation(request_id: str, decision: Approve | Reject) -> types.Part:
    """Convert a decision into the part of a message that answers ADK's request."""
    response: dict[str, Any] = {"confirmed": isinstance(decision, Approve)}
    if isinstance(decision, Reject):
        response["payload"] = {"reason": decision.reason, "stop": not decision.and_continue}
    answer = types.FunctionResponse(id=request_id, name=REQUEST_CONFIRMATION_FUNCTION_CALL_NAME, response=response)
    return types.Part(function_response=answer)


def read_confirmations(given: types.Content | None) -> dict[str, ToolConfirmation]:
    """Return a person's confirmations in a message, by the id of ADK's request."""
    parts = (given.parts or ()) if given is not None else ()
    answers = [part.function_response for part in parts if part.function_response is not None]
    return {
        answer.id: ToolConfirmation.from_response_dict(answer.response or {})
        for answer in answers
        if answer.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME and answer.id
    }


def to_decision(call_id: str, person: ToolConfirmation) -> Approve | Reject:
    """Convert a confirmation; a rejection whose payload has a true `stop` ends the run."""
    if person.confirmed:
        return Approve(call_id)
    payload = person.payload if isinstance(person.payload, dict) else {}
    return Reject(call_id, reason=str(payload.get("reason") or ""), and_continue=not payload.get("stop"))
