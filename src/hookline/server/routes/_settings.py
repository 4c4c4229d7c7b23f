"""Route that describes the server."""

from __future__ import annotations

from hookline.server._callers import Req, caller_of
from hookline.server._parts import parts_of
from hookline.server._server_description import ServerDescription, describe_server
from hookline.server.routes._shared import route

__all__ = ["SETTINGS_ROUTES"]


@route("GET", "/v1/settings", scope="hooks:admin", summary="Describe the server")
async def read_settings(request: Req) -> ServerDescription:
    """Describe the server process that answers: its version, limits and agents, and its database for administrators."""
    return await describe_server(parts_of(request), caller_of(request))


SETTINGS_ROUTES = [read_settings]
