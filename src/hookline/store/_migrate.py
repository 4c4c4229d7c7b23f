"""Bringing the tables of a database to what this version of hookline knows, once, however many processes start."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from hookline.store._database import Database, StoreVersionError

__all__ = ["VERSION_TABLE", "migrate"]

VERSION_TABLE = "hookline_version"
SCRIPTS = Path(__file__).with_name("_migrations")
LOCK = 0x686F6F6B6C696E65
"""Names the lock in PostgreSQL under which one process migrates and the others wait."""


async def migrate(database: Database) -> None:
    """Bring the tables to the newest revision, in one transaction; do nothing if they are of it.

    Args:
        database: The database. On SQLite the transaction itself keeps other processes out.

    Raises:
        StoreVersionError: If a newer version of hookline has migrated it; nothing was changed.
        StoreUnavailableError: If it cannot be reached.
    """
    async with database.writing() as connection:
        if database.dialect == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        await connection.run_sync(upgrade, database.name)


def upgrade(connection: Connection, store: str) -> None:
    """Migrate with a connection that is in a transaction."""
    found = set(MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads())
    revisions, heads = known_revisions()
    if unknown := found - revisions:
        raise StoreVersionError(store, ", ".join(sorted(unknown)))
    if found != heads:
        config = migration_config()
        config.attributes["connection"] = connection
        config.attributes["version_table"] = VERSION_TABLE
        command.upgrade(config, "head")


@cache
def known_revisions() -> tuple[frozenset[str], frozenset[str]]:
    """List the revisions of this version of hookline, and the newest; the scripts are loaded once per process."""
    script = ScriptDirectory.from_config(migration_config())
    return frozenset(each.revision for each in script.walk_revisions()), frozenset(script.get_heads())


def migration_config() -> Config:
    """Make the configuration that finds the scripts."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
