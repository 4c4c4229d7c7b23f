"""Keys, the audit log, endpoints with their secrets and settings, as people administer them on the page."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from hookline import Agent, Hooks, OnComplete, ScriptedModel, exec_agent
from hookline.bus import MemoryBus, remote
from hookline.relay import Relay, list_dead_letters
from hookline.server import SCOPES, KeyStore
from hookline.server._audit import AuditFilter, search_audit
from tests.server.browsing import complaints, look, page, paged, secret, tenant, text, window
from tests.server.site import MASTER, PLAIN, Site, endpoint, key, new_id, operation
from tests.server.test_page_guards import browsing, done, token_in, visitor

__all__ = ["complaints", "page", "paged", "secret", "tenant", "window"]

EVIL = "<img src=x onerror=alert(1)>\u202egnp.exe"
HOSTILE = (
    "",
    " ",
    "\0",
    "\n",
    "\u202egnp.exe",
    "\u200b",
    "\ud7ff",
    "\U000e0041",
    "x" * 10_000,
    "<script>alert(1)</script>",
    "'; DROP TABLE api_keys; --",
    '" onfocus=alert(1) autofocus="',
    "{{ 7 * 7 }}",
    "%00",
    "%",
    "_",
    "\\",
    "../../etc/passwd",
    "//evil.example",
    "javascript:alert(1)",
    "=1+1",
    "null",
    "-1",
    "1e400",
    "nan",
    "9" * 400,
    "a@b\r\nBcc: c",
    "🧨" * 50,
    "key:",
)


@pytest.fixture(scope="module")
def admin(paged: Site) -> Iterator[httpx.Client]:
    """An administrator with a session, without a browser."""
    with visitor(paged) as person:
        yield person


def form_id(shown: str) -> str:
    found = re.search(r'name="form" value="([\w-]+)"', shown)
    assert found is not None
    return found[1]


def audit_of(site: Site, **wanted: Any) -> list[tuple[str, str]]:
    found = done(site, search_audit(site.server.store, AuditFilter(**wanted), cursor=None, limit=50))
    return [(each.action, each.target) for each in found.items]


def test_a_key_is_created_shown_once_and_copied(browser: Browser, paged: Site, tenant: str) -> None:
    context = look(browser, paged, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto("keys")
    page.get_by_role("link", name="Create a key").click()
    page.get_by_label("Name").fill("Ann")
    page.get_by_label("Tenant", exact=True).fill(tenant)
    page.get_by_label("operations:read").check()
    page.get_by_role("button", name="Create the key").click()

    made = page.get_by_label("The new key").input_value()
    page.get_by_role("button", name="Copy").click()
    text(page, ".secret button").to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("link", name="Back to the keys").click()
    row = page.get_by_role("row").filter(has_text=made.split("_")[1])
    expect(row).to_contain_text(f"Ann {made.split('_')[1]}")
    assert made not in page.content()
    context.close()

    assert copied == made
    caller = done(paged, paged.server._parts.keys.authenticate(made))
    assert caller is not None
    assert (caller.tenant_id, caller.scopes) == (tenant, {"operations:read"})


def test_a_form_that_is_sent_twice_creates_one_key(admin: httpx.Client, paged: Site, tenant: str) -> None:
    shown = admin.get("/keys/new").text
    form = {"token": token_in(shown), "form": form_id(shown), "name": "twice", "tenant": tenant, "scope": "hooks:read"}

    first, again = admin.post("/keys", data=form), admin.post("/keys", data=form)

    assert (first.status_code, again.status_code) == (200, 409)
    assert "This form was sent before" in again.text
    assert "hk_" not in again.text.replace("hk_…", "")
    assert len(done(paged, KeyStore(paged.server.store).newest(tenant, limit=10))) == 1


def test_a_form_that_is_refused_keeps_what_was_typed(admin: httpx.Client) -> None:
    shown = admin.get("/keys/new").text
    form = {"token": token_in(shown), "form": form_id(shown), "name": "Bob", "amount": "soon", "unit": "hours"}

    without = admin.post("/keys", data=form)
    wrong = admin.post("/keys", data=form | {"scope": ["hooks:read"]})

    assert (without.status_code, wrong.status_code) == (422, 422)
    assert "Choose at least one scope" in without.text
    assert "must be a number of hours or days" in wrong.text
    assert 'value="Bob"' in wrong.text
    assert re.search(r'value="hooks:read" checked', wrong.text)
    assert "<option selected>hours" in wrong.text


def test_a_key_is_rotated_and_the_old_one_works_until_its_end(admin: httpx.Client, paged: Site, tenant: str) -> None:
    old = done(paged, key(paged.server.store, tenant, ["operations:read"]))
    its = old.split("_")[1]
    with visitor(paged, old) as owner:
        shown = admin.get(f"/keys/{its}/rotate").text
        form = {"token": token_in(shown), "form": form_id(shown), "overlap": "3600"}
        made = re.search(r'value="(hk_[^"]+)"', admin.post(f"/keys/{its}/rotate", data=form).text)

        assert made is not None
        assert owner.get("/operations").status_code == 200
    keys = KeyStore(paged.server.store)
    rotated, new = done(paged, keys.get(its, tenant)), done(paged, keys.authenticate(made[1]))
    assert rotated is not None
    assert rotated.expires_at is not None
    assert new is not None
    assert new.scopes == {"operations:read"}
    assert audit_of(paged, tenant_id=tenant, action="key.rotate") == [("key.rotate", its)]


def test_a_key_is_revoked_after_a_question(page: Any, paged: Site, tenant: str) -> None:
    victim = done(paged, key(paged.server.store, tenant, ["hooks:read"])).split("_")[1]
    page.goto("keys?text=" + victim)
    page.get_by_role("link", name="Revoke").click()
    text(page, "main").to_contain_text("This cannot be undone.")
    page.get_by_role("button", name="Revoke the key").click()

    text(page, ".notice").to_contain_text("no server accepts the key")
    expect(page.get_by_role("row").filter(has_text=victim)).to_contain_text("revoked")


def test_a_tenants_administrator_sees_and_touches_nothing_of_others(paged: Site, tenant: str) -> None:
    other = new_id("other")
    theirs = done(paged, key(paged.server.store, other)).split("_")[1]
    url = done(paged, endpoint(paged.server.store, other))
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        token = {"token": token_in(person.get("/keys").text)}
        for view in ("keys", "audit", "settings", "endpoints", "approvals/decisions"):
            assert not [word for word in (theirs, url, str(paged.url)) if word in person.get(f"/{view}").text], view
        once = {"form": form_id(person.get("/keys/new").text)}
        answers = [
            person.get("/keys", params={"tenant": other}),
            person.get("/audit", params={"tenant": other}),
            person.get("/audit/export", params={"tenant": other, "format": "csv"}),
            person.get("/approvals/decisions", params={"tenant": other}),
            person.get("/endpoints", params={"tenant": other}),
            person.get("/endpoints/one", params={"tenant": other, "url": url}),
            person.get("/endpoints/one", params={"tenant": tenant, "url": url}),
            person.get(f"/keys/{theirs}/revoke"),
            person.get(f"/keys/{theirs}/rotate"),
            person.post(f"/keys/{theirs}/revoke", data=token),
            person.post(f"/keys/{theirs}/rotate", data=token | once | {"overlap": "0"}),
            person.post("/endpoints/secrets", data=token | once | {"tenant": other, "url": url, "overlap": "0"}),
            person.get("/endpoints/secrets/sec_0/revoke"),
        ]
        made = person.post("/keys", data=token | once | {"name": "mine", "tenant": other, "scope": "hooks:read"})

    assert [each.status_code for each in answers] == [404] * len(answers)
    assert f"<dd>{tenant}</dd>" in made.text
    assert done(paged, KeyStore(paged.server.store).get(theirs, other)).revoked_at is None  # type: ignore[union-attr]


def test_a_key_grants_no_scope_that_it_does_not_have(paged: Site, tenant: str) -> None:
    few = done(paged, key(paged.server.store, tenant, ["hooks:admin", "hooks:read"]))
    many = done(paged, key(paged.server.store, tenant, SCOPES)).split("_")[1]
    with visitor(paged, few) as person:
        shown = person.get("/keys/new").text
        form = {"token": token_in(shown), "form": form_id(shown), "name": "more", "scope": "approvals:decide"}
        made = person.post("/keys", data=form)
        rotated = person.post(f"/keys/{many}/rotate", data=form | {"overlap": "0"})

    assert (made.status_code, rotated.status_code) == (403, 403)
    assert 'value="approvals:decide"' not in shown
    assert len(done(paged, KeyStore(paged.server.store).newest(tenant, limit=10))) == 2


def test_a_key_of_any_name_is_created_and_listed(admin: httpx.Client) -> None:
    """`test_page_hostile` sends these texts to all fields of the page, but the forms of a key work once each."""
    created: list[int] = []
    for each in HOSTILE:
        word = each.encode("utf-8", "replace").decode()
        shown = admin.get("/keys/new").text
        form = {"token": token_in(shown), "form": form_id(shown), "name": word, "tenant": word, "unit": word}
        answers = [
            admin.post("/keys", data=form | {"form": word, "amount": word, "scope": word}),
            admin.post("/keys", data=form | {"amount": "", "scope": "hooks:read"}),
            admin.get("/keys"),
        ]

        assert {answer.status_code for answer in answers} <= {200, 400, 404, 409, 422}, word
        created.append(answers[1].status_code)
        shown_texts = [re.sub(r'value="[^"]*"', "", answer.text) for answer in answers]
        assert not [text for text in shown_texts if "<script>alert" in text]
        assert not [line for text in shown_texts for line in text.splitlines() if "\u202e" in line]

    assert created.count(200) > len(HOSTILE) / 2


def test_the_audit_is_searched_by_words_and_tells_who_did_what(page: Any, paged: Site, tenant: str) -> None:
    its = done(paged, operation(paged.server.store, tenant))
    page.goto("approvals")
    page.get_by_label("Reason for a rejection").fill("Not this month.")
    page.get_by_role("button", name="Reject and stop").click()
    text(page, ".outcome").to_contain_text("Rejected and stopped:")

    page.goto("audit")
    page.get_by_label("Search").fill("bank/PAY month")

    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("a test")
    expect(row).to_contain_text("decided about a call")
    expect(row).to_contain_text("rejected and stopped bank/pay “Not this month.”")
    page.get_by_label("Search").fill("bank/pay nobody")
    text(page, ".empty").to_contain_text("No entry matches")
    page.goto("audit")
    page.get_by_role("link", name=its).click()
    page.wait_for_url(f"**/operations/{its}")


def test_the_audit_leads_to_the_history_of_a_hook_though_it_was_deleted(page: Any, paged: Site, tenant: str) -> None:
    registry = paged.server.registry
    given = {"name": "No refunds", "point": "ToolCall.guard", "handler": "deny", "tenantId": tenant}
    one, other = (done(paged, registry.create(given | {"name": name})) for name in ("No refunds", "No shell"))
    done(paged, registry.reorder("ToolCall.guard", [other.id, one.id], tenant_id=tenant))
    done(paged, registry.revert(other.id, other.revision, tenant_id=tenant))
    done(paged, registry.delete(one.id, tenant_id=tenant))
    page.goto("audit")
    page.get_by_label("Action").select_option(label="restored a hook")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Action").select_option(label="reordered a hook")
    expect(page.locator("tbody tr")).not_to_have_count(0)
    page.get_by_label("Action").select_option(label="deleted a hook")

    page.get_by_role("link", name=one.id).click()

    text(page, "h1").to_contain_text("History of No refunds")
    expect(page.get_by_text("deleted", exact=True).first).to_be_visible()


def test_the_audit_is_exported_with_the_filter_and_without_formulas(admin: httpx.Client, paged: Site) -> None:
    async def fill() -> None:
        for n in range(3):
            await KeyStore(paged.server.store).create(
                name=f"=cmd{n}", tenant_id="export", scopes=["hooks:read"], actor="=1+1"
            )

    done(paged, fill())
    asked = {"tenant": "export", "action": "key."}

    table = admin.get("/audit/export", params=asked | {"format": "csv"})
    lines = admin.get("/audit/export", params=asked | {"format": "jsonl"})

    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [row["actor"] for row in rows] == ["'=1+1"] * 3
    assert [json.loads(row["detail"])["name"] for row in rows] == ["=cmd2", "=cmd1", "=cmd0"]
    assert table.headers["content-disposition"] == 'attachment; filename="audit.csv"'
    assert [json.loads(line)["detail"]["name"] for line in lines.text.splitlines()] == ["=cmd2", "=cmd1", "=cmd0"]


def test_an_endpoint_that_never_failed_is_listed_and_gets_a_secret(page: Any, paged: Site, tenant: str) -> None:
    url = f"https://receiver.example/{tenant}"
    made = {"name": "Tell billing", "point": "onComplete", "webhook": {"url": url}, "tenantId": tenant}
    done(paged, paged.server.registry.create(made))
    page.goto("endpoints")
    row = page.get_by_role("row").filter(has_text=url)
    expect(row).to_contain_text("Tell billing")
    page.get_by_role("link", name=url).click()
    page.get_by_role("button", name="Create a secret").click()

    assert page.get_by_label("The new secret").input_value().startswith("whsec_")
    page.get_by_role("link", name="Back to the endpoint").click()
    page.get_by_label("Old secrets go on signing for").select_option(label="a week")
    page.get_by_role("button", name="Rotate the secret").click()
    page.get_by_role("link", name="Back to the endpoint").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="Revoke sec_").last.click()
    text(page, "main").to_contain_text("The endpoint has 1 other secret, which goes on signing.")
    page.get_by_role("button", name="Revoke the secret").click()
    text(page, ".notice").to_contain_text("nothing is signed with the secret")
    assert [action for action, _ in audit_of(paged, tenant_id=tenant, action="endpoint.")] == [
        "endpoint.secret.revoke",
        "endpoint.secret.rotate",
        "endpoint.secret.rotate",
    ]


def test_what_a_key_may_not_see_of_an_endpoint_is_not_said_to_be_missing(paged: Site, tenant: str) -> None:
    url = done(paged, endpoint(paged.server.store, tenant))
    for scopes, said in ((SCOPES, True), (["operations:read"], False)):
        with visitor(paged, done(paged, key(paged.server.store, tenant, scopes))) as person:
            listed, one = person.get("/endpoints").text, person.get("/endpoints/one", params={"url": url}).text

        assert url in listed
        for shown in (listed, one):
            assert ("in code, or deleted" in shown, ">Enable</button>" in shown) == (said, said)


def test_settings_say_how_far_the_relay_is_and_what_observers_could_not_handle(
    admin: httpx.Client, paged: Site, tenant: str
) -> None:
    before = admin.get("/settings").text

    async def relay() -> None:
        bus, hooks, store = MemoryBus(), Hooks("ledger"), paged.server.store

        @hooks.on(OnComplete)
        def book(event: OnComplete) -> None:
            raise ValueError(EVIL)

        async with Relay(store, bus, lease_seconds=1.0), bus.serve(hooks, tries=1):
            agent = Agent(id="payer", model=ScriptedModel(["Paid."]))
            await exec_agent(agent, "pay", store=store, tenant_id=tenant, hooks=[remote("ledger", observes=True)])
            async with asyncio.timeout(60):
                while not await list_dead_letters(store, tenant_id=tenant):
                    await asyncio.sleep(0.01)

    done(paged, relay())
    shown = admin.get("/settings").text

    assert "Remote observers" not in before
    assert "Dead letters of ledger" in shown
    assert "&lt;img src=x" in shown
    assert "<img src=x" not in shown
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        assert "Remote observers" not in person.get("/settings").text


def test_settings_tell_administrators_of_the_system_about_the_database(admin: httpx.Client, paged: Site) -> None:
    with visitor(paged, done(paged, key(paged.server.store))) as person:
        theirs = person.get("/settings").text
    shown = admin.get("/settings").text
    answer = httpx.get(
        f"{paged.address}/v1/settings", headers={"authorization": f"Bearer {paged.admin}"}, verify=PLAIN
    ).json()

    assert paged.server.store.name in shown
    assert answer["system"]["schemaRevision"] in shown
    assert [each["isAlive"] for each in answer["system"]["processes"]] == [True]
    assert answer["settings"]["agents"] == ["support"]
    assert "Database" not in theirs
    assert paged.server.store.name not in theirs


def test_a_session_that_ends_in_the_middle_of_a_form_loses_nothing(
    browser: Browser, paged: Site, tenant: str, complaints: list[str]
) -> None:
    context = look(browser, paged)
    page = context.new_page()
    page.goto("keys/new")
    page.get_by_label("Name").fill("Carol <b>")
    page.get_by_label("Tenant", exact=True).fill(tenant)
    page.get_by_label("hooks:read").check()
    page.get_by_label("operations:read").check()
    context.clear_cookies()
    page.get_by_role("button", name="Create the key").click()
    text(page, "[role=alert]").to_contain_text("what you have typed is kept")
    page.get_by_label("API key").fill(paged.admin)
    page.get_by_role("button", name="Sign in").click()

    text(page, "h1").to_have_text("Send it again?")
    text(page, ".args").to_contain_text("Carol <b>")
    page.get_by_role("button", name="Send it now").click()

    text(page, "h1").to_have_text("The key was created")
    context.close()
    [made] = done(paged, KeyStore(paged.server.store).newest(tenant, limit=10))
    assert (made.name, made.scopes) == ("Carol <b>", ["hooks:read", "operations:read"])


def test_a_decision_survives_the_end_of_the_session(browser: Browser, paged: Site, tenant: str, secret: str) -> None:
    its = done(paged, operation(paged.server.store, tenant))
    context = look(browser, paged, secret)
    page = context.new_page()
    page.goto("approvals")
    page.get_by_label("Reason for a rejection").fill("Too much.")
    context.clear_cookies()
    page.get_by_role("button", name="Reject and stop").click()
    page.get_by_label("API key").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    text(page, ".args").to_contain_text("Too much.")
    page.get_by_role("button", name="Send it now").click()

    text(page, ".outcome strong").to_have_text("Rejected and stopped:")
    context.close()
    [made] = done(paged, paged.server.store.decisions_of(its))
    assert (made.decision, made.reason) == ("reject", "Too much.")


def test_a_form_of_another_site_is_not_kept(paged: Site) -> None:
    with browsing(paged) as stranger:
        form = {"name": "evil", "scope": "hooks:admin"}
        foreign = stranger.post("/keys", data=form, headers={"sec-fetch-site": "cross-site"})
        unknown = stranger.post("/keys", data=form)
        shown = stranger.get("/sign-in").text
        crafted = {"token": token_in(shown), "key": paged.admin, "kept": '["https://evil.example/",[["a","b"]]]'}
        signed_in = stranger.post("/sign-in", data=crafted)

    assert (foreign.status_code, unknown.status_code) == (303, 303)
    assert "evil" not in foreign.text + unknown.text
    assert signed_in.headers["location"] == "/page/"


def test_a_lost_database_says_since_when(new_database_url: Callable[[str], str]) -> None:
    with Site(new_database_url("sqlite"), page=True, master_key=MASTER) as site, visitor(site) as person:
        done(site, site.server.store.aclose())

        first = person.get("/keys")
        second = person.get("/audit")

    assert (first.status_code, second.status_code) == (503, 503)
    since = [re.findall(r"<dt>Since</dt><dd>(.*?), as", answer.text)[0] for answer in (first, second)]
    assert since[0] == since[1]
    assert "What cannot be done" in first.text
