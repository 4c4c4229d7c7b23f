"""The routes of the HTTP API, in a module for each kind of object; here they come together."""

from litestar.handlers import HTTPRouteHandler

from hookline.server.routes._approvals import APPROVAL_ROUTES
from hookline.server.routes._approvals import ApprovalFilter as ApprovalFilter
from hookline.server.routes._approvals import Decided as Decided
from hookline.server.routes._approvals import DecisionBody as DecisionBody
from hookline.server.routes._approvals import MadeDecision as MadeDecision
from hookline.server.routes._approvals import PendingApproval as PendingApproval
from hookline.server.routes._approvals import describe_decider as describe_decider
from hookline.server.routes._approvals import find_decisions as find_decisions
from hookline.server.routes._approvals import find_pending_approvals as find_pending_approvals
from hookline.server.routes._approvals import list_approvals_of as list_approvals_of
from hookline.server.routes._approvals import store_decision as store_decision
from hookline.server.routes._deliveries import DELIVERY_ROUTES
from hookline.server.routes._deliveries import EndpointBody as EndpointBody
from hookline.server.routes._deliveries import enable_endpoint as enable_endpoint
from hookline.server.routes._deliveries import list_endpoints as list_endpoints
from hookline.server.routes._deliveries import read_visible_delivery as read_visible_delivery
from hookline.server.routes._deliveries import retry_delivery as retry_delivery
from hookline.server.routes._endpoints import ENDPOINT_ROUTES
from hookline.server.routes._health import HEALTH_ROUTES
from hookline.server.routes._health import PUBLIC as PUBLIC
from hookline.server.routes._hook_bodies import Switching as Switching
from hookline.server.routes._hook_bodies import Trial as Trial
from hookline.server.routes._hooks import HOOK_ROUTES
from hookline.server.routes._hooks import list_hooks as list_hooks
from hookline.server.routes._hooks import read_visible as read_visible
from hookline.server.routes._hooks import toggle_hook as toggle_hook
from hookline.server.routes._hooks import try_hook as try_hook
from hookline.server.routes._keys import KEY_ROUTES
from hookline.server.routes._logs import LOG_ROUTES
from hookline.server.routes._operations import OPERATION_ROUTES
from hookline.server.routes._operations import read_visible_operation as read_visible_operation
from hookline.server.routes._shared import Id as Id
from hookline.server.routes._streams import PING as PING
from hookline.server.routes._streams import SILENCE_SECONDS as SILENCE_SECONDS
from hookline.server.routes._streams import STREAM_ROUTES
from hookline.server.routes._streams import stream_response as stream_response

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
"""Handlers of OPTIONS, to be registered before the routes: Litestar would allow only the first route's methods."""
