"""`Caller`: the API key of a request, with its scopes and tenant, and the checks that route handlers make."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec
from litestar import Request

from hookline.server._problems import ApiError

__all__ = ["SCOPES", "Caller", "Req", "Scope", "caller_of", "not_found_error", "require_scope"]

Scope: TypeAlias = Literal[
    "hooks:read",
    "hooks:manage",
    "hooks:admin",
    "operations:read",
    "operations:manage",
    "approvals:decide",
    "deliveries:replay",
]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""All scopes. None of them includes another one."""

Req: TypeAlias = Request[Any, Any, Any]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The API key that sent a request.

    Attributes:
        key_id: The id of the key.
        tenant_id: The tenant that owns the key; `""` is the system.
        scopes: The scopes of the key.
        expires_at: When the key expires, in unix seconds; `None` if it does not.
    """

    key_id: str
    tenant_id: str
    scopes: frozenset[Scope]
    expires_at: float | None = None

    @property
    def sees_all(self) -> bool:
        """Whether the key sees the objects of all tenants."""
        return not self.tenant_id and "hooks:admin" in self.scopes

    @property
    def actor(self) -> str:
        """The name of the key in the audit log."""
        return f"key:{self.key_id}"

    def demand(self, scope: Scope) -> None:
        """Raise unless the key has a scope.

        Raises:
            ApiError: 403, if it does not.
        """
        if scope not in self.scopes:
            raise ApiError(403, "scope", f"This API key needs the scope {scope}.")

    def tenant(self, asked: str | None = None) -> str | None:
        """Return the tenant whose objects a request may read; `None` for all tenants.

        Args:
            asked: The tenant that the request names.

        Raises:
            ApiError: 404, if it names another tenant than the key's, and the key does not see all tenants.
        """
        if self.sees_all:
            return asked
        if asked not in (None, self.tenant_id):
            raise not_found_error("This tenant does not exist, or the key belongs to another one.")
        return self.tenant_id

    def own(self, asked: str | None = None) -> str:
        """Return the tenant for which a request may create objects: the named one, else the key's own.

        Raises:
            ApiError: 404, if it names another tenant and the key does not see all; 403, if the object would be the
                system's and the key is not an administrator's.
        """
        tenant_id = self.tenant(asked)
        owner = self.tenant_id if tenant_id is None else tenant_id
        self.check_writable(owner)
        return owner

    def check_visible(self, tenant_id: str) -> None:
        """Raise the error for a missing object if an object is another tenant's.

        Raises:
            ApiError: 404, if the key does not see that tenant's objects.
        """
        if tenant_id != self.tenant_id and not self.sees_all:
            raise not_found_error()

    def check_writable(self, tenant_id: str) -> None:
        """Raise if an object is the system's, and the key is not an administrator's.

        Raises:
            ApiError: 403, in that case.
        """
        if not tenant_id and not self.sees_all:
            raise ApiError(403, "scope", "Only a key with the scope hooks:admin can change objects of the system.")


def not_found_error(detail: str = "There is no object with this id.") -> ApiError:
    """Build the error for a missing object, which is also used for objects of other tenants.

    Args:
        detail: The text, which must not reveal which of the two is true.
    """
    return ApiError(404, "not_found", detail)


async def require_scope(request: Req) -> None:
    """Check, as a `before_request` hook, that the key has the `scope` of the route.

    It is no guard, since Litestar copies the whole route for each call of a guard. It is async although it awaits
    nothing, since Litestar would call a plain function in a thread.

    Raises:
        ApiError: 403, if it does not.
    """
    scope = request.route_handler.opt.get("scope")
    if scope is not None:
        request.scope["state"]["hookline_caller"].demand(scope)


def caller_of(request: Req) -> Caller:
    """Return the caller of a request."""
    caller: Caller = request.scope["state"]["hookline_caller"]
    return caller
