"""What becomes of each tool call under `ToolMocks`: fault, rule, cassette, real tool or refusal."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hookline._deadlines import own_cancellation
from hookline.calls import ToolCall, ToolResult, tool_failure
from hookline.errors import ToolResultError
from hookline.evals._endings import Endings
from hookline.evals._fault_errors import check_seconds
from hookline.evals._mock_errors import AnswerError
from hookline.evals._refusals import broken, refusal
from hookline.evals.answers import PASS, Taped, Through
from hookline.evals.clocks import Clock
from hookline.evals.faults import Fault, draw_for, strikes
from hookline.evals.mocked_calls import FaultRule, FaultStrike, MockedCall, Outcome
from hookline.evals.rules import Rule, RuleTable
from hookline.events import AfterToolCall, BeforeToolCall, OnToolCallError, is_interrupted, is_settled
from hookline.runtime import as_result

if TYPE_CHECKING:
    from hookline.evals.cassette import Cassette

__all__ = ["Decider", "Decision", "Operation"]

Change = Callable[[ToolCall | BeforeToolCall, ToolResult], object]
CallKey = tuple[str, str | int]
"""One call of an operation: its step and the model's id of it; without an id, its tool and index."""


class Operation:
    """What is remembered of one operation while it runs."""

    __slots__ = ("changes", "changing", "hits", "open", "others")

    def __init__(self, *, changing: bool) -> None:
        self.changing = changing
        """Whether its run asks for changes of what real tools answer: one that began before there were any does not."""
        self.hits: dict[int, int] = {}
        self.open: dict[CallKey, Decision] = {}
        self.changes: dict[CallKey, list[Change]] = {}
        self.others: dict[str, list[int]] = {}
        """By tool, indices of calls that were not for the tool's only rule."""


