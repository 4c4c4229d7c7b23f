"""`ExecutionLog`: what hooks did, kept in a store for a while, to be read, filtered and added up."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from time import monotonic, time
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, get_args

import anyio
import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError, StoreUnavailableError
from hookline.registry._log_rows import (
    ExecutionRow,
    Recorded,
    first_key,
    hook_rows,
    key_of,
    main_row,
    request_id,
    respare,
    row_of,
)
from hookline.registry._statistics import Grouping, Statistic, Sums, read_statistics, too_old, write_statistics
from hookline.signals import ChainRun, ExecutionStatus, HookExecution, chain_ran, hook_executed
from hookline.store import Page, SqlStore, check_limit, execution_hooks, executions, statistics

__all__ = ["ExecutionLog", "LogWriter", "Sample", "Wanted", "page", "prune", "single", "wanted"]

TOGETHER = 200
"""Rows that one transaction forgets."""
PAUSE = 0.005
"""Seconds between two transactions, in which others get their turn."""


async def prune(store: SqlStore, *, retention_seconds: float, max_rows: int) -> int:
    """Forget executions that are too old or too many, and sums that are too old.

    Args:
        store: Where they are.
        retention_seconds: How long they are kept.
        max_rows: How many are kept.

    Returns:
        How many executions were forgotten.
    """
    oldest = time() - retention_seconds
    async with store.reading() as connection:
        surplus = select(executions.c.id).order_by(executions.c.id.desc()).offset(max_rows).limit(1)
        too_many = (await connection.execute(surplus)).scalar()
    old = executions.c.id < max(first_key(oldest), 0 if too_many is None else too_many + 1)
    count = await _forget(store, executions, old)
    for condition in too_old(oldest):
        await _forget(store, statistics, condition)
    return count


async def _forget(store: SqlStore, table: Table, old: ColumnElement[bool]) -> int:
    count = 0
    while True:
        async with store.writing() as connection:
            done = await _forget_some(connection, table, old)
        count += done
        if done < TOGETHER:
            return count
        await anyio.sleep(PAUSE)


async def _forget_some(connection: AsyncConnection, table: Table, old: ColumnElement[bool]) -> int:
    key: list[Any] = list(table.primary_key)
    # Another process may be at it too: then each forgets its share, and neither waits.
    some = select(*key).where(old).limit(TOGETHER).with_for_update(skip_locked=True)
    if table is executions:
        some = some.order_by(executions.c.id)
    keys = [tuple(row) for row in await connection.execute(some)]
    if keys:
        if table is executions:
            its = execution_hooks.c.id.in_([each for (each,) in keys])
            await connection.execute(delete(execution_hooks).where(its))
        await connection.execute(delete(table).where(tuple_(*key).in_(keys)))
    return len(keys)


T = TypeVar("T")
LAST = (1 << 63) - 1
_no_sorting = select(
    *(
        func.set_config(f"enable_{way}", "off", literal_column("true"))
        for way in ("sort", "incremental_sort", "seqscan", "bitmapscan")
    )
)
"""Until the transaction ends."""
_row = msgspec.json.Decoder(ExecutionRow).decode


class Wanted(NamedTuple):
    """What a page is to show: that to which all that is given applies."""

    tenant_id: str | None
    hook_id: str | None
    point: str | None
    status: str | None
    operation_id: str | None
    from_key: int
    to_key: int


def wanted(
    tenant_id: str | None,
    *,
    hook_id: str | None = None,
    point: str | None = None,
    status: str | None = None,
    operation_id: str | None = None,
    since: float | None = None,
    until: float | None = None,
    cursor: str | None = None,
) -> Wanted:
    """Check what is asked for.

    Raises:
        HookUsageError: If it makes no sense.
    """
    if status is not None and status not in get_args(ExecutionStatus):
        raise HookUsageError(f"`status` is one of {', '.join(get_args(ExecutionStatus))}; got {status!r}.")
    return Wanted(
        tenant_id,
        hook_id,
        point,
        status,
        operation_id,
        0 if since is None else first_key(since),
        min(LAST if until is None else first_key(until), LAST if cursor is None else key_of(cursor)),
    )


async def page(connection: AsyncConnection, which: Wanted, limit: int) -> Page[ExecutionRow]:
    """A part of the log, the newest first."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        await connection.execute(_no_sorting)
    found = [_row(wire) for wire in (await connection.execute(page_query(which, limit + 1, dialect))).scalars()]
    found.sort(key=lambda row: row.id, reverse=True)
    return Page(items=found[:limit], cursor=found[limit - 1].id if len(found) > limit else None)


