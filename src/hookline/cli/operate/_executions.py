"""`hookline executions`: list, follow and summarize the executions of hooks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer
from rich.console import Console
from rich.text import Text

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._terminal import (
    STATUS_STYLES,
    Column,
    format_clock_time,
    format_status,
    make_copyable,
    make_one_line,
    parse_option,
    parse_time,
    print_json_lines,
    print_list,
)
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    Since,
    StoreUrl,
    Tenant,
    Until,
    check_point,
    operate,
    read_pages,
)

if TYPE_CHECKING:
    from hookline.registry import ExecutionLog, ExecutionRow, Grouping, HookRun, Statistic
    from hookline.store import Page, SqlStore

__all__ = ["executions_app"]

LATE_SECONDS = 10.0
"""How late a row may come: processes write them in batches, and their clocks differ."""
LOOK_SECONDS = 0.5
"""Between two looks for new rows."""

executions_app = CommandApp(name="executions", cls=ListGroup, help="List, follow and summarize executions of hooks.")

HookId = Annotated[str | None, typer.Option("--hook", metavar="ID", help="Only where this hook ran.")]
Point = Annotated[str | None, typer.Option(metavar="POINT", help="Only at this point: ToolCall, afterStep.")]
Status = Annotated[
    str | None,
    typer.Option("--status", metavar="STATUS", help="Only this status: ok, denied, mocked, error, timeout or dropped."),
]
Revision = Annotated[int | None, typer.Option(min=1, metavar="NUMBER", help="Only where a hook of this revision ran.")]
Operation = Annotated[str | None, typer.Option(metavar="ID", help="Only of this operation.")]


class LogFilter(NamedTuple):
    """The rows of the log that the options choose."""

    tenant: str | None
    hook: str | None
    point: str | None
    status: str | None
    operation: str | None
    revision: int | None

    def page_of(
        self, log: ExecutionLog, since: float | None = None, until: float | None = None
    ) -> Callable[..., Awaitable[Page[ExecutionRow]]]:
        """Return a function that reads a part of the log, called with `cursor` and `limit`."""
        return partial(
            log.logs,
            self.tenant,
            hook_id=self.hook,
            point=self.point,
            status=self.status,
            operation_id=self.operation,
            revision=self.revision,
            since=since,
            until=until,
        )


@executions_app.command("list")
def list_executions(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    hook: HookId = None,
    point: Point = None,
    only: Status = None,
    operation: Operation = None,
    revision: Revision = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List executions of hooks, newest first.

    A row is a call or an event, with all hooks that ran for it.
    """
    check_point(point, logged=True)
    which = LogFilter(tenant, hook, point, only, operation, revision)
    begin, end = parse_option("--since", since, parse_time), parse_option("--until", until, parse_time)

    async def look(store: SqlStore) -> Any:
        from hookline.registry import ExecutionLog

        return await read_pages(which.page_of(ExecutionLog(store), since=begin, until=end), limit)

    found, more = operate(store, look)
    print_list(found, _columns(), as_json=as_json, nothing="No executions match.", more=more)


@executions_app.command("follow")
def follow_executions(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    hook: HookId = None,
    point: Point = None,
    only: Status = None,
    operation: Operation = None,
    revision: Revision = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, metavar="N", help="Start with this many older ones.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show executions of hooks as they happen, until Ctrl-C."""
    check_point(point, logged=True)
    which = LogFilter(tenant, hook, point, only, operation, revision)

    def print_rows(rows: Sequence[ExecutionRow]) -> None:
        if as_json:
            print_json_lines(rows)
            return
        console = Console(highlight=False)
        for row in rows:
            console.print(_line(row), soft_wrap=True)

    async def follow(store: SqlStore) -> None:
        from hookline.registry import ExecutionLog

        log, tail = ExecutionLog(store), Tail(which)
        print_rows(await tail.first(log, lines))
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            print_rows(await tail.more(log))

    operate(store, follow)


@executions_app.command("stats")
def count_executions(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    hook: Annotated[str | None, typer.Option("--hook", metavar="ID", help="Only of this hook.")] = None,
    point: Point = None,
    since: Since = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="WHAT", help="Group by: hook, point, tenant, agent, tool, agent,tool, minute or hour."
        ),
    ] = "hook",
    as_json: AsJson = False,
) -> None:
    """Summarize hook executions: counts, decisions and latencies.

    What shadow hooks would have done is counted apart. The busiest come first. --by minute shows the last hour, and
    --by hour the last day, unless --since is given. By agent, by tool and by both, whole hours are counted.
    """
    check_point(point, logged=True)
    begin = parse_option("--since", since, parse_time)

    async def look(store: SqlStore) -> list[Statistic]:
        from hookline.registry import ExecutionLog

        wanted = cast("Grouping", by)  # the log refuses any other word
        return await ExecutionLog(store).statistics(tenant, hook_id=hook, point=point, since=begin, by=wanted)

    found = operate(store, look)
    print_list(found, _statistic_columns(by, found), as_json=as_json, nothing="No executions match.")


