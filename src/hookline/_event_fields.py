"""What the sixteen events have in common, and the words that their fields are made of."""

import enum
import time
from typing import Any, ClassVar, Literal

import msgspec

from hookline._frozen import read_only, read_only_list

__all__ = [
    "CompletionReason",
    "EventFields",
    "HookType",
    "HumanAction",
    "PendingTool",
    "StepType",
    "ToolOutcome",
    "freeze_list",
]

CompletionReason = Literal["done", "error", "interrupted", "max_steps", "cost_limit", "waiting_for_human"]
HumanAction = Literal["approve", "reject", "rejectAndContinue"]
StepType = Literal["call_llm", "call_tool", "request_human_approve"]


class HookType(enum.StrEnum):
    """The wire names of the sixteen events."""

    BEFORE_STEP = "beforeStep"
    AFTER_STEP = "afterStep"
    ON_COMPLETE = "onComplete"
    ON_ERROR = "onError"
    BEFORE_TOOL_CALL = "beforeToolCall"
    AFTER_TOOL_CALL = "afterToolCall"
    ON_TOOL_CALL_ERROR = "onToolCallError"
    BEFORE_HUMAN_INTERVENTION = "beforeHumanIntervention"
    AFTER_HUMAN_INTERVENTION = "afterHumanIntervention"
    ON_STOP_BY_HUMAN_INTERVENTION = "onStopByHumanIntervention"
    BEFORE_COMPACT = "beforeCompact"
    AFTER_COMPACT = "afterCompact"
    ON_COMPACT_ERROR = "onCompactError"
    BEFORE_CALL_AGENT = "beforeCallAgent"
    AFTER_CALL_AGENT = "afterCallAgent"
    ON_CALL_AGENT_ERROR = "onCallAgentError"


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the model was told about one tool call.

    Attributes:
        identifier: Where the tool comes from.
        api_name: The tool's name there.
        tool_call_id: The model's id of the call.
        content: The text that the model reads.
        success: False if the tool failed, raised, was denied or was rejected.
    """

    identifier: str
    api_name: str
    tool_call_id: str
    content: str
    success: bool


class PendingTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool call that waits for a person.

    Attributes:
        identifier: Where the tool comes from.
        api_name: The tool's name there.
        tool_call_id: The id to name in `Approve` or `Reject`.
        args: The very arguments that will run when it is approved.
        prompt: What a hook asks the person; on the wire only where there is one.
    """

    identifier: str
    api_name: str
    tool_call_id: str
    args: dict[str, Any]
    prompt: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "args", read_only(self.args))


class EventFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    """What every event says.

    Attributes:
        operation_id: The run that it belongs to.
        time_unix_nano: When it happened, in nanoseconds since 1970.
        agent_id: The agent that runs.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that called this one as a sub-agent.
    """

    hook_type: ClassVar[HookType]

    operation_id: str
    time_unix_nano: int = msgspec.field(default_factory=time.time_ns)
    agent_id: str = ""
    user_id: str = ""
    tenant_id: str = ""
    parent_operation_id: str | None = None


def freeze_list(event: EventFields, name: str, value: list[Any]) -> None:
    """Replace a list field of a new event by a read-only copy."""
    msgspec.structs.force_setattr(event, name, read_only_list(value))
