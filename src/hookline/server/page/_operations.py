"""Views of operations: the list and a single operation, both updated live."""

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
from hookline.events import OnError
from hookline.registry import ExecutionRow
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._context import PageContext, context_of
from hookline.server.page._waterfall import read_events, waterfall_body
from hookline.server.routes import (
    PING,
    SILENCE_SECONDS,
    Id,
    PendingApproval,
    find_decisions,
    list_approvals_of,
    read_visible_operation,
    stream_response,
)
from hookline.store import LIVE, Page, StoredOperation, operations

__all__ = ["MOST_MARKS", "ROUTES", "call_mark", "digest", "stream_renderings"]

ROWS, EVENTS = 100, 200
LAST_EVENTS = 20
"""Number of last events among which the error of a failed operation is looked for."""
MOST_EVENTS = 10_000
MOST_EXECUTIONS = 5000
CALM = 0.5
"""Shortest time, in seconds, between two updates of the same view, so that people can read it."""
MOST_MARKS = 500
"""Calls whose marks fit into an address; with more, it would be longer than servers accept."""
READS = {"scope": "operations:read"}


@get("/operations", opt=READS)
async def show_operations(request: Req) -> Response[str]:
    """Show the list of operations, newest first."""
    context = context_of(request)
    listing = await _read_list(context, request)
    listed = context.render(request, "operations_list.html", **listing)
    return context.render_page(request, "operations.html", listed=Markup(listed), seen=digest(listed), **listing)


@get("/operations/live", opt=READS)
async def stream_operations(request: Req) -> Stream:
    """Stream the list of operations whenever it changes."""
    context = context_of(request)

    async def render() -> str:
        return context.render(request, "operations_list.html", **await _read_list(context, request))

    await render()  # what is refused is refused before the answer begins
    return stream_response(request, stream_renderings(request, render, seen=request.query_params.get("seen")))


@get("/operations/{id:str}", opt=READS)
async def show_operation(request: Req, id: Id) -> Response[str]:  # noqa: A002
    """Show one operation with its events."""
    context = context_of(request)
    operation = await read_visible_operation(context.parts, caller_of(request), id)
    after = _parse_number(request.query_params.get("after"))
    found = await context.parts.store.events_of(id, after=after, limit=EVENTS + 1)
    decisions = await find_decisions(context.parts, caller_of(request), id)
    calls = await list_approvals_of(context.parts, operation)
    there = ".".join(call_mark(each) for each in calls[:MOST_MARKS])
    facts = await _render_facts(context, request, operation, there)
    return context.render_page(
        request,
        "operation.html",
        operation=operation,
        calls=calls,
        there=there,
        back=context.current_place(request),
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
async def stream_operation(request: Req, id: Id) -> Stream:  # noqa: A002
    """Stream the summary of an operation whenever it changes."""
    context, caller = context_of(request), caller_of(request)
    await read_visible_operation(context.parts, caller, id)
    there = request.query_params.get("calls", "")

    async def render() -> str:
        return await _render_facts(context, request, await read_visible_operation(context.parts, caller, id), there)

    return stream_response(request, stream_renderings(request, render, only=id, seen=request.query_params.get("seen")))


@get("/operations/{id:str}/waterfall.json", opt=READS)
async def read_waterfall(request: Req, id: Id) -> Response[bytes]:  # noqa: A002
    """Return the waterfall of an operation as JSON."""
    context = context_of(request)
    operation = await read_visible_operation(context.parts, caller_of(request), id)
    entries = await context.parts.store.events_of(id, limit=MOST_EVENTS)
    rows, more = await _read_executions(context, caller_of(request), id)
    now = operation.updated_at if operation.status not in LIVE else await context.parts.store.now()
    body = waterfall_body(entries, rows, now=now, truncated=more or len(entries) >= MOST_EVENTS)
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _render_facts(context: PageContext, request: Req, operation: StoredOperation, there: str) -> str:
    """Render the summary of an operation, with its error if it failed, and the number of new waiting calls.

    The calls themselves are not updated live, so that nobody decides about a call that has just moved.
    """
    failure = await _find_failure(context, operation) if operation.status == "error" else None
    waiting = [call_mark(each) for each in await list_approvals_of(context.parts, operation)]
    more = len({*waiting} - {*there.split(".")})
    return context.render(
        request, "operation_facts.html", operation=operation, failure=failure, waiting=len(waiting), more=more
    )


async def _find_failure(context: PageContext, operation: StoredOperation) -> OnError | None:
    """Find the error of a failed operation among its last events."""
    last = await context.parts.store.events_of(
        operation.operation_id, after=max(operation.events - LAST_EVENTS, 0), limit=LAST_EVENTS
    )
    return next((event for event in read_events(reversed(last)) if isinstance(event, OnError)), None)


async def _read_list(context: PageContext, request: Req) -> dict[str, Any]:
    """Read the operations and counts of the list."""
    caller = caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("status", "tenant", "cursor")}
    tenant_id = caller.tenant(asked["tenant"])
    page: Page[StoredOperation] = await context.parts.store.operations(
        tenant_id, asked["status"], cursor=asked["cursor"], limit=ROWS
    )
    return {"page": page, "asked": asked, "counts": await _count_live(context, tenant_id)}


