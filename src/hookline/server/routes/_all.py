"""All routes of the API, but for that of its own description, and what is answered to who asks for the methods."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from hookline.server.routes._approvals import APPROVAL_ROUTES
from hookline.server.routes._deliveries import DELIVERY_ROUTES
from hookline.server.routes._endpoints import ENDPOINT_ROUTES
from hookline.server.routes._health import HEALTH_ROUTES
from hookline.server.routes._hooks import HOOK_ROUTES
from hookline.server.routes._keys import KEY_ROUTES
from hookline.server.routes._logs import LOG_ROUTES
from hookline.server.routes._operations import OPERATION_ROUTES
from hookline.server.routes._streams import STREAM_ROUTES

__all__ = ["OPTIONS", "ROUTES"]

ROUTES = [
    *HOOK_ROUTES,
    *LOG_ROUTES,
    *OPERATION_ROUTES,
    *APPROVAL_ROUTES,
    *STREAM_ROUTES,
    *DELIVERY_ROUTES,
    *ENDPOINT_ROUTES,
    *KEY_ROUTES,
    *HEALTH_ROUTES,
]


def _options(path: str, methods: list[str]) -> HTTPRouteHandler:
    async def options() -> None:
        return None

    allow = {"Allow": ", ".join([*methods, "OPTIONS"])}
    return HTTPRouteHandler(
        path, http_method=["OPTIONS"], status_code=204, include_in_schema=False, response_headers=allow
    )(options)


def _methods_by_path() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for handler in ROUTES:
        for path in handler.paths:
            found.setdefault(path, []).extend(sorted(handler.http_methods))
    return found


OPTIONS = [_options(path, methods) for path, methods in _methods_by_path().items()]
"""To be registered before the routes: the framework would name the methods of the first route of a path alone."""
