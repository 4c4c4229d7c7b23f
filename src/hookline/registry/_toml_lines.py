"""The lines of a TOML text, as far as a search finds them: Python's parser does not tell them."""

from __future__ import annotations

import re

__all__ = ["Lines", "line_of_key", "lines_of_tables"]

Lines = dict[str, int]
"""Where keys stand, from line 1, by their path in an entry: `"webhook"`, `"webhook.timeout"`."""

TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|#[^\n]*", re.DOTALL
)
"""A text of several lines or one, or a comment."""
NAME = r"[\"']?[\w-]+[\"']?"
PATH = rf"{NAME}(?:\s*\.\s*{NAME})*"
HEADER = re.compile(r"\s*\[\[\s*[\"']?hooks[\"']?\s*\]\]")
TABLE = re.compile(rf"\s*\[\[?\s*[\"']?hooks[\"']?\s*\.\s*({PATH})\s*\]")
KEY = re.compile(rf"\s*({PATH})\s*=")
INLINE = re.compile(rf"[\[\]{{}}]|({PATH})\s*=")


def line_of_key(text: str, key: str) -> int | None:
    """The line of a key of the whole document: where it is set, or else that of its first table."""
    text = _without_texts(text)
    name = rf"[\"']?{re.escape(key)}[\"']?\s*"
    before = re.split(r"^\s*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.search(rf"^[^\S\n]*{name}[=.]", before, re.MULTILINE)
    found = found or re.search(rf"^[^\S\n]*\[\[?\s*{name}[\].]", text, re.MULTILINE)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def lines_of_tables(text: str, count: int) -> list[tuple[int | None, Lines]]:
    """Where the tables of `hooks` begin, and their keys stand.

    Args:
        text: The document, which is valid TOML.
        count: How many there are. Where another number is found, only the line of `hooks` itself is told.
    """
    found = _below_headers(text) or _inline(text)
    if len(found) == count:
        return [*found]
    line = line_of_key(text, "hooks")
    return [(line, {})] * count


def _below_headers(text: str) -> list[tuple[int, Lines]]:
    """Tables that are written as `[[hooks]]`."""
    found: list[tuple[int, Lines]] = []
    table = ""
    for line, content in enumerate(_without_texts(text).split("\n"), 1):
        if HEADER.match(content):
            found.append((line, {}))
            table = ""
        elif found and (header := TABLE.match(content)):
            _note(found[-1][1], _path(header[1]), line)
            table = _path(header[1]) + "."
        elif found and (key := KEY.match(content)):
            _note(found[-1][1], table + _path(key[1]), line)
    return found


def _inline(text: str) -> list[tuple[int, Lines]]:
    """Tables that are written as `hooks = [{...}, {...}]`."""
    text = _without_texts(text, short=True)
    start = re.search(r"^\s*hooks\s*=\s*(?=\[)", text, re.MULTILINE)
    found: list[tuple[int, Lines]] = []
    depth = 0
    for match in INLINE.finditer(text, start.end() if start else len(text)):
        line = text.count("\n", 0, match.start()) + 1
        if match[0] in "[{":
            depth += 1
            if depth == 2:
                found.append((line, {}))
        elif match[0] in "]}":
            depth -= 1
            if depth == 0:
                break
        elif depth == 2:
            _note(found[-1][1], _path(match[1]), line)
    return found


def _note(lines: Lines, path: str, line: int) -> None:
    """Keep the line of a path, and that of what it is in, unless these are known."""
    for end in (*(match.start() for match in re.finditer(r"\.", path)), len(path)):
        lines.setdefault(path[:end], line)


def _path(written: str) -> str:
    return re.sub(r"[\"'\s]", "", written)


def _without_texts(text: str, *, short: bool = False) -> str:
    """A document with its lines, but without its comments and the texts in it.

    Args:
        text: The document.
        short: Whether to leave out texts of one line too; a key may be one.
    """

    def blank(match: re.Match[str]) -> str:
        is_short = match[0][0] in "\"'" and match[0][:3] not in ('"""', "'''")
        return match[0] if is_short and not short else "\n" * match[0].count("\n")

    return TEXT.sub(blank, text)
