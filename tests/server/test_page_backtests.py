"""The page of a hook shows the counts of a backtest while it runs, and stops it: with and without scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from hookline.registry import HookDefinition
from tests.server import gated_hooks
from tests.server.browsing import complaints, look, page, secret, tenant, text, window
from tests.server.site import Site, key
from tests.server.test_page_guards import done, visitor
from tests.server.test_page_hooks import called

__all__ = ["complaints", "page", "secret", "tenant", "window"]


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('backtests')}/page.db"
    with Site(url, page=True, modules=[gated_hooks.MODULE]) as site:
        yield site


@pytest.fixture
def hook(paged: Site, tenant: str) -> HookDefinition:
    called(paged, tenant, "bank/pay", "bank/pay", "bank/pay")
    handler = f"{gated_hooks.MODULE}:gated"
    given = HookDefinition(name="No payments", point="ToolCall.guard", handler=handler, tenant_id=tenant)
    return done(paged, paged.server.registry.create(given))


def test_counts_grow_while_it_runs_until_the_result_is_there(page: Page, hook: HookDefinition) -> None:
    gated_hooks.allow(2)
    page.goto(f"hooks/{hook.id}")
    page.get_by_role("button", name="Judge their calls").click()

    text(page, "#judging").to_contain_text("2 calls judged")
    text(page, "#judging").to_contain_text("denied 2")
    gated_hooks.allow(99)
    text(page, "#judged").to_contain_text("3 calls of 1 operation")
    expect(page.locator("#judging")).to_have_count(0)
    expect(page.get_by_label("Operations of the last")).to_have_value("7")


def test_it_is_stopped_with_the_result_so_far(page: Page, hook: HookDefinition) -> None:
    gated_hooks.allow(1)
    page.goto(f"hooks/{hook.id}")
    page.get_by_role("button", name="Judge their calls").click()
    text(page, "#judging").to_contain_text("1 call judged")

    page.get_by_role("button", name="Stop").click()

    text(page, "#judged").to_contain_text("1 call of 0 operations")
    text(page, "#judged").to_contain_text("It was stopped before all operations were looked at")
    gated_hooks.allow(99)
    page.get_by_role("button", name="Judge their calls").click()
    text(page, "#judged").to_contain_text("3 calls of 1 operation")


def test_a_browser_without_scripts_reloads_the_counts(
    browser: Browser, paged: Site, secret: str, hook: HookDefinition
) -> None:
    gated_hooks.allow(2)
    context = look(browser, paged, secret, java_script_enabled=False)
    plain = context.new_page()
    plain.goto(f"hooks/{hook.id}")
    plain.get_by_role("button", name="Judge their calls").click()
    text(plain, "#judging").to_contain_text("2 calls judged")

    gated_hooks.allow(99)

    text(plain, "#judged").to_contain_text("3 calls of 1 operation")
    context.close()


def test_only_the_person_who_began_it_sees_it(page: Page, paged: Site, hook: HookDefinition, tenant: str) -> None:
    gated_hooks.allow(1)
    page.goto(f"hooks/{hook.id}")
    page.get_by_role("button", name="Judge their calls").click()
    address = page.locator("#judging").get_attribute("hx-get")
    assert address is not None

    with visitor(paged, done(paged, key(paged.server.store, tenant))) as other:
        shown = other.get(address.removeprefix("/page")).text
    page.get_by_role("button", name="Stop").click()

    assert "The counts of this backtest are not here" in shown
    assert 'id="judging"' not in shown
    text(page, "#judged").to_contain_text("It was stopped")