async def single(connection: AsyncConnection, key: int, tenant_id: str | None) -> ExecutionRow | None:
    """One row, if it is this tenant's."""
    query = select(executions.c.wire).where(executions.c.id == key)
    if tenant_id is not None:
        query = query.where(executions.c.tenant_id == tenant_id)
    wire = (await connection.execute(query)).scalar()
    return None if wire is None else _row(wire)


def page_query(which: Wanted, limit: int, dialect: str) -> Select[bytes]:
    """A page in SQL."""
    part = partial(between, which=which, limit=limit, dialect=dialect)
    wire = select(executions.c.wire)
    if which.operation_id is not None:
        query = part(wire, executions, named(which, "operation_id"))
        others = named(which, "tenant_id", "point")
        query = query.where(*(beside(executions.c[name], value) for name, value in others.items()))
        if which.hook_id is None:
            return query if which.status is None else query.where(beside(executions.c.status, which.status))
        its = (execution_hooks.c.hook_id == which.hook_id) & (execution_hooks.c.id == executions.c.id)
        status = select(execution_hooks.c.status).where(its).scalar_subquery()
        return query.where(status.is_not(None) if which.status is None else status == which.status)
    if which.hook_id is not None:
        inner = part(select(execution_hooks.c.id), execution_hooks, named(which, "tenant_id", "hook_id", "status"))
        if which.point is not None:
            # It is no part of what the index is sorted by: as a rule, all that a hook does is at one point.
            inner = inner.where(beside(execution_hooks.c.point, which.point))
        ids = inner.subquery()
        return wire.join_from(ids, executions, executions.c.id == ids.c.id)
    return part(wire, executions, named(which, "tenant_id", "point", "status"))


def named(which: Wanted, *names: str) -> dict[str, str]:
    """Those filters that are given, in the order in which an index has them."""
    return {name: value for name in names if (value := getattr(which, name)) is not None}


def beside(column: ColumnElement[str], value: str) -> ColumnElement[bool]:
    """A condition for which no index is to be looked up: that of the page is another one."""
    return column.concat("") == value


def between(
    query: Select[T], source: Table, equal: dict[str, str], *, which: Wanted, limit: int, dialect: str
) -> Select[T]:
    """The rows of an index between two keys, from the last one on."""
    status = equal.get("status")
    if status == "ok":
        # They are not in the indexes by status.
        query = query.where(beside(source.c.status, equal.pop("status")))
    elif status is not None:
        query = query.where(text("status <> 'ok'"))
    columns = [*(source.c[name] for name in equal), source.c.id]
    values = [literal(value, source.c[name].type) for name, value in equal.items()]
    first, last = literal(which.from_key, BigInteger), literal(which.to_key, BigInteger)
    if dialect == "postgresql":
        index = tuple_(*columns)
        query = query.where(index >= tuple_(*values, first), index < tuple_(*values, last))
    else:
        same = (column == value for column, value in zip(columns, values, strict=False))
        query = query.where(*same, source.c.id >= first, source.c.id < last)
    # Not as a parameter: of one, PostgreSQL assumes that it asks for a tenth of all.
    return query.order_by(*(column.desc() for column in columns)).limit(literal_column(str(limit)))


