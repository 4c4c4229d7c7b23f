"""Connect to a database: parse its address, open transactions, and translate its errors."""

import asyncio
import logging
import math
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from functools import cache, cached_property, partial
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import uuid4
from weakref import WeakSet

import msgspec
from sqlalchemy import (
    ColumnElement,
    Delete,
    Double,
    Engine,
    Insert,
    Row,
    Select,
    Table,
    Update,
    cast,
    create_engine,
    event,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool, Pool, QueuePool

from hookline.errors import HookUsageError, StoreUnavailableError, message_of
from hookline.store._tables import operations
from hookline.store._transaction_thread import TransactionThread

__all__ = [
    "Address",
    "Database",
    "Dialect",
    "Durability",
    "StoreVersionError",
    "after_commit",
    "express_insert",
    "express_now",
    "insert_into",
    "is_lock_timeout",
    "is_transient",
    "limit_waiting",
    "parse_address",
    "read_clock",
    "silence_driver_debug",
    "translate_errors",
    "unavailable_error",
]

Dialect: TypeAlias = Literal["sqlite", "postgresql"]

ADDRESS_FORMS = "use 'sqlite:///path/to/file.db' or 'postgresql://user:password@host/database'"
POSTGRESQL = frozenset(("postgresql", "postgres", "postgresql+asyncpg"))
SQLITE = frozenset(("sqlite", "sqlite+aiosqlite"))
OPTIONS = frozenset(("application_name", "host", "port", "sslmode"))
"""Query parameters of a PostgreSQL address, named as in libpq."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed address of a database.

    Attributes:
        name: The address without its password, for messages.
        dialect: The kind of database.
        in_memory: Whether the database is lost with its last connection.
        url: The URL for the driver; its repr hides the password.
        arguments: Further arguments for the driver.
    """

    name: str
    dialect: Dialect
    in_memory: bool = False
    url: URL
    arguments: dict[str, Any] = {}


def parse_address(given: str) -> Address:
    """Parse the address of a database.

    Args:
        given: `sqlite:///path`, `sqlite:///:memory:`, or `postgresql://user:password@host:port/database`.

    Raises:
        HookUsageError: If it is none of these. The message never shows the address, which may hold a password.
    """
    if not isinstance(given, str):
        raise HookUsageError(f"The URL of a store must be a string, not a {type(given).__name__}; {ADDRESS_FORMS}.")
    if "\0" in given:
        raise HookUsageError(f"The URL of a store may not contain a NUL character; {ADDRESS_FORMS}.")
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise HookUsageError(f"The URL of the store cannot be parsed; {ADDRESS_FORMS}.") from None
    if url.drivername in SQLITE:
        return _parse_sqlite(url)
    if url.drivername in POSTGRESQL:
        return _parse_postgresql(url)
    raise HookUsageError(
        f"The URL of the store begins with {url.drivername!r}, which is not supported; {ADDRESS_FORMS}."
    )


def _parse_sqlite(url: URL) -> Address:
    if url.query or url.host:
        raise HookUsageError("The URL of an SQLite store is a path with three slashes: 'sqlite:///path'.")
    if url.database in (None, "", ":memory:"):
        # SQLite's own `:memory:` is lost with its one connection; `memdb` is shared by all connections of the process.
        shared = URL.create(
            "sqlite+aiosqlite", database=f"file:/hookline-{uuid4().hex}", query={"vfs": "memdb", "uri": "true"}
        )
        return Address(name="sqlite:///:memory:", dialect="sqlite", in_memory=True, url=shared)
    return Address(
        name=f"sqlite:///{url.database}", dialect="sqlite", url=URL.create("sqlite+aiosqlite", database=url.database)
    )


def _parse_postgresql(url: URL) -> Address:
    unknown = sorted(set(url.query) - OPTIONS)
    if unknown:
        raise HookUsageError(
            f"The URL of a PostgreSQL store has unknown parameters {unknown}; use: {', '.join(sorted(OPTIONS))}."
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
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_READONLY: "its file or folder is not writable",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_CORRUPT: "its file is damaged",
    sqlite3.SQLITE_FULL: "the disk is full; free some space. Nothing of this change was written",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened; check that its folder exists and is writable",
    sqlite3.SQLITE_NOTADB: "its file is not an SQLite database",
    sqlite3.SQLITE_PERM: "there is no permission to open its file",
}
UNAVAILABLE_STATES = ("08", "25006", "28", "3D000", "40001", "40P01", "53", "55P03", "57", "58")
"""SQLSTATEs (prefixes) that are not about the statement: connection, login, resources, locks, shutdown, disk."""
PASSING_STATES = ("08", "25006", "40001", "40P01", "53300", "55000", "57P")
"""SQLSTATEs (prefixes) of errors that a retry may not meet again."""


class StoreVersionError(StoreUnavailableError):
    """A newer version of hookline has migrated the database, so this version cannot use it.

    Attributes:
        found: The revision of the tables.
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
def translate_errors(store: str) -> Iterator[None]:
    """Raise `StoreUnavailableError` in place of errors that mean that a database cannot be reached."""
    try:
        yield
    except StoreUnavailableError:
        raise
    except Exception as error:
        translated = unavailable_error(store, error)
        if translated is None:
            raise
        raise translated from error


def unavailable_error(store: str, error: Exception) -> StoreUnavailableError | None:
    """Build the error to raise if a database cannot be reached, is locked or is full; `None` for any other error."""
    if isinstance(error, PoolTimeoutError):
        return StoreUnavailableError(store, "all of its connections are in use")
    code = _sqlite_code(error)
    if code is not None:
        problem = SQLITE_PROBLEMS.get(code)
        return StoreUnavailableError(store, f"{problem} ({getattr(error, 'orig', error)})") if problem else None
    if not isinstance(error, DBAPIError):
        # The errors of a driver that could not connect.
        return StoreUnavailableError(store, message_of(error)) if isinstance(error, OSError | TimeoutError) else None
    # An error without a statement happened while connecting, or at the begin or end of a transaction.
    if error.statement is None or _is_closed(error) or _sqlstate(error).startswith(UNAVAILABLE_STATES):
        return StoreUnavailableError(store, _driver_message(error))
    return None


def is_transient(error: StoreUnavailableError) -> bool:
    """Return whether a retry may succeed. For a lock it may not, since the driver has waited for it already."""
    cause = error.__cause__
    if isinstance(cause, DBAPIError) and _sqlite_code(cause) is None:
        return _is_closed(cause) or _sqlstate(cause).startswith(PASSING_STATES)
    return isinstance(cause, OSError | TimeoutError) or (
        cause is not None and _sqlite_code(cause) == sqlite3.SQLITE_LOCKED
    )


def is_lock_timeout(error: StoreUnavailableError) -> bool:
    """Return whether PostgreSQL gave up waiting for a lock."""
    return isinstance(error.__cause__, DBAPIError) and _sqlstate(error.__cause__) == "55P03"


def _sqlite_code(error: BaseException) -> int | None:
    """Return the primary error code of an SQLite error, without the bits of its extended code."""
    code: int | None = getattr(getattr(error, "orig", error), "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _sqlstate(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _is_closed(error: DBAPIError) -> bool:
    # asyncpg reports a connection that it finds closed with an error without SQLSTATE.
    return error.connection_invalidated or (isinstance(error, InterfaceError) and "clos" in str(error.orig))


def _driver_message(error: DBAPIError) -> str:
    # SQLAlchemy puts the name of its own class before the driver's message.
    return message_of(getattr(error.orig, "__cause__", None) or error.orig or error)


def silence_driver_debug() -> None:
    """Switch off aiosqlite's DEBUG log, unless its logger has a level of its own.

    At DEBUG, it logs every statement with all values: conversations, arguments and payloads.
    """
    driver = logging.getLogger("aiosqlite")
    if driver.level == logging.NOTSET:
        driver.setLevel(logging.INFO)


T = TypeVar("T")
Durability: TypeAlias = Literal["machine", "process"]

READERS = 4
"""Number of connections that read an SQLite file: for `reading`, and for `read`."""
READING_PRAGMAS = ["query_only = ON"]
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Shortest and longest pause, in seconds, between two tries to reach a database."""

EFFECTS = "hookline_after_commit"
"""Key in a connection's `info` of the functions to call once its transaction is committed."""

_longest_wait: ContextVar[float | None] = ContextVar("hookline_store_longest_wait", default=None)


@contextmanager
def limit_waiting(seconds: float) -> Iterator[None]:
    """Wait for databases for less than `retry_seconds` inside of the context, since a client waits for the answer.

    Args:
        seconds: Seconds to wait for a connection or the turn to write, and once more for a lock of another process.
    """
    token = _longest_wait.set(seconds)
    try:
        yield
    finally:
        _longest_wait.reset(token)


def after_commit(connection: AsyncConnection, effect: Callable[[], object]) -> None:
    """Call a function once the transaction of a connection is committed; never if it is rolled back.

    This is the only safe way to change state in memory from inside of `writing()`: a commit may still fail, on a full
    disk for example, and memory and database would then differ.

    Args:
        connection: The connection that `writing()` gave.
        effect: The function; it must be quick and must not raise. It is called before the next writer of an SQLite
            database gets its turn.
    """
    effects: list[Callable[[], object]] = connection.sync_connection.info[EFFECTS]  # type: ignore[union-attr]
    effects.append(effect)


async def read_clock(connection: AsyncConnection) -> float:
    """Read the database's clock in a transaction, in unix seconds."""
    return float((await connection.execute(_select_now(connection.dialect.name))).scalar_one())


def insert_into(connection: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return the INSERT of a connection's dialect, which can say what to do about a row that is there already."""
    return express_insert(connection.dialect.name, table)


def express_insert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return the INSERT of a kind of database, which can say what to do about a row that is there already."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


@cache
def _select_now(dialect: str) -> Select[float]:
    return select(express_now(dialect))


@cache
def express_now(dialect: str) -> ColumnElement[float]:
    """Return the SQL expression for the present time of a kind of database, in unix seconds."""
    if dialect == "postgresql":
        return cast(func.extract("epoch", func.statement_timestamp()), Double)
    return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Double)


class SqliteConnection(sqlite3.Connection):
    """A connection whose transaction ends when it is closed.

    SQLite keeps a connection that is closed, with its transaction and its locks, until the last of its statements is
    freed, and a statement with rows left keeps its lock even after a rollback. That of a caller who was cancelled would
    be freed when Python collects its cursor.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """Return a cursor, which is closed with the connection."""
        made = super().cursor(*arguments, **options)
        self._cursors.add(made)
        return made

    def close(self) -> None:
        """Free the statements, roll back the transaction, and close the connection."""
        try:
            for cursor in self._cursors:
                cursor.close()
            self.rollback()
        finally:
            super().close()


class Database:
    """The connections to one database.

    Args:
        address: The address of the database.
        durability: What commits survive; for SQLite only.
        retry_seconds: Seconds for which a locked SQLite file is waited for, and a lost PostgreSQL server retried.
        pool_size: Number of connections to PostgreSQL.

    Attributes:
        keeper: The connection that keeps a database in memory, which is new with it; `None` for any other database.
    """

    def __init__(self, address: Address, *, durability: Durability, retry_seconds: float, pool_size: int) -> None:
        self.address = address
        self.name = address.name
        self.dialect = address.dialect
        self.retry_seconds = retry_seconds
        self._write_turn = asyncio.Lock()
        self._closed = False
        # A database in memory is lost with its last connection, and a cancelled connection is closed: `keeper` stays.
        self._connecting: set[asyncio.Task[None]] = set()
        self.keeper = sqlite3.connect(f"{address.url.database}?vfs=memdb", uri=True) if address.in_memory else None
        self._pool_size = pool_size
        self._thread: TransactionThread | None = None
        self._reading_engine: Engine | None = None
        self._idle_readers: list[TransactionThread] = []
        self._reading_turn = asyncio.Semaphore(READERS)
        if address.dialect == "postgresql":
            return
        silence_driver_debug()
        self._pragmas = writing_pragmas(address, durability)
        engine = self._create_sync_engine("IMMEDIATE", self._pragmas, poolclass=QueuePool, pool_size=1, max_overflow=0)
        self._thread = TransactionThread(engine, patience=retry_seconds)
        if not address.in_memory:
            self._reading_engine = self._create_sync_engine("DEFERRED", READING_PRAGMAS, poolclass=NullPool)

    @cached_property
    def _writer(self) -> AsyncEngine:
        """Connects for `writing`; made when it is first needed, as most transactions of SQLite run in threads."""
        if self.dialect == "postgresql":
            return self._create_postgresql_engine(self._pool_size)
        return self._create_sqlite_engine(1, "IMMEDIATE", self._pragmas)

    @cached_property
    def _reader(self) -> AsyncEngine:
        """Connects for `reading`."""
        if self.dialect == "postgresql":
            return self._writer.execution_options(postgresql_readonly=True)
        return (
            self._writer if self.address.in_memory else self._create_sqlite_engine(READERS, "DEFERRED", READING_PRAGMAS)
        )

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that may write; on SQLite there is one at a time.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """
        with translate_errors(self.name):
            async with AsyncExitStack() as stack:
                if self.dialect == "sqlite":
                    await self._enter_with_limit(stack, self._write_turn)
                effects: list[Callable[[], object]] = []
                # The stack unwinds in reverse order: effects run after the commit, and before the turn ends.
                stack.push(partial(_run_effects, effects))
                connection = await self._begin(stack, self._writer)
                assert connection.sync_connection is not None
                info = connection.sync_connection.info
                info[EFFECTS] = effects
                try:
                    yield connection
                finally:
                    info.pop(EFFECTS, None)  # the pooled connection is reused by transactions without effects

    async def write(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a transaction that may write as a whole.

        On SQLite it takes one change of threads in place of one for each statement, for BEGIN and for COMMIT.

        Args:
            work: Takes the connection, and waits for nothing but its statements.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """
        if self._thread is None:
            async with self.writing() as connection:
                return await work(connection)
        effects: list[Callable[[], object]] = []

        async def run(connection: AsyncConnection) -> T:
            assert connection.sync_connection is not None
            connection.sync_connection.info[EFFECTS] = effects
            return await work(connection)

        with translate_errors(self.name):
            async with AsyncExitStack() as stack:
                await self._enter_with_limit(stack, self._write_turn)
                self._check_open()
                result = await self._thread.run(run)
                _run_effects(effects, None)
                return result

    async def read(self, work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a read-only transaction as a whole.

        On SQLite it takes one change of threads in place of one for each statement and one for the end.

        Args:
            work: Takes the connection, and waits for nothing but its statements.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        if self.address.in_memory:
            return await self.write(work)
        if self._reading_engine is None:
            async with self.reading() as connection:
                return await work(connection)
        with translate_errors(self.name):
            async with AsyncExitStack() as stack:
                await self._enter_with_limit(stack, self._reading_turn)
                self._check_open()
                idle = self._idle_readers
                thread = idle.pop() if idle else TransactionThread(self._reading_engine, patience=self.retry_seconds)
                stack.push_async_callback(self._release_reader, thread)
                return await thread.run(work)

    async def _release_reader(self, thread: TransactionThread) -> None:
        """Keep the thread of a read for the next one, unless the database was closed meanwhile."""
        if self._closed:
            await thread.aclose()
        else:
            self._idle_readers.append(thread)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Open a read-only transaction.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        if self.address.in_memory:
            async with self.writing() as connection:
                yield connection
            return
        with translate_errors(self.name):
            async with AsyncExitStack() as stack:
                yield await self._begin(stack, self._reader)

    async def read_rows(self, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
        """Run one query in a transaction of its own, and return its rows.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """

        async def read(connection: AsyncConnection) -> Sequence[Row[*tuple[Any, ...]]]:
            return (await connection.execute(query)).all()

        return await self.read(read)

    async def write_one(self, statement: Update | Delete | Insert) -> None:
        """Run one statement that changes rows in a transaction of its own.

        Raises:
            StoreUnavailableError: If the database is locked, full, or cannot be reached.
        """

        async def write(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self.write(write)

    @property
    def engines(self) -> list[Engine]:
        """All that open connections, for those who listen to SQLAlchemy's events."""
        of_threads = [] if self._thread is None else [self._thread.engine]
        if self._reading_engine is not None:
            of_threads.append(self._reading_engine)
        return [*{each.sync_engine for each in (self._writer, self._reader)}, *of_threads]

    async def check(self) -> None:
        """Check that the database can be read and, on SQLite, written, without writing anything.

        Raises:
            StoreUnavailableError: If it cannot.
        """
        async with self.reading() as connection:
            if self.dialect == "sqlite":
                # Without this, cached pages would be found even if the file is gone.
                await connection.exec_driver_sql("PRAGMA shrink_memory")
            await connection.execute(select(operations.c.operation_id).limit(1))
        if self.dialect == "sqlite":
            async with self.writing():  # takes the write lock
                pass

    def check_file(self) -> None:
        """Check that an SQLite file can be opened or created.

        Raises:
            StoreUnavailableError: If it cannot.
        """
        if self.dialect == "sqlite" and not self.address.in_memory:
            # If the async driver cannot open a file, it leaves behind a thread that outlives the event loop.
            file = self.address.url.database or ""
            with translate_errors(self.name):
                create_private_file(file)
                with closing(sqlite3.connect(file)):
                    pass

    async def retry(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run an idempotent action, and repeat it while the database cannot be reached.

        Raises:
            StoreUnavailableError: If it stays unreachable for `retry_seconds`, or as long as the caller waits.
        """
        deadline = asyncio.get_running_loop().time() + self._max_wait
        pause = FIRST_PAUSE
        while True:
            try:
                return await action()
            except StoreUnavailableError as error:
                if not is_transient(error) or asyncio.get_running_loop().time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def now_sql(self) -> ColumnElement[float]:
        """Return the SQL expression for the database's present time, in unix seconds."""
        return express_now(self.dialect)

    async def now(self) -> float:
        """Read the database's clock, in unix seconds."""
        return await self.retry(partial(self.read, read_clock))

    def _check_open(self) -> None:
        """Refuse to connect to a database that was closed while the caller waited for its turn.

        Raises:
            StoreUnavailableError: If it is closed.
        """
        if self._closed:
            raise StoreUnavailableError(self.name, "it is closed")

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True  # first, so that nobody begins to connect while the last ones do
        if self._connecting:
            await asyncio.wait(self._connecting)
        for engine in {id(each): each for name in ("_writer", "_reader") if (each := vars(self).get(name))}.values():
            await engine.dispose()
        for thread in (self._thread, *self._idle_readers):
            if thread is not None:
                await thread.aclose()
        if self.keeper is not None:
            self.keeper.close()

    @property
    def _max_wait(self) -> float:
        """Seconds that the present caller waits for the database at most."""
        return min(self.retry_seconds, _longest_wait.get() or self.retry_seconds)

    async def _enter_with_limit(
        self, stack: AsyncExitStack, held: AbstractAsyncContextManager[T], *, spare: float = 0.0
    ) -> T:
        """Enter a context manager that others may hold, such as a lock, within the time that the caller waits.

        Args:
            stack: The exit stack that leaves it.
            held: The context manager.
            spare: Seconds allowed beyond the time that the caller waits.

        Raises:
            StoreUnavailableError: If the time is over.
        """
        if _longest_wait.get() is None:
            return await stack.enter_async_context(held)
        seconds = self._max_wait + spare
        try:
            async with asyncio.timeout(seconds) as waiting:
                return await stack.enter_async_context(held)
        except TimeoutError as error:
            if not waiting.expired():
                raise
            raise StoreUnavailableError(self.name, f"it was too busy to start within {seconds:g} s") from error

    async def _begin(self, stack: AsyncExitStack, engine: AsyncEngine) -> AsyncConnection:
        # A thread that waits for a lock of SQLite cannot be cancelled; it has its own timeout, which ends first.
        spare = self._max_wait if self.dialect == "sqlite" else 0.0
        return await self._enter_with_limit(stack, self._transaction(engine), spare=spare)

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        pool = engine.pool
        assert isinstance(pool, AsyncAdaptedQueuePool)
        self._check_open()
        if self.dialect == "sqlite" and not pool.checkedin() and pool.checkedout() < pool.size():
            # SQLAlchemy loses a connection whose caller is cancelled while it connects, so a task of its own connects.
            connecting = asyncio.create_task(_create_connection(engine))
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)
            await asyncio.shield(connecting)
            self._check_open()  # it may have been closed meanwhile, and then nobody would close what is opened here
        async with engine.connect() as connection:
            try:
                async with connection.begin():
                    yield connection
            finally:
                if self._closed:  # the pool was given up meanwhile, and would not close what comes back to it
                    await connection.invalidate()

    def _create_postgresql_engine(self, pool_size: int) -> AsyncEngine:
        engine = create_async_engine(
            self.address.url,
            connect_args={"timeout": self.retry_seconds, **self.address.arguments},
            hide_parameters=True,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=self.retry_seconds,
        )

        @event.listens_for(engine.sync_engine, "checkout")
        def refuse_closed_connection(connection: Any, *_: object) -> None:
            # A restarted server leaves closed connections in the pool, which the driver has noticed. Asking the server
            # at each checkout (`pool_pre_ping`) would cost a commit a quarter of its time.
            if connection.driver_connection.is_closed():
                raise DisconnectionError("the server has closed the connection")

        @event.listens_for(engine.sync_engine, "connect")
        def connected(connection: Any, _: object) -> None:
            transport = getattr(connection.driver_connection, "_transport", None)
            if transport is not None:
                enable_keepalive(transport.get_extra_info("socket"), self.retry_seconds / 2)

        return engine

    def _create_sqlite_engine(self, size: int, begin: str, pragmas: list[str]) -> AsyncEngine:
        # Only here: it imports the driver, which a store in PostgreSQL does not need.
        from hookline.store._sqlite_driver import connect_sqlite

        engine = create_async_engine(
            self.address.url,
            # `isolation_level=None`: otherwise the driver begins transactions by itself.
            connect_args={
                "async_creator_fn": connect_sqlite,
                "isolation_level": None,
                "timeout": self.retry_seconds,
                "factory": SqliteConnection,
            },
            hide_parameters=True,
            poolclass=AsyncAdaptedQueuePool,
            pool_size=size,
            max_overflow=0,
            pool_timeout=self.retry_seconds,
        )
        # If the caller is cancelled while SQLAlchemy terminates a connection, it stops the driver's thread a second
        # time, and the first close waits for that thread for ever. A plain close ends.
        dialect = engine.sync_engine.dialect
        dialect.do_terminate = dialect.do_close  # type: ignore[method-assign]

        self._configure_sqlite(engine.sync_engine, begin, pragmas)
        return engine

    def _create_sync_engine(self, begin: str, pragmas: list[str], *, poolclass: type[Pool], **pool: Any) -> Engine:
        engine = create_engine(
            self.address.url.set(drivername="sqlite"),
            connect_args={"isolation_level": None, "timeout": self.retry_seconds},
            hide_parameters=True,
            poolclass=poolclass,
            **pool,
        )
        self._configure_sqlite(engine, begin, pragmas)
        return engine

    def _configure_sqlite(self, engine: Engine, begin: str, pragmas: list[str]) -> None:
        """Set up the connections of an engine, and how their transactions begin."""

        @event.listens_for(engine, "connect")
        def connected(connection: Any, _: object) -> None:
            cursor = connection.cursor()
            try:
                for pragma in pragmas:
                    cursor.execute(f"PRAGMA {pragma}")
            except BaseException:
                # The pool does not know the connection yet, so nobody else would close it.
                connection.close()
                raise
            cursor.close()

        @event.listens_for(engine, "begin")
        def begin_transaction(connection: Any) -> None:
            statements: list[str] = []
            max_wait = self._max_wait
            if connection.info.setdefault("patience", self.retry_seconds) != max_wait:
                statements.append(f"PRAGMA busy_timeout = {max_wait * 1000:.0f}")
                connection.info["patience"] = max_wait
            if begin == "DEFERRED" and engine is not self._reading_engine:
                connection.connection.driver_connection.begin_later("BEGIN DEFERRED")
            else:
                statements.append(f"BEGIN {begin}")
            if not statements:
                return
            # Past SQLAlchemy, as it does itself for COMMIT: it would take several times as long as SQLite does.
            cursor = connection.connection.cursor()
            try:
                for statement in statements:
                    cursor.execute(statement)
            except sqlite3.Error as error:
                raise DBAPIError.instance(None, None, error, sqlite3.Error, dialect=connection.dialect) from error
            finally:
                cursor.close()


def create_private_file(file: str) -> None:
    """Create a missing SQLite file so that only its owner may read it, since it holds conversations.

    SQLite gives the files beside it (`-wal`, `-shm`) the same mode. An existing file keeps its mode.
    """
    with suppress(OSError):  # if it cannot be created, SQLite reports why
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def writing_pragmas(address: Address, durability: Durability) -> list[str]:
    """Return the pragmas of the connection that writes an SQLite database."""
    if address.in_memory:
        return []
    # In WAL mode, NORMAL may lose the last transactions if the machine loses power, but not if a process dies.
    return ["journal_mode = WAL", f"synchronous = {'FULL' if durability == 'machine' else 'NORMAL'}"]


def enable_keepalive(connection: socket.socket | None, seconds: float) -> None:
    """Enable TCP keepalive, so that a connection to a silent server ends; the driver would wait forever.

    Args:
        connection: The connection to the server; a Unix socket is left as it is.
        seconds: About how long the server may be silent.
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


def _run_effects(effects: list[Callable[[], object]], kind: type[BaseException] | None, *_: object) -> None:
    if kind is None:
        for effect in effects:
            effect()


async def _create_connection(engine: AsyncEngine) -> None:
    """Add a connection to the pool, ignoring errors: the caller that needs it meets them itself."""
    with suppress(Exception):
        async with engine.connect():
            pass
