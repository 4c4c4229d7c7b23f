"""`OperationQuery`: the filter, order and columns of the list of operations, as the address holds them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self, get_args

import msgspec

from hookline.events import CompletionReason
from hookline.server._callers import Req
from hookline.server._operation_summaries import RANGES, RangeName
from hookline.server._problems import ApiError
from hookline.store import LONGEST_SEARCH, OperationSort

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "LISTED_STATUSES",
    "RANGE_NAMES",
    "SORT_NAMES",
    "FilterError",
    "OperationQuery",
    "parse_moment",
]

LISTED_STATUSES: tuple[str, ...] = ("running", *get_args(CompletionReason))
RANGE_NAMES: dict[RangeName, str] = {
    "1h": "last hour",
    "24h": "last 24 hours",
    "7d": "last 7 days",
    "30d": "last 30 days",
}
SORT_NAMES: dict[OperationSort, str] = {
    "newest": "newest first",
    "changed": "last change first",
    "longest": "longest first",
    "costliest": "costliest first",
    "tokens": "most tokens first",
    "steps": "most steps first",
}
COLUMNS = {
    "status": "Status",
    "agent": "Agent",
    "tenant": "Tenant",
    "user": "User",
    "tags": "Tags",
    "duration": "Duration",
    "steps": "Steps",
    "models": "Model calls",
    "tools": "Tool calls",
    "tokens": "Tokens",
    "cost": "Cost",
    "started": "Started",
    "updated": "Last change",
}
DEFAULT_COLUMNS = ("status", "agent", "tenant", "duration", "steps", "tokens", "cost", "started")
LONGEST_WORD = 400


class FilterError(ApiError):
    """A filter that a person typed is invalid; the text says what to change."""

    def __init__(self, detail: str) -> None:
        super().__init__(422, "filter", detail)


class OperationQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filter, sorting and columns in the address of the list of operations. Empty fields are `None`.

    Attributes:
        search: Only operations whose id begins with it, or whose prompt contains it.
        status: Only operations with this status.
        tenant: Only operations of this tenant.
        agent: Only operations of this agent.
        user: Only operations of this user.
        tag: Only operations with this tag.
        tool: Only operations that called this tool.
        length: A range up to now, in which the operations started.
        begin: The time from which on they started, as it was typed: a date or a time in UTC.
        end: The time before which they started.
        sort: The order.
        columns: The columns that are shown.
        cursor: The cursor of the page before.
    """

    search: str | None = None
    status: str | None = None
    tenant: str | None = None
    agent: str | None = None
    user: str | None = None
    tag: str | None = None
    tool: str | None = None
    length: RangeName | None = None
    begin: str | None = None
    end: str | None = None
    sort: OperationSort = "newest"
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    cursor: str | None = None

    @classmethod
    def parse(cls, request: Req) -> Self:
        """Read the query from the address of a request. Unknown statuses, ranges, orders and columns are ignored."""
        given = request.query_params

        def one_of(name: str, values: Any) -> Any:
            return given.get(name) if given.get(name) in values else None

        chosen = given.getall("column", [])
        columns = tuple(name for name in COLUMNS if name in chosen)
        return cls(
            search=(given.get("q") or "").strip() or None,
            status=one_of("status", LISTED_STATUSES),
            tenant=given.get("tenant") or None,
            agent=given.get("agent") or None,
            user=given.get("user") or None,
            tag=given.get("tag") or None,
            tool=given.get("tool") or None,
            length=one_of("range", RANGES),
            begin=given.get("from") or None,
            end=given.get("to") or None,
            sort=one_of("sort", SORT_NAMES) or "newest",
            columns=columns or DEFAULT_COLUMNS,
            cursor=given.get("cursor") or None,
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields as the address names them, without those that have their default."""
        return {
            "q": self.search,
            "status": self.status,
            "tenant": self.tenant,
            "agent": self.agent,
            "user": self.user,
            "tag": self.tag,
            "tool": self.tool,
            "range": self.length,
            "from": self.begin,
            "to": self.end,
            "sort": None if self.sort == "newest" else self.sort,
            "column": [] if self.columns == DEFAULT_COLUMNS else list(self.columns),
            "cursor": self.cursor,
        }

    @property
    def is_filtered(self) -> bool:
        """Whether operations may be left out."""
        kept = ("sort", "column", "cursor")
        return any(value for name, value in self.fields().items() if name not in kept)

    @property
    def has_more(self) -> bool:
        """Whether one of the filters is set that the form folds away."""
        return bool(self.user or self.tag or self.tool or self.begin or self.end or self.columns != DEFAULT_COLUMNS)

    def time_range(self, now: float) -> tuple[float | None, float | None]:
        """Return the first second of the range and the first one after it, in unix seconds.

        Args:
            now: The present time, in unix seconds.

        Raises:
            FilterError: If a time or a text is invalid.
        """
        if len(self.search or "") > LONGEST_SEARCH:
            raise FilterError(f"Search for a text of at most {LONGEST_SEARCH} characters.")
        for name in ("tenant", "agent", "user", "tag", "tool"):
            if len(getattr(self, name) or "") > LONGEST_WORD:
                raise FilterError(f"The {name} can have at most {LONGEST_WORD} characters.")
        since, until = (parse_moment(name, text) for name, text in (("From", self.begin), ("To", self.end)))
        if since is not None and until is not None and since >= until:
            raise FilterError("“From” must be before “To”.")
        if self.length is not None:
            first = now - RANGES[self.length][0]
            since = first if since is None else max(first, since)
        return since, until


def parse_moment(name: str, text: str | None) -> float | None:
    """Parse a time that a person typed, in UTC unless it has a zone, into unix seconds.

    Args:
        name: The name of the field.
        text: What was typed, if anything.

    Raises:
        FilterError: If it is no time.
    """
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        message = f"“{name}” must be a date or a time in UTC, such as 2026-01-31 or 2026-01-31T18:30."
        raise FilterError(message) from None
