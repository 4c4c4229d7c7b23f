"""`PastJudge`: judge stored calls with the hooks of a definition, or say why that cannot be done."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from hookline.budgets import InMemoryBudgets
from hookline.calls import AgentCall, Call, ModelCall, ModelResponse, SubAgentCall, Usage
from hookline.delivery import InProcess
from hookline.dispatcher import hooks_of_this_process
from hookline.errors import HookDenied
from hookline.hooks import AnyHook, Hooks, Interceptor
from hookline.interceptors import PastChain, PastVerdict
from hookline.registry._build import Builder
from hookline.registry._definition import HookDefinition, point_of
from hookline.registry._errors import DefinitionError
from hookline.registry.past._calls import (
    EMPTY_RESULTS,
    JUDGED_KINDS,
    CallNotRunError,
    PastCalls,
    event_types_of,
    needs_conversations,
)
from hookline.registry.past._items import PastCall
from hookline.registry.past._questions import MissingFields, PastQuestions
from hookline.registry.past._timeline import PastBudgets, TimedCall
from hookline.store import PastEvents, PastModelCall

__all__ = ["PastJudge"]

OWN_COUNTS = ("operation", "tool")
"""The values of `per` with which `limit-calls` counts the calls of each operation by themselves."""
NOT_STORED: Mapping[str, str] = {
    "MemoryCall": "writes to memory are not stored",
    "RequestCall": "requests are not stored",
}
"""Why calls cannot be judged."""
LEFT_OUT: Mapping[tuple[str | None, type[Call]], str] = dict.fromkeys(
    (("allow-tools", ModelCall), ("deny-tools", ModelCall)), "the tools that models were offered are not stored"
)
"""Why calls do not take part that built-in handlers judge besides those of their point, which say the same."""
COUNTS_BEGIN = (
    "All calls were judged in the order of time, by counts that begin with the first operation that was looked at."
)
SHARED = "A sub-agent spends of the same budget, and operations are judged one by one."
INCOMPLETE = "The budget misses a call of the operation that could not be judged."


class PastJudge:
    """Judges stored calls with hooks of a definition. It is an async context manager.

    Args:
        builder: Builds the hooks.
        definition: A checked definition.
        allow_webhooks: Whether a control webhook is asked about each call.

    Attributes:
        calls: The classes of the calls that are judged.
        types: The types of the events from which the calls are rebuilt.
        needs_results: Whether hooks look at the results of the calls.
        needs_conversations: Whether the calls are rebuilt from the conversations of their operations.
        counts_spending: Whether all calls of an operation are needed to judge the next one.
        counts_together: Whether hooks count calls of several operations, or by the clock, so that all calls are judged
            in the order of time.
        notes: What is different from a run, in sentences.

    Raises:
        DefinitionError: If the definition cannot be judged on stored calls.
    """

    def __init__(self, builder: Builder, definition: HookDefinition, *, allow_webhooks: bool) -> None:
        self._builder = builder
        self._definition = msgspec.structs.replace(definition, id=definition.id or "hook_new", mode="enforce")
        self._delivery: InProcess | None = None
        self.notes: list[str] = []
        check_stored_point(self._definition, allow_webhooks=allow_webhooks)
        if definition.webhook is not None:
            self._delivery = builder.make_delivery()
        built = builder.build_new(self._definition)
        if isinstance(built, Hooks):
            self._check_bundle(built)
        judged = self._select_judged(built)
        self.calls = frozenset(each.call for each in judged)
        self.counts_together = counts_together(definition)
        # Results say which calls another hook denied, so that they do not count.
        self.needs_results = self.counts_together or any(each.kind == "after" for each in judged)
        self.types = event_types_of(self.calls, results=self.needs_results)
        self.needs_conversations = needs_conversations(self.calls)
        self.counts_spending = definition.handler == "budget" and not self.counts_together
        self._budgets = PastBudgets()
        if self.counts_together:
            self.notes.append(COUNTS_BEGIN)
        self._missing = MissingFields()
        self._only_ends = {each.kind for each in judged if each.call is AgentCall} == {"after"}
        if self.counts_spending:
            self.types = self.types | event_types_of([SubAgentCall], results=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._delivery is not None:
            await self._delivery.aclose()

    def begin_operation(self, part: PastEvents) -> PastCalls:
        """Return what rebuilds the calls of an operation.

        Args:
            part: The first part of its events.
        """
        questions = (
            PastQuestions(part, self._missing, results=self.needs_results, only_ends=self._only_ends)
            if self.needs_conversations
            else None
        )
        return PastCalls(self.calls, results=self.needs_results, missing=self._missing, questions=questions)

    async def judge(self, chain: PastChain, calls: PastCalls, past: PastCall) -> PastVerdict | str | None:
        """Judge a call.

        Args:
            chain: The hooks, for the operation of the call.
            calls: Has rebuilt the call.
            past: The call.

        Returns:
            What the hooks did. `None` if the call is for none of them. Or why the call cannot be judged: the hooks look
            at something that is not stored.
        """
        judged = await chain.judge(calls.complete(past), past.result or self.outcome_without_result(past))
        if self._missing.reads:
            return self._take_gap()
        return past.lost or None if judged is None else judged

    async def judge_at(self, chain: PastChain, timed: TimedCall) -> PastVerdict | str | None:
        """Judge a call at its time, with hooks that have judged all calls before it.

        Args:
            chain: The hooks.
            timed: The call.

        Returns:
            As for `judge`.
        """
        past, call = timed.past, timed.past.call
        await self._budgets.advance(timed.at, ends_at=past.ended_at or timed.at)
        outcome: object = EMPTY_RESULTS[type(call)]
        if isinstance(call, ModelCall):
            outcome = self._outcome_of_model(past.made)
            call = msgspec.structs.replace(
                call,
                model=call.model or self._missing.model,
                tools=self._missing.model_tools,
                settings=self._missing.model_settings,
            )
        elif timed.is_asked or past.denied_by not in ("", self._definition.id):
            outcome = not_run_error()
        judged = await chain.judge(call, outcome)
        return self._take_gap() or judged

    def _outcome_of_model(self, made: PastModelCall | None) -> object:
        """Return what a model call took, as a response without content; an exception if it failed or was not made."""
        if made is None:
            return not_run_error()
        if made.error_type is not None:
            return CallNotRunError()
        return ModelResponse(
            usage=Usage(input_tokens=made.input_tokens, output_tokens=made.output_tokens, cost_usd=made.cost_usd),
            cost_known=True if made.cost_usd else self._missing.cost_known,
            **self._missing.of_response,
        )

    def _take_gap(self) -> str:
        """Return why hooks could not judge the last call: they used a field that is not stored; `""` if they could."""
        reads = self._missing.reads
        if not reads:
            return ""
        fields = " and ".join(f"`{name}`" for name in dict.fromkeys(reads))
        reads.clear()
        return f"The hook uses {fields}, which no store keeps."

    def build_chain(self) -> PastChain:
        """Build new hooks: for the calls of one operation or, if they count together, for all calls."""
        together = self.counts_together
        built = self._builder.build_new(
            self._definition,
            budgets=self._budgets if together else InMemoryBudgets(announces=False),
            clock=self._read_clock if together else None,
        )
        return PastChain(self._select_judged(built))

    def _read_clock(self) -> float:
        """Return the time of the call that is judged."""
        return self._budgets.now

    def outcome_without_result(self, past: PastCall) -> object:
        """Return what stands for the outcome of a call whose result is not known, or not needed."""
        return CallNotRunError() if self.needs_results else EMPTY_RESULTS[type(past.call)]

    def _select_judged(self, built: AnyHook) -> list[Interceptor]:
        """Return the interceptors that judge stored calls."""
        found: list[Interceptor] = []
        for entry in hooks_of_this_process([built], self._need_delivery):
            if isinstance(entry, Interceptor):
                found.append(entry)
            elif isinstance(entry, Hooks):
                found += [each for each in entry.interceptors if is_judged(each) and not self._leaves_out(each)]
        return found

    def _leaves_out(self, interceptor: Interceptor) -> bool:
        return (self._definition.handler, interceptor.call) in LEFT_OUT

    def _need_delivery(self) -> InProcess:
        assert self._delivery is not None
        return self._delivery

    def _check_bundle(self, bundle: Hooks) -> None:
        """Check what a factory has made besides the hook at the definition's point.

        Raises:
            DefinitionError: If something of it cannot be judged.
        """
        if self._builder.is_built_in(self._definition):
            for each in bundle.interceptors:
                if self._leaves_out(each):
                    why = LEFT_OUT[self._definition.handler, each.call]
                    self.notes.append(f"Its {each.kind} hook of {each.call.__name__} did not take part: {why}.")
            return
        left_out = {each.call.__name__: each for each in bundle.interceptors if not is_judged(each)}
        if bundle.observers or bundle.phase_hooks:
            raise refusal("its handler also observes events, which cannot happen again")
        if any(not each.wait for each in bundle.interceptors):
            raise refusal("its handler has a hook with `wait=False`, which only observes")
        for name, each in left_out.items():
            raise refusal(f"its handler also has a {each.kind} hook of {name}: {NOT_STORED[name]}")
        if any(each.kind == "around" for each in bundle.interceptors):
            raise refusal(AROUND)


AROUND = "an `around` runs code around the call, such as a retry or a transaction, and there is no call to run"


def check_stored_point(definition: HookDefinition, *, allow_webhooks: bool) -> None:
    """Check that calls at the point of a definition can be judged.

    Raises:
        DefinitionError: If they cannot.
    """
    point, webhook = point_of(definition), definition.webhook
    if webhook is not None and webhook.control:
        if not allow_webhooks:
            problem = "its receiver would be asked about each stored call; allow that with `allow_webhooks`"
            raise refusal(problem, "$.webhook")
        return
    if definition.remote is not None and not allow_webhooks:
        problem = "the processes that serve it would be asked about each stored call; allow that with `allow_webhooks`"
        raise refusal(problem, "$.remote")
    if point.call is None or point.kind is None:
        raise refusal("it observes events, and decides nothing; use a guard, such as 'ToolCall.guard'", "$.point")
    if definition.handler == "log":
        raise refusal("it only writes to the log, and decides nothing", "$.handler")
    if point.kind not in JUDGED_KINDS.get(point.call, ()):
        raise refusal(NOT_STORED[point.call.__name__], "$.point")
    if point.kind == "around":
        raise refusal(AROUND, "$.point")
    if definition.handler == "budget" and counts_together(definition):
        check_stored_budget(definition.config)


def counts_together(definition: HookDefinition) -> bool:
    """Return whether a definition counts calls of several operations, or by the clock."""
    config = definition.config
    if definition.handler == "limit-calls":
        return config.get("per", "operation") not in OWN_COUNTS
    if definition.handler == "budget":
        return config.get("per", "operation") not in ("operation", None) or config.get("window") is not None
    return False


def check_stored_budget(config: Mapping[str, Any]) -> None:
    """Check that the store has what a budget needs that counts calls of several operations, or by the clock.

    Raises:
        DefinitionError: If it has not.
    """
    if config.get("per", "operation") in ("operation", None):
        problem = (
            "sub-agents count with the run that called them, which a window by the clock may judge at another time"
        )
        raise refusal(problem, "$.config.window")
    if config.get("on_limit") == "ask":
        problem = "whether a person would have allowed a call decides about the calls that follow"
        raise refusal(problem, "$.config.on_limit")


def is_judged(interceptor: Interceptor) -> bool:
    """Return whether the store has what an interceptor judges."""
    return interceptor.kind in JUDGED_KINDS.get(interceptor.call, ())


def not_run_error() -> HookDenied:
    """Return the outcome of a call that did not run, so that it does not count."""
    return HookDenied("", "The call did not run.")


def refusal(problem: str, path: str = "$.handler") -> DefinitionError:
    """Return the error about a definition that cannot be judged on stored calls."""
    return DefinitionError("not_judged", path, f"stored calls cannot be judged with it: {problem}")
