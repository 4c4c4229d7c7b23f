"""A person decides about the call that they see, and about no other: by keyboard, by mouse, with others, without scripts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from hookline.calls import Message
from hookline.events import PendingTool
from hookline.runtime import Agent, Approve, Reject, exec_agent, resume_agent, tool
from hookline.store import StoredDecision
from tests.server.browsing import (
    complaints,
    look,
    page,
    paged,
    paused,
    secret,
    status_of,
    support,
    tenant,
    text,
    until,
    window,
)
from tests.server.site import Site, key, new_id, operation
from tests.server.test_page_guards import done
from tests.tables import for_each

__all__ = ["complaints", "page", "paged", "secret", "tenant", "window"]

MOST_TABS = 60


@tool(name="refund")
async def free_refund(order: str) -> str:
    """Give money back."""
    return f"refunded {order}"


@pytest.fixture
def admin(browser: Browser, paged: Site) -> Iterator[Page]:
    """An administrator, who sees all tenants."""
    context = look(browser, paged)
    yield context.new_page()
    context.close()


def decisions(site: Site, *operations: str) -> list[tuple[str, str, str]]:
    """What was decided about operations."""
    found: list[StoredDecision] = []
    for each in operations:
        found += done(site, site.server.store.decisions_of(each))
    return [(each.operation_id, each.tool_call_id, each.decision) for each in found]


def tab_to(page: Page, name: str) -> str:
    """Press Tab until a button is reached whose name begins so; its whole name."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        found = page.evaluate("document.activeElement.matches('button') ? document.activeElement.textContent : ''")
        if found.startswith(name):
            return str(found)
    raise AssertionError(f"Tab does not lead to {name!r}")


def focused(page: Page) -> str:
    """The classes of what has the focus."""
    return str(page.evaluate("document.activeElement.className"))


def call(amount: int, **fields: Any) -> PendingTool:
    known = {"toolset": "bank", "tool_name": "pay", "tool_call_id": "call", "args": {"amount": amount}}
    return PendingTool(**(known | fields))


def test_on_the_page_of_an_operation_one_decides_about_it_though_many_others_wait(
    admin: Page, paged: Site, tenant: str
) -> None:
    store = paged.server.store
    wanted = done(paged, operation(store, tenant, pending=[call(70)]))
    others = [done(paged, operation(store, new_id("other"), pending=[call(n)])) for n in range(60)]
    admin.goto(f"operations/{wanted}")

    name = tab_to(admin, "Approve")
    admin.keyboard.press("Enter")

    assert name == f'Approve bank/pay: bank/pay {{"amount":70}} of operation {wanted}, tenant {tenant}'
    text(admin, ".outcome").to_contain_text(
        f'Approved: bank/pay {{"amount":70}} of operation {wanted}, tenant {tenant}'
    )
    assert decisions(paged, wanted, *others) == [(wanted, "call", "approve")]
    assert admin.url.endswith(f"/operations/{wanted}")


@for_each(
    "button, decision, status, told",
    [
        ("Approve", "approve", "done", "Approved:"),
        ("Reject and continue", "rejectAndContinue", "done", "Rejected and continued:"),
        ("Reject and stop", "reject", "interrupted", "Rejected and stopped:"),
    ],
)
def test_each_decision_does_what_it_says(
    page: Page, paged: Site, tenant: str, button: str, decision: str, status: str, told: str
) -> None:
    its = paused(paged, tenant)
    page.goto("operations")
    page.keyboard.type("ga")
    page.wait_for_url("**/approvals")
    page.get_by_label("Reason for a rejection").fill("Not this month.")

    page.get_by_role("button", name=re.compile(f"^{button}")).focus()
    page.keyboard.press("Enter")

    text(page, ".outcome strong").to_have_text(told)
    until(lambda: status_of(paged, its) == status)
    [made] = done(paged, paged.server.store.decisions_of(its))
    assert (made.decision, made.args, made.event_number) == (decision, {"order": "8812"}, 6)
    state = done(paged, paged.server.store.load(its))
    assert state is not None
    assert any("Not this month." in each.content for each in state.messages) == (decision != "approve")


