"""`ToolMocks`: a bundle of hooks that answers tool calls by rules, and lets faults strike them."""

from __future__ import annotations

import asyncio
import inspect
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from hookline._deadlines import own_cancellation
from hookline.calls import ToolCall, ToolResult, ToolSpec, tool_failure
from hookline.errors import HookUsageError, ToolResultError, message_of
from hookline.evals._canonical import canonical
from hookline.evals._endings import OperationEndings
from hookline.evals.cassettes import ToolWatchingHooks
from hookline.evals.errors import AnswerError, NeverMatchingRuleWarning, check_name, check_seconds
from hookline.evals.faults import Clock, Fault, RealClock, VirtualClock, draw_for, strikes
from hookline.evals.matching import AllOf, Matcher, SeenCall, ToolIs, match, path_of
from hookline.evals.mocking import _assertions as assertions
from hookline.evals.mocking._answers import PASS, CassetteAnswer, Fake, FakeMethod, Passthrough, as_cassette
from hookline.evals.mocking._rules import Rule, RuleTable, never_matches
from hookline.events import AfterToolCall, BeforeToolCall, OnComplete, OnToolCallError, is_interrupted, is_settled
from hookline.execution import logger
from hookline.hooks import Hook
from hookline.runtime import as_result

if TYPE_CHECKING:
    import re

    from hookline.evals.cassettes import Cassette
    from hookline.runtime import ToolSource

__all__ = [
    "Decider",
    "FaultRule",
    "FaultStrike",
    "MockDecision",
    "MockedCall",
    "MockedOperation",
    "Outcome",
    "ToolMocks",
    "explain_rules",
    "failed_mock_result",
    "unanswered_result",
]

Outcome = Literal["mocked", "real", "refused", "elsewhere"]
"""How a call was answered: by a rule, a fault or a cassette (`mocked`); by the real tool (`real`); by nothing
(`refused`); by another hook, which answered or denied it (`elsewhere`)."""


class MockedCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call that `ToolMocks` saw, and how it was answered.

    Attributes:
        operation_id: The operation.
        toolset: The toolset that the tool belongs to.
        tool_name: The tool's name in its toolset.
        args: The arguments.
        call_index: The number of the call, from 1, per tool and operation.
        step_index: The step, from 0.
        tool_call_id: The model's id of the call.
        outcome: How it was answered: `"mocked"`, `"real"`, `"refused"` or `"elsewhere"`.
        rule: Name of the rule that it matched.
        fault: Names of the faults that struck it, joined with commas.
        cassette: Name of the cassette that answered.
        latency_ms: The delay by faults in milliseconds, on their clock.
    """

    operation_id: str
    toolset: str = msgspec.field(name="identifier")
    tool_name: str = msgspec.field(name="apiName")
    args: dict[str, Any]
    call_index: int
    step_index: int
    tool_call_id: str
    outcome: Outcome
    rule: str | None = None
    fault: str | None = None
    cassette: str | None = None
    latency_ms: float = 0.0

    @property
    def path(self) -> str:
        """The tool, as `toolset/tool_name`."""
        return path_of(self)


class FaultStrike(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One fault that struck one call.

    Attributes:
        fault: The fault's name.
        tool: The tool, as `toolset/tool_name`.
        call_index: The number of the call, from 1, per tool and operation.
        step_index: The step, from 0.
        operation_id: The operation.
    """

    fault: str
    tool: str
    call_index: int
    step_index: int
    operation_id: str


class FaultRule:
    """A fault of a `ToolMocks`, with the calls that it may strike. `ToolMocks.fault` makes one.

    Attributes:
        matcher: The condition that calls must match.
        fault: The fault.
        probability: The probability that it strikes a call, from 0 to 1.
        name: The name in the metadata of every call that it strikes.
        index: Its place among the faults of the run, from 0. It is part of the random seed.
        hits: The number of calls that it struck, in all operations.
    """

    def __init__(self, matcher: Matcher, fault: Fault, *, probability: float, name: str | None, index: int) -> None:
        # Checked before `float(probability)`, which fails for very large whole numbers.
        if not isinstance(probability, int | float) or isinstance(probability, bool) or not 0 <= probability <= 1:
            raise HookUsageError(f"`probability` is a number from 0 to 1; got {probability!r:.100}.")
        missing = [word for word in ("name", "replaces", "strike", "change", "delay_s") if not hasattr(fault, word)]
        if missing or isinstance(fault, type):
            raise HookUsageError(
                f"{fault!r:.100} is not a fault; give one of hookline.evals.faults, as Timeout(seconds=5), or an "
                "object with its five members: name, replaces, strike, change, delay_s."
            )
        self.matcher = matcher
        self.fault = fault
        self.probability = float(probability)
        self.name = check_name(name if name is not None else fault.name)
        self.index = index
        self.hits = 0

    def __repr__(self) -> str:
        return f"FaultRule({self.name!r}, {self.matcher!r}, probability={self.probability:g}, hits={self.hits})"


SHOWN = 5
"""How many rules are shown."""

