"""Migrate the tables of a database to the newest revision (alembic), once, however many processes start together."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from hookline.errors import HookUsageError
from hookline.store._database import Database, StoreVersionError, parse_address

__all__ = ["VERSION_TABLE", "downgrade_store", "migrate", "migration_config"]

VERSION_TABLE = "hookline_version"
OLDEST = "0004_endpoint_secrets"
"""The first revision that has a way back to it."""
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
    known = sorted(each for each in known_revisions()[0] if each >= OLDEST)
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
    async with database.writing() as connection:
        if database.dialect == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        await connection.run_sync(run, database.name)


def upgrade(connection: Connection, store: str) -> None:
    """Run the migrations up to the newest on a connection that is in a transaction."""
    if read_revisions(connection, store) != known_revisions()[1]:
        command.upgrade(migration_config(connection), "head")


def downgrade(connection: Connection, store: str, revision: str) -> None:
    """Run the migrations back to a revision on a connection that is in a transaction."""
    found = read_revisions(connection, store)
    if found and min(found) > revision:
        command.downgrade(migration_config(connection), revision)


def read_revisions(connection: Connection, store: str) -> set[str]:
    """Read the revision of the tables; nothing if there are none.

    Raises:
        StoreVersionError: If this version of hookline does not know it.
    """
    found = set(MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads())
    if unknown := found - known_revisions()[0]:
        raise StoreVersionError(store, ", ".join(sorted(unknown)))
    return found


@cache
def known_revisions() -> tuple[frozenset[str], frozenset[str]]:
    """Return all revisions that this version of hookline knows, and the newest; the scripts are loaded once."""
    script = ScriptDirectory.from_config(migration_config())
    return frozenset(each.revision for each in script.walk_revisions()), frozenset(script.get_heads())


def migration_config(connection: Connection | None = None) -> Config:
    """Build the alembic configuration, of migrations on a connection if one is given."""
    config = Config()
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
