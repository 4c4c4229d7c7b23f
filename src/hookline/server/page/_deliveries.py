"""Views of deliveries and of the endpoints that they go to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from litestar import Response, get, post
from sqlalchemy import ColumnElement

from hookline.server._audit import note_alone
from hookline.server._callers import Req, caller_of
from hookline.server.page._frame import frame_of
from hookline.server.routes import EndpointBody, Id, enable_endpoint, list_endpoints, retry_delivery, visible_delivery
from hookline.store import DeliveryFilter, DeliveryStatus, deliveries

__all__ = ["ROUTES"]

ROWS = 100
STATUSES: tuple[DeliveryStatus, ...] = get_args(DeliveryStatus)
READS, REPEATS = {"scope": "operations:read"}, {"scope": "deliveries:replay"}


class One(DeliveryFilter, frozen=True, kw_only=True):
    """A single delivery.

    Attributes:
        id: Which.
    """

    id: str

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """What it means in SQL."""
        yield deliveries.c.id == self.id


@get("/deliveries", opt=READS)
async def shown(request: Req) -> Response[str]:
    """Deliveries, the newest first."""
    frame = frame_of(request)
    names = ("status", "endpoint", "operation", "hook", "tenant", "cursor")
    asked = {name: request.query_params.get(name) or None for name in names}
    tenant_id = caller_of(request).tenant(asked["tenant"])
    caller = caller_of(request)
    which = DeliveryFilter(
        tenant_id=tenant_id,
        owner_id=None if caller.sees_all else caller.tenant_id,
        status=next((each for each in STATUSES if each == asked["status"]), None),
        endpoint=asked["endpoint"],
        operation_id=asked["operation"],
        hook_id=asked["hook"],
    )
    page = await frame.parts.deliveries.page(which, cursor=asked["cursor"], limit=ROWS)
    counts = await frame.parts.deliveries.counts(tenant_id)
    return frame.page(request, "deliveries.html", page=page, asked=asked, counts=counts, statuses=STATUSES)


@get("/deliveries/{id:str}", opt=READS)
async def one(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """One delivery, with all attempts at it."""
    frame = frame_of(request)
    delivery = await visible_delivery(frame.parts, caller_of(request), id)
    payload = await frame.parts.deliveries.payload(id)
    attempts = await frame.parts.deliveries.attempts(id)
    return frame.page(request, "delivery.html", delivery=delivery, attempts=attempts, payload=payload or b"{}")


@post("/deliveries/{id:str}/retry", opt=REPEATS)
async def retry(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Try a delivery now."""
    frame = frame_of(request)
    fields = await frame.fields(request)
    await retry_delivery.fn(request, id)
    return frame.to(request, _back(fields, id), notice="retried")


@post("/deliveries/{id:str}/replay", opt=REPEATS)
async def replay(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Make a delivery again."""
    frame, caller = frame_of(request), caller_of(request)
    fields = await frame.fields(request)
    found = await visible_delivery(frame.parts, caller, id)
    caller.check_writable(found.tenant_id)
    if not await frame.parts.deliveries.replay(One(id=id)):
        return frame.to(request, _back(fields, id), notice="nothing")
    await note_alone(frame.parts.store, found.tenant_id, caller.actor, "delivery.replay", id)
    frame.parts.wake_outbox()
    return frame.to(request, _back(fields, id), notice="replayed")


@get("/endpoints", opt=READS)
async def endpoints(request: Req) -> Response[str]:
    """Endpoints that have failed."""
    frame = frame_of(request)
    found = await list_endpoints.fn(request, tenant_id=request.query_params.get("tenant") or None)
    return frame.page(request, "endpoints.html", endpoints=found, now=await frame.parts.store.now())


@post("/endpoints", opt=REPEATS)
async def enable(request: Req) -> Response[str]:
    """Send to an endpoint again."""
    frame = frame_of(request)
    fields = await frame.fields(request)
    await enable_endpoint.fn(request, EndpointBody(url=fields.get("url", ""), tenant_id=fields.get("tenant")))
    return frame.to(request, "/endpoints", notice="enabled")


def _back(fields: dict[str, str], id: Id) -> str:  # noqa: A002
    return f"/deliveries/{id}" if fields.get("from") == "one" else "/deliveries"


ROUTES = [shown, one, retry, replay, endpoints, enable]
