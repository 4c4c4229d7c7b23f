"""How much worse a run may be than an earlier one: limits on scores, costs and calls."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from hookline.errors import HookUsageError

__all__ = ["TOLERANCE", "DiffThresholds", "Increase", "exceeds", "parse_increase", "parse_score", "rises_beyond"]

Increase = float | str
"""How much a figure may rise: a number in its own unit (US dollars, calls), or a share of what it was, as `"10%"`."""

TOLERANCE = 1e-9
"""What binary fractions may be off: 0.8 - 0.7 is more than 0.1."""


class DiffThresholds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How much worse a later run may be than an earlier one.

    A limit without `mean` in its name holds for every task, and so for the mean of all tasks. What is reached exactly
    is still allowed; `None` is no limit.

    Attributes:
        min_score: The least score of a task, from 0 to 1.
        min_mean_score: The least mean score of the later run, from 0 to 1.
        max_score_drop: By how much the score of a task may fall, from 0 to 1. Unless given, no score may fall; if only
            `max_mean_score_drop` is given, the scores of single tasks may.
        max_mean_score_drop: By how much the mean score may fall, over the tasks that have a score in both runs.
        max_cost_increase: By how much a task may cost more: US dollars, or a share, as `"10%"`.
        max_mean_cost_increase: By how much a task may cost more in the mean, over the tasks that both runs have.
        max_calls_increase: How many tool calls more a task may make, or a share, as `"10%"`.
        max_mean_calls_increase: How many tool calls more a task may make in the mean.
        allow_missing: Whether tasks of the earlier run may be gone, not run or no longer judged in the later one.

    Raises:
        HookUsageError: If a limit is no such number.
    """

    min_score: float | None = None
    min_mean_score: float | None = None
    max_score_drop: float | None = None
    max_mean_score_drop: float | None = None
    max_cost_increase: Increase | None = None
    max_mean_cost_increase: Increase | None = None
    max_calls_increase: Increase | None = None
    max_mean_calls_increase: Increase | None = None
    allow_missing: bool = False

    def __post_init__(self) -> None:
        for name in ("min_score", "min_mean_score", "max_score_drop", "max_mean_score_drop"):
            _check(name, getattr(self, name), parse_score)
        for name in ("max_cost_increase", "max_calls_increase", "max_mean_cost_increase", "max_mean_calls_increase"):
            _check(name, getattr(self, name), parse_increase)
        if not isinstance(self.allow_missing, bool):
            raise HookUsageError(f"`allow_missing` is True or False; got {self.allow_missing!r:.100}.")

    @property
    def allowed_drop(self) -> float | None:
        """By how much the score of a single task may fall; `None` for any fall."""
        if self.max_score_drop is None and self.max_mean_score_drop is None:
            return 0.0
        return self.max_score_drop


def parse_score(value: object) -> float:
    """Read a score, or a difference of scores: a number from 0 to 1.

    Args:
        value: A number, or the text of one.

    Raises:
        ValueError: If it is none; it says what one is.
    """
    found = _number(value)
    if found is None or not 0 <= found <= 1:
        raise ValueError(f"a score is a number from 0 to 1, such as 0.05; got {value!r:.100}")
    return found


def parse_increase(value: object) -> tuple[float, bool]:
    """Read how much a figure may rise.

    Args:
        value: A number from 0, the text of one, or a share, as `"10%"`.

    Returns:
        The limit, and whether it is a share of what the figure was.

    Raises:
        ValueError: If it is none; it says what one is.
    """
    share = isinstance(value, str) and value.strip().endswith("%")
    found = _number(value.strip()[:-1] if share and isinstance(value, str) else value)
    if found is None or not 0 <= found < math.inf:
        raise ValueError(f"an increase is a number from 0, such as 0.02, or a share, such as 10%; got {value!r:.100}")
    return (found / 100, True) if share else (found, False)


def rises_beyond(before: float, after: float, limit: Increase | None) -> bool:
    """Whether a figure rises by more than it may.

    Args:
        before: What it was.
        after: What it is.
        limit: By how much it may rise; `None` for no limit.
    """
    if limit is None:
        return False
    allowed, share = parse_increase(limit)
    return exceeds(after - before, allowed * before if share else allowed)


def exceeds(value: float, limit: float) -> bool:
    """Whether a number is above a limit, by more than binary fractions are off."""
    return value > limit and not math.isclose(value, limit, rel_tol=TOLERANCE, abs_tol=TOLERANCE if limit else 0.0)


def _check(name: str, value: object, parse: Callable[[object], object]) -> None:
    if value is None:
        return
    try:
        parse(value)
    except ValueError as error:
        raise HookUsageError(f"`{name}`: {error}.") from None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
