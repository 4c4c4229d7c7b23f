"""Routes of operations and their events."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from litestar import Response
from litestar.params import QueryParameter
from sqlalchemy import select

from hookline.events import CompletionReason, HookType
from hookline.runtime import ModelCallRecord
from hookline.server._callers import Caller, Req, caller_of, not_found_error
from hookline.server._operation_summaries import RangeName
from hookline.server._parts import ServerParts, parts_of
from hookline.server.routes._shared import (
    LARGEST,
    VISIBLE,
    Cursor,
    Id,
    Limit,
    Since,
    TenantId,
    Until,
    page_response,
    route,
)
from hookline.store import (
    KEPT,
    LONGEST_SEARCH,
    OperationPage,
    OperationSort,
    OperationSummary,
    StoredMessage,
    StoredOperation,
    events,
)

__all__ = ["OPERATION_ROUTES", "After", "StoredEvent", "check_events_visible", "read_visible_operation"]

Status = Annotated[
    CompletionReason | Literal["running"] | None, QueryParameter(description="Return only those with this status.")
]
AfterMessage = Annotated[
    int, QueryParameter(ge=0, le=2**31 - 1, name="after", description="Leave out this many of the first messages.")
]
AgentId = Annotated[
    str | None,
    QueryParameter(name="agentId", max_length=400, pattern=VISIBLE, description="Return only those of this agent."),
]
UserId = Annotated[
    str | None,
    QueryParameter(name="userId", max_length=400, pattern=VISIBLE, description="Return only those of this user."),
]
Tag = Annotated[
    str | None,
    QueryParameter(max_length=100, pattern=VISIBLE, description="Return only those with this tag."),
]
Tool = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=400,
        pattern=VISIBLE,
        description="Return only those that called this tool: its name, or `toolset/name`.",
    ),
]
Search = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=LONGEST_SEARCH,
        pattern=VISIBLE,
        description="Return only those whose id begins with this text, or whose `prompt` contains it.",
    ),
]
Sort = Annotated[OperationSort, QueryParameter(description="What comes first.")]
Range = Annotated[RangeName, QueryParameter(name="range", description="The length of the time range.")]
After = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="Return only events with a greater number.")]


LARGEST_PAGE, LONGEST_MESSAGE = 200, 1024 * 1024
"""Messages of one page at most, and bytes of the longest message that is sent whole."""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event of an operation.

    Attributes:
        number: The number of the event in its operation, from 1.
        type: The type of the event.
        time_unix_nano: When it happened, in nanoseconds since 1970.
        event: The event.
    """

    number: int
    type: HookType
    time_unix_nano: int
    event: dict[str, Any]


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events of an operation.

    Attributes:
        items: The events, in order.
        cursor: The number of the last event: send it as `after`. `None` if there are no more events yet.
    """

    items: list[StoredEvent]
    cursor: int | None = None


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the stored conversation of an operation.

    Attributes:
        items: The messages, in order.
        cursor: The number of the last message: send it as `after`. `None` if there are no more messages.
    """

    items: list[StoredMessage]
    cursor: int | None = None


