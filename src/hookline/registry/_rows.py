"""Definitions in the database: what has changed since a revision, and one transaction of changes at a time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, KeysView, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row, delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.registry._definition import POINTS, HookDefinition, check_definition
from hookline.store import SqlStore, audit, definitions, revisions

__all__ = ["Change", "Changed", "Key", "changed_since", "changing"]

logger = logging.getLogger("hookline")

Key = tuple[str, str]
"""Tenant and id."""
COUNTER = "definitions"
SWITCH = "switch"
"""Source of a row that only says whether a definition of a file is enabled."""

# Whoever counts up holds the row until the transaction ends, so that changes come one after the other: revisions are
# seen in their order, and of two that would exceed a quota the second one sees the first.
NEXT_REVISION = text(
    "INSERT INTO revisions (name, revision) VALUES (:name, 1) "
    "ON CONFLICT (name) DO UPDATE SET revision = revisions.revision + 1 RETURNING revision"
)
_decode = msgspec.json.Decoder(HookDefinition).decode


class Switch(NamedTuple):
    """Whether a definition of a file is enabled, since somebody has said so."""

    enabled: bool
    revision: int
    updated_at: float


class Changed(NamedTuple):
    """What has changed since a revision.

    Attributes:
        revision: The newest.
        rows: What is new or different.
        keys: What there is, where something is gone.
    """

    revision: int
    rows: Mapping[Key, HookDefinition | Switch]
    keys: frozenset[Key] | None


async def changed_since(store: SqlStore, revision: int, known: KeysView[Key]) -> Changed | None:
    """What has changed since a revision; `None` if nothing has.

    Args:
        store: The database.
        revision: What the caller has seen.
        known: What the caller holds.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.reading() as connection:
        # The revision first: what comes in between is found once more, and never missed.
        newest = (
            await connection.execute(select(revisions.c.revision).where(revisions.c.name == COUNTER))
        ).scalar() or 0
        if newest == revision:
            return None
        # A revision that went back is of another database, restored from a copy.
        since = revision if newest > revision else 0
        found = await connection.execute(select(definitions).where(definitions.c.revision > since))
        rows = {(row.tenant_id, row.id): read_row(row) for row in found}
        count = (await connection.execute(select(func.count()).select_from(definitions))).scalar_one()
        keys = None
        if count != len(known) + sum(key not in known for key in rows) or not since:
            found = await connection.execute(select(definitions.c.tenant_id, definitions.c.id))
            keys = frozenset((row.tenant_id, row.id) for row in found)
    return Changed(newest, {key: value for key, value in rows.items() if value is not None}, keys)


