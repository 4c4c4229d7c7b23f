"""`DefinitionRevision`: what each change of a stored definition has made of it, by whom, and how the two differ."""

import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from sqlalchemy import Row, delete, exists, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.registry._definition import HookDefinition, check_definition
from hookline.store import Page, definition_revisions, definitions, encode_cursor, parse_cursor, replace_unstorable

__all__ = [
    "KEPT_REVISIONS",
    "DefinitionRevision",
    "FieldChange",
    "RevisionAction",
    "encode_definition",
    "find_revised_tenants",
    "list_field_changes",
    "read_deleted",
    "read_revision_page",
    "read_stored_revision",
    "write_revision",
]

logger = logging.getLogger("hookline")

RevisionAction = Literal["keep", "create", "update", "enable", "disable", "reorder", "revert", "delete", "fallback"]
KEPT_REVISIONS = 100
"""Revisions of each definition that are kept, the newest."""
KEPT_DELETED = 200
"""Deleted definitions of each tenant whose revisions are kept, the last that were deleted."""
LONGEST_ACTOR = 400
Revision = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
PARTED = ("config", "webhook")
"""Fields whose own fields are compared one by one."""
SET_BY_REGISTRY = frozenset({"id", "tenantId", "source", "revision", "createdAt", "updatedAt", "problem"})

_decode = msgspec.json.Decoder(HookDefinition).decode

NEW_FIELDS: dict[str, Any] = {
    "exceptTenants": [],
    "tenants": [],
    "agents": [],
    "operationTags": [],
    "environments": [],
    "percent": 100.0,
    "dialect": "hookline",
    "hostEvent": "",
    "matcher": "",
    "mode": "enforce",
    "shadowAbove": None,
}
"""Fields (wire names) that earlier versions do not know, with the values at which they are not written."""


class FieldChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A field of a definition that a change has set.

    Attributes:
        field: The field, by its JSON name; fields of `config` and `webhook` one by one, as in `config.tools`.
        old: The value before, as JSON; `None` if there was none.
        new: The value after, as JSON; `None` if there is none.
    """

    field: str
    old: Any = None
    new: Any = None


class DefinitionRevision(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A change of a stored definition.

    Attributes:
        id: The id of the definition.
        tenant_id: The tenant that owns it; `""` is the system.
        revision: The revision that the change has made.
        action: What was done. `"keep"` is the definition as it was when revisions began to be kept.
        actor: Who did it: `"key:<id>"` for an API key, `"cli:<name>"` for the command line, or `""`.
        created_at: When, in unix seconds.
        restored: The revision that a `"revert"` went back to.
        definition: The definition after the change; for `"delete"`, as it was before.
        changes: The fields that differ from the revision before; none for the first.
    """

    id: str
    tenant_id: str
    revision: int
    action: RevisionAction
    actor: str
    created_at: float
    restored: int | None = None
    definition: HookDefinition
    changes: list[FieldChange] = []


def encode_definition(definition: HookDefinition) -> bytes:
    """Encode a definition for the database, such that earlier versions of hookline can read it where they know all."""
    plain = msgspec.to_builtins(definition)
    for name, default in NEW_FIELDS.items():
        if plain[name] == default:
            del plain[name]
    return msgspec.json.encode(plain)


