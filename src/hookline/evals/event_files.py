"""Recorded runs as files: one event per line, each as `hookline.encode` writes it."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from hookline.errors import EventDecodeError, EventEncodeError
from hookline.evals.errors import EventFileError
from hookline.events import Event, decode, encode

__all__ = ["read_events", "write_events"]

MAX_LINE = 64 * 1024 * 1024
"""Bytes of the longest line that is taken for an event: what is longer is another kind of file, and may have no end."""


def write_events(path: str | Path, events: Iterable[Event]) -> Path:
    """Write events to a file, in the order in which they are given; what was in it is replaced.

    Args:
        path: The file.
        events: Events of one operation or of several; those of several may be mixed.

    Returns:
        The absolute path.

    Raises:
        EventFileError: If an event holds what JSON cannot, in which case nothing is written, or if the file cannot be
            written.
    """
    target = Path(path).absolute()
    lines: list[bytes] = []
    for event in events:
        try:
            lines.append(encode(event) + b"\n")
        except EventEncodeError as error:
            raise EventFileError(str(target), "written", str(error), line=len(lines) + 1) from error
    try:
        target.write_bytes(b"".join(lines))
    except OSError as error:
        raise EventFileError(str(target), "written", error.strerror or str(error)) from error
    return target


def read_events(path: str | Path) -> list[Event]:
    """Read the events of a file, in its order; blank lines are skipped.

    Args:
        path: The file.

    Raises:
        EventFileError: If it cannot be read, or if a line is no event; it says which line, and what is wrong with it.
    """
    source = Path(path)
    try:
        if stat.S_ISDIR(source.stat().st_mode):
            raise EventFileError(str(source), "read", "it is a folder")
        return list(_events(source))
    except (OSError, ValueError) as error:
        if isinstance(error, EventFileError):
            raise
        raise EventFileError(str(source), "read", getattr(error, "strerror", None) or str(error)) from error


def _events(source: Path) -> Iterator[Event]:
    with source.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise EventFileError(str(source), "read", f"it is longer than {MAX_LINE >> 20} MiB", line=number)
            if not line.isspace():
                yield _event(source, number, line)


def _event(source: Path, number: int, line: bytes) -> Event:
    try:
        return decode(line)
    except EventDecodeError as error:
        # Every line ends with a newline: one that is neither whole nor ended was cut off while it was written.
        cut_off = not line.endswith(b"\n") and line.lstrip().startswith(b"{") and error.path == "$"
        reason = f"it is cut off in the middle ({error})" if cut_off else str(error)
        raise EventFileError(str(source), "read", reason, line=number) from error
