"""A task that takes too long is stopped and fails, whether it heeds its cancellation or not; the others go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from hookline import Tool, tool
from hookline.evals import SuiteRun, SuiteRunner, cases_of
from hookline.evals.running import _time_limits
from hookline.evals.suites import Task, UserSuite, asks, checks, says

from .shop import ask_for_tea
from .shop import tools as shop_tools

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def run_with(slow: Callable[..., Any], backend: str, **options: Any) -> SuiteRun:
    """Run a task that first asks for a price and then calls a slow tool, and one that is quick."""
    tools = [*shop_tools(), tool(in_thread=False)(slow)]
    script = [asks("price", item="tea"), asks(slow.__name__), says("done")]
    tasks = [Task(id="slow", prompt="Wait.", script=script, checks=[checks.called(slow.__name__)]), ask_for_tea()]
    runner = SuiteRunner(cases_of([UserSuite("shop", tools=tools, tasks=tasks)]), **options)
    return anyio.run(runner.run, backend=backend)


async def hang() -> str:
    """Never end."""
    await anyio.sleep_forever()
    return ""


@BACKENDS
def test_a_task_that_hangs_is_stopped_and_fails_with_the_reason(backend: str) -> None:
    found = run_with(hang, backend, timeout=0.3)

    slow, quick = found.results
    assert (slow.reason, slow.failure) == ("timeout", "it took longer than 0.3 s and was stopped")
    assert (slow.ok, quick.ok, found.ok, found.not_run) == (False, True, False, [])
    assert slow.duration_ms > 300


@BACKENDS
def test_a_task_that_is_stopped_shows_what_it_had_done(backend: str) -> None:
    slow, _ = run_with(hang, backend, timeout=0.2).results

    assert (slow.steps, slow.tool_calls, slow.trajectory.reason) == (2, 2, "timeout")
    assert slow.calls[0].tool == "local/price"
    assert slow.operation_id.startswith("op_")


@BACKENDS
def test_a_task_that_ignores_its_cancellation_is_left_behind(
    backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_time_limits, "GRACE", 0.1)
    over = threading.Event()

    async def refuse_to_stop() -> str:
        """Go on whatever happens."""
        while not over.is_set():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
        return ""

    tools: list[Tool] = [*shop_tools(), tool(in_thread=False)(refuse_to_stop)]
    tasks = [Task(id="slow", prompt="Wait.", script=[asks("refuse_to_stop"), says("done")]), ask_for_tea()]
    cases = cases_of([UserSuite("shop", tools=tools, tasks=tasks)])

    async def main() -> SuiteRun:
        try:
            return await SuiteRunner(cases, timeout=0.3).run()
        finally:
            over.set()  # else the loop could not end

    with caplog.at_level(logging.WARNING, "hookline"):
        slow, quick = anyio.run(main, backend=backend).results

    assert slow.failure == "it took longer than 0.3 s, and did not stop within 0.1 s of being cancelled"
    assert quick.ok
    assert "does not stop. It is left running" in caplog.text


@BACKENDS
def test_a_run_that_is_cancelled_cancels_a_task_with_a_time_limit(backend: str) -> None:
    started = threading.Event()

    async def wait() -> str:
        """Wait."""
        started.set()
        await anyio.sleep_forever()
        return ""

    async def main() -> SuiteRunner:
        tasks = [Task(id="slow", prompt="Wait.", script=[asks("wait"), says("done")])]
        suite = UserSuite("shop", tools=[tool(in_thread=False)(wait)], tasks=tasks)
        runner = SuiteRunner(cases_of([suite]), timeout=60)
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run)
            while not started.is_set():
                await anyio.sleep(0)
            group.cancel_scope.cancel()
        return runner

    runner = anyio.run(main, backend=backend)

    assert (runner.so_far.results, runner.so_far.not_run) == ([], ["shop/slow"])
    assert runner.so_far.stopped == "the run was interrupted"


@BACKENDS
def test_a_time_limit_changes_nothing_for_a_task_that_keeps_it(backend: str) -> None:
    run = partial(run_with, quickly, backend)

    free, limited = (run(timeout=timeout).results[0] for timeout in (None, 60.0))

    assert free.trajectory == limited.trajectory
    assert (free.ok, limited.ok) == (True, True)


async def quickly() -> str:
    """Answer at once."""
    return "here"


@BACKENDS
def test_what_a_task_with_a_time_limit_raises_is_its_error(backend: str) -> None:
    class Broken(UserSuite):
        async def run_task(self, task_id: str, **options: Any) -> Any:
            raise LookupError("no such thing")

    suite = Broken("shop", tools=shop_tools, tasks=[ask_for_tea()])

    (result,) = anyio.run(SuiteRunner(cases_of([suite]), timeout=60).run, backend=backend).results

    assert (result.reason, result.error) == ("error", "LookupError: no such thing")
