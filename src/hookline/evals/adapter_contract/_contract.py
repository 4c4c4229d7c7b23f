"""The clauses of the contract, and the function that checks an adapter against them.

An adapter's tests provide a `Stage`, which plays a scene in its framework with a scripted model, and check every
`Clause` of the `CONTRACT` with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec

from hookline.calls import AgentCall, Call, Guide, ModelCall, ToolCall
from hookline.evals.adapter_contract import _events as events
from hookline.evals.adapter_contract import _interceptors as interceptors
from hookline.evals.adapter_contract import _people as people
from hookline.evals.adapter_contract import _runs as runs
from hookline.evals.adapter_contract._scenes import COMPACTING, DELEGATING, PLAIN
from hookline.evals.adapter_contract._stage import Ran, Scene, Stage
from hookline.evals.adapter_contract._witness import ContractError, Witness, check_refusal, drives_call
from hookline.events import EVENTS, HookType
from hookline.hooks import Hooks

__all__ = ["CONTRACT", "Clause", "ContractError", "Ran", "Scene", "Stage", "Witness", "check_contract"]


class Clause(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of the contract, which an adapter keeps or declares to be unsupported.

    Attributes:
        name: The name of the clause.
        play: Plays the clause on a stage, and raises a `ContractError` if the adapter breaks it.
        scene: The scene to play.
        event: The event that the clause tests; if the adapter does not support it, a hook on it must be refused.
        call: The class of calls whose interceptor the clause tests; handled in the same way.
        kind: The kind of that interceptor.
        uses: What the interceptor does that an adapter need not support: `"add_context"` or `"Guide"`. A hook that does
            it must be refused then.
    """

    name: str
    play: Callable[[Stage], Awaitable[Witness]]
    scene: Scene = PLAIN
    event: HookType | None = None
    call: type[Call] | None = None
    kind: str = ""
    uses: Literal["", "add_context", "Guide"] = ""

    def __str__(self) -> str:
        return self.name

    def driven(self, stage: Stage) -> bool:
        """Return whether the adapter supports what the clause tests."""
        if self.event is not None and self.event not in stage.capabilities.events:
            return False
        return self.call is None or (drives_call(stage.capabilities, self.call, self.kind) and self.supported(stage))

    def supported(self, stage: Stage) -> bool:
        """Return whether the adapter supports what the interceptor does."""
        if self.uses == "add_context":
            return self.call in stage.capabilities.adds_context
        return self.uses != "Guide" or stage.capabilities.guides

    async def check(self, stage: Stage) -> frozenset[HookType]:
        """Check an adapter against the clause; a hook that it does not support must be refused.

        Args:
            stage: Plays scenes in the adapter's framework.

        Returns:
            The kinds of events that were emitted.

        Raises:
            ContractError: If the adapter breaks the clause.
        """
        try:
            return await self._check(stage)
        except Exception as error:
            error.add_note(f"This is the clause {self.name!r} of the contract.")
            raise

    async def _check(self, stage: Stage) -> frozenset[HookType]:
        if self.driven(stage):
            return (await self.play(stage)).seen()
        hooks = Hooks("refused")
        if self.event is not None and self.event not in stage.capabilities.events:
            hooks.on(EVENTS[self.event])(lambda event: None)
            await check_refusal(stage, self.scene, [hooks], str(self.event))
        elif self.call is not None and drives_call(stage.capabilities, self.call, self.kind):
            getattr(hooks, self.kind)(self.call)(_add_context if self.uses == "add_context" else _guide)
            await check_refusal(stage, self.scene, [hooks], self.uses)
        elif self.call is not None:
            getattr(hooks, self.kind)(self.call)(lambda *given: None)
            await check_refusal(stage, self.scene, [hooks], f"{self.kind}({self.call.__name__})")
        return frozenset()


def _add_context(call: ToolCall | AgentCall, *rest: object) -> None:
    call.add_context("text")


