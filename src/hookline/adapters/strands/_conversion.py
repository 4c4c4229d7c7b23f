"""What Strands says in the words of hookline, and the other way round."""

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

from hookline.calls import Message, ModelResponse, ToolRequest, ToolSpec, Usage
from hookline.runtime import Approve, Reject

__all__ = [
    "ASK",
    "Answers",
    "agent_name",
    "answered",
    "answers_in",
    "answers_inside",
    "call_of",
    "calling",
    "decision",
    "heard",
    "is_agent",
    "messages_again",
    "model_name",
    "prompt_of",
    "rejection",
    "response_of",
    "response_to",
    "said",
    "specs",
    "stop_reason",
    "text_of",
    "tool_result",
]

Block = Mapping[str, Any]
ASK = "hookline"
"""The name of the interrupts of hooks that ask a person."""
REJECTED = "hookline_rejected"
"""What marks the response of a person who has rejected a call, whoever has asked."""
_OURS = uuid5(NAMESPACE_OID, ASK)
_encoded = json.JSONEncoder(default=str).encode


def text_of(content: Sequence[Any]) -> str:
    """The text of content blocks; JSON as JSON."""
    if len(content) == 1 and (text := content[0].get("text")).__class__ is str:
        return str(text)
    found = (block["text"] if "text" in block else block.get("json") for block in content)
    return "\n".join(each if isinstance(each, str) else _encoded(each) for each in found if each is not None)


# Tools.


def is_agent(tool: Any) -> bool:
    """Whether a tool is an agent."""
    return getattr(tool, "tool_type", "") == "agent" and isinstance(getattr(tool, "agent", None), Agent)


def calling(agent: Any, use: Block) -> ToolRequest:
    """A call of a tool."""
    return ToolRequest(
        toolset=_identifier(agent, use["name"]),
        tool_name=use["name"],
        args=use["input"] if isinstance(use["input"], dict | str) else {},
        tool_call_id=use["toolUseId"],
    )


def _identifier(agent: Any, name: str) -> str:
    registry = agent.tool_registry
    tool = registry.dynamic_tools.get(name) or registry.registry.get(name)
    if is_agent(tool):
        return "agent"
    server = getattr(getattr(tool, "mcp_client", None), "server_info", None)
    return str(getattr(server, "name", "mcp")) if hasattr(tool, "mcp_client") else "local"


def specs(agent: Any, offered: Sequence[Any]) -> list[ToolSpec]:
    """The tools that a model is offered."""
    return [
        ToolSpec(
            toolset=_identifier(agent, each["name"]),
            name=each["name"],
            description=each["description"],
            schema=each["inputSchema"].get("json", {}),
        )
        for each in offered
    ]


def tool_result(use: Block, content: str, *, success: bool) -> ToolResultEvent:
    """What the model is told of a call."""
    return ToolResultEvent(
        {"toolUseId": use["toolUseId"], "status": "success" if success else "error", "content": [{"text": content}]}
    )


# Messages.


def heard(agent: Any, message: Block) -> list[Message]:
    """A message of Strands; each result of a tool in it is one of ours."""
    blocks = message["content"]
    found = [
        Message(role="tool", content=text_of(each["content"]), tool_call_id=each["toolUseId"])
        for each in (block["toolResult"] for block in blocks if "toolResult" in block)
    ]
    calls = [calling(agent, block["toolUse"]) for block in blocks if "toolUse" in block]
    text = text_of(blocks)
    if text or calls or not found:
        found.append(Message(role=message["role"], content=text, tool_calls=calls))
    return found


def said(message: Message) -> dict[str, Any]:
    """A message that a hook has written."""
    if message.role == "tool":
        told = {"toolUseId": message.tool_call_id or "", "status": "success", "content": [{"text": message.content}]}
        return {"role": "user", "content": [{"toolResult": told}]}
    text = [{"text": message.content}] if message.content else []
    return {"role": message.role, "content": [*text, *map(_use, message.tool_calls)]}