def read_row(row: Row[Any]) -> HookDefinition | Switch | None:
    """What a row says. One that cannot be read, as a newer version has written it, still stands in the way."""
    if row.source == SWITCH:
        return Switch(row.enabled, row.revision, row.updated_at)
    try:
        definition = check_definition(_decode(row.definition))
    except Exception as error:  # one row may not keep all others from being seen
        logger.error("Hook definition %r of tenant %r cannot be read here: %s", row.id, row.tenant_id, error)
        if row.point not in POINTS:
            return None
        problem = "it was written by another version of hookline, which knows more than this one"
        definition = HookDefinition(
            name=row.name, point=row.point, priority=row.priority, handler="unreadable", problem=problem
        )
    return msgspec.structs.replace(
        definition,
        id=row.id,
        tenant_id=row.tenant_id,
        enabled=row.enabled,
        source=row.source,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


class Change:
    """A transaction that changes definitions, and nobody else does meanwhile.

    Attributes:
        revision: Of everything that it changes.
        now: When, by the clock of the database.
    """

    def __init__(self, connection: AsyncConnection, actor: str, revision: int, now: float) -> None:
        self._connection = connection
        self._actor = actor
        self.revision, self.now = revision, now

    async def of_tenant(self, tenant_id: str) -> dict[str, HookDefinition]:
        """The stored definitions of a tenant, by id."""
        query = select(definitions).where(definitions.c.tenant_id == tenant_id, definitions.c.source != SWITCH)
        found = {row.id: read_row(row) for row in await self._connection.execute(query)}
        return {id: each for id, each in found.items() if isinstance(each, HookDefinition)}  # noqa: A001

    async def tenants_of(self, id: str) -> list[str]:  # noqa: A002
        """The tenants that have a stored definition of that id."""
        query = select(definitions.c.tenant_id).where(definitions.c.id == id, definitions.c.source != SWITCH)
        return list((await self._connection.execute(query)).scalars())

    async def switched(self, definition: HookDefinition) -> HookDefinition:
        """A definition of a file as it is switched by now."""
        row = (await self._connection.execute(select(definitions).where(_its(definition)))).one_or_none()
        if row is None:
            return definition
        return msgspec.structs.replace(definition, enabled=row.enabled, revision=row.revision)

    async def put(self, definition: HookDefinition, action: str, *, old: HookDefinition | None) -> HookDefinition:
        """Store a definition.

        Args:
            definition: As it is to be from now on.
            action: What was done, for the audit.
            old: As it was.

        Returns:
            The definition as it is stored.
        """
        stored = msgspec.structs.replace(
            definition,
            source="api",
            revision=self.revision,
            created_at=old.created_at if old is not None else self.now,
            updated_at=self.now,
            problem="",
        )
        await self._write(stored, msgspec.json.encode(stored), is_new=old is None)
        await self._audit(action, stored, changed=_changed(old, stored))
        return stored

    async def switch(self, definition: HookDefinition) -> HookDefinition:
        """Store whether a definition of a file is enabled, and no more of it."""
        kept = msgspec.structs.replace(definition, source=SWITCH, revision=self.revision, updated_at=self.now)
        await self._delete(kept)
        await self._write(kept, b"", is_new=True)
        await self._audit("definition.enable" if kept.enabled else "definition.disable", kept, changed=["enabled"])
        return msgspec.structs.replace(kept, source=definition.source)

    async def remove(self, definition: HookDefinition) -> None:
        """Delete a definition."""
        await self._delete(definition)
        await self._audit("definition.delete", definition, changed=[])

    async def _write(self, definition: HookDefinition, encoded: bytes, *, is_new: bool) -> None:
        values = {
            "name": definition.name,
            "point": definition.point,
            "enabled": definition.enabled,
            "priority": definition.priority,
            "definition": encoded,
            "source": definition.source,
            "revision": definition.revision,
            "created_at": definition.created_at,
            "updated_at": definition.updated_at,
        }
        if is_new:
            key = {"tenant_id": definition.tenant_id, "id": definition.id}
            await self._connection.execute(insert(definitions).values(**key, **values))
        else:
            await self._connection.execute(update(definitions).where(_its(definition)).values(**values))

    async def _delete(self, definition: HookDefinition) -> None:
        await self._connection.execute(delete(definitions).where(_its(definition)))

    async def _audit(self, action: str, definition: HookDefinition, *, changed: list[str]) -> None:
        # Names of what has changed, and not what it says: an address or a configuration may hold what is secret.
        detail = {
            "name": definition.name,
            "point": definition.point,
            "revision": self.revision,
            "changed": changed,
            "enabled": definition.enabled,
        }
        await self._connection.execute(
            insert(audit).values(
                tenant_id=definition.tenant_id,
                actor=self._actor,
                action=action,
                target=definition.id,
                detail=msgspec.json.encode(detail),
                created_at=self.now,
            )
        )


@asynccontextmanager
async def changing(store: SqlStore, actor: str) -> AsyncIterator[Change]:
    """A transaction of changes: all of them are written, or none.

    Args:
        store: The database.
        actor: Who makes them.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.writing() as connection:
        revision = (await connection.execute(NEXT_REVISION, {"name": COUNTER})).scalar_one()
        now = (await connection.execute(select(store.now_sql()))).scalar_one()
        yield Change(connection, actor.replace("\x00", "")[:400], revision, float(now))


def _its(definition: HookDefinition) -> Any:
    return (definitions.c.tenant_id == definition.tenant_id) & (definitions.c.id == definition.id)


def _changed(old: HookDefinition | None, new: HookDefinition) -> list[str]:
    if old is None:
        return []
    its = ("revision", "created_at", "updated_at", "source", "problem")
    return [name for name in new.__struct_fields__ if name not in its and getattr(old, name) != getattr(new, name)]
