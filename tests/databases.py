"""Real databases for tests: a fresh SQLite file or a fresh PostgreSQL database for each, on one server per process.

A `conftest.py` takes all of it; stores run on asyncio alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, TypeVar

import asyncpg
import pytest

from hookline.store import SqlStore
from hookline.store._migrate import VERSION_TABLE
from tests.shared_answers import share_compiled_statements, share_server_settings, share_types
from tests.temporary import short_folder

__all__ = [
    "Server",
    "administer",
    "anyio_backend",
    "database_url",
    "dialect",
    "new_database_url",
    "new_empty_url",
    "on_sqlite",
    "postgresql",
    "postgresql_url",
    "sqlite_tables",
]

share_compiled_statements()
share_server_settings()
share_types()

DIALECTS = ("sqlite", "postgresql")
TABLES = "with_tables"
"""A database that is copied: migrating an empty one takes ten times as long."""

MOST_USES = 100
"""After which a copy is dropped, as deleted rows stay in its files."""

SCHEMA = """
SELECT md5(string_agg(format('%s %s %s', oid, xmin, relname), ',' ORDER BY oid))
FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
"""Changes whenever a table, an index or a column does; it is the same in every copy."""

IS_LEFT = """
SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
"""
EMPTIER = "emptier"
"""The name of the connections that empty databases, for tests that count those of a store."""
LOOKS = 50
"""How often a connection that is still there is waited for, 2 ms each; PostgreSQL closes them after its client."""

LOST = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What asyncpg raises for a connection that has ended; the last one if it has read that, and nothing since."""

EMPTY = f"""
DO $$
DECLARE
    each text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR each IN
        SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        AND relname <> '{VERSION_TABLE}' AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('DELETE FROM %I', each);
    END LOOP;
    PERFORM setval(format('%I', sequencename)::regclass, start_value, false) FROM pg_sequences
    WHERE last_value IS NOT NULL;
END
$$
"""
_numbers = count(1)
T = TypeVar("T")


WATCHER = """
import os, shutil, signal, sys, time
folder = sys.argv[1]
sys.stdin.read()
try:
    with open(f"{folder}/data/postmaster.pid") as file:
        server = int(file.readline())
    os.kill(server, signal.SIGQUIT)
    for _ in range(600):
        os.kill(server, 0)
        time.sleep(0.05)
except (OSError, ValueError):
    pass
shutil.rmtree(folder, ignore_errors=True)
"""
"""Ends a server and removes its folder once the process of the tests is gone, even if that was killed."""


SETTINGS = ("fsync", "full_page_writes", "autovacuum", "jit")
"""What is switched off: it survives the crash of a process without waiting for the disk, no test switches the machine
off, and all tables are small."""


def init_for_tests(initdb: Callable[..., str], args: list[str], **more: Any) -> str:
    """Make the files of a server, without waiting for the disk."""
    off = [argument for each in SETTINGS for argument in ("-c", f"{each}=off")]
    return initdb([*args, "--no-sync", *off], **more)


class Server:
    """A PostgreSQL server.

    Attributes:
        uri: Where it is.
    """

    def __init__(self) -> None:
        import pgserver
        from pgserver import _commands, postgres_server

        # Half of the time that it takes is that of the disk.
        postgres_server.initdb = functools.partial(init_for_tests, _commands.initdb)
        # Not a folder of pytest's: the path of the socket in it must be short, and the server runs as another user.
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir=short_folder()))
        self._watcher = Popen([sys.executable, "-c", WATCHER, str(self._folder)], stdin=PIPE, start_new_session=True)
        self._server = pgserver.get_server(self._folder / "data", cleanup_mode=None)
        self.uri = str(self._server.get_uri())
        # A connection that stays, in a loop and a thread of its own: the test may be running another loop.
        self._thread, self._loop = ThreadPoolExecutor(1), asyncio.Runner()
        self._connection: asyncpg.Connection | None = None
        self._unused: list[str] = []
        self._uses: dict[str, int] = {}
        # One for each copy: a new one would read the catalogs again, which takes six times as long as to empty it.
        self._emptying: dict[str, asyncpg.Connection] = {}
        self.administer(f"CREATE DATABASE {TABLES}")
        make_tables(self.uri_of(TABLES))
        self._schema = self._thread.submit(self._loop.run, self._schema_of(TABLES)).result()

    def uri_of(self, database: str) -> str:
        """Where a database of it is."""
        return self.uri.replace("/postgres?", f"/{database}?")

    def administer(self, *statements: str) -> None:
        """Have it do each of some statements."""
        self._thread.submit(self._loop.run, self._execute(statements)).result()

    async def _execute(self, statements: Sequence[str]) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self.uri)
        for statement in statements:
            await self._connection.execute(statement)

    def lend(self) -> str:
        """The name of a database that has the tables and nothing in them."""
        if self._unused:
            return self._unused.pop()
        name = self.copy(TABLES)
        self._uses[name] = 0
        return name

    def take_back(self, name: str) -> None:
        """Empty a database for the next test; drop it if somebody still uses it, or has changed its tables."""
        self._uses[name] += 1
        if self._uses[name] < MOST_USES and self._thread.submit(self._loop.run, self._empty(name)).result():
            self._unused.append(name)
        else:
            self.drop(name)

    def copy(self, template: str) -> str:
        """Make a copy of a database, and return its name."""
        name = f"test_{next(_numbers)}"
        self.administer(f'CREATE DATABASE "{name}" TEMPLATE {template} STRATEGY FILE_COPY')
        return name

    def drop(self, name: str) -> None:
        """Remove a database, whoever uses it."""
        self._thread.submit(self._loop.run, self._forget(name)).result()
        self.administer(f'DROP DATABASE "{name}" WITH (FORCE)')

    async def _schema_of(self, name: str) -> str:
        connection = await asyncpg.connect(self.uri_of(name))
        try:
            return str(await connection.fetchval(SCHEMA))
        finally:
            await connection.close()

    async def _empty(self, name: str) -> bool:
        try:
            if name not in self._emptying:
                settings = {"application_name": EMPTIER}
                self._emptying[name] = await asyncpg.connect(self.uri_of(name), server_settings=settings)
            connection = self._emptying[name]
            for _ in range(LOOKS):
                if await connection.fetchval(IS_LEFT):
                    break
                await asyncio.sleep(0.002)
            else:
                return False
            if await connection.fetchval(SCHEMA) != self._schema:
                return False
            await connection.execute(EMPTY)
        except LOST:  # a test has ended it, or the server
            return False
        return True

    async def _forget(self, name: str) -> None:
        connection = self._emptying.pop(name, None)
        if connection is not None:
            with contextlib.suppress(*LOST):
                await connection.close()

    async def _disconnect(self) -> None:
        for name in list(self._emptying):
            await self._forget(name)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def crash(self) -> None:
        """End it as a loss of power would, and start it again."""
        self.lose()
        self.recover()

    def lose(self) -> None:
        """End it as a loss of power would."""
        from pgserver._commands import pg_ctl

        self._thread.submit(self._loop.run, self._disconnect()).result()
        server = self._server
        pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=server.pgdata, user=server.system_user, timeout=60)

    def recover(self) -> None:
        """Start it again after a loss."""
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        """End it."""
        with self._thread as thread:
            thread.submit(self._loop.run, self._disconnect()).result()
            thread.submit(self._loop.close).result()
        self._server.cleanup()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.returncode = 0  # nobody waits until it has removed all files


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The loop that stores need."""
    return str(request.param)


