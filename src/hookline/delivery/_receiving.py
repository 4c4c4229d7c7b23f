"""`WebhookGuard`: ASGI middleware that verifies webhook signatures and passes each delivery on once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from hookline.delivery._signing import (
    ANSWER_PREFIX,
    Keys,
    Verified,
    WebhookVerificationError,
    as_key_ring,
    sign,
    verify,
)
from hookline.errors import HookDefinitionError

__all__ = ["WebhookGuard"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

LONGEST_REMEMBERED = 4096
"""Longest answer, in bytes, that is remembered for a repeated delivery; a control's answer is shorter."""


class _RememberedAnswer(msgspec.Struct, frozen=True):
    """The application's answer to a delivery, which is sent again if the delivery comes again."""

    status: int
    content_type: bytes
    body: bytes


class WebhookGuard:
    """ASGI middleware that passes on deliveries with a valid signature, each of them once.

    A request without a valid signature is answered with 401, one that is too long with 413. A delivery that comes again
    after the application accepted it (2xx) gets the same answer again, without the application being called; one that
    comes while the application is still handling it gets 409. After a failure it is passed on again. The application
    finds a `Verified` in `scope["state"]["webhook"]`. Websockets are refused; lifespan events pass.

    Accepted deliveries are remembered in the memory of this process only: an application that runs in several
    processes has to make its own work idempotent by the delivery's id.

    Args:
        app: The application.
        keys: A key ring, of which every key is accepted, or secrets; public keys (`whpk_`) suffice.
        tolerance: Seconds that a signature may be old, or ahead of this machine's clock.
        max_body: Longest delivery, in bytes.
        remember: Number of deliveries that are remembered, each with up to 4 KiB of its answer.
        signed_answers: Whether answers are signed too, with the key `""`, for `Sender(signed_answers=True)`.

    Raises:
        WebhookKeyError: If a key cannot be parsed.
        HookDefinitionError: If another argument is invalid.
    """

    def __init__(
        self,
        app: App,
        keys: Keys,
        *,
        tolerance: float = 300.0,
        max_body: int = 262_144,
        remember: int = 10_000,
        signed_answers: bool = False,
    ) -> None:
        if not callable(app):
            raise HookDefinitionError("WebhookGuard", f"`app` must be an ASGI application; got {app!r:.200}")
        if not tolerance > 0 or max_body < 1 or remember < 1:
            raise HookDefinitionError("WebhookGuard", "`tolerance`, `max_body` and `remember` must be above 0")
        self.app, self.keys = app, as_key_ring(keys)
        if signed_answers and not self.keys.signs():
            raise HookDefinitionError("WebhookGuard", "`signed_answers` needs a whsec_ or whsk_ key of the name ''")
        self._tolerance, self._max_body = tolerance, max_body
        self._remember, self._signed_answers = remember, signed_answers
        self._busy: set[str] = set()
        self._taken: OrderedDict[str, _RememberedAnswer] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection.

        Raises:
            BaseException: Any error of the application, unchanged.
        """
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "only signed deliveries are accepted"})
            return
        try:
            body = await self._read_body(scope, receive)
            if body is None:
                return
            verified = verify(scope["headers"], body, self.keys, tolerance=self._tolerance)
            if verified.id.startswith(ANSWER_PREFIX):
                raise WebhookVerificationError("it is an answer, not a delivery")
        except WebhookVerificationError as error:
            await _refuse(send, 401, "No valid signature", str(error))
        except _TooLongError:
            await _refuse(send, 413, "Too long", f"The limit of a delivery is {self._max_body} bytes.")
        else:
            await self._pass_on(scope, receive, send, verified, body)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, verified: Verified, body: bytes) -> None:
        """Pass a verified delivery on to the application, unless it was accepted before or is being handled."""
        taken = self._taken.get(verified.id)
        if taken is not None:
            await self._repeat_answer(send, verified.id, taken)
            return
        if verified.id in self._busy:
            await _refuse(send, 409, "Busy", "This delivery is already being handled.", [(b"retry-after", b"1")])
            return
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        self._busy.add(verified.id)
        try:
            inner = {**scope, "state": {**scope.get("state", {}), "webhook": verified}}
            await self.app(inner, replay, _AnswerRecorder(self, verified.id, send).send)
        finally:
            self._busy.discard(verified.id)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the whole body; `None` if the client has disconnected.

        Raises:
            _TooLongError: If the body is longer than `max_body`.
        """
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > self._max_body):
            raise _TooLongError
        parts, length = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            part = message.get("body", b"")
            parts.append(part)
            length += len(part)
            if length > self._max_body:
                raise _TooLongError
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _repeat_answer(self, send: Send, id: str, taken: _RememberedAnswer) -> None:  # noqa: A002
        headers: Headers = [(b"content-length", str(len(taken.body)).encode())]
        if taken.content_type:
            headers.append((b"content-type", taken.content_type))
        headers += self._signature(id, taken.body)
        await send({"type": "http.response.start", "status": taken.status, "headers": headers})
        await send({"type": "http.response.body", "body": taken.body})

    def _signature(self, id: str, body: bytes) -> Headers:  # noqa: A002
        if not self._signed_answers:
            return []
        signed = sign(ANSWER_PREFIX + id, int(time.time()), body, self.keys)
        return [(name.encode(), value.encode()) for name, value in signed.items()]

    def _remember_answer(self, id: str, answer: _RememberedAnswer) -> None:  # noqa: A002
        self._taken[id] = answer
        while len(self._taken) > self._remember:
            self._taken.popitem(last=False)


