"""Print spans as a tree in the terminal: a waterfall with one line for each span, its time and its bar."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.trace import StatusCode
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from rich.tree import Tree

from hookline.evals import Bar, BarKind, BarStatus, Waterfall
from hookline.otel import attributes as names
from hookline.runtime import DECIDED

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanContext

__all__ = [
    "DENIED",
    "FAILED",
    "OK",
    "STOPPED",
    "WAITING",
    "Mark",
    "Note",
    "content_lines",
    "format_duration",
    "make_plain",
    "show_spans",
    "span_notes",
]

MAX_TEXT = 2000
"""Characters of content that are read for one line of the terminal."""


class Mark(NamedTuple):
    """How a span ended.

    Attributes:
        glyph: The character before the name of the span.
        style: The colour.
        word: The word for it in the summary.
    """

    glyph: str
    style: str
    word: str


class Note(NamedTuple):
    """A remark behind the name of a span.

    Attributes:
        text: The remark.
        style: The colour.
    """

    text: str
    style: str = "dim"


OK = Mark("✓", "green", "")
FAILED = Mark("✗", "bold red", "failed")
DENIED = Mark("⊘", "magenta", "denied")
WAITING = Mark("‖", "bold cyan", "waiting for a person")
STOPPED = Mark("■", "yellow", "stopped early")
MARKS: dict[BarStatus, Mark] = {"failed": FAILED, "denied": DENIED, "waiting": WAITING, "stopped": STOPPED}
"""The marks of bars; those of any other status are `OK`."""

KINDS: dict[str, BarKind] = {
    names.INVOKE_AGENT: "run",
    names.AGENT_STEP: "step",
    names.CHAT: "model",
    names.EXECUTE_TOOL: "tool",
    names.CALL_AGENT: "agent",
    names.HUMAN_INTERVENTION: "person",
    names.COMPACT_CONTEXT: "compact",
    names.HOOK: "hook",
}
"""The kind of work of a span, by the first word of its name."""

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
"""Why a span was ended without its own event, for words that say nothing to a person."""

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
"""The word in front of each kind of content."""


def bar_of(span: ReadableSpan) -> Bar:
    """Make the bar of a span, without those inside it."""
    start = span.start_time or 0
    kind = KINDS.get(span.name.partition(" ")[0], "step")
    return Bar(kind, _name(span), start, max(start, span.end_time or 0), status=_status(span), source=span)


def mark_of(bar: Bar) -> Mark:
    """Return the mark that shows how a bar's work ended."""
    return MARKS.get(bar.status, OK)


def _status(span: ReadableSpan) -> BarStatus:
    found = span.attributes or {}
    if span.status.status_code is StatusCode.ERROR:
        return "failed"
    if names.DENIED_BY in found or found.get(names.HOOK_STATUS) == "denied":
        return "denied"
    if str(found.get(names.HUMAN_DECISION, "")).startswith("reject"):
        return "denied"
    outcome = found.get(names.OUTCOME)
    if outcome == "waiting_for_human":
        return "waiting"
    stopped = names.SPAN_TRUNCATED in found or found.get(names.TOOL_OUTCOME) == "interrupted"
    return "stopped" if stopped or outcome in ENDINGS else "ok"


def _name(span: ReadableSpan) -> str:
    """Return a span's name; a step's with its index."""
    index = (span.attributes or {}).get(names.STEP_INDEX)
    name = make_plain(span.name)
    return f"{name} {index}" if name == names.AGENT_STEP and index is not None else name


def span_notes(bar: Bar) -> list[Note]:
    """List what was special about a span, the most important first."""
    found = dict(bar.source.attributes or {})
    notes = [*_failure_notes(bar, found), *_special_notes(found)]
    notes += [Note(text) for text in _count_texts(bar.kind, found)]
    return notes


