"""The view of the order in which the hooks at a point run, which people change by dragging, keys or buttons."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
from litestar import Response, get, post

from hookline.errors import HookUsageError
from hookline.registry import (
    POINTS,
    DefinitionConflictError,
    DefinitionError,
    DefinitionNotFoundError,
    FenceError,
    HookDefinition,
    is_movable,
    running_order,
)
from hookline.server._actors import describe_actors
from hookline.server._callers import Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._context import context_of
from hookline.server.page._forms import read_form
from hookline.server.page.hooks._fields import POINT_GROUPS
from hookline.server.routes import HookOrder, order_hooks, read_history

__all__ = ["ORDER_ROUTES"]

READS, CHANGES = {"scope": "hooks:read"}, {"scope": "hooks:manage"}
ROWS = 1000
"""Hooks of an owner at a point that are shown; one request may read as many."""
MOST_TOLD = 20
"""Hooks of which a conflict says who has changed them, at most."""
FIRST_POINT = "ToolCall.guard"


@get("/hooks/order", opt=READS)
async def show_order(request: Req) -> Response[str]:
    """Show the hooks at a point in the order in which they run: the system's, then those of a tenant."""
    asked = {name: request.query_params.get(name, "") for name in ("point", "tenant", "fence")}
    return await _render_order(request, asked["point"], asked["tenant"], fence=asked["fence"] == "yes")


@post("/hooks/order", opt=CHANGES)
async def change_order(request: Req) -> Response[str]:
    """Store an order: that of the form, with one hook moved if a button says so."""
    context, caller = context_of(request), caller_of(request)
    fields = await read_form(request)
    point, tenant = fields.get("point", ""), fields.get("tenant", "")
    order = _move(_parse_order(fields.get("order", "")), fields.get("move", ""))
    fence = fields.get("fence") == "yes"
    body = {"point": point, "tenantId": tenant, "hooks": [{"id": id_, "revision": now} for id_, now in order]}
    try:
        await order_hooks.fn(request, msgspec.convert(body, HookOrder), fence=fence)
    except msgspec.ValidationError:
        raise ApiError(422, "invalid", "The order is not one of this view. Reload the page.") from None
    except DefinitionConflictError as error:
        seen = dict(order)
        now = await _read_hooks(request, point, caller.own(tenant))
        if [each.id for each in now] != list(seen):
            problem = await _tell_conflict(request, seen, now, error)
            return await _render_order(request, point, tenant, fence=fence, problem=problem)
    except DefinitionError as error:
        problem = f"{error.problem[:1].upper()}{error.problem[1:]}."
        return await _render_order(request, point, tenant, fence=fence, problem=problem)
    except (FenceError, HookUsageError) as error:
        return await _render_order(request, point, tenant, fence=fence, problem=str(error))
    kept = {"fence": "yes"} if fence else {}  # who moves one hook will often move another
    return context.redirect(request, "/hooks/order", notice="ordered", point=point, tenant=tenant, **kept)


def _parse_order(text: str) -> list[tuple[str, int]]:
    """Parse the ids and revisions of an order: `a:1 b:2`.

    Raises:
        ApiError: 422, if it is none.
    """
    found: list[tuple[str, int]] = []
    for part in text.split():
        id_, _, revision = part.rpartition(":")
        if not id_ or not (revision.isascii() and revision.isdigit()) or len(revision) > 16:
            raise ApiError(422, "invalid", "The order is not one of this view. Reload the page.")
        found.append((id_, int(revision)))
    return found


def _move(order: list[tuple[str, int]], move: str) -> list[tuple[str, int]]:
    """Move one hook a place earlier or later: `earlier:a`."""
    way, _, id_ = move.partition(":")
    place = next((nth for nth, each in enumerate(order) if each[0] == id_), None)
    if place is None or way not in ("earlier", "later"):
        return order
    target = min(max(place + (1 if way == "later" else -1), 0), len(order) - 1)
    moved = list(order)
    moved.insert(target, moved.pop(place))
    return moved


async def _tell_conflict(
    request: Req, seen: dict[str, int], now: Sequence[HookDefinition], error: DefinitionConflictError
) -> str:
    """Say what has changed since an order was shown, and who has changed it."""
    there = {each.id: each for each in now}
    new = [(each.id, f"{each.name!r} is new here") for each in now if each.id not in seen]
    changed = [
        (each.id, f"{each.name!r} was changed (priority {each.priority})")
        for each in now
        if each.id in seen and each.revision != seen[each.id]
    ]
    gone = [(id_, f"{id_!r} is gone") for id_ in seen if id_ not in there]
    who = await _describe_changers(request, [id_ for id_, _ in (*new, *changed, *gone)][:MOST_TOLD])
    told = "; ".join(f"{what}{who.get(id_, '')}" for id_, what in (*new, *changed, *gone)) or error.problem
    return f"The order has changed in the meantime: {told}. This is the order now; nothing of yours was stored."


async def _describe_changers(request: Req, ids: Sequence[str]) -> dict[str, str]:
    """Return who has made the last change of hooks, by their ids: `" by Carol (API key 1f)"`."""
    context, caller = context_of(request), caller_of(request)
    actors: dict[str, str] = {}
    for id_ in ids:
        with suppress(ApiError, DefinitionNotFoundError):
            history = await read_history(context.parts.registry, caller, id_, caller.tenant(), limit=1)
            actors |= {each.id: each.actor for each in history.items}
    names = await describe_actors(context.parts, caller, set(actors.values()))
    return {id_: f" by {names[actor]}" for id_, actor in actors.items()}


async def _read_hooks(request: Req, point: str, owner: str) -> list[HookDefinition]:
    """Read the hooks of an owner at a point, in the order in which they run."""
    registry = context_of(request).parts.registry
    page = await registry.list(owner, point=point, limit=ROWS)
    found = [each for each in page.items if each.tenant_id == owner]
    while page.cursor is not None and len(found) < ROWS:
        page = await registry.list(owner, point=point, limit=ROWS, cursor=page.cursor)
        found += [each for each in page.items if each.tenant_id == owner]
    return sorted(found, key=running_order)


async def _render_order(
    request: Req, point: str, tenant: str, *, fence: bool = False, problem: str = ""
) -> Response[str]:
    context, caller = context_of(request), caller_of(request)
    point = point if point in POINTS else FIRST_POINT
    owner = caller.tenant(tenant) or "" if caller.sees_all else caller.tenant_id
    if not caller.sees_all:
        caller.tenant(tenant or None)
    own = await _read_hooks(request, point, owner)
    before = await _read_hooks(request, point, "") if owner and caller.sees_all else []
    return context.render_page(
        request,
        "hooks/order.html",
        status=409 if problem else 200,
        own=own,
        before=before,
        movable={each.id for each in own if is_movable(each)},
        order=" ".join(f"{each.id}:{each.revision}" for each in own),
        asked={"point": point, "tenant": owner},
        points=POINT_GROUPS,
        tenants=context.parts.registry.tenants() if caller.sees_all else [],
        may_change=caller.sees_all or bool(owner),
        problem=problem,
        fence=fence,
    )


ORDER_ROUTES = [show_order, change_order]
