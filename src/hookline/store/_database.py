"""Connect to a database: its address, its connections, and what its errors mean."""

import asyncio
import logging
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
from uuid import uuid4

import msgspec
from sqlalchemy import ColumnElement, Double, cast, event, func, literal_column, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from hookline.errors import HookUsageError, StoreUnavailableError, message_of
from hookline.store._tables import operations

__all__ = [
    "Address",
    "Database",
    "Dialect",
    "Durability",
    "StoreVersionError",
    "address_of",
    "after_commit",
    "passes",
    "quiet_driver",
    "translating",
    "unavailable",
    "waiting_at_most",
]

Dialect: TypeAlias = Literal["sqlite", "postgresql"]

HOW = "give 'sqlite:///path/of/a/file.db' or 'postgresql://user:password@host/database'"
POSTGRESQL = frozenset(("postgresql", "postgres", "postgresql+asyncpg"))
SQLITE = frozenset(("sqlite", "sqlite+aiosqlite"))
OPTIONS = frozenset(("application_name", "host", "port", "sslmode"))
"""What may stand behind the `?` of a PostgreSQL address, as libpq names it."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a database is.

    Attributes:
        name: How messages call it: without its password.
        dialect: Which of the two kinds it is.
        in_memory: Whether it is gone with its last connection.
        url: For the driver. Its representation hides the password.
        arguments: What else the driver is given.
    """

    name: str
    dialect: Dialect
    in_memory: bool = False
    url: URL
    arguments: dict[str, Any] = {}


def address_of(given: str) -> Address:
    """Read the address of a database.

    Args:
        given: `sqlite:///path`, `sqlite:///:memory:`, or `postgresql://user:password@host:port/database`.

    Raises:
        HookUsageError: If it is none of these. The message shows nothing of it, since it may hold a password.
    """
    if not isinstance(given, str):
        raise HookUsageError(f"The address of a store is a string, not a {type(given).__name__}; {HOW}.")
    if "\0" in given:
        raise HookUsageError(f"The address of a store may not contain a zero character; {HOW}.")
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise HookUsageError(f"The address of a store cannot be read; {HOW}.") from None
    if url.drivername in SQLITE:
        return _sqlite(url)
    if url.drivername in POSTGRESQL:
        return _postgresql(url)
    raise HookUsageError(f"The address of a store begins with {url.drivername!r}, which is no store; {HOW}.")


def _sqlite(url: URL) -> Address:
    if url.query or url.host:
        raise HookUsageError("The address of an SQLite store is a path alone, with three slashes: 'sqlite:///path'.")
    if url.database in (None, "", ":memory:"):
        # The memory of one connection is lost when that is cut short; this one is shared by those of the process.
        shared = URL.create(
            "sqlite+aiosqlite", database=f"file:/hookline-{uuid4().hex}", query={"vfs": "memdb", "uri": "true"}
        )
        return Address(name="sqlite:///:memory:", dialect="sqlite", in_memory=True, url=shared)
    return Address(
        name=f"sqlite:///{url.database}", dialect="sqlite", url=URL.create("sqlite+aiosqlite", database=url.database)
    )


def _postgresql(url: URL) -> Address:
    unknown = sorted(set(url.query) - OPTIONS)
    if unknown:
        raise HookUsageError(
            f"The address of a PostgreSQL store may not say {unknown}; it may say: {', '.join(sorted(OPTIONS))}."
        )
    arguments: dict[str, Any] = {}
    if "sslmode" in url.query:
        arguments["ssl"] = url.query["sslmode"]
    if "application_name" in url.query:
        arguments["server_settings"] = {"application_name": url.query["application_name"]}
    driver = url.set(drivername="postgresql+asyncpg").difference_update_query(["sslmode", "application_name"])
    where = driver.set(drivername="postgresql")._replace(password=None)
    return Address(name=str(where), dialect="postgresql", url=driver, arguments=arguments)


