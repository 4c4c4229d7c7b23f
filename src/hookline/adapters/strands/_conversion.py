"""Convert messages, tools, results and interrupt responses between Strands and hookline."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import NAMESPACE_OID, uuid5

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.interventions.actions import default_evaluate
from strands.middleware import ModelStopReason, ToolResultEvent
from strands.telemetry.metrics import EventLoopMetrics

from hookline.adapters._conversion import restore_messages
from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec, Usage, join_texts
from hookline.runtime import Approve, Reject

__all__ = [
    "INTERRUPT_NAME",
    "InterruptResponses",
    "agent_name",
    "agent_result",
    "from_prompt",
    "from_strands_message",
    "interrupt_response",
    "interrupted_call_id",
    "is_agent",
    "model_name",
    "read_responses",
    "responses_for_sub_agent",
    "text_of",
    "to_decision",
    "to_model_response",
    "to_model_stop_reason",
    "to_strands_message",
    "to_strands_messages",
    "to_tool_request",
    "to_tool_specs",
    "tool_result_event",
]

Block = Mapping[str, Any]
INTERRUPT_NAME = "hookline"
"""The name of the interrupts with which hooks ask a person."""
REJECTED_KEY = "hookline_rejected"
"""Key that marks a response as a rejection made by `answers`."""
_INTERRUPT_ID = uuid5(NAMESPACE_OID, INTERRUPT_NAME)
_encode = json.JSONEncoder(default=str).encode


def text_of(content: Sequence[Any]) -> str:
    """Return the text of content blocks; JSON blocks are encoded."""
    if len(content) == 1 and (text := content[0].get("text")).__class__ is str:
        return str(text)
    found = (block["text"] if "text" in block else block.get("json") for block in content)
    return "\n".join(each if isinstance(each, str) else _encode(each) for each in found if each is not None)


# Tools.


def is_agent(tool: Any) -> bool:
    """Return whether a tool is an agent."""
    return getattr(tool, "tool_type", "") == "agent" and isinstance(getattr(tool, "agent", None), Agent)


def to_tool_request(agent: Any, use: Block) -> ToolRequest:
    """Convert a `toolUse` block."""
    return ToolRequest(
        toolset=_toolset_of(agent, use["name"]),
        tool_name=use["name"],
        args=use["input"] if isinstance(use["input"], dict | str) else {},
        tool_call_id=use["toolUseId"],
    )


def _toolset_of(agent: Any, name: str) -> str:
    registry = agent.tool_registry
    tool = registry.dynamic_tools.get(name) or registry.registry.get(name)
    if is_agent(tool):
        return "agent"
    server = getattr(getattr(tool, "mcp_client", None), "server_info", None)
    return str(getattr(server, "name", "mcp")) if hasattr(tool, "mcp_client") else "local"


def to_tool_specs(agent: Any, offered: Sequence[Any]) -> list[ToolSpec]:
    """Convert the tool specs that a model is offered."""
    return [
        ToolSpec(
            toolset=_toolset_of(agent, each["name"]),
            name=each["name"],
            description=each["description"],
            schema=each["inputSchema"].get("json", {}),
        )
        for each in offered
    ]


def tool_result_event(use: Block, content: str, *, success: bool) -> ToolResultEvent:
    """Build the event with a tool's result for the model."""
    return ToolResultEvent(
        {"toolUseId": use["toolUseId"], "status": "success" if success else "error", "content": [{"text": content}]}
    )


# Messages.


def from_strands_message(agent: Any, message: Block) -> list[Message]:
    """Convert a Strands message; each tool result in it becomes a message of its own."""
    blocks = message["content"]
    found = [
        Message(role="tool", content=text_of(each["content"]), tool_call_id=each["toolUseId"])
        for each in (block["toolResult"] for block in blocks if "toolResult" in block)
    ]
    calls = [to_tool_request(agent, block["toolUse"]) for block in blocks if "toolUse" in block]
    text = text_of(blocks)
    if text or calls or not found:
        found.append(Message(role=message["role"], content=text, tool_calls=calls))
    return found


def to_strands_message(message: Message) -> dict[str, Any]:
    """Convert a message that a hook wrote."""
    if message.role == "tool":
        result = {"toolUseId": message.tool_call_id or "", "status": "success", "content": [{"text": message.content}]}
        return {"role": "user", "content": [{"toolResult": result}]}
    text = [{"text": message.content}] if message.content else []
    return {"role": message.role, "content": [*text, *map(_tool_use_block, message.tool_calls)]}


