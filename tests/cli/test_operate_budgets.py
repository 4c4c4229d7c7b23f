"""`hookline budgets`: what budgets have counted is listed, shown and reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.budgets import Amounts, BudgetRequest, BudgetScope
from hookline.store import SqlStore
from tests.cli.operated import database, lines, on, run


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a budget that an overrun has closed, and with one of another tenant."""

    async def spend(store: SqlStore) -> None:
        for tenant, key, took in (("acme", "ann", 7), ("globex", "bob", 1)):
            request = BudgetRequest(
                id=f"r-{key}",
                scope=BudgetScope(tenant_id=tenant, budget_id="team", per="user", key=key),
                window="month",
                limits=Amounts(calls=10),
                amounts=Amounts(calls=2),
            )
            await store.reserve_budget(request)
            await store.settle_budget(request.id, Amounts(calls=took))

    on(database(tmp_path), spend)
    return database(tmp_path)


def test_windows_are_listed_shown_and_reset(url: str) -> None:
    table = run("budgets", "list", "--tenant", "acme", url=url)
    [listed] = lines(run("budgets", "--tenant", "acme", "--json", url=url))
    shown = run("budgets", "show", listed["id"], url=url)
    reset = run("budgets", "reset", listed["id"], url=url)
    after = lines(run("budgets", "show", listed["id"], "--json", url=url))

    assert "team" in table.stdout
    assert "closed" in table.stdout
    assert "globex" not in table.stdout
    assert listed["used"] == {"nanoUsd": 0, "tokens": 0, "calls": 7}
    assert "limit    10 calls" in shown.stdout
    assert "overrun  5 calls" in shown.stdout
    assert reset.stdout == f"Reset {listed['id']}: 7 calls had been used.\n"
    assert (after[0]["used"]["calls"], after[0]["closed"]) == (0, False)
    [entry] = lines(run("audit", "list", "--action", "budget.reset", "--json", url=url))
    assert (entry["target"], entry["tenantId"]) == (listed["id"], "acme")


def test_a_window_of_another_tenant_is_not_found_and_not_reset(url: str) -> None:
    [theirs] = lines(run("budgets", "--tenant", "globex", "--json", url=url))

    refused = run("budgets", "reset", theirs["id"], "--tenant", "acme", url=url)

    assert refused.exit_code == 1
    assert "There is no window" in refused.stderr
    assert lines(run("budgets", "show", theirs["id"], "--json", url=url))[0]["used"]["calls"] == 1


def test_a_store_without_budgets_says_so(tmp_path: Path) -> None:
    async def nothing(store: SqlStore) -> None:
        return None

    on(database(tmp_path), nothing)

    assert run("budgets", "list", "--ended", url=database(tmp_path)).stderr == "No budget has counted anything.\n"