def _failure_notes(bar: Bar, found: dict[str, Any]) -> list[Note]:
    span: ReadableSpan = bar.source
    notes = []
    if span.status.status_code is StatusCode.ERROR:
        error = make_plain(found.get(names.ERROR_TYPE, names.OTHER))
        notes.append(
            Note(f"{error}: {make_plain(span.status.description)}" if span.status.description else error, "red")
        )
    if names.DENIED_BY in found:
        cause = found.get(names.DENIAL_CAUSE, "decision")
        failed = "" if cause == "decision" else f", which failed with {make_plain(cause)}"
        notes.append(Note(f"denied by {make_plain(found[names.DENIED_BY])}{failed}", DENIED.style))
    notes += [
        Note(f"{make_plain((event.attributes or {}).get(names.DENIED_BY, '?'))} withheld a result", DENIED.style)
        for event in span.events
        if event.name == names.DENIED_EVENT
    ]
    if names.SPAN_TRUNCATED in found:
        why = make_plain(found[names.SPAN_TRUNCATED])
        notes.append(Note(UNFINISHED.get(why, f"cut short ({why})"), STOPPED.style))
    elif found.get(names.TOOL_OUTCOME) == "interrupted":
        notes.append(Note("interrupted", STOPPED.style))
    elif (ending := ENDINGS.get(str(found.get(names.OUTCOME)))) and names.DENIED_BY not in found and not notes:
        notes.append(Note(ending, mark_of(bar).style))
    return notes


def _special_notes(found: dict[str, Any]) -> list[Note]:
    notes = []
    if found.get(names.RESUMED):
        notes.append(Note("resumed", WAITING.style))
    if found.get(names.MOCKED):
        notes.append(Note(f"mocked by {make_plain(found.get(names.ANSWERED_BY, '?'))}", "yellow"))
        for key, name in names.MOCK_PROVENANCE.items():
            if name in found:
                notes.append(Note(f"{key} {make_plain(found[name])}", "yellow"))
    if names.HUMAN_DECISION in found:
        decision = str(found[names.HUMAN_DECISION])
        waited = found.get(names.HUMAN_WAIT)
        after = f" after {format_duration(int(waited * 1e9))}" if isinstance(waited, int | float) else ""
        rejected = decision.startswith("reject")
        notes.append(
            Note(f"{DECIDED.get(decision, make_plain(decision))}{after}", DENIED.style if rejected else "green")
        )
    if found.get(names.CONVERSATION_COMPACTED):
        notes.append(Note("after a compaction"))
    status = found.get(names.HOOK_STATUS)
    if status not in (None, "ok"):
        notes.append(Note(make_plain(status), {"mocked": "yellow", "denied": DENIED.style}.get(str(status), "red")))
    reasons = found.get(names.RESPONSE_FINISH_REASONS, ())
    unusual = [make_plain(each) for each in reasons if each not in ("stop", "tool_calls")]
    if unusual and found.get(names.OPERATION_NAME) == names.CHAT:
        notes.append(Note(f"ended by {', '.join(unusual)}", "yellow"))
    return notes


def _count_texts(kind: BarKind, found: dict[str, Any]) -> list[str]:
    notes = []
    if kind == "run":
        # A segment after a pause counts on from where the earlier one was.
        so_far = " so far" if found.get(names.RESUMED) else ""
        counts = _count(found.get(names.STEPS), "step"), _count(found.get(names.TOOL_CALLS), "tool call")
        notes += [f"{count}{so_far}" for count in counts if count]
    if kind == "person":
        notes.append(_count(found.get(names.PENDING_COUNT), "call"))
    if names.MESSAGES_BEFORE in found:
        after = found.get(names.MESSAGES_AFTER, "?")
        notes.append(f"{found[names.MESSAGES_BEFORE]}→{after} messages")
    for read, written in TOKENS:
        if found.get(read) or found.get(written):
            notes.append(f"{found.get(read, 0):,}→{found.get(written, 0):,} tokens")
    return [text for text in notes if text]


def _count(number: Any, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}" if number else ""


def content_lines(span: ReadableSpan) -> list[tuple[str, str]]:
    """Return the recorded content of a span: a word for each part, and the beginning of its text in one line."""
    found = span.attributes or {}
    return [(word, make_plain(_text_of(name, found[name]))) for name, word in CONTENT.items() if found.get(name)]


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


