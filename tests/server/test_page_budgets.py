"""The page shows what budgets have used, reserved and left, to each tenant its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from hookline.budgets import Amounts, BudgetRequest, BudgetScope, BudgetWindow
from tests.server.site import Site, key
from tests.server.test_page_guards import done, visitor


@pytest.fixture
def site(new_database_url: Callable[[str], str]) -> Iterator[Site]:
    with Site(new_database_url("sqlite"), page=True) as site:
        yield site


def spend(
    site: Site, tenant: str, name: str, *, reserves: int, takes: int | None, window: BudgetWindow | None = "month"
) -> None:
    request = BudgetRequest(
        id=f"{tenant}-{name}",
        scope=BudgetScope(tenant_id=tenant, budget_id=name, per="user", key="ann <b>"),
        window=window,
        limits=Amounts(nano_usd=10**9, tokens=1000),
        amounts=Amounts(nano_usd=10**8, tokens=reserves),
    )
    done(site, site.server.store.reserve_budget(request))
    if takes is not None:
        done(site, site.server.store.settle_budget(request.id, Amounts(nano_usd=10**8, tokens=takes)))


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the table, as text."""
    found = re.findall(r"<tr data-row>(.*?)</tr>", text, re.DOTALL)
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row.split("</td>")[:-1]] for row in found]


def test_figures_are_shown_by_window_and_only_to_their_tenant(site: Site) -> None:
    spend(site, "acme", "overrun", reserves=100, takes=900)
    spend(site, "acme", "running", reserves=300, takes=None, window=None)
    spend(site, "globex", "theirs", reserves=300, takes=300)

    with visitor(site, done(site, key(site.server.store, "acme"))) as person:
        shown = person.get("/budgets")

    assert shown.status_code == 200
    running, overrun = rows(shown.text)
    assert running[:3] == ["running", "user ann &lt;b&gt;", "open"]
    assert [running[index] for index in (4, 5, 6, 7)] == [
        "$0.00 and 0 tokens",
        "$0.10 and 300 tokens",
        "$1.00 and 1,000 tokens",
        "30 %",
    ]
    assert overrun[2] == "closed overrun: $0.00 and 800 tokens"
    assert "theirs" not in shown.text


def test_ended_windows_are_shown_on_request(site: Site) -> None:
    spend(site, "acme", "old", reserves=100, takes=100)

    async def end() -> None:
        async with site.server.store.writing() as connection:
            await connection.exec_driver_sql("UPDATE budget_windows SET window_end = 1")

    done(site, end())
    with visitor(site) as person:
        hidden, shown = person.get("/budgets"), person.get("/budgets", params={"ended": "yes", "budget": "old"})

    assert rows(hidden.text) == []
    assert [row[2] for row in rows(shown.text)] == ["ended"]
