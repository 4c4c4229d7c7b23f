"""The Jinja environment of the page, with its filters."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hookline.runtime import DECIDED, DECISIONS
from hookline.server.routes import describe_decider

__all__ = ["STATUSES", "create_environment"]

FOLDER = Path(__file__).parent / "templates"
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Invisible characters, and those that reverse the direction of text. Approvals show them as escapes."""

STATUSES = {
    "running": ("running", "running"),
    "waiting_for_human": ("waiting", "waits for a person"),
    "done": ("ok", "done"),
    "error": ("failed", "error"),
    "interrupted": ("denied", "interrupted"),
    "max_steps": ("denied", "step limit"),
    "cost_limit": ("denied", "cost limit"),
    "ok": ("ok", "ok"),
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
    "asked": ("waiting", "asked a person"),
    "answered": ("mocked", "answered"),
    "continued": ("mocked", "continued"),
    "failed": ("failed", "failed"),
    "skipped": ("denied", "skipped"),
    "shown": ("ok", "shown, not sent"),
    "approve": ("ok", DECIDED["approve"]),
    "reject": ("denied", DECIDED["reject"]),
    "rejectAndContinue": ("denied", DECIDED["rejectAndContinue"]),
}
"""Style and name of each status."""


def create_environment() -> Environment:
    """Create the Jinja environment. All values are escaped."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": _time,
        "ms": _ms,
        "badge": _badge,
        "pretty": _pretty,
        "segment": lambda text: quote(str(text), safe=""),
        "query": _query,
        "plain": show_hidden,
        "brief": _brief,
        "decider": describe_decider,
    }
    environment.globals |= {"DECISIONS": DECISIONS, "DECIDED": DECIDED}
    return environment


def _time(seconds: float | None) -> Markup:
    """Format a time in UTC; a script converts it to the reader's time zone."""
    if seconds is None:
        return Markup("—")
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("—")
    machine, shown = moment.isoformat(timespec="milliseconds"), moment.strftime("%b %d, %H:%M:%S")
    return Markup(f'<time datetime="{machine}" title="{machine}">{shown}</time>')


def _ms(duration: float | None) -> str:
    if duration is None:
        return "—"
    if duration < 0.001:
        return "< 1 µs"
    if duration < 1:
        return f"{duration * 1000:.3g} µs"
    if duration < 10:
        return f"{duration:.1f} ms"
    if duration < 1000:
        return f"{duration:.0f} ms"
    return f"{duration / 1000:.2f} s" if duration < 60_000 else f"{duration / 60_000:.1f} min"


def _badge(status: str) -> Markup:
    look, name = STATUSES.get(status, ("ok", status))
    return Markup(f'<span class="badge is-{look}">{escape(name)}</span>')


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


def _query(fields: dict[str, Any], **others: Any) -> str:
    """Build a query string, leaving out empty values."""
    found = {name: value for name, value in (fields | others).items() if value not in (None, "")}
    return f"?{urlencode(found)}" if found else ""
