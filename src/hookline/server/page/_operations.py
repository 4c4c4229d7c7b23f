"""Views of operations: those that there are, as they change, and one with all that it did."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from hashlib import sha256
from time import monotonic
from typing import Any

import msgspec
from litestar import Response, get
from litestar.response import Stream
from markupsafe import Markup
from sqlalchemy import func, select

from hookline.errors import StoreUnavailableError
from hookline.events import HookType, OnError, decode
from hookline.registry import ExecutionRow
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._frame import Frame, frame_of
from hookline.server.page._waterfall import waterfall_body
from hookline.server.routes import (
    PING,
    SILENCE_SECONDS,
    Id,
    PendingApproval,
    approvals_of,
    decisions_about,
    event_stream,
    visible_operation,
)
from hookline.store import Page, StoredOperation, operations

__all__ = ["MOST_MARKS", "ROUTES", "digest", "mark_of", "pictures"]

ROWS, EVENTS = 100, 200
LAST_EVENTS = 20
"""Among which the error is that has ended an operation."""
MOST_EVENTS = 10_000
MOST_EXECUTIONS = 5000
CALM = 0.5
"""Seconds between two pictures of the same list: more often nobody can read it."""
MOST_MARKS = 500
"""Calls whose marks an address carries; more would make it longer than servers take."""
READS = {"scope": "operations:read"}
LIVE = ("running", "waiting_for_human")


@get("/operations", opt=READS)
async def shown(request: Req) -> Response[str]:
    """Operations, the newest first."""
    frame = frame_of(request)
    told = await _listed(frame, request)
    listed = frame.text(request, "operations_list.html", **told)
    return frame.page(request, "operations.html", listed=Markup(listed), seen=digest(listed), **told)


@get("/operations/live", opt=READS)
async def live(request: Req) -> Stream:
    """The same list whenever it has changed."""
    frame = frame_of(request)

    async def picture() -> str:
        return frame.text(request, "operations_list.html", **await _listed(frame, request))

    await picture()  # what is refused is refused before the answer begins
    return event_stream(request, pictures(request, picture, seen=request.query_params.get("seen")))


@get("/operations/{id:str}", opt=READS)
async def one(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """What one operation did."""
    frame = frame_of(request)
    operation = await visible_operation(frame.parts, caller_of(request), id)
    after = _number(request.query_params.get("after"))
    found = await frame.parts.store.events_of(id, after=after, limit=EVENTS + 1)
    decisions = await decisions_about(frame.parts, caller_of(request), id)
    calls = await approvals_of(frame.parts, operation)
    there = ".".join(mark_of(each) for each in calls[:MOST_MARKS])
    facts = await _facts(frame, request, operation, there)
    return frame.page(
        request,
        "operation.html",
        operation=operation,
        calls=calls,
        there=there,
        back=frame.place(request),
        decisions=decisions,
        deciders={each.event_number: each for each in decisions if each.event_number is not None},
        facts=Markup(facts),
        seen=digest(facts),
        events=[{"entry": entry, "fields": msgspec.json.decode(entry.wire)} for entry in found[:EVENTS]],
        after=after,
        more=found[EVENTS - 1].number if len(found) > EVENTS else None,
        is_live=operation.status in LIVE,
    )


@get("/operations/{id:str}/live", opt=READS)
async def one_live(request: Req, id: Id) -> Stream:  # noqa: A002
    """The facts of an operation whenever they have changed."""
    frame, caller = frame_of(request), caller_of(request)
    await visible_operation(frame.parts, caller, id)
    there = request.query_params.get("calls", "")

    async def picture() -> str:
        return await _facts(frame, request, await visible_operation(frame.parts, caller, id), there)

    return event_stream(request, pictures(request, picture, only=id, seen=request.query_params.get("seen")))


@get("/operations/{id:str}/waterfall.json", opt=READS)
async def waterfall(request: Req, id: Id) -> Response[bytes]:  # noqa: A002
    """The bars of an operation."""
    frame = frame_of(request)
    operation = await visible_operation(frame.parts, caller_of(request), id)
    entries = await frame.parts.store.events_of(id, limit=MOST_EVENTS)
    rows, more = await _executions(frame, caller_of(request), id)
    now = operation.updated_at if operation.status not in LIVE else await frame.parts.store.now()
    body = waterfall_body(entries, rows, now=now, truncated=more or len(entries) >= MOST_EVENTS)
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _facts(frame: Frame, request: Req, operation: StoredOperation, there: str) -> str:
    """Draw what is known of an operation as a whole; if it has failed, why; whether calls wait that are not there.

    The calls themselves are no part of what changes by itself: nobody is to decide about what has just moved.
    """
    failure = await _failure(frame, operation) if operation.status == "error" else None
    waiting = [mark_of(each) for each in await approvals_of(frame.parts, operation)]
    more = len({*waiting} - {*there.split(".")})
    return frame.text(
        request, "operation_facts.html", operation=operation, failure=failure, waiting=len(waiting), more=more
    )


async def _failure(frame: Frame, operation: StoredOperation) -> OnError | None:
    """Why an operation has failed, as the last of its events tell."""
    last = await frame.parts.store.events_of(
        operation.operation_id, after=max(operation.events - LAST_EVENTS, 0), limit=LAST_EVENTS
    )
    told = (decode(entry.wire) for entry in reversed(last) if entry.type == HookType.ON_ERROR)
    return next((event for event in told if isinstance(event, OnError)), None)


async def _listed(frame: Frame, request: Req) -> dict[str, Any]:
    """What the list shows."""
    caller = caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("status", "tenant", "cursor")}
    tenant_id = caller.tenant(asked["tenant"])
    page: Page[StoredOperation] = await frame.parts.store.operations(
        tenant_id, asked["status"], cursor=asked["cursor"], limit=ROWS
    )
    return {"page": page, "asked": asked, "counts": await _counts(frame, tenant_id)}


async def _counts(frame: Frame, tenant_id: str | None) -> dict[str, int]:
    query = select(operations.c.status, func.count()).where(operations.c.status.in_(LIVE)).group_by(operations.c.status)
    if tenant_id is not None:
        query = query.where(operations.c.tenant_id == tenant_id)
    async with frame.parts.store.reading() as connection:
        return dict.fromkeys(LIVE, 0) | {row[0]: row[1] for row in await connection.execute(query)}


async def _executions(frame: Frame, caller: Caller, id: Id) -> tuple[list[ExecutionRow], bool]:  # noqa: A002
    """What the log has about an operation, and whether there is more."""
    log = frame.parts.known_log
    if log is None or "hooks:read" not in caller.scopes:
        return [], False
    rows: list[ExecutionRow] = []
    cursor = None
    while len(rows) < MOST_EXECUTIONS:
        page = await log.logs(caller.tenant(), operation_id=id, cursor=cursor, limit=1000)
        rows += page.items
        cursor = page.cursor
        if cursor is None:
            return rows, False
    return rows, True


async def pictures(
    request: Req,
    picture: Callable[[], Awaitable[str]],
    *,
    only: str | None = None,
    seen: str | None = None,
) -> AsyncIterator[bytes]:
    """Pictures of something that changes with operations, until the session ends, the server, or what they are of.

    Args:
        request: Of who looks.
        picture: Draws it.
        only: The operation that it is about, if it is about one.
        seen: Digest of the picture that is there already.
    """
    yield b"retry: 1000\n\n"
    try:
        async with aclosing(_drawn(request, picture, only, seen)) as drawn:
            async for text in drawn:
                lines = "".join(f"data: {line}\n" for line in text.splitlines())
                yield f"{lines}\nevent: changed\ndata:\n\n".encode() if text else PING
    except (ApiError, StoreUnavailableError):
        return


async def _drawn(
    request: Req, picture: Callable[[], Awaitable[str]], only: str | None, seen: str | None
) -> AsyncGenerator[str]:
    """Pictures, each unlike the one before; `""` after a while without one."""
    frame, session = frame_of(request), request.scope["state"]["hookline_session"]
    drawn_at, said_at, dirty = 0.0, 0.0, True
    async with aclosing(frame.parts.feed.changes(caller_of(request).tenant())) as changes:
        async for change in changes:
            now = monotonic()
            if frame.parts.closing.is_set() or not await frame.holds(session):
                return
            dirty = dirty or (change is not None and only in (None, change[1].operation_id))
            if dirty and now - drawn_at >= CALM:
                text = await picture()
                drawn_at, dirty = now, False
                if digest(text) != seen:
                    seen, said_at = digest(text), now
                    yield text
            elif now - said_at > SILENCE_SECONDS:
                said_at = now
                yield ""


def mark_of(call: PendingApproval) -> str:
    """Name a call in a few characters, to tell apart those that a page shows."""
    return digest(f"{call.operation_id} {call.seen}")[:10]


def digest(text: str) -> str:
    """Names a picture."""
    return sha256(text.encode()).hexdigest()[:16]


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


ROUTES = [shown, live, one, one_live, waterfall]
