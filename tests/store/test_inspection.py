"""A database is looked at without creating, migrating or writing anything in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import inspect, text

from hookline.store import SqlStore, holds_store, inspect_store
from hookline.store._database import Database, parse_address
from hookline.store._migrate import known_revisions

pytestmark = pytest.mark.anyio


@pytest.fixture
def new_database_url(new_empty_url: Callable[[str], str]) -> Callable[[str], str]:
    """Databases here have no tables yet."""
    return new_empty_url


async def run_sql(url: str, *statements: str) -> list[str]:
    """Run statements on a database as another program would; the names of its tables then."""
    database = Database(parse_address(url), durability="machine", retry_seconds=5, pool_size=1)
    try:
        async with database.writing() as connection:
            for each in statements:
                await connection.execute(text(each))
            return await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    finally:
        await database.aclose()


async def test_a_database_without_a_store_stays_without_one(database_url: str) -> None:
    await run_sql(database_url, "CREATE TABLE notes (line text)")

    found = await inspect_store(database_url)

    assert (found.schema, found.revision) == ("missing", "")
    assert not await holds_store(database_url)
    assert await run_sql(database_url) == ["notes"]


async def test_the_processes_that_have_a_store_open_are_counted(database_url: str) -> None:
    async with SqlStore(database_url), SqlStore(database_url):
        assert await holds_store(database_url)
        found = await inspect_store(database_url)

    assert (found.schema, found.processes, found.orphans) == ("current", 2, 0)
    assert abs(found.clock_ahead_seconds) < 60
    assert (await inspect_store(database_url)).processes == 0


@pytest.mark.parametrize(("revision", "schema"), [("9999_later", "newer"), (min(known_revisions()), "old")])
async def test_tables_of_another_version_are_known_as_such(database_url: str, revision: str, schema: str) -> None:
    async with SqlStore(database_url):
        pass
    await run_sql(database_url, f"UPDATE hookline_version SET version_num = '{revision}'")

    found = await inspect_store(database_url)

    assert (found.schema, found.revision) == (schema, revision)
    assert await holds_store(database_url)
