"""Databases without partitions get them with all their rows, also at a second try, and can go back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, event, text

from hookline.events import HookType
from hookline.store import DeliveryFilter, DeliveryLog, SqlStore, downgrade_store
from hookline.store._database import Database, parse_address
from hookline.store._migrate import VERSION_TABLE, downgrade, migration_config
from hookline.store._partitions import DAY
from hookline.store._rows import stream_name
from hookline.webhooks import HookData, Webhook
from tests.databases import TABLES as NEWEST_TABLES
from tests.databases import Server, in_thread
from tests.store.records import entries, grow, state
from tests.store.test_deliveries import A, Table
from tests.store.test_deliveries_log import settled
from tests.store.test_migrations import differences

pytestmark = pytest.mark.anyio

BEFORE = "0006_appended_states"
LATER = ("day", "interrupt_asked_at", "interrupt_asked_by", "retry_of", "agent_version", "tags", "revision")
TABLES = ("operations", "events", "deliveries", "attempts", "executions", "execution_hooks")
FILL = """
INSERT INTO events (operation_id, number, tenant_id, type, time_unix_nano, wire)
    VALUES ('foreign', 1, '', 'beforeStep', 1, :wire);
INSERT INTO deliveries (id, operation_id, number, tenant_id, hook_id, owner_id, type, hook, endpoint, stream, payload,
        status, attempts, next_attempt_at, created_at, settled_at)
    VALUES ('msg_1', 'lives', 1, '', 'told', '', 'onComplete', :hook, :endpoint, :stream, :wire, 'delivered', 1, 1, 1, 1),
        ('msg_2', 'lives', 2, '', 'told', '', 'onComplete', :hook, :endpoint, :stream, :wire, 'dead', 1, 1, 1, 1),
        ('msg_3', 'lives', 3, '', 'told', '', 'onComplete', :hook, :endpoint, :stream, :wire, 'pending', 1, 1, 1, NULL),
        ('msg_4', 'lives', 4, '', 'told', '', 'onComplete', :hook, :endpoint, :stream, :wire, 'waiting', 0, 1, 1, NULL);
INSERT INTO attempts (delivery_id, nth, started_at, duration_ms, status_code, error, worker)
    VALUES ('msg_1', 1, 1, 1, 200, NULL, 'w'), ('msg_2', 1, 1, 1, 500, 'no', 'w'), ('msg_3', 1, 1, 1, 500, 'no', 'w');
INSERT INTO executions (id, operation_id, tenant_id, point, status, wire)
    VALUES (2048, 'lives', '', 'ToolCall', 'ok', :wire), (:soon, 'lives', '', 'ToolCall', 'ok', :wire);
INSERT INTO execution_hooks (hook_id, id, tenant_id, point, status)
    VALUES ('guard', 2048, '', 'ToolCall', 'ok'), ('guard', :soon, '', 'ToolCall', 'ok')
"""
"""Rows of all kinds: an event of an `EventLog`, deliveries of each status, an execution of a clock that was ahead."""


def database(url: str) -> Database:
    return Database(parse_address(url), durability="process", retry_seconds=10.0, pool_size=2)


async def make_old(url: str) -> None:
    """Make the tables as they were before, with rows that the code of then wrote."""
    async with SqlStore(url) as store:  # the newest tables, to write operations with, and then the older ones
        await grow(store, "lives", commits=2, each=3)
        await grow(store, "ended", commits=1, each=2, status="done")
        async with store.writing() as connection:
            await connection.run_sync(downgrade, url, BEFORE)
            values: dict[str, object] = {
                "wire": entries("foreign", 1, 1)[0].wire,
                "hook": b'{"id":"told","type":"onComplete","webhook":{"url":"%s"}}' % A.encode(),
                "endpoint": A,
                "stream": stream_name("lives", A),
                "soon": int((time.time() + 5 * DAY) * 1e6) << 11,
            }
            for each in FILL.split(";"):
                used = {name: value for name, value in values.items() if f":{name}" in each}
                await connection.execute(text(each), used)


@pytest.fixture(scope="module")
def copy_old(
    postgresql: Server, sqlite_tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Copies the database of a kind that `make_old` has made; the function returns its name or its file."""
    folder = tmp_path_factory.mktemp("old")
    copies: list[str] = []

    @cache
    def made(dialect: str) -> str:
        if dialect == "sqlite":
            file = str(shutil.copyfile(sqlite_tables, folder / "old.db"))
            in_thread(make_old(f"sqlite:///{file}"))
            return file
        name = postgresql.copy(NEWEST_TABLES)
        copies.append(name)
        in_thread(make_old(postgresql.uri_of(name)))
        return name

    def copy(dialect: str) -> str:
        if dialect == "sqlite":
            return f"sqlite:///{shutil.copyfile(made(dialect), folder / f'{len(list(folder.iterdir()))}.db')}"
        copies.append(postgresql.copy(made(dialect)))
        return postgresql.uri_of(copies[-1])

    yield copy
    for each in copies:
        postgresql.drop(each)


