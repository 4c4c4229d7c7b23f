"""Attributes of points are made once and shared: nothing changes them, their number is bounded, limits still count."""

from __future__ import annotations

import pytest

from hookline import Hooks, ToolResult, exec_agent, tool
from hookline.otel._instruments import MOST_KEPT, keep

from .gauge import AGENT, ERROR, MODEL, TOOL, Gauge, agent_of
from .receiver import call, calls, says

pytestmark = pytest.mark.anyio

TRACED = pytest.mark.parametrize("traced", [False, True], ids=["measured", "traced and measured"])


def bundles(gauge: Gauge, *, traced: bool, **options: int) -> list[Hooks]:
    return [gauge.tracing()] * traced + [gauge.hooks(**options)]


@TRACED
async def test_a_failure_does_not_stay_on_the_points_that_follow(traced: bool) -> None:
    gauge, answers = Gauge(), iter([ValueError("no"), "fine", "fine"])

    @tool
    async def waver() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    hooks = bundles(gauge, traced=traced)
    turns = (calls(call("waver", "t1")), calls(call("waver", "t2")), RuntimeError("the model is gone"))
    await exec_agent(agent_of(*turns, tools=[waver]), "go", hooks=hooks)
    await exec_agent(agent_of(calls(call("waver")), says(), tools=[waver]), "go", hooks=hooks)

    assert gauge.counts("gen_ai.execute_tool.duration", TOOL, ERROR) == {("waver", "ValueError"): 1, ("waver", None): 2}
    assert gauge.counts("hookline.step.duration", AGENT, ERROR) == {("tester", "RuntimeError"): 1, ("tester", None): 4}
    model = gauge.counts("gen_ai.client.operation.duration", ERROR)
    assert model == {"RuntimeError": 1, None: 4}
    assert gauge.counts("gen_ai.invoke_agent.duration", AGENT, ERROR) == {
        ("tester", "RuntimeError"): 1,
        ("tester", None): 1,
    }


@TRACED
async def test_agents_that_share_a_bundle_and_a_tool_have_their_own_points(traced: bool) -> None:
    gauge = Gauge()
    hooks = bundles(gauge, traced=traced)

    @tool
    async def find() -> ToolResult:
        return ToolResult(content="none", success=False)

    for name in ("ann", "bob", "ann"):
        await exec_agent(agent_of(calls(call("find")), says(), id=name, tools=[find]), "go", hooks=hooks)

    assert gauge.counts("gen_ai.execute_tool.duration", AGENT, TOOL, ERROR) == {
        ("ann", "find", "tool_error"): 2,
        ("bob", "find", "tool_error"): 1,
    }


@TRACED
async def test_a_value_beyond_the_limit_is_told_once_another_bundle_has_made_it_known(traced: bool) -> None:
    gauge = Gauge()
    narrow, wide = bundles(gauge, traced=traced, max_values=1), bundles(gauge, traced=False)

    async def run(name: str, hooks: list[Hooks]) -> None:
        @tool(name=name)
        async def find() -> str:
            return "found"

        await exec_agent(agent_of(calls(call(name)), says(), tools=[find]), "go", hooks=hooks)

    await run("first", narrow)
    await run("second", narrow)
    assert gauge.counts("gen_ai.execute_tool.duration", TOOL) == {"first": 1, "_OTHER": 1}
    await run("second", wide)
    await run("second", narrow)

    assert gauge.counts("gen_ai.execute_tool.duration", TOOL) == {"first": 1, "_OTHER": 1, "second": 2}


async def test_models_that_change_from_call_to_call_have_points_of_their_own() -> None:
    gauge = Gauge()
    hooks = bundles(gauge, traced=False)

    for model in ("one", "two", "one"):
        agent = agent_of(says(read=3))
        agent.model.name = model  # type: ignore[union-attr]
        await exec_agent(agent, "go", hooks=hooks)

    assert gauge.counts("gen_ai.client.operation.duration", MODEL) == {"one": 2, "two": 1}
    assert gauge.counts("gen_ai.client.token.usage", MODEL, "gen_ai.token.type") == {
        ("one", "input"): 2,
        ("one", "output"): 2,
        ("two", "input"): 1,
        ("two", "output"): 1,
    }


def test_what_is_kept_is_bounded() -> None:
    kept: dict[int, str] = {}

    for number in range(10 * MOST_KEPT):
        assert keep(kept, number, str(number)) == str(number)
        assert len(kept) <= MOST_KEPT

    assert kept[10 * MOST_KEPT - 1] == str(10 * MOST_KEPT - 1)
