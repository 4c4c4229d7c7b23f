"""People who look at the page in a real browser: one server for a module, and a tenant of its own for each test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from hookline.calls import ModelCall, ModelResponse, ToolRequest
from hookline.runtime import Agent, ScriptedModel, exec_agent, tool
from tests.server.site import Site, key, new_id
from tests.server.test_page_guards import done, visitor

__all__ = [
    "complaints",
    "look",
    "page",
    "paged",
    "paused",
    "secret",
    "sign_in",
    "status_of",
    "support",
    "tenant",
    "text",
    "until",
    "window",
]


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Give money back."""
    return f"refunded {order}"


def support(order: str = "8812", agent_id: str = "support") -> Agent:
    """An agent that asks to refund an order, and is done when it was told of that."""

    def says(call: ModelCall) -> ModelResponse:
        if call.messages[-1].role == "tool":
            return ModelResponse(content="Done.")
        asks = ToolRequest(tool_call_id="call-1", tool_name="refund", args={"order": order})
        return ModelResponse(content="I will.", tool_calls=[asks])

    return Agent(id=agent_id, model=ScriptedModel(says), tools=[refund])


def paused(site: Site, tenant: str, order: str = "8812") -> str:
    """A run that waits for a person, and that the server goes on with; its operation."""
    ran = done(site, exec_agent(support(order), f"Refund {order}", store=site.server.store, tenant_id=tenant))
    assert ran.reason == "waiting_for_human"
    return ran.operation_id


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path_factory.mktemp('page')}/page.db", page=True, agents=[support()]) as site:
        yield site


@pytest.fixture
def tenant() -> str:
    return new_id("tenant")


@pytest.fixture
def complaints() -> list[str]:
    """What the browser has complained about, and whatever it has asked of others."""
    return []


def look(browser: Browser, site: Site, secret: str | None = None, **options: Any) -> BrowserContext:
    """The browser of somebody who has signed in: as an administrator, unless a key is given."""
    context = open_window(browser, site, **options)
    sign_in(context, site, secret)
    return context


def open_window(browser: Browser, site: Site, **options: Any) -> BrowserContext:
    context = browser.new_context(base_url=f"{site.address}/page/", **options)
    context.set_default_timeout(30_000)
    return context


def sign_in(context: BrowserContext, site: Site, secret: str | None) -> None:
    with visitor(site, secret) as person:
        cookie = person.cookies["hookline_session"]
    context.add_cookies([{"name": "hookline_session", "value": cookie, "domain": "127.0.0.1", "path": "/page"}])


@pytest.fixture(scope="module")
def window(browser: Browser, paged: Site) -> Iterator[BrowserContext]:
    """A browser for one person after another: it keeps the scripts that it has loaded, and the page keeps nothing there.

    Its first page is empty and stays open, which keeps the process that draws the pages of all tests: to start one takes
    longer than most tests do there.
    """
    context = open_window(browser, paged)
    context.new_page()
    yield context
    context.close()


@pytest.fixture
def secret(paged: Site, tenant: str) -> str:
    """A key of the tenant."""
    return done(paged, key(paged.server.store, tenant))


@pytest.fixture
def page(window: BrowserContext, paged: Site, secret: str, complaints: list[str]) -> Iterator[Page]:
    """Somebody of the tenant who has signed in, and opens a view; whatever the browser complains about fails the test."""
    sign_in(window, paged, secret)
    page = window.new_page()
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(paged.address) else complaints.append(asked.url))
    yield page
    for each in window.pages[1:]:
        each.close()
    window.clear_cookies()
    assert complaints == []


def status_of(site: Site, operation_id: str) -> str:
    found = done(site, site.server.store.operation(operation_id))
    assert found is not None
    return found.status


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def text(page: Page, selector: str) -> Any:
    return expect(page.locator(selector).first)
