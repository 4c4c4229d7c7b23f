"""`ExecutionLog`: store what hooks did for a while, to be listed, filtered and summed up."""

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
    exists,
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
    SPARE_BITS,
    ExecutionRow,
    Recorded,
    build_row,
    execution_hook_rows,
    execution_row,
    first_key,
    parse_key,
    replace_key,
    request_id,
)
from hookline.registry._statistics import (
    Grouping,
    Statistic,
    StatisticsBuffer,
    expired_conditions,
    read_statistics,
    write_grouped_statistics,
    write_statistics,
)
from hookline.signals import ChainRun, ExecutionStatus, HookExecution, chain_ran, hook_executed
from hookline.store import (
    DAY,
    Page,
    SqlStore,
    check_limit,
    day_of,
    drop_days,
    execution_hooks,
    executions,
    policy_alerts,
)

__all__ = ["ExecutionLog", "LogQuery", "LogWriter", "SampleFilter", "build_query", "prune_log", "read_page", "read_row"]

BATCH_SIZE = 200
"""Rows that are written or deleted in one transaction at most."""
DAYS_OF_ALERTS = 30
"""Days for which alerts of policies are kept; longer if the log is."""
PAUSE = 0.005
"""Seconds between two transactions that delete rows, so that other writers get their turn."""


