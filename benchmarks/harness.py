"""Interleaved rounds and ratios: the whole method, in one place.

All cases of a group run in one process, in a fresh random order every round; a ratio is the median of the rounds' own
ratios. Nanoseconds move with the machine, such ratios hardly do.
"""

from __future__ import annotations

import inspect
import json
import random
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from time import perf_counter_ns

Timer = Callable[[int], float | Awaitable[float]]
"""Does a thing so many times and returns the nanoseconds that all of them took; plain or async."""

SAMPLE_NS = 4e6
"""How long one sample lasts at least, so that the clock and a thread switch do not count."""

MOST_TIMES = 200_000


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        case: What was measured; the axis in brackets.
        value: Its median.
        unit: `"ns"`, or what else `value` counts.
        against: What it is divided by; empty for a figure that stands alone.
        ratio: Median of the rounds' ratios; for a figure that stands alone the figure itself.
        at_most: The goal, if it is an upper limit.
        at_least: The goal, if it is a lower limit.
    """

    case: str
    value: float
    unit: str = "ns"
    against: str = ""
    ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def goal(self) -> str:
        """The goal in words."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least is not None else ""

    @property
    def verdict(self) -> str:
        """Whether the goal is reached; empty where there is none."""
        if not self.goal:
            return ""
        compared = self.value if self.ratio is None else self.ratio
        reached = compared <= self.at_most if self.at_most is not None else compared >= (self.at_least or 0.0)
        return "ok" if reached else "MISS"


class Samples:
    """Nanoseconds per call, by case and round."""

    def __init__(self, by_case: Mapping[str, list[float]]) -> None:
        self.by_case = dict(by_case)

    def derive(self, name: str, of: Callable[..., float], *cases: str) -> None:
        """Add a case that is computed from others, round by round."""
        self.by_case[name] = [of(*values) for values in zip(*(self.by_case[case] for case in cases), strict=True)]

    def median(self, case: str) -> float:
        """Median of a case's rounds."""
        return statistics.median(self.by_case[case])

    def row(
        self,
        case: str,
        against: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        show: str = "",
    ) -> Row:
        """A line of the table: a case, alone or divided by another one of the same rounds."""
        ratio = None
        if against:
            pairs = zip(self.by_case[case], self.by_case[against], strict=True)
            ratio = statistics.median(own / limit for own, limit in pairs)
        return Row(
            case=show or case,
            value=self.median(case),
            against=against,
            ratio=ratio,
            at_most=at_most,
            at_least=at_least,
        )


def statement(code: str, *, unroll: int = 10, clock: Callable[[], int] = perf_counter_ns, **names: object) -> Timer:
    """A timer of one statement. It is written out `unroll` times, so that the loop around it does not count.

    Args:
        code: The statement; one with `await` gives an async timer.
        unroll: How often it stands in the loop's body.
        clock: The time in nanoseconds; `time.process_time_ns` where other processes disturb more than waiting counts.
        names: What it refers to; they are local variables, as they would be in the code of a caller.
    """
    return _compiled([code] * unroll, unroll, {"clock": clock, **names})


def block(code: str, **names: object) -> Timer:
    """A timer of several lines, done once per turn of the loop."""
    return _compiled(code.strip().splitlines(), 1, {"clock": perf_counter_ns, **names})


def _compiled(lines: list[str], repeats: int, names: Mapping[str, object]) -> Timer:
    body = "\n".join(f"        {line}" for line in lines)
    keyword = "async def" if "await " in body else "def"
    arguments = ", ".join(f"{name}={name}" for name in names)
    source = (
        f"{keyword} timer(turns, {arguments}):\n"
        f"    started = clock()\n"
        f"    for _ in range(turns):\n"
        f"{body}\n"
        f"    return clock() - started\n"
    )
    namespace: dict[str, object] = dict(names)
    exec(source, namespace)
    turn: Callable[[int], float | Awaitable[float]] = namespace["timer"]  # type: ignore[assignment]

    def timer(times: int) -> float | Awaitable[float]:
        return turn(max(1, times // repeats))

    timer.repeats = repeats  # type: ignore[attr-defined]
    return timer


async def interleave(cases: Mapping[str, Timer], rounds: int, *, times: int | None = None) -> Samples:
    """Run every case once per round, each round in another order, after a round that only warms up.

    Args:
        cases: Timers by name.
        rounds: How many count.
        times: Calls per sample; found in the warm-up round unless given.
    """
    plan = {name: times or await _calibrated(timer) for name, timer in cases.items()}
    samples: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for number in range(rounds + 1):
        random.shuffle(names)
        for name in names:
            taken = await _run(cases[name], plan[name])
            if number:
                samples[name].append(taken / plan[name])
    return Samples(samples)


async def _run(timer: Timer, times: int) -> float:
    taken = timer(times)
    return await taken if inspect.isawaitable(taken) else taken


async def _calibrated(timer: Timer) -> int:
    step = times = getattr(timer, "repeats", 1)
    await _run(timer, step)  # the very first call also pays for imports and caches
    while (taken := await _run(timer, times)) < SAMPLE_NS and times < MOST_TIMES:
        times = int(times * min(10.0, max(1.5, 1.2 * SAMPLE_NS / max(taken, 1.0))))
        times -= times % step
    return times


def table(rows: Iterable[Row]) -> str:
    """Rows as aligned text."""
    head = ("case", "median", "against", "ratio", "goal", "verdict")
    cells = [
        (row.case, _figure(row), row.against, "" if row.ratio is None else f"{row.ratio:.2f}", row.goal, row.verdict)
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *cells)) for column in range(len(head))]
    right = (1, 3)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *cells)
    )


def _figure(row: Row) -> str:
    if row.unit != "ns":
        return f"{row.value:,.2f} {row.unit}" if row.value % 1 else f"{row.value:,.0f} {row.unit}"
    value = row.value
    for unit in ("ns", "µs", "ms"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "ns" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} s"


def to_json(environment: Mapping[str, object], groups: Mapping[str, list[Row]]) -> str:
    """Everything that was printed, for machines."""
    rows = [
        {"group": group, **asdict(row), "verdict": row.verdict} for group, members in groups.items() for row in members
    ]
    return json.dumps({"environment": environment, "rows": rows}, indent=1)
