"""What the decisions of people are called, in the same words on every surface."""

from __future__ import annotations

from typing import Literal, TypeAlias

from hookline.runtime._state import Approve, Decision, Reject

__all__ = ["DECIDED", "DECISIONS", "Action", "action_of", "decision_of"]

Action: TypeAlias = Literal["approve", "reject", "rejectAndContinue"]

DECISIONS: dict[str, str] = {
    "approve": "approve",
    "rejectAndContinue": "reject and continue",
    "reject": "reject and stop",
}
"""What a person can choose, in the order in which it is offered."""

DECIDED: dict[str, str] = {
    "approve": "approved",
    "rejectAndContinue": "rejected and continued",
    "reject": "rejected and stopped",
}
"""What a person has chosen."""


def action_of(decision: Decision) -> Action:
    """Return the name of a decision on the wire.

    Args:
        decision: What was decided.
    """
    if isinstance(decision, Approve):
        return "approve"
    return "rejectAndContinue" if decision.and_continue else "reject"


def decision_of(action: str, tool_call_id: str, reason: str = "") -> Decision:
    """Make a decision of its name on the wire.

    Args:
        action: What was decided.
        tool_call_id: About which call.
        reason: Why; an approval has none.
    """
    if action == "approve":
        return Approve(tool_call_id)
    return Reject(tool_call_id, reason, and_continue=action == "rejectAndContinue")
