"""Lists and the overview: filters that apply as they are chosen, figures that lead to what they count, calm rows."""

from __future__ import annotations

import re
import time
from html import unescape
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import update

from hookline.runtime import OperationState
from hookline.store import operations
from tests.server.browsing import complaints, look, page, paged, secret, tenant, text, window
from tests.server.site import Site, execution, key, new_id, operation
from tests.server.test_page_guards import done, visitor
from tests.store.records import insert_operations, operation_rows

__all__ = ["complaints", "page", "paged", "secret", "tenant", "window"]

TILE = re.compile(
    r'<a class="tile[^"]*" href="([^"]+)"><span class="tile-title">([^<]+)</span><strong>([^<]+)</strong>'
)
HOSTILE = (
    "<b>",
    "' OR 1=1 --",
    "%",
    "_",
    "\\",
    '"',
    "\u202ex",
    "\x00",
    "\ud83d",
    "ÄÖ🎉",
    "x" * 3000,
    "null",
    "../..",
    "{{ 7 }}",
)


def seed(site: Site, tenant: str, count: int = 60, **fields: Any) -> list[dict[str, Any]]:
    """Operations of a tenant that began within the last hours."""
    rows = operation_rows(count)
    for number, row in enumerate(rows):
        began = time.time() - 3 - number * 300
        row |= {"operation_id": new_id("op"), "tenant_id": tenant, "created_at": began, "updated_at": began + 1}
        row |= fields
    done(site, insert_operations(site.server.store, rows))
    return rows


def ids(page: Any) -> list[str]:
    found: list[str] = page.locator("tr[data-row]").evaluate_all("(rows) => rows.map((row) => row.id.slice(4))")
    return found


def test_filters_apply_as_they_are_chosen_and_stand_in_the_address(page: Any, paged: Site, tenant: str) -> None:
    rows = seed(paged, tenant)
    page.goto("operations")

    page.locator("select[name=status]").select_option("error")
    expect(page.locator("tr[data-row]")).to_have_count(sum(row["status"] == "error" for row in rows))
    assert page.url.endswith("/operations?status=error")

    page.get_by_label("Search").press_sequentially("refund")
    wanted = {row["operation_id"] for row in rows if row["status"] == "error" and "Refund" in row["prompt"]}
    expect(page.locator("tr[data-row]")).to_have_count(len(wanted))
    assert set(ids(page)) == wanted
    assert page.url.endswith("/operations?q=refund&status=error")
    assert page.evaluate("document.activeElement.name") == "q"

    page.locator("select[name=sort]").select_option("costliest")
    text(page, "th[aria-sort]").to_have_text("Cost")
    page.go_back()
    expect(page).to_have_url(re.compile(r"q=refund&status=error$"))
    expect(page.get_by_label("Search")).to_have_value("refund")


def test_rows_that_somebody_reads_do_not_move(page: Any, paged: Site, tenant: str) -> None:
    store = paged.server.store
    first = done(paged, operation(store, tenant, status="running", pending=[]))
    done(paged, operation(store, tenant, status="done", pending=[]))
    page.goto("operations")
    text(page, "[data-live]").to_have_text("live")
    shown = ids(page)
    page.keyboard.press("j")

    new = done(paged, operation(store, tenant, status="done", pending=[]))
    ended = OperationState(operation_id=first, agent_id="agent", tenant_id=tenant, version=2, events=3, status="error")
    done(paged, store.commit(ended, expected_version=1, entries=[]))

    text(page, f"[id='row-{first}'] .badge").to_have_text("failed")
    text(page, "#news").to_contain_text("1 new")
    assert ids(page) == shown
    assert shown[0] in page.evaluate("document.activeElement.textContent")
    page.get_by_role("button", name="Show", exact=True).click()
    assert ids(page) == [new, *shown]
    text(page, "#news").to_be_empty()


