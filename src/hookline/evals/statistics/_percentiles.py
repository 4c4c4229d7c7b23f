"""Summarize how a figure is distributed over attempts: its sum, mean and percentiles."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

__all__ = ["Percentiles"]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The distribution of a cost, a number of tokens or a duration over the attempts of a run.

    All figures have the unit of the values. Between two values a percentile is interpolated.

    Attributes:
        total: The sum.
        mean: The mean.
        p50: Half of the values are at most this.
        p90: Nine of ten values are at most this.
        p99: 99 of 100 values are at most this.
        max: The largest value.
    """

    total: float
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles:
        """Summarize values; all figures of no values are 0."""
        ordered = sorted(values)
        if not ordered:
            return cls(total=0.0, mean=0.0, p50=0.0, p90=0.0, p99=0.0, max=0.0)
        total = sum(ordered)
        p50, p90, p99 = (_percentile(ordered, share) for share in (0.5, 0.9, 0.99))
        return cls(total=total, mean=total / len(ordered), p50=p50, p90=p90, p99=p99, max=ordered[-1])


def _percentile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
