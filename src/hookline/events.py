"""The sixteen events of a run, and their JSON.

Observers, records, traces and webhooks get the same events. In Python, names are in snake_case; in JSON, keys are in
camelCase, and `type` names the event.

Source:
    The names and their moments are LobeHub's agent-runtime hooks (version 2.2.10).
"""

import enum
import math
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, TypeAlias, get_args

import msgspec

from hookline._readonly import ReadOnlyDict, ReadOnlyList, check_finite, freeze_dict, freeze_list
from hookline.calls import ToolCall, ToolRequest, as_tool_result
from hookline.errors import EventDecodeError, EventEncodeError, HookUsageError

__all__ = [
    "EVENTS",
    "AfterCallAgent",
    "AfterCompact",
    "AfterHumanIntervention",
    "AfterStep",
    "AfterToolCall",
    "BeforeCallAgent",
    "BeforeCompact",
    "BeforeHumanIntervention",
    "BeforeStep",
    "BeforeToolCall",
    "CompletionReason",
    "Event",
    "HookType",
    "OnCallAgentError",
    "OnCompactError",
    "OnComplete",
    "OnError",
    "OnStopByHumanIntervention",
    "OnToolCallError",
    "PendingTool",
    "StepType",
    "ToolOutcome",
    "ToolRequest",
    "decode",
    "encode",
    "json_schema",
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
    """The result of one tool call, as the model reads it.

    Attributes:
        toolset: Where the tool comes from.
        tool_name: The tool's name there.
        tool_call_id: The model's id of the call.
        content: The text that the model reads.
        success: Whether the call succeeded; false if the tool failed or raised, or if the call was denied or rejected.
    """

    toolset: str = msgspec.field(name="identifier")
    tool_name: str = msgspec.field(name="apiName")
    tool_call_id: str
    content: str
    success: bool


class PendingTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool call that waits for a person.

    Attributes:
        toolset: Where the tool comes from.
        tool_name: The tool's name there.
        tool_call_id: The id for `Approve` or `Reject`.
        args: The arguments. If the call is approved, it runs with exactly these.
        prompt: The question of the hook that asks; omitted in JSON if there is none.
        asked_by: The id of the hook that asks; omitted in JSON if the tool itself always needs approval, or the hook
            is not known.
    """

    toolset: str = msgspec.field(name="identifier")
    tool_name: str = msgspec.field(name="apiName")
    tool_call_id: str
    args: dict[str, Any]
    prompt: str = ""
    asked_by: str = ""

    def __post_init__(self) -> None:
        freeze_dict(self, "args", self.args)


class _NoMock:
    """Say why an event has no `mock`: only a call that has not run can be answered."""

    # Not a `__getattr__` of the events: with one, each read of any field of any event takes ten times as long
    # (`benchmarks/bench_events.py`).

    def __get__(self, event: object, kind: type) -> Never:
        raise AttributeError(
            f"{kind.__name__!r} object has no attribute 'mock'; only a call that has not run can be answered, in a "
            "hook that hooks.on(BeforeToolCall) registers",
            name="mock",
            obj=event,
        )


class EventFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type"):
    """The fields of every event.

    Attributes:
        operation_id: The run.
        time_unix_nano: When it happened, in nanoseconds since 1970.
        agent_id: The agent that runs.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that called this run as a sub-agent.
        tags: The tags of the run.
    """

    hook_type: ClassVar[HookType]

    operation_id: str
    time_unix_nano: int = msgspec.field(default_factory=time.time_ns)
    agent_id: str = ""
    user_id: str = ""
    tenant_id: str = ""
    parent_operation_id: str | None = None
    tags: tuple[str, ...] = ()

    if not TYPE_CHECKING:  # or type checkers would take it for an attribute of every event
        mock = _NoMock()


INTERRUPTED = "The run was interrupted before the tool had finished."
INTERRUPTED_TYPE = "Interrupted"
"""`OnToolCallError.error` and `error_type` of a tool that was stopped with its run."""

LOST = (
    "Its process died, or lost its store, while the tool ran. Whether it took effect is unknown; it did not run again."
)
LOST_TYPE = "ProcessDied"
"""`OnToolCallError.error` and `error_type` of a tool that was running when its process died."""


class ToolEventFields(EventFields, frozen=True, kw_only=True):
    """The fields of every event of a tool call.

    Attributes:
        toolset: Where the tool comes from: `"local"` for a Python function, or the name of the MCP server.
        tool_name: The tool's name there.
        args: The final arguments, read-only; `{}` if the model's text was not a JSON object.
        call_index: The number of the call, from 1, per tool and operation. Parallel calls have different numbers.
        step_index: The step, from 0.
        tool_call_id: The model's id of the call.
    """

    toolset: str = msgspec.field(name="identifier")
    tool_name: str = msgspec.field(name="apiName")
    args: dict[str, Any]
    call_index: int
    step_index: int
    tool_call_id: str

    def __post_init__(self) -> None:
        if self.args.__class__ is not ReadOnlyDict:  # as a run makes it
            freeze_dict(self, "args", self.args)


def tool_event_fields(call: ToolCall) -> dict[str, Any]:
    """Return the fields that a call gives to each of its events."""
    return {
        "toolset": call.toolset,
        "tool_name": call.tool_name,
        "args": call.args,
        "call_index": call.call_index,
        "step_index": call.step_index,
        "tool_call_id": call.tool_call_id,
    }


class BeforeToolCall(ToolEventFields, frozen=True, kw_only=True, tag="beforeToolCall", dict=True):
    """A tool is about to be called. This is the only event that an observer can answer.

    `mock` answers instead of the tool; see `HookDispatcher.dispatch_before_tool_call`.
    """

    # The answer is no field: it must not travel with the event, and it lives for one dispatch only. It sits in the
    # instance's __dict__ as `answer` (a ToolResult) and `sealed` (the dispatch is over). `standing` says beforehand
    # that no mock will be taken, because an interceptor has answered or refused already. `denial` (a ToolResult) and
    # `denied_by` are what an observer did that returned a decision: they beat every answer. `shadow` marks the copy
    # that an observer of a shadow bundle gets, and `wanted` says that it has called `mock`. `committed` marks the copy
    # that an observer with heard="committed" gets.
    hook_type: ClassVar[HookType] = HookType.BEFORE_TOOL_CALL

    def mock(self, answer: object) -> bool:
        """Answer the call instead of the tool, which does not run.

        Args:
            answer: A `ToolResult`, a `str` (also empty), a mapping with `content` and optionally `success` and
                `metadata`, or an `Exception`, which counts as raised by the tool.

        Returns:
            Whether this answer was accepted. The first one is, while the event is dispatched, unless a shadow bundle
            gives it.

        Raises:
            HookUsageError: If `answer` is anything else, or the observer has `heard="committed"`.

        Source:
            LobeHub: the first mock wins since the second version of its dispatcher.
        """
        result = as_tool_result(answer)
        state = self.__dict__
        if "committed" in state:
            raise HookUsageError(
                "An observer with heard='committed' cannot mock a call, since it hears of the call after the commit. "
                "Register it with heard='at once'."
            )
        if "answer" in state or "sealed" in state:
            return False
        if "shadow" in state:
            state["wanted"] = True
            return False
        state["answer"] = result
        return True

    @property
    def mocked(self) -> bool:
        """Whether a hook has answered."""
        return "answer" in self.__dict__

    @property
    def answered_by(self) -> str | None:
        """Id of the hook that denied or mocked the call, set when that hook returns. A denial overrides a mock."""
        state = self.__dict__
        return state.get("denied_by") or state.get("answered_by")


class AfterToolCall(ToolEventFields, frozen=True, kw_only=True, tag="afterToolCall"):
    """A tool call has returned a result, successful or not.

    Attributes:
        content: The text of the result: that of the tool, of the hook that answered, or the reason of a denial.
        success: Whether the call succeeded.
        mocked: Whether a hook answered instead of the tool.
        answered_by: Id of the hook that answered or denied the call.
        metadata: Metadata of the result, such as the rule, fault or cassette that answered.
        execution_time_ms: Duration of the call.
    """

    hook_type: ClassVar[HookType] = HookType.AFTER_TOOL_CALL

    content: str
    success: bool
    mocked: bool = False
    answered_by: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    execution_time_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.args.__class__ is not ReadOnlyDict:
            freeze_dict(self, "args", self.args)
        if self.metadata.__class__ is not ReadOnlyDict:
            freeze_dict(self, "metadata", self.metadata)


class OnToolCallError(ToolEventFields, frozen=True, kw_only=True, tag="onToolCallError"):
    """A tool call has raised. The model reads the error, and the run continues.

    Attributes:
        error: The message of the exception.
        error_type: The class name of the exception.
        mocked: Whether a hook answered with an exception instead of the tool.
        answered_by: Id of the hook that answered.
        metadata: Metadata of the answer.
        execution_time_ms: Duration of the call.
    """

    hook_type: ClassVar[HookType] = HookType.ON_TOOL_CALL_ERROR

    error: str
    error_type: str
    mocked: bool = False
    answered_by: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    execution_time_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.args.__class__ is not ReadOnlyDict:
            freeze_dict(self, "args", self.args)
        if self.metadata.__class__ is not ReadOnlyDict:
            freeze_dict(self, "metadata", self.metadata)


def is_interrupted(event: OnToolCallError) -> bool:
    """Return whether a tool call ended because its run was interrupted."""
    return event.error_type == INTERRUPTED_TYPE and event.error == INTERRUPTED


def copy_for_shadow(event: BeforeToolCall) -> BeforeToolCall:
    """Return a copy of an event of which no mock is accepted, for an observer of a shadow bundle."""
    copy = msgspec.structs.replace(event)
    copy.__dict__.update(event.__dict__, shadow=True)
    return copy


def copy_for_committed(event: BeforeToolCall) -> BeforeToolCall:
    """Return a copy of an event that refuses mocks, for observers with `heard="committed"`."""
    copy = msgspec.structs.replace(event)
    copy.__dict__.update(event.__dict__, committed=True)
    return copy


def is_settled(event: BeforeToolCall) -> bool:
    """Return whether the call is already answered or denied, so that a mock has no effect."""
    state = event.__dict__
    return "answer" in state or "sealed" in state


class BeforeStep(EventFields, frozen=True, kw_only=True, tag="beforeStep", gc=False):
    """A step is about to start.

    Attributes:
        step_index: The step, from 0.
    """

    hook_type: ClassVar[HookType] = HookType.BEFORE_STEP

    step_index: int


class AfterStep(EventFields, frozen=True, kw_only=True, tag="afterStep"):
    """A step has ended. Every `BeforeStep` is followed by one, whatever happens.

    Attributes:
        step_index: The step, from 0.
        step_type: What the step did.
        content: The model's text.
        reasoning: The model's reasoning, if it returns any.
        tools_calling: The tool calls of the model.
        tools_result: The results that the model reads, in the order of its calls.
        should_continue: Whether another step follows.
        execution_time_ms: Duration of the step.
        elapsed_ms: Duration of the operation so far, without pauses.
        step_cost_usd: Cost of this step.
        total_cost_usd: Cost of the operation so far.
        total_input_tokens: Input tokens so far.
        total_output_tokens: Output tokens so far.
        total_steps: Steps so far.
        total_tool_calls: Tool calls so far.
    """

    hook_type: ClassVar[HookType] = HookType.AFTER_STEP

    step_index: int
    step_type: StepType
    content: str
    reasoning: str
    tools_calling: list[ToolRequest]
    tools_result: list[ToolOutcome]
    should_continue: bool
    execution_time_ms: float
    elapsed_ms: float
    step_cost_usd: float
    total_cost_usd: float
    total_input_tokens: int
    total_output_tokens: int
    total_steps: int
    total_tool_calls: int

    def __post_init__(self) -> None:
        if self.tools_calling.__class__ is not ReadOnlyList:
            freeze_list(self, "tools_calling", self.tools_calling)
        if self.tools_result.__class__ is not ReadOnlyList:
            freeze_list(self, "tools_result", self.tools_result)


class OnComplete(EventFields, frozen=True, kw_only=True, tag="onComplete", gc=False):
    """A segment of a run has ended, for any reason.

    Attributes:
        reason: Why it ended.
        steps: Steps of the operation so far.
        llm_calls: Model calls so far, including failed ones; retries do not count.
        tool_calls: Tool calls so far.
        total_tokens: Input and output tokens so far.
        cost_usd: Cost so far.
        duration_ms: Duration of the operation, without pauses.
        last_assistant_content: The model's last text.
        error_type: The class name of the exception, if `reason` is `"error"`.
        error_message: The message of the exception, if `reason` is `"error"`.
    """

    hook_type: ClassVar[HookType] = HookType.ON_COMPLETE

    reason: CompletionReason
    steps: int
    llm_calls: int
    tool_calls: int
    total_tokens: int
    cost_usd: float
    duration_ms: float
    last_assistant_content: str
    error_type: str | None = None
    error_message: str | None = None


class OnError(EventFields, frozen=True, kw_only=True, tag="onError", gc=False):
    """A run has ended with an error. It follows `OnComplete(reason="error")`.

    Attributes:
        error_message: The message of the exception.
        error_type: The class name of the exception. It is stable, so programs can rely on it.
        error_detail: The traceback, as text.
        step_index: The step in which it happened; `None` outside a step.
    """

    hook_type: ClassVar[HookType] = HookType.ON_ERROR

    error_message: str
    error_type: str
    error_detail: str
    step_index: int | None = None


class BeforeHumanIntervention(EventFields, frozen=True, kw_only=True, tag="beforeHumanIntervention"):
    """The run is about to pause for a person's decision.

    Attributes:
        step_index: The step, from 0.
        pending_tools: The calls that wait for a decision.
    """

    hook_type: ClassVar[HookType] = HookType.BEFORE_HUMAN_INTERVENTION

    step_index: int
    pending_tools: list[PendingTool]

    def __post_init__(self) -> None:
        freeze_list(self, "pending_tools", self.pending_tools)


class AfterHumanIntervention(EventFields, frozen=True, kw_only=True, tag="afterHumanIntervention", gc=False):
    """A person has decided about a tool call. There is one event per decision.

    Attributes:
        action: The decision.
        tool_call_id: The call.
        rejection_reason: Why it was rejected.
    """

    hook_type: ClassVar[HookType] = HookType.AFTER_HUMAN_INTERVENTION

    action: HumanAction
    tool_call_id: str | None = None
    rejection_reason: str | None = None


class OnStopByHumanIntervention(EventFields, frozen=True, kw_only=True, tag="onStopByHumanIntervention", gc=False):
    """A person has rejected a tool call, and the run stops.

    Attributes:
        tool_call_id: The rejected call.
        rejection_reason: Why it was rejected.
    """

    hook_type: ClassVar[HookType] = HookType.ON_STOP_BY_HUMAN_INTERVENTION

    tool_call_id: str | None = None
    rejection_reason: str | None = None


class BeforeCompact(EventFields, frozen=True, kw_only=True, tag="beforeCompact", gc=False):
    """The conversation is about to be compacted.

    Attributes:
        step_index: The step, from 0.
        message_count: Number of messages.
        token_count: The input tokens that made the compaction necessary.
    """

    hook_type: ClassVar[HookType] = HookType.BEFORE_COMPACT

    step_index: int
    message_count: int
    token_count: int


class AfterCompact(EventFields, frozen=True, kw_only=True, tag="afterCompact", gc=False):
    """The conversation has been compacted.

    Attributes:
        step_index: The step, from 0.
        group_id: Id of this compaction.
        messages_before: Number of messages before.
        messages_after: Number of messages after.
        summary: The text that replaces the removed messages.
    """

    hook_type: ClassVar[HookType] = HookType.AFTER_COMPACT

    step_index: int
    group_id: str
    messages_before: int
    messages_after: int
    summary: str


class OnCompactError(EventFields, frozen=True, kw_only=True, tag="onCompactError", gc=False):
    """Compaction has failed. The run continues with the unchanged conversation.

    Attributes:
        step_index: The step, from 0.
        token_count: The input tokens that made the compaction necessary.
        error: What went wrong.
    """

    hook_type: ClassVar[HookType] = HookType.ON_COMPACT_ERROR

    step_index: int
    token_count: int
    error: str


class BeforeCallAgent(EventFields, frozen=True, kw_only=True, tag="beforeCallAgent", gc=False):
    """A sub-agent is about to be called. The event belongs to the parent operation.

    Attributes:
        callee_id: The sub-agent.
        instruction: The task for the sub-agent.
    """

    hook_type: ClassVar[HookType] = HookType.BEFORE_CALL_AGENT

    callee_id: str
    instruction: str


class AfterCallAgent(EventFields, frozen=True, kw_only=True, tag="afterCallAgent", gc=False):
    """A sub-agent has completed. The event belongs to the parent operation.

    Attributes:
        callee_id: The sub-agent.
        sub_operation_id: Its operation.
        thread_id: The conversation of the sub-agent.
        success: Whether the sub-agent ended with reason `"done"`.
    """

    hook_type: ClassVar[HookType] = HookType.AFTER_CALL_AGENT

    callee_id: str
    sub_operation_id: str
    thread_id: str
    success: bool


class OnCallAgentError(EventFields, frozen=True, kw_only=True, tag="onCallAgentError", gc=False):
    """A sub-agent could not be called, or ended with an error. The event belongs to the parent operation.

    Attributes:
        callee_id: The sub-agent.
        error: What went wrong.
    """

    hook_type: ClassVar[HookType] = HookType.ON_CALL_AGENT_ERROR

    callee_id: str
    error: str


Event: TypeAlias = (
    BeforeStep
    | AfterStep
    | OnComplete
    | OnError
    | BeforeToolCall
    | AfterToolCall
    | OnToolCallError
    | BeforeHumanIntervention
    | AfterHumanIntervention
    | OnStopByHumanIntervention
    | BeforeCompact
    | AfterCompact
    | OnCompactError
    | BeforeCallAgent
    | AfterCallAgent
    | OnCallAgentError
)

EVENTS: dict[HookType, type[Event]] = {kind.hook_type: kind for kind in get_args(Event)}
"""The sixteen classes by wire name."""

TOOL_EVENTS: tuple[type[Event], ...] = (BeforeToolCall, AfterToolCall, OnToolCallError)
"""The classes that speak of a tool, to which a `tool=` filter applies."""

_FLOATS = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.type is float) for kind in EVENTS.values()
}
_OPEN = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.name in ("args", "metadata"))
    for kind in EVENTS.values()
}
_CALLS: dict[type[Event], str] = {AfterStep: "tools_calling", BeforeHumanIntervention: "pending_tools"}
_IS_CHECKED = {kind: bool(_FLOATS[kind] or _OPEN[kind] or kind in _CALLS) for kind in EVENTS.values()}
"""Whether an event has fields that may hold a number which JSON cannot represent. Most have none."""
_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode


def encode(event: Event) -> bytes:
    """Encode an event as JSON, with keys in camelCase.

    Raises:
        EventEncodeError: If `args` or `metadata` have a value that JSON cannot represent.
    """
    try:
        if _IS_CHECKED[type(event)]:
            _check_numbers(event)
        return _encode(event)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        name = getattr(event, "hook_type", type(event).__name__)
        raise EventEncodeError(name, str(error)) from error


def _check_numbers(event: Event) -> None:
    for name in _FLOATS[type(event)]:
        if not math.isfinite(getattr(event, name)):
            raise ValueError(f"`{name}` is {getattr(event, name)}")
    for name in _OPEN[type(event)]:
        check_finite(name, getattr(event, name))
    if calls := _CALLS.get(type(event)):
        for index, call in enumerate(getattr(event, calls)):
            check_finite(f"{calls}[{index}].args", getattr(call, "args", call))


def decode(data: bytes) -> Event:
    """Decode an event from JSON. Unknown keys are ignored.

    Raises:
        EventDecodeError: If the data is not an event. The error names the path of the invalid field.
    """
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from error
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
        raise EventDecodeError("$", str(error)) from error


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the events that `decode` accepts."""
    schema = msgspec.json.schema(Event)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "hookline events", **schema}


def _bad_field(message: str) -> EventDecodeError:
    reason, _, path = message.rpartition(" - at `")
    if not reason:
        reason, path = message, "$"
    path = path.rstrip("`")
    missing = re.fullmatch(r"Object missing required field `(\w+)`", reason)
    return EventDecodeError(f"{path}.{missing[1]}" if missing else path, reason)
