"""The page of a hook in shadow mode shows what it would have done beside what was done, and its limits are edited."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hookline import (
    Agent,
    Deny,
    Hooks,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from tests.registry.test_policy_alerts import fallback_alert, put, rate_alert
from tests.server.browsing import complaints, page, paged, secret, tenant, window
from tests.server.site import Site
from tests.server.test_page_guards import done
from tests.server.test_page_hooks import made, stored

__all__ = ["complaints", "page", "paged", "secret", "tenant", "window"]


@tool
async def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount} EUR to {to}"


@pytest.mark.parametrize("width", [1280, 390])
def test_what_a_hook_would_have_denied_stands_beside_what_was_done(
    page: Page, paged: Site, tenant: str, width: int
) -> None:
    hook = made(paged, tenant, name="No payments", mode="shadow", config={"reason": "Ask the bank."})
    turns = [ToolRequest("pay", {"to": "bob", "amount": 900}), ModelResponse(content="Paid.")]
    agent = Agent(id="payer", model=ScriptedModel(turns), tools=[pay])
    hooks = paged.server.registry.hooks(tenant)
    ran = done(paged, exec_agent(agent, "Pay", store=paged.server.store, tenant_id=tenant, hooks=hooks))
    done(paged, paged.server.log.flush())

    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"hooks/{hook.id}")

    shadow = page.locator("#shadow")
    expect(shadow).to_contain_text("It judged 1 call. It would have denied 1.")
    expect(shadow.locator("#shadow-by-tool tbody tr")).to_have_text(re.compile(r"local/pay\s*1\s*1"))
    expect(shadow.locator("#shadow-by-agent tbody tr")).to_have_text(re.compile(r"payer\s*1\s*1"))
    row = shadow.locator("#shadow-examples tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text('{"to":"bob","amount":900}')
    expect(row).to_contain_text("would have denied it: Ask the bank.")
    expect(row).to_contain_text("it ran")
    if folder := os.environ.get("HOOKLINE_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"shadow-{width}.png"), full_page=True)
    row.get_by_role("link").click()
    expect(page).to_have_url(f"{paged.server.address}/page/operations/{ran.operation_id}")


def test_a_call_that_another_hook_denied_did_not_run(page: Page, paged: Site, tenant: str) -> None:
    hook = made(paged, tenant, name="No payments", mode="shadow", priority=0)
    agent = Agent(
        id="payer", model=ScriptedModel([ToolRequest("pay", {"to": "bob", "amount": 9}), "Done."]), tools=[pay]
    )
    bank = Hooks("bank")
    bank.guard(ToolCall, priority=1000, id="bank")(lambda call: Deny("Not now."))
    hooks = [*paged.server.registry.hooks(tenant), bank]
    done(paged, exec_agent(agent, "Pay", store=paged.server.store, tenant_id=tenant, hooks=hooks))
    done(paged, paged.server.log.flush())

    page.goto(f"hooks/{hook.id}")

    expect(page.locator("#shadow-examples tbody tr")).to_contain_text("bank denied it")


def test_a_hook_that_judged_nothing_says_so_and_an_enforced_one_has_no_such_part(
    page: Page, paged: Site, tenant: str
) -> None:
    shadow = made(paged, tenant, name="Shadow", mode="shadow")
    enforced = made(paged, tenant, name="Enforced")

    page.goto(f"hooks/{shadow.id}")
    expect(page.locator("#shadow")).to_contain_text("It judged no call yet.")
    page.goto(f"hooks/{enforced.id}")
    expect(page.locator("#shadow")).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_alerts_stand_on_the_page_of_the_hook_and_mark_it_in_the_list(
    page: Page, paged: Site, tenant: str, width: int
) -> None:
    calm, wild = made(paged, tenant, name="Calm"), made(paged, tenant, name="Wild", mode="shadow")
    done(paged, put(paged.server.store, rate_alert(wild.id, tenant, wild.revision), ago=60))
    done(paged, put(paged.server.store, fallback_alert(calm.id, tenant), ago=2 * 86_400))

    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"hooks?tenant={tenant}")
    mark = page.get_by_role("link", name="alert", exact=True)
    expect(mark).to_have_count(1)  # that of the other hook is older than a day
    expect(page.get_by_role("row").filter(has=mark)).to_contain_text("Wild")
    mark.click()

    expect(page.locator("#alerts li")).to_contain_text("Rate of denials changed")
    expect(page.locator("#alerts li")).to_contain_text("It would have denied 50.00% of calls (50 of 100)")
    if folder := os.environ.get("HOOKLINE_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"alerts-{width}.png"), full_page=True)
    page.goto(f"hooks/{calm.id}")
    expect(page.locator("#alerts li")).to_contain_text("Put into shadow mode")


def test_limits_are_set_kept_and_cleared_in_the_form(page: Page, paged: Site, tenant: str) -> None:
    hook = made(paged, tenant, name="Limited")
    page.goto(f"hooks/{hook.id}/edit?tenant={tenant}")
    page.get_by_label("Largest share of denials").fill("0.2")
    page.get_by_label("From calls on").fill("50")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("above 20 % denials in 300 s, from 50 calls on")).to_be_visible()

    page.goto(f"hooks/{hook.id}/edit?tenant={tenant}")
    expect(page.get_by_label("Largest share of denials")).to_have_value("0.2")
    page.get_by_label("Largest share of denials").fill("")
    page.get_by_label("From calls on").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("dl.facts")).to_contain_text("If it fails")
    expect(page.get_by_text("above 20 % denials")).to_have_count(0)

    [found] = stored(paged, tenant)
    assert found.shadow_above is None