class Tail:
    """Follows a log: each look returns the rows that have not been shown yet.

    A row may come after one that ended later. So each look goes back a little, and what was shown is remembered for as
    long.

    Args:
        which: The rows to show.
    """

    def __init__(self, which: LogFilter) -> None:
        self._which = which
        self._shown: dict[str, float] = {}
        self._since = 0.0

    async def first(self, log: ExecutionLog, count: int) -> list[ExecutionRow]:
        """Return the latest rows, oldest first; all earlier ones count as shown."""
        page = await self._which.page_of(log)(cursor=None, limit=1)
        if not page.items:
            return []
        self._since = page.items[0].created_at
        found = await read_pages(self._which.page_of(log), max(count, 1))
        self._mark_shown(await self._recent_rows(log))
        return list(found[0])[:count][::-1]

    async def more(self, log: ExecutionLog) -> list[ExecutionRow]:
        """Return the rows that have come since, oldest first."""
        found = [row for row in await self._recent_rows(log) if row.id not in self._shown]
        self._mark_shown(found)
        return found[::-1]

    async def _recent_rows(self, log: ExecutionLog) -> Sequence[ExecutionRow]:
        since = max(0.0, self._since - LATE_SECONDS)
        return (await read_pages(self._which.page_of(log, since=since), sys.maxsize))[0]

    def _mark_shown(self, rows: Sequence[ExecutionRow]) -> None:
        if not rows:
            return
        self._since = max(self._since, *(row.created_at for row in rows))
        self._shown |= {row.id: row.created_at for row in rows}
        first = self._since - LATE_SECONDS
        self._shown = {id: at for id, at in self._shown.items() if at >= first - 1}  # noqa: A001


def _line(row: ExecutionRow) -> Text:
    """Return a row as one line."""
    its = [run for run in row.executions if run.status == row.status] or row.executions
    word = format_status(row.status)
    word.pad_right(8 - len(word))
    line = Text.assemble((format_clock_time(row.created_at), "dim"), f"  {row.point:11}  ", word)
    line.append(f"{row.duration_ms:8.2f} ms  {', '.join(map(_hook, its))}")
    if row.reason:
        line.append(f": {make_one_line(row.reason)}")
    line.append(f"  {make_copyable(row.operation_id)}", style="dim")
    if row.tenant_id:
        line.append(f"  {make_copyable(row.tenant_id)}", style="dim")
    return line


def _columns() -> list[Column[ExecutionRow]]:
    return [
        Column("time", lambda each: format_clock_time(each.created_at)),
        Column("status", lambda each: format_status(each.status)),
        Column("point", lambda each: each.point, rank=1),
        Column("ms", lambda each: f"{each.duration_ms:.2f}", rank=2, right=True),
        Column("hooks", _hooks, rank=3, cut=True),
        Column("operation", lambda each: each.operation_id, rank=4),
        Column("reason", _reason, rank=5, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=6),
    ]


DECISIONS = ("denied", "asked", "mocked", "changed", "continued")


def _statistic_columns(by: str, found: Sequence[Statistic]) -> list[Column[Statistic]]:
    """Return the columns of statistics; those of rarer decisions and of shadow hooks only if there were any."""
    grouped: list[Column[Statistic]] = [Column(by, _group)]
    if by == "agent,tool":
        grouped = [Column("agent", lambda each: make_copyable(each.agent_id or "") or "—"), Column("tool", _tool)]
    columns: list[Column[Statistic]] = [
        *grouped,
        Column("count", lambda each: f"{each.count:,}", right=True),
        Column("errors", lambda each: _colour_count(each.errors, "error"), rank=1, right=True),
        Column("p50 ms", lambda each: f"{each.p50_ms:.2f}", rank=2, right=True),
        Column("p95 ms", lambda each: f"{each.p95_ms:.2f}", rank=2, right=True),
        Column("p99 ms", lambda each: f"{each.p99_ms:.2f}", rank=2, right=True),
        Column("denied", lambda each: _colour_count(each.denied, "denied"), rank=3, right=True),
    ]
    if any(each.shadow for each in found):
        columns.append(Column("shadow", lambda each: f"{each.shadow:,}", rank=1, right=True))
        columns.append(Column("would", _summarize_shadow, rank=1))
    columns += [
        Column(name, partial(_format_count, name), rank=4, right=True)
        for name in DECISIONS[1:]
        if any(getattr(each, name) for each in found)
    ]
    columns += [
        Column("timeouts", lambda each: _colour_count(each.timeouts, "timeout"), rank=4, right=True),
        Column("dropped", lambda each: _colour_count(each.dropped, "dropped"), rank=5, right=True),
    ]
    return columns


def _format_count(name: str, each: Statistic) -> str:
    return f"{getattr(each, name):,}"


def _tool(each: Statistic) -> str:
    return make_copyable(each.tool or "")


def _group(each: Statistic) -> str:
    """Return the name of a group of executions; a dash for those of no tenant or agent."""
    start = each.hour if each.minute is None else each.minute
    if start is not None:
        return format_clock_time(start).removesuffix(":00.000")
    return make_copyable(each.hook_id or each.point or each.tenant_id or each.agent_id or each.tool) or "—"


def _summarize_shadow(each: Statistic) -> str:
    """Return what shadow hooks would have done: `"3 denied, 1 asked"`."""
    counts = {name: getattr(each, f"shadow_{name}") for name in (*DECISIONS, "failed")}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def _colour_count(count: int, word: str) -> Text:
    """Return a count, in the colour of its status unless it is 0."""
    return Text(f"{count:,}", style=STATUS_STYLES[word] if count else "")


def _hooks(row: ExecutionRow) -> str:
    return ", ".join(dict.fromkeys(_hook(run) for run in row.executions))


def _hook(run: HookRun) -> str:
    """Return the id of a hook, with the revision of its definition: `no-refunds@12`."""
    named = make_one_line(run.hook_id)
    return f"{named}@{run.revision}" if run.revision else named


def _reason(row: ExecutionRow) -> str:
    return row.reason or next((run.error for run in row.executions if run.error), "") or ""
