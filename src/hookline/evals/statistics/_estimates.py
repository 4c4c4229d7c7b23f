"""Estimate means of scores and shares of passes, with 95 % intervals that tasks with repeats do not make too narrow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist

import msgspec

from hookline.errors import HookUsageError

__all__ = ["Estimate", "check_weight", "estimate_mean", "mean_interval", "pass_at_k", "pass_hat_k"]

Z95 = NormalDist().inv_cdf(0.975)
"""Standard errors between the middle and an end of a 95 % interval."""

WORST_CASE_UNITS = 2
"""Imagined tasks, spread as widely as scores can be, that are added to the spread of the tasks.

Without them, five tasks that all score 0.8 would give an interval without width. Two keep the coverage of graded and
repeated scores near 95 % from 10 tasks on; `python -m benchmarks.calibration coverage` shows it.
"""


class Estimate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A mean with its 95 % interval.

    Attributes:
        mean: The mean, from 0 to 1.
        low: The lower end of the interval.
        high: The upper end of the interval.
        count: The number of values: tasks, or the attempts of one task. Weights do not change it.
    """

    mean: float
    low: float
    high: float
    count: int


def estimate_mean(values: Iterable[float], weights: Iterable[float] | None = None) -> Estimate | None:
    """Estimate the mean of scores, one for each task.

    For a task with repeats, give the mean of its attempts: attempts of a task resemble each other, so that they are no
    independent evidence on tasks like these. The interval is Wilson's for the number of pass-or-fail tasks that would
    tell as much as these scores do. For scores of 0 and 1 that number is the number of tasks.

    With weights, the mean is the weighted one, and the interval is that of fewer tasks, which tell as much as tasks of
    unequal weight do: (sum of weights)² / sum of squared weights.

    Args:
        values: Scores from 0 to 1.
        weights: How much each score counts, above 0, for as many as there are scores; equal by default.

    Returns:
        The estimate; `None` if there are no values.

    Raises:
        HookUsageError: If a value is not a number from 0 to 1, or a weight is not a number above 0.

    Source:
        Kish, "Survey Sampling", 1965, for the effective number of tasks.
    """
    count, total, squares, whole, squared_weights = 0, 0.0, 0.0, 0.0, 0.0
    pairs = ((value, 1.0) for value in values) if weights is None else zip(values, weights, strict=True)
    for value, weight in pairs:
        if not 0 <= value <= 1:
            raise HookUsageError(f"A score is a number from 0 to 1; got {value!r}.")
        check_weight(weight)
        count += 1
        total += weight * value
        squares += weight * value * value
        whole += weight
        squared_weights += weight * weight
    if not count:
        return None
    mean = min(total / whole, 1.0)
    low, high = mean_interval(mean, max(squares / whole - mean * mean, 0.0), whole * whole / squared_weights)
    return Estimate(mean=mean, low=low, high=high, count=count)


def check_weight(weight: float) -> None:
    """Refuse a weight that is not a number above 0.

    Raises:
        HookUsageError: If it is not.
    """
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise HookUsageError(f"A weight is a number above 0; got {weight!r:.100}.")


def mean_interval(mean: float, variance: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values from 0 to 1.

    Args:
        mean: Their mean.
        variance: The mean of their squared deviations from it.
        count: How many there are, from 1; with weights, how many equal ones tell as much.
    """
    widest = mean * (1 - mean)
    if widest <= 0:  # all values are 0, or all are 1
        return wilson_interval(mean, count)
    spread = (count * variance + WORST_CASE_UNITS * widest) / (count + WORST_CASE_UNITS)
    return wilson_interval(mean, count * widest / spread)


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share.

    Args:
        share: The observed share, from 0 to 1.
        count: The number of independent outcomes, which need not be whole.
    """
    z2 = Z95 * Z95
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    # The ends of 0 and of all are exact; rounding would exclude the share itself.
    return (0.0 if share <= 0 else max(middle - half, 0.0)), (1.0 if share >= 1 else min(middle + half, 1.0))


def pass_at_k(attempts: int, passes: int, k: int) -> float:
    """Estimate without bias how likely at least one of `k` attempts of a task passes.

    Args:
        attempts: The attempts of the task.
        passes: How many of them passed.
        k: From 1 to `attempts`.

    Raises:
        HookUsageError: If these numbers contradict each other.

    Source:
        Chen et al., "Evaluating Large Language Models Trained on Code", 2021.
    """
    _check_attempts(attempts, passes, k)
    return 1 - math.comb(attempts - passes, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, passes: int, k: int) -> float:
    """Estimate without bias how likely `k` attempts of a task all pass: pass^k.

    Args:
        attempts: The attempts of the task.
        passes: How many of them passed.
        k: From 1 to `attempts`.

    Raises:
        HookUsageError: If these numbers contradict each other.

    Source:
        Yao et al., "tau-bench", 2024.
    """
    _check_attempts(attempts, passes, k)
    return math.comb(passes, k) / math.comb(attempts, k)


def _check_attempts(attempts: int, passes: int, k: int) -> None:
    if not all(map(_is_count, (attempts, passes, k))) or not (0 <= passes <= attempts and 1 <= k <= attempts):
        raise HookUsageError(
            f"`passes` is from 0 to `attempts`, and `k` from 1 to `attempts`; got attempts={attempts!r}, "
            f"passes={passes!r}, k={k!r}."
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
