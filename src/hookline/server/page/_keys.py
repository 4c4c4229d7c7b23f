"""Views of API keys: list, create, rotate and revoke them."""

from __future__ import annotations

import math
from typing import Any, get_args

from litestar import Response, get, post

from hookline.server._callers import SCOPES, Caller, Req, Scope, caller_of, not_found_error
from hookline.server._keys import ApiKey, KeyState, state_of
from hookline.server._problems import ApiError, FieldProblem
from hookline.server.page._context import PageContext, context_of
from hookline.server.page._forms import read_choices, read_form
from hookline.server.page._once import claim_form, make_form_id, release_form
from hookline.server.routes import Id, KeyBody, RotateKeyBody, create_key, revoke_key, rotate_key

__all__ = ["ROUTES"]

ROWS = 200
LONGEST_NAME = 200
LONGEST_SECONDS = 1e9
ADMINISTERS = {"scope": "hooks:admin"}
STATES: tuple[KeyState, ...] = get_args(KeyState)
EMPTY = {"name": "", "tenant": "", "amount": "", "unit": "days", "overlap": "86400"}
"""The fields of the forms before anything is typed."""
UNITS = {"hours": 3600.0, "days": 86_400.0}
OVERLAPS = {
    "0": "at once",
    "3600": "after an hour",
    "86400": "after a day",
    "604800": "after a week",
    "2592000": "after 30 days",
}
"""When an old key ends after a rotation: seconds, and their names."""
MEANINGS: dict[str, str] = {
    "hooks:read": "See hooks, their executions and statistics.",
    "hooks:manage": "Create, change and delete hooks, and the signing secrets of endpoints.",
    "hooks:admin": "Administer keys and read the audit log. With a key of the system: for all tenants.",
    "operations:read": "See operations, waiting calls, deliveries and endpoints.",
    "operations:manage": "Interrupt and retry operations.",
    "approvals:decide": "Approve and reject calls that wait for a person.",
    "deliveries:replay": "Deliver again, and enable endpoints.",
}
"""What each scope allows, in words."""


@get("/keys", opt=ADMINISTERS)
async def show_keys(request: Req) -> Response[str]:
    """Show the newest keys, also those that have expired or were revoked."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("state", "tenant", "text")}
    if len(asked["text"] or "") > LONGEST_NAME:
        raise ApiError(422, "invalid", f"The text can have at most {LONGEST_NAME} characters.")
    keys = context.parts.keys
    state = next((each for each in STATES if each == asked["state"]), None)
    found = await keys.newest(caller.tenant(asked["tenant"]), state=state, text=asked["text"], limit=ROWS + 1)
    now = await context.parts.store.now()
    return context.render_page(
        request,
        "keys/keys.html",
        keys=[(each, state_of(each, now)) for each in found[:ROWS]],
        more=len(found) > ROWS,
        asked=asked,
        states=[(each, each) for each in STATES],
        tenants=await keys.tenants() if caller.sees_all else [],
        is_filtered=any(asked.values()),
        meanings=MEANINGS,
    )


@get("/keys/new", opt=ADMINISTERS)
async def show_form(request: Req) -> Response[str]:
    """Show the form that creates a key."""
    fields = {"tenant": caller_of(request).tenant_id, "amount": "90", "unit": "days"}
    return await _render_form(request, fields, chosen=())


@post("/keys", opt=ADMINISTERS)
async def make_key(request: Req) -> Response[str]:
    """Create a key, and show it once."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    chosen = await read_choices(request, "scope")
    try:
        body = KeyBody(
            name=_parse_name(fields.get("name", "")),
            scopes=_parse_scopes(chosen),
            tenant_id=_parse_tenant(caller, fields.get("tenant", "")),
            expires_in_seconds=_parse_expiry(fields),
        )
        made = await _carry_out(context, caller, fields, create_key.fn(request, data=body))
    except ApiError as refusal:
        return await _render_form(request, fields, chosen=chosen, problem=refusal)
    return context.render_page(request, "keys/made.html", made=made, old=None, overlap="")


