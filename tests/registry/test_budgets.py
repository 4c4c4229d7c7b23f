"""Budgets as definitions: stored ones and those of files draw on the store of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookline import exec_agent
from hookline.registry import DefinitionError, HandlerCatalog, Registry
from hookline.store import SqlStore
from tests.builtin.scenes import agent_of, says
from tests.tables import for_each

from .scenes import definition

pytestmark = pytest.mark.anyio

CONFIG = {"tokens": 100, "per": "user", "window": "month", "reserve_tokens": 60}


def budget(**fields: Any) -> Any:
    return definition(**{"id": "team", "point": "ModelCall.guard", "handler": "budget", "config": CONFIG, **fields})


async def spend(registry: Registry, tokens: int, *, tenant_id: str = "", user_id: str = "ann") -> Any:
    hooks = [*registry.hooks(tenant_id)]
    return await exec_agent(agent_of(says(tokens=tokens)), "hi", hooks=hooks, tenant_id=tenant_id, user_id=user_id)


async def test_processes_share_the_budget_of_a_stored_definition(database_url: str) -> None:
    async with SqlStore(database_url) as store, SqlStore(database_url) as other:
        async with Registry(store) as registry:
            await registry.create(budget())
            first = await spend(registry, 50)
        async with Registry(other) as registry:
            second = await spend(registry, 50)
            elsewhere = await spend(registry, 50, user_id="bob")
            [bob, ann] = await other.budgets()

    assert (first.reason, second.reason, elsewhere.reason) == ("done", "interrupted", "done")
    assert second.denied.hook_id == "team"
    assert (ann.scope.budget_id, ann.scope.key, ann.used.tokens) == ("team", "ann", 50)
    assert (bob.scope.key, bob.used.tokens) == ("bob", 50)


async def test_a_system_budget_counts_each_tenant_apart(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        await registry.create(budget())

        results = [await spend(registry, 50, tenant_id=tenant) for tenant in ("a", "b", "a")]

    assert [each.reason for each in results] == ["done", "done", "interrupted"]


async def test_a_budget_of_a_file_draws_on_the_store(tmp_path: Path, database_url: str) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text("""
[[hooks]]
id = "team"
name = "Team"
point = "ModelCall.guard"
handler = "budget"
config = { tokens = 100, per = "tenant", window = "1d", zone = "Europe/Berlin", reserve_tokens = 60, warn_at = 0.5 }
""")
    async with SqlStore(database_url) as store, Registry(store, files=[file]) as registry:
        results = [await spend(registry, 50) for _ in range(2)]
        [figures] = await store.budgets()

    assert [each.reason for each in results] == ["done", "interrupted"]
    assert (figures.window, figures.warned) == ("1d", True)


async def test_to_try_a_budget_uses_nothing_up(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        stored = await registry.create(budget())

        tried = await registry.dry_run(stored, {})

        assert tried.outcome == "passed"
        assert await store.budgets() == []


async def test_a_definition_that_fails_open_lets_calls_run_while_the_store_is_away(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        await registry.create(budget(on_error="open"))
        [bundle] = registry.hooks()

    result = await exec_agent(agent_of(says(tokens=5)), "hi", hooks=[bundle])

    assert result.reason == "done"


@for_each(
    "config, problem",
    [
        ({"tokens": 5, "window": "1d"}, "say whose calls it counts together"),
        ({"tokens": 5, "per": "user", "store": "mine"}, "comes from the definition itself"),
        ({"per": "user"}, "pass `cost_usd`, `tokens` or `calls`"),
    ],
)
async def test_an_invalid_budget_is_refused_when_it_is_stored(config: dict[str, Any], problem: str) -> None:
    async with SqlStore("sqlite:///:memory:") as store, Registry(store) as registry:
        with pytest.raises(DefinitionError, match=problem):
            await registry.create(budget(config=config))


def test_the_catalog_describes_the_options_of_a_budget() -> None:
    entry = HandlerCatalog().describe("budget")

    assert "store" not in entry.parameters
    assert entry.schema["properties"]["window"]["anyOf"] == [{"enum": ["1d", "1h", "month"]}, {"type": "null"}]
