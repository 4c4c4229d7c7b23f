"""Routes of endpoints and their signing secrets: list endpoints; list, rotate and revoke secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal, TypeAlias

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
from hookline.registry import HookDefinition, Registry
from hookline.server._callers import Caller, Req, caller_of, not_found_error
from hookline.server._parts import ServerParts, parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._shared import VISIBLE, Id, TenantId, Words, route
from hookline.store import DeliveryFilter, StoredEndpoint

__all__ = [
    "ENDPOINT_ROUTES",
    "EndpointState",
    "KnownEndpoint",
    "SecretBody",
    "find_endpoints",
    "revoke_secret",
    "rotate_secret",
]

EndpointState: TypeAlias = Literal["ok", "failing", "paused", "disabled"]

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


class EndpointHook(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A hook that delivers to an endpoint.

    Attributes:
        id: The id of the hook.
        name: Its name.
        enabled: Whether it is enabled.
    """

    id: str
    name: str
    enabled: bool


class KnownEndpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An endpoint to which a hook delivers, or to which a delivery has failed.

    Attributes:
        tenant_id: The tenant that owns the endpoint; `""` is the system.
        url: The URL of the endpoint.
        state: `"ok"`, `"failing"`, `"paused"` until its next attempt, or `"disabled"`.
        failures: Consecutive failures until now.
        closed_until: Until when deliveries to it pause, in unix seconds.
        disabled_at: When it was disabled, in unix seconds; `None` if it is enabled.
        reason: Why it was disabled.
        hooks: The hooks that deliver to it, if the key has the scope hooks:read.
    """

    tenant_id: str
    url: str
    state: EndpointState = "ok"
    failures: int = 0
    closed_until: float | None = None
    disabled_at: float | None = None
    reason: str | None = None
    hooks: list[EndpointHook] = []


@route("GET", "/v1/endpoints/known", scope="operations:read", summary="List all endpoints", errors=[404])
async def list_known_endpoints(request: Req, tenant_id: TenantId = None) -> list[KnownEndpoint]:
    """List the endpoints of stored webhooks, and those to which a delivery has failed."""
    return await find_endpoints(parts_of(request), caller_of(request), tenant_id)


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


async def find_endpoints(parts: ServerParts, caller: Caller, tenant_id: str | None) -> list[KnownEndpoint]:
    """Find the endpoints that a caller may see: those of stored webhooks, and those to which a delivery has failed.

    Args:
        parts: The parts of the server.
        caller: The caller.
        tenant_id: Only endpoints of this tenant; `None` for all that the caller may see.

    Raises:
        ApiError: 404, if the caller may not see this tenant.
    """
    tenant = caller.tenant(tenant_id)
    found: dict[tuple[str, str], KnownEndpoint] = {}
    now = await parts.store.now()
    for failed in await parts.deliveries.endpoints(tenant, owner_id=None if caller.sees_all else caller.tenant_id):
        place = failed.tenant_id, normalize_endpoint(failed.url)
        found[place] = KnownEndpoint(**msgspec.structs.asdict(failed), state=_state_of(failed, now))
    if parts.known_registry is not None and "hooks:read" in caller.scopes:
        async for hook, url in _find_webhooks(parts.known_registry, tenant):
            place = hook.tenant_id, normalize_endpoint(url)
            known = found.get(place) or KnownEndpoint(tenant_id=hook.tenant_id, url=url)
            its = EndpointHook(id=hook.id, name=hook.name, enabled=hook.enabled)
            found[place] = msgspec.structs.replace(known, hooks=[*known.hooks, its])
    return [found[place] for place in sorted(found)]


async def _find_webhooks(registry: Registry, tenant: str | None) -> AsyncIterator[tuple[HookDefinition, str]]:
    """Yield the stored webhooks of a tenant, or of all tenants, with their URLs."""
    cursor: str | None = None
    while True:
        page = await registry.list(tenant, cursor=cursor, limit=1000)
        for each in page.items:
            if each.webhook is not None and tenant in (None, each.tenant_id):
                yield each, each.webhook.url
        cursor = page.cursor
        if cursor is None:
            return


def _state_of(endpoint: StoredEndpoint, now: float) -> EndpointState:
    if endpoint.disabled_at is not None:
        return "disabled"
    if endpoint.closed_until is not None and endpoint.closed_until > now:
        return "paused"
    return "failing" if endpoint.failures else "ok"


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
    return any([normalize_endpoint(each) == wanted async for _, each in _find_webhooks(registry, tenant_id)])


ENDPOINT_ROUTES = [list_known_endpoints, list_secrets, rotate_secret, revoke_secret]