@get("/keys/{id:str}/rotate", opt=ADMINISTERS)
async def show_rotation(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show the form that rotates a key."""
    return await _render_rotation(request, id, {"overlap": "86400", "amount": "", "unit": "days"})


@post("/keys/{id:str}/rotate", opt=ADMINISTERS)
async def replace_key(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Create a key with the same rights, show it once, and let the old one expire."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    old = await _read_key(context, caller, id)
    try:
        if fields.get("overlap") not in OVERLAPS:
            raise ApiError(422, "invalid", "Choose when the old key ends.")
        body = RotateKeyBody(overlap_seconds=float(fields["overlap"]), expires_in_seconds=_parse_expiry(fields))
        made = await _carry_out(context, caller, fields, rotate_key.fn(request, id=id, data=body))
    except ApiError as refusal:
        return await _render_rotation(request, id, fields, problem=refusal)
    return context.render_page(request, "keys/made.html", made=made, old=old, overlap=OVERLAPS[fields["overlap"]])


@get("/keys/{id:str}/revoke", opt=ADMINISTERS)
async def confirm_revocation(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Ask whether a key is to be revoked, and say what that means."""
    context, caller = context_of(request), caller_of(request)
    key = await _read_key(context, caller, id)
    state = state_of(key, await context.parts.store.now())
    return context.render_page(request, "keys/revoke.html", key=key, state=state)


@post("/keys/{id:str}/revoke", opt=ADMINISTERS)
async def end_key(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Revoke a key."""
    context = context_of(request)
    await read_form(request)
    await revoke_key.fn(request, id=id)
    return context.redirect(request, "/keys", notice="revoked")


async def _carry_out(context: PageContext, caller: Caller, fields: dict[str, str], work: Any) -> Any:
    """Create a key for a form, once for each copy of it.

    Raises:
        ApiError: If the form was sent before, or the creation is refused.
    """
    form_id = fields.get("form", "")
    try:
        await claim_form(context.parts.store, caller, form_id)
    except BaseException:
        work.close()
        raise
    try:
        return await work
    except BaseException:
        await release_form(context.parts.store, caller, form_id)
        raise


async def _read_key(context: PageContext, caller: Caller, id: Id) -> ApiKey:  # noqa: A002
    """Read a key that the caller may see.

    Raises:
        ApiError: 404, if there is no such key, or it is another tenant's.
    """
    found = await context.parts.keys.get(id, caller.tenant())
    if found is None:
        raise not_found_error()
    return found


async def _render_form(
    request: Req, fields: dict[str, str], *, chosen: Any, problem: ApiError | None = None
) -> Response[str]:
    """Show the form that creates a key, with what was typed and what is wrong with it."""
    context, caller = context_of(request), caller_of(request)
    grantable = [each for each in SCOPES if each in caller.scopes]
    return context.render_page(
        request,
        "keys/new.html",
        status=200 if problem is None else problem.status,
        fields=EMPTY | fields,
        chosen=set(chosen),
        problem=problem,
        scopes=[(each, MEANINGS.get(each, "")) for each in grantable],
        withheld=[each for each in SCOPES if each not in caller.scopes],
        tenants=await context.parts.keys.tenants() if caller.sees_all else [],
        units=UNITS,
        form_id=make_form_id(),
    )


async def _render_rotation(
    request: Req,
    id: Id,  # noqa: A002
    fields: dict[str, str],
    *,
    problem: ApiError | None = None,
) -> Response[str]:
    """Show the form that rotates a key."""
    context, caller = context_of(request), caller_of(request)
    key = await _read_key(context, caller, id)
    return context.render_page(
        request,
        "keys/rotate.html",
        status=200 if problem is None else problem.status,
        key=key,
        state=state_of(key, await context.parts.store.now()),
        missing=sorted(set(key.scopes) - caller.scopes),
        fields=EMPTY | fields,
        problem=problem,
        overlaps=OVERLAPS,
        units=UNITS,
        meanings=MEANINGS,
        form_id=make_form_id(),
    )


def _field_error(field: str, detail: str) -> ApiError:
    """Build the error for a field of a form."""
    return ApiError(422, "invalid", detail, errors=(FieldProblem(detail=detail, parameter=field),))


def _parse_name(text: str) -> str:
    """Check the name of a key.

    Raises:
        ApiError: 422, if it is invalid.
    """
    name = text.strip()
    if not name:
        raise _field_error("name", "Give the key a name, such as the person or the program that will use it.")
    if len(name) > LONGEST_NAME:
        raise _field_error("name", f"The name can have {LONGEST_NAME} characters; this one has {len(name):,}.")
    if any(character < " " or character == "\x7f" for character in name):
        raise _field_error("name", "The name has a line break or a control character; remove it.")
    return name


def _parse_scopes(chosen: list[str]) -> list[Scope]:
    """Check the chosen scopes.

    Raises:
        ApiError: 422, if there is none or an unknown one.
    """
    found = [each for each in SCOPES if each in chosen]
    if not found or set(chosen) - set(SCOPES):
        raise _field_error("scope", "Choose at least one scope: a key without scopes cannot do anything.")
    return found


def _parse_tenant(caller: Caller, text: str) -> str:
    """Check the tenant of a new key.

    Raises:
        ApiError: 422, if its name is invalid.
    """
    name = text.strip() if caller.sees_all else caller.tenant_id
    if len(name) > 400 or any(character < " " or character == "\x7f" for character in name):
        raise _field_error("tenant", "The name of a tenant has at most 400 characters, and no control characters.")
    return name


def _parse_expiry(fields: dict[str, str]) -> float | None:
    """Return in how many seconds a new key expires; `None` if the form leaves it empty.

    Raises:
        ApiError: 422, if it is no number, or too large.
    """
    text = fields.get("amount", "").strip()
    if not text:
        return None
    try:
        seconds = float(text) * UNITS[fields.get("unit", "days")]
    except (ValueError, KeyError):
        raise _field_error("amount", "The time until the key expires must be a number of hours or days.") from None
    if not math.isfinite(seconds) or not 0 < seconds <= LONGEST_SECONDS:
        raise _field_error("amount", "The time until the key expires must be more than zero and less than 30 years.")
    return seconds


ROUTES = [
    show_keys,
    show_form,
    make_key,
    show_rotation,
    replace_key,
    confirm_revocation,
    end_key,
]
