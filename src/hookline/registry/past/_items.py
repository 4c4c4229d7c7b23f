"""What is read of stored operations to judge it: calls, people's decisions, and what cannot be judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from hookline.calls import Call
from hookline.events import EventFields

__all__ = ["PastCall", "PastItem", "PersonDecision", "UnjudgedCalls", "UnreadableEvent", "ids_of"]


class PastCall(msgspec.Struct, kw_only=True, eq=False):
    """A call that once happened.

    Attributes:
        call: The call, with its final arguments; a `ModelCall` is without its messages until it is judged.
        number: The number of its event in the operation, from 1.
        at: When it happened, in unix seconds.
        waited: Whether it waited for a person.
        messages: Number of messages that stood when a model was asked.
        result: Its result; `None` if it is not known, or the call has not run.
        lost: Why the result is not known although there was one; `""` otherwise.
        problem: Why the call cannot be judged; `""` if it can.
    """

    call: Call
    number: int
    at: float
    waited: bool = False
    messages: int = 0
    result: msgspec.Struct | None = None
    lost: str = ""
    problem: str = ""


class PersonDecision(NamedTuple):
    """A person's decision about a call that comes before it.

    Attributes:
        tool_call_id: The call.
        allowed: Whether the person approved it.
    """

    tool_call_id: str
    allowed: bool


class UnreadableEvent(NamedTuple):
    """A stored event that this version of hookline cannot read.

    Attributes:
        number: The number of the event in the operation.
        problem: Why.
    """

    number: int
    problem: str


class UnjudgedCalls(NamedTuple):
    """Calls that cannot be rebuilt.

    Attributes:
        reason: Why, as a sentence.
        calls: How many.
    """

    reason: str
    calls: int = 1


PastItem = PastCall | PersonDecision | UnreadableEvent | UnjudgedCalls


def ids_of(event: EventFields) -> dict[str, Any]:
    """Return the fields that a call has in common with its event."""
    return {
        "operation_id": event.operation_id,
        "agent_id": event.agent_id,
        "user_id": event.user_id,
        "tenant_id": event.tenant_id,
        "parent_operation_id": event.parent_operation_id,
        "tags": event.tags,
        "metadata": {},
    }
