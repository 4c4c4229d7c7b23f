"""View of budgets across runs: what each has used, reserved and left, by key and window."""

from __future__ import annotations

from litestar import Response, get

from hookline.server._callers import Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._context import context_of

__all__ = ["ROUTES"]

ROWS = 200
LONGEST = 400
FILTERS = ("budget", "tenant", "ended")
WINDOWS = {"1h": "hour", "1d": "day", "month": "month", None: "all time"}
"""The kinds of windows, in words."""


@get("/budgets", opt={"scope": "operations:read"})
async def show_budgets(request: Req) -> Response[str]:
    """Show the windows of budgets, those that changed last first."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in FILTERS}
    if any(len(value or "") > LONGEST for value in asked.values()):
        raise ApiError(422, "invalid", f"A filter can have at most {LONGEST} characters.")
    store = context.parts.store
    found = await store.budgets(
        tenant_id=caller.tenant(asked["tenant"]),
        budget_id=asked["budget"],
        open_only=asked["ended"] is None,
        limit=ROWS + 1,
    )
    return context.render_page(
        request,
        "budgets.html",
        budgets=found[:ROWS],
        more=len(found) > ROWS,
        now=await store.now(),
        windows=WINDOWS,
        asked=asked,
        tenants=await context.known_tenants(caller),
        is_filtered=any(asked.values()),
    )


ROUTES = [show_budgets]