def make_plain(value: object) -> str:
    """Return a text in one line without control codes and reversed writing, which a terminal would obey."""
    return "".join(
        each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in str(value)
    )


def format_duration(nanoseconds: int) -> str:
    """Format a time to three digits, in at most seven characters."""
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


TIME_WIDTH = 7
MIN_LABEL = 16
"""Columns that the name of a span must have before its times are shown beside it."""

NAMED = 3
"""How many spans that went not as usual are named in the summary."""

MAX_BAR = 48
MIN_BAR = 10

STYLES: dict[BarKind, str] = {
    "run": "bold",
    "model": "blue",
    "tool": "cyan",
    "agent": "bold",
    "compact": "yellow",
    "person": "magenta",
    "hook": "dim",
}
"""How each kind of span looks; steps are only the frame for what is in them."""

BARS: dict[BarKind, str] = {"run": "bright_black", "step": "bright_black", "agent": "bright_black"}
"""Colours of the bars of frames, which the work inside them stands out from."""

ASCII = str.maketrans("✓✗⊘‖■━╸╺→·…µ—↩", "+x!=#===>-.u-<")
"""For terminals that know no other characters."""


class Narrow(Tree):
    """A tree that is indented by two columns a level, so that sub-agents of sub-agents fit beside their times."""

    TREE_GUIDES = [("  ", "│ ", "├─", "└─")] * 3
    ASCII_GUIDES = ("  ", "| ", "+-", "`-")


class Line:
    """One span as a line: its name and what is special about it, how long it took, and when.

    Args:
        mark: How it ended.
        pieces: Its name and what is special about it; they are put on further lines where there is no room.
        took: How long it took, as text.
        bar: Where it begins and ends in its trace, as shares of that; and the bar's style.
        under: Further lines, each cut where the terminal ends.
    """

    def __init__(
        self, mark: Mark, pieces: list[Text], took: Text, bar: tuple[float, float, str], under: list[Text]
    ) -> None:
        self._mark, self._pieces, self._took, self._bar, self._under = mark, pieces, took, bar, under

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = bar_width(console.width)
        room = options.max_width - (1 + TIME_WIDTH) - (1 + bar if bar else 0)
        beside = room >= MIN_LABEL
        label = max(1, (room if beside else options.max_width) - 2)
        for number, line in enumerate(pack_lines(console, self._pieces, label)):
            shown = Text.assemble((f"{self._mark.glyph} ", self._mark.style)) if number == 0 else Text("  ")
            shown.append_text(line)
            if number == 0 and beside:
                shown.truncate(room, pad=True)
                shown.append(" " * (1 + TIME_WIDTH - self._took.cell_len)).append_text(self._took)
                if bar:
                    shown.append(" ").append(*draw_bar(bar, *self._bar))
            yield fit(shown, options)
        for line in self._under:
            shown = Text("  ").append_text(line)
            shown.truncate(options.max_width, overflow="ellipsis")
            yield fit(shown, options)


def pack_lines(console: Console, pieces: Iterable[Text], width: int) -> list[Text]:
    """Put pieces of text on as few lines as possible; one that is longer than a line is broken."""
    lines = [Text()]
    for piece in pieces:
        if lines[-1] and lines[-1].cell_len + 2 + piece.cell_len > width:
            lines.append(Text())
        elif lines[-1]:
            lines[-1].append("  ")
        if piece.cell_len <= width:
            lines[-1].append_text(piece)
            continue
        first, *rest = piece.wrap(console, width, overflow="fold")
        lines[-1].append_text(first)
        lines += rest
    return lines


