"""Routes of the signing secrets of endpoints: list, rotate and revoke them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import JSONBody, QueryParameter

from hookline.delivery import (
    DAY,
    LONGEST_OVERLAP,
    EndpointSecret,
    MasterKeyError,
    NewEndpointSecret,
    normalize_endpoint,
)
from hookline.registry import Registry
from hookline.server._callers import Req, caller_of, not_found_error
from hookline.server._parts import ServerParts, parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._shared import VISIBLE, Id, TenantId, Words, route
from hookline.store import DeliveryFilter

__all__ = ["ENDPOINT_ROUTES"]

Url = Annotated[
    str | None, QueryParameter(max_length=2048, pattern=VISIBLE, description="Return only those of this URL.")
]
HttpAddress = Annotated[
    str, msgspec.Meta(min_length=1, max_length=2048, pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[!-~]+$(?!\n)")
]
Overlap = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_OVERLAP)]


class SecretBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The body of a request that creates a new secret for an endpoint.

    Attributes:
        url: The URL of the endpoint.
        tenant_id: The tenant that owns the endpoint; the tenant of the key by default.
        overlap_seconds: Seconds for which the old secrets keep signing; 0 revokes them at once.
    """

    url: HttpAddress
    tenant_id: Words | None = None
    overlap_seconds: Overlap = DAY


@route("GET", "/v1/endpoints/secrets", scope="operations:read", summary="List signing secrets", errors=[404])
async def list_secrets(request: Req, tenant_id: TenantId = None, url: Url = None) -> list[EndpointSecret]:
    """List the secrets in use. Their values are never shown."""
    tenant = caller_of(request).tenant(tenant_id)
    return await parts_of(request).secrets.page(tenant, url=url)


@route(
    "POST",
    "/v1/endpoints/secrets",
    scope="hooks:manage",
    summary="Create a signing secret",
    status_code=201,
    errors=[404],
)
async def rotate_secret(request: Req, data: JSONBody[SecretBody]) -> NewEndpointSecret:
    """Create a signing secret. Only this response shows it. By default, old secrets keep signing for a day."""
    parts, caller = parts_of(request), caller_of(request)
    secrets, owner = parts.secrets, caller.own(data.tenant_id)
    if not await is_endpoint(parts, owner, data.url):
        raise not_found_error("No hook of this tenant delivers to this URL.")
    try:
        return await secrets.rotate(owner, data.url, overlap_seconds=data.overlap_seconds, actor=caller.actor)
    except MasterKeyError as error:
        raise ApiError(503, "no_master_key", str(error)) from error


@route(
    "DELETE", "/v1/endpoints/secrets/{id:str}", scope="hooks:manage", summary="Revoke a signing secret", status_code=204
)
async def revoke_secret(request: Req, id: Id) -> None:  # noqa: A002
    """Revoke a signing secret. Within one second, all processes stop using it."""
    caller = caller_of(request)
    if not caller.sees_all:
        caller.check_writable(caller.tenant_id)
    if not await parts_of(request).secrets.revoke(id, caller.tenant(), actor=caller.actor):
        raise not_found_error()


async def is_endpoint(parts: ServerParts, tenant_id: str, url: str) -> bool:
    """Return whether a hook of a tenant delivers or has delivered to an address, so that nobody can fill the table."""
    registry = parts.known_registry
    if registry is not None and await has_hook(registry, tenant_id, url):
        return True
    if await parts.secrets.page(tenant_id, url=url):
        return True
    if (await parts.deliveries.page(DeliveryFilter(owner_id=tenant_id, endpoint=url), limit=1)).items:
        return True
    if registry is None:
        return False
    await registry.refresh()  # another process may have made the hook just now
    return await has_hook(registry, tenant_id, url)


async def has_hook(registry: Registry, tenant_id: str, url: str) -> bool:
    """Whether a hook of a tenant, as far as this process knows, delivers to an address."""
    wanted = normalize_endpoint(url)
    cursor: str | None = None
    while True:
        page = await registry.list(tenant_id, cursor=cursor, limit=1000)
        for each in page.items:
            webhook = each.webhook if each.tenant_id == tenant_id else None
            if webhook is not None and normalize_endpoint(webhook.url) == wanted:
                return True
        cursor = page.cursor
        if cursor is None:
            return False


ENDPOINT_ROUTES = [list_secrets, rotate_secret, revoke_secret]
