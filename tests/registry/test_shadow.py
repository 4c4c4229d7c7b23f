"""Definitions in shadow mode: their hooks judge, the log keeps what they decided, and no call is changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from hookline import Agent, Deny, Hooks, ScriptedModel, ToolCall, ToolRequest, exec_agent, tool
from hookline.hooks import Hook
from hookline.registry import DefinitionError, ExecutionLog, Registry
from hookline.store import SqlStore
from tests.databases import on_sqlite

from .scenes import FACTORIES, definition, pay

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[FACTORIES]) as registry:
        yield registry


@on_sqlite
async def test_a_definition_in_shadow_mode_denies_nothing_until_it_is_enforced(registry: Registry) -> None:
    made = await registry.create(definition(mode="shadow", config={"reason": "no"}))
    shadow = await pay(registry.hooks())
    await registry.update(made.id, {"mode": "enforce"})
    enforced = await pay(registry.hooks())

    assert shadow.denied is None
    assert [(each.hook_id, each.status, each.decision, each.reason) for each in shadow.executions] == [
        (made.id, "shadow", "denied", "no")
    ]
    assert enforced.denied is not None


@on_sqlite
async def test_a_handler_that_cannot_run_denies_nothing_in_shadow_mode(registry: Registry) -> None:
    built = registry._builder.get_or_build(definition(id="b", handler="gone", mode="shadow"))

    assert built.problem
    assert built.hook is not None
    outcome = await pay([built.hook])
    assert outcome.denied is None
    assert [each.decision for each in outcome.executions] == ["denied"]


@on_sqlite
async def test_a_control_in_shadow_mode_is_a_hook_whose_answers_are_only_recorded(registry: Registry) -> None:
    webhook = {"url": "https://policy.example/ask", "control": True}
    made = await registry.create(definition(point="beforeToolCall", webhook=webhook, mode="shadow"))
    [hook] = [each for each in registry.hooks() if isinstance(each, Hook)]

    assert made.mode == "shadow"
    assert hook.shadow
    data = hook.data()
    assert data is not None
    assert data.shadow


@pytest.mark.parametrize(
    "fields",
    [
        {"point": "afterStep", "handler": "log"},
        {"point": "beforeToolCall", "webhook": {"url": "https://a.example/"}},
    ],
)
@on_sqlite
async def test_a_hook_that_only_observes_has_no_shadow_mode(registry: Registry, fields: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="only observes") as caught:
        await registry.create(definition(**fields, mode="shadow"))

    assert caught.value.path == "$.mode"


@on_sqlite
async def test_a_mode_that_does_not_exist_is_refused(registry: Registry) -> None:
    with pytest.raises(DefinitionError) as caught:
        await registry.create({**msgspec.to_builtins(definition()), "mode": "audit"})

    assert caught.value.path == "$.mode"


async def test_the_log_keeps_what_a_shadow_hook_decided_about_a_call_of_a_run(store: SqlStore) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    shadow = Hooks("shadow", shadow=True)
    shadow.guard(ToolCall, id="limit")(lambda call: Deny("too much"))
    agent = Agent(id="a", model=ScriptedModel([ToolRequest("look", {}), "done"]), tools=[look])
    async with ExecutionLog(store) as log:
        result = await exec_agent(agent, "hi", hooks=[shadow])
        assert await log.flush()
        page = await log.logs(None, status="shadow")

    [row] = page.items
    assert (row.operation_id, row.point, row.tool_call_id) == (result.operation_id, "ToolCall", "t0.0")
    assert [(each.hook_id, each.decision, each.reason) for each in row.executions] == [("limit", "denied", "too much")]
