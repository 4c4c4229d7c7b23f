"""A small suite for tests that need no AgentDojo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio

from hookline import ModelResponse, Tool, Usage, tool
from hookline.evals import SuiteRun
from hookline.evals.running import SuiteRunner, cases_of
from hookline.evals.suites import Task, UserSuite, asks, says


def tools() -> list[Tool]:
    stock = {"tea": 4}

    @tool(in_thread=False)
    def price(item: str) -> str:
        """Look up a price."""
        return f"{item} costs {len(item)} EUR"

    @tool(in_thread=False)
    def order(item: str, count: int = 1) -> str:
        """Order something."""
        stock[item] -= count
        return f"{stock[item]} {item} left"

    @tool(in_thread=False)
    def pay(amount: float) -> str:
        """Pay with a real card."""
        raise AssertionError("a real card was charged")

    return [price, order, pay]


def ask_for_tea(**further: Any) -> Task:
    return Task(id="tea", prompt="What does tea cost?", script=[asks("price", item="tea"), says("3 EUR")], **further)


def order_tea(**further: Any) -> Task:
    return Task(
        id="order",
        prompt="Order tea.",
        script=[asks("order", item="tea"), asks("order", item="tea"), says("Ordered.")],
        **further,
    )


def costly(task: Task, cost_usd: float) -> Task:
    turns = [
        ModelResponse(content=turn.content, tool_calls=turn.tool_calls, usage=Usage(cost_usd=cost_usd))
        for turn in task.script or []
    ]
    return Task(id=task.id, prompt=task.prompt, script=turns)


def run_suite(
    tasks: Sequence[Task], *, tools: Callable[[], list[Tool]] = tools, backend: str = "asyncio", **options: Any
) -> SuiteRun:
    suite = UserSuite("shop", tools=tools, tasks=tasks)
    return anyio.run(partial(SuiteRunner(cases_of([suite]), **options).run), backend=backend)
