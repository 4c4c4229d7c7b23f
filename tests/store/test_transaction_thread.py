"""Transactions that run as a whole in the thread of an SQLite database."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, column, create_engine, insert, select, table, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore, limit_waiting
from hookline.store._database import READERS
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


async def test_a_read_may_write_nothing(tmp_path: Path) -> None:
    async with SqlStore(f"sqlite:///{tmp_path}/store.db") as store:
        await make_table(store)

        async def insert(connection: AsyncConnection) -> None:
            await connection.exec_driver_sql(INSERT)

        with pytest.raises(StoreUnavailableError, match="attempt to write a readonly database"):
            await store.read(insert)
        assert await count_notes(store) == 0


async def test_a_read_that_fails_leaves_the_next_ones_as_they_were(url: str) -> None:
    async with SqlStore(url) as store:
        await make_table(store)
        for _ in range(2 * READERS):
            with pytest.raises(OperationalError, match="no such table"):
                await store.read_rows(select(text("* FROM lost")))
        await store.write_one(insert(table("notes", column("note"))).values(note=1))

        assert await store.read_rows(select(text("note FROM notes"))) == [(1,)]


async def test_as_many_reads_run_at_once_as_there_are_connections(tmp_path: Path) -> None:
    async with SqlStore(f"sqlite:///{tmp_path}/store.db") as store:
        await make_table(store)
        all_read, began = threading.Barrier(READERS + 1), threading.Semaphore(0)

        async def read(connection: AsyncConnection) -> int:
            began.release()
            all_read.wait(60)
            return int((await connection.execute(text("SELECT count(*) FROM notes"))).scalar_one())

        reading = [asyncio.create_task(store.read(read)) for _ in range(READERS)]
        for _ in range(READERS):
            assert await asyncio.to_thread(began.acquire, timeout=60)
        late = asyncio.create_task(store.read_rows(select(text("note FROM notes"))))
        await asyncio.sleep(0)
        with limit_waiting(0.01), pytest.raises(StoreUnavailableError, match="too busy to start"):
            await store.read_rows(select(text("note FROM notes")))
        await store.write_one(
            insert(table("notes", column("note"))).values(note=1)
        )  # nobody waits for readers to write
        assert not late.done()
        await asyncio.to_thread(all_read.wait, 60)

        assert await asyncio.gather(*reading) == [1] * READERS
        assert await late == [(1,)]


async def test_a_cancelled_reader_leaves_when_its_read_has_ended(tmp_path: Path) -> None:
    async with SqlStore(f"sqlite:///{tmp_path}/store.db") as store:
        await make_table(store)
        began, may_end = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        async def read(connection: AsyncConnection) -> None:
            await connection.execute(text("SELECT count(*) FROM notes"))
            loop.call_soon_threadsafe(began.set)
            assert may_end.wait(60)

        reader = asyncio.create_task(store.read(read))
        await began.wait()
        reader.cancel()
        await asyncio.sleep(0)
        assert not reader.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await store.write_one(insert(table("notes", column("note"))).values(note=1))

        for _ in range(2 * READERS):  # none of them reads the old state
            assert await store.read_rows(select(text("note FROM notes"))) == [(1,)]


async def test_a_read_that_outlasts_its_store_leaves_no_thread(tmp_path: Path) -> None:
    began, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def read(connection: AsyncConnection) -> None:
        loop.call_soon_threadsafe(began.set)
        assert may_end.wait(60)
        await connection.execute(text("SELECT count(*) FROM notes"))

    async with SqlStore(f"sqlite:///{tmp_path}/store.db") as store:
        await make_table(store)
        reading = asyncio.create_task(store.read(read))
        await began.wait()
    may_end.set()
    await reading

    join_threads()


async def test_whoever_may_not_wait_for_long_is_told_that_another_transaction_writes(url: str) -> None:
    async with SqlStore(url) as store:
        await make_table(store)
        async with store.writing():
            with limit_waiting(0.01), pytest.raises(StoreUnavailableError, match="too busy to start"):
                await store.write_one(insert(table("notes", column("note"))).values(note=1))

        assert await count_notes(store) == 0


async def test_a_closed_database_writes_and_reads_nothing(url: str) -> None:
    async with SqlStore(url) as store:
        await make_table(store)
        assert await store.read_rows(select(text("note FROM notes"))) == []

    async def insert(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql(INSERT)

    for use in (store._database.write, store._database.read):
        with pytest.raises(StoreUnavailableError, match="it is closed"):
            await use(insert)
    join_threads()


def join_threads() -> None:
    """Wait until the threads of all stores have ended."""
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
