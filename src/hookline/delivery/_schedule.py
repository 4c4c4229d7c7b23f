"""When a delivery that failed is tried again."""

import math
import random
from collections.abc import Sequence
from typing import TypeGuard

from hookline.errors import HookUsageError

__all__ = ["LONGEST_WAIT", "STANDARD", "checked_schedule", "delay_after", "is_number"]

STANDARD: tuple[float, ...] = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Seconds before each attempt, since the one before: ten of them over three days.

Source:
    Standard Webhooks 1.0.0, "Deliverability and reliability".
"""
LONGEST_WAIT = 86400.0
"""Seconds that a receiver may ask for in `Retry-After`."""


def checked_schedule(schedule: Sequence[float], jitter: float) -> tuple[float, ...]:
    """A schedule that can be kept.

    Args:
        schedule: Seconds before each attempt, since the one before; the first is 0.
        jitter: By which part of itself a delay may get longer or shorter.

    Raises:
        HookUsageError: If it cannot be.
    """
    if not isinstance(schedule, Sequence) or not all(is_number(delay) for delay in schedule):
        raise HookUsageError(f"The schedule of an Outbox is a sequence of seconds; got {schedule!r:.200}.")
    seconds = tuple(map(float, schedule))
    if not seconds or seconds[0] != 0 or any(delay < 0 for delay in seconds):
        raise HookUsageError(
            f"The schedule of an Outbox says before each attempt how many seconds to wait. It begins with 0, since the "
            f"first attempt is made at once, and none is negative; got {seconds!r}."
        )
    if not is_number(jitter) or not 0 <= jitter < 1:
        raise HookUsageError(f"The jitter of an Outbox is a part of each delay, from 0 to below 1; got {jitter!r}.")
    return seconds


def delay_after(
    schedule: Sequence[float], attempts: int, *, jitter: float = 0.0, retry_after: float | None = None
) -> float | None:
    """Seconds from a failed attempt to the next; `None` if that was the last.

    Args:
        schedule: Seconds before each attempt.
        attempts: How many were made, with the one that failed.
        jitter: By which part of itself the delay may get longer or shorter.
        retry_after: What the receiver asked for; it is never asked sooner than that, but for a wait of more than a day.
    """
    if attempts >= len(schedule):
        return None
    delay = schedule[attempts] * random.uniform(1 - jitter, 1 + jitter)
    return max(delay, min(retry_after or 0.0, LONGEST_WAIT))


def is_number(given: object) -> TypeGuard[float]:
    """Whether it is a number that one can count with."""
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
