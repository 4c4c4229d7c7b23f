"""Partitions by day, on PostgreSQL: where a row belongs, and how the partition of a day is made and dropped.

PostgreSQL keeps the rows of a day in a partition of their own, so that old ones are deleted by dropping a table instead
of row by row. The column `day` is the number of a day since 1970. Events have the day on which their operation was
stored first (`operations.day`), so that an operation is read from one partition. Deliveries and their attempts have the
day on which they were delivered. Executions have no such column, since their key contains the time. Two days are none:

* `KEPT` (0) is no day's. It holds the deliveries that are not settled, whose queries so read a small table; the events
  of an `EventLog`; and what was kept when a day was dropped.
* `GIVEN_UP` (1) holds the deliveries that were given up, which a person may still replay.

Days without a partition share a default one, so that no insert ever fails, whatever a clock says. SQLite has no
partitions: there `day` is always 0.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import date, timedelta
from time import time
from typing import Any, Protocol

import anyio
from sqlalchemy import CTE, ColumnElement, Insert, Table, cast, delete, insert, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store._database import Database, Dialect, is_lock_timeout, read_clock

__all__ = [
    "DAY",
    "GIVEN_UP",
    "KEPT",
    "Partitions",
    "day_of",
    "drop_day",
    "drop_days",
    "find_partitions",
    "make_partitions",
    "move_rows",
    "today",
]

logger = logging.getLogger("hookline")

DAY = 86_400
"""Seconds of a day."""
KEPT, GIVEN_UP, FIRST = 0, 1, 2
KEYS = DAY * 1_000_000 << 11
"""Number of keys of executions in a day, as `hookline.registry` makes them."""

TABLES = {"events": 1, "deliveries": 1, "attempts": 1, "executions": KEYS, "execution_hooks": KEYS}
"""The partitioned tables, with the length of a day in the column by which each is partitioned."""
COLUMNS = {"executions": "id", "execution_hooks": "id"}
"""The column by which a table is partitioned, if it is not `day`."""
LOCK = 0x686F6F6B64617973
"""Key of PostgreSQL's advisory lock that a process holds while it makes or drops partitions."""

AHEAD = 2
"""Days ahead for which partitions are made."""
EVERY = 600.0
"""Seconds between two looks whether the next partitions are there."""
STRAYS = 10_000
"""Rows of the default partition that are moved when the partition of their day is made. While there are more, that day
stays in the default partition, since moving them would lock it for long."""
LOCK_SECONDS = 0.05
"""Seconds for which a drop waits for the readers and writers of a table. Everybody who comes later waits as long."""
COUNTED_PAGES = 10_000
"""Pages of 8 KB of a partition up to which its rows are counted before it is dropped."""
TRIES, PAUSE = 40, 0.25
"""How often a drop is tried, and seconds between two tries."""
EPOCH = date(1970, 1, 1)


