"""Whatever a page is asked for, the database goes straight to its place in one index: the length of the log is no matter."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from sqlalchemy import text

from hookline.registry import _log as reading
from hookline.store import SqlStore
from hookline.store._tables import execution_hooks, executions

pytestmark = pytest.mark.anyio

CURSOR = "3328b944c41f47b5"


def expected(which: dict[str, Any]) -> str:
    """Name of the index that a page is to be read from; `""` for a primary key."""
    if "revision" in which and "operation_id" not in which:
        return f"ix_execution_hooks_{'tenant_id_' if 'tenant_id' in which else ''}revision_id"
    status = ["status"] if which.get("status", "ok") != "ok" else []
    if "operation_id" in which:
        return "ix_executions_operation_id_id"
    if "hook_id" in which:
        names = [*(name for name in ("tenant_id", "hook_id") if name in which), *status, "id"]
        beside = ["point"] if status else ["point", "status"]
        return "" if names == ["hook_id", "id"] else f"ix_execution_hooks_{'_'.join((*names, *beside))}"
    names = [*(name for name in ("tenant_id", "point") if name in which), *status, "id"]
    return "" if names == ["id"] else f"ix_executions_{'_'.join(names)}"


PARTS = "SELECT part.relname, whole.relname FROM pg_inherits JOIN pg_class part ON part.oid = inhrelid "
PARTS += "JOIN pg_class whole ON whole.oid = inhparent"


async def test_each_filter_is_answered_from_its_own_index(database_url: str) -> None:
    async with SqlStore(database_url) as store, store.reading() as connection:
        if store.dialect == "postgresql":
            await connection.execute(reading._no_sorting)
        parts = dict((await connection.execute(text(PARTS))).all()) if store.dialect == "postgresql" else {}
        for values in product(("", "t"), ("", "h"), ("", "ToolCall"), ("", "ok", "denied"), ("", "op"), (0, 7)):
            names = ("tenant_id", "hook_id", "point", "status", "operation_id", "revision")
            which: dict[str, Any] = {name: value for name, value in zip(names, values, strict=True) if value}
            wanted = reading.build_query(which.get("tenant_id"), **{k: v for k, v in which.items() if k != "tenant_id"})
            query = reading.build_page_statement(wanted._replace(to_key=reading.parse_key(CURSOR)), 51, store.dialect)
            sql = str(query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True}))
            explain = "EXPLAIN QUERY PLAN" if store.dialect == "sqlite" else "EXPLAIN (COSTS OFF)"
            lines = [str(row[-1]) for row in await connection.execute(text(f"{explain} {sql}"))]
            # A partition and its indexes stand for the table and its indexes.
            lines = [re.sub(r"\w+", lambda word: parts.get(word[0], word[0]), line) for line in lines]
            plan = "\n".join(lines)

            index = expected(which)
            is_by_hook = ("hook_id" in which or "revision" in which) and "operation_id" not in which
            source = execution_hooks if is_by_hook else executions
            if store.dialect == "sqlite":
                place = f"INDEX {index} (" if index else "PRIMARY KEY ("
                line = next(line for line in lines if f"SEARCH {source.name} " in line)
                assert place in line, (which, plan)
                assert "id<?" in line, (which, plan)
                assert not any(line.startswith("SCAN exec") for line in lines), (which, plan)
                assert "TEMP B-TREE" not in plan, (which, plan)
            else:
                assert f"Scan Backward using {index or f'{source.name}_pkey'} on {source.name}" in plan, (which, plan)
                assert not re.search(r"(-> +|\A)(Incremental )?Sort\b", plan), (which, plan)
                assert "Seq Scan" not in plan, (which, plan)
                assert next(line for line in lines if "Index Cond" in line).count("id") >= 1
