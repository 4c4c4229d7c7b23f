"""However a path is spelt, what the router serves is what hooks, the audit and figures were shown."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hookline import Deny, Hooks, RequestCall
from hookline.server._paths import normalize_path
from hookline.server._problems import ApiError
from hookline.server.routes import ROUTES
from hookline.store import SqlStore
from tests.server.site import Site, delivery, execution, key, operation
from tests.server.test_hooks import DENY, problem
from tests.server.test_page_guards import visitor

pytestmark = pytest.mark.anyio

DENIED = "X-Denied"
"""Names the path that the guard of the server denies, in a header that nobody else reads."""


class Guarded:
    """A server whose guard denies one exact path, and notes each path that it is shown."""

    def __init__(self) -> None:
        self.hooks, self.shown = Hooks("door"), list[str]()
        self.hooks.guard(RequestCall, id="door")(self.judge)

    def judge(self, call: RequestCall) -> Deny | None:
        self.shown.append(call.path)
        return Deny("not this one") if call.path == call.headers.get(DENIED.lower()) else None


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Guarded, list[str]]]:
    """The server, its guard, and a path that answers with 200 for each route that reads."""
    guard = Guarded()
    with Site(f"sqlite:///{tmp_path_factory.mktemp('paths') / 'store.db'}", hooks=[guard.hooks]) as site:
        ids = asyncio.run(fill(site))
        paths = []
        for handler in ROUTES:
            for path in handler.paths:
                if "GET" in handler.http_methods and "stream" not in path and handler.opt["scope"] is not None:
                    found = next((id for start, id in ids.items() if path.startswith(start)), "")  # noqa: A001
                    paths.append(path.replace("{id:str}", found))
        yield site, guard, paths


async def fill(site: Site) -> dict[str, str]:
    async with SqlStore(site.url) as store, site.client() as client:
        made = (await client.post("/v1/hooks", json=DENY)).json()["id"]
        await execution(site)
        [row, *_] = (await client.get("/v1/hooks/logs")).json()["items"]
        return {
            "/v1/hooks/logs/{": row["id"],
            "/v1/hooks/{": made,
            "/v1/operations/{": await operation(store),
            "/v1/deliveries/{": await delivery(store),
        }


def get(site: Site, target: str, **headers: str) -> http.client.HTTPResponse:
    """Send a path as it is spelt; clients of higher levels would change it."""
    to = urlsplit(site.address)
    connection = http.client.HTTPConnection(to.hostname or "", to.port, timeout=20)
    try:
        connection.request("GET", target, headers={"authorization": f"Bearer {site.admin}", **headers})
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


@st.composite
def spellings(draw: st.DrawFn, path: str) -> str:
    """Ways to write a path that a router, a proxy or a file system might take for the same."""
    spelt = "".join(
        draw(st.sampled_from([each, each, each, f"%{ord(each):02x}", f"%{ord(each):02X}", f"%25{ord(each):02x}"]))
        if each != "/"
        else draw(st.sampled_from(["/", "/", "//", "///", "/./", "/x/../", "/%2e/", "/%2E%2e/", "%2f", "/%2f", "\\"]))
        for each in path
    )
    return (
        "/" * draw(st.integers(0, 2)) + spelt + draw(st.sampled_from(["", "", "/", "//", "/.", "/..", ";", "%20", "?"]))
    )


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), nth=st.integers(0, 100))
def test_what_the_router_serves_is_what_the_guard_has_judged(
    guarded: tuple[Site, Guarded, list[str]], data: st.DataObject, nth: int
) -> None:
    site, guard, paths = guarded
    path = paths[nth % len(paths)]
    target = data.draw(spellings(path))
    guard.shown.clear()

    answer = get(site, target, **{DENIED: path})

    assert answer.status in (400, 403, 404), (target, answer.status)
    assert (answer.status == 403) == (guard.shown == [path])


@pytest.mark.parametrize("spelling", ["{}", "/{}", "{}/", "//{}//"])
def test_a_path_with_too_many_slashes_is_served_as_the_one_without(
    guarded: tuple[Site, Guarded, list[str]], spelling: str
) -> None:
    site, guard, paths = guarded
    guard.shown.clear()

    statuses = {path: get(site, spelling.format(path)).status for path in paths}

    assert set(statuses.values()) == {200}, statuses
    assert guard.shown == paths


@given(path=st.text(st.sampled_from("/.a%\\;é ")))
@example("*")
def test_the_normal_form_of_a_path_is_its_own(path: str) -> None:
    if {".", ".."} & set(path.split("/")):
        with pytest.raises(ApiError, match="malformed"):
            normalize_path(path)
        return

    normal = normalize_path(path)

    assert normalize_path(normal) == normal
    assert normal.startswith("/")
    assert [part for part in normal.split("/") if part] == [part for part in path.split("/") if part]


async def test_a_hook_cannot_lead_a_request_to_a_path_that_guards_were_shown_otherwise(
    new_database_url: Callable[[str], str],
) -> None:
    hooks, other = Hooks("lead"), ""
    hooks.before(RequestCall)(lambda call: msgspec.structs.replace(call, path=other))
    guard = Guarded()
    with Site(new_database_url("sqlite"), hooks=[hooks, guard.hooks]) as site:
        async with site.client(headers={DENIED: "/v1/keys"}) as client:
            for other in ("//v1/keys", "/v1/keys/", "/v1//keys", "/v1/x/../keys", "v1/keys"):
                answer = await client.get("/v1/hooks")

                assert answer.status_code in (404, 422), other
                assert b"hk_" not in answer.content, other


async def test_who_is_locked_out_by_a_hook_ends_it_by_any_spelling(sqlite_site: Site) -> None:
    lock = {"id": "lock", "name": "lock", "point": "RequestCall.guard", "handler": "deny", "tenantId": "acme"}
    async with SqlStore(sqlite_site.url) as store:
        theirs = await key(store)
    async with sqlite_site.client() as admin, sqlite_site.client(theirs) as acme:
        await admin.post("/v1/hooks", json=lock)
        locked = await acme.get("/v1/hooks")
        ended = await acme.put("/v1//hooks/lock/toggle/", json={"enabled": False})

    problem(locked, 403, "denied")
    assert ended.status_code == 200


def test_the_page_is_judged_by_the_path_that_it_serves(new_database_url: Callable[[str], str]) -> None:
    guard = Guarded()
    with Site(new_database_url("sqlite"), page=True, hooks=[guard.hooks]) as site, visitor(site) as person:
        cookie = "; ".join(f"{name}={value}" for name, value in person.cookies.items())
        for spelling in ("/page/hooks", "/page//hooks", "//page/hooks/", "/page/%68ooks", "/page/x/../hooks"):
            answer = get(site, spelling, cookie=cookie, **{DENIED: "/page/hooks"})

            assert answer.status in (400, 403, 404), spelling


async def test_one_request_by_two_spellings_is_done_once(sqlite_site: Site) -> None:
    async with sqlite_site.client(headers={"idempotency-key": "one"}) as client:
        answers = [await client.post(path, json=DENY) for path in ("/v1/hooks", "/v1//hooks", "/v1/hooks/")]

    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_figures_and_links_name_the_path_as_it_is_served(sqlite_site: Site) -> None:
    async with sqlite_site.client() as client:
        for name in ("a", "b"):
            await client.post("/v1//hooks/", json={**DENY, "name": name})
        listed = await client.get("/v1///hooks//?limit=1")
        figures = (await client.get("/metrics/")).text
    async with sqlite_site.client("") as client:
        nobody = await client.get("/health//")

    assert listed.headers["link"].startswith("</v1/hooks?")
    assert 'route="/v1/hooks",status="201"} 2' in figures
    assert nobody.status_code == 200


def test_a_path_is_quoted_where_an_application_looks_at_its_raw_form() -> None:
    assert quote(normalize_path("//a b//é")) == "/a%20b/%C3%A9"
