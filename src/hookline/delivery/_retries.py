"""When a failed delivery is tried again: the schedule, its jitter, and the `Retry-After` of the receiver."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeGuard

from hookline.errors import HookUsageError

__all__ = [
    "LONGEST_WAIT",
    "STANDARD_SCHEDULE",
    "check_schedule",
    "delay_before_retry",
    "is_finite_number",
    "parse_retry_after",
]

STANDARD_SCHEDULE: tuple[float, ...] = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Seconds to wait before each attempt, counted from the attempt before: ten attempts over three days.

Source:
    Standard Webhooks 1.0.0, "Deliverability and reliability".
"""
LONGEST_WAIT = 86_400.0
"""Longest wait, in seconds, that a receiver may ask for with `Retry-After`; longer ones are cut to a day."""
_jitter = random.Random()  # not the global one, whose numbers belong to the program


def check_schedule(schedule: Sequence[float], jitter: float) -> tuple[float, ...]:
    """Validate a retry schedule, and return it as floats.

    Args:
        schedule: Seconds to wait before each attempt, counted from the attempt before; the first is 0.
        jitter: Fraction by which a delay is randomly lengthened or shortened.

    Raises:
        HookUsageError: If the schedule or the jitter is invalid.
    """
    if not isinstance(schedule, Sequence) or not all(is_finite_number(delay) for delay in schedule):
        raise HookUsageError(f"The schedule of an Outbox must be a sequence of seconds; got {schedule!r:.200}.")
    seconds = tuple(map(float, schedule))
    if not seconds or seconds[0] != 0 or any(delay < 0 for delay in seconds):
        raise HookUsageError(
            f"The schedule of an Outbox says before each attempt how many seconds to wait. It begins with 0, since the "
            f"first attempt is made at once, and none is negative; got {seconds!r}."
        )
    if not is_finite_number(jitter) or not 0 <= jitter < 1:
        raise HookUsageError(
            f"The jitter of an Outbox must be a fraction of each delay, from 0 to below 1; got {jitter!r}."
        )
    return seconds


def delay_before_retry(
    schedule: Sequence[float], attempts: int, *, jitter: float = 0.0, retry_after: float | None = None
) -> float | None:
    """Return the seconds from a failed attempt to the next one; `None` if it was the last.

    Args:
        schedule: Seconds to wait before each attempt.
        attempts: Number of attempts made so far, the failed one included.
        jitter: Fraction by which the delay is randomly lengthened or shortened.
        retry_after: Seconds that the receiver asked for. The next attempt is never earlier, up to `LONGEST_WAIT`.
    """
    if attempts >= len(schedule):
        return None
    delay = schedule[attempts] * _jitter.uniform(1 - jitter, 1 + jitter)
    return max(delay, min(retry_after or 0.0, LONGEST_WAIT))


def parse_retry_after(given: str | None) -> float | None:
    """Parse `Retry-After` (seconds or a date) into seconds from now; `None` if it is neither."""
    if given is None:
        return None
    text = given.strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), LONGEST_WAIT))
    try:
        moment = parsedate_to_datetime(text)
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - time.time()
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
    return min(max(0.0, seconds), LONGEST_WAIT)


def is_finite_number(given: object) -> TypeGuard[float]:
    """Return whether a value is a finite `int` or `float` (and no `bool`)."""
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
