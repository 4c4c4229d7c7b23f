"""Read and write recorded runs as files with one event per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from hookline.errors import EventDecodeError, EventEncodeError
from hookline.evals.errors import EventFileError
from hookline.events import Event, decode, encode

__all__ = ["read_events", "write_events"]

MAX_LINE = 64 * 1024 * 1024
"""Bytes of the longest line that is taken for an event: what is longer is another kind of file, and may have no end."""


def write_events(path: str | Path, events: Iterable[Event]) -> Path:
    """Write events to a file, in the given order. An existing file is replaced.

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
            reason = f"a {error.event_type} event holds what JSON cannot ({error.reason})"
            raise EventFileError(str(target), "written", reason, len(lines) + 1) from error
    try:
        target.write_bytes(b"".join(lines))
    except OSError as error:
        raise EventFileError(str(target), "written", error.strerror or str(error)) from error
    return target


def read_events(path: str | Path) -> list[Event]:
    """Read the events of a file, in its order. Blank lines are skipped.

    Args:
        path: The file.

    Raises:
        EventFileError: If it cannot be read, or if a line is not an event. The error names the line and the problem.
    """
    try:
        with Path(path).open("rb") as file:
            return list(_events(str(path), file))
    except OSError as error:
        raise EventFileError(str(path), "read", error.strerror or str(error)) from error


def _events(path: str, file: BinaryIO) -> Iterator[Event]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise EventFileError(path, "read", f"it is longer than {MAX_LINE >> 20} MiB", number)
        if line.isspace():
            continue
        try:
            yield decode(line)
        except EventDecodeError as error:
            # Every event ends with a newline: a line without one was cut off while it was written.
            cut_off = error.path == "$" and line.startswith(b"{") and not line.endswith(b"\n")
            reason = "it is cut off in the middle" if cut_off else f"{error.reason} at {error.path}"
            raise EventFileError(path, "read", reason, number) from error
