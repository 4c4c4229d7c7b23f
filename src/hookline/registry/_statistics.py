"""Statistics of hook executions by minute and hour, which can be read without the rows of the log.

Each process sums up its own executions and writes its own rows, so that no process waits for another, and writing a row
twice changes nothing. A reader adds up the rows of all processes.
"""

import math
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import add
from time import time
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Select, Table, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.registry._log_rows import ExecutionRow, HookRun, clean_text
from hookline.store import grouped_statistics, statistics

__all__ = [
    "Grouping",
    "Statistic",
    "StatisticsBuffer",
    "expired_conditions",
    "read_statistics",
    "write_grouped_statistics",
    "write_statistics",
]

Grouping: TypeAlias = Literal["hook", "point", "tenant", "agent", "tool", "agent,tool", "minute", "hour"]

MINUTE, HOUR = 60, 3600
DAYS_BY_HOUR = 30
"""Days for which statistics by hour are kept; those by minute are kept as long as the log."""
MOST_SUMS = 10_000
"""Totals that a process keeps in memory at most; beyond that, it starts new rows."""
MOST_NAMES = 50
"""Agents, and tools, of a hook that a process counts apart in an hour; executions for further ones are `OTHERS`.

Names of agents and tools may come from models and users, and each makes a row.
"""
MOST_PAIRS = 200
"""Pairs of an agent and a tool that are counted apart likewise."""
OTHERS = "*"
"""What stands for further agents or tools."""
LONGEST_NAME = 200
"""Characters of an agent's id, or a tool's name, that are kept; the columns of a key must fit into an index."""
LONGEST_IN_PAIR = 99
"""Characters of each that are kept in a pair, which is in the same column."""
BETWEEN = "\x1f"
"""The character between the two."""
BATCH_SIZE = 500
"""Rows that are read at a time, so that the event loop is not blocked for long."""
STEPS = 8
"""Histogram steps per doubling of the duration: the middle of a step is at most 4.4 % off from any value in it."""


