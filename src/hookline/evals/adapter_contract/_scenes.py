"""The scenes that every adapter plays, and the events that each must give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel

from hookline.calls import ModelResponse, ToolRequest
from hookline.evals.adapter_contract._stage import Scene
from hookline.evals.adapter_contract._witness import ExpectedEvent, expect
from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnStopByHumanIntervention,
    OnToolCallError,
)

__all__ = [
    "COMPACTING",
    "DELEGATING",
    "FAILING",
    "PARALLEL",
    "PLAIN",
    "SPEECHLESS",
    "add",
    "ask_for",
    "compaction_events",
    "decision_event",
    "delegation_events",
    "end_event",
    "pause_events",
    "plain_events",
    "step_events",
    "stop_event",
    "tool_call",
    "tool_events",
]


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await anyio.lowlevel.checkpoint()
    return a + b


async def fail() -> str:
    """Fail."""
    raise ValueError("broken")


def tool_call(name: str, tool_call_id: str = "t1", **args: Any) -> ToolRequest:
    """Return a tool call of a model."""
    return ToolRequest(tool_name=name, args=args, tool_call_id=tool_call_id)


def ask_for(*callings: ToolRequest, content: str = "") -> ModelResponse:
    """Return a model's answer that asks for tool calls."""
    return ModelResponse(content=content, tool_calls=list(callings), finish_reason="tool_calls")


ADD = tool_call("add", a=1, b=2)
ASK_CHILD = ToolRequest(toolset="agent", tool_name="child", args={"instruction": "do it"}, tool_call_id="t1")
DONE = ModelResponse(content="done")

PLAIN = Scene(turns=[ask_for(ADD, content="let me see"), DONE], tools={"add": add})
FAILING = Scene(turns=[ask_for(tool_call("fail")), DONE], tools={"fail": fail})
SPEECHLESS = Scene(turns=PLAIN.turns[:1], tools={"add": add})
PARALLEL = Scene(
    turns=[ask_for(ADD, tool_call("add", "t2", a=3, b=4), tool_call("add", "t3", a=5, b=6)), DONE], tools={"add": add}
)
DELEGATING = Scene(turns=[ask_for(ASK_CHILD), DONE], agents={"child": Scene(turns=[ModelResponse(content="answer")])})
COMPACTING = Scene(turns=[ask_for(ADD, content="let me see"), DONE], tools={"add": add}, compact=True)


def tool_events(
    toolset: str,
    *,
    name: str = "add",
    args: dict[str, Any] | None = None,
    tool_call_id: str = "t1",
    call_index: int = 1,
    step_index: int = 0,
    **after: Any,
) -> list[ExpectedEvent]:
    """Return the two events of a tool call; with `error=` the second one is its error."""
    of = {
        "toolset": toolset,
        "tool_name": name,
        "args": {"a": 1, "b": 2} if args is None else args,
        "tool_call_id": tool_call_id,
        "call_index": call_index,
        "step_index": step_index,
    }
    after = {"mocked": False, **after}
    if "error" in after:
        return [expect(BeforeToolCall, **of), expect(OnToolCallError, **of, **after)]
    return [expect(BeforeToolCall, **of), expect(AfterToolCall, **of, **{"success": True, **after})]


def step_events(index: int, *inside: ExpectedEvent, last: bool = False, **after: Any) -> list[ExpectedEvent]:
    """Return the events of a step, with those that happen in it."""
    kind = "call_llm" if last else "call_tool"
    fields = {"step_index": index, "step_type": kind, "should_continue": not last, "total_steps": index + 1, **after}
    return [expect(BeforeStep, step_index=index), *inside, expect(AfterStep, **fields)]


def end_event(reason: str = "done", **fields: Any) -> ExpectedEvent:
    """Return the event of the end of a run."""
    return expect(OnComplete, reason=reason, **fields)


def plain_events(
    pair: Sequence[ExpectedEvent], *, calls: int = 1, output: str = "done", content: str = "let me see"
) -> list[ExpectedEvent]:
    """Return the events of a run of two steps, the first with these tool calls."""
    return [
        *step_events(0, *pair, content=content, total_tool_calls=calls),
        *step_events(1, last=True, content="done", total_tool_calls=calls),
        end_event(steps=2, llm_calls=2, tool_calls=calls, last_assistant_content=output),
    ]


def compaction_events(*, summary: str | None = "summary") -> list[ExpectedEvent]:
    """Return the events of a compaction, which failed if there is no summary."""
    after = (
        expect(OnCompactError, step_index=1) if summary is None else expect(AfterCompact, step_index=1, summary=summary)
    )
    return [expect(BeforeCompact, step_index=1), after]


def delegation_events(*, instruction: str = "do it", error: str | None = None) -> list[ExpectedEvent]:
    """Return the events of a sub-agent's call, in the operation that calls it."""
    after = (
        expect(AfterCallAgent, callee_id="child", success=True)
        if error is None
        else expect(OnCallAgentError, callee_id="child", error=error)
    )
    return [expect(BeforeCallAgent, callee_id="child", instruction=instruction), after]


def pause_events(index: int = 0) -> list[ExpectedEvent]:
    """Return the events at the end of a segment that waits for a person."""
    return [
        expect(BeforeStep, step_index=index),
        expect(BeforeHumanIntervention, step_index=index),
        expect(AfterStep, step_index=index, step_type="request_human_approve", should_continue=False),
        end_event("waiting_for_human"),
    ]


def decision_event(action: str, *, reason: str | None = None) -> ExpectedEvent:
    """Return the event of a person's decision about the call `t1`."""
    return expect(AfterHumanIntervention, action=action, tool_call_id="t1", rejection_reason=reason)


def stop_event(reason: str) -> ExpectedEvent:
    """Return the event of a rejection that ends the run."""
    return expect(OnStopByHumanIntervention, tool_call_id="t1", rejection_reason=reason)