SEARCHED = 2_000
"""How many rules' tools are searched for one that is spelt alike."""


def unanswered_result(table: RuleTable, call: SeenCall) -> ToolResult:
    """Return the failed result of a call that nothing answers in a strict run."""
    path = path_of(call)
    content = (
        f"No mock answers {path} with {_cut(canonical(call.args))} (call {call.call_index} of it, step "
        f"{call.step_index}), and this run is strict: the real tool was not run. {_describe_nearest(table, call)}"
        f"Answer it with mocks.tool({path!r}).returns(...), or let the tool run with .passthrough()."
    )
    return ToolResult(content=content, success=False, metadata={"unmocked": True})


def failed_mock_result(call: SeenCall, rule: Rule | None, error: Exception) -> ToolResult:
    """Return the failed result of a call whose mock could not answer."""
    path = path_of(call)
    what = f"Rule {rule.name!r}" if rule is not None else "A mock"
    kind = "" if isinstance(error, AnswerError) else f"{type(error).__name__}: "
    content = f"{what} could not answer {path}: {kind}{message_of(error)}. The real tool was not run."
    metadata = {"unmocked": True} if rule is None else {"unmocked": True, "rule": rule.name}
    return ToolResult(content=content, success=False, metadata=metadata)


def _check_tools(tools: Iterable[object]) -> list[ToolSpec]:
    """Return the tools that rules are compared with; none where a source lists more of them in the run.

    Raises:
        HookUsageError: If something is no tool, and no source of tools.
    """
    given = list(tools)
    specs = [each for each in given if isinstance(each, ToolSpec)]
    for each in given:
        if not (isinstance(each, ToolSpec) or callable(each) or hasattr(each, "toolset")):
            raise HookUsageError(
                f"`tools` must be the tools of the run, as in `tools=agent.tools`; got {each!r:.100} among them."
            )
    return specs if len(specs) == len(given) else []


def explain_rules(table: RuleTable, call: SeenCall) -> str:
    """Explain which rule answers a call, and why the other rules for its tool do not."""
    path = path_of(call)
    winner, problem = _winner(table, call)
    lines = [f"{path} with {_cut(canonical(call.args))}, call {call.call_index} of it, step {call.step_index}:"]
    rules = table.of_tool(path)
    place = rules.index(winner) if winner is not None else 0
    first = max(0, place + 1 - 50)
    if first:
        lines.append(f"    … {first:,} more rules …")
    for rule in rules[first : first + 50]:
        reason = _reason(rule, call)
        if rule is winner:
            lines.append(f"  → {rule.name!r} answers it: {rule.matcher!r}")
        elif reason is None:
            lines.append(f"    {rule.name!r} matches too, but is less specific or was registered earlier")
        else:
            lines.append(f"    {rule.name!r} does not match: {reason}")
    if len(rules) > first + 50:
        lines.append(f"    … {len(rules) - first - 50:,} more rules …")
    if problem is not None:
        lines.append(f"    no rule answers it: a matcher failed with {type(problem).__name__}: {message_of(problem)}")
    elif winner is None:
        lines.append(f"    no rule answers it. {_describe_nearest(table, call)}".rstrip())
    return "\n".join(lines)


def _winner(table: RuleTable, call: SeenCall) -> tuple[Rule | None, Exception | None]:
    try:
        return table.find(call), None
    except Exception as error:
        return None, error


def _reason(rule: Rule, call: SeenCall) -> str | None:
    try:
        return rule.matcher.explain(call)
    except Exception as error:  # from a matcher that had not been asked about this call
        return f"its matcher failed with {type(error).__name__}: {message_of(error)}"


def _describe_nearest(table: RuleTable, call: SeenCall) -> str:
    path = path_of(call)
    reasons = [(rule, _reason(rule, call) or "") for rule in table.of_tool(path)[:50]]
    if reasons:
        rule, reason = min(reasons, key=lambda each: len(each[1]))
        return f"The nearest rule is {rule.name!r}: {reason}. "
    rules = list(table.rules.values())[-SEARCHED:]
    if not rules:
        return "There are no rules. "
    tools: dict[str, Rule] = {}
    for rule in rules:
        for known in rule.matcher.paths() or (rule.name.partition(" #")[0],):
            tools.setdefault(known, rule)
    close = get_close_matches(path, tools, n=1, cutoff=0.4) or get_close_matches(call.tool_name, tools, n=1, cutoff=0.4)
    if close:
        rule = tools[close[0]]
        return f"The nearest rule is {rule.name!r}: {_reason(rule, call)}. "
    names = ", ".join(repr(rule.name) for rule in rules[:SHOWN])
    return f"No rule matches this tool; the rules are {names}{' and others' if len(rules) > SHOWN else ''}. "