def test_enter_pressed_again_and_again_decides_about_one_call(page: Page, paged: Site, tenant: str) -> None:
    waiting = [done(paged, operation(paged.server.store, tenant, pending=[call(n)])) for n in range(3)]
    page.goto("approvals")
    tab_to(page, "Approve")

    for _ in range(4):
        page.keyboard.press("Enter")
    text(page, ".outcome").to_contain_text("Approved:")
    assert focused(page) == "outcome notice"
    for pressed in ("Enter", "Enter", "Space"):
        page.keyboard.press(pressed)

    assert decisions(paged, *waiting) == [(waiting[2], "call", "approve")]
    expect(page.locator(".outcome")).to_have_count(1)
    assert page.evaluate("document.activeElement.closest('article').querySelector('h2').textContent") == "bank/pay"


def test_clicks_on_the_same_place_decide_about_one_call_and_nothing_moves(page: Page, paged: Site, tenant: str) -> None:
    waiting = [done(paged, operation(paged.server.store, tenant, pending=[call(n)])) for n in range(3)]
    page.goto("approvals")
    cards = page.locator("article")
    before = [cards.nth(n).bounding_box() for n in range(3)]
    button = page.get_by_role("button", name="Approve").first.bounding_box()
    assert button is not None
    place = button["x"] + 5, button["y"] + 5

    page.mouse.dblclick(*place)
    text(page, ".outcome").to_contain_text("Approved:")
    page.mouse.click(*place)
    page.mouse.dblclick(*place)

    assert decisions(paged, *waiting) == [(waiting[2], "call", "approve")]
    assert [cards.nth(n).bounding_box() for n in range(3)] == before


def test_a_call_that_comes_is_told_of_and_moves_nothing(page: Page, paged: Site, tenant: str) -> None:
    store = paged.server.store
    done(paged, operation(store, tenant))
    page.goto("approvals")
    text(page, "[data-live]").to_have_text("live")
    before = page.get_by_role("button", name="Approve").bounding_box()

    done(paged, operation(store, tenant))

    text(page, ".news").to_contain_text("1 more call waits.")
    assert page.get_by_role("button", name="Approve").bounding_box() == before
    page.get_by_role("link", name="Show it").click()
    expect(page.locator("article")).to_have_count(2)
    page.get_by_role("button", name="Approve").first.click()
    text(page, ".outcome").to_contain_text("Approved:")
    done(paged, operation(store, tenant))
    done(paged, operation(store, tenant))
    # What one has decided oneself is no news.
    text(page, ".news").to_contain_text("2 more calls wait.")


def test_a_call_that_comes_while_its_operation_is_looked_at_can_be_shown(page: Page, paged: Site, tenant: str) -> None:
    its = done(paged, operation(paged.server.store, tenant, status="running", pending=[], waiting_since_unix_nano=None))
    page.goto(f"operations/{its}")
    text(page, "[data-live]").to_have_text("live")

    ask_again(paged, its, call(5))

    text(page, "#facts .notice").to_contain_text("A call waits for a person.")
    page.get_by_role("link", name="Show and decide").click()
    text(page, "article pre").to_contain_text('"amount": 5')
    expect(page.locator("#facts .notice")).to_have_count(0)


def ask_again(site: Site, operation_id: str, *pending: PendingTool) -> None:
    """Have an operation wait for a person, in a new pause."""

    async def write() -> None:
        store = site.server.store
        state = await store.load(operation_id)
        assert state is not None
        changes = {"status": "waiting_for_human", "pending": list(pending), "waiting_since_unix_nano": time.time_ns()}
        state = msgspec.structs.replace(state, version=state.version + 1, **changes)
        await store.commit(state, expected_version=state.version - 1, entries=[])

    done(site, write())


def test_the_second_of_two_people_sees_what_the_first_has_decided(
    browser: Browser, page: Page, paged: Site, tenant: str
) -> None:
    its = done(paged, operation(paged.server.store, tenant))
    second = look(browser, paged, done(paged, key(paged.server.store, tenant)))
    another = second.new_page()
    page.goto(f"operations/{its}")
    another.goto("approvals")

    page.get_by_label("Reason for a rejection").fill("Too much.")
    page.get_by_role("button", name="Reject and stop").click()
    text(page, ".outcome strong").to_have_text("Rejected and stopped:")
    another.get_by_role("button", name="Approve").click()

    told = text(another, ".outcome.problem")
    told.to_contain_text("Refused: your decision, approve, was not stored. The call was already decided.")
    told.to_contain_text(re.compile(r"was rejected and stopped by a test \(API key \w{16}\)"))
    told.to_contain_text("Reason: “Too much.”")
    assert decisions(paged, its) == [(its, "call", "reject")]
    second.close()


