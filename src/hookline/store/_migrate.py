"""Migrate the tables of a database to the newest revision (alembic), once, however many processes start together."""

import asyncio
import sys
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from hookline.store._database import Database, StoreVersionError, parse_address

__all__ = ["VERSION_TABLE", "connected_config", "downgrade", "migrate"]

VERSION_TABLE = "hookline_version"
SCRIPTS = Path(__file__).with_name("_migrations")
LOCK = 0x686F6F6B6C696E65
"""Key of PostgreSQL's advisory lock that one process holds while it migrates and the others wait."""


async def migrate(database: Database) -> None:
    """Migrate the tables to the newest revision, in one transaction; do nothing if they have it already.

    Args:
        database: The database. On SQLite, the write transaction itself keeps other processes out.

    Raises:
        StoreVersionError: If a newer version of hookline has migrated the database; nothing was changed.
        StoreUnavailableError: If the database cannot be reached.
    """
    async with database.writing() as connection:
        if database.dialect == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        await connection.run_sync(upgrade, database.name)


def upgrade(connection: Connection, store: str) -> None:
    """Run the migrations on a connection that is in a transaction."""
    found = set(MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads())
    revisions, heads = known_revisions()
    if unknown := found - revisions:
        raise StoreVersionError(store, ", ".join(sorted(unknown)))
    if found != heads:
        command.upgrade(connected_config(connection), "head")


def downgrade(connection: Connection, revision: str) -> None:
    """Take back the migrations after a revision, on a connection that is in a transaction.

    Raises:
        NotImplementedError: If one of them cannot be taken back.
    """
    command.downgrade(connected_config(connection), revision)


def connected_config(connection: Connection) -> Config:
    """Build the alembic configuration that migrates on a connection."""
    config = migration_config()
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config


@cache
def known_revisions() -> tuple[frozenset[str], frozenset[str]]:
    """Return all revisions that this version of hookline knows, and the newest; the scripts are loaded once."""
    script = ScriptDirectory.from_config(migration_config())
    return frozenset(each.revision for each in script.walk_revisions()), frozenset(script.get_heads())


def migration_config() -> Config:
    """Build the alembic configuration."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


async def take_back(url: str, revision: str) -> None:
    """Take back the migrations of a database after a revision, in one transaction."""
    database = Database(parse_address(url), durability="machine", retry_seconds=10.0, pool_size=1)
    try:
        async with database.writing() as connection:
            if database.dialect == "postgresql":
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
            await connection.run_sync(downgrade, revision)
    finally:
        await database.aclose()


if __name__ == "__main__":
    asyncio.run(take_back(*sys.argv[1:]))
