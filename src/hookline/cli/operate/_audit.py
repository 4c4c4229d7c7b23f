"""`hookline audit`: list who changed what."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._terminal import Column, format_clock_time, parse_option, parse_time, print_list
from hookline.cli.operate._store import (
    DEFAULT_STORE,
    AsJson,
    Limit,
    Since,
    StoreUrl,
    Tenant,
    Until,
    operate,
    read_pages,
)

if TYPE_CHECKING:
    from hookline.server import AuditEntry
    from hookline.store import SqlStore

__all__ = ["audit_app"]

audit_app = CommandApp(name="audit", cls=ListGroup, help="List who changed what.")


@audit_app.command("list")
def list_audit(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    action: Annotated[
        str | None,
        typer.Option(metavar="ACTION", help="Only this action, such as key.create; key. matches all that begin so."),
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the audit log, newest first: who did what, to what, and when."""
    begin, end = parse_option("--since", since, parse_time), parse_option("--until", until, parse_time)

    async def look(store: SqlStore) -> Any:
        from hookline.server import read_audit

        async def page(*, cursor: str | None, limit: int) -> Any:
            return await read(cursor=None if cursor is None else int(cursor), limit=limit)

        read = partial(read_audit, store, tenant, action=action, since=begin, until=end)
        return await read_pages(page, limit)

    found, more = operate(store, look)
    print_list(found, _columns(), as_json=as_json, nothing="No entries match.", more=more)


def _columns() -> list[Column[AuditEntry]]:
    return [
        Column("time", lambda each: format_clock_time(each.created_at)),
        Column("actor", lambda each: each.actor),
        Column("action", lambda each: each.action),
        Column("target", lambda each: each.target, rank=1, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=2),
        Column("detail", lambda each: msgspec.json.encode(each.detail).decode() if each.detail else "", 3, cut=True),
    ]
