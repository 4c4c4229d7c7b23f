"""Times as people write and read them on a command line."""

from __future__ import annotations

import math
import re
from datetime import datetime
from time import time

__all__ = ["age", "moment", "seconds", "stamp", "when"]

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
LATEST = 253_370_764_800.0
"""The year 9999, which is the last one that a calendar has."""


def seconds(text: str) -> float:
    """The seconds of a span of time.

    Args:
        text: `"30s"`, `"10m"`, `"2h"` or `"7d"`.

    Raises:
        ValueError: If it is none.
    """
    match = SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.60} is no span of time, such as 30s, 10m, 2h or 7d.")
    return float(match[1]) * UNITS[match[2]]


def moment(text: str) -> float:
    """A time in seconds since 1970.

    Args:
        text: How long ago, a date and time of ISO 8601 (the local time, unless it says which), or the seconds.

    Raises:
        ValueError: If it is none.
    """
    if SPAN.fullmatch(text.strip()):
        return max(0.0, time() - seconds(text))
    try:
        found = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            found = math.nan
    if not 0 <= found <= LATEST:
        raise ValueError(f"{text!r:.60} is no time, such as 10m (ago), 2026-01-31T12:00, or seconds since 1970.")
    return found


def age(since: float) -> str:
    """How long ago a time was, in four characters at most for the next three years."""
    passed = max(0.0, time() - since)
    for unit, length in reversed(UNITS.items()):
        if passed >= length:
            return f"{passed / length:.0f}{unit}" if unit == "s" else f"{int(passed / length)}{unit}"
    return "0s"


def when(at: float) -> str:
    """A time in full, as the clock on the wall has it, with what it is ahead of UTC."""
    return datetime.fromtimestamp(min(max(at, 0.0), LATEST)).astimezone().isoformat(sep=" ", timespec="milliseconds")


def stamp(at: float) -> str:
    """A time in a log: of today without its date."""
    local = datetime.fromtimestamp(min(max(at, 0.0), LATEST)).astimezone()
    shape = "%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S"
    return f"{local:{shape}}.{local.microsecond // 1000:03d}"