def test_what_is_not_as_it_was_shown_is_not_decided_about(
    page: Page, paged: Site, tenant: str, complaints: list[str]
) -> None:
    its = done(paged, operation(paged.server.store, tenant, pending=[call(5)]))
    page.goto(f"operations/{its}")
    ask_again(paged, its, call(5000))

    page.get_by_role("button", name="Approve").click()

    text(page, ".outcome").to_contain_text("The call has changed since the page showed it.")
    assert decisions(paged, its) == []
    page.locator(".outcome").get_by_role("link", name=its).click()
    text(page, "article pre").to_contain_text('"amount": 5000')
    assert [each for each in complaints if "409" not in each] == []
    complaints.clear()


@pytest.mark.parametrize("again", [True, False], ids=["the-same-again", "over"])
def test_a_decision_about_a_call_that_was_gone_on_with_is_not_kept(
    page: Page, paged: Site, tenant: str, again: bool, complaints: list[str]
) -> None:
    its = paused(paged, tenant)
    page.goto("approvals")
    done(paged, resume_agent(support(), its, [Approve("call-1")], store=paged.server.store))
    if again:
        ask_again(
            paged,
            its,
            PendingTool(toolset="local", tool_name="refund", tool_call_id="call-1", args={"order": "8812"}),
        )

    page.get_by_role("button", name="Reject and stop").click()

    text(page, ".outcome").to_contain_text('local/refund {"order":"8812"}')
    text(page, ".outcome").to_contain_text("was approved by somebody who was not named")
    assert decisions(paged, its) == [(its, "call-1", "approve")]
    assert [each for each in complaints if "409" not in each] == []
    complaints.clear()


def test_of_sixty_that_wait_the_wanted_one_is_found_and_its_address_can_be_sent(
    browser: Browser, admin: Page, paged: Site, tenant: str
) -> None:
    store, now = paged.server.store, time.time_ns()
    wanted = done(
        paged,
        operation(store, tenant, waiting_since_unix_nano=now - 2 * 86_400 * 10**9, pending=[call(7, tool_name="wire")]),
    )
    for n in range(60):
        whose = tenant if n < 3 else new_id("other")
        done(paged, operation(store, whose, waiting_since_unix_nano=now, pending=[call(n)]))
    admin.goto("approvals")
    text(admin, "article").to_be_visible()
    expect(admin.get_by_role("link", name=wanted, exact=True)).to_have_count(0)

    admin.keyboard.press("/")
    admin.keyboard.type(tenant)
    admin.keyboard.press("Enter")
    expect(admin.locator("article")).to_have_count(4)
    admin.get_by_label("Tool").fill("wire")
    admin.locator("select[name=age]").select_option(label="a day or longer")

    expect(admin.locator("article")).to_have_count(1)
    text(admin, "article").to_contain_text(wanted)
    colleague = look(browser, paged)
    shared = colleague.new_page()
    shared.goto(admin.url)
    assert f"tenant={tenant}" in admin.url
    expect(shared.locator("article")).to_have_count(1)
    expect(shared.locator("select[name=age]")).to_have_value("86400")
    shared.get_by_role("button", name="Approve").click()
    text(shared, ".outcome").to_contain_text(f"of operation {wanted}")
    colleague.close()


def test_without_scripts_one_call_is_decided_and_the_answer_has_nothing_to_press_by_mistake(
    browser: Browser, paged: Site, tenant: str, secret: str
) -> None:
    waiting = [done(paged, operation(paged.server.store, tenant, pending=[call(n)])) for n in range(2)]
    context = look(browser, paged, secret, java_script_enabled=False)
    plain = context.new_page()
    plain.goto(f"approvals?tenant={tenant}")

    plain.get_by_role("button", name="Reject and continue").first.dblclick()

    text(plain, ".outcome").to_contain_text(
        f'Rejected and continued: bank/pay {{"amount":1}} of operation {waiting[1]}'
    )
    expect(plain.locator("main button")).to_have_count(0)
    assert decisions(paged, *waiting) == [(waiting[1], "call", "rejectAndContinue")]
    plain.get_by_role("link", name="Back to the list").click()
    assert plain.url.endswith(f"/approvals?tenant={tenant}")
    expect(plain.locator("article")).to_have_count(1)
    context.close()


