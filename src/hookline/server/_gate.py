"""`RequestGate`: ASGI middleware that identifies, limits and authenticates each request."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from contextvars import Token
from time import perf_counter
from typing import Any
from urllib.parse import quote

from hookline.asgi import App, Message, Receive, Scope, Send
from hookline.registry import request_id
from hookline.server._callers import Caller
from hookline.server._client_addresses import client_address
from hookline.server._parts import ServerParts
from hookline.server._paths import normalize_path
from hookline.server._problems import MEDIA_TYPE, ApiError, add_refusal_code, as_api_error, unexpected_error
from hookline.server._rates import Allowance, RateLimits, check_allowance
from hookline.server._refusals import AUDITED, Attempt
from hookline.server._text import check_text
from hookline.store import limit_waiting

__all__ = ["RequestGate"]

STORE_SECONDS = 2.0
"""Seconds that a reading request waits for its turn at the database, and once more for another process's lock."""
WRITE_SECONDS = 5.0
"""The same for a writing request. With 2 s, a third of 90 simultaneous definitions at two servers was refused. It must
be less than clients' own timeouts: a client that gives up first does not know whether its change was made."""
READING = ("GET", "HEAD", "OPTIONS")
SIGN_IN = "/page/sign-in"
REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:/+=-]{1,128}")
HIDDEN_HEADERS = (b"authorization", b"cookie", b"x-request-id")
"""Headers that are not passed on as they came: secrets, and a request id that may be invalid."""
SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
DEFAULT_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
TRANSPORT = (b"strict-transport-security", b"max-age=31536000")


class RequestGate:
    """ASGI middleware that passes on requests with a valid key, within the limits of size and rate.

    The application finds in `scope["state"]`: `hookline_caller`, `hookline_request_id`, `hookline_root` (the path under
    which it is mounted), `hookline_cookies` (the header), `hookline_codes` (to which it adds codes of refusals), and
    `hookline_over`, an `ExitStack` that is closed when the request ends. `path` is the path after the root, normalized
    for the router, hooks, the audit log and metrics alike.

    Args:
        app: The application behind it.
        parts: The parts of the server.
        rates: The rate limits.
        max_body: Largest body, in bytes.
        body_timeout: Seconds for which a body may stall.
        public: Paths that need no key.
        public_prefixes: Paths below which the application authenticates and counts requests itself, and shows what was
            refused to people: it finds the error as `hookline_refused` in the state of a request to `<prefix>/refused`.
    """

    def __init__(
        self,
        app: App,
        parts: ServerParts,
        *,
        rates: RateLimits,
        max_body: int,
        body_timeout: float,
        public: Collection[str],
        public_prefixes: Collection[str] = (),
    ) -> None:
        self._app, self._parts, self._rates = app, parts, rates
        self._max_body, self.body_timeout = max_body, body_timeout
        self._public = frozenset(public)
        self._prefixes = tuple(f"{prefix.rstrip('/')}/" for prefix in public_prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _GatedRequest(self, scope, send).run(receive)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def admit(self, scope: Scope, gated: _GatedRequest) -> None:
        """Authenticate a request, and check its size and rate.

        Raises:
            ApiError: If the request is refused.
            StoreUnavailableError: If the key cannot be checked, since the database cannot be reached.
        """
        length = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > self._max_body):
            raise self.too_large_error()
        path = scope["path"]
        if path in self._public or f"{path}/".startswith(self._prefixes or "\x00"):
            return
        caller = await self._authenticate(scope)
        scope["state"]["hookline_caller"] = caller
        gated.allowance = self._rates.take(caller)
        check_allowance(gated.allowance)

    def too_large_error(self) -> ApiError:
        """Build the error for a body that is too large."""
        return ApiError(413, "too_large", f"The body is larger than {self._max_body} bytes, the limit of this server.")

    async def _authenticate(self, scope: Scope) -> Caller:
        token = parse_bearer(scope["headers"])
        caller = None if token is None else await self._parts.keys.authenticate(token)
        if caller is not None:
            return caller
        # Only failed attempts are counted by address, since many clients may share one.
        check_allowance(self._rates.take_address(scope))
        challenge = 'Bearer realm="hookline"'
        if token is None:
            detail = "Send an API key: Authorization: Bearer hk_..."
            raise ApiError(401, "no_key", detail, headers={"WWW-Authenticate": challenge})
        headers = {"WWW-Authenticate": f'{challenge}, error="invalid_token"'}
        raise ApiError(401, "key", "This API key is invalid or expired.", headers=headers)


