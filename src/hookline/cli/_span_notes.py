"""What there is to say of a span: how it ended, what was special about it, and what people and models said in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.trace import StatusCode

from hookline.otel import _attributes as names
from hookline.runtime import DECIDED

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = [
    "DENIED",
    "FAILED",
    "OK",
    "STOPPED",
    "WAITING",
    "Mark",
    "Note",
    "kind_of",
    "length",
    "mark_of",
    "notes",
    "plain",
    "said",
]

MAX_TEXT = 2000
"""Characters of content that are looked at for one line of the terminal."""


class Mark(NamedTuple):
    """How a span ended.

    Attributes:
        glyph: What stands before its name.
        style: In which colour.
        word: What a summary calls it.
    """

    glyph: str
    style: str
    word: str


class Note(NamedTuple):
    """Something to say behind the name of a span.

    Attributes:
        text: What.
        style: In which colour.
    """

    text: str
    style: str = "dim"


OK = Mark("✓", "green", "")
FAILED = Mark("✗", "bold red", "failed")
DENIED = Mark("⊘", "magenta", "denied")
WAITING = Mark("‖", "bold cyan", "waiting for a person")
STOPPED = Mark("■", "yellow", "stopped early")

ENDINGS = {
    "error": "ended with an error",
    "interrupted": "interrupted",
    "cancelled": "cancelled",
    "max_steps": "stopped at its limit of steps",
    "cost_limit": "stopped at its limit of cost",
    "waiting_for_human": "waits for a person",
}
"""Why a span ended, in words."""

UNFINISHED = {"shutdown": "never ended", "unfinished": "never ended"}
"""Why a span was ended in place of its own event, where the word for it says nothing to a person."""

TOKENS = ((names.USAGE_INPUT_TOKENS, names.USAGE_OUTPUT_TOKENS), (names.USAGE_INPUT, names.USAGE_OUTPUT))

CONTENT = {
    names.SYSTEM_INSTRUCTIONS: "system",
    names.INPUT_MESSAGES: "asked",
    names.INSTRUCTION: "asked",
    names.TOOL_CALL_ARGUMENTS: "arguments",
    names.TOOL_CALL_RESULT: "result",
    names.OUTPUT_MESSAGES: "said",
    names.SUMMARY: "summary",
    names.HUMAN_REASON: "reason",
    names.DENIAL_REASON: "reason",
    names.HOOK_ERROR: "error",
}
"""What content is called in front of it."""


def kind_of(span: ReadableSpan) -> str:
    """What kind of work a span is: the first word of its name."""
    return span.name.partition(" ")[0]


def mark_of(span: ReadableSpan) -> Mark:
    """How a span ended."""
    found = span.attributes or {}
    if span.status.status_code is StatusCode.ERROR:
        return FAILED
    if names.DENIED_BY in found or found.get(names.HOOK_STATUS) == "denied":
        return DENIED
    if str(found.get(names.HUMAN_DECISION, "")).startswith("reject"):
        return DENIED
    outcome = found.get(names.OUTCOME)
    if outcome == "waiting_for_human":
        return WAITING
    stopped = names.SPAN_TRUNCATED in found or found.get(names.TOOL_OUTCOME) == "interrupted"
    return STOPPED if stopped or outcome in ENDINGS else OK


def notes(span: ReadableSpan) -> list[Note]:
    """What was special about a span, the most important first."""
    found = dict(span.attributes or {})
    told = [*_trouble(span, found), *_special(found)]
    told += [Note(text) for text in _figures(kind_of(span), found)]
    return told


def _trouble(span: ReadableSpan, found: dict[str, Any]) -> list[Note]:
    told = []
    if span.status.status_code is StatusCode.ERROR:
        error = plain(found.get(names.ERROR_TYPE, names.OTHER))
        told.append(Note(f"{error}: {plain(span.status.description)}" if span.status.description else error, "red"))
    if names.DENIED_BY in found:
        cause = found.get(names.DENIAL_CAUSE, "decision")
        failed = "" if cause == "decision" else f", which failed with {plain(cause)}"
        told.append(Note(f"denied by {plain(found[names.DENIED_BY])}{failed}", DENIED.style))
    told += [
        Note(f"{plain((event.attributes or {}).get(names.DENIED_BY, '?'))} withheld a result", DENIED.style)
        for event in span.events
        if event.name == names.DENIED_EVENT
    ]
    if names.SPAN_TRUNCATED in found:
        why = plain(found[names.SPAN_TRUNCATED])
        told.append(Note(UNFINISHED.get(why, f"cut short ({why})"), STOPPED.style))
    elif found.get(names.TOOL_OUTCOME) == "interrupted":
        told.append(Note("interrupted", STOPPED.style))
    elif (ending := ENDINGS.get(str(found.get(names.OUTCOME)))) and names.DENIED_BY not in found and not told:
        told.append(Note(ending, mark_of(span).style))
    return told


def _special(found: dict[str, Any]) -> list[Note]:
    told = []
    if found.get(names.RESUMED):
        told.append(Note("resumed", WAITING.style))
    if found.get(names.MOCKED):
        told.append(Note(f"mocked by {plain(found.get(names.ANSWERED_BY, '?'))}", "yellow"))
        for key, name in names.MOCK_PROVENANCE.items():
            if name in found:
                told.append(Note(f"{key} {plain(found[name])}", "yellow"))
    if names.HUMAN_DECISION in found:
        decision = str(found[names.HUMAN_DECISION])
        waited = found.get(names.HUMAN_WAIT)
        after = f" after {length(int(waited * 1e9))}" if isinstance(waited, int | float) else ""
        rejected = decision.startswith("reject")
        told.append(Note(f"{DECIDED.get(decision, plain(decision))}{after}", DENIED.style if rejected else "green"))
    if found.get(names.CONVERSATION_COMPACTED):
        told.append(Note("after a compaction"))
    status = found.get(names.HOOK_STATUS)
    if status not in (None, "ok"):
        told.append(Note(plain(status), {"mocked": "yellow", "denied": DENIED.style}.get(str(status), "red")))
    reasons = found.get(names.RESPONSE_FINISH_REASONS, ())
    unusual = [plain(each) for each in reasons if each not in ("stop", "tool_calls")]
    if unusual and found.get(names.OPERATION_NAME) == names.CHAT:
        told.append(Note(f"ended by {', '.join(unusual)}", "yellow"))
    return told


def _figures(kind: str, found: dict[str, Any]) -> list[str]:
    told = []
    if kind == names.INVOKE_AGENT:
        # A segment after a pause counts on from where the earlier one was.
        so_far = " so far" if found.get(names.RESUMED) else ""
        counts = _count(found.get(names.STEPS), "step"), _count(found.get(names.TOOL_CALLS), "tool call")
        told += [f"{count}{so_far}" for count in counts if count]
    if kind == names.HUMAN_INTERVENTION:
        told.append(_count(found.get(names.PENDING_COUNT), "call"))
    if names.MESSAGES_BEFORE in found:
        after = found.get(names.MESSAGES_AFTER, "?")
        told.append(f"{found[names.MESSAGES_BEFORE]}→{after} messages")
    for read, written in TOKENS:
        if found.get(read) or found.get(written):
            told.append(f"{found.get(read, 0):,}→{found.get(written, 0):,} tokens")
    return [text for text in told if text]


def _count(number: Any, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}" if number else ""


def said(span: ReadableSpan) -> list[tuple[str, str]]:
    """The content of a span, where it was recorded: what it is, and its beginning in one line."""
    found = span.attributes or {}
    return [(word, plain(_text_of(name, found[name]))) for name, word in CONTENT.items() if found.get(name)]


def _text_of(name: str, value: Any) -> str:
    text = str(value)
    if name not in (names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.SYSTEM_INSTRUCTIONS):
        return text[:MAX_TEXT]
    try:
        document = json.loads(text)
        parts = document if name == names.SYSTEM_INSTRUCTIONS else document[-1]["parts"]
        return " ".join(_part(part) for part in parts)[:MAX_TEXT]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return text[:MAX_TEXT]


def _part(part: Any) -> str:
    if part.get("type") == "tool_call":
        return f"{part.get('name')}({json.dumps(part.get('arguments'), ensure_ascii=False)})"
    return str(part.get("content") or part.get("response") or "")


def plain(value: object) -> str:
    """A text in one line that a terminal shows and does not obey: no control codes, no reversed writing."""
    return "".join(
        each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in str(value)
    )


def length(nanoseconds: int) -> str:
    """A time as a person reads it, to three digits and in at most seven characters."""
    if nanoseconds <= 0:
        return "0 µs"
    for unit, size in (("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        number = nanoseconds / size
        if number < (59.95 if unit == "s" else 999.5):
            return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"
    minutes, seconds = divmod(round(nanoseconds / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h" if days < 100 else f"{days}d"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {seconds:02}s"