async def prune_log(store: SqlStore, *, retention_seconds: float, max_rows: int) -> int:
    """Delete executions that are too old or too many, and statistics that are too old.

    Args:
        store: The store of the log.
        retention_seconds: Seconds for which executions are kept. From a day on, PostgreSQL drops those of a whole day
            at a time, which is up to a day later.
        max_rows: Number of executions that are kept.

    Returns:
        The number of deleted executions.
    """
    oldest = time() - retention_seconds
    surplus = await store.read_rows(select(executions.c.id).order_by(executions.c.id.desc()).offset(max_rows).limit(1))
    enough = surplus[0].id + 1 if surplus else 0
    day = max(day_of(oldest), day_of((enough >> SPARE_BITS) / 1e6))
    count = await drop_days(store, ("executions", "execution_hooks"), before=day)
    if store.dialect == "postgresql" and retention_seconds >= DAY:
        oldest_row = first_key(oldest // DAY * DAY)  # the rest of that day waits until the day is dropped
    else:
        oldest_row = first_key(oldest)
    old_alert = policy_alerts.c.created_at < min(oldest, time() - DAYS_OF_ALERTS * DAY)
    old = [
        (executions, executions.c.id < max(oldest_row, enough)),
        *expired_conditions(oldest),
        (policy_alerts, old_alert),
    ]
    [due] = await store.read_rows(select(*(exists().where(condition) for _, condition in old)))
    for (table, condition), is_due in zip(old, due, strict=True):
        if is_due:
            deleted = await _delete_old(store, table, condition)
            count += deleted if table is executions else 0
    return count


async def _delete_old(store: SqlStore, table: Table, old: ColumnElement[bool]) -> int:
    count = 0
    while True:
        done = await store.write(partial(_delete_batch, table=table, old=old))
        count += done
        if done < BATCH_SIZE:
            return count
        await anyio.sleep(PAUSE)


async def _delete_batch(connection: AsyncConnection, table: Table, old: ColumnElement[bool]) -> int:
    key: list[Any] = list(table.primary_key)
    # `skip_locked`: if another process deletes too, each deletes its share, and neither waits.
    some = select(*key).where(old).limit(BATCH_SIZE).with_for_update(skip_locked=True)
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
"""Makes PostgreSQL read a page in the order of an index, until the transaction ends."""
_row = msgspec.json.Decoder(ExecutionRow).decode


class LogQuery(NamedTuple):
    """The filters of a page of the log, and its range of keys. A row has to match every filter that is set."""

    tenant_id: str | None
    hook_id: str | None
    point: str | None
    status: str | None
    operation_id: str | None
    revision: int | None
    from_key: int
    to_key: int


def build_query(
    tenant_id: str | None,
    *,
    hook_id: str | None = None,
    point: str | None = None,
    status: str | None = None,
    operation_id: str | None = None,
    revision: int | None = None,
    since: float | None = None,
    until: float | None = None,
    cursor: str | None = None,
) -> LogQuery:
    """Validate the filters of a page.

    Raises:
        HookUsageError: If a filter is invalid.
    """
    if status is not None and status not in get_args(ExecutionStatus):
        raise HookUsageError(f"`status` must be one of {', '.join(get_args(ExecutionStatus))}; got {status!r}.")
    if revision is not None and (isinstance(revision, bool) or not isinstance(revision, int) or revision < 1):
        raise HookUsageError(f"`revision` must be the revision of a definition, from 1; got {revision!r}.")
    return LogQuery(
        tenant_id,
        hook_id,
        point,
        status,
        operation_id,
        None if revision is None else min(revision, LAST),
        0 if since is None else first_key(since),
        min(LAST if until is None else first_key(until), LAST if cursor is None else parse_key(cursor)),
    )


async def read_page(connection: AsyncConnection, which: LogQuery, limit: int) -> Page[ExecutionRow]:
    """Read a page of the log, newest first."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        await connection.execute(_no_sorting)
    found = [
        _row(wire) for wire in (await connection.execute(build_page_statement(which, limit + 1, dialect))).scalars()
    ]
    found.sort(key=lambda row: row.id, reverse=True)
    return Page(items=found[:limit], cursor=found[limit - 1].id if len(found) > limit else None)


async def read_row(connection: AsyncConnection, key: int, tenant_id: str | None) -> ExecutionRow | None:
    """Read one row; `None` if there is no such row, or it is another tenant's."""
    query = select(executions.c.wire).where(executions.c.id == key)
    if tenant_id is not None:
        query = query.where(executions.c.tenant_id == tenant_id)
    wire = (await connection.execute(query)).scalar()
    return None if wire is None else _row(wire)


def build_page_statement(which: LogQuery, limit: int, dialect: str) -> Select[bytes]:
    """Build the SQL statement of a page."""
    part = partial(select_key_range, which=which, limit=limit, dialect=dialect)
    wire = select(executions.c.wire)
    if which.operation_id is not None:
        query = part(wire, executions, select_filters(which, "operation_id"))
        others = select_filters(which, "tenant_id", "point")
        query = query.where(*(equals_without_index(executions.c[name], value) for name, value in others.items()))
        if which.hook_id is None and which.revision is None:
            return (
                query if which.status is None else query.where(equals_without_index(executions.c.status, which.status))
            )
        its = select_filters(which, "hook_id", "revision", "status")
        found = select(func.count()).where(execution_hooks.c.id == executions.c.id)
        found = found.where(*(execution_hooks.c[name] == value for name, value in its.items()))
        return query.where(found.scalar_subquery() > 0)
    if which.revision is not None:
        equal = select_filters(which, "tenant_id", "revision")
        inner = part(select(execution_hooks.c.id), execution_hooks, equal).where(text("revision <> 0"))
        others = select_filters(which, "hook_id", "point", "status")
        inner = inner.where(*(equals_without_index(execution_hooks.c[name], value) for name, value in others.items()))
        # Several definitions have the same revision if one change was about all of them, and may run for one call.
        ids = inner.group_by(*(execution_hooks.c[name] for name in equal), execution_hooks.c.id).subquery()
        return wire.join_from(ids, executions, executions.c.id == ids.c.id)
    if which.hook_id is not None:
        inner = part(
            select(execution_hooks.c.id), execution_hooks, select_filters(which, "tenant_id", "hook_id", "status")
        )
        if which.point is not None:
            # The index is not sorted by points, since most hooks stand at a single one.
            inner = inner.where(equals_without_index(execution_hooks.c.point, which.point))
        ids = inner.subquery()
        return wire.join_from(ids, executions, executions.c.id == ids.c.id)
    return part(wire, executions, select_filters(which, "tenant_id", "point", "status"))


def select_filters(which: LogQuery, *names: str) -> dict[str, Any]:
    """Return the filters that are set, in the order in which an index has them."""
    return {name: value for name in names if (value := getattr(which, name)) is not None}


def equals_without_index(column: ColumnElement[str], value: str) -> ColumnElement[bool]:
    """Build a condition that no index serves, so that the planner uses the index of the page's order."""
    return column.concat("") == value


def select_key_range(
    query: Select[T], source: Table, equal: dict[str, Any], *, which: LogQuery, limit: int, dialect: str
) -> Select[T]:
    """Select the rows of an index between two keys, in descending order."""
    status = equal.get("status")
    if status == "ok":
        # The partial indexes by status leave out rows that are ok.
        query = query.where(equals_without_index(source.c.status, equal.pop("status")))
    elif status is not None:
        query = query.where(text("status <> 'ok'"))
    columns = [*(source.c[name] for name in equal), source.c.id]
    values = [literal(value, source.c[name].type) for name, value in equal.items()]
    first, last = literal(which.from_key, BigInteger), literal(which.to_key, BigInteger)
    if dialect == "postgresql":
        index = tuple_(*columns)
        query = query.where(index >= tuple_(*values, first), index < tuple_(*values, last))
        if equal:
            query = query.where(source.c.id >= first, source.c.id < last)  # by which PostgreSQL selects partitions
    else:
        same = (column == value for column, value in zip(columns, values, strict=False))
        query = query.where(*same, source.c.id >= first, source.c.id < last)
    # A literal, since PostgreSQL assumes that a LIMIT given as a parameter asks for a tenth of all rows.
    return query.order_by(*(column.desc() for column in columns)).limit(literal_column(str(limit)))


logger = logging.getLogger("hookline")
SampleFilter: TypeAlias = Callable[[Recorded], bool]
"""A function that decides which records become rows."""
FLUSH_EVERY = 0.2
"""Seconds between two writes of the queue."""
SUMS_EVERY = 1.0
"""Seconds after which statistics are written even if more rows wait."""
REPORT_EVERY = 60.0
"""Seconds between two log records about dropped records."""
TRIES = 5
"""How often a batch gets new keys if another process used one of its keys in the same microsecond."""


class LogWriter:
    """Queues the records of hooks, and writes them to the store in batches.

    Args:
        store: The store of the log.
        max_queued: Number of records that may wait; further ones are dropped and counted.
        sample: Decides which records become rows; all by default.

    Attributes:
        dropped: Number of records that were not written.
        written: Number of rows that were written.
    """

    def __init__(self, store: SqlStore, max_queued: int, sample: SampleFilter | None) -> None:
        self._store = store
        self._max_queued = max_queued
        self._sample = sample
        self._queue: deque[tuple[Recorded, str]] = deque()
        self._batch: list[ExecutionRow] | None = None
        self._uncertain = False
        self._sums = StatisticsBuffer()
        self._sums_due = 0.0
        self._spare = count(secrets.randbelow(1 << 11))
        self._write_lock = asyncio.Lock()
        self._reported_at = -REPORT_EVERY
        self._reported = 0
        self._waits = False
        self.dropped = self.written = 0

    @property
    def queued(self) -> int:
        """Number of records that wait to be written."""
        return len(self._queue) + len(self._batch or ())

    def enqueue(self, recorded: Recorded) -> None:
        """Queue a record. This is all that a run pays for the log."""
        if len(self._queue) < self._max_queued:
            self._queue.append((recorded, request_id.get()))
        else:
            self.dropped += 1

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_EVERY)
            await self.flush()
            self._log_dropped()

    async def flush(self) -> bool:
        """Write all waiting records, and return whether the store could be reached."""
        async with self._write_lock:
            while self._batch is not None or self._queue:
                if self._batch is None:
                    self._batch = self._next_batch()
                uncertain, self._uncertain = self._uncertain, True
                try:
                    await self._write(self._batch, uncertain)
                except StoreUnavailableError as error:
                    if not self._waits:
                        logger.warning("The log of hook executions cannot reach its store and will retry: %s", error)
                    self._waits = True
                    return False
                except Exception:
                    self.dropped += len(self._batch)
                    logger.exception("%d hook executions cannot be logged and are dropped", len(self._batch))
                else:
                    self.written += len(self._batch)
                    self._waits = False
                self._batch, self._uncertain = None, False
                await asyncio.sleep(0)
        return True

    def drop_waiting(self) -> None:
        """Drop all waiting records."""
        self.dropped += self.queued
        self._queue.clear()
        self._batch = None
        self._log_dropped(last=True)

    def _next_batch(self) -> list[ExecutionRow]:
        """Take the next records from the queue: all are added to the statistics, those in the sample become rows."""
        rows: list[ExecutionRow] = []
        while self._queue and len(rows) < BATCH_SIZE:
            recorded, request = self._queue.popleft()
            try:
                row = build_row(recorded, request, next(self._spare))
                self._sums.add(row)
                if self._sample is None or self._sample(recorded):
                    rows.append(row)
            except Exception:
                self.dropped += 1
                logger.exception("A hook execution cannot be logged and is dropped")
        return rows

    async def _write(self, batch: list[ExecutionRow], uncertain: bool) -> None:
        for _ in range(TRIES):
            try:
                return await self._write_once(batch, uncertain)
            except IntegrityError:
                batch[:] = [replace_key(row, next(self._spare)) for row in batch]
        return await self._write_once(batch, uncertain)

    async def _write_once(self, batch: list[ExecutionRow], uncertain: bool) -> None:
        now = monotonic()
        due = not self._queue or now >= self._sums_due
        sums = self._sums.changed_rows() if due else []
        grouped = self._sums.changed_group_rows() if due else []

        async def write_batch(connection: AsyncConnection) -> None:
            new = bool(batch)
            if new and uncertain:
                # An earlier try may have committed the batch, although its answer was lost.
                its = executions.c.id.in_([parse_key(row.id) for row in batch])
                new = (await connection.execute(select(func.count()).where(its))).scalar() != len(batch)
            if new:
                await connection.execute(insert(executions), [execution_row(row) for row in batch])
                found_by = [place for row in batch for place in execution_hook_rows(row)]
                if found_by:
                    await connection.execute(insert(execution_hooks), found_by)
            await write_statistics(connection, sums)
            await write_grouped_statistics(connection, grouped)

        await self._store.write(write_batch)
        if sums:
            self._sums.mark_written()
            self._sums_due = now + SUMS_EVERY

    def _log_dropped(self, *, last: bool = False) -> None:
        """Log once a minute how many records were dropped."""
        if self.dropped > self._reported and (last or monotonic() - self._reported_at >= REPORT_EVERY):
            logger.warning("The log of hook executions has dropped %d executions", self.dropped - self._reported)
            self._reported, self._reported_at = self.dropped, monotonic()


