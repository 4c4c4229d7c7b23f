"""`Timeline`: when the steps, tool calls and hooks of a task ran, in the form that a saved run keeps."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hookline.evals._waterfall import Bar, Waterfall, draw_run
from hookline.evals.trajectories import RecordedOperation
from hookline.events import AfterStep, Event, OnToolCallError
from hookline.signals import HookExecution

__all__ = ["Timeline", "TimelineBar", "timeline_of"]

MOST_BARS = 200
"""The bars that are kept of a task; those of hooks are left out first. With them a bar takes about 60 bytes."""

NOTE_CHARACTERS = 1_500
"""The part of a note that is kept."""


class TimelineBar(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A piece of work that took time. In JSON it is an array, since a saved run has many of them.

    Attributes:
        kind: The kind of work: `"step"`, `"tool"`, `"hook"`, `"agent"`, `"person"`, `"compact"`.
        label: The name of the work.
        depth: The number of bars around it.
        start_ms: When it began, in milliseconds from the start of the task.
        duration_ms: How long it took, in milliseconds.
        status: How it ended: `"ok"`, `"failed"`, `"raised"`, `"denied"`, `"timeout"`, `"stopped"`, …
        note: Further details. Those of a tool call are in the trajectory and in the row of the call.
        call_index: The number of a tool call, from 1, per tool, as the row of the call has it.
    """

    kind: str
    label: str
    depth: int = 0
    start_ms: float = 0.0
    duration_ms: float = 0.0
    status: str = "ok"
    note: str = ""
    call_index: int = 0


class Timeline(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The bars of one task on one time axis.

    Attributes:
        duration_ms: The length of the axis, in milliseconds.
        bars: The bars, each after the one around it.
        left_out: The number of bars that are left out, most of them hooks.
    """

    duration_ms: float = 0.0
    bars: list[TimelineBar] = []
    left_out: int = 0


def timeline_of(recorded: RecordedOperation) -> Timeline:
    """Return the timeline of a recorded operation.

    Args:
        recorded: The operation, or all turns of a conversation.
    """
    last = max((event.time_unix_nano for event in recorded.events), default=0)
    executions: dict[str, list[HookExecution]] = {}
    for timed in recorded.executions:
        execution = _with_start(timed.execution, timed.started_unix_nano)
        executions.setdefault(execution.operation_id, []).append(execution)
    turns: dict[str, list[Event]] = {}
    for event in recorded.events:
        turns.setdefault(event.operation_id, []).append(event)
    # Each turn of a conversation is an operation, whose steps are counted anew.
    bars = [bar for each, events in turns.items() for bar in draw_run(events, executions.get(each, ()), now=last).bars]
    waterfall = Waterfall(bars, now=last)
    # The end of the run is in the result of the task.
    rows = [(depth, bar) for depth, bar in waterfall.rows() if bar.kind != "end"]
    kept = list(_cut(rows))
    return Timeline(
        duration_ms=_round_ms(waterfall.duration_ns),
        bars=[_timeline_bar(waterfall, depth, bar) for depth, bar in kept],
        left_out=len(rows) - len(kept),
    )


def _cut(rows: list[tuple[int, Bar]]) -> Iterator[tuple[int, Bar]]:
    """Yield at most `MOST_BARS` rows, and hooks only where there is room for them."""
    hooks = max(0, MOST_BARS - sum(bar.kind != "hook" for _, bar in rows))
    left = MOST_BARS
    for depth, bar in rows:
        if not left:
            return
        if bar.kind == "hook":
            if not hooks:
                continue
            hooks -= 1
        left -= 1
        yield depth, bar


def _timeline_bar(waterfall: Waterfall, depth: int, bar: Bar) -> TimelineBar:
    start_ms, duration_ms = _round_ms(bar.start - waterfall.start), _round_ms(waterfall.duration_of(bar))
    if bar.kind != "tool":
        note = bar.note
        if bar.kind == "step":
            note = bar.source.step_type.replace("_", " ") if isinstance(bar.source, AfterStep) else "did not end"
        return TimelineBar(
            kind=bar.kind,
            label=bar.name,
            depth=depth,
            start_ms=start_ms,
            duration_ms=duration_ms,
            status=bar.status,
            note=note[:NOTE_CHARACTERS],
        )
    before, after = bar.source
    status: str = bar.status
    if isinstance(after, OnToolCallError):
        status = "raised"
    elif after is not None and after.success:
        status = "ok"
    elif status in ("mocked", "fault"):
        status = "failed"
    return TimelineBar(
        kind=bar.kind,
        label=bar.name,
        depth=depth,
        start_ms=start_ms,
        duration_ms=duration_ms,
        status=status,
        call_index=before.call_index,
    )


def _with_start(execution: HookExecution, start: int) -> HookExecution:
    # Records made by other tools may lack the start of the handler.
    return execution if execution.time_unix_nano else msgspec.structs.replace(execution, time_unix_nano=start)


def _round_ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
