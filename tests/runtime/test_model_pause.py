"""A provider that limits one run makes all runs that share a pause wait."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing

from hookline import Agent, ModelCall, ScriptedModel, TransientModelError, exec_agent
from hookline.runtime import ModelPause, model_pause
from tests.tables import for_each

pytestmark = pytest.mark.anyio


def asked(times: list[tuple[str, float]], name: str, *, model: str = "m", limited: float | None = None) -> Agent:
    """An agent whose model notes when it is asked, and is limited the first time."""
    refusals = [] if limited is None else [TransientModelError("slow down", limited)]

    def answer(call: ModelCall) -> str | Exception:
        times.append((name, anyio.current_time()))
        return refusals.pop() if refusals else "done"

    return Agent(id=name, model=ScriptedModel(answer, name=model))


def in_virtual_time(main: object) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


def test_a_limit_that_one_run_meets_makes_the_others_wait() -> None:
    times: list[tuple[str, float]] = []
    limits: list[tuple[str, float]] = []

    async def main() -> None:
        model_pause.set(ModelPause(lambda name, seconds: limits.append((name, seconds))))
        await exec_agent(asked(times, "first", limited=20.0), "Go.")

        async def later(name: str, model: str) -> None:
            await anyio.sleep(5)
            await exec_agent(asked(times, name, model=model), "Go.")

        times.clear()
        begun = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(exec_agent, asked(times, "limited", limited=20.0), "Go.")
            group.start_soon(later, "same", "m")
            group.start_soon(later, "other", "another")
        times[:] = [(name, at - begun) for name, at in times]

    in_virtual_time(main)

    at = dict(times)
    assert limits == [("hookline:m", 20.0), ("hookline:m", 20.0)]
    assert at["other"] == 5
    assert at["limited"] >= 20
    assert 20 <= at["same"] <= 22.5


def test_a_pause_moves_the_deadlines_of_runs_and_counts_for_those_that_begin_in_it() -> None:
    async def main() -> None:
        pause = ModelPause()
        with anyio.CancelScope(deadline=anyio.current_time() + 10) as scope:
            pause.scopes.add(scope)
            before = scope.deadline
            pause.extend("m", 5)
            pause.extend("m", 3)  # over before the other one
            pause.extend("m", 7)
            assert scope.deadline == pytest.approx(before + 7)
        assert pause.seconds_left == pytest.approx(7)
        await anyio.sleep(8)
        assert pause.seconds_left == 0

    in_virtual_time(main)


@for_each("seconds", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_wait_that_is_no_time_pauses_nothing(seconds: float) -> None:
    pause = ModelPause(lambda name, wait: pytest.fail("paused"))

    pause.limit(ScriptedModel([]), seconds)

    assert pause.seconds_left == 0
    await pause.wait(ScriptedModel([]))


async def test_a_run_without_a_pause_waits_for_itself_alone() -> None:
    times: list[tuple[str, float]] = []

    result = await exec_agent(asked(times, "alone", limited=0.001), "Go.")

    assert (result.output, len(times)) == ("done", 2)
