"""Forms that are sent twice, too late or after the session has ended, and what the page says when the database is lost."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import func, select

from hookline.server import KeyStore
from hookline.store import audit
from tests.databases import Server
from tests.server.browsing import look, support
from tests.server.page_routes import CASES, Case, Made, find_form, name_place, read_forms
from tests.server.site import MASTER, Site, key, new_id
from tests.server.test_page_guards import browsing, done, token_in, visitor
from tests.server.test_page_matrix import name_of

SENT = sorted(place for place in CASES if place[0] == "POST" and CASES[place].make)
KEPT = sorted(place for place in CASES if place[0] == "POST" and not place[1].startswith("/sign-"))
SAME_SITE = {"sec-fetch-site": "same-origin"}
HTMX = {"hx-request": "true"}


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('faults')}/page.db"
    with Site(url, page=True, agents=[support()], quota=10_000) as site:
        yield site


@pytest.fixture(scope="module")
def admin(paged: Site) -> Iterator[httpx.Client]:
    with visitor(paged) as person:
        yield person


@pytest.fixture(scope="module")
def two(paged: Site) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two people who have signed in."""
    with visitor(paged) as first, visitor(paged) as second:
        yield first, second


@pytest.fixture(scope="module")
def reader(paged: Site) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    """Somebody who may change nothing, and the token of their session."""
    with visitor(paged, done(paged, key(paged.server.store, "acme", ["hooks:read"]))) as person:
        yield person, {"token": token_in(person.get("/hooks").text)}


def make(site: Site, case: Case, tenant: str = "acme") -> Made:
    """An object for a route."""
    return Made() if case.make is None else case.make(site, "" if case.system else tenant)


def count_changes(site: Site) -> int:
    """The number of changes in the audit log that were made with keys."""

    async def count() -> int:
        async with site.server.store.reading() as connection:
            query = (
                select(func.count())
                .select_from(audit)
                .where(audit.c.actor.like("key:%"), audit.c.action.not_like("%refused"))
            )
            return int((await connection.execute(query)).scalar_one())

    return done(site, count())


def said(answer: httpx.Response) -> str:
    """What an answer says, as people read it."""
    shown = re.search(r'<div class="outcome.*?</div>|<section class="outcome.*?</section>', answer.text, re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown[0] if shown else "")).split())


@pytest.mark.parametrize("place", SENT, ids=name_of)
def test_a_form_that_is_sent_twice_does_its_work_once(paged: Site, admin: httpx.Client, place: tuple[str, str]) -> None:
    case = CASES[place]
    its = make(paged, case)
    form, address = find_form(admin, case, its), name_place(case.address, its)

    first = admin.post(address, data=form)
    changes = count_changes(paged)
    second = admin.post(address, data=form)

    assert first.status_code == case.status, first.text
    assert second.status_code in case.again, second.text
    # The attempt that the first copy asked for may be over, and then the second one asks for another.
    attempts_more = place == ("POST", "/deliveries/{id:str}/retry") and second.status_code == 303
    assert count_changes(paged) == changes + attempts_more


@pytest.mark.parametrize("place", SENT, ids=name_of)
def test_a_form_that_two_send_at_once_does_its_work_once(
    paged: Site, two: tuple[httpx.Client, httpx.Client], place: tuple[str, str]
) -> None:
    case = CASES[place]
    alone = count_alone(paged, two[0], case)
    its, ready = make(paged, case), threading.Barrier(2)
    before = count_changes(paged)

    def send(person: httpx.Client) -> int:
        form = find_form(person, case, its)
        ready.wait(30)
        return person.post(name_place(case.address, its), data=form).status_code

    with ThreadPoolExecutor(2) as pool:
        statuses = sorted(pool.map(send, two))

    assert case.status in statuses
    assert set(statuses) <= {case.status, *case.again, 409}
    most = 2 * alone if place in EACH_DOES_ITS_OWN else alone
    assert count_changes(paged) - before <= most