class _TooLongError(Exception):
    """A request's body is longer than `max_body`."""


class _AnswerRecorder:
    """Forwards the application's answer and remembers it; an answer to be signed is held back until it is complete."""

    def __init__(self, guard: WebhookGuard, id: str, send: Send) -> None:  # noqa: A002
        self._guard, self._id, self._send = guard, id, send
        self._start: Message = {}
        self._kept: list[bytes] = []
        self._length = 0

    async def send(self, message: Message) -> None:
        """Handle one ASGI message of the application's answer."""
        signed = self._guard._signed_answers
        if message["type"] == "http.response.start":
            self._start = message
            if signed:
                return
        elif message["type"] == "http.response.body":
            part = message.get("body", b"")
            self._length += len(part)
            if signed or self._length <= LONGEST_REMEMBERED:
                self._kept.append(part)
            more = message.get("more_body", False)
            if not more:
                self._remember()
            if signed:
                if more:
                    return
                message = await self._sign_whole_answer()
        await self._send(message)

    def _remember(self) -> None:
        if 200 <= self._start.get("status", 0) < 300:
            body = b"".join(self._kept) if self._length <= LONGEST_REMEMBERED else b""
            content_type = dict(self._start.get("headers", ())).get(b"content-type", b"")
            self._guard._remember_answer(self._id, _RememberedAnswer(self._start["status"], content_type, body))

    async def _sign_whole_answer(self) -> Message:
        """Send the start of the complete answer, with its signature; return the body as one message."""
        body = b"".join(self._kept)
        headers = [pair for pair in self._start.get("headers", ()) if pair[0].lower() != b"content-length"]
        headers += [(b"content-length", str(len(body)).encode()), *self._guard._signature(self._id, body)]
        await self._send({**self._start, "headers": headers})
        return {"type": "http.response.body", "body": body}


async def _refuse(send: Send, status: int, title: str, detail: str, headers: Headers | None = None) -> None:
    """Send an error response with problem details (RFC 9457)."""
    body = msgspec.json.encode({"type": "about:blank", "title": title, "status": status, "detail": detail})
    length = (b"content-length", str(len(body)).encode())
    given = [(b"content-type", b"application/problem+json"), length, *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})
