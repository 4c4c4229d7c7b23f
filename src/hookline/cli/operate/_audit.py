"""`hookline audit`: list and export who changed what."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    from hookline.server import AuditEntry, AuditFilter
    from hookline.store import SqlStore

__all__ = ["audit_app"]

audit_app = CommandApp(name="audit", cls=ListGroup, help="List and export who changed what.")


Action = Annotated[
    str | None,
    typer.Option(metavar="ACTION", help="Only this action, such as key.create; key. matches all that begin so."),
]
By = Annotated[str | None, typer.Option("--actor", metavar="ID", help="Only of this actor, or of this API key.")]
Target = Annotated[str | None, typer.Option(metavar="ID", help="Only about this object.")]
Words = Annotated[
    str | None, typer.Option("--text", metavar="WORDS", help="Only entries that contain all of these words.")
]


@audit_app.command("list")
def list_audit(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    action: Action = None,
    by: By = None,
    target: Target = None,
    text: Words = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the audit log, newest first: who did what, to what, and when."""
    make = _parse_filter(tenant, action, by, target, text, since, until)

    async def look(store: SqlStore) -> Any:
        from hookline.server import search_audit

        async def page(*, cursor: str | None, limit: int) -> Any:
            return await search_audit(store, make(), cursor=None if cursor is None else int(cursor), limit=limit)

        return await read_pages(page, limit)

    found, more = operate(store, look)
    print_list(found, _columns(), as_json=as_json, nothing="No entries match.", more=more)


@audit_app.command("export")
def export(
    form: Annotated[
        Literal["csv", "jsonl"], typer.Option("--format", help="A table with a header, or one JSON object per line.")
    ] = "csv",
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    action: Action = None,
    by: By = None,
    target: Target = None,
    text: Words = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """Write the whole audit log to stdout, newest first."""
    make = _parse_filter(tenant, action, by, target, text, since, until)

    async def write(store: SqlStore) -> None:
        from hookline.server import export_audit

        async for piece in export_audit(store, make(), form):
            typer.echo(piece, nl=False)

    operate(store, write)


def _parse_filter(
    tenant: str | None,
    action: str | None,
    by: str | None,
    target: str | None,
    text: str | None,
    since: str | None,
    until: str | None,
) -> Callable[[], AuditFilter]:
    """Check the options of a filter; what is returned makes it, so that the server is imported only when needed."""
    begin, end = parse_option("--since", since, parse_time), parse_option("--until", until, parse_time)

    def make() -> AuditFilter:
        from hookline.server import AuditFilter

        return AuditFilter(tenant_id=tenant, actor=by, action=action, target=target, text=text, since=begin, until=end)

    return make


def _columns() -> list[Column[AuditEntry]]:
    return [
        Column("time", lambda each: format_clock_time(each.created_at)),
        Column("actor", lambda each: f"{each.actor_name} ({each.actor})" if each.actor_name else each.actor),
        Column("action", lambda each: each.action),
        Column("target", lambda each: each.target, rank=1, cut=True),
        Column("tenant", lambda each: each.tenant_id, rank=2),
        Column("detail", lambda each: msgspec.json.encode(each.detail).decode() if each.detail else "", 3, cut=True),
    ]
