"""Views of the log of hook executions and of its statistics."""

from __future__ import annotations

from datetime import UTC, datetime
from time import time
from typing import Literal

from litestar import Response, get

from hookline.registry import POINTS, ExecutionRow
from hookline.server._callers import Req, caller_of
from hookline.server.page._context import PageContext, context_of
from hookline.server.page._hook_names import find_hook_names
from hookline.server.page._operation_query import FilterError, parse_moment
from hookline.server.page._plots import Series, align_spans, column_plot, legend_key, percentile_plot
from hookline.store import Page

__all__ = ["ROUTES"]

ROWS = 100
LONGEST_REVISION = 15
READS = {"scope": "hooks:read"}
LOGGED_POINTS = [*dict.fromkeys(name.partition(".")[0] for name in POINTS)]
LOGGED_STATUSES = ("ok", "denied", "error", "timeout", "mocked", "dropped", "shadow")
SERIES = {"ok": "done", "denied": "denied or asked", "failed": "failed"}
GroupedBy = Literal["hook", "point", "tenant", "agent", "tool", "agent,tool"]
SPANS = {"1h": 3600, "24h": 86_400, "7d": 7 * 86_400}


@get("/logs", opt=READS)
async def show_logs(request: Req) -> Response[str]:
    """Show the log of hook executions, newest first."""
    context, caller = context_of(request), caller_of(request)
    names = ("hook", "point", "status", "operation", "revision", "tenant", "from", "to", "cursor")
    asked = {name: request.query_params.get(name) or None for name in names}
    page, problem = Page[ExecutionRow](items=[]), ""
    try:
        page = await _read_logs(context, request, asked)
    except FilterError as error:
        problem = error.detail
    return context.render_page(
        request,
        "logs.html",
        status=422 if problem else 200,
        page=page,
        asked=asked,
        points=LOGGED_POINTS,
        statuses=LOGGED_STATUSES,
        problem=problem,
        hooks=await find_hook_names(context.parts, caller, caller.tenant()),
        tenants=await context.known_tenants(caller),
    )


async def _read_logs(context: PageContext, request: Req, asked: dict[str, str | None]) -> Page[ExecutionRow]:
    """Read a page of the log.

    Raises:
        FilterError: If a time or the revision is invalid.
    """
    caller = caller_of(request)
    return await context.parts.log.logs(
        caller.tenant(asked["tenant"]),
        hook_id=asked["hook"],
        point=asked["point"],
        status=asked["status"] if asked["status"] in LOGGED_STATUSES else None,
        operation_id=asked["operation"],
        revision=_parse_revision(asked["revision"]),
        since=parse_moment("From", asked["from"]),
        until=parse_moment("To", asked["to"]),
        cursor=asked["cursor"],
        limit=ROWS,
    )


def _parse_revision(text: str | None) -> int | None:
    """Parse the revision that a person typed.

    Raises:
        FilterError: If it is no revision.
    """
    if text is None:
        return None
    given = text.strip()
    if not (given.isascii() and given.isdigit() and len(given) <= LONGEST_REVISION and int(given)):
        raise FilterError("“Revision” must be the number of a revision, such as 12, from the history of a hook.")
    return int(given)


@get("/statistics", opt=READS)
async def show_statistics(request: Req) -> Response[str]:
    """Show the statistics of hooks."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in ("tenant", "by", "span", "hook")}
    span = asked["span"] if asked["span"] in SPANS else "24h"
    asked["span"] = span
    now = time()
    log, tenant_id = context.parts.log, caller.tenant(asked["tenant"])
    groupings: list[GroupedBy] = ["hook", "point", "agent", "tool", "agent,tool"]
    if caller.sees_all:
        groupings.append("tenant")
    by = next((each for each in groupings if each == asked["by"]), groupings[0])
    found = await log.statistics(tenant_id, hook_id=asked["hook"], since=now - SPANS[span], by=by)
    unit: Literal["minute", "hour"] = "minute" if span == "1h" else "hour"
    count = SPANS[span] // (60 if unit == "minute" else 3600)
    over_time = await log.statistics(tenant_id, hook_id=asked["hook"], since=now - SPANS[span], by=unit)
    starts, each = align_spans(over_time, now=now, by=unit, count=count)
    shape = "%b %d, %H:%M" if span == "7d" else "%H:%M"
    labels = [datetime.fromtimestamp(start, UTC).strftime(shape) for start in starts]
    bad = [0 if one is None else one.errors + one.timeouts for one in each]
    denied = [0 if one is None else one.denied + one.asked for one in each]
    fine = [0 if one is None else one.count for one in each]
    fine = [count - lost - refused for count, lost, refused in zip(fine, bad, denied, strict=True)]
    runs = column_plot(
        labels,
        [Series(name="ok", values=fine), Series(name="denied", values=denied), Series(name="failed", values=bad)],
        unit="executions of hooks",
        title=f"Executions by {unit}",
        whole=True,
    )
    slow = column_plot(
        labels,
        [Series(name="p95", values=[0 if one is None else round(one.p95_ms, 3) for one in each])],
        unit="ms",
        title=f"95th percentile of the hooks' own time, by {unit}",
    )
    most = max((one.p99_ms for one in found), default=1.0)
    rows = [(one, percentile_plot(one, most=most)) for one in found[:ROWS]]
    return context.render_page(
        request,
        "statistics.html",
        rows=rows,
        left_out=len(found) - len(rows),
        asked=asked,
        by=by,
        groupings=[(each, each.replace(",", " and ")) for each in groupings],
        unit=unit,
        runs=runs,
        legend=[(legend_key(name), shown) for name, shown in SERIES.items()],
        slow=slow,
        hooks=await find_hook_names(context.parts, caller, caller.tenant()),
        tenants=await context.known_tenants(caller),
    )


ROUTES = [show_logs, show_statistics]
