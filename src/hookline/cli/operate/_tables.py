"""Lists and single things from a store, as a person sees them in a terminal, and as JSON for programs.

A table shows as many columns as there is room for. What can be copied, as ids are, is never cut: where the terminal is
too narrow for it, the line goes on in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hookline.cli.chat import harmless
from hookline.cli.operate._times import when

__all__ = ["STATUS_STYLES", "Column", "as_lines", "copied", "fields", "listed", "one_line", "status", "timed"]

T = TypeVar("T")

GAP = 2
"""Between two columns."""
LEAST = 12
"""Of a text that is cut: what has to be left."""
LONGEST = 400
"""Characters of a text that are looked at for one cell."""

STATUS_STYLES: Mapping[str, str] = {
    "running": "cyan",
    "waiting_for_human": "bold yellow",
    "done": "green",
    "error": "bold red",
    "ok": "green",
    "denied": "magenta",
    "mocked": "yellow",
    "timeout": "bold red",
    "dropped": "yellow",
    "pending": "cyan",
    "waiting": "dim",
    "delivered": "green",
    "dead": "bold red",
    "on": "green",
    "off": "dim",
    "not here": "yellow",
    "passed": "green",
    "failed": "bold red",
    "active": "green",
    "revoked": "dim",
    "expired": "dim",
}


@dataclass(frozen=True, kw_only=True)
class Column(Generic[T]):
    """A column of a table.

    Attributes:
        name: Its heading.
        cell: What it says of an entry.
        rank: Columns with a greater one are left out first; those of 0 never.
        cut: Whether its text may be cut, as that of an id may not.
        right: Whether it holds figures.
    """

    name: str
    cell: Callable[[T], str | Text]
    rank: int = 0
    cut: bool = False
    right: bool = False


def as_lines(items: Iterable[object]) -> None:
    """Print entries as JSON, each in a line of its own."""
    for item in items:
        typer.echo(msgspec.json.encode(item))


def listed(items: Sequence[T], columns: Sequence[Column[T]], *, more: bool, nothing: str) -> None:
    """Print entries as a table.

    Args:
        items: The entries.
        columns: What to show of each.
        more: Whether there are more than these.
        nothing: What to say if there are none.
    """
    console = Console(highlight=False)
    if not items:
        Console(highlight=False, stderr=True).print(nothing, style="dim", soft_wrap=True)
        return
    cells = {column.name: [_text(column.cell(item)) for item in items] for column in columns}
    widths = _widths(columns, cells, console.width)
    console.width = max(console.width, sum(widths.values()) + GAP * (len(widths) - 1))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_edge=False)
    shown = [column for column in columns if column.name in widths]
    for column in shown:
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=widths[column.name],
        )
    for row in zip(*(cells[column.name] for column in shown), strict=True):
        table.add_row(*row)
    console.print(table)
    if more:
        told = f"{len(items):,} {'is' if len(items) == 1 else 'are'} shown; there are more: --limit"
        Console(highlight=False, stderr=True).print(told, style="dim", soft_wrap=True)


def _widths(columns: Sequence[Column[T]], cells: Mapping[str, Sequence[Text]], room: int) -> dict[str, int]:
    """How wide each column becomes that there is room for."""
    natural = {
        column.name: max(cell_len(column.name), *(cell.cell_len for cell in cells[column.name])) for column in columns
    }
    empty = {column.name for column in columns if column.rank and not any(cell.plain for cell in cells[column.name])}
    taken: dict[str, int] = {}
    left = room + GAP
    for column in sorted(columns, key=lambda each: each.rank):
        wanted = natural[column.name]
        least = min(wanted, LEAST) if column.cut else wanted
        if column.name not in empty and (column.rank == 0 or least + GAP <= left):
            taken[column.name] = least
            left -= least + GAP
    for column in sorted(columns, key=lambda each: each.rank):
        if column.name in taken and left > 0:
            extra = min(left, natural[column.name] - taken[column.name])
            taken[column.name] += extra
            left -= extra
    return taken


def fields(given: Iterable[tuple[str, object]]) -> None:
    """Print what is known of one thing, a line for each field that says something.

    Args:
        given: Names and values; those that are empty are left out.
    """
    console = Console(highlight=False)
    shown = [(name, value) for name, value in given if value not in (None, "", [], {})]
    width = max((cell_len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = value if isinstance(value, Text) else Text(harmless(_plain(value)))
        console.print(Text.assemble((f"{name:{width}}  ", "dim"), text), soft_wrap=True)


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    return msgspec.json.encode(value, enc_hook=str).decode()


def status(word: str) -> Text:
    """A status in its colour."""
    return Text(one_line(word), style=STATUS_STYLES.get(word, ""))


def copied(text: str | None) -> str:
    """A text that is shown as it is, so that it can be copied; what a terminal would obey is made visible."""
    return harmless(text or "").replace("\n", "␊").replace("\t", "␉")


def one_line(text: object) -> str:
    """The beginning of a text in one line."""
    return " ".join(harmless(str(text)[:LONGEST]).split())


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def timed(name: str, at: float | None) -> tuple[str, object]:
    """A field that is a time."""
    return name, None if at is None else when(at)
