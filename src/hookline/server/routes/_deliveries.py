"""Routes of deliveries: what became of them, and how to have them made again."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response
from litestar.params import JSONBody, QueryParameter

from hookline.server._audit import note_alone
from hookline.server._callers import Caller, Req, caller_of, not_found
from hookline.server._parts import Parts, parts_of
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
    paged,
    route,
)
from hookline.store import DeliveryFilter, DeliveryStatus, Page, StoredAttempt, StoredDelivery, StoredEndpoint

__all__ = ["DELIVERY_ROUTES"]

Status = Annotated[DeliveryStatus | None, QueryParameter(description="Only those of this status.")]
Endpoint = Annotated[str | None, QueryParameter(max_length=2048, pattern=VISIBLE, description="Only to this address.")]
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=2048, pattern=VISIBLE)]


class DeliveryDetail(StoredDelivery, frozen=True, kw_only=True, rename="camel"):
    """A delivery with all that is known of it.

    Attributes:
        tries: The attempts, in order.
        payload: What is sent.
    """

    tries: list[StoredAttempt]
    payload: Any


class ReplayBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which deliveries are to be made again: those to which all that is given applies, of which something must be.

    Attributes:
        status: `"delivered"` or `"dead"`; both unless given.
        endpoint: To this address.
        operation_id: Of this operation.
        hook_id: Of this hook.
        since: Made at this time or later, in unix seconds.
        until: Made before this time, in unix seconds.
    """

    status: DeliveryStatus | None = None
    endpoint: Address | None = None
    operation_id: Words | None = None
    hook_id: Words | None = None
    since: Seconds | None = None
    until: Seconds | None = None


class EndpointBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An endpoint that is to be sent to again.

    Attributes:
        url: Where it is.
        tenant_id: Whose; that of the key unless given.
    """

    url: Address
    tenant_id: Words | None = None


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """How much is done again.

    Attributes:
        count: How many deliveries.
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
    """The newest first."""
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
    return paged(request, await parts_of(request).deliveries.page(which, cursor=cursor, limit=limit))


@route("GET", "/v1/deliveries/{id:str}", scope="operations:read", summary="Read a delivery")
async def read_delivery(request: Req, id: Id) -> DeliveryDetail:  # noqa: A002
    """With its attempts, and what is sent."""
    parts = parts_of(request)
    found = await visible_delivery(parts, caller_of(request), id)
    payload = await parts.deliveries.payload(id)
    return DeliveryDetail(
        **msgspec.structs.asdict(found),
        tries=await parts.deliveries.attempts(id),
        payload=None if payload is None else msgspec.json.decode(payload),
    )


@route("POST", "/v1/deliveries/{id:str}/retry", scope="deliveries:replay", summary="Try a delivery now", errors=[409])
async def retry_delivery(request: Req, id: Id) -> Repeated:  # noqa: A002
    """One that waits for its next attempt, or was given up."""
    parts, caller = parts_of(request), caller_of(request)
    found = await visible_delivery(parts, caller, id)
    caller.check_writable(found.tenant_id)
    count = await parts.deliveries.retry([id], tenant_id=found.tenant_id)
    if not count:
        raise ApiError(409, "not_retryable", "It is delivered, waits behind another one, or is tried just now.")
    await note_alone(parts.store, found.tenant_id, caller.actor, "delivery.retry", id)
    parts.wake_outbox()
    return Repeated(count=count)


@route(
    "POST", "/v1/deliveries/replay", scope="deliveries:replay", summary="Make settled deliveries again", errors=[404]
)
async def replay_deliveries(request: Req, data: JSONBody[ReplayBody], tenant_id: TenantId = None) -> Repeated:
    """With the same ids, in their old order, so that receivers know them again."""
    parts, caller = parts_of(request), caller_of(request)
    if data == ReplayBody():
        raise ApiError(422, "invalid", "Say which deliveries: give at least one field.")
    owner = caller.tenant(tenant_id)
    if owner is not None:
        caller.check_writable(owner)
    hook_owner = None if caller.sees_all else caller.tenant_id
    which = DeliveryFilter(tenant_id=owner, owner_id=hook_owner, **msgspec.structs.asdict(data))
    count = await parts.deliveries.replay(which)
    detail = {"count": count, "which": msgspec.to_builtins(data)}
    await note_alone(parts.store, owner or "", caller.actor, "delivery.replay", str(count), detail=detail)
    parts.wake_outbox()
    return Repeated(count=count)


@route("GET", "/v1/endpoints", scope="operations:read", summary="List endpoints that have failed", errors=[404])
async def list_endpoints(request: Req, tenant_id: TenantId = None) -> list[StoredEndpoint]:
    """Of those that never failed, nothing is known."""
    caller = caller_of(request)
    owner = None if caller.sees_all else caller.tenant_id
    return await parts_of(request).deliveries.endpoints(caller.tenant(tenant_id), owner_id=owner)


@route(
    "POST",
    "/v1/endpoints/enable",
    scope="deliveries:replay",
    summary="Send to an endpoint again",
    status_code=204,
    errors=[404],
)
async def enable_endpoint(request: Req, data: JSONBody[EndpointBody]) -> None:
    """What was given up stays so, until it is replayed."""
    parts, caller = parts_of(request), caller_of(request)
    owner = caller.own(data.tenant_id)
    shown = await parts.deliveries.endpoints(owner, owner_id=None if caller.sees_all else caller.tenant_id)
    if data.url not in [each.url for each in shown] or not await parts.deliveries.enable(owner, data.url):
        raise not_found("There is no endpoint of that address that has failed.")
    await note_alone(parts.store, owner, caller.actor, "endpoint.enable", data.url)
    parts.wake_outbox()


async def visible_delivery(parts: Parts, caller: Caller, id: str) -> StoredDelivery:  # noqa: A002
    """A delivery that the caller sees.

    Raises:
        ApiError: 404, if there is none, or it is somebody else's.
    """
    found = await parts.deliveries.delivery(id)
    if found is None:
        raise not_found()
    caller.check_visible(found.tenant_id)
    caller.check_visible(found.owner_id)  # where a system hook delivers is no business of a tenant
    return found


DELIVERY_ROUTES = [
    list_deliveries,
    read_delivery,
    retry_delivery,
    replay_deliveries,
    list_endpoints,
    enable_endpoint,
]
