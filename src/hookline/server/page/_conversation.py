"""Build the conversation of an operation, step by step, from its events, model calls and hook executions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from hookline.calls import ToolCall, ToolRequest
from hookline.errors import EventDecodeError
from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCallAgent,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnToolCallError,
    PendingTool,
    decode,
    is_interrupted,
)
from hookline.registry import ExecutionRow, HookRun
from hookline.runtime import DECIDED, ModelCallRecord
from hookline.server.routes import MadeDecision
from hookline.store import EventPart, StoredMessage, StoredOperation

__all__ = [
    "CallView",
    "StepView",
    "TextView",
    "build_steps",
    "count_whole_steps",
    "find_asker",
    "message_text",
    "summarize_event",
    "text_view",
]

AGENT = "agent"
"""The toolset of sub-agents."""
LONGEST_TEXT = 6000
"""Characters of a text that the page shows; the whole text is a link away."""


class TextView(msgspec.Struct, frozen=True):
    """A text, cut if it is long.

    Attributes:
        shown: The text, or its beginning.
        size: Characters of the whole text.
    """

    shown: str
    size: int

    @property
    def is_cut(self) -> bool:
        """Whether characters are missing."""
        return len(self.shown) < self.size


def text_view(text: str) -> TextView:
    """Cut a text that is too long to be shown."""
    return TextView(text[:LONGEST_TEXT], len(text))


def message_text(message: StoredMessage) -> TextView:
    """Return the text of a stored message, of which only the beginning may have been read."""
    found = text_view(message.content)
    return TextView(found.shown, max(found.size, message.size)) if message.is_cut else found


def summarize_event(part: EventPart) -> str:
    """Summarize an event in a few words."""
    match read_event(part):
        case BeforeToolCall(toolset=toolset, tool_name=name):
            return f"{toolset}/{name}"
        case AfterToolCall(toolset=toolset, tool_name=name, mocked=mocked):
            return f"{toolset}/{name}{', mocked' if mocked else ''}"
        case OnToolCallError(toolset=toolset, tool_name=name, error_type=kind):
            return f"{toolset}/{name}: {kind}"
        case AfterHumanIntervention(action=action):
            return DECIDED[action]
        case OnComplete(reason=reason):
            return reason
        case OnError(error_type=kind):
            return kind or "details"
        case BeforeStep(step_index=index) | AfterStep(step_index=index):
            return f"step {index + 1}"
    return "details"


def find_asker(row: ExecutionRow) -> HookRun | None:
    """Return the run of the hook that asked a person about a call; `None` if none did.

    The log has a hook that asks as one that denies, in a row that nobody denied.
    """
    if row.status != "denied" or row.denied_by is not None or row.point != ToolCall.__name__:
        return None
    return next((run for run in row.executions if run.status == "denied"), None)


class CallView(msgspec.Struct, kw_only=True):
    """A call of a tool or sub-agent in a step.

    Attributes:
        tool_call_id: The model's id of the call.
        toolset: The toolset of the tool.
        tool_name: The name of the tool.
        args: The arguments with which it ran, or the model's raw text.
        asked: The arguments that the model gave, if hooks have changed them.
        status: What became of it; a key of `STATUSES`.
        content: What the model read.
        duration_ms: How long it took.
        answered_by: The hook that answered or denied it.
        prompt: The question to the person, if it waited for one.
        source: The number of the event that holds the whole result.
        long: Its last event, if that is too long to be read here.
        records: The executions of hooks that judged it.
        decisions: What people decided about it.
        child: The operation of the sub-agent.
        child_id: The id of that operation.
    """

    tool_call_id: str
    toolset: str
    tool_name: str
    args: dict[str, Any] | str = {}
    asked: dict[str, Any] | None = None
    status: str = "pending"
    content: TextView | None = None
    duration_ms: float | None = None
    answered_by: str | None = None
    prompt: str = ""
    source: int = 0
    long: EventPart | None = None
    records: list[ExecutionRow] = []
    decisions: list[MadeDecision] = []
    child: StoredOperation | None = None
    child_id: str = ""

    @property
    def name(self) -> str:
        """The name of the tool, with its toolset where that says something."""
        return self.tool_name if self.toolset in ("local", AGENT) else f"{self.toolset}/{self.tool_name}"

    @property
    def is_agent(self) -> bool:
        """Whether a sub-agent was called."""
        return self.toolset == AGENT

    @property
    def denial(self) -> ExecutionRow | None:
        """The execution in which a hook denied the call."""
        return next((row for row in self.records if row.denied_by), None)

    @property
    def asker(self) -> HookRun | None:
        """The run of the hook that asked a person about the call."""
        return next((run for row in self.records if (run := find_asker(row)) is not None), None)

    @property
    def quiet_runs(self) -> list[HookRun]:
        """The runs of hooks that let the call pass."""
        return list_quiet_runs(self.records)


def list_quiet_runs(records: Iterable[ExecutionRow]) -> list[HookRun]:
    """List the runs of hooks in which nothing went another way."""
    return [
        run
        for row in records
        for run in row.executions
        if run.status == "ok" or (run.status == "shadow" and not run.decision and not run.error)
    ]


class StepView(msgspec.Struct, kw_only=True):
    """A step of an operation.

    Attributes:
        index: The step, from 0.
        number: The number of its first event.
        began_at: When it began, in unix seconds.
        content: What the model said.
        reasoning: What the model thought.
        calls: The calls of tools and sub-agents.
        model_calls: The model calls.
        duration_ms: How long it took; `None` if it has not ended.
        records: The executions of hooks that judged the step or its model call.
        notes: What else happened: compactions, errors, with the look of each.
        long: The numbers of events that are too long to be read here.
    """

    index: int
    number: int
    began_at: float
    content: TextView | None = None
    reasoning: TextView | None = None
    calls: list[CallView] = []
    model_calls: list[ModelCallRecord] = []
    duration_ms: float | None = None
    source: int = 0
    records: list[ExecutionRow] = []
    notes: list[tuple[str, str, str]] = []
    long: list[EventPart] = []

    @property
    def quiet_runs(self) -> list[HookRun]:
        """The runs of hooks that changed nothing."""
        return list_quiet_runs(self.records)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of it but that it began."""
        return not (self.content or self.calls or self.model_calls or self.notes or self.records or self.long)

    def find(self, tool_call_id: str) -> CallView | None:
        """Return the call of an id."""
        return next((call for call in self.calls if call.tool_call_id == tool_call_id), None)

    def find_or_add(self, tool_call_id: str, toolset: str, tool_name: str) -> CallView:
        """Return the call of an id, which is added if it is new."""
        found = self.find(tool_call_id)
        if found is None:
            found = CallView(tool_call_id=tool_call_id, toolset=toolset, tool_name=tool_name)
            self.calls.append(found)
        return found