EACH_DOES_ITS_OWN = {
    ("POST", "/deliveries/{id:str}/replay"),
    ("POST", "/deliveries/{id:str}/retry"),
    ("POST", "/endpoints/secrets"),
    ("POST", "/keys/{id:str}/rotate"),
    ("POST", "/operations/{id:str}/retry"),
}
"""Two copies of these forms are two wishes: another attempt, secret, key or operation."""


def count_alone(site: Site, person: httpx.Client, case: Case) -> int:
    """The number of changes that a form makes."""
    its = make(site, case)
    before = count_changes(site)
    person.post(name_place(case.address, its), data=find_form(person, case, its))
    return count_changes(site) - before


@pytest.mark.parametrize("place", KEPT, ids=name_of)
def test_a_form_of_a_session_that_has_ended_is_sent_after_signing_in(
    paged: Site, admin: httpx.Client, place: tuple[str, str]
) -> None:
    case = CASES[place]
    its = make(paged, case)
    form = find_form(admin, case, its)
    with browsing(paged) as person:
        whole, part = (
            person.post(name_place(case.address, its), data=form, headers=headers)
            for headers in (SAME_SITE, SAME_SITE | HTMX)
        )
        [sign_in] = read_forms(part.text)[0]
        [sign_in_whole] = read_forms(whole.text)[0]
        again = person.post("/sign-in", data=dict(sign_in.fields) | {"key": paged.admin})
        kept = next(each for each in read_forms(again.text)[0] if each.action.endswith(name_place(case.address, its)))
        fields: dict[str, Any] = {}
        for name, value in kept.fields:
            fields.setdefault(name, []).append(value)
        answer = person.post(name_place(case.address, its), data=fields)

    assert (whole.status_code, part.status_code) == (401, 401)
    assert ("hx-retarget" in whole.headers, "hx-retarget" in part.headers) == (False, True)
    assert [field for field in sign_in_whole.fields if field[0] != "token"] == [
        field for field in sign_in.fields if field[0] != "token"
    ]
    assert {name: value for name, value in fields.items() if name != "token"} == {
        name: value if isinstance(value, list) else [value] for name, value in form.items() if name != "token"
    }
    assert answer.status_code == case.status, answer.text


@pytest.mark.parametrize(
    "text", ["x" * 260_000, "\"<&'\n" * 17_000, "\N{PILE OF POO}" * 21_000], ids=["plain", "marks", "emoji"]
)
def test_the_largest_form_survives_the_end_of_the_session(paged: Site, admin: httpx.Client, text: str) -> None:
    form = {"token": "gone", "sample": text, "name": "kept"}
    whole = admin.post("/hooks/new", data=form | {"token": token_in(admin.get("/keys").text)})
    with browsing(paged) as person:
        refused = person.post("/hooks/new", data=form, headers=SAME_SITE)
        [sign_in] = read_forms(refused.text)[0]
        again = person.post("/sign-in", data=dict(sign_in.fields) | {"key": paged.admin})

    assert (whole.status_code, refused.status_code) == (422, 401)
    [kept] = [dict(each.fields) for each in read_forms(again.text)[0] if each.action == "/page/hooks/new"]
    assert kept["sample"] == text


@pytest.mark.parametrize("act", ["switch", "delete", "revert"])
def test_who_is_too_late_is_told_who_has_done_what_with_a_hook(paged: Site, admin: httpx.Client, act: str) -> None:
    case = CASES["POST", f"/hooks/{{id:str}}/{act}"]
    changed, deleted = (case.make(paged, "acme") for _ in range(2))  # type: ignore[misc]
    forms = [find_form(admin, case, its) for its in (changed, deleted)]
    carol = done(paged, KeyStore(paged.server.store).create(name="Carol", tenant_id="acme", scopes=["hooks:manage"]))
    with visitor(paged, carol.key) as person:
        token = {"token": token_in(person.get("/keys").text), "tenant": "acme"}
        now = done(paged, paged.server.registry.get(changed.id, "acme"))
        data = {"do": "save", "name": now.name, "point": now.point, "runs": "handler", "handler": "deny"}
        data |= {"enabled": "yes", "priority": "9", "revision": str(now.revision), "tenantId": "acme"}
        assert person.post(f"/hooks/{changed.id}/edit", data=token | data).status_code == 303
        there = {"revision": str(done(paged, paged.server.registry.get(deleted.id, "acme")).revision)}
        assert person.post(f"/hooks/{deleted.id}/delete", data=token | there).status_code == 303
    before = done(paged, paged.server.registry.get(changed.id, "acme"))

    answers = [
        admin.post(name_place(case.address, its), data=form)
        for its, form in zip((changed, deleted), forms, strict=True)
    ]

    assert [answer.status_code for answer in answers] == [409, 409]
    assert re.match(r"This hook was changed by Carol \(API key \w+\) since the page showed it", said(answers[0]))
    assert re.match(r"This hook was deleted by Carol \(API key \w+\) since the page showed it", said(answers[1]))
    assert "Restore" in answers[1].text
    assert done(paged, paged.server.registry.get(changed.id, "acme")) == before