PRUNE_EVERY = 60.0
"""Seconds between two rounds of pruning."""
CLOSING = 5.0
"""Seconds that closing may take at most."""


class ExecutionLog:
    """Stores what hooks did: a row for each call that passed interceptors, and statistics of all hooks.

    While the log is open (`async with`), it records all runs of its process. A run only adds a record to a queue; the
    records are written in batches. If they come faster than the store takes them, or the store cannot be reached, they
    wait, and those beyond `max_queued` are dropped and counted. No run ever waits for the log or fails because of it.
    The log can be read without being open.

    Args:
        store: The store of the log; it has to be open while the log is used.
        observers: Whether to record executions of observers too, and of interceptors with `wait=False`.
        max_queued: Number of records that may wait to be written.
        retention_hours: Hours for which rows and statistics by minute are kept; those by hour are kept for 30 days.
            From 24 on, PostgreSQL keeps rows up to a day longer, since it drops those of a whole day at a time.
        max_rows: Number of rows that are kept, approximately.
        sample: Decides whether a record becomes a row; all do by default. Statistics count every record.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        observers: bool = False,
        max_queued: int = 10_000,
        retention_hours: float = 24.0,
        max_rows: int = 1_000_000,
        sample: SampleFilter | None = None,
    ) -> None:
        for name, number in (("max_queued", max_queued), ("max_rows", max_rows)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise HookUsageError(f"`{name}` must be a whole number above 0; got {number!r}.")
        if isinstance(retention_hours, bool) or not isinstance(retention_hours, int | float) or not retention_hours > 0:
            raise HookUsageError(f"`retention_hours` must be a number above 0; got {retention_hours!r}.")
        if sample is not None and not callable(sample):
            raise HookUsageError(f"`sample` must be a function of one record; got {sample!r}.")
        self._store = store
        self._observers = observers
        self._retention_seconds = min(retention_hours * 3600, 1e10)
        self._max_rows = max_rows
        self._writer = LogWriter(store, max_queued, sample)
        self._prune_lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._opened = False

    @property
    def retention_seconds(self) -> float:
        """Seconds for which rows are kept."""
        return self._retention_seconds

    @property
    def queued(self) -> int:
        """Number of records that wait to be written."""
        return self._writer.queued

    @property
    def written(self) -> int:
        """Number of rows that this process has written."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Number of records that this process has dropped."""
        return self._writer.dropped

    async def __aenter__(self) -> Self:
        """Start to record runs.

        Raises:
            HookUsageError: If the log was opened before.
        """
        if self._opened:
            raise HookUsageError("This ExecutionLog was already opened; create a new one for each `async with`.")
        self._opened = True
        self._tasks = [asyncio.create_task(self._writer.run()), asyncio.create_task(self._prune_periodically())]
        chain_ran.connect(self._chain_ran, weak=False)
        if self._observers:
            hook_executed.connect(self._hook_executed, weak=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop recording, write the waiting records for up to five seconds, and drop the rest."""
        chain_ran.disconnect(self._chain_ran)
        hook_executed.disconnect(self._hook_executed)
        with anyio.move_on_after(CLOSING, shield=True):
            await self._writer.flush()
        for task in self._tasks:
            task.cancel()
        with anyio.move_on_after(CLOSING, shield=True):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.drop_waiting()

    async def flush(self) -> bool:
        """Write the waiting records now, and return whether the store could be reached."""
        return await self._writer.flush()

    async def logs(
        self,
        tenant_id: str | None,
        *,
        hook_id: str | None = None,
        point: str | None = None,
        status: str | None = None,
        operation_id: str | None = None,
        revision: int | None = None,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionRow]:
        """Read a page of the log, newest first (by the time of their end).

        Args:
            tenant_id: Only rows of this tenant; `None` for all tenants.
            hook_id: Only rows in which this hook ran.
            point: Only rows of this point: the name of a call's class (`"ToolCall"`), or the wire name of an event.
            status: Only rows with this status; with `hook_id` or `revision`, only rows in which that hook had it.
            operation_id: Only rows of this operation.
            revision: Only rows in which a hook of this revision of its definition ran. Rows of versions of hookline
                that did not keep it in the table are left out.
            since: Only rows that ended at this time or later, in unix seconds.
            until: Only rows that ended before this time, in unix seconds.
            cursor: The cursor of the page before; `None` for the first page.
            limit: Number of rows at most, up to 1000.

        Raises:
            HookUsageError: If an argument is invalid.
            StoreUnavailableError: If the database cannot be reached.
        """
        check_limit(limit)
        which = build_query(
            tenant_id,
            hook_id=hook_id,
            point=point,
            status=status,
            operation_id=operation_id,
            revision=revision,
            since=since,
            until=until,
            cursor=cursor,
        )
        return await self._store.read(partial(read_page, which=which, limit=limit))

    async def log(self, id: str, tenant_id: str | None) -> ExecutionRow | None:  # noqa: A002
        """Read one row of the log.

        Args:
            id: The id of the row.
            tenant_id: Only if the row is this tenant's; `None` for any tenant.

        Returns:
            The row; `None` if there is no such row, or it is another tenant's.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        try:
            key = parse_key(id)
        except HookUsageError:
            return None
        return await self._store.read(partial(read_row, key=key, tenant_id=tenant_id))

    async def statistics(
        self,
        tenant_id: str | None,
        *,
        hook_id: str | None = None,
        point: str | None = None,
        since: float | None = None,
        by: Grouping = "hook",
    ) -> list[Statistic]:
        """Summarize hook executions: counts, errors and p50/p95/p99 latencies. The cost does not grow with the log.

        Args:
            tenant_id: Only executions of this tenant; `None` for all tenants.
            hook_id: Only executions of this hook.
            point: Only executions at this point.
            since: Only executions from the minute of this time on, in unix seconds; from its hour on if that is older
                than the log, or if it is grouped by agent or tool. By default everything that is kept; with
                `by="minute"` the last hour, with `by="hour"` the last day.
            by: `"hook"`, `"point"`, `"tenant"`, `"agent"`, `"tool"` or `"agent,tool"`: a row for each, the busiest
                first; by tool, only executions about a tool. `"minute"` or `"hour"`: in order of time.

        Raises:
            HookUsageError: If an argument is invalid.
            StoreUnavailableError: If the database cannot be reached.
        """
        if since is not None:
            first_key(since)
        query = partial(
            read_statistics,
            tenant_id=tenant_id,
            hook_id=hook_id,
            point=point,
            since=since,
            by=by,
            minutes_since=time() - self._retention_seconds,
        )
        return await self._store.read(query)

    async def prune(self) -> int:
        """Delete rows that are too old or too many, in small steps. While the log is open, this happens every minute.

        Returns:
            The number of deleted rows.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._prune_lock:  # one that skips what another one is deleting would end before it is gone
            return await prune_log(self._store, retention_seconds=self._retention_seconds, max_rows=self._max_rows)

    def _chain_ran(self, _: object, ran: ChainRun) -> None:
        self._writer.enqueue(ran)

    def _hook_executed(self, _: object, execution: HookExecution) -> None:
        if not execution.in_chain:
            self._writer.enqueue(execution)

    async def _prune_periodically(self) -> None:
        while True:
            try:
                await self.prune()
            except (StoreUnavailableError, SQLAlchemyError) as error:
                logger.warning("The log of hook executions could not be pruned: %s", error)
            await asyncio.sleep(PRUNE_EVERY)
