"""The rows of an operation in the HTML report: its waterfall, with what the report says of each tool call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hookline.evals._waterfall import Bar, Waterfall, draw_run
from hookline.evals.trajectories import CallRow, RecordedOperation
from hookline.events import AfterStep, OnToolCallError
from hookline.signals import HookExecution

__all__ = ["BarRow", "StepRow", "Timeline", "ToolRow", "shorten", "timeline_of"]

TEXT_CHARACTERS = 1_500
"""How much of a tool's arguments and result is shown, so that a report of hundreds of operations stays readable."""

CallKey = tuple[str, int]
"""A tool's path and the call's index, which name one call of an operation."""


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A row with a bar.

    Attributes:
        kind: The kind of work.
        label: The name of the work.
        left: Where the bar begins, in percent of the axis.
        width: How long it is, in percent of the axis.
        duration_ms: How long the work took.
        status: How it ended.
        note: Further details.
    """

    kind: str
    label: str
    left: float
    width: float
    duration_ms: float
    status: str
    note: str


@dataclass(frozen=True, kw_only=True)
class ToolRow(BarRow):
    """The row of a tool call.

    Attributes:
        mocked: Whether a hook answered instead of the tool.
        answered_by: Id of that hook.
        source: The recording that the answer came from.
        refused: Whether nothing could answer it, and the tool was not run.
        rule: Name of the rule that answered, or let the call through.
        fault: Name of the fault that struck.
        cassette: Name of the cassette that answered.
        latency_ms: How long the call was made to take, on the run's own clock.
        args: The arguments, as JSON.
        result: The answer of the tool or of the hook.
    """

    mocked: bool
    answered_by: str
    source: str
    refused: bool
    rule: str
    fault: str
    cassette: str
    latency_ms: float
    args: str
    result: str


@dataclass(frozen=True, kw_only=True)
class StepRow(BarRow):
    """The row of a step, with the rows under it.

    Attributes:
        rows: The tool calls, sub-agents, decisions and compactions of the step.
        hooks: The hook executions of the step and of its tool calls.
        hook_time_ms: Time spent in them.
    """

    rows: list[BarRow]
    hooks: list[BarRow]
    hook_time_ms: float


@dataclass(kw_only=True)
class Timeline:
    """The rows of one operation.

    Attributes:
        duration_ms: The length of the time axis.
        rows: The steps, and other work outside of them.
        hooks: The hook executions outside of all steps.
        hook_time_ms: Time spent in those.
    """

    duration_ms: float
    rows: list[BarRow] = field(default_factory=list)
    hooks: list[BarRow] = field(default_factory=list)
    hook_time_ms: float = 0.0

    @property
    def tools(self) -> list[BarRow]:
        """All tool calls."""
        rows = [inner for row in self.rows for inner in (row, *(row.rows if isinstance(row, StepRow) else ()))]
        return [row for row in rows if isinstance(row, ToolRow)]

    @property
    def hooks_when(self) -> str:
        """When the hooks outside of all steps ran, in words."""
        at_the_end = all(row.note.partition(" ")[0] in ("onComplete", "onError") for row in self.hooks)
        return "at the end" if at_the_end else "outside of the steps"

    @property
    def scale(self) -> list[tuple[int, float]]:
        """The labels of the time axis, each with its place in percent and its time in milliseconds."""
        return [(share, self.duration_ms * share / 100) for share in (0, 50, 100)]


def timeline_of(recorded: RecordedOperation, calls: Sequence[CallRow] = ()) -> Timeline:
    """Make the rows of a recorded operation.

    Args:
        recorded: The operation.
        calls: The origins of the answers to its tool calls.
    """
    executions = (_with_start(timed.execution, timed.started_unix_nano) for timed in recorded.executions)
    last = max((event.time_unix_nano for event in recorded.events), default=0)
    return _Rows(draw_run(recorded.events, executions, now=last), calls).timeline()


def _with_start(execution: HookExecution, start: int) -> HookExecution:
    # Records made by other tools may lack the start of the handler.
    return execution if execution.time_unix_nano else msgspec.structs.replace(execution, time_unix_nano=start)


class _Rows:
    """Makes rows of the bars of a waterfall."""

    def __init__(self, waterfall: Waterfall, calls: Iterable[CallRow]) -> None:
        self._waterfall = waterfall
        self._calls: Mapping[CallKey, CallRow] = {(call.tool, call.call_index): call for call in calls}

    def timeline(self) -> Timeline:
        rows, hooks, hook_time_ms = self._rows_of(self._waterfall.bars)
        return Timeline(
            duration_ms=max(self._waterfall.duration_ns, 1) / 1e6, rows=rows, hooks=hooks, hook_time_ms=hook_time_ms
        )

    def _rows_of(self, bars: Iterable[Bar]) -> tuple[list[BarRow], list[BarRow], float]:
        """Make the rows of neighbours, those of hooks apart, and add up the time of the hooks."""
        rows: list[BarRow] = []
        hooks: list[BarRow] = []
        hook_time_ms = 0.0
        for bar in bars:
            if bar.kind == "step":
                rows.append(self._step(bar))
                continue
            if bar.kind not in ("hook", "end"):  # the header of the column says how the run ended
                rows.append(self._tool(bar) if bar.kind == "tool" else self._row(bar))
            for inner in bar:
                if inner.kind == "hook":
                    hooks.append(self._row(inner))
                    hook_time_ms += inner.source.duration_ms
        return rows, hooks, hook_time_ms

    def _step(self, bar: Bar) -> StepRow:
        rows, hooks, hook_time_ms = self._rows_of(bar.inner)
        after = bar.source if isinstance(bar.source, AfterStep) else None
        note = after.step_type.replace("_", " ") if after else "did not end"
        return StepRow(**self._fields(bar, note=note), rows=rows, hooks=hooks, hook_time_ms=hook_time_ms)

    def _tool(self, bar: Bar) -> ToolRow:
        before, after = bar.source
        call = self._calls.get((bar.name, before.call_index))
        raised = isinstance(after, OnToolCallError)
        answer = "" if after is None else f"{after.error_type}: {after.error}" if raised else after.content
        status = "raised" if raised else "ok" if after and after.success else bar.status
        return ToolRow(
            **self._fields(bar, status="failed" if status in ("mocked", "fault") else status),
            mocked=after is not None and after.mocked,
            answered_by=(after and after.answered_by) or "",
            source=str((after and after.metadata.get("recording")) or ""),
            refused=call is not None and call.outcome == "refused",
            rule=(call and call.rule) or "",
            fault=(call and call.fault) or "",
            cassette=(call and call.cassette) or "",
            latency_ms=call.latency_ms if call else 0.0,
            args=shorten(json.dumps(before.args, ensure_ascii=False, default=repr)),
            result=shorten(answer),
        )

    def _row(self, bar: Bar) -> BarRow:
        return BarRow(**self._fields(bar))

    def _fields(self, bar: Bar, *, status: str | None = None, note: str | None = None) -> dict[str, Any]:
        begin, end = self._waterfall.place_of(bar)
        return {
            "kind": bar.kind,
            "label": bar.name,
            "left": round(begin * 100, 2),
            "width": round((end - begin) * 100, 2),
            "duration_ms": self._waterfall.duration_of(bar) / 1e6,
            "status": status or bar.status,
            "note": shorten(bar.note) if note is None else note,
        }


def shorten(text: str) -> str:
    """Cut a long text to what a report shows of it, and say how much is missing."""
    if len(text) <= TEXT_CHARACTERS:
        return text
    return f"{text[:TEXT_CHARACTERS]}\n… {len(text) - TEXT_CHARACTERS:,} characters more"
