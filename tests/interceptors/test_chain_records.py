"""One record per call that was led through interceptors, for whoever listens."""

from collections.abc import Iterator
from typing import Any

import pytest

from hookline import Agent, Chain, Deny, Hooks, ModelResponse, ScriptedModel, ToolCall, ToolResult, exec_agent
from hookline.calls import AgentCall
from hookline.signals import ChainRun, chain_ran

pytestmark = pytest.mark.anyio


@pytest.fixture
def ran() -> Iterator[list[ChainRun]]:
    records: list[ChainRun] = []

    def receive(sender: object, ran: ChainRun) -> None:
        records.append(ran)

    chain_ran.connect(receive)
    yield records
    chain_ran.disconnect(receive)


async def terminal(call: Any) -> ToolResult:
    return ToolResult(content="ran")


async def test_a_record_names_the_hooks_in_order_and_who_denied(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, id="look")(lambda call: None)
    hooks.guard(ToolCall, id="stop")(lambda call: Deny("no"))
    await Chain([hooks], record=False).run(ToolCall(tool_name="x", tenant_id="t", operation_id="op"), terminal)
    [record] = ran
    assert (record.point, record.operation_id, record.tenant_id) == ("ToolCall", "op", "t")
    assert [(each.hook_id, each.status, each.tenant_id) for each in record.executions] == [
        ("look", "ok", "t"),
        ("stop", "denied", "t"),
    ]
    assert (record.denied_by, record.reason) == ("stop", "no")


async def test_a_terminal_that_raises_leaves_a_record_too(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, id="look")(lambda call: None)

    async def broken(call: Any) -> ToolResult:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Chain([hooks]).run(ToolCall(tool_name="x"), broken)
    assert [[each.hook_id for each in record.executions] for record in ran] == [["look"]]


async def test_a_call_that_no_hook_met_leaves_none(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, tool="*/other")(lambda call: None)
    await Chain([hooks]).run(ToolCall(tool_name="x"), terminal)
    assert ran == []


async def test_a_run_leaves_one_for_each_of_its_calls(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(AgentCall, id="in")(lambda call: None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="x")]))
    result = await exec_agent(agent, "hi", hooks=[hooks], tenant_id="t")
    assert [(record.point, record.operation_id, record.tenant_id) for record in ran] == [
        ("AgentCall", result.operation_id, "t")
    ]
