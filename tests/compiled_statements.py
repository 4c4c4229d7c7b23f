"""SQL that SQLAlchemy compiles once per process: for each database anew, it takes a fifth of a test of a store."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.util import LRUCache

__all__ = ["share_compiled_statements"]

STATEMENTS = 2000


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