logger = logging.getLogger("hookline")
Sample: TypeAlias = Callable[[Recorded], bool]
"""Rows of one transaction: they keep the event loop for about 5 ms, and other writers of SQLite for about 10."""
EVERY = 0.2
"""Seconds between two looks into the queue."""
SUMS_EVERY = 1.0
"""Seconds after which sums are written even though more rows wait."""
COMPLAINTS_EVERY = 60.0
TRIES = 5
"""How often a batch gets new keys, if another process took one of its keys in the same microsecond."""


class LogWriter:
    """Takes records from runs, and writes them when it can.

    Args:
        store: Where to.
        max_queued: Records that may wait; what comes then is dropped and counted.
        sample: Says which records become rows; all unless given.

    Attributes:
        dropped: Records that were not written.
        written: Rows that were.
    """

    def __init__(self, store: SqlStore, max_queued: int, sample: Sample | None) -> None:
        self._store = store
        self._max_queued = max_queued
        self._sample = sample
        self._queue: deque[tuple[Recorded, str]] = deque()
        self._batch: list[ExecutionRow] | None = None
        self._uncertain = False
        self._sums = Sums()
        self._sums_due = 0.0
        self._spare = count(secrets.randbelow(1 << 11))
        self._turn = asyncio.Lock()
        self._complained = -COMPLAINTS_EVERY
        self._told = 0
        self._waits = False
        self.dropped = self.written = 0

    @property
    def queued(self) -> int:
        """Records that wait."""
        return len(self._queue) + len(self._batch or ())

    def put(self, recorded: Recorded) -> None:
        """Have a record written some time; all that a run pays for."""
        if len(self._queue) < self._max_queued:
            self._queue.append((recorded, request_id.get()))
        else:
            self.dropped += 1

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.flush()
            self._complain()

    async def flush(self) -> bool:
        """Write all that waits; whether the store took it."""
        async with self._turn:
            while self._batch is not None or self._queue:
                if self._batch is None:
                    self._batch = self._next()
                uncertain, self._uncertain = self._uncertain, True
                try:
                    await self._write(self._batch, uncertain)
                except StoreUnavailableError as error:
                    if not self._waits:
                        logger.warning("The log of hook executions waits for its store: %s", error)
                    self._waits = True
                    return False
                except Exception:
                    self.dropped += len(self._batch)
                    logger.exception("%d hook executions cannot be logged, and are dropped", len(self._batch))
                else:
                    self.written += len(self._batch)
                    self._waits = False
                self._batch, self._uncertain = None, False
                await asyncio.sleep(0)
        return True

    def give_up(self) -> None:
        """Drop what waits."""
        self.dropped += self.queued
        self._queue.clear()
        self._batch = None
        self._complain(last=True)

    def _next(self) -> list[ExecutionRow]:
        """The next rows; sums have all that comes along, rows only what the sample keeps."""
        rows: list[ExecutionRow] = []
        while self._queue and len(rows) < TOGETHER:
            recorded, request = self._queue.popleft()
            try:
                row = row_of(recorded, request, next(self._spare))
                self._sums.note(row)
                if self._sample is None or self._sample(recorded):
                    rows.append(row)
            except Exception:
                self.dropped += 1
                logger.exception("A hook execution cannot be logged, and is dropped")
        return rows

    async def _write(self, batch: list[ExecutionRow], uncertain: bool) -> None:
        for _ in range(TRIES):
            try:
                return await self._write_once(batch, uncertain)
            except IntegrityError:
                batch[:] = [respare(row, next(self._spare)) for row in batch]
        return await self._write_once(batch, uncertain)

    async def _write_once(self, batch: list[ExecutionRow], uncertain: bool) -> None:
        now = monotonic()
        sums = self._sums.changed() if not self._queue or now >= self._sums_due else []
        async with self._store.writing() as connection:
            new = bool(batch)
            if new and uncertain:
                # The answer to an earlier try may have been lost.
                its = executions.c.id.in_([key_of(row.id) for row in batch])
                new = (await connection.execute(select(func.count()).where(its))).scalar() != len(batch)
            if new:
                await connection.execute(insert(executions), [main_row(row) for row in batch])
                found_by = [place for row in batch for place in hook_rows(row)]
                if found_by:
                    await connection.execute(insert(execution_hooks), found_by)
            await write_statistics(connection, sums)
        if sums:
            self._sums.written()
            self._sums_due = now + SUMS_EVERY

    def _complain(self, *, last: bool = False) -> None:
        """Say once in a minute how many were dropped."""
        if self.dropped > self._told and (last or monotonic() - self._complained >= COMPLAINTS_EVERY):
            logger.warning("The log of hook executions has dropped %d of them", self.dropped - self._told)
            self._told, self._complained = self.dropped, monotonic()