def show_spans(console: Console, spans: Sequence[ReadableSpan], titles: Mapping[str, str]) -> None:
    """Print spans as one tree for each trace, and a summary.

    Args:
        console: The console to print to.
        spans: The spans.
        titles: The title of each operation; its id by default.
    """
    traces = draw_traces(spans)
    numbers = {key_of(trace.bars[0].source.get_span_context()): number for number, trace in enumerate(traces, start=1)}
    slowest = max(
        ((trace.own_time_of(bar), bar) for trace in traces for _, bar in trace.rows()), key=lambda pair: pair[0]
    )
    for number, trace in enumerate(traces, start=1):
        for line in pack_lines(
            console, trace_heading(trace, number if len(traces) > 1 else None, titles), console.width
        ):
            console.print(fit(line, console.options))
        console.print(render_tree(trace, numbers, slowest[1], depth=(console.width - MIN_LABEL) // 2))
        console.print()
    for line in pack_lines(console, summarize(traces, *slowest), console.width):
        console.print(fit(line, console.options))


def draw_traces(spans: Iterable[ReadableSpan]) -> list[Waterfall]:
    """Make a waterfall of each trace, in the order of their beginnings.

    A hook that ran when its run was over has no parent, only a link; its bar is inside the one that it links to.
    """
    bars = {key_of(span.get_span_context()): bar_of(span) for span in spans}
    roots: list[Bar] = []
    for bar in sorted(bars.values(), key=lambda bar: (bar.start, -(bar.end or 0))):
        above = [bar.source.parent, *(link.context for link in bar.source.links[:1] if bar.kind == "hook")]
        outer = next((bars[key_of(context)] for context in above if key_of(context) in bars), None)
        (roots if outer is None else outer.inner).append(bar)
    return [Waterfall([root]) for root in roots]


def is_later(bar: Bar) -> bool:
    """Whether a bar is a hook that ran after the end of its parent bar."""
    return bar.kind == "hook" and bar.source.parent is None


def render_tree(trace: Waterfall, numbers: Mapping[tuple[int, int], int], slowest: Bar, *, depth: int) -> Tree:
    """Lay out one trace.

    Args:
        trace: Its bars.
        numbers: The traces on the screen, by the key of their roots.
        slowest: The bar that is shown as having taken the longest.
        depth: How many levels have room.
    """
    root = trace.bars[0]
    known = {key_of(link.context) for link in root.source.links}

    def line(bar: Bar) -> Line:
        span: ReadableSpan = bar.source
        style, mark, later = STYLES.get(bar.kind, ""), mark_of(bar), bar is not root and is_later(bar)
        pieces = [Text(bar.name, style=style), *(Text(note.text, style=note.style) for note in span_notes(bar))]
        if later:
            pieces.append(Text("after the end", style="dim"))
        under = [Text.assemble((f"{word}: ", "dim"), (text, "dim italic")) for word, text in content_lines(span)]
        if not later:  # links that the whole trace shares are shown once, at the top
            links = [link for link in span.links if bar is root or key_of(link.context) not in known]
            under += [link_label(link, numbers) for link in links]
        took = trace.duration_of(bar)
        emphasis = "bold yellow" if bar is slowest else "dim" if took * 100 < trace.duration_ns else ""
        colour = "red" if mark is FAILED else BARS.get(bar.kind, style or "white")
        return Line(mark, pieces, Text(format_duration(took), style=emphasis), (*trace.place_of(bar), colour), under)

    top: Tree = Narrow(line(root), guide_style="dim")
    waiting = [(top, root, 1)]
    while waiting:
        node, bar, level = waiting.pop()
        if level > depth and bar.inner:
            node.add(Text(f"… {sum(1 for _ in bar) - 1:,} more", style="dim"))
            continue
        waiting += [(node.add(line(inner)), inner, level + 1) for inner in bar.inner]
    return top


def link_label(link: Link, numbers: Mapping[tuple[int, int], int]) -> Text:
    """Describe a link: to another tree on the screen, or to a span that is elsewhere."""
    number = numbers.get(key_of(link.context))
    relation = make_plain((link.attributes or {}).get(names.LINK, "linked span")).replace("_", " ")
    where = f"[{number}]" if number else f"trace {link.context.trace_id:032x}, span {link.context.span_id:016x}"
    return Text(f"↩ {relation}: {where}", style="cyan")


def trace_heading(trace: Waterfall, number: int | None, titles: Mapping[str, str]) -> list[Text]:
    """Return the line above a trace, in pieces: its title, when it began, and its id."""
    span: ReadableSpan = trace.bars[0].source
    operation = str((span.attributes or {}).get(names.OPERATION_ID, ""))
    title = make_plain(titles.get(operation) or operation or span.name)
    began = datetime.fromtimestamp(trace.bars[0].start / 1e9).astimezone()
    context = span.get_span_context()
    return [
        Text.assemble((f"[{number}] " if number else "", "bold cyan"), (title, "bold")),
        Text(f"{began:%Y-%m-%d %H:%M:%S}", style="dim"),
        Text(f"trace {context.trace_id if context else 0:032x}", style="dim"),
    ]


def summarize(traces: Sequence[Waterfall], own_time: int, slowest: Bar) -> list[Text]:
    """Summarize spans, in pieces: how many, in what time, what took the longest, what went wrong.

    Args:
        traces: Their waterfalls.
        own_time: How long the slowest one took beside what is inside it, in nanoseconds.
        slowest: The bar of that one.
    """
    bars = [bar for trace in traces for _, bar in trace.rows()]
    time = max(trace.end for trace in traces) - min(trace.start for trace in traces)
    count = f" in {len(traces)} traces" if len(traces) > 1 else ""
    notes = [
        Text(f"{len(bars):,} span{'' if len(bars) == 1 else 's'}{count}, {format_duration(time)}", style="bold"),
        Text(f"longest: {slowest.name}, {format_duration(own_time)} by itself", style="yellow"),
    ]
    for mark in (FAILED, DENIED, STOPPED, WAITING):
        found = innermost(traces, mark)
        if found:
            shown = ", ".join(dict.fromkeys(bar.name for bar in found[:NAMED]))
            more = " …" if len(found) > NAMED else ""
            notes.append(Text(f"{mark.glyph} {len(found)} {mark.word}: {shown}{more}", style=mark.style))
    mocked = sum(bool((bar.source.attributes or {}).get(names.MOCKED)) for bar in bars)
    if mocked:
        notes.append(Text(f"{mocked} mocked", style="yellow"))
    return notes


def innermost(traces: Sequence[Waterfall], mark: Mark) -> list[Bar]:
    """Find the bars with a mark that have none with it inside: what fails inside fails outside as well.

    A hook that denied a call is left out, since the bar of the call has the mark too.
    """
    rows = [(depth, bar) for trace in traces for depth, bar in trace.rows()]
    found = []
    inside = 0  # from here on upwards, the first row that is less deep than this has a found one inside
    for depth, bar in reversed(rows):
        has = mark_of(bar) is mark and not (mark is DENIED and bar.kind == "hook")
        if has and depth >= inside:
            found.append(bar)
        if depth < inside or (has and not is_later(bar)):
            inside = depth
    return found[::-1]


def key_of(context: SpanContext | None) -> tuple[int, int]:
    """Return the key of a span: the ids of its trace and of itself."""
    return (context.trace_id, context.span_id) if context is not None else (0, 0)


def bar_width(width: int) -> int:
    """Return the number of columns of the time bar; 0 in a narrow terminal."""
    bar = min(MAX_BAR, (width - 40) * 2 // 5)
    return bar if bar >= MIN_BAR else 0


def draw_bar(width: int, start: float, end: float, style: str) -> tuple[str, str]:
    """Draw a bar between two shares of a width, to half a column, and at least that long."""
    first = min(2 * width - 1, round(2 * width * start))
    last = max(first + 1, round(2 * width * end))
    halves = [first <= half < last for half in range(2 * width)]
    glyphs = {(True, True): "━", (True, False): "╸", (False, True): "╺", (False, False): " "}
    return "".join(glyphs[halves[cell], halves[cell + 1]] for cell in range(0, 2 * width, 2)).rstrip(), style


def fit(text: Text, options: ConsoleOptions) -> Text:
    """Return a text in characters that the terminal knows."""
    if options.ascii_only:
        text.plain = text.plain.translate(ASCII)
    return text
