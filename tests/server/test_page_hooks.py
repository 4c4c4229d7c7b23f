"""Hooks are made, edited, ordered and switched off on the page: by keyboard, with and without scripts, by two at once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from hookline.events import AfterToolCall, BeforeToolCall, encode
from hookline.registry import HookDefinition, Registry
from hookline.runtime import JournalEntry, OperationState
from tests.server.browsing import complaints, look, page, paged, secret, sign_in, tenant, text, window
from tests.server.site import Site, key, new_id
from tests.server.test_page_guards import done, token_in, visitor
from tests.server.test_page_looks import OUTSIDE
from tests.tables import for_each

__all__ = ["complaints", "page", "paged", "secret", "tenant", "window"]


def made(site: Site, tenant: str, **fields: Any) -> HookDefinition:
    """A stored definition that denies calls of tools, unless said otherwise."""
    given = {"name": new_id("hook"), "point": "ToolCall.guard", "handler": "deny", "tenantId": tenant} | fields
    return done(site, site.server.registry.create(given, actor="cli:ann"))


def stored(site: Site, tenant: str) -> list[HookDefinition]:
    """The definitions of a tenant, as they are stored."""
    found = done(site, site.server.registry.list(tenant, limit=1000)).items
    return [each for each in found if each.tenant_id == tenant]


def called(site: Site, tenant: str, *tools: str) -> str:
    """An operation that has called tools a moment ago; gives its id."""
    its, rows, number = new_id("op"), [], 0
    for nth, tool in enumerate(tools):
        toolset, _, name = tool.partition("/")
        common = {"operation_id": its, "tenant_id": tenant, "time_unix_nano": time.time_ns(), "toolset": toolset}
        its_call = {
            "tool_name": name,
            "args": {"amount": 70},
            "call_index": 1,
            "step_index": 0,
            "tool_call_id": f"c{nth}",
        }
        for event in (
            BeforeToolCall(**common, **its_call),  # type: ignore[arg-type]
            AfterToolCall(**common, **its_call, content="paid", success=True),  # type: ignore[arg-type]
        ):
            number += 1
            rows.append(
                JournalEntry(
                    number=number, type=event.hook_type, time_unix_nano=event.time_unix_nano, wire=encode(event)
                )
            )
    state = OperationState(
        operation_id=its, agent_id="agent", tenant_id=tenant, status="done", version=1, events=number
    )
    done(site, site.server.store.commit(state, expected_version=None, entries=rows))
    return its


def ignore_refusals(complaints: list[str]) -> None:
    """Forget that the browser has told of answers with a status of a refusal, which a test has asked for."""
    complaints[:] = [each for each in complaints if not re.search("status of (409|422)", each)]


@pytest.fixture
def plain(browser: Browser, paged: Site, secret: str) -> Iterator[Page]:
    """Somebody of the tenant whose browser runs no scripts."""
    context = look(browser, paged, secret, java_script_enabled=False)
    yield context.new_page()
    context.close()


@pytest.fixture
def admin(window: BrowserContext, paged: Site) -> Iterator[Page]:
    """An administrator, who sees all tenants."""
    sign_in(window, paged, None)
    admin = window.new_page()
    yield admin
    admin.close()
    window.clear_cookies()


def test_a_hook_is_made_from_the_catalogue_after_it_was_tried_on_a_stored_call(
    page: Page, paged: Site, tenant: str
) -> None:
    called(paged, tenant, "bank/pay", "bank/pay", "mail/send")
    page.goto("hooks")

    page.get_by_role("link", name="Create the first hook").click()
    page.get_by_label("Name (required)").fill("Ask first")
    page.get_by_label("Handler (required)").select_option("require-approval")
    page.get_by_label("Tools (required)").fill("pay")
    page.get_by_label("Prompt").fill("Pay this?")
    text(page, "#matches").to_contain_text("2 of the 3 calls of the last day")
    page.get_by_role("button", name="Test on it bank/pay").first.click()

    text(page, "#tried").to_contain_text("asked in")
    text(page, "#tried").to_contain_text("Pay this?")
    expect(page.get_by_label("Sample, as JSON")).to_have_value(re.compile('"amount": 70'))
    assert stored(paged, tenant) == []

    page.get_by_role("button", name="Create hook").click()

    text(page, ".notice").to_contain_text("The hook is stored.")
    [hook] = stored(paged, tenant)
    assert (hook.name, hook.handler, hook.config) == (
        "Ask first",
        "require-approval",
        {"tools": ["pay"], "prompt": "Pay this?"},
    )
    [revision] = done(paged, paged.server.registry.revisions(hook.id, tenant)).items
    assert (revision.action, revision.actor[:4]) == ("create", "key:")


def test_a_wrong_form_says_at_each_field_what_to_change_and_keeps_what_was_typed(
    page: Page, paged: Site, tenant: str, complaints: list[str]
) -> None:
    page.goto("hooks/new")
    page.get_by_label("Name (required)").fill("Limit <b>\u202e")
    page.get_by_label("Handler (required)").select_option("limit-calls")
    page.get_by_label("N (required)").fill("many")
    page.get_by_label("Per", exact=True).fill("tool")
    page.get_by_label("Priority").fill("2000")

    page.get_by_role("button", name="Create hook").click()

    field = page.get_by_label("N (required)")
    expect(field).to_have_attribute("aria-invalid", "true")
    text(page, "#f-config-n-problem").to_have_text("It must be a whole number.")
    expect(page.get_by_label("Name (required)")).to_have_value("Limit <b>\u202e")
    field.fill("3")
    page.get_by_role("button", name="Create hook").click()
    text(page, "#f-priority-problem").to_contain_text("<= 1000")
    page.get_by_label("Priority").fill("20")
    page.get_by_label("Point (required)").select_option("ModelCall.guard")
    page.get_by_role("button", name="Create hook").click()
    text(page, "#f-point-problem").to_contain_text("it fits SubAgentCall.around")
    page.get_by_label("Point (required)").select_option("ToolCall.guard")
    expect(page.get_by_label("N (required)")).to_have_value("3")
    page.get_by_role("button", name="Create hook").click()

    text(page, ".notice").to_contain_text("stored")
    [hook] = stored(paged, tenant)
    assert (hook.priority, hook.config) == (20, {"n": 3, "per": "tool"})
    ignore_refusals(complaints)


def test_a_form_of_a_session_that_has_ended_keeps_what_was_typed(page: Page) -> None:
    page.goto("hooks/new")
    page.get_by_label("Name (required)").fill("Kept")
    page.locator("#hook-form input[name=token]").evaluate("(field) => { field.value = 'of a session that has ended'; }")

    page.get_by_role("button", name="Create hook").click()

    text(page, "h1").to_have_text("Send it again?")
    text(page, "main").to_contain_text("Kept")


def test_the_form_has_the_fields_of_parts_with_what_they_mean(page: Page, paged: Site, tenant: str) -> None:
    page.goto("hooks/new")
    page.get_by_label("Name (required)").fill("Hide addresses")
    page.get_by_label("Handler (required)").select_option("redact")
    page.get_by_label("Point (required)").select_option("ModelCall.after")
    page.get_by_label("Patterns (required)").fill("email")
    page.get_by_label("Parts: hold").fill("sentence")
    text(page, "main").to_contain_text("New characters with which the hook judges the text again.")
    page.get_by_label("Parts: max chars").fill("40")
    page.get_by_role("button", name="Create hook").click()

    text(page, ".notice").to_contain_text("stored")
    [hook] = stored(paged, tenant)
    assert hook.config == {"patterns": ["email"], "parts": {"hold": "sentence", "max_chars": 40}}


def test_without_scripts_a_webhook_is_made_step_by_step(plain: Page, paged: Site, tenant: str) -> None:
    plain.goto("hooks/new")
    plain.get_by_label("Name (required)").fill("Tell the desk")
    plain.get_by_label("Type").select_option("webhook")
    plain.get_by_label("Point (required)").select_option("afterToolCall")
    plain.get_by_role("button", name="Next").click()
    plain.get_by_label("URL (required)").fill("https://desk.example/in")
    plain.get_by_label("Headers").fill('{"X-Team": "desk"}')
    plain.get_by_label("Tools").fill("bank/*")
    plain.get_by_role("button", name="Create hook").click()

    text(plain, ".notice").to_contain_text("stored")
    [hook] = stored(paged, tenant)
    assert hook.webhook is not None
    assert (hook.webhook.url, hook.webhook.headers, hook.tool) == (
        "https://desk.example/in",
        {"X-Team": "desk"},
        "bank/*",
    )
    assert hook.config == {}


def test_a_webhook_that_speaks_like_a_coding_agent_is_made_step_by_step(plain: Page, paged: Site, tenant: str) -> None:
    plain.goto("hooks/new")
    plain.get_by_label("Name (required)").fill("Old policy")
    plain.get_by_label("Type").select_option("webhook")
    plain.get_by_label("Point (required)").select_option("beforeToolCall")
    plain.get_by_role("button", name="Next").click()
    expect(plain.get_by_label("Matcher")).to_have_count(0)
    plain.get_by_label("URL (required)").fill("https://policy.example/in")
    plain.get_by_label("Decides about the call").select_option("yes")
    plain.get_by_label("Dialect").select_option("claude")
    plain.get_by_role("button", name="Next").click()
    plain.get_by_label("Matcher").fill("[")
    plain.get_by_role("button", name="Create hook").click()
    text(plain, "#f-webhook-matcher-problem").to_contain_text("not a valid regular expression")
    plain.get_by_label("Matcher").fill("Bash|mcp__bank__.*")
    plain.get_by_role("button", name="Create hook").click()

    text(plain, ".notice").to_contain_text("stored")
    [hook] = stored(paged, tenant)
    assert hook.webhook is not None
    assert (hook.webhook.dialect, hook.webhook.matcher, hook.webhook.control) == ("claude", "Bash|mcp__bank__.*", True)
    text(plain, "dl.facts").to_contain_text("claude")
    text(plain, "dl.facts").to_contain_text("Bash|mcp__bank__.*")
    plain.get_by_role("link", name="Edit").first.click()
    expect(plain.get_by_label("Dialect")).to_have_value("claude")
    expect(plain.get_by_label("Matcher")).to_have_value("Bash|mcp__bank__.*")


def test_of_two_who_edit_at_once_the_second_sees_what_the_first_did(
    page: Page, paged: Site, tenant: str, complaints: list[str]
) -> None:
    hook = made(paged, tenant, name="Closed", config={"reason": "Closed."})
    page.goto(f"hooks/{hook.id}/edit?tenant={tenant}")
    page.get_by_label("Reason").fill("Closed on Mondays.")
    done(paged, paged.server.registry.update(hook.id, {"priority": 7}, tenant_id=tenant, actor="cli:bob"))

    page.get_by_role("button", name="Save").click()

    text(page, ".conflict").to_contain_text("bob on the command line")
    expect(page.get_by_role("row", name="priority 100 7")).to_be_visible()
    expect(page.get_by_label("Reason")).to_have_value("Closed on Mondays.")
    page.get_by_role("button", name="Save only what I changed").click()
    text(page, ".notice").to_contain_text("Saved.")
    [now] = stored(paged, tenant)
    assert (now.priority, now.config) == (7, {"reason": "Closed on Mondays."})
    ignore_refusals(complaints)


def test_a_change_is_taken_back_and_a_deleted_hook_is_brought_back(page: Page, paged: Site, tenant: str) -> None:
    hook = made(paged, tenant, name="Closed", config={"reason": "Closed."})
    done(paged, paged.server.registry.update(hook.id, {"config": {"reason": "Open?"}}, tenant_id=tenant))
    page.goto(f"hooks/{hook.id}?tenant={tenant}")
    text(page, ".history").to_contain_text("config.reason")

    page.get_by_role("button", name=f"Restore revision {hook.revision}").click()
    text(page, ".notice").to_contain_text("Restored, as a new revision")
    [now] = stored(paged, tenant)
    assert now.config == {"reason": "Closed."}
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Delete the hook").click()
    assert stored(paged, tenant) == []
    page.get_by_role("button", name="Restore Closed").click()

    text(page, ".notice").to_contain_text("Restored, as a new revision")
    [back] = stored(paged, tenant)
    assert (back.id, back.config) == (hook.id, {"reason": "Closed."})
    actions = [each.action for each in done(paged, paged.server.registry.revisions(hook.id, tenant)).items]
    assert actions == ["revert", "delete", "revert", "update", "create"]


def test_of_many_hooks_the_wanted_one_is_found_by_words_of_its_name_tags_or_tool(
    page: Page, paged: Site, tenant: str
) -> None:
    for number in range(45):
        made(paged, tenant, name=f"Limit {number}")
    made(paged, tenant, name="Refunds need a person", tags=["money"], tool="shop/refund")
    page.goto("hooks")

    page.get_by_label("Search").fill("MONEY shop/")
    expect(page.locator("#results [data-row]")).to_have_count(1)
    page.get_by_role("link", name="money").click()

    expect(page).to_have_url(re.compile(r"hooks\?text=money$"))
    expect(page.get_by_role("link", name="Refunds need a person")).to_be_visible()
    page.get_by_label("Search").fill("nothing like it")
    expect(page.get_by_text("No hook matches the filter.")).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("#results [data-row]")).to_have_count(46)


def test_hooks_are_ordered_by_dragging_by_keys_and_by_buttons(page: Page, paged: Site, tenant: str) -> None:
    for name in ("one", "two", "three"):
        made(paged, tenant, name=name)

    def order() -> list[str]:
        return [each.id for each in paged.server.registry.hooks(tenant)]  # type: ignore[union-attr]

    names = {each.id: each.name for each in stored(paged, tenant)}
    page.goto("hooks/order?point=ToolCall.guard")
    grip = page.locator("li", has_text="three").locator("[data-grip]").bounding_box()
    first = page.locator("li", has_text="one").bounding_box()
    assert grip is not None
    assert first is not None
    page.mouse.move(grip["x"] + 5, grip["y"] + 5)
    page.mouse.down()
    page.mouse.move(grip["x"] + 5, first["y"] + 3, steps=6)
    page.mouse.up()
    text(page, ".notice").to_contain_text("The order is stored.")
    assert [names[each] for each in order()] == ["three", "one", "two"]

    page.goto("hooks/order?point=ToolCall.guard")
    page.get_by_role("link", name="three").focus()
    page.keyboard.press("Alt+ArrowDown")
    text(page, ".notice").to_contain_text("The order is stored.")
    assert [names[each] for each in order()] == ["one", "three", "two"]

    page.goto("hooks/order?point=ToolCall.guard")
    page.get_by_role("button", name="Later one").click()
    text(page, ".notice").to_contain_text("The order is stored.")
    assert [names[each] for each in order()] == ["three", "one", "two"]


def test_an_order_that_is_out_of_date_is_refused_and_says_what_has_changed(paged: Site, tenant: str) -> None:
    one, two = made(paged, tenant, name="one"), made(paged, tenant, name="two")
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        token = token_in(person.get("/hooks/order").text)
        done(paged, paged.server.registry.update(one.id, {"priority": 300}, tenant_id=tenant))
        made(paged, tenant, name="three")
        order = f"{two.id}:{two.revision} {one.id}:{one.revision}"
        form = {"token": token, "point": "ToolCall.guard", "tenant": tenant, "order": order}
        answer = person.post("/hooks/order", data=form)

    assert answer.status_code == 409
    assert "three&#39; is new here" in answer.text
    assert "one&#39; was changed (priority 300)" in answer.text
    assert [each.priority for each in stored(paged, tenant)] == [300, 100, 100]


def test_a_system_hook_is_switched_off_for_one_tenant(admin: Page, paged: Site) -> None:
    ours, theirs = new_id("tenant"), new_id("tenant")
    hook = made(paged, "", name=new_id("everybody"))
    admin.goto("hooks")

    row = admin.locator("[data-row]").filter(has_text=hook.name)
    expect(row.get_by_role("button", name=f"Disable {hook.name} for all tenants")).to_have_text("Disable for all")
    row.get_by_role("link", name="all tenants").click()
    admin.get_by_label("Tenant", exact=True).fill(ours)
    admin.get_by_role("button", name="Disable for this tenant").click()
    text(admin, ".notice").to_contain_text("Disabled for this tenant")

    def ids(tenant: str) -> list[str]:
        return [each.id for each in paged.server.registry.hooks(tenant)]  # type: ignore[union-attr]

    assert hook.id not in ids(ours)
    assert hook.id in ids(theirs)
    admin.get_by_role("button", name=f"Enable again for {ours}").click()
    text(admin, ".notice").to_contain_text("Enabled again")
    assert hook.id in ids(ours)
    done(paged, paged.server.registry.delete(hook.id, tenant_id=""))


def test_a_tenant_sees_and_changes_no_hook_of_another(paged: Site, tenant: str) -> None:
    other = new_id("tenant")
    theirs, its, system = made(paged, other), called(paged, other, "bank/pay"), made(paged, "")
    own = made(paged, tenant)
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        token = {"token": token_in(person.get("/hooks/new").text)}
        refused = []
        for hook in (theirs, system):
            for query in ("", f"?tenant={hook.tenant_id}"):
                refused += [
                    person.get(f"/hooks/{hook.id}/{view}{query}") for view in ("edit", "matches", "delete", "history")
                ]
            owner = token | {"tenant": hook.tenant_id, "tenantId": hook.tenant_id, "revision": str(hook.revision)}
            refused += [
                person.post(f"/hooks/{hook.id}/edit", data=owner | {"name": "mine", "point": "ToolCall.guard"}),
                person.post(f"/hooks/{hook.id}/delete", data=owner),
                person.post(f"/hooks/{hook.id}/revert", data=owner | {"to": str(hook.revision)}),
                person.post(f"/hooks/{hook.id}/tenants", data=owner | {"off": tenant}),
            ]
        refused += [
            person.get("/hooks/order", params={"tenant": other}),
            person.get("/hooks/deleted", params={"tenant": other}),
        ]
        form = token | {"name": "x", "point": "ToolCall.guard", "runs": "handler", "handler": "deny", "tenantId": other}
        mine = person.post("/hooks/new", data=form | {"do": "save", "id": new_id("hook")})
        tried = person.post(f"/hooks/{own.id}/try", data=token | {"tenant": tenant, "call": f"{its}:1"})

    assert [answer.status_code for answer in refused] == [404] * len(refused)
    assert mine.headers["location"].endswith(f"tenant={tenant}")
    assert tried.status_code == 422
    assert "not stored" in tried.text
    assert len(stored(paged, other)) == 1
    done(paged, paged.server.registry.delete(system.id, tenant_id=""))


def test_a_key_that_may_only_read_sees_everything_of_its_hooks_and_changes_nothing(paged: Site, tenant: str) -> None:
    hook = made(paged, tenant)
    called(paged, tenant, "bank/pay")
    gone = made(paged, tenant)
    done(paged, paged.server.registry.delete(gone.id, tenant_id=tenant))
    with visitor(paged, done(paged, key(paged.server.store, tenant, ["hooks:read"]))) as person:
        seen = [
            person.get(place)
            for place in (
                *("/hooks", "/hooks/order", "/hooks/deleted", f"/hooks/{gone.id}/history"),
                *(f"/hooks/{hook.id}", f"/hooks/{hook.id}/history", f"/hooks/{hook.id}/matches"),
            )
        ]
        refused = [person.get(place) for place in ("/hooks/new", f"/hooks/{hook.id}/edit", f"/hooks/{hook.id}/delete")]

    assert [answer.status_code for answer in seen] == [200] * len(seen)
    assert not any(
        "<button" in answer.text.partition("<main")[2].replace("<button>", "").partition("</main")[0] for answer in seen
    )
    assert "op-" not in seen[-1].text
    assert "<strong>1</strong> of the 1 call" in seen[-1].text
    assert [answer.status_code for answer in refused] == [403] * 3


def test_a_form_that_is_sent_twice_makes_one_hook(paged: Site, tenant: str) -> None:
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        shown = person.get("/hooks/new").text
        fields = dict(re.findall(r'<input type="hidden" name="(token|id)" value="([^"]+)"', shown))
        form = fields | {"name": "Once", "point": "ToolCall.guard", "runs": "handler", "handler": "deny", "do": "save"}
        answers = [person.post("/hooks/new", data=form) for _ in range(2)]
        other = person.post("/hooks/new", data=form | {"config.reason": "Something else."})

    assert [answer.status_code for answer in answers] == [303, 303]
    assert answers[0].headers["location"] == answers[1].headers["location"]
    assert other.status_code == 422
    assert "Something else." in other.text
    assert len(stored(paged, tenant)) == 1


def test_no_long_word_pushes_anything_out_of_the_views_of_hooks(page: Page, paged: Site, tenant: str) -> None:
    word = "x" * 150
    made(paged, tenant)
    hook = made(paged, tenant, name=word, tool=f"{word}/*", config={"reason": word}, description=word)
    done(paged, paged.server.registry.update(hook.id, {"config": {"reason": word[:-1]}}, tenant_id=tenant, actor=word))
    called(paged, tenant, f"{word}/{word}")
    gone = made(paged, tenant, name=word[:-1])
    done(paged, paged.server.registry.delete(gone.id, tenant_id=tenant, actor=word))
    views = (f"hooks/{hook.id}", f"hooks/{hook.id}/edit", f"hooks/{hook.id}/history", f"hooks/{hook.id}/delete")

    for place in (*views, f"hooks/{hook.id}/matches", "hooks/new", "hooks/order", "hooks/deleted"):
        page.goto(place)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert [place, width, *page.evaluate(OUTSIDE)] == [place, width, 0]


BAD = (
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "' OR 1=1 --",
    "{{7*7}}",
    "\u0000x",
    "x" * 3000,
    "../../etc",
    "\U000e0041tag",
)


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_hostile_text_in_any_field_is_refused_or_shown_as_text(paged: Site, tenant: str, bad: str) -> None:
    names = ("name", "description", "tags", "point", "tool", "tenantId", "exceptTenants", "runs", "handler", "function")
    names += (
        "script",
        "dialect",
        "hostEvent",
        "matcher",
        "webhook.url",
        "webhook.headers",
        "webhook.dialect",
        "webhook.matcher",
        "config.reason",
        "config",
        "priority",
        "timeout",
        "sample",
        "do",
    )
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        token = {"token": token_in(person.get("/hooks/new").text)}
        good = {"name": new_id("hook"), "point": "ToolCall.guard", "runs": "handler", "handler": "deny", "do": "save"}
        answers = [person.post("/hooks/new", data=token | good | {"id": new_id("hook"), name: bad}) for name in names]

    for name, answer in zip(names, answers, strict=True):
        assert answer.status_code in (200, 303, 400, 409, 422), name
        assert "<script>alert" not in answer.text
        assert "\u202e" not in re.sub(r"<(input|textarea)[^>]*>[^<]*", "", answer.text), name


def test_after_an_action_the_address_the_title_and_the_focus_are_those_of_what_is_shown(
    page: Page, paged: Site, tenant: str
) -> None:
    page.goto("hooks/new?handler=deny")
    page.get_by_label("Name (required)").fill("Closed")
    page.get_by_role("button", name="Create hook").click()
    text(page, ".notice").to_contain_text("The hook is stored.")
    [hook] = stored(paged, tenant)

    expect(page).to_have_url(f"{paged.address}/page/hooks/{hook.id}?tenant={tenant}")
    expect(page).to_have_title("Closed · hookline")
    expect(page.locator(".notice")).to_be_focused()
    text(page, "#matches").to_contain_text("of the 0 calls")
    page.get_by_role("button", name="Disable", exact=True).click()
    text(page, ".notice").to_contain_text("Disabled from the next run on.")
    text(page, "#matches").to_contain_text("of the 0 calls")
    page.reload()
    expect(page.locator(".notice")).to_have_count(0)
    expect(page.get_by_role("heading", name="Closed")).to_be_visible()


def test_a_hook_is_switched_in_a_filtered_list_which_stays_filtered(page: Page, paged: Site, tenant: str) -> None:
    for name in ("Closed", "Open"):
        made(paged, tenant, name=name)
    page.goto("hooks?text=closed&point=ToolCall.guard")

    page.get_by_role("button", name="Disable Closed").click()
    text(page, ".notice").to_contain_text("Disabled from the next run on.")

    expect(page).to_have_url(re.compile(r"/page/hooks\?text=closed&point=ToolCall\.guard$"))
    expect(page.locator("#results [data-row]")).to_have_count(1)
    page.get_by_role("button", name="Enable Closed").click()
    text(page, ".notice").to_contain_text("Enabled from the next run on.")
    assert page.locator("#results [data-row]").count() == 1


def test_enter_pressed_again_restores_the_same_revision(page: Page, paged: Site, tenant: str) -> None:
    hook = made(paged, tenant, name="Closed", config={"reason": "one"})
    for reason in ("two", "three"):
        done(paged, paged.server.registry.update(hook.id, {"config": {"reason": reason}}, tenant_id=tenant))
    page.goto(f"hooks/{hook.id}?tenant={tenant}")

    page.get_by_role("button", name=f"Restore revision {hook.revision}").focus()
    page.keyboard.press("Enter")
    text(page, ".notice").to_contain_text("Restored")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")

    page.goto(f"hooks/{hook.id}?tenant={tenant}")
    assert [each.config for each in stored(paged, tenant)] == [{"reason": "one"}]


def test_a_tenant_that_was_named_is_named_no_longer_when_the_hook_is_disabled_for_it(admin: Page, paged: Site) -> None:
    hook = made(paged, "", name=new_id("everybody"))
    admin.goto(f"hooks/{hook.id}")
    admin.get_by_label("Tenant", exact=True).fill("tenant-that-is-new")
    admin.keyboard.press("Enter")

    text(admin, ".left-out").to_contain_text("tenant-that-is-new")
    expect(admin.get_by_label("Tenant", exact=True)).to_have_value("")
    expect(admin.locator(".notice")).to_be_focused()
    done(paged, paged.server.registry.delete(hook.id, tenant_id=""))


def test_a_tenant_that_is_being_named_stays_when_another_part_of_the_page_changes(admin: Page, paged: Site) -> None:
    hook = made(paged, "", name=new_id("everybody"))
    admin.goto(f"hooks/{hook.id}")
    admin.get_by_label("Tenant", exact=True).fill("tenant-that-is-new")

    admin.get_by_role("button", name="Run the test").click()

    expect(admin.get_by_text("denied", exact=True).first).to_be_visible()
    expect(admin.get_by_label("Tenant", exact=True)).to_have_value("tenant-that-is-new")
    done(paged, paged.server.registry.delete(hook.id, tenant_id=""))


def test_a_hook_in_shadow_is_enforced_from_now_for_whom_the_small_form_says(
    page: Page, paged: Site, tenant: str
) -> None:
    hook = made(paged, tenant, name="No refunds", mode="shadow", percent=25, agents=["refund*"])
    page.goto(f"hooks/{hook.id}")
    expect(page.get_by_text("In shadow, for 25 % of operations of agents refund*.")).to_be_visible()
    rollout = page.locator("#rollout")
    expect(rollout.get_by_label("Percent of operations")).to_have_value("25")

    rollout.get_by_label("Percent of operations").fill("2.5")
    rollout.get_by_label("Only for tags").fill("vip*\neu")
    rollout.get_by_role("button", name="Enforce from now").click()

    expect(page.get_by_text("Enforced, for 2.5 % of operations of agents refund* tagged vip*, eu.")).to_be_visible()
    expect(page.get_by_text("It is enforced from the next run on.")).to_be_visible()
    newest = page.locator("#main .history li").first
    expect(newest).to_contain_text("percent")
    expect(newest).to_contain_text("shadow")
    found = done(paged, paged.server.registry.revisions(hook.id, tenant)).items[0]
    assert [(each.field, each.old, each.new) for each in found.changes] == [
        ("operationTags", [], ["vip*", "eu"]),
        ("percent", 25.0, 2.5),
        ("mode", "shadow", "enforce"),
    ]
    assert found.actor.startswith("key:")

    page.get_by_role("button", name=f"Restore revision {hook.revision}").click()
    expect(page.get_by_text("In shadow, for 25 % of operations of agents refund*.")).to_be_visible()


@for_each("percent", ["101", "-1", "0.001", "NaN", "a lot"])
def test_a_percentage_that_is_none_is_named_at_its_field_and_nothing_is_stored(
    page: Page, paged: Site, tenant: str, percent: str, complaints: list[str]
) -> None:
    hook = made(paged, tenant, mode="shadow", percent=25)
    page.goto(f"hooks/{hook.id}")
    field = page.locator("#rollout").get_by_label("Percent of operations")

    field.fill(percent)
    page.locator("#rollout").get_by_role("button", name="Enforce from now").click()

    expect(page.locator("#rollout .wrong")).to_be_visible()
    expect(field).to_have_value(percent)
    assert done(paged, paged.server.registry.get(hook.id, tenant)) == hook
    ignore_refusals(complaints)


def test_who_enforces_a_hook_that_somebody_has_changed_meanwhile_is_told(
    page: Page, paged: Site, tenant: str, complaints: list[str]
) -> None:
    hook = made(paged, tenant, mode="shadow", percent=25)
    page.goto(f"hooks/{hook.id}")
    done(paged, paged.server.registry.update(hook.id, {"percent": 5}, tenant_id=tenant, actor="cli:ann"))

    page.locator("#rollout").get_by_role("button", name="Enforce from now").click()

    expect(page.get_by_text("Nothing of yours was stored.")).to_be_visible()
    now = done(paged, paged.server.registry.get(hook.id, tenant))
    assert (now.mode, now.percent) == ("shadow", 5)
    ignore_refusals(complaints)


def test_the_list_says_for_which_operations_a_hook_is(page: Page, paged: Site, tenant: str) -> None:
    made(paged, tenant, name="Wary", mode="shadow", percent=0.01, environments=["staging"])
    page.goto("hooks")

    row = page.locator("tr", has_text="Wary")
    expect(row).to_contain_text("shadow")
    expect(row).to_contain_text("0.01 % of operations in staging")


def test_the_page_of_a_hook_judges_the_past(page: Page, paged: Site, tenant: str) -> None:
    its = called(paged, tenant, "bank/pay", "bank/pay", "mail/send")
    hook = done(
        paged,
        paged.server.registry.create(
            HookDefinition(name="No payments", point="ToolCall.guard", handler="deny", tool="pay", tenant_id=tenant)
        ),
    )
    page.goto(f"hooks/{hook.id}")

    page.get_by_label("Operations of the last").select_option("day")
    page.get_by_role("button", name="Judge their calls").click()

    text(page, "#judged").to_contain_text("2 calls of 1 operation")
    text(page, "#judged").to_contain_text("denied 2")
    expect(page.locator("#judged tbody tr")).to_have_count(1)
    expect(page.locator("#judged .calls li")).to_have_count(2)
    expect(page.locator("#judged .calls a").first).to_have_attribute("href", re.compile(f"operations/{its}$"))
    expect(page.get_by_label("Operations of the last")).to_have_value("1")


def test_the_page_says_why_a_hook_cannot_judge_the_past(plain: Page, paged: Site, tenant: str) -> None:
    hook = done(
        paged,
        paged.server.registry.create(
            HookDefinition(name="No writing", point="MemoryCall.guard", handler="deny", tenant_id=tenant)
        ),
    )
    plain.goto(f"hooks/{hook.id}")

    plain.get_by_role("button", name="Judge their calls").click()

    text(plain, "#judged .problem").to_contain_text("writes to memory are not stored")


def test_a_hook_is_saved_with_a_fence_if_a_process_takes_part(paged: Site, tenant: str) -> None:
    hook = made(paged, tenant)
    member = Registry(paged.server.store, lease_seconds=60)
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        shown = person.get(f"/hooks/{hook.id}/edit?tenant={tenant}").text
        fields = dict(re.findall(r'<input type="hidden" name="(token|revision)" value="([^"]+)"', shown))
        given = {"name": hook.name, "point": hook.point, "runs": "handler", "handler": "deny", "enabled": "no"}
        form = fields | given | {"tenantId": tenant, "do": "save", "fence": "yes"}
        refused = person.post(f"/hooks/{hook.id}/edit", data=form)
        [before] = stored(paged, tenant)
        done(paged, member.__aenter__())
        try:
            saved = person.post(f"/hooks/{hook.id}/edit", data=form)
            kept = [each for each in member.hooks(tenant) if getattr(each, "id", "") == hook.id]
        finally:
            done(paged, member.__aexit__(None, None, None))

    assert 'name="fence"' in shown
    assert (refused.status_code, before.enabled) == (422, True)
    assert "takes part" in refused.text
    assert "checked" in refused.text.partition('name="fence"')[2][:40]
    assert saved.status_code == 303
    [after] = stored(paged, tenant)
    assert (after.enabled, kept) == (False, [])


@pytest.mark.parametrize("how", ["switch", "rollout", "order", "delete", "create"])
def test_each_form_of_the_page_makes_its_change_with_a_fence(paged: Site, tenant: str, how: str) -> None:
    hook, other = made(paged, tenant), made(paged, tenant, name="other")
    given = {
        "switch": {"enabled": "no"},
        "rollout": {"mode": "shadow", "percent": "100"},
        "order": {"move": f"later:{hook.id}"},
        "delete": {},
        "create": {"name": "third", "point": hook.point, "runs": "handler", "handler": "deny", "do": "save"},
    }[how]
    view = {
        "order": f"/hooks/order?point={hook.point}&tenant={tenant}",
        "delete": f"/hooks/{hook.id}/delete?tenant={tenant}",
        "create": f"/hooks/new?tenantId={tenant}",
    }.get(how, f"/hooks/{hook.id}?tenant={tenant}")
    place = {"order": "/hooks/order", "create": "/hooks/new"}.get(how, f"/hooks/{hook.id}/{how}")
    member = Registry(paged.server.store, lease_seconds=60)
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        shown = person.get(view).text
        forms = re.findall(r'<form[^>]*method="post".*?</form>', shown, re.DOTALL)
        [form] = [each for each in forms if f'action="/page{place}"' in each]
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
        before = stored(paged, tenant)
        refused = person.post(place, data=hidden | given | {"fence": "yes"})
        unchanged = stored(paged, tenant)
        done(paged, member.__aenter__())
        try:
            seen = member._fence.generation
            changed = person.post(place, data=hidden | given | {"fence": "yes"})
            generation = member._fence.generation
        finally:
            done(paged, member.__aexit__(None, None, None))

    assert 'name="fence"' in form
    assert refused.status_code in (409, 422)
    assert "takes part" in refused.text
    assert unchanged == before
    assert changed.status_code == 303
    assert generation == seen + 1
    assert stored(paged, tenant) != before
    assert other.id in {each.id for each in stored(paged, tenant)}
