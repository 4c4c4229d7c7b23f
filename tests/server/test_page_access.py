"""Every view with a day of agents at work, as axe judges it: for screen readers, by keyboard, and by its contrast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.server.browsing import look
from tests.server.day import fill
from tests.server.pictures import OTHERS, PICTURES, find_operations
from tests.server.site import Site
from tests.server.test_page_guards import done

SERIOUS = {"serious", "critical"}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 800}},
    "dark and narrow": {"color_scheme": "dark", "viewport": {"width": 390, "height": 800}},
}


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    url = f"sqlite:///{tmp_path_factory.mktemp('seeded')}/page.db"
    with Site(url, page=True) as site:
        yield site, done(site, fill(url, runs=12))


@pytest.mark.parametrize("seen", LOOKS)
def test_axe_finds_nothing_serious_in_any_view(browser: Any, seeded: tuple[Site, str], seen: str) -> None:
    site, key = seeded
    named = done(site, find_operations(site.server.store))
    context = look(browser, site, key, **LOOKS[seen])
    page = context.new_page()
    found = []
    for view in sorted({*(PICTURES | OTHERS).values()}):
        page.goto(view.format_map(named).partition(" ")[0])
        judged = Axe().run(page, options={"resultTypes": ["violations"]}).response
        found += [
            (view, rule["id"], node["html"][:200], node["failureSummary"][:200])
            for rule in judged["violations"]
            if rule["impact"] in SERIOUS
            for node in rule["nodes"]
        ]
    context.close()
    assert found == []
