"""Sums over what hooks did: kept minute by minute and hour by hour, so that they never need the log itself.

Each process adds up what it has seen and writes its own sums, so that no process waits for another one, and writing the
same once more changes nothing. Who reads adds those of all processes.
"""

import math
import secrets
from collections.abc import Iterable
from time import time
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.registry._log_rows import ExecutionRow
from hookline.store import statistics

__all__ = ["Grouping", "Statistic", "Sums", "read_statistics", "too_old", "write_statistics"]

Grouping: TypeAlias = Literal["hook", "point", "tenant", "minute"]

MINUTE, HOUR = 60, 3600
DAYS_BY_HOUR = 30
"""For how long the sums of hours are kept; those of minutes are kept as long as the log."""
MOST_SUMS = 10_000
"""Sums that a process keeps in memory; what comes after that begins new ones."""
TOGETHER = 500
"""Rows that are read or written at a time, so that nothing else in the process waits for long."""
STEPS = 8
"""Steps by which durations double: the middle of one is at most 4.4 % away from what is in it."""


class Statistic(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What hooks did, added up.

    Attributes:
        hook_id: Of this hook, if it is by hooks.
        point: At this point, if it is by points: the name of a call's class, or the wire name of an event.
        tenant_id: For this tenant, if it is by tenants.
        minute: In this minute, if it is by minutes: its begin, in seconds since 1970.
        count: How often a hook ran.
        errors: How often one raised, or gave an answer that it may not.
        denied: How often one denied.
        timeouts: How often one took too long.
        dropped: How often one should have run but did not, or was cancelled; they are in no other figure.
        p50_ms: What half of them stayed below, in own time; exact to 5 %.
        p95_ms: What 95 % of them stayed below.
        p99_ms: What 99 % of them stayed below.
    """

    hook_id: str | None = None
    point: str | None = None
    tenant_id: str | None = None
    minute: int | None = None
    count: int
    errors: int
    denied: int
    timeouts: int
    dropped: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Sum(msgspec.Struct, kw_only=True):
    """What one hook did at one point for one tenant in a span of time."""

    writer: str = ""
    count: int = 0
    errors: int = 0
    denied: int = 0
    timeouts: int = 0
    dropped: int = 0
    durations: dict[int, int] = {}

    def add(self, other: "Sum") -> None:
        """Add what another one has."""
        self.count += other.count
        self.errors += other.errors
        self.denied += other.denied
        self.timeouts += other.timeouts
        self.dropped += other.dropped
        for step, count in other.durations.items():
            self.durations[step] = self.durations.get(step, 0) + count

    def below(self, part: float) -> float:
        """The duration that a part of them stayed below, in milliseconds."""
        left = math.ceil(part * self.count)
        for step, count in sorted(self.durations.items()):
            left -= count
            if left <= 0:
                return middle_of(step)
        return 0.0


class Place(NamedTuple):
    """What a sum is of."""

    tenant_id: str
    seconds: int
    start: int
    hook_id: str
    point: str


class Sums:
    """What this process has seen, to be written."""

    def __init__(self) -> None:
        self._new: dict[tuple[str, int, str, str], Sum] = {}
        self._sums: dict[Place, Sum] = {}
        self._changed: set[Place] = set()

    def note(self, row: ExecutionRow) -> None:
        """Add what the hooks of a run did."""
        minute = int(row.created_at) // MINUTE
        for run in row.executions:
            place = (row.tenant_id, minute, run.hook_id, row.point)
            new = self._new.get(place)
            if new is None:
                new = self._new[place] = Sum(durations={})
            if run.status == "dropped":
                new.dropped += 1
                continue
            new.count += 1
            if run.status != "ok":
                new.errors += run.status == "error"
                new.denied += run.status == "denied"
                new.timeouts += run.status == "timeout"
            step = step_of(run.duration_ms)
            new.durations[step] = new.durations.get(step, 0) + 1

    def _add_up(self) -> None:
        for (tenant_id, minute, hook_id, point), new in self._new.items():
            for seconds in (MINUTE, HOUR):
                place = Place(tenant_id, seconds, minute * MINUTE // seconds * seconds, hook_id, point)
                if place not in self._sums:
                    # A name of its own, so that it never replaces what was written and forgotten here.
                    self._sums[place] = Sum(writer=secrets.token_hex(8), durations={})
                self._sums[place].add(new)
                self._changed.add(place)
        self._new.clear()

    def changed(self) -> list[dict[str, Any]]:
        """The rows of what was added to since the last time that all was written."""
        self._add_up()
        rows = []
        for place in sorted(self._changed):
            sums = self._sums[place]
            rows.append(
                place._asdict()
                | {name: getattr(sums, name) for name in ("writer", *COUNTS)}
                | {"durations": msgspec.msgpack.encode(sums.durations)}
            )
        return rows

    def written(self) -> None:
        """All is written; forget what will hardly be added to."""
        self._changed.clear()
        now = time()
        if len(self._sums) > MOST_SUMS:
            self._sums.clear()
        elif any(place.start + place.seconds < now for place in self._sums):
            self._sums = {place: sums for place, sums in self._sums.items() if place.start + place.seconds >= now}


COUNTS = ("count", "errors", "denied", "timeouts", "dropped")
_key = [column.name for column in statistics.primary_key]
_upserts = {
    dialect: statement.on_conflict_do_update(
        index_elements=_key, set_={name: statement.excluded[name] for name in (*COUNTS, "durations")}
    )
    for dialect, statement in (("sqlite", sqlite.insert(statistics)), ("postgresql", postgresql.insert(statistics)))
}
_durations = msgspec.msgpack.Decoder(dict[int, int]).decode


async def write_statistics(connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
    """Write what `Sums.changed` gives."""
    if rows:
        await connection.execute(_upserts[connection.dialect.name], rows)


async def read_statistics(
    connection: AsyncConnection,
    tenant_id: str | None,
    *,
    hook_id: str | None,
    point: str | None,
    since: float | None,
    by: Grouping,
    minutes_since: float,
) -> list[Statistic]:
    """Add up what all processes have written, by hooks, points, tenants or minutes.

    Args:
        connection: To read from.
        tenant_id: Only for this tenant.
        hook_id: Only of this hook.
        point: Only at this point.
        since: Only from this time on, in seconds since 1970.
        by: What they are added up by.
        minutes_since: From when on the sums of minutes are kept.
    """
    if by not in GROUPS:
        raise HookUsageError(f"`by` is one of {', '.join(GROUPS)}; got {by!r}.")
    grouping, field = GROUPS[by]
    given = {"tenant_id": tenant_id, "hook_id": hook_id, "point": point}
    query = select(grouping, *(statistics.c[name] for name in (*COUNTS, "durations"))).where(
        *(statistics.c[name] == value for name, value in given.items() if value is not None)
    )
    totals: dict[str | int, Sum] = {}
    for part in spans(query, since, by, minutes_since):
        found = await connection.stream(part)
        async for rows in found.partitions(TOGETHER):
            for key, *counts, durations in rows:
                total = totals.setdefault(key, Sum(durations={}))
                total.add(Sum(**dict(zip(COUNTS, counts, strict=True)), durations=_durations(durations)))
    shown = [Statistic(**{field: key}, **shown_of(total)) for key, total in totals.items()]  # type: ignore[arg-type]
    if by == "minute":
        return sorted(shown, key=lambda each: each.minute or 0)
    return sorted(shown, key=lambda each: (-each.count, getattr(each, field)))


GROUPS = {
    "hook": (statistics.c.hook_id, "hook_id"),
    "point": (statistics.c.point, "point"),
    "tenant": (statistics.c.tenant_id, "tenant_id"),
    "minute": (statistics.c.start, "minute"),
}


def spans(query: Select[Any], since: float | None, by: Grouping, minutes_since: float) -> Iterable[Select[Any]]:
    """The rows that a time begins with: whole hours, and the minutes before the first of them."""
    seconds, start = statistics.c.seconds, statistics.c.start
    if by == "minute":
        first = time() - HOUR if since is None else since
        yield query.where(seconds == MINUTE, start >= floor(first, MINUTE))
        return
    if since is None or since < minutes_since:
        yield query.where(seconds == HOUR, start >= floor(since or 0.0, HOUR))
        return
    first_hour = floor(since, HOUR) + HOUR
    yield query.where(seconds == HOUR, start >= first_hour)
    yield query.where(seconds == MINUTE, start >= floor(since, MINUTE), start < first_hour)


def too_old(minutes_since: float) -> list[ColumnElement[bool]]:
    """Which sums are to be forgotten: those of minutes, and those of hours."""
    hours_since = min(minutes_since, time() - DAYS_BY_HOUR * 86_400)
    seconds, start = statistics.c.seconds, statistics.c.start
    return [
        (seconds == MINUTE) & (start < floor(minutes_since, HOUR)),
        (seconds == HOUR) & (start < floor(hours_since, HOUR)),
    ]


def shown_of(total: Sum) -> dict[str, Any]:
    """What is shown of a sum."""
    counts = {name: getattr(total, name) for name in COUNTS}
    return counts | {f"p{part}_ms": round(total.below(part / 100), 6) for part in (50, 95, 99)}


def floor(seconds: float, span: int) -> int:
    """The begin of the span of time that a time is in."""
    return int(max(0.0, min(seconds, 1e12)) // span) * span


def step_of(duration_ms: float) -> int:
    """Which step a duration is in; the first one has all that is below a nanosecond."""
    nanos = duration_ms * 1e6
    return int(math.log2(min(nanos, 1e18)) * STEPS) + 1 if nanos >= 1.0 else 0


def middle_of(step: int) -> float:
    """The middle of a step, in milliseconds."""
    return float(2 ** ((step - 0.5) / STEPS) / 1e6) if step else 0.0
