"""Read rows of JSON lines or CSV one at a time, and find a row again by its place in the file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from hookline.evals.errors import DataFileError

__all__ = ["Row", "RowFile"]

BOM = b"\xef\xbb\xbf"
SUFFIXES = (".jsonl", ".ndjson", ".csv")


class Row(NamedTuple):
    """A row of a file.

    Attributes:
        values: Its values by name; those of a CSV file are texts.
        key: Where it begins in the file, in bytes.
        line: The line in which it begins, from 1.
    """

    values: dict[str, Any]
    key: int
    line: int


class RowFile:
    """A file of rows: `.jsonl` with a JSON object per line, or `.csv` with a header. It is in UTF-8.

    Rows are read when they are asked for; the file is never in memory as a whole.

    Args:
        path: The file.

    Raises:
        DataFileError: If the name of the file has another ending.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix not in SUFFIXES:
            raise DataFileError(str(path), f"the name of such a file ends in {', '.join(SUFFIXES)}")
        self._header: list[str] = []
        self._stamp: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Row]:
        """Read all rows in order.

        Raises:
            DataFileError: If the file cannot be read, or a row is not one.
        """
        with self._open() as file:
            self._stamp = _stamp_of(file)
            lines = _Lines(self, file)
            yield from self._csv_rows(lines) if self.path.suffix == ".csv" else self._json_rows(lines)

    def read(self, key: int) -> dict[str, Any]:
        """Read the values of a row again.

        Args:
            key: The place of the row, as in `Row.key`.

        Raises:
            DataFileError: If the file has changed since its rows were read.
        """
        with self._open() as file:
            if _stamp_of(file) != self._stamp:
                self.refuse("the file has changed since it was read; start again", None)
            file.seek(key)
            lines = _Lines(self, file, key)
            rows = self._csv_rows(lines, self._header) if self.path.suffix == ".csv" else self._json_rows(lines)
            return next(rows).values

    def line_of(self, key: int) -> int:
        """Return the line in which a row begins, from 1."""
        line, left = 1, key
        with self._open() as file:
            while left and (data := file.read(min(left, 1 << 20))):
                line += data.count(b"\n")
                left -= len(data)
        return line

    def refuse(self, problem: str, line: int | None) -> NoReturn:
        """Raise an error about a line of the file."""
        raise DataFileError(str(self.path), problem, line)

    def _open(self) -> BinaryIO:
        try:
            return open(self.path, "rb")
        except OSError as error:
            self.refuse(f"the file cannot be read ({error.strerror or error})", None)

    def _json_rows(self, lines: _Lines) -> Iterator[Row]:
        for text in lines:
            offset, line = lines.begin, lines.number
            if not text.strip():
                continue
            try:
                values = json.loads(text.rstrip(), object_pairs_hook=_unique, parse_constant=_no_constant)
            except json.JSONDecodeError as error:
                self.refuse(f"the line is not JSON ({error.msg}, column {error.colno})", line)
            except (ValueError, RecursionError) as error:
                self.refuse(f"the line cannot be used: {error}", line)
            if not isinstance(values, dict):
                self.refuse(f"each line has a JSON object; got {text.strip()!r:.100}", line)
            yield Row(values, offset, line)

    def _csv_rows(self, lines: _Lines, header: list[str] | None = None) -> Iterator[Row]:
        reader = csv.reader(lines, strict=True)
        names = header or self._read_header(reader, lines)
        while True:
            offset, line = lines.end, lines.number + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                self.refuse(f"the line is not CSV ({error})", line)
            if cells is None:
                return
            if not cells:
                continue
            if len(cells) != len(names):
                self.refuse(f"the header names {len(names)} columns, and this row has {len(cells)}", line)
            yield Row(dict(zip(names, cells, strict=True)), offset, line)

    def _read_header(self, reader: Iterator[list[str]], lines: _Lines) -> list[str]:
        try:
            names = [name.strip() for name in next(reader, [])]
        except csv.Error as error:
            self.refuse(f"the line is not CSV ({error})", 1)
        for name in names:
            if not name or names.count(name) > 1:
                self.refuse("a column has no name" if not name else f"two columns have the name {name!r}", lines.number)
        if not names:
            self.refuse("the first line of a CSV file names the columns", 1)
        self._header = names
        return names


class _Lines:
    """The lines of a file as text, with the place of the last one.

    Attributes:
        begin: Where the last line begins, in bytes.
        end: Where it ends.
        number: Its number, from 1; the number of lines that were read, if reading began elsewhere.
    """

    def __init__(self, rows: RowFile, file: BinaryIO, begin: int = 0) -> None:
        self._rows, self._file = rows, file
        self._read_from = begin
        self.begin = self.end = begin
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        data = self._file.readline()
        if not data:
            raise StopIteration
        self.begin = self.end
        self.end += len(data)
        self.number += 1
        if self.begin == 0 and data.startswith(BOM):
            data = data[len(BOM) :]
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            line = self.number if self._read_from == 0 else self._rows.line_of(self.begin)
            self._rows.refuse("not text in UTF-8; save the file in that encoding", line)


def _stamp_of(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_mtime_ns, status.st_size


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is a number that JSON does not have")
