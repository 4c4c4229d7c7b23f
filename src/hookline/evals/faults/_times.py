"""How long something takes that does not always take equally long."""

from __future__ import annotations

import math
import random

import msgspec

from hookline._checks import quote
from hookline.evals.errors import FaultDefinitionError, check_seconds

__all__ = ["LogNormal", "Normal", "Uniform"]


class Uniform(msgspec.Struct, frozen=True, kw_only=True):
    """Any number of seconds between two, each as likely as the other.

    Attributes:
        low: The least.
        high: The most.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_seconds("Uniform", "low", self.low)
        check_seconds("Uniform", "high", self.high)
        if self.low > self.high:
            raise FaultDefinitionError("Uniform", "high", f"is not below `low`; got {self.low:g} and {self.high:g}")

    def seconds(self, draw: random.Random) -> float:
        """One number of seconds.

        Args:
            draw: Where it comes from.
        """
        return draw.uniform(self.low, self.high)


class Normal(msgspec.Struct, frozen=True, kw_only=True):
    """A number of seconds around a mean; what would be less than 0 is 0.

    Attributes:
        mean: The mean, before that.
        deviation: The standard deviation, before that.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        check_seconds("Normal", "mean", self.mean)
        check_seconds("Normal", "deviation", self.deviation)

    def seconds(self, draw: random.Random) -> float:
        """One number of seconds.

        Args:
            draw: Where it comes from.
        """
        return max(0.0, draw.normalvariate(self.mean, self.deviation))


class LogNormal(msgspec.Struct, frozen=True, kw_only=True):
    """A number of seconds as services take them: mostly near the median, at times many times as much.

    Attributes:
        median: Half of the calls take less.
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
        """One number of seconds.

        Args:
            draw: Where it comes from.
        """
        return draw.lognormvariate(math.log(self.median), self.sigma)
