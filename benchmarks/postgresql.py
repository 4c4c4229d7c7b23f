"""A real PostgreSQL of one's own, from the package `pgserver`: started, crashed and started again."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg


class PostgreSQL:
    """A server on a socket in a folder of its own; `with` starts it, ends it, and removes what it wrote.

    Attributes:
        uri: Where it is.
    """

    def __init__(self) -> None:
        self.uri = ""
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package looks for folders of the user when it is imported
            import pgserver
        # The path of a socket has to be short, and the server may run as another user.
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        self._server = pgserver.get_server(self._folder / "data", cleanup_mode="stop")
        self.uri = self._server.get_uri()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._folder is not None
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def new_database(self, name: str) -> str:
        """Make an empty database; gives its URL."""
        connection = await asyncpg.connect(self.uri)
        try:
            await connection.execute(f'CREATE DATABASE "{name}"')
        finally:
            await connection.close()
        return self.uri.replace("/postgres?", f"/{name}?")

    def crash(self) -> None:
        """End it as a loss of power would."""
        from pgserver._commands import pg_ctl

        server = self._server
        pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=server.pgdata, user=server.system_user, timeout=60)

    def start(self) -> None:
        """Start it again after a crash; it recovers by itself."""
        self._server.ensure_postgres_running()
