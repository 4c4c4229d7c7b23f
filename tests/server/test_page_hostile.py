"""Whatever is sent in whatever field or parameter of the page, it is refused or shown as text.

Each text is sent in each field. What would act, and what a database may mind, is sent in one field at a time, with all
others as a person fills them in; the rest in several fields at once, another text in each, which takes fewer requests.
What a form or a view has no field for is sent in several at once alone. `make soak` sends each text in one field at a
time, to each database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from email.message import Message
from http.client import HTTPConnection
from itertools import chain, product
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, urlsplit

import httpx
import pytest

from tests.databases import DIALECTS, new_postgresql
from tests.server.browsing import support
from tests.server.hostile import ACTING, FOR_DATABASES, HOSTILE, MARKS
from tests.server.page_routes import CASES, Case, Made, find_form, name_place
from tests.server.site import SECONDS, Site
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


@pytest.fixture(scope="module")
def signed_in(paged: Site) -> Iterator[httpx.Client]:
    with visitor(paged) as person:
        yield person


@pytest.fixture
def admin(signed_in: httpx.Client) -> Iterator[httpx.Client]:
    """Somebody who has signed in, also if the test before has signed out."""
    cookies = httpx.Cookies(signed_in.cookies)
    yield signed_in
    signed_in.cookies = cookies


@pytest.fixture
def sender(paged: Site, admin: httpx.Client) -> Iterator[Sender]:
    """The same person, with a client that sends faster."""
    with closing(Sender(paged, admin)) as sender:
        yield sender


@pytest.fixture(params=["mixed", pytest.param("singly", marks=pytest.mark.soak)])
def rounds(request: pytest.FixtureRequest, paged: Site) -> Rounds:
    """What is sent to a site."""
    if request.param == "singly":
        return Rounds(HOSTILE)
    if paged.server.store.dialect == "postgresql":
        return Rounds(FOR_DATABASES, unknown=FOR_DATABASES)
    return Rounds(ACTING, [text for text in HOSTILE if text not in ACTING], unknown=HOSTILE)


class Rounds(NamedTuple):
    """What is sent in some fields.

    Attributes:
        singly: Texts that are sent in one field at a time.
        together: Texts of which each request sends another one in each of several fields, until each was in each.
        unknown: The same, for fields that a form does not have; `()` to treat them as all others.
    """

    singly: Sequence[str]
    together: Sequence[str] = ()
    unknown: Sequence[str] = ()

    def texts(self) -> Sequence[str]:
        """Return all texts, each once."""
        return tuple(dict.fromkeys([*self.singly, *self.together]))

    def of(self, fields: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield what each request sends in which fields."""
        for text in self.singly:
            yield from ({name: text} for name in fields)
        yield from mix(fields, self.together)

    def of_unknown(self, fields: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield what each request sends in fields that a form does not have."""
        return mix(fields, self.unknown) if self.unknown else self.of(fields)


def mix(fields: Sequence[str], texts: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield requests with another text in each of several fields, until each text was in each field."""
    for first in range(0, len(fields), AT_ONCE):
        group = fields[first : first + AT_ONCE]
        for start in range(len(texts)):
            yield {name: texts[(start + nth) % len(texts)] for nth, name in enumerate(group)}


class Answer(NamedTuple):
    """What a server has answered."""

    status_code: int
    headers: Message
    text: str


def read_answer(given: httpx.Response) -> Answer:
    """Return what `httpx` was answered."""
    headers = Message()
    for name, value in given.headers.multi_items():
        headers[name] = value
    return Answer(given.status_code, headers, given.text)


class Sender:
    """Somebody who has signed in and sends thousands of requests: `httpx` takes as long for one as a small view does.

    Args:
        site: The server.
        person: Somebody who has signed in.
    """

    def __init__(self, site: Site, person: httpx.Client) -> None:
        parts = urlsplit(site.address)
        self._connection = HTTPConnection(str(parts.hostname), parts.port, timeout=SECONDS)
        self._person = person

    def get(self, place: str, *, endless: bool = False) -> Answer:
        """Ask for a view; of one that never ends, its status alone is read."""
        return self._send("GET", place, None, endless=endless)

    def post(self, place: str, form: dict[str, Any]) -> Answer:
        """Send a form."""
        return self._send("POST", place, encode_form(form), endless=False)

    def _send(self, method: str, place: str, body: bytes | None, *, endless: bool) -> Answer:
        cookies = "; ".join(f"{name}={value}" for name, value in self._person.cookies.items())
        headers = {"cookie": cookies} | (FORM if body is not None else {})
        self._connection.request(method, f"/page{place}", body, headers)
        answer = self._connection.getresponse()
        if endless and answer.status == 200:
            self._connection.close()
            return Answer(200, Message(), "")
        return Answer(answer.status, answer.headers, answer.read().decode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def escape(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def encode_form(form: dict[str, Any]) -> bytes:
    """Encode a form as a browser does; lone surrogates as a careless program would."""
    pairs = [(name, each) for name, value in form.items() for each in (value if isinstance(value, list) else [value])]
    return "&".join(
        f"{escape(name)}={quote_plus(value.encode('utf-8', 'surrogatepass'))}" for name, value in pairs
    ).encode()


def check(answer: Answer, *about: object) -> None:
    """An answer is one that was meant, and nothing of what was sent acts in it."""
    assert answer.status_code in EXPECTED, (about, answer.text)
    location = answer.headers.get("location", "/page/")
    assert re.match(r"/page/(?!/)", location), about
    assert "evil" not in "".join(answer.headers.get_all("set-cookie", [])), about
    kind = answer.headers.get("content-type", "")
    assert kind != "application/problem+json", about
    if kind.startswith("text/html") and any(mark in answer.text for mark in MARKS):
        # Only then, since to leave out the fields of a page takes seven times as long as to look for the marks.
        shown = re.sub(r'(value|href|placeholder|hx-[\w:]+)="[^"<>]*"|<textarea[^>]*>[^<]*', "", answer.text)
        assert not [mark for mark in MARKS if mark in shown], (about, answer.text)


@pytest.mark.parametrize("place", ASKED, ids=name_of)
def test_no_text_in_an_address_breaks_a_view(
    paged: Site, sender: Sender, place: tuple[str, str], rounds: Rounds
) -> None:
    case = CASES[place]
    its = case.make(paged, "acme") if case.make else Made()
    path, _, query = name_place(case.address, its).partition("?")
    kept = [pair for pair in query.split("&") if pair]

    for sent in rounds.of(case.asks or ("notice",)):
        # Every view looks for a notice, by its name in one place, and none is refused for it.
        texts = {"notice": next(iter(sent.values()))} | sent
        rest = [pair for pair in kept if pair.partition("=")[0] not in sent]
        asked = "&".join([*rest, *(f"{name}={escape(text)}" for name, text in texts.items())])
        check(sender.get(f"{path}?{asked}", endless=case.endless), place, sent)
    for text in rounds.texts() if "{id}" in case.address.partition("?")[0] else ():
        wrong = case.address.replace("{id}", escape(text))
        check(sender.get(name_place(wrong, Made("", its.values)), endless=case.endless), place, text)


@pytest.mark.parametrize("place", SENT, ids=name_of)
def test_no_text_in_a_form_breaks_it_or_acts(
    paged: Site, admin: httpx.Client, sender: Sender, place: tuple[str, str], rounds: Rounds
) -> None:
    case = CASES[place]
    its, form = prepare(paged, admin, case)
    fields = [name for name in form if name != "token"]
    extra = [name for name in ("from", "back", "place", "kept", "call", "do") if name not in form]
    if case.address == "/sign-in":
        extra = []  # each is an attempt with a key, of which there may be so many in a minute

    every = (dict.fromkeys(fields, text) for text in rounds.singly)
    for sent in chain(rounds.of(fields), every, rounds.of_unknown(extra)):
        check(sender.post(name_place(case.address, its), form | sent), place, sent)
    for text in rounds.texts() if "{id}" in case.address else ():
        wrong = name_place(case.address.replace("{id}", escape(text)), Made("", its.values))
        check(sender.post(wrong, form), place, text)


@pytest.mark.parametrize("place", SENT, ids=name_of)
def test_a_megabyte_in_a_field_is_refused(
    paged: Site, admin: httpx.Client, sender: Sender, place: tuple[str, str]
) -> None:
    case = CASES[place]
    its, form = prepare(paged, admin, case)

    for name, size in product(form, (60_000, 200_000)):
        check(sender.post(name_place(case.address, its), form | {name: "x" * size}), place, name, size)
    # A megabyte in one field alone: it is refused for the length that its headers say, before a field is read, so that
    # only a client which minds no broken pipe reads the answer.
    body = encode_form(form | {next(iter(form)): "x" * 2**20})
    given = admin.post(name_place(case.address, its), content=body, headers=FORM)
    assert given.status_code == 413
    check(read_answer(given), place)


def prepare(site: Site, admin: httpx.Client, case: Case) -> tuple[Made, dict[str, Any]]:
    its = case.make(site, "" if case.system else "acme") if case.make else Made()
    if case.address == "/sign-in":
        admin.cookies.clear()  # who has signed in does not see the form
    return its, find_form(admin, case, its)
