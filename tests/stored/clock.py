"""Time and chance that are the same in every process; imported before hookline, which takes the functions over."""

from __future__ import annotations

import os
import random
import time
from hashlib import sha256
from itertools import count

START_NANOS = 1_790_000_000_000_000_000
MILLISECOND = 1_000_000

_ticks, _draws = count(1), count(1)


def _nanos() -> int:
    return START_NANOS + next(_ticks) * MILLISECOND


def _bytes(length: int) -> bytes:
    drawn = b""
    while len(drawn) < length:
        drawn += sha256(str(next(_draws)).encode()).digest()
    return drawn[:length]


def restart() -> None:
    """Begin again, so that what is made next does not depend on what was made before."""
    global _ticks, _draws
    _ticks, _draws = count(1), count(1)


time.time_ns = _nanos
time.perf_counter_ns = _nanos
time.time = lambda: _nanos() / 1e9
time.perf_counter = lambda: _nanos() / 1e9
os.urandom = _bytes
random._urandom = _bytes  # type: ignore[attr-defined]
