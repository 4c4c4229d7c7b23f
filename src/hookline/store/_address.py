"""Where a database is: the address as a user writes it, as the driver wants it, and as a message may show it."""

from typing import Any, Literal, TypeAlias
from uuid import uuid4

import msgspec
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from hookline.errors import HookUsageError

__all__ = ["Address", "Dialect", "address_of"]

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
