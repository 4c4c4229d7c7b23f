"""The connections to a database: one writer and several readers for SQLite, a pool for PostgreSQL."""

import asyncio
import math
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import ColumnElement, Double, cast, event, func, literal_column, select
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from hookline.errors import StoreUnavailableError
from hookline.store._address import Address
from hookline.store._driver_logs import quiet_driver
from hookline.store._failures import passes, translating
from hookline.store._tables import operations

__all__ = ["Database", "Durability", "after_commit", "waiting_at_most"]

T = TypeVar("T")
Durability: TypeAlias = Literal["machine", "process"]

READERS = 4
"""Connections that read an SQLite file at the same time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to reach a database."""

EFFECTS = "hookline_after_commit"
"""Under this name a connection keeps what is done once its transaction is committed."""

_longest_wait: ContextVar[float | None] = ContextVar("hookline_store_longest_wait", default=None)


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Wait less for databases than `retry_seconds`: who asks has somebody waiting too.

    Args:
        seconds: How long for a connection, or the turn to write, and once more for a lock of another process.
    """
    token = _longest_wait.set(seconds)
    try:
        yield
    finally:
        _longest_wait.reset(token)


def after_commit(connection: AsyncConnection, effect: Callable[[], object]) -> None:
    """Call a function once the transaction of a connection is committed, and never if it is not.

    This is the only way to change what a process remembers from inside of `writing()`: a commit may fail as late as its
    last statement, on a full disk for one, and what was forgotten by then would be remembered by nobody.

    Args:
        connection: What `writing()` gave.
        effect: Must be quick, and may not raise. It is called before anybody else may write to an SQLite database.
    """
    effects: list[Callable[[], object]] = connection.sync_connection.info[EFFECTS]  # type: ignore[union-attr]
    effects.append(effect)


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
        self._making: set[asyncio.Task[None]] = set()
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
            async with AsyncExitStack() as stack:
                if self.dialect == "sqlite":
                    await self._entered(stack, self._turn)
                effects: list[Callable[[], object]] = []
                # It is called in the reverse order: after the transaction, and before the turn is given up.
                stack.push(partial(_carry_out, effects))
                connection = await self._begun(stack, self._writer)
                assert connection.sync_connection is not None
                info = connection.sync_connection.info
                info[EFFECTS] = effects
                try:
                    yield connection
                finally:
                    info.pop(EFFECTS, None)  # the connection goes back to those that only read, too

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
            async with AsyncExitStack() as stack:
                yield await self._begun(stack, self._reader)

    async def check(self) -> None:
        """Find out whether it can be read and, on SQLite, written; nothing is.

        Raises:
            StoreUnavailableError: If it cannot.
        """
        async with self.reading() as connection:
            if self.dialect == "sqlite":
                # Else what was read before would be found, whatever has become of the file.
                await connection.exec_driver_sql("PRAGMA shrink_memory")
            await connection.execute(select(operations.c.operation_id).limit(1))
        if self.dialect == "sqlite":
            async with self.writing():  # which begins by taking the write lock
                pass

    def look(self) -> None:
        """Find out whether an SQLite file can be opened at all, or made.

        Raises:
            StoreUnavailableError: If it cannot.
        """
        if self.dialect == "sqlite" and not self.address.in_memory:
            # Where the async driver cannot open a file, it leaves behind a thread that outlives the event loop.
            file = self.address.url.database or ""
            with translating(self.name):
                make_private(file)
                with closing(sqlite3.connect(file)):
                    pass

    async def trying(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do what can be done twice, again and again while the database cannot be reached.

        Raises:
            StoreUnavailableError: If it could not be reached for `retry_seconds`, or as long as the caller waits.
        """
        deadline = asyncio.get_running_loop().time() + self._patience
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
        if self._making:
            await asyncio.wait(self._making)
        await self._writer.dispose()
        await self._reader.dispose()
        if self._keeper is not None:
            self._keeper.close()

    @property
    def _patience(self) -> float:
        """Seconds that whoever asks waits."""
        return min(self.retry_seconds, _longest_wait.get() or self.retry_seconds)

    async def _entered(self, stack: AsyncExitStack, held: AbstractAsyncContextManager[T], *, spare: float = 0.0) -> T:
        """Enter what others may hold.

        Args:
            stack: Leaves it.
            held: What they may hold.
            spare: Seconds that it may take beside those that the caller waits.

        Raises:
            StoreUnavailableError: If they hold it for longer.
        """
        if _longest_wait.get() is None:
            return await stack.enter_async_context(held)
        seconds = self._patience + spare
        try:
            async with asyncio.timeout(seconds) as waiting:
                return await stack.enter_async_context(held)
        except TimeoutError as error:
            if not waiting.expired():
                raise
            raise StoreUnavailableError(self.name, f"it has had no turn for this within {seconds:g} s") from error

    async def _begun(self, stack: AsyncExitStack, engine: AsyncEngine) -> AsyncConnection:
        # A thread that waits for a lock of SQLite cannot be cancelled; it ends by itself, before this does.
        spare = self._patience if self.dialect == "sqlite" else 0.0
        return await self._entered(stack, self._transaction(engine), spare=spare)

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        pool = engine.pool
        assert isinstance(pool, AsyncAdaptedQueuePool)
        if self.dialect == "sqlite" and not pool.checkedin() and pool.checkedout() < pool.size():
            # SQLAlchemy would lose a connection that is cancelled while it is made: it is made beside whoever needs it.
            making = asyncio.create_task(_made(engine))
            self._making.add(making)
            making.add_done_callback(self._making.discard)
            await asyncio.shield(making)
        async with engine.begin() as connection:
            yield connection

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

        @event.listens_for(engine.sync_engine, "connect")
        def connected(connection: Any, _: object) -> None:
            transport = getattr(connection.driver_connection, "_transport", None)
            if transport is not None:
                end_when_silent(transport.get_extra_info("socket"), self.retry_seconds / 2)

        return engine

    def _sqlite(self, size: int, begin: str, pragmas: list[str]) -> AsyncEngine:
        quiet_driver()
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
            patience = self._patience
            if connection.info.setdefault("patience", self.retry_seconds) != patience:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience * 1000:.0f}").close()
                connection.info["patience"] = patience
            connection.exec_driver_sql(f"BEGIN {begin}")

        return engine


