"""What wakes a listener of another process, of each kind: the tests of the contract run on all of them."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path

from hookline.wakeups import FileWakeups, PollingWakeups, PostgresWakeups, Wakeups

NET = (3600.0, 3600.0)
"""A net that never catches anything within a test."""


class Medium(ABC):
    """A kind of wake-ups, and what two of them share."""

    @abstractmethod
    def make(self) -> Wakeups:
        """Make the wake-ups of one process."""

    def commit(self) -> None:
        """Change what the processes share; a wake-up alone suffices for most."""
        return


class Polling(Medium):
    """Everybody looks all the time."""

    def make(self) -> Wakeups:
        return PollingWakeups(0.02)


class Postgres(Medium):
    """A database of PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def make(self) -> Wakeups:
        return PostgresWakeups(self._url, net=NET)


class File(Medium):
    """A database of SQLite, in a file with a write-ahead log, as a store opens it."""

    def __init__(self, folder: Path) -> None:
        self._file, self._count = folder / "shared.db", 0
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE t (x)")
            connection.commit()

    def make(self) -> Wakeups:
        return FileWakeups(self._file, f"{self._file}-wal", net=NET)

    def commit(self) -> None:
        self._count += 1
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("INSERT INTO t VALUES (?)", (self._count,))
            connection.commit()
