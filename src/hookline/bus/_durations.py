"""A histogram of durations, as metrics show it."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["BUCKETS", "DurationHistogram"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds, in seconds; a further bucket has no bound."""


class DurationHistogram:
    """A histogram of durations.

    Attributes:
        counts: Number of durations in each bucket.
        sum: All durations together, in seconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds
