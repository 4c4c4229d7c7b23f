"""Record the events of a stage's run and compare them with the expected ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from hookline.calls import Call
from hookline.errors import HooklineError, RunStopped, UnsupportedHookError, define_error
from hookline.evals.adapter_contract._stage import Ran, Scene, Stage
from hookline.events import EVENTS, Event, HookType
from hookline.hooks import AnyHook, Hooks
from hookline.runtime import Capabilities

__all__ = [
    "ContractError",
    "ExpectedEvent",
    "Witness",
    "check_equal",
    "check_refusal",
    "check_tool_results",
    "check_true",
    "drives_call",
    "expect",
    "expect_stopped",
    "play_stopped",
    "toolset_of",
]

STEP_FIELDS = frozenset({"step_index", "steps", "total_steps", "llm_calls", "last_assistant_content"})
"""Fields that an adapter cannot know if its framework has no events of steps."""


@define_error("{what}\n  expected: {expected}\n  got:      {got}")
class ContractError(HooklineError, AssertionError):
    """An adapter broke a clause of the contract.

    Attributes:
        what: What was compared.
        expected: The value that the contract requires.
        got: The actual value.
    """

    what: str
    expected: str
    got: str


class ExpectedEvent(msgspec.Struct, frozen=True):
    """An event that a run must emit.

    Attributes:
        kind: The class of the event.
        fields: The values of the fields that matter. Other fields may have any value.
    """

    kind: type[Event]
    fields: dict[str, Any]


def expect(kind: type[Any], **fields: Any) -> ExpectedEvent:
    """Return an expected event with the fields that matter."""
    return ExpectedEvent(kind, fields)


def check_equal(what: str, got: object, expected: object) -> None:
    """Raise an error unless two values are equal.

    Raises:
        ContractError: If they differ.
    """
    if got != expected:
        raise ContractError(what, repr(expected), repr(got))


def check_true(what: str, fact: bool) -> None:
    """Raise an error unless a statement is true.

    Raises:
        ContractError: If the statement is false.
    """
    if not fact:
        raise ContractError(what, "true", "false")


class Witness:
    """Records every event that the adapter of a stage supports.

    Args:
        stage: The stage whose events are recorded.
        inherit: Whether it records the events of sub-agents too.
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
        """Return the kinds of all events recorded so far, including forgotten ones."""
        return self._before.union(event.hook_type for event in self.events)

    def forget(self) -> None:
        """Forget the recorded events, before the next segment of the run."""
        self._before = self.seen()
        self.events.clear()

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the recorded events of one class."""
        return [event for event in self.events if isinstance(event, kind)]

    def heard(self, expected: Sequence[ExpectedEvent], *, ordered: bool = True, of: str | None = None) -> None:
        """Raise an error unless exactly these events were recorded, in this order.

        Args:
            expected: The events; those that the adapter does not support are ignored.
            ordered: Whether to compare the order; concurrent calls may end in any order.
            of: The operation whose events to compare; every operation unless given.

        Raises:
            ContractError: If other events were recorded.
        """
        events = [event for event in self.events if of is None or event.operation_id == of]
        wanted = [each for each in expected if hook_type(each.kind) in self.capabilities.events]
        got, names = [str(event.hook_type) for event in events], [str(hook_type(each.kind)) for each in wanted]
        if ordered:
            check_equal("The events of the run.", got, names)
        check_equal("The number of each event of the run.", Counter(got), Counter(names))
        left = list(events)
        for each in wanted:
            fields = self.known(each)
            shown = [event for event in left if isinstance(event, each.kind)]
            fit = next((event for event in shown if fields_of(event, fields) == fields), None)
            if fit is None:
                check_equal(f"The fields of {hook_type(each.kind)}.", fields_of(shown[0], fields), fields)
            left.remove(fit)

    def known(self, expected: ExpectedEvent) -> dict[str, Any]:
        """Return the fields of an expected event that the adapter can know in its framework."""
        if HookType.BEFORE_STEP in self.capabilities.events:
            return expected.fields
        return {name: value for name, value in expected.fields.items() if name not in STEP_FIELDS}


def hook_type(kind: type[Any]) -> HookType:
    """Return the hook type of a class of events."""
    return next(name for name, event in EVENTS.items() if event is kind)


def fields_of(event: object, fields: Iterable[str]) -> dict[str, Any]:
    """Return some fields of an event."""
    return {name: getattr(event, name) for name in fields}


def drives_call(capabilities: Capabilities, call: type[Call], kind: str) -> bool:
    """Return whether the adapter supports this kind of interceptor for this class of calls."""
    return kind in capabilities.calls.get(call, frozenset())


def toolset_of(stage: Stage) -> str:
    """Return the toolset of a stage's tools."""
    return getattr(stage, "toolset", "local")


async def check_refusal(stage: Stage, scene: Scene, hooks: Iterable[AnyHook], what: str) -> None:
    """Raise an error unless the stage refuses a hook that its adapter does not support.

    Args:
        stage: The stage.
        scene: The scene to play.
        hooks: The hook.
        what: A text that the refusal must contain.

    Raises:
        ContractError: If the hook is not refused.
    """
    try:
        await stage.play(scene, hooks)
    except UnsupportedHookError as error:
        for word in (what, stage.capabilities.framework):
            if word not in str(error):
                raise ContractError("The text of the refusal.", word, str(error)) from error
    else:
        raise ContractError("A hook that the adapter does not support.", f"{what} is refused", "it was accepted")


@contextmanager
def expect_stopped(stage: Stage, reason: str, hook_id: str | None = None) -> Iterator[None]:
    """Raise an error unless the block raises `RunStopped`, if the adapter declares that it raises it.

    Args:
        stage: The stage.
        reason: A text that the reason must contain.
        hook_id: The hook that ended the run; `None` for a person or `interrupt`.

    Raises:
        ContractError: If the block returns, or raises something else.
    """
    try:
        yield
    except Exception as error:
        if not stage.capabilities.raises_stopped:
            return
        if not isinstance(error, RunStopped):
            raise ContractError("The error of a stopped run.", "RunStopped", repr(error)) from error
        check_equal("The hook that stopped the run.", error.hook_id, hook_id)
        check_true(f"The reason {error.reason!r} contains {reason!r}.", reason in error.reason)
        return
    check_true("A stopped run raises RunStopped.", not stage.capabilities.raises_stopped)


async def play_stopped(
    stage: Stage, scene: Scene, hooks: Iterable[AnyHook], reason: str, hook_id: str | None, **attach: Any
) -> Ran | None:
    """Play a scene that a hook, a person or `interrupt` ends; return its result, or `None` if it raised.

    Args:
        stage: The stage.
        scene: The scene.
        hooks: The hooks.
        reason: A text that the reason must contain.
        hook_id: The hook that ends the run; `None` for a person or `interrupt`.
        attach: Other arguments of `Stage.play`.

    Raises:
        ContractError: If the run does not raise `RunStopped`.
    """
    found: list[Ran] = []
    with expect_stopped(stage, reason, hook_id):
        found.append(await stage.play(scene, hooks, **attach))
    return found[0] if found else None


def check_tool_results(ran: Ran, *expected: str) -> None:
    """Raise an error unless the model read these tool results. Frameworks may add words of their own."""
    check_equal("The number of tool results that the model read.", len(ran.told), len(expected))
    for text, wanted in zip(ran.told, expected, strict=True):
        if wanted not in text:
            check_equal("The tool result that the model read.", text, wanted)
