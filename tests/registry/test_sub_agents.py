"""Stored hooks that stand in the way of calls hold in sub-agents too; those that only look on stay with their run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, exec_agent
from hookline.registry import Registry
from hookline.store import SqlStore
from tests.registry import factories

from .scenes import FACTORIES, definition

pytestmark = pytest.mark.anyio


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with SqlStore("sqlite:///:memory:") as store, Registry(store, modules=[FACTORIES]) as registry:
        yield registry


def family(ran: list[str], *, depth: int = 1) -> Agent:
    """An agent that has a tool called by an agent below it."""

    def bash() -> str:
        """Run a command."""
        ran.append("bash")
        return "ran"

    calls = ScriptedModel(
        [ModelResponse(tool_calls=[ToolRequest(tool_name="bash", tool_call_id="t")]), ModelResponse(content="done")]
    )
    agent = Agent(id="a0", model=calls, tools=[bash])
    for nth in range(1, depth + 1):
        asks = ToolRequest(toolset="agent", tool_name=agent.id, args={"instruction": "go"}, tool_call_id="t")
        model = ScriptedModel([ModelResponse(tool_calls=[asks]), ModelResponse(content="done")])
        agent = Agent(id=f"a{nth}", model=model, sub_agents=[agent])
    return agent


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("tenant_id", ["", "acme"])
@pytest.mark.parametrize("point", ["ToolCall.guard", "ToolCall.before"])
async def test_a_stored_refusal_holds_in_sub_agents(registry: Registry, point: str, tenant_id: str, depth: int) -> None:
    await registry.create(definition(point=point, tool="*/bash", tenant_id=tenant_id))
    ran: list[str] = []

    result = await exec_agent(family(ran, depth=depth), "go", hooks=registry.hooks("acme"), tenant_id="acme")

    assert (result.reason, ran) == ("done", [])


async def test_a_hook_that_cannot_run_fails_closed_in_sub_agents_too() -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        async with Registry(store, modules=[FACTORIES]) as before:
            await before.create(definition(handler=f"{FACTORIES}:say", tool="*/bash"))
        async with Registry(store) as after:
            ran: list[str] = []
            await exec_agent(family(ran), "go", hooks=after.hooks())

    assert ran == []


async def test_a_bundle_that_a_handler_makes_goes_along(registry: Registry) -> None:
    await registry.create(definition(handler="require-approval", config={"tools": ["*/bash"]}))
    ran: list[str] = []

    await exec_agent(family(ran), "go", hooks=registry.hooks())

    assert ran == []


@pytest.mark.parametrize(("inherit", "ran_there"), [(False, ["bash"]), (True, [])])
async def test_what_a_definition_says_of_sub_agents_counts(
    registry: Registry, inherit: bool, ran_there: list[str]
) -> None:
    stored = await registry.create(definition(tool="*/bash"))
    await registry.update(stored.id, {"inherit": inherit})
    ran: list[str] = []

    await exec_agent(family(ran), "go", hooks=registry.hooks())

    assert ran == ran_there


@pytest.mark.parametrize(("inherit", "steps"), [(None, 2), (True, 4)])
async def test_a_stored_observer_looks_on_in_sub_agents_only_if_told(
    registry: Registry, inherit: bool | None, steps: int
) -> None:
    await registry.create(definition(point="beforeStep", handler=f"{FACTORIES}:seeing", inherit=inherit))
    factories.SEEN.clear()

    await exec_agent(family([]), "go", hooks=registry.hooks())

    assert len(factories.SEEN) == steps
