"""The page in a real browser, against a real server."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Browser, expect

from hookline.events import BeforeToolCall, HookType, encode
from hookline.runtime import JournalEntry, OperationState
from hookline.store import DeliveryLog
from tests.server.browsing import complaints, page, paged, secret, tenant, text, window
from tests.server.site import Site, delivery, new_id, operation
from tests.server.test_page_guards import VIEWS, done

__all__ = ["complaints", "page", "paged", "secret", "tenant", "window"]

FIRST_VIEW = 200_000


def test_somebody_signs_in_by_keyboard(browser: Browser, paged: Site) -> None:
    context = browser.new_context(base_url=f"{paged.address}/page/")
    stranger = context.new_page()
    stranger.goto("sign-in")

    stranger.get_by_label("API key").fill(paged.admin)
    stranger.keyboard.press("Enter")

    stranger.wait_for_url("**/overview")
    context.close()


def test_an_operation_appears_while_somebody_watches(page: Any, paged: Site, tenant: str) -> None:
    page.goto("operations")
    text(page, "[data-live]").to_have_text("live")
    text(page, ".empty").to_contain_text("No operations yet")

    its = done(paged, operation(paged.server.store, tenant, status="running", pending=[]))

    row = page.locator(f"[id='row-{its}']")
    expect(row).to_contain_text("running")
    text(page, "#counts").to_contain_text("1 running")


def test_a_definition_is_switched_off_for_the_next_run(page: Any, paged: Site, tenant: str) -> None:
    registry = paged.server.registry
    made = {"name": "No refunds", "point": "ToolCall.guard", "handler": "deny", "tenantId": tenant}
    done(paged, registry.create(made))
    assert len(registry.hooks(tenant)) == 1
    page.goto("hooks")

    page.get_by_role("button", name="Disable No refunds").click()

    text(page, ".notice").to_contain_text("Disabled")
    expect(page.get_by_role("button", name="Enable No refunds")).to_be_visible()
    assert registry.hooks(tenant) == []


def test_a_definition_is_tried_out_on_a_sample(page: Any, paged: Site, tenant: str, complaints: list[str]) -> None:
    made = {"name": "No refunds", "point": "ToolCall.guard", "handler": "deny", "config": {"reason": "Closed today."}}
    done(paged, paged.server.registry.create(made | {"tenantId": tenant}))
    page.goto("hooks")
    page.get_by_role("link", name="No refunds").click()

    page.get_by_role("button", name="Run").click()
    text(page, "main").to_contain_text("Closed today.")
    page.get_by_label("Sample").fill("{")
    page.get_by_role("button", name="Run").click()

    text(page, ".problem").to_contain_text("not a JSON object")
    assert [each for each in complaints if "422" not in each] == []
    complaints.clear()


def test_a_delivery_is_made_again(page: Any, paged: Site, tenant: str) -> None:
    sent = done(paged, delivery(paged.server.store, tenant, status="delivered"))
    page.goto("deliveries")

    page.get_by_role("button", name=f"Deliver again: {sent}").click()

    text(page, ".notice").to_contain_text("delivered again")

    found = done(paged, DeliveryLog(paged.server.store).delivery(sent))
    assert found is not None
    assert found.status != "delivered"


def test_the_first_view_is_small(browser: Any, paged: Site, tenant: str, secret: str) -> None:
    for _ in range(120):
        done(paged, operation(paged.server.store, tenant, status="done", pending=[]))
    context = browser.new_context(base_url=f"{paged.address}/page/")
    page = context.new_page()
    page.goto("sign-in")
    cookies = context.cookies()
    page.fill("input[name=key]", secret)
    sizes: list[float] = []
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.keyboard.press("Enter")
    page.wait_for_url("**/overview")
    expect(page.locator("[data-row]").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    context.close()

    assert cookies
    assert len(sizes) >= 5
    assert 10_000 < sum(sizes) < FIRST_VIEW


def test_thousands_of_bars_are_as_many_rows_as_fit(page: Any, paged: Site, tenant: str) -> None:
    its = done(paged, long_operation(paged, tenant, 3000))
    page.goto(f"operations/{its}")
    grid = page.get_by_role("treegrid")
    expect(grid).to_have_attribute("aria-rowcount", "3000")
    assert page.locator(".wf-row").count() < 100

    grid.focus()
    page.keyboard.press("End")

    text(page, ".wf-current").to_have_attribute("aria-rowindex", "3000")
    assert page.locator(".wf-row").count() < 100
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") != "treegrid"


async def long_operation(site: Site, tenant: str, bars: int) -> str:
    its, rows = new_id("op-long"), []
    for number in range(1, bars + 1):
        event = BeforeToolCall(
            operation_id=its,
            time_unix_nano=10**18 + number * 10**6,
            toolset="local",
            tool_name=f"tool_{number}",
            args={},
            call_index=number,
            step_index=0,
            tool_call_id=f"c{number}",
        )
        rows.append(
            JournalEntry(number=number, type=HookType.BEFORE_TOOL_CALL, time_unix_nano=number, wire=encode(event))
        )
    state = OperationState(operation_id=its, agent_id="agent", tenant_id=tenant, status="done", version=1, events=bars)
    await site.server.store.commit(state, expected_version=None, entries=rows)
    return its


def test_a_waterfall_grows_while_the_operation_runs(page: Any, paged: Site, tenant: str) -> None:
    its = done(paged, operation(paged.server.store, tenant, status="running", pending=[]))
    page.goto(f"operations/{its}")
    grid = page.get_by_role("treegrid")
    expect(grid).to_have_attribute("aria-rowcount", "3")
    text(page, "[data-live]").to_have_text("live")

    async def go_on() -> None:
        store = paged.server.store
        state = await store.load(its)
        assert state is not None
        event = BeforeToolCall(
            operation_id=its, toolset="l", tool_name="t", args={}, call_index=1, step_index=3, tool_call_id="c"
        )
        entry = JournalEntry(number=4, type=HookType.BEFORE_TOOL_CALL, time_unix_nano=4, wire=encode(event))
        changed = OperationState(
            operation_id=its, agent_id="agent", tenant_id=tenant, version=2, events=4, tool_calls=1
        )
        await store.commit(changed, expected_version=1, entries=[entry])

    done(paged, go_on())

    expect(grid).to_have_attribute("aria-rowcount", "4")


def test_every_view_works_without_a_complaint_of_the_browser(page: Any, paged: Site, tenant: str) -> None:
    store = paged.server.store
    its = done(paged, operation(store, tenant))
    sent = done(paged, delivery(store, tenant))
    for place in (*VIEWS, f"operations/{its}", f"deliveries/{sent}"):
        page.goto(place)
        text(page, "main h1").to_be_visible()
        page.wait_for_load_state("load")


def test_the_keyboard_gets_everywhere_and_is_never_caught(page: Any, paged: Site, tenant: str) -> None:
    done(paged, operation(paged.server.store, tenant))
    page.goto("operations")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("j")
    assert "op-" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("?")
    expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#keys")).to_be_hidden()

    page.goto("approvals")
    page.locator("body").focus()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
        if page.evaluate("document.activeElement === document.body"):
            break
    assert any('value="reject"' in each for each in reached)
    assert any('class="skip"' in each for each in reached)


def test_letters_that_are_typed_are_no_shortcuts(page: Any, paged: Site) -> None:
    page.goto("logs")
    page.get_by_label("Hook", exact=True).fill("")
    page.get_by_label("Hook", exact=True).press_sequentially("ga?")

    assert re.search("/logs$", page.url)
    expect(page.locator("dialog#keys")).to_be_hidden()