EVIL = "</pre><script>document.title='owned'</script>\u202egnp.exe\u200b\U000e0041"
SHOWN = "</pre><script>document.title='owned'</script>\\u202egnp.exe\\u200b\\udb40\\udc41"


def test_hostile_words_are_shown_as_they_are(page: Page, paged: Site, tenant: str) -> None:
    pending = call(1, args={EVIL: [EVIL]}, prompt=EVIL, tool_name=EVIL)
    its = done(paged, operation(paged.server.store, tenant, pending=[pending], agent_id="a\u202eb"))
    page.goto("approvals")

    assert SHOWN in page.locator("article h2").inner_text()
    assert page.locator("article .args").inner_text().count(SHOWN) == 2
    page.locator("article").get_by_text("Raw JSON").click()
    assert page.locator("article pre").inner_text().count(SHOWN) == 2
    assert SHOWN in page.locator("article .prompt").inner_text()
    assert json.loads(page.locator("article pre").inner_text()) == {EVIL: [EVIL]}
    page.get_by_label("Reason for a rejection").fill(EVIL)
    page.get_by_role("button", name="Reject and stop").click()
    text(page, ".outcome").to_contain_text(f"Reason: “{SHOWN}”.")
    page.goto(f"operations/{its}")
    text(page, "h1").to_have_text(its)
    assert "owned" not in page.title()
    assert SHOWN in page.locator("main").inner_text()
    assert "\u202e" not in page.locator("main table").first.inner_text()


def test_who_has_decided_is_shown_with_the_operation(page: Page, paged: Site, tenant: str) -> None:
    by_key, by_hand, by_nobody = (paused(paged, tenant, order) for order in ("1", "2", "3"))
    page.goto(f"operations/{by_key}")
    page.get_by_role("button", name="Approve").click()
    text(page, ".outcome").to_contain_text("By you, a test (API key")
    done(paged, paged.server.store.decide(by_hand, Approve("call-1"), by="cli:ann"))
    done(paged, resume_agent(support("3"), by_nobody, [Approve("call-1")], store=paged.server.store))

    for its, told in (
        (by_key, "a test (API key"),
        (by_hand, "ann on the command line"),
        (by_nobody, "somebody who was not named"),
    ):
        until(lambda its=its: status_of(paged, its) == "done")  # type: ignore[misc]
        page.goto(f"operations/{its}")
        row = page.locator("table").first.locator("tbody tr")
        expect(row).to_contain_text("approved")
        expect(row).to_contain_text(told)
        expect(page.get_by_text(re.compile(f"^approved by {re.escape(told)}"))).to_be_visible()


def waiting_equal(site: Site, tenant: str, count: int, **fields: Any) -> list[str]:
    """Operations that wait for equal calls, the newest first."""
    pending = call(70, prompt="Really?", asked_by="large-payments", **fields)
    return [done(site, operation(site.server.store, tenant, pending=[pending])) for _ in range(count)][::-1]


def test_equal_calls_are_decided_together_and_each_is_answered_for(page: Page, paged: Site, tenant: str) -> None:
    waiting = waiting_equal(paged, tenant, 4)
    other = done(paged, operation(paged.server.store, tenant, pending=[call(71, prompt="Really?")]))
    page.goto("approvals")
    text(page, ".asks").to_contain_text("A hook asks:")
    page.get_by_role("link", name="Decide about all 4 equal calls").first.click()
    text(page, "h1").to_have_text("4 equal calls of bank/pay")
    text(page, ".asks").to_contain_text("Hook large-payments asks: Really?")
    page.get_by_role("checkbox", name=f"Operation {waiting[3]}").uncheck()
    done(paged, paged.server.store.decide(waiting[1], Reject("call", reason="Too much."), by="cli:ann"))

    page.get_by_role("button", name="Approve the chosen calls").click()

    text(page, "[role=status]").to_contain_text("Approved: 2 of 3 calls.")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text=waiting[1])).to_contain_text("already rejected and stopped by ann on the command line")
    assert sorted(decisions(paged, *waiting, other)) == sorted(
        [(waiting[0], "call", "approve"), (waiting[1], "call", "reject"), (waiting[2], "call", "approve")]
    )


