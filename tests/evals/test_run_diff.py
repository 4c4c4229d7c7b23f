"""What counts as worse when two runs are compared, and how much worse a run may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import HookUsageError
from hookline.evals import DiffThresholds, RunDiff, SavedRun, TaskResult, Trajectory, diff_runs


def result(task: str = "tea", **given: Any) -> TaskResult:
    """A task that ran; it passed unless its score is below 1."""
    score = given.get("score", 1.0)
    fields: dict[str, Any] = {
        "suite": "shop",
        "task_id": task,
        "prompt": "",
        "operation_id": task,
        "utility": None if score is None else score == 1,
        "reason": "done",
        "error": None,
        "steps": 1,
        "tool_calls": 0,
        "mocked": 0,
        "failed": 0,
        "tools_run": 0,
        "forbidden": 0,
        "hook_executions": 0,
        "hook_time_ms": 0.0,
        "duration_ms": 0.0,
        "tool_results": [],
        "output": "",
        "trajectory": Trajectory(steps=[], output="", reason="done"),
        "score": score,
    }
    return TaskResult(**{**fields, **given})


def run(*results: TaskResult, not_run: Sequence[str] = (), mode: Any = "spy") -> SavedRun:
    return SavedRun(
        format="hookline-run",
        version=1,
        hookline="0",
        saved_at="",
        targets=[],
        mode=mode,
        seed=0,
        duration_ms=0.0,
        results=list(results),
        not_run=list(not_run),
    )


def diff(before: TaskResult, after: TaskResult, **limits: Any) -> RunDiff:
    return diff_runs(run(before), run(after), thresholds=DiffThresholds(**limits))


def test_a_task_that_is_gone_is_worse_unless_it_may_be_missing() -> None:
    before, after = run(result("tea"), result("milk")), run(result("tea"))

    gone = diff_runs(before, after)
    allowed = diff_runs(before, after, thresholds=DiffThresholds(allow_missing=True))

    assert [(task.task, task.change, task.problems) for task in gone.worse] == [
        ("shop/milk", "gone", ["ran in A and is missing in B"])
    ]
    assert (allowed.ok, allowed.declines) == (True, ["1 task is missing"])


@pytest.mark.parametrize("before", [run(result()), run(), run(not_run=["shop/tea"])], ids=["ran", "new", "not run"])
def test_a_task_that_an_interrupted_run_did_not_reach_is_worse_whether_or_not_it_is_new(before: SavedRun) -> None:
    found = diff_runs(before, run(not_run=["shop/tea"]))

    assert [(task.task, task.change) for task in found.worse] == [("shop/tea", "not run")]
    assert not found.ok


def test_tasks_that_the_earlier_run_did_not_reach_are_named_and_not_compared() -> None:
    found = diff_runs(run(result("tea"), not_run=["shop/milk", "shop/silk"]), run(result("tea"), result("milk")))

    assert found.not_compared == ["shop/silk"]
    assert [(task.task, task.change) for task in found.tasks] == [("shop/tea", "same"), ("shop/milk", "new")]
    assert found.ok


def test_runs_without_a_common_task_have_nothing_that_was_compared() -> None:
    other = diff_runs(run(), run(result()))
    nothing = diff_runs(run(), run())
    elsewhere = diff_runs(run(result("tea")), run(result("milk")))

    assert [len(each.compared) for each in (other, nothing, elsewhere)] == [0, 0, 0]
    assert [each.ok for each in (other, nothing, elsewhere)] == [True, True, False]


def test_a_score_that_falls_is_worse_though_the_task_failed_before() -> None:
    found = diff(result(score=0.9), result(score=0.1))

    assert [task.problems for task in found.worse] == [["its score fell from 0.9 to 0.1"]]


@pytest.mark.parametrize(("limit", "ok"), [(0.1, True), (0.0999, False), (1, True)])
def test_a_score_may_fall_by_its_limit_and_no_further_whatever_binary_fractions_make_of_it(
    limit: float, ok: bool
) -> None:
    found = diff(result(score=0.8), result(score=0.7), max_score_drop=limit)

    assert 0.8 - 0.7 > 0.1
    assert found.ok is ok
    assert found.declines == (["1 task scores less"] if ok else [])


def test_a_graded_task_may_fail_within_its_limit_and_a_broken_one_may_not() -> None:
    limits = {"max_score_drop": 0.5}

    graded = diff(result(), result(score=0.6), **limits)
    broken = diff(result(), result(score=0.6, reason="error", error="Boom"), **limits)

    assert (graded.ok, graded.declines) == (True, ["1 task that passed fails"])
    assert [task.problems for task in broken.worse] == [
        ["passed in A and fails in B: the run ended with reason 'error': Boom"]
    ]


def test_a_task_that_broke_is_worse_though_it_failed_before_and_has_no_score_now() -> None:
    found = diff(result(score=0.9), result(score=None, reason="error"), max_score_drop=1)

    assert [task.change for task in found.worse] == ["worse"]


def test_a_task_that_is_no_longer_judged_is_worse_unless_it_may_be_missing() -> None:
    before, after = result(), result(score=None)

    assert diff(before, after).worse[0].problems == ["was judged in A and is not judged in B"]
    assert diff(before, after, allow_missing=True).declines == ["1 task is no longer judged"]


def test_means_have_limits_of_their_own_so_that_single_tasks_may_vary() -> None:
    before = run(*(result(str(n), cost_usd=1.0, tool_calls=10) for n in range(10)))
    worse = [result("0", score=0.0, cost_usd=2.0, tool_calls=20)]
    after = run(*worse, *(result(str(n), cost_usd=1.0, tool_calls=10) for n in range(1, 10)))

    def found(**limits: Any) -> list[str]:
        return diff_runs(before, after, thresholds=DiffThresholds(max_mean_score_drop=0.1, **limits)).problems

    assert found() == []
    assert found(max_mean_cost_increase="10%", max_mean_calls_increase=1) == []
    assert found(min_mean_score=0.91) == ["The mean score of B is 0.9, and 0.91 is the least"]
    assert found(max_mean_cost_increase="9%") == ["The mean cost of a task rose from 1 to 1.1 USD"]
    assert found(max_mean_calls_increase=0.9) == ["The mean number of tool calls of a task rose from 10 to 11"]
    assert diff_runs(before, after, thresholds=DiffThresholds(max_mean_score_drop=0.09)).problems == [
        "The mean score fell from 1 to 0.9"
    ]


@pytest.mark.parametrize(
    ("limit", "ok"), [(None, True), (0.5, True), (0.49, False), ("25%", True), ("24%", False), (0, False)]
)
def test_a_task_may_cost_more_by_an_amount_or_by_a_share(limit: float | str | None, ok: bool) -> None:
    found = diff(result(cost_usd=2.0), result(cost_usd=2.5), max_cost_increase=limit)

    assert found.ok is ok
    assert found.declines == (["1 task costs more money, by 0.5 USD in all"] if ok else [])


def test_what_cost_nothing_may_cost_no_share_more() -> None:
    found = diff(result(), result(cost_usd=27.0, tool_calls=3), max_cost_increase="1000%", max_calls_increase="1000%")

    assert found.worse[0].problems == ["costs 27 USD after 0", "makes 3 tool calls after 0"]


def test_a_least_score_is_asked_of_new_tasks_too_and_somebody_must_have_a_score() -> None:
    limits = DiffThresholds(min_score=0.5)

    low = diff_runs(run(result("a")), run(result("a"), result("b", score=0.4)), thresholds=limits)
    none = diff_runs(run(result(score=None)), run(result(score=None)), thresholds=limits)

    assert [(task.task, task.problems) for task in low.worse] == [("shop/b", ["scores 0.4, and 0.5 is the least"])]
    assert none.problems == ["No task of B has a score, and a least score is asked for"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"min_score": 1.1}, "`min_score`: a score is a number from 0 to 1, such as 0.05; got 1.1."),
        ({"min_mean_score": math.nan}, "`min_mean_score`: a score is a number from 0 to 1"),
        ({"max_score_drop": True}, "`max_score_drop`: a score is a number from 0 to 1"),
        ({"max_mean_score_drop": "x"}, "`max_mean_score_drop`: a score is a number"),
        ({"max_cost_increase": -1}, "`max_cost_increase`: an increase is a number from 0, such as 0.02, or a share"),
        ({"max_calls_increase": "%"}, "`max_calls_increase`: an increase is a number from 0"),
        ({"max_calls_increase": math.inf}, "`max_calls_increase`: an increase is a number from 0"),
        ({"allow_missing": "no"}, "`allow_missing` is True or False; got 'no'."),
    ],
)
def test_a_threshold_that_is_none_is_refused_and_says_what_one_is(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(HookUsageError) as refused:
        DiffThresholds(**limits)

    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (run(result(), result()), "it has the task 'shop/tea' twice"),
        (run(result(), not_run=["shop/tea"]), "it has the task 'shop/tea' twice"),
        (run(result(score=math.nan)), "the score of 'shop/tea' is nan, which is not a number from 0 to 1"),
        (run(result(score=1.5)), "the score of 'shop/tea' is 1.5"),
        (run(result(cost_usd=math.nan)), "the cost of 'shop/tea' is nan"),
        (run(result(cost_usd=-1.0)), "the cost of 'shop/tea' is -1.0"),
        (run(result(tool_calls=-1)), "'shop/tea' has -1 tool calls"),
    ],
)
def test_runs_that_contradict_themselves_are_not_compared(broken: SavedRun, said: str) -> None:
    for pair, name in (((broken, run()), "A"), ((run(), broken), "B")):
        with pytest.raises(HookUsageError) as refused:
            diff_runs(*pair)
        assert str(refused.value).startswith(f"Run {name} cannot be compared: {said}")


SCORES = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0])
RESULTS = st.builds(
    result,
    st.sampled_from("abc"),
    score=SCORES,
    cost_usd=st.sampled_from([0.0, 0.1, 0.3]),
    tool_calls=st.integers(0, 3),
    reason=st.sampled_from(["done", "done", "error"]),
)
LISTS = st.lists(RESULTS, max_size=3, unique_by=lambda each: each.task_id)
LIMITS = st.builds(
    DiffThresholds,
    min_score=SCORES,
    min_mean_score=SCORES,
    max_score_drop=SCORES,
    max_mean_score_drop=SCORES,
    max_cost_increase=st.none() | st.sampled_from([0, 0.1, "10%", "200%"]),
    max_mean_cost_increase=st.none() | st.sampled_from([0, 0.1, "10%", "200%"]),
    max_calls_increase=st.none() | st.sampled_from([0, 1, "50%"]),
    max_mean_calls_increase=st.none() | st.sampled_from([0, 1, "50%"]),
    allow_missing=st.booleans(),
)


@given(LISTS, LISTS, LIMITS)
def test_nothing_got_worse_is_never_said_when_something_did(
    before: list[TaskResult], after: list[TaskResult], limits: DiffThresholds
) -> None:
    found = diff_runs(run(*before), run(*after), thresholds=limits)

    if found.ok and not found.declines:
        later = {each.task_id: each for each in after}
        for a in before:
            b = later[a.task_id]
            assert b.ok or not a.ok
            assert a.score is None or (b.score is not None and b.score >= a.score) or not a.sound
            assert (b.cost_usd, b.tool_calls) <= (a.cost_usd, math.inf)
            assert b.tool_calls <= a.tool_calls


@given(LISTS, LISTS, LIMITS, st.sampled_from(DiffThresholds.__struct_fields__))
def test_taking_a_limit_away_never_makes_a_run_worse(
    before: list[TaskResult], after: list[TaskResult], limits: DiffThresholds, name: str
) -> None:
    loose: Any = True if name == "allow_missing" else 1 if name == "max_score_drop" else None
    if name == "max_mean_score_drop" and limits.max_score_drop is None:
        loose = 1  # without it no score may fall
    looser = msgspec.structs.replace(limits, **{name: loose})

    tight, wide = (diff_runs(run(*before), run(*after), thresholds=each) for each in (limits, looser))

    assert wide.ok or not tight.ok
