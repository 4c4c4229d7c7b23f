"""`TransactionThread`: run whole transactions of an SQLite database in one thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from time import monotonic, sleep
from typing import Any, Generic, TypeVar, cast
from weakref import finalize

from sqlalchemy import Connection, CursorResult, Dialect, Engine, Row
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["TransactionThread"]

T = TypeVar("T")


class TransactionThread:
    """Runs each transaction from its beginning to its commit in the thread that has the connection.

    The async driver changes threads for each statement, for BEGIN and for COMMIT, which takes several times as long as
    SQLite takes for the statements.

    Args:
        engine: Makes the connection; only this thread uses it.
        patience: Seconds for which it waits for other processes that open the same file.

    Attributes:
        engine: The engine.
    """

    def __init__(self, engine: Engine, *, patience: float) -> None:
        self.engine = engine
        self._patience = patience
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._connection: Connection | None = None
        finalize(self, self._jobs.put, None)  # the thread of a store that was never closed ends with the store

    async def run(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a transaction. If the caller is cancelled, it goes on to its end, and the caller waits for it.

        Args:
            work: Takes the connection, and waits for nothing but its statements.

        Raises:
            SQLAlchemyError: If the database refuses the transaction; nothing of it was written then.
        """
        job = self._start(lambda: self._run_transaction(work))
        try:
            return await job.done
        except asyncio.CancelledError:
            await job.ended.wait()  # the next transaction must not meet the lock of this one
            raise

    async def aclose(self) -> None:
        """Close the connection, and end the thread."""
        if self._thread is None:
            return
        job = self._start(self._close)
        self._jobs.put(None)
        self._thread = None
        await job.done

    def _start(self, call: Callable[[], T]) -> Job[T]:
        """Have the thread call a function, after all others."""
        if self._thread is None:
            # A thread that is no daemon would keep a process alive whose store was never closed.
            thread = Thread(target=run_jobs, args=(self._jobs,), name="hookline-sqlite", daemon=True)
            thread.start()
            self._thread = thread
        job = Job(call)
        self._jobs.put(job)
        return job

    def _run_transaction(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        # The thread keeps its connection: to take it from the pool and to give it back would cost each transaction more
        # than a statement does.
        if self._connection is None:
            self._connection = self._connect()
        try:
            with self._connection.begin():
                return _run_at_once(work(cast("AsyncConnection", _SyncConnection(self._connection))))
        except BaseException:
            self._release_connection()  # the pool rolls back what may be left of the transaction
            raise

    def _connect(self) -> Connection:
        """Open the connection. SQLite itself does not wait while another process turns on the WAL of a new file."""
        ends = monotonic() + self._patience
        while True:
            try:
                return self.engine.connect()
            except (OperationalError, sqlite3.OperationalError) as error:
                code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0) & 0xFF
                if code != sqlite3.SQLITE_BUSY or monotonic() > ends:
                    raise
            sleep(0.01)

    def _release_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _close(self) -> None:
        self._release_connection()
        self.engine.dispose()


class Job(Generic[T]):
    """A function that a thread calls for a task of an event loop.

    An executor of the standard library does the same with two futures and three locks, which takes longer than SQLite
    takes for a commit in memory.

    Args:
        call: The function.

    Attributes:
        done: Its result or its error, unless the task was cancelled.
        ended: Set once the function has returned or raised.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._call = call
        self._context = copy_context()

    def run(self) -> None:
        """Call the function in this thread, and report to the task."""
        try:
            result = self._context.run(self._call)
        except BaseException as error:
            self._report(self.done.set_exception, error)
        else:
            self._report(self.done.set_result, result)

    def _report(self, settle: Callable[[Any], None], outcome: T | BaseException) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so that nobody waits any more
            self.done.get_loop().call_soon_threadsafe(self._finish, settle, outcome)

    def _finish(self, settle: Callable[[Any], None], outcome: T | BaseException) -> None:
        self.ended.set()
        if not self.done.done():
            settle(outcome)


def run_jobs(jobs: SimpleQueue[Job[Any] | None]) -> None:
    """Run jobs, one after the other, until `None` follows."""
    while (job := jobs.get()) is not None:
        job.run()
        del job  # it holds its result until the next one comes


class _SyncConnection:
    """Stands for an `AsyncConnection` in the thread, without an event loop.

    Args:
        connection: The connection.

    Attributes:
        sync_connection: The connection.
    """

    def __init__(self, connection: Connection) -> None:
        self.sync_connection = connection

    @property
    def dialect(self) -> Dialect:
        return self.sync_connection.dialect

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        return self.sync_connection.execute(statement, parameters)

    async def exec_driver_sql(self, statement: str, parameters: Any = None) -> Any:
        return self.sync_connection.exec_driver_sql(statement, parameters)

    async def stream(self, statement: Any, parameters: Any = None) -> _SyncRows:
        return _SyncRows(self.sync_connection.execute(statement, parameters))

    async def run_sync(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(self.sync_connection, *arguments)


class _SyncRows:
    """Stands for an `AsyncResult`: its rows are read part by part."""

    def __init__(self, result: CursorResult[Any]) -> None:
        self._result = result

    async def partitions(self, size: int) -> AsyncIterator[Sequence[Row[Any]]]:
        for rows in self._result.partitions(size):
            yield rows


def _run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    work.close()
    raise RuntimeError("This transaction waits for something else than its statements.")