def count_whole_steps(parts: Sequence[EventPart]) -> int:
    """Return how many of the first events end with the end of a step; all if none does."""
    ends = [place for place, part in enumerate(parts, 1) if part.type == AfterStep.hook_type]
    return ends[-1] if ends else len(parts)


def build_steps(
    parts: Sequence[EventPart],
    *,
    model_calls: Iterable[ModelCallRecord] = (),
    rows: Iterable[ExecutionRow] = (),
    decisions: Iterable[MadeDecision] = (),
    children: Sequence[StoredOperation] = (),
    running: dict[str, str] | None = None,
) -> list[StepView]:
    """Build the steps of an operation from a part of its events.

    Args:
        parts: The events.
        model_calls: The model calls of these steps.
        rows: The hook executions of the operation.
        decisions: What people decided about its calls.
        children: The operations of its sub-agents.
        running: The operations of sub-agents that are under way, by tool call id.
    """
    steps: list[StepView] = []
    agents: dict[int, list[CallView]] = {}
    for part in parts:
        event = read_event(part)
        if part.type == BeforeStep.hook_type or not steps:
            index = event.step_index if isinstance(event, BeforeStep) else (getattr(event, "step_index", None) or 0)
            steps.append(StepView(index=index, number=part.number, began_at=part.time_unix_nano / 1e9))
        step = steps[-1]
        if event is None:
            step.long.append(part)
        else:
            add_event(step, part, event, agents.setdefault(len(steps), []))
    for step in steps:
        end_long_calls(step)
    by_index = {step.index: step for step in steps}
    for record in model_calls:
        if record.step_index in by_index:
            by_index[record.step_index].model_calls.append(record)
    link_records(by_index, rows)
    for made in decisions:
        link_decision(steps, made)
    link_children(steps, children, running or {})
    return steps


