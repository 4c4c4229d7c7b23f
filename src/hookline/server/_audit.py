"""The audit: who has changed what, in the same transaction as the change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store import Page, SqlStore, audit

__all__ = ["AuditEntry", "audit_page", "note", "note_alone"]

LONGEST_TARGET = 800


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A change that somebody has made.

    Attributes:
        id: Its number; later ones have greater numbers.
        tenant_id: Whose object it was; `""` is the system's.
        actor: Who.
        action: What was done (`"definition.update"`).
        target: To what, by its id.
        detail: What else there is to know; no secrets.
        created_at: When, in unix seconds.
    """

    id: int
    tenant_id: str
    actor: str
    action: str
    target: str
    detail: dict[str, Any]
    created_at: float


async def note(
    connection: AsyncConnection,
    tenant_id: str,
    actor: str,
    action: str,
    target: str,
    *,
    now: object,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write down a change.

    Args:
        connection: The transaction of the change.
        tenant_id: Whose object it is.
        actor: Who changes it.
        action: What is done.
        target: To what.
        now: The clock of the database.
        detail: What else there is to know; no secrets.
    """
    row = {"tenant_id": tenant_id, "actor": actor, "action": action, "target": target[:LONGEST_TARGET]}
    encoded = msgspec.json.encode(detail or {})
    await connection.execute(insert(audit).values(**row, detail=encoded, created_at=now))


async def note_alone(
    store: SqlStore, tenant_id: str, actor: str, action: str, target: str, *, detail: Mapping[str, Any] | None = None
) -> None:
    """Write down a change that has a transaction of its own elsewhere.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.writing() as connection:
        await note(connection, tenant_id, actor, action, target, now=store.now_sql(), detail=detail)


async def audit_page(store: SqlStore, tenant_id: str | None, *, cursor: int | None, limit: int) -> Page[AuditEntry]:
    """A part of the audit, the newest first.

    Args:
        store: Where it is.
        tenant_id: Only about objects of this tenant.
        cursor: Where the part begins; that of the part before.
        limit: How many at most.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    query = select(audit).order_by(audit.c.seq.desc()).limit(limit + 1)
    if tenant_id is not None:
        query = query.where(audit.c.tenant_id == tenant_id)
    if cursor is not None:
        query = query.where(audit.c.seq < cursor)
    async with store.reading() as connection:
        rows = (await connection.execute(query)).all()
    found = [
        AuditEntry(
            id=row.seq,
            tenant_id=row.tenant_id,
            actor=row.actor,
            action=row.action,
            target=row.target,
            detail=msgspec.json.decode(row.detail),
            created_at=row.created_at,
        )
        for row in rows[:limit]
    ]
    return Page(items=found, cursor=str(found[-1].id) if len(rows) > limit else None)
