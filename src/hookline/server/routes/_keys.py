"""Routes of those who look after keys: the keys, and the audit."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from hookline.server._audit import AuditEntry, audit_page
from hookline.server._callers import Req, Scope, caller_of, not_found
from hookline.server._keys import ApiKey, NewApiKey
from hookline.server._parts import parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._shared import LARGEST, Cursor, Id, Limit, TenantId, Words, paged, route
from hookline.store import Page

__all__ = ["KEY_ROUTES"]

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Number = Annotated[
    int | None, QueryParameter(ge=0, le=LARGEST, description="Where the part begins: the cursor of the one before.")
]


class KeyBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A key that is to be made.

    Attributes:
        name: What people call it.
        scopes: What it allows; nothing that the key of the request does not allow.
        tenant_id: Whose it is; that of the request's key unless given. `""` is the system.
        expires_in_seconds: After which it ends by itself; when the key of the request does, unless given. No later than
            that.
    """

    name: Name
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=20)]
    tenant_id: Words | None = None
    expires_in_seconds: Seconds | None = None


@route("GET", "/v1/keys", scope="hooks:admin", summary="List API keys", errors=[404])
async def list_keys(
    request: Req, tenant_id: TenantId = None, cursor: Cursor = None, limit: Limit = 50
) -> Response[Page[ApiKey]]:
    """Those that have ended too; never what they are."""
    tenant = caller_of(request).tenant(tenant_id)
    return paged(request, await parts_of(request).keys.page(tenant, cursor=cursor, limit=limit))


@route("POST", "/v1/keys", scope="hooks:admin", summary="Make an API key", errors=[404], status_code=201)
async def create_key(request: Req, data: JSONBody[KeyBody]) -> NewApiKey:
    """The answer shows the key, this once."""
    caller = caller_of(request)
    owner = caller.own(data.tenant_id)
    more = sorted(set(data.scopes) - caller.scopes)
    if more:
        raise ApiError(403, "scope", f"A key cannot give what it does not allow itself: {', '.join(more)}.")
    parts, seconds = parts_of(request), data.expires_in_seconds
    if caller.expires_at is not None and seconds is not None and await parts.store.now() + seconds > caller.expires_at:
        detail = "A key cannot outlast the one that makes it. Ask for an earlier end, or for none to get the same one."
        raise ApiError(403, "scope", detail)
    return await parts.keys.create(
        name=data.name,
        tenant_id=owner,
        scopes=data.scopes,
        expires_in_seconds=seconds,
        latest_end=caller.expires_at,
        actor=caller.actor,
    )


@route("DELETE", "/v1/keys/{id:str}", scope="hooks:admin", summary="End an API key", status_code=204)
async def revoke_key(request: Req, id: Id) -> None:  # noqa: A002
    """It stops working within a second, in all processes."""
    caller = caller_of(request)
    if not await parts_of(request).keys.revoke(id, caller.tenant(), actor=caller.actor):
        raise not_found()


@route("GET", "/v1/audit", scope="hooks:admin", summary="Read who has changed what", errors=[404])
async def list_audit(
    request: Req, tenant_id: TenantId = None, cursor: Number = None, limit: Limit = 50
) -> Response[Page[AuditEntry]]:
    """The newest first."""
    tenant = caller_of(request).tenant(tenant_id)
    return paged(request, await audit_page(parts_of(request).store, tenant, cursor=cursor, limit=limit))


KEY_ROUTES = [list_keys, create_key, revoke_key, list_audit]
