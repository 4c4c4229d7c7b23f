"""Read and print for a person in a terminal, or for a program: tables, fields, JSON lines, times, errors in one line.

A table shows as many columns as there is room for. Text that people copy, such as an id, is never cut: where the
terminal is too narrow for it, the line goes on in the next one.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import time
from typing import Generic, TypeVar

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hookline.cli._exit_codes import FAILED, MISUSED, interrupted_code
from hookline.cli.errors import (
    ChatArgumentError,
    EndpointError,
    InputFileError,
    NotAStoreError,
    OutputFileError,
    ProjectFileError,
    StoreMissingError,
    TraceTargetError,
    TracingDisabledError,
)
from hookline.errors import HooklineError, HookUsageError
from hookline.evals.errors import (
    CassetteFileError,
    CassetteFolderError,
    DataFileError,
    EventFileError,
    FaultFileError,
    ReportError,
    RunFileError,
    RunResumeError,
    SuiteFileError,
    UnknownAttackChoiceError,
    UnknownSuiteError,
    UnknownTagError,
    UnknownTaskError,
)

__all__ = [
    "STATUS_STYLES",
    "Column",
    "format_age",
    "format_clock_time",
    "format_full_time",
    "format_status",
    "make_copyable",
    "make_harmless",
    "make_one_line",
    "new_table",
    "parse_option",
    "parse_span",
    "parse_time",
    "print_fields",
    "print_json_lines",
    "print_list",
    "print_path",
    "print_result",
    "report_errors",
    "time_field",
]

T = TypeVar("T")

# Text that others have written.

JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"
"""Format characters that writing and emojis need, and that cannot deceive about the order of a text."""
LONGEST = 400
"""Characters of a text that are read for one cell."""


class _VisibleCharacters(dict[int, int]):
    """Maps each character to one that a terminal only shows: control codes to pictures, other invisible ones to �."""

    def __missing__(self, code: int) -> int:
        visible, kind = code, unicodedata.category(chr(code))
        if code < 0x20 and chr(code) not in "\n\t":
            visible = 0x2400 + code
        elif code == 0x7F:
            visible = 0x2421
        elif (kind in ("Cf", "Cs", "Zl", "Zp") and chr(code) not in JOINERS) or (kind == "Cc" and code > 0x7F):
            visible = 0xFFFD
        self[code] = visible
        return visible


_VISIBLE = _VisibleCharacters()


def make_harmless(text: str) -> str:
    """Return a text that a terminal shows and does not obey; its lines and tabs stay."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def make_copyable(text: str | None) -> str:
    """Return a whole text, such as an id, in one line, with visible signs for line breaks and tabs."""
    return make_harmless(text or "").replace("\n", "␊").replace("\t", "␉")


def make_one_line(text: object) -> str:
    """Return the beginning of a text in one line."""
    return " ".join(make_harmless(str(text)[:LONGEST]).split())


# Tables and single records.

GAP = 2
"""Blank columns of the terminal between two columns of the table."""
LEAST = 12
"""Columns of the terminal that a cut text keeps at least."""

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


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    Attributes:
        name: Its heading.
        cell: Returns the text of an entry, which is made harmless, or a `Text` of its own style.
        rank: Columns with a greater rank are left out first; those of rank 0 never.
        cut: Whether its text may be cut; people copy the others, such as an id.
        right: Whether it holds figures.
    """

    name: str
    cell: Callable[[T], str | Text]
    rank: int = 0
    cut: bool = False
    right: bool = False


def print_list(
    items: Sequence[T], columns: Sequence[Column[T]], *, as_json: bool, nothing: str, more: bool = False
) -> None:
    """Print entries as a table, or as JSON, one entry per line.

    Args:
        items: The entries.
        columns: The columns of the table.
        as_json: Whether to print JSON.
        nothing: Printed on stderr, in place of a table without entries.
        more: Whether there are further entries, which the table then says.
    """
    if as_json:
        print_json_lines(items)
    elif items:
        _print_table(items, columns)
        if more:
            _print_hint(f"{len(items):,} {'is' if len(items) == 1 else 'are'} shown; there are more: --limit")
    else:
        _print_hint(nothing)


def print_result(value: object, shown: str | Iterable[tuple[str, object]], *, as_json: bool) -> None:
    """Print what a command did or found: as a sentence or as fields, or as one line of JSON.

    Args:
        value: The value for JSON.
        shown: A sentence, or names and values; values that are empty are left out.
        as_json: Whether to print JSON.
    """
    if as_json:
        print_json_lines([value])
    elif isinstance(shown, str):
        typer.echo(shown)
    else:
        print_fields(shown)


def print_json_lines(items: Iterable[object]) -> None:
    """Print entries as JSON, one per line."""
    for item in items:
        typer.echo(msgspec.json.encode(item))


def print_path(console: Console, name: str, path: Path) -> None:
    """Print where a file is; the terminal may break the line anywhere, so that the path can be copied."""
    console.print(f"{name}: {escape(str(path))}", soft_wrap=True)


def new_table(*, padding: tuple[int, ...] | int = 0) -> Table:
    """Return an empty table with a line under its heading and no other frame."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, padding=padding, show_edge=False)  # type: ignore[arg-type]