@pytest.fixture
def old_url(copy_old: Callable[[str], str], dialect: str) -> str:
    """A database of each kind in turn that `make_old` has made."""
    return copy_old(dialect)


async def read_all(url: str) -> dict[str, list[dict[str, Any]]]:
    """All rows, without the columns that came with the partitions or later."""
    opened = database(url)
    found = {}
    async with opened.reading() as connection:
        for table in TABLES:
            rows = await connection.execute(text(f"SELECT * FROM {table}"))
            found[table] = sorted(
                ({name: value for name, value in row._mapping.items() if name not in LATER} for row in rows), key=repr
            )
    await opened.aclose()
    return found


async def test_all_rows_stay_and_runs_and_deliveries_go_on(old_url: str) -> None:
    before = await read_all(old_url)

    async with SqlStore(old_url) as store:
        assert await read_all(old_url) == before
        async with store.writing() as connection:
            assert await connection.run_sync(differences) == []
        assert [entry.number for entry in await store.events_of("lives")] == [1, 2, 3, 4, 5, 6]
        assert [entry.number for entry in await store.events_of("foreign")] == [1]
        await grow(store, "lives", commits=1, each=1)
        assert [entry.number for entry in await store.events_of("lives")] == [1, 2, 3, 4, 5, 6, 7]
        table, log = Table(store), DeliveryLog(store)
        table.now = await store.now()
        await settled(table, "delivered", "delivered")
        assert await log.counts() == {"waiting": 0, "pending": 0, "delivered": 3, "dead": 1}
        assert await log.replay(DeliveryFilter(operation_id="lives")) == 4
        table.now = await store.now()
        await settled(table, "delivered", "delivered", "delivered", "dead")
        assert [each.nth for each in await log.attempts("msg_2")] == [1, 1]
        assert await store.prune(-60) == 1
        assert await log.prune(-60, dead_too=True) == 4
        assert (await read_all(old_url))["attempts"] == []


async def test_rows_from_before_are_pruned(old_url: str) -> None:
    async with SqlStore(old_url) as store:
        assert await DeliveryLog(store).prune(7 * DAY) == 1
        assert await DeliveryLog(store).prune(7 * DAY, dead_too=True) == 1
        async with store.writing() as connection:
            await connection.execute(text("UPDATE operations SET updated_at = updated_at - 864000"))
        assert await store.prune(7 * DAY) == 1

    assert [row["operation_id"] for row in (await read_all(old_url))["operations"]] == ["lives"]


async def test_what_was_stored_with_partitions_is_all_there_without_them(old_url: str) -> None:
    async with SqlStore(old_url) as store:
        fields = {"hooks": [HookData(id="told", type=HookType.BEFORE_STEP, webhook=Webhook(url=A))]}
        await store.commit(state("new", events=3, **fields), expected_version=None, entries=entries("new", 1, 3))
        table = Table(store)
        table.now = await store.now()
        await settled(table, "delivered", "dead")
    before = await read_all(old_url)

    await downgrade_store(old_url, BEFORE)
    opened = database(old_url)
    async with opened.reading() as connection:
        versions = (await connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))).scalars().all()
    await opened.aclose()

    assert versions == [BEFORE]
    assert await read_all(old_url) == before
    async with SqlStore(old_url) as store:
        assert await read_all(old_url) == before
        await grow(store, "new", commits=1, each=1)
        assert len(await store.events_of("new")) == 4


@pytest.mark.parametrize("table", ["events", "attempts", "execution_hooks"])
async def test_a_migration_that_is_cut_off_leaves_everything_and_runs_again(
    copy_old: Callable[[str], str], table: str
) -> None:
    old_url = copy_old("postgresql")
    before = await read_all(old_url)

    def cut_off(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(f"CREATE TABLE {table}_default"):
            raise KeyboardInterrupt

    def upgrade(connection: Connection) -> None:
        event.listen(connection, "before_cursor_execute", cut_off)
        command.upgrade(migration_config(connection), "head")

    opened = database(old_url)
    with pytest.raises(KeyboardInterrupt):
        async with opened.writing() as connection:
            await connection.run_sync(upgrade)
    await opened.aclose()
    assert await read_all(old_url) == before

    async with SqlStore(old_url) as store, store.writing() as connection:
        assert await connection.run_sync(differences) == []
    assert await read_all(old_url) == before
