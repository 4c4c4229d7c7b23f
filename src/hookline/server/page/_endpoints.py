"""Views of endpoints: their state, the hooks that deliver to them, and the secrets that sign deliveries."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post

from hookline.delivery import EndpointSecret, normalize_endpoint
from hookline.server._callers import Caller, Req, caller_of, not_found_error
from hookline.server._problems import ApiError
from hookline.server.page._context import PageContext, context_of
from hookline.server.page._forms import read_form
from hookline.server.page._once import claim_form, make_form_id, release_form
from hookline.server.routes import (
    EndpointBody,
    Id,
    KnownEndpoint,
    SecretBody,
    enable_endpoint,
    find_endpoints,
    revoke_secret,
    rotate_secret,
)
from hookline.store import DeliveryFilter

__all__ = ["ROUTES"]

ROWS, LAST_DELIVERIES = 200, 10
LONGEST_URL = 2048
READS, REPEATS, MANAGES = {"scope": "operations:read"}, {"scope": "deliveries:replay"}, {"scope": "hooks:manage"}
STATES = ("ok", "failing", "paused", "disabled")
OVERLAPS = {"0": "at once", "3600": "an hour", "86400": "a day", "604800": "a week", "2592000": "30 days"}
"""For how long old secrets go on signing after a rotation: seconds, and their names."""


@get("/endpoints", opt=READS)
async def show_endpoints(request: Req) -> Response[str]:
    """Show the endpoints to which hooks deliver."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("text", "state", "tenant")}
    known = await find_endpoints(context.parts, caller, asked["tenant"])
    text = (asked["text"] or "").casefold()
    found = [each for each in known if text in each.url.casefold() and asked["state"] in (None, each.state)]
    return context.render_page(
        request,
        "endpoints/endpoints.html",
        endpoints=sorted(found, key=lambda each: STATES.index(each.state), reverse=True)[:ROWS],
        more=len(found) > ROWS,
        asked=asked,
        states=[(each, each) for each in STATES],
        tenants=sorted({*await context.known_tenants(caller), *(each.tenant_id for each in known if each.tenant_id)}),
        is_filtered=any(asked.values()),
        back=context.current_place(request),
    )


@post("/endpoints", opt=REPEATS)
async def enable_again(request: Req) -> Response[str]:
    """Enable an endpoint."""
    context = context_of(request)
    fields = await read_form(request)
    await enable_endpoint.fn(request, EndpointBody(url=fields.get("url", ""), tenant_id=fields.get("tenant")))
    if fields.get("from") == "one":
        return context.redirect(request, "/endpoints/one", **_address(fields), notice="enabled")
    return context.redirect_back(request, fields.get("back", ""), "/endpoints", notice="enabled")


@get("/endpoints/one", opt=READS)
async def show_endpoint(request: Req) -> Response[str]:
    """Show one endpoint with its hooks, its secrets and its last deliveries."""
    return await _render_endpoint(request, dict(request.query_params), {"overlap": "86400"})


@post("/endpoints/secrets", opt=MANAGES)
async def make_secret(request: Req) -> Response[str]:
    """Create a signing secret of an endpoint, and show it once."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    try:
        if fields.get("overlap") not in OVERLAPS:
            raise ApiError(422, "invalid", "Choose for how long the old secrets go on signing.")
        form_id = fields.get("form", "")
        await claim_form(context.parts.store, caller, form_id)
        try:
            body = SecretBody(
                url=fields.get("url", ""),
                tenant_id=fields.get("tenant", ""),
                overlap_seconds=float(fields["overlap"]),
            )
            made = await rotate_secret.fn(request, data=body)
        except BaseException:
            await release_form(context.parts.store, caller, form_id)
            raise
    except ApiError as refusal:
        if refusal.status == 404:
            raise
        return await _render_endpoint(request, fields, fields, problem=refusal)
    back = _address(fields)
    return context.render_page(request, "endpoints/made.html", made=made, overlap=fields["overlap"], back=back)


@get("/endpoints/secrets/{id:str}/revoke", opt=MANAGES)
async def confirm_revocation(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Ask whether a signing secret is to be revoked, and say what that means."""
    context = context_of(request)
    secret, others = await _find_secret(context, caller_of(request), id)
    return context.render_page(request, "endpoints/revoke.html", secret=secret, others=others)


@post("/endpoints/secrets/{id:str}/revoke", opt=MANAGES)
async def end_secret(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Revoke a signing secret."""
    context = context_of(request)
    fields = await read_form(request)
    await revoke_secret.fn(request, id=id)
    return context.redirect(request, "/endpoints/one", **_address(fields), notice="secret-revoked")


async def _find_secret(context: PageContext, caller: Caller, id: Id) -> tuple[EndpointSecret, int]:  # noqa: A002
    """Find a signing secret that the caller may see, and how many others its endpoint has.

    Raises:
        ApiError: 404, if there is no such secret, or it is another tenant's.
    """
    known = await context.parts.secrets.page(caller.tenant())
    found = next((each for each in known if each.id == id), None)
    if found is None:
        raise not_found_error()
    return found, sum((each.tenant_id, each.url) == (found.tenant_id, found.url) for each in known) - 1


async def _render_endpoint(
    request: Req, given: dict[str, Any], fields: dict[str, Any], *, problem: ApiError | None = None
) -> Response[str]:
    """Show one endpoint, perhaps with a form that was refused."""
    context, caller = context_of(request), caller_of(request)
    address = _address(given)
    if not address["url"] or len(address["url"]) > LONGEST_URL:
        raise not_found_error("There is no endpoint of this URL.")
    tenant = caller.tenant(address["tenant"] or None) or ""
    parts = context.parts
    url = normalize_endpoint(address["url"])
    known = await find_endpoints(parts, caller, tenant)
    secrets = await parts.secrets.page(tenant, url=url) if _has_master_key(context) else []
    endpoint = next((each for each in known if normalize_endpoint(each.url) == url), None)
    if endpoint is None and not secrets:
        raise not_found_error("No hook of this tenant delivers to this URL.")
    which = DeliveryFilter(
        tenant_id=None if caller.sees_all and not tenant else tenant,
        owner_id=None if caller.sees_all else caller.tenant_id,
        endpoint=address["url"] if endpoint is None else endpoint.url,
    )
    last = await parts.deliveries.page(which, limit=LAST_DELIVERIES)
    return context.render_page(
        request,
        "endpoints/endpoint.html",
        status=200 if problem is None else problem.status,
        endpoint=endpoint or KnownEndpoint(tenant_id=tenant, url=address["url"]),
        secrets=secrets,
        has_master_key=_has_master_key(context),
        may_change=bool(tenant) or caller.sees_all,
        deliveries=last.items,
        fields={"overlap": "86400"} | fields,
        problem=problem,
        overlaps=OVERLAPS,
        form_id=make_form_id(),
    )


def _address(fields: dict[str, Any]) -> dict[str, str]:
    """Return the fields that identify an endpoint."""
    return {name: str(fields.get(name) or "") for name in ("tenant", "url")}


def _has_master_key(context: PageContext) -> bool:
    outbox = context.parts.outbox
    return outbox is not None and outbox.secrets is not None and outbox.secrets.master is not None


ROUTES = [
    show_endpoints,
    enable_again,
    show_endpoint,
    make_secret,
    confirm_revocation,
    end_secret,
]
