"""What the errors of databases mean: gone for now, or for good, or a mistake in what was asked."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from hookline.errors import StoreUnavailableError, message_of

__all__ = ["StoreVersionError", "passes", "translating", "unavailable"]

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