def read_event(part: EventPart) -> Event | None:
    """Decode an event; `None` if it is too long, or another version of hookline wrote it."""
    with contextlib.suppress(EventDecodeError):
        return None if part.wire is None else decode(part.wire)
    return None


def add_event(step: StepView, part: EventPart, event: Event, agents: list[CallView]) -> None:
    """Add what an event says to its step; `agents` are the calls of sub-agents in it, in the order of their begin."""
    match event:
        case AfterStep():
            end_step(step, part, event)
        case BeforeToolCall():
            call = step.find_or_add(event.tool_call_id, event.toolset, event.tool_name)
            call.args, call.status = event.args, "running"
        case AfterToolCall():
            call = step.find_or_add(event.tool_call_id, event.toolset, event.tool_name)
            call.args, call.answered_by, call.duration_ms = event.args, event.answered_by, event.execution_time_ms
            call.content, call.source = text_view(event.content), part.number
            call.status = "mocked" if event.mocked else "ok" if event.success else "failed"
        case OnToolCallError():
            call = step.find_or_add(event.tool_call_id, event.toolset, event.tool_name)
            call.args, call.answered_by, call.duration_ms = event.args, event.answered_by, event.execution_time_ms
            call.content, call.source = text_view(f"{event.error_type}: {event.error}"), part.number
            call.status = "interrupted" if is_interrupted(event) else "mocked" if event.mocked else "failed"
        case BeforeHumanIntervention():
            for pending in event.pending_tools:
                ask_person(step, pending)
        case AfterHumanIntervention():
            rejected = None if event.action == "approve" or event.tool_call_id is None else event.tool_call_id
            if rejected is not None and (found := step.find(rejected)) is not None:
                found.status = event.action
        case BeforeCallAgent():
            call = CallView(tool_call_id="", toolset=AGENT, tool_name=event.callee_id, status="running")
            call.args = {"instruction": event.instruction}
            agents.append(call)
            step.calls.append(call)
        case AfterCallAgent():
            end_agent(agents, event.callee_id, "ok" if event.success else "failed", event.sub_operation_id)
        case OnCallAgentError():
            end_agent(agents, event.callee_id, "failed", "", event.error)
        case AfterCompact():
            said = f"{event.messages_before} messages became {event.messages_after}"
            step.notes.append(("compacted", f"The conversation was compacted: {said}. The model reads:", event.summary))
        case OnCompactError():
            step.notes.append(("failed", "The conversation could not be compacted:", event.error))
        case OnError():
            said = f"{event.error_type}: {event.error_message}" if event.error_type else event.error_message
            step.notes.append(("failed", "The run failed:", said))
        case OnComplete() | _:
            pass


def end_step(step: StepView, part: EventPart, event: AfterStep) -> None:
    """Add what the last event of a step says: the model's text, its calls, and their results."""
    step.content = text_view(event.content) if event.content else None
    step.reasoning = text_view(event.reasoning) if event.reasoning else None
    step.duration_ms, step.source = event.execution_time_ms, part.number
    order: list[CallView] = []
    for request in event.tools_calling:
        call = claim_call(step, request)
        if isinstance(call.args, dict) and isinstance(request.args, dict) and call.args != request.args and call.args:
            call.asked = request.args
        elif not call.args:
            call.args = request.args
        order.append(call)
    known = {id(call) for call in order}
    step.calls = [*order, *(call for call in step.calls if id(call) not in known)]
    for outcome in event.tools_result:
        call = step.find_or_add(outcome.tool_call_id, outcome.toolset, outcome.tool_name)
        if call.content is None:
            call.content, call.source = text_view(outcome.content), part.number
        if call.status in ("pending", "running") or call.is_agent:
            call.status = "ok" if outcome.success else "failed"


