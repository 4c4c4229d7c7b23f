"""The HTTP API and web page: stored hooks, operations, approvals and deliveries, for many tenants."""

from importlib import import_module

from hookline.errors import MissingExtraError

try:
    for needed in ("litestar", "uvicorn"):
        import_module(needed)
except ImportError as error:
    raise MissingExtraError("server", "The HTTP API") from error

from hookline.server._app import create_app
from hookline.server._audit import AuditEntry as AuditEntry
from hookline.server._audit import AuditFilter as AuditFilter
from hookline.server._audit import export_audit as export_audit
from hookline.server._audit import read_audit as read_audit
from hookline.server._audit import search_audit as search_audit
from hookline.server._audit import write_audit_alone as write_audit_alone
from hookline.server._callers import SCOPES, Caller, Scope
from hookline.server._keys import ApiKey, KeyStore, NewApiKey
from hookline.server._parts import ServerParts as ServerParts
from hookline.server._rates import RateLimit
from hookline.server._serving import Server, serve
from hookline.server._serving import default_key_file as default_key_file
from hookline.server.routes import ApprovalFilter as ApprovalFilter
from hookline.server.routes import Decided as Decided
from hookline.server.routes import DecisionBody as DecisionBody
from hookline.server.routes import MadeDecision as MadeDecision
from hookline.server.routes import PendingApproval as PendingApproval
from hookline.server.routes import describe_decider as describe_decider
from hookline.server.routes import find_decisions as find_decisions
from hookline.server.routes import find_pending_approvals as find_pending_approvals
from hookline.server.routes import store_decision as store_decision

__all__ = ["SCOPES", "ApiKey", "Caller", "KeyStore", "NewApiKey", "RateLimit", "Scope", "Server", "create_app", "serve"]
