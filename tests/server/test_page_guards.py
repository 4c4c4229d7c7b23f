"""Who may see and do what on the page, and what an answer says to a browser."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html import unescape
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.calls import ModelResponse
from hookline.errors import HookUsageError
from hookline.events import PendingTool
from hookline.runtime import Agent, Approve, ScriptedModel, exec_agent
from hookline.server import SCOPES, Caller, KeyStore, Scope
from hookline.server.page._context import validate_place
from hookline.server.page._sessions import SessionCookies
from hookline.store._decisions import make_seen_token
from tests.server.site import PLAIN, Site, delivery, endpoint, execution, key, operation

T = TypeVar("T")
VIEWS = (
    "overview",
    "operations",
    "approvals",
    "hooks",
    "logs",
    "statistics",
    "budgets",
    "deliveries",
    "endpoints",
    "keys",
    "audit",
    "settings",
)
NEEDED: dict[str, Scope] = dict.fromkeys(VIEWS, "operations:read") | {
    "hooks": "hooks:read",
    "logs": "hooks:read",
    "statistics": "hooks:read",
    "keys": "hooks:admin",
    "audit": "hooks:admin",
    "settings": "hooks:admin",
}


@pytest.fixture
def paged(new_database_url: Callable[[str], str]) -> Iterator[Site]:
    with Site(new_database_url("sqlite"), page=True) as site:
        yield site


@pytest.fixture(scope="module")
def paged_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that leave nothing but keys behind."""
    with Site(f"sqlite:///{tmp_path_factory.mktemp('page')}/page.db", page=True) as site:
        yield site


def done(site: Site, work: Coroutine[Any, Any, T]) -> T:
    """Have the server's own thread do something."""
    return asyncio.run_coroutine_threadsafe(work, site.loop).result(30)


