"""The connections to a database: one writer and several readers for SQLite, a pool for PostgreSQL."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Double, cast, event, func, literal_column, select
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from hookline.errors import StoreUnavailableError
from hookline.store._address import Address
from hookline.store._failures import passes, translating

__all__ = ["Database", "Durability"]

T = TypeVar("T")
Durability: TypeAlias = Literal["machine", "process"]

READERS = 4
"""Connections that read an SQLite file at the same time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to reach a database."""


class Database:
    """The connections to one database.

    Args:
        address: Where it is.
        durability: What written data survives; of SQLite only.
        retry_seconds: How long a locked SQLite file is waited for, and a lost PostgreSQL server tried again.
        pool_size: Connections to PostgreSQL.
    """

    def __init__(self, address: Address, *, durability: Durability, retry_seconds: float, pool_size: int) -> None:
        self.address = address
        self.name = address.name
        self.dialect = address.dialect
        self.retry_seconds = retry_seconds
        self._turn = asyncio.Lock()
        # What is kept in memory is gone with its last connection, and one that is cut short is closed.
        self._keeper = sqlite3.connect(f"{address.url.database}?vfs=memdb", uri=True) if address.in_memory else None
        if address.dialect == "postgresql":
            self._writer = self._postgresql(pool_size)
            self._reader = self._writer.execution_options(postgresql_readonly=True)
            return
        self._writer = self._sqlite(1, "IMMEDIATE", writing_pragmas(address, durability))
        self._reader = self._writer if address.in_memory else self._sqlite(READERS, "DEFERRED", ["query_only = ON"])

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that may write; on SQLite there is one at a time.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """
        with translating(self.name):
            if self.dialect == "postgresql":
                async with self._writer.begin() as connection:
                    yield connection
                return
            async with self._turn, self._writer.begin() as connection:
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction that only reads.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        if self.address.in_memory:
            async with self.writing() as connection:
                yield connection
            return
        with translating(self.name):
            async with self._reader.connect() as connection, connection.begin():
                yield connection

    def look(self) -> None:
        """Find out whether an SQLite file can be opened at all, or made.

        Raises:
            StoreUnavailableError: If it cannot.
        """
        if self.dialect == "sqlite" and not self.address.in_memory:
            # Where the async driver cannot open a file, it leaves behind a thread that outlives the event loop.
            with translating(self.name), closing(sqlite3.connect(self.address.url.database or "")):
                pass

    async def trying(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do what can be done twice, again and again while the database cannot be reached.

        Raises:
            StoreUnavailableError: If it could not be reached for `retry_seconds`.
        """
        deadline = asyncio.get_running_loop().time() + self.retry_seconds
        pause = FIRST_PAUSE
        while True:
            try:
                return await action()
            except StoreUnavailableError as error:
                if not passes(error) or asyncio.get_running_loop().time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def now_sql(self) -> ColumnElement[float]:
        """The clock of the database in SQL: seconds since 1970."""
        if self.dialect == "postgresql":
            return cast(func.extract("epoch", func.statement_timestamp()), Double)
        return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Double)

    async def now(self) -> float:
        """The clock of the database: seconds since 1970."""

        async def asked() -> float:
            async with self.reading() as connection:
                return float((await connection.execute(select(self.now_sql()))).scalar_one())

        return await self.trying(asked)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._writer.dispose()
        await self._reader.dispose()
        if self._keeper is not None:
            self._keeper.close()

    def _postgresql(self, pool_size: int) -> AsyncEngine:
        engine = create_async_engine(
            self.address.url,
            connect_args={"timeout": self.retry_seconds, **self.address.arguments},
            hide_parameters=True,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=self.retry_seconds,
        )

        @event.listens_for(engine.sync_engine, "checkout")
        def checked_out(connection: Any, *_: object) -> None:
            # A server that was restarted leaves closed connections in the pool. The driver has noticed; to ask the
            # server each time, as the pool can do too, would cost a commit a quarter of its time.
            if connection.driver_connection.is_closed():
                raise DisconnectionError("the server has closed the connection")

        return engine

    def _sqlite(self, size: int, begin: str, pragmas: list[str]) -> AsyncEngine:
        engine = create_async_engine(
            self.address.url,
            # Without it the driver would begin transactions as it thinks best.
            connect_args={"isolation_level": None, "timeout": self.retry_seconds},
            hide_parameters=True,
            poolclass=AsyncAdaptedQueuePool,
            pool_size=size,
            max_overflow=0,
            pool_timeout=self.retry_seconds,
        )

        @event.listens_for(engine.sync_engine, "connect")
        def connected(connection: Any, _: object) -> None:
            cursor = connection.cursor()
            try:
                for pragma in pragmas:
                    cursor.execute(f"PRAGMA {pragma}")
            except BaseException:
                # The pool has not heard of it yet, so nobody else would close it.
                connection.close()
                raise
            cursor.close()

        @event.listens_for(engine.sync_engine, "begin")
        def begun(connection: Any) -> None:
            connection.exec_driver_sql(f"BEGIN {begin}")

        return engine


def writing_pragmas(address: Address, durability: Durability) -> list[str]:
    """What is set on the connection that writes an SQLite database."""
    if address.in_memory:
        return []
    # In WAL mode, NORMAL loses the last transactions when the machine loses power, never when a process dies.
    return ["journal_mode = WAL", f"synchronous = {'FULL' if durability == 'machine' else 'NORMAL'}"]
