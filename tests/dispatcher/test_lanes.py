"""Laws 1, 2, 3 and 8: what runs at once, what is queued, in which order, with which context, and how much."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import Counter, defaultdict
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import AfterStep, BeforeStep, Hook, HookDispatcher, Hooks, OnCompactError
from tests.tables import for_each

from .samples import answered, for_ever, recorded, soon, step, turns, until

pytestmark = pytest.mark.anyio

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


def noting(seen: list[Any], name: Any, *, is_async: bool, suspends: int = 0) -> Any:
    """A handler that writes down its name and the event's step."""

    async def note_later(event: BeforeStep) -> None:
        await turns(suspends)
        seen.append((name, event.step_index))

    def note(event: BeforeStep) -> None:
        seen.append((name, event.step_index))

    return note_later if is_async else note


async def test_a_plain_handler_runs_inside_dispatch_in_the_callers_task_and_context() -> None:
    seen: list[object] = []

    def look(event: BeforeStep) -> None:
        seen.append((anyio.get_current_task().id, VARIABLE.get()))
        VARIABLE.set("set by the handler")

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="h", type=BeforeStep, handler=look)])
        VARIABLE.set("caller")

        dispatcher.dispatch(step())

        assert seen == [(anyio.get_current_task().id, "caller")]
        assert VARIABLE.get() == "set by the handler"


async def test_dispatch_is_no_coroutine_and_returns_nothing() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="h", type=BeforeStep, handler=lambda event: "junk")])

        assert dispatcher.dispatch(step()) is None  # type: ignore[func-returns-value]


async def test_no_step_of_an_async_handler_runs_inside_dispatch() -> None:
    seen: list[object] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="h", type=BeforeStep, handler=noting(seen, "h", is_async=True))])

        for index in range(3):
            dispatcher.dispatch(step(index=index))
            assert seen == []

        await until(lambda: len(seen) == 3)


async def test_all_of_an_async_handler_runs_in_one_task_that_is_not_the_agents() -> None:
    tasks: list[int] = []

    async def look(event: BeforeStep) -> None:
        for _ in range(3):
            tasks.append(anyio.get_current_task().id)
            await turns(1)
        with anyio.move_on_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(turns, 1)
        tasks.append(anyio.get_current_task().id)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="h", type=BeforeStep, handler=look)])

        dispatcher.dispatch(step())
        await dispatcher.unregister("op")

        assert len(set(tasks)) == 1
        assert anyio.get_current_task().id not in tasks


async def test_a_hung_observer_does_not_delay_the_agent_or_other_bundles() -> None:
    seen: list[Any] = []
    slow, quick = Hooks("slow"), Hooks("quick")

    @slow.on(BeforeStep)
    async def hang(event: BeforeStep) -> None:
        await for_ever()

    quick.on(BeforeStep)(noting(seen, "quick", is_async=True))
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [slow, quick])

        for index in range(5):
            dispatcher.dispatch(step(index=index))

        await until(lambda: len(seen) == 5)
        await dispatcher.unregister("op", drain_timeout=0)


async def test_a_slow_bundle_of_one_operation_does_not_hold_back_that_bundle_in_another() -> None:
    gate = anyio.Event()
    seen: list[str] = []
    bundle = Hooks("shared")

    @bundle.on(BeforeStep)
    async def note(event: BeforeStep) -> None:
        if event.operation_id == "slow":
            await gate.wait()
        seen.append(event.operation_id)

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("slow", [bundle])
        dispatcher.register("quick", [bundle])
        dispatcher.dispatch(step("slow"))
        dispatcher.dispatch(step("quick"))

        await until(lambda: seen == ["quick"])
        gate.set()


async def test_the_handlers_of_a_lane_never_overlap() -> None:
    running = 0
    most = 0
    bundle = Hooks("bundle")

    async def work(event: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await turns(2)
        running -= 1

    for kind in (BeforeStep, BeforeStep, OnCompactError):
        bundle.on(kind)(work)
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle])
        dispatcher.register("op", [bundle])

        for index in range(5):
            dispatcher.dispatch(step(index=index))
            dispatcher.dispatch(OnCompactError(operation_id="op", step_index=0, token_count=0, error="e"))
            await turns(index)
        await dispatcher.unregister("op")

        assert most == 1


SCENARIO = st.tuples(
    st.lists(  # per bundle: (is_async, how often it suspends) of each handler
        st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), max_size=8),  # (operation, turns afterwards)
    st.booleans(),  # all at once, or one register call per bundle
)