@route("GET", "/v1/operations", scope="operations:read", summary="List operations", errors=[404])
async def list_operations(
    request: Req,
    tenant_id: TenantId = None,
    status: Status = None,
    agent_id: AgentId = None,
    user_id: UserId = None,
    tag: Tag = None,
    tool: Tool = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    sort: Sort = "newest",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response[OperationPage]:
    """List operations, newest first unless sorted otherwise. The time range is that of their start.

    A page looks at 10,000 operations at most, or at 1,000 with `tool`, or with `tag` and another filter. If it stops
    before the end, `lookedAt` says so, and the cursor continues with older operations. Other orders than `newest` are
    those of the operations looked at.
    """
    page = await parts_of(request).store.operations(
        caller_of(request).tenant(tenant_id),
        status,
        agent_id=agent_id,
        user_id=user_id,
        tag=tag,
        tool=tool,
        search=search,
        since=since,
        until=until,
        sort=sort,
        cursor=cursor,
        limit=limit,
    )
    return page_response(request, page)


@route("GET", "/v1/stats/operations", scope="operations:read", summary="Sum up operations", errors=[404])
async def summarize_operations(
    request: Req, tenant_id: TenantId = None, agent_id: AgentId = None, length: Range = "24h"
) -> OperationSummary:
    """Sum up the operations that started in a time range: in total, over time, by agent and by tenant.

    A summary may be some seconds old; `readAt` says when it was read.
    """
    tenant = caller_of(request).tenant(tenant_id)
    return await parts_of(request).summaries.read(tenant, agent_id, length)


@route("GET", "/v1/operations/{id:str}", scope="operations:read", summary="Read an operation")
async def read_operation(request: Req, id: Id) -> StoredOperation:  # noqa: A002
    """Read the summary of an operation, without conversation and events."""
    return await read_visible_operation(parts_of(request), caller_of(request), id)


@route("GET", "/v1/operations/{id:str}/events", scope="operations:read", summary="List events of an operation")
async def list_events(
    request: Req,
    id: Id,  # noqa: A002
    after: After = 0,
    limit: Limit = 100,
) -> Response[EventPage]:
    """List the events of an operation, in order. It also works for runs of which only the events are stored."""
    parts = parts_of(request)
    await check_events_visible(parts, caller_of(request), id)
    found = await parts.store.events_of(id, after=after, limit=limit + 1)
    items = [
        StoredEvent(
            number=entry.number,
            type=entry.type,
            time_unix_nano=entry.time_unix_nano,
            event=msgspec.json.decode(entry.wire),
        )
        for entry in found[:limit]
    ]
    headers = {}
    if len(found) > limit:
        where = quote(f"{request.scope['state']['hookline_root']}{request.scope['path']}")
        headers["Link"] = f'<{where}?after={items[-1].number}&limit={limit}>; rel="next"'
    return Response(EventPage(items=items, cursor=items[-1].number if headers else None), headers=headers)


@route(
    "GET", "/v1/operations/{id:str}/model-calls", scope="operations:read", summary="List model calls of an operation"
)
async def list_model_calls(request: Req, id: Id) -> list[ModelCallRecord]:  # noqa: A002
    """List the model calls of an operation, in order, as far as they are stored."""
    parts = parts_of(request)
    await read_visible_operation(parts, caller_of(request), id)
    return await parts.store.model_calls_of(id)


@route(
    "GET",
    "/v1/operations/{id:str}/messages",
    scope="operations:read",
    summary="List messages of an operation",
    errors=[409],
)
async def list_messages(request: Req, id: Id, after: AfterMessage = 0, limit: Limit = 50) -> MessagePage:  # noqa: A002
    """List the messages of an operation as the model reads them now. Of messages above 1 MiB, the beginning is sent."""
    parts = parts_of(request)
    await read_visible_operation(parts, caller_of(request), id)
    found = await parts.store.messages_of(id, after=after, limit=min(limit, LARGEST_PAGE) + 1, longest=LONGEST_MESSAGE)
    more = len(found) > min(limit, LARGEST_PAGE)
    items = found[:-1] if more else found
    return MessagePage(items=items, cursor=items[-1].number if more else None)


async def read_visible_operation(parts: ServerParts, caller: Caller, id: str) -> StoredOperation:  # noqa: A002
    """Read an operation that the caller may see.

    Raises:
        ApiError: 404, if there is no such operation, or it is another tenant's.
    """
    found = await parts.store.operation(id)
    if found is None:
        raise not_found_error()
    caller.check_visible(found.tenant_id)
    return found


async def check_events_visible(parts: ServerParts, caller: Caller, id: str) -> bool:  # noqa: A002
    """Check that the caller may see the events of an operation.

    Returns:
        Whether the state of the operation is stored here too, by which its end is known.

    Raises:
        ApiError: 404, if there are no such events, or they are another tenant's.
    """
    operation = await parts.store.operation(id)
    if operation is not None:
        caller.check_visible(operation.tenant_id)
        return True
    query = select(events.c.tenant_id).where(events.c.operation_id == id, events.c.day == KEPT).limit(1)
    found = await parts.store.read_rows(query)
    if not found:
        raise not_found_error()
    caller.check_visible(found[0].tenant_id)
    return False


OPERATION_ROUTES = [
    list_operations,
    summarize_operations,
    read_operation,
    list_events,
    list_model_calls,
    list_messages,
]
