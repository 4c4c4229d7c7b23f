"""The verdict counts each task once, and agrees with the exit code."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.cli.eval import Evaluation
from hookline.evals import SuiteRun, compare
from hookline.evals.reports import judge_runs
from hookline.evals.suites import checks

from .shop import ask_for_tea, order_tea, run_suite

TEA = run_suite([ask_for_tea(checks=[checks.output_contains("EUR")])])
UNCHECKED = run_suite([ask_for_tea()])


def run_with(*, failed: int = 0, passed: int = 0, unchecked: int = 0, not_run: int = 0) -> SuiteRun:
    good, plain = TEA.results[0], UNCHECKED.results[0]
    rows = (
        [(good, {"utility": False}, "bad")] * failed
        + [(good, {}, "good")] * passed
        + [(plain, {}, "plain")] * unchecked
    )
    results = [
        msgspec.structs.replace(row, task_id=f"{name}{number}", **changes)
        for number, (row, changes, name) in enumerate(rows)
    ]
    return replace(TEA, results=results, not_run=[f"shop/left{number}" for number in range(not_run)])


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (run_with(passed=2), "Passed: 2 of 2 tasks."),
        (run_with(passed=1), "Passed: 1 of 1 task."),
        (run_with(passed=1, unchecked=2), "Passed: 1 of 3 tasks; 2 had no verdict."),
        (run_with(passed=1, failed=1), "Failed: 1 of 2 tasks passed; 1 failed: shop/bad0."),
        (run_with(failed=5), "Failed: 0 of 5 tasks passed; 5 failed: shop/bad0, shop/bad1, shop/bad2 and 2 more."),
        (run_with(passed=1, not_run=2), "Interrupted: 1 of 3 tasks passed; 2 did not run."),
        (run_with(failed=1, not_run=1), "Failed: 0 of 2 tasks passed; 1 failed: shop/bad0; 1 did not run."),
        (run_with(unchecked=1), "Not judged: 0 of 1 task passed; 1 had no verdict."),
        (run_with(), "Not judged: no task ran."),
    ],
)
def test_the_verdict_is_one_sentence_with_counts_and_names(run: SuiteRun, said: str) -> None:
    assert str(judge_runs([run])) == said


def test_a_task_that_fails_at_times_did_not_pass_and_counts_once() -> None:
    good, other = run_with(passed=2).results
    bad = msgspec.structs.replace(good, attempt=2, utility=False)
    again = msgspec.structs.replace(other, attempt=2)

    verdict = judge_runs([replace(TEA, results=[good, other, bad, again])])

    assert (
        str(verdict)
        == "Failed: 1 of 2 tasks passed in every attempt; 1 passed in some attempts: shop/good0; 3 of 4 attempts passed."
    )
    assert (
        str(judge_runs([replace(TEA, results=[other, again])]))
        == "Passed: 1 of 1 task in every attempt; 2 of 2 attempts passed."
    )


def test_a_task_counts_once_for_each_model() -> None:
    [good] = run_with(passed=1).results
    small = msgspec.structs.replace(good, model="small", utility=False)
    large = msgspec.structs.replace(good, model="large")

    verdict = judge_runs([replace(TEA, results=[small, large])])

    assert str(verdict) == "Failed: 1 of 2 tasks passed; 1 failed: shop/good0 (small)."


def test_a_task_with_another_answer_in_the_replay_did_not_pass() -> None:
    run = run_with(passed=2)
    changed = msgspec.structs.replace(run.results[0], output="another", mocked=1)
    replayed = replace(run, mode="replayed", results=[changed, msgspec.structs.replace(run.results[1], mocked=1)])

    verdict = judge_runs([run, replayed], compare(run, replayed))

    assert str(verdict) == "Failed: 1 of 2 tasks passed; 1 gave different results in the replay: shop/good0."


def test_an_equal_replay_judges_tasks_without_checks() -> None:
    run = run_with(unchecked=1)
    replayed = replace(run, mode="replayed", results=[msgspec.structs.replace(run.results[0], mocked=1)])

    assert str(judge_runs([run, replayed], compare(run, replayed))) == (
        "Passed: 1 of 1 task; the replay gave the same results."
    )


@given(failed=st.integers(0, 4), passed=st.integers(0, 4), unchecked=st.integers(0, 4), not_run=st.integers(0, 4))
def test_the_verdict_agrees_with_the_exit_code(failed: int, passed: int, unchecked: int, not_run: int) -> None:
    run = run_with(failed=failed, passed=passed, unchecked=unchecked, not_run=not_run)
    evaluation = Evaluation(targets=["shop"], runs=[run], comparison=None)

    verdict = judge_runs([run])

    assert verdict.good == (evaluation.ok and evaluation.judged)
    assert (verdict.outcome == "Failed") == (failed > 0)


def test_runs_of_tasks_in_any_order_have_one_verdict() -> None:
    run = run_with(failed=1, passed=2)

    assert judge_runs([replace(run, results=run.results[::-1])]) == judge_runs([run])
    assert order_tea().id not in judge_runs([run]).sentence


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ({"tea": (1, 1), "milk": (1, 1)}, "Passed: 2 of 2 tasks in every attempt; 4 of 4 attempts passed."),
        (
            {"tea": (1, 0), "milk": (1, 1), "silk": (0, 0)},
            "Failed: 1 of 3 tasks passed in every attempt; 1 passed in some attempts: shop/tea; 1 failed in every "
            "attempt: shop/silk; 3 of 6 attempts passed.",
        ),
    ],
)
def test_with_repeats_tasks_that_passed_in_some_attempts_are_named(
    passes: dict[str, tuple[int, ...]], said: str
) -> None:
    results = [
        msgspec.structs.replace(TEA.results[0], task_id=name, attempt=number, utility=bool(passed))
        for name, attempts in passes.items()
        for number, passed in enumerate(attempts, start=1)
    ]

    assert str(judge_runs([replace(TEA, results=results)])) == said
