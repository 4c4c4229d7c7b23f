"""The page in a real browser, against a real server."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookline.calls import ModelResponse, ToolCalling
from hookline.events import BeforeToolCall, HookType, encode
from hookline.runtime import Agent, JournalEntry, OperationState, ScriptedModel, exec_agent, tool
from hookline.store._deliveries_log import DeliveryLog
from tests.server.site import Site, delivery, operation
from tests.server.test_page_guards import VIEWS, done

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need the package playwright")
sync_api.expect.set_options(timeout=30_000)  # the browser shares a busy machine with other tests

NAMES = ("chromium", "chromium-browser", "google-chrome")
HELP = "no Chromium can be launched: `apt-get install chromium`, or name one in HOOKLINE_CHROMIUM"
FIRST_VIEW = 200_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium. Where HOOKLINE_CHROMIUM names one, it has to work."""
    named = os.environ.get("HOOKLINE_CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except sync_api.Error as error:
            if named:
                raise
            pytest.skip(f"{HELP} ({str(error).splitlines()[0]})")
        yield browser
        browser.close()


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Give money back."""
    return f"refunded {order}"


def support(answers: int = 2) -> Agent:
    asks = ToolCalling(tool_call_id="call-1", api_name="refund", args={"order": "8812"})
    said = [ModelResponse(content="I will.", tool_calls=[asks]), *[ModelResponse(content="Done.")] * (answers - 1)]
    return Agent(id="support", model=ScriptedModel(said), tools=[refund])


@pytest.fixture
def paged(new_database_url: Callable[[str], str]) -> Iterator[Site]:
    resuming = Agent(id="support", model=ScriptedModel([ModelResponse(content="Done.")] * 5), tools=[refund])
    with Site(new_database_url("sqlite"), page=True, agents=[resuming]) as site:
        yield site


@pytest.fixture
def complaints() -> list[str]:
    """What the browser has complained about, and whatever it has asked of others."""
    return []


@pytest.fixture
def page(browser: Any, paged: Site, complaints: list[str]) -> Iterator[Any]:
    """Somebody who has signed in; whatever the browser complains about fails the test."""
    context = browser.new_context(base_url=f"{paged.address}/page/")
    context.set_default_timeout(15_000)
    page = context.new_page()
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(paged.address) else complaints.append(asked.url))
    page.goto("sign-in")
    page.get_by_label("API key").fill(paged.admin)
    page.keyboard.press("Enter")
    page.wait_for_url("**/operations")
    yield page
    context.close()
    assert complaints == []


def status_of(site: Site, operation_id: str) -> str:
    found = done(site, site.server.store.operation(operation_id))
    assert found is not None
    return found.status


def until(holds: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def text(page: Any, selector: str) -> Any:
    return sync_api.expect(page.locator(selector).first)


def test_an_operation_appears_while_somebody_watches(page: Any, paged: Site) -> None:
    text(page, "[data-live]").to_have_text("live")
    text(page, ".empty").to_contain_text("No operations yet")

    its = done(paged, operation(paged.server.store, status="running", pending=[]))

    row = page.locator(f"[id='row-{its}']")
    sync_api.expect(row).to_contain_text("running")
    text(page, "#counts").to_contain_text("1 running")


def test_a_call_is_approved_by_keyboard_alone(page: Any, paged: Site) -> None:
    ran = done(paged, exec_agent(support(), "Refund 8812", store=paged.server.store, tenant_id="acme"))
    assert ran.reason == "waiting_for_human"

    page.keyboard.type("ga")
    page.wait_for_url("**/approvals")
    text(page, "article").to_contain_text("local/refund")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.value") == "approve":
            break
    page.keyboard.press("Enter")

    text(page, ".notice").to_contain_text("Approved")
    text(page, ".empty").to_contain_text("Nothing waits")
    until(lambda: status_of(paged, ran.operation_id) == "done")


def test_a_call_that_comes_is_told_of_and_moves_no_button(page: Any, paged: Site) -> None:
    done(paged, operation(paged.server.store))
    page.goto("approvals")
    text(page, "[data-live]").to_have_text("live")

    done(paged, operation(paged.server.store))

    text(page, ".notice").to_contain_text("The list has changed")
    assert page.locator("article").count() == 1
    page.get_by_role("link", name="Show it").click()
    sync_api.expect(page.locator("article")).to_have_count(2)
    with page.expect_request("**/approvals/live?seen=*") as asked:
        page.get_by_role("button", name="Approve").first.click()
    sync_api.expect(page.locator("article")).to_have_count(1)
    # The stream of the list before has ended: else it would tell of a change for ever.
    assert page.locator("[id^=news-]").get_attribute("id") == f"news-{asked.value.url.rpartition('=')[2]}"
    sync_api.expect(page.get_by_text("The list has changed")).to_have_count(0)
    done(paged, operation(paged.server.store))
    sync_api.expect(page.get_by_text("The list has changed")).to_be_visible()
    page.get_by_role("link", name="Show it").click()
    sync_api.expect(page.locator("article")).to_have_count(2)


def test_a_rejection_tells_the_model_why(page: Any, paged: Site) -> None:
    ran = done(paged, exec_agent(support(), "Refund 8812", store=paged.server.store, tenant_id="acme"))
    page.goto("approvals")

    page.get_by_label("Reason").fill("Not this month.")
    page.get_by_role("button", name="Reject", exact=True).click()

    text(page, ".notice").to_contain_text("Rejected")
    until(lambda: status_of(paged, ran.operation_id) == "done")
    state = done(paged, paged.server.store.load(ran.operation_id))
    assert state is not None
    assert any("Not this month." in message.content for message in state.messages)


def test_a_definition_is_switched_off_for_the_next_run(page: Any, paged: Site) -> None:
    registry = paged.server.registry
    made = {"name": "No refunds", "point": "ToolCall.guard", "handler": "deny", "tenantId": "acme"}
    done(paged, registry.create(made))
    assert len(registry.hooks("acme")) == 1
    page.goto("hooks")

    page.get_by_role("button", name="Switch No refunds off").click()

    text(page, ".notice").to_contain_text("Switched off")
    sync_api.expect(page.get_by_role("button", name="Switch No refunds on")).to_be_visible()
    assert registry.hooks("acme") == []


def test_a_definition_is_tried_out_on_a_sample(page: Any, paged: Site, complaints: list[str]) -> None:
    made = {"name": "No refunds", "point": "ToolCall.guard", "handler": "deny", "config": {"reason": "Closed today."}}
    done(paged, paged.server.registry.create(made))
    page.goto("hooks")
    page.get_by_role("link", name="No refunds").click()

    page.get_by_role("button", name="Run").click()
    text(page, "main").to_contain_text("Closed today.")
    page.get_by_label("Sample").fill("{")
    page.get_by_role("button", name="Run").click()

    text(page, ".problem").to_contain_text("no JSON object")
    assert [each for each in complaints if "422" not in each] == []
    complaints.clear()


def test_a_delivery_is_made_again(page: Any, paged: Site) -> None:
    sent = done(paged, delivery(paged.server.store, status="delivered"))
    page.goto("deliveries")

    page.get_by_role("button", name=f"Deliver again: {sent}").click()

    text(page, ".notice").to_contain_text("delivered again")

    found = done(paged, DeliveryLog(paged.server.store).delivery(sent))
    assert found is not None
    assert found.status != "delivered"


def test_the_first_view_is_small(browser: Any, paged: Site) -> None:
    for _ in range(120):
        done(paged, operation(paged.server.store, status="done", pending=[]))
    context = browser.new_context(base_url=f"{paged.address}/page/")
    page = context.new_page()
    page.goto("sign-in")
    cookies = context.cookies()
    page.fill("input[name=key]", paged.admin)
    sizes: list[float] = []
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.keyboard.press("Enter")
    page.wait_for_url("**/operations")
    sync_api.expect(page.locator("[data-live]")).to_have_text("live")
    context.close()

    assert cookies
    assert len(sizes) >= 5
    assert 10_000 < sum(sizes) < FIRST_VIEW


def test_thousands_of_bars_are_as_many_rows_as_fit(page: Any, paged: Site) -> None:
    its = done(paged, long_operation(paged, 3000))
    page.goto(f"operations/{its}")
    grid = page.get_by_role("treegrid")
    sync_api.expect(grid).to_have_attribute("aria-rowcount", "3000")
    assert page.locator(".wf-row").count() < 100

    grid.focus()
    page.keyboard.press("End")

    text(page, ".wf-current").to_have_attribute("aria-rowindex", "3000")
    assert page.locator(".wf-row").count() < 100
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") != "treegrid"


async def long_operation(site: Site, bars: int) -> str:
    its, rows = "op-long", []
    for number in range(1, bars + 1):
        event = BeforeToolCall(
            operation_id=its,
            time_unix_nano=10**18 + number * 10**6,
            identifier="local",
            api_name=f"tool_{number}",
            args={},
            call_index=number,
            step_index=0,
            tool_call_id=f"c{number}",
        )
        rows.append(
            JournalEntry(number=number, type=HookType.BEFORE_TOOL_CALL, time_unix_nano=number, wire=encode(event))
        )
    state = OperationState(operation_id=its, agent_id="agent", status="done", version=1, events=bars)
    await site.server.store.commit(state, expected_version=None, entries=rows)
    return its


def test_a_waterfall_grows_while_the_operation_runs(page: Any, paged: Site) -> None:
    its = done(paged, operation(paged.server.store, status="running", pending=[]))
    page.goto(f"operations/{its}")
    grid = page.get_by_role("treegrid")
    sync_api.expect(grid).to_have_attribute("aria-rowcount", "3")
    text(page, "[data-live]").to_have_text("live")

    async def go_on() -> None:
        store = paged.server.store
        state = await store.load(its)
        assert state is not None
        event = BeforeToolCall(
            operation_id=its, identifier="l", api_name="t", args={}, call_index=1, step_index=3, tool_call_id="c"
        )
        entry = JournalEntry(number=4, type=HookType.BEFORE_TOOL_CALL, time_unix_nano=4, wire=encode(event))
        changed = OperationState(
            operation_id=its, agent_id="agent", tenant_id="acme", version=2, events=4, tool_calls=1
        )
        await store.commit(changed, expected_version=1, entries=[entry])

    done(paged, go_on())

    sync_api.expect(grid).to_have_attribute("aria-rowcount", "4")


def test_every_view_works_without_a_complaint_of_the_browser(page: Any, paged: Site) -> None:
    store = paged.server.store
    its = done(paged, operation(store))
    sent = done(paged, delivery(store))
    for place in (*VIEWS, f"operations/{its}", f"deliveries/{sent}"):
        page.goto(place)
        text(page, "main h1").to_be_visible()
        page.wait_for_load_state("load")


def test_the_keyboard_gets_everywhere_and_is_never_caught(page: Any, paged: Site) -> None:
    done(paged, operation(paged.server.store))
    page.goto("operations")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("j")
    assert "op-" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("?")
    sync_api.expect(page.locator("dialog#keys")).to_be_visible()
    page.keyboard.press("Escape")
    sync_api.expect(page.locator("dialog#keys")).to_be_hidden()

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
    sync_api.expect(page.locator("dialog#keys")).to_be_hidden()
