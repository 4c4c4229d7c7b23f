"""Time on a virtual clock passes at once, and each operation has its own; real time is waited for."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.evals.errors import FaultDefinitionError
from hookline.evals.faults._clocks import Clock, RealClock, VirtualClock

pytestmark = pytest.mark.anyio


def test_calls_of_one_step_overlap_and_steps_follow_each_other() -> None:
    clock = VirtualClock().of("op")

    ends = []
    for step, seconds in [(0, 5), (0, 2), (1, 1), (1, 3), (3, 0.5)]:
        clock.pass_time(seconds, step)
        ends.append(clock.now)

    assert ends == [5, 5, 6, 8, 8.5]


@given(st.lists(st.lists(st.floats(0, 1e9), max_size=4), max_size=5), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_parallel_calls_does_not_matter(steps: list[list[float]], chance: Any) -> None:
    inorder, mixed = VirtualClock().of("op"), VirtualClock().of("op")

    for index, step in enumerate(steps):
        for seconds in step:
            inorder.pass_time(seconds, index)
        for seconds in chance.sample(step, len(step)):
            mixed.pass_time(seconds, index)

        assert mixed.now == inorder.now == pytest.approx(sum(max(each, default=0) for each in steps[: index + 1]))


def test_calls_of_one_step_begin_at_once_whatever_the_others_took() -> None:
    clock = VirtualClock().of("op")

    clock.pass_time(5, 0)
    during = clock.arrival
    clock.enter(1)

    assert (during, clock.arrival) == (0, 5)


def test_time_that_no_call_took_can_pass() -> None:
    clock = VirtualClock().of("op")
    clock.pass_time(5, 2)

    clock.advance(60)
    clock.pass_time(1, 2)

    assert clock.now == 66


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, True, "5", None])
def test_time_does_not_run_backwards(seconds: Any) -> None:
    clock = VirtualClock().of("op")

    with pytest.raises(FaultDefinitionError, match="`seconds` is a number of seconds from 0"):
        clock.advance(seconds)
    assert clock.now == 0


async def test_a_virtual_clock_never_gives_up_control() -> None:
    clock, others = VirtualClock().of("op"), []

    async with anyio.create_task_group() as group:
        group.start_soon(_note, others)
        for _ in range(100):
            await clock.sleep(3600, 0)
        assert others == []

    assert others == ["ran"]
    assert clock.now == 3600


@pytest.mark.parametrize("clock", [VirtualClock(), RealClock()], ids=lambda clock: type(clock).__name__)
async def test_operations_share_neither_time_nor_state(clock: Clock) -> None:
    first, second = clock.of("first"), clock.of("second")
    first.state["key"] = 1
    first.pass_time(5, 0)

    assert clock.of("first") is first
    assert second.state == {}
    if clock.virtual:
        assert (first.now, second.now) == (5, 0)

    clock.forget("first")
    clock.forget("nobody")
    assert clock.of("first").state == {}


async def test_a_real_clock_waits_in_the_loops_own_time_and_ends_when_cancelled() -> None:
    clock = RealClock().of("op")
    started = clock.now

    await clock.sleep(0.01, 0)
    assert clock.now - started >= 0.0099

    with anyio.move_on_after(0) as scope:
        await clock.sleep(3600, 0)
    assert scope.cancelled_caught


async def test_a_real_clock_leaves_the_waiting_to_its_caller_where_nothing_is_awaited() -> None:
    clock = RealClock().of("op")

    assert clock.pass_time(3600, 0) == 3600
    assert VirtualClock().of("op").pass_time(3600, 0) == 0


async def _note(others: list[str]) -> None:
    others.append("ran")
