"""The requests to a server go through hooks themselves: those that the server was given, and those that are stored."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from hookline.asgi import App, HookMiddleware, Message, Receive, Scope, Send
from hookline.calls import RequestCall
from hookline.hooks import AnyHook, Hooks, Interceptor
from hookline.server._parts import Parts
from hookline.server._problems import MEDIA_TYPE, ApiError, note_code
from hookline.server._text import normal_path

__all__ = ["RequestHooks"]

REMEMBERED = 1000
DENIALS = {403: "denied", 500: "hook_failed"}
"""Codes of denials, and of those by a hook that has failed, by their status."""
SWITCHING = re.compile(r"PUT /v1/hooks/[^/]+/toggle|DELETE /v1/hooks/[^/]+")


class RequestHooks:
    """Leads requests through the hooks for `RequestCall`: of the server, of the system, and of the tenant that asks.

    Hooks never see the key, or the cookies, that came with a request. Nobody is kept by their own stored hooks from
    switching one of them off, or from deleting it.

    Args:
        app: What is behind it.
        parts: What the server is made of.
    """

    def __init__(self, app: App, parts: Parts) -> None:
        self._app, self._parts = app, parts
        self._made: OrderedDict[tuple[str, bool], tuple[list[AnyHook], App]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        caller = scope.get("state", {}).get("hookline_caller")
        if caller is None:
            await self._app(scope, receive, send)
            return
        app = self._for(caller.tenant_id, without_own=ends_a_hook(scope["method"], scope["path"]))
        if app is self._app:
            await app(scope, receive, send)
        else:
            await app(scope, receive, _Told(scope, send).send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered under the path that guards have judged.

        Raises:
            ApiError: 404, if a hook has changed it to one that the router would read as another.
        """
        if scope["path"] != normal_path(scope["path"]):
            raise ApiError(404, "not_found", "There is nothing at this address.")
        await self._app(scope, receive, send)

    def _for(self, tenant_id: str, *, without_own: bool) -> App:
        """What a request of a tenant goes through; made anew when its hooks have changed."""
        hooks = [*self._parts.hooks, *self._stored(tenant_id, without_own=without_own)]
        place = tenant_id, without_own
        known = self._made.get(place)
        if known is not None and len(known[0]) == len(hooks) and all(map(_same, known[0], hooks)):
            return known[1]
        wanted = [hook for hook in hooks if _is_for_requests(hook)]
        app: App = HookMiddleware(self._serve, wanted, tenant=_tenant) if wanted else self._app
        self._made[place] = hooks, app
        self._made.move_to_end(place)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)
        return app

    def _stored(self, tenant_id: str, *, without_own: bool) -> Sequence[AnyHook]:
        registry = self._parts.known_registry
        if registry is None or (without_own and not tenant_id):
            return ()
        return registry.hooks("" if without_own else tenant_id)


class _Refusal(msgspec.Struct, forbid_unknown_fields=True):
    """How `HookMiddleware` tells of a denial."""

    type: str
    title: str
    status: int
    detail: str
    hook: str
    operation_id: str


class _Told:
    """An answer on its way out, with the denial of a hook told as this API tells of all that is not done."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        """How an answer begins that may be one, until its body is there."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _may_be_denial(message):
            self._start = message
            return
        start, self._start = self._start, None
        if start is None:
            await self._send(message)
            return
        told = _denial(message)
        if told is not None:
            note_code(self._scope, told)
            body = told.body(self._scope["state"]["hookline_request_id"])
            changed = {"content-type": MEDIA_TYPE, "content-length": str(len(body))}
            start = {**start, "headers": [(name.encode(), value.encode()) for name, value in changed.items()]}
            message = {"type": "http.response.body", "body": body}
        await self._send(start)
        await self._send(message)


def ends_a_hook(method: str, path: str) -> bool:
    """Whether a request switches a stored hook, or deletes it."""
    return SWITCHING.fullmatch(f"{method} {path}") is not None


def _may_be_denial(start: Message) -> bool:
    return start["status"] in DENIALS and (b"content-type", MEDIA_TYPE.encode()) in start.get("headers", ())


def _denial(message: Message) -> ApiError | None:
    """What a body says, if it is that of a denial."""
    try:
        found = msgspec.json.decode(message.get("body", b""), type=_Refusal)
    except msgspec.MsgspecError:
        return None
    return ApiError(found.status, DENIALS[found.status], found.detail, hook=found.hook)


def _same(one: object, other: object) -> bool:
    return one is other


def _is_for_requests(hook: AnyHook) -> bool:
    if isinstance(hook, Hooks):
        return any(each.call is RequestCall for each in hook.interceptors)
    return isinstance(hook, Interceptor) and hook.call is RequestCall


def _tenant(scope: Scope) -> str:
    return str(scope["state"]["hookline_caller"].tenant_id)
