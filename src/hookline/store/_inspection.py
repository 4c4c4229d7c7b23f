"""Look at a database without creating or migrating anything in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from time import time
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import func, select

from hookline.store._database import Database, parse_address
from hookline.store._lease import find_dead_owners, orphaned_sql
from hookline.store._migrate import NEWEST, VERSION_TABLE, known_revisions, read_schema_revision
from hookline.store._tables import operations, workers

if TYPE_CHECKING:
    from hookline.store._store import SqlStore

__all__ = ["StoreInspection", "StoreProcess", "holds_store", "inspect_store", "read_revision_and_processes"]

MOST_PROCESSES = 200
"""Processes that are listed at most."""


class StoreInspection(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a database, as `inspect_store` found it.

    Attributes:
        revision: The version of the tables; `""` if the database holds no store.
        schema: `"missing"` without a store, `"current"`, `"old"` if this version of hookline would migrate the tables,
            or `"newer"` if a newer version of hookline has migrated them.
        clock_ahead_seconds: Seconds by which the clock of the database is ahead of this machine's.
        processes: Number of processes whose lease has not ended.
        orphans: Number of running operations whose process has let its lease end.
    """

    revision: str
    schema: str
    clock_ahead_seconds: float = 0.0
    processes: int = 0
    orphans: int = 0


class StoreProcess(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A process that has a store open.

    Attributes:
        id: The id of the process as a worker.
        started_at: When it opened the store, in unix seconds.
        alive_until: Until when it counts as alive, in unix seconds, unless it renews its lease.
        is_alive: Whether its lease has not ended.
    """

    id: str
    started_at: float
    alive_until: float
    is_alive: bool


async def read_revision_and_processes(store: SqlStore) -> tuple[str, list[StoreProcess]]:
    """Read the version of the tables of an open store, and the processes that have it open, the newest first.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.reading() as connection:
        revision = await connection.run_sync(read_schema_revision)
        now = (await connection.execute(select(store.now_sql()))).scalar_one()
        rows = await connection.execute(select(workers).order_by(workers.c.started_at.desc()).limit(MOST_PROCESSES))
        found = [
            StoreProcess(
                id=row.worker_id,
                started_at=row.started_at,
                alive_until=row.alive_until,
                is_alive=row.alive_until > now,
            )
            for row in rows
        ]
    return revision, found


async def inspect_store(url: str, *, retry_seconds: float = 10.0) -> StoreInspection:
    """Look at a database without creating or migrating anything in it. An SQLite file has to exist.

    Args:
        url: The address of the database.
        retry_seconds: Seconds for which a locked or lost database is tried again.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
        HookUsageError: If the address is none of a store.
    """
    database = Database(parse_address(url), durability="machine", retry_seconds=retry_seconds, pool_size=1)
    try:
        return await database.retry(lambda: _inspect(database))
    finally:
        await database.aclose()


async def holds_store(url: str, *, retry_seconds: float = 10.0) -> bool:
    """Return whether a database holds the tables of a store, without creating them. An SQLite file has to exist.

    Args:
        url: The address of the database.
        retry_seconds: Seconds for which a locked or lost database is tried again.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
        HookUsageError: If the address is none of a store.
    """
    address = parse_address(url)
    if address.dialect == "sqlite" and address.url.database and not address.in_memory:
        # An engine takes 9 ms for it, a third of a command. What fails here, such as for a lock, is left to the engine.
        with suppress(sqlite3.Error), closing(sqlite3.connect(address.url.database, timeout=0)) as connection:
            return connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone() is not None
    return (await inspect_store(url, retry_seconds=retry_seconds)).schema != "missing"


async def _inspect(database: Database) -> StoreInspection:
    async with database.reading() as connection:
        revision = await connection.run_sync(read_schema_revision)
        if revision != NEWEST:
            schema = "missing" if not revision else "old" if revision in known_revisions() else "newer"
            return StoreInspection(revision=revision, schema=schema)
        before = time()
        now = (await connection.execute(select(database.now_sql()))).scalar_one()
        ahead = now - (before + time()) / 2
        alive = select(func.count()).select_from(workers).where(workers.c.alive_until > now)
        dead = await find_dead_owners(database, connection)
        orphans = select(func.count()).select_from(operations).where(orphaned_sql(any_dead=bool(dead)))
        return StoreInspection(
            revision=revision,
            schema="current",
            clock_ahead_seconds=ahead,
            processes=(await connection.execute(alive)).scalar_one(),
            orphans=(await connection.execute(orphans, {"dead": dead})).scalar_one(),
        )