def token_in(text: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', text)
    assert found is not None
    return found[1]


def seen_in(text: str) -> str:
    """What the form of the first call that waits says that it shows."""
    found = re.search(r'name="seen" value="([0-9.a-f]+)"', text)
    assert found is not None
    return found[1]


def browsing(site: Site, **more: Any) -> httpx.Client:
    """Somebody who looks at the page and has not signed in."""
    return httpx.Client(base_url=f"{site.address}/page", timeout=20, verify=PLAIN, **more)


@contextmanager
def visitor(site: Site, secret: str | None = None) -> Iterator[httpx.Client]:
    """Somebody who has signed in."""
    with browsing(site) as client:
        token = token_in(client.get("/sign-in").text)
        answer = client.post("/sign-in", data={"token": token, "key": secret or site.admin})
        assert answer.status_code == 303
        yield client


def test_nobody_sees_a_view_without_a_session(paged_once: Site) -> None:
    with browsing(paged_once) as stranger:
        for view in VIEWS:
            answer = stranger.get(f"/{view}")

            assert (answer.status_code, answer.headers["location"]) == (303, f"/page/sign-in?place=%2F{view}")
        assert (stranger.get("/").headers["location"], stranger.get("/").text) == ("/page/sign-in", "")
        assert stranger.get("/operations/live").status_code == 401
        assert stranger.post("/approvals", data={"decision": "approve"}).status_code == 303


def test_whoever_signs_in_comes_to_what_was_asked_for(paged_once: Site) -> None:
    with browsing(paged_once) as stranger:
        asked = stranger.get("/logs", params={"hook": "a b&c", "status": "ok"})
        form = stranger.get(asked.headers["location"].removeprefix("/page"))
        found = re.search(r'name="place" value="([^"]+)"', form.text)
        assert found is not None
        fields = {"token": token_in(form.text), "place": unescape(found[1])}

        wrong = stranger.post("/sign-in", data=fields | {"key": "hk_wrong"})
        right = stranger.post("/sign-in", data=fields | {"token": token_in(wrong.text), "key": paged_once.admin})
        again = stranger.get(asked.headers["location"].removeprefix("/page"))

    assert found[0] in wrong.text
    assert right.headers["location"] == "/page/logs?hook=a+b%26c&status=ok"
    assert again.headers["location"] == "/page/logs?hook=a+b%26c&status=ok"


ELSEWHERE = (
    "//evil.example",
    "https://evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/logs\\@evil",
    "/../v1",
    "logs",
    "/x",
)


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_link_to_the_sign_in_leads_nowhere_else(paged_once: Site, place: str) -> None:
    with browsing(paged_once) as stranger:
        form = stranger.get("/sign-in", params={"place": place})
        answer = stranger.post("/sign-in", data={"token": token_in(form.text), "key": paged_once.admin, "place": place})

    assert 'name="place"' not in form.text
    assert answer.headers["location"] == "/page/"


@given(st.text("/\\.:@?#%eolgs \n", max_size=20).map("/logs".__add__) | st.text())
def test_whatever_place_is_asked_for_it_is_on_the_page(place: str) -> None:
    kept = validate_place(place)

    assert kept in ("", place)
    if kept:
        there = urlsplit(urljoin("https://here.example/", f"/page{kept}"))
        assert there.netloc == "here.example"
        assert there.path.startswith("/page/")


def test_an_answer_names_its_encoding_once(paged_once: Site) -> None:
    with browsing(paged_once) as stranger:
        form = stranger.get("/sign-in")
        style = re.search(r'rel="stylesheet" href="/page([^"]+)"', form.text)
        assert style is not None
        answers = [form, stranger.get(style[1])]

    assert [each.headers["content-type"] for each in answers] == ["text/html; charset=utf-8", "text/css; charset=utf-8"]


def test_a_failed_operation_says_why(paged: Site) -> None:
    def fail(_: object) -> ModelResponse:
        raise ConnectionError("no <route>")

    agent = Agent(id="agent", model=ScriptedModel(fail))
    ran = done(paged, exec_agent(agent, "Do", store=paged.server.store, tenant_id="acme"))
    assert ran.reason == "error"

    with visitor(paged, done(paged, key(paged.server.store))) as person:
        facts = person.get(f"/operations/{ran.operation_id}").text.partition("<h2>Waterfall")[0]

    assert "<code>ConnectionError</code>: no &lt;route&gt;" in facts


def test_a_key_in_a_header_opens_the_api_and_not_the_page(paged_once: Site) -> None:
    with browsing(paged_once, headers={"authorization": f"Bearer {paged_once.admin}"}) as program:
        answer = program.get("/operations")

    assert answer.status_code == 303


def test_a_wrong_key_is_refused_and_not_repeated(paged_once: Site) -> None:
    with browsing(paged_once) as stranger:
        token = token_in(stranger.get("/sign-in").text)

        answer = stranger.post("/sign-in", data={"token": token, "key": "hk_0123456789abcdef_" + "x" * 43})

    assert answer.status_code == 401
    assert "invalid or expired" in answer.text
    assert "xxxx" not in answer.text


def test_the_session_is_kept_where_no_script_and_no_other_site_gets_at_it(paged_once: Site) -> None:
    with visitor(paged_once) as person:
        (cookie,) = [line for line in person.cookies.jar if line.value]
        header = person.get("/sign-in")

    assert cookie.path == "/page"
    assert header.status_code == 303
    with browsing(paged_once) as stranger:
        said = stranger.get("/sign-in").headers["set-cookie"].lower()
    assert "httponly" in said
    assert "samesite=strict" in said


@pytest.mark.parametrize(
    "place", ["/approvals", "/hooks/h/switch", "/hooks/h/try", "/deliveries/d/retry", "/endpoints"]
)
def test_a_form_without_its_token_does_nothing(paged_once: Site, place: str) -> None:
    with visitor(paged_once) as person, visitor(paged_once) as another:
        bare = person.post(place, data={"decision": "approve"})
        foreign = person.post(place, data={"token": token_in(another.get("/operations").text)})
        elsewhere = person.post(
            place,
            data={"token": token_in(person.get("/operations").text)},
            headers={"sec-fetch-site": "cross-site"},
        )

    assert [bare.status_code, foreign.status_code, elsewhere.status_code] == [403, 403, 403]


def test_a_revoked_key_ends_its_sessions(paged: Site) -> None:
    secret = done(paged, key(paged.server.store))
    with visitor(paged, secret) as person:
        assert person.get("/operations").status_code == 200
        done(paged, KeyStore(paged.server.store).revoke(secret.split("_")[1], None))
        time.sleep(0.7)  # what is known of a key counts for half a second

        assert person.get("/operations").status_code == 303


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_needs_the_scope_that_its_route_of_the_api_needs(paged_once: Site, view: str) -> None:
    without = done(paged_once, key(paged_once.server.store, scopes=[each for each in SCOPES if each != NEEDED[view]]))
    alone = done(paged_once, key(paged_once.server.store, scopes=[NEEDED[view]]))

    with visitor(paged_once, without) as person:
        assert person.get(f"/{view}").status_code == 403
    with visitor(paged_once, alone) as person:
        assert person.get(f"/{view}").status_code == 200


@pytest.mark.parametrize("owner", ["globex", ""], ids=["another", "system"])
def test_a_tenant_sees_and_touches_nothing_of_others(paged: Site, owner: str) -> None:
    store = paged.server.store
    pending = [PendingTool(toolset="bank", tool_name="pay", tool_call_id=each, args={}) for each in ("call", "decided")]
    its = done(paged, operation(store, owner, pending=pending))
    known = done(paged, store.decide(its, Approve("decided"), by="cli:ann"))
    seen = make_seen_token(known, known.pending[0])
    sent = done(paged, delivery(store, owner))
    url = done(paged, endpoint(store, owner))
    ran = done(paged, execution(paged, owner))
    made = {"name": "theirs", "point": "ToolCall.guard", "handler": "deny", "tenantId": owner}
    hook = done(paged, paged.server.registry.create(made))
    secret = done(paged, key(store, "acme"))

    with visitor(paged, secret) as person:
        for view in VIEWS:
            text = person.get(f"/{view}").text
            assert not [word for word in (its, sent, url, ran, hook.id) if word in text]
        token = {"token": token_in(person.get("/operations").text)}
        refused = [
            person.get(f"/operations/{its}"),
            person.get(f"/operations/{its}/waterfall.json"),
            person.get(f"/operations/{its}/live"),
            person.get("/operations", params={"tenant": "globex"}),
            person.get("/operations/live", params={"tenant": "globex"}),
            person.get("/overview", params={"tenant": "globex"}),
            person.get("/logs", params={"tenant": "globex"}),
            person.get("/approvals/live", params={"tenant": "globex"}),
            person.get(f"/deliveries/{sent}"),
            person.get(f"/hooks/{hook.id}"),
            person.post(f"/deliveries/{sent}/retry", data=token),
            person.post(f"/deliveries/{sent}/replay", data=token),
            person.post(f"/hooks/{hook.id}/switch", data=token | {"enabled": "no", "revision": str(hook.revision)}),
            person.post(f"/hooks/{hook.id}/try", data=token | {"sample": "{}"}),
            person.post("/endpoints", data=token | {"url": url, "tenant": "globex"}),
            person.post(
                "/approvals", data=token | {"operation": its, "call": "call", "decision": "approve", "seen": seen}
            ),
            person.get("/approvals/decided", params={"operation": its, "call": "decided", "seen": f"{10**18}.x"}),
        ]

    assert [answer.status_code for answer in refused] == [404] * len(refused)
    assert done(paged, paged.server.registry.get(hook.id)).enabled
    assert [made.tool_call_id for made in done(paged, store.decisions_of(its))] == ["decided"]


def test_a_tenant_learns_no_name_of_a_key_of_the_system(paged: Site) -> None:
    store = paged.server.store
    its = done(paged, operation(store, "acme"))
    with visitor(paged) as administrator:
        shown = administrator.get(f"/operations/{its}").text
        form = {
            "token": token_in(shown),
            "operation": its,
            "call": "call",
            "seen": seen_in(shown),
            "decision": "approve",
        }
        told = administrator.post("/approvals", data=form, follow_redirects=True).text

    with visitor(paged, done(paged, key(store, "acme"))) as person:
        seen = person.get(f"/operations/{its}").text

    assert "By you, first administrator (API key" in told
    assert "first administrator" not in seen
    assert re.search(r"API key \w{16}", seen)


def test_of_many_who_decide_at_once_one_has_decided_and_all_are_told_what(paged: Site) -> None:
    store = paged.server.store
    its = done(paged, operation(store, "acme"))
    people = [done(paged, key(store, "acme")) for _ in range(6)]

    def decide(number: int) -> tuple[int, str]:
        with visitor(paged, people[number]) as person:
            shown = person.get("/approvals").text
            form = {"token": token_in(shown), "operation": its, "call": "call", "seen": seen_in(shown)}
            ready.wait(30)
            chosen = ("approve", "reject", "rejectAndContinue")[number % 3]
            answer = person.post("/approvals", data=form | {"decision": chosen}, follow_redirects=True)
            return answer.status_code, answer.text

    ready = threading.Barrier(len(people))
    with ThreadPoolExecutor(len(people)) as pool:
        answers = list(pool.map(decide, range(len(people))))

    [made] = done(paged, store.decisions_of(its))
    assert sorted(status for status, _ in answers) == [200, *[409] * 5]
    assert all(f"API key {made.decided_by[4:]}" in re.sub(r"\s+", " ", text).replace("(", "") for _, text in answers)


@pytest.mark.parametrize("seen", ["", "x", "1.2", f"{10**18}.0", "9" * 30 + ".1", "\u0663.1"])
def test_a_form_that_shows_something_else_decides_nothing(paged_once: Site, seen: str) -> None:
    its = done(paged_once, operation(paged_once.server.store))
    with visitor(paged_once) as person:
        token = token_in(person.get("/operations").text)
        form = {"token": token, "operation": its, "call": "call", "seen": seen, "decision": "approve"}
        answers = [person.post("/approvals", data=form), person.post("/approvals", data=form | {"call": "other"})]

    assert [answer.status_code for answer in answers] == [409, 409]
    assert "Refused" in answers[0].text
    assert done(paged_once, paged_once.server.store.decisions_of(its)) == []


@pytest.mark.parametrize("asked", [{"age": "a day"}, {"age": "-1"}, {"age": "9" * 11}, {"tool": "x" * 401}])
def test_a_filter_of_approvals_that_makes_no_sense_is_refused(paged_once: Site, asked: dict[str, str]) -> None:
    with visitor(paged_once) as person:
        answers = [person.get("/approvals", params=asked), person.get("/approvals/live", params=asked)]

    assert [answer.status_code for answer in answers] == [422, 422]


def test_what_agents_say_is_shown_as_text_and_never_run(paged: Site) -> None:
    bad = "<img src=x onerror=alert(1)>"
    its = done(paged, operation(paged.server.store, bad, user_id=bad))

    with visitor(paged) as person:
        for place in ("/operations", f"/operations/{its}", "/approvals"):
            text = person.get(place).text
            assert bad not in text
            assert "&lt;img src=x" in text


def test_every_answer_forbids_scripts_of_others(paged_once: Site) -> None:
    with visitor(paged_once) as person:
        for view in (*VIEWS, "sign-in", "nowhere"):
            answer = person.get(f"/{view}")
            policy = answer.headers["content-security-policy"]
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=", answer.text)


def test_a_lost_database_is_told_of_and_comes_back_by_itself(paged: Site) -> None:
    with visitor(paged) as person:
        done(paged, paged.server.store.aclose())

        answer = person.get("/operations")

    assert answer.status_code == 503
    assert "database cannot be reached" in answer.text
    assert "Try again" in answer.text


def test_a_cursor_that_nobody_gave_is_refused_politely(paged_once: Site) -> None:
    with visitor(paged_once) as person:
        views = ("operations", "logs", "deliveries", "operations/live")
        answers = [person.get(f"/{view}", params={"cursor": "zzz"}) for view in views]

    assert [answer.status_code for answer in answers] == [422] * 4
    assert all("cursor" in answer.text for answer in answers)


def test_of_ten_thousand_operations_a_page_shows_a_part_and_leads_to_the_rest(paged: Site) -> None:
    async def fill(count: int) -> None:
        for _ in range(count // 500):
            await asyncio.gather(*(operation(paged.server.store, status="done", pending=[]) for _ in range(500)))

    done(paged, fill(10_000))
    with visitor(paged) as person:
        first = person.get("/operations").text
        older = re.search(r'rel="next" href="([^"]+)"', first)
        assert older is not None
        second = person.get(older[1].replace("&amp;", "&").removeprefix("/page")).text

    rows = [set(re.findall(r"op[_-][0-9a-z]+", shown)) for shown in (first, second)]
    assert len(first) < 150_000
    assert len(second) < 150_000
    assert rows[0]
    assert rows[1]
    assert not rows[0] & rows[1]


@given(st.text(max_size=300), st.binary(min_size=32, max_size=40))
def test_nothing_but_a_cookie_of_ours_is_a_session(text: str, secret: bytes) -> None:
    sessions = SessionCookies(secret)
    session = sessions.create(Caller(key_id="k", tenant_id="t", scopes=frozenset({"hooks:read"})))
    cookie = sessions.cookie(session)

    assert sessions.read(cookie) == session
    assert sessions.read(text) is None
    assert sessions.read(cookie[:-1]) is None
    assert sessions.read(text + cookie) is None or not text
    assert SessionCookies(secret + b"x").read(cookie) is None
    assert not sessions.has_token(session, text)
    assert sessions.has_token(session, sessions.token(session))


def test_a_short_key_for_sessions_is_refused() -> None:
    with pytest.raises(HookUsageError, match="32 random bytes"):
        SessionCookies(b"short")
