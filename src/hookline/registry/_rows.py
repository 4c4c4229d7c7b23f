"""Definitions in the database: read the changes since a revision, and change definitions in a transaction."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, KeysView, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.registry._definition import APPLIED, POINTS, HookDefinition, check_definition
from hookline.registry._fencing import check_members
from hookline.registry._revisions import (
    RevisionAction,
    encode_definition,
    find_revised_tenants,
    read_stored_revision,
    write_revision,
)
from hookline.store import (
    DEFINITIONS,
    SqlStore,
    definition_fences,
    definitions,
    insert_into,
    raise_revision,
    read_clock,
    read_revision,
    replace_unstorable,
    write_audit,
)

__all__ = ["ChangeTransaction", "DefinitionChanges", "DefinitionRows", "Key", "open_change", "read_changes"]

logger = logging.getLogger("hookline")

Key = tuple[str, str]
"""Tenant and id of a definition."""
COUNTER = "definitions"
SWITCH = "switch"
"""Value of `source` in a row that only stores whether a definition of a file is enabled."""
LONGEST_SOURCE = 400

TICK = 1e-6
"""Seconds between the times of creation of two definitions of one transaction, whose order is that of their hooks."""

_decode = msgspec.json.Decoder(HookDefinition).decode


class FileSwitch(NamedTuple):
    """The stored `enabled` switch of a definition that stands in a file."""

    enabled: bool
    revision: int
    updated_at: float


class DefinitionChanges(NamedTuple):
    """Changes of the stored definitions since a revision.

    Attributes:
        revision: The newest revision.
        rows: New and changed definitions.
        keys: The keys of all stored definitions, if some were deleted; else `None`.
        fenced: The revision of the last fenced change of each definition that has a new one.
    """

    revision: int
    rows: Mapping[Key, HookDefinition | FileSwitch]
    keys: frozenset[Key] | None
    fenced: Mapping[Key, int]


async def read_changes(store: SqlStore, revision: int, known: KeysView[Key]) -> DefinitionChanges | None:
    """Read the changes of definitions since a revision; `None` if there are none.

    Args:
        store: The store of the definitions.
        revision: The newest revision that the caller has seen.
        known: The keys of the definitions that the caller knows.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """

    async def read(connection: AsyncConnection) -> DefinitionChanges | None:
        # The revision first: a change between the two queries is then read twice, and never missed.
        newest = await read_revision(connection, COUNTER)
        if newest == revision:
            return None
        # A lower revision means that the database was restored from a backup.
        since = revision if newest > revision else 0
        found = await connection.execute(select(definitions).where(definitions.c.revision > since))
        rows = {(row.tenant_id, row.id): decode_row(row) for row in found}
        count = (await connection.execute(select(func.count()).select_from(definitions))).scalar_one()
        keys = None
        if count != len(known) + sum(key not in known for key in rows) or not since:
            found = await connection.execute(select(definitions.c.tenant_id, definitions.c.id))
            keys = frozenset((row.tenant_id, row.id) for row in found)
        found = await connection.execute(select(definition_fences).where(definition_fences.c.revision > since))
        fenced = {(row.tenant_id, row.id): row.revision for row in found}
        known_rows = {key: value for key, value in rows.items() if value is not None}
        return DefinitionChanges(newest, known_rows, keys, fenced)

    return await store.read(read)


def decode_row(row: Row[Any]) -> HookDefinition | FileSwitch | None:
    """Decode a row. An unreadable one becomes a definition with a `problem`, so that its interceptor fails closed."""
    if row.source == SWITCH:
        return FileSwitch(row.enabled, row.revision, row.updated_at)
    try:
        definition = check_definition(_decode(row.definition))
    except Exception as error:  # one bad row must not hide all others
        logger.error("Hook definition %r of tenant %r cannot be read here: %s", row.id, row.tenant_id, error)
        if row.point not in POINTS:
            return None
        problem = "it was written by a newer version of hookline; update hookline here"
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


class DefinitionRows:
    """Reads the stored definitions of a database as they are now.

    Attributes:
        connection: The connection of the transaction.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def read_tenant(self, tenant_id: str) -> dict[str, HookDefinition]:
        """Read the stored definitions of a tenant, by id."""
        query = select(definitions).where(definitions.c.tenant_id == tenant_id, definitions.c.source != SWITCH)
        found = {row.id: decode_row(row) for row in await self.connection.execute(query)}
        return {id: each for id, each in found.items() if isinstance(each, HookDefinition)}  # noqa: A001

    async def find_tenants(self, id: str) -> list[str]:  # noqa: A002
        """Find the tenants that have a stored definition of that id."""
        query = select(definitions.c.tenant_id).where(definitions.c.id == id, definitions.c.source != SWITCH)
        return list((await self.connection.execute(query)).scalars())


