"""Views of the audit log: who changed what, with a search and an export."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from litestar import Response, get
from litestar.response import Stream

from hookline.server._actors import describe_actor
from hookline.server._audit import AuditFilter, search_audit
from hookline.server._callers import Req, caller_of
from hookline.server._problems import ApiError
from hookline.server.page._changes import ACTIONS, describe_change, find_target
from hookline.server.page._context import context_of
from hookline.server.routes import export_response, key_names_of

__all__ = ["PERIODS", "ROUTES", "parse_time_range"]

ROWS = 100
FILTERS = ("text", "actor", "action", "target", "tenant", "within", "from", "to")
ADMINISTERS = {"scope": "hooks:admin"}
LONGEST = 800
PERIODS = {"3600": "last hour", "86400": "last day", "604800": "last week", "2592000": "last 30 days"}
"""Choices of the filter by time: seconds until now, and their names."""
GROUPS = (
    ("Hooks", "definition."),
    ("Approvals", "approval."),
    ("Operations", "operation."),
    ("Deliveries", "delivery."),
    ("Endpoints", "endpoint."),
    ("Keys", "key."),
)


@get("/audit", opt=ADMINISTERS)
async def show_audit(request: Req) -> Response[str]:
    """Show the audit log, newest entries first."""
    context, caller = context_of(request), caller_of(request)
    asked = {name: request.query_params.get(name) or None for name in (*FILTERS, "cursor")}
    wanted = _build_filter(request, asked, await context.parts.store.now())
    page = await search_audit(
        context.parts.store, wanted, names_of=key_names_of(caller), cursor=_parse_cursor(asked["cursor"]), limit=ROWS
    )
    rows = [
        {
            "entry": each,
            "who": each.actor_name or describe_actor(each.actor),
            "did": ACTIONS.get(each.action, each.action),
            "what": describe_change(each),
            "place": find_target(each, caller.scopes),
        }
        for each in page.items
    ]
    return context.render_page(
        request,
        "audit.html",
        rows=rows,
        page=page,
        asked=asked,
        groups=GROUPS,
        actions=ACTIONS,
        periods=list(PERIODS.items()),
        is_filtered=any(asked[name] for name in FILTERS),
        tenants=await context.parts.keys.tenants() if caller.sees_all else [],
    )


@get("/audit/export", opt=ADMINISTERS)
async def export_log(request: Req) -> Stream:
    """Send all entries that match the filter as a file."""
    context = context_of(request)
    asked = {name: request.query_params.get(name) or None for name in FILTERS}
    wanted = _build_filter(request, asked, await context.parts.store.now())
    form = request.query_params.get("format")
    if form not in ("csv", "jsonl"):
        raise ApiError(422, "invalid", "The format must be csv or jsonl.")
    return export_response(context.parts, caller_of(request), wanted, form)


def _build_filter(request: Req, asked: dict[str, str | None], now: float) -> AuditFilter:
    """Build the filter of the log.

    Raises:
        ApiError: 422, if a part of the filter is invalid; 404, if it names another tenant than the key's.
    """
    if any(len(value or "") > LONGEST for value in asked.values()):
        raise ApiError(422, "invalid", f"A filter can have at most {LONGEST} characters.")
    since, until = parse_time_range(asked, now)
    return AuditFilter(
        tenant_id=caller_of(request).tenant(asked["tenant"]),
        actor=asked["actor"],
        action=asked["action"],
        target=asked["target"],
        text=asked["text"],
        since=since,
        until=until,
    )


def parse_time_range(asked: dict[str, str | None], now: float) -> tuple[float | None, float | None]:
    """Return the beginning and the end of the time that a filter names, in unix seconds; `None` without one.

    Args:
        asked: The fields `within` (seconds until now), `from` and `to` (`2026-01-31T12:00`, UTC).
        now: The present time, in unix seconds.

    Raises:
        ApiError: 422, if a time is invalid.
    """
    since, until = (_parse_moment(asked[name]) for name in ("from", "to"))
    within: Any = asked["within"]
    if within is None:
        return since, until
    if not (within.isascii() and within.isdigit()) or len(within) > 10:
        raise ApiError(422, "invalid", "The time must be a number of seconds.")
    return max(now - float(within), since or 0.0), until


def _parse_moment(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        raise ApiError(422, "invalid", "A time must be given as 2026-01-31T12:00, in UTC.") from None


def _parse_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 16:
        raise ApiError(422, "invalid", "The cursor is none of this list; go back to the first page.")
    return int(text)


ROUTES = [show_audit, export_log]