def test_the_hook_that_asks_is_named(page: Page, paged: Site, tenant: str) -> None:
    registry = paged.server.registry
    made = {"name": "Ask about refunds", "point": "ToolCall.guard", "handler": "require-approval", "tenantId": tenant}
    definition = done(paged, registry.create(made | {"config": {"tools": ["refund"], "prompt": "May it?"}}))
    agent = Agent(id="asking", model=support().model, tools=[free_refund])
    run = exec_agent(agent, "Refund", store=paged.server.store, tenant_id=tenant, hooks=registry.hooks(tenant))
    assert done(paged, run).reason == "waiting_for_human"

    page.goto("approvals")

    text(page, ".asks").to_contain_text("Hook Ask about refunds asks: May it?")
    page.get_by_role("link", name="Ask about refunds").click()
    page.wait_for_url(f"**/hooks/{definition.id}?*")


def test_calls_that_are_not_equal_are_not_decided_together(
    page: Page, paged: Site, tenant: str, complaints: list[str]
) -> None:
    waiting = waiting_equal(paged, tenant, 2)
    other = done(paged, operation(paged.server.store, tenant, pending=[call(7000)]))
    foreign = done(paged, operation(paged.server.store, new_id("other"), pending=[call(70)]))
    page.goto("approvals")
    page.get_by_role("link", name="Decide about both equal calls").first.click()
    boxes = page.locator("input[name=chosen]")
    for place, each in ((0, other), (1, foreign)):
        crafted = json.dumps([each, "call", ""])
        boxes.nth(place).evaluate("(box, value) => { box.value = value; }", crafted)

    page.get_by_role("button", name="Approve the chosen calls").click()

    text(page, "[role=status]").to_contain_text("0 of 2 calls")
    text(page, "tbody").to_contain_text("There is no such operation, or it belongs to another tenant.")
    assert decisions(paged, *waiting, other, foreign) == []
    assert [each for each in complaints if "409" not in each] == []
    complaints.clear()


def test_somebody_new_finds_who_approved_a_payment(page: Page, paged: Site, tenant: str) -> None:
    its = done(paged, operation(paged.server.store, tenant, pending=[call(70, args={"to": "Ada Ltd"})]))
    done(paged, operation(paged.server.store, tenant, pending=[call(71)]))
    page.goto(f"operations/{its}")
    page.get_by_role("button", name="Approve").click()
    text(page, ".outcome").to_contain_text("Approved:")
    page.goto("approvals")
    page.get_by_role("link", name="Decided").click()
    page.get_by_label("Search").fill("pay ada")

    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("approved")
    expect(row).to_contain_text("a test")
    row.get_by_role("link", name=its).click()
    page.wait_for_url(f"**/operations/{its}")


def test_the_conversation_is_read_before_a_decision(page: Page, paged: Site, tenant: str) -> None:
    messages = [Message(role="user", content=f"Message {n} {EVIL}") for n in range(25)]
    done(paged, operation(paged.server.store, tenant, messages=messages))
    page.goto("approvals")
    assert "Message 24" not in page.content()

    page.get_by_text("The conversation so far").click()

    text(page, ".conversation").to_contain_text(f"Message 24 {SHOWN}")
    text(page, ".conversation").to_contain_text("5 earlier messages are left out.")
    expect(page.locator(".message")).to_have_count(20)


def test_the_number_of_waiting_calls_is_in_the_navigation_and_the_title(page: Page, paged: Site, tenant: str) -> None:
    page.goto("operations")
    assert page.title() == "Operations · hookline"
    waiting = [done(paged, operation(paged.server.store, tenant)) for _ in range(3)]
    page.goto("hooks")

    text(page, "nav .count").to_have_text("3")
    expect(page).to_have_title("(3) Hooks · hookline")
    for each in waiting:
        done(paged, paged.server.store.decide(each, Approve("call"), by="cli:ann"))
    page.reload()
    text(page, "nav .count").to_have_text("")
    expect(page).to_have_title("Hooks · hookline")


def test_a_part_of_a_view_that_is_loaded_leaves_the_title_of_the_tab_as_it_is(
    page: Page, paged: Site, tenant: str
) -> None:
    paused(paged, tenant)
    page.goto("approvals")
    expect(page).to_have_title("(1) Approvals · hookline")
    page.get_by_text("The conversation so far").first.click()
    expect(page.locator(".conversation .message").first).to_be_visible()

    assert page.title() == "(1) Approvals · hookline"
    page.get_by_label("Reason for a rejection").fill("Not this month.")
    page.get_by_role("button", name="Reject and stop").click()
    text(page, ".outcome").to_contain_text("Rejected and stopped:")
    assert page.title().endswith("Approvals · hookline")