SQLITE_PROBLEMS = {
    sqlite3.SQLITE_BUSY: "another process holds its write lock for too long",
    sqlite3.SQLITE_LOCKED: "another connection holds its write lock",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_READONLY: "its file, or the folder of it, may not be written",
    sqlite3.SQLITE_IOERR: "the disk fails",
    sqlite3.SQLITE_CORRUPT: "its file is damaged",
    sqlite3.SQLITE_FULL: "the disk is full; free some room, what was refused was not written",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened; does its folder exist, and may it be written?",
    sqlite3.SQLITE_NOTADB: "its file is not an SQLite database",
    sqlite3.SQLITE_PERM: "its file may not be opened",
}
UNAVAILABLE_STATES = ("08", "25006", "28", "3D000", "40001", "40P01", "53", "55P03", "57", "58")
"""SQLSTATEs that do not speak about the statement: connection, login, resources, locks, shutdown, disk."""
PASSING_STATES = ("08", "25006", "40001", "40P01", "53300", "55000", "57P")
"""Those among them that another try may not meet."""


class StoreVersionError(StoreUnavailableError):
    """A newer version of hookline has changed the tables of the database, so this one leaves it alone.

    Attributes:
        found: The revision of its tables.
    """

    def __init__(self, store: str, found: str) -> None:
        super().__init__(store, found)
        self.found = found

    def __str__(self) -> str:
        return (
            f"The tables of the store {self.store} are of revision {self.found!r}, which this version of hookline does "
            "not know: a newer one has migrated them. Update hookline here. Nothing was changed."
        )


@contextmanager
def translating(store: str) -> Iterator[None]:
    """Raise `StoreUnavailableError` where a database cannot be reached; leave other errors as they are."""
    try:
        yield
    except StoreUnavailableError:
        raise
    except Exception as error:
        translated = unavailable(store, error)
        if translated is None:
            raise
        raise translated from error


def unavailable(store: str, error: Exception) -> StoreUnavailableError | None:
    """The error to raise if a database cannot be reached, is locked or is full; `None` for any other error."""
    if isinstance(error, PoolTimeoutError):
        return StoreUnavailableError(store, "all its connections are taken")
    code = _sqlite_code(error)
    if code is not None:
        problem = SQLITE_PROBLEMS.get(code)
        return StoreUnavailableError(store, f"{problem} ({getattr(error, 'orig', error)})") if problem else None
    if not isinstance(error, DBAPIError):
        # What a driver says that found nobody to talk to.
        return StoreUnavailableError(store, message_of(error)) if isinstance(error, OSError | TimeoutError) else None
    # Where there is no statement, it was about to connect, or to begin or end a transaction.
    if error.statement is None or _closed(error) or _state(error).startswith(UNAVAILABLE_STATES):
        return StoreUnavailableError(store, _said(error))
    return None


def passes(error: StoreUnavailableError) -> bool:
    """Whether what a store said may be over after a moment. A lock has been waited for already."""
    cause = error.__cause__
    if isinstance(cause, DBAPIError) and _sqlite_code(cause) is None:
        return _closed(cause) or _state(cause).startswith(PASSING_STATES)
    return isinstance(cause, OSError | TimeoutError) or (
        cause is not None and _sqlite_code(cause) == sqlite3.SQLITE_LOCKED
    )


def _sqlite_code(error: BaseException) -> int | None:
    """The kind of an error of SQLite, without what its upper bits add to that."""
    code: int | None = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _state(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _closed(error: DBAPIError) -> bool:
    # asyncpg tells of a connection that it has found closed by an error without an SQLSTATE.
    return error.connection_invalidated or (isinstance(error, InterfaceError) and "clos" in str(error.orig))


def _said(error: DBAPIError) -> str:
    # SQLAlchemy puts its own class before the words of the driver.
    return message_of(getattr(error.orig, "__cause__", None) or error.orig or error)


def quiet_driver() -> None:
    """Leave the debug lines of aiosqlite out unless its logger was given a level of its own.

    It writes every statement with all values at DEBUG: conversations, arguments and payloads.
    """
    driver = logging.getLogger("aiosqlite")
    if driver.level == logging.NOTSET:
        driver.setLevel(logging.INFO)


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
        self._closed = False
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
        self._closed = True
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
        async with engine.connect() as connection:
            try:
                async with connection.begin():
                    yield connection
            finally:
                if self._closed:  # the pool was given up meanwhile, and would not close what comes back to it
                    await connection.invalidate()

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
