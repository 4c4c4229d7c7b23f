"""Routes of deliveries and endpoints: list, retry, replay, enable."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from hookline.server._audit import write_audit_alone
from hookline.server._callers import Caller, Req, caller_of, not_found_error
from hookline.server._parts import ServerParts, parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._shared import (
    VISIBLE,
    Cursor,
    HookId,
    Id,
    Limit,
    OperationId,
    Seconds,
    Since,
    TenantId,
    Until,
    Words,
    page_response,
    route,
)
from hookline.store import DeliveryFilter, DeliveryStatus, Page, StoredAttempt, StoredDelivery, StoredEndpoint

__all__ = ["DELIVERY_ROUTES"]

Status = Annotated[DeliveryStatus | None, QueryParameter(description="Return only those with this status.")]
Endpoint = Annotated[
    str | None, QueryParameter(max_length=2048, pattern=VISIBLE, description="Return only those to this URL.")
]
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=2048, pattern=VISIBLE)]


class DeliveryDetail(StoredDelivery, frozen=True, kw_only=True, rename="camel"):
    """A delivery with its attempts and its body.

    Attributes:
        tries: The attempts, in order.
        payload: The JSON body that is sent.
    """

    tries: list[StoredAttempt]
    payload: Any


class ReplayBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which deliveries to replay: those that match all fields. Set at least one field.

    Attributes:
        status: `"delivered"` or `"dead"`; both by default.
        endpoint: Only deliveries to this address.
        operation_id: Only deliveries of this operation.
        hook_id: Only deliveries of this hook.
        since: Only deliveries created at or after this time, in unix seconds.
        until: Only deliveries created before this time, in unix seconds.
    """

    status: DeliveryStatus | None = None
    endpoint: Address | None = None
    operation_id: Words | None = None
    hook_id: Words | None = None
    since: Seconds | None = None
    until: Seconds | None = None


class EndpointBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An endpoint to enable.

    Attributes:
        url: The URL of the endpoint.
        tenant_id: The tenant that owns the endpoint; the tenant of the key by default.
    """

    url: Address
    tenant_id: Words | None = None


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a retry or a replay.

    Attributes:
        count: Number of deliveries to be attempted again.
    """

    count: int


@route("GET", "/v1/deliveries", scope="operations:read", summary="List deliveries", errors=[404])
async def list_deliveries(
    request: Req,
    tenant_id: TenantId = None,
    status: Status = None,
    endpoint: Endpoint = None,
    operation_id: OperationId = None,
    hook_id: HookId = None,
    since: Since = None,
    until: Until = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response[Page[StoredDelivery]]:
    """List deliveries, newest first."""
    caller = caller_of(request)
    which = DeliveryFilter(
        tenant_id=caller.tenant(tenant_id),
        owner_id=None if caller.sees_all else caller.tenant_id,
        status=status,
        endpoint=endpoint,
        operation_id=operation_id,
        hook_id=hook_id,
        since=since,
        until=until,
    )
    return page_response(request, await parts_of(request).deliveries.page(which, cursor=cursor, limit=limit))


@route("GET", "/v1/deliveries/{id:str}", scope="operations:read", summary="Read a delivery")
async def read_delivery(request: Req, id: Id) -> DeliveryDetail:  # noqa: A002
    """Read a delivery, with its attempts and its body."""
    parts = parts_of(request)
    found = await read_visible_delivery(parts, caller_of(request), id)
    payload = await parts.deliveries.payload(id)
    return DeliveryDetail(
        **msgspec.structs.asdict(found),
        tries=await parts.deliveries.attempts(id),
        payload=None if payload is None else msgspec.json.decode(payload),
    )


@route("POST", "/v1/deliveries/{id:str}/retry", scope="deliveries:replay", summary="Retry a delivery", errors=[409])
async def retry_delivery(request: Req, id: Id) -> Repeated:  # noqa: A002
    """Attempt a delivery again now. It must be waiting for its next attempt, or dead."""
    parts, caller = parts_of(request), caller_of(request)
    found = await read_visible_delivery(parts, caller, id)
    caller.check_writable(found.tenant_id)
    count = await parts.deliveries.retry([id], tenant_id=found.tenant_id)
    if not count:
        raise ApiError(409, "not_retryable", "The delivery was delivered, waits behind another one, or is being sent.")
    await write_audit_alone(parts.store, found.tenant_id, caller.actor, "delivery.retry", id)
    return Repeated(count=count)


@route("POST", "/v1/deliveries/replay", scope="deliveries:replay", summary="Replay deliveries", errors=[404])
async def replay_deliveries(request: Req, data: JSONBody[ReplayBody], tenant_id: TenantId = None) -> Repeated:
    """Send delivered or dead deliveries again, in order and with the same ids, so that receivers recognize them."""
    parts, caller = parts_of(request), caller_of(request)
    if data == ReplayBody():
        raise ApiError(422, "invalid", "Select deliveries with at least one field.")
    owner = caller.tenant(tenant_id)
    if owner is not None:
        caller.check_writable(owner)
    hook_owner = None if caller.sees_all else caller.tenant_id
    which = DeliveryFilter(tenant_id=owner, owner_id=hook_owner, **msgspec.structs.asdict(data))
    count = await parts.deliveries.replay(which)
    detail = {"count": count, "which": msgspec.to_builtins(data)}
    await write_audit_alone(parts.store, owner or "", caller.actor, "delivery.replay", str(count), detail=detail)
    return Repeated(count=count)


@route("GET", "/v1/endpoints", scope="operations:read", summary="List endpoints that have failed", errors=[404])
async def list_endpoints(request: Req, tenant_id: TenantId = None) -> list[StoredEndpoint]:
    """List endpoints that have failed or are disabled. Other endpoints are not recorded."""
    caller = caller_of(request)
    owner = None if caller.sees_all else caller.tenant_id
    return await parts_of(request).deliveries.endpoints(caller.tenant(tenant_id), owner_id=owner)


@route(
    "POST",
    "/v1/endpoints/enable",
    scope="deliveries:replay",
    summary="Enable an endpoint",
    status_code=204,
    errors=[404],
)
async def enable_endpoint(request: Req, data: JSONBody[EndpointBody]) -> None:
    """Enable an endpoint that is disabled or has failed. Dead deliveries stay dead until you replay them."""
    parts, caller = parts_of(request), caller_of(request)
    owner = caller.own(data.tenant_id)
    shown = await parts.deliveries.endpoints(owner, owner_id=None if caller.sees_all else caller.tenant_id)
    if data.url not in [each.url for each in shown] or not await parts.deliveries.enable(owner, data.url):
        raise not_found_error("No endpoint with this URL has failed.")
    await write_audit_alone(parts.store, owner, caller.actor, "endpoint.enable", data.url)


async def read_visible_delivery(parts: ServerParts, caller: Caller, id: str) -> StoredDelivery:  # noqa: A002
    """Read a delivery that the caller may see.

    Raises:
        ApiError: 404, if there is no such delivery, or it is another tenant's.
    """
    found = await parts.deliveries.delivery(id)
    if found is None:
        raise not_found_error()
    caller.check_visible(found.tenant_id)
    caller.check_visible(found.owner_id)  # a tenant must not see where a system hook delivers
    return found


DELIVERY_ROUTES = [
    list_deliveries,
    read_delivery,
    retry_delivery,
    replay_deliveries,
    list_endpoints,
    enable_endpoint,
]