@settings(max_examples=80, deadline=None)
@given(scenario=SCENARIO, backend=st.sampled_from(["asyncio", "trio"]))
def test_order_of_lanes_and_of_plain_handlers_is_a_law(scenario: Any, backend: str) -> None:
    shapes, plan, at_once = scenario

    async def main() -> None:
        seen: dict[str, list[Any]] = defaultdict(list)
        running: set[Any] = set()
        bundles = []
        for number, shape in enumerate(shapes):
            bundle = Hooks(f"bundle{number}")
            for place, (is_async, suspends) in enumerate(shape):

                def note(event: BeforeStep, who: Any = (number, place)) -> None:
                    seen[event.operation_id].append((*who, event.step_index))

                async def note_later(event: BeforeStep, who: Any = (number, place), suspends: int = suspends) -> None:
                    lane = (event.operation_id, who[0])
                    assert lane not in running
                    running.add(lane)
                    await turns(suspends)
                    seen[event.operation_id].append((*who, event.step_index))
                    running.remove(lane)

                bundle.on(BeforeStep)(note_later if is_async else note)
            bundles.append(bundle)
        sync = [(n, p) for n, shape in enumerate(shapes) for p, (is_async, _) in enumerate(shape) if not is_async]
        async with HookDispatcher() as dispatcher:
            for operation_id in ("a", "b"):
                for batch in [bundles] if at_once else [[bundle] for bundle in bundles]:
                    dispatcher.register(operation_id, batch)
            for index, (operation_id, pause) in enumerate(plan):
                before = len(seen[operation_id])
                dispatcher.dispatch(step(operation_id, index))
                assert seen[operation_id][before:] == [(*who, index) for who in sync]
                await turns(pause)
            for operation_id in ("a", "b"):
                report = await dispatcher.unregister(operation_id)
                mine = [index for index, (where, _) in enumerate(plan) if where == operation_id]
                for number, shape in enumerate(shapes):
                    places = [place for place, (is_async, _) in enumerate(shape) if is_async]
                    got = [(p, i) for n, p, i in seen[operation_id] if n == number and p in places]
                    assert got == [(place, index) for index in mine for place in places]
                lanes = sum(any(is_async for is_async, _ in shape) for shape in shapes)
                assert (report.delivered, report.dropped) == (len(mine) * lanes, 0)

    anyio.run(main, backend=backend)


async def test_plain_handlers_run_in_the_order_in_which_bundles_and_hooks_were_given() -> None:
    seen: list[Any] = []
    a, b = Hooks("a"), Hooks("b")
    for bundle in (a, b):
        bundle.on(BeforeStep)(noting(seen, f"{bundle.id}1", is_async=False))
        bundle.on(BeforeStep)(noting(seen, f"{bundle.id}-async", is_async=True))
        bundle.on(BeforeStep)(noting(seen, f"{bundle.id}2", is_async=False))
    plain = [Hook(id="p", type=BeforeStep, handler=noting(seen, f"plain{n}", is_async=False)) for n in range(2)]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [plain[0], b, plain[1], a])

        dispatcher.dispatch(step())

        assert [name for name, _ in seen] == ["plain0", "b1", "b2", "plain1", "a1", "a2"]


async def test_a_bundle_between_two_mentions_of_another_keeps_its_place() -> None:
    seen: list[Any] = []
    a, b = Hooks("a"), Hooks("b")
    a.on(BeforeStep)(noting(seen, "a", is_async=False))
    b.on(BeforeStep)(noting(seen, "b", is_async=False))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [a, b, a])

        dispatcher.dispatch(step())

        assert [name for name, _ in seen] == ["a", "b", "a"]


# --- law 3


async def test_what_a_handler_registers_does_not_see_the_event_that_is_being_dispatched() -> None:
    seen: list[Any] = []
    async with HookDispatcher() as dispatcher:

        def add(event: BeforeStep) -> None:
            seen.append("old")
            if event.step_index == 0:
                for is_async in (False, True):
                    handler = noting(seen, "new", is_async=is_async)
                    dispatcher.register("op", [Hook(id="new", type=BeforeStep, handler=handler)])

        dispatcher.register("op", [Hook(id="old", type=BeforeStep, handler=add)])
        dispatcher.dispatch(step(index=0))
        await turns()

        assert seen == ["old"]
        dispatcher.dispatch(step(index=1))
        await dispatcher.unregister("op")
        assert seen == ["old", "old", ("new", 1), ("new", 1)]