def test_an_order_that_is_out_of_date_names_who_has_changed_a_hook(paged: Site, admin: httpx.Client) -> None:
    tenant = new_id("tenant")
    case = CASES["POST", "/hooks/order"]
    its = case.make(paged, tenant)  # type: ignore[misc]
    form = find_form(admin, case, its)
    done(paged, paged.server.registry.update(its.id, {"priority": 900}, tenant_id=tenant, actor="cli:dave"))

    answer = admin.post("/hooks/order", data=form | {"move": f"earlier:{its.id}"})

    assert answer.status_code == 409
    assert "by dave on the command line" in said(answer)


def test_two_who_bring_a_hook_back_make_one_change(paged: Site, admin: httpx.Client) -> None:
    its = CASES["GET", "/hooks/deleted"].make(paged, "acme")  # type: ignore[misc]
    shown = admin.get(name_place("/hooks/{id}/history?tenant={tenant}", its)).text
    form = {"token": token_in(shown), "tenant": "acme", "revision": "", "to": its.values["first"]}

    first, second = (admin.post(f"/hooks/{its.id}/revert", data=form) for _ in range(2))

    assert (first.status_code, second.status_code) == (303, 409)
    assert said(second).startswith("An older revision of this hook was restored by you")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("/operations?q=%00", "The URL contains a NUL character."),
        ("/operations?q=%ff", "The query string is not valid UTF-8."),
        ("/operations/%ed%a0%80", "The path is not valid UTF-8."),
        ("/hooks/a%00b/edit", "The URL contains a NUL character."),
        ("/hooks/%2e%2e/edit", "The path has a segment"),
    ],
)
def test_an_address_that_cannot_be_read_is_explained_to_people(admin: httpx.Client, place: str, told: str) -> None:
    answer = admin.get(place)

    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert told in said(answer)
    assert 'href="/page/overview"' in answer.text


@pytest.mark.parametrize("place", SENT, ids=name_of)
def test_a_part_of_a_page_that_is_refused_leaves_the_form_in_its_place(
    paged: Site, admin: httpx.Client, reader: tuple[httpx.Client, dict[str, str]], place: tuple[str, str]
) -> None:
    case = CASES[place]
    its = make(paged, case)
    form = find_form(admin, case, its)
    huge = {"big": "x" * 300_000}
    other, mine = reader
    answers = [
        other.post(name_place(case.address, its), data=form | mine, headers=HTMX),
        admin.post(name_place(case.address, its), data=form | huge, headers=HTMX),
        admin.post(name_place(case.address, its), data=form | {"big": "x" * 2**20}, headers=HTMX),
    ]

    assert [answer.status_code for answer in answers] == [403, 413, 413]
    for answer in answers:
        assert (answer.headers["hx-retarget"], answer.headers["hx-reselect"]) == ("#refused", ".outcome")
        assert "The form still has what you typed." in said(answer)


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("name", " ", "Give the key a name"),
        ("name", "x" * 201, "this one has 201"),
        ("name", "a\tb", "control character"),
        ("tenant", "t" * 401, "at most 400 characters"),
        ("scope", "hooks:everything", "Choose at least one scope"),
        ("amount", "soon", "must be a number"),
        ("amount", "-1", "more than zero"),
    ],
)
def test_what_is_wrong_with_a_field_of_a_key_is_said_beside_it(
    admin: httpx.Client, name: str, wrong: str, told: str
) -> None:
    form = find_form(admin, CASES["POST", "/keys"], Made())

    answer = admin.post("/keys", data=form | {"name": "kept <b>", "unit": "hours"} | {name: wrong})

    assert answer.status_code == 422
    beside = re.search(
        rf'aria-invalid="true" aria-describedby="wrong-{name} .*?id="wrong-{name}">(.*?)</p>', answer.text, re.DOTALL
    )
    assert beside is not None
    assert told in beside[1]
    kept = next(dict(each.fields) for each in read_forms(answer.text)[0] if each.action == "/page/keys")
    assert (kept["name"], kept["unit"]) == (wrong if name == "name" else "kept <b>", "hours")
    assert name not in ("tenant", "amount") or kept[name] == wrong


