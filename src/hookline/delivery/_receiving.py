"""`WebhookGuard`: stands in front of an application that receives deliveries, and lets in what is signed, once."""

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
"""Bytes of an answer that are kept for a delivery that comes again: more than the answer of a control needs."""


class _Answer(msgspec.Struct, frozen=True):
    """What the application said about a delivery, for when it comes again."""

    status: int
    content_type: bytes
    body: bytes


class WebhookGuard:
    """Let in deliveries that are signed with our keys, each of them once; answer all else in the application's place.

    What has no valid signature is answered with 401, what is too long with 413. A delivery that comes again after the
    application has taken it (2xx) is answered as it was then, without the application; one that comes while the
    application is busy with it, with 409. After a failure it is let in again. The application finds a `Verified` in
    `scope["state"]["webhook"]`. Websockets are refused; lifespans pass.

    What was taken is remembered in this process only, and in its memory: an application behind several processes makes
    its own work idempotent by the id.

    Args:
        app: The application.
        keys: A ring, of which every key is accepted, or secrets; public keys (`whpk_`) will do.
        tolerance: How many seconds old, or ahead of our clock, a signature may be.
        max_body: Bytes that a delivery may have.
        remember: How many deliveries are remembered; of each, up to 4 KiB of the answer.
        signed_answers: Whether answers are signed too, with the key `""`, for `Sender(signed_answers=True)`.

    Raises:
        WebhookKeyError: If a key cannot be read.
        HookDefinitionError: If another argument cannot work.
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
            raise HookDefinitionError("WebhookGuard", f"`app` is called for each delivery; got {app!r:.200}")
        if not tolerance > 0 or max_body < 1 or remember < 1:
            raise HookDefinitionError("WebhookGuard", "`tolerance`, `max_body` and `remember` are more than nothing")
        self.app, self.keys = app, as_key_ring(keys)
        if signed_answers and not self.keys.signs():
            raise HookDefinitionError("WebhookGuard", "`signed_answers` needs a whsec_ or whsk_ key of the name ''")
        self._tolerance, self._max_body = tolerance, max_body
        self._remember, self._signed_answers = remember, signed_answers
        self._busy: set[str] = set()
        self._taken: OrderedDict[str, _Answer] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            BaseException: What the application raises, unchanged.
        """
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "only signed deliveries are taken"})
            return
        try:
            body = await self._body(scope, receive)
            if body is None:
                return
            verified = verify(scope["headers"], body, self.keys, tolerance=self._tolerance)
            if verified.id.startswith(ANSWER_PREFIX):
                raise WebhookVerificationError("it is an answer, and no delivery")
        except WebhookVerificationError as error:
            await _refuse(send, 401, "Not signed", str(error))
        except _TooLongError:
            await _refuse(send, 413, "Too long", f"A delivery may have {self._max_body} bytes.")
        else:
            await self._take(scope, receive, send, verified, body)

    async def _take(self, scope: Scope, receive: Receive, send: Send, verified: Verified, body: bytes) -> None:
        """Lead a delivery to the application, unless it was there already."""
        taken = self._taken.get(verified.id)
        if taken is not None:
            await self._again(send, verified.id, taken)
            return
        if verified.id in self._busy:
            await _refuse(send, 409, "Busy", "This very delivery is being handled.", [(b"retry-after", b"1")])
            return
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        self._busy.add(verified.id)
        try:
            inner = {**scope, "state": {**scope.get("state", {}), "webhook": verified}}
            await self.app(inner, replay, _Watch(self, verified.id, send).send)
        finally:
            self._busy.discard(verified.id)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """All of the body; `None` if the client is gone.

        Raises:
            _TooLongError: If it is longer than it may be.
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

    async def _again(self, send: Send, id: str, taken: _Answer) -> None:  # noqa: A002
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

    def _took(self, id: str, answer: _Answer) -> None:  # noqa: A002
        self._taken[id] = answer
        while len(self._taken) > self._remember:
            self._taken.popitem(last=False)


class _TooLongError(Exception):
    """A body that is longer than it may be."""


class _Watch:
    """What the application answers, on its way out: remembered, and, if that is wanted, held back to be signed."""

    def __init__(self, guard: WebhookGuard, id: str, send: Send) -> None:  # noqa: A002
        self._guard, self._id, self._send = guard, id, send
        self._start: Message = {}
        self._kept: list[bytes] = []
        self._length = 0

    async def send(self, message: Message) -> None:
        """Pass on a message of the application."""
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
                self._end()
            if signed:
                if more:
                    return
                message = await self._begin_signed()
        await self._send(message)

    def _end(self) -> None:
        if 200 <= self._start.get("status", 0) < 300:
            body = b"".join(self._kept) if self._length <= LONGEST_REMEMBERED else b""
            content_type = dict(self._start.get("headers", ())).get(b"content-type", b"")
            self._guard._took(self._id, _Answer(self._start["status"], content_type, body))

    async def _begin_signed(self) -> Message:
        """Send what the answer begins with, signed; gives the rest, in one piece."""
        body = b"".join(self._kept)
        headers = [pair for pair in self._start.get("headers", ()) if pair[0].lower() != b"content-length"]
        headers += [(b"content-length", str(len(body)).encode()), *self._guard._signature(self._id, body)]
        await self._send({**self._start, "headers": headers})
        return {"type": "http.response.body", "body": body}


async def _refuse(send: Send, status: int, title: str, detail: str, headers: Headers | None = None) -> None:
    """Answer with problem details (RFC 9457)."""
    body = msgspec.json.encode({"type": "about:blank", "title": title, "status": status, "detail": detail})
    length = (b"content-length", str(len(body)).encode())
    given = [(b"content-type", b"application/problem+json"), length, *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})