async def test_a_handler_removed_during_a_dispatch_still_gets_that_event() -> None:
    seen: list[Any] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="first", type=BeforeStep, handler=lambda event: later.remove())])
        later = dispatcher.register(
            "op",
            [
                Hook(id="sync", type=BeforeStep, handler=noting(seen, "sync", is_async=False)),
                Hook(id="async", type=BeforeStep, handler=noting(seen, "async", is_async=True)),
            ],
        )

        dispatcher.dispatch(step(index=0))
        dispatcher.dispatch(step(index=1))
        await dispatcher.unregister("op")

        assert seen == [("sync", 0), ("async", 0)]


async def test_a_handler_may_dispatch_events_itself() -> None:
    seen: list[Any] = []
    async with HookDispatcher() as dispatcher, soon():

        def again(event: BeforeStep) -> None:
            seen.append(("sync", event.step_index))
            if event.step_index < 3:
                dispatcher.dispatch(step(index=event.step_index + 1))

        dispatcher.register(
            "op",
            [
                Hook(id="async", type=BeforeStep, handler=noting(seen, "async", is_async=True)),
                Hook(id="again", type=BeforeStep, handler=again),
            ],
        )
        dispatcher.dispatch(step(index=0))
        await dispatcher.unregister("op")

        assert seen == [("sync", n) for n in range(4)] + [("async", n) for n in range(4)]


async def test_an_async_handler_may_dispatch_to_its_own_lane() -> None:
    seen: list[int] = []
    async with HookDispatcher() as dispatcher, soon():

        async def again(event: BeforeStep) -> None:
            seen.append(event.step_index)
            if event.step_index < 5:
                dispatcher.dispatch(step(index=event.step_index + 1))
            await turns(event.step_index % 2)

        dispatcher.register("op", [Hook(id="again", type=BeforeStep, handler=again)])
        dispatcher.dispatch(step(index=0))

        await until(lambda: seen == [0, 1, 2, 3, 4, 5])
        report = await dispatcher.unregister("op")
        assert (report.delivered, report.dropped) == (6, 0)


@pytest.mark.parametrize("at_once", [True, False], ids=["one registration", "two registrations"])
async def test_what_a_plain_handler_does_comes_after_the_event_in_every_lane(at_once: bool) -> None:
    seen: list[Any] = []
    first, second = Hooks("first"), Hooks("second")

    @second.on(BeforeStep)
    async def note(event: BeforeStep) -> None:
        seen.append((event.step_index, VARIABLE.get()))

    async with HookDispatcher() as dispatcher, soon():
        VARIABLE.set("agent")

        @first.on(BeforeStep)
        def again(event: BeforeStep) -> None:
            VARIABLE.set(f"handler {event.step_index}")
            if event.step_index == 0:
                dispatcher.dispatch(step(index=1))

        for bundles in [[first, second]] if at_once else [[first], [second]]:
            dispatcher.register("op", bundles)
        dispatcher.dispatch(step(index=0))
        await dispatcher.unregister("op")

    assert seen == [(0, "agent"), (1, "handler 0")]


async def test_an_event_is_queued_even_if_a_plain_handler_of_another_bundle_ends_the_program() -> None:
    seen: list[Any] = []
    first, second = Hooks("first"), Hooks("second")

    @first.on(BeforeStep)
    def leave(event: BeforeStep) -> None:
        raise SystemExit

    second.on(BeforeStep)(noting(seen, "second", is_async=True))
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [first, second])
        with pytest.raises(SystemExit):
            dispatcher.dispatch(step())
        await dispatcher.unregister("op")

    assert seen == [("second", 0)]


# --- context variables


async def test_every_queued_event_sees_the_context_of_its_own_dispatch() -> None:
    seen: dict[str, list[str]] = defaultdict(list)
    expected: dict[str, list[str]] = defaultdict(list)
    bundle = Hooks("bundle")

    @bundle.on(BeforeStep)
    async def at_once(event: BeforeStep) -> None:
        seen[event.operation_id].append(VARIABLE.get())

    @bundle.on(BeforeStep)
    async def after_a_pause(event: BeforeStep) -> None:
        await turns(3)
        seen[event.operation_id].append(VARIABLE.get())

    async with HookDispatcher() as dispatcher:

        async def run(operation_id: str) -> None:
            for index in range(4):
                VARIABLE.set(value := f"{operation_id}{index}")
                expected[operation_id] += [value, value]
                dispatcher.dispatch(step(operation_id, index))
                await turns(index % 2)

        for operation_id in "abc":
            dispatcher.register(operation_id, [bundle])
        async with anyio.create_task_group() as group:
            for operation_id in "abc":
                group.start_soon(run, operation_id)
        for operation_id in "abc":
            await dispatcher.unregister(operation_id)

    assert seen == expected
    assert sum(map(len, seen.values())) == 24


