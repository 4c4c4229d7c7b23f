"""The audit log: read it, and write entries about changes that were committed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import select

from hookline.store import Page, SqlStore, audit, write_audit

__all__ = ["AuditEntry", "read_audit", "write_audit_alone"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of the audit log.

    Attributes:
        id: The number of the entry; later entries have greater numbers.
        tenant_id: The tenant that owns the object; `""` is the system.
        actor: Who made the change.
        action: The action (`"definition.update"`).
        target: The id of the object.
        detail: Further details, without secrets.
        created_at: When the change was made, in unix seconds.
    """

    id: int
    tenant_id: str
    actor: str
    action: str
    target: str
    detail: dict[str, Any]
    created_at: float


async def write_audit_alone(
    store: SqlStore, tenant_id: str, actor: str, action: str, target: str, *, detail: Mapping[str, Any] | None = None
) -> None:
    """Write an entry of the audit log in a transaction of its own, after the change was committed elsewhere.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    async with store.writing() as connection:
        await write_audit(connection, tenant_id, actor, action, target, now=store.now_sql(), detail=detail)


async def read_audit(
    store: SqlStore,
    tenant_id: str | None,
    *,
    action: str | None = None,
    since: float | None = None,
    until: float | None = None,
    cursor: int | None,
    limit: int,
) -> Page[AuditEntry]:
    """Read a page of the audit log, newest first.

    Args:
        store: The store of the audit log.
        tenant_id: Only entries about objects of this tenant.
        action: Only this action; one that ends with a dot matches all actions that begin with it.
        since: Only entries from this time on, in unix seconds.
        until: Only entries before this time, in unix seconds.
        cursor: The cursor of the page before; `None` for the first page.
        limit: Number of entries at most.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    query = select(audit).order_by(audit.c.seq.desc()).limit(limit + 1)
    if tenant_id is not None:
        query = query.where(audit.c.tenant_id == tenant_id)
    if action is not None:
        its = audit.c.action.startswith(action, autoescape=True) if action.endswith(".") else audit.c.action == action
        query = query.where(its)
    if since is not None:
        query = query.where(audit.c.created_at >= since)
    if until is not None:
        query = query.where(audit.c.created_at < until)
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
