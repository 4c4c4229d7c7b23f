"""Every route of the page, with every scope, on objects of the caller, of another tenant and of the system.

The routes come from the page itself: one without an entry in `page_routes` fails.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from hookline.server import SCOPES, Scope
from tests.server.browsing import support
from tests.server.page_routes import (
    CASES,
    ROUTE_SCOPES,
    Case,
    Made,
    find_form,
    name_place,
    read_forms,
    read_query_names,
)
from tests.server.site import Site, key, new_id
from tests.server.test_page_guards import browsing, done, token_in, visitor

PLACES = sorted(CASES)
GUARDED = [place for place in PLACES if ROUTE_SCOPES[place] is not None]
ABOUT_OBJECTS = [place for place in GUARDED if CASES[place].make and not CASES[place].listed]


def name_of(place: tuple[str, str]) -> str:
    return f"{place[0]}-{place[1]}"


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('matrix')}/page.db"
    with Site(url, page=True, agents=[support()], quota=10_000) as site:
        yield site


class Visitors:
    """People with a key of a tenant and some scopes who have signed in: one of each kind for all tests."""

    def __init__(self, site: Site, stack: ExitStack) -> None:
        self._site, self._stack = site, stack
        self._known: dict[tuple[str, Sequence[Scope]], tuple[httpx.Client, dict[str, str]]] = {}

    def of(self, owner: str, *scopes: Scope) -> tuple[httpx.Client, dict[str, str]]:
        """Return somebody, and the token of their session."""
        kind = owner, scopes or SCOPES
        if kind not in self._known:
            secret = done(self._site, key(self._site.server.store, *kind))
            person = self._stack.enter_context(visitor(self._site, secret))
            self._known[kind] = person, token_of(person)
        return self._known[kind]


@pytest.fixture(scope="module")
def admin(paged: Site) -> Iterator[httpx.Client]:
    with visitor(paged) as person:
        yield person


@pytest.fixture(scope="module")
def visitors(paged: Site) -> Iterator[Visitors]:
    with ExitStack() as stack:
        yield Visitors(paged, stack)


def ask(
    person: httpx.Client, method: str, case: Case, its: Made, form: dict[str, Any] | None = None
) -> tuple[int, str]:
    """Ask a route; gives the status and the text of its answer."""
    place = name_place(case.address, its)
    data = {"data": form or {}} if method == "POST" else {}
    with person.stream(method, place, **data) as answer:  # type: ignore[arg-type]
        if case.endless and answer.status_code == 200:
            return 200, ""
        answer.read()
        return answer.status_code, answer.text


def test_every_route_of_the_page_is_in_the_matrix() -> None:
    assert set(CASES) == set(ROUTE_SCOPES)


def test_every_link_and_filter_of_the_page_asks_only_what_the_matrix_knows(paged: Site) -> None:
    with visitor(paged) as person:
        texts = []
        for method, path in PLACES:
            case = CASES[method, path]
            if method == "GET" and not case.endless and case.status == 200:
                its = case.make(paged, "acme") if case.make else Made()
                texts.append(ask(person, "GET", case, its)[1])
    unknown = set()
    for text in texts:
        forms, links = read_forms(text)
        asked = [read_query_names(link) for link in links]
        asked += [(urlsplit(form.action).path, form.names) for form in forms if form.method == "get"]
        for path, names in asked:
            route = find_route(path)
            if route is not None:
                unknown |= {(route, name) for name in names - {*CASES["GET", route].asks, "v"}}

    assert unknown == set()


def find_route(path: str) -> str | None:
    """The route of a path of the page: the one without parameters, where there are several."""
    found = [
        route
        for method, route in PLACES
        if method == "GET" and re.fullmatch("/page" + re.sub(r"\{\w+:\w+\}", "[^/]+", route), path)
    ]
    return min(found, key=lambda route: route.count("{"), default=None)


@pytest.mark.parametrize("place", GUARDED, ids=name_of)
def test_only_its_scope_opens_a_route(
    paged: Site, admin: httpx.Client, visitors: Visitors, place: tuple[str, str]
) -> None:
    case, scope, method = CASES[place], ROUTE_SCOPES[place], place[0]
    assert scope is not None
    owner = "" if case.system else "acme"
    its = case.make(paged, owner) if case.make else Made()
    form: dict[str, Any] = {}
    if method == "POST":
        # A key of the tenant, so that its form is that of such a key.
        form = find_form(admin if case.system else visitors.of(owner)[0], case, its)
    with browsing(paged) as nobody:
        assert ask(nobody, method, case, its)[0] in (303, 401)
    for other in SCOPES:
        if other == scope:
            continue
        wrong, token = visitors.of(owner, other)
        assert ask(wrong, method, case, its, form | token)[0] == 403, other
    if case.system:
        return
    right, token = visitors.of(owner, scope)
    status, text = ask(right, method, case, its, form | token)

    assert status == case.status, text


def token_of(person: httpx.Client) -> dict[str, str]:
    """The token of a session, which stands on every page, also on one that says that something is not allowed."""
    return {"token": token_in(person.get("/settings").text)}


@pytest.mark.parametrize("owner", ["globex", ""], ids=["another", "system"])
@pytest.mark.parametrize("place", ABOUT_OBJECTS, ids=name_of)
def test_a_route_answers_about_others_as_about_nothing(
    paged: Site, admin: httpx.Client, visitors: Visitors, place: tuple[str, str], owner: str
) -> None:
    case, method = CASES[place], place[0]
    assert case.make is not None
    theirs = case.make(paged, owner)
    nothing = Made(new_id("none"), {name: new_id("none") for name in theirs.values if name != "tenant"})
    form: dict[str, Any] = {}
    if method == "POST" and not (case.system and owner):
        form = find_form(admin, case, theirs)
    acme, token = visitors.of("acme")
    status, text = ask(acme, method, case, theirs, form | token)
    bare = json.loads(rename(json.dumps(form), theirs, nothing))
    without = ask(acme, method, case, Made(nothing.id, {"tenant": owner, **nothing.values}), bare | token)

    assert (status, plain(rename(text, theirs, nothing))) == (without[0], plain(without[1]))
    assert status in (404, 409)


@pytest.mark.parametrize("owner", ["globex", ""], ids=["another", "system"])
@pytest.mark.parametrize("place", [place for place in PLACES if CASES[place].listed], ids=name_of)
def test_a_list_has_nothing_of_others(paged: Site, visitors: Visitors, place: tuple[str, str], owner: str) -> None:
    case = CASES[place]
    theirs = case.make(paged, owner) if case.make else Made()
    mark = "&" if "?" in case.address else "?"
    acme, _ = visitors.of("acme")
    status, text = ask(acme, "GET", case, theirs)
    named = ask(acme, "GET", dataclasses.replace(case, address=f"{case.address}{mark}tenant=globex"), theirs)

    assert status == 200
    assert named[0] == 404
    assert not [word for word in theirs.words if word in text + named[1]]


def rename(text: str, its: Made, other: Made) -> str:
    """Write the id and the names of another object in the place of those of an object."""
    for name, value in {"id": its.id, **its.values}.items():
        if name not in ("tenant", "first") and value:
            text = text.replace(value, {"id": other.id, **other.values}[name])
    return text


def plain(text: str) -> str:
    """A text without what is new in each answer."""
    return re.sub(r'value="[^"]{10,}"', "", text)
