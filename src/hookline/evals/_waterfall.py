"""The waterfall of a run: its steps, tool calls, hooks and what else took time, as nested bars on one time axis.

`draw_run` makes the bars of a run's events and hook executions; `hookline trace` makes its own from spans. The report,
the web page and the terminal render the same `Waterfall`, each in its own way.
"""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnStopByHumanIntervention,
    OnToolCallError,
)
from hookline.runtime import DECIDED
from hookline.signals import HookExecution

__all__ = ["Bar", "BarKind", "BarStatus", "Waterfall", "draw_run"]

BarKind: TypeAlias = Literal["run", "step", "model", "tool", "agent", "person", "compact", "hook", "end"]
"""The kind of work of a bar. Only spans have runs and model calls; only events have the end of a run."""

BarStatus: TypeAlias = Literal[
    "ok", "mocked", "fault", "denied", "failed", "timeout", "dropped", "stopped", "running", "waiting"
]
"""How the work of a bar ended. `stopped` means that its run ended first."""

HOOK_STATUS: dict[str, BarStatus] = {
    "error": "failed",
    "mocked": "mocked",
    "denied": "denied",
    "timeout": "timeout",
    "dropped": "dropped",
}

LEAST_PAUSE_NS = 500_000_000
"""Pauses shorter than this are never cut out of the axis."""


class Bar:
    """A piece of work that took time, with the work inside it.

    Attributes:
        kind: The kind of work.
        name: The name shown.
        start: When it began, in nanoseconds since 1970.
        end: When it ended; `None` while it runs.
        status: How it ended.
        note: Further details for a person: arguments and result, an error, a decision.
        source: The objects that it was made from: a tool call's two events, a hook's execution, or a span.
        inner: The bars inside it.
    """

    def __init__(
        self,
        kind: BarKind,
        name: str,
        start: int,
        end: int | None = None,
        *,
        status: BarStatus = "running",
        note: str = "",
        source: Any = None,
    ) -> None:
        self.kind, self.name, self.start, self.end = kind, name, start, end
        self.status, self.note, self.source = status, note, source
        self.inner: list[Bar] = []

    def __iter__(self) -> Iterator[Bar]:
        """Iterate over the bar and all bars inside it, each before those inside it."""
        return (bar for _, bar in _walk([self]))

    def close(self, end: int, status: BarStatus = "ok", note: str = "") -> None:
        """Set when and how the work ended; a note replaces the one from its beginning."""
        self.end, self.status = max(end, self.start), status
        self.note = note or self.note


class Waterfall:
    """The bars of a run on one time axis.

    Args:
        bars: The outermost bars. They and those inside them are put in the order of their beginnings.
        now: The time up to which running bars are drawn, in nanoseconds since 1970.

    Attributes:
        bars: The outermost bars.
        start: When the axis begins, in nanoseconds since 1970.
        end: When it ends.
    """

    def __init__(self, bars: Iterable[Bar], *, now: int = 0) -> None:
        self.bars = _sort_bars(bars)
        self.now = now
        # With the clocks of several processes, an inner bar may begin before the outer one.
        self.start = min((bar.start for _, bar in self.rows()), default=0)
        self.end = max((self.end_of(bar) for _, bar in self.rows()), default=0)

    @property
    def duration_ns(self) -> int:
        """The length of the axis."""
        return self.end - self.start

    def rows(self) -> Iterator[tuple[int, Bar]]:
        """Iterate over all bars with their depth, each directly after its parent or a sibling."""
        return _walk(self.bars)

    def end_of(self, bar: Bar) -> int:
        """Return when a bar ends; a running one goes on until now."""
        return max(self.now, bar.start) if bar.end is None else bar.end

    def duration_of(self, bar: Bar) -> int:
        """Return how long a bar is, in nanoseconds."""
        return self.end_of(bar) - bar.start

    def place_of(self, bar: Bar) -> tuple[float, float]:
        """Return where a bar begins and ends on the axis, as shares from 0 to 1."""
        length = max(self.duration_ns, 1)
        return (bar.start - self.start) / length, (self.end_of(bar) - self.start) / length

    def own_time_of(self, bar: Bar) -> int:
        """Return how long a bar took beside the bars inside it, in nanoseconds."""
        end = self.end_of(bar)
        busy, reached = 0, bar.start
        for inner in bar.inner:
            until = min(self.end_of(inner), end)
            busy += max(0, until - max(inner.start, reached))
            reached = max(reached, until)
        return end - bar.start - busy

    def pauses(self) -> list[tuple[int, int]]:
        """Find the times in which nothing ran for so long that the work would be hard to see beside them.

        Waiting for a person does not count as work. A pause is longer than half of all the work together, and at least
        half a second.

        Returns:
            When each begins and ends, in nanoseconds since 1970.
        """
        gaps: list[tuple[int, int]] = []
        until = self.start
        for start, end in [*sorted(self._work()), (self.end, self.end)]:
            if start - until >= LEAST_PAUSE_NS:
                gaps.append((until, start))
            until = max(until, end)
        work = self.duration_ns - sum(end - start for start, end in gaps)
        return [(start, end) for start, end in gaps if (end - start) * 2 > work]

    def _work(self) -> Iterator[tuple[int, int]]:
        """Yield the times in which something other than a person was at work."""
        for _, bar in self.rows():
            if bar.kind == "person":
                continue
            start = bar.start
            for inner in bar:
                if inner.kind != "person":
                    continue
                if inner.start > start:
                    yield start, inner.start
                start = max(start, self.end_of(inner))
            if start <= self.end_of(bar):
                yield start, self.end_of(bar)


