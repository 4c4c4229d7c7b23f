"""Law 8, the other half: who missed an event that was dropped is logged and recorded, once each and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Any

import pytest

from hookline import BeforeStep, HookDispatcher, HookExecution, Hooks
from tests.tables import for_each

from .samples import for_ever, recorded, soon, step, turns, until

pytestmark = pytest.mark.anyio

PLACES = [(count, place) for count in range(1, 5) for place in range(count)]
"""How many observers a bundle has, and the place of the one that does not end well."""


class Fatal(BaseException):
    """Something that nobody may swallow."""


def bundle_of(count: int, handler: Any, place: int) -> Hooks:
    """Observers "0", "1", ...: that at `place` does something, every other of the rest suspends once."""
    bundle = Hooks("bundle")

    async def at_once(event: BeforeStep) -> None:
        pass

    async def later(event: BeforeStep) -> None:
        await turns(1)

    for number in range(count):
        bundle.on(BeforeStep, id=str(number))(handler if number == place else (at_once, later)[number % 2])
    return bundle


def logged_as_dropped(caplog: pytest.LogCaptureFixture) -> list[list[str]]:
    """The hooks that each warning about an event names."""
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [re.findall(r"'([^']*)'", message) for message in messages if "dropped" in message]


def statuses(records: list[HookExecution]) -> list[tuple[int | None, str, str]]:
    return [(each.step_index, each.hook_id, each.status) for each in records]


@for_each(("count", "place"), PLACES)
@for_each("listening", ["never", "from the start", "once it hangs"])
async def test_those_miss_an_event_that_had_not_ended_when_it_was_cancelled(
    count: int, place: int, listening: str, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []

    async def hang_at_the_second(event: BeforeStep) -> None:
        started.append(event.step_index)
        if event.step_index == 1:
            await for_ever()

    everybody = [str(number) for number in range(count)]
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle_of(count, hang_at_the_second, place)])
        with recorded(dispatcher) if listening == "from the start" else contextlib.nullcontext([]) as records:
            for index in range(4):
                dispatcher.dispatch(step(index=index))
            await until(lambda: started == [0, 1])
            with recorded(dispatcher) if listening == "once it hangs" else contextlib.nullcontext([]) as late:
                report = await dispatcher.unregister("op", drain_timeout=0)

    dropped = [(index, name, "dropped") for index in (1, 2, 3) for name in everybody[place if index == 1 else 0 :]]
    ended = [(index, name, "ok") for index in (0, 1) for name in everybody[: place if index == 1 else count]]
    assert (report.delivered, report.dropped) == (1, 3)
    assert logged_as_dropped(caplog) == [everybody[place:], everybody, everybody]
    assert statuses(records) == (ended + dropped if listening == "from the start" else [])
    assert statuses(late) == (dropped if listening == "once it hangs" else [])


@for_each(("count", "place"), PLACES)
@for_each("suspends", [0, 1])
@for_each("watched", [False, True], ids=["nobody listens", "somebody listens"])
async def test_those_miss_an_event_that_had_not_ended_when_one_of_them_ended_the_dispatcher(
    count: int, place: int, suspends: int, caplog: pytest.LogCaptureFixture, *, watched: bool
) -> None:
    async def end_everything(event: BeforeStep) -> None:
        await turns(suspends)
        raise Fatal

    everybody = [str(number) for number in range(count)]
    with recorded() if watched else contextlib.nullcontext([]) as records, pytest.raises(Fatal):
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [bundle_of(count, end_everything, place)])
            for index in range(2):
                dispatcher.dispatch(step(index=index))
            await for_ever()

    dropped = [(0, name, "dropped") for name in everybody[place:]] + [(1, name, "dropped") for name in everybody]
    assert logged_as_dropped(caplog) == [everybody[place:], everybody]
    assert statuses(records) == ([(0, name, "ok") for name in everybody[:place]] + dropped if watched else [])


async def test_everybody_misses_the_events_of_a_lane_that_had_not_begun(caplog: pytest.LogCaptureFixture) -> None:
    async def never(event: BeforeStep) -> None:
        raise Fatal

    with recorded() as records, pytest.raises(LookupError, match="of the agent"):
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [bundle_of(2, never, 0)])
            for index in range(2):
                dispatcher.dispatch(step(index=index))
            raise LookupError("of the agent")

    assert logged_as_dropped(caplog) == [["0", "1"]] * 2
    assert statuses(records) == [(index, name, "dropped") for index in range(2) for name in ("0", "1")]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@for_each("bound", [1, 256, 1000])
async def test_a_lane_refuses_the_first_event_above_its_bound_however_large_that_is(
    bound: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def note(event: BeforeStep) -> None:
        seen.append(event.step_index)

    async with HookDispatcher(max_queued=bound) as dispatcher, soon():
        dispatcher.register("op", [bundle_of(1, note, 0)])
        with recorded() as records:
            for index in range(bound + 2):
                dispatcher.dispatch(step(index=index))

            assert statuses(records) == [(index, "0", "dropped") for index in (bound, bound + 1)]
        report = await dispatcher.unregister("op")

    assert logged_as_dropped(caplog) == [["0"]] * 2
    assert seen == list(range(bound))
    assert (report.delivered, report.dropped) == (bound, 2)


def test_a_lane_whose_task_is_thrown_away_while_no_event_loop_runs_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started: list[int] = []

    async def hang(event: BeforeStep) -> None:
        started.append(event.step_index)
        await for_ever()

    async def agent() -> None:
        async with HookDispatcher() as dispatcher:
            dispatcher.register("op", [bundle_of(2, hang, 1)])
            for index in range(2):
                dispatcher.dispatch(step(index=index))
            await for_ever()

    async def lane_that_hangs() -> asyncio.Task[Any]:
        await until(lambda: started)
        (lane,) = asyncio.all_tasks() - {running, asyncio.current_task()}
        return lane

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        running = loop.create_task(agent())
        lane = loop.run_until_complete(lane_that_hangs())
        lane.get_coro().close()  # as the collector does with a task that nobody awaits

        assert logged_as_dropped(caplog) == [["1"], ["0", "1"]]
        assert running.cancelling() == 0
        for task in (running, lane):
            task.cancel()
        loop.run_until_complete(asyncio.wait([running, lane]))
