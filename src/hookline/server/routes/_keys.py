"""Routes of API keys: list, create, rotate and revoke them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from litestar import Response
from litestar.params import JSONBody

from hookline.server._callers import Caller, Req, Scope, caller_of, not_found_error
from hookline.server._keys import LONGEST_OVERLAP, ApiKey, NewApiKey
from hookline.server._parts import ServerParts, parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._shared import Cursor, Id, Limit, TenantId, Words, page_response, route
from hookline.store import Page

__all__ = ["KEY_ROUTES", "KeyBody", "RotateKeyBody", "create_key", "revoke_key", "rotate_key"]

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Overlap = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_OVERLAP)]
DAY = 86_400.0


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


class RotateKeyBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The body of a request that rotates a key.

    Attributes:
        overlap_seconds: Seconds for which the old key still works; 0 revokes it at once.
        expires_in_seconds: Seconds until the new key expires. By default, it lasts as long as the old one was made to
            last, and at the latest, it expires with the key of the request.
    """

    overlap_seconds: Overlap = DAY
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
    _check_grantable(caller, data.scopes)
    parts, seconds = parts_of(request), data.expires_in_seconds
    await _check_end(parts, caller, seconds)
    return await parts.keys.create(
        name=data.name,
        tenant_id=owner,
        scopes=data.scopes,
        expires_in_seconds=seconds,
        latest_end=caller.expires_at,
        actor=caller.actor,
    )


@route(
    "POST", "/v1/keys/{id:str}/rotate", scope="hooks:admin", summary="Rotate an API key", status_code=201, errors=[404]
)
async def rotate_key(request: Req, id: Id, data: JSONBody[RotateKeyBody]) -> NewApiKey:  # noqa: A002
    """Create a key with the name, tenant and scopes of another one, which still works for a day by default.

    Only this response shows the new key.
    """
    parts, caller = parts_of(request), caller_of(request)
    old = await parts.keys.get(id, caller.tenant())
    if old is None:
        raise not_found_error()
    _check_grantable(caller, old.scopes)
    seconds = data.expires_in_seconds
    await _check_end(parts, caller, seconds)
    made = await parts.keys.rotate(
        id,
        caller.tenant(),
        overlap_seconds=data.overlap_seconds,
        expires_in_seconds=seconds,
        latest_end=caller.expires_at,
        actor=caller.actor,
    )
    if made is None:
        raise not_found_error()
    return made


@route("DELETE", "/v1/keys/{id:str}", scope="hooks:admin", summary="Revoke an API key", status_code=204)
async def revoke_key(request: Req, id: Id) -> None:  # noqa: A002
    """Revoke an API key. Within one second, all processes refuse it."""
    caller = caller_of(request)
    if not await parts_of(request).keys.revoke(id, caller.tenant(), actor=caller.actor):
        raise not_found_error()


def _check_grantable(caller: Caller, scopes: Iterable[Scope]) -> None:
    """Raise unless a key has all scopes that it grants.

    Raises:
        ApiError: 403, if it does not.
    """
    more = sorted(set(scopes) - caller.scopes)
    if more:
        raise ApiError(403, "scope", f"A key cannot grant scopes that it does not have: {', '.join(more)}.")


async def _check_end(parts: ServerParts, caller: Caller, seconds: float | None) -> None:
    """Raise if a new key would outlast the key that creates it.

    Raises:
        ApiError: 403, in that case.
    """
    if caller.expires_at is not None and seconds is not None and await parts.store.now() + seconds > caller.expires_at:
        detail = "A key cannot outlast the key that creates it. Give a shorter `expiresInSeconds`, or omit it."
        raise ApiError(403, "scope", detail)


KEY_ROUTES = [list_keys, create_key, rotate_key, revoke_key]
