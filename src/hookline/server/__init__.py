"""The HTTP API: stored hooks, operations, approvals and deliveries, for many tenants."""

from importlib import import_module

from hookline.errors import MissingExtraError

try:
    for needed in ("litestar", "uvicorn"):
        import_module(needed)
except ImportError as error:
    raise MissingExtraError("server", "The HTTP API") from error

from hookline.server._app import create_app
from hookline.server._audit import note_alone as note_alone
from hookline.server._callers import SCOPES, Caller, Scope
from hookline.server._keys import ApiKey, KeyStore, NewApiKey
from hookline.server._parts import Parts as Parts
from hookline.server._rates import RateLimit
from hookline.server._serving import Server, serve
from hookline.server._serving import default_key_file as default_key_file
from hookline.server.routes import Decided as Decided
from hookline.server.routes import DecisionBody as DecisionBody
from hookline.server.routes import MadeDecision as MadeDecision
from hookline.server.routes import decide as decide
from hookline.server.routes import decider_of as decider_of
from hookline.server.routes import decisions_about as decisions_about

__all__ = ["SCOPES", "ApiKey", "Caller", "KeyStore", "NewApiKey", "RateLimit", "Scope", "Server", "create_app", "serve"]
