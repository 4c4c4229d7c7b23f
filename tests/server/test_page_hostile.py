"""Whatever is sent in whatever field or parameter of the page, it is refused or shown as text.

Each text is sent in each field. What would act, and what a database may mind, is sent in one field at a time, with all
others as a person fills them in; the rest in several fields at once, another text in each, which takes fewer requests.
`make soak` sends each text in one field at a time, to each database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import httpx
import pytest

from tests.databases import DIALECTS, new_postgresql
from tests.server.browsing import support
from tests.server.hostile import ACTING, FOR_DATABASES, HOSTILE, MARKS
from tests.server.page_routes import CASES, Case, Made, find_form, name_place
from tests.server.site import Site
from tests.server.test_page_guards import visitor
from tests.server.test_page_matrix import name_of

AT_ONCE = 6
"""In how many fields at most: where one field is refused, those after it may not be read."""
FORM = {"content-type": "application/x-www-form-urlencoded"}
EXPECTED = {200, 303, 400, 401, 403, 404, 409, 412, 413, 422}
ASKED = sorted(place for place in CASES if place[0] == "GET")
SENT = sorted(place for place in CASES if place[0] == "POST" and place[1] != "/sign-out")


@pytest.fixture(scope="module", params=DIALECTS)
def paged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile')}/page.db" if is_file else new_postgresql(request)
    with Site(url, page=True, agents=[support()], quota=100_000) as site:
        yield site


@pytest.fixture
def admin(paged: Site) -> Iterator[httpx.Client]:
    with visitor(paged) as person:
        yield person


@pytest.fixture(params=["mixed", pytest.param("singly", marks=pytest.mark.soak)])
def rounds(request: pytest.FixtureRequest, paged: Site) -> Rounds:
    """What is sent to a site."""
    if request.param == "singly":
        return Rounds(HOSTILE)
    if paged.server.store.dialect == "postgresql":
        return Rounds(FOR_DATABASES)
    return Rounds(ACTING, HOSTILE)


class Rounds(NamedTuple):
    """What is sent in some fields.

    Attributes:
        singly: Texts that are sent in one field at a time.
        together: Texts of which each request sends another one in each of several fields, until each was in each.
    """

    singly: Sequence[str]
    together: Sequence[str] = ()

    def texts(self) -> Sequence[str]:
        """Return all texts, each once."""
        return tuple(dict.fromkeys([*self.singly, *self.together]))

    def of(self, fields: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield what each request sends in which fields."""
        for text in self.singly:
            yield from ({name: text} for name in fields)
        texts = self.together
        for first in range(0, len(fields), AT_ONCE):
            group = fields[first : first + AT_ONCE]
            yield from (
                {name: texts[(start + nth) % len(texts)] for nth, name in enumerate(group)}
                for start in range(len(texts))
            )


def escape(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def encode_form(form: dict[str, Any]) -> bytes:
    """Encode a form as a browser does; lone surrogates as a careless program would."""
    pairs = [(name, each) for name, value in form.items() for each in (value if isinstance(value, list) else [value])]
    return "&".join(
        f"{escape(name)}={quote_plus(value.encode('utf-8', 'surrogatepass'))}" for name, value in pairs
    ).encode()


def check(answer: httpx.Response, *about: object) -> None:
    """An answer is one that was meant, and nothing of what was sent acts in it."""
    assert answer.status_code in EXPECTED, (about, answer.text)
    location = answer.headers.get("location", "/page/")
    assert re.match(r"/page/(?!/)", location), about
    assert "evil" not in "".join(answer.headers.get_list("set-cookie")), about
    kind = answer.headers.get("content-type", "")
    assert kind != "application/problem+json", about
    if kind.startswith("text/html"):
        shown = re.sub(r'(value|href|placeholder|hx-[\w:]+)="[^"<>]*"|<textarea[^>]*>[^<]*', "", answer.text)
        assert not [mark for mark in MARKS if mark in shown], (about, answer.text)


def read(person: httpx.Client, place: str, *, endless: bool) -> httpx.Response:
    with person.stream("GET", place) as answer:
        if not (endless and answer.status_code == 200):
            answer.read()
            return answer
        return httpx.Response(200)


@pytest.mark.parametrize("place", ASKED, ids=name_of)
def test_no_text_in_an_address_breaks_a_view(
    paged: Site, admin: httpx.Client, place: tuple[str, str], rounds: Rounds
) -> None:
    case = CASES[place]
    its = case.make(paged, "acme") if case.make else Made()
    path, _, query = name_place(case.address, its).partition("?")
    kept = [pair for pair in query.split("&") if pair]

    for sent in rounds.of([*dict.fromkeys([*case.asks, "notice"])]):
        rest = [pair for pair in kept if pair.partition("=")[0] not in sent]
        asked = "&".join([*rest, *(f"{name}={escape(text)}" for name, text in sent.items())])
        check(read(admin, f"{path}?{asked}", endless=case.endless), place, sent)
    for text in rounds.texts() if "{id}" in case.address.partition("?")[0] else ():
        wrong = case.address.replace("{id}", escape(text))
        check(read(admin, name_place(wrong, Made("", its.values)), endless=case.endless), place, text)


@pytest.mark.parametrize("place", SENT, ids=name_of)
def test_no_text_in_a_form_breaks_it_or_acts(
    paged: Site, admin: httpx.Client, place: tuple[str, str], rounds: Rounds
) -> None:
    case = CASES[place]
    its, form = prepare(paged, admin, case)
    fields = [name for name in form if name != "token"]
    extra = [name for name in ("from", "back", "place", "kept", "call", "do") if name not in form]
    if case.address == "/sign-in":
        extra = []  # each is an attempt with a key, of which there may be so many in a minute

    every = (dict.fromkeys(fields, text) for text in rounds.singly)
    for sent in chain(rounds.of(fields), every, rounds.of(extra)):
        check(admin.post(name_place(case.address, its), content=encode_form(form | sent), headers=FORM), place, sent)
    for text in rounds.texts() if "{id}" in case.address else ():
        wrong = name_place(case.address.replace("{id}", escape(text)), Made("", its.values))
        check(admin.post(wrong, content=encode_form(form), headers=FORM), place, text)


@pytest.mark.parametrize("place", SENT, ids=name_of)
def test_a_megabyte_in_a_field_is_refused(paged: Site, admin: httpx.Client, place: tuple[str, str]) -> None:
    case = CASES[place]
    its, form = prepare(paged, admin, case)

    for name in form:
        for size in (60_000, 200_000, 2**20):
            body = encode_form(form | {name: "x" * size})
            answer = admin.post(name_place(case.address, its), content=body, headers=FORM)
            check(answer, place, name, size)
            assert answer.status_code == 413 or size < 2**20


def prepare(site: Site, admin: httpx.Client, case: Case) -> tuple[Made, dict[str, Any]]:
    its = case.make(site, "" if case.system else "acme") if case.make else Made()
    if case.address == "/sign-in":
        admin.cookies.clear()  # who has signed in does not see the form
    return its, find_form(admin, case, its)
