"""Real databases for tests: a fresh SQLite file or a fresh PostgreSQL database for each, on one server per process.

A `conftest.py` takes all of it; stores run on asyncio alone.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, TypeVar

import asyncpg
import pytest

from hookline.store import SqlStore

__all__ = [
    "Server",
    "administer",
    "anyio_backend",
    "database_url",
    "dialect",
    "new_database_url",
    "new_empty_url",
    "postgresql",
    "postgresql_url",
    "sqlite_tables",
]

DIALECTS = ("sqlite", "postgresql")
TABLES = "with_tables"
"""A database that is copied for each test: migrating an empty one takes ten times as long."""
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


class Server:
    """A PostgreSQL server.

    Attributes:
        uri: Where it is.
    """

    def __init__(self) -> None:
        import pgserver

        # Not a folder of pytest's: the path of the socket in it must be short, and the server runs as another user.
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        self._watcher = Popen([sys.executable, "-c", WATCHER, str(self._folder)], stdin=PIPE, start_new_session=True)
        self._server = pgserver.get_server(self._folder / "data", cleanup_mode=None)
        self.uri = str(self._server.get_uri())
        # A connection that stays, in a loop and a thread of its own: the test may be running another loop.
        self._thread, self._loop = ThreadPoolExecutor(1), asyncio.Runner()
        self._connection: asyncpg.Connection | None = None
        # It survives the crash of a process without waiting for the disk, and no test switches the machine off.
        off = [f"ALTER SYSTEM SET {each} = off" for each in ("fsync", "full_page_writes")]
        self.administer(*off, "SELECT pg_reload_conf()", f"CREATE DATABASE {TABLES}")
        make_tables(self.uri_of(TABLES))

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

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def crash(self) -> None:
        """End it as a loss of power would, and start it again."""
        from pgserver._commands import pg_ctl

        self._thread.submit(self._loop.run, self._disconnect()).result()
        server = self._server
        pg_ctl(["-w", "-m", "immediate", "restart"], pgdata=server.pgdata, user=server.system_user, timeout=60)

    def stop(self) -> None:
        """End it."""
        with self._thread as thread:
            thread.submit(self._loop.run, self._disconnect()).result()
            thread.submit(self._loop.close).result()
        self._server.cleanup()
        self._watcher.communicate()


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The loop that stores need."""
    return str(request.param)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server of this test process alone, started when it is first needed."""
    with warnings.catch_warnings():
        # The package looks for folders of the user when it is imported.
        warnings.simplefilter("ignore")
        import pgserver  # noqa: F401
    server = Server()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """Each kind of database in turn."""
    return str(request.param)


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
        return new_postgresql(request, template="template1")

    return make


@pytest.fixture
def new_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes a database of a kind that has the tables and nothing in them, as often as a test asks."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            file = tmp_path / f"store{next(_numbers)}.db"
            shutil.copyfile(request.getfixturevalue("sqlite_tables"), file)
            return f"sqlite:///{file}"
        return new_postgresql(request, template=TABLES)

    return make


@pytest.fixture
def database_url(new_database_url: Callable[[str], str], dialect: str) -> str:
    """The URL of a new database, of each kind in turn."""
    return new_database_url(dialect)


@pytest.fixture
def postgresql_url(new_database_url: Callable[[str], str]) -> str:
    """The URL of a new PostgreSQL database."""
    return new_database_url("postgresql")


def new_postgresql(request: pytest.FixtureRequest, *, template: str) -> str:
    """The URL of a copy of a database, which is gone after the test."""
    server: Server = request.getfixturevalue("postgresql")
    name = f"test_{next(_numbers)}"
    server.administer(f'CREATE DATABASE "{name}" TEMPLATE {template} STRATEGY FILE_COPY')
    request.addfinalizer(lambda: server.administer(f'DROP DATABASE "{name}" WITH (FORCE)'))
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
