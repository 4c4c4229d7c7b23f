"""The tables are made once, whoever starts first; what a newer version has made of them is left alone."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.resources import files
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore, StoreVersionError
from hookline.store._database import Database, parse_address
from hookline.store._migrate import NEWEST, VERSION_TABLE, migration_config
from hookline.store._tables import metadata
from tests.programs import run_program

from .records import entries, state

pytestmark = pytest.mark.anyio


@pytest.fixture
def new_database_url(new_empty_url: Callable[[str], str]) -> Callable[[str], str]:
    """Databases here have no tables yet."""
    return new_empty_url


PARTITIONS = "SELECT relname FROM pg_class WHERE relispartition"


def differences(connection: Connection) -> list[object]:
    on_postgresql = connection.dialect.name == "postgresql"
    partitions = set(connection.execute(text(PARTITIONS)).scalars()) if on_postgresql else set()

    def is_compared(name: str | None, kind: str, parents: object) -> bool:
        # PostgreSQL wants the day in every unique constraint of a partitioned table. Some indexes are SQLite's alone.
        others = (*partitions, "uq_deliveries_id", "ix_operations_ended", "ix_operations_ended_of_tenant")
        return not (on_postgresql and name in others)

    options = {
        "version_table": VERSION_TABLE,
        "target_metadata": metadata,
        "compare_type": True,
        "include_name": is_compared,
        "include_object": lambda _, name, kind, *others: is_compared(name, kind, None),
    }
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


async def run_migrations(url: str) -> None:
    """Make the tables by all migrations, one after the other, as in a store that exists since the first version."""
    database = Database(parse_address(url), durability="process", retry_seconds=10.0, pool_size=1)
    async with database.writing() as connection:
        await connection.run_sync(lambda sync: command.upgrade(migration_config(sync), "head"))
    await database.aclose()


async def test_the_migrations_make_the_tables_that_the_code_knows(database_url: str) -> None:
    await run_migrations(database_url)

    async with SqlStore(database_url) as store, store.writing() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_new_store_has_the_tables_that_the_code_knows(database_url: str) -> None:
    async with SqlStore(database_url) as store, store.writing() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_new_file_has_the_same_tables_as_one_that_was_migrated(
    new_database_url: Callable[[str], str],
) -> None:
    new, migrated = new_database_url("sqlite"), new_database_url("sqlite")
    await run_migrations(migrated)

    async with SqlStore(new), SqlStore(migrated):
        assert read_definitions(new) == read_definitions(migrated)


def read_definitions(url: str) -> set[tuple[str, frozenset[str]]]:
    """Read the name and the lines of each table and index of an SQLite file; a column that came later is at the end."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {
        (name, frozenset(line.strip(" \t,") for line in re.sub(r'"|, (?=\S+ )', "\n", sql).splitlines()))
        for name, sql in found
    }


def test_the_newest_revision_is_that_of_the_last_migration() -> None:
    assert ScriptDirectory.from_config(migration_config()).get_heads() == [NEWEST]


async def test_a_second_start_changes_nothing_and_keeps_what_is_there(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        await store.commit(state(events=2), expected_version=None, entries=entries("op", 1, 2))

    async with SqlStore(database_url) as store:
        assert await store.load("op") == state(events=2)
        assert await store.events_of("op") == entries("op", 1, 2)


async def test_several_processes_may_start_at_once_on_an_empty_database(database_url: str, tmp_path: Path) -> None:
    problems, opener = tmp_path / "problems", "tests.store.opener"
    async with AsyncExitStack() as stack:
        programs = [await stack.enter_async_context(run_program(opener, database_url, problems)) for _ in range(3)]
        for each in programs:
            assert await each.read_line() == "ready"
        for each in programs:
            each.write_line("go")
        told = [(await each.read_line()).split() for each in programs]
        assert [await each.wait() for each in programs] == [0, 0, 0]

    assert problems.read_text() == ""
    assert len({worker_id for worker_id, *_ in told}) == 3
    if database_url.startswith("sqlite"):  # where the tables are created without alembic
        assert [words for _, *words in told] == [["without", "alembic"]] * 3
    async with SqlStore(database_url) as store, store.writing() as connection:
        assert (await connection.execute(text(f"SELECT count(*) FROM {VERSION_TABLE}"))).scalar_one() == 1
        assert await connection.run_sync(differences) == []


async def test_many_stores_may_start_at_once_in_one_process(database_url: str) -> None:
    stores = [SqlStore(database_url, retry_seconds=30, pool_size=2) for _ in range(10)]

    await asyncio.gather(*(store.__aenter__() for store in stores))

    await asyncio.gather(*(store.commit(state(store.worker_id), expected_version=None, entries=()) for store in stores))
    assert len((await stores[0].operations()).items) == 10
    await asyncio.gather(*(store.aclose() for store in stores))


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(database_url: str) -> None:
    async with SqlStore(database_url) as store, store.writing() as connection:
        await connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        await connection.execute(text("DROP TABLE audit"))

    newer = SqlStore(database_url)
    with pytest.raises(StoreVersionError, match=r"'9999'.*Update hookline") as caught:
        await newer.__aenter__()

    assert isinstance(caught.value, StoreUnavailableError)
    assert caught.value.found == "9999"
    await leave_alone(database_url)


async def leave_alone(database_url: str) -> None:
    store = SqlStore(database_url)
    async with store._database.reading() as connection:
        names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
        found = (await connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))).scalar_one()
    await store._database.aclose()
    assert "audit" not in names
    assert found == "9999"


async def test_a_migration_that_fails_leaves_nothing_behind(database_url: str) -> None:
    store = SqlStore(database_url)
    async with store._database.writing() as connection:
        # The last table of the first migration, so that all others have been made by then.
        await connection.execute(text("CREATE TABLE idempotency (something INTEGER)"))

    with pytest.raises(Exception, match="idempotency"):
        await store.__aenter__()

    again = SqlStore(database_url)
    async with again._database.reading() as connection:
        assert await connection.run_sync(lambda sync: inspect(sync).get_table_names()) == ["idempotency"]
    await again._database.aclose()


def test_the_migrations_are_part_of_the_package() -> None:
    folder = files("hookline.store") / "_migrations"

    assert (folder / "env.py").is_file()
    assert (folder / "versions" / "first_tables.py").is_file()


async def test_a_store_shares_its_database_with_other_tables(
    new_database_url: Callable[[str], str], dialect: str
) -> None:
    url = new_database_url(dialect)
    store = SqlStore(url)
    async with store._database.writing() as connection:
        await connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
        await connection.execute(text("INSERT INTO alembic_version VALUES ('of somebody else')"))

    async with store, store.reading() as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar_one() == (
            "of somebody else"
        )