@functools.cache
def start_server(config: pytest.Config) -> Server:
    """Start the PostgreSQL server of this test process; it is stopped when pytest ends."""
    with warnings.catch_warnings():
        # The package looks for folders of the user when it is imported.
        warnings.simplefilter("ignore")
        import pgserver  # noqa: F401
    server = Server()
    config.add_cleanup(server.stop)
    return server


@pytest.fixture(scope="session")
def postgresql(pytestconfig: pytest.Config) -> Server:
    """A PostgreSQL server of this test process alone, started when it is first needed.

    Each folder that imports this fixture has its own copy of it, and all of them share the server.
    """
    return start_server(pytestconfig)


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn."""
    return str(request.param)


on_sqlite = pytest.mark.parametrize("dialect", ["sqlite"])
"""For a test of what no database decides: on PostgreSQL it would take three times as long."""


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file that has the tables and nothing in them."""
    file = tmp_path_factory.mktemp("tables") / "store.db"
    make_tables(f"sqlite:///{file}")
    return file


@pytest.fixture
def new_empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes a database of a kind without tables, as often as a test asks."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / f'store{next(_numbers)}.db'}"
        server: Server = request.getfixturevalue("postgresql")
        name = server.copy("template1")
        request.addfinalizer(lambda: server.drop(name))
        return server.uri_of(name)

    return make


@pytest.fixture
def new_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes a database of a kind that has the tables and nothing in them, as often as a test asks."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            file = tmp_path / f"store{next(_numbers)}.db"
            shutil.copyfile(request.getfixturevalue("sqlite_tables"), file)
            return f"sqlite:///{file}"
        return new_postgresql(request)

    return make


@pytest.fixture
def database_url(new_database_url: Callable[[str], str], dialect: str) -> str:
    """The URL of a new database, of each kind in turn."""
    return new_database_url(dialect)


@pytest.fixture
def postgresql_url(new_database_url: Callable[[str], str]) -> str:
    """The URL of a new PostgreSQL database."""
    return new_database_url("postgresql")


def new_postgresql(request: pytest.FixtureRequest) -> str:
    """The URL of a PostgreSQL database that has the tables and nothing in them, and is this test's alone."""
    server: Server = request.getfixturevalue("postgresql")
    name = server.lend()
    request.addfinalizer(lambda: server.take_back(name))
    return server.uri_of(name)


def make_tables(url: str) -> None:
    """Open a store, which makes its tables, and close it."""

    async def opened() -> None:
        async with SqlStore(url):
            pass

    in_thread(opened())


def administer(server: str, *statements: str) -> list[object]:
    """What a PostgreSQL server answers to each of some statements."""
    return in_thread(_answers(server, statements))


def in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run something in a loop of its own, since the test may be running one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _answers(server: str, statements: Sequence[str]) -> list[object]:
    connection = await asyncpg.connect(server)
    try:
        return [await connection.fetchval(statement) for statement in statements]
    finally:
        await connection.close()
