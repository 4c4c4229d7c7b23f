"""Format the lines of a chat: tool calls, how they ended, totals of an answer.

Models and tools write much of the text. None of it reaches the terminal as a control sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from hookline.cli._terminal import make_harmless
from hookline.cli.trace import DENIED, ENDINGS, FAILED, OK, STOPPED, Mark, format_duration
from hookline.errors import HooklineError, message_of
from hookline.events import AfterToolCall, OnToolCallError, is_interrupted
from hookline.otel import MOCK_PROVENANCE
from hookline.runtime import OperationResult, Usage

__all__ = [
    "format_arguments",
    "format_ending",
    "format_error",
    "format_tool_end",
    "format_tool_name",
    "format_tool_start",
    "format_totals",
    "shorten",
]

MAX_VALUE = 60
"""Characters of an argument where calls are only mentioned."""

MAX_SHOWN = 4000
"""Characters of an argument where a person decides about a call, and of an error."""

MAX_RESULT = 200
"""Characters of a result."""


def shorten(text: object, limit: int = MAX_RESULT) -> str:
    """Return the beginning of a text, in one line that a terminal only shows."""
    whole = str(text)
    line = " ".join(make_harmless(whole[: 4 * limit]).split())
    return f"{line[: limit - 1]}…" if len(line) > limit or len(whole) > 4 * limit else line


def format_tool_name(toolset: str, tool_name: str) -> str:
    """Return a tool as `toolset/name`; a plain function as its name alone."""
    return shorten(tool_name if toolset == "local" else f"{toolset}/{tool_name}", 80)


def format_arguments(args: Mapping[str, Any], limit: int = MAX_SHOWN) -> Iterator[tuple[str, str]]:
    """Return each argument's name, and its value as JSON; a value that is cut says how much is missing."""
    for name, value in args.items():
        text = _json(value)
        rest = len(text) - limit
        yield shorten(name, 80), make_harmless(text if rest <= 0 else f"{text[:limit]}… ({rest:,} characters more)")


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):
        return "(nested too deeply to be shown)"


def format_tool_start(name: str, args: Mapping[str, Any]) -> Text:
    """Return the line of a tool call that begins."""
    shown = []
    for key, value in args.items():
        cut = f"{value[:MAX_VALUE]}…" if isinstance(value, str) and len(value) > MAX_VALUE else value
        shown.append(f"{shorten(key, 40)}={shorten(_json(cut), MAX_VALUE + 2)}")
    return Text.assemble(("→ ", "cyan"), (name, "cyan"), (f"({', '.join(shown)})", "dim"))


def format_tool_end(event: AfterToolCall | OnToolCallError) -> tuple[Text, bool]:
    """Return the line of a tool call that ended, and whether it must be shown in full."""
    name, took = format_tool_name(event.toolset, event.tool_name), format_duration(int(event.execution_time_ms * 1e6))
    failed = isinstance(event, OnToolCallError)
    told = f"{event.error_type}: {event.error}" if isinstance(event, OnToolCallError) else event.content
    if isinstance(event, OnToolCallError) and is_interrupted(event):
        return _line(STOPPED, name, "interrupted", STOPPED.style, took, ""), False
    if not failed and not event.mocked and event.answered_by is not None:
        reason = shorten(told, MAX_SHOWN)
        return _line(DENIED, name, f"denied by {shorten(event.answered_by, 80)}: {reason}", DENIED.style, "", ""), True
    failed = failed or not getattr(event, "success", True)
    mark = FAILED if failed else OK
    mocked = ""
    if event.mocked:
        given = [f"{key} {shorten(event.metadata[key], 80)}" for key in MOCK_PROVENANCE if event.metadata.get(key)]
        mocked = ", ".join([f"mocked by {shorten(event.answered_by or '?', 80)}", *given])
    return _line(mark, name, mocked, "yellow", took, shorten(told), "red" if failed else "dim"), False


def _line(mark: Mark, name: str, note: str, style: str, took: str, told: str, told_style: str = "dim") -> Text:
    text = Text.assemble((f"{mark.glyph} ", mark.style), (name, "cyan"))
    for piece, look in ((note, style), (took, "dim"), (told, told_style)):
        if piece:
            text.append("  ").append(piece, look)
    return text


def format_ending(result: OperationResult) -> Text | None:
    """Return why an answer is missing or incomplete; `None` if it is complete."""
    if result.denied is not None:
        by, reason = shorten(result.denied.hook_id, 80), shorten(result.denied.reason, MAX_SHOWN)
        return Text(f"{DENIED.glyph} denied by {by}: {reason}", DENIED.style)
    if result.reason == "error":
        return format_error(result.error)
    if result.reason in ENDINGS:
        return Text(f"{STOPPED.glyph} {ENDINGS[result.reason]}", STOPPED.style)
    return None


def format_error(error: BaseException | None) -> Text:
    """Return an error in one line; an error of hookline without its class, as its text says what to do."""
    said = message_of(error) if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}"
    return Text(f"{FAILED.glyph} {shorten(said, MAX_SHOWN)}", "red")


def format_totals(usage: Usage, tool_calls: int, nanoseconds: int | None = None) -> str:
    """Return what an answer took: tool calls, tokens, cost, time."""
    told = []
    if tool_calls:
        told.append(f"{tool_calls} tool call{'' if tool_calls == 1 else 's'}")
    if usage.input_tokens or usage.output_tokens:
        told.append(f"{usage.input_tokens:,}→{usage.output_tokens:,} tokens")
    if usage.cost_usd:
        told.append(f"${usage.cost_usd:.2f}" if usage.cost_usd >= 1 else f"${max(usage.cost_usd, 0.0001):.4f}")
    if nanoseconds is not None:
        told.append(format_duration(nanoseconds))
    return " · ".join(told)
