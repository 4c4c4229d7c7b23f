"""What the page looks like in a real browser: on a narrow screen, with long words, and after long waits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from hookline import AfterToolCall, BeforeHumanIntervention, BeforeToolCall
from hookline.events import AfterHumanIntervention, PendingTool
from hookline.runtime import OperationState
from hookline.server.page._assets import FOLDER
from tests.server.browsing import complaints, look, page, paged, tenant, text, window
from tests.server.site import Site, delivery, endpoint, execution, operation
from tests.server.test_page_guards import VIEWS, done
from tests.server.test_page_waterfall import at, journal, tool

__all__ = ["complaints", "page", "paged", "tenant", "window"]


@pytest.fixture
def secret(paged: Site) -> str:
    """The administrator looks."""
    return paged.admin


HOUR = 3_600_000
WIDE, NARROW = 1280, 390
OUTSIDE = """() => {
  const wide = document.documentElement.clientWidth;
  const outside = [...document.querySelectorAll("main button, main .badge, main .lead")].filter((each) => {
    const { left, right, width } = each.getBoundingClientRect();
    return width > 0 && (left < 0 || right > wide + 0.5);
  });
  return [document.documentElement.scrollWidth - wide, ...outside.map((each) => each.outerHTML)];
}"""


async def long_words(site: Site) -> list[str]:
    store, word = site.server.store, "x" * 150
    pending = PendingTool(
        toolset=word, tool_name=word, tool_call_id="c", args={"note": "long " * 60, "url": word}, prompt=word
    )
    its = await operation(store, word, operation_id=word, user_id=word, pending=[pending])
    sent = await delivery(store, "acme", url=f"https://example.org/{word}")
    await endpoint(store)
    made = {"name": word[:80], "point": "ToolCall.guard", "handler": "deny", "tool": f"{word}/*", "tenantId": "acme"}
    hook = await site.server.registry.create(made | {"config": {"reason": word}, "description": word})
    await execution(site)
    return [f"operations/{its}", f"deliveries/{sent}", f"hooks/{hook.id}"]


def test_nothing_is_pushed_out_of_the_page_by_long_words(page: Any, paged: Site) -> None:
    places = [*VIEWS, *done(paged, long_words(paged))]
    for place in places:
        page.goto(place)
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": 800})

            assert [place, width, *page.evaluate(OUTSIDE)] == [place, width, 0]

    page.goto("statistics")
    heights = page.evaluate("[...document.querySelectorAll('.plot text')].map((t) => t.getBoundingClientRect().height)")
    assert min(heights) > 9


def test_where_there_is_no_room_for_columns_a_row_names_its_figures(page: Any, paged: Site) -> None:
    its = done(paged, operation(paged.server.store, status="done", pending=[], llm_calls=3))
    page.set_viewport_size({"width": NARROW, "height": 800})
    page.goto("operations")
    told = "getComputedStyle(document.querySelector('td[data-label=steps]'), '::before').content"

    expect(page.locator("thead")).to_be_hidden()
    expect(page.get_by_role("link", name=its)).to_be_visible()
    assert "steps" in page.evaluate(told)
    page.set_viewport_size({"width": WIDE, "height": 800})
    expect(page.locator("thead")).to_be_visible()
    assert page.evaluate(told) == "none"


def test_long_waits_are_cut_short_in_the_waterfall(page: Any, paged: Site) -> None:
    pending = [PendingTool(toolset="bank", tool_name="pay", tool_call_id="c1", args={})]
    events = [
        tool(BeforeToolCall, 0, call="c0"),
        tool(AfterToolCall, 70, call="c0", content="", success=True),
        at(BeforeHumanIntervention, 71, step_index=0, pending_tools=pending),
        at(AfterHumanIntervention, 71 + 2 * HOUR, action="approve", tool_call_id="c1"),
        tool(BeforeToolCall, 100 + 2 * HOUR, call="c1"),
        tool(AfterToolCall, 170 + 2 * HOUR, call="c1", content="", success=True),
        at(BeforeHumanIntervention, 171 + 2 * HOUR, step_index=0, pending_tools=pending),
    ]
    state = OperationState(operation_id="op", agent_id="a", status="waiting_for_human", version=1, events=len(events))
    done(paged, paged.server.store.commit(state, expected_version=None, entries=journal(*events)))

    page.goto("operations/op")
    text(page, ".wf-said").to_contain_text("cut short where nothing ran: for 2 h 0 min, ")

    def shares(kind: str) -> list[float]:
        widths = "(bars) => bars.map((bar) => bar.offsetWidth / bar.parentElement.offsetWidth)"
        found: list[float] = page.locator(f".wf-of-{kind} .wf-bar").evaluate_all(widths)
        return found

    assert [share > 0.2 for share in shares("tool")] == [True, True]
    assert [0.02 < share < 0.2 for share in shares("person")] == [True, True]
    expect(page.locator(".wf-ticks .wf-cut").first).to_have_text("2 h 0 min")
    assert page.locator(".wf-cuts .wf-cut").count() == 2
    page.get_by_role("treegrid").focus()
    page.keyboard.press("Enter")
    assert shares("tool")[0] > 0.7
    page.keyboard.press("0")
    assert shares("tool")[0] < 0.6


def test_without_scripts_nothing_says_that_it_connects(browser: Any, paged: Site) -> None:
    context = look(browser, paged, java_script_enabled=False)
    plain = context.new_page()
    plain.goto("operations")

    expect(plain.locator("main h1")).to_have_text("Operations")
    expect(plain.locator("[data-live]")).to_be_hidden()
    context.close()


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_the_words_of_badges_can_be_read(scheme: int) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 at least."""
    style = (FOLDER / "page.css").read_text()
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]))
    looks = {"ok", "run", "wait", "mock", "deny", "fail"}

    for each in looks:
        dark, light = sorted((luminance(colours[each]), luminance(colours[f"{each}-ground"])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, each
