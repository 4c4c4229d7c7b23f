"""What is measured of budgets across runs."""

from __future__ import annotations

import pytest

from hookline import ModelResponse, ToolRequest, exec_agent
from hookline.budgets import InMemoryBudgets
from hookline.builtin import budget
from hookline.calls import Usage

from .gauge import Gauge, agent_of, look_up

pytestmark = pytest.mark.anyio

ID, PER, EVENT = "hookline.budget.id", "hookline.budget.per", "hookline.budget.event"


def turn(cost: float, *calls: ToolRequest) -> ModelResponse:
    return ModelResponse(tool_calls=list(calls), usage=Usage(input_tokens=5, output_tokens=2, cost_usd=cost))


async def test_what_budgets_counted_and_what_they_did_is_measured_by_budget() -> None:
    gauge, store = Gauge(), InMemoryBudgets()
    money = budget(cost_usd=1, tokens=1000, per="user", store=store, reserve_usd=0.3, reserve_tokens=10, id="money")
    calls = budget(calls=10, per="tool", store=store, id="calls", warn_at=0.1)
    agent = agent_of(turn(0.25, ToolRequest("look_up")), turn(0.5), tools=[look_up])

    await exec_agent(agent, "hi", hooks=[gauge.hooks(), money, calls])
    await exec_agent(agent_of(turn(0.1)), "hi", hooks=[gauge.hooks(), money])

    assert gauge.counts("hookline.budget.cost", ID, PER) == {("money", "user"): 0.75}
    assert gauge.counts("hookline.budget.tokens", ID, PER) == {("money", "user"): 14}
    assert gauge.counts("hookline.budget.calls", ID, PER) == {("calls", "tool"): 1}
    assert gauge.counts("hookline.budget.events", ID, EVENT) == {
        ("calls", "warned"): 1,
        ("money", "overrun"): 1,
        ("money", "denied"): 1,
    }


async def test_without_metrics_of_hooks_there_are_none_of_budgets() -> None:
    gauge = Gauge()
    money = budget(cost_usd=1, per="user", reserve_usd=0.3)

    await exec_agent(agent_of(turn(0.25)), "hi", hooks=[gauge.hooks(hook_metrics=False), money])

    assert gauge.points("hookline.budget.cost") == []
