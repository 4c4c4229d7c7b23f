"""How many requests somebody may send: so many at once, and then as fast as they come back."""

from __future__ import annotations

import math
from time import monotonic

import msgspec

from hookline.errors import HookUsageError

__all__ = ["Allowance", "RateLimit", "RateLimiter"]

REMEMBERED = 10_000


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """So many requests in so many seconds, of each key, and in each process.

    Attributes:
        requests: How many; all of them may come at once.
        seconds: The time in which that many come back.
    """

    requests: int = 6000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.requests < 1 or not 0 < self.seconds < math.inf:
            raise HookUsageError("A RateLimit has `requests` from 1 and `seconds` above 0.")


class Allowance(msgspec.Struct, frozen=True):
    """What is left to somebody.

    Attributes:
        allowed: Whether this request may be done.
        remaining: How many more may come at once.
        reset: Seconds until all of them are back.
        wait: Seconds until one may come.
    """

    allowed: bool
    remaining: int
    reset: float
    wait: float = 0.0


class RateLimiter:
    """Counts requests, by one number for each sender: the time at which all of its requests would be back.

    Args:
        limit: How many each may send.
    """

    def __init__(self, limit: RateLimit) -> None:
        self.limit = limit
        self._each = limit.seconds / limit.requests
        self._back: dict[str, float] = {}

    def take(self, sender: str) -> Allowance:
        """Count a request, if it may be done."""
        now = monotonic()
        back = max(self._back.get(sender, now), now)
        if back - now > self.limit.seconds - self._each * 0.999:
            return Allowance(False, 0, back - now, back - now - self.limit.seconds + self._each)  # noqa: FBT003
        if len(self._back) >= REMEMBERED and sender not in self._back:
            self._forget(now)
        back = self._back[sender] = back + self._each
        return Allowance(True, int((self.limit.seconds - (back - now)) / self._each + 0.001), back - now)  # noqa: FBT003

    def _forget(self, now: float) -> None:
        """Forget those that have everything back; if that is nobody, the oldest."""
        self._back = {sender: back for sender, back in self._back.items() if back > now}
        while len(self._back) >= REMEMBERED:
            del self._back[next(iter(self._back))]
