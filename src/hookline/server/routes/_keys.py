"""Routes of API keys and of the audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from hookline.server._audit import AuditEntry, read_audit
from hookline.server._callers import Req, Scope, caller_of, not_found_error
from hookline.server._keys import ApiKey, NewApiKey
from hookline.server._parts import parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._shared import LARGEST, Cursor, Id, Limit, TenantId, Words, page_response, route
from hookline.store import Page

__all__ = ["KEY_ROUTES"]

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Number = Annotated[int | None, QueryParameter(ge=0, le=LARGEST, description="The cursor of the previous page.")]


class KeyBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The body of a request that creates a key.

    Attributes:
        name: A name for people.
        scopes: The scopes of the new key. The key of the request must have all of them.
        tenant_id: The tenant that owns the key; the tenant of the request's key by default. `""` is the system.
        expires_in_seconds: Seconds until the key expires. By default, and at the latest, it expires with the key of
            the request.
    """

    name: Name
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=20)]
    tenant_id: Words | None = None
    expires_in_seconds: Seconds | None = None


@route("GET", "/v1/keys", scope="hooks:admin", summary="List API keys", errors=[404])
async def list_keys(
    request: Req, tenant_id: TenantId = None, cursor: Cursor = None, limit: Limit = 50
) -> Response[Page[ApiKey]]:
    """List API keys, including expired and revoked ones. Secrets are never shown."""
    tenant = caller_of(request).tenant(tenant_id)
    return page_response(request, await parts_of(request).keys.page(tenant, cursor=cursor, limit=limit))


@route("POST", "/v1/keys", scope="hooks:admin", summary="Create an API key", errors=[404], status_code=201)
async def create_key(request: Req, data: JSONBody[KeyBody]) -> NewApiKey:
    """Create an API key. Only this response shows the key."""
    caller = caller_of(request)
    owner = caller.own(data.tenant_id)
    more = sorted(set(data.scopes) - caller.scopes)
    if more:
        raise ApiError(403, "scope", f"A key cannot grant scopes that it does not have: {', '.join(more)}.")
    parts, seconds = parts_of(request), data.expires_in_seconds
    if caller.expires_at is not None and seconds is not None and await parts.store.now() + seconds > caller.expires_at:
        detail = "A key cannot outlast the key that creates it. Give a shorter `expiresInSeconds`, or omit it."
        raise ApiError(403, "scope", detail)
    return await parts.keys.create(
        name=data.name,
        tenant_id=owner,
        scopes=data.scopes,
        expires_in_seconds=seconds,
        latest_end=caller.expires_at,
        actor=caller.actor,
    )


@route("DELETE", "/v1/keys/{id:str}", scope="hooks:admin", summary="Revoke an API key", status_code=204)
async def revoke_key(request: Req, id: Id) -> None:  # noqa: A002
    """Revoke an API key. Within one second, all processes refuse it."""
    caller = caller_of(request)
    if not await parts_of(request).keys.revoke(id, caller.tenant(), actor=caller.actor):
        raise not_found_error()


@route("GET", "/v1/audit", scope="hooks:admin", summary="List the audit log", errors=[404])
async def list_audit(
    request: Req, tenant_id: TenantId = None, cursor: Number = None, limit: Limit = 50
) -> Response[Page[AuditEntry]]:
    """List the entries of the audit log, newest first."""
    tenant = caller_of(request).tenant(tenant_id)
    return page_response(request, await read_audit(parts_of(request).store, tenant, cursor=cursor, limit=limit))


KEY_ROUTES = [list_keys, create_key, revoke_key, list_audit]
