"""Spans as a tree in the terminal: what happened under what, when, for how long, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from rich.tree import Tree

from hookline.cli import _span_notes as about
from hookline.otel import _attributes as names

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanContext

__all__ = ["show_spans"]

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
        self.mark = about.mark_of(span)
        self.parent: Branch | None = None
        self.children: list[Branch] = []
        self.later: list[Branch] = []
        self.start = span.start_time or 0
        self.end = max(self.start, span.end_time or 0)

    @property
    def own_time(self) -> int:
        """How long it took beside what is under it."""
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
        self, mark: about.Mark, pieces: list[Text], took: Text, bar: tuple[float, float, str], under: list[Text]
    ) -> None:
        self._mark, self._pieces, self._took, self._bar, self._under = mark, pieces, took, bar, under

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = bar_width(console.width)
        room = options.max_width - (1 + TIME_WIDTH) - (1 + bar if bar else 0)
        beside = room >= MIN_LABEL
        label = max(1, (room if beside else options.max_width) - 2)
        for number, line in enumerate(packed(console, self._pieces, label)):
            shown = Text.assemble((f"{self._mark.glyph} ", self._mark.style)) if number == 0 else Text("  ")
            shown.append_text(line)
            if number == 0 and beside:
                shown.truncate(room, pad=True)
                shown.append(" " * (1 + TIME_WIDTH - self._took.cell_len)).append_text(self._took)
                if bar:
                    shown.append(" ").append(*drawn(bar, *self._bar))
            yield fit(shown, options)
        for line in self._under:
            shown = Text("  ").append_text(line)
            shown.truncate(options.max_width, overflow="ellipsis")
            yield fit(shown, options)


def packed(console: Console, pieces: Iterable[Text], width: int) -> list[Text]:
    """Pieces of text on as few lines as they need; one that is longer than a line is broken."""
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
    """Print spans as one tree for each trace, and what they come to.

    Args:
        console: Where to.
        spans: The spans.
        titles: What each operation is called; its id unless it is there.
    """
    roots = forest(spans)
    numbers = {key_of(root.span.get_span_context()): number for number, root in enumerate(roots, start=1)}
    slowest = max((branch for root in roots for branch in root), key=lambda branch: branch.own_time)
    for number, root in enumerate(roots, start=1):
        for line in packed(console, heading(root, number if len(roots) > 1 else None, titles), console.width):
            console.print(fit(line, console.options))
        console.print(tree(root, numbers, slowest, depth=(console.width - MIN_LABEL) // 2))
        console.print()
    for line in packed(console, summary(roots, slowest), console.width):
        console.print(fit(line, console.options))


def forest(spans: Iterable[ReadableSpan]) -> list[Branch]:
    """Spans as trees, in the order of their beginnings."""
    branches = {key_of(span.get_span_context()): Branch(span) for span in spans}
    roots = []
    for branch in sorted(branches.values(), key=lambda branch: (branch.start, -branch.end)):
        parent = branches.get(key_of(branch.span.parent)) if branch.span.parent is not None else None
        if parent is not None:
            branch.parent = parent
            parent.children.append(branch)
            continue
        links = [branches.get(key_of(link.context)) for link in branch.span.links]
        if about.kind_of(branch.span) == names.HOOK and links and links[0] is not None:
            links[0].later.append(branch)
        else:
            roots.append(branch)
    return roots


def tree(root: Branch, numbers: Mapping[tuple[int, int], int], slowest: Branch, *, depth: int) -> Tree:
    """One trace.

    Args:
        root: Its uppermost span.
        numbers: The traces on the screen, by the key of their roots.
        slowest: What is shown as having taken the longest.
        depth: How many levels have room.
    """
    start, end = root.start, max(branch.end for branch in root)
    total = max(1, end - start)
    known = {key_of(link.context) for link in root.span.links}

    def line(branch: Branch, *, later: bool = False) -> Line:
        span = branch.span
        style = STYLES.get(about.kind_of(span), "")
        pieces = [Text(named(span), style=style), *(Text(note.text, style=note.style) for note in about.notes(span))]
        if later:
            pieces.append(Text("after the end", style="dim"))
        under = [Text.assemble((f"{word}: ", "dim"), (text, "dim italic")) for word, text in about.said(span)]
        if not later:  # what all in here goes on from is said once, at the top
            links = [link for link in span.links if branch is root or key_of(link.context) not in known]
            under += [linked(link, numbers) for link in links]
        took = branch.end - branch.start
        emphasis = "bold yellow" if branch is slowest else "dim" if took * 100 < total else ""
        colour = "red" if branch.mark is about.FAILED else BARS.get(about.kind_of(span), style or "white")
        bar = ((branch.start - start) / total, (branch.end - start) / total, colour)
        return Line(branch.mark, pieces, Text(about.length(took), style=emphasis), bar, under)

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


def named(span: ReadableSpan) -> str:
    """A span's name; a step's has its index behind it."""
    index = (span.attributes or {}).get(names.STEP_INDEX)
    name = about.plain(span.name)
    return f"{name} {index}" if name == names.AGENT_STEP and index is not None else name


def linked(link: Link, numbers: Mapping[tuple[int, int], int]) -> Text:
    """Where a link leads: to another tree on the screen, or to a span that is elsewhere."""
    number = numbers.get(key_of(link.context))
    relation = about.plain((link.attributes or {}).get(names.LINK, "linked span")).replace("_", " ")
    where = f"[{number}]" if number else f"trace {link.context.trace_id:032x}, span {link.context.span_id:016x}"
    return Text(f"↩ {relation}: {where}", style="cyan")


def heading(root: Branch, number: int | None, titles: Mapping[str, str]) -> list[Text]:
    """What stands above a trace."""
    operation = str((root.span.attributes or {}).get(names.OPERATION_ID, ""))
    title = about.plain(titles.get(operation) or operation or root.span.name)
    began = datetime.fromtimestamp(root.start / 1e9).astimezone()
    context = root.span.get_span_context()
    return [
        Text.assemble((f"[{number}] " if number else "", "bold cyan"), (title, "bold")),
        Text(f"{began:%Y-%m-%d %H:%M:%S}", style="dim"),
        Text(f"trace {context.trace_id if context else 0:032x}", style="dim"),
    ]


def summary(roots: Sequence[Branch], slowest: Branch) -> list[Text]:
    """What the spans come to: how many, in what time, what took the longest, and what went not as usual."""
    branches = [branch for root in roots for branch in root]
    time = max(branch.end for branch in branches) - min(branch.start for branch in branches)
    traces = f" in {len(roots)} traces" if len(roots) > 1 else ""
    own = slowest.own_time
    told = [
        Text(f"{len(branches):,} span{'' if len(branches) == 1 else 's'}{traces}, {about.length(time)}", style="bold"),
        Text(f"longest: {named(slowest.span)}, {about.length(own)} by itself", style="yellow"),
    ]
    for mark in (about.FAILED, about.DENIED, about.STOPPED, about.WAITING):
        found = innermost(branches, mark)
        if found:
            shown = ", ".join(dict.fromkeys(named(branch.span) for branch in found[:NAMED]))
            more = " …" if len(found) > NAMED else ""
            told.append(Text(f"{mark.glyph} {len(found)} {mark.word}: {shown}{more}", style=mark.style))
    mocked = sum(bool((branch.span.attributes or {}).get(names.MOCKED)) for branch in branches)
    if mocked:
        told.append(Text(f"{mocked} mocked", style="yellow"))
    return told


def innermost(branches: Sequence[Branch], mark: about.Mark) -> list[Branch]:
    """The spans that ended in one way, but for those above one of them: what fails inside fails outside as well."""
    found = [branch for branch in branches if branch.mark is mark and not tells_again(branch)]
    above: set[Branch] = set()
    for branch in found:
        parent = branch.parent
        while parent is not None and parent not in above:
            above.add(parent)
            parent = parent.parent
    return [branch for branch in found if branch not in above]


def tells_again(branch: Branch) -> bool:
    """Whether a span is the hook that denied what has a span of its own, which says so."""
    return branch.mark is about.DENIED and about.kind_of(branch.span) == names.HOOK


def key_of(context: SpanContext | None) -> tuple[int, int]:
    """What a span is found by."""
    return (context.trace_id, context.span_id) if context is not None else (0, 0)


def bar_width(width: int) -> int:
    """Columns of the time bar; none in a narrow terminal."""
    bar = min(MAX_BAR, (width - 40) * 2 // 5)
    return bar if bar >= MIN_BAR else 0


def drawn(width: int, start: float, end: float, style: str) -> tuple[str, str]:
    """A bar between two shares of a width, to half a column, and never nothing."""
    first = min(2 * width - 1, round(2 * width * start))
    last = max(first + 1, round(2 * width * end))
    halves = [first <= half < last for half in range(2 * width)]
    glyphs = {(True, True): "━", (True, False): "╸", (False, True): "╺", (False, False): " "}
    return "".join(glyphs[halves[cell], halves[cell + 1]] for cell in range(0, 2 * width, 2)).rstrip(), style


def fit(text: Text, options: ConsoleOptions) -> Text:
    """A text in characters that the terminal knows."""
    if options.ascii_only:
        text.plain = text.plain.translate(ASCII)
    return text
