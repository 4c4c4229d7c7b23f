"""The routes of the HTTP API, in a module for each kind of object; here they come together."""

from litestar.handlers import HTTPRouteHandler

from hookline.server.routes._approvals import APPROVAL_ROUTES
from hookline.server.routes._approvals import ApprovalFilter as ApprovalFilter
from hookline.server.routes._approvals import Decided as Decided
from hookline.server.routes._approvals import DecidedCall as DecidedCall
from hookline.server.routes._approvals import DecidedFilter as DecidedFilter
from hookline.server.routes._approvals import DecisionBody as DecisionBody
from hookline.server.routes._approvals import MadeDecision as MadeDecision
from hookline.server.routes._approvals import PendingApproval as PendingApproval
from hookline.server.routes._approvals import count_waiting_calls as count_waiting_calls
from hookline.server.routes._approvals import describe_decider as describe_decider
from hookline.server.routes._approvals import find_all_decisions as find_all_decisions
from hookline.server.routes._approvals import find_decisions as find_decisions
from hookline.server.routes._approvals import find_pending_approvals as find_pending_approvals
from hookline.server.routes._approvals import list_approvals_of as list_approvals_of
from hookline.server.routes._approvals import store_decision as store_decision
from hookline.server.routes._audit import AUDIT_ROUTES
from hookline.server.routes._audit import export_response as export_response
from hookline.server.routes._audit import key_names_of as key_names_of
from hookline.server.routes._deliveries import DELIVERY_ROUTES
from hookline.server.routes._deliveries import EndpointBody as EndpointBody
from hookline.server.routes._deliveries import enable_endpoint as enable_endpoint
from hookline.server.routes._deliveries import read_visible_delivery as read_visible_delivery
from hookline.server.routes._deliveries import retry_delivery as retry_delivery
from hookline.server.routes._endpoints import ENDPOINT_ROUTES
from hookline.server.routes._endpoints import KnownEndpoint as KnownEndpoint
from hookline.server.routes._endpoints import SecretBody as SecretBody
from hookline.server.routes._endpoints import find_endpoints as find_endpoints
from hookline.server.routes._endpoints import revoke_secret as revoke_secret
from hookline.server.routes._endpoints import rotate_secret as rotate_secret
from hookline.server.routes._health import HEALTH_ROUTES
from hookline.server.routes._health import PUBLIC as PUBLIC
from hookline.server.routes._hook_bodies import BacktestBody as BacktestBody
from hookline.server.routes._hook_bodies import HookChanges as HookChanges
from hookline.server.routes._hook_bodies import HookOrder as HookOrder
from hookline.server.routes._hook_bodies import NewHook as NewHook
from hookline.server.routes._hook_bodies import NewTrial as NewTrial
from hookline.server.routes._hook_bodies import Reverting as Reverting
from hookline.server.routes._hook_bodies import Switching as Switching
from hookline.server.routes._hook_bodies import Trial as Trial
from hookline.server.routes._hook_bodies import WholeHook as WholeHook
from hookline.server.routes._hooks import HOOK_ROUTES
from hookline.server.routes._hooks import change_hook as change_hook
from hookline.server.routes._hooks import create_hook as create_hook
from hookline.server.routes._hooks import delete_hook as delete_hook
from hookline.server.routes._hooks import list_deleted_hooks as list_deleted_hooks
from hookline.server.routes._hooks import list_hooks as list_hooks
from hookline.server.routes._hooks import match_hook as match_hook
from hookline.server.routes._hooks import match_new_hook as match_new_hook
from hookline.server.routes._hooks import order_hooks as order_hooks
from hookline.server.routes._hooks import read_changeable as read_changeable
from hookline.server.routes._hooks import read_history as read_history
from hookline.server.routes._hooks import read_visible as read_visible
from hookline.server.routes._hooks import replace_hook as replace_hook
from hookline.server.routes._hooks import revert_hook as revert_hook
from hookline.server.routes._hooks import start_visible_backtest as start_visible_backtest
from hookline.server.routes._hooks import toggle_hook as toggle_hook
from hookline.server.routes._hooks import try_hook as try_hook
from hookline.server.routes._hooks import try_new_hook as try_new_hook
from hookline.server.routes._keys import KEY_ROUTES
from hookline.server.routes._keys import KeyBody as KeyBody
from hookline.server.routes._keys import RotateKeyBody as RotateKeyBody
from hookline.server.routes._keys import create_key as create_key
from hookline.server.routes._keys import revoke_key as revoke_key
from hookline.server.routes._keys import rotate_key as rotate_key
from hookline.server.routes._logs import LOG_ROUTES
from hookline.server.routes._operation_actions import OPERATION_ACTION_ROUTES
from hookline.server.routes._operation_actions import explain_no_retry as explain_no_retry
from hookline.server.routes._operation_actions import interrupt_stored_operation as interrupt_stored_operation
from hookline.server.routes._operation_actions import retry_stored_operation as retry_stored_operation
from hookline.server.routes._operations import OPERATION_ROUTES
from hookline.server.routes._operations import check_events_visible as check_events_visible
from hookline.server.routes._operations import read_visible_operation as read_visible_operation
from hookline.server.routes._settings import SETTINGS_ROUTES
from hookline.server.routes._shared import Id as Id
from hookline.server.routes._shared import parse_signatures as parse_signatures
from hookline.server.routes._streams import PING as PING
from hookline.server.routes._streams import SILENCE_SECONDS as SILENCE_SECONDS
from hookline.server.routes._streams import STREAM_ROUTES
from hookline.server.routes._streams import stream_response as stream_response

ROUTES = [
    *HOOK_ROUTES,
    *LOG_ROUTES,
    *OPERATION_ROUTES,
    *OPERATION_ACTION_ROUTES,
    *APPROVAL_ROUTES,
    *STREAM_ROUTES,
    *DELIVERY_ROUTES,
    *ENDPOINT_ROUTES,
    *KEY_ROUTES,
    *AUDIT_ROUTES,
    *SETTINGS_ROUTES,
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