def format_status(word: str) -> Text:
    """Return a status in its colour."""
    return Text(make_one_line(word), style=STATUS_STYLES.get(word, ""))


def _print_hint(text: str) -> None:
    Console(highlight=False, stderr=True).print(text, style="dim", soft_wrap=True)


def _print_table(items: Sequence[T], columns: Sequence[Column[T]]) -> None:
    console = Console(highlight=False)
    cells = {column.name: [_cell_text(column, item) for item in items] for column in columns}
    widths = _choose_widths(columns, cells, console.width)
    console.width = max(console.width, sum(widths.values()) + GAP * (len(widths) - 1))
    table = new_table(padding=(0, GAP - 1, 0, 0))
    chosen = [column for column in columns if column.name in widths]
    for column in chosen:
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=widths[column.name],
        )
    for row in zip(*(cells[column.name] for column in chosen), strict=True):
        table.add_row(*row)
    console.print(table)


def _choose_widths(columns: Sequence[Column[T]], cells: Mapping[str, Sequence[Text]], room: int) -> dict[str, int]:
    """Return the width of each column for which there is room."""
    natural = {
        column.name: max(cell_len(column.name), *(cell.cell_len for cell in cells[column.name])) for column in columns
    }
    empty = {column.name for column in columns if column.rank and not any(cell.plain for cell in cells[column.name])}
    widths: dict[str, int] = {}
    left = room + GAP
    for column in sorted(columns, key=lambda each: each.rank):
        wanted = natural[column.name]
        least = min(wanted, LEAST) if column.cut else wanted
        if column.name not in empty and (column.rank == 0 or least + GAP <= left):
            widths[column.name] = least
            left -= least + GAP
    for column in sorted(columns, key=lambda each: each.rank):
        if column.name in widths and left > 0:
            extra = min(left, natural[column.name] - widths[column.name])
            widths[column.name] += extra
            left -= extra
    return widths