def _use(call: ToolRequest) -> dict[str, Any]:
    given = dict(call.args) if isinstance(call.args, dict) else {}
    return {"toolUse": {"toolUseId": call.tool_call_id, "name": call.tool_name, "input": given}}


def messages_again(messages: Sequence[Message], known: Sequence[tuple[Any, list[Message]]]) -> list[Any]:
    """Messages that hooks have changed; those that they left alone are the ones that Strands gave.

    Args:
        messages: The messages now.
        known: Each message of Strands, and what it was in our words.
    """
    found: list[Any] = []
    at = 0
    while at < len(messages):
        own = next(((theirs, ours) for theirs, ours in known if messages[at : at + len(ours)] == ours), None)
        at += len(own[1]) if own is not None else 1
        found.append(own[0] if own is not None else said(messages[at - 1]))
    return found


def prompt_of(agent: Any, prompt: Any) -> list[Message]:
    """What an agent was given to work on."""
    if isinstance(prompt, str):
        return [Message(role="user", content=prompt)]
    if not isinstance(prompt, list) or not prompt:
        return []
    if all(isinstance(each, dict) and "role" in each for each in prompt):
        return [ours for each in prompt for ours in heard(agent, each)]
    return [Message(role="user", content=text_of([each for each in prompt if isinstance(each, dict)]))]


# Answers of models.


def response_of(agent: Any, message: Block, reason: str, usage: Block) -> ModelResponse:
    """A model's answer."""
    texts, calls, thoughts = list[str](), list[ToolRequest](), list[str]()
    for block in message["content"]:
        if "text" in block:
            texts.append(block["text"])
        elif "toolUse" in block:
            calls.append(calling(agent, block["toolUse"]))
        elif "reasoningContent" in block:
            thoughts.append(block["reasoningContent"].get("reasoningText", {}).get("text", ""))
    return ModelResponse(
        content="\n".join(texts),
        tool_calls=calls,
        reasoning="\n".join(thoughts),
        usage=Usage(input_tokens=usage["inputTokens"], output_tokens=usage["outputTokens"]),
        finish_reason=reason,
    )


def stop_reason(response: ModelResponse, own: ModelStopReason | None) -> ModelStopReason:
    """A model's answer that a hook has given or changed.

    Args:
        response: The answer.
        own: That of the model; what a hook cannot see of it stays.
    """
    tokens = response.usage.input_tokens, response.usage.output_tokens
    usage: Any = {"inputTokens": tokens[0], "outputTokens": tokens[1], "totalTokens": sum(tokens)}
    kept = [] if own is None else [each for each in own.message["content"] if not {"text", "toolUse"} & each.keys()]
    message: Any = said(Message(role="assistant", content=response.content, tool_calls=response.tool_calls))
    message["content"] = [*kept, *message["content"]]
    reason: Any = "tool_use" if response.tool_calls else "end_turn"
    return ModelStopReason(reason, message, usage, own.metrics if own is not None else {"latencyMs": 0})


# The whole run.


def agent_name(agent: Any) -> str:
    """The agent's name; a graph has an id."""
    return str(getattr(agent, "name", None) or getattr(agent, "id", ""))


def model_name(agent: Any) -> str:
    """The model's name; a graph has none."""
    model: Any = getattr(agent, "model", None)
    config = model.get_config() if hasattr(model, "get_config") else {}
    found = config.get("model_id") if isinstance(config, dict) else getattr(config, "model_id", None)
    return str(found or "")


def answered(agent: Any, own: Any, output: str, reason: Any = "end_turn") -> AgentResult:
    """What a run gives whose last words are a hook's.

    Args:
        agent: The agent.
        own: What it has given itself, if it ran.
        output: The last words.
        reason: Why it stopped.
    """
    message: Any = {"role": "assistant", "content": [{"text": output}]}
    if isinstance(own, AgentResult):
        return dataclasses.replace(own, message=message)
    metrics = getattr(agent, "event_loop_metrics", None) or EventLoopMetrics()
    return AgentResult(stop_reason=reason, message=message, metrics=metrics, state={})