def end_long_calls(step: StepView) -> None:
    """End the calls whose last event is too long to be read here; what it says is a link away."""
    ends = [part for part in step.long if part.type in (AfterToolCall.hook_type, OnToolCallError.hook_type)]
    running = [call for call in step.calls if call.status == "running" and not call.is_agent]
    if len(ends) < len(running):
        return
    for call in running:
        call.status = "ended"
    if len(ends) == len(running) == 1:
        running[0].long = ends[0]
        step.long.remove(ends[0])


def claim_call(step: StepView, request: ToolRequest) -> CallView:
    """Return the call of a request; one of a sub-agent is known by its name until then."""
    found = step.find(request.tool_call_id)
    if found is None:
        name = request.tool_name.removeprefix(f"{AGENT}/")
        found = next(
            (call for call in step.calls if call.is_agent and not call.tool_call_id and call.tool_name == name), None
        )
    if found is None:
        return step.find_or_add(request.tool_call_id, request.toolset, request.tool_name)
    found.tool_call_id = request.tool_call_id
    return found


def ask_person(step: StepView, pending: PendingTool) -> None:
    """Add that a call waits for a person."""
    call = step.find_or_add(pending.tool_call_id, pending.toolset, pending.tool_name)
    call.args, call.prompt, call.status = pending.args, pending.prompt, "asked"


def end_agent(agents: list[CallView], callee_id: str, status: str, child_id: str, error: str = "") -> None:
    """Add how a sub-agent ended to the first call of it that has not ended."""
    call = next((call for call in agents if call.tool_name == callee_id and call.status == "running"), None)
    if call is not None:
        call.status, call.child_id = status, child_id
        if error:
            call.content = text_view(error)


def link_records(by_index: dict[int, StepView], rows: Iterable[ExecutionRow]) -> None:
    """Add the executions of hooks to the calls and steps that they judged."""
    for row in rows:
        step = by_index.get(row.step_index) if row.step_index is not None else None
        if step is None:
            continue
        call = None if row.tool_call_id is None else step.find(row.tool_call_id)
        if call is None:
            step.records.append(row)
            continue
        call.records.append(row)
        if row.status == "denied" and call.status in ("failed", "pending", "mocked"):
            call.status = "denied"


def link_decision(steps: Sequence[StepView], made: MadeDecision) -> None:
    """Add a decision to the call that it is about: the last one before its event that waited for a person."""
    for step in reversed(steps):
        call = step.find(made.tool_call_id)
        asked = call is not None and (call.prompt or call.status == "asked")
        if call is not None and asked and step.began_at <= made.decided_at:
            call.decisions.append(made)
            return


def link_children(steps: Sequence[StepView], children: Sequence[StoredOperation], running: dict[str, str]) -> None:
    """Add the operations of sub-agents to the calls that started them."""
    by_id = {child.operation_id: child for child in children}
    calls = list(iterate_agents(steps))
    for call in calls:
        call.child_id = call.child_id or running.get(call.tool_call_id, "")
        call.child = by_id.pop(call.child_id, None)
    for call in calls:
        if call.child is None and not call.child_id:
            said = str(call.args.get("instruction", "")) if isinstance(call.args, dict) else ""
            its = (each for each in by_id.values() if each.agent_id == call.tool_name and said.startswith(each.prompt))
            call.child = next(its, None)
            if call.child is not None:
                call.child_id = call.child.operation_id
                del by_id[call.child_id]


def iterate_agents(steps: Sequence[StepView]) -> Iterator[CallView]:
    """Iterate over the calls of sub-agents."""
    for step in steps:
        for call in step.calls:
            if call.is_agent:
                yield call