async def test_what_an_async_handler_sets_is_not_seen_by_the_next_event_nor_by_the_agent() -> None:
    seen: list[str] = []

    async def look(event: BeforeStep) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set("handler")
        await turns(1)
        seen.append(VARIABLE.get())
        VARIABLE.set("handler, later")

    async with HookDispatcher() as dispatcher:
        VARIABLE.set("agent")
        dispatcher.register("op", [Hook(id="h", type=BeforeStep, handler=look)])
        for index in range(3):
            dispatcher.dispatch(step(index=index))
            if index == 1:
                await turns()
        await dispatcher.unregister("op")

        assert seen == ["agent", "handler"] * 3
        assert VARIABLE.get() == "agent"


@for_each("watched", [False, True])
@for_each("everybodys_pauses", [(0, 0), (0, 1), (1, 0), (0, 1, 0)], ids=str)
async def test_what_an_async_handler_sets_is_not_seen_by_the_others_of_its_event(
    everybodys_pauses: tuple[int, ...], *, watched: bool
) -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")
    for pauses in everybodys_pauses:

        @bundle.on(BeforeStep)
        async def look(event: BeforeStep, pauses: int = pauses) -> None:
            seen.append(VARIABLE.get())
            VARIABLE.set("handler")
            await turns(pauses)

    async with HookDispatcher() as dispatcher:
        VARIABLE.set("agent")
        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step())
        with recorded() if watched else contextlib.nullcontext():
            await dispatcher.unregister("op")

    assert seen == ["agent"] * len(everybodys_pauses)


async def test_a_child_task_of_a_handler_inherits_its_context() -> None:
    seen: list[str] = []

    async def child() -> None:
        seen.append(VARIABLE.get())

    async def parent(event: BeforeStep) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="h", type=BeforeStep, handler=parent)])
        VARIABLE.set("at dispatch")
        dispatcher.dispatch(step())
        VARIABLE.set("afterwards")
        await dispatcher.unregister("op")

        assert seen == ["at dispatch"]


# --- law 8


@for_each("bound", [1, 2, 5])
async def test_a_lane_holds_at_most_max_queued_and_drops_the_newest(
    bound: int, caplog: pytest.LogCaptureFixture
) -> None:
    gate, started = anyio.Event(), anyio.Event()
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        started.set()
        await gate.wait()
        seen.append(event.step_index)

    async with HookDispatcher(max_queued=bound) as dispatcher, soon():
        dispatcher.register("op", [Hook(id="slow hook", type=BeforeStep, handler=work)])
        dispatcher.dispatch(step(index=0))
        await started.wait()
        for index in range(1, bound + 4):
            dispatcher.dispatch(step(index=index))
        gate.set()
        report = await dispatcher.unregister("op")

    assert seen == list(range(bound + 1))
    assert (report.delivered, report.dropped) == (bound + 1, 3)
    assert len([record for record in caplog.records if "slow hook" in record.getMessage()]) == 3


async def test_only_the_lane_that_is_full_loses_events() -> None:
    gate = anyio.Event()
    seen: Counter[str] = Counter()
    slow, quick = Hooks("slow"), Hooks("quick")

    @slow.on(BeforeStep)
    async def wait(event: BeforeStep) -> None:
        await gate.wait()
        seen["slow"] += 1

    @quick.on(BeforeStep)
    async def count(event: BeforeStep) -> None:
        seen["quick"] += 1

    @slow.on(BeforeStep)
    def at_once(event: BeforeStep) -> None:
        seen["sync"] += 1

    async with HookDispatcher(max_queued=1) as dispatcher, soon():
        dispatcher.register("op", [slow, quick])
        for index in range(6):
            dispatcher.dispatch(step(index=index))
            await until(lambda index=index: seen["quick"] == index + 1)
        gate.set()
        report = await dispatcher.unregister("op")

    assert seen == {"sync": 6, "quick": 6, "slow": 2}
    assert (report.delivered, report.dropped) == (8, 4)