LONGEST_PAGE = 1000
PRUNE_EVERY = 60.0
"""Seconds between two rounds of forgetting."""
CLOSING = 5.0
"""Seconds that closing takes at most."""


class ExecutionLog:
    """Keeps what hooks did: a row for each call that was led through interceptors, and sums over the hooks.

    While it is open with `async with`, it hears of all runs of its process. A run only leaves a note; a task writes
    the notes in batches. If they come faster than the store takes them, or the store is gone, notes wait, and those
    that find no room are dropped and counted. No run ever waits for the log, or fails by it. It can be read without
    being open.

    Args:
        store: Where it is kept; open for as long as the log is used.
        observers: Whether runs of observers become rows and count too, and those of interceptors that nobody waits for.
        max_queued: Notes that may wait to be written.
        retention_hours: How long rows and the sums of minutes are kept; sums of hours are kept for 30 days.
        max_rows: How many rows are kept, about.
        sample: Given a record, says whether it becomes a row; all unless given. Sums have them all.

    Raises:
        HookUsageError: If an argument makes no sense.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        observers: bool = False,
        max_queued: int = 10_000,
        retention_hours: float = 24.0,
        max_rows: int = 1_000_000,
        sample: Sample | None = None,
    ) -> None:
        for name, number in (("max_queued", max_queued), ("max_rows", max_rows)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise HookUsageError(f"`{name}` is a whole number above 0; got {number!r}.")
        if isinstance(retention_hours, bool) or not isinstance(retention_hours, int | float) or not retention_hours > 0:
            raise HookUsageError(f"`retention_hours` is a number above 0; got {retention_hours!r}.")
        if sample is not None and not callable(sample):
            raise HookUsageError(f"`sample` is a function of one record; got {sample!r}.")
        self._store = store
        self._observers = observers
        self._retention_seconds = min(retention_hours * 3600, 1e10)
        self._max_rows = max_rows
        self._writer = LogWriter(store, max_queued, sample)
        self._tasks: list[asyncio.Task[None]] = []
        self._opened = False

    @property
    def queued(self) -> int:
        """Records that wait to be written."""
        return self._writer.queued

    @property
    def written(self) -> int:
        """Rows that this process has written."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Records that this process has not written and never will."""
        return self._writer.dropped

    async def __aenter__(self) -> Self:
        """Hear of runs from now on.

        Raises:
            HookUsageError: If it was opened before.
        """
        if self._opened:
            raise HookUsageError("This ExecutionLog was opened before; make a new one for another `async with`.")
        self._opened = True
        self._tasks = [asyncio.create_task(self._writer.run()), asyncio.create_task(self._keep_pruning())]
        chain_ran.connect(self._chain_ran, weak=False)
        if self._observers:
            hook_executed.connect(self._hook_executed, weak=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """See `aclose`."""
        await self.aclose()

    async def aclose(self) -> None:
        """Hear no more, and write what waits, if the store takes it within five seconds; drop the rest."""
        chain_ran.disconnect(self._chain_ran)
        hook_executed.disconnect(self._hook_executed)
        with anyio.move_on_after(CLOSING, shield=True):
            await self._writer.flush()
        for task in self._tasks:
            task.cancel()
        with anyio.move_on_after(CLOSING, shield=True):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.give_up()

    async def flush(self) -> bool:
        """Write what waits now; whether the store took it all."""
        return await self._writer.flush()

    async def logs(
        self,
        tenant_id: str | None,
        *,
        hook_id: str | None = None,
        point: str | None = None,
        status: str | None = None,
        operation_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionRow]:
        """A part of the log, what ended last first.

        Args:
            tenant_id: Only what ran for this tenant; `None` for all of them.
            hook_id: Only where this hook ran.
            point: Only at this point: the name of a call's class (`"ToolCall"`), or the wire name of an event.
            status: Only what ended so; with a `hook_id`, only where that hook did.
            operation_id: Only of this operation.
            since: Only what ended at this time or later, in seconds since 1970.
            until: Only what ended before this time.
            cursor: Where the part begins; that of the part before.
            limit: How many at most, up to 1000.

        Raises:
            HookUsageError: If an argument makes no sense.
            StoreUnavailableError: If the database cannot be reached.
        """
        check_limit(limit, LONGEST_PAGE)
        which = wanted(
            tenant_id,
            hook_id=hook_id,
            point=point,
            status=status,
            operation_id=operation_id,
            since=since,
            until=until,
            cursor=cursor,
        )
        async with self._store.reading() as connection:
            return await page(connection, which, limit)

    async def log(self, id: str, tenant_id: str | None) -> ExecutionRow | None:  # noqa: A002
        """One row of the log.

        Args:
            id: The row.
            tenant_id: Only if it ran for this tenant; `None` for any.

        Returns:
            The row; `None` if there is none, or it is another tenant's.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        try:
            key = key_of(id)
        except HookUsageError:
            return None
        async with self._store.reading() as connection:
            return await single(connection, key, tenant_id)

    async def statistics(
        self,
        tenant_id: str | None,
        *,
        hook_id: str | None = None,
        point: str | None = None,
        since: float | None = None,
        by: Grouping = "hook",
    ) -> list[Statistic]:
        """What hooks did, added up; the same work however many rows the log has.

        Args:
            tenant_id: Only what ran for this tenant; `None` for all of them.
            hook_id: Only what this hook did.
            point: Only what was done at this point.
            since: Only from the minute of this time on, in seconds since 1970; from its hour on where that is older
                than the log. Unless given: all that is kept; by minutes, those of the last hour.
            by: `"hook"`, `"point"` or `"tenant"`: for each of them, the busiest first; `"minute"`: in order.

        Raises:
            HookUsageError: If an argument makes no sense.
            StoreUnavailableError: If the database cannot be reached.
        """
        if since is not None:
            first_key(since)
        async with self._store.reading() as connection:
            return await read_statistics(
                connection,
                tenant_id,
                hook_id=hook_id,
                point=point,
                since=since,
                by=by,
                minutes_since=time() - self._retention_seconds,
            )

    async def prune(self) -> int:
        """Forget what is too old and too much, a little at a time; while the log is open, that is done every minute.

        Returns:
            How many rows were forgotten.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await prune(self._store, retention_seconds=self._retention_seconds, max_rows=self._max_rows)

    def _chain_ran(self, _: object, ran: ChainRun) -> None:
        self._writer.put(ran)

    def _hook_executed(self, _: object, execution: HookExecution) -> None:
        if not execution.in_chain:
            self._writer.put(execution)

    async def _keep_pruning(self) -> None:
        while True:
            try:
                await self.prune()
            except (StoreUnavailableError, SQLAlchemyError) as error:
                logger.warning("The log of hook executions could not be pruned: %s", error)
            await asyncio.sleep(PRUNE_EVERY)
