"""Who asks, and what they may: scopes, tenants, and what a handler of a request needs of both."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from hookline.server._problems import ApiError

__all__ = ["SCOPES", "Caller", "Req", "Scope", "caller_of", "check_scope", "demand_scope", "not_found"]

Scope: TypeAlias = Literal[
    "hooks:read", "hooks:manage", "hooks:admin", "operations:read", "approvals:decide", "deliveries:replay"
]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""What a key may allow. Each allows nothing but itself."""

Req: TypeAlias = Request[Any, Any, Any]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever has sent a request.

    Attributes:
        key_id: The key that came with it.
        tenant_id: Whose key it is; `""` is the system.
        scopes: What it allows.
        expires_at: When it ends, in unix seconds; `None` if it has no end.
    """

    key_id: str
    tenant_id: str
    scopes: frozenset[Scope]
    expires_at: float | None = None

    @property
    def sees_all(self) -> bool:
        """Whether it sees the objects of all tenants."""
        return not self.tenant_id and "hooks:admin" in self.scopes

    @property
    def actor(self) -> str:
        """How the audit names it."""
        return f"key:{self.key_id}"

    def demand(self, scope: Scope) -> None:
        """Refuse a request that the key does not allow.

        Raises:
            ApiError: 403.
        """
        if scope not in self.scopes:
            raise ApiError(403, "scope", f"The key does not allow this; it needs the scope {scope}.")

    def tenant(self, asked: str | None = None) -> str | None:
        """Whose objects a request is about; `None` for those of all tenants.

        Args:
            asked: The tenant that the request names.

        Raises:
            ApiError: 404, if it names another one than its own and does not see all.
        """
        if self.sees_all:
            return asked
        if asked not in (None, self.tenant_id):
            raise not_found("There is no such tenant, or this key is not for it.")
        return self.tenant_id

    def own(self, asked: str | None = None) -> str:
        """Whose object a request makes: of the named tenant, else of its own.

        Raises:
            ApiError: 404, if it names another one and does not see all; 403, if it would be the system's then.
        """
        tenant_id = self.tenant(asked)
        owner = self.tenant_id if tenant_id is None else tenant_id
        self.check_writable(owner)
        return owner

    def check_visible(self, tenant_id: str) -> None:
        """Refuse an object of somebody else, as if it were not there.

        Raises:
            ApiError: 404.
        """
        if tenant_id != self.tenant_id and not self.sees_all:
            raise not_found()

    def check_writable(self, tenant_id: str) -> None:
        """Refuse to change what is the system's, unless the key is that of an administrator.

        Raises:
            ApiError: 403.
        """
        if not tenant_id and not self.sees_all:
            raise ApiError(403, "scope", "What belongs to the system is changed with the scope hooks:admin only.")


def not_found(detail: str = "There is nothing of that id.") -> ApiError:
    """What is told of objects that are not there, and of those of others.

    Args:
        detail: The same for both.
    """
    return ApiError(404, "not_found", detail)


async def check_scope(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard: the key allows what the route names as its `scope`.

    It waits for nothing, but the framework would call a plain function in a thread.

    Raises:
        ApiError: 403.
    """
    scope = handler.opt.get("scope")
    if scope is not None:
        connection.scope["state"]["hookline_caller"].demand(scope)


async def demand_scope(request: Req) -> None:
    """The same as `check_scope`, before each request: the framework copies the whole route for each call of a guard.

    Raises:
        ApiError: 403.
    """
    await check_scope(request, request.route_handler)


def caller_of(request: Req) -> Caller:
    """Who has sent a request."""
    caller: Caller = request.scope["state"]["hookline_caller"]
    return caller
