"""`hookline logs`: what hooks did, as it was kept, and as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer
from rich.console import Console
from rich.text import Text

from hookline.cli.operate._operate import (
    DEFAULT_STORE,
    LONGEST_PAGE,
    AsJson,
    Limit,
    ListsUnlessTold,
    Since,
    StoreUrl,
    Tenant,
    Until,
    check_point,
    collected,
    operate,
    time_of,
)
from hookline.cli.operate._tables import STATUS_STYLES, Column, as_lines, copied, listed, one_line, status
from hookline.cli.operate._times import stamp

if TYPE_CHECKING:
    from hookline.registry import ExecutionLog, ExecutionRow, Grouping, Statistic
    from hookline.store import SqlStore

__all__ = ["logs_app"]

LATE_SECONDS = 10.0
"""How late a row may come: processes write them in batches, and their clocks differ."""
LOOK_SECONDS = 0.5
"""Between two looks for new rows."""

logs_app = typer.Typer(name="logs", cls=ListsUnlessTold, help="See what hooks did.")

HookId = Annotated[str | None, typer.Option("--hook", metavar="ID", help="Only where this hook ran.")]
Point = Annotated[str | None, typer.Option(metavar="POINT", help="Only at this point: ToolCall, afterStep.")]
Status = Annotated[
    str | None,
    typer.Option("--status", metavar="STATUS", help="Only these: ok, denied, mocked, error, timeout, dropped."),
]
Operation = Annotated[str | None, typer.Option(metavar="ID", help="Only of this operation.")]


class Which(NamedTuple):
    """Which rows are meant."""

    tenant: str | None
    hook: str | None
    point: str | None
    status: str | None
    operation: str | None

    async def page(self, log: ExecutionLog, cursor: str | None, length: int, **times: float | None) -> Any:
        """A part of the log."""
        return await log.logs(
            self.tenant,
            hook_id=self.hook,
            point=self.point,
            status=self.status,
            operation_id=self.operation,
            cursor=cursor,
            limit=length,
            **times,
        )


@logs_app.command("list")
def list_logs(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    hook: HookId = None,
    point: Point = None,
    only: Status = None,
    operation: Operation = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List calls that were led through hooks, what ended last first."""
    check_point(point, logged=True)
    which = Which(tenant, hook, point, only, operation)
    begin, end = time_of("--since", since), time_of("--until", until)

    async def look(store: SqlStore) -> Any:
        from hookline.registry import ExecutionLog

        log = ExecutionLog(store)
        return await collected(lambda cursor, length: which.page(log, cursor, length, since=begin, until=end), limit)

    found, more = operate(store, look)
    if as_json:
        as_lines(found)
    else:
        listed(found, _columns(), more=more, nothing="There are no such rows in the log.")


