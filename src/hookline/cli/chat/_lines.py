"""What the lines of a chat say: tool calls, how they ended, what an answer came to.

Models and tools write much of it. Nothing of theirs reaches a terminal in which it could be a command to it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from hookline.cli.trace import DENIED, ENDINGS, FAILED, OK, STOPPED, Mark, length
from hookline.errors import HooklineError, message_of
from hookline.events import AfterToolCall, OnToolCallError, is_interrupted
from hookline.otel import MOCK_PROVENANCE
from hookline.runtime import OperationResult, Usage

__all__ = ["arguments", "begun", "ended", "figures", "fold", "harmless", "tool_name", "trouble", "went"]

MAX_VALUE = 60
"""Characters of an argument where calls are only mentioned."""

MAX_SHOWN = 4000
"""Characters of an argument where a person decides about a call, and of an error."""

MAX_RESULT = 200
"""Characters of a result."""

JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
"""Format characters that writing and emojis need, and that cannot deceive about the order of a text."""


class _Shown(dict[int, int]):
    """How each character is shown, found out once: control codes as pictures of them, other invisible ones as �."""

    def __missing__(self, code: int) -> int:
        shown, kind = code, unicodedata.category(chr(code))
        if code < 0x20 and chr(code) not in "\n\t":
            shown = 0x2400 + code
        elif code == 0x7F:
            shown = 0x2421
        elif (kind in ("Cf", "Cs", "Zl", "Zp") and chr(code) not in JOINERS) or (kind == "Cc" and code > 0x7F):
            shown = 0xFFFD
        self[code] = shown
        return shown


_shown = _Shown()


def harmless(text: str) -> str:
    """A text that a terminal shows and does not obey; its lines and tabs stay."""
    return text.replace("\r\n", "\n").translate(_shown)


def fold(text: object, limit: int = MAX_RESULT) -> str:
    """The beginning of a text, harmless and in one line."""
    whole = str(text)
    line = " ".join(harmless(whole[: 4 * limit]).split())
    return f"{line[: limit - 1]}…" if len(line) > limit or len(whole) > 4 * limit else line


def tool_name(toolset: str, tool_name: str) -> str:
    """What a tool is called; of a plain function only its name."""
    return fold(tool_name if toolset == "local" else f"{toolset}/{tool_name}", 80)


def arguments(args: Mapping[str, Any], limit: int = MAX_SHOWN) -> Iterator[tuple[str, str]]:
    """Arguments one by one: name, and value as JSON. Of what is cut off, the length is told."""
    for name, value in args.items():
        text = _json(value)
        rest = len(text) - limit
        yield fold(name, 80), harmless(text if rest <= 0 else f"{text[:limit]}… ({rest:,} characters more)")


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):
        return "(nested too deeply to be shown)"


def begun(name: str, args: Mapping[str, Any]) -> Text:
    """A tool that is being called."""
    shown = []
    for key, value in args.items():
        cut = f"{value[:MAX_VALUE]}…" if isinstance(value, str) and len(value) > MAX_VALUE else value
        shown.append(f"{fold(key, 40)}={fold(_json(cut), MAX_VALUE + 2)}")
    return Text.assemble(("→ ", "cyan"), (name, "cyan"), (f"({', '.join(shown)})", "dim"))


def ended(event: AfterToolCall | OnToolCallError) -> tuple[Text, bool]:
    """How a tool call has ended; and whether its line matters so much that all of it is to be seen."""
    name, took = tool_name(event.toolset, event.tool_name), length(int(event.execution_time_ms * 1e6))
    failed = isinstance(event, OnToolCallError)
    told = f"{event.error_type}: {event.error}" if isinstance(event, OnToolCallError) else event.content
    if isinstance(event, OnToolCallError) and is_interrupted(event):
        return _line(STOPPED, name, "interrupted", STOPPED.style, took, ""), False
    if not failed and not event.mocked and event.answered_by is not None:
        reason = fold(told, MAX_SHOWN)
        return _line(DENIED, name, f"denied by {fold(event.answered_by, 80)}: {reason}", DENIED.style, "", ""), True
    failed = failed or not getattr(event, "success", True)
    mark = FAILED if failed else OK
    mocked = ""
    if event.mocked:
        given = [f"{key} {fold(event.metadata[key], 80)}" for key in MOCK_PROVENANCE if event.metadata.get(key)]
        mocked = ", ".join([f"mocked by {fold(event.answered_by or '?', 80)}", *given])
    return _line(mark, name, mocked, "yellow", took, fold(told), "red" if failed else "dim"), False


def _line(mark: Mark, name: str, note: str, style: str, took: str, told: str, told_style: str = "dim") -> Text:
    text = Text.assemble((f"{mark.glyph} ", mark.style), (name, "cyan"))
    for piece, look in ((note, style), (took, "dim"), (told, told_style)):
        if piece:
            text.append("  ").append(piece, look)
    return text


def went(result: OperationResult) -> Text | None:
    """Why an answer is none, or not whole; `None` if it is."""
    if result.denied is not None:
        by, reason = fold(result.denied.hook_id, 80), fold(result.denied.reason, MAX_SHOWN)
        return Text(f"{DENIED.glyph} denied by {by}: {reason}", DENIED.style)
    if result.reason == "error":
        return trouble(result.error)
    if result.reason in ENDINGS:
        return Text(f"{STOPPED.glyph} {ENDINGS[result.reason]}", STOPPED.style)
    return None


def trouble(error: BaseException | None) -> Text:
    """An error, in one line. Those of hookline say what to do about them."""
    said = message_of(error) if isinstance(error, HooklineError) else f"{type(error).__name__}: {error}"
    return Text(f"{FAILED.glyph} {fold(said, MAX_SHOWN)}", "red")


def figures(usage: Usage, tool_calls: int, nanoseconds: int | None = None) -> str:
    """What an answer took: tools, tokens, money, time."""
    told = []
    if tool_calls:
        told.append(f"{tool_calls} tool call{'' if tool_calls == 1 else 's'}")
    if usage.input_tokens or usage.output_tokens:
        told.append(f"{usage.input_tokens:,}→{usage.output_tokens:,} tokens")
    if usage.cost_usd:
        told.append(f"${usage.cost_usd:.2f}" if usage.cost_usd >= 1 else f"${max(usage.cost_usd, 0.0001):.4f}")
    if nanoseconds is not None:
        told.append(length(nanoseconds))
    return " · ".join(told)