def _tool_use_block(call: ToolRequest) -> dict[str, Any]:
    given = dict(call.args) if isinstance(call.args, dict) else {}
    return {"toolUse": {"toolUseId": call.tool_call_id, "name": call.tool_name, "input": given}}


def to_strands_messages(messages: Sequence[Message], known: Sequence[tuple[Any, list[Message]]]) -> list[Any]:
    """Convert messages that hooks may have changed; see `restore_messages`."""
    return restore_messages(messages, known, to_strands_message)


def from_prompt(agent: Any, prompt: Any) -> list[Message]:
    """Convert an agent's prompt."""
    if isinstance(prompt, str):
        return [Message(role="user", content=prompt)]
    if not isinstance(prompt, list) or not prompt:
        return []
    if all(isinstance(each, dict) and "role" in each for each in prompt):
        return [ours for each in prompt for ours in from_strands_message(agent, each)]
    return [Message(role="user", content=text_of([each for each in prompt if isinstance(each, dict)]))]


def add_text(prompt: Any, text: str) -> Any:
    """Return an agent's prompt with a text at its end.

    The text goes into the last message of the user, since some models refuse two in a row.
    """
    if not isinstance(prompt, list):
        return join_texts(prompt, text)
    last = prompt[-1] if prompt else None
    block = {"text": text}
    if not isinstance(last, dict) or "role" not in last:
        return [*prompt, block]
    if last["role"] == "user":
        return [*prompt[:-1], {**last, "content": [*last["content"], block]}]
    return [*prompt, {"role": "user", "content": [block]}]


# Model responses.


def to_model_response(agent: Any, message: Block, reason: str, usage: Block) -> ModelResponse:
    """Convert a model's answer."""
    texts, calls, thoughts = list[str](), list[ToolRequest](), list[str]()
    for block in message["content"]:
        if "text" in block:
            texts.append(block["text"])
        elif "toolUse" in block:
            calls.append(to_tool_request(agent, block["toolUse"]))
        elif "reasoningContent" in block:
            thoughts.append(block["reasoningContent"].get("reasoningText", {}).get("text", ""))
    return ModelResponse(
        content="\n".join(texts),
        tool_calls=calls,
        reasoning="\n".join(thoughts),
        usage=Usage(input_tokens=usage["inputTokens"], output_tokens=usage["outputTokens"]),
        cost_known=False,
        finish_reason=reason,
    )


def to_model_stop_reason(response: ModelResponse, own: ModelStopReason | None) -> ModelStopReason:
    """Convert a response that a hook provided or changed.

    Args:
        response: The response.
        own: The model's own answer, if there is one; blocks that hooks cannot see are kept from it.
    """
    tokens = response.usage.input_tokens, response.usage.output_tokens
    usage: Any = {"inputTokens": tokens[0], "outputTokens": tokens[1], "totalTokens": sum(tokens)}
    kept = [] if own is None else [each for each in own.message["content"] if not {"text", "toolUse"} & each.keys()]
    message: Any = to_strands_message(
        Message(role="assistant", content=response.content, tool_calls=response.tool_calls)
    )
    message["content"] = [*kept, *message["content"]]
    reason: Any = "tool_use" if response.tool_calls else "end_turn"
    return ModelStopReason(reason, message, usage, own.metrics if own is not None else {"latencyMs": 0})


# The whole run.


def agent_name(agent: Any) -> str:
    """Return the name of an agent, or the id of a graph."""
    return str(getattr(agent, "name", None) or getattr(agent, "id", ""))


def model_name(agent: Any) -> str:
    """Return the name of an agent's model; `""` for a graph."""
    model: Any = getattr(agent, "model", None)
    config = model.get_config() if hasattr(model, "get_config") else {}
    found = config.get("model_id") if isinstance(config, dict) else getattr(config, "model_id", None)
    return str(found or "")


