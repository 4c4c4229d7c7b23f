"""Decisions of people about tool calls of Pydantic AI: `deferred_results` and `RunRejected`."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_ai.tools import DeferredToolResults, ToolApproved, ToolDenied

from hookline.errors import HooklineError, define_error
from hookline.runtime import Approve, Reject

__all__ = ["RunRejected", "ToolDeniedAndStopped", "deferred_results"]


@define_error()
class RunRejected(HooklineError):
    """A person rejected a tool call, which ended the run.

    Attributes:
        tool_call_id: The id of the call.
        reason: The person's reason; `""` if there is none.
    """

    tool_call_id: str
    reason: str

    def __str__(self) -> str:
        return (
            f"A person rejected call {self.tool_call_id!r} and ended the run: {self.reason or 'no reason given'}. "
            "Use Reject(..., and_continue=True) to tell the model and continue the run."
        )


class ToolDeniedAndStopped(ToolDenied):
    """A rejection that ends the run."""


def deferred_results(decisions: Iterable[Approve | Reject]) -> DeferredToolResults:
    """Convert a person's decisions for `agent.run(deferred_tool_results=...)`.

    Args:
        decisions: One decision for each waiting call. A `Reject` ends the run with `RunRejected` unless it says
            `and_continue`.
    """
    results = DeferredToolResults()
    for each in decisions:
        if isinstance(each, Approve):
            results.approvals[each.tool_call_id] = ToolApproved()
        else:
            kind = ToolDenied if each.and_continue else ToolDeniedAndStopped
            results.approvals[each.tool_call_id] = kind(each.reason)
    return results
