"""What a clause of the contract compares: the events that a stage's run told, and those that it should have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hookline.calls import Call
from hookline.errors import HooklineError, UnsupportedHookError, define_error
from hookline.evals.adapter_contract._stage import Ran, Scene, Stage
from hookline.events import EVENTS, Event, HookType
from hookline.hooks import AnyHook, Hooks
from hookline.runtime import Capabilities

__all__ = [
    "ContractError",
    "Expected",
    "Witness",
    "drives_call",
    "expect",
    "holds",
    "refused",
    "same",
    "told",
    "toolset_of",
]

STEP_FIELDS = frozenset({"step_index", "steps", "total_steps", "llm_calls", "last_assistant_content"})
"""Fields that nobody can know who is not told of steps."""


@define_error("{what}\n  expected: {expected}\n  got:      {got}")
class ContractError(HooklineError, AssertionError):
    """An adapter broke a clause of the contract.

    Attributes:
        what: What was compared.
        expected: What the contract says.
        got: What the adapter did.
    """

    what: str
    expected: str
    got: str


class Expected(msgspec.Struct, frozen=True):
    """An event that a run must tell.

    Attributes:
        kind: Its class.
        fields: What its fields must be; those that are not named may be anything.
    """

    kind: type[Event]
    fields: dict[str, Any]


def expect(kind: type[Any], **fields: Any) -> Expected:
    """An event that a run must tell, with the fields that matter."""
    return Expected(kind, fields)


def same(what: str, got: object, expected: object) -> None:
    """See to it that something is what it should be.

    Raises:
        ContractError: If it is not.
    """
    if got != expected:
        raise ContractError(what, repr(expected), repr(got))


def holds(what: str, fact: bool) -> None:
    """See to it that something is so.

    Raises:
        ContractError: If it is not.
    """
    if not fact:
        raise ContractError(what, "so it is", "so it is not")


class Witness:
    """Hears every event that a stage's framework can drive.

    Args:
        stage: Whose events.
        inherit: Whether it goes along into sub-agents.
    """

    def __init__(self, stage: Stage, *, inherit: bool = False) -> None:
        self.events: list[Any] = []
        self._before: frozenset[HookType] = frozenset()
        self.capabilities = stage.capabilities
        self.hooks = Hooks("witness", inherit=inherit)
        for kind, event in EVENTS.items():
            if kind in stage.capabilities.events:
                self.hooks.on(event)(self.events.append)

    def seen(self) -> frozenset[HookType]:
        """The kinds of events that it has ever heard."""
        return self._before.union(event.hook_type for event in self.events)

    def forget(self) -> None:
        """Begin anew, with the next segment of the run."""
        self._before = self.seen()
        self.events.clear()

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def heard(self, expected: Sequence[Expected], *, ordered: bool = True, of: str | None = None) -> None:
        """See to it that it heard these events and no others, in this order.

        Args:
            expected: The events, also those that the framework cannot drive, which are left out.
            ordered: Whether the order is the contract's; calls that overlap end in any.
            of: The operation whose events they are; of every operation unless given.

        Raises:
            ContractError: If it did not.
        """
        events = [event for event in self.events if of is None or event.operation_id == of]
        wanted = [each for each in expected if hook_type(each.kind) in self.capabilities.events]
        got, names = [str(event.hook_type) for event in events], [str(hook_type(each.kind)) for each in wanted]
        if ordered:
            same("The events of the run.", got, names)
        same("The events of the run, counted.", Counter(got), Counter(names))
        left = list(events)
        for each in wanted:
            fields = self.known(each)
            shown = [event for event in left if isinstance(event, each.kind)]
            fit = next((event for event in shown if values(event, fields) == fields), None)
            if fit is None:
                same(f"The fields of {hook_type(each.kind)}.", values(shown[0], fields), fields)
            left.remove(fit)

    def known(self, expected: Expected) -> dict[str, Any]:
        """The fields of an event that the framework lets an adapter know."""
        if HookType.BEFORE_STEP in self.capabilities.events:
            return expected.fields
        return {name: value for name, value in expected.fields.items() if name not in STEP_FIELDS}


def hook_type(kind: type[Any]) -> HookType:
    """The name of a class of events."""
    return next(name for name, event in EVENTS.items() if event is kind)


def values(event: object, fields: Iterable[str]) -> dict[str, Any]:
    """Some fields of an event."""
    return {name: getattr(event, name) for name in fields}


def drives_call(capabilities: Capabilities, call: type[Call], kind: str) -> bool:
    """Whether a framework lets an interceptor of this kind stand in the way of such calls."""
    return kind in capabilities.calls.get(call, frozenset())


def toolset_of(stage: Stage) -> str:
    """Where the adapter says that the tools of a scene come from."""
    return getattr(stage, "toolset", "local")


async def refused(stage: Stage, scene: Scene, hooks: Iterable[AnyHook], what: str) -> None:
    """See to it that a hook is refused that the framework would never call.

    Args:
        stage: The stage.
        scene: What would have been played.
        hooks: The hook.
        what: What the refusal must name.

    Raises:
        ContractError: If it is not refused.
    """
    try:
        await stage.play(scene, hooks)
    except UnsupportedHookError as error:
        for word in (what, stage.capabilities.framework):
            if word not in str(error):
                raise ContractError("A refusal that does not say what is refused.", word, str(error)) from error
    else:
        raise ContractError("A hook that the framework would never call.", f"{what} is refused", "it was accepted")


def told(ran: Ran, *expected: str) -> None:
    """See to it that the model was told this of its calls; frameworks may add words of their own."""
    same("How many results the model was told.", len(ran.told), len(expected))
    for text, wanted in zip(ran.told, expected, strict=True):
        if wanted not in text:
            same("What the model was told of a tool call.", text, wanted)