# People.


def call_of(interrupt_id: str) -> str:
    """The tool call that an interrupt is about; `""` if it is about none."""
    kind, _, rest = interrupt_id.removeprefix("v1:").partition(":")
    # An id is `v1:<what has interrupted>:<tool call>:<which of its interrupts>`; a sub-agent's is inside of that.
    return unquote(rest.partition(":")[0]) if kind == "agent_as_tool" else rest.rpartition(":")[0]


def decision(tool_call_id: str, response: Any) -> Approve | Reject:
    """What a person's response to an interrupt says; approval is what Strands takes for it, or `{"approved": True}`."""
    answer = response if isinstance(response, dict) else {}
    if default_evaluate(response) or answer.get("approved") is True:
        return Approve(tool_call_id)
    return Reject(tool_call_id, str(answer.get("reason", "")), bool(answer.get("and_continue", True)))


def response_to(decision: Approve | Reject) -> Any:
    """The response to an interrupt that says what a person decided."""
    if isinstance(decision, Approve):
        return True
    return {REJECTED: True, "approved": False, "reason": decision.reason, "and_continue": decision.and_continue}


def rejection(decision: Reject) -> str:
    """What the model is told of a call that a person refused."""
    return f"A person refused this call: {decision.reason}" if decision.reason else "A person refused this call."


class Answers(NamedTuple):
    """What a person has answered to interrupts."""

    given: Mapping[str, Any]
    """The responses, by interrupt."""
    decisions: Mapping[str, Approve | Reject]
    """What they decide about tool calls. A call whose interrupt takes any answer goes on with that answer."""
    unjudged: Set[str]
    """Tool calls of which a hook or an intervention of Strands is still to say what the response means."""


def answers_in(prompt: Any) -> Answers:
    """Read the responses to interrupts in a prompt.

    Args:
        prompt: As an agent takes it.
    """
    blocks = [each for each in prompt if isinstance(each, dict)] if isinstance(prompt, list) else []
    given = [block["interruptResponse"] for block in blocks if "interruptResponse" in block]
    return answers_of({each["interruptId"]: each["response"] for each in given})


def answers_of(given: Mapping[str, Any]) -> Answers:
    """Read responses to interrupts.

    Args:
        given: The responses, by interrupt.
    """
    decisions: dict[str, Approve | Reject] = {}
    unjudged: set[str] = set()
    for interrupt, response in given.items():
        call = call_of(interrupt)
        if not call:
            continue
        answer = decision(call, response)
        if isinstance(answer, Reject) and not (asked_by_hook(interrupt) or is_rejection(response)):
            if interrupt.startswith("v1:before_tool_call:"):
                unjudged.add(call)
                continue
            answer = Approve(call)
        if not isinstance(decisions.get(call), Reject):
            decisions[call] = answer
    for call in unjudged:
        if isinstance(decisions.get(call), Approve):
            del decisions[call]
    return Answers(given, decisions, unjudged - decisions.keys())


def answers_inside(given: Mapping[str, Any], tool_call_id: str) -> Answers:
    """Those of the responses that are for interrupts inside of a sub-agent.

    Args:
        given: The responses, by interrupt.
        tool_call_id: The call of the sub-agent.
    """
    prefix = f"v1:agent_as_tool:{quote(tool_call_id, safe='')}:"
    return answers_of({name.removeprefix(prefix): each for name, each in given.items() if name.startswith(prefix)})


def asked_by_hook(interrupt_id: str) -> bool:
    """Whether a hook has asked, here or in a sub-agent; any other interrupt belongs to its tool, or to Strands."""
    return interrupt_id.endswith(f":{_OURS}") and "middleware_execute_tool" in interrupt_id.split(":")


def is_rejection(response: Any) -> bool:
    """Whether `answers` has made a response, of a rejection."""
    return isinstance(response, dict) and response.get(REJECTED) is True