def print_fields(given: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line; values that are empty are left out."""
    console = Console(highlight=False)
    shown = [(name, value) for name, value in given if value not in (None, "", [], {})]
    width = max((cell_len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = value if isinstance(value, Text) else Text(make_harmless(_format_value(value)))
        console.print(Text.assemble((f"{name:{width}}  ", "dim"), text), soft_wrap=True)


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    return msgspec.json.encode(value, enc_hook=str).decode()


def _cell_text(column: Column[T], item: T) -> Text:
    cell = column.cell(item)
    if isinstance(cell, Text):
        return cell
    return Text(make_one_line(cell) if column.cut else make_copyable(cell))


# Times, as people write and read them.

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
LATEST = 253_370_764_800.0
"""The year 9999, which is the last one that a calendar has."""


def parse_option(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    """Return the value of an option, or `None` if it is not given.

    Args:
        option: Its name, for the error.
        text: What the person wrote.
        parse: Returns the value, or raises a `ValueError` that says what is expected.

    Raises:
        typer.BadParameter: If the text is not such a value.
    """
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def parse_span(text: str) -> float:
    """Return the seconds of a span of time.

    Args:
        text: `"30s"`, `"10m"`, `"2h"` or `"7d"`.

    Raises:
        ValueError: If it is anything else.
    """
    match = SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.60} is not a span of time, such as 30s, 10m, 2h or 7d.")
    return float(match[1]) * UNITS[match[2]]


def parse_time(text: str) -> float:
    """Return a time in seconds since 1970.

    Args:
        text: How long ago, a date and time of ISO 8601 (the local time, unless it has an offset), or the seconds.

    Raises:
        ValueError: If it is anything else.
    """
    if SPAN.fullmatch(text.strip()):
        return max(0.0, time() - parse_span(text))
    try:
        found = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            found = math.nan
    if not 0 <= found <= LATEST:
        raise ValueError(f"{text!r:.60} is not a time, such as 10m (ago), 2026-01-31T12:00, or seconds since 1970.")
    return found


def format_age(since: float) -> str:
    """Return how long ago a time was, in four characters at most for the next three years."""
    passed = max(0.0, time() - since)
    for unit, length in reversed(UNITS.items()):
        if passed >= length:
            return f"{passed / length:.0f}{unit}" if unit == "s" else f"{int(passed / length)}{unit}"
    return "0s"


def format_full_time(at: float) -> str:
    """Return the date and the local time, with its offset from UTC."""
    return _to_local(at).isoformat(sep=" ", timespec="milliseconds")


def format_clock_time(at: float) -> str:
    """Return the local time as a log shows it, with the date unless that is today."""
    local = _to_local(at)
    shape = "%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S"
    return f"{local:{shape}}.{local.microsecond // 1000:03d}"


def time_field(name: str, at: float | None) -> tuple[str, object]:
    """Return a field of `print_result` that is a time, or empty without one."""
    return name, None if at is None else format_full_time(at)


def _to_local(at: float) -> datetime:
    return datetime.fromtimestamp(min(max(at, 0.0), LATEST)).astimezone()


# Errors.

MISUSES = (
    CassetteFileError,
    CassetteFolderError,
    ChatArgumentError,
    DataFileError,
    EndpointError,
    EventFileError,
    FaultFileError,
    HookUsageError,
    InputFileError,
    NotAStoreError,
    OutputFileError,
    ProjectFileError,
    ReportError,
    RunFileError,
    RunResumeError,
    StoreMissingError,
    SuiteFileError,
    TraceTargetError,
    TracingDisabledError,
    UnknownAttackChoiceError,
    UnknownSuiteError,
    UnknownTagError,
    UnknownTaskError,
)
"""Errors in what a person asked for; every other error is a failure."""

FURTHER_MISUSES = (
    ("hookline.delivery._signing", "WebhookKeyError"),
    ("hookline.registry._errors", "DefinitionError"),
)
"""The same, of modules that take long to import: there is such an error only where its module is loaded."""


@contextlib.contextmanager
def report_errors(*, interrupt: str = "hookline: interrupted") -> Iterator[None]:
    """Turn an error that a person can put right into one line on stderr and an exit code, and Ctrl-C likewise.

    Args:
        interrupt: Printed after Ctrl-C; `""` to end without a word.

    Raises:
        typer.Exit: With 2 for wrong use, with 1 for any other error of hookline, with 130 or 143 for a signal.
    """
    try:
        yield
    except HooklineError as error:
        typer.echo(f"hookline: {error}", err=True)
        raise typer.Exit(MISUSED if _is_misuse(error) else FAILED) from None
    except KeyboardInterrupt:
        if interrupt:
            typer.echo(interrupt, err=True)
        raise typer.Exit(interrupted_code()) from None


def _is_misuse(error: HooklineError) -> bool:
    if getattr(error, "code", None) == "read_only":  # a definition that may not be changed is refused, not wrong
        return False
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in FURTHER_MISUSES)
    return isinstance(error, (*MISUSES, *(kind for kind in kinds if isinstance(kind, type))))
