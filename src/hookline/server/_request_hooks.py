"""The requests to a server go through hooks themselves: those that the server was given, and those that are stored."""

from __future__ import annotations

from collections import OrderedDict

from hookline.asgi import App, HookMiddleware, Receive, Scope, Send
from hookline.calls import RequestCall
from hookline.hooks import AnyHook, Hooks, Interceptor
from hookline.server._parts import Parts

__all__ = ["RequestHooks"]

REMEMBERED = 1000


class RequestHooks:
    """Leads requests through the hooks for `RequestCall`: of the server, of the system, and of the tenant that asks.

    Hooks never see the key, or the cookies, that came with a request.

    Args:
        app: What is behind it.
        parts: What the server is made of.
    """

    def __init__(self, app: App, parts: Parts) -> None:
        self._app, self._parts = app, parts
        self._made: OrderedDict[str, tuple[list[AnyHook], App]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        caller = scope.get("state", {}).get("hookline_caller")
        if caller is None:
            await self._app(scope, receive, send)
        else:
            await self._for(caller.tenant_id)(scope, receive, send)

    def _for(self, tenant_id: str) -> App:
        """What a request of a tenant goes through; made anew when its hooks have changed."""
        registry = self._parts.known_registry
        hooks = [*self._parts.hooks, *(() if registry is None else registry.hooks(tenant_id))]
        known = self._made.get(tenant_id)
        if known is not None and len(known[0]) == len(hooks) and all(map(_same, known[0], hooks)):
            return known[1]
        wanted = [hook for hook in hooks if _is_for_requests(hook)]
        app: App = HookMiddleware(self._app, wanted, tenant=_tenant) if wanted else self._app
        self._made[tenant_id] = hooks, app
        self._made.move_to_end(tenant_id)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)
        return app


def _same(one: object, other: object) -> bool:
    return one is other


def _is_for_requests(hook: AnyHook) -> bool:
    if isinstance(hook, Hooks):
        return any(each.call is RequestCall for each in hook.interceptors)
    return isinstance(hook, Interceptor) and hook.call is RequestCall


def _tenant(scope: Scope) -> str:
    return str(scope["state"]["hookline_caller"].tenant_id)
