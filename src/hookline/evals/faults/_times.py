"""Distributions of the time that a call takes."""

from __future__ import annotations

import math
import random

import msgspec

from hookline._checks import quote
from hookline.evals.errors import FaultDefinitionError, check_seconds

__all__ = ["LogNormal", "Normal", "Uniform"]


class Uniform(msgspec.Struct, frozen=True, kw_only=True):
    """A number of seconds between two limits, each equally likely.

    Attributes:
        low: The smallest number of seconds.
        high: The largest number of seconds.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_seconds("Uniform", "low", self.low)
        check_seconds("Uniform", "high", self.high)
        if self.low > self.high:
            raise FaultDefinitionError("Uniform", "high", f"is not below `low`; got {self.low:g} and {self.high:g}")

    def seconds(self, draw: random.Random) -> float:
        """Draw a number of seconds.

        Args:
            draw: The random generator to draw from.
        """
        return draw.uniform(self.low, self.high)


class Normal(msgspec.Struct, frozen=True, kw_only=True):
    """A normally distributed number of seconds; negative values become 0.

    Attributes:
        mean: The mean, before negative values become 0.
        deviation: The standard deviation, before negative values become 0.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        check_seconds("Normal", "mean", self.mean)
        check_seconds("Normal", "deviation", self.deviation)

    def seconds(self, draw: random.Random) -> float:
        """Draw a number of seconds.

        Args:
            draw: The random generator to draw from.
        """
        return max(0.0, draw.normalvariate(self.mean, self.deviation))


class LogNormal(msgspec.Struct, frozen=True, kw_only=True):
    """A log-normally distributed number of seconds, as services take: mostly near the median, at times far above.

    Attributes:
        median: The median: half of the calls take less.
        sigma: The standard deviation of the natural logarithm, at most 10: with 1, one call in 44 takes more than 7.4
            times the median.
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        check_seconds("LogNormal", "median", self.median, positive=True)
        sigma: object = self.sigma
        if not isinstance(sigma, int | float) or isinstance(sigma, bool) or not 0 <= sigma <= 10:
            raise FaultDefinitionError("LogNormal", "sigma", f"is a number from 0 to 10; got {quote(sigma)}")

    def seconds(self, draw: random.Random) -> float:
        """Draw a number of seconds.

        Args:
            draw: The random generator to draw from.
        """
        return draw.lognormvariate(math.log(self.median), self.sigma)
