"""A newcomer reads little, sees little code, and finds the first pages at once."""

from __future__ import annotations

import functools
import pathlib
from itertools import product

from tests.tables import for_each

from .markdown import ROOT, blocks, links, title

README = ROOT / "README.md"
DOCS = ROOT / "docs"
FIRST_PAGES = [
    DOCS / "install.md",
    DOCS / "how-to" / "own-loop.md",
    DOCS / "explanation" / "why.md",
    DOCS / "how-to" / "troubleshoot.md",
    *sorted((DOCS / "how-to" / "migrate").glob("*.md")),
]


def code_lines(code: str) -> list[str]:
    """The lines of a program without imports and blank lines, and without their indentation."""
    lines = [line.strip() for line in code.splitlines()]
    return [line for line in lines if line and not line.startswith(("import ", "from "))]


def python_blocks(page: pathlib.Path) -> list[str]:
    return [block.code for block in blocks(page.read_text()) if block.language == "python"]


def test_the_readme_has_at_most_900_words() -> None:
    assert len(README.read_text().split()) <= 900


def test_the_first_example_has_at_most_15_lines() -> None:
    first, *_ = python_blocks(README)

    assert len(code_lines(first)) <= 15


def test_hooks_add_at_most_ten_lines_to_an_own_loop() -> None:
    bare, hooked, *_ = (code_lines(code) for code in python_blocks(DOCS / "how-to" / "own-loop.md"))
    loop = hooked[hooked.index("async def answer(prompt: str) -> str:") + 1 :]

    added = [line for line in loop if line not in bare and not line.startswith("print(")]

    assert any("wrap(" in line for line in added)
    assert len(added) + 1 <= 10  # and the import of `wrap`


@for_each("start, page", product((README, DOCS / "index.md"), FIRST_PAGES), ids=title)
def test_a_first_page_is_two_clicks_away_at_most(start: pathlib.Path, page: pathlib.Path) -> None:
    reached = targets(start)

    assert page in reached | {each for page_ in reached if page_.suffix == ".md" for each in targets(page_)}


@functools.cache
def targets(page: pathlib.Path) -> set[pathlib.Path]:
    """The files that a page links to."""
    found = {(page.parent / link.partition("#")[0]).resolve() for link in links(page.read_text()) if ":" not in link}
    return {each for each in found if each.is_file()}
