"""Handle `Idempotency-Key`: a POST request that is sent again is not executed again, and gets the same response."""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Delete, Row, Update, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.asgi import App, Message, Receive, Scope, Send
from hookline.errors import StoreUnavailableError
from hookline.server._callers import Caller
from hookline.server._problems import ApiError
from hookline.store import SqlStore, idempotency, insert_into, read_clock

__all__ = ["Idempotency"]

logger = logging.getLogger("hookline")

KEY = re.compile(rb"[!-~]{1,200}")
KEPT_SECONDS = 86_400.0
BUSY_SECONDS = 60.0
"""Seconds after which a request without a stored response counts as lost, for example if its process died."""
UNDER_WAY = 0
LARGEST = 1024 * 1024
"""Largest response that is stored, in bytes."""


class Idempotency:
    """ASGI middleware that stores responses to POST requests with an `Idempotency-Key`, for a day, per API key.

    Only successful responses are stored: a refused request may be corrected and sent again under the same key.

    Args:
        app: The application behind it.
        store: The store of the responses.
    """

    def __init__(self, app: App, store: SqlStore) -> None:
        self._app, self._store = app, store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stored response of a request, or pass the request on.

        Raises:
            ApiError: If the key is invalid, or belongs to another request or to one that is under way.
        """
        caller: Caller | None = scope.get("state", {}).get("hookline_caller")
        given = [value for name, value in scope.get("headers", ()) if name == b"idempotency-key"]
        if caller is None or not given or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if len(given) > 1 or not KEY.fullmatch(given[0]):
            raise ApiError(422, "idempotency_key", "An Idempotency-Key must have 1 to 200 visible ASCII characters.")
        body = await read_whole_body(receive)
        place = caller.tenant_id, f"{caller.key_id}:{given[0].decode()}"
        asked = f"{scope['method']} {scope['path']}?{scope['query_string'].decode('latin-1')}\n".encode()
        known = await self._claim(place, sha256(asked + body).hexdigest())
        if known is not None:
            await _send_stored(known, send)
            return
        answer = _BufferedAnswer()
        try:
            await self._app(scope, replay_body(body, receive), answer.collect)
        finally:
            # Stored before it is sent: otherwise the same request could come again before its response is stored.
            await self._store_answer(place, answer)
        await answer.send_all(send)

    async def _claim(self, place: tuple[str, str], fingerprint: str) -> _StoredAnswer | None:
        """Claim a key for a new request, or return the stored response of an earlier one.

        Raises:
            ApiError: If the key belongs to another request, or its response is not there yet.
        """

        async def claim(connection: AsyncConnection) -> Row[Any] | None:
            now = await read_clock(connection)
            column = idempotency.c
            lost = (column.status_code == UNDER_WAY) & (column.created_at < now - BUSY_SECONDS)
            await connection.execute(delete(idempotency).where((column.created_at < now - KEPT_SECONDS) | lost))
            row = {"tenant_id": place[0], "key": place[1], "fingerprint": fingerprint}
            taken = insert_into(connection, idempotency).values(**row, status_code=UNDER_WAY, body=b"", created_at=now)
            if (await connection.execute(taken.on_conflict_do_nothing())).rowcount:
                return None
            return (await connection.execute(select(idempotency).where(_same_row(place)))).one()

        found = await self._store.write(claim)
        if found is None:
            return None
        if found.fingerprint != fingerprint:
            raise ApiError(422, "idempotency_key", "This Idempotency-Key was used for another request; use a new one.")
        if found.status_code == UNDER_WAY:
            detail = "A request with this Idempotency-Key is still in progress."
            raise ApiError(409, "under_way", detail, headers={"Retry-After": "1"})
        return msgspec.msgpack.decode(found.body, type=_StoredAnswer)

    async def _store_answer(self, place: tuple[str, str], answer: _BufferedAnswer) -> None:
        kept = answer.to_stored()
        changed: Delete | Update = delete(idempotency).where(_same_row(place))
        if kept is not None:
            encoded = msgspec.msgpack.encode(kept)
            changed = update(idempotency).where(_same_row(place)).values(status_code=kept.status, body=encoded)
        try:
            await self._store.write_one(changed)
        except StoreUnavailableError as error:
            logger.warning("The response to a request with an Idempotency-Key could not be stored: %s", error)


class _StoredAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A response as it is stored."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _BufferedAnswer:
    """Holds a response back until it is stored."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    async def collect(self, message: Message) -> None:
        self._messages.append(message)

    async def send_all(self, send: Send) -> None:
        for message in self._messages:
            await send(message)

    def to_stored(self) -> _StoredAnswer | None:
        """Return the response as it is stored; `None` if it failed or is too large."""
        if not self._messages or not 200 <= self._messages[0]["status"] < 300:
            return None
        start, *rest = self._messages
        body = b"".join(message.get("body", b"") for message in rest)
        headers = [line for line in start.get("headers", ()) if line[0].lower() != b"content-length"]
        return _StoredAnswer(start["status"], headers, remove_secret(body)) if len(body) <= LARGEST else None


async def _send_stored(kept: _StoredAnswer, send: Send) -> None:
    headers = [*kept.headers, (b"idempotency-replayed", b"true"), (b"content-length", b"%d" % len(kept.body))]
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    await send({"type": "http.response.body", "body": kept.body})


async def read_whole_body(receive: Receive) -> bytes:
    """Read the whole body of a request."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ApiError(400, "malformed", "The body is incomplete.")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` function that yields a body again that was read before."""
    given = False

    async def from_the_start() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return from_the_start


def remove_secret(body: bytes) -> bytes:
    """Remove API keys and signing secrets from a response, since these are never stored in clear text."""
    if b'"hk_' not in body and b'"whsec_' not in body:
        return body
    found: Any = msgspec.json.decode(body)
    if not isinstance(found, dict):
        return body
    hidden = {name: None for name in ("key", "secret") if isinstance(found.get(name), str)}
    return msgspec.json.encode(found | hidden) if hidden else body


def _same_row(place: tuple[str, str]) -> Any:
    return (idempotency.c.tenant_id == place[0]) & (idempotency.c.key == place[1])