def _cut(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


Change = Callable[[ToolCall | BeforeToolCall, ToolResult], object]
CallKey = tuple[str, str | int]
"""One call of an operation: its step and the model's id of it; without an id, its tool and index."""


class MockedOperation:
    """The state of one operation while it runs, or of the turns of one conversation."""

    __slots__ = (
        "changes",
        "changing",
        "clock_id",
        "earlier",
        "earlier_steps",
        "hits",
        "open",
        "others",
        "seen",
        "steps",
    )

    def __init__(self, operation_id: str, *, changing: bool) -> None:
        self.clock_id = operation_id
        self.earlier: dict[str, int] = {}
        """By tool, how often it was called in earlier turns."""
        self.earlier_steps = 0
        self.seen: dict[str, int] = {}
        self.steps = 0
        self.changing = changing
        """Whether its run asks for changes of what real tools answer: one that began before there were any does not."""
        self.hits: dict[int, int] = {}
        self.open: dict[CallKey, MockDecision] = {}
        self.changes: dict[CallKey, list[Change]] = {}
        self.others: dict[str, list[int]] = {}
        """By tool, numbers of calls that were not for the tool's only rule."""

    def begin_turn(self) -> None:
        """Count the calls and steps so far as those of earlier turns."""
        self.earlier, self.earlier_steps = dict(self.seen), self.steps

    def number_of(self, event: BeforeToolCall) -> int:
        """Return the number of a call of its tool, from 1; calls of earlier turns count."""
        path = path_of(event)
        number = self.earlier.get(path, 0) + event.call_index
        self.seen[path] = max(number, self.seen.get(path, 0))
        return number

    def step_of(self, event: BeforeToolCall) -> int:
        """Return the step of a call, from 0; steps of earlier turns count."""
        step = self.earlier_steps + event.step_index
        self.steps = max(self.steps, step + 1)
        return step


class MockDecision:
    """How a call is to be answered.

    Attributes:
        value: The answer, something to await for it, or `PASS`.
        outcome: The outcome of the call, unless `value` fails.
        rule: The rule that the call matched.
        faults: The faults that struck the call.
        changes: Their changes of the answer, in this order.
        delay_s: Seconds by which they delay it.
        cassette: Name of the cassette that answered.
        tape: The cassette that let the real tool run, and may record what it answers.
        calls: All calls; other ones than the present ones if `reset` came while an answer was awaited.
        slot: The call's place among them.
    """

    __slots__ = ("calls", "cassette", "changes", "delay_s", "faults", "outcome", "rule", "slot", "tape", "value")

    def __init__(self, calls: list[MockedCall | None]) -> None:
        self.calls = calls
        self.slot = len(calls)
        calls.append(None)
        self.value: Any = PASS
        self.outcome: Outcome = "real"
        self.rule: Rule | None = None
        self.faults: list[FaultRule] = []
        self.changes: list[Change] = []
        self.delay_s = 0.0
        self.cassette: str | None = None
        self.tape: Cassette | None = None


class Decider:
    """Decides how calls are answered, and keeps a record of it."""

    def __init__(
        self,
        *,
        table: RuleTable,
        strict: bool,
        seed: int,
        case: str | None,
        clock: Clock,
        cassette: Cassette | None,
        conversation: bool = False,
    ) -> None:
        self.table = table
        self.strict = strict
        self.seed = seed
        self.case = case
        self.clock = clock
        self.cassette = cassette
        self.in_conversation = conversation
        self.conversation: MockedOperation | None = None
        """The state of all turns, if the operations are turns of one conversation."""
        self.changing = False
        self.faults: list[FaultRule] = []
        self.operations: dict[str, MockedOperation] = {}
        self.tapes: dict[str, dict[int, Cassette]] = {}
        """By operation, the cassettes that rules have asked for it and its sub-agents; they want to know of its end."""
        self.endings = OperationEndings(self.forget)
        self.calls: list[MockedCall | None] = []
        self.struck: list[FaultStrike] = []
        self.unruled: set[str] = set()
        """Paths of the tools whose calls no rule answered."""

    def reset(self) -> None:
        """Forget all calls and all operations."""
        for operation_id in [*self.operations, *self.tapes]:
            self.forget(operation_id)
        if self.conversation is not None:
            self.clock.forget(self.conversation.clock_id)
            self.conversation = None
        self.calls = []
        self.struck = []
        self.unruled = set()
        for rule in self.table.rules.values():
            rule.hits = 0
        for fault in self.faults:
            fault.hits = 0

    def decide(self, event: BeforeToolCall) -> MockDecision | None:
        """Decide how a call is answered; return `None` if another hook has decided that already."""
        operation = self._operation(event)
        decision = MockDecision(self.calls)
        if is_settled(event):
            decision.outcome = "elsewhere"
            operation.others.setdefault(path_of(event), []).append(operation.number_of(event))
            self._keep(event, decision)
            return None
        try:
            if self.faults:
                self._strike(operation, event, decision)
            if decision.value is PASS:
                self._answer(operation, event, decision)
        except Exception as error:  # also from the user's own matcher or fault: the real tool must not run then
            self._refuse(decision, failed_mock_result(event, decision.rule, error))
        if decision.faults:
            self._count(event, decision)
        return decision

    async def await_answer(self, event: BeforeToolCall, decision: MockDecision) -> object:
        """Wait for the delay of a call and for its answer, and return the answer."""
        if decision.delay_s or inspect.isawaitable(decision.value):
            self._keep(event, decision)  # recorded now, since the wait may be cancelled
        if decision.delay_s:
            operation = self._operation(event)
            try:
                await self.clock.of(operation.clock_id).sleep(decision.delay_s, operation.step_of(event))
            except BaseException:
                _close_coroutine(decision.value)
                raise
        if not inspect.isawaitable(decision.value):
            return decision.value
        try:
            return await decision.value
        except BaseException as error:
            return _as_failure(error)

    def finish(self, event: BeforeToolCall, decision: MockDecision, value: object) -> None:
        """Answer a call as decided, and record that."""
        operation = self._operation(event)
        if decision.delay_s:
            self.clock.of(operation.clock_id).pass_time(decision.delay_s, operation.step_of(event))
        if value is PASS and decision.changes and not operation.changing:
            late = AnswerError("it changes the answer of a real tool, but was added after the run had begun")
            self._refuse(decision, failed_mock_result(event, decision.rule, late))
            value = decision.value
        if value is PASS:
            key = _key(event)
            operation.open[key] = decision
            if decision.changes:
                operation.changes[key] = decision.changes
            self._keep(event, decision)
            return
        result = self._result(event, decision, value)
        self._keep(event, decision)
        event.mock(result)

    async def change_result(self, call: ToolCall, result: ToolResult) -> ToolResult | None:
        """Change the answer of a real tool; return `None` if it stays as it is."""
        operation = self.operations.get(call.operation_id)
        changes = operation.changes.pop(_key(call), None) if operation is not None else None
        if changes is None:
            return None
        for change in changes:
            try:
                value = change(call, result)
                result = _as_result(call.tool_name, await value if inspect.isawaitable(value) else value)
            except BaseException as error:
                result = _as_failure(error)
        return result

    def settle(self, event: AfterToolCall | OnToolCallError) -> None:
        """Handle the end of a call: record what a real tool answered, and notice if another hook answered after all."""
        operation = self.operations.get(event.operation_id)
        decision = operation.open.pop(_key(event), None) if operation is not None else None
        if operation is None or decision is None:
            return
        if event.answered_by is not None:
            operation.changes.pop(_key(event), None)  # they apply to answers of the real tool only
            decision.outcome = "elsewhere"
            self._keep(event, decision)
            return
        tape = decision.tape if decision.tape is not None else self.cassette
        if tape is not None and not (isinstance(event, OnToolCallError) and is_interrupted(event)):
            tape.keep(event)

    def forget(self, operation_id: str) -> None:
        """Drop the state of an operation that has ended."""
        self.operations.pop(operation_id, None)
        if self.conversation is None or operation_id != self.conversation.clock_id:
            self.clock.forget(operation_id)
        for tape in self.tapes.pop(operation_id, {}).values():
            tape.forget(operation_id)
        if self.cassette is not None:
            self.cassette.forget(operation_id)

    def _operation(self, event: BeforeToolCall) -> MockedOperation:
        operation = self.operations.get(event.operation_id)
        if operation is None:
            is_turn = self.in_conversation and event.parent_operation_id is None
            operation = self.conversation if is_turn else None
            if operation is None:
                operation = MockedOperation(event.operation_id, changing=self.changing)
                self.conversation = operation if is_turn else self.conversation
            else:
                operation.begin_turn()
            self.operations[event.operation_id] = operation
            self.endings.attend(event)
        return operation

    def _strike(self, operation: MockedOperation, event: BeforeToolCall, decision: MockDecision) -> None:
        path = path_of(event)
        clock = self.clock.of(operation.clock_id)
        clock.enter(operation.step_of(event))
        case = event.operation_id if self.case is None else self.case
        if self.case is not None and event.parent_operation_id is not None:
            case = f"{case}/{event.agent_id}"
        for rule in self.faults:
            if not rule.matcher.matches(event):
                continue
            parts: dict[str, Any] = {
                "seed": self.seed,
                "operation": case,
                "tool": path,
                "call_index": operation.number_of(event),
                "fault_index": rule.index,
            }
            if not strikes(rule.probability, **parts):
                continue
            draw = draw_for(**parts)
            fault = rule.fault
            if fault.replaces:
                if decision.value is not PASS:
                    continue  # the first fault that answers wins
                answer = fault.strike(event, draw, clock)
                if answer is None:
                    continue
                decision.value, decision.outcome = answer, "mocked"
            else:
                decision.changes.append(_change_of(fault, draw))
            seconds = fault.delay_s(draw)
            check_seconds(rule.name, "delay_s", seconds)
            decision.delay_s += seconds
            decision.faults.append(rule)

    def _count(self, event: BeforeToolCall, decision: MockDecision) -> None:
        for rule in decision.faults:
            rule.hits += 1
            strike = FaultStrike(
                fault=rule.name,
                tool=path_of(event),
                call_index=event.call_index,
                step_index=event.step_index,
                operation_id=event.operation_id,
            )
            self.struck.append(strike)

    def _answer(self, operation: MockedOperation, event: BeforeToolCall, decision: MockDecision) -> None:
        rule = self.table.find(event)
        path = path_of(event)
        others, number = operation.others.setdefault(path, []), operation.number_of(event)
        if rule is None:
            self.unruled.add(path)
            others.append(number)
            self._answer_unruled(event, decision)
            return
        decision.rule = rule
        rule.hits += 1
        place = operation.hits.get(rule.number, 0)
        operation.hits[rule.number] = place + 1
        replaced = self.faults and any(each.fault.replaces and each.matcher.may_match(path) for each in self.faults)
        if not replaced and self.table.has_one_rule(path):
            # Parallel calls may arrive in any order, but their indices are fixed.
            place = number - 1 - (sum(other < number for other in others) if others else 0)
        else:
            others.append(number)
        if isinstance(rule.answer, CassetteAnswer):
            tape = rule.answer.cassette
            self.tapes.setdefault(event.parent_operation_id or event.operation_id, {})[id(tape)] = tape
            self._play(tape, event, decision)
            return
        try:
            decision.value = rule.answer.give(event, place)
        except AnswerError:
            raise
        except BaseException as error:
            decision.value = _as_failure(error)
        if decision.value is not PASS:
            decision.outcome = "mocked"
        elif isinstance(rule.answer, Passthrough) and rule.answer.transform is not None:
            decision.changes.insert(0, rule.answer.transform)

    def _answer_unruled(self, event: BeforeToolCall, decision: MockDecision) -> None:
        if self.cassette is not None:
            self._play(self.cassette, event, decision)
        elif self.strict:
            self._refuse(decision, unanswered_result(self.table, event))

    def _play(self, cassette: Cassette, event: BeforeToolCall, decision: MockDecision) -> None:
        decision.tape = cassette
        recorded = cassette.answer(event)
        if recorded is None:
            return  # the cassette records this call, so the real tool runs even in a strict run
        decision.cassette = cassette.name
        if recorded.metadata.get("recording") is None:
            self._refuse(decision, recorded)
        else:
            decision.value, decision.outcome = recorded, "mocked"

    def _refuse(self, decision: MockDecision, result: ToolResult) -> None:
        decision.value, decision.outcome = result, "refused"
        # A refused call has no answer that faults could change.
        decision.faults, decision.changes, decision.delay_s = [], [], 0.0

    def _result(self, event: BeforeToolCall, decision: MockDecision, value: object) -> ToolResult:
        try:
            if inspect.isawaitable(value):
                _close_coroutine(value)
                raise AnswerError(
                    "it returned an awaitable, and this call cannot wait for it: make its function `async def`, and "
                    "add the rule before the run begins"
                )
            result = _as_result(event.tool_name, value)
            for change in decision.changes:
                result = _as_result(event.tool_name, change(event, result))
        except Exception as error:
            if isinstance(error, ToolResultError):
                error = AnswerError(f"its value cannot be shown to a model: {error.reason}")
            self._refuse(decision, failed_mock_result(event, decision.rule, error))
            result = decision.value
        provenance: dict[str, Any] = {}
        if decision.rule is not None:
            provenance["rule"] = decision.rule.name
        if decision.faults:
            provenance["fault"] = ",".join(fault.name for fault in decision.faults)
        if decision.delay_s:
            provenance["latency_ms"] = decision.delay_s * 1000
        if not provenance:
            return result
        return msgspec.structs.replace(result, metadata={**result.metadata, **provenance})

    def _keep(self, event: BeforeToolCall | AfterToolCall | OnToolCallError, decision: MockDecision) -> None:
        decision.calls[decision.slot] = MockedCall(
            operation_id=event.operation_id,
            toolset=event.toolset,
            tool_name=event.tool_name,
            args=event.args,
            call_index=event.call_index,
            step_index=event.step_index,
            tool_call_id=event.tool_call_id,
            outcome=decision.outcome,
            rule=decision.rule.name if decision.rule is not None else None,
            fault=",".join(fault.name for fault in decision.faults) or None,
            cassette=decision.cassette,
            latency_ms=decision.delay_s * 1000,
        )


def _key(call: ToolCall | BeforeToolCall | AfterToolCall | OnToolCallError) -> CallKey:
    # By id, since an interceptor may have turned the call into one of another tool.
    return (str(call.step_index), call.tool_call_id) if call.tool_call_id else (path_of(call), call.call_index)


def _change_of(fault: Fault, draw: random.Random) -> Change:
    return lambda call, result: fault.change(result, draw)


def _as_failure(error: BaseException) -> ToolResult:
    """Turn an exception into the result of the call, as if the tool itself had raised it.

    Call it inside `except`.

    Raises:
        BaseException: The error, if it is none that a tool fails with, or a cancellation of the run.
    """
    if isinstance(error, Exception) or (isinstance(error, asyncio.CancelledError) and own_cancellation()):
        return tool_failure(error)
    raise error


def _as_result(tool: str, value: object) -> ToolResult:
    return tool_failure(value) if isinstance(value, Exception) else as_result(tool, value)


def _close_coroutine(value: Any) -> None:
    if inspect.iscoroutine(value):
        value.close()


T = TypeVar("T")


class ToolMocks(ToolWatchingHooks):
    """Answers tool calls by rules instead of running the tools. Pass it to `hooks=[...]`.

    The most specific rule that matches a call answers it; among equally specific rules, the one registered last. A call
    that no rule answers goes to the cassette, if there is one, then to the real tool, or is refused in a strict run.
    Operations do not share any state.

    Args:
        id: Name of the bundle.
        strict: Whether a call that nothing answers is refused, with a failed result that names the nearest rule, in
            place of reaching the real tool.
        seed: The seed of the run, for faults with a probability.
        case: Name of the test case. It replaces the operation's id in the random draw, so that a case
            always has the same faults.
        clock: The clock of faults. By default a `VirtualClock`, which does not really wait.
        cassette: A cassette that answers the calls that no rule answers, and records real answers, as its mode says.
        tools: All tools of the run, as in `agent.tools`. A rule that could match none of them gives a warning. With a
            source of tools among them, such as an MCP server, nothing is checked: its tools are listed in the run.
        inherit: Whether the mocks apply in sub-agents too.
        priority: The priority of its interceptor, which changes the answers of real tools.
        tenant_id: The tenant whose calls are mocked; `""` for every tenant.
        conversation: Whether all operations are turns of one conversation: sequences, fakes, rate limits and the draws
            of faults then continue from one to the next. `nth` and `step` of a rule still count in each turn.
    """

    def __init__(
        self,
        id: str = "mocks",  # noqa: A002
        *,
        strict: bool = False,
        seed: int = 0,
        case: str | None = None,
        clock: Clock | None = None,
        cassette: Cassette | None = None,
        tools: Iterable[ToolSpec | ToolSource | Callable[..., Any]] = (),
        inherit: bool = True,
        priority: int = 1000,
        tenant_id: str = "",
        conversation: bool = False,
    ) -> None:
        super().__init__(id, priority=priority, tenant_id=tenant_id, inherit=inherit)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise HookUsageError(f"`seed` is a whole number; got {seed!r}.")
        if case is not None and not isinstance(case, str):
            raise HookUsageError(f"`case` is text or None; got {case!r}.")
        if not isinstance(strict, bool):
            raise HookUsageError(f"`strict` is True or False; got {strict!r:.100}.")
        if clock is not None and not isinstance(clock, Clock):
            raise HookUsageError(f"`clock` is a VirtualClock() or a RealClock(); got {clock!r:.100}.")
        self._tools = _check_tools(tools)
        self._fakes: list[Fake[Any]] = []
        self._numbers = 0
        self._decider = Decider(
            table=RuleTable(),
            strict=strict,
            seed=seed,
            case=case,
            clock=clock if clock is not None else VirtualClock(),
            cassette=as_cassette(cassette) if cassette is not None else None,
            conversation=conversation,
        )
        self._watched: list[Cassette] = []
        """The cassettes that are told which tools a run offers, to notice those that have changed."""
        if self._decider.cassette is not None:
            self._watch(self._decider.cassette)
        self._misspelt: set[Rule] = set()
        """The rules that were logged as such."""
        self._waits = isinstance(self._decider.clock, RealClock)
        self._changes = False
        self.on(AfterToolCall, id=f"{id}.settle")(self._settle)
        self.on(OnToolCallError, id=f"{id}.settle")(self._settle)
        self.on(OnComplete, id=f"{id}.forget")(self._complete)
        self._listen()

    def __repr__(self) -> str:
        return f"ToolMocks({self.id!r}, rules={len(self.rules)}, faults={len(self.faults)}, calls={len(self.calls)})"

    # Setting up rules and faults.

    def tool(
        self,
        pattern: str | re.Pattern[str] | Callable[[str], object],
        args: Mapping[str, Any] | None = None,
        *,
        nth: int | None = None,
        step: int | None = None,
        where: Callable[[Any], object] | None = None,
        name: str | None = None,
    ) -> Rule:
        """Add a rule for the calls of a tool. Set its answer with `.returns(...)`, `.raises(...)` or `.runs(...)`.

        Args:
            pattern: `toolset/tool_name`, a name alone, a glob, a compiled regular expression, or a predicate on the
                path.
            args: All arguments; any by default. See `when` for other ways to match them.
            nth: Match only the n-th call of the tool in its operation, from 1.
            step: Match only calls of this step, from 0.
            where: Match only calls for which `where(call)` is true.
            name: The name in the metadata of every call that the rule answers.
        """
        matcher = match.tool(pattern)
        if args is not None:
            matcher &= match.args(args)
        if nth is not None:
            matcher &= match.nth(nth)
        if step is not None:
            matcher &= match.step(step)
        if where is not None:
            matcher &= match.where(where)
        return self._add(matcher, name, str(pattern) if isinstance(pattern, str) else repr(match.tool(pattern)))

    def when(self, matcher: Matcher, *, name: str | None = None) -> Rule:
        """Add a rule for the calls that match: `when(match.tool("bank/*") & match.fields({"to.iban": "DE1"}))`.

        Args:
            matcher: The condition that calls must match.
            name: The name in the metadata of every call that the rule answers.
        """
        if not isinstance(matcher, Matcher):
            raise HookUsageError(f"A rule needs a matcher, as match.tool('bank/*'); got {matcher!r:.100}.")
        return self._add(matcher, name, repr(matcher)[:60])

    def fake(self, source: Callable[[], T] | T, *, toolset: str = "local") -> Fake[T]:
        """Let the methods of an object replace tools, with separate state per operation.

        Args:
            source: A class or function that makes the object, or an object that is copied for each operation.
            toolset: The toolset of the tools.

        Returns:
            A `Fake`: `fake.of(operation_id)` and `fake.only` return the object of an operation.
        """
        fake = Fake(source, conversation=self._decider.in_conversation)
        for method in fake.methods():
            rule = self._add(match.tool(f"{toolset}/{method}"), None, f"{toolset}/{method}")
            rule.optional = True
            rule.answered_with(FakeMethod(fake, method))
        self._fakes.append(fake)
        return fake

    def fault(
        self,
        pattern: str | Matcher,
        fault: Fault,
        *,
        probability: float = 1.0,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> FaultRule:
        """Inject a fault into calls, both mocked and real ones.

        Whether it strikes a call depends only on the seed, the case (or operation), the tool and the index of the call.

        Args:
            pattern: The tool, as for `tool`, or a matcher.
            fault: The fault.
            probability: The probability that it strikes a call, from 0 to 1.
            args: Strike only calls with these arguments.
            name: The name in the metadata of every call that it strikes. By default the fault's own.
        """
        matcher = pattern if isinstance(pattern, Matcher) else match.tool(pattern)
        if args is not None:
            matcher &= match.args(args)
        rule = FaultRule(matcher, fault, probability=probability, name=name, index=len(self.faults))
        self._warn(matcher, f"fault {rule.name!r}")
        self._decider.faults.append(rule)
        self._change_results()
        return rule

    # Reading what happened.

    @property
    def rules(self) -> list[Rule]:
        """The rules, in the order in which they were added."""
        return list(self._decider.table.rules.values())

    @property
    def faults(self) -> list[FaultRule]:
        """The faults, in the order in which they were added."""
        return list(self._decider.faults)

    @property
    def calls(self) -> list[MockedCall]:
        """Every call of every operation, in the order in which they began."""
        return [call for call in self._decider.calls if call is not None]

    @property
    def faults_struck(self) -> list[FaultStrike]:
        """Every fault that struck a call, in the order of the calls."""
        return list(self._decider.struck)

    @property
    def cassette(self) -> Cassette | None:
        """The cassette that answers the calls that no rule answers."""
        return self._decider.cassette

    @property
    def attached(self) -> bool:
        """Whether an operation with these mocks has called a tool or ended."""
        return self._decider.endings.used or bool(self._decider.calls)

    @property
    def clock(self) -> Clock:
        """The clock that faults use."""
        return self._decider.clock

    def explain(self, call: ToolCall | BeforeToolCall | MockedCall) -> str:
        """Explain which rule answers a call, and why the others do not."""
        return explain_rules(self._decider.table, call)

    def reset(self) -> None:
        """Forget calls, faults that struck, and the state of every operation. Rules and faults stay."""
        self._decider.reset()
        for fake in self._fakes:
            fake.forget()

    def assert_called(self, pattern: str, args: object = None, times: int | None = None) -> None:
        """Fail unless a tool was called.

        Args:
            pattern: `toolset/tool_name`, a name alone, or a glob over the path.
            args: All arguments; `None` for any.
            times: How often; `None` for at least once.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assertions.assert_called(self.calls, pattern, args, times, note=_note)

    def assert_called_once_with(self, pattern: str, args: object) -> None:
        """Fail unless a tool was called exactly once, and with these arguments.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assertions.assert_called_once_with(self.calls, pattern, args, note=_note)

    def assert_not_called(self, pattern: str) -> None:
        """Fail if a tool was called.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assertions.assert_not_called(self.calls, pattern, note=_note)

    def assert_called_before(self, first: str, second: str) -> None:
        """Fail unless the first call of one tool came before the first call of another.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assertions.assert_called_before(self.calls, first, second, note=_note)

    def assert_no_unmocked(self) -> None:
        """Fail if a call reached a real tool without a rule that let it through, or was refused.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assertions.assert_no_unmocked(self.calls, _is_mocked, note=_note)

    def assert_all_mocks_used(self) -> None:
        """Fail if a rule was never used; a fake need not have all of its methods called.

        Raises:
            AssertionError: If there is one. The message says why the nearest calls did not match, and lists all calls.
        """
        __tracebackhide__ = True
        unused = [rule for rule in self.rules if not rule.hits and not rule.optional]
        if not unused:
            return
        lines = [f"{len(unused)} of {len(self.rules)} rules were never used:"]
        lines += [f"  {rule.name!r}: {rule.matcher!r}{self._nearly(rule)}" for rule in unused[:20]]
        lines += ["Calls:", assertions.table(self.calls, _note)] if self.calls else ["No tool was called at all."]
        raise AssertionError("\n".join(lines))

    # Internals.

    def _add(self, matcher: Matcher, name: str | None, title: str) -> Rule:
        self._numbers += 1
        rule = Rule(name if name is not None else f"{title} #{self._numbers}", matcher, self._numbers, self._answer_set)
        self._warn(matcher, f"rule {rule.name!r}")
        self._decider.table.add(rule)
        return rule

    def _answer_set(self, rule: Rule) -> None:
        if rule.answer.may_wait and not self._waits:
            self._waits = True
            self._listen()
        if isinstance(rule.answer, CassetteAnswer):
            self._watch(rule.answer.cassette)
        if isinstance(rule.answer, Passthrough) and rule.answer.transform is not None:
            self._change_results()

    def _watch(self, cassette: Cassette) -> None:
        if cassette not in self._watched and hasattr(cassette, "note_tools"):
            self._watched.append(cassette)
            self._watcher = self._note_tools

    def _note_tools(self, tools: Sequence[ToolSpec], agent: str) -> None:
        for cassette in self._watched:
            cassette.note_tools(tools, agent=agent)

    def _warn(self, matcher: Matcher, what: str) -> None:
        reason = never_matches(matcher, self._tools)
        if reason is not None:
            warnings.warn(f"The {what} can never match: {reason}.", NeverMatchingRuleWarning, stacklevel=4)

    def _complete(self, event: OnComplete) -> None:
        self._decider.endings.completed(event)
        for rule in self.rules if self._decider.unruled else ():
            if not rule.hits and not rule.optional and rule not in self._misspelt:
                self._warn_if_misspelt(rule)

    def _warn_if_misspelt(self, rule: Rule) -> None:
        """Log a rule that no call has matched, if its tool is nearly one whose calls no rule answered."""
        parts = rule.matcher.parts if isinstance(rule.matcher, AllOf) else (rule.matcher,)
        wanted = next((part.pattern for part in parts if isinstance(part, ToolIs)), None)
        called = sorted(self._decider.unruled)
        if not isinstance(wanted, str) or any(rule.matcher.may_match(path) for path in called):
            return
        near = get_close_matches(wanted.rpartition("/")[2], [path.rpartition("/")[2] for path in called], n=1)
        if near:
            self._misspelt.add(rule)
            path = next(path for path in called if path.rpartition("/")[2] == near[0])
            logger.warning(
                "Rule %r of the mocks %r has matched no call, and no rule has answered %s. If it is meant, write %r.",
                rule.name,
                self.id,
                path,
                path,
            )

    def _listen(self) -> None:
        # One observer, sync or async: the async one costs more and is needed only if answers or delays are awaited.
        others = tuple(hook for hook in self.observers if hook.id != f"{self.id}.answer")
        handler = self._decide_async if self._waits else self._decide
        first = Hook(id=f"{self.id}.answer", type=BeforeToolCall, handler=handler, timeout=float("inf"))
        self.observers = (first, *others)
        self._compiled = None

    def _change_results(self) -> None:
        if not self._changes:
            self._changes = self._decider.changing = True
            self.after(ToolCall, id=f"{self.id}.change", timeout=float("inf"))(self._change)

    def _decide(self, event: BeforeToolCall) -> None:
        decision = self._decider.decide(event)
        if decision is not None:
            self._decider.finish(event, decision, decision.value)

    async def _decide_async(self, event: BeforeToolCall) -> None:
        decision = self._decider.decide(event)
        if decision is not None:
            self._decider.finish(event, decision, await self._decider.await_answer(event, decision))

    async def _change(self, call: ToolCall, result: ToolResult) -> ToolResult | None:
        return await self._decider.change_result(call, result)

    def _settle(self, event: AfterToolCall | OnToolCallError) -> None:
        self._decider.settle(event)

    def _nearly(self, rule: Rule) -> str:
        reasons = [
            reason
            for call in self.calls
            if rule.matcher.may_match(call.path) and (reason := rule.matcher.explain(call)) is not None
        ]
        return f" (the nearest call: {min(reasons, key=len)})" if reasons else ""


def _is_mocked(call: MockedCall) -> bool:
    return call.outcome in ("mocked", "elsewhere") or (call.outcome == "real" and call.rule is not None)


def _note(call: MockedCall) -> str:
    parts: list[str] = [call.outcome]
    if call.rule is not None:
        parts.append(f"by {call.rule!r}")
    if call.cassette is not None:
        parts.append(f"{'not in' if call.outcome == 'refused' else 'from'} cassette {call.cassette!r}")
    if call.fault is not None:
        parts.append(f"fault {call.fault}")
    return " ".join(parts)