class _GatedRequest:
    """The state of one request in the gate."""

    def __init__(self, gate: RequestGate, scope: Scope, send: Send) -> None:
        self.gate, self.since = gate, perf_counter()
        self.allowance: Allowance | None = None
        self.status = 0
        self._send, self._secure = send, scope.get("scheme") == "https"
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        self.request_id = given.decode() if REQUEST_ID.fullmatch(given) else os.urandom(16).hex()
        headers = [line for line in scope["headers"] if line[0] not in HIDDEN_HEADERS]
        root = scope.get("root_path", "")
        path = scope["path"]
        if root and path.startswith(root):
            path = path[len(root) :]
        self.over = ExitStack()
        self.codes: list[str] = []
        state = {
            **(scope.get("state") or {}),
            "hookline_request_id": self.request_id,
            "hookline_root": root,
            "hookline_cookies": b"; ".join(value for name, value in scope["headers"] if name == b"cookie"),
            "hookline_over": self.over,
            "hookline_codes": self.codes,
        }
        inner = {
            "path": path,
            "root_path": "",
            "headers": [*headers, (b"x-request-id", self.request_id.encode())],
            "state": state,
        }
        self.given, self.scope = scope, {**scope, **inner}

    async def run(self, receive: Receive) -> None:
        token: Token[str] = request_id.set(self.request_id)
        gate, scope = self.gate, self.scope
        try:
            check_text(self.given)
            scope["path"] = normalize_path(scope["path"])
            scope["raw_path"] = quote(scope["path"]).encode()
            with limit_waiting(STORE_SECONDS if scope["method"] in READING else WRITE_SECONDS):
                await gate.admit({**scope, "headers": self.given["headers"]}, self)
                await gate._app(scope, self.limit_body(receive), self.send)
        except Exception as error:
            if self.status:
                raise
            await self.refuse(as_api_error(error) or unexpected_error(error, self.request_id))
        finally:
            self.over.close()
            request_id.reset(token)
            route = scope.get("path_template") or "other"
            gate._parts.metrics.count_request(method_label(scope), route, self.status, perf_counter() - self.since)
            if self.codes:
                self.note_refusal(self.codes[-1])

    def note_refusal(self, code: str) -> None:
        """Count a refused request, and write it into the audit log if it may be an attack."""
        parts, scope = self.gate._parts, self.scope
        parts.metrics.note_refusal(code)
        if code not in AUDITED:
            return
        caller: Caller | None = scope["state"].get("hookline_caller")
        address = client_address(scope)
        attempt = Attempt(
            tenant_id="" if caller is None else caller.tenant_id,
            actor=f"address:{address}" if caller is None else caller.actor,
            action="sign_in.refused" if scope["path"] == SIGN_IN else "request.refused",
            code=code,
            status=self.status,
            address=address,
        )
        parts.refusals.add(attempt, f"{method_label(scope)} {scope['path']}")

    async def refuse(self, error: ApiError) -> None:
        if f"{self.scope['path']}/".startswith(self.gate._prefixes or "\x00"):
            await self.show_refusal(error)
            return
        add_refusal_code(self.scope, error)
        body = error.body(self.request_id)
        headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **error.headers}
        lines = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": lines})
        await self.send({"type": "http.response.body", "body": body})

    async def show_refusal(self, error: ApiError) -> None:
        """Have an application that authenticates by itself show a refusal, without its address and body."""
        prefix = next(each for each in self.gate._prefixes if f"{self.scope['path']}/".startswith(each))
        place = {"path": f"{prefix}refused", "raw_path": f"{prefix}refused".encode(), "query_string": b""}
        self.scope["state"]["hookline_refused"] = error
        await self.gate._app({**self.scope, **place}, receive_nothing, self.send)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {
                **message,
                "headers": [*message.get("headers", ()), *self.common_headers(message.get("headers", ()))],
            }
        await self._send(message)

    def common_headers(self, lines: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers that are added to every response."""
        given = {name.lower() for name, _ in lines}
        found = [(b"x-request-id", self.request_id.encode()), *SECURITY]
        found += [line for line in DEFAULT_HEADERS if line[0] not in given]
        if self._secure:
            found.append(TRANSPORT)
        if self.allowance is not None:
            found += [
                (b"ratelimit-limit", b"%d" % self.allowance.limit),
                (b"ratelimit-remaining", b"%d" % self.allowance.remaining),
                (b"ratelimit-reset", b"%d" % -(-self.allowance.reset // 1)),
            ]
        return found

    def limit_body(self, receive: Receive) -> Receive:
        """Return a `receive` function that limits the size of the body and the time for which it may stall.

        A body without `Content-Length` is only found too large as it arrives. After the body, `receive` waits for the
        client to disconnect, which may take any time.
        """
        left, coming, seconds = self.gate._max_body, True, self.gate.body_timeout

        async def receive_limited() -> Message:
            nonlocal left, coming
            if not coming:
                return await receive()
            try:
                async with asyncio.timeout(seconds):
                    message = await receive()
            except TimeoutError:
                if self.status:  # a streaming response, whose client has sent a shorter body than it announced
                    return {"type": "http.disconnect"}
                detail = f"No byte of the body arrived for {seconds:g} s."
                raise ApiError(408, "body_timeout", detail, headers={"Connection": "close"}) from None
            coming = message["type"] == "http.request" and message.get("more_body", False)
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise self.gate.too_large_error()
            return message

        return receive_limited


async def receive_nothing() -> Message:
    """Receive the empty body of a request."""
    return {"type": "http.request", "body": b"", "more_body": False}


def parse_bearer(lines: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the bearer token of a request; `None` if there is not exactly one."""
    given = [value for name, value in lines if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, token = given[0].decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def method_label(scope: Scope) -> str:
    """Return the method as a label for metrics; unknown ones are "other", since clients may invent any number."""
    known: Any = scope["method"]
    return known if known in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"
