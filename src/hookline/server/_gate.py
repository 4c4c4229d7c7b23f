"""`Gate`: what every request passes before the application sees it: its name, its size, its key and its allowance."""

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
from hookline.server._parts import Parts
from hookline.server._problems import MEDIA_TYPE, ApiError, as_api_error, note_code, unexpected
from hookline.server._rates import Allowance, RateLimits, check_allowance, client_address
from hookline.server._refusals import AUDITED, Attempt
from hookline.server._text import check_text, normal_path
from hookline.store import limit_waiting

__all__ = ["Gate"]

STORE_SECONDS = 2.0
"""How long a request that only reads waits for its turn at the database, and once more for another process's lock."""
WRITE_SECONDS = 5.0
"""The same of one that may write. Of 90 definitions at once at two servers, a third was refused after 2 s. It is less
than what clients wait by themselves: who gives up first does not know whether the change was made."""
READING = ("GET", "HEAD", "OPTIONS")
SIGN_IN = "/page/sign-in"
REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:/+=-]{1,128}")
UNSEEN = (b"authorization", b"cookie", b"x-request-id")
"""Headers that go no further as they came: secrets, and a name that may be none."""
SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
UNLESS_GIVEN = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
TRANSPORT = (b"strict-transport-security", b"max-age=31536000")


class Gate:
    """Lets those requests through that come with a valid key, are small enough and not too many.

    The application finds in `scope["state"]`: `hookline_caller`, `hookline_request_id`, `hookline_root`, the path under
    which it is mounted, `hookline_cookies`, the header, `hookline_codes`, to which the code of a refusal is added, and
    `hookline_over`, an `ExitStack` that is closed when the request is over. Its `path` is what comes after the root, in
    the one form that the router, hooks, the audit and figures are shown.

    Args:
        app: What is behind it.
        parts: What the server is made of.
        rates: How many requests somebody may send.
        max_body: Bytes that a body may have.
        body_timeout: Seconds that a body may stand still.
        public: Paths that need no key.
        public_prefixes: Paths below which none is needed, since who answers there looks after that, and counts.
    """

    def __init__(
        self,
        app: App,
        parts: Parts,
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
        """Answer a request, or have it answered."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _Passage(self, scope, send).run(receive)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def admit(self, scope: Scope, passage: _Passage) -> None:
        """Find out who asks, and whether they may.

        Raises:
            ApiError: If not.
            StoreUnavailableError: If that cannot be found out now.
        """
        length = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > self._max_body):
            raise self.too_large()
        path = scope["path"]
        if path in self._public or f"{path}/".startswith(self._prefixes or "\x00"):
            return
        caller = await self._caller(scope)
        scope["state"]["hookline_caller"] = caller
        passage.allowance = self._rates.take(caller)
        check_allowance(passage.allowance)

    def too_large(self) -> ApiError:
        """What is told of a body that is too large."""
        return ApiError(413, "too_large", f"The body is larger than the {self._max_body} bytes that this server takes.")

    async def _caller(self, scope: Scope) -> Caller:
        token = bearer(scope["headers"])
        caller = None if token is None else await self._parts.keys.authenticate(token)
        if caller is not None:
            return caller
        # Only those that fail are counted by their address, which many may share.
        check_allowance(self._rates.take_address(scope))
        challenge = 'Bearer realm="hookline"'
        if token is None:
            detail = "Send an API key: Authorization: Bearer hk_..."
            raise ApiError(401, "no_key", detail, headers={"WWW-Authenticate": challenge})
        headers = {"WWW-Authenticate": f'{challenge}, error="invalid_token"'}
        raise ApiError(401, "key", "The API key is not known, or it has ended.", headers=headers)


class _Passage:
    """One request on its way through the gate."""

    def __init__(self, gate: Gate, scope: Scope, send: Send) -> None:
        self.gate, self.since = gate, perf_counter()
        self.allowance: Allowance | None = None
        self.status = 0
        self._send, self._secure = send, scope.get("scheme") == "https"
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        self.request_id = given.decode() if REQUEST_ID.fullmatch(given) else os.urandom(16).hex()
        headers = [line for line in scope["headers"] if line[0] not in UNSEEN]
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
            scope["path"] = normal_path(scope["path"])
            scope["raw_path"] = quote(scope["path"]).encode()
            with limit_waiting(STORE_SECONDS if scope["method"] in READING else WRITE_SECONDS):
                await gate.admit({**scope, "headers": self.given["headers"]}, self)
                await gate._app(scope, self.limited(receive), self.send)
        except Exception as error:
            if self.status:
                raise
            await self.refuse(as_api_error(error) or unexpected(error, self.request_id))
        finally:
            self.over.close()
            request_id.reset(token)
            route = scope.get("path_template") or "other"
            gate._parts.metrics.note_request(method_of(scope), route, self.status, perf_counter() - self.since)
            if self.codes:
                self.note_refusal(self.codes[-1])

    def note_refusal(self, code: str) -> None:
        """Count that the request was refused, and have the audit say so if somebody may have meant to do harm."""
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
        parts.refusals.note(attempt, f"{method_of(scope)} {scope['path']}")

    async def refuse(self, error: ApiError) -> None:
        note_code(self.scope, error)
        body = error.body(self.request_id)
        headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **error.headers}
        lines = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": lines})
        await self.send({"type": "http.response.body", "body": body})

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self.added(message.get("headers", ()))]}
        await self._send(message)

    def added(self, lines: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Headers of every answer."""
        given = {name.lower() for name, _ in lines}
        found = [(b"x-request-id", self.request_id.encode()), *SECURITY]
        found += [line for line in UNLESS_GIVEN if line[0] not in given]
        if self._secure:
            found.append(TRANSPORT)
        if self.allowance is not None:
            found += [
                (b"ratelimit-limit", b"%d" % self.allowance.limit),
                (b"ratelimit-remaining", b"%d" % self.allowance.remaining),
                (b"ratelimit-reset", b"%d" % -(-self.allowance.reset // 1)),
            ]
        return found

    def limited(self, receive: Receive) -> Receive:
        """The body as it comes, up to its greatest size, as long as it comes.

        A body without a length may be larger than it says. Once it is there, whoever receives waits for the client to
        leave, for any time.
        """
        left, coming, seconds = self.gate._max_body, True, self.gate.body_timeout

        async def counted() -> Message:
            nonlocal left, coming
            if not coming:
                return await receive()
            try:
                async with asyncio.timeout(seconds):
                    message = await receive()
            except TimeoutError:
                if self.status:  # a stream that waits for its client to leave, which has sent less than it announced
                    return {"type": "http.disconnect"}
                detail = f"The body has stood still for {seconds:g} s."
                raise ApiError(408, "body_timeout", detail, headers={"Connection": "close"}) from None
            coming = message["type"] == "http.request" and message.get("more_body", False)
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise self.gate.too_large()
            return message

        return counted


def bearer(lines: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key that came with a request."""
    given = [value for name, value in lines if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, token = given[0].decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def method_of(scope: Scope) -> str:
    """The method, for statistics: anybody may make one up."""
    known: Any = scope["method"]
    return known if known in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"
