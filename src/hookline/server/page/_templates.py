"""The Jinja environment of the page, with its filters."""

from __future__ import annotations

import functools
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hookline.budgets import format_amounts
from hookline.registry import HookRun
from hookline.runtime import DECIDED, DECISIONS
from hookline.server.page._arguments import list_arguments
from hookline.server.page._conversation import find_asker, message_text, summarize_event
from hookline.server.page._json_layout import layout_json
from hookline.server.routes import describe_decider

__all__ = [
    "STATUSES",
    "format_cost",
    "format_count",
    "format_duration",
    "format_moment",
    "page_environment",
    "query_string",
]

FOLDER = Path(__file__).parent / "templates"
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Invisible characters, and those that reverse the direction of text. Approvals show them as escapes."""

STATUSES = {
    "running": ("running", "running"),
    "waiting_for_human": ("waiting", "waiting for a person"),
    "done": ("ok", "done"),
    "error": ("failed", "failed"),
    "interrupted": ("denied", "interrupted"),
    "max_steps": ("denied", "out of steps"),
    "cost_limit": ("denied", "out of budget"),
    "ok": ("ok", "ok"),
    "ended": ("ok", "ended"),
    "denied": ("denied", "denied"),
    "timeout": ("failed", "timed out"),
    "dropped": ("denied", "dropped"),
    "mocked": ("mocked", "mocked"),
    "waiting": ("waiting", "waiting"),
    "pending": ("running", "pending"),
    "delivered": ("ok", "delivered"),
    "dead": ("failed", "dead"),
    "passed": ("ok", "passed"),
    "changed": ("mocked", "changed"),
    "asked": ("waiting", "asked"),
    "answered": ("mocked", "answered"),
    "continued": ("mocked", "continued"),
    "guided": ("mocked", "guided"),
    "failed": ("failed", "failed"),
    "skipped": ("denied", "skipped"),
    "shown": ("ok", "shown"),
    "failing": ("denied", "failing"),
    "paused": ("waiting", "paused"),
    "disabled": ("failed", "disabled"),
    "active": ("ok", "active"),
    "expired": ("denied", "expired"),
    "revoked": ("denied", "revoked"),
    "approve": ("ok", DECIDED["approve"]),
    "reject": ("denied", DECIDED["reject"]),
    "rejectAndContinue": ("denied", DECIDED["rejectAndContinue"]),
    "open": ("ok", "open"),
    "nearly used up": ("waiting", "nearly used up"),
    "used up": ("denied", "used up"),
    "closed": ("failed", "closed"),
    "compacted": ("mocked", "compacted"),
    "shadow": ("shadow", "shadow"),
    "falseAlarm": ("waiting", "false alarm"),
    "miss": ("waiting", "miss"),
    "unreadable": ("failed", "unreadable"),
}
"""Style and name of each status: an adjective or a participle that says how it stands."""


@functools.cache
def page_environment() -> Environment:
    """Return the Jinja environment. All values are escaped.

    All pages of a process share it: to compile the templates takes longer than to build a server.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": _time,
        "exact": _exact_time,
        "moment": format_moment,
        "ms": format_duration,
        "cost": format_cost,
        "count": format_count,
        "badge": _badge,
        "counted": _count_badge,
        "pretty": _pretty,
        "segment": lambda text: quote(str(text), safe=""),
        "query": query_string,
        "plain": show_hidden,
        "brief": _brief,
        "decider": describe_decider,
        "readable": _readable,
        "summary": summarize_event,
        "message_text": message_text,
        "arguments": list_arguments,
        "asker": find_asker,
        "would": _would,
        "amounts": format_amounts,
    }
    environment.globals |= {"DECISIONS": DECISIONS, "DECIDED": DECIDED}
    return environment


def _time(seconds: float | None) -> Markup:
    """Format a time in UTC; a script shows how long ago it was, and the time in the reader's zone on hover."""
    return _render_time(seconds)


def _exact_time(seconds: float | None) -> Markup:
    """Format a time in UTC with milliseconds; a script converts it to the reader's time zone."""
    return _render_time(seconds, is_exact=True)


