"""Transactions that run as a whole in the thread of an SQLite database."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore
from hookline.store._transaction_thread import TransactionThread

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

INSERT = "INSERT INTO notes VALUES (1)"


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "sqlite:///:memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


async def make_table(store: SqlStore) -> None:
    async with store.writing() as connection:
        await connection.exec_driver_sql("CREATE TABLE notes (note INTEGER)")


async def count_notes(store: SqlStore) -> int:
    async with store.reading() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM notes"))).scalar_one())


async def test_a_transaction_that_fails_has_written_nothing(url: str) -> None:
    async with SqlStore(url) as store:
        await make_table(store)

        async def fail(connection: AsyncConnection) -> None:
            await connection.exec_driver_sql(INSERT)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await store._database.write(fail)
        assert await count_notes(store) == 0


async def test_a_transaction_may_wait_for_nothing_but_its_statements(url: str) -> None:
    async with SqlStore(url) as store:
        await make_table(store)

        async def wait(connection: AsyncConnection) -> None:
            await connection.exec_driver_sql(INSERT)
            await asyncio.sleep(0)

        with pytest.raises(RuntimeError, match="waits for something else"):
            await store._database.write(wait)
        assert await count_notes(store) == 0


async def test_a_cancelled_caller_leaves_when_its_transaction_has_ended(url: str) -> None:
    async with SqlStore(url) as store:
        await make_table(store)
        began, may_end = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        async def insert(connection: AsyncConnection) -> None:
            await connection.exec_driver_sql(INSERT)
            loop.call_soon_threadsafe(began.set)
            assert may_end.wait(60)

        caller = asyncio.create_task(store._database.write(insert))
        await began.wait()
        caller.cancel()
        reader = asyncio.create_task(count_notes(store))
        writer = asyncio.create_task(make_another(store))
        await asyncio.sleep(0)
        assert not caller.done()
        assert not writer.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await writer
        assert await reader in (0, 1)
        assert await count_notes(store) == 1


async def make_another(store: SqlStore) -> None:
    async with store.writing() as connection:
        await connection.exec_driver_sql("CREATE TABLE others (other INTEGER)")


async def test_a_closed_database_writes_nothing(url: str) -> None:
    async with SqlStore(url) as store:
        await make_table(store)

    async def insert(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql(INSERT)

    with pytest.raises(StoreUnavailableError, match="it is closed"):
        await store._database.write(insert)
    for each in threading.enumerate():
        if each.name.startswith("hookline-sqlite"):
            each.join(60)
            assert not each.is_alive()


async def test_a_thread_that_cannot_be_started_is_started_for_the_next_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def read(connection: AsyncConnection) -> int:
        return int((await connection.exec_driver_sql("SELECT 1")).scalar_one())

    store = SqlStore(url)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            await store._database.write(read)

    assert await store._database.write(read) == 1
    await store._database.aclose()


async def test_the_thread_of_a_store_that_is_never_closed_ends_with_it() -> None:
    engine = create_engine("sqlite://")
    thread = TransactionThread(engine, patience=1.0)

    async def read(connection: AsyncConnection) -> int:
        return int((await connection.exec_driver_sql("SELECT 1")).scalar_one())

    await thread.run(read)
    running = thread._thread
    assert running is not None
    del thread
    gc.collect()
    running.join(30)

    assert not running.is_alive()


async def test_the_connection_waits_for_a_process_that_turns_on_the_wal_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/store.db")
    engine = store._database._thread.engine  # type: ignore[union-attr]
    connect, refused = engine.connect, list[str]()

    def refuse_twice() -> Connection:
        if len(refused) < 2:
            refused.append("busy")
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return connect()

    monkeypatch.setattr(engine, "connect", refuse_twice)
    async with store:
        assert len(refused) == 2
