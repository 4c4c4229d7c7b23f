"""The audit log: search it, export it, and write entries about changes that were committed elsewhere."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.server._actors import find_key_names
from hookline.store import Page, SqlStore, audit, write_audit

__all__ = [
    "AuditEntry",
    "AuditFilter",
    "ExportFormat",
    "export_audit",
    "read_audit",
    "search_audit",
    "write_audit_alone",
]

MOST_LOOKED_AT = 2000
"""Entries in which one page of a search looks for words at most; the next page continues there."""
BATCH_SIZE = 1000
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that spreadsheets take for a formula."""
COLUMNS = ("id", "time", "tenant", "actor", "actorName", "action", "target", "detail")

ExportFormat: TypeAlias = Literal["csv", "jsonl"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of the audit log.

    Attributes:
        id: The number of the entry; later entries have greater numbers.
        tenant_id: The tenant that owns the object; `""` is the system.
        actor: Who made the change.
        actor_name: The name of the API key that made the change, if the reader may see it; else `""`.
        action: The action (`"definition.update"`).
        target: The id of the object.
        detail: Further details, without secrets.
        created_at: When the change was made, in unix seconds.
    """

    id: int
    tenant_id: str
    actor: str
    actor_name: str = ""
    action: str
    target: str
    detail: dict[str, Any]
    created_at: float


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of the audit log: an entry matches if it matches every attribute that is set.

    Attributes:
        tenant_id: Only entries about objects of this tenant; `""` is the system.
        actor: Only entries of this actor (`"key:<id>"`), or of the API key with this id.
        action: Only this action; one that ends with a dot matches all actions that begin with it.
        target: Only entries about the object with this id.
        since: Only entries from this time on, in unix seconds.
        until: Only entries before this time, in unix seconds.
        text: Only entries that contain each of these words, in any field and in upper or lower case.
    """

    tenant_id: str | None = None
    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: float | None = None
    until: float | None = None
    text: str | None = None

    def conditions(self) -> Iterable[ColumnElement[bool]]:
        """Yield the SQL conditions of the filter, all but the words."""
        column = audit.c
        if self.tenant_id is not None:
            yield column.tenant_id == self.tenant_id
        if self.actor is not None:
            yield column.actor.in_((self.actor, f"key:{self.actor}"))
        if self.action is not None:
            begins = self.action.endswith(".")
            yield column.action.startswith(self.action, autoescape=True) if begins else column.action == self.action
        if self.target is not None:
            yield column.target == self.target
        if self.since is not None:
            yield column.created_at >= self.since
        if self.until is not None:
            yield column.created_at < self.until

    def matches_text(self, entry: AuditEntry) -> bool:
        """Return whether an entry contains all words of the filter."""
        if not self.text:
            return True
        fields = (entry.actor, entry.actor_name, entry.action, entry.target, entry.tenant_id)
        whole = "\n".join((*fields, msgspec.json.encode(entry.detail).decode())).casefold()
        return all(word in whole for word in self.text.casefold().split())


async def write_audit_alone(
    store: SqlStore, tenant_id: str, actor: str, action: str, target: str, *, detail: Mapping[str, Any] | None = None
) -> None:
    """Write an entry of the audit log in a transaction of its own, after the change was committed elsewhere.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """

    async def write(connection: AsyncConnection) -> None:
        await write_audit(connection, tenant_id, actor, action, target, now=store.now_sql(), detail=detail)

    await store.write(write)


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
    wanted = AuditFilter(tenant_id=tenant_id, action=action, since=since, until=until)
    return await search_audit(store, wanted, cursor=cursor, limit=limit)


async def search_audit(
    store: SqlStore, wanted: AuditFilter, *, names_of: str | None = None, cursor: int | None, limit: int
) -> Page[AuditEntry]:
    """Search the audit log, newest entries first.

    Words are looked for in 2,000 entries at most; then the page is short, perhaps empty, and has a cursor that
    continues there.

    Args:
        store: The store of the audit log.
        wanted: The filter.
        names_of: Name only API keys of this tenant; `None` for all tenants.
        cursor: The cursor of the page before; `None` for the first page.
        limit: Number of entries at most.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    found: list[AuditEntry] = []
    looked_at = 0
    size = BATCH_SIZE if wanted.text else limit
    while True:
        batch, cursor = await _read_batch(store, wanted, names_of, cursor, size)
        for place, entry in enumerate(batch):
            if wanted.matches_text(entry):
                found.append(entry)
                if len(found) == limit:
                    more = place + 1 < len(batch) or cursor is not None
                    return Page(items=found, cursor=str(entry.id) if more else None)
        looked_at += len(batch)
        if cursor is None or looked_at >= MOST_LOOKED_AT:
            return Page(items=found, cursor=None if cursor is None else str(cursor))


async def _read_batch(
    store: SqlStore, wanted: AuditFilter, names_of: str | None, cursor: int | None, size: int
) -> tuple[list[AuditEntry], int | None]:
    """Read the next entries that match all but the words, and the cursor after them; `None` after the last."""
    query = select(audit).where(*wanted.conditions()).order_by(audit.c.seq.desc()).limit(size + 1)
    if cursor is not None:
        query = query.where(audit.c.seq < cursor)

    async def read(connection: AsyncConnection) -> tuple[Sequence[Row[Any]], dict[str, str]]:
        rows = (await connection.execute(query)).all()
        names = await find_key_names(connection, {row.actor for row in rows}, names_of)
        return rows, names

    rows, names = await store.read(read)
    found = [
        AuditEntry(
            id=row.seq,
            tenant_id=row.tenant_id,
            actor=row.actor,
            actor_name=names.get(row.actor, ""),
            action=row.action,
            target=row.target,
            detail=msgspec.json.decode(row.detail),
            created_at=row.created_at,
        )
        for row in rows[:size]
    ]
    return found, found[-1].id if len(rows) > size else None


async def export_audit(
    store: SqlStore, wanted: AuditFilter, form: ExportFormat, *, names_of: str | None = None
) -> AsyncIterator[bytes]:
    """Export all entries that match a filter, newest first, in pieces of 1,000 entries.

    Args:
        store: The store of the audit log.
        wanted: The filter.
        form: `"csv"` with a header, or `"jsonl"`: one JSON object on each line.
        names_of: Name only API keys of this tenant; `None` for all tenants.

    Raises:
        StoreUnavailableError: If the database cannot be reached.
    """
    if form == "csv":
        yield _format_csv([COLUMNS])
    cursor: int | None = None
    while True:
        batch, cursor = await _read_batch(store, wanted, names_of, cursor, BATCH_SIZE)
        chosen = [entry for entry in batch if wanted.matches_text(entry)]
        if chosen:
            yield _format_csv(map(_list_cells, chosen)) if form == "csv" else _format_lines(chosen)
        if cursor is None:
            return


def _format_lines(entries: Iterable[AuditEntry]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def _format_csv(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([_escape_formula(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _list_cells(entry: AuditEntry) -> list[str]:
    moment = datetime.fromtimestamp(entry.created_at, UTC).isoformat(timespec="milliseconds")
    detail = msgspec.json.encode(entry.detail).decode() if entry.detail else ""
    whose = (entry.tenant_id, entry.actor, entry.actor_name)
    return [str(entry.id), moment, *whose, entry.action, entry.target, detail]


def _escape_formula(cell: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would run as a formula."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell
