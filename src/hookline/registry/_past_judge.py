"""`PastJudge`: judge stored calls with the hooks of a definition, or say why that cannot be done."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import msgspec

from hookline.delivery import InProcess
from hookline.dispatcher import hooks_of_this_process
from hookline.hooks import AnyHook, Hooks, Interceptor
from hookline.interceptors import PastChain
from hookline.registry._build import Builder
from hookline.registry._definition import HookDefinition, point_of
from hookline.registry._errors import DefinitionError
from hookline.registry._past_calls import EMPTY_RESULTS, JUDGED_KINDS, CallNotRunError, PastCall, event_types_of

__all__ = ["PastJudge"]

OWN_COUNTS = ("operation", "tool")
"""The values of `per` with which `limit-calls` counts the calls of each operation by themselves."""
REFUSED_HANDLERS = {
    "budget": "it would need budgets as they were then, and what its hooks see of model calls is not stored",
    "log": "it only writes to the log, and decides nothing",
}
"""Built-in handlers that cannot be judged on stored calls, and why."""
NOT_STORED: Mapping[str, str] = {
    "AgentCall": "the input of a run is not stored as its hooks saw it",
    "CompactCall": "the messages that a summary has replaced are not stored",
    "MemoryCall": "writes to memory are not stored",
    "ModelCall": "the tools and the settings of model calls are not stored",
    "RequestCall": "requests are not stored",
    "SubAgentCall": "the answers of sub-agents are not stored with the calls of their parents",
}
"""Why calls, or their results, cannot be judged."""


class PastJudge:
    """Judges stored calls with hooks of a definition. It is an async context manager.

    Args:
        builder: Builds the hooks.
        definition: A checked definition.
        allow_webhooks: Whether a control webhook is asked about each call.

    Attributes:
        types: The types of the events from which the calls are rebuilt.
        needs_results: Whether hooks look at the results of the calls.
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
        calls = {each.call for each in judged}
        self.needs_results = any(each.kind == "after" for each in judged)
        self.types = event_types_of(calls, results=self.needs_results)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._delivery is not None:
            await self._delivery.aclose()

    def build_chain(self) -> PastChain:
        """Build new hooks, for the calls of one operation."""
        return PastChain(self._select_judged(self._builder.build_new(self._definition)))

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
                found += [each for each in entry.interceptors if is_judged(each)]
        return found

    def _need_delivery(self) -> InProcess:
        assert self._delivery is not None
        return self._delivery

    def _check_bundle(self, bundle: Hooks) -> None:
        """Check what a factory has made besides the hook at the definition's point.

        Raises:
            DefinitionError: If something of it cannot be judged.
        """
        left_out = {each.call.__name__: each for each in bundle.interceptors if not is_judged(each)}
        if self._builder.is_built_in(self._definition):
            for name, each in left_out.items():
                self.notes.append(f"Its {each.kind} hook of {name} did not take part: {NOT_STORED[name]}.")
            return
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
    if definition.handler in REFUSED_HANDLERS:
        raise refusal(REFUSED_HANDLERS[definition.handler], "$.handler")
    if point.kind not in JUDGED_KINDS.get(point.call, ()):
        raise refusal(NOT_STORED[point.call.__name__], "$.point")
    if point.kind == "around":
        raise refusal(AROUND, "$.point")
    if definition.handler == "limit-calls" and definition.config.get("per", "operation") not in OWN_COUNTS:
        problem = "it counts the calls of several operations together, and stored operations are judged one by one"
        raise refusal(problem, "$.config.per")


def is_judged(interceptor: Interceptor) -> bool:
    """Return whether the store has what an interceptor judges."""
    return interceptor.kind in JUDGED_KINDS.get(interceptor.call, ())


def refusal(problem: str, path: str = "$.handler") -> DefinitionError:
    """Return the error about a definition that cannot be judged on stored calls."""
    return DefinitionError("not_judged", path, f"stored calls cannot be judged with it: {problem}")
