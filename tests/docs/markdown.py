"""The little of Markdown that the tests need: code blocks with their markers, links, headings, code spans."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(
    r"(?P<marker><!--(?P<remark>[^\n]*?)-->\n+)?"
    r"(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced code block.

    `marker` is the HTML comment right before it:

    * `output`: what the block before prints,
    * `file: name`: is to be written to that file,
    * `run`: shell commands that are to be run; `run: 1`, that are to exit with 1,
    * `workflow`: a workflow for CI, which a test of its own runs,
    * `needs: module`: from here to the next such marker, only where that module is installed,
    * `offline: this is that; this is that`: is run with that in the place of this.
    """

    language: str
    marker: str
    code: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        yield Block(
            language=found["language"],
            marker=(found["remark"] or "").strip(),
            code=found["body"],
            line=text.count("\n", 0, found.start("body")) + 1,
        )


def prose(text: str) -> str:
    """The text without its code blocks and comments."""
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)


def code_spans(text: str) -> Iterator[str]:
    for found in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", prose(text)):
        yield found[1].replace("\\|", "|")


def links(text: str) -> Iterator[str]:
    without_code = re.sub(r"`[^`\n]*`", "``", prose(text))
    for found in re.finditer(r"\]\(([^()\s]+(?:\([^()]*\))?)\)", without_code):
        yield found[1]


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the tables right under a heading, without the first rows, which name the columns."""
    section = re.split(r"^#{1,6} ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    tables = re.findall(r"^\|.*\|\n\|[-|]+\n((?:\|.*\|\n?)+)", section, re.MULTILINE)
    lines = "".join(f"{table.strip()}\n" for table in tables).splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def documented(text: str) -> set[str]:
    """The names that a page of the reference shows with their docstrings."""
    return set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))


def anchors(text: str) -> set[str]:
    """The fragments that a page has: of its headings, as GitHub makes them, and of the names that it documents."""
    found = documented(text)
    for heading in re.finditer(r"^#{1,6} +(.*)$", FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading[1].strip().lower())
        found.add(words.replace(" ", "-"))
    return found


def title(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))
