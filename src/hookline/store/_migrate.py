"""Migrate the tables of a database to the newest revision (alembic), once, however many processes start together.

A new SQLite database gets the newest tables at once, a tenth of the time that all migrations take. One in memory gets a
copy of the first one of its process, which takes a thirtieth of the time that its statements take. Alembic is imported
only for tables that have to change: it takes a fifth of the time of importing a store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_mock_engine,
    insert,
    select,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import CreateTable

from hookline.errors import HookUsageError
from hookline.store._database import Database, StoreVersionError, parse_address
from hookline.store._tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "NEWEST",
    "VERSION_TABLE",
    "downgrade_store",
    "known_revisions",
    "migrate",
    "migration_config",
    "read_schema_revision",
    "upgrade",
]

VERSION_TABLE = "hookline_version"
versions = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
"""The table in which alembic keeps the revision of the tables, as alembic creates it."""
NEWEST = "0020_relay_losses"
"""The revision of `hookline.store._tables`."""
OLDEST = "0004_endpoint_secrets"
"""The first revision that has a way back to it."""
FIND_TABLE = {
    "sqlite": text("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = :name"),
    "postgresql": text("SELECT to_regclass(:name) IS NOT NULL"),
}
"""Whether there is a table; SQLAlchemy's `inspect` takes a tenth of the time in which a store is opened."""
SCRIPTS = Path(__file__).with_name("_migrations")
LOCK = 0x686F6F6B6C696E65
"""Key of PostgreSQL's advisory lock that one process holds while it migrates and the others wait."""
_template_lock = Lock()


async def migrate(database: Database) -> None:
    """Migrate the tables to the newest revision, in one transaction; do nothing if they have it already.

    Args:
        database: The database. On SQLite, the write transaction itself keeps other processes out.

    Raises:
        StoreVersionError: If a newer version of hookline has migrated the database; nothing was changed.
        StoreUnavailableError: If the database cannot be reached.
    """
    if database.keeper is not None:
        copy_newest_tables(database.keeper)
        return
    await _run_migrations(database, upgrade)


async def downgrade_store(url: str, revision: str) -> None:
    """Take the tables of a store back to an earlier revision, so that an earlier version of hookline can use them.

    Stop every process that uses the store first, and make a backup: what only the later tables hold is lost. It is one
    transaction: if it fails or is cut off, nothing has changed, and it can be run again.

    Args:
        url: The address of the store, as for `SqlStore`.
        revision: The revision, such as `"0005_operation_changes"`. The oldest that can be gone back to is
            `"0004_endpoint_secrets"`.

    Raises:
        HookUsageError: If the address or the revision is invalid.
        StoreVersionError: If a newer version of hookline has migrated the database; nothing was changed.
        StoreUnavailableError: If the database cannot be reached.
    """
    known = sorted(each for each in known_revisions() if each >= OLDEST)
    if revision not in known:
        raise HookUsageError(f"A store can go back to one of the revisions {', '.join(known)}; got {revision!r:.100}.")
    database = Database(parse_address(url), durability="machine", retry_seconds=10.0, pool_size=1)
    try:
        database.check_file()
        await _run_migrations(database, partial(downgrade, revision=revision))
    finally:
        await database.aclose()


async def _run_migrations(database: Database, run: Callable[[Connection, str], None]) -> None:
    """Run migrations in one transaction, in one process at a time."""

    async def migrate_alone(connection: AsyncConnection) -> None:
        if database.dialect == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        await connection.run_sync(run, database.name)

    await database.write(migrate_alone)


def upgrade(connection: Connection, store: str) -> None:
    """Create the newest tables, or run the migrations up to them, on a connection that is in a transaction."""
    revision = read_known_schema_revision(connection, store)
    if revision == NEWEST:
        return
    if not revision and connection.dialect.name == "sqlite":
        for statement in compile_sqlite_tables():
            connection.exec_driver_sql(statement)
        connection.execute(insert(versions).values(version_num=NEWEST))
        return
    from alembic import command

    command.upgrade(migration_config(connection), "head")


@cache
def compile_sqlite_tables() -> tuple[str, ...]:
    """Return the statements that create the newest tables in SQLite; to compile them takes longer than to run them."""
    statements: list[str] = []
    compiler = create_mock_engine(
        "sqlite://", lambda each, *_: statements.append(str(each.compile(dialect=sqlite.dialect())))
    )
    metadata.create_all(compiler, checkfirst=False)
    statements.append(str(CreateTable(versions, if_not_exists=True).compile(dialect=sqlite.dialect())))
    return tuple(statements)


def copy_newest_tables(connection: sqlite3.Connection) -> None:
    """Copy the newest tables, with nothing in them, into a database in memory."""
    with _template_lock:
        make_template().backup(connection)


@cache
def make_template() -> sqlite3.Connection:
    """Make a database in memory that has the newest tables and nothing in them."""
    template = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for statement in compile_sqlite_tables():
        template.execute(statement)
    template.execute(f"INSERT INTO {VERSION_TABLE} VALUES (?)", (NEWEST,))
    return template


def downgrade(connection: Connection, store: str, revision: str) -> None:
    """Run the migrations back to a revision on a connection that is in a transaction."""
    from alembic import command

    if read_known_schema_revision(connection, store) > revision:
        command.downgrade(migration_config(connection), revision)


def read_schema_revision(connection: Connection) -> str:
    """Read the revision of the tables; `""` if there are none."""
    if not connection.execute(FIND_TABLE[connection.dialect.name], {"name": VERSION_TABLE}).scalar():
        return ""
    return connection.execute(select(versions.c.version_num)).scalar() or ""


def read_known_schema_revision(connection: Connection, store: str) -> str:
    """Read the revision of the tables; `""` if there are none.

    Raises:
        StoreVersionError: If this version of hookline does not know it.
    """
    revision = read_schema_revision(connection)
    if revision not in ("", NEWEST) and revision not in known_revisions():
        raise StoreVersionError(store, revision)
    return revision


@cache
def known_revisions() -> frozenset[str]:
    """Return all revisions that this version of hookline knows; the scripts are loaded once."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(migration_config())
    return frozenset(each.revision for each in script.walk_revisions())


def migration_config(connection: Connection | None = None) -> Config:
    """Build the alembic configuration, of migrations on a connection if one is given."""
    from alembic.config import Config

    config = Config()
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
