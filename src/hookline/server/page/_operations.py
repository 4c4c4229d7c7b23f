"""The list of operations, updated live, and what all live views share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from hashlib import sha256
from time import monotonic
from typing import Any

from litestar import Response, get
from litestar.response import Stream
from markupsafe import Markup

from hookline.errors import StoreUnavailableError
from hookline.server._callers import Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._context import PageContext, context_of
from hookline.server.page._operation_query import (
    COLUMNS,
    DEFAULT_COLUMNS,
    LISTED_STATUSES,
    RANGE_NAMES,
    SORT_NAMES,
    FilterError,
    OperationQuery,
)
from hookline.server.page._templates import STATUSES
from hookline.server.routes import (
    PING,
    SILENCE_SECONDS,
    PendingApproval,
    stream_response,
)
from hookline.store import OperationPage

__all__ = ["MOST_MARKS", "ROUTES", "call_mark", "digest", "stream_renderings"]

ROWS = 100
CALM = 0.5
"""Shortest time, in seconds, between two updates of the same view, so that people can read it."""
LEISURE = 4.0
"""The pause after an update lasts this many times as long as the rendering took, so that live views, however many are
open, leave the server to the other requests."""
MOST_MARKS = 500
"""Calls whose marks fit into an address; with more, it would be longer than servers accept."""
READS = {"scope": "operations:read"}


@get("/operations", opt=READS)
async def show_operations(request: Req) -> Response[str]:
    """Show the list of operations."""
    context, caller = context_of(request), caller_of(request)
    query = OperationQuery.parse(request)
    try:
        listing = await _read_list(context, request, query)
        problem = ""
    except FilterError as error:
        listing, problem = await _empty_list(context, request, query), error.detail
    listed = context.render_for_all(request, "operations/list.html", **listing)
    return context.render_page(
        request,
        "operations/operations.html",
        status=422 if problem else 200,
        problem=problem,
        listed=Markup(listed),
        seen=digest(listed),
        agents=await context.known_agents(caller, query.tenant),
        tenants=await context.known_tenants(caller),
        is_live=query.cursor is None and not problem,
        statuses=[(name, STATUSES[name][1]) for name in LISTED_STATUSES],
        ranges=RANGE_NAMES,
        sorts=[(name, title) for name, title in SORT_NAMES.items() if name != "newest"],
        default_columns=" ".join(name for name in DEFAULT_COLUMNS if name != "tenant" or caller.sees_all),
        **listing,
    )


@get("/operations/live", opt=READS)
async def stream_operations(request: Req) -> Stream:
    """Stream the list of operations whenever it changes."""
    context, query = context_of(request), OperationQuery.parse(request)

    caller = caller_of(request)
    key = "operations", context.root(request), caller.tenant(query.tenant), caller.sees_all, query

    async def draw() -> str:
        return context.render_for_all(request, "operations/list.html", **await _read_list(context, request, query))

    async def render() -> str:
        return await context.shared.get(key, draw)

    await render()  # what is refused is refused before the answer begins
    return stream_response(request, stream_renderings(request, render, seen=request.query_params.get("seen")))


async def _read_list(context: PageContext, request: Req, query: OperationQuery) -> dict[str, Any]:
    """Read the operations and counts of the list.

    Raises:
        FilterError: If a filter is invalid.
        ApiError: 404, if it names another tenant than the key's.
    """
    tenant_id = caller_of(request).tenant(query.tenant)
    now = await context.parts.store.now()
    since, until = query.time_range(now)
    page = await context.parts.store.operations(
        tenant_id,
        query.status,
        agent_id=query.agent,
        user_id=query.user,
        tag=query.tag,
        tool=query.tool,
        search=query.search,
        since=since,
        until=until,
        sort=query.sort,
        cursor=query.cursor,
        limit=ROWS,
    )
    return await _list_values(context, request, query, page)


async def _empty_list(context: PageContext, request: Req, query: OperationQuery) -> dict[str, Any]:
    return await _list_values(context, request, query, OperationPage(items=[]))


async def _list_values(
    context: PageContext, request: Req, query: OperationQuery, page: OperationPage
) -> dict[str, Any]:
    caller = caller_of(request)
    counts = await context.parts.store.count_operations(caller.tenant(query.tenant))
    columns = [column for column in query.columns if column != "tenant" or caller.sees_all]
    return {
        "page": page,
        "query": query,
        "asked": query.fields(),
        "counts": counts,
        "columns": columns,
        "all_columns": [(name, title) for name, title in COLUMNS.items() if name != "tenant" or caller.sees_all],
    }


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
    due_at, said_at, dirty = 0.0, 0.0, True
    async with aclosing(context.parts.feed.changes(caller_of(request).tenant())) as changes:
        async for change in changes:
            now = monotonic()
            if context.parts.closing.is_set() or not await context.is_signed_in(session):
                return
            dirty = dirty or (change is not None and only in (None, change[1].operation_id))
            if dirty and now >= due_at:
                text = await render()
                drawn_at, dirty = monotonic(), False
                due_at = drawn_at + max(CALM, LEISURE * (drawn_at - now))
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


ROUTES = [show_operations, stream_operations]
