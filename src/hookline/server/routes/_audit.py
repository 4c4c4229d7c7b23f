"""Routes of the audit log: search it, and export it as CSV or JSON lines."""

from __future__ import annotations

from typing import Annotated

from litestar import Response
from litestar.params import QueryParameter
from litestar.response import Stream

from hookline.server._audit import AuditEntry, AuditFilter, ExportFormat, export_audit, search_audit
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._parts import ServerParts, parts_of
from hookline.server.routes._shared import LARGEST, VISIBLE, Limit, Since, TenantId, Until, page_response, route
from hookline.store import Page

__all__ = ["AUDIT_ROUTES", "export_response", "key_names_of"]

MEDIA_TYPES: dict[ExportFormat, str] = {"csv": "text/csv", "jsonl": "application/jsonl"}

Number = Annotated[int | None, QueryParameter(ge=0, le=LARGEST, description="The cursor of the previous page.")]
Actor = Annotated[
    str | None,
    QueryParameter(max_length=400, pattern=VISIBLE, description="Return only those of this actor or API key."),
]
ActionName = Annotated[
    str | None,
    QueryParameter(
        max_length=80,
        pattern=VISIBLE,
        description="Return only those with this action; `key.` matches all that begin with it.",
    ),
]
Target = Annotated[
    str | None, QueryParameter(max_length=800, pattern=VISIBLE, description="Return only those about this object.")
]
Text = Annotated[
    str | None,
    QueryParameter(max_length=400, pattern=VISIBLE, description="Return only those that contain all of these words."),
]


@route("GET", "/v1/audit", scope="hooks:admin", summary="Search the audit log", errors=[404])
async def list_audit(
    request: Req,
    tenant_id: TenantId = None,
    actor: Actor = None,
    action: ActionName = None,
    target: Target = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
    cursor: Number = None,
    limit: Limit = 50,
) -> Response[Page[AuditEntry]]:
    """List the entries of the audit log that match a filter, newest first.

    Words are looked for in 2,000 entries for each page. Then a page may be short and still have a cursor.
    """
    parts, caller = parts_of(request), caller_of(request)
    wanted = AuditFilter(
        tenant_id=caller.tenant(tenant_id),
        actor=actor,
        action=action,
        target=target,
        since=since,
        until=until,
        text=text,
    )
    page = await search_audit(parts.store, wanted, names_of=key_names_of(caller), cursor=cursor, limit=limit)
    return page_response(request, page)


@route(
    "GET",
    "/v1/audit.csv",
    scope="hooks:admin",
    summary="Export the audit log as CSV",
    errors=[404],
    media_type="text/csv",
)
async def export_csv(
    request: Req,
    tenant_id: TenantId = None,
    actor: Actor = None,
    action: ActionName = None,
    target: Target = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
) -> Stream:
    """Stream all entries of the audit log that match a filter as CSV, newest first.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    caller = caller_of(request)
    wanted = AuditFilter(
        tenant_id=caller.tenant(tenant_id),
        actor=actor,
        action=action,
        target=target,
        since=since,
        until=until,
        text=text,
    )
    return export_response(parts_of(request), caller, wanted, "csv")


@route(
    "GET",
    "/v1/audit.jsonl",
    scope="hooks:admin",
    summary="Export the audit log as JSON lines",
    errors=[404],
    media_type="application/jsonl",
)
async def export_lines(
    request: Req,
    tenant_id: TenantId = None,
    actor: Actor = None,
    action: ActionName = None,
    target: Target = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
) -> Stream:
    """Stream all entries of the audit log that match a filter as JSON lines, newest first."""
    caller = caller_of(request)
    wanted = AuditFilter(
        tenant_id=caller.tenant(tenant_id),
        actor=actor,
        action=action,
        target=target,
        since=since,
        until=until,
        text=text,
    )
    return export_response(parts_of(request), caller, wanted, "jsonl")


def export_response(parts: ServerParts, caller: Caller, wanted: AuditFilter, form: ExportFormat) -> Stream:
    """Build the response that streams the audit log as a file."""
    rows = export_audit(parts.store, wanted, form, names_of=key_names_of(caller))
    headers = {"Content-Disposition": f'attachment; filename="audit.{form}"', "Cache-Control": "no-store"}
    return Stream(rows, media_type=MEDIA_TYPES[form], headers=headers)


def key_names_of(caller: Caller) -> str | None:
    """Return the tenant whose API keys a caller may see the names of; `None` for all tenants."""
    return None if caller.sees_all else caller.tenant_id


AUDIT_ROUTES = [list_audit, export_csv, export_lines]
