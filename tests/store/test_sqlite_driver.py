"""The connection to SQLite: a statement and its rows in one change of threads, however many rows there are."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from hookline.store import SqlStore
from hookline.store._sqlite_driver import READ_AHEAD

pytestmark = pytest.mark.anyio

COUNTS = [0, 1, READ_AHEAD - 1, READ_AHEAD, READ_AHEAD + 1, 3 * READ_AHEAD + 7]
NUMBERS = (
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) SELECT n FROM numbers"
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    async with SqlStore(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


@pytest.mark.parametrize("count", COUNTS)
async def test_all_rows_are_read_in_their_order(store: SqlStore, count: int) -> None:
    async with store.reading() as connection:
        read = await connection.exec_driver_sql(f"{NUMBERS} LIMIT ?", (count, count))

        assert list(read.scalars()) == list(range(1, count + 1))


@pytest.mark.parametrize("count", COUNTS)
async def test_all_rows_come_in_a_stream_in_their_order(store: SqlStore, count: int) -> None:
    async with store.reading() as connection:
        streaming = await connection.execution_options(stream_results=True)
        read = await streaming.stream(text(f"{NUMBERS.replace('?', ':count')} LIMIT :count"), {"count": count})

        assert [row.n async for row in read] == list(range(1, count + 1))


async def test_a_statement_with_rows_left_keeps_no_lock(store: SqlStore, tmp_path: Path) -> None:
    async with store.writing() as connection:
        streaming = await connection.execution_options(stream_results=True)
        await streaming.stream(text(NUMBERS.replace("?", "1000000")))

    other = sqlite3.connect(tmp_path / "store.db", timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.close()


async def test_the_number_of_changed_rows_is_known(store: SqlStore) -> None:
    async with store.writing() as connection:
        await connection.exec_driver_sql("CREATE TABLE things (id INTEGER PRIMARY KEY, n INTEGER)")
        made = await connection.exec_driver_sql("INSERT INTO things (n) VALUES (?)", [(1,), (2,), (2,)])
        changed = await connection.exec_driver_sql("UPDATE things SET n = 3 WHERE n = 2")
        gone = await connection.exec_driver_sql("DELETE FROM things WHERE n = 3 RETURNING id")

        assert (made.rowcount, changed.rowcount, gone.rowcount, list(gone.scalars())) == (3, 2, 2, [2, 3])