def list_field_changes(old: HookDefinition, new: HookDefinition) -> list[FieldChange]:
    """List the fields that differ between two versions of a definition, without those that the registry sets."""
    before, after = _flatten(old), _flatten(new)
    names = [*after, *(name for name in before if name not in after)]
    return [
        FieldChange(field=name, old=before.get(name), new=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _flatten(definition: HookDefinition) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(definition).items():
        if name in PARTED and isinstance(value, Mapping):
            found |= {f"{name}.{inner}": each for inner, each in value.items()}
        elif name not in SET_BY_REGISTRY and name not in PARTED:
            found[name] = value
    return found


async def write_revision(
    connection: AsyncConnection,
    definition: HookDefinition,
    action: RevisionAction,
    *,
    actor: str,
    revision: int,
    now: float,
    restored: int | None = None,
) -> None:
    """Write a revision in the transaction of its change, and delete those beyond the ones that are kept."""
    table = definition_revisions
    row = {
        "tenant_id": definition.tenant_id,
        "id": definition.id,
        "revision": revision,
        "action": action,
        "actor": replace_unstorable(actor)[:LONGEST_ACTOR],
        "restored": restored,
        "definition": encode_definition(definition),
        "created_at": now,
    }
    await connection.execute(insert(table).values(**row))
    if action == "create":
        return
    its = (table.c.tenant_id == definition.tenant_id) & (table.c.id == definition.id)
    surplus = select(table.c.revision).where(its).order_by(table.c.revision.desc()).offset(KEPT_REVISIONS).limit(1)
    await connection.execute(delete(table).where(its, table.c.revision <= surplus.scalar_subquery()))
    if action == "delete":
        await _forget_deleted(connection, definition.tenant_id)


async def _forget_deleted(connection: AsyncConnection, tenant_id: str) -> None:
    """Delete the revisions of definitions of a tenant that were deleted long before others."""
    table = definition_revisions
    gone = _select_deleted(tenant_id).with_only_columns(table.c.id)
    surplus = (await connection.execute(gone.order_by(table.c.revision.desc()).offset(KEPT_DELETED))).scalars().all()
    if surplus:
        await connection.execute(delete(table).where(table.c.tenant_id == tenant_id, table.c.id.in_(surplus)))


def _select_deleted(tenant_id: str | None) -> Any:
    """Select the last deletion of each definition that does not exist now."""
    table, later = definition_revisions, definition_revisions.alias()
    same = (later.c.tenant_id == table.c.tenant_id) & (later.c.id == table.c.id)
    stored = (definitions.c.tenant_id == table.c.tenant_id) & (definitions.c.id == table.c.id)
    query = select(table).where(
        table.c.action == "delete",
        ~exists().where(stored),
        ~exists().where(same, later.c.revision > table.c.revision),
    )
    return query if tenant_id is None else query.where(table.c.tenant_id == tenant_id)


async def find_revised_tenants(connection: AsyncConnection, id: str) -> list[str]:  # noqa: A002
    """Find the tenants that have revisions of a definition, also of one that was deleted."""
    query = select(definition_revisions.c.tenant_id).where(definition_revisions.c.id == id).distinct()
    return list((await connection.execute(query)).scalars())


async def read_stored_revision(
    connection: AsyncConnection,
    tenant_id: str,
    id: str,  # noqa: A002
    revision: int,
) -> HookDefinition | None:
    """Read a definition as it was after a revision; `None` if that is not kept."""
    table = definition_revisions
    query = select(table).where(table.c.tenant_id == tenant_id, table.c.id == id, table.c.revision == revision)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else _decode_definition(row)


async def read_revision_page(
    connection: AsyncConnection,
    tenant_id: str,
    id: str,  # noqa: A002
    *,
    cursor: str | None,
    limit: int,
) -> Page[DefinitionRevision]:
    """Read a page of the revisions of a definition, newest first, each with its changes."""
    table = definition_revisions
    query = select(table).where(table.c.tenant_id == tenant_id, table.c.id == id)
    if cursor is not None:
        (before,) = parse_cursor(cursor, tuple[Revision])
        query = query.where(table.c.revision < before)
    rows = (await connection.execute(query.order_by(table.c.revision.desc()).limit(limit + 1))).all()
    found = [_build_revision(row) for row in rows]
    compared = [
        msgspec.structs.replace(new, changes=list_field_changes(old.definition, new.definition))
        for new, old in pairwise(found)
    ]
    items = [*compared, *found[len(compared) :]][:limit]
    return Page(items=items, cursor=encode_cursor((items[-1].revision,)) if len(found) > limit else None)


async def read_deleted(
    connection: AsyncConnection, tenant_id: str | None, *, cursor: str | None, limit: int
) -> Page[DefinitionRevision]:
    """Read a page of the definitions that were deleted, the last first; for `None` those of all tenants."""
    table = definition_revisions
    query = _select_deleted(tenant_id)
    if cursor is not None:
        (before,) = parse_cursor(cursor, tuple[Revision])
        query = query.where(table.c.revision < before)
    # One transaction may delete several definitions with one revision; they stay on one page.
    rows = (await connection.execute(query.order_by(table.c.revision.desc(), table.c.id).limit(limit + 1))).all()
    items = [_build_revision(row) for row in rows]
    if len(items) <= limit:
        return Page(items=items)
    last = items[limit].revision
    whole = [each for each in items if each.revision != last]
    if not whole:
        whole = [_build_revision(row) for row in await connection.execute(query.where(table.c.revision == last))]
    return Page(items=whole, cursor=encode_cursor((whole[-1].revision,)))


def _build_revision(row: Row[Any]) -> DefinitionRevision:
    return DefinitionRevision(
        id=row.id,
        tenant_id=row.tenant_id,
        revision=row.revision,
        action=row.action,
        actor=row.actor,
        created_at=row.created_at,
        restored=row.restored,
        definition=_decode_definition(row),
    )


def _decode_definition(row: Row[Any]) -> HookDefinition:
    """Decode the definition of a revision; one of a newer version is shown with a `problem`."""
    try:
        definition = check_definition(_decode(row.definition))
    except Exception as error:  # one bad row must not hide all others
        logger.warning("Revision %d of hook definition %r cannot be read here: %s", row.revision, row.id, error)
        problem = "it was written by another version of hookline"
        definition = HookDefinition(name=row.id or "?", point="onError", handler="unreadable", problem=problem)
    return msgspec.structs.replace(
        definition, id=row.id, tenant_id=row.tenant_id, revision=row.revision, updated_at=row.created_at
    )
