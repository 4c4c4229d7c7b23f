"""The HTTP API: stored hooks, operations, approvals and deliveries, for many tenants."""

from importlib import import_module

from hookline.errors import MissingExtraError

try:
    for needed in ("litestar", "uvicorn"):
        import_module(needed)
except ImportError as error:
    raise MissingExtraError("server", "The HTTP API") from error

from hookline.server._access import SCOPES, Caller, Scope
from hookline.server._app import create_app
from hookline.server._keys import ApiKey, KeyStore, NewApiKey
from hookline.server._rates import RateLimit
from hookline.server._serving import Server, serve

__all__ = ["SCOPES", "ApiKey", "Caller", "KeyStore", "NewApiKey", "RateLimit", "Scope", "Server", "create_app", "serve"]
