"""Test whether two runs of the same tasks differ by more than chance explains.

The question is about these tasks. If the runs are equal, an attempt of a task could as well have come from the other
run. So the attempts of each task are exchanged between the runs in all ways, and the observed difference is compared
with the ones that arise. With one attempt each this flips the signs of the tasks' differences, and if attempts only
pass or fail, it is McNemar's exact test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from hookline.errors import HookUsageError
from hookline.evals.statistics._estimates import Z95, check_weight

__all__ = ["PairedTest", "PairedVerdict", "fisher_p_value", "paired_test"]

PairedVerdict = Literal["better", "worse", "same", "cannot tell"]

PERMUTATIONS = 4_999
"""Random exchanges of attempts, where not all of them are counted."""

LISTED = 30_000
"""Exchanges that are listed for all tasks together. Of a task that has more than its part, a sample is drawn."""
LEAST_LISTED = 300
"""The smallest part of one task."""

MANY_TASKS = 300
"""Tasks that must bear a difference for the normal distribution to be used where exchanges would be sampled.

Scores of few distinct values still give at most 5.7 % false alarms at 5 % then.
"""
MOST_SAMPLED = 1_000
"""Tasks of which exchanges are sampled."""
MOST_COUNTED = 2_000
"""Like `MANY_TASKS`, where all exchanges are counted, which takes less time."""

WORST_CASE_PAIRS = 3
"""Imagined pairs of attempts, one passed and one failed, in the interval of the difference.

