"""Every call says where its answer came from, and a suite says which of its tools nobody called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from hookline import BeforeToolCall, Hooks, ToolSpec
from hookline.evals import SuiteRun
from hookline.evals.faults import EmptyResult, FailedResult, FaultSpec, Latency, Timeout
from hookline.evals.running import SuiteRunner, cases_of
from hookline.evals.suites import UserSuite
from hookline.evals.trajectories import CoverageCount

from .shop import ask_for_tea, order_tea, run_suite, tools


def rows(run: SuiteRun) -> list[tuple[Any, ...]]:
    return [(call.tool, call.outcome, call.rule, call.fault, call.cassette) for call in run.results[0].calls]


def test_a_real_call_has_no_source() -> None:
    assert rows(run_suite([ask_for_tea()])) == [("local/price", "real", None, None, None)]


def test_a_call_that_a_rule_answered_names_the_rule() -> None:
    task = ask_for_tea(mocks=lambda mocks: mocks.tool("price", name="cheap").returns("free"))

    assert rows(run_suite([task])) == [("local/price", "mocked", "cheap", None, None)]


def test_a_call_that_a_rule_let_through_is_real_and_names_the_rule() -> None:
    task = ask_for_tea(mocks=lambda mocks: mocks.tool("price", name="let").passthrough())

    assert rows(run_suite([task])) == [("local/price", "real", "let", None, None)]


def test_a_call_that_a_fault_struck_names_the_fault_whether_the_tool_ran_or_not() -> None:
    spec = {"tool": "price", "probability": 1.0}

    answered = run_suite([ask_for_tea()], faults=[FaultSpec(fault=FailedResult(content="no"), **spec)])
    changed = run_suite([ask_for_tea()], faults=[FaultSpec(fault=EmptyResult(), **spec)])
    late = run_suite([ask_for_tea()], faults=[FaultSpec(fault=Latency(0.25), name="slow", **spec)])

    assert rows(answered) == [("local/price", "mocked", None, "failed_result", None)]
    assert rows(changed) == [("local/price", "real", None, "empty_result", None)]
    assert rows(late) == [("local/price", "real", None, "slow", None)]
    assert late.results[0].calls[0].latency_ms == 250
    assert [len(run.faults) for run in (answered, changed, late)] == [1, 1, 1]


def test_a_call_that_a_cassette_answered_names_it_and_its_recording(tmp_path: Path) -> None:
    run_suite([ask_for_tea()], mode="record", cassettes=tmp_path)

    replayed = run_suite([ask_for_tea()], mode="replay", cassettes=tmp_path)

    assert rows(replayed) == [("local/price", "mocked", None, None, "shop/tea")]
    assert replayed.results[0].calls[0].recording == "local/price #1"
    assert replayed.results[0].calls[0].source == "cassette shop/tea"


def test_a_call_that_another_hook_answered_names_the_hook() -> None:
    hooks = Hooks("thief")
    hooks.on(BeforeToolCall, id="thief.steal")(lambda event: event.mock("stolen"))

    (call,) = run_suite([ask_for_tea()], hooks=[hooks]).results[0].calls

    assert (call.outcome, call.answered_by, call.source) == ("mocked", "thief.steal", "thief.steal")


@pytest.mark.parametrize("mode", ["strict", "replay"])
def test_a_call_that_nothing_answered_is_refused_and_fails_its_task(tmp_path: Path, mode: Any) -> None:
    run = run_suite([ask_for_tea()], mode=mode, cassettes=tmp_path)

    assert [call.outcome for call in run.results[0].calls] == ["refused"]
    assert not run.ok
    assert "local/price" in (run.results[0].failure or "")
    assert run.coverage[0].refused == {"local/price": 1}


def test_a_suite_tells_which_tools_were_called_mocked_and_never_called() -> None:
    mocked = ask_for_tea(mocks=lambda mocks: mocks.tool("price").returns("free"))

    (coverage,) = run_suite([mocked, order_tea()]).coverage

    assert coverage.discovered == ["local/price", "local/order", "local/pay"]
    assert coverage.called == {"local/order": 2, "local/price": 1}
    assert coverage.mocked == {"local/price": 1}
    assert coverage.real == {"local/order": 2}
    assert coverage.never_called == ["local/pay"]
    assert coverage.unknown == []
    assert coverage.share == pytest.approx(2 / 3)


def test_a_suite_without_tools_or_calls_has_nothing_to_cover() -> None:
    coverage = CoverageCount("empty", []).coverage

    assert (coverage.called, coverage.never_called, coverage.share) == ({}, [], 1.0)


def test_a_call_of_a_tool_that_the_suite_does_not_have_is_told() -> None:
    (call,) = run_suite([ask_for_tea()]).results[0].calls

    count = CoverageCount("shop", [ToolSpec(name="order")])
    count.add([call])

    assert (count.coverage.unknown, count.coverage.never_called) == (["local/price"], ["local/order"])


def test_agentdojos_coverage_counts_every_call_once(real: SuiteRun, replayed: SuiteRun) -> None:
    assert [len(each.discovered) for each in real.coverage] == [11, 24, 28, 11]
    assert sum(sum(each.real.values()) for each in real.coverage) == 339
    assert sum(sum(each.mocked.values()) for each in replayed.coverage) == 339
    assert [each.called for each in real.coverage] == [each.called for each in replayed.coverage]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_same_faults_strike_whatever_runs_at_the_same_time(backend: str) -> None:
    specs = [
        FaultSpec(tool="*", fault=Timeout(seconds=2), probability=0.3),
        FaultSpec(tool="*", fault=EmptyResult(), probability=0.3),
    ]
    tasks = [type(each)(**{**vars(each), "id": f"task-{number}"}) for number in range(20) for each in [order_tea()]]
    suite = UserSuite("shop", tools=tools, tasks=tasks)
    cases = cases_of([suite])

    def struck(cases: list[Any], concurrency: int) -> list[tuple[Any, ...]]:
        runner = SuiteRunner(cases, faults=specs, seed=7, concurrency=concurrency)
        run = anyio.run(runner.run, backend=backend)
        return sorted((call.task, call.tool, call.call_index, call.fault) for call in run.faults)

    first = struck(cases, 1)

    assert 5 < len(first) < 35
    assert struck(cases, 20) == first
    assert struck(cases[::-1], 3) == first
