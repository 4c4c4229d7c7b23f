"""ASGI middleware that runs HTTP requests through hooks, in any web framework."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from http import HTTPStatus
from time import perf_counter_ns
from typing import Any
from urllib.parse import quote

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from hookline._deadlines import own_cancellation
from hookline.calls import Denial, RequestCall, RequestResult
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.hooks import AnyHook, Hooks, Interceptor, hook_batch
from hookline.interceptors import Chain, Outcome

__all__ = ["HookMiddleware"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JOINTS = {"cookie": "; ", "set-cookie": "\n"}
"""Between several headers of one name, where a comma would be wrong."""

REPEATED_SLASHES = re.compile("//+")
DOT_SEGMENT = re.compile(r"(?:^|/)\.\.?(?:/|$)")


def merge_slashes(path: str) -> str:
    """Return a path with one slash where there are several, as nginx does with `merge_slashes`."""
    return REPEATED_SLASHES.sub("/", path) if "//" in path else path


def has_dot_segment(path: str) -> bool:
    """Return whether a path has a segment `.` or `..`.

    Clients resolve these before they send a request (RFC 3986, 5.2.4; the URL standard also takes `%2e` for a dot), so
    only somebody who wants a proxy, a hook and a router to disagree sends one.
    """
    return ("/." in path or path[:1] == ".") and DOT_SEGMENT.search(path) is not None


class HookMiddleware:
    """ASGI middleware that runs HTTP requests through the hooks for `RequestCall`. Other scopes pass unchanged.

    `app.add_middleware(HookMiddleware, hooks=[...])` in Starlette and FastAPI, `HookMiddleware(app, [...])` elsewhere.

    `before`, `guard` and `around` see the request before the application; all but a `guard` can change its method, path
    and headers. `after` and the end of `around` see the status and the headers of the response before they are sent.
    Bodies are never read or held back. A denied request gets problem details (RFC 9457): 403, or 500 if the hook
    failed.

    The application runs in its own task, with a copy of the context in which the innermost `around` called `call_next`.
    The call is in `scope["state"]["hookline"]`. Exceptions of the application pass through the hooks to the server.
    `wait=False` hooks never delay a response. The request's task ends after them, and only then does an exception of
    the application reach the server.

    Hooks and application see the same path. Repeated slashes are merged for both: many routers merge them, so a request
    could otherwise bypass a hook that compares paths. A path with a segment `.` or `..` gets 400, since clients resolve
    such segments before they send a request.

    Args:
        app: The application.
        hooks: Bundles and interceptors. Hooks of other calls are ignored.
        tenant: `(scope) -> tenant_id`: the tenant of the request, which an outer middleware has put into the scope.
        budget: Limit of the own time of all hooks of one request together, in seconds; `None` for no limit.
        hook_timeout: Limit of own time in seconds for hooks that have none.
        merge_slashes: Whether to merge repeated slashes. Set `False` only if the application's router distinguishes
            `/a//b` from `/a/b`.

    Raises:
        HookDefinitionError: If an argument is invalid.
    """

    def __init__(
        self,
        app: App,
        hooks: Iterable[AnyHook],
        *,
        tenant: Callable[[Scope], str] | None = None,
        budget: float | None = None,
        hook_timeout: float = 30.0,
        merge_slashes: bool = True,
    ) -> None:
        for name, given in {"app": app, "tenant": tenant}.items():
            if not callable(given) and (name, given) != ("tenant", None):
                raise HookDefinitionError("HookMiddleware", f"`{name}` must be callable; got {given!r:.200}")
        placed = [
            (hook, entry.lane if isinstance(entry, Hooks) else None)
            for entry in hook_batch(hooks)
            for hook in (entry.interceptors if isinstance(entry, Hooks) else (entry,))
            if isinstance(hook, Interceptor) and hook.call is RequestCall
        ]
        lanes: dict[object, list[Interceptor]] = {}
        for hook, lane in placed:
            if not hook.wait:
                lanes.setdefault(lane, []).append(hook)
        compiled = partial(Chain, budget=budget, hook_timeout=hook_timeout, record=False)
        self.app, self.tenant, self.merge_slashes = app, tenant, merge_slashes
        self.hooked = bool(placed)
        self.chain = compiled([hook for hook, _ in placed if hook.wait])
        # `Chain.run` ends when its unwaited hooks have ended, and an answer must not wait for them: one more per lane.
        self.beside = [compiled(lane) for lane in lanes.values()]
        self.beside_answers = [compiled([hook for hook in lane if hook.kind == "after"]) for lane in lanes.values()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and send its response.

        Raises:
            HookUsageError: If `tenant` did not return a string, or a hook set an invalid header, or a path that is not
                in the form that hooks see.
            BaseException: The exception of the application, unchanged.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if has_dot_segment(scope["path"]):
            problem = "The path has a segment '.' or '..'; resolve it first."
            await _send_result(send, _problem(HTTPStatus.BAD_REQUEST, problem))
            return
        path = self.normal_path(scope["path"])
        if path != scope["path"]:
            scope = {**scope, **_places(path)}
        headers = _join_headers(scope["headers"])
        given = headers.get("x-request-id", "")
        tenant_id = "" if self.tenant is None else self.tenant(scope)
        if not isinstance(tenant_id, str):
            raise HookUsageError(
                f"`tenant` must return the tenant's id, or '' for none; it returned {tenant_id!r:.200}."
            )
        call = RequestCall(
            operation_id=given if re.fullmatch("[ -~]{1,128}", given) else os.urandom(16).hex(),
            tenant_id=tenant_id,
            method=scope["method"],
            path=path,
            headers=headers,
        )
        if self.hooked:
            await _Exchange(self, scope, receive, send).lead(call)
        else:
            scope.setdefault("state", {})["hookline"] = call
            await self.app(scope, receive, send)

    def normal_path(self, path: str) -> str:
        """Return the path as hooks and application see it."""
        return merge_slashes(path) if self.merge_slashes else path


class _NoAnswer(Exception):
    """The application returned without starting a response."""


class _Exchange:
    """One request and its hooks; the application answers it in a task of its own.

    It takes two tasks: an application may begin its answer in any of its tasks and inside of any of its cancel scopes
    (Starlette streams in a task group), while what an `around` has opened must be closed by the task that opened it.
    """

    def __init__(self, owner: HookMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        self.owner, self.scope, self.receive, self.send = owner, scope, receive, send
        self.since = perf_counter_ns()
        self.life = anyio.CancelScope()
        """The application's scope."""
        self.begun = anyio.Event()
        """Set when the application has begun its response, or ended."""
        self.decided = anyio.Event()
        """Set when the hooks have let the response pass, or replaced it."""
        self.opened = anyio.Event()
        """Set when the start of the response was sent, or will not be."""
        self.start: Message | None = None
        """The start of the application's response; once decided, as the hooks have changed it."""
        self.shown: RequestResult | None = None
        """That start as the hooks saw it."""
        self.result: RequestResult | None = None
        self.error: BaseException | None = None
        self.reached = self.withheld = False

    async def lead(self, call: RequestCall) -> None:
        """Run the request through the hooks, and send what comes of it.

        Raises:
            BaseException: What the application, or a hook's changed response, raised.
        """
        self.call = call
        async with anyio.create_task_group() as self.group:
            try:
                await self.answer(await self.owner.chain.run(call, self.terminal))
            except BaseException as error:
                if error is not self.error and not isinstance(error, Exception):
                    raise
                self.error, self.withheld = error, True  # kept out of the group, which would wrap it
                self.life.cancel()
                self.decided.set()
        if self.error is not None and not isinstance(self.error, _NoAnswer):
            raise self.error

    async def terminal(self, call: RequestCall) -> RequestResult:
        """Run the application up to the start of its response: the terminal of the chain."""
        self.reached = True
        if has_dot_segment(call.path) or self.owner.normal_path(call.path) != call.path:
            # Guards have judged this spelling, and a router may take it for another path.
            raise HookUsageError(
                f"A hook changed the path to {call.path!r:.200}, which a router may resolve to a different path. Merge "
                "its slashes and resolve its segments '.' and '..' first."
            )
        scope = _rewrite_scope(self.scope, self.call, call)
        scope.setdefault("state", {})["hookline"] = call
        self.group.start_soon(self.run_app, scope)
        self.start_beside(self.owner.beside, call)
        try:
            await self.begun.wait()
        except BaseException:  # an `around` has cancelled `call_next`, or somebody else the request
            self.life.cancel()
            raise
        if self.start is None:
            raise self.error or _NoAnswer("The application ended without having begun an answer.")
        self.start["headers"] = [(bytes(name), bytes(value)) for name, value in self.start.get("headers", ())]
        duration_ms = (perf_counter_ns() - self.since) / 1e6
        headers = _join_headers(self.start["headers"])
        self.shown = RequestResult(status=self.start["status"], headers=headers, duration_ms=duration_ms)
        return self.shown

    async def run_app(self, scope: Scope) -> None:
        """Run the application in a task of its own, up to its end."""
        with self.life:
            try:
                await self.owner.app(scope, self.receive, self.forward)
            except BaseException as error:
                if isinstance(error, anyio.get_cancelled_exc_class()) and not own_cancellation():
                    raise
                self.error = error
            finally:
                self.begun.set()

    async def forward(self, message: Message) -> None:
        """Send a message of the application; the start of a response is held back until the hooks have decided."""
        if self.start is None and message["type"] == "http.response.start":
            self.start = {**message}
            self.begun.set()
            try:
                await self.decided.wait()
                await self.pass_on(self.start)
            finally:
                self.opened.set()
            return
        if self.start is not None and not self.opened.is_set():
            await self.opened.wait()  # the application sends from several tasks
        await self.pass_on(message)

    async def pass_on(self, message: Message) -> None:
        """Send a message of the application, unless a hook has answered in its place."""
        if self.withheld:
            await anyio.lowlevel.checkpoint()
        else:
            await self.send(message)

    async def answer(self, outcome: Outcome) -> None:
        """Send the application's response, or one in its place."""
        denied = outcome.denied
        self.result = outcome.result
        result: RequestResult = outcome.result if denied is None else _refusal(denied, outcome)
        if self.shown is None:
            self.error = None  # of an application whose failure a hook has taken upon itself
        if not self.reached and denied is None:
            self.start_beside(self.owner.beside_answers, outcome.call)
        if self.start is not None and self.shown is not None and denied is None and not result.body:
            if result is not self.shown:
                self.start["status"] = result.status
                self.start["headers"] = _lines(result.headers, self.start["headers"])
            self.decided.set()
            return
        self.withheld = True
        self.decided.set()
        await _send_result(self.send, result)

    def start_beside(self, chains: Iterable[Chain], call: RequestCall) -> None:
        """Run hooks with `wait=False` in the background."""

        async def terminal(call: RequestCall) -> RequestResult:
            await self.decided.wait()
            if self.result is None:
                raise _NoAnswer  # so that no `after` is called
            return self.result

        async def run(chain: Chain) -> None:
            with contextlib.suppress(_NoAnswer):
                await chain.run(call, terminal)

        for chain in chains:
            self.group.start_soon(run, chain)


