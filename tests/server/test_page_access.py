"""Every view with a day of agents at work: as axe judges it, and as keys with few scopes see it."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import ViewportSize

from hookline.server import SCOPES, Scope
from tests.axe import SCRIPT, find_serious
from tests.server.browsing import look
from tests.server.day import fill
from tests.server.pictures import OTHERS, PICTURES, find_operations
from tests.server.site import Site, key
from tests.server.test_page_guards import done, visitor

LOOKS: dict[str, tuple[str, ViewportSize]] = {
    "light": ("light", {"width": 1280, "height": 800}),
    "dark and narrow": ("dark", {"width": 390, "height": 800}),
}
ROWS = "document.querySelectorAll('tbody tr:nth-child(n + 21)').forEach(row => row.remove())"
"""Leaves twenty rows of a table to axe, since all rows are drawn by the same lines of a template."""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    url = f"sqlite:///{tmp_path_factory.mktemp('seeded')}/page.db"
    with Site(url, page=True) as site:
        yield site, done(site, fill(url, runs=6))


@pytest.mark.parametrize("half", [0, 1])
def test_axe_finds_nothing_serious_in_any_view(browser: Any, seeded: tuple[Site, str], half: int) -> None:
    site, key = seeded
    named = done(site, find_operations(site.server.store))
    context = look(browser, site, key)
    page = context.new_page()
    page.add_init_script(SCRIPT)
    found = []
    for view in sorted({view.partition(" ")[0] for view in (PICTURES | OTHERS).values()})[half::2]:
        page.goto(view.format_map(named))
        page.evaluate(ROWS)
        for seen, (scheme, size) in LOOKS.items():
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(size)
            found += [(view, seen, *wrong) for wrong in find_serious(page)]
    context.close()
    assert found == []


VIEWS_OF_KEYS: dict[tuple[Scope, ...], str] = {
    ("operations:read",): "/page/overview",
    ("operations:read", "approvals:decide"): "/page/overview",
    ("operations:read", "deliveries:replay"): "/page/overview",
    ("operations:read", "operations:manage"): "/page/overview",
    ("hooks:read",): "/page/hooks",
    ("hooks:read", "hooks:manage"): "/page/hooks",
    ("hooks:read", "operations:read"): "/page/overview",
    ("hooks:admin",): "/page/keys",
    SCOPES: "/page/overview",
}
"""The first view of keys with some scopes."""
MOST_OF_A_KIND, IDS = 2, re.compile(r"[\w.-]*[0-9a-f]{6}[\w.-]*|op-[\w-]+")


def follow_links(client: httpx.Client) -> dict[str, int]:
    """Open what the links of the page lead to, from the first view on, two of each kind; the status of each."""
    waiting, found, kinds = ["/page/"], dict[str, int](), Counter[str]()
    while waiting:
        place = waiting.pop(0)
        kind = IDS.sub("*", place.partition("?")[0])
        if place in found or kinds[kind] == MOST_OF_A_KIND or "/static/" in place:
            continue
        kinds[kind] += 1
        answer = client.get(place.removeprefix("/page"), follow_redirects=True)
        found[place] = answer.status_code
        links = [html.unescape(each).partition("#")[0] for each in re.findall(r'href="(/page/[^"]*)"', answer.text)]
        waiting += links
    return found


@pytest.mark.parametrize("tenant_id", ["", "acme"])
@pytest.mark.parametrize("scopes", VIEWS_OF_KEYS)
def test_no_view_has_a_link_that_its_key_may_not_follow(
    seeded: tuple[Site, str], scopes: tuple[Scope, ...], tenant_id: str
) -> None:
    site, _ = seeded
    with visitor(site, done(site, key(site.server.store, tenant_id, scopes))) as person:
        first, found = person.get("/", follow_redirects=True), follow_links(person)

    assert first.url.path == VIEWS_OF_KEYS[scopes]
    assert {place: status for place, status in found.items() if status != 200} == {}
    assert len(found) > 3


@pytest.mark.parametrize("scope", ["hooks:manage", "approvals:decide", "operations:manage", "deliveries:replay"])
def test_a_key_that_may_see_nothing_is_told_which_scopes_it_lacks(seeded: tuple[Site, str], scope: Scope) -> None:
    site, _ = seeded
    with visitor(site, done(site, key(site.server.store, "acme", [scope]))) as person:
        answer = person.get("/")

    assert answer.status_code == 403
    assert f"it has {scope}." in answer.text
    assert "operations:read, hooks:read or hooks:admin" in answer.text
    assert 'href="/page/"' not in answer.text.partition("<main")[2]
