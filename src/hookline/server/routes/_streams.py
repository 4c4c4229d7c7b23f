"""Routes of server-sent events: the events of an operation as they come, and operations as they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from time import monotonic
from typing import Annotated

import msgspec
from litestar.params import HeaderParameter
from litestar.response import Stream

from hookline.errors import StoreUnavailableError
from hookline.runtime import JournalEntry
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._parts import ServerParts, parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._operations import After, check_events_visible
from hookline.server.routes._shared import Id, TenantId, route
from hookline.store import LIVE, events_topic

__all__ = ["STREAM_ROUTES", "operation_changes", "operation_events", "stream_response"]

MEDIA_TYPE = "text/event-stream"
KEY_SECONDS = 0.5
"""Seconds after which a stream checks its key, though nothing woke it: a revoked key has to end its streams."""
SILENCE_SECONDS = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy closes the connection."""
BATCH_SIZE = 500
PING = b": ping\n\n"

LastEventId = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", max_length=100, description="Continue after the event with this id."),
]


@route(
    "GET",
    "/v1/operations/{id:str}/stream",
    scope="operations:read",
    summary="Follow events of an operation",
    media_type=MEDIA_TYPE,
    errors=[204],
)
async def stream_operation(
    request: Req,
    id: Id,  # noqa: A002
    after: After = 0,
    last_event_id: LastEventId = None,
) -> Stream:
    """Stream the events of an operation: stored events first, then new ones.

    `id` is the number of the event, `event` its type. When the operation ends, the stream sends an event `end` and
    closes; a client that reconnects then gets 204.
    """
    parts, caller = parts_of(request), caller_of(request)
    has_state = await check_events_visible(parts, caller, id)
    after = max(after, _parse_number(last_event_id))
    if has_state and last_event_id is not None:
        operation = await parts.store.operation(id)
        if operation is not None and operation.status not in LIVE and operation.events <= after:
            return Stream((), status_code=204)
    return stream_response(request, operation_events(parts, caller, id, after=after, has_state=has_state))


@route(
    "GET",
    "/v1/stream",
    scope="operations:read",
    summary="Follow operations as they change",
    media_type=MEDIA_TYPE,
    errors=[404],
)
async def stream_operations(request: Req, tenant_id: TenantId = None, last_event_id: LastEventId = None) -> Stream:
    """Stream operations when they change. Each event `operation` has the body of `GET /v1/operations/{id}`.

    When an operation changes several times in quick succession, the stream may send only the last state. Reconnect
    with `Last-Event-ID` to get the changes since that event; some may be repeated.
    """
    parts, caller = parts_of(request), caller_of(request)
    tenant = caller.tenant(tenant_id)
    return stream_response(request, operation_changes(parts, caller, tenant, since=_parse_position(last_event_id)))


def stream_response(request: Req, parts_of_it: AsyncIterator[bytes]) -> Stream:
    """Build a response of server-sent events.

    Raises:
        ApiError: 429, if the key of the request has too many streams open.
    """
    parts_of(request).streams.open(request)
    return Stream(parts_of_it, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def operation_events(
    parts: ServerParts,
    caller: Caller,
    id: str,  # noqa: A002
    *,
    after: int,
    has_state: bool,
) -> AsyncIterator[bytes]:
    """Yield the events of an operation as server-sent events.

    Args:
        parts: The parts of the server.
        caller: The listener; the stream ends when its key expires or is revoked.
        id: The id of the operation.
        after: Only events with a greater number.
        has_state: Whether the state of the operation is stored, so that its end is known.
    """
    yield b"retry: 1000\n\n"
    sent_at = monotonic()
    woken = asyncio.Event()
    async with parts.store.wakeups.woken(events_topic(id), woken.set):
        woken.set()
        while not parts.closing.is_set():
            found: list[JournalEntry] = []
            operation = None
            try:
                if not await parts.keys.still(caller):
                    return
                if woken.is_set():
                    woken.clear()
                    # The operation is read before its events, so that no event between the two queries is missed.
                    operation = await parts.store.operation(id) if has_state else None
                    found = await parts.store.events_of(id, after=after, limit=BATCH_SIZE)
            except StoreUnavailableError:
                return
            for entry in found:
                yield b"id: %d\nevent: %b\ndata: %b\n\n" % (entry.number, entry.type.encode(), entry.wire)
                after, sent_at = entry.number, monotonic()
            if len(found) == BATCH_SIZE:
                woken.set()
                continue
            if operation is not None and operation.status not in LIVE:
                yield b"id: %d\nevent: end\ndata: %b\n\n" % (after, msgspec.json.encode(operation))
                return
            if monotonic() - sent_at > SILENCE_SECONDS:
                sent_at = monotonic()
                yield PING
            with suppress(TimeoutError):
                async with asyncio.timeout(KEY_SECONDS):
                    await woken.wait()


async def operation_changes(
    parts: ServerParts, caller: Caller, tenant_id: str | None, *, since: float | None
) -> AsyncIterator[bytes]:
    """Yield operations as they change, as server-sent events.

    Args:
        parts: The parts of the server.
        caller: The listener; the stream ends when its key expires or is revoked.
        tenant_id: Only operations of this tenant.
        since: Start with the changes since this position.
    """
    yield b"retry: 1000\n\n"
    sent_at = monotonic()
    try:
        async with aclosing(parts.feed.changes(tenant_id, since=since)) as changes:
            async for change in changes:
                if parts.closing.is_set() or not await parts.keys.still(caller):
                    return
                if change is not None:
                    position, operation = change
                    yield b"id: %.6f\nevent: operation\ndata: %b\n\n" % (position, msgspec.json.encode(operation))
                    sent_at = monotonic()
                elif monotonic() - sent_at > SILENCE_SECONDS:
                    yield PING
                    sent_at = monotonic()
    except StoreUnavailableError:
        return


def _parse_number(last_event_id: str | None) -> int:
    if not last_event_id:
        return 0
    if last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19:
        return int(last_event_id)
    raise ApiError(422, "last_event_id", "Last-Event-ID is not an id of this stream.")


def _parse_position(last_event_id: str | None) -> float | None:
    if not last_event_id:
        return None
    try:
        position = float(last_event_id)
    except ValueError:
        position = -1.0
    if not 0 <= position < 1e11:
        raise ApiError(422, "last_event_id", "Last-Event-ID is not an id of this stream.")
    return position


STREAM_ROUTES = [stream_operation, stream_operations]
