"""Transactions of SQLite over connections that change threads as seldom as they can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store import SqlStore
from hookline.store._sqlite_driver import READ_AHEAD, SqliteDriver

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

COUNT = text("SELECT count(*) FROM notes")
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    """A store with an empty table of notes."""
    async with SqlStore(f"sqlite:///{tmp_path}/store.db") as store:
        async with store.writing() as connection:
            await connection.exec_driver_sql("CREATE TABLE notes (note INTEGER)")
        yield store


async def write_note(store: SqlStore) -> None:
    async with store.writing() as connection:
        await connection.exec_driver_sql("INSERT INTO notes VALUES (1)")


async def driver_of(connection: AsyncConnection) -> SqliteDriver:
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, SqliteDriver)
    return driver


async def test_a_statement_takes_one_turn_of_the_thread_and_an_empty_transaction_none(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[object] = []
    execute = SqliteDriver._execute

    async def count_turn(self: SqliteDriver, function: Any, *arguments: Any) -> Any:
        turns.append(function)
        return await execute(self, function, *arguments)

    async with store.reading():  # the first connection is opened
        pass
    monkeypatch.setattr(SqliteDriver, "_execute", count_turn)
    async with store.reading():
        pass
    assert turns == []
    async with store.reading() as connection:
        await connection.execute(COUNT)
        assert len(turns) == 1
        await connection.execute(COUNT)
        assert len(turns) == 2
    assert len(turns) == 3  # the commit


async def test_a_read_sees_one_state_from_its_first_statement_on(store: SqlStore) -> None:
    async with store.reading() as connection:
        await write_note(store)
        assert (await connection.execute(COUNT)).scalar_one() == 1
        await write_note(store)
        assert (await connection.execute(COUNT)).scalar_one() == 1
    async with store.reading() as connection:
        assert (await connection.execute(COUNT)).scalar_one() == 2


async def test_an_empty_read_leaves_no_begin_to_the_next_transaction(store: SqlStore) -> None:
    async with store.reading() as connection:
        driver = await driver_of(connection)
    assert not driver.in_transaction
    await driver.cursor().execute("SELECT 1")

    assert not driver.in_transaction


async def test_a_statement_that_fails_leaves_its_transaction_usable(store: SqlStore) -> None:
    async with store.writing() as connection:
        with pytest.raises(OperationalError, match="no such table"):
            await connection.execute(text("SELECT * FROM lost"))
        await connection.exec_driver_sql("INSERT INTO notes VALUES (1)")
    async with store.reading() as connection:
        assert (await connection.execute(COUNT)).scalar_one() == 1


@pytest.mark.parametrize("streams", [False, True], ids=["at once", "in parts"])
async def test_a_read_that_is_cancelled_keeps_no_old_state(store: SqlStore, streams: bool) -> None:
    reads = asyncio.Event()

    async def read() -> None:
        async with store.reading() as connection:
            await connection.execute(COUNT)
            found = await connection.stream(text(NUMBERS.format(3 * READ_AHEAD))) if streams else None
            reads.set()
            if found is None:
                await connection.execute(text(f"SELECT sum(i) FROM ({NUMBERS.format(200_000)})"))
            else:
                await found.fetchone()
                await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    await reads.wait()
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await write_note(store)

    for _ in range(8):  # more often than there are connections
        async with store.reading() as connection:
            assert (await connection.execute(COUNT)).scalar_one() == 1
