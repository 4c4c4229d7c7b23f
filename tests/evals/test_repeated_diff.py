"""What counts as worse when tasks were repeated, when models are compared, and when the paired test is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from hookline import ToolRequest
from hookline.errors import HookUsageError
from hookline.evals import (
    DiffThresholds,
    RunDiff,
    SavedRun,
    TaskResult,
    Trajectory,
    TrajectoryStep,
    diff_runs,
    paired_test,
)
from hookline.evals.reports import judge_diff

from .test_run_diff import result, run


def attempts(task: str, *scores: float | None, **given: Any) -> list[TaskResult]:
    """The attempts of a task."""
    return [result(task, attempt=number, score=score, **given) for number, score in enumerate(scores, start=1)]


def saved(*tasks: Sequence[TaskResult], **given: Any) -> SavedRun:
    results = [each for task in tasks for each in task]
    made = run(*results, not_run=given.pop("not_run", ()))
    repeat = max((each.attempt for each in results), default=1)
    return msgspec.structs.replace(made, **{"repeat": repeat, "version": 2, **given})


STEADY = [attempts(f"steady-{number}", 1, 1, 1, 1, 1) for number in range(8)]


def test_a_task_that_failed_once_more_by_chance_is_not_worse() -> None:
    before, after = attempts("tea", 1, 1, 1, 0, 1), attempts("tea", 1, 0, 1, 0, 1)

    found = diff_runs(saved(before, *STEADY), saved(after, *STEADY))

    task = found.tasks[0]
    assert (found.ok, found.paired, found.cannot_tell) == (True, True, True)
    assert (task.change, task.passes, task.attempts, task.flaky) == ("lower", (4, 3), (5, 5), (True, True))
    assert (task.score, task.passed, found.flaky) == ((0.8, 0.6), (False, False), ["shop/tea"])
    assert found.test == paired_test([([1, 1, 1, 0, 1], [1, 0, 1, 0, 1]), *[([1.0] * 5, [1.0] * 5)] * 8])


def test_scores_that_fall_by_more_than_chance_make_the_run_worse() -> None:
    found = diff_runs(saved(attempts("tea", 1, 1, 1, 1, 1), *STEADY), saved(attempts("tea", 0, 0, 0, 0, 0), *STEADY))

    assert not found.ok
    assert found.problems == [found.test and found.test.sentence.removesuffix(".")]
    assert found.problems[0].startswith("The mean score of 9 tasks fell from 1.000 to 0.889")
    assert (found.worse, found.explanation) == ([], "")
    assert judge_diff(found).headline == "The run as a whole got worse"


def test_scores_may_fall_by_what_the_mean_may() -> None:
    a, b = saved(attempts("tea", 1, 1, 1, 1, 1), *STEADY), saved(attempts("tea", 0, 0, 0, 0, 0), *STEADY)

    allowed = diff_runs(a, b, thresholds=DiffThresholds(max_mean_score_drop=0.2))
    refused = diff_runs(a, b, thresholds=DiffThresholds(max_mean_score_drop=0.1))

    assert (allowed.ok, judge_diff(allowed).headline) == (True, "Worse, but by no more than allowed")
    assert refused.problems == ["The mean score fell from 1 to 0.8889"]


def noisy(fallen: float) -> SavedRun:
    """Twenty tasks that vary, among which one passes less often."""
    others = [attempts(f"noisy-{number}", *([1, 0] * 5)) for number in range(20)]
    return saved(attempts("tea", *[1] * 10 if not fallen else [0] * 10), *others)


def test_a_single_task_that_broke_is_worse_though_the_others_vary_too_much_to_tell() -> None:
    found = diff_runs(noisy(0), noisy(1))

    assert found.test is not None
    assert found.test.verdict == "cannot tell"
    assert [(task.task, task.change) for task in found.worse] == [("shop/tea", "worse")]
    assert found.worse[0].problems[0].startswith("passed 10 of 10 attempts in A and 0 of 10 in B (p = 0.00011)")
    assert (found.ok, found.cannot_tell, found.explanation) == (False, False, found.test.sentence)


@pytest.mark.parametrize(
    ("limits", "ok"),
    [({"max_score_drop": 1}, True), ({"max_score_drop": 0.9}, False), ({"max_mean_score_drop": 0.1}, True)],
)
def test_limits_of_single_tasks_and_of_the_mean_go_before_the_test_of_single_tasks(
    limits: dict[str, float], ok: bool
) -> None:
    assert diff_runs(noisy(0), noisy(1), thresholds=DiffThresholds(**limits)).ok is ok


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"min_score": 0.7}, "scores 0.6, and 0.7 is the least"),
        ({"max_score_drop": 0.1}, "its mean score fell from 0.8 to 0.6"),
        ({"max_cost_increase": "10%"}, "costs 1.5 USD after 1"),
        ({"max_calls_increase": 1}, "makes 4 tool calls after 2"),
    ],
)
def test_limits_of_a_task_hold_for_the_means_of_its_attempts(limits: dict[str, Any], problem: str) -> None:
    before = attempts("tea", 1, 1, 1, 0, 1, cost_usd=1.0, tool_calls=2)
    after = attempts("tea", 1, 0, 1, 0, 1, cost_usd=1.5, tool_calls=4)

    found = diff_runs(saved(before), saved(after), thresholds=DiffThresholds(**limits))

    assert [task.problems for task in found.worse] == [[problem]]
    assert diff_runs(saved(before), saved(after)).declines == [
        "an attempt costs 0.5 USD more in the mean",
        "an attempt makes 2 more calls in the mean",
    ]


def test_missing_tasks_and_missing_attempts_are_worse_unless_they_may_be_missing() -> None:
    a = saved(attempts("tea", 1, 1), attempts("milk", 1, 1))
    b = saved(attempts("tea", 1), repeat=2, not_run=["shop/tea"])

    found, allowed = diff_runs(a, b), diff_runs(a, b, thresholds=DiffThresholds(allow_missing=True))

    assert [(task.task, task.problems) for task in found.worse] == [
        ("shop/tea", ["was interrupted in B after 1 of 2 attempts"]),
        ("shop/milk", ["ran in A and is missing in B"]),
    ]
    assert (allowed.ok, allowed.declines) == (True, ["2 tasks are missing"])


def test_a_task_that_is_no_longer_judged_is_worse_with_repeats_too() -> None:
    found = diff_runs(saved(attempts("tea", 1, 1)), saved(attempts("tea", None, None)))

    assert [task.problems for task in found.worse] == [["was judged in A and is not judged in B"]]
    assert (found.test, found.judged) == (None, False)


def test_runs_may_have_different_numbers_of_attempts() -> None:
    found = diff_runs(saved(attempts("tea", 1, 1, 1)), saved(attempts("tea", 0)))

    assert (found.paired, found.tasks[0].attempts, found.test and found.test.attempts) == (True, (3, 1), (3, 1))


def single(*scores: float) -> SavedRun:
    return run(*(result(f"t{number}", score=score) for number, score in enumerate(scores)))


def test_one_attempt_each_is_compared_task_by_task_unless_the_paired_test_is_asked_for() -> None:
    a, b = single(1, 1, 1, 0), single(1, 1, 0, 1)

    strict, tested = diff_runs(a, b), diff_runs(a, b, paired=True)

    assert (strict.ok, strict.paired, [task.task for task in strict.worse]) == (False, False, ["shop/t2"])
    assert (tested.ok, tested.paired, tested.cannot_tell) == (True, True, True)
    assert [task.change for task in tested.tasks] == ["same", "same", "lower", "higher"]
    assert strict.test == tested.test


def test_repeats_are_compared_task_by_task_if_the_paired_test_is_refused() -> None:
    found = diff_runs(saved(attempts("tea", 1, 1)), saved(attempts("tea", 1, 0)), paired=False)

    assert [task.problems for task in found.worse] == [["its mean score fell from 1 to 0.5"]]
    assert not found.cannot_tell


def test_a_run_that_broke_scores_0_in_the_paired_test() -> None:
    a = single(*[1.0] * 6)
    b = run(*(result(f"t{number}", score=None, reason="error", error="Boom") for number in range(6)))

    found = diff_runs(a, b, paired=True)

    assert (found.test and found.test.verdict, found.ok, found.score) == ("worse", False, (1.0, 0.0))


def test_a_replay_is_compared_with_another_replay_only() -> None:
    unchecked = [result(f"t{number}", score=None, mocked=1) for number in range(6)]
    checked, replayed = single(*[0.0] * 6), run(*unchecked, mode="replay")

    assert diff_runs(checked, replayed, paired=True).test is None
    assert diff_runs(replayed, replayed, paired=True).test == paired_test([([1.0], [1.0])] * 6)


def test_models_are_chosen_by_name_and_two_models_of_one_run_can_be_compared() -> None:
    both = saved(
        attempts("tea", 1, 1, 1, 1, model="large"),
        attempts("tea", 0, 0, 0, 0, model="small"),
        models=["large", "small"],
    )

    within = diff_runs(both, both, model=("large", "small"))
    same = diff_runs(both, both, model="small")

    assert (within.models, within.passed, within.attempts) == (("large", "small"), (4, 0), (4, 4))
    assert (within.ok, same.ok) == (False, True)
    assert diff_runs(saved(attempts("tea", 1, 1)), both, model=("", "large")).ok


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (None, "Run A has several models: large, small. Choose the one to compare"),
        ("medium", "Run A has no model 'medium': it has large, small"),
        (("large", ""), "Run B has no model '': it has large, small"),
    ],
)
def test_a_model_that_a_run_does_not_have_is_refused(model: Any, why: str) -> None:
    both = saved(attempts("tea", 1, model="large"), attempts("tea", 0, model="small"), models=["large", "small"])

    with pytest.raises(HookUsageError) as error:
        diff_runs(both, both, model=model)

    assert why in str(error.value)


def test_a_run_whose_own_model_answered_has_no_model_to_choose() -> None:
    with pytest.raises(HookUsageError, match="its suite's own model answered"):
        diff_runs(single(1), single(1), model="large")


def test_an_attempt_that_a_run_has_twice_cannot_be_compared() -> None:
    twice = saved([*attempts("tea", 1, 1), *attempts("tea", 1)])

    with pytest.raises(HookUsageError, match="Run B cannot be compared: it has the task 'shop/tea' twice"):
        diff_runs(saved(attempts("tea", 1)), twice)


def test_the_calls_of_an_attempt_that_failed_stand_beside_those_of_one_that_passed() -> None:
    def calling(*tools: str) -> dict[str, Any]:
        calls = [ToolRequest("order", {"item": tool}) for tool in tools]
        return {
            "trajectory": Trajectory(
                steps=[TrajectoryStep(content="", calls=calls, results=[])], output="", reason="done"
            )
        }

    before = [*attempts("tea", 1, **calling("tea")), result("tea", attempt=2, score=1.0, **calling("tea"))]
    after = [*attempts("tea", 1, **calling("tea")), result("tea", attempt=2, score=0.0, **calling("milk"))]

    (task,) = diff_runs(saved(before), saved(after)).tasks

    assert "tea" in task.alignment
    assert "milk" in task.alignment


def test_the_verdict_says_how_many_tasks_moved() -> None:
    def verdict(found: RunDiff) -> str:
        told = judge_diff(found)
        return f"{told.mark} {told.headline}{told.rest}"

    a = saved(attempts("tea", 1, 0), attempts("milk", 1, 1))

    assert verdict(diff_runs(a, saved(attempts("tea", 1, 1), attempts("milk", 1, 0)))) == (
        "? Cannot tell whether it got worse, 1 higher, 1 lower."
    )
    assert verdict(diff_runs(saved(attempts("tea", 1, 1)), saved(attempts("tea", 1, 1)))) == (
        "✓ The same scores, 0 higher, 0 lower."
    )
    better = diff_runs(saved(attempts("tea", *[0] * 5)), saved(attempts("tea", *[1] * 5), attempts("new", *[0] * 5)))
    assert verdict(better) == "✓ Better, 1 higher, 0 lower, 1 new failed."
    unjudged = saved(attempts("tea", None, None))
    assert verdict(diff_runs(unjudged, unjudged)) == "✗ Nothing was judged: no task has a score in both runs."


def weighed(tea: float, milk: float, *, weight: float) -> SavedRun:
    return saved(attempts("tea", tea, weight=weight), attempts("milk", milk))


@pytest.mark.parametrize(
    ("limits", "ok"),
    [
        ({"max_mean_score_drop": 0.11}, True),
        ({"max_mean_score_drop": 0.09}, False),
        ({"max_score_drop": 1.0, "min_mean_score": 0.89}, True),
        ({"max_score_drop": 1.0, "min_mean_score": 0.91}, False),
    ],
)
def test_limits_of_the_mean_count_tasks_by_the_weight_that_they_have_now(limits: dict[str, Any], ok: bool) -> None:
    found = diff_runs(weighed(1.0, 1.0, weight=1.0), weighed(1.0, 0.0, weight=9.0), thresholds=DiffThresholds(**limits))

    assert found.score == (1.0, 0.9)
    assert [task.weight for task in found.tasks] == [9.0, 1.0]
    assert found.ok == ok
    assert found.test is not None
    assert found.test.difference == pytest.approx(-0.1)