def _render_time(seconds: float | None, *, is_exact: bool = False) -> Markup:
    if seconds is None:
        return Markup("—")
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("—")
    machine, shown = moment.isoformat(timespec="milliseconds"), moment.strftime("%b %d, %H:%M:%S")
    if is_exact:
        exact = f"{shown}.{moment.microsecond // 1000:03}"
        return Markup(f'<time datetime="{machine}" title="{machine}" data-exact>{exact} UTC</time>')
    return Markup(f'<time datetime="{machine}" title="{machine}">{shown} UTC</time>')


def format_moment(seconds: float) -> str:
    """Format a time for the address of a list, in UTC: `"2026-01-31T18:30"`, with seconds if it has any."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S" if moment.second else "%Y-%m-%dT%H:%M")


def format_duration(duration: float | None) -> str:
    """Format a duration in milliseconds with the unit that suits it: `"3.2 s"`, `"2 min 5 s"`, `"3 h 20 min"`."""
    if duration is None or not math.isfinite(duration):
        return "—"
    if duration < 0.001:
        return "< 1 µs"
    if duration < 1:
        return f"{duration * 1000:.3g} µs"
    if duration < 10:
        return f"{duration:.1f} ms"
    if duration < 1000:
        return f"{duration:.0f} ms"
    if duration < 59_950:
        return f"{duration / 1000:.1f} s"
    seconds = round(duration / 1000)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    minutes = seconds // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} d {minutes // 60 % 24} h"


def format_cost(usd: float | None) -> str:
    """Format a cost in US dollars: `"$12.30"`, `"$0.0042"`."""
    if not usd:
        return "—"
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}" if usd >= 0.0001 else "< $0.0001"


def format_count(number: float) -> str:
    """Format a large number in few characters: `"950"`, `"12.4k"`, `"3.1M"`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.1f}{unit}"
    return f"{number:,.0f}"


def _badge(status: str) -> Markup:
    look, name = STATUSES.get(status, ("ok", status))
    return Markup(f'<span class="badge is-{look}">{escape(name)}</span>')


WOULD = {
    "denied": "would have denied it",
    "asked": "would have asked a person",
    "mocked": "would have answered in its place",
    "changed": "would have changed it",
    "continued": "would have had it go on",
}
"""What a shadow hook would have done, by its decision."""


def _would(run: HookRun) -> str:
    """Return what a shadow hook would have done with a call."""
    return WOULD.get(run.decision, "failed" if run.error else "would have let it pass")


def _count_badge(count: int, status: str) -> Markup:
    """Return a badge with a count of things of a status; without its colour if there are none."""
    look, name = STATUSES[status]
    return Markup(f'<span class="badge{f" is-{look}" if count else ""}">{count:,} {escape(name)}</span>')


def show_hidden(text: object) -> str:
    """Replace invisible characters of a text by their JSON escapes."""
    return HIDDEN.sub(_escape_hidden, str(text))


def _escape_hidden(found: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for unit in memoryview(found[0].encode("utf-16-le")).cast("H"))


def _brief(value: Any) -> str:
    """Format a value as JSON on one line, cut to 120 characters."""
    text = show_hidden(msgspec.json.encode(value, enc_hook=str).decode())
    return text if len(text) <= 120 else f"{text[:119]}…"


def _pretty(value: Any) -> str:
    """Format a value, or bytes of JSON, as indented JSON."""
    if isinstance(value, bytes):
        return msgspec.json.format(value, indent=2).decode("utf-8", "replace")
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


def _readable(text: str) -> str:
    """Lay out a text that is a JSON object or list; return any other as it is."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return layout_json(text)
    except msgspec.DecodeError:
        return text


def query_string(fields: dict[str, Any], **others: Any) -> str:
    """Build a query string, leaving out empty values."""
    found = {name: value for name, value in (fields | others).items() if value not in (None, "", [])}
    return f"?{urlencode(found, doseq=True)}" if found else ""
