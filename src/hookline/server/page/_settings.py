"""View of the settings of the server. All of them are read-only: they are configured in code or by `hookline serve`."""

from __future__ import annotations

from litestar import Response, get

from hookline.bus import Bus, NatsBus, decision_figures
from hookline.relay import list_dead_letters, relay_status
from hookline.server._callers import Req, caller_of
from hookline.server._server_description import describe_server
from hookline.server.page._context import context_of
from hookline.server.page._sessions import SESSION_SECONDS

__all__ = ["ROUTES"]

SHOWN = 20
"""Dead letters that are shown at most."""
WAKEUPS = {
    "postgresql": "PostgreSQL (LISTEN and NOTIFY)",
    "nats": "NATS",
    "file": "times of the database's files",
    "polling": "polling",
    "other": "an own implementation",
}
"""How processes tell each other of changes, in words."""


@get("/settings", opt={"scope": "hooks:admin"})
async def show_settings(request: Req) -> Response[str]:
    """Show what the server is, and what it was configured with."""
    context = context_of(request)
    server = await describe_server(context.parts, caller_of(request))
    readiness = None if server.system is None else await context.parts.store_check.check()
    bus = None if server.system is None else context.parts.store.wakeups
    return context.render_page(
        request,
        "settings.html",
        server=server,
        settings=server.settings,
        system=server.system,
        wakeups=WAKEUPS,
        session_hours=SESSION_SECONDS // 3600,
        waiting_for_hooks=readiness or {},
        bus=bus if isinstance(bus, NatsBus) else None,
        decisions=sorted(decision_figures(bus).items()) if isinstance(bus, Bus) else [],
        relay=None if server.system is None else await relay_status(context.parts.store),
        dead_letters=[] if server.system is None else await list_dead_letters(context.parts.store, limit=SHOWN),
        api=request.scope["state"].get("hookline_root", ""),
    )


ROUTES = [show_settings]
