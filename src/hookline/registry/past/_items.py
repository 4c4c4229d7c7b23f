"""What is read of stored operations to judge it: calls, people's decisions, and what cannot be judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from hookline.calls import Call
from hookline.errors import EventDecodeError
from hookline.events import EventFields
from hookline.store import PastModelCall

__all__ = [
    "PastCall",
    "PastItem",
    "PersonDecision",
    "StepEnd",
    "UnjudgedCalls",
    "UnreadableEvent",
    "decode_step_end",
    "ids_of",
]


class PastCall(msgspec.Struct, kw_only=True, eq=False):
    """A call that once happened.

    Attributes:
        call: The call, with its final arguments; a `ModelCall` is without its messages until it is judged.
        number: The number of its event in the operation, from 1.
        at: When it happened, in unix seconds.
        waited: Whether it waited for a person.
        asked_at: When the person was asked, if it has run since then; 0 otherwise.
        denied_by: The hook that denied it before it could run, if that is known; `""` otherwise.
        messages: Number of messages that stood when a model was asked.
        made: What is stored of a `ModelCall`, if it has reached the model.
        ended_at: When it ended, in unix seconds, if that matters and is known; 0 otherwise.
        conversation: In which conversation they stood, from 0; each compaction begins another one.
        result: Its result; `None` if it is not known, or the call has not run.
        lost: Why the result is not known although there was one; `""` otherwise.
        problem: Why the call cannot be judged; `""` if it can.
        allowed: What a person decided about it, if that is known before it is judged.
    """

    call: Call
    number: int
    at: float
    waited: bool = False
    asked_at: float = 0.0
    denied_by: str = ""
    messages: int = 0
    made: PastModelCall | None = None
    ended_at: float = 0.0
    conversation: int = 0
    result: msgspec.Struct | None = None
    lost: str = ""
    problem: str = ""
    allowed: bool | None = None


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


class _RequestId(msgspec.Struct, rename="camel", gc=False):
    tool_call_id: str = ""


class StepEnd(msgspec.Struct, rename="camel", tag_field="type", tag="afterStep", gc=False):
    """The fields of an `afterStep` that judging the past needs; decoding all of it takes four times as long.

    Attributes:
        step_index: The step.
        content: What the model said.
        reasoning: Its reasoning.
        should_continue: Whether another step follows.
        tools_calling: The calls that it asked for, by their ids.
    """

    step_index: int
    content: str
    reasoning: str
    should_continue: bool
    tools_calling: list[_RequestId]


_decode_step_end = msgspec.json.Decoder(StepEnd).decode


def decode_step_end(wire: bytes) -> StepEnd:
    """Decode the end of a step.

    Raises:
        EventDecodeError: If it cannot be read.
    """
    try:
        return _decode_step_end(wire)
    except msgspec.MsgspecError as error:
        raise EventDecodeError("$", str(error)) from error


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