def test_a_database_that_is_lost_and_comes_back_costs_nothing_but_time(postgresql: Server, postgresql_url: str) -> None:
    with Site(postgresql_url, page=True, agents=[support()], master_key=MASTER) as site, visitor(site) as person:
        views = [place for place in sorted(CASES) if place[0] == "GET" and not CASES[place].endless]
        objects = {place: make(site, CASES[place], new_id("tenant")) for place in (*views, *SENT)}
        forms = {place: find_form(person, CASES[place], objects[place]) for place in SENT}
        postgresql.lose()
        try:
            told = [person.get(name_place(CASES[place].address, objects[place])) for place in views]
            parts = [
                person.post(name_place(CASES[place].address, objects[place]), data=forms[place], headers=HTMX)
                for place in SENT
            ]
        finally:
            postgresql.recover()
        until_it_answers(person)
        back = [person.get(name_place(CASES[place].address, objects[place])) for place in views]
        sent = [person.post(name_place(CASES[place].address, objects[place]), data=forms[place]) for place in SENT]

    for place, answer in zip(views, told, strict=True):
        assert answer.status_code in (503, CASES[place].status if place[1] in WITHOUT_DATABASE else 503), place
        if answer.status_code == 503 and answer.headers["content-type"].startswith("text/html"):
            assert "Since" in said(answer) + answer.text, place
            assert "What cannot be done" in answer.text
    assert {answer.status_code for answer in parts} == {503}
    assert {answer.headers["hx-retarget"] for answer in parts} == {"#refused"}
    assert all("The form still has what you typed." in answer.text for answer in parts)
    assert [answer.status_code for answer in back] == [CASES[place].status for place in views]
    assert {
        place: answer.status_code
        for place, answer in zip(SENT, sent, strict=True)
        if answer.status_code not in (CASES[place].status, *CASES[place].again)
    } == {}


WITHOUT_DATABASE = {"/", "/sign-in"}
"""Views that need no database."""


def until_it_answers(person: httpx.Client) -> None:
    for _ in range(200):
        if person.get("/operations").status_code == 200:
            return
    raise AssertionError("The database does not come back.")


def test_a_reason_is_not_lost_with_the_database(browser: Browser, postgresql: Server, postgresql_url: str) -> None:
    with Site(postgresql_url, page=True) as site:
        its = make(site, CASES["POST", "/approvals"])
        context = look(browser, site)
        page = context.new_page()
        page.goto("approvals")
        reason = page.get_by_label("Reason for a rejection")
        reason.fill("Too much for this month.")
        postgresql.lose()
        try:
            page.get_by_role("button", name="Reject and stop").click()
            expect(page.locator("#refused .outcome")).to_contain_text("The form still has what you typed.")
            expect(page.locator("#refused .outcome")).to_be_focused()
            expect(reason).to_have_value("Too much for this month.")
        finally:
            postgresql.recover()
        with visitor(site) as person:
            until_it_answers(person)
        page.get_by_role("button", name="Reject and stop").click()

        expect(page.locator(".outcome strong")).to_have_text("Rejected and stopped:")
        expect(page.locator("#refused")).to_be_empty()
        context.close()
        [decision] = done(site, site.server.store.decisions_of(its.id))
    assert (decision.decision, decision.reason) == ("reject", "Too much for this month.")
