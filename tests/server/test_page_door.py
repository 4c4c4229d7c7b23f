"""What is done on the page passes the hooks for requests, counts for the key of who does it, and ends with signing out."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from sqlalchemy import insert, select

from hookline import Deny
from hookline.calls import RequestCall, RequestResult
from hookline.hooks import Hooks
from hookline.server import RateLimit
from hookline.store import SqlStore
from hookline.store._tables import ended_sessions
from tests.server.site import PLAIN, Site, key, operation
from tests.server.test_page_guards import browsing, done, paged, seen_in, token_in, visitor

__all__ = ["paged"]

REASON = "Closed <today>."
SHOWN = "Closed &lt;today&gt;."
APPROVE = {"call": "call", "decision": "approve"}


def test_hooks_see_what_is_done_on_the_page_and_no_secret(new_database_url: Callable[[str], str]) -> None:
    seen: list[RequestCall] = []
    hooks = Hooks("watch")
    hooks.guard(RequestCall)(seen.append)
    with Site(new_database_url("sqlite"), page=True, hooks=[hooks]) as site:
        its, secret = done(site, operation(site.server.store)), done(site, key(site.server.store))
        with visitor(site, secret) as person:
            shown = person.get("/approvals").text
            form = {"operation": its, "token": token_in(shown), "seen": seen_in(shown)}
            approved = person.post("/approvals", data=APPROVE | form)
            cookies = {
                "authorization": f"Bearer {secret}",
                "cookie": f"a=b; hookline_session={person.cookies['hookline_session']}",
            }
            httpx.get(f"{site.address}/v1/operations", headers=cookies, verify=PLAIN)

    assert approved.status_code == 303
    assert [(call.method, call.path, call.tenant_id) for call in seen] == [
        ("GET", "/page/approvals", "acme"),
        ("POST", "/page/approvals", "acme"),
        ("GET", "/v1/operations", "acme"),
    ]
    assert not [call for call in seen if {"cookie", "authorization"} & set(call.headers)]


@pytest.mark.parametrize("owner", ["acme", ""], ids=["tenant", "system"])
def test_what_a_stored_hook_denies_is_not_done_on_the_page(paged: Site, owner: str) -> None:
    store = paged.server.store
    its = done(paged, operation(store))
    made = {"name": "no", "point": "RequestCall.guard", "handler": "deny", "config": {"reason": REASON}}
    with visitor(paged, done(paged, key(store))) as person, visitor(paged, done(paged, key(store, "globex"))) as other:
        shown = person.get("/approvals").text
        token = {"token": token_in(shown)}
        done(paged, paged.server.registry.create(made | {"tenantId": owner}))

        refused = person.post("/approvals", data=APPROVE | token | {"operation": its, "seen": seen_in(shown)})
        assert refused.status_code == 403
        live = person.get("/operations/live")
        elsewhere = other.get("/operations")
        left = person.post("/sign-out", data=token)

    assert SHOWN in refused.text
    assert "script-src 'self';" in refused.headers["content-security-policy"]
    assert (live.status_code, live.json()) == (403, {"code": "denied", "detail": REASON})
    assert elsewhere.status_code == (200 if owner else 403)
    assert left.headers["location"] == "/page/sign-in"
    assert done(paged, store.decided(["agent"])) == []


def test_a_hook_of_the_server_denies_before_and_after(new_database_url: Callable[[str], str]) -> None:
    hooks = Hooks("door")

    @hooks.guard(RequestCall)
    def judge(call: RequestCall) -> Deny | None:
        if call.path == "/page/logs":
            raise RuntimeError("password=hunter2")
        return Deny(REASON) if call.path == "/page/deliveries" else None

    @hooks.after(RequestCall)
    def withhold(call: RequestCall, result: RequestResult) -> Deny | None:
        return Deny(REASON) if call.path == "/page/operations" else None

    with Site(new_database_url("sqlite"), page=True, hooks=[hooks]) as site, visitor(site) as person:
        before, after, failed = (person.get(f"/{view}") for view in ("deliveries", "operations", "logs"))
        fine = person.get("/hooks")

    assert [answer.status_code for answer in (before, after, failed, fine)] == [403, 403, 500, 200]
    assert SHOWN in before.text
    assert SHOWN in after.text
    assert "hunter2" not in failed.text


def test_the_page_takes_from_the_allowance_of_the_key(new_database_url: Callable[[str], str]) -> None:
    with Site(new_database_url("sqlite"), page=True, rate_limit=RateLimit(requests=6, seconds=600)) as site:
        secret = done(site, key(site.server.store))
        with visitor(site, secret) as person, visitor(site) as another:
            page = person.get("/operations")
            style = page.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
            answers = [person.get("/hooks") for _ in range(6)]
            api = httpx.get(f"{site.address}/v1/hooks", headers={"authorization": f"Bearer {secret}"}, verify=PLAIN)
            styled = person.get(f"{site.address}{style}")
            unhindered = another.get("/operations")
        with browsing(site) as stranger:
            strangers = [stranger.get("/operations").status_code for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 100
    assert "Too many requests" in answers[-1].text
    assert (api.status_code, styled.status_code, unhindered.status_code) == (429, 200, 200)
    # Two of the address have each signed in with two requests.
    assert strangers == [303, 303, 429]


def test_who_signs_out_ends_the_session_and_no_other(paged: Site) -> None:
    with visitor(paged) as person, visitor(paged) as another, browsing(paged) as thief:
        stolen = {"cookie": f"hookline_session={person.cookies['hookline_session']}"}
        before = thief.get("/operations", headers=stolen)

        person.post("/sign-out", data={"token": token_in(before.text)})
        after = thief.get("/operations", headers=stolen)
        elsewhere = another.get("/operations")

    assert (before.status_code, elsewhere.status_code) == (200, 200)
    assert (after.status_code, after.headers["location"]) == (303, "/page/sign-in?place=%2Foperations")


def test_who_signs_out_is_out_in_every_process_within_a_second(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKLINE_SESSION_KEY", "k" * 32)

    async def kept() -> list[float]:
        async with SqlStore(database_url) as store, store.reading() as connection:
            return list((await connection.execute(select(ended_sessions.c.until))).scalars())

    async def fill(store: SqlStore) -> None:
        async with store.writing() as connection:
            await connection.execute(insert(ended_sessions).values(id="long ago", until=1.0))

    with Site(database_url, page=True) as site, Site(database_url, page=True) as other, visitor(site) as person:
        done(site, fill(site.server.store))
        stolen = {"cookie": f"hookline_session={person.cookies['hookline_session']}"}
        thief = browsing(other, headers=stolen)
        with thief, thief.stream("GET", "/operations/live") as stream:
            lines = stream.iter_lines()
            while next(lines) != "event: changed":
                pass
            person.post("/sign-out", data={"token": token_in(thief.get("/operations").text)})
            since = time.monotonic()
            while thief.get("/operations").status_code == 200:
                assert time.monotonic() - since < 5
            took = time.monotonic() - since
            assert [line for line in lines if line.startswith("data: ")] == []
        ended = done(site, kept())

    assert took < 1.0
    assert [until > time.time() for until in ended] == [True]
