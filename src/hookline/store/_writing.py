"""Writing a group of commits in one transaction: who may write, and what."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError, StaleStateError, StateFormatError
from hookline.runtime import FORMAT
from hookline.store._commits import Commit
from hookline.store._decisions import link_events
from hookline.store._deliveries import insert_deliveries
from hookline.store._engine import Database
from hookline.store._rows import is_storable, storable
from hookline.store._tables import events, operations

__all__ = ["note_missing_hooks", "release", "write_group"]


class Found(NamedTuple):
    """What decides whether a commit may be written."""

    operation_id: str
    version: int
    write_id: str
    format: int
    events: int


_found = select(*(operations.c[name] for name in Found._fields))
_kept = frozenset(("operation_id", "created_at", "failed_delivery", "updated_at"))
_changed = update(operations).where(operations.c.operation_id == bindparam("its_id"))


async def write_group(database: Database, commits: Sequence[Commit]) -> list[Exception | None]:
    """Write the commits that follow on what is stored, in one transaction, and say why the others do not.

    Args:
        database: Where to.
        commits: Of different operations.

    Returns:
        For each commit `None` if it is written, now or by an earlier try, or else the error of its caller.

    Raises:
        StoreUnavailableError: If the database cannot be reached; what was written is then unknown.
        SQLAlchemyError: If it refuses them; none was written.
    """
    async with database.writing() as connection:
        found = await stored(database, connection, commits)
        outcomes = [verdict(commit, found.get(commit.operation_id)) for commit in commits]
        winners = [
            commit
            for commit, outcome in zip(commits, outcomes, strict=True)
            if outcome is None and not written(commit, found.get(commit.operation_id))
        ]
        await write(database, connection, winners)
    return outcomes


async def stored(database: Database, connection: AsyncConnection, commits: Sequence[Commit]) -> dict[str, Found]:
    """What is stored of operations; nobody else changes it until the transaction ends."""
    ids = [commit.operation_id for commit in commits]
    query = _found.where(operations.c.operation_id.in_(ids))
    if database.dialect == "postgresql":
        # In one order, so that two processes never wait for each other.
        query = query.order_by(operations.c.operation_id).with_for_update()
    return {row.operation_id: Found(*row) for row in await connection.execute(query)}


def verdict(commit: Commit, found: Found | None) -> Exception | None:
    """Why a commit may not be written; `None` if it may, or is written already."""
    if written(commit, found):
        return None
    if found is not None and found.format > FORMAT:
        return StateFormatError(commit.operation_id, found.format, FORMAT)
    if (found.version if found else None) != commit.expected_version:
        return StaleStateError(commit.operation_id, commit.expected_version, found.version if found else None)
    first, last = commit.operation["events"] - len(commit.events) + 1, found.events if found else 0
    if first != last + 1:
        return HookUsageError(
            f"Operation {commit.operation_id!r} has {last} stored events, so the next cannot be number {first}. "
            "Nothing was written."
        )
    return None


def written(commit: Commit, found: Found | None) -> bool:
    """Whether an earlier try has written the commit, although its answer was lost."""
    return found is not None and found.write_id == commit.operation["write_id"]


async def write(database: Database, connection: AsyncConnection, commits: Sequence[Commit]) -> None:
    """Write commits that may be written."""
    now = database.now_sql()
    new = sorted((c.operation for c in commits if c.expected_version is None), key=lambda row: str(row["operation_id"]))
    changed = [changes(commit.operation) for commit in commits if commit.expected_version is not None]
    if new:
        # An `EventLog` may have heard of them before; from now on they tell of themselves.
        ids = [row["operation_id"] for row in new]
        await connection.execute(delete(events).where(events.c.operation_id.in_(ids)))
        await connection.execute(insert(operations).values(created_at=now, updated_at=now), new)
    if changed:
        await connection.execute(_changed.values(updated_at=now), changed)
    rows = [row for commit in commits for row in commit.events]
    if rows:
        await connection.execute(insert(events), rows)
        await link_events(connection, rows)
    await insert_deliveries(connection, [row for commit in commits for row in commit.deliveries], now=now)


def changes(row: dict[str, Any]) -> dict[str, Any]:
    """What a later commit changes of the row of an operation."""
    return {"its_id": row["operation_id"], **{name: value for name, value in row.items() if name not in _kept}}


async def note_missing_hooks(database: Database, operation_id: str, hook_ids: Sequence[str], *, version: int) -> None:
    """Note what an operation of this version waits for; the next commit of it forgets that."""
    its = (operations.c.operation_id == operation_id) & (operations.c.version == version)
    noted = msgspec.json.encode([storable(hook_id) for hook_id in hook_ids]).decode()
    async with database.writing() as connection:
        await connection.execute(
            update(operations).where(its).values(missing_hooks=noted, updated_at=database.now_sql())
        )


async def release(database: Database, operation_id: str, worker_id: str) -> None:
    """Take a running operation from a process, if it is that one's."""
    if not is_storable(operation_id):
        return
    its = (operations.c.operation_id == operation_id) & (operations.c.owner == worker_id)
    async with database.writing() as connection:
        await connection.execute(update(operations).where(its).values(owner=None))