def test_a_list_that_nobody_has_touched_shows_what_is_new(page: Any, paged: Site, tenant: str) -> None:
    done(paged, operation(paged.server.store, tenant, status="done", pending=[]))
    page.goto("operations")
    text(page, "[data-live]").to_have_text("live")

    new = done(paged, operation(paged.server.store, tenant, status="done", pending=[]))

    text(page, f"[id='row-{new}']").to_be_visible()
    text(page, "#news").to_be_empty()


def test_times_are_told_as_people_do_with_the_zone_on_hover(browser: Browser, paged: Site, tenant: str) -> None:
    seed(paged, tenant, 2, created_at=time.time() - 3 * 3600 - 60)
    context = look(browser, paged, timezone_id="Asia/Tokyo", locale="en-GB")
    person = context.new_page()
    person.clock.install()
    person.goto(f"operations?tenant={tenant}")
    moment = person.locator("td time").first

    expect(moment).to_have_text("3 h ago")
    assert re.search(r"20\d\d.*(GMT\+9|JST)", moment.get_attribute("title") or "")
    person.clock.run_for(3_600_000)
    expect(moment).to_have_text("4 h ago")
    context.close()


def test_without_scripts_a_button_applies_the_filter(browser: Browser, paged: Site, tenant: str) -> None:
    seed(paged, tenant)
    context = look(browser, paged, java_script_enabled=False)
    plain = context.new_page()
    plain.goto(f"operations?tenant={tenant}")

    plain.locator("select[name=status]").select_option("done")
    plain.locator("summary").first.click()
    plain.get_by_label("Duration").uncheck()
    plain.get_by_role("button", name="Filter").click()

    expect(plain.locator("th", has_text="Duration")).to_have_count(0)
    expect(plain.locator("th", has_text="Cost")).to_have_count(1)
    assert set(plain.locator("td .badge").all_text_contents()) == {"done"}
    expect(plain.locator("td time").first).to_contain_text("UTC")
    context.close()


@pytest.mark.parametrize("length", ["1h", "24h", "7d"])
def test_each_figure_leads_to_exactly_what_it_counts(paged: Site, tenant: str, length: str) -> None:
    rows = seed(paged, tenant)

    with visitor(paged) as person:
        shown = person.get("/overview", params={"tenant": tenant, "range": length, "agent": "a1"}).text
        tiles = {title: (unescape(link), figure) for link, title, figure in TILE.findall(shown)}
        counted = {
            name: person.get(link.removeprefix("/page")).text.count("<tr data-row")
            for name, (link, _) in tiles.items()
            if name in ("Operations", "Errors")
        }
        columns = re.findall(r'<a href="([^"]+)" tabindex="-1"><title>[^:]+:\d\d: ([^<$]+)<', shown)
        for link, figures in columns[:3]:
            there = person.get(unescape(link).removeprefix("/page")).text.count("<tr data-row")
            assert there == sum(int(each.split()[0]) for each in figures.split(", "))

    span = {"1h": 3600, "24h": 86_400, "7d": 7 * 86_400}[length]
    own = [row for row in rows if row["agent_id"] == "a1" and row["created_at"] > time.time() - span + 10_800]
    assert counted == {name: int(tiles[name][1]) for name in counted}
    assert counted["Operations"] >= (len(own) if length != "1h" else 1)
    assert columns


def test_the_costliest_agent_is_the_first_of_the_overview(page: Any, paged: Site, tenant: str) -> None:
    rows = seed(paged, tenant)
    costs = {name: sum(row["cost_usd"] for row in rows if row["agent_id"] == name) for name in ("a1", "a2")}
    first = max(costs, key=lambda name: costs[name])
    page.goto("overview?range=24h")

    table = page.locator("h2", has_text="Which agent costs most").locator("xpath=following-sibling::div[1]")
    expect(table.locator("tr[data-row]").first).to_contain_text(f"{first} ${costs[first]:.2f}")
    table.get_by_role("link", name=first, exact=True).click()

    expect(page.locator("select[name=agent]")).to_have_value(first)
    page.goto("overview")
    page.locator("select[name=range]").select_option("7d")
    expect(page).to_have_url(re.compile(r"/overview\?range=7d$"))
    assert page.locator("figure > svg").count() == 3