class Statistic(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A summary of hook executions.

    Attributes:
        hook_id: The hook, if grouped by hook.
        point: The point, if grouped by point: the name of a call's class, or the wire name of an event.
        tenant_id: The tenant, if grouped by tenant.
        agent_id: The agent, if grouped by agent, or by agent and tool; `""` for executions without one, `"*"` for those
            of further agents, beyond the first 50 of a hook in an hour.
        tool: Toolset and name of the tool, or `agent/` and the sub-agent, if grouped by tool, or by agent and tool;
            `"*"` for further tools. With both, the first 200 pairs of a hook in an hour are counted apart, and the
            first 99 characters of each name are kept.
        minute: The start of the minute in unix seconds, if grouped by minute.
        hour: The start of the hour in unix seconds, if grouped by hour.
        count: Number of executions, those of shadow hooks among them.
        errors: Number of executions that raised, or returned an invalid value.
        denied: Number of executions that denied; a failure that fails closed is in `errors` or `timeouts` instead.
        asked: Number of executions that had a person asked.
        mocked: Number of executions that answered in the place of the call.
        changed: Number of executions that changed the call or its result.
        continued: Number of executions that had the run or the model go on.
        timeouts: Number of executions that timed out.
        dropped: Number of executions that never started or were cancelled; they are in no other figure.
        shadow: Number of executions of shadow hooks, which are in none of the figures above but `count`.
        shadow_failed: Number of those that failed.
        shadow_denied: Number of those that would have denied.
        shadow_asked: Number of those that would have had a person asked.
        shadow_mocked: Number of those that would have answered in the place of the call.
        shadow_changed: Number of those that would have changed the call or its result.
        shadow_continued: Number of those that would have had the run or the model go on.
        p50_ms: The median of the hooks' own time; exact to 5 %.
        p95_ms: The 95th percentile.
        p99_ms: The 99th percentile.
    """

    hook_id: str | None = None
    point: str | None = None
    tenant_id: str | None = None
    agent_id: str | None = None
    tool: str | None = None
    minute: int | None = None
    hour: int | None = None
    count: int
    errors: int
    denied: int
    asked: int
    mocked: int
    changed: int
    continued: int
    timeouts: int
    dropped: int
    shadow: int
    shadow_failed: int
    shadow_denied: int
    shadow_asked: int
    shadow_mocked: int
    shadow_changed: int
    shadow_continued: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class HookTotals(msgspec.Struct, kw_only=True):
    """Totals of one revision of a hook at one point for one tenant in one minute or hour; see `Statistic`.

    Those of an hour are also kept for each agent, each tool, and each pair of them, all revisions together.
    """

    writer: str = ""
    count: int = 0
    errors: int = 0
    denied: int = 0
    asked: int = 0
    mocked: int = 0
    changed: int = 0
    continued: int = 0
    timeouts: int = 0
    dropped: int = 0
    shadow: int = 0
    shadow_failed: int = 0
    shadow_denied: int = 0
    shadow_asked: int = 0
    shadow_mocked: int = 0
    shadow_changed: int = 0
    shadow_continued: int = 0
    durations: dict[int, int] = {}

    def increase(self, name: str) -> None:
        """Add one to a count."""
        setattr(self, name, getattr(self, name) + 1)

    def add(self, other: "HookTotals") -> None:
        """Add other totals to these."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for step, count in other.durations.items():
            self.durations[step] = self.durations.get(step, 0) + count

    def percentile(self, part: float) -> float:
        """Return a percentile of the durations, in milliseconds.

        Args:
            part: The fraction, from 0 to 1.
        """
        left = math.ceil(part * self.count)
        for step, count in sorted(self.durations.items()):
            left -= count
            if left <= 0:
                return step_middle(step)
        return 0.0


class SumKey(NamedTuple):
    """The key of totals: tenant, length and start of the time span, hook, point and revision."""

    tenant_id: str
    seconds: int
    start: int
    hook_id: str
    point: str
    revision: int

    @property
    def end(self) -> int:
        """The end of the time span."""
        return self.start + self.seconds


class GroupKey(NamedTuple):
    """The key of the totals of an agent, a tool or a pair of them in an hour: what kind it is, and its name."""

    hook_id: str
    kind: Literal["agent", "tool", "agent_tool"]
    start: int
    tenant_id: str
    point: str
    name: str

    @property
    def end(self) -> int:
        """The end of the hour."""
        return self.start + HOUR


def name_outcome(run: HookRun) -> str:
    """Return the count of a hook execution besides `count`: `"denied"` or `"shadow_denied"`; `""` if there is none."""
    if run.status == "shadow":
        # The record of a denial or a question has its reason as `error` too.
        failed = run.error is not None and run.error != run.reason
        outcome = "failed" if failed else run.decision
        return f"shadow_{outcome}" if outcome else ""
    if run.status in ("error", "timeout"):
        return "errors" if run.status == "error" else "timeouts"
    return run.decision or ("" if run.status == "ok" else run.status)


class StatisticsBuffer:
    """The totals of this process that are still growing or not yet written."""

    def __init__(self) -> None:
        self._new: dict[tuple[str, int, str, str, int, str, str], HookTotals] = {}
        self._sums: dict[SumKey | GroupKey, HookTotals] = {}
        self._changed: set[SumKey | GroupKey] = set()
        self._names: dict[GroupKey, set[str]] = {}

    def add(self, row: ExecutionRow) -> None:
        """Add the hook executions of a row of the log."""
        minute = int(row.created_at) // MINUTE
        for run in row.executions:
            place = (row.tenant_id, minute, run.hook_id, row.point, run.revision, row.agent_id, row.tool)
            new = self._new.get(place)
            if new is None:
                new = self._new[place] = HookTotals(durations={})
            if run.status == "dropped":
                new.dropped += 1
                continue
            new.count += 1
            new.shadow += run.status == "shadow"
            if outcome := name_outcome(run):
                new.increase(outcome)
            step = duration_step(run.duration_ms)
            new.durations[step] = new.durations.get(step, 0) + 1

    def _merge_new(self) -> None:
        for (tenant_id, minute, hook_id, point, revision, agent_id, tool), new in self._new.items():
            hour = minute * MINUTE // HOUR * HOUR
            for seconds, start in ((MINUTE, minute * MINUTE), (HOUR, hour)):
                self._merge(SumKey(tenant_id, seconds, start, hook_id, point, revision), new)
            self._merge(self._limit_names(GroupKey(hook_id, "agent", hour, tenant_id, point, agent_id)), new)
            if tool:
                self._merge(self._limit_names(GroupKey(hook_id, "tool", hour, tenant_id, point, tool)), new)
                pair = join_pair(agent_id, tool)
                self._merge(self._limit_names(GroupKey(hook_id, "agent_tool", hour, tenant_id, point, pair)), new)
        self._new.clear()

    def _merge(self, place: SumKey | GroupKey, new: HookTotals) -> None:
        if place not in self._sums:
            # A writer id of its own, so that it never overwrites totals that were written and dropped here, or those of
            # another revision, which is no part of the table's key.
            self._sums[place] = HookTotals(writer=secrets.token_hex(8), durations={})
        self._sums[place].add(new)
        self._changed.add(place)

    def _limit_names(self, place: GroupKey) -> GroupKey:
        """Return the key, or that of `OTHERS` if its hook has too many agents, tools or pairs in the hour."""
        names = self._names.setdefault(place._replace(name=""), set())
        name = clean_text(place.name, LONGEST_NAME)
        if name not in names and len(names) >= (MOST_PAIRS if place.kind == "agent_tool" else MOST_NAMES):
            return place._replace(name=OTHERS)
        names.add(name)
        return place._replace(name=name)

    def changed_rows(self) -> list[dict[str, Any]]:
        """Return the rows of totals that changed since they were last written, but for those by agent and tool."""
        self._merge_new()
        return self._rows_of(sorted(place for place in self._changed if isinstance(place, SumKey)))

    def changed_group_rows(self) -> list[dict[str, Any]]:
        """Return the rows of totals by agent and tool that changed since they were last written."""
        self._merge_new()
        return self._rows_of(sorted(place for place in self._changed if isinstance(place, GroupKey)))

    def _rows_of(self, places: Sequence[SumKey] | Sequence[GroupKey]) -> list[dict[str, Any]]:
        rows = []
        for place in places:
            sums = self._sums[place]
            rows.append(
                place._asdict()
                | {name: getattr(sums, name) for name in ("writer", *COUNTS)}
                | {"durations": msgspec.msgpack.encode(sums.durations)}
            )
        return rows

    def mark_written(self) -> None:
        """Record that all changed rows were written, and drop the totals of past time spans."""
        self._changed.clear()
        now = time()
        if len(self._sums) > MOST_SUMS:
            self._sums.clear()
            self._names.clear()
        elif any(place.end < now for place in self._sums):
            self._sums = {place: sums for place, sums in self._sums.items() if place.end >= now}
            self._names = {place: names for place, names in self._names.items() if place.end >= now}


COUNTS = tuple(name for name in HookTotals.__struct_fields__ if name not in ("writer", "durations"))
_upserts = {
    (table.name, dialect): statement.on_conflict_do_update(
        index_elements=[column.name for column in table.primary_key],
        set_={name: statement.excluded[name] for name in (*COUNTS, "durations")},
    )
    for table in (statistics, grouped_statistics)
    for dialect, statement in (("sqlite", sqlite.insert(table)), ("postgresql", postgresql.insert(table)))
}
_durations = msgspec.msgpack.Decoder(dict[int, int]).decode


async def write_statistics(connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
    """Write rows from `StatisticsBuffer.changed_rows`."""
    await _write_rows(connection, statistics, rows)


async def write_grouped_statistics(connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
    """Write rows from `StatisticsBuffer.changed_group_rows`."""
    await _write_rows(connection, grouped_statistics, rows)


async def _write_rows(connection: AsyncConnection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        await connection.execute(_upserts[table.name, connection.dialect.name], rows)


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
    """Add up the statistics of all processes by hook, point, tenant, agent, tool, agent and tool, minute or hour.

    Args:
        connection: The connection to read from.
        tenant_id: Only executions of this tenant.
        hook_id: Only executions of this hook.
        point: Only executions at this point.
        since: Only executions from this time on, in unix seconds.
        by: What to group by.
        minutes_since: The time from which statistics by minute are kept, in unix seconds.
    """
    if by not in GROUPS:
        raise HookUsageError(f"`by` must be one of {', '.join(GROUPS)}; got {by!r}.")
    grouping, fields = GROUPS[by]
    its = grouping.table.c
    given = {"tenant_id": tenant_id, "hook_id": hook_id, "point": point}
    query = select(grouping, *(its[name] for name in (*COUNTS, "durations"))).where(
        *(its[name] == value for name, value in given.items() if value is not None)
    )
    sums: dict[str | int, tuple[list[int], defaultdict[int, int]]] = {}
    for part in select_spans(query, since, by, minutes_since):
        found = await connection.stream(part)
        async for rows in found.partitions(BATCH_SIZE):
            for key, *counts, durations in rows:
                known = sums.get(key)
                if known is None:
                    sums[key] = counts, defaultdict(int, _durations(durations))
                    continue
                known[0][:] = map(add, known[0], counts)
                steps = known[1]
                for step, count in _durations(durations).items():
                    steps[step] += count
    named = [
        (
            split_pair(str(key)) if len(fields) > 1 else (key,),
            HookTotals(**dict(zip(COUNTS, counts, strict=True)), durations=steps),  # type: ignore[arg-type]
        )
        for key, (counts, steps) in sums.items()
    ]
    if by in TIME_SPANS:
        named.sort(key=lambda each: each[0])
    else:
        named.sort(key=lambda each: (-each[1].count, each[0]))
    return [Statistic(**dict(zip(fields, key, strict=True)), **summarize(total)) for key, total in named]  # type: ignore[arg-type]


GROUPS: dict[Grouping, tuple[ColumnElement[Any], tuple[str, ...]]] = {
    "hook": (statistics.c.hook_id, ("hook_id",)),
    "point": (statistics.c.point, ("point",)),
    "tenant": (statistics.c.tenant_id, ("tenant_id",)),
    "agent": (grouped_statistics.c.name, ("agent_id",)),
    "tool": (grouped_statistics.c.name, ("tool",)),
    "agent,tool": (grouped_statistics.c.name, ("agent_id", "tool")),
    "minute": (statistics.c.start, ("minute",)),
    "hour": (statistics.c.start, ("hour",)),
}
KINDS = {"agent": "agent", "tool": "tool", "agent,tool": "agent_tool"}
"""The kind of the totals that groupings by agent or tool read."""
TIME_SPANS = {"minute": MINUTE, "hour": HOUR}
"""The length of the spans of groupings by time, in seconds."""
DEFAULT_PERIODS = {"minute": HOUR, "hour": 86_400}
"""How far groupings by time go back unless a time is given, in seconds."""


def select_spans(query: Select[Any], since: float | None, by: Grouping, minutes_since: float) -> Iterable[Select[Any]]:
    """Yield queries for the time since `since`: whole hours, and the minutes before the first whole hour.

    There are no minutes of agents and tools.
    """
    if by in KINDS:
        its = grouped_statistics.c
        yield query.where(its.kind == KINDS[by], its.start >= floor_to_span(since or 0.0, HOUR))
        return
    seconds, start = statistics.c.seconds, statistics.c.start
    if by in TIME_SPANS:
        span = TIME_SPANS[by]
        first = time() - DEFAULT_PERIODS[by] if since is None else since
        yield query.where(seconds == span, start >= floor_to_span(first, span))
        return
    if since is None or since < minutes_since:
        yield query.where(seconds == HOUR, start >= floor_to_span(since or 0.0, HOUR))
        return
    first_hour = floor_to_span(since, HOUR) + HOUR
    yield query.where(seconds == HOUR, start >= first_hour)
    yield query.where(seconds == MINUTE, start >= floor_to_span(since, MINUTE), start < first_hour)


def expired_conditions(minutes_since: float) -> list[tuple[Table, ColumnElement[bool]]]:
    """Return the tables and the conditions of rows to delete: statistics by minute, and by hour."""
    hours_since = min(minutes_since, time() - DAYS_BY_HOUR * 86_400)
    seconds, start = statistics.c.seconds, statistics.c.start
    return [
        (statistics, (seconds == MINUTE) & (start < floor_to_span(minutes_since, HOUR))),
        (statistics, (seconds == HOUR) & (start < floor_to_span(hours_since, HOUR))),
        (grouped_statistics, grouped_statistics.c.start < floor_to_span(hours_since, HOUR)),
    ]


def join_pair(agent_id: str, tool: str) -> str:
    """Return the name under which the totals of an agent and a tool are stored."""
    names = (clean_text(each.replace(BETWEEN, "\ufffd"), LONGEST_IN_PAIR) for each in (agent_id, tool))
    return BETWEEN.join(names)


def split_pair(name: str) -> tuple[str, str]:
    """Return the agent and the tool of a stored name; `OTHERS` for both if it stands for further pairs."""
    if name == OTHERS:
        return OTHERS, OTHERS
    agent_id, _, tool = name.partition(BETWEEN)
    return agent_id, tool


def summarize(total: HookTotals) -> dict[str, Any]:
    """Return the counts and percentiles of totals, as fields of a `Statistic`."""
    counts = {name: getattr(total, name) for name in COUNTS}
    return counts | {f"p{part}_ms": round(total.percentile(part / 100), 6) for part in (50, 95, 99)}


def floor_to_span(seconds: float, span: int) -> int:
    """Round a time down to the start of its minute or hour."""
    return int(max(0.0, min(seconds, 1e12)) // span) * span


def duration_step(duration_ms: float) -> int:
    """Return the histogram step of a duration; step 0 is everything below a nanosecond."""
    nanos = duration_ms * 1e6
    return int(math.log2(min(nanos, 1e18)) * STEPS) + 1 if nanos >= 1.0 else 0


def step_middle(step: int) -> float:
    """Return the middle of a histogram step, in milliseconds."""
    return float(2 ** ((step - 0.5) / STEPS) / 1e6) if step else 0.0
