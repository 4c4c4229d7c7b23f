"""Decisions of people about tool calls of Pydantic AI: `answers`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from hookline.adapters._attaching import decisions_by_call
from hookline.runtime import Approve, Reject

__all__ = ["ToolDeniedAndStopped", "answers", "mark_paused", "may_resume", "paused_operation"]

OPERATION_KEY = "hookline_operation_id"
"""Key in the metadata of the model's last response for the operation that waits for a person."""


class ToolDeniedAndStopped(ToolDenied):
    """A rejection that ends the run."""


def answers(result: AgentRunResult[Any], decisions: Iterable[Approve | Reject]) -> DeferredToolResults:
    """Convert a person's decisions for `agent.run(deferred_tool_results=...)`.

    Args:
        result: The result of the paused run, whose output is a `DeferredToolRequests`.
        decisions: One decision for each waiting call. A `Reject` ends the run with a `RunStopped` unless it says
            `and_continue`.

    Raises:
        HookUsageError: If a decision is about a call that does not wait.
    """
    output = result.output
    parts = (*output.approvals, *output.calls) if isinstance(output, DeferredToolRequests) else ()
    results = DeferredToolResults()
    for name, each in decisions_by_call(decisions, [part.tool_call_id for part in parts]).items():
        if isinstance(each, Approve):
            results.approvals[name] = ToolApproved()
        else:
            kind = ToolDenied if each.and_continue else ToolDeniedAndStopped
            results.approvals[name] = kind(each.reason)
    return results


def mark_paused(messages: Sequence[ModelMessage], operation_id: str) -> None:
    """Keep the operation that waits for a person with the conversation, as the application stores that."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            message.metadata = {**(message.metadata or {}), OPERATION_KEY: operation_id}
            return


def may_resume(messages: Sequence[ModelMessage]) -> bool:
    """Return whether a person's decisions may belong to these messages: the model's last response has calls."""
    last = next((each for each in reversed(messages) if isinstance(each, ModelResponse)), None)
    return last is not None and bool(last.tool_calls)


def paused_operation(messages: Sequence[ModelMessage]) -> str | None:
    """Return the operation that waits for a person after these messages, if they know it."""
    last = next((each for each in reversed(messages) if isinstance(each, ModelResponse)), None)
    found = (last.metadata or {}).get(OPERATION_KEY) if last is not None else None
    return found if isinstance(found, str) else None
