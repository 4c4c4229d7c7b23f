"""Means with intervals that contain the truth, rates over attempts, and the figures of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibration import exact_coverage
from hookline.calls import Usage
from hookline.errors import HookUsageError
from hookline.evals import (
    CheckResult,
    Percentiles,
    RunStatistics,
    SavedRun,
    TaskResult,
    estimate_mean,
    pass_at_k,
    pass_hat_k,
)

from .test_run_diff import result, run

SCORES = st.lists(st.integers(0, 1000).map(lambda score: score / 1000), min_size=1, max_size=40)


def rows(*scores: float, task: str = "tea", **given: Any) -> list[TaskResult]:
    """The attempts of a task."""
    return [result(task, attempt=number, score=score, **given) for number, score in enumerate(scores, start=1)]


@pytest.mark.parametrize(
    ("passes", "count", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_the_interval_of_a_pass_rate_is_wilsons(passes: int, count: int, low: float, high: float) -> None:
    estimate = estimate_mean([1.0] * passes + [0.0] * (count - passes))

    assert estimate is not None
    assert (estimate.mean, estimate.count) == (passes / count, count)
    assert (estimate.low, estimate.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@pytest.mark.parametrize("count", [10, 20, 50, 100, 200])
def test_it_contains_the_truth_in_95_percent_and_nowhere_in_less_than_89_from_20_tasks(count: int) -> None:
    mean, least, _ = exact_coverage(count, shares=[0.02 + 0.004 * step for step in range(241)])

    assert mean == pytest.approx(0.95, abs=0.015)
    assert count < 20 or least >= 0.89


@given(SCORES)
def test_an_interval_contains_its_mean_and_stays_between_0_and_1(scores: list[float]) -> None:
    estimate = estimate_mean(scores)

    assert estimate is not None
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1
    assert estimate.high - estimate.low > 0.5 / len(scores)
    assert estimate.mean == pytest.approx(sum(scores) / len(scores))


@given(SCORES)
def test_the_interval_of_complementary_scores_is_the_mirror_image(scores: list[float]) -> None:
    one, other = estimate_mean(scores), estimate_mean(1 - score for score in scores)

    assert one is not None
    assert other is not None
    assert (one.low, one.high) == (pytest.approx(1 - other.high), pytest.approx(1 - other.low))


def test_scores_that_hardly_vary_have_a_narrower_interval_than_passes_but_never_none() -> None:
    passes = estimate_mean([1.0] * 8 + [0.0] * 2)
    graded = estimate_mean([0.75, 0.85] * 5)
    equal = estimate_mean([0.8] * 10)

    assert passes is not None
    assert graded is not None
    assert equal is not None
    widths = [each.high - each.low for each in (passes, graded, equal)]
    assert widths == sorted(widths, reverse=True)
    assert widths[2] > 0.1


def test_no_scores_have_no_mean_and_what_is_no_score_is_refused() -> None:
    assert estimate_mean([]) is None
    for wrong in (1.1, -0.1, math.nan, math.inf):
        with pytest.raises(HookUsageError, match="A score is a number from 0 to 1"):
            estimate_mean([0.5, wrong])


@given(st.lists(st.tuples(st.integers(0, 1000).map(lambda score: score / 1000), st.integers(1, 9)), min_size=1))
def test_a_weighted_mean_is_that_of_repeated_scores_with_an_interval_of_fewer_tasks(
    pairs: list[tuple[float, int]],
) -> None:
    scores, weights = [score for score, _ in pairs], [weight for _, weight in pairs]
    repeated = [score for score, weight in pairs for _ in range(weight)]

    found, alike, plain = (
        estimate_mean(scores, weights),
        estimate_mean(scores, [7.0] * len(scores)),
        estimate_mean(scores),
    )

    assert found is not None
    assert found.mean == pytest.approx(sum(repeated) / len(repeated))
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.count == len(scores)
    assert alike is not None
    assert plain is not None
    assert (alike.mean, alike.low, alike.high) == (
        pytest.approx(plain.mean),
        pytest.approx(plain.low),
        pytest.approx(plain.high),
    )


def test_the_interval_of_a_task_that_weighs_all_is_that_of_one_task() -> None:
    found, one = estimate_mean([1.0, *[0.0] * 9], [1e9, *[1.0] * 9]), estimate_mean([1.0])

    assert found is not None
    assert one is not None
    assert (found.low, found.high) == (pytest.approx(one.low, abs=1e-3), pytest.approx(one.high, abs=1e-3))


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan, True])
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(HookUsageError, match="A weight is a number above 0"):
        estimate_mean([0.5, 0.5], [1, weight])


@given(st.integers(1, 8), st.data())
def test_pass_at_k_and_pass_hat_k_are_the_shares_of_all_choices_of_k_attempts(attempts: int, data: Any) -> None:
    passes, k = data.draw(st.integers(0, attempts)), data.draw(st.integers(1, attempts))
    chosen = list(combinations([1] * passes + [0] * (attempts - passes), k))

    assert pass_at_k(attempts, passes, k) == pytest.approx(sum(any(each) for each in chosen) / len(chosen))
    assert pass_hat_k(attempts, passes, k) == pytest.approx(sum(all(each) for each in chosen) / len(chosen))


@pytest.mark.parametrize("numbers", [(3, 4, 1), (3, -1, 1), (3, 2, 0), (3, 2, 4), (0, 0, 1), (3, True, 1), (3.0, 2, 1)])
def test_impossible_numbers_of_attempts_are_refused(numbers: tuple[Any, Any, Any]) -> None:
    for rate in (pass_at_k, pass_hat_k):
        with pytest.raises(HookUsageError, match="`passes` is from 0 to `attempts`"):
            rate(*numbers)


def test_percentiles_are_interpolated_between_the_values() -> None:
    found = Percentiles.of([40.0, 10.0, 30.0, 20.0])

    assert (found.total, found.mean, found.p50, found.max) == (100.0, 25.0, 25.0, 40.0)
    assert (found.p90, found.p99) == (pytest.approx(37.0), pytest.approx(39.7))
    assert Percentiles.of([]).max == 0
    assert Percentiles.of([7.0]).p99 == 7.0


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_rise_and_stay_among_the_values(values: list[float]) -> None:
    found = Percentiles.of(values)

    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.max == max(values)


def statistics(*results: TaskResult, **given: Any) -> RunStatistics:
    return RunStatistics.of(run(*results, **given))


def test_mean_scores_count_tasks_by_their_weight_and_shares_of_passes_do_not() -> None:
    check = [CheckResult(name="friendly", passed=True, score=1.0)]
    other = [CheckResult(name="friendly", passed=False, score=0.0, why="rude")]
    [model] = statistics(
        *rows(1.0, task="tea", weight=3.0, tags=["x"], checks=check),
        *rows(0.0, task="milk", tags=["x"], checks=other),
    ).models

    assert model.weighted
    assert model.score is not None
    assert model.passed is not None
    assert (model.score.mean, model.passed.mean) == (0.75, 0.5)
    assert (model.checks[0].score.mean, model.checks[0].passed.mean) == (0.75, 0.5)
    assert [(tag.score and tag.score.mean, tag.passed and tag.passed.mean) for tag in model.tags] == [(0.75, 0.5)]
    assert [(task.task, task.weight) for task in model.per_task] == [("shop/tea", 3.0), ("shop/milk", 1.0)]
    assert not statistics(*rows(1.0, weight=2.0), *rows(0.0, task="milk", weight=2.0)).models[0].weighted


def test_the_costs_of_judges_and_simulated_users_stand_beside_those_of_the_agent() -> None:
    judged = Usage(input_tokens=10, cost_usd=0.25)
    played = Usage(input_tokens=10, cost_usd=0.5)
    [model] = statistics(
        *rows(1.0, 1.0, cost_usd=1.0, judge_usage=judged, tags=["x"]),
        *rows(1.0, task="milk", cost_usd=1.0, user_usage=played),
    ).models

    assert [model.cost_usd.total, model.judge_cost_usd.total, model.user_cost_usd.total] == [3.0, 0.5, 0.5]
    assert (model.judge_cost_usd.max, model.judge_cost_usd.p50) == (0.25, 0.25)
    tea, milk = model.per_task
    assert (tea.cost_usd, tea.judge_cost_usd, tea.user_cost_usd) == (1.0, 0.25, 0.0)
    assert (milk.judge_cost_usd, milk.user_cost_usd) == (0.0, 0.5)
    assert [(tag.cost_usd, tag.judge_cost_usd, tag.user_cost_usd) for tag in model.tags] == [(2.0, 0.5, 0.0)]


def test_a_check_without_a_verdict_is_not_in_the_figures_of_the_check() -> None:
    [model] = statistics(
        *rows(1.0, checks=[CheckResult(name="friendly", passed=True, score=1.0)]),
        *rows(1.0, task="milk", checks=[CheckResult(name="friendly", passed=False, score=0.0, judged=False)]),
        *rows(1.0, task="cup", checks=[CheckResult(name="brief", passed=False, score=0.0, judged=False)]),
    ).models

    assert [(check.check, check.tasks, check.attempts, check.score.mean) for check in model.checks] == [
        ("friendly", 1, 1, 1.0)
    ]


def test_a_task_counts_once_however_often_it_was_repeated() -> None:
    (model,) = statistics(*rows(1, 1, 1, 1), *rows(0, 0, 0, 0, task="milk")).models

    assert model.passed is not None
    assert (model.attempts, model.passes, model.passed.mean, model.passed.count) == (8, 4, 0.5, 2)
    assert model.passed == model.score == estimate_mean([1.0, 0.0])


def test_the_rates_over_attempts_are_means_over_tasks() -> None:
    found = statistics(*rows(1, 0), *rows(1, 1, task="milk"), *rows(0, 0, task="silk"), *rows(0, 1, task="rice"))

    (model,) = found.models
    assert found.repeats == 2
    assert {k: each.mean for k, each in model.pass_at_k.items()} == {1: 0.5, 2: 0.75}
    assert {k: each.mean for k, each in model.pass_hat_k.items()} == {1: 0.5, 2: 0.25}
    assert model.flaky == ["shop/tea", "shop/rice"]
    assert [task.passed.mean for task in model.per_task if task.passed] == [0.5, 1.0, 0.0, 0.5]


def test_tasks_with_fewer_attempts_do_not_count_for_a_larger_k() -> None:
    (model,) = statistics(*rows(0, 0, 1), *rows(1, task="milk")).models

    assert {k: each.count for k, each in model.pass_at_k.items()} == {1: 2, 2: 1, 3: 1}
    assert model.pass_at_k[3].mean == 1.0


def test_an_attempt_that_broke_scores_0_and_one_that_nothing_judged_does_not_count() -> None:
    broken = result("tea", score=0.9, utility=False, reason="error", error="Boom")
    refused = result("milk", score=1.0, forbidden=1)
    unjudged = result("silk", score=None)

    (model,) = statistics(broken, refused, unjudged).models

    assert (model.attempts, model.judged, model.passes) == (3, 2, 0)
    assert model.score is not None
    assert model.score.mean == 0.0
    assert [task.failure for task in model.per_task] == [
        "the run ended with reason 'error': Boom",
        "1 calls were about to run a forbidden tool",
        "",
    ]
    assert (model.per_task[2].passed, model.per_task[2].score) == (None, None)


def test_a_recording_judges_tasks_without_checks_in_a_replay() -> None:
    unchecked = result(score=None, mocked=1)

    (spied,) = statistics(unchecked).models
    (replayed,) = statistics(unchecked, mode="replay").models

    assert (spied.judged, replayed.judged, replayed.passes) == (0, 1, 1)


def test_checks_and_tags_have_figures_of_their_own() -> None:
    polite, called = (CheckResult(name=name, passed=False, score=0.5) for name in ("polite", "called"))
    good = CheckResult(name="polite", passed=True, score=1.0)

    (model,) = statistics(
        result("tea", checks=[polite, called], tags=["drink", "drink"], score=0.5, cost_usd=1.0),
        result("tea", attempt=2, checks=[good, called], tags=["drink"], score=0.75, cost_usd=2.0),
        result("milk", checks=[good], tags=["drink", "cold"], score=1.0, cost_usd=4.0),
    ).models

    assert [(check.check, check.tasks, check.attempts) for check in model.checks] == [
        ("polite", 2, 3),
        ("called", 1, 2),
    ]
    assert (model.checks[0].passed.mean, model.checks[0].score.mean) == (0.75, 0.875)
    assert [(tag.tag, tag.tasks, tag.attempts, tag.cost_usd) for tag in model.tags] == [
        ("drink", 2, 3, 7.0),
        ("cold", 1, 1, 4.0),
    ]


def test_models_have_figures_of_their_own_and_so_have_costs_tokens_and_latency() -> None:
    found = statistics(
        result(model="small", score=0.0, cost_usd=1.0, duration_ms=10.0, input_tokens=100, output_tokens=5),
        result(model="large", cost_usd=3.0, duration_ms=30.0),
        result("milk", model="small", cost_usd=2.0, duration_ms=20.0, input_tokens=300),
    )

    small, large = found.models
    assert (small.model, small.tasks, large.model, large.tasks) == ("small", 2, "large", 1)
    assert (small.cost_usd.total, small.duration_ms.p50, small.input_tokens.mean) == (3.0, 15.0, 200.0)
    assert (small.output_tokens.max, large.cost_usd.max) == (5.0, 3.0)
    assert found.repeats == 1


def test_a_run_without_results_has_no_models() -> None:
    assert statistics() == RunStatistics(repeats=0, models=[])


class ReadOnce(list[TaskResult]):
    """Results that can be read once, as a file is."""

    def __iter__(self) -> Iterator[TaskResult]:
        yield from super().__iter__()
        self.clear()


def test_the_results_are_read_once() -> None:
    saved = run()
    once = SavedRun(
        **{name: getattr(saved, name) for name in saved.__struct_fields__} | {"results": ReadOnce(rows(1, 0))}
    )

    (model,) = RunStatistics.of(once).models

    assert (model.attempts, list(once.results)) == (2, [])


@pytest.mark.parametrize(("score", "counted"), [(math.nan, 0.0), (7.0, 1.0), (-1.0, 0.0), (math.inf, 1.0)])
def test_scores_that_checks_cannot_give_do_not_break_the_figures(score: float, counted: float) -> None:
    odd = CheckResult(name="odd", passed=True, score=score)

    (model,) = statistics(result(score=score, utility=True, checks=[odd])).models

    assert model.score is not None
    assert (model.score.mean, model.checks[0].score.mean) == (counted, counted)
