"""`TransactionThread`: run whole transactions of an SQLite database in one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["TransactionThread"]

T = TypeVar("T")


class TransactionThread:
    """Runs each transaction from its beginning to its commit in the thread that has the connection.

    The async driver changes threads three or four times for a statement, which takes several times as long as SQLite
    takes for the statement.

    Args:
        engine: Makes the connection; only this thread uses it.

    Attributes:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="hookline-sqlite")

    async def run(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a transaction. If the caller is cancelled, it goes on to its end, and the caller waits for it.

        Args:
            work: Takes the connection, and waits for nothing but its statements.

        Raises:
            SQLAlchemyError: If the database refuses the transaction; nothing of it was written then.
        """
        running = asyncio.get_running_loop().run_in_executor(self._executor, copy_context().run, self._run, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # the next transaction must not meet the lock of this one
            raise

    def _run(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        with self.engine.begin() as connection:
            return _run_at_once(work(cast("AsyncConnection", _SyncConnection(connection))))

    async def aclose(self) -> None:
        """Close the connection, and end the thread."""
        closing = self._executor.submit(self.engine.dispose)
        self._executor.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))


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


def _run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    work.close()
    raise RuntimeError("This transaction waits for something else than its statements.")
