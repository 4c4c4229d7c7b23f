"""`ToolMocks`: rules that answer tool calls in the tools' place, and faults that strike them, as an ordinary bundle."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hookline.calls import ToolCall, ToolResult, ToolSpec
from hookline.errors import HookUsageError
from hookline.evals import _call_assertions as assertions
from hookline.evals._decisions import Decider
from hookline.evals._mock_errors import NeverMatchingRuleWarning
from hookline.evals._never import never_matches
from hookline.evals._refusals import explained
from hookline.evals.answers import FakeMethod, Through, as_cassette
from hookline.evals.clocks import Clock, RealClock, VirtualClock
from hookline.evals.fakes import Fake
from hookline.evals.faults import Fault
from hookline.evals.matching import Matcher, match
from hookline.evals.mocked_calls import FaultRule, FaultStrike, MockedCall
from hookline.evals.rules import Rule, RuleTable
from hookline.events import AfterToolCall, BeforeToolCall, OnComplete, OnToolCallError
from hookline.hooks import Hook, Hooks

if TYPE_CHECKING:
    import re

    from hookline.evals.cassette import Cassette

__all__ = ["FaultRule", "FaultStrike", "MockedCall", "ToolMocks"]

T = TypeVar("T")


class ToolMocks(Hooks):
    """Answers tool calls in the tools' place, by rules; a bundle for any `hooks=[...]`.

    The most specific rule that a call matches answers it; of equally specific ones the last registered. A call that no
    rule answers goes to the cassette, if there is one, then to the real tool, or is refused in a strict run. Nothing of
    one operation is seen by another.

    Args:
        id: Name of the bundle.
        strict: Whether a call that nothing answers is refused, with a failed result that names the nearest rule, in
            place of reaching the real tool.
        seed: Seed of the run, for faults with a probability.
        case: Name of the test case. Faults are drawn by it in place of the operation's id, so that a case meets the
            same faults whenever it runs.
        clock: The time of faults: a `VirtualClock` on which nobody waits, unless given.
        cassette: Answers the calls that no rule answers, and records what real tools answer, as its mode says.
        tools: The tools that there are; rules that none of them could match are then warned of.
        inherit: Whether the bundle goes along into sub-agents.
        priority: Place of its interceptor, which changes what real tools have answered.
        tenant_id: Only for calls of this tenant; `""` for every tenant.
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
        tools: Iterable[ToolSpec] = (),
        inherit: bool = True,
        priority: int = 1000,
        tenant_id: str = "",
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
        self._tools = list(tools)
        self._fakes: list[Fake[Any]] = []
        self._numbers = 0
        self._decider = Decider(
            table=RuleTable(),
            strict=strict,
            seed=seed,
            case=case,
            clock=clock if clock is not None else VirtualClock(),
            cassette=as_cassette(cassette) if cassette is not None else None,
        )
        self._waits = isinstance(self._decider.clock, RealClock)
        self._changes = False
        self.on(AfterToolCall, id=f"{id}.settle")(self._settle)
        self.on(OnToolCallError, id=f"{id}.settle")(self._settle)
        self.on(OnComplete, id=f"{id}.forget")(self._decider.endings.completed)
        self._listen()

    def __repr__(self) -> str:
        return f"ToolMocks({self.id!r}, rules={len(self.rules)}, faults={len(self.faults)}, calls={len(self.calls)})"

    # What is to happen.

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
        """A rule for the calls of a tool; say what it answers: `.returns(...)`, `.raises(...)`, `.runs(...)`.

        Args:
            pattern: `identifier/api_name`, a name alone, a glob, a compiled regular expression, or a predicate on the
                path.
            args: The arguments, all of them; any unless given. See `when` for other ways to match them.
            nth: Only the n-th call of the tool in its operation, from 1.
            step: Only calls of this step, from 0.
            where: Only calls of which `where(call)` is true.
            name: Stands in the provenance of every call that the rule answers.
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
        """A rule for the calls that match: `when(match.tool("bank/*") & match.fields({"to.iban": "DE1"}))`.

        Args:
            matcher: Which calls.
            name: Stands in the provenance of every call that the rule answers.
        """
        if not isinstance(matcher, Matcher):
            raise HookUsageError(f"A rule needs a matcher, as match.tool('bank/*'); got {matcher!r:.100}.")
        return self._add(matcher, name, repr(matcher)[:60])

    def fake(self, source: Callable[[], T] | T, *, identifier: str = "local") -> Fake[T]:
        """Let an object's methods stand for tools, with a state of its own in each operation.

        Args:
            source: A class or function that makes the object, or an object whose copy each operation gets.
            identifier: Where its tools come from.

        Returns:
            Gives the object that an operation has used: `fake.of(operation_id)`, `fake.only`.
        """
        fake = Fake(source)
        for method in fake.methods():
            rule = self._add(match.tool(f"{identifier}/{method}"), None, f"{identifier}/{method}")
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
        """Let a fault strike calls, mocked and real ones.

        Whether it strikes a call depends on the run's seed, the case (or operation), the tool and the call's index, and
        on nothing else: not on the order in which things run.

        Args:
            pattern: The tool, as for `tool`, or a matcher.
            fault: The fault.
            probability: How many of the calls it strikes, 0 to 1.
            args: Only calls with these arguments.
            name: Stands in the provenance of every call that it strikes; the fault's own unless given.
        """
        matcher = pattern if isinstance(pattern, Matcher) else match.tool(pattern)
        if args is not None:
            matcher &= match.args(args)
        rule = FaultRule(matcher, fault, probability=probability, name=name, index=len(self.faults))
        self._warn(matcher, f"fault {rule.name!r}")
        self._decider.faults.append(rule)
        self._change_results()
        return rule

    # What has happened.

    @property
    def rules(self) -> list[Rule]:
        """The rules, as they were registered."""
        return list(self._decider.table.rules.values())

    @property
    def faults(self) -> list[FaultRule]:
        """The faults, as they were registered."""
        return list(self._decider.faults)

    @property
    def calls(self) -> list[MockedCall]:
        """Every call that was seen, of all operations, in the order in which they began."""
        return [call for call in self._decider.calls if call is not None]

    @property
    def faults_struck(self) -> list[FaultStrike]:
        """Every fault that struck, in the order of the calls."""
        return list(self._decider.struck)

    @property
    def cassette(self) -> Cassette | None:
        """What answers the calls that no rule answers."""
        return self._decider.cassette

    @property
    def attached(self) -> bool:
        """Whether an operation that has these mocks has called a tool, or ended."""
        return self._decider.endings.heard or bool(self._decider.calls)

    @property
    def clock(self) -> Clock:
        """The time of faults."""
        return self._decider.clock

    def explain(self, call: ToolCall | BeforeToolCall | MockedCall) -> str:
        """Which rule a call gets, and why not the others."""
        return explained(self._decider.table, call)

    def reset(self) -> None:
        """Forget calls, faults that struck, and the state of every operation; rules and faults stay."""
        self._decider.reset()
        for fake in self._fakes:
            fake.forget()

    def assert_called(self, pattern: str, args: object = None, times: int | None = None) -> None:
        """Fail unless a tool was called.

        Args:
            pattern: `identifier/api_name`, a name alone, or a glob over the path.
            args: The arguments, all of them; `None` for any.
            times: How often; `None` for at least once.

        Raises:
            AssertionError: That shows all calls.
        """
        __tracebackhide__ = True
        assertions.assert_called(self.calls, pattern, args, times, note=_note)

    def assert_called_once_with(self, pattern: str, args: object) -> None:
        """Fail unless a tool was called exactly once, and with these arguments.

        Raises:
            AssertionError: That shows all calls.
        """
        __tracebackhide__ = True
        assertions.assert_called_once_with(self.calls, pattern, args, note=_note)

    def assert_not_called(self, pattern: str) -> None:
        """Fail if a tool was called.

        Raises:
            AssertionError: That shows all calls.
        """
        __tracebackhide__ = True
        assertions.assert_not_called(self.calls, pattern, note=_note)

    def assert_called_before(self, first: str, second: str) -> None:
        """Fail unless the first call of one tool came before the first call of another.

        Raises:
            AssertionError: That shows all calls.
        """
        __tracebackhide__ = True
        assertions.assert_called_before(self.calls, first, second, note=_note)

    def assert_no_unmocked(self) -> None:
        """Fail if a call reached a real tool without a rule that let it through, or was refused.

        Raises:
            AssertionError: That shows all calls.
        """
        __tracebackhide__ = True
        assertions.assert_no_unmocked(self.calls, _is_mocked, note=_note)

    def assert_all_mocks_used(self) -> None:
        """Fail if a rule was never used; a fake need not have all of its methods called.

        Raises:
            AssertionError: That shows the rules, why the nearest call did not match, and all calls.
        """
        __tracebackhide__ = True
        unused = [rule for rule in self.rules if not rule.hits and not rule.optional]
        if not unused:
            return
        lines = [f"{len(unused)} of {len(self.rules)} rules were never used:"]
        lines += [f"  {rule.name!r}: {rule.matcher!r}{self._nearly(rule)}" for rule in unused[:20]]
        lines += ["Calls:", assertions.table(self.calls, _note)] if self.calls else ["No tool was called at all."]
        raise AssertionError("\n".join(lines))

    # How it comes about.

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
        if isinstance(rule.answer, Through) and rule.answer.transform is not None:
            self._change_results()

    def _warn(self, matcher: Matcher, what: str) -> None:
        reason = never_matches(matcher, self._tools)
        if reason is not None:
            warnings.warn(f"The {what} can never match: {reason}.", NeverMatchingRuleWarning, stacklevel=4)

    def _listen(self) -> None:
        # One observer, plain or async: an async one costs more, and is needed where answers or delays are awaited.
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
            self._decider.finish(event, decision, await self._decider.awaited(event, decision))

    async def _change(self, call: ToolCall, result: ToolResult) -> ToolResult | None:
        return await self._decider.changed(call, result)

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