async def test_a_full_lane_takes_events_again_once_it_has_room() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        seen.append(event.step_index)

    async with HookDispatcher(max_queued=2) as dispatcher:
        dispatcher.register("op", [Hook(id="h", type=BeforeStep, handler=work)])
        for index in range(4):
            dispatcher.dispatch(step(index=index))
        await until(lambda: len(seen) == 2)
        dispatcher.dispatch(step(index=9))
        report = await dispatcher.unregister("op")

        assert seen == [0, 1, 9]
        assert (report.delivered, report.dropped) == (3, 2)


async def test_a_filtered_event_takes_no_room_and_is_not_counted() -> None:
    seen: list[str] = []

    async def note(event: Any) -> None:
        seen.append(event.tool_name)

    bundle = Hooks("bundle")
    from hookline import AfterToolCall

    bundle.on(AfterToolCall, tool="*/pay")(note)
    async with HookDispatcher(max_queued=1) as dispatcher:
        dispatcher.register("op", [bundle])
        for _ in range(5):
            dispatcher.dispatch(answered())
        dispatcher.dispatch(answered(tool_name="pay"))
        report = await dispatcher.unregister("op")

    assert seen == ["pay"]
    assert (report.delivered, report.dropped) == (1, 0)


@settings(max_examples=60, deadline=None)
@given(
    bound=st.integers(1, 3),
    plan=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12),
    drain=st.booleans(),
    backend=st.sampled_from(["asyncio", "trio"]),
)
def test_the_report_counts_every_event_of_every_lane_exactly_once(
    bound: int, plan: list[tuple[int, int]], backend: str, *, drain: bool
) -> None:
    async def main() -> None:
        bundles = []
        finished: Counter[int] = Counter()
        for number in range(3):
            bundle = Hooks(f"b{number}")

            @bundle.on(BeforeStep)
            async def work(event: BeforeStep, number: int = number) -> None:
                await turns(number * 2)
                if event.step_index == 4:
                    raise ValueError("a failure is a delivery too")
                finished[number] += 1

            bundles.append(bundle)
        async with HookDispatcher(max_queued=bound) as dispatcher:
            dispatcher.register("op", bundles)
            for index, (_, pause) in enumerate(plan):
                dispatcher.dispatch(step(index=index))
                await turns(pause)

            report = await dispatcher.unregister("op", drain_timeout=5 if drain else 0)

            assert report.delivered + report.dropped == 3 * len(plan)
            assert report.delivered >= sum(finished.values())
            assert (await dispatcher.unregister("op")).delivered == 0

    logging.getLogger("hookline").disabled = True
    try:
        anyio.run(main, backend=backend)
    finally:
        logging.getLogger("hookline").disabled = False


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_idle_lane_costs_no_task() -> None:
    async def nothing(event: BeforeStep) -> None:
        pass

    async with HookDispatcher() as dispatcher:
        before = asyncio.all_tasks()
        for number in range(50):
            dispatcher.register(f"op{number}", [Hook(id="h", type=BeforeStep, handler=nothing)])
        assert asyncio.all_tasks() == before

        for number in range(50):
            dispatcher.dispatch(step(f"op{number}"))
        assert len(asyncio.all_tasks()) > len(before)

        await until(lambda: asyncio.all_tasks() == before)


async def test_two_thousand_operations_at_once_keep_their_order() -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    bundle = Hooks("bundle")
    totals: Counter[str] = Counter()

    @bundle.on(BeforeStep)
    async def note(event: BeforeStep) -> None:
        await turns(event.step_index % 2)
        seen[event.operation_id].append(event.step_index)

    async with HookDispatcher() as dispatcher:

        async def run(operation_id: str) -> None:
            async with dispatcher.operation(operation_id, [bundle]):
                for index in range(3):
                    dispatcher.dispatch(step(operation_id, index))
                    await turns(1)
            totals[operation_id] += 1

        async with anyio.create_task_group() as group:
            for number in range(2000):
                group.start_soon(run, f"op{number}")

        assert len(totals) == 2000
        assert all(indices == [0, 1, 2] for indices in seen.values())
        assert len(seen) == 2000
        assert not dispatcher.operations


async def test_an_event_of_another_kind_goes_only_to_its_own_handlers() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [Hook(id="h", type=AfterStep, handler=lambda event: 1 / 0)])

        dispatcher.dispatch(step())

        assert not dispatcher.has_hooks("op", BeforeStep)