async def _count_live(context: PageContext, tenant_id: str | None) -> dict[str, int]:
    query = select(operations.c.status, func.count()).where(operations.c.status.in_(LIVE)).group_by(operations.c.status)
    if tenant_id is not None:
        query = query.where(operations.c.tenant_id == tenant_id)
    async with context.parts.store.reading() as connection:
        return dict.fromkeys(LIVE, 0) | {row[0]: row[1] for row in await connection.execute(query)}


async def _read_executions(context: PageContext, caller: Caller, id: Id) -> tuple[list[ExecutionRow], bool]:  # noqa: A002
    """Read the log of an operation's hook executions, and return whether rows were left out."""
    log = context.parts.known_log
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


async def stream_renderings(
    request: Req,
    render: Callable[[], Awaitable[str]],
    *,
    only: str | None = None,
    seen: str | None = None,
) -> AsyncIterator[bytes]:
    """Stream renderings of a view that changes with operations, as server-sent events.

    The stream ends with the session, with the server, or when the view can no longer be rendered.

    Args:
        request: The request of the person.
        render: Renders the view.
        only: The operation that the view shows; `None` for all operations.
        seen: Digest of the rendering that the browser shows already.
    """
    yield b"retry: 1000\n\n"
    try:
        async with aclosing(_render_on_change(request, render, only, seen)) as drawn:
            async for text in drawn:
                lines = "".join(f"data: {line}\n" for line in text.splitlines())
                yield f"{lines}\nevent: changed\ndata:\n\n".encode() if text else PING
    except (ApiError, StoreUnavailableError):
        return


async def _render_on_change(
    request: Req, render: Callable[[], Awaitable[str]], only: str | None, seen: str | None
) -> AsyncGenerator[str]:
    """Yield renderings that differ from the one before, and `""` after a while without one."""
    context, session = context_of(request), request.scope["state"]["hookline_session"]
    drawn_at, said_at, dirty = 0.0, 0.0, True
    async with aclosing(context.parts.feed.changes(caller_of(request).tenant())) as changes:
        async for change in changes:
            now = monotonic()
            if context.parts.closing.is_set() or not await context.is_signed_in(session):
                return
            dirty = dirty or (change is not None and only in (None, change[1].operation_id))
            if dirty and now - drawn_at >= CALM:
                text = await render()
                drawn_at, dirty = now, False
                if digest(text) != seen:
                    seen, said_at = digest(text), now
                    yield text
            elif now - said_at > SILENCE_SECONDS:
                said_at = now
                yield ""


def call_mark(call: PendingApproval) -> str:
    """Return a short mark that distinguishes the calls that a view shows."""
    return digest(f"{call.operation_id} {call.seen}")[:10]


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return sha256(text.encode()).hexdigest()[:16]


def _parse_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else 0


ROUTES = [show_operations, stream_operations, show_operation, stream_operation, read_waterfall]