def make_private(file: str) -> None:
    """Make an SQLite file, if it is not there, that only its owner may read: it holds what agents were told.

    SQLite gives the files beside it (`-wal`, `-shm`) the same mode. A file that is there keeps its own.
    """
    with suppress(OSError):  # where it cannot be made, SQLite says why
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def writing_pragmas(address: Address, durability: Durability) -> list[str]:
    """What is set on the connection that writes an SQLite database."""
    if address.in_memory:
        return []
    # In WAL mode, NORMAL loses the last transactions when the machine loses power, never when a process dies.
    return ["journal_mode = WAL", f"synchronous = {'FULL' if durability == 'machine' else 'NORMAL'}"]


def end_when_silent(connection: socket.socket | None, seconds: float) -> None:
    """Have a connection end by itself if nothing of the other side is heard any more; the driver would wait for ever.

    Args:
        connection: To the server; one that stays on this machine is left as it is.
        seconds: How long that takes, about.
    """
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    each = max(1, math.ceil(seconds / 3))
    wanted = {"TCP_KEEPIDLE": each, "TCP_KEEPINTVL": each, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": each * 3000}
    with socket.fromfd(connection.fileno(), connection.family, connection.type) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted.items():
            if hasattr(socket, name):  # not every system has each of them
                same.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _carry_out(effects: list[Callable[[], object]], kind: type[BaseException] | None, *_: object) -> None:
    if kind is None:
        for effect in effects:
            effect()


async def _made(engine: AsyncEngine) -> None:
    """Have a connection in the pool, unless there can be none: who needs it is told when it is needed."""
    with suppress(Exception):
        async with engine.connect():
            pass
