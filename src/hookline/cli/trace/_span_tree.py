"""Show spans as a tree in the terminal, with their times and how they ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.trace import StatusCode

from hookline.otel import attributes as names
from hookline.runtime import DECIDED

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from rich.tree import Tree

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
    "kind_of",
    "make_plain",
    "mark_of",
    "show_spans",
    "span_notes",
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
"""The word in front of each kind of content."""


def kind_of(span: ReadableSpan) -> str:
    """Return the kind of work of a span: the first word of its name."""
    return span.name.partition(" ")[0]


def mark_of(span: ReadableSpan) -> Mark:
    """Return the mark of how a span ended."""
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


def span_notes(span: ReadableSpan) -> list[Note]:
    """Return notes on what was special about a span, the most important first."""
    found = dict(span.attributes or {})
    notes = [*_failure_notes(span, found), *_special_notes(found)]
    notes += [Note(text) for text in _count_texts(kind_of(span), found)]
    return notes


def _failure_notes(span: ReadableSpan, found: dict[str, Any]) -> list[Note]:
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
        notes.append(Note(ending, mark_of(span).style))
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


def _count_texts(kind: str, found: dict[str, Any]) -> list[str]:
    texts = []
    if kind == names.INVOKE_AGENT:
        # A segment after a pause counts on from where the earlier one was.
        so_far = " so far" if found.get(names.RESUMED) else ""
        counts = _count(found.get(names.STEPS), "step"), _count(found.get(names.TOOL_CALLS), "tool call")
        texts += [f"{count}{so_far}" for count in counts if count]
    if kind == names.HUMAN_INTERVENTION:
        texts.append(_count(found.get(names.PENDING_COUNT), "call"))
    if names.MESSAGES_BEFORE in found:
        after = found.get(names.MESSAGES_AFTER, "?")
        texts.append(f"{found[names.MESSAGES_BEFORE]}→{after} messages")
    for read, written in TOKENS:
        if found.get(read) or found.get(written):
            texts.append(f"{found.get(read, 0):,}→{found.get(written, 0):,} tokens")
    return [text for text in texts if text]


def _count(number: Any, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}" if number else ""


def content_lines(span: ReadableSpan) -> list[tuple[str, str]]:
    """Return the recorded content of a span: its kind, and its beginning in one line."""
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
    """Return a text in one line that a terminal shows and does not obey: no control codes, no reversed writing."""
    return "".join(
        each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in str(value)
    )


def format_duration(nanoseconds: int) -> str:
    """Return a duration with three digits and its unit, in seven characters at most."""
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

STYLES = {
    names.INVOKE_AGENT: "bold",
    names.CHAT: "blue",
    names.EXECUTE_TOOL: "cyan",
    names.CALL_AGENT: "bold",
    names.COMPACT_CONTEXT: "yellow",
    names.HUMAN_INTERVENTION: "magenta",
    names.HOOK: "dim",
}
"""How each kind of span looks; steps are only the frame for what is in them."""

BARS = {names.INVOKE_AGENT: "bright_black", names.AGENT_STEP: "bright_black", names.CALL_AGENT: "bright_black"}
"""Colours of the bars of frames, which the work inside of them stands out from."""

ASCII = str.maketrans("✓✗⊘‖■━╸╺→·…µ—↩", "+x!=#===>-.u-<")
"""For terminals that know no other characters."""


class Branch:
    """A span in its tree.

    Attributes:
        span: The span.
        mark: How it ended.
        parent: The one above.
        children: The spans under it, in the order of their beginnings.
        later: Spans that ran when it was over and link to it: hooks of its end.
    """

    def __init__(self, span: ReadableSpan) -> None:
        self.span = span
        self.mark = mark_of(span)
        self.parent: Branch | None = None
        self.children: list[Branch] = []
        self.later: list[Branch] = []
        self.start = span.start_time or 0
        self.end = max(self.start, span.end_time or 0)

    @property
    def own_time(self) -> int:
        """Return the nanoseconds that the span took without its children."""
        busy, reached = 0, self.start
        for child in self.children:
            busy += max(0, min(child.end, self.end) - max(child.start, reached))
            reached = max(reached, min(child.end, self.end))
        return self.end - self.start - busy

    def __iter__(self) -> Iterator[Branch]:
        waiting = [self]
        while waiting:
            branch = waiting.pop()
            yield branch
            waiting += reversed([*branch.children, *branch.later])


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
    """Put pieces of text on as few lines as possible; a piece that is longer than a line is broken."""
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
        console: The terminal.
        spans: The spans.
        titles: A title for each operation, by its id; the id itself unless given.
    """
    roots = build_trees(spans)
    numbers = {key_of(root.span.get_span_context()): number for number, root in enumerate(roots, start=1)}
    slowest = max((branch for root in roots for branch in root), key=lambda branch: branch.own_time)
    for number, root in enumerate(roots, start=1):
        for line in pack_lines(console, trace_heading(root, number if len(roots) > 1 else None, titles), console.width):
            console.print(fit(line, console.options))
        console.print(render_tree(root, numbers, slowest, depth=(console.width - MIN_LABEL) // 2))
        console.print()
    for line in pack_lines(console, summarize(roots, slowest), console.width):
        console.print(fit(line, console.options))


def build_trees(spans: Iterable[ReadableSpan]) -> list[Branch]:
    """Return spans as trees, in the order of their start."""
    branches = {key_of(span.get_span_context()): Branch(span) for span in spans}
    roots = []
    for branch in sorted(branches.values(), key=lambda branch: (branch.start, -branch.end)):
        parent = branches.get(key_of(branch.span.parent)) if branch.span.parent is not None else None
        if parent is not None:
            branch.parent = parent
            parent.children.append(branch)
            continue
        links = [branches.get(key_of(link.context)) for link in branch.span.links]
        if kind_of(branch.span) == names.HOOK and links and links[0] is not None:
            links[0].later.append(branch)
        else:
            roots.append(branch)
    return roots


def render_tree(root: Branch, numbers: Mapping[tuple[int, int], int], slowest: Branch, *, depth: int) -> Tree:
    """Return the tree of one trace.

    Args:
        root: Its root span.
        numbers: The numbers of the traces on the screen, by the key of their roots.
        slowest: The span to mark as the slowest.
        depth: Levels of the tree for which there is room.
    """
    start, end = root.start, max(branch.end for branch in root)
    total = max(1, end - start)
    known = {key_of(link.context) for link in root.span.links}

    def line(branch: Branch, *, later: bool = False) -> Line:
        span = branch.span
        style = STYLES.get(kind_of(span), "")
        pieces = [
            Text(span_label(span), style=style),
            *(Text(note.text, style=note.style) for note in span_notes(span)),
        ]
        if later:
            pieces.append(Text("after the end", style="dim"))
        under = [Text.assemble((f"{word}: ", "dim"), (text, "dim italic")) for word, text in content_lines(span)]
        if not later:  # what all in here goes on from is said once, at the top
            links = [link for link in span.links if branch is root or key_of(link.context) not in known]
            under += [link_label(link, numbers) for link in links]
        took = branch.end - branch.start
        emphasis = "bold yellow" if branch is slowest else "dim" if took * 100 < total else ""
        colour = "red" if branch.mark is FAILED else BARS.get(kind_of(span), style or "white")
        bar = ((branch.start - start) / total, (branch.end - start) / total, colour)
        return Line(branch.mark, pieces, Text(format_duration(took), style=emphasis), bar, under)

    top: Tree = Narrow(line(root), guide_style="dim")
    waiting = [(top, root, 1)]
    while waiting:
        node, branch, level = waiting.pop()
        if level > depth and (branch.children or branch.later):
            node.add(Text(f"… {sum(1 for _ in branch) - 1:,} more", style="dim"))
            continue
        waiting += [(node.add(line(child)), child, level + 1) for child in branch.children]
        waiting += [(node.add(line(child, later=True)), child, level + 1) for child in branch.later]
    return top


def span_label(span: ReadableSpan) -> str:
    """Return a span's name; that of a step with its index."""
    index = (span.attributes or {}).get(names.STEP_INDEX)
    name = make_plain(span.name)
    return f"{name} {index}" if name == names.AGENT_STEP and index is not None else name


def link_label(link: Link, numbers: Mapping[tuple[int, int], int]) -> Text:
    """Return the line of a link, with its target: another tree on the screen, or a span elsewhere."""
    number = numbers.get(key_of(link.context))
    relation = make_plain((link.attributes or {}).get(names.LINK, "linked span")).replace("_", " ")
    where = f"[{number}]" if number else f"trace {link.context.trace_id:032x}, span {link.context.span_id:016x}"
    return Text(f"↩ {relation}: {where}", style="cyan")


def trace_heading(root: Branch, number: int | None, titles: Mapping[str, str]) -> list[Text]:
    """Return the heading of a trace: its operation, its start, its id."""
    operation = str((root.span.attributes or {}).get(names.OPERATION_ID, ""))
    title = make_plain(titles.get(operation) or operation or root.span.name)
    began = datetime.fromtimestamp(root.start / 1e9).astimezone()
    context = root.span.get_span_context()
    return [
        Text.assemble((f"[{number}] " if number else "", "bold cyan"), (title, "bold")),
        Text(f"{began:%Y-%m-%d %H:%M:%S}", style="dim"),
        Text(f"trace {context.trace_id if context else 0:032x}", style="dim"),
    ]


def summarize(roots: Sequence[Branch], slowest: Branch) -> list[Text]:
    """Summarize spans: how many, how long, which took longest, which failed or were denied."""
    branches = [branch for root in roots for branch in root]
    time = max(branch.end for branch in branches) - min(branch.start for branch in branches)
    traces = f" in {len(roots)} traces" if len(roots) > 1 else ""
    own = slowest.own_time
    texts = [
        Text(
            f"{len(branches):,} span{'' if len(branches) == 1 else 's'}{traces}, {format_duration(time)}", style="bold"
        ),
        Text(f"longest: {span_label(slowest.span)}, {format_duration(own)} by itself", style="yellow"),
    ]
    for mark in (FAILED, DENIED, STOPPED, WAITING):
        found = innermost(branches, mark)
        if found:
            shown = ", ".join(dict.fromkeys(span_label(branch.span) for branch in found[:NAMED]))
            more = " …" if len(found) > NAMED else ""
            texts.append(Text(f"{mark.glyph} {len(found)} {mark.word}: {shown}{more}", style=mark.style))
    mocked = sum(bool((branch.span.attributes or {}).get(names.MOCKED)) for branch in branches)
    if mocked:
        texts.append(Text(f"{mocked} mocked", style="yellow"))
    return texts


def innermost(branches: Sequence[Branch], mark: Mark) -> list[Branch]:
    """Return the spans with a mark, without those above another one: what fails inside fails outside as well."""
    found = [branch for branch in branches if branch.mark is mark and not repeats_denial(branch)]
    above: set[Branch] = set()
    for branch in found:
        parent = branch.parent
        while parent is not None and parent not in above:
            above.add(parent)
            parent = parent.parent
    return [branch for branch in found if branch not in above]


def repeats_denial(branch: Branch) -> bool:
    """Whether a span is that of a hook whose denial is already shown on the span of the denied call."""
    return branch.mark is DENIED and kind_of(branch.span) == names.HOOK


def key_of(context: SpanContext | None) -> tuple[int, int]:
    """Return the key of a span: its trace id and its span id."""
    return (context.trace_id, context.span_id) if context is not None else (0, 0)


def bar_width(width: int) -> int:
    """Return the columns of the time bar; 0 in a narrow terminal."""
    bar = min(MAX_BAR, (width - 40) * 2 // 5)
    return bar if bar >= MIN_BAR else 0


def draw_bar(width: int, start: float, end: float, style: str) -> tuple[str, str]:
    """Return a bar between two shares of a width, to half a column, and never empty."""
    first = min(2 * width - 1, round(2 * width * start))
    last = max(first + 1, round(2 * width * end))
    halves = [first <= half < last for half in range(2 * width)]
    glyphs = {(True, True): "━", (True, False): "╸", (False, True): "╺", (False, False): " "}
    return "".join(glyphs[halves[cell], halves[cell + 1]] for cell in range(0, 2 * width, 2)).rstrip(), style


def fit(text: Text, options: ConsoleOptions) -> Text:
    """Return a text in characters that the terminal can show."""
    if options.ascii_only:
        text.plain = text.plain.translate(ASCII)
    return text