def _refusal(denied: Denial, outcome: Outcome) -> RequestResult:
    """Return a denial as problem details. The failure of a hook is only logged."""
    ids = {"hook": denied.hook_id, "operation_id": outcome.call.operation_id}
    if outcome.refusal is not None and outcome.refusal.__cause__ is not None:
        return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "A hook that had to judge this request failed.", **ids)
    return _problem(HTTPStatus.FORBIDDEN, denied.reason, **ids)


def _problem(status: HTTPStatus, detail: str, **more: str) -> RequestResult:
    """Return problem details (RFC 9457)."""
    problem = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail, **more}
    headers = {"content-type": "application/problem+json"}
    return RequestResult(status=status.value, headers=headers, body=msgspec.json.encode(problem))


async def _send_result(send: Send, result: RequestResult) -> None:
    """Send a result as the whole response.

    Raises:
        HookUsageError: If one of its headers cannot be sent.
    """
    headers = {name.lower(): value for name, value in result.headers.items()}
    if result.body:
        headers["content-length"] = str(len(result.body))
    elif result.status not in (204, 304):
        headers.setdefault("content-length", "0")
    lines = _lines(headers, ())
    await send({"type": "http.response.start", "status": result.status, "headers": lines})
    await send({"type": "http.response.body", "body": result.body})