def test_an_empty_overview_says_how_to_begin(page: Any, paged: Site, tenant: str) -> None:
    page.goto("overview")

    text(page, ".empty").to_contain_text("exec_agent(agent")


@pytest.mark.parametrize("asked", [{"from": "yesterday"}, {"from": "2026-02-01", "to": "2026-01-01"}, {"q": "x" * 201}])
def test_a_wrong_filter_is_kept_and_explained(paged: Site, asked: dict[str, str]) -> None:
    with visitor(paged) as person:
        answer = person.get("/operations", params=asked)

    assert answer.status_code == 422
    assert 'class="problem"' in answer.text
    assert all(f'value="{value}"' in answer.text for value in asked.values())


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "twelve", "٣", "9" * 20])
def test_a_revision_that_is_none_is_kept_and_explained(paged: Site, given: str) -> None:
    with visitor(paged) as person:
        answer = person.get("/logs", params={"revision": given})

    assert answer.status_code == 422
    assert "must be the number of a revision" in answer.text
    assert f'value="{given}"' in answer.text


def test_the_history_of_a_hook_leads_to_the_executions_of_a_revision(page: Any, paged: Site, tenant: str) -> None:
    registry = paged.server.registry
    given = {"name": "Wary", "point": "ToolCall.guard", "handler": "deny", "mode": "shadow", "tenantId": tenant}
    made = done(paged, registry.create(given))
    changed = done(paged, registry.update(made.id, {"priority": 7}, tenant_id=tenant))
    first, second = (
        done(paged, execution(paged, tenant, hook_id=made.id, revision=each.revision)) for each in (made, changed)
    )

    page.goto(f"hooks/{made.id}")
    page.get_by_role("link", name=f"revision {made.revision}", exact=True).click()

    rows = page.locator("#results tr[data-row]")
    expect(rows).to_have_count(1)
    expect(rows.locator(".id a")).to_have_attribute("title", first)
    field = page.get_by_label("Revision", exact=True)
    expect(field).to_have_value(str(made.revision))
    field.fill(str(changed.revision))
    field.press("Enter")
    expect(rows.locator(".id a")).to_have_attribute("title", second)
    expect(rows).to_have_count(1)


def test_no_text_in_a_filter_breaks_the_list(paged: Site, tenant: str) -> None:
    seed(paged, tenant, 3)

    with visitor(paged) as person:
        for word in HOSTILE:
            typed = word.encode("utf-8", "surrogatepass").decode("latin-1")
            for names in (("q", "agent", "user", "tag", "tool", "status", "range", "sort", "column"), ("from", "to")):
                for view in ("operations", "overview", "logs"):
                    answer = person.get(f"/{view}", params={"tenant": tenant} | dict.fromkeys(names, typed))
                    assert answer.status_code in (200, 400, 422), (view, names, word)
                    assert "<b>" not in answer.text


async def check_api(site: Site, tenant: str, rows: list[dict[str, Any]]) -> None:
    async with site.client() as client:
        given = {"tenantId": tenant, "sort": "costliest", "userId": "u1", "search": "refund", "limit": "5"}
        answer = (await client.get("/v1/operations", params=given)).json()
        totals = (await client.get("/v1/stats/operations", params={"tenantId": tenant, "range": "30d"})).json()
        wrong = await client.get("/v1/operations", params={"sort": "cheapest"})
    those = [row for row in rows if row["user_id"] == "u1" and "Refund" in row["prompt"]]
    those.sort(key=lambda row: (row["cost_usd"], row["operation_id"]), reverse=True)
    assert [each["operationId"] for each in answer["items"]] == [row["operation_id"] for row in those[:5]]
    assert totals["total"]["count"] == len(rows)
    assert totals["total"]["costUsd"] == pytest.approx(sum(row["cost_usd"] for row in rows))
    assert wrong.status_code == 422


