"""Routes that go on: events of an operation as they come, and operations as they change (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from time import monotonic
from typing import Annotated

import msgspec
from litestar.params import HeaderParameter
from litestar.response import Stream

from hookline.errors import StoreUnavailableError
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._parts import Parts, parts_of
from hookline.server._problems import ApiError
from hookline.server.routes._operations import After, check_events_visible
from hookline.server.routes._shared import Id, TenantId, route

__all__ = ["STREAM_ROUTES", "event_stream", "operation_changes", "operation_events"]

MEDIA_TYPE = "text/event-stream"
LOOK_SECONDS = 0.25
SILENCE_SECONDS = 15.0
"""After which something is sent, so that nobody on the way takes the connection for dead."""
TOGETHER = 500
LIVE = ("running", "waiting_for_human")
PING = b": ping\n\n"

LastEventId = Annotated[
    str | None, HeaderParameter(name="Last-Event-ID", max_length=100, description="Go on after the event of this id.")
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
    """First those that there are, then those that come. `id` is the number of an event, `event` its type.

    Ends with an event `end` when the operation has ended; who comes back after that one gets 204.
    """
    parts, caller = parts_of(request), caller_of(request)
    kept = await check_events_visible(parts, caller, id) == "kept"
    after = max(after, _number(last_event_id))
    if kept and last_event_id is not None:
        operation = await parts.store.operation(id)
        if operation is not None and operation.status not in LIVE and operation.events <= after:
            return Stream((), status_code=204)
    return event_stream(request, operation_events(parts, caller, id, after=after, kept=kept))


@route(
    "GET",
    "/v1/stream",
    scope="operations:read",
    summary="Follow operations as they change",
    media_type=MEDIA_TYPE,
    errors=[404],
)
async def stream_operations(request: Req, tenant_id: TenantId = None, last_event_id: LastEventId = None) -> Stream:
    """Each event `operation` has an operation as it is now, as `GET /v1/operations/{id}` shows it.

    Of states that follow each other quickly only the last one is certain to be sent. Who comes back with the id of the
    last event is told what has changed since; some of it perhaps once more.
    """
    parts, caller = parts_of(request), caller_of(request)
    tenant = caller.tenant(tenant_id)
    return event_stream(request, operation_changes(parts, caller, tenant, since=_position(last_event_id)))


def event_stream(request: Req, parts_of_it: AsyncIterator[bytes]) -> Stream:
    """An answer of server-sent events.

    Raises:
        ApiError: 429, if the key of the request has as many open as it may have.
    """
    parts_of(request).streams.open(request)
    return Stream(parts_of_it, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def operation_events(
    parts: Parts,
    caller: Caller,
    id: str,  # noqa: A002
    *,
    after: int,
    kept: bool,
) -> AsyncIterator[bytes]:
    """Events of an operation, as server-sent events.

    Args:
        parts: What the server is made of.
        caller: Who listens; it ends when their key does.
        id: The operation.
        after: Only those with a greater number.
        kept: Whether the operation itself is kept, so that its end is known.
    """
    yield b"retry: 1000\n\n"
    heard = monotonic()
    while not parts.closing.is_set():
        try:
            if not await parts.keys.still(caller):
                return
            # Whether it has ended is asked before its events: so none is missed that comes between the two.
            operation = await parts.store.operation(id) if kept else None
            found = await parts.store.events_of(id, after=after, limit=TOGETHER)
        except StoreUnavailableError:
            return
        for entry in found:
            yield b"id: %d\nevent: %b\ndata: %b\n\n" % (entry.number, entry.type.encode(), entry.wire)
            after, heard = entry.number, monotonic()
        if len(found) == TOGETHER:
            continue
        if operation is not None and operation.status not in LIVE:
            yield b"id: %d\nevent: end\ndata: %b\n\n" % (after, msgspec.json.encode(operation))
            return
        if monotonic() - heard > SILENCE_SECONDS:
            heard = monotonic()
            yield PING
        await asyncio.sleep(LOOK_SECONDS)


async def operation_changes(
    parts: Parts, caller: Caller, tenant_id: str | None, *, since: float | None
) -> AsyncIterator[bytes]:
    """Operations as they change, as server-sent events.

    Args:
        parts: What the server is made of.
        caller: Who listens; it ends when their key does.
        tenant_id: Only those of this tenant.
        since: Begin with what has changed since this position.
    """
    yield b"retry: 1000\n\n"
    heard = monotonic()
    try:
        async with aclosing(parts.feed.changes(tenant_id, since=since)) as changes:
            async for change in changes:
                if parts.closing.is_set() or not await parts.keys.still(caller):
                    return
                if change is not None:
                    position, operation = change
                    yield b"id: %.6f\nevent: operation\ndata: %b\n\n" % (position, msgspec.json.encode(operation))
                    heard = monotonic()
                elif monotonic() - heard > SILENCE_SECONDS:
                    yield PING
                    heard = monotonic()
    except StoreUnavailableError:
        return


def _number(last_event_id: str | None) -> int:
    if not last_event_id:
        return 0
    if last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19:
        return int(last_event_id)
    raise ApiError(422, "last_event_id", "Last-Event-ID is not one that this stream has given.")


def _position(last_event_id: str | None) -> float | None:
    if not last_event_id:
        return None
    try:
        position = float(last_event_id)
    except ValueError:
        position = -1.0
    if not 0 <= position < 1e11:
        raise ApiError(422, "last_event_id", "Last-Event-ID is not one that this stream has given.")
    return position


STREAM_ROUTES = [stream_operation, stream_operations]
