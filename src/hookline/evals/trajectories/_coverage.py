"""The origin of the answers to tool calls, and the coverage of a suite's tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from hookline.calls import ToolSpec
from hookline.evals.mocking import MockedCall
from hookline.evals.trajectories._recorder import RecordedOperation
from hookline.events import AfterToolCall, OnToolCallError

__all__ = ["CallRow", "Coverage", "CoverageCount", "call_rows"]


class CallRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One tool call, with the origin of its answer.

    Attributes:
        task: The task with its suite.
        tool: The tool, as `toolset/name`.
        outcome: Whether the tool ran, a hook answered, or nothing could answer and the tool was not run.
        success: Whether the call succeeded.
        call_index: The number of the call, from 1, per tool and operation; in a conversation, per tool and turn.
        answered_by: Id of the hook that answered.
        rule: Name of the rule that answered.
        fault: Name of the fault that struck.
        cassette: Name of the cassette that answered.
        recording: The recording of the cassette that answered.
        latency_ms: The delay by faults in milliseconds, on the run's own clock.
        why: The text of the refusal, if nothing could answer.
        stale: How the tool's schema has changed since the recording was made, if it has.
    """

    task: str
    tool: str
    outcome: Literal["real", "mocked", "refused"]
    success: bool
    call_index: int
    answered_by: str | None = None
    rule: str | None = None
    fault: str | None = None
    cassette: str | None = None
    recording: str | None = None
    latency_ms: float = 0.0
    why: str = ""
    stale: str | None = None

    @property
    def source(self) -> str:
        """The origin of the answer in a few words: the rule, cassette, fault or hook."""
        told = [f"rule {self.rule}" if self.rule else "", f"cassette {self.cassette}" if self.cassette else ""]
        told.append(f"fault {self.fault}" if self.fault else "")
        return ", ".join(filter(None, told)) or (self.answered_by or "")


class Coverage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which tools of a suite its tasks called, and who answered.

    Attributes:
        suite: The suite.
        discovered: The tools that the suite has, as `toolset/name`.
        called: How often each tool was called; tools that were not are left out.
        mocked: How many of those calls a hook answered.
        real: How many of them the tool itself answered.
        refused: How many of them nothing could answer.
        never_called: The tools that no task called.
        unknown: The tools that were called and that the suite does not have.
    """

    suite: str
    discovered: list[str]
    called: dict[str, int]
    mocked: dict[str, int]
    real: dict[str, int]
    refused: dict[str, int]
    never_called: list[str]
    unknown: list[str]

    @property
    def share(self) -> float:
        """The share of the suite's tools that were called, from 0 to 1."""
        return (1 - len(self.never_called) / len(self.discovered)) if self.discovered else 1.0


def call_rows(task: str, recorded: RecordedOperation, seen: Iterable[MockedCall] = ()) -> list[CallRow]:
    """Return the tool calls of a recorded operation, in the order of the model's requests.

    Args:
        task: The task with its suite.
        recorded: The recorded operation.
        seen: The calls of the task's `ToolMocks`, which know the faults and rules that let the real tool run.
    """
    answers = {(event.operation_id, event.step_index, event.tool_call_id): event for event in recorded.answers}
    known = {(call.operation_id, call.step_index, call.tool_call_id): call for call in seen}
    asked = [(event.operation_id, event.step_index, event.tool_call_id) for event in recorded.calls]
    return [_row(task, answers[key], known.get(key)) for key in asked if key in answers]


class CoverageCount:
    """Counts the calls of a suite's tools, one task after the other.

    Args:
        suite: The suite.
        tools: The tools of the suite.
    """

    def __init__(self, suite: str, tools: Iterable[ToolSpec]) -> None:
        self.suite = suite
        self._discovered = [f"{spec.toolset}/{spec.name}" for spec in tools]
        self._called: Counter[tuple[str, str]] = Counter()

    def add(self, calls: Iterable[CallRow]) -> None:
        """Count the calls of a task."""
        self._called.update((call.outcome, call.tool) for call in calls)

    @property
    def coverage(self) -> Coverage:
        """The coverage by the calls so far."""
        called: Counter[str] = Counter()
        for (_, tool), times in self._called.items():
            called[tool] += times
        mocked, real, refused = (
            {tool: times for (kind, tool), times in sorted(self._called.items()) if kind == outcome}
            for outcome in ("mocked", "real", "refused")
        )
        return Coverage(
            suite=self.suite,
            discovered=self._discovered,
            called=dict(sorted(called.items())),
            mocked=mocked,
            real=real,
            refused=refused,
            never_called=[path for path in self._discovered if path not in called],
            unknown=sorted(set(called) - set(self._discovered)),
        )


def _row(task: str, event: AfterToolCall | OnToolCallError, seen: MockedCall | None) -> CallRow:
    metadata = event.metadata
    refused = event.mocked and metadata.get("unmocked") is True
    return CallRow(
        task=task,
        tool=f"{event.toolset}/{event.tool_name}",
        outcome="refused" if refused else "mocked" if event.mocked else "real",
        success=not isinstance(event, OnToolCallError) and event.success,
        call_index=event.call_index,
        answered_by=event.answered_by,
        rule=_text(metadata.get("rule")) or (seen.rule if seen else None),
        fault=_text(metadata.get("fault")) or (seen.fault if seen else None),
        cassette=_text(metadata.get("cassette")) if event.mocked else None,
        recording=_text(metadata.get("recording")),
        latency_ms=_number(metadata.get("latency_ms")) or (seen.latency_ms if seen else 0.0),
        why=(event.error if isinstance(event, OnToolCallError) else event.content) if refused else "",
        stale=_text(metadata.get("stale")) if event.mocked else None,
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