def test_the_api_searches_and_sums_up_as_the_page_does(paged: Site, tenant: str) -> None:
    done(paged, check_api(paged, tenant, seed(paged, tenant)))


def test_a_row_is_named_by_its_prompt_and_says_that_it_is_a_sub_agent(page: Any, paged: Site, tenant: str) -> None:
    rows = seed(paged, tenant)
    its = next(row for row in rows if row["prompt"])

    async def adopt() -> None:
        async with paged.server.store.writing() as connection:
            of = operations.c.operation_id == its["operation_id"]
            await connection.execute(update(operations).where(of).values(parent_operation_id="op_parent"))

    done(paged, adopt())
    page.goto("operations")
    row = page.locator(f"[id='row-{its['operation_id']}']")

    expect(row.get_by_role("link", name=its["prompt"])).to_have_attribute("title", its["operation_id"])
    expect(row.locator("td").first).to_contain_text("sub-agent")
    expect(row).not_to_contain_text(its["operation_id"])
    expect(page.get_by_text("sub-agent")).to_have_count(1)


def test_a_figure_of_the_overview_says_in_words_how_it_changed(page: Any, paged: Site, tenant: str) -> None:
    seed(paged, tenant)
    page.goto("overview?range=30d")

    change = page.locator(".tile-change").first

    expect(change).to_contain_text("none in the 30 days before")
    expect(change).to_have_attribute("title", "none in the 30 days before")


def test_counts_of_nothing_have_no_colour(page: Any, paged: Site, tenant: str) -> None:
    page.goto("operations")
    expect(page.locator("#counts .badge", has_text="0 running")).to_have_class("badge")

    done(paged, operation(paged.server.store, tenant, status="running", pending=[]))

    expect(page.locator("#counts .badge", has_text="1 running")).to_have_class("badge is-running")


def test_empty_lists_lead_to_what_fills_them(page: Any) -> None:
    for view, link in (("logs", "Look at the hooks"), ("deliveries", "Look at the hooks"), ("statistics", "7 days")):
        page.goto(view)
        expect(page.locator(".empty").get_by_role("link", name=link)).to_be_visible()


def test_endpoints_are_filtered_as_the_filter_is_chosen(page: Any, paged: Site) -> None:
    page.goto("endpoints")
    expect(page.get_by_role("button", name="Filter")).to_be_hidden()

    page.get_by_label("State").select_option("disabled")

    page.wait_for_url("**/page/endpoints?state=disabled")
    page.get_by_label("Search").fill("no-such-endpoint.example")
    text(page, "#results").to_contain_text("No endpoint matches the filter.")
    page.get_by_role("link", name="Show all").click()
    page.wait_for_url("**/page/endpoints")


def test_an_operation_that_runs_has_no_duration_yet(page: Any, paged: Site, tenant: str) -> None:
    (running,) = seed(paged, tenant, 1, status="running", duration_ms=17.0)
    (ended,) = seed(paged, tenant, 1, status="done", duration_ms=28.0)

    page.goto("operations")
    text(page, f"[id='row-{ended['operation_id']}'] [data-label=duration]").to_have_text("28 ms")
    text(page, f"[id='row-{running['operation_id']}'] [data-label=duration]").to_have_text("—")
    page.goto(f"operations/{running['operation_id']}")
    text(page, "#facts").not_to_contain_text("Duration")
    page.goto(f"operations/{ended['operation_id']}")
    text(page, "#facts").to_contain_text("28 ms")


def test_statistics_are_shown_by_agent_and_tool_together(paged: Site, tenant: str) -> None:
    done(paged, execution(paged, tenant))
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        shown = person.get("/statistics?by=agent,tool").text

    assert "<th>Agent and tool</th>" in shown
    assert re.search(r'no agent\s*<span class="mono">bank/pay</span>', shown)
    assert "Only executions about a tool, counted by whole hours." in shown
