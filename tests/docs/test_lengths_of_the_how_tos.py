"""A how-to is short enough to be read before it is needed."""

from __future__ import annotations

import pathlib
import re

from tests.tables import for_each

from .markdown import PAGES, ROOT, title

HOW_TOS = [page for page in PAGES if page.is_relative_to(ROOT / "docs" / "how-to")]
MOST_WORDS = 600


@for_each("page", HOW_TOS, ids=title)
def test_a_how_to_has_at_most_600_words_without_its_code(page: pathlib.Path) -> None:
    count = len(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).split())

    assert count <= MOST_WORDS, f"{title(page)} has {count} words; cut some, or make it two pages"
