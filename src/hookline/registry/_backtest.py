"""Backtests: run a definition over stored calls, and say what it would have decided.

Nothing has an effect: no tool runs, nothing is written, announced or logged, and nobody is asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import monotonic, time
from typing import Any, Literal, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from hookline._checks import tool_matcher
from hookline.calls import AgentCall, Call, Message, ModelCall, SubAgentCall, ToolCall
from hookline.errors import HookUsageError
from hookline.execution import tool_of
from hookline.interceptors import PastChain, PastVerdict
from hookline.registry._build import Builder
from hookline.registry._call_labels import CallLabel, count_labels
from hookline.registry._definition import HookDefinition
from hookline.registry._statistics import duration_step, step_middle
from hookline.registry.past import (
    ALONG,
    FAILED_AGENT,
    INCOMPLETE,
    SHARED,
    PastCall,
    PastCalls,
    PastJudge,
    PastTimeline,
    PersonDecision,
    UnjudgedCalls,
    UnreadableEvent,
    find_sub_operations,
)
from hookline.signals import HookDecision, HookExecution
from hookline.store import (
    OperationFilter,
    PastConversation,
    PastEvents,
    PastOperation,
    SqlStore,
    parse_tags,
    read_lineages,
    read_past_conversations,
    read_past_events,
)

__all__ = [
    "Backtest",
    "BacktestAgreement",
    "BacktestExample",
    "BacktestGap",
    "BacktestGroup",
    "BacktestQuery",
    "BacktestVerdict",
    "run_backtest",
]

BacktestVerdict: TypeAlias = Literal["passed", "denied", "asked", "mocked", "changed", "failed"]
ExampleKind: TypeAlias = Literal["denied", "asked", "mocked", "changed", "failed", "unreadable", "falseAlarm", "miss"]

MOST_GROUPS = 1_000
"""Pairs of tenant and tool that are counted apart; those of further ones are added up."""
LONGEST_TEXT = 500
"""Characters of a reason or an error that an example shows."""
TURN = 0.005
"""Seconds of work after which other tasks get their turn, and a cancellation arrives."""
PROGRESS_EVERY = 100
"""Operations after which the progress is reported."""
OTHERS = "*"
MISSING_COUNTS = (
    "Calls that were not judged are missing from the counts, so that later calls may have been judged too mildly."
)
FAILED_COUNTS = "failed or were refused, and the store does not have which of the two; they count as calls that ran."
FAILING = ("error", "timeout", "dropped")
STOPPING = ("denied", "mocked")
VERDICTS: Mapping[HookDecision, BacktestVerdict] = {
    "": "passed",
    "denied": "denied",
    "asked": "asked",
    "mocked": "mocked",
    "changed": "changed",
    "continued": "changed",
}
RANKS: Sequence[HookDecision] = ("", "continued", "changed", "mocked", "asked", "denied")
"""Decisions, the weightiest last."""


class BacktestGroup(msgspec.Struct, kw_only=True, rename="camel"):
    """The decisions that a definition would have made about the calls of one tool for one tenant.

    Attributes:
        tenant_id: The tenant.
        tool: Toolset and name of the tool, or `agent/` and the sub-agent; `""` for calls that have none, `"*"` for
            those of further tenants and tools, beyond the first 1,000 pairs.
        calls: How many calls it would have judged.
        denied: How many of them it would have denied.
        asked: For how many a person would have been asked.
        mocked: How many it would have answered in the tool's place.
        changed: How many it would have changed, or the result of how many.
        failed: For how many it failed.
    """

    tenant_id: str
    tool: str
    calls: int = 0
    denied: int = 0
    asked: int = 0
    mocked: int = 0
    changed: int = 0
    failed: int = 0


class BacktestGap(msgspec.Struct, kw_only=True, rename="camel"):
    """Calls that were not judged.

    Attributes:
        reason: Why, as a sentence.
        calls: How many calls.
    """

    reason: str
    calls: int = 0


class BacktestExample(msgspec.Struct, kw_only=True, rename="camel"):
    """A call as an example.

    Attributes:
        kind: What it is an example of: the decision, `"failed"`, `"unreadable"` (the stored event cannot be read),
            `"falseAlarm"` (people allow the call, and the definition would have stopped it) or `"miss"` (people refuse
            the call, and it would have passed).
        operation_id: The id of the operation.
        number: The number of the event there, from 1.
        tenant_id: The tenant.
        agent_id: The agent.
        call: The class of the call, such as `"ToolCall"`; `""` for an event that cannot be read.
        tool: Toolset and name of the tool, or `agent/` and the sub-agent; `""` if there is none.
        tool_call_id: The id of the tool call; `""` if there is none.
        step_index: The step, from 0; `None` if the call is not of one step.
        at: When it happened, in unix seconds.
        args: The arguments of a tool call.
        text: The beginning of the newest message that a model was to answer, of the input of a run, or of
            the instruction of a sub-agent; `""` for other calls.
        reason: The reason of a denial, or the question to a person.
        error: What a hook raised, or why the event cannot be read.
        on: For a false alarm or a miss, whose word it is: `"person"`, a person who decided about the call, or
            `"label"`.
    """

    kind: ExampleKind
    operation_id: str
    number: int
    tenant_id: str
    agent_id: str
    call: str = ""
    tool: str = ""
    tool_call_id: str = ""
    step_index: int | None = None
    at: float = 0.0
    args: dict[str, Any] = {}
    text: str = ""
    reason: str = ""
    error: str = ""
    on: Literal["", "person", "label"] = ""


class BacktestAgreement(msgspec.Struct, kw_only=True, rename="camel"):
    """Agreement of the decisions of a definition with those of people. A call that is denied or mocked is stopped.

    Attributes:
        compared: Calls that were judged and that people have decided about.
        agreed: Calls that people allow and that would have passed, and those that people refuse and that would have
            been stopped.
        false_alarms: Calls that people allow, and that would have been stopped.
        misses: Calls that people refuse, and that would have passed.
        asked: Calls for which a person would have been asked; they are neither.
    """

    compared: int = 0
    agreed: int = 0
    false_alarms: int = 0
    misses: int = 0
    asked: int = 0


class Backtest(msgspec.Struct, kw_only=True, rename="camel"):
    """The decisions that a definition would have made about stored calls.

    Attributes:
        hook_id: The id of the definition; `""` if it is not stored.
        name: The name of the definition.
        point: The point at which it stands.
        since: Operations that began at this time or later, in unix seconds; `None` for all.
        until: Operations that began before this time, in unix seconds.
        operations: How many operations were looked at, the newest first.
        calls: How many of their calls were judged.
        passed: How many would have passed unchanged.
        denied: How many would have been denied.
        asked: For how many a person would have been asked.
        mocked: How many would have been answered by the hook.
        changed: How many calls or results would have been changed.
        failed: How many calls the hook failed for: it raised, took too long or returned what it may not.
        timeouts: How many of these took too long.
        fails_closed: Whether such a failure would have denied the call.
        not_judged: How many calls were not judged, because something that they need is not stored.
        gaps: Why they were not judged, the most frequent reason first.
        unreadable: How many stored events cannot be read, such as those of another version.
        groups: The counts by tenant and tool, those with most decisions first.
        examples: The newest examples of each kind.
        people: How the decisions compare with those of people who were asked about the calls.
        labels: How they compare with labels, if there are any.
        mean_ms: The mean of the hook's own time per call.
        p50_ms: The median; exact to 5 %.
        p95_ms: The 95th percentile; exact to 5 %.
        max_ms: The longest time.
        took_ms: How long the whole took.
        ended_by: `"end"`: all operations were looked at. `"limit"`: there were more calls than wanted. `"timeout"`: the
            time was up. `"stopped"`: somebody has stopped it.
        notes: What is different from a run, in sentences.
    """

    hook_id: str
    name: str
    point: str
    since: float | None
    until: float
    operations: int = 0
    calls: int = 0
    passed: int = 0
    denied: int = 0
    asked: int = 0
    mocked: int = 0
    changed: int = 0
    failed: int = 0
    timeouts: int = 0
    fails_closed: bool = True
    not_judged: int = 0
    gaps: list[BacktestGap] = []
    unreadable: int = 0
    groups: list[BacktestGroup] = []
    examples: list[BacktestExample] = []
    people: BacktestAgreement = msgspec.field(default_factory=BacktestAgreement)
    labels: BacktestAgreement | None = None
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    max_ms: float = 0.0
    took_ms: float = 0.0
    ended_by: Literal["end", "limit", "timeout", "stopped"] = "end"
    notes: list[str] = []


class BacktestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which stored calls are judged, and how.

    Attributes:
        tenant_id: Only operations of this tenant.
        agent_id: Only operations of this agent.
        tool: Only calls of tools that match this glob over `toolset/tool_name`.
        since: Only operations that began at this time or later, in unix seconds.
        until: Only operations that began before this time, in unix seconds; now by default.
        limit: Number of calls to judge at most.
        timeout: Seconds that the whole may take.
        labels: People's labels of calls.
        examples: Number of examples of each kind.
        allow_webhooks: Whether a control webhook is sent each call.
    """

    tenant_id: str | None = None
    agent_id: str | None = None
    tool: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int | None = None
    timeout: float | None = None
    labels: Sequence[CallLabel] = ()
    examples: int = 5
    allow_webhooks: bool = False

    def check(self) -> None:
        """Raise unless the numbers are valid.

        Raises:
            HookUsageError: If one is not.
        """
        for name, least in (("limit", 1), ("examples", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise HookUsageError(f"`{name}` must be a whole number from {least}; got {value!r}.")
        for name in ("since", "until", "timeout"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value != value):
                raise HookUsageError(f"`{name}` must be a number of seconds; got {value!r}.")
        if self.timeout is not None and self.timeout <= 0:
            raise HookUsageError(f"`timeout` must be a number above 0; got {self.timeout!r}.")


async def run_backtest(
    store: SqlStore,
    builder: Builder,
    definition: HookDefinition,
    query: BacktestQuery,
    on_progress: Callable[[Backtest], None] | None = None,
    scope: anyio.CancelScope | None = None,
) -> Backtest:
    """Run a definition over stored calls.

    Args:
        store: The store of the operations.
        builder: Builds a new hook for each operation.
        definition: The definition, enabled or not, in force or not.
        query: The calls.
        on_progress: Is called with the counts so far at the beginning and after every 100 operations; groups and times
            come at the end.
        scope: Ends it with what was judged so far when it is cancelled.

    Raises:
        DefinitionError: If the definition cannot be judged on stored calls.
        HookUsageError: If the query is invalid.
        StoreUnavailableError: If the database cannot be reached.
    """
    query.check()
    began = monotonic()
    timeout = math.inf if query.timeout is None else query.timeout
    async with PastJudge(builder, definition, allow_webhooks=query.allow_webhooks) as judge:
        tally = _Tally(definition, query, judge)
        if definition.tenant_id and query.tenant_id not in (None, definition.tenant_id):
            return tally.finish(began)
        scope = anyio.CancelScope() if scope is None else scope
        deadline = scope.deadline = min(scope.deadline, anyio.current_time() + timeout)
        if on_progress is not None:
            on_progress(tally.found)
        with scope, PastTimeline() if judge.counts_together else nullcontext() as timeline:
            await _judge_operations(store, definition, query, judge, tally, on_progress, timeline)
            if timeline is not None:
                await _judge_in_order(timeline, judge, tally, on_progress)
        if scope.cancelled_caught:
            tally.found.ended_by = "timeout" if anyio.current_time() >= deadline else "stopped"
        return tally.finish(began)


async def _judge_operations(
    store: SqlStore,
    definition: HookDefinition,
    query: BacktestQuery,
    judge: PastJudge,
    tally: _Tally,
    on_progress: Callable[[Backtest], None] | None,
    timeline: PastTimeline | None,
) -> None:
    """Judge the calls operation by operation, or only collect them in a timeline."""
    wanted = OperationFilter(
        tenant_id=definition.tenant_id or query.tenant_id,
        agent_id=query.agent_id if timeline is None else None,
        since=query.since,
        until=tally.found.until,
    )
    calls: PastCalls | None = None

    def begin_operation() -> _JudgedOperation | _CollectedOperation:
        return _JudgedOperation(judge, tally) if timeline is None else _CollectedOperation(timeline, tally)

    operation = begin_operation()
    found, limit = tally.found, math.inf if query.limit is None else query.limit
    turn_began = monotonic()
    is_meant = True
    parts = read_past_events(
        store,
        wanted,
        judge.types,
        is_wanted=partial(_may_be_for, definition),
        along=ALONG,
        with_conversations=judge.needs_conversations,
    )
    async for part in parts:
        if calls is None and definition.agents and part.operation.parent_operation_id is not None:
            is_meant = await _is_called_by_agent(store, definition, part.operation)
        elif calls is None:
            is_meant = True
        if not is_meant:
            continue
        if calls is None:
            calls = judge.begin_operation(part)
            operation = begin_operation()
            tally.begin(part.operation)
        ended = await _read_sub_agents(store, judge, part)
        items = calls.read(part, ended)
        items.reverse()
        while items:
            item = items.pop()  # so that it is freed, with the messages that it shows
            if isinstance(item, PastCall):
                if found.calls >= limit or tally.collected >= limit:
                    found.ended_by = "limit"
                    return
                await operation.judge(calls, item)
            elif isinstance(item, PersonDecision):
                operation.note_decision(item)
            elif isinstance(item, UnjudgedCalls):
                operation.note_gap(item.reason, item.calls)
            else:
                tally.note_unreadable(item)
            if monotonic() - turn_began > TURN:
                await anyio.lowlevel.checkpoint()
                turn_began = monotonic()
        if part.is_last:
            operation.end()
            calls = None
            found.operations += 1
            if on_progress is not None and found.operations % PROGRESS_EVERY == 0:
                on_progress(found)


async def _read_sub_agents(store: SqlStore, judge: PastJudge, part: PastEvents) -> dict[str, PastConversation]:
    """Read the operations of the sub-agents that ended in a part of an operation, if their results are needed."""
    if not judge.needs_results or judge.counts_together or SubAgentCall not in judge.calls:
        return {}
    names = find_sub_operations(part)
    return {name: each async for name, each in read_past_conversations(store, names)} if names else {}


async def _judge_in_order(
    timeline: PastTimeline, judge: PastJudge, tally: _Tally, on_progress: Callable[[Backtest], None] | None
) -> None:
    """Judge calls in the order of time. One that waited for a person is judged then and, unless stopped, as it runs."""
    chain = judge.build_chain()
    stopped: set[tuple[str, str]] = set()
    turn_began = monotonic()
    for nth, timed in enumerate(timeline.read(), start=1):
        past = timed.past
        key = past.call.operation_id, tool_call_id_of(past.call)
        if past.asked_at and not timed.is_asked and key in stopped:
            stopped.remove(key)
            continue
        judged = await judge.judge_at(chain, timed)
        if isinstance(judged, str):
            tally.note_gap(judged, 1)
        elif judged is not None:
            runs_later = timed.is_asked and past.asked_at
            if not runs_later:
                tally.note(past, judged)
            elif judged.executions:
                stopped.add(key)
                tally.note(past, judged)
        if on_progress is not None and nth % (10 * PROGRESS_EVERY) == 0:
            on_progress(tally.found)
        if monotonic() - turn_began > TURN:
            await anyio.lowlevel.checkpoint()
            turn_began = monotonic()


class _CollectedOperation:
    """Collects the calls of one operation, which are judged together with those of others.

    Args:
        timeline: Takes the calls.
        tally: Counts those that cannot be judged.
    """

    def __init__(self, timeline: PastTimeline, tally: _Tally) -> None:
        self._timeline, self._tally = timeline, tally
        self._waited: list[PastCall] = []
        self._decided: dict[str, bool] = {}
        self._asked: PastCall | None = None
        """The last model call, until it is known when the next one began: only then can it have ended for sure."""

    async def judge(self, calls: PastCalls, past: PastCall) -> None:
        """Collect a call; one about which a person was asked only when all decisions are known."""
        if past.problem:
            self.note_gap(past.problem, 1)
            return
        self._tally.note_collected(past)
        if past.waited:
            self._waited.append(past)
        elif isinstance(past.call, ModelCall):
            calls.complete(past)
            if past.made is not None:
                past.at = past.made.start_unix_nano / 1e9
                past.ended_at = past.at + past.made.duration_ms / 1e3
            self._add_asked(before=past.at)
            self._asked = past
        else:
            self._timeline.add(past)

    def _add_asked(self, *, before: float) -> None:
        """Add the last model call. It has ended before the next one, though the clock of durations is another one."""
        if self._asked is not None:
            self._asked.ended_at = min(self._asked.ended_at, before)
            self._timeline.add(self._asked)
            self._asked = None

    def note_decision(self, decision: PersonDecision) -> None:
        """Take a person's decision."""
        self._decided[decision.tool_call_id] = decision.allowed

    def note_gap(self, reason: str, calls: int) -> None:
        """Count calls that cannot be judged."""
        self._tally.note_gap(reason, calls)

    def end(self) -> None:
        """Collect the last calls."""
        self._add_asked(before=math.inf)
        for past in self._waited:
            past.allowed = self._decided.get(tool_call_id_of(past.call))
            self._timeline.add(past)


class _JudgedOperation:
    """Judges the calls of one operation, with new hooks.

    Args:
        judge: Judges them.
        tally: Counts what it decides.
    """

    def __init__(self, judge: PastJudge, tally: _Tally) -> None:
        self._judge, self._tally = judge, tally
        self._chain: PastChain | None = None
        self._gap = ""

    async def judge(self, calls: PastCalls, past: PastCall) -> None:
        """Judge a call."""
        judge = self._judge
        if judge.counts_spending:
            if past.call.parent_operation_id is not None:
                self._gap = SHARED
            elif isinstance(past.call, SubAgentCall) and SubAgentCall not in judge.calls:
                self._gap = self._gap or SHARED
                return
        problem = past.problem or self._gap
        if problem:
            self.note_gap(problem, 1)
            return
        if self._chain is None:
            self._chain = judge.build_chain()
        judged = await judge.judge(self._chain, calls, past)
        if isinstance(judged, str):
            self.note_gap(judged, 1)
            return
        if judged is not None:
            self._tally.note(past, judged, calls.complete)
        if judge.counts_spending:
            if isinstance(past.call, SubAgentCall):
                self._gap = SHARED
            elif past.lost:
                self._gap = INCOMPLETE

    def note_decision(self, decision: PersonDecision) -> None:
        """Take a person's decision."""
        self._tally.note_decision(decision)

    def end(self) -> None:
        """Note that all calls were judged."""

    def note_gap(self, reason: str, calls: int) -> None:
        """Count calls that cannot be judged. A budget needs them to judge the calls that follow."""
        self._tally.note_gap(reason, calls)
        if self._judge.counts_spending:
            self._gap = self._gap or INCOMPLETE


def _may_be_for(definition: HookDefinition, operation: PastOperation) -> bool:
    """Return whether a definition is for the tenant and the tags of an operation and, unless called, its agent."""
    tenant_id, is_called = operation.tenant_id, operation.parent_operation_id is not None
    if tenant_id in definition.except_tenants or (definition.tenants and tenant_id not in definition.tenants):
        return False
    scope = definition.scope
    if scope is not None and scope.tags and not scope.has_tag(parse_tags(operation.tags)):
        return False
    if is_called:
        return definition.inherits
    return scope is None or scope.has_agent([operation.agent_id])


async def _is_called_by_agent(store: SqlStore, definition: HookDefinition, operation: PastOperation) -> bool:
    """Return whether a definition is for the agents that called the operation of a sub-agent."""
    async with store.reading() as connection:
        lineages = await read_lineages(connection, [operation.operation_id])
    return definition.scope is None or definition.scope.has_agent(lineages[operation.operation_id].agent_ids)


class _Tally:
    """Counts what a definition decides.

    Attributes:
        found: The counts so far.
        collected: Number of the wanted calls that are to be judged later, with those of other operations.
    """

    def __init__(self, definition: HookDefinition, query: BacktestQuery, judge: PastJudge) -> None:
        webhook = definition.webhook
        self.found = Backtest(
            hook_id=definition.id,
            name=definition.name,
            point=definition.point,
            since=query.since,
            until=time() if query.until is None else query.until,
            fails_closed=(definition.on_error if webhook is None else webhook.on_error) == "closed",
            labels=BacktestAgreement() if query.labels else None,
            notes=[*judge.notes, *_describe_scope(definition)],
        )
        self.collected = 0
        self._query = query
        self._judge = judge
        self._agent_id = query.agent_id if judge.counts_together else None
        self._failed_agents = 0
        self._matches = None if query.tool is None else tool_matcher(query.tool)
        self._labels = count_labels(query.labels)
        self._labels_seen = 0
        self._groups: dict[tuple[str, str], BacktestGroup] = {}
        self._shown: Counter[ExampleKind] = Counter()
        self._durations: Counter[int] = Counter()
        self._total_ms = 0.0
        self._operation: PastOperation | None = None
        self._waiting: dict[str, tuple[PastCall, BacktestVerdict]] = {}
        self._decided: dict[str, PersonDecision] = {}
        self._gaps: dict[str, BacktestGap] = {}

    def begin(self, operation: PastOperation) -> None:
        """Begin with the next operation."""
        self._operation = operation
        self._waiting.clear()
        self._decided.clear()

    def note_gap(self, reason: str, calls: int) -> None:
        """Count calls that cannot be judged."""
        self.found.not_judged += calls
        gap = self._gaps.get(reason)
        if gap is None:
            gap = self._gaps.setdefault(reason, BacktestGap(reason=reason))
        gap.calls += calls

    def note_collected(self, past: PastCall) -> None:
        """Count a call that is judged later."""
        self._failed_agents += past.lost == FAILED_AGENT
        if self._is_wanted(past.call, tool_of(past.call)):
            self.collected += 1

    def note(
        self, past: PastCall, judged: PastVerdict, complete: Callable[[PastCall], Call] = lambda past: past.call
    ) -> None:
        """Count what the hooks decided about a call, if it is one of those that were asked for.

        Args:
            past: The call.
            judged: What the hooks did.
            complete: Returns the call as hooks saw it.
        """
        call, tool = past.call, tool_of(past.call)
        if not self._is_wanted(call, tool):
            return
        found, group = self.found, self._group_of(call.tenant_id, tool)
        found.calls += 1
        group.calls += 1
        verdict: BacktestVerdict = "passed"
        if judged.executions:
            deciding = max(judged.executions, key=rank_of)
            verdict = "failed" if deciding.status in FAILING else VERDICTS[deciding.decision]
        if verdict == "passed":
            found.passed += 1
        else:
            setattr(found, verdict, getattr(found, verdict) + 1)
            setattr(group, verdict, getattr(group, verdict) + 1)
            found.timeouts += any(each.status == "timeout" for each in judged.executions)
            if self._may_show(verdict):
                error = deciding.error if verdict == "failed" else None
                self._show(verdict, past, complete(past), reason=deciding.reason, error=error)
        spent = judged.duration_ms
        self._durations[duration_step(spent)] += 1
        self._total_ms += spent
        if spent > found.max_ms:
            found.max_ms = spent
        if past.allowed is not None:
            self._compare(found.people, past, verdict, allowed=past.allowed, on="person")
        if past.waited:
            name = tool_call_id_of(past.call)
            self._waiting[name] = past, verdict
            if name in self._decided:
                self.note_decision(self._decided.pop(name))
        if self._labels:
            allowed = self._labels.get((past.call.operation_id, tool_call_id_of(past.call)))
            if allowed is not None and found.labels is not None:
                self._labels_seen += 1
                self._compare(found.labels, past, verdict, allowed=allowed, on="label")

    def note_decision(self, decision: PersonDecision) -> None:
        """Compare a person's decision with that about the same call."""
        past, verdict = self._waiting.pop(decision.tool_call_id, (None, None))
        if past is None or verdict is None:
            self._decided[decision.tool_call_id] = decision  # the call is judged where it ran
        else:
            self._compare(self.found.people, past, verdict, allowed=decision.allowed, on="person")

    def note_unreadable(self, event: UnreadableEvent) -> None:
        """Count an event that cannot be read."""
        self.found.unreadable += 1
        if self._may_show("unreadable"):
            assert self._operation is not None
            self.found.examples.append(
                BacktestExample(
                    kind="unreadable",
                    operation_id=self._operation.operation_id,
                    number=event.number,
                    tenant_id=self._operation.tenant_id,
                    agent_id=self._operation.agent_id,
                    at=self._operation.created_at,
                    error=event.problem[:LONGEST_TEXT],
                )
            )

    def finish(self, began: float) -> Backtest:
        """Complete the result.

        Args:
            began: When the whole began, by `monotonic`.
        """
        found = self.found
        found.groups = sorted(
            self._groups.values(), key=lambda each: (each.tool == OTHERS, -_count_decided(each), -each.calls)
        )
        if found.calls:
            found.mean_ms = self._total_ms / found.calls
            found.p50_ms, found.p95_ms = (self._percentile(part) for part in (0.5, 0.95))
        found.gaps = sorted(self._gaps.values(), key=lambda each: -each.calls)
        found.took_ms = (monotonic() - began) * 1e3
        unseen = len(self._labels) - self._labels_seen
        if unseen:
            found.notes.append(f"{unseen} of {len(self._labels)} labels are of calls that were not judged.")
        if self._judge.counts_together and found.not_judged + found.unreadable:
            found.notes.append(MISSING_COUNTS)
        if self._failed_agents:
            found.notes.append(f"{self._failed_agents} calls of sub-agents {FAILED_COUNTS}")
        return found

    def _is_wanted(self, call: Call, tool: str) -> bool:
        if self._agent_id is not None and call.agent_id != self._agent_id:
            return False
        if self._query.tool is None:
            return True
        return bool(tool) and (self._matches is None or bool(self._matches(tool)))

    def _group_of(self, tenant_id: str, tool: str) -> BacktestGroup:
        key = (tenant_id, tool)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MOST_GROUPS:
                key = ("", OTHERS)
            group = self._groups.setdefault(key, BacktestGroup(tenant_id=key[0], tool=key[1]))
        return group

    def _compare(
        self,
        agreement: BacktestAgreement,
        past: PastCall,
        verdict: BacktestVerdict,
        *,
        allowed: bool,
        on: Literal["person", "label"],
    ) -> None:
        if verdict == "failed":
            return
        agreement.compared += 1
        stops = verdict in STOPPING
        if verdict == "asked":
            agreement.asked += 1
        elif stops is not allowed:
            agreement.agreed += 1
        elif stops:
            agreement.false_alarms += 1
            if self._may_show("falseAlarm"):
                self._show("falseAlarm", past, past.call, on=on)
        else:
            agreement.misses += 1
            if self._may_show("miss"):
                self._show("miss", past, past.call, on=on)

    def _may_show(self, kind: ExampleKind) -> bool:
        self._shown[kind] += 1
        return self._shown[kind] <= self._query.examples

    def _show(
        self,
        kind: ExampleKind,
        past: PastCall,
        call: Call,
        *,
        reason: str = "",
        error: str | None = None,
        on: Literal["", "person", "label"] = "",
    ) -> None:
        self.found.examples.append(
            BacktestExample(
                kind=kind,
                operation_id=call.operation_id,
                number=past.number,
                tenant_id=call.tenant_id,
                agent_id=call.agent_id,
                call=type(call).__name__,
                tool=tool_of(call),
                tool_call_id=tool_call_id_of(call),
                step_index=getattr(call, "step_index", None),
                at=past.at,
                args=call.args if isinstance(call, ToolCall) else {},
                text=text_of(call)[:LONGEST_TEXT],
                reason=reason[:LONGEST_TEXT],
                error=(error or "")[:LONGEST_TEXT],
                on=on,
            )
        )

    def _percentile(self, part: float) -> float:
        left = math.ceil(part * self.found.calls)
        for step, count in sorted(self._durations.items()):
            left -= count
            if left <= 0:
                return min(step_middle(step), self.found.max_ms)
        return 0.0


def _describe_scope(definition: HookDefinition) -> list[str]:
    """Say which operations are judged, if the definition is for a part of them only."""
    if definition.percent < 100 or definition.environments:
        return ["Operations of all environments were judged, as if the hook were for 100 % of them."]
    return []


def rank_of(execution: HookExecution) -> int:
    """Return how much an execution weighs in the verdict of all hooks of a definition."""
    return len(RANKS) if execution.status in FAILING else RANKS.index(execution.decision)


def tool_call_id_of(call: Call) -> str:
    """Return the id of a tool call, or `""`."""
    return call.tool_call_id if isinstance(call, ToolCall) else ""


def text_of(call: Call) -> str:
    """Return the newest text that a call is about, if it is about one."""
    match call:
        case ModelCall():
            said: list[Message] = call.messages
        case AgentCall():
            said = call.input
        case SubAgentCall():
            return call.instruction
        case _:
            return ""
    return said[-1].content if said else ""


def _count_decided(group: BacktestGroup) -> int:
    return group.denied + group.asked + group.mocked + group.changed + group.failed
