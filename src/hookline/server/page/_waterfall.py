"""The waterfall of an operation: its steps, the tool calls in them, and what each hook did, as bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

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
    decode,
)
from hookline.registry import ExecutionRow, HookRun
from hookline.runtime import DECIDED, JournalEntry

__all__ = ["Bar", "Waterfall", "waterfall_of"]

Kind: TypeAlias = Literal["step", "tool", "agent", "person", "compact", "hook", "end"]
Status: TypeAlias = Literal["ok", "mocked", "fault", "denied", "failed", "timeout", "dropped", "running", "waiting"]

LONGEST_NOTE = 300
HOOK_STATUS: dict[str, Status] = {
    "error": "failed",
    "mocked": "mocked",
    "denied": "denied",
    "timeout": "timeout",
    "dropped": "dropped",
}


class Bar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that took a while.

    Attributes:
        depth: How many bars it is inside of.
        kind: What it was.
        name: Its name.
        status: How it ended.
        start: When it began, in milliseconds since the operation did.
        duration: How long it took, in milliseconds; of a hook its own time, of what still runs until now.
        note: What else there is to know.
    """

    depth: int
    kind: Kind
    name: str
    status: Status
    start: float
    duration: float
    note: str = ""


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation did, when and for how long.

    Attributes:
        duration: Of all of it, in milliseconds.
        bars: Each right behind the one that it is inside of, in the order of their begins.
        truncated: Whether there is more than is told.
    """

    duration: float
    bars: list[Bar]
    truncated: bool = False


class _Node:
    """A bar that others may come to be inside of."""

    def __init__(self, kind: Kind, name: str, start: int, *, status: Status = "running", note: str = "") -> None:
        self.kind, self.name, self.start = kind, name, start
        self.status, self.note = status, note
        self.end: int | None = None
        self.inner: list[_Node] = []

    def close(self, end: int, status: Status = "ok", note: str = "") -> None:
        self.end, self.status = max(end, self.start), status
        self.note = note or self.note


def _note(action: str, reason: str | None) -> str:
    return f"{DECIDED[action]}: {reason}" if reason else DECIDED[action]


class _Story:
    """What the events tell, one after another."""

    def __init__(self) -> None:
        self.roots: list[_Node] = []
        self.steps: dict[int, _Node] = {}
        self.tools: dict[str, _Node] = {}
        self._asked: list[_Node] = []
        self._agents: dict[str, list[_Node]] = {}
        self._compacts: list[_Node] = []

    def hear(self, event: Event) -> None:
        time = event.time_unix_nano
        match event:
            case BeforeStep(step_index=index):
                self.steps[index] = self._add(_Node("step", f"Step {index + 1}", time))
            case AfterStep(step_index=index):
                if index in self.steps:
                    self.steps[index].close(time)
            case BeforeToolCall():
                self.tool(event, time)
            case AfterToolCall() | OnToolCallError():
                self._tool_ended(event)
            case BeforeHumanIntervention(pending_tools=pending):
                names = ", ".join(each.tool_name for each in pending)
                self._asked.append(self._add(_Node("person", f"A person decides: {names}", time, status="waiting")))
            case AfterHumanIntervention(action=action, rejection_reason=reason):
                self._decided(time, "ok" if action == "approve" else "denied", _note(action, reason))
            case OnStopByHumanIntervention(rejection_reason=reason):
                self._decided(time, "denied", _note("reject", reason))
            case OnComplete() | OnError():
                self._ended(event)
            case _:
                self._parts(event)

    def tool(self, event: BeforeToolCall | AfterToolCall | OnToolCallError, start: int) -> _Node:
        name = f"{event.toolset}/{event.tool_name}"
        node = _Node("tool", name, start, note=msgspec.json.encode(event.args, enc_hook=str).decode())
        self.tools[event.tool_call_id] = node
        return self._add(node, event.step_index)

    def _tool_ended(self, event: AfterToolCall | OnToolCallError) -> None:
        begun = self.tools.get(event.tool_call_id)
        if begun is None or begun.end is not None:
            begun = self.tool(event, event.time_unix_nano - int(event.execution_time_ms * 1e6))
        failed = isinstance(event, OnToolCallError) or not event.success
        fault = event.metadata.get("fault")
        by = f"by {event.answered_by}" if event.answered_by else ""
        said = event.error if isinstance(event, OnToolCallError) else event.content
        status: Status = "ok"
        if fault:
            status, by = "fault", f"fault {fault} {by}"
        elif event.mocked:
            status = "mocked"
        elif failed:
            # A hook that has spoken without an answer in the tool's place has refused it.
            status = "denied" if event.answered_by else "failed"
        begun.close(event.time_unix_nano, status, " · ".join(part for part in (by, begun.note, f"→ {said}") if part))

    def _decided(self, time: int, status: Status, note: str) -> None:
        for node in self._asked:
            if node.end is None:
                node.close(time, status, note)
                return

    def _ended(self, event: OnComplete | OnError) -> None:
        if isinstance(event, OnError):
            note = f"{event.error_type}: {event.error_message}"
            ends = [node for node in self.roots if node.kind == "end"]
            if ends:
                ends[-1].note = note
        elif event.reason != "waiting_for_human":
            node = _Node("end", f"Ended: {event.reason}", event.time_unix_nano)
            node.close(event.time_unix_nano, "ok" if event.reason == "done" else "failed", event.error_message or "")
            self.roots.append(node)

    def _parts(self, event: Event) -> None:
        """Sub-agents and compactions."""
        time = event.time_unix_nano
        match event:
            case BeforeCallAgent(callee_id=callee, instruction=instruction):
                node = self._add(_Node("agent", f"Sub-agent {callee}", time, note=instruction))
                self._agents.setdefault(callee, []).append(node)
            case AfterCallAgent(callee_id=callee, success=success, sub_operation_id=child):
                if begun := self._agents.get(callee):
                    begun.pop(0).close(time, "ok" if success else "failed", child)
            case OnCallAgentError(callee_id=callee, error=error):
                if begun := self._agents.get(callee):
                    begun.pop(0).close(time, "failed", error)
            case BeforeCompact(step_index=index, token_count=tokens):
                node = self._add(_Node("compact", "Compaction", time, note=f"{tokens} tokens"), index)
                self._compacts.append(node)
            case AfterCompact(messages_before=before, messages_after=after):
                if self._compacts:
                    self._compacts.pop().close(time, "ok", f"{before} messages became {after}")
            case OnCompactError(error=error):
                if self._compacts:
                    self._compacts.pop().close(time, "failed", error)

    def _add(self, node: _Node, step_index: int | None = None) -> _Node:
        step = self.steps.get(step_index) if step_index is not None else self._open_step()
        (self.roots if step is None or node.kind == "step" else step.inner).append(node)
        return node

    def _open_step(self) -> _Node | None:
        last = next(reversed(self.steps.values()), None)
        return last if last is not None and last.end is None else None


def waterfall_of(
    entries: Iterable[JournalEntry], rows: Sequence[ExecutionRow], *, now: float, truncated: bool = False
) -> Waterfall:
    """Make bars of the events of an operation and of what its hooks did.

    Args:
        entries: The events, in order.
        rows: What the log of hook executions has about it, in any order.
        now: The time, in seconds since 1970; what still runs goes on until then.
        truncated: Whether there is more than was given.
    """
    story = _Story()
    for entry in entries:
        story.hear(decode(entry.wire))
    for row in rows:
        outer = story.tools.get(row.tool_call_id or "")
        if outer is None and row.step_index is not None:
            outer = story.steps.get(row.step_index)
        (story.roots if outer is None else outer.inner).extend(_hook(row, run) for run in row.executions)
    if not story.roots:
        return Waterfall(duration=0.0, bars=[], truncated=truncated)
    # Clocks of several processes may have put what is inside before what it is inside of.
    begin = _earliest(story.roots)
    bars: list[Bar] = []
    _write(bars, story.roots, 0, begin, int(now * 1e9))
    return Waterfall(duration=max(bar.start + bar.duration for bar in bars), bars=bars, truncated=truncated)


def _hook(row: ExecutionRow, run: HookRun) -> _Node:
    start = run.time_unix_nano or int((row.created_at - row.duration_ms / 1e3) * 1e9)
    node = _Node("hook", run.hook_id, start)
    note = f"{row.point} · {run.error}" if run.error else row.point
    node.close(start + int(run.duration_ms * 1e6), HOOK_STATUS.get(run.status, "ok"), note)
    return node


def _earliest(nodes: Sequence[_Node]) -> int:
    return min(min(node.start, _earliest(node.inner) if node.inner else node.start) for node in nodes)


def _write(bars: list[Bar], nodes: list[_Node], depth: int, begin: int, now: int) -> None:
    for node in sorted(nodes, key=lambda each: each.start):
        end = max(now, node.start) if node.end is None else node.end
        bars.append(
            Bar(
                depth=depth,
                kind=node.kind,
                name=node.name,
                status=node.status,
                start=round((node.start - begin) / 1e6, 4),
                duration=round((end - node.start) / 1e6, 4),
                note=node.note[:LONGEST_NOTE],
            )
        )
        _write(bars, node.inner, depth + 1, begin, now)
