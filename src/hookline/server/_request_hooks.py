"""Run the requests to a server through hooks for `RequestCall`: the server's own, and stored ones."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from operator import is_

import msgspec

from hookline.asgi import App, HookMiddleware, Message, Receive, Scope, Send
from hookline.calls import RequestCall
from hookline.hooks import AnyHook, Hooks, Interceptor
from hookline.server._parts import ServerParts
from hookline.server._paths import normalize_path
from hookline.server._problems import MEDIA_TYPE, ApiError, add_refusal_code

__all__ = ["RequestHooks"]

REMEMBERED = 1000
DENIALS = {403: "denied", 500: "hook_failed"}
"""Codes of refusals by status: a hook denied the request, or failed."""
SWITCHING = re.compile(r"PUT /v1/hooks/[^/]+/toggle|DELETE /v1/hooks/[^/]+")


class RequestHooks:
    """ASGI middleware that runs requests through the hooks of the server, of the system, and of the caller's tenant.

    Hooks never see the key or the cookies of a request. The stored hooks of a tenant do not run for requests that
    switch or delete one of them, so that no tenant can lock itself out.

    Args:
        app: The application behind it.
        parts: The parts of the server.
    """

    def __init__(self, app: App, parts: ServerParts) -> None:
        self._app, self._parts = app, parts
        self._apps: OrderedDict[tuple[str, bool], tuple[list[AnyHook], App]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request through its hooks, or pass it on if there are none."""
        caller = scope.get("state", {}).get("hookline_caller")
        if caller is None:
            await self._app(scope, receive, send)
            return
        app = self._app_for(caller.tenant_id, without_own=turns_a_hook_off(scope["method"], scope["path"]))
        if app is self._app:
            await app(scope, receive, send)
        else:
            await app(scope, receive, _DenialFormatter(scope, send).send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on after its hooks.

        Raises:
            ApiError: 404, if a hook has changed the path to one that the router would treat as another one than guards
                have judged.
        """
        if scope["path"] != normalize_path(scope["path"]):
            raise ApiError(404, "not_found", "This path does not exist.")
        await self._app(scope, receive, send)

    def _app_for(self, tenant_id: str, *, without_own: bool) -> App:
        """Return the application with the hooks for a tenant's requests; it is rebuilt when the hooks have changed."""
        hooks = [*self._parts.hooks, *self._stored_hooks(tenant_id, without_own=without_own)]
        place = tenant_id, without_own
        known = self._apps.get(place)
        if known is not None and len(known[0]) == len(hooks) and all(map(is_, known[0], hooks)):
            return known[1]
        wanted = [hook for hook in hooks if _is_for_requests(hook)]
        app: App = HookMiddleware(self._serve, wanted, tenant=_tenant) if wanted else self._app
        self._apps[place] = hooks, app
        self._apps.move_to_end(place)
        if len(self._apps) > REMEMBERED:
            self._apps.popitem(last=False)
        return app

    def _stored_hooks(self, tenant_id: str, *, without_own: bool) -> Sequence[AnyHook]:
        registry = self._parts.known_registry
        if registry is None or (without_own and not tenant_id):
            return ()
        return registry.hooks("" if without_own else tenant_id)


class _Refusal(msgspec.Struct, forbid_unknown_fields=True):
    """The body with which `HookMiddleware` refuses a request."""

    type: str
    title: str
    status: int
    detail: str
    hook: str
    operation_id: str


class _DenialFormatter:
    """Forwards a response, and converts a denial of `HookMiddleware` into this API's problem details."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        """The start of a response that may be a denial, held back until its body arrives."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _may_be_denial(message):
            self._start = message
            return
        start, self._start = self._start, None
        if start is None:
            await self._send(message)
            return
        denial = _parse_denial(message)
        if denial is not None:
            add_refusal_code(self._scope, denial)
            body = denial.body(self._scope["state"]["hookline_request_id"])
            changed = {"content-type": MEDIA_TYPE, "content-length": str(len(body))}
            start = {**start, "headers": [(name.encode(), value.encode()) for name, value in changed.items()]}
            message = {"type": "http.response.body", "body": body}
        await self._send(start)
        await self._send(message)


def turns_a_hook_off(method: str, path: str) -> bool:
    """Return whether a request switches or deletes a stored hook."""
    return SWITCHING.fullmatch(f"{method} {path}") is not None


def _may_be_denial(start: Message) -> bool:
    return start["status"] in DENIALS and (b"content-type", MEDIA_TYPE.encode()) in start.get("headers", ())


def _parse_denial(message: Message) -> ApiError | None:
    """Parse the body of a denial; `None` if it is none."""
    try:
        found = msgspec.json.decode(message.get("body", b""), type=_Refusal)
    except msgspec.MsgspecError:
        return None
    return ApiError(found.status, DENIALS[found.status], found.detail, hook=found.hook)


def _is_for_requests(hook: AnyHook) -> bool:
    if isinstance(hook, Hooks):
        return any(each.call is RequestCall for each in hook.interceptors)
    return isinstance(hook, Interceptor) and hook.call is RequestCall


def _tenant(scope: Scope) -> str:
    return str(scope["state"]["hookline_caller"].tenant_id)
