"""The paired test of two runs: exact where it can be, rarely wrong about equal runs, and clear about what would tell."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calibration import WORKLOADS, count_alarms, power_of_advice
from hookline.errors import HookUsageError
from hookline.evals import PairedTest, paired_test
from hookline.evals.statistics import fisher_p_value

Pairs = list[tuple[list[float], list[float]]]


def once(*pairs: tuple[float, float]) -> Pairs:
    """Tasks with one attempt in each run."""
    return [([before], [after]) for before, after in pairs]


def moved(fell: int, rose: int, same: int = 0) -> PairedTest:
    """Compare tasks that pass or fail once."""
    return paired_test(once(*[(1, 0)] * fell, *[(0, 1)] * rose, *[(1, 1)] * same))


def exchanges(pairs: Pairs) -> float:
    """The p-value by going through all exchanges of attempts."""
    observed = abs(sum(sum(b) / len(b) - sum(a) / len(a) for a, b in pairs))
    of_tasks = []
    for a, b in pairs:
        both = [*a, *b]
        places = range(len(both))
        of_tasks.append(
            [
                sum(both[place] for place in chosen) / len(b)
                - sum(both[place] for place in places if place not in chosen) / len(a)
                for chosen in combinations(places, len(b))
            ]
        )
    totals = [abs(sum(each)) for each in product(*of_tasks)]
    return sum(total >= observed - 1e-9 for total in totals) / len(totals)


@pytest.mark.parametrize(("fell", "rose"), [(6, 0), (5, 0), (8, 1), (9, 3), (30, 14), (2, 2)])
def test_tasks_that_pass_or_fail_once_are_compared_by_mcnemars_exact_test(fell: int, rose: int) -> None:
    count = fell + rose
    tail = sum(math.comb(count, each) for each in range(min(fell, rose) + 1)) / 2**count

    found = moved(fell, rose, same=20)

    assert found.p_value == pytest.approx(min(1.0, 2 * tail))
    assert found.verdict == ("worse" if found.p_value <= 0.05 else "cannot tell")
    assert (found.fell, found.rose, found.tasks, found.attempts) == (fell, rose, count + 20, (count + 20,) * 2)


outcomes = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=2)
grades = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=3)


@given(st.lists(st.tuples(outcomes, outcomes), min_size=1, max_size=4))
def test_attempts_that_pass_or_fail_are_exchanged_in_all_ways(pairs: Pairs) -> None:
    expected = exchanges(pairs) if any(len({*a, *b}) > 1 for a, b in pairs) else 1.0

    assert paired_test(pairs).p_value == pytest.approx(expected)


@settings(max_examples=15)
@given(st.lists(st.tuples(grades, grades), min_size=1, max_size=3))
def test_graded_attempts_are_exchanged_at_random_and_agree_with_all_exchanges(pairs: Pairs) -> None:
    expected = exchanges(pairs) if any(len({*a, *b}) > 1 for a, b in pairs) else 1.0

    assert paired_test(pairs).p_value == pytest.approx(expected, abs=0.03)


@settings(max_examples=25)
@given(st.lists(st.tuples(grades, grades), min_size=1, max_size=6))
def test_exchanging_the_runs_turns_the_verdict_round(pairs: Pairs) -> None:
    forth, back = paired_test(pairs), paired_test([(b, a) for a, b in pairs])

    opposite = {"better": "worse", "worse": "better"}
    assert forth.difference == pytest.approx(-back.difference)
    assert (forth.rose, forth.fell) == (back.fell, back.rose)
    if abs(forth.p_value - 0.05) > 0.02:  # random exchanges
        assert opposite.get(forth.verdict, forth.verdict) == back.verdict
    assert -1 <= forth.low <= forth.difference + 1e-12
    assert forth.difference - 1e-12 <= forth.high <= 1


def test_the_interval_excludes_0_if_and_only_if_it_can_tell() -> None:
    for fell, rose in product(range(25), range(10)):
        found = moved(fell, rose, same=3)

        sides = {"worse": found.low < 0 >= found.high, "better": found.high > 0 <= found.low}
        assert sides.get(found.verdict, found.low <= 0 <= found.high), (fell, rose)


def test_one_task_that_breaks_outright_is_found_if_it_was_repeated() -> None:
    stable: Pairs = [([1.0] * 5, [1.0] * 5)] * 11

    broken = paired_test([*stable, ([1.0] * 5, [0.0] * 5)])
    unsure = paired_test([([1.0] * 2, [1.0] * 2)] * 11 + [([1.0] * 2, [0.0] * 2)])

    assert (broken.verdict, broken.p_value) == ("worse", pytest.approx(2 / math.comb(10, 5)))
    assert (unsure.verdict, unsure.p_value, unsure.repeats_needed) == ("cannot tell", pytest.approx(1 / 3), 6)


def test_runs_in_which_nothing_varies_are_the_same() -> None:
    found = paired_test(once((1, 1), (0.4, 0.4)))

    assert (found.verdict, found.difference, found.repeats_needed) == ("same", 0.0, None)
    assert found.sentence == "Each of 2 tasks has the same score in all attempts of both runs."


def test_what_would_tell_is_said_in_repeats_and_in_tasks() -> None:
    found = moved(3, 1, same=26)

    assert (found.verdict, found.repeats_needed, found.tasks_needed) == ("cannot tell", 8, 236)
    assert found.sentence.endswith(
        "To tell a difference of this size four times in five, it takes about 8 attempts of each task, or 236 tasks "
        "with one attempt each."
    )
    assert moved(2, 2).repeats_needed is None
    assert "Runs like these tell a difference of" in moved(2, 2).sentence
    assert moved(9, 0).repeats_needed is None


@pytest.mark.parametrize(("tasks", "fall"), [(30, 0.1), (100, 0.05)])
def test_the_repeats_that_it_asks_for_find_the_fall_four_times_in_five(tasks: int, fall: float) -> None:
    assert power_of_advice((tasks, fall, 60)) == pytest.approx(0.8, abs=0.17)


@pytest.mark.parametrize("workload", [WORKLOADS[0], WORKLOADS[1]], ids=lambda workload: workload.name)
def test_equal_runs_seldom_differ(workload: Any) -> None:
    differ, _, failed = count_alarms((workload, 30, 100))

    assert max(differ, failed) <= 0.1  # `python -m benchmarks.calibration alarms` shows at most 6 % of 2,000 pairs


def scattered(source: random.Random, tasks: int, drop: float) -> Pairs:
    return [([source.random()], [max(source.random() - drop, 0.0)]) for _ in range(tasks)]


def test_random_exchanges_are_the_same_ones_each_time() -> None:
    pairs = scattered(random.Random(1), 20, 0.1)

    assert paired_test(pairs) == paired_test(pairs)


def test_many_tasks_have_the_p_value_of_exchanges() -> None:
    pairs, source = scattered(random.Random(2), 400, 0.04), random.Random(3)
    differences = [after[0] - before[0] for before, after in pairs]
    totals = (abs(sum(each * source.choice((-1, 1)) for each in differences)) for _ in range(1000))
    exchanged = sum(total >= abs(sum(differences)) for total in totals) / 1000

    assert 0.02 < exchanged < 0.5
    assert paired_test(pairs).p_value == pytest.approx(exchanged, abs=0.05)


def test_a_few_tasks_that_bear_the_whole_difference_are_not_taken_for_many() -> None:
    tiny = [([0.5], [0.5 + 1e-6 * (-1) ** number]) for number in range(400)]

    found = paired_test([*once(*[(1.0, 0.0)] * 4), *tiny])

    # Half of the exchanges in which all four agree: the normal distribution would say 0.046, and worse.
    assert (found.verdict, found.p_value) == ("cannot tell", pytest.approx(1 / 2**4, abs=0.012))


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "There is nothing to compare"),
        ([([], [1.0])], "at least one score in each run"),
        ([([1.0], [1.5])], "A score is a number from 0 to 1; got 1.5"),
        ([([1.0], [math.nan])], "A score is a number from 0 to 1; got nan"),
        ([(["1"], [1.0])], "A score is a number from 0 to 1; got '1'"),
    ],
)
def test_what_cannot_be_compared_is_refused(pairs: Sequence[Any], why: str) -> None:
    with pytest.raises(HookUsageError, match=why):
        paired_test(pairs)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, True, "0.05", math.nan])
def test_a_level_that_is_none_is_refused(alpha: Any) -> None:
    with pytest.raises(HookUsageError, match="`alpha` is a number between 0 and 1"):
        paired_test(once((1, 0)), alpha=alpha)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_a_single_task_is_compared_by_fishers_exact_test(before: int, after: int, data: Any) -> None:
    a, b = data.draw(st.integers(0, before)), data.draw(st.integers(0, after))
    both = [1] * (a + b) + [0] * (before + after - a - b)
    ways = [sum(both[place] for place in chosen) for chosen in combinations(range(before + after), after)]

    assert fisher_p_value((a, before), (b, after)) == pytest.approx(sum(each <= b for each in ways) / len(ways))


@settings(max_examples=30)
@given(st.integers(2, 9), st.data())
def test_equal_weights_change_nothing(tasks: int, data: Any) -> None:
    scores = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=3)
    pairs = [(data.draw(scores), data.draw(scores)) for _ in range(tasks)]

    plain, weighted = paired_test(pairs), paired_test(pairs, weights=[4] * tasks)

    assert plain == weighted


def test_the_difference_and_its_exchanges_count_tasks_by_their_weight() -> None:
    fell, rose, steady = ([1.0] * 3, [0.0] * 3), ([0.0] * 3, [1.0] * 3), ([1.0, 0.0, 1.0], [0.0, 1.0, 1.0])
    pairs = [fell, rose, steady]

    heavy = paired_test(pairs, weights=[8, 1, 1])

    assert heavy.score == (pytest.approx((8 + 2 / 3) / 10), pytest.approx((1 + 2 / 3) / 10))
    assert heavy.difference == pytest.approx(-0.7)
    assert paired_test(pairs).difference == 0
    # All exchanges of three attempts of each task that is not steady, and those of the steady one.
    assert heavy.p_value == pytest.approx(weighted_exchanges(pairs, [8, 1, 1]), abs=0.02)
    assert (heavy.low <= heavy.difference <= heavy.high, heavy.rose, heavy.fell) == (True, 1, 1)


def weighted_exchanges(pairs: Pairs, weights: list[float]) -> float:
    """The share of all exchanges of attempts with a difference of weighted means that is at least as large."""
    ways = []
    for (a, b), weight in zip(pairs, weights, strict=True):
        scores = [*a, *b]
        ways.append([weight * (2 * sum(chosen) - sum(scores)) / len(b) for chosen in combinations(scores, len(b))])
    observed = abs(sum(w * (sum(b) - sum(a)) / len(b) for (a, b), w in zip(pairs, weights, strict=True)))
    totals = [abs(sum(each)) for each in product(*ways)]
    return sum(total >= observed - 1e-9 for total in totals) / len(totals)


@pytest.mark.parametrize(
    ("weights", "why"), [([1], "2 tasks and 1 weights"), ([1, 0], "above 0"), ([1, 1, 1], "3 weig")]
)
def test_weights_that_make_no_sense_are_refused(weights: list[float], why: str) -> None:
    with pytest.raises(HookUsageError, match=why):
        paired_test([([1.0], [0.0]), ([1.0], [1.0])], weights=weights)
