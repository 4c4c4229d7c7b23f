"""A task of a suite, and the turns of its scripted model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._checks import quote
from hookline.calls import ModelResponse, ToolRequest
from hookline.errors import HookUsageError
from hookline.evals.conversations import SimulatedUser, StopConditions
from hookline.evals.faults import FaultSpec
from hookline.evals.mocking import ToolMocks
from hookline.evals.running import Check
from hookline.evals.suites._expected import Expected
from hookline.evals.trajectories import Limits
from hookline.runtime import Model

__all__ = ["Task", "asks", "check_tags", "says", "tool_request"]


def check_tags(owner: str, tags: object) -> list[str]:
    """Return tags as a list, if they are texts.

    Raises:
        HookUsageError: If they are not.
    """
    if isinstance(tags, str) or not isinstance(tags, Sequence) or not all(isinstance(tag, str) and tag for tag in tags):
        raise HookUsageError(f"{owner} has the tags {tags!r:.100}; give a list of texts.")
    return list(tags)


def asks(*calls: ToolRequest | str, say: str = "", **args: Any) -> ModelResponse:
    """Return a scripted turn in which the model calls tools: `asks("price", item="tea")`.

    Args:
        calls: One tool by name or path, with `args`; or several `ToolRequest`s, which run at the same time.
        say: The text of the turn.
        args: The arguments of the one tool.

    Raises:
        HookUsageError: If several calls are given with arguments for one.
    """
    if args and (len(calls) != 1 or not isinstance(calls[0], str)):
        raise HookUsageError("asks() takes arguments for one tool by name; give several calls as ToolRequests.")
    return ModelResponse(
        content=say,
        tool_calls=[call if isinstance(call, ToolRequest) else tool_request(call, args) for call in calls],
        finish_reason="tool_calls",
    )


def says(text: str) -> ModelResponse:
    """Return the scripted turn that ends a run: the model's answer."""
    return ModelResponse(content=text)


def tool_request(tool: str, args: dict[str, Any]) -> ToolRequest:
    """Return a request for a tool, given by name or path. The suite numbers it."""
    toolset, _, name = tool.rpartition("/")
    return ToolRequest(toolset=toolset or "local", tool_name=name, args=args, tool_call_id="")


KINDS: dict[str, type] = {
    "expected_output": str,
    "limits": Limits,
    "user": SimulatedUser,
    "stop": StopConditions,
    "metadata": Mapping,
}
"""The types of some attributes of a task, which would fail late if they were others."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A prompt for the agent or a conversation with it, and how to judge the result.

    Attributes:
        id: The task's name in its suite.
        prompt: The user's prompt; the first message of a conversation. If it is empty, a `user` begins.
        script: The turns of a scripted model; `None` to use `model`, or the agent's own model.
        model: A model, or a function that makes one for each run.
        mocks: Adds rules to the task's `ToolMocks`, in every mode.
        expected: The calls that solve the task.
        checks: Further checks.
        cassette: The task's cassette file, used if no folder of cassettes is given.
        expected_output: The answer that the task expects. Judges read it, and `checks.output_as_expected` compares it.
        limits: Limits of the agent's calls, steps, tokens and cost, as a check.
        faults: Faults that strike the agent's tool calls, in every mode.
        turns: The messages of the user that follow the prompt.
        user: A model that plays the user after the prompt, in place of `turns`.
        stop: When a conversation ends before the user is done.
        tags: Words by which tasks are chosen and counted.
        weight: The weight of the task in mean scores, above 0.
        metadata: Further data of the task, as JSON values. Results have it.

    Raises:
        HookUsageError: If there are both turns and a user, or an attribute is invalid.
    """

    id: str
    prompt: str
    script: Sequence[ModelResponse] | None = None
    model: Model | Callable[[], Model] | None = None
    mocks: Callable[[ToolMocks], object] | None = None
    expected: Expected | None = None
    checks: Sequence[Check] = ()
    cassette: str | Path | None = None
    expected_output: str | None = None
    limits: Limits | None = None
    faults: Sequence[FaultSpec] = ()
    turns: Sequence[str] = ()
    user: SimulatedUser | None = None
    stop: StopConditions | None = None
    tags: Sequence[str] = ()
    weight: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.turns and self.user is not None:
            raise HookUsageError(f"Task {self.id!r} has turns and a simulated user; leave one out.")
        if self.stop is not None and not self.is_conversation:
            raise HookUsageError(f"Task {self.id!r} has stop conditions, but neither turns nor a simulated user.")
        turns: object = self.turns
        is_list = isinstance(turns, Sequence) and not isinstance(turns, str)
        if not is_list or not all(isinstance(each, str) and each for each in self.turns):
            raise HookUsageError(f"`turns` of task {self.id!r} is a list of texts; got {quote(turns)}.")
        check_tags(f"Task {self.id!r}", self.tags)
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise HookUsageError(f"`{name}` of task {self.id!r} is a {kind.__name__}; got {quote(value)}.")
        weight: object = self.weight
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise HookUsageError(f"`weight` of task {self.id!r} is a number above 0; got {quote(weight)}.")

    @property
    def is_conversation(self) -> bool:
        """Whether the user may say more than the prompt."""
        return bool(self.turns) or self.user is not None