class ChangeTransaction(DefinitionRows):
    """A transaction that changes definitions. Only one runs at a time.

    Attributes:
        revision: The revision of all definitions that it changes.
        now: The time of the database, in unix seconds.
        fence: Whether its changes take effect in operations that are running.
    """

    def __init__(
        self, connection: AsyncConnection, actor: str, revision: int, now: float, file: str, *, fence: bool
    ) -> None:
        super().__init__(connection)
        self._actor = actor
        self._file = replace_unstorable(file)
        # The end of a long path names the file.
        self._source = f"{APPLIED}{self._file[len(APPLIED) - LONGEST_SOURCE :]}" if file else "api"
        self.fence = fence
        self._created = 0
        self.revision, self.now = revision, now

    async def find_revised_tenants(self, id: str) -> list[str]:  # noqa: A002
        """Find the tenants that have revisions of a definition, also of one that was deleted."""
        return await find_revised_tenants(self.connection, id)

    async def read_revision(self, tenant_id: str, id: str, revision: int) -> HookDefinition | None:  # noqa: A002
        """Read a definition as it was after a revision; `None` if that is not kept."""
        return await read_stored_revision(self.connection, tenant_id, id, revision)

    async def apply_switch(self, definition: HookDefinition) -> HookDefinition:
        """Return a definition of a file with its stored `enabled` switch applied."""
        row = (await self.connection.execute(select(definitions).where(_same_row(definition)))).one_or_none()
        if row is None:
            return definition
        return msgspec.structs.replace(definition, enabled=row.enabled, revision=row.revision)

    async def put(
        self,
        definition: HookDefinition,
        action: RevisionAction,
        *,
        old: HookDefinition | None,
        restored: int | None = None,
        why: str = "",
    ) -> HookDefinition:
        """Store a definition and its new revision.

        Args:
            definition: The new definition.
            action: The action for the revision and the audit log.
            old: The stored definition that it replaces, if there is one.
            restored: The revision that it was taken from.
            why: Why it is changed, for the audit log, if no person has changed it.

        Returns:
            The definition as it is stored.
        """
        created_at = self.now + self._created * TICK if old is None else old.created_at
        self._created += old is None
        stored = msgspec.structs.replace(
            definition,
            source=self._source,
            revision=self.revision,
            created_at=created_at,
            updated_at=self.now,
            problem="",
        )
        await self._write(stored, encode_definition(stored), is_new=old is None)
        await self._raise_fence(stored)
        await self._revise(stored, action, restored=restored)
        await self._audit(f"definition.{action}", stored, changed=_list_changed_fields(old, stored), why=why)
        return stored

    async def switch(self, definition: HookDefinition) -> HookDefinition:
        """Store the `enabled` switch of a definition that stands in a file."""
        kept = msgspec.structs.replace(definition, source=SWITCH, revision=self.revision, updated_at=self.now)
        await self._delete(kept)
        await self._write(kept, b"", is_new=True)
        await self._raise_fence(kept)
        await self._audit("definition.enable" if kept.enabled else "definition.disable", kept, changed=["enabled"])
        return msgspec.structs.replace(kept, source=definition.source)

    async def remove(self, definition: HookDefinition) -> None:
        """Delete a definition. Its revisions stay, so that it can be brought back."""
        await self._delete(definition)
        await self._raise_fence(definition)
        await self._revise(definition, "delete")
        await self._audit("definition.delete", definition, changed=[])

    async def _revise(self, definition: HookDefinition, action: RevisionAction, *, restored: int | None = None) -> None:
        revision, now = self.revision, self.now
        await write_revision(
            self.connection, definition, action, actor=self._actor, revision=revision, now=now, restored=restored
        )

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
            await self.connection.execute(insert(definitions).values(**key, **values))
        else:
            await self.connection.execute(update(definitions).where(_same_row(definition)).values(**values))

    async def _raise_fence(self, definition: HookDefinition) -> None:
        """Note the revision from which on calls are to be judged, if this is a fenced change."""
        if self.fence:
            key = {"tenant_id": definition.tenant_id, "id": definition.id}
            row = insert_into(self.connection, definition_fences).values(**key, revision=self.revision)
            changed = row.on_conflict_do_update(index_elements=list(key), set_={"revision": self.revision})
            await self.connection.execute(changed)

    async def _delete(self, definition: HookDefinition) -> None:
        await self.connection.execute(delete(definitions).where(_same_row(definition)))

    async def _audit(self, action: str, definition: HookDefinition, *, changed: list[str], why: str = "") -> None:
        # The names of the changed fields, never their values: an address or a configuration may hold secrets.
        detail: dict[str, Any] = {
            "name": definition.name,
            "point": definition.point,
            "revision": self.revision,
            "changed": changed,
            "enabled": definition.enabled,
        }
        if self._file:
            detail["file"] = self._file
        if why:
            detail["why"] = why
        if self.fence:
            detail["fence"] = True
        await write_audit(
            self.connection, definition.tenant_id, self._actor, action, definition.id, now=self.now, detail=detail
        )


@asynccontextmanager
async def open_change(
    store: SqlStore, actor: str, *, file: str = "", fence: bool = False
) -> AsyncIterator[ChangeTransaction]:
    """Open a transaction that changes definitions.

    Args:
        store: The store of the definitions.
        actor: Who makes the changes, for the audit log.
        file: The file that the changes come from, for the audit log and `source`.
        fence: Whether the changes take effect in operations that are running.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
        HookUsageError: If `fence` is set, and no process takes part in fenced changes; or if it is not a boolean.
    """
    if not isinstance(fence, bool):
        raise HookUsageError(f"`fence` must be True or False; got {fence!r:.100}.")
    async with store.writing() as connection:
        if fence:
            await check_members(connection)
        # First: of two changes that would exceed a quota together, the second one then sees the first.
        revision = await raise_revision(connection, COUNTER)
        yield ChangeTransaction(connection, actor, revision, await read_clock(connection), file, fence=fence)
    store.wakeups.wake(DEFINITIONS)


def _same_row(definition: HookDefinition) -> Any:
    return (definitions.c.tenant_id == definition.tenant_id) & (definitions.c.id == definition.id)


def _list_changed_fields(old: HookDefinition | None, new: HookDefinition) -> list[str]:
    if old is None:
        return []
    its = ("revision", "created_at", "updated_at", "source", "problem")
    return [name for name in new.__struct_fields__ if name not in its and getattr(old, name) != getattr(new, name)]
