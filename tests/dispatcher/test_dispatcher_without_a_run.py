"""A dispatcher that is used without a run: observers with `heard="committed"`, what is left of an operation, lanes."""

from __future__ import annotations

import math

import anyio
import pytest

from hookline import AfterToolCall, BeforeStep, BeforeToolCall, Event, HookDispatcher, Hooks
from hookline.errors import HookDefinitionError

from .samples import asked, recorded, step, turns

pytestmark = pytest.mark.anyio


async def test_without_a_journal_they_hear_at_once() -> None:
    heard: list[str] = []
    hooks = Hooks("audit")
    hooks.on(BeforeStep, heard="committed")(lambda event: heard.append("committed"))
    hooks.on(BeforeStep)(lambda event: heard.append("at once"))

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hooks])
        dispatcher.dispatch(step())

    assert heard == ["committed", "at once"]


@pytest.mark.parametrize("answers", [True, False])
async def test_of_a_tool_call_they_hear_after_it_was_answered(answers: bool) -> None:
    heard: list[str] = []
    hooks = Hooks("audit")
    hooks.on(BeforeToolCall, heard="committed")(lambda event: heard.append(f"committed {event.mocked}"))
    if answers:

        @hooks.on(BeforeToolCall)
        def answer(event: BeforeToolCall) -> None:
            heard.append("asked")
            event.mock("from a hook")

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hooks])
        result = await dispatcher.dispatch_before_tool_call(asked())

    if answers:
        assert heard == ["asked", "committed True"]
        assert result is not None
        assert result.content == "from a hook"
    else:
        assert (heard, result) == (["committed False"], None)


async def test_observers_of_several_registrations_hear_in_their_order() -> None:
    heard: list[str] = []

    def bundle(name: str, how: str) -> Hooks:
        hooks = Hooks(name)
        hooks.on(AfterToolCall, heard=how)(lambda event: heard.append(name))  # type: ignore[call-overload]
        hooks.on(BeforeStep, heard=how)(lambda event: heard.append(f"{name}'s step"))  # type: ignore[call-overload]
        return hooks

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle("first", "committed")])
        middle = dispatcher.register("op", [bundle("second", "at once")])
        dispatcher.register("op", [bundle("third", "committed")])
        dispatcher.dispatch(step())
        middle.remove()
        dispatcher.dispatch(step())

    assert heard == ["first's step", "second's step", "third's step", "first's step", "third's step"]


async def test_what_is_left_of_an_operation_can_be_removed_in_turn() -> None:
    heard: list[str] = []

    def bundle(name: str) -> Hooks:
        hooks = Hooks(name)
        hooks.on(BeforeStep)(lambda event: heard.append(name))
        return hooks

    async with HookDispatcher() as dispatcher:
        given = [dispatcher.register("op", [bundle(name)]) for name in ("a", "b", "c")]
        for registration in given:
            dispatcher.dispatch(step())
            heard.append("|")
            registration.remove()
        dispatcher.dispatch(step())

    assert "".join(heard) == "abc|bc|c|"


async def test_a_registration_of_an_operation_that_has_ended_is_left_as_it_is() -> None:
    heard: list[str] = []
    hooks = Hooks("a")
    hooks.on(BeforeStep)(lambda event: heard.append("heard"))

    async with HookDispatcher() as dispatcher:
        ended = dispatcher.register("op", [hooks])
        plans = ended.plans()
        await dispatcher.unregister("op")
        for _ in range(2):
            dispatcher.register("op", [hooks])
        ended.remove()
        dispatcher.dispatch(step())

    assert heard == ["heard"] * 2
    assert ended.plans() == plans


async def test_operations_share_the_plan_of_a_bundle_however_it_is_given() -> None:
    hooks = Hooks("shared")
    hooks.on(BeforeStep)(lambda event: None)

    async with HookDispatcher() as dispatcher:
        plans = [
            dispatcher.register(name, given).plans()
            for name, given in (("list", [hooks]), ("tuple", (hooks,)), ("iterator", iter([hooks])))
        ]

    assert plans[0] == plans[1] == plans[2]


async def test_a_dispatcher_that_is_cancelled_closes_its_own_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Delivery:
        async def aclose(self) -> None:
            await turns(2)
            closed.append(True)

    monkeypatch.setattr("hookline.dispatcher._dispatcher.default_delivery", Delivery)
    with anyio.CancelScope() as scope:
        async with HookDispatcher() as dispatcher:
            assert isinstance(dispatcher.delivery, Delivery)
            scope.cancel()
            await turns(1)

    assert closed == [True]


async def test_lane_lengths_are_those_of_the_lanes_with_waiting_events() -> None:
    opened = anyio.Event()
    hooks, others = Hooks("slow"), Hooks("plain")

    @hooks.on(BeforeStep)
    async def wait(event: Event) -> None:
        await opened.wait()

    others.on(BeforeStep)(lambda event: None)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hooks, others])
        assert dispatcher.lane_lengths() == []
        for _ in range(4):
            dispatcher.dispatch(step())
        await turns()
        assert dispatcher.lane_lengths() == [3]  # the first one runs
        opened.set()


async def test_a_bundle_that_is_not_recorded_stays_unrecorded_while_somebody_listens() -> None:
    class Unrecorded(Hooks):
        recorded = False

    shown, hidden = Hooks("shown"), Unrecorded("hidden")
    for hooks in (shown, hidden):
        hooks.on(BeforeStep)(lambda event: None)

    async with HookDispatcher() as dispatcher:
        for name, hooks in (("op_shown", shown), ("op_hidden", hidden)):
            dispatcher.register(name, [hooks])
        with recorded(dispatcher) as records:
            dispatcher.dispatch(BeforeStep(operation_id="op_hidden", step_index=0))
            dispatcher.dispatch(BeforeStep(operation_id="op_shown", step_index=0))

    assert [record.operation_id for record in records] == ["op_shown"]


@pytest.mark.parametrize("budget", [0, -1.0, math.nan, "1", True])
def test_an_invalid_chain_budget_is_refused(budget: object) -> None:
    with pytest.raises(HookDefinitionError, match="chain_budget"):
        HookDispatcher(chain_budget=budget)  # type: ignore[arg-type]
