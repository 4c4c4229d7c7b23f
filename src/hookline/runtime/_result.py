"""What a run came to, and what one of its steps did."""

from __future__ import annotations

from time import perf_counter_ns

import msgspec

from hookline.calls import Denial, Message, ToolCalling, Usage
from hookline.errors import RunFailedError
from hookline.events import CompletionReason, PendingTool, StepType, ToolOutcome

__all__ = ["OperationResult", "Step", "tool_message"]


class OperationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        operation_id: The run, to resume it with.
        reason: Why it returned.
        output: The agent's final answer; what it said last, if it did not finish.
        messages: The conversation, the instructions included.
        steps: Steps of the operation so far.
        usage: What its model calls used so far.
        tool_calls: Tool calls so far.
        pending: The calls that wait for a person.
        error: On `reason="error"`: what was raised.
        denied: Which hook refused the run, and why.
    """

    operation_id: str
    reason: CompletionReason
    output: str
    messages: list[Message]
    steps: int
    usage: Usage
    tool_calls: int
    pending: list[PendingTool] = []
    error: BaseException | None = None
    denied: Denial | None = None

    def raise_for_error(self) -> OperationResult:
        """Raise what a failed run raised; every other end is returned as it is.

        Returns:
            The result itself, for `(await exec_agent(...)).raise_for_error().output`.

        Raises:
            BaseException: The run's `error`, if its `reason` is `"error"`; a `RunFailedError` where the exception
                itself is not in this process.
        """
        if self.reason != "error":
            return self
        raise self.error or RunFailedError("", "")


class Step:
    """One turn of the loop, while it lasts."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.started = perf_counter_ns()
        self.type: StepType = "call_llm"
        self.content = ""
        self.reasoning = ""
        self.calling: list[ToolCalling] = []
        self.outcomes: dict[str, ToolOutcome] = {}
        self.asked: dict[str, PendingTool] = {}
        """Calls about which a person must decide, by tool call id."""
        self.ran = False
        """Whether any of its calls was run, answered or denied."""
        self.cost_usd = 0.0
        self.asking = False
        """Whether a model was asked, and has not answered yet: another attempt is the same call."""

    def results(self) -> list[ToolOutcome]:
        """What the model was told, in the order in which it asked."""
        return [self.outcomes[call.tool_call_id] for call in self.calling if call.tool_call_id in self.outcomes]


def tool_message(outcome: ToolOutcome) -> Message:
    """The message that tells a model what a tool call came to."""
    return Message(role="tool", content=outcome.content, tool_call_id=outcome.tool_call_id)
