"""Routes of the log of hook executions and of its statistics."""

from __future__ import annotations

from typing import Annotated

from litestar import Response
from litestar.params import QueryParameter

from hookline.registry import ExecutionRow, Grouping, Statistic
from hookline.server._callers import Req, caller_of, not_found_error
from hookline.server._parts import parts_of
from hookline.server.routes._shared import (
    LARGEST,
    Cursor,
    HookId,
    Id,
    Limit,
    LogPoint,
    OperationId,
    Since,
    TenantId,
    Until,
    page_response,
    route,
)
from hookline.signals import ExecutionStatus
from hookline.store import Page

__all__ = ["LOG_ROUTES"]

Status = Annotated[ExecutionStatus | None, QueryParameter(description="Return only those with this status.")]
Revision = Annotated[
    int | None,
    QueryParameter(ge=1, le=LARGEST, description="Return only those in which a hook of this revision ran."),
]
By = Annotated[Grouping, QueryParameter(description="What to group by.")]


@route("GET", "/v1/hooks/logs", scope="hooks:read", summary="List hook executions", errors=[404])
async def list_logs(
    request: Req,
    tenant_id: TenantId = None,
    hook_id: HookId = None,
    point: LogPoint = None,
    status: Status = None,
    operation_id: OperationId = None,
    revision: Revision = None,
    since: Since = None,
    until: Until = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response[Page[ExecutionRow]]:
    """List the log of hook executions, newest first: one row per call that had hooks, or per observed event."""
    tenant = caller_of(request).tenant(tenant_id)
    page = await parts_of(request).log.logs(
        tenant,
        hook_id=hook_id,
        point=point,
        status=status,
        operation_id=operation_id,
        revision=revision,
        since=since,
        until=until,
        cursor=cursor,
        limit=limit,
    )
    return page_response(request, page)


@route("GET", "/v1/hooks/logs/{id:str}", scope="hooks:read", summary="Read the hook executions of one call")
async def read_log(request: Req, id: Id) -> ExecutionRow:  # noqa: A002
    """Read a row of the log, with the status and duration of each hook."""
    found = await parts_of(request).log.log(id, caller_of(request).tenant())
    if found is None:
        raise not_found_error()
    return found


@route("GET", "/v1/hooks/stats", scope="hooks:read", summary="Summarize hook executions", errors=[404])
async def read_statistics(
    request: Req,
    tenant_id: TenantId = None,
    hook_id: HookId = None,
    point: LogPoint = None,
    since: Since = None,
    by: By = "hook",
) -> list[Statistic]:
    """Summarize hook executions: counts, decisions and p50/p95/p99 latencies, by hook, tenant, agent, tool or time.

    By agent, by tool and by both (`agent,tool`), whole hours are counted. By tool, only executions about a tool are.
    """
    tenant = caller_of(request).tenant(tenant_id)
    return await parts_of(request).log.statistics(tenant, hook_id=hook_id, point=point, since=since, by=by)


LOG_ROUTES = [list_logs, read_log, read_statistics]