def agent_result(agent: Any, own: Any, output: str, reason: Any = "end_turn") -> AgentResult:
    """Return the result of a run whose output a hook set.

    Args:
        agent: The agent.
        own: The agent's own result, if it ran.
        output: The output.
        reason: Why the run stopped, if it has no result of its own.
    """
    message: Any = {"role": "assistant", "content": [{"text": output}]}
    if isinstance(own, AgentResult):
        return dataclasses.replace(own, message=message)
    metrics = getattr(agent, "event_loop_metrics", None) or EventLoopMetrics()
    return AgentResult(stop_reason=reason, message=message, metrics=metrics, state={})


# Decisions of people.


def interrupted_call_id(interrupt_id: str) -> str:
    """Return the id of the tool call that an interrupt belongs to; `""` if there is none."""
    kind, _, rest = interrupt_id.removeprefix("v1:").partition(":")
    # An id is `v1:<source>:<tool call>:<interrupt>`; the id of a sub-agent's interrupt is nested in that.
    return unquote(rest.partition(":")[0]) if kind == "agent_as_tool" else rest.rpartition(":")[0]


def to_decision(tool_call_id: str, response: Any) -> Approve | Reject:
    """Convert a person's response to an interrupt.

    A response approves if Strands takes it for approval or it is `{"approved": True}`.
    """
    answer = response if isinstance(response, dict) else {}
    if default_evaluate(response) or answer.get("approved") is True:
        return Approve(tool_call_id)
    return Reject(tool_call_id, str(answer.get("reason", "")), bool(answer.get("and_continue", True)))


def interrupt_response(decision: Approve | Reject) -> Any:
    """Return the response to an interrupt that expresses a decision."""
    if isinstance(decision, Approve):
        return True
    return {REJECTED_KEY: True, "approved": False, "reason": decision.reason, "and_continue": decision.and_continue}


class InterruptResponses(NamedTuple):
    """A person's responses to interrupts, and what they decide."""

    given: Mapping[str, Any]
    """The responses, by interrupt id."""
    decisions: Mapping[str, Approve | Reject]
    """The decisions, by tool call. A call whose interrupt accepts any answer counts as approved."""
    unjudged: Set[str]
    """Tool calls whose response a Strands hook or intervention has yet to interpret."""


def read_responses(prompt: Any) -> InterruptResponses:
    """Return the interrupt responses in a prompt.

    Args:
        prompt: As an agent takes it.
    """
    blocks = [each for each in prompt if isinstance(each, dict)] if isinstance(prompt, list) else []
    given = [block["interruptResponse"] for block in blocks if "interruptResponse" in block]
    return parse_responses({each["interruptId"]: each["response"] for each in given})


def parse_responses(given: Mapping[str, Any]) -> InterruptResponses:
    """Interpret responses to interrupts.

    Args:
        given: The responses, by interrupt id.
    """
    decisions: dict[str, Approve | Reject] = {}
    unjudged: set[str] = set()
    for interrupt, response in given.items():
        call = interrupted_call_id(interrupt)
        if not call:
            continue
        answer = to_decision(call, response)
        if isinstance(answer, Reject) and not (is_hook_interrupt(interrupt) or is_rejection(response)):
            if interrupt.startswith("v1:before_tool_call:"):
                unjudged.add(call)
                continue
            answer = Approve(call)
        if not isinstance(decisions.get(call), Reject):
            decisions[call] = answer
    for call in unjudged:
        if isinstance(decisions.get(call), Approve):
            del decisions[call]
    return InterruptResponses(given, decisions, unjudged - decisions.keys())


def responses_for_sub_agent(given: Mapping[str, Any], tool_call_id: str) -> InterruptResponses:
    """Return the responses that are for interrupts inside a sub-agent.

    Args:
        given: The responses, by interrupt id.
        tool_call_id: The call of the sub-agent.
    """
    prefix = f"v1:agent_as_tool:{quote(tool_call_id, safe='')}:"
    return parse_responses({name.removeprefix(prefix): each for name, each in given.items() if name.startswith(prefix)})


def is_hook_interrupt(interrupt_id: str) -> bool:
    """Return whether a hook raised an interrupt, here or in a sub-agent; others belong to their tool or to Strands."""
    return interrupt_id.endswith(f":{_INTERRUPT_ID}") and "middleware_execute_tool" in interrupt_id.split(":")


def is_rejection(response: Any) -> bool:
    """Return whether a response is a rejection made by `answers`."""
    return isinstance(response, dict) and response.get(REJECTED_KEY) is True