Runs without any difference would have an interval without width otherwise. With three, the interval of pass-or-fail
tasks nearly always excludes 0 where McNemar's exact test finds a difference, and only there.
"""

POWER80 = 0.8416212335729143
"""Standard errors beyond the threshold at which a difference is found in 80 % of comparisons."""

NEGLIGIBLE = 1e-15


class PairedTest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of two runs' scores on the same tasks. Of a pair, the first value is run A's.

    Attributes:
        verdict: `"better"` or `"worse"`: B's scores differ by more than chance explains. `"same"`: no score of any task
            varies. `"cannot tell"`: chance alone explains the difference.
        tasks: The tasks that both runs have scores of.
        attempts: The attempts of these tasks.
        score: The mean of the tasks' mean scores, with their weights.
        difference: How much higher B's is, from -1 to 1.
        low: The lower end of the difference's 95 % interval.
        high: The upper end of the difference's 95 % interval.
        p_value: How likely equal runs differ at least as much, in either direction.
        rose: The tasks that score higher in B.
        fell: The tasks that score lower in B.
        repeats_needed: Attempts of each task and run that would tell a difference of this size in 80 % of comparisons;
            `None` if the verdict is clear or there is no difference.
        tasks_needed: Tasks like these that would do so with as many attempts as now.
        detectable: The difference that runs like these tell in 80 % of comparisons.
    """

    verdict: PairedVerdict
    tasks: int
    attempts: tuple[int, int]
    score: tuple[float, float]
    difference: float
    low: float
    high: float
    p_value: float
    rose: int
    fell: int
    repeats_needed: int | None
    tasks_needed: int | None
    detectable: float

    @property
    def sentence(self) -> str:
        """The finding as a sentence: the difference with its interval, and how many repeats would tell if it cannot."""
        counted = f"{self.tasks} task{'' if self.tasks == 1 else 's'}"
        if self.verdict == "same":
            each = "The one task" if self.tasks == 1 else f"Each of {counted}"
            return f"{each} has the same score in all attempts of both runs."
        (before, after), interval = self.score, f"{self.low:+.3f} to {self.high:+.3f}"
        if round(self.difference, 6):
            moved = "rose" if self.difference > 0 else "fell"
            moved += f" from {before:.3f} to {after:.3f}: {self.difference:+.3f}, 95 % interval {interval}"
        else:
            moved = f"is {after:.3f} in both runs, 95 % interval of the difference {interval}"
        found = f"The mean score of {counted} {moved}."
        if self.verdict != "cannot tell":
            return f"{found} Equal runs seldom differ so much (p = {self.p_value:.2g})."
        found += f" Equal runs differ as much by chance (p = {self.p_value:.2g})."
        if self.repeats_needed is None:
            return f"{found} Runs like these tell a difference of {self.detectable:.2g} four times in five."
        attempts = max(-(-self.attempts[0] // self.tasks), -(-self.attempts[1] // self.tasks))
        each = "one attempt" if attempts == 1 else f"{attempts} attempts"
        return (
            f"{found} To tell a difference of this size four times in five, it takes about {self.repeats_needed:,} "
            f"attempts of each task, or {self.tasks_needed:,} tasks with {each} each."
        )


class TaskPair:
    """The scores of one task in two runs.

    Means, their difference and the variance are those of scores that are multiplied by the weight.
    """

    __slots__ = ("a", "b", "difference", "mean_a", "mean_b", "noise", "weight")

    def __init__(self, a: Sequence[float], b: Sequence[float], weight: float) -> None:
        self.a, self.b, self.weight = a, b, weight
        self.mean_a, self.mean_b = weight * math.fsum(a) / len(a), weight * math.fsum(b) / len(b)
        self.difference = self.mean_b - self.mean_a
        both = [*a, *b]
        middle = math.fsum(both) / len(both)
        # The variance of one attempt if both runs are equal.
        self.noise = weight**2 * math.fsum((score - middle) ** 2 for score in both) / (len(both) - 1)

    @property
    def varies(self) -> bool:
        """Whether any two scores of the task differ."""
        return len({*self.a, *self.b}) > 1


def paired_test(
    pairs: Iterable[tuple[Sequence[float], Sequence[float]]],
    *,
    weights: Iterable[float] | None = None,
    alpha: float = 0.05,
) -> PairedTest:
    """Compare the scores of two runs, task by task.

    Args:
        pairs: For each task the scores of its attempts in run A and in run B, from 0 to 1, at least one of each.
        weights: How much each task counts in the mean scores that are compared, above 0; equal by default.
        alpha: How often equal runs may be called better or worse.

    Raises:
        HookUsageError: If a task has no score in a run, a score is not a number from 0 to 1, a weight is not a number
            above 0, there are not as many weights as tasks, or there is no task.
    """
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1:
        raise HookUsageError(f"`alpha` is a number between 0 and 1; got {alpha!r:.100}.")
    scores = list(pairs)
    tasks = [_pair(*pair, weight) for pair, weight in zip(scores, _relative(weights, len(scores)), strict=True)]
    if not tasks:
        raise HookUsageError("There is nothing to compare: the runs have no task with a score in both.")
    count = len(tasks)
    before, after = (
        math.fsum(means) / count for means in zip(*((task.mean_a, task.mean_b) for task in tasks), strict=True)
    )
    difference = math.fsum(task.difference for task in tasks) / count
    variance = math.fsum(task.noise * _inverse_attempts(task) for task in tasks) / count**2
    varying = [task for task in tasks if task.varies]
    p_value = _p_value(varying) if varying else 1.0
    verdict: PairedVerdict = "same" if not varying else "cannot tell"
    if p_value <= alpha and difference:
        verdict = "better" if difference > 0 else "worse"
    widest = math.fsum((task.weight * _inverse_attempts(task) / 2) ** 2 for task in tasks)
    smoothed = variance + WORST_CASE_PAIRS * widest / count**3
    low, high = _interval(verdict, difference, Z95 * math.sqrt(smoothed))
    repeats, further = _needed(tasks, difference, variance) if verdict == "cannot tell" else (None, None)
    return PairedTest(
        verdict=verdict,
        tasks=count,
        attempts=(sum(len(task.a) for task in tasks), sum(len(task.b) for task in tasks)),
        score=(min(before, 1.0), min(after, 1.0)),
        difference=difference,
        low=low,
        high=high,
        p_value=p_value,
        rose=sum(task.difference > 0 for task in tasks),
        fell=sum(task.difference < 0 for task in tasks),
        repeats_needed=repeats,
        tasks_needed=further,
        detectable=min((Z95 + POWER80) * math.sqrt(smoothed), 1.0),
    )


def fisher_p_value(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Return how likely a task's passes fall at least this far from run A to run B by chance: Fisher's exact test.

    Args:
        a: Passes and attempts in run A.
        b: Passes and attempts in run B.
    """
    passes = a[0] + b[0]
    fewest, chances = hypergeometric(passes, a[1] + b[1] - passes, b[1])
    return math.fsum(chances[: b[0] - fewest + 1])


def hypergeometric(passes: int, failures: int, drawn: int) -> tuple[int, list[float]]:
    """Return how likely each number of passes is among attempts that are drawn from all attempts.

    Args:
        passes: The attempts that passed.
        failures: The attempts that failed.
        drawn: How many are drawn.

    Returns:
        The smallest number of passes, and the chances of it and of those that follow.
    """
    fewest = max(0, drawn - failures)

    # Logarithms, as the binomial coefficients of some hundred attempts are slow to compute.
    def weight(found: int) -> float:
        left = drawn - found
        parts = (found, passes - found, left, failures - left)
        return -math.fsum(math.lgamma(part + 1) for part in parts)

    weights = [weight(found) for found in range(fewest, min(passes, drawn) + 1)]
    most = max(weights)
    chances = [math.exp(each - most) for each in weights]
    total = math.fsum(chances)
    return fewest, [chance / total for chance in chances]


def _relative(weights: Iterable[float] | None, count: int) -> list[float]:
    """Return weights whose mean is 1, so that a sum over tasks divided by their number is the weighted mean."""
    if weights is None:
        return [1.0] * count
    found = list(weights)
    if len(found) != count:
        raise HookUsageError(f"There are {count} tasks and {len(found)} weights; give one weight for each task.")
    for weight in found:
        check_weight(weight)
    whole = math.fsum(found)
    return [weight * count / whole for weight in found]


def _pair(a: Sequence[float], b: Sequence[float], weight: float) -> TaskPair:
    if not a or not b:
        raise HookUsageError("A task needs at least one score in each run.")
    for score in (*a, *b):
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise HookUsageError(f"A score is a number from 0 to 1; got {score!r:.100}.")
    return TaskPair(a, b, weight)


def _interval(verdict: PairedVerdict, difference: float, half: float) -> tuple[float, float]:
    low, high = max(difference - half, -1.0), min(difference + half, 1.0)
    # The exact test decides whether 0 is inside; between few tasks the normal distribution may see it otherwise.
    if verdict == "better":
        return max(low, 0.0), high
    if verdict == "worse":
        return low, min(high, 0.0)
    return min(low, 0.0), max(high, 0.0)


def _inverse_attempts(task: TaskPair) -> float:
    return 1 / len(task.a) + 1 / len(task.b)


def _needed(tasks: Sequence[TaskPair], difference: float, variance: float) -> tuple[int | None, int | None]:
    """Return the repeats, and the tasks, with which a difference of this size would be told in 80 % of comparisons."""
    if math.isclose(difference, 0.0, abs_tol=1e-12) or not variance:
        return None, None
    wanted = (difference / (Z95 + POWER80)) ** 2
    once = 2 * math.fsum(task.noise for task in tasks) / len(tasks) ** 2
    most = max(max(len(task.a), len(task.b)) for task in tasks)
    return max(math.ceil(once / wanted), most + 1), max(math.ceil(len(tasks) * variance / wanted), len(tasks) + 1)


def _p_value(tasks: Sequence[TaskPair]) -> float:
    observed = abs(math.fsum(task.difference for task in tasks))
    passes_or_fails = all(score in (0, 1) for task in tasks for score in (*task.a, *task.b))
    countable = passes_or_fails and len({(len(task.a), len(task.b), task.weight) for task in tasks}) == 1
    variances = [task.noise * _inverse_attempts(task) for task in tasks]
    total = math.fsum(variances)
    # If a few tasks bear nearly all of the variance, the sum is not normally distributed, however many tasks there are.
    bearing = total**2 / math.fsum(variance**2 for variance in variances)
    if bearing > (MOST_COUNTED if countable else MANY_TASKS):
        return math.erfc(observed / math.sqrt(2 * total))
    return _count_exchanges(tasks) if countable else _sample_exchanges(tasks, observed)


def _count_exchanges(tasks: Sequence[TaskPair]) -> float:
    """Return the exact p-value of tasks that pass or fail, all with the same numbers of attempts and the same weight.

    The difference then depends on the number of passes in B alone. Of each task it is hypergeometric.
    """
    of_a, of_b = len(tasks[0].a), len(tasks[0].b)
    chances, first, middle, observed = [1.0], 0, 0.0, 0
    for task in tasks:
        passes = int(sum(task.a) + sum(task.b))
        fewest, terms = hypergeometric(passes, of_a + of_b - passes, of_b)
        terms, skipped = _trim(terms)
        chances, dropped = _trim(_convolve(chances, terms))
        first += fewest + skipped + dropped
        middle += passes * of_b / (of_a + of_b)
        observed += int(sum(task.b))
    far = abs(observed - middle) - 1e-9
    return min(math.fsum(chance for place, chance in enumerate(chances, first) if abs(place - middle) >= far), 1.0)


def _convolve(one: Sequence[float], other: Sequence[float]) -> list[float]:
    found = [0.0] * (len(one) + len(other) - 1)
    for shift, factor in enumerate(other):
        for place, chance in enumerate(one, shift):
            found[place] += chance * factor
    return found


def _trim(chances: list[float]) -> tuple[list[float], int]:
    """Drop both ends where they are negligible, and return how many values are dropped in front."""
    first, last = 0, len(chances)
    while chances[first] < NEGLIGIBLE:
        first += 1
    while chances[last - 1] < NEGLIGIBLE:
        last -= 1
    return chances[first:last], first


def _sample_exchanges(tasks: Sequence[TaskPair], observed: float) -> float:
    """Return the p-value from random exchanges, which are the same ones each time."""
    source = random.Random(0)
    tasks = sorted(tasks, key=lambda task: task.noise * _inverse_attempts(task), reverse=True)
    # Far too many tasks differ, and yet few of them bear the difference: the others are as good as one normal deviate.
    deviation = math.sqrt(math.fsum(task.noise * _inverse_attempts(task) for task in tasks[MOST_SAMPLED:]))
    totals = [source.gauss(0.0, deviation) if deviation else 0.0 for _ in range(PERMUTATIONS)]
    tasks = tasks[:MOST_SAMPLED]
    listed = max(LISTED // len(tasks), LEAST_LISTED)
    for task in tasks:
        drawn = source.choices(_differences(task, source, listed), k=PERMUTATIONS)
        totals = [total + one for total, one in zip(totals, drawn, strict=True)]
    far = observed - 1e-9
    return (1 + sum(abs(total) >= far for total in totals)) / (1 + PERMUTATIONS)


def _differences(task: TaskPair, source: random.Random, most: int) -> list[float]:
    """Return the differences of a task's means after exchanges of its attempts: all of them, or a sample of so many."""
    scores, size = [*task.a, *task.b], len(task.b)
    total, inverse = math.fsum(scores), _inverse_attempts(task)
    if math.comb(len(scores), size) <= most:
        sums = [sum(chosen) for chosen in combinations(scores, size)]
    else:
        sums = [sum(source.sample(scores, size)) for _ in range(most)]
    return [task.weight * (chosen * inverse - total / len(task.a)) for chosen in sums]
