"""Faults of a database, one at a time, at any one of its transactions."""

from __future__ import annotations

import sqlite3
from typing import Any, Literal

from sqlalchemy import event

from hookline.store import SqlStore

__all__ = ["Fault", "Faults"]

Fault = Literal["refused", "answer lost", "full"]


class Faults:
    """Makes transactions of a store fail that write.

    Args:
        store: An open store.
        fault: `"refused"`: the commit fails, and nothing is written. `"answer lost"`: it is written, and nobody hears of
            it. `"full"`: of SQLite, the file may not grow while that transaction lasts, so that its own statements say
            that the disk is full.
    """

    def __init__(self, store: SqlStore, fault: Fault) -> None:
        self._lost = fault == "answer lost"
        self._fails, self._seen, self._hits = range(0), 0, 0
        # For good: SQLAlchemy cannot remove a listener while a transaction is in it.
        name, listener = ("begin", self._limit) if fault == "full" else ("commit", self._cut)
        for engine in store._database.engines:
            event.listen(engine, name, listener)

    def at(self, nth: int, count: int = 1) -> None:
        """Have the nth transaction from now on fail, and those that follow it.

        Args:
            nth: From 1.
            count: How many fail, one after another.
        """
        self._fails, self._seen, self._hits = range(nth, nth + count), 0, 0

    @property
    def hits(self) -> int:
        """How many have failed since `at`."""
        return self._hits

    def _is_next(self) -> bool:
        self._seen += 1
        self._hits += self._seen in self._fails
        return self._seen in self._fails

    def _cut(self, connection: Any) -> None:
        if self._only_reads(connection) or not self._is_next():
            return
        if self._lost:
            connection.connection.commit()
        if connection.dialect.name == "sqlite":
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full
        raise ConnectionResetError("the server was lost at the commit")

    @staticmethod
    def _only_reads(connection: Any) -> bool:
        if connection.dialect.name == "sqlite":
            return bool(connection.exec_driver_sql("PRAGMA query_only").scalar_one())
        return bool(connection.get_execution_options().get("postgresql_readonly"))

    def _limit(self, connection: Any) -> None:
        if self._only_reads(connection):
            return
        # The smallest that SQLite takes is the present size.
        limit = 1 if self._is_next() else 0x7FFFFFFF
        cursor = connection.connection.cursor()
        cursor.execute(f"PRAGMA max_page_count = {limit}")
        cursor.close()
