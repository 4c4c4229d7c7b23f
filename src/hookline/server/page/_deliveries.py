"""Views of deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from litestar import Response, get, post
from sqlalchemy import ColumnElement

from hookline.server._audit import write_audit_alone
from hookline.server._callers import Req, caller_of
from hookline.server.page._context import context_of
from hookline.server.page._forms import read_form
from hookline.server.page._hook_names import find_hook_names
from hookline.server.routes import Id, read_visible_delivery, retry_delivery
from hookline.store import DeliveryFilter, DeliveryStatus, deliveries

__all__ = ["ROUTES"]

ROWS = 100
STATUSES: tuple[DeliveryStatus, ...] = get_args(DeliveryStatus)
READS, REPEATS = {"scope": "operations:read"}, {"scope": "deliveries:replay"}


class SingleDelivery(DeliveryFilter, frozen=True, kw_only=True):
    """A filter that matches a single delivery.

    Attributes:
        id: The id of the delivery.
    """

    id: str

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        yield deliveries.c.id == self.id


@get("/deliveries", opt=READS)
async def show_deliveries(request: Req) -> Response[str]:
    """Show the list of deliveries, newest first."""
    context = context_of(request)
    names = ("status", "endpoint", "operation", "hook", "tenant", "cursor")
    asked = {name: request.query_params.get(name) or None for name in names}
    caller = caller_of(request)
    tenant_id = caller.tenant(asked["tenant"])
    which = DeliveryFilter(
        tenant_id=tenant_id,
        owner_id=None if caller.sees_all else caller.tenant_id,
        status=next((each for each in STATUSES if each == asked["status"]), None),
        endpoint=asked["endpoint"],
        operation_id=asked["operation"],
        hook_id=asked["hook"],
    )
    page = await context.parts.deliveries.page(which, cursor=asked["cursor"], limit=ROWS)
    counts = await context.parts.deliveries.counts(tenant_id)
    return context.render_page(
        request,
        "deliveries/deliveries.html",
        page=page,
        asked=asked,
        counts=counts,
        statuses=STATUSES,
        hooks=await find_hook_names(context.parts, caller, tenant_id),
        tenants=await context.known_tenants(caller),
    )


@get("/deliveries/{id:str}", opt=READS)
async def show_delivery(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show one delivery with its attempts."""
    context = context_of(request)
    delivery = await read_visible_delivery(context.parts, caller_of(request), id)
    payload = await context.parts.deliveries.payload(id)
    attempts = await context.parts.deliveries.attempts(id)
    return context.render_page(
        request,
        "deliveries/delivery.html",
        delivery=delivery,
        attempts=attempts,
        payload=payload or b"{}",
        hooks=await find_hook_names(context.parts, caller_of(request), delivery.tenant_id),
    )


@post("/deliveries/{id:str}/retry", opt=REPEATS)
async def retry_now(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Try a delivery now."""
    context = context_of(request)
    fields = await read_form(request)
    await retry_delivery.fn(request, id)
    return context.redirect(request, _return_path(fields, id), notice="retried")


@post("/deliveries/{id:str}/replay", opt=REPEATS)
async def replay_delivery(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Replay a delivery."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    found = await read_visible_delivery(context.parts, caller, id)
    caller.check_writable(found.tenant_id)
    if not await context.parts.deliveries.replay(SingleDelivery(id=id)):
        return context.redirect(request, _return_path(fields, id), notice="nothing")
    await write_audit_alone(context.parts.store, found.tenant_id, caller.actor, "delivery.replay", id)
    return context.redirect(request, _return_path(fields, id), notice="replayed")


def _return_path(fields: dict[str, str], id: Id) -> str:  # noqa: A002
    return f"/deliveries/{id}" if fields.get("from") == "one" else "/deliveries"


ROUTES = [show_deliveries, show_delivery, retry_now, replay_delivery]
