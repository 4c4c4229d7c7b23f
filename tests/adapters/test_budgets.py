"""Runs of other frameworks draw on budgets across runs: their model calls, tool calls and sub-agents count."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from hookline import ModelCall, ModelResponse, ToolRequest
from hookline.budgets import InMemoryBudgets
from hookline.builtin import budget
from hookline.evals.adapter_contract import Scene

from .conftest import MISSING, MODULES

FRAMEWORKS = [name for name in MODULES if name not in MISSING and name != "fastmcp"]
ASK = ModelResponse(tool_calls=[ToolRequest("search", {"query": "tea"}, tool_call_id="c1")])
DELEGATE = ModelResponse(tool_calls=[ToolRequest("child", {"instruction": "go"}, toolset="agent", tool_call_id="c2")])
DONE = ModelResponse(content="done")


async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


def stage_of(name: str) -> Any:
    module = importlib.import_module(f"tests.adapters.{name}.stage")
    own = [thing for thing in vars(module).values() if isinstance(thing, type) and thing.__module__ == module.__name__]
    (stage,) = [thing for thing in own if hasattr(thing, "play_many")]
    return stage()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_what_runs_of_a_framework_call_counts_across_runs(name: str) -> None:
    stage, store = stage_of(name), InMemoryBudgets()
    if not stage.capabilities.calls.get(ModelCall):
        pytest.skip("the framework calls its model out of sight")
    hooks = [
        budget(tokens=10_000, per="operation", store=store, reserve_tokens=1000, id="tokens"),
        budget(calls=10, per="tenant", store=store, id="calls"),
    ]
    child = Scene(turns=[ASK, DONE], tools={"search": search})
    scene = Scene(turns=[ASK, DELEGATE, DONE], tools={"search": search}, agents={"child": child})

    for _ in range(2):
        await stage.play(scene, hooks)

    [calls] = await store.budgets(budget_id="calls")
    assert (calls.used.calls, calls.reserved.calls) == (6, 0)
    operations = await store.budgets(budget_id="tokens")
    assert [(each.used.tokens > 0, each.reserved.tokens) for each in operations] == [(True, 0)] * 2