def _rewrite_scope(scope: Scope, seen: RequestCall, call: RequestCall) -> Scope:
    """Return the scope with the changes of hooks; the very same scope without changes."""
    if (call.method, call.path, call.headers) == (seen.method, seen.path, seen.headers):
        return scope
    changed = {**scope, "method": call.method, "headers": _lines(call.headers, scope["headers"])}
    if call.path != seen.path:
        changed |= _places(call.path)
    return changed


def _places(path: str) -> dict[str, Any]:
    """Return the entries of a scope that hold the path."""
    return {"path": path, "raw_path": quote(path, safe="/:@!$&'()*+,;=").encode()}


def _join_headers(lines: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by lower-case name, with repeated ones joined."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}{_JOINTS.get(name, ', ')}{value}" if name in headers else value
    return headers


def _lines(headers: Mapping[str, str], lines: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return header lines: the original ones without those of changed names, and the changed ones after them.

    Raises:
        HookUsageError: If one of them cannot be sent.
    """
    before, after = _join_headers(lines), {name.lower(): value for name, value in headers.items()}
    found = [(name, value) for name, value in lines if after.get(key := name.decode("latin-1").lower()) == before[key]]
    for name, joined in after.items():
        if before.get(name) == joined:
            continue
        for value in joined.split("\n") if name == "set-cookie" else (joined,):
            if not re.fullmatch(r"[!#$%&'*+.^`|~\w-]+:[\t -~\x80-\xff]*", f"{name}:{value}", re.ASCII):
                raise HookUsageError(f"A hook set the header {name!r:.200}, whose name or value is not valid in HTTP.")
            found.append((name.encode("latin-1"), value.encode("latin-1")))
    return found
