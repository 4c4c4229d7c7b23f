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
from hookline.server._parts import ServerParts, parts_of
from hookline.server.routes._shared import LARGEST, Cursor, Id, Limit, TenantId, page_response, route
from hookline.store import KEPT, Page, StoredOperation, events

__all__ = ["OPERATION_ROUTES", "After", "StoredEvent", "check_events_visible", "read_visible_operation"]

Status = Annotated[
    CompletionReason | Literal["running"] | None, QueryParameter(description="Return only those with this status.")
]
After = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="Return only events with a greater number.")]


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


@route("GET", "/v1/operations", scope="operations:read", summary="List operations", errors=[404])
async def list_operations(
    request: Req, tenant_id: TenantId = None, status: Status = None, cursor: Cursor = None, limit: Limit = 50
) -> Response[Page[StoredOperation]]:
    """List operations, newest first."""
    tenant = caller_of(request).tenant(tenant_id)
    return page_response(request, await parts_of(request).store.operations(tenant, status, cursor=cursor, limit=limit))


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
    async with parts.store.reading() as connection:
        query = select(events.c.tenant_id).where(events.c.operation_id == id, events.c.day == KEPT).limit(1)
        tenant_id = (await connection.execute(query)).scalar()
    if tenant_id is None:
        raise not_found_error()
    caller.check_visible(tenant_id)
    return False


OPERATION_ROUTES = [list_operations, read_operation, list_events, list_model_calls]