def day_of(seconds: float) -> int:
    """Return the number of the day of a time in unix seconds."""
    return max(FIRST, int(seconds // DAY))


def today(dialect: str) -> int:
    """Return the day of rows that are stored now, by the clock of this process; 0 on SQLite."""
    return KEPT if dialect == "sqlite" else day_of(time())


def name_partition(table: str, day: int) -> str:
    """Return the name of the partition of a day."""
    return f"{table}_{EPOCH + timedelta(days=day):%Y%m%d}"


def _parse_name(table: str, name: str) -> tuple[int, bool] | None:
    """Return the day of a partition, and whether it holds all days before; `None` if it is no day's."""
    match = re.fullmatch(rf"{table}_(before_)?(\d{{8}})", name)
    if match is None:
        return None
    day = (date.fromisoformat(match[2]) - EPOCH).days
    return (day - 1, True) if match[1] else (day, False)


async def find_partitions(connection: AsyncConnection, table: str) -> dict[int, str]:
    """Return the names of the partitions of days, by day. One that holds all days up to a day has that day."""
    return (await _find_partitions_of(connection, [table]))[table]


async def _find_partitions_of(connection: AsyncConnection, tables: Collection[str]) -> dict[str, dict[int, str]]:
    """Return the partitions of days of each of some tables, as `find_partitions` does of one."""
    query = text(
        "SELECT name, relname FROM unnest(CAST(:names AS text[])) AS name "
        "JOIN pg_inherits ON inhparent = to_regclass(name) JOIN pg_class ON pg_class.oid = inhrelid ORDER BY relname"
    )
    partitions: dict[str, dict[int, str]] = {table: {} for table in tables}
    for table, name in await connection.execute(query, {"names": list(tables)}):
        found = _parse_name(table, name)
        if found is not None:
            partitions[table][found[0]] = name
    return partitions


async def make_partitions(database: Database) -> None:
    """Make the partitions of the next days, unless they are there. A day that cannot be made now is left out.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    if database.dialect == "sqlite":
        return
    async with database.reading() as connection:
        # Rows have the time of the database or of a process, so there are partitions for both.
        starts = {day_of(await read_clock(connection)), day_of(time())}
        days = {start + ahead for start in starts for ahead in range(AHEAD + 1)}
        partitions = await _find_partitions_of(connection, TABLES)
        missing = [(table, day) for table, found in partitions.items() for day in _choose_missing(found, days)]
    for table, day in missing:
        try:
            await _make_partition(database, table, day)
        except (StoreUnavailableError, SQLAlchemyError) as error:
            if isinstance(error, StoreUnavailableError) and not is_lock_timeout(error):
                raise
            logger.warning("The partition of %s was not made and will be tried again: %s", _show(table, day), error)


def _choose_missing(found: Mapping[int, str], days: Collection[int]) -> list[int]:
    joint = max((day for day, name in found.items() if "_before_" in name), default=0)
    return sorted(day for day in days if day not in found and day > joint)


async def _make_partition(database: Database, table: str, day: int) -> None:
    """Make the partition of a day, with the rows of that day that are in the default partition.

    To attach a partition locks nobody out but readers and writers of the default partition, which PostgreSQL searches
    for rows of that day. So a table is made first and attached then, other than with `CREATE TABLE ... PARTITION OF`.
    """
    name, width, column = name_partition(table, day), TABLES[table], COLUMNS.get(table, "day")
    first, end = day * width, (day + 1) * width
    its = f"{column} >= {first} AND {column} < {end}"
    async with database.writing() as connection:
        await _limit_locks(connection, 10 * LOCK_SECONDS)
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        if not _choose_missing(await find_partitions(connection, table), [day]):
            return
        strays = text(f"SELECT count(*) FROM (SELECT FROM {table}_default WHERE {its} LIMIT {STRAYS + 1}) AS strays")
        count = (await connection.execute(strays)).scalar_one()
        if count > STRAYS:
            logger.info("%s has no partition, since many of its rows were stored already", _show(table, day))
            return
        await connection.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS)"))
        if count:
            await connection.execute(text(f"LOCK TABLE {table}_default IN ACCESS EXCLUSIVE MODE"))
            moved = f"WITH gone AS (DELETE FROM {table}_default WHERE {its} RETURNING *)"
            await connection.execute(text(f"{moved} INSERT INTO {name} SELECT * FROM gone"))
        await connection.execute(
            text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({end})")
        )


class Transactions(Protocol):
    """A store or its database."""

    @property
    def dialect(self) -> Dialect:
        """The kind of database."""
        ...

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a read-only transaction."""
        ...

    def writing(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a transaction that may write."""
        ...


async def drop_days(database: Transactions, tables: Sequence[str], *, before: int) -> int:
    """Drop the partitions of all days before a day; on SQLite, do nothing.

    Args:
        database: The database.
        tables: The tables whose partitions are dropped together.
        before: The first day that is kept.

    Returns:
        The number of rows of the first table in them; of a large partition, as the statistics of PostgreSQL have it.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    if database.dialect == "sqlite":
        return 0
    async with database.reading() as connection:
        found = await find_partitions(connection, tables[0])
        counts = {day: await _count_rows(connection, tables[0], day, found[day]) for day in found if day < before}
    return sum([counts[day] for day in sorted(counts) if await drop_day(database, tables, day)])


async def _count_rows(connection: AsyncConnection, table: str, day: int, name: str) -> int:
    """Count the rows of a day; of a large partition that PostgreSQL has analyzed, return the estimate.

    Args:
        connection: The connection.
        table: The table.
        day: The day.
        name: The partition of the day, which another process may drop at this moment.
    """
    known = text("SELECT relpages, reltuples FROM pg_class WHERE oid = to_regclass(:name)")
    estimate = (await connection.execute(known, {"name": name})).one_or_none()
    if estimate is not None and estimate.relpages > COUNTED_PAGES and estimate.reltuples >= 0:
        return int(estimate.reltuples)
    rows = await connection.execute(text(f"SELECT count(*) FROM {table} WHERE day = :day"), {"day": day})
    return int(rows.scalar_one())


async def drop_day(
    database: Transactions,
    tables: Collection[str],
    day: int,
    *,
    is_needed: Callable[[AsyncConnection], Awaitable[bool]] | None = None,
) -> bool:
    """Drop the partitions of a day.

    A drop locks the table, for as long as PostgreSQL needs to change its catalog. It waits for those who use the table
    only for a moment, and tries again after a pause, so that nobody waits long behind it.

    Args:
        database: The database.
        tables: The tables whose partitions are dropped together.
        day: The day.
        is_needed: Returns whether something in them is still needed; called while nobody can add to them.

    Returns:
        Whether they were dropped, or gone already; `False` if something is still needed, or others use them for long.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    for nth in range(TRIES):
        if nth:
            await anyio.sleep(PAUSE)
        try:
            async with database.writing() as connection:
                await _limit_locks(connection, LOCK_SECONDS)
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
                names = [found[day] for table in tables if day in (found := await find_partitions(connection, table))]
                if not names:
                    return True
                # The default partition too, since its bounds change.
                locked = ", ".join([*tables, *names, *(f"{table}_default" for table in tables)])
                await connection.execute(text(f"LOCK TABLE ONLY {locked} IN ACCESS EXCLUSIVE MODE"))
                if is_needed is not None and await is_needed(connection):
                    return False
                await connection.execute(text(f"DROP TABLE {', '.join(names)}"))
            return True
        except StoreUnavailableError as error:
            if not is_lock_timeout(error):
                raise
    logger.warning("%s are in use for long; they are dropped at the next pruning", _show(" and ".join(tables), day))
    return False


def move_rows(
    table: Table,
    which: ColumnElement[bool],
    change: Callable[[CTE], Mapping[str, object]],
    *,
    given: Sequence[ColumnElement[Any]] = (),
) -> Insert:
    """Build a statement that moves rows to another partition, on PostgreSQL.

    Not an UPDATE of the day: whoever waits for the lock of a row that an UPDATE has moved fails. Here the row is gone
    for them, like a deleted one.

    Args:
        table: The table.
        which: The rows.
        change: Returns the new values of columns by name, from the rows as they were.
        given: Columns of another table in `which`, for `change`.
    """
    gone = delete(table).where(which).returning(*table.c, *given).cte("gone")
    new = change(gone)
    values = [cast(new[each.name], each.type) if each.name in new else gone.c[each.name] for each in table.c]
    return insert(table).from_select([each.name for each in table.c], select(*values).select_from(gone))


async def _limit_locks(connection: AsyncConnection, seconds: float) -> None:
    limit = text("SELECT set_config('lock_timeout', :limit, true)")
    await connection.execute(limit, {"limit": f"{seconds * 1000:.0f}ms"})


def _show(table: str, day: int) -> str:
    return f"{table} of {EPOCH + timedelta(days=day):%Y-%m-%d}"


class Partitions:
    """Makes the partitions of the next days while a store is open.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Make partitions until cancelled."""
        while self._database.dialect == "postgresql":
            await anyio.sleep(EVERY)
            try:
                await make_partitions(self._database)
            except (StoreUnavailableError, SQLAlchemyError) as error:
                logger.warning("The partitions of the next days could not be made: %s", error)