def draw_run(events: Iterable[Event], executions: Iterable[HookExecution] = (), *, now: int = 0) -> Waterfall:
    """Make the waterfall of a run from its events and hook executions.

    A hook's bar is as long as the hook's own time. It is inside the tool call or the step that its execution names;
    one that names neither is inside the step that was running when it began, if there was one.

    Args:
        events: The events of one operation, in order.
        executions: The executions of its hooks, in any order.
        now: The time up to which running bars are drawn, in nanoseconds since 1970.
    """
    story = _WaterfallBuilder()
    for event in events:
        story.add_event(event)
    for execution in executions:
        story.add_execution(execution)
    return Waterfall(story.bars, now=now)


class _Question:
    """The bar of a question to a person, with the calls that are not decided yet."""

    def __init__(self, bar: Bar, calls: set[str | None]) -> None:
        self.bar, self.calls = bar, calls
        self.rejected = False


class _WaterfallBuilder:
    """The bars of a run while its events are read, with what is needed to find the bar that an event ends."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self._steps: dict[int, Bar] = {}
        self._tools: dict[tuple[int | None, str], Bar] = {}
        self._questions: list[_Question] = []
        self._agents: dict[str, list[Bar]] = {}
        self._compactions: list[Bar] = []

    def add_event(self, event: Event) -> None:
        time = event.time_unix_nano
        match event:
            case BeforeStep(step_index=index):
                self._steps[index] = bar = Bar("step", f"Step {index + 1}", time, source=event)
                self.bars.append(bar)
            case AfterStep(step_index=index):
                if index in self._steps:
                    self._steps[index].source = event
                    self._steps[index].close(time)
            case BeforeToolCall():
                self._begin_tool(event, time)
            case AfterToolCall() | OnToolCallError():
                self._end_tool(event)
            case BeforeHumanIntervention(pending_tools=pending):
                names = ", ".join(each.tool_name for each in pending)
                bar = Bar("person", f"A person decides: {names}", time, status="waiting")
                self._questions.append(_Question(self._add(bar), {each.tool_call_id for each in pending}))
            case AfterHumanIntervention(tool_call_id=call, action=action, rejection_reason=reason):
                self._decide(time, call, action, reason)
            case OnStopByHumanIntervention(tool_call_id=call, rejection_reason=reason):
                self._decide(time, call, "reject", reason)
            case OnComplete() | OnError():
                self._end_run(event)
            case _:
                self._add_part(event)

    def add_execution(self, execution: HookExecution) -> None:
        start = execution.time_unix_nano
        note = f"{execution.hook_type} · {execution.error}" if execution.error else execution.hook_type
        bar = Bar("hook", execution.hook_id, start, note=note, source=execution)
        bar.close(start + int(execution.duration_ms * 1e6), HOOK_STATUS.get(execution.status, "ok"))
        outer = self._outer_of(execution)
        (self.bars if outer is None else outer.inner).append(bar)

    def _outer_of(self, execution: HookExecution) -> Bar | None:
        index, call = execution.step_index, execution.tool_call_id
        if call is not None:
            # A later step may reuse the id of a call, and an execution may not name its step.
            tool = self._tools.get((index, call)) or self._tools.get((None, call))
            if tool is not None:
                return tool
        if index is not None or execution.hook_type in ("onComplete", "onError"):
            return None if index is None else self._steps.get(index)
        return self._step_at(execution.time_unix_nano)

    def _step_at(self, time: int) -> Bar | None:
        place = bisect.bisect_right(self._steps_by_start, time, key=lambda step: step.start) - 1
        step = self._steps_by_start[place] if place >= 0 else None
        return step if step and (step.end is None or time <= step.end) else None

    @functools.cached_property
    def _steps_by_start(self) -> list[Bar]:
        # Computed once all events are there: a search through all steps for every hook would be quadratic.
        return sorted(self._steps.values(), key=lambda step: step.start)

    def _begin_tool(self, event: BeforeToolCall | AfterToolCall | OnToolCallError, start: int) -> Bar:
        bar = Bar(
            "tool",
            f"{event.toolset}/{event.tool_name}",
            start,
            note=_format_arguments(event.args),
            source=(event, None),
        )
        for key in (event.step_index, event.tool_call_id), (None, event.tool_call_id):
            self._tools[key] = bar
        return self._add(bar, event.step_index)

    def _end_tool(self, event: AfterToolCall | OnToolCallError) -> None:
        bar = self._tools.get((event.step_index, event.tool_call_id))
        if bar is None or (bar.end is not None and bar.status != "stopped"):
            bar = self._begin_tool(event, event.time_unix_nano - int(event.execution_time_ms * 1e6))
        bar.source = (bar.source[0], event)
        failed = isinstance(event, OnToolCallError) or not event.success
        fault = event.metadata.get("fault")
        by = f"by {event.answered_by}" if event.answered_by else ""
        answer = event.error if isinstance(event, OnToolCallError) else event.content
        status: BarStatus = "ok"
        if fault:
            status, by = "fault", f"fault {fault} {by}"
        elif event.mocked:
            status = "mocked"
        elif failed:
            # A hook that spoke without answering instead of the tool has denied the call.
            status = "denied" if event.answered_by else "failed"
        bar.close(event.time_unix_nano, status, " · ".join(part for part in (by, bar.note, f"→ {answer}") if part))

    def _decide(self, time: int, call: str | None, action: str, reason: str | None) -> None:
        """Note a decision on the bar of its question, and end the bar once all calls of the question are decided."""
        waiting = [each for each in self._questions if each.bar.end is None]
        question = next((each for each in waiting if call in each.calls), waiting[0] if waiting else None)
        if question is None:
            return
        bar, note = question.bar, f"{DECIDED[action]}: {reason}" if reason else DECIDED[action]
        bar.note = f"{bar.note} · {note}" if bar.note else note
        question.rejected |= action != "approve"
        # A decision that names no pending call is about all of them; a plain rejection stops the run.
        question.calls = question.calls - {call} if call in question.calls and action != "reject" else set()
        if not question.calls:
            bar.close(time, "denied" if question.rejected else "ok")

    def _end_run(self, event: OnComplete | OnError) -> None:
        if isinstance(event, OnError):
            ends = [bar for bar in self.bars if bar.kind == "end"]
            if ends:
                ends[-1].note = f"{event.error_type}: {event.error_message}"
        elif event.reason != "waiting_for_human":
            for bar in (inner for outer in self.bars for inner in outer):
                if bar.end is None:
                    bar.close(event.time_unix_nano, "stopped")
            end = Bar("end", f"Ended: {event.reason}", event.time_unix_nano)
            end.close(event.time_unix_nano, "ok" if event.reason == "done" else "failed", event.error_message or "")
            self.bars.append(end)

    def _add_part(self, event: Event) -> None:
        """Begin or end the bar of a sub-agent's call or of a compaction."""
        time = event.time_unix_nano
        match event:
            case BeforeCallAgent(callee_id=callee, instruction=instruction):
                bar = self._add(Bar("agent", f"Sub-agent {callee}", time, note=instruction))
                self._agents.setdefault(callee, []).append(bar)
            case AfterCallAgent(callee_id=callee, success=success, sub_operation_id=child):
                if running := self._agents.get(callee):
                    running.pop(0).close(time, "ok" if success else "failed", child)
            case OnCallAgentError(callee_id=callee, error=error):
                if running := self._agents.get(callee):
                    running.pop(0).close(time, "failed", error)
            case BeforeCompact(step_index=index, token_count=tokens):
                bar = self._add(Bar("compact", "Compaction", time, note=f"{tokens} tokens"), index)
                self._compactions.append(bar)
            case AfterCompact(messages_before=before, messages_after=after):
                if self._compactions:
                    self._compactions.pop().close(time, "ok", f"{before} messages became {after}")
            case OnCompactError(error=error):
                if self._compactions:
                    self._compactions.pop().close(time, "failed", error)

    def _add(self, bar: Bar, step_index: int | None = None) -> Bar:
        step = self._open_step() if step_index is None else self._steps.get(step_index)
        (self.bars if step is None else step.inner).append(bar)
        return bar

    def _open_step(self) -> Bar | None:
        last = next(reversed(self._steps.values()), None)
        return last if last is not None and last.end is None else None


def _format_arguments(args: object) -> str:
    # Not msgspec's encoder, which refuses lone surrogates and integers beyond 64 bits, as models may give.
    return json.dumps(msgspec.to_builtins(args, enc_hook=str), ensure_ascii=False, separators=(",", ":"))


def _sort_bars(bars: Iterable[Bar]) -> list[Bar]:
    """Put bars and those inside them in the order of their beginnings."""
    ordered = sorted(bars, key=lambda bar: bar.start)
    waiting = list(ordered)
    while waiting:
        bar = waiting.pop()
        bar.inner.sort(key=lambda inner: inner.start)
        waiting += bar.inner
    return ordered


def _walk(bars: Iterable[Bar]) -> Iterator[tuple[int, Bar]]:
    # Not recursive: nested sub-agents may be deeper than Python's stack.
    waiting = [(0, bar) for bar in reversed([*bars])]
    while waiting:
        depth, bar = waiting.pop()
        yield depth, bar
        waiting += [(depth + 1, inner) for inner in reversed(bar.inner)]
