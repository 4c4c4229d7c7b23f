"""The overview: what operations did and cost, which hooks and deliveries need attention, by tenant, agent and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Response, get
from markupsafe import Markup

from hookline.registry import Statistic
from hookline.server._callers import Caller, Req, caller_of
from hookline.server._operation_summaries import RANGES, RangeName
from hookline.server.page._context import PageContext, context_of
from hookline.server.page._hook_names import find_hook_names
from hookline.server.page._operation_query import RANGE_NAMES
from hookline.server.page._plots import Series, column_plot, legend_key, line_key, line_plot, share_plot
from hookline.server.page._templates import format_cost, format_count, format_duration, format_moment, query_string
from hookline.server.routes import count_waiting_calls
from hookline.store import OperationSummary, OperationTotals

__all__ = ["ROUTES"]

READS = {"scope": "operations:read"}
DEFAULT_RANGE: RangeName = "24h"
BEFORE: dict[RangeName, str] = {
    "1h": "the hour before",
    "24h": "the 24 hours before",
    "7d": "the 7 days before",
    "30d": "the 30 days before",
}
SLOW_MS = 100.0
"""A hook is shown as slow if 5 % of its executions took longer than this, in its own time."""
MOST_HOOKS = 8
PLOT_WIDTH = 380
MOST_ROWS = 10
"""Agents and tenants that are shown at first; the others are folded away."""
SECONDS = 10.0
"""Seconds for which figures of hooks and deliveries are kept."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the overview.

    Attributes:
        title: What is counted.
        value: The figure.
        link: The address of the list behind it, below the root of the page.
        detail: More about it.
        change: How it compares with the time before in a few characters; `""` if that says nothing.
        change_words: The same in words.
        look: The look of a badge, if the figure needs attention.
    """

    title: str
    value: str
    link: str
    detail: str = ""
    change: str = ""
    change_words: str = ""
    look: str = ""


class HookNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A hook that denied, failed or was slow.

    Attributes:
        name: Its name.
        statistic: Its executions.
        is_slow: Whether it was slow.
    """

    name: str
    statistic: Statistic
    is_slow: bool


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of hooks and deliveries that need attention. Fields that the key may not read are `None`.

    Attributes:
        hooks: The hooks that denied, failed or were slow, the worst first.
        denied: Executions that denied, or had a person asked.
        failed: Executions that raised or timed out.
        dead: Deliveries that were given up.
        open: Deliveries that wait or are pending.
        endpoints: Endpoints that are disabled or paused.
    """

    hooks: list[HookNotice] | None
    denied: int
    failed: int
    dead: int
    open: int
    endpoints: int


@get("/overview", opt=READS)
async def show_overview(request: Req) -> Response[str]:
    """Show what operations did and cost in a time range."""
    context, caller = context_of(request), caller_of(request)
    given = request.query_params
    length = next((name for name in RANGES if name == given.get("range")), DEFAULT_RANGE)
    tenant, agent = given.get("tenant") or None, given.get("agent") or None
    tenant_id = caller.tenant(tenant)
    summaries = context.parts.summaries
    summary = await summaries.read(tenant_id, agent, length)
    live = await context.parts.store.count_operations(tenant_id)
    calls, more = await summaries.cached(
        ("waiting", tenant_id, agent), SECONDS, lambda: count_waiting_calls(context.parts, tenant_id, agent)
    )
    waiting = f"{calls}+" if more else str(calls)
    may_read_hooks = "hooks:read" in caller.scopes and context.parts.known_log is not None
    attention = await summaries.cached(
        ("attention", tenant_id, length, may_read_hooks),
        SECONDS,
        lambda: _read_attention(context, caller, tenant_id, summary.since),
    )
    asked = {
        "tenant": tenant if caller.sees_all else None,
        "agent": agent,
        "range": None if length == DEFAULT_RANGE else length,
    }
    within = _range_fields(asked, summary.since, summary.until)
    return context.render_page(
        request,
        "overview.html",
        asked=asked,
        within=within,
        length=length,
        ranges=RANGE_NAMES.items(),
        agents=await context.known_agents(caller, tenant),
        tenants=await context.known_tenants(caller),
        summary=summary,
        is_empty=not summary.total.count and not summary.before.count and not any(live.values()),
        cards=_make_cards(summary, waiting, attention, within=within, length=length, asked=asked),
        plots=_draw_plots(summary, within=within, length=length, root=context.root(request)),
        tables=_make_tables(summary, within),
        attention=attention if agent is None else None,
        period=BEFORE[length],
        logs={"tenant": asked["tenant"], "from": within["from"]},
    )


def _range_fields(asked: dict[str, str | None], since: float, until: float) -> dict[str, str | None]:
    """Return the fields of the address of the list of operations that started in a time range."""
    names = {"tenant": asked["tenant"], "agent": asked["agent"]}
    return {**names, "from": format_moment(since), "to": format_moment(until)}


async def _read_attention(context: PageContext, caller: Caller, tenant_id: str | None, since: float) -> Attention:
    """Read which hooks and deliveries need attention."""
    deliveries = await context.parts.deliveries.counts(tenant_id, statuses=("dead", "pending", "waiting"))
    endpoints = await context.parts.deliveries.endpoints(tenant_id)
    now = await context.parts.store.now()
    log = context.parts.known_log if "hooks:read" in caller.scopes else None
    statistics = [] if log is None else await log.statistics(tenant_id, since=since, by="hook")
    names = await find_hook_names(context.parts, caller, tenant_id)
    worst = sorted(
        (each for each in statistics if each.denied or each.asked or _failed(each) or each.p95_ms >= SLOW_MS),
        key=lambda each: (-_failed(each), -each.denied - each.asked, -each.p95_ms),
    )
    return Attention(
        hooks=[
            HookNotice(
                name=names[each.hook_id].name if each.hook_id in names else each.hook_id or "",
                statistic=each,
                is_slow=each.p95_ms >= SLOW_MS,
            )
            for each in worst[:MOST_HOOKS]
        ]
        if log is not None
        else None,
        denied=sum(each.denied + each.asked for each in statistics),
        failed=sum(_failed(each) for each in statistics),
        dead=deliveries["dead"],
        open=deliveries["pending"] + deliveries["waiting"],
        endpoints=sum(bool(each.disabled_at or (each.closed_until or 0.0) > now) for each in endpoints),
    )


def _failed(statistic: Statistic) -> int:
    return statistic.errors + statistic.timeouts


def _make_cards(
    summary: OperationSummary,
    waiting: str,
    attention: Attention,
    *,
    within: dict[str, str | None],
    length: RangeName,
    asked: dict[str, str | None],
) -> list[Card]:
    """Build the cards, each with the address of the list that shows what it counts."""
    total, before = summary.total, summary.before

    def listed(**fields: str | None) -> str:
        return f"/operations{query_string({**within, **fields})}"

    def change(now: float, then: float) -> dict[str, str]:
        short, words = _compare(now, then, BEFORE[length])
        return {"change": short, "change_words": words}

    ended = total.count - total.live
    rate = f"{100 * total.errors / total.count:.1f} % of all" if total.count else ""
    cards = [
        Card(
            title="Operations",
            value=format_count(total.count),
            link=listed(),
            detail=f"{format_count(total.live)} not ended" if total.live else "all have ended" if total.count else "",
            **change(total.count, before.count),
        ),
        Card(
            title="Errors",
            value=format_count(total.errors),
            link=listed(status="error"),
            detail=rate,
            **change(total.errors, before.errors),
            look="failed" if total.errors else "",
        ),
        Card(
            title="Cost",
            value=format_cost(total.cost_usd) if total.cost_usd else "$0",
            link=listed(sort="costliest"),
            detail=f"{format_cost(total.cost_usd / total.count)} each"
            if total.cost_usd
            else "no model call had a cost",
            **change(total.cost_usd, before.cost_usd),
        ),
        Card(
            title="Tokens",
            value=format_count(total.total_tokens),
            link=listed(sort="tokens"),
            detail=f"{format_count(round(total.total_tokens / total.count))} each" if total.count else "",
            **change(total.total_tokens, before.total_tokens),
        ),
        Card(
            title="Duration",
            value=format_duration(total.p50_ms) if ended else "—",
            link=listed(sort="longest"),
            detail=f"median; p95 is {format_duration(total.p95_ms)}" if ended else "no operation has ended",
        ),
        Card(
            title="Calls waiting for a person",
            value=waiting,
            link=f"/approvals{query_string({'tenant': asked['tenant'], 'agent': asked['agent']})}",
            detail="decide about them" if waiting != "0" else "nothing to decide",
            look="" if waiting == "0" else "waiting",
        ),
    ]
    if asked["agent"] is None:
        cards += _make_attention_cards(attention, within=within, length=length, tenant=asked["tenant"])
    return cards


def _make_attention_cards(
    attention: Attention, *, within: dict[str, str | None], length: RangeName, tenant: str | None
) -> list[Card]:
    cards = []
    if attention.hooks is not None:
        logs = {"tenant": tenant, "from": within["from"]}
        cards.append(
            Card(
                title="Denied or asked about",
                value=format_count(attention.denied),
                link=f"/logs{query_string({**logs, 'status': 'denied'})}",
                detail=f"by hooks; {format_count(attention.failed)} hook runs failed",
                look="denied" if attention.failed else "",
            )
        )
    cards.append(
        Card(
            title="Deliveries given up",
            value=format_count(attention.dead),
            link=f"/deliveries{query_string({'tenant': tenant, 'status': 'dead'})}",
            detail=f"{format_count(attention.open)} waiting, {attention.endpoints} "
            f"{'endpoint' if attention.endpoints == 1 else 'endpoints'} off",
            look="failed" if attention.dead or attention.endpoints else "",
        )
    )
    return cards


def _compare(now: float, then: float, period: str) -> tuple[str, str]:
    """Return how a figure compares with that of the time before: in a few characters, and in words."""
    if not then:
        return ("▲ new", f"none in {period}") if now else ("", "")
    percent = round(100 * (now - then) / then)
    if not percent:
        return "=", f"as in {period}"
    if percent > 900:
        return f"▲ {now / then:,.0f}-fold", f"{now / then:,.0f} times {period}"
    if percent > 0:
        return f"▲ {percent} %", f"{percent} % more than {period}"
    return f"▼ {-percent} %", f"{-percent} % less than {period}"


def _draw_plots(
    summary: OperationSummary, *, within: dict[str, str | None], length: RangeName, root: str
) -> list[dict[str, Any]]:
    """Draw the plots over time."""
    spans = summary.by_time
    shape = {"1h": "%H:%M", "24h": "%b %d, %H:%M", "7d": "%b %d, %H:%M", "30d": "%b %d"}[length]
    step = (summary.until - summary.since) / len(spans)
    starts = [summary.since + place * step for place in range(len(spans))]
    labels = [datetime.fromtimestamp(start, UTC).strftime(shape) for start in starts]

    def links(**fields: str) -> list[str]:
        places = [{"from": format_moment(start), "to": format_moment(start + step)} for start in starts]
        return [f"{root}/operations{query_string({**within, **place, **fields})}" for place in places]

    def column(get_value: Callable[[OperationTotals], float]) -> Sequence[float]:
        return [get_value(each) for each in spans]

    runs = column_plot(
        labels,
        [
            Series(name="done", values=column(lambda each: each.done)),
            Series(name="stopped", values=column(lambda each: each.stopped)),
            Series(name="failed", values=column(lambda each: each.errors)),
            Series(name="live", values=column(lambda each: each.live)),
        ],
        unit="operations",
        title="Operations over time",
        whole=True,
        width=PLOT_WIDTH,
        links=links(),
    )
    cost = column_plot(
        labels,
        [Series(name="cost", values=column(lambda each: each.cost_usd))],
        unit="US dollars",
        title="Cost over time",
        width=PLOT_WIDTH,
        format_value=lambda value: f"${value:.4g}",
        links=links(sort="costliest"),
    )
    latency = line_plot(
        labels,
        [("p95", [each.p95_ms for each in spans]), ("p50", [each.p50_ms for each in spans])],
        title="Duration of operations over time",
        format_value=_format_axis_duration,
        width=PLOT_WIDTH,
    )
    names = {"done": "done", "stopped": "stopped early", "failed": "failed", "live": "not ended"}
    counts = {"done": "done", "stopped": "stopped", "failed": "errors", "live": "live"}
    seen = [name for name, field in counts.items() if getattr(summary.total, field)]
    return [
        {"title": "Operations", "drawn": runs, "legend": [(legend_key(name), names[name]) for name in seen]},
        {"title": "Cost", "drawn": cost, "legend": [("", "in US dollars")]},
        {"title": "Duration", "drawn": latency, "legend": [(line_key("p50"), "p50"), (line_key("p95"), "p95")]},
    ]


def _format_axis_duration(ms: float) -> str:
    """Format a duration in few characters, for an axis."""
    return f"{ms:.4g} ms" if ms < 1000 else f"{ms / 1000:.4g} s"


def _make_tables(summary: OperationSummary, within: dict[str, str | None]) -> list[dict[str, Any]]:
    """Build the tables of agents and tenants, the costliest first."""
    tables: list[dict[str, Any]] = []
    for name, title, rows in (
        ("agent", "agent", summary.by_agent),
        ("tenant", "tenant", summary.by_tenant if len(summary.by_tenant) > 1 else []),
    ):
        if not rows:
            continue
        most = max((each.cost_usd for each in rows), default=0.0)
        found = [
            {
                "name": getattr(each, f"{name}_id"),
                "totals": each,
                "link": {**within, name: getattr(each, f"{name}_id")},
                "share": 100 * each.cost_usd / summary.total.cost_usd if summary.total.cost_usd else 0.0,
                "bar": share_plot(each.cost_usd / most if most else 0.0) if most else Markup(),
            }
            for each in rows
        ]
        tables.append({"title": title, "first": found[:MOST_ROWS], "rest": found[MOST_ROWS:], "most": most})
    return tables


ROUTES = [show_overview]
