"""Connect to SQLite with a connection of aiosqlite that changes threads once for each statement."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self

import aiosqlite

__all__ = ["connect_sqlite"]

READ_AHEAD = 200
"""Rows that are read in the change of threads that executes a statement."""


def connect_sqlite(database: str, **options: Any) -> SqliteDriver:
    """Return a connection to await, for SQLAlchemy's dialect of aiosqlite.

    Args:
        database: The path or the URI of the database.
        options: Further arguments of `sqlite3.connect`.
    """
    made = SqliteDriver(partial(sqlite3.connect, database, **options), iter_chunk_size=READ_AHEAD)
    made._thread.daemon = True  # as SQLAlchemy does: a store that is never closed must not keep the process alive
    return made


class SqliteDriver(aiosqlite.Connection):
    """A connection of aiosqlite whose cursors change threads once for each statement, in place of four times.

    It takes no change of threads to begin a transaction that reads, nor to roll back what has no statement: SQLAlchemy
    rolls back whenever it takes a connection back.
    """

    def __init__(self, connector: Callable[[], sqlite3.Connection], iter_chunk_size: int) -> None:
        super().__init__(connector, iter_chunk_size)
        self._begin: str | None = None
        self._is_used = False
        """Whether a statement was given to the thread since a commit or a rollback has ended."""

    def cursor(self) -> StatementCursor:  # type: ignore[override]
        """Return a cursor."""
        return StatementCursor(self)

    async def run(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function in the thread of the connection, inside of the transaction."""
        self._is_used = True
        await self._execute(call, *arguments)  # type: ignore[no-untyped-call]

    def begin_later(self, statement: str) -> None:
        """Execute a BEGIN that takes no lock together with the first statement after it."""
        self._begin = statement

    def begin_if_due(self) -> None:
        """Execute the BEGIN that waits for a statement. Only the thread of the connection calls this."""
        begin, self._begin = self._begin, None
        if begin is not None:
            self._conn.execute(begin)

    async def commit(self) -> None:
        """Commit the transaction, if it has a statement."""
        await self._end(super().commit)

    async def rollback(self) -> None:
        """Roll the transaction back, if it has a statement."""
        await self._end(super().rollback)

    async def _end(self, end: Callable[[], Awaitable[None]]) -> None:
        if self._is_used:
            await end()  # if this is cancelled, SQLAlchemy rolls back
        self._is_used, self._begin = False, None


class StatementCursor:
    """Executes a statement and reads its first rows in one change of threads.

    Args:
        connection: The connection.

    Attributes:
        description: The columns of the rows; `None` if the statement has none.
        rowcount: The number of rows that were changed.
        lastrowid: The id of the row that was inserted last.
        arraysize: The number of rows that `fetchmany` returns.
    """

    def __init__(self, connection: SqliteDriver) -> None:
        self._connection = connection
        self._rows: deque[Any] = deque()
        self._unread: sqlite3.Cursor | None = None
        """The cursor, while rows may be left in it."""
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> None:
        """Execute a statement."""
        await self._connection.run(self._start, "execute", statement, parameters)

    async def executemany(self, statement: str, parameters: Iterable[Any]) -> None:
        """Execute a statement for each of some parameters."""
        await self._connection.run(self._start, "executemany", statement, parameters)

    async def fetchone(self) -> Any:
        """Return the next row; `None` if there is none."""
        rows = await self.fetchmany(1)
        return rows[0] if rows else None

    async def fetchmany(self, size: int | None = None) -> Sequence[Any]:
        """Return the next rows."""
        size = self.arraysize if size is None else size
        if self._unread is not None and len(self._rows) < size:
            await self._connection.run(self._read, self._unread, max(size - len(self._rows), READ_AHEAD))
        return [self._rows.popleft() for _ in range(min(size, len(self._rows)))]

    async def fetchall(self) -> Sequence[Any]:
        """Return all rows that are left."""
        if self._unread is not None:
            await self._connection.run(self._read, self._unread, None)
        rows, self._rows = self._rows, deque()
        return rows

    async def __aiter__(self) -> AsyncIterator[Any]:
        while rows := await self.fetchmany(READ_AHEAD):
            for row in rows:
                yield row

    async def close(self) -> None:
        """Free the statement."""
        if self._unread is not None:
            await self._connection.run(self._unread.close)
            self._unread = None

    def _start(self, how: str, statement: str, parameters: Any) -> None:
        self._connection.begin_if_due()
        cursor = self._connection._conn.cursor()
        try:
            getattr(cursor, how)(statement, parameters)
            self._read(cursor, READ_AHEAD)
        except BaseException:
            cursor.close()
            raise
        self.description, self.lastrowid = cursor.description, cursor.lastrowid

    def _read(self, cursor: sqlite3.Cursor, size: int | None) -> None:
        rows = cursor.fetchall() if size is None else cursor.fetchmany(size)
        self._rows.extend(rows)
        self.rowcount = cursor.rowcount
        is_left = size is not None and len(rows) == size
        self._unread = cursor if is_left else None
        if not is_left:
            cursor.close()