def _guide(call: object, answer: object) -> Guide:
    return Guide("again")


def _clauses() -> Mapping[str, Clause]:
    tool, human = HookType.BEFORE_TOOL_CALL, HookType.BEFORE_HUMAN_INTERVENTION
    adds: Literal["add_context"] = "add_context"
    guides: Literal["Guide"] = "Guide"
    agent, compact = HookType.BEFORE_CALL_AGENT, HookType.BEFORE_COMPACT
    found = [
        Clause(name="plain", play=events.plain, event=tool),
        Clause(name="who runs", play=events.who_runs, event=tool),
        Clause(name="tool error", play=events.tool_error, event=tool),
        Clause(name="model that raises", play=events.model_error, event=HookType.ON_ERROR),
        Clause(name="mock", play=events.mock, event=tool),
        Clause(name="mock that raises", play=events.mocked_error, event=tool),
        Clause(name="parallel calls", play=events.parallel, event=tool),
        Clause(name="sub-agent", play=events.sub_agent, scene=DELEGATING, event=agent),
        Clause(name="sub-agent that inherits", play=events.inheriting_sub_agent, scene=DELEGATING, event=agent),
        Clause(name="approval", play=people.approve, event=human),
        Clause(name="rejection", play=people.reject, event=HookType.ON_STOP_BY_HUMAN_INTERVENTION),
        Clause(name="rejection that continues", play=people.reject_and_continue, event=human),
        Clause(name="ask", play=people.ask, call=ToolCall, kind="guard"),
        Clause(name="compaction", play=events.compaction, scene=COMPACTING, event=compact),
        Clause(name="failing compaction", play=events.failing_compaction, scene=COMPACTING, event=compact),
        Clause(name="denial of the run", play=interceptors.denied_run, call=AgentCall, kind="guard"),
        Clause(
            name="context of a tool call", play=interceptors.context_of_tool, call=ToolCall, kind="before", uses=adds
        ),
        Clause(
            name="context of a denied tool call",
            play=interceptors.context_of_denied_tool,
            call=ToolCall,
            kind="before",
            uses=adds,
        ),
        Clause(name="context of a run", play=interceptors.context_of_run, call=AgentCall, kind="before", uses=adds),
        Clause(
            name="guided answer",
            play=interceptors.guided_answer,
            call=ModelCall,
            kind="after",
            uses=guides,
        ),
        Clause(name="denial that stops", play=interceptors.denied_and_stopped, call=ToolCall, kind="guard"),
        Clause(name="fifty runs at once", play=runs.at_once, event=tool),
        Clause(name="cancellation", play=runs.cancellation, event=tool),
        Clause(name="interruption", play=runs.interruption, event=tool),
        Clause(name="observers that raise", play=runs.raising_observers, event=tool),
        Clause(name="hung observer", play=runs.hung_observer, event=tool),
        Clause(name="tracing", play=runs.tracing, event=tool),
        Clause(name="refusals", play=runs.refusals),
    ]
    for (call, kind, deed), (scene, play) in interceptors.interceptions().items():
        found.append(Clause(name=f"{kind}({call.__name__}) {deed}", play=play, scene=scene, call=call, kind=kind))
    return {clause.name: clause for clause in found}


CONTRACT = tuple(_clauses().values())
"""Every clause, in the order in which to make a new adapter pass."""


async def check_contract(stage: Stage) -> frozenset[HookType]:
    """Check an adapter against every clause.

    Args:
        stage: Plays scenes in the adapter's framework.

    Returns:
        The kinds of events that were emitted.

    Raises:
        ContractError: If the adapter breaks a clause, or declares an event that it never emits.
    """
    seen: frozenset[HookType] = frozenset()
    for clause in CONTRACT:
        seen |= await clause.check(stage)
    if stage.capabilities.events - seen:
        never = ", ".join(sorted(stage.capabilities.events - seen))
        raise ContractError("Events that the adapter declares.", "each is emitted", f"never emitted: {never}")
    return seen
