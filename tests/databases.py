"""Real databases for tests: a fresh SQLite file or a fresh PostgreSQL database for each, on one server per process."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen

import asyncpg
import pytest

__all__ = ["Server", "administer", "database_url", "dialect", "new_database_url", "postgresql", "postgresql_url"]

DIALECTS = ("sqlite", "postgresql")
_numbers = count(1)


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

    def crash(self) -> None:
        """End it as a loss of power would, and start it again."""
        from pgserver._commands import pg_ctl

        server = self._server
        pg_ctl(["-w", "-m", "immediate", "restart"], pgdata=server.pgdata, user=server.system_user, timeout=60)

    def stop(self) -> None:
        """End it."""
        self._server.cleanup()
        self._watcher.communicate()


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


@pytest.fixture
def new_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes an empty database of a kind, as often as a test asks."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / f'store{next(_numbers)}.db'}"
        server = request.getfixturevalue("postgresql").uri
        name = f"test_{next(_numbers)}"
        administer(server, f'CREATE DATABASE "{name}"')
        request.addfinalizer(lambda: administer(server, f'DROP DATABASE "{name}" WITH (FORCE)'))
        return server.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture
def database_url(new_database_url: Callable[[str], str], dialect: str) -> str:
    """The URL of an empty database, of each kind in turn."""
    return new_database_url(dialect)


@pytest.fixture
def postgresql_url(new_database_url: Callable[[str], str]) -> str:
    """The URL of an empty PostgreSQL database."""
    return new_database_url("postgresql")


def administer(server: str, *statements: str) -> list[object]:
    """What a PostgreSQL server answers to each of some statements."""
    # In a thread, since the test may be running a loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _answers(server, statements)).result()


async def _answers(server: str, statements: Sequence[str]) -> list[object]:
    connection = await asyncpg.connect(server)
    try:
        return [await connection.fetchval(statement) for statement in statements]
    finally:
        await connection.close()