class Decision:
    """What is to become of a call.

    Attributes:
        value: The answer, something to await for it, or `PASS`.
        outcome: What becomes of the call, unless `value` fails.
        rule: The rule that the call got.
        faults: Those that struck it.
        changes: What they do to the answer, in this order.
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
    """Decides about calls, and keeps what it decided."""

    def __init__(
        self, *, table: RuleTable, strict: bool, seed: int, case: str | None, clock: Clock, cassette: Cassette | None
    ) -> None:
        self.table = table
        self.strict = strict
        self.seed = seed
        self.case = case
        self.clock = clock
        self.cassette = cassette
        self.changing = False
        self.faults: list[FaultRule] = []
        self.operations: dict[str, Operation] = {}
        self.tapes: dict[str, dict[int, Cassette]] = {}
        """By operation, the cassettes that rules have asked for it and its sub-agents; they want to know of its end."""
        self.endings = Endings(self.forget)
        self.calls: list[MockedCall | None] = []
        self.struck: list[FaultStrike] = []

    def reset(self) -> None:
        """Forget what happened."""
        for operation_id in [*self.operations, *self.tapes]:
            self.forget(operation_id)
        self.calls = []
        self.struck = []
        for rule in self.table.rules.values():
            rule.hits = 0
        for fault in self.faults:
            fault.hits = 0

    def decide(self, event: BeforeToolCall) -> Decision | None:
        """What is to become of a call; `None` where another hook has decided that already."""
        operation = self._operation(event)
        decision = Decision(self.calls)
        if is_settled(event):
            decision.outcome = "elsewhere"
            operation.others.setdefault(_path(event), []).append(event.call_index)
            self._keep(event, decision)
            return None
        try:
            if self.faults:
                self._strike(event, decision)
            if decision.value is PASS:
                self._answer(operation, event, decision)
        except Exception as error:  # also of a matcher or a fault of the user's own: the real tool must not run then
            self._refuse(decision, broken(event, decision.rule, error))
        self._count(event, decision)
        return decision

    async def awaited(self, event: BeforeToolCall, decision: Decision) -> object:
        """The answer, once it is there and its delay is over."""
        if decision.delay_s or inspect.isawaitable(decision.value):
            self._keep(event, decision)  # what is awaited may be cancelled
        if decision.delay_s:
            try:
                await self.clock.of(event.operation_id).sleep(decision.delay_s, event.step_index)
            except BaseException:
                _close(decision.value)
                raise
        if not inspect.isawaitable(decision.value):
            return decision.value
        try:
            return await decision.value
        except BaseException as error:
            return _raised(error)

    def finish(self, event: BeforeToolCall, decision: Decision, value: object) -> None:
        """Answer a call with what was decided, and keep that."""
        if decision.delay_s:
            self.clock.of(event.operation_id).pass_time(decision.delay_s, event.step_index)
        operation = self._operation(event)
        if value is PASS and decision.changes and not operation.changing:
            late = AnswerError("it changes what a real tool answers, and was made after the run had begun")
            self._refuse(decision, broken(event, decision.rule, late))
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

    async def changed(self, call: ToolCall, result: ToolResult) -> ToolResult | None:
        """What the model is told of a call that a real tool has answered; `None` for what the tool said."""
        operation = self.operations.get(call.operation_id)
        changes = operation.changes.pop(_key(call), None) if operation is not None else None
        if changes is None:
            return None
        for change in changes:
            try:
                value = change(call, result)
                result = _as_result(call.api_name, await value if inspect.isawaitable(value) else value)
            except BaseException as error:
                result = _raised(error)
        return result

    def settle(self, event: AfterToolCall | OnToolCallError) -> None:
        """A call has ended: record what a real tool answered; see whether another hook answered after all."""
        operation = self.operations.get(event.operation_id)
        decision = operation.open.pop(_key(event), None) if operation is not None else None
        if operation is None or decision is None:
            return
        if event.answered_by is not None:
            operation.changes.pop(_key(event), None)  # they are for what the real tool answers
            decision.outcome = "elsewhere"
            self._keep(event, decision)
            return
        tape = decision.tape if decision.tape is not None else self.cassette
        if tape is not None and not (isinstance(event, OnToolCallError) and is_interrupted(event)):
            tape.keep(event)

    def forget(self, operation_id: str) -> None:
        """An operation has ended."""
        self.operations.pop(operation_id, None)
        self.clock.forget(operation_id)
        for tape in self.tapes.pop(operation_id, {}).values():
            tape.forget(operation_id)
        if self.cassette is not None:
            self.cassette.forget(operation_id)

    def _operation(self, event: BeforeToolCall) -> Operation:
        operation = self.operations.get(event.operation_id)
        if operation is None:
            operation = self.operations[event.operation_id] = Operation(changing=self.changing)
            self.endings.attend(event)
        return operation

    def _strike(self, event: BeforeToolCall, decision: Decision) -> None:
        path = _path(event)
        clock = self.clock.of(event.operation_id)
        clock.enter(event.step_index)
        operation = event.operation_id if self.case is None else self.case
        if self.case is not None and event.parent_operation_id is not None:
            operation = f"{operation}/{event.agent_id}"
        for rule in self.faults:
            if not rule.matcher.matches(event):
                continue
            parts: dict[str, Any] = {
                "seed": self.seed,
                "operation": operation,
                "tool": path,
                "call_index": event.call_index,
                "fault_index": rule.index,
            }
            if not strikes(rule.probability, **parts):
                continue
            draw = draw_for(**parts)
            fault = rule.fault
            if fault.replaces:
                if decision.value is not PASS:
                    continue  # one answer is enough, and the first fault's it is
                answer = fault.strike(event, draw, clock)
                if answer is None:
                    continue
                decision.value, decision.outcome = answer, "mocked"
            else:
                decision.changes.append(_spoilt_by(fault, draw))
            seconds = fault.delay_s(draw)
            check_seconds(rule.name, "delay_s", seconds)
            decision.delay_s += seconds
            decision.faults.append(rule)

    def _count(self, event: BeforeToolCall, decision: Decision) -> None:
        for rule in decision.faults:
            rule.hits += 1
            strike = FaultStrike(
                fault=rule.name,
                tool=_path(event),
                call_index=event.call_index,
                step_index=event.step_index,
                operation_id=event.operation_id,
            )
            self.struck.append(strike)

    def _answer(self, operation: Operation, event: BeforeToolCall, decision: Decision) -> None:
        rule = self.table.find(event)
        path = _path(event)
        others = operation.others.setdefault(path, [])
        if rule is None:
            others.append(event.call_index)
            self._answer_unruled(event, decision)
            return
        decision.rule = rule
        rule.hits += 1
        place = operation.hits.get(rule.number, 0)
        operation.hits[rule.number] = place + 1
        if self.table.sole(path) and not any(
            each.fault.replaces and each.matcher.may_match(path) for each in self.faults
        ):
            # Parallel calls may come in any order, and their indices still say which is which.
            place = event.call_index - 1 - sum(index < event.call_index for index in others)
        else:
            others.append(event.call_index)
        if isinstance(rule.answer, Taped):
            tape = rule.answer.cassette
            self.tapes.setdefault(event.parent_operation_id or event.operation_id, {})[id(tape)] = tape
            self._play(tape, event, decision)
            return
        try:
            decision.value = rule.answer.give(event, place)
        except AnswerError:
            raise
        except BaseException as error:
            decision.value = _raised(error)
        if decision.value is not PASS:
            decision.outcome = "mocked"
        elif isinstance(rule.answer, Through) and rule.answer.transform is not None:
            decision.changes.insert(0, rule.answer.transform)

    def _answer_unruled(self, event: BeforeToolCall, decision: Decision) -> None:
        if self.cassette is not None:
            self._play(self.cassette, event, decision)
        elif self.strict:
            self._refuse(decision, refusal(self.table, event))

    def _play(self, cassette: Cassette, event: BeforeToolCall, decision: Decision) -> None:
        decision.tape = cassette
        recorded = cassette.answer(event)
        if recorded is None:
            return  # the cassette wants to record it, so the real tool runs in a strict run too
        decision.cassette = cassette.name
        if recorded.metadata.get("recording") is None:
            self._refuse(decision, recorded)
        else:
            decision.value, decision.outcome = recorded, "mocked"

    def _refuse(self, decision: Decision, result: ToolResult) -> None:
        decision.value, decision.outcome = result, "refused"
        decision.faults, decision.changes, decision.delay_s = [], [], 0.0  # there is nothing for them to strike

    def _result(self, event: BeforeToolCall, decision: Decision, value: object) -> ToolResult:
        try:
            if inspect.isawaitable(value):
                _close(value)
                raise AnswerError(
                    "it gave something to await, and nobody waits for that here: make its function `async def`, and "
                    "the rule before the run begins"
                )
            result = _as_result(event.api_name, value)
            for change in decision.changes:
                result = _as_result(event.api_name, change(event, result))
        except Exception as error:
            if isinstance(error, ToolResultError):
                error = AnswerError(f"what it gave cannot be shown to a model: {error.reason}")
            self._refuse(decision, broken(event, decision.rule, error))
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

    def _keep(self, event: BeforeToolCall | AfterToolCall | OnToolCallError, decision: Decision) -> None:
        decision.calls[decision.slot] = MockedCall(
            operation_id=event.operation_id,
            identifier=event.identifier,
            api_name=event.api_name,
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
    # Interceptors are shown the call as it was before another one made it a call of another tool; its id stays.
    return (str(call.step_index), call.tool_call_id) if call.tool_call_id else (_path(call), call.call_index)


def _path(call: ToolCall | BeforeToolCall | AfterToolCall | OnToolCallError) -> str:
    return f"{call.identifier}/{call.api_name}"


def _spoilt_by(fault: Fault, draw: random.Random) -> Change:
    return lambda call, result: fault.change(result, draw)


def _raised(error: BaseException) -> ToolResult:
    """Inside of `except`: what a call comes to, as if the tool itself had raised the error.

    Raises:
        BaseException: The error, if it is none that a tool fails with, or a cancellation of the run.
    """
    if isinstance(error, Exception) or (isinstance(error, asyncio.CancelledError) and own_cancellation()):
        return tool_failure(error)
    raise error


def _as_result(tool: str, value: object) -> ToolResult:
    return tool_failure(value) if isinstance(value, Exception) else as_result(tool, value)


def _close(value: Any) -> None:
    if inspect.iscoroutine(value):
        value.close()
