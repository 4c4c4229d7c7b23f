"""What drivers find out once per process of the tests: for each database anew, it takes half of a test of a store."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from types import SimpleNamespace
from typing import Any

import asyncpg
from sqlalchemy import ClauseElement, Connection, Dialect
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

__all__ = ["share_compiled_statements", "share_server_settings", "share_types"]

STATEMENTS = 2000
FIRST_OID = 16384
"""The first oid that a database gives away itself; types below are the same in all databases of a server."""


def share_compiled_statements() -> None:
    """Have all engines of this process on databases of a kind share what they have compiled."""
    compile_statement = ClauseElement._compile_w_cache
    shared: dict[Hashable, tuple[Dialect, LRUCache[Any, Any]]] = {}

    def compile_once(self: ClauseElement, dialect: Dialect, *, compiled_cache: Any, **more: Any) -> Any:
        version = getattr(dialect, "server_version_info", None)  # known once it has connected
        if compiled_cache is None or version is None:
            return compile_statement(self, dialect, compiled_cache=compiled_cache, **more)
        kind = type(dialect), version, dialect.default_schema_name
        first, cache = shared.setdefault(kind, (dialect, LRUCache(STATEMENTS)))
        return compile_statement(self, first, compiled_cache=cache, **more)

    ClauseElement._compile_w_cache = compile_once  # type: ignore[method-assign]


def share_server_settings() -> None:
    """Have the first engine of each kind alone ask the database about its version and its settings."""
    found: dict[type[Dialect], dict[str, Any]] = {}
    for kind in (PGDialect_asyncpg, SQLiteDialect_pysqlite):

        def initialize_once(self: Dialect, connection: Connection, *, ask: Any = kind.initialize) -> None:
            if type(self) not in found:
                before = dict(vars(self))
                ask(self, connection)
                found[type(self)] = {name: vars(self)[name] for name in vars(self).keys() - before.keys()}
            vars(self).update(found[type(self)])

        kind.initialize = initialize_once  # type: ignore[method-assign]


def share_types() -> None:
    """Have the first connection alone ask PostgreSQL about the types of arrays, for which it takes 10 ms."""
    ask = asyncpg.Connection._introspect_types
    found: dict[frozenset[int], Any] = {}

    async def introspect_once(self: asyncpg.Connection, oids: Iterable[int], timeout: float | None) -> Any:
        types = frozenset(oids)
        if types not in found:
            rows, statement = await ask(self, types, timeout)
            if max(types) >= FIRST_OID:
                return rows, statement
            found[types] = rows
        return found[types], SimpleNamespace(name="shared")

    asyncpg.Connection._introspect_types = introspect_once
