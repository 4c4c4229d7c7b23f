"""The three events of a tool call, one of which may be answered."""

from typing import Any, ClassVar

import msgspec

from hookline._event_fields import EventFields, HookType
from hookline._frozen import read_only
from hookline.calls import as_tool_result

__all__ = [
    "INTERRUPTED",
    "INTERRUPTED_TYPE",
    "LOST",
    "LOST_TYPE",
    "AfterToolCall",
    "BeforeToolCall",
    "OnToolCallError",
    "is_interrupted",
    "is_settled",
]

INTERRUPTED = "The run was interrupted before the tool had finished."
INTERRUPTED_TYPE = "Interrupted"
"""`OnToolCallError.error` and `error_type` of a tool that was stopped with its run."""

LOST = (
    "Its process died, or lost its store, while the tool ran. Whether it took effect is unknown; it did not run again."
)
LOST_TYPE = "ProcessDied"
"""`OnToolCallError.error` and `error_type` of a tool that was running when its process died."""


class ToolEventFields(EventFields, frozen=True, kw_only=True):
    """What every event of a tool call says.

    Attributes:
        identifier: Where the tool comes from: `"local"` for a Python function, the server's name for MCP.
        api_name: The tool's name there.
        args: The final arguments, read-only; text of the model that was no JSON object gives `{}`.
        call_index: From 1, per tool and operation; parallel calls never share one.
        step_index: The step, from 0.
        tool_call_id: The model's id of the call.
    """

    identifier: str
    api_name: str
    args: dict[str, Any]
    call_index: int
    step_index: int
    tool_call_id: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "args", read_only(self.args))


class BeforeToolCall(ToolEventFields, frozen=True, kw_only=True, tag="beforeToolCall", dict=True):
    """A tool is about to be called; the one event that an observer may answer.

    `mock` answers in the tool's place; see `HookDispatcher.dispatch_before_tool_call`.
    """

    # The answer is no field: it must not travel with the event, and it lives for one dispatch only. It sits in the
    # instance's __dict__ as `answer` (a ToolResult) and `sealed` (the dispatch is over). `standing` says beforehand
    # that no mock will be taken, because an interceptor has answered or refused already. `denial` (a ToolResult) and
    # `denied_by` are what an observer did that returned a decision: they beat every answer.
    hook_type: ClassVar[HookType] = HookType.BEFORE_TOOL_CALL

    def mock(self, answer: object) -> bool:
        """Answer in the tool's place; the tool will not run.

        Args:
            answer: A `ToolResult`, a `str` (also empty), a mapping with `content` and optionally `success` and
                `metadata`, or an `Exception`, which counts as raised by the tool.

        Returns:
            Whether this answer was taken: the first one is, unless the event's dispatch is over.

        Raises:
            HookUsageError: If `answer` is anything else.

        Source:
            LobeHub: first mock wins since the second version of its dispatcher.
        """
        result = as_tool_result(answer)
        state = self.__dict__
        if "answer" in state or "sealed" in state:
            return False
        state["answer"] = result
        return True

    @property
    def mocked(self) -> bool:
        """Whether a hook has answered already."""
        return "answer" in self.__dict__

    @property
    def answered_by(self) -> str | None:
        """Id of the hook that denied the call, else of the one that mocked it, known once that hook has returned."""
        state = self.__dict__
        return state.get("denied_by") or state.get("answered_by")


class AfterToolCall(ToolEventFields, frozen=True, kw_only=True, tag="afterToolCall"):
    """A tool call has given a result, good or bad.

    Attributes:
        content: What the tool, or the hook in its place, answered; for a denied call the reason.
        success: Whether it did what it was asked for.
        mocked: Whether a hook answered instead of the tool.
        answered_by: Id of that hook.
        metadata: What the answer carried: rule, fault, cassette.
        execution_time_ms: How long the call took.
    """

    hook_type: ClassVar[HookType] = HookType.AFTER_TOOL_CALL

    content: str
    success: bool
    mocked: bool = False
    answered_by: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    execution_time_ms: float = 0.0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "args", read_only(self.args))
        msgspec.structs.force_setattr(self, "metadata", read_only(self.metadata))


class OnToolCallError(ToolEventFields, frozen=True, kw_only=True, tag="onToolCallError"):
    """A tool call has raised; the model is told and the run goes on.

    Attributes:
        error: What the exception said.
        error_type: Its class name.
        mocked: Whether a hook answered with an exception instead of the tool.
        answered_by: Id of that hook.
        metadata: What the answer carried.
        execution_time_ms: How long the call took.
    """

    hook_type: ClassVar[HookType] = HookType.ON_TOOL_CALL_ERROR

    error: str
    error_type: str
    mocked: bool = False
    answered_by: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    execution_time_ms: float = 0.0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "args", read_only(self.args))
        msgspec.structs.force_setattr(self, "metadata", read_only(self.metadata))


def is_interrupted(event: OnToolCallError) -> bool:
    """Whether a tool did not fail but was stopped with its run."""
    return event.error_type == INTERRUPTED_TYPE and event.error == INTERRUPTED


def is_settled(event: BeforeToolCall) -> bool:
    """Whether it is decided already what becomes of the call, so that no answer would be taken."""
    state = event.__dict__
    return "answer" in state or "sealed" in state