@logs_app.command("tail")
def tail_logs(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    hook: HookId = None,
    point: Point = None,
    only: Status = None,
    operation: Operation = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="How many older ones at first.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what hooks do as it comes, until Ctrl-C."""
    check_point(point, logged=True)
    which = Which(tenant, hook, point, only, operation)

    def tell(rows: Sequence[ExecutionRow]) -> None:
        if as_json:
            as_lines(rows)
            return
        console = Console(highlight=False)
        for row in rows:
            console.print(_line(row), soft_wrap=True)

    async def follow(store: SqlStore) -> None:
        from hookline.registry import ExecutionLog

        log, tail = ExecutionLog(store), Tail(which)
        tell(await tail.first(log, lines))
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            tell(await tail.more(log))

    operate(store, follow)


@logs_app.command("stats")
def count_logs(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    hook: Annotated[str | None, typer.Option("--hook", metavar="ID", help="Only of this hook.")] = None,
    point: Point = None,
    since: Since = None,
    by: Annotated[
        str, typer.Option("--by", metavar="WHAT", help="What is added up together: hook, point, tenant or minute.")
    ] = "hook",
    as_json: AsJson = False,
) -> None:
    """Add up what hooks did: how often, how often in vain, and how long half, 95 % and 99 % of them took at most.

    The busiest come first; minutes are those of the last hour, unless --since says otherwise.
    """
    check_point(point, logged=True)
    begin = time_of("--since", since)

    async def look(store: SqlStore) -> list[Statistic]:
        from hookline.registry import ExecutionLog

        wanted = cast("Grouping", by)  # the log refuses any other word
        return await ExecutionLog(store).statistics(tenant, hook_id=hook, point=point, since=begin, by=wanted)

    found = operate(store, look)
    if as_json:
        as_lines(found)
    else:
        listed(found, _sums(by), more=False, nothing="No hook ran in that time.")


class Tail:
    """The rows of a log that have not been shown, again and again.

    A row may come after one that ended later. So each look goes back a little, and what was shown is remembered for as
    long.

    Args:
        which: Which rows are meant.
    """

    def __init__(self, which: Which) -> None:
        self._which = which
        self._shown: dict[str, float] = {}
        self._since = 0.0

    async def first(self, log: ExecutionLog, count: int) -> list[ExecutionRow]:
        """The last rows that there are, and all of them are known from now on."""
        page = await self._which.page(log, None, 1)
        if not page.items:
            return []
        self._since = page.items[0].created_at
        found = await collected(lambda cursor, length: self._which.page(log, cursor, length), max(count, 1))
        self._note(await self._looked(log))
        return list(found[0])[:count][::-1]

    async def more(self, log: ExecutionLog) -> list[ExecutionRow]:
        """The rows that have come since, what ended first before the others."""
        found = [row for row in await self._looked(log) if row.id not in self._shown]
        self._note(found)
        return found[::-1]

    async def _looked(self, log: ExecutionLog) -> list[ExecutionRow]:
        found: list[ExecutionRow] = []
        cursor: str | None = None
        while True:
            page = await self._which.page(log, cursor, LONGEST_PAGE, since=max(0.0, self._since - LATE_SECONDS))
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    def _note(self, rows: Sequence[ExecutionRow]) -> None:
        if not rows:
            return
        self._since = max(self._since, *(row.created_at for row in rows))
        self._shown |= {row.id: row.created_at for row in rows}
        first = self._since - LATE_SECONDS
        self._shown = {id: at for id, at in self._shown.items() if at >= first - 1}  # noqa: A001


def _line(row: ExecutionRow) -> Text:
    """A row in one line."""
    its = [run for run in row.executions if run.status == row.status] or row.executions
    word = status(row.status)
    word.pad_right(8 - len(word))
    told = Text.assemble((stamp(row.created_at), "dim"), f"  {row.point:11}  ", word)
    told.append(f"{row.duration_ms:8.2f} ms  {', '.join(one_line(run.hook_id) for run in its)}")
    if row.reason:
        told.append(f": {one_line(row.reason)}")
    told.append(f"  {copied(row.operation_id)}", style="dim")
    if row.tenant_id:
        told.append(f"  {copied(row.tenant_id)}", style="dim")
    return told


def _columns() -> list[Column[ExecutionRow]]:
    return [
        Column(name="time", cell=lambda each: stamp(each.created_at)),
        Column(name="status", cell=lambda each: status(each.status)),
        Column(name="point", cell=lambda each: each.point, rank=1),
        Column(name="ms", cell=lambda each: f"{each.duration_ms:.2f}", rank=2, right=True),
        Column(name="hooks", cell=lambda each: one_line(_hooks(each)), rank=3, cut=True),
        Column(name="operation", cell=lambda each: copied(each.operation_id), rank=4),
        Column(name="reason", cell=lambda each: one_line(_reason(each)), rank=5, cut=True),
        Column(name="tenant", cell=lambda each: copied(each.tenant_id), rank=6),
    ]


def _sums(by: str) -> list[Column[Statistic]]:
    return [
        Column(name=by, cell=_of),
        Column(name="count", cell=lambda each: f"{each.count:,}", right=True),
        Column(name="errors", cell=lambda each: _some(each.errors, "error"), rank=1, right=True),
        Column(name="p50 ms", cell=lambda each: f"{each.p50_ms:.2f}", rank=2, right=True),
        Column(name="p95 ms", cell=lambda each: f"{each.p95_ms:.2f}", rank=2, right=True),
        Column(name="p99 ms", cell=lambda each: f"{each.p99_ms:.2f}", rank=2, right=True),
        Column(name="denied", cell=lambda each: _some(each.denied, "denied"), rank=3, right=True),
        Column(name="timeouts", cell=lambda each: _some(each.timeouts, "timeout"), rank=4, right=True),
        Column(name="dropped", cell=lambda each: _some(each.dropped, "dropped"), rank=5, right=True),
    ]


def _of(each: Statistic) -> str:
    """What a sum is of; a dash for what ran for no tenant."""
    if each.minute is not None:
        return stamp(each.minute).removesuffix(":00.000")
    return copied(each.hook_id or each.point or each.tenant_id) or "—"


def _some(count: int, word: str) -> Text:
    """How often something happened, in its colour where it did."""
    return Text(f"{count:,}", style=STATUS_STYLES[word] if count else "")


def _hooks(row: ExecutionRow) -> str:
    return ", ".join(dict.fromkeys(run.hook_id for run in row.executions))


def _reason(row: ExecutionRow) -> str:
    return row.reason or next((run.error for run in row.executions if run.error), "") or ""
