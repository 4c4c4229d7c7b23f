"""Law 5: `budget` bounds the sum of all hooks' own time, not the work that they surround."""

from __future__ import annotations

import math
import time
from time import perf_counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline.calls import Deny
from hookline.errors import HookDefinitionError, HookDenied, HookExecutionError, HookTimeoutError
from hookline.interceptors import Chain
from hookline.signals import HookExecution, hook_executed
from tests.tables import for_each

from .calls import Tool, after, around, before, guard, hook, keep_busy, lead, run, statuses

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]


async def hang(*args: Any) -> None:
    await anyio.sleep_forever()


def sleeping(seconds: float) -> Any:
    async def handler(*args: Any) -> None:
        await anyio.sleep(seconds)

    return handler


async def through(call: Any, call_next: Any) -> Any:
    return await call_next(call)


async def test_the_budget_bounds_the_sum_of_all_hooks() -> None:
    started = perf_counter()

    outcome = await run([before(hang, on_error="open", timeout=0.5, id=f"{n}") for n in range(20)], budget=0.02)

    assert perf_counter() - started < 4
    assert outcome.denied is None
    assert statuses(outcome) == [("0", "timeout")]


async def test_hooks_that_are_each_quick_enough_may_be_too_slow_together() -> None:
    outcome = await run([before(sleeping(0.05), timeout=60, id=f"{n}") for n in range(30)], budget=0.8)

    assert outcome.denied is not None
    assert len(outcome.executions) <= 17
    assert [status for _, status in statuses(outcome)][:1] == ["ok"]
    with pytest.raises(HookDenied) as caught:
        outcome.unwrap()
    cause = caught.value.__cause__
    assert isinstance(cause, HookExecutionError)
    assert isinstance(cause.__cause__, HookTimeoutError)


@for_each("kind", KINDS)
@for_each("on_error", ["open", "closed"])
async def test_a_hook_is_not_started_when_the_budget_is_used_up(kind: str, on_error: str) -> None:
    started: list[str] = []
    tool = Tool()

    def late(*args: Any) -> Any:
        started.append("late")
        return args[1](args[0]) if kind == "around" else None

    greedy = after if kind == "after" else before
    hooks = [
        greedy(hang, id="greedy", on_error="open", priority=999 if kind == "after" else 0),
        hook(kind, late, id="late", on_error=on_error, priority=500),
    ]
    outcome = await run(hooks, terminal=tool, budget=0.01)

    assert started == []
    assert statuses(outcome) == [("greedy", "timeout")]
    assert len(tool.calls) == (on_error == "open" or kind == "after")
    if on_error == "open":
        assert outcome.result is tool.answer
    else:
        assert outcome.denied is not None
        assert outcome.denied.hook_id == "late"
        assert outcome.denied.reason.startswith("the hook failed, and it fails closed: ")
        assert outcome.refusal is not None
        assert outcome.refusal.__cause__ is not None
        assert isinstance(outcome.refusal.__cause__.__cause__, HookTimeoutError)


async def test_a_guard_is_not_skipped_because_the_budget_is_used_up() -> None:
    tool = Tool()

    outcome = await run(
        [before(hang, on_error="open"), guard(lambda call: Deny("no"), id="judge")], terminal=tool, budget=0.01
    )

    assert tool.calls == []
    assert outcome.denied is not None
    assert outcome.denied.hook_id == "judge"


async def test_plain_handlers_use_up_the_budget_too() -> None:
    outcome = await run([before(lambda call: time.sleep(0.2), id=f"{n}") for n in range(9)], budget=0.7)

    assert outcome.denied is not None
    assert statuses(outcome)[0] == ("0", "ok")
    assert statuses(outcome)[-1][1] == "timeout"
    assert len(outcome.executions) <= 4


async def test_an_around_that_blocks_after_it_has_waited_is_on_the_budget() -> None:
    async def greedy(call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        await anyio.lowlevel.checkpoint()
        keep_busy(0.2)
        return result

    outcome = await run([around(greedy)], budget=0.05)

    assert statuses(outcome) == [("around", "timeout")]


async def test_the_work_that_hooks_surround_is_not_on_the_budget() -> None:
    hooks = [around(through, priority=n) for n in range(5)]

    outcome = await run([*hooks, before(lambda call: None), after(lambda call, result: None)], terminal=Tool(seconds=0.6), budget=0.5)  # fmt: skip

    assert outcome.denied is None
    assert [status for _, status in statuses(outcome)] == ["ok"] * 7


async def test_nested_hooks_are_counted_once() -> None:
    async def slow(call: Any, call_next: Any) -> Any:
        await anyio.sleep(0.02)
        return await call_next(call)

    outcome = await run([around(slow, priority=n) for n in range(10)], budget=0.8)

    assert outcome.denied is None


async def test_a_hook_that_comes_back_when_others_used_up_the_budget_is_not_blamed() -> None:
    tool = Tool()

    outcome = await run(
        [around(through, id="outer"), after(hang, id="greedy", on_error="open")], terminal=tool, budget=0.25
    )

    assert statuses(outcome) == [("outer", "ok"), ("greedy", "timeout")]
    assert outcome.result is tool.answer


async def test_the_failure_of_a_hook_names_its_own_timeout_where_the_budget_is_longer() -> None:
    outcome = await run([before(hang, timeout=0.02)], budget=60)

    assert outcome.refusal is not None
    assert outcome.refusal.__cause__ is not None
    cause = outcome.refusal.__cause__.__cause__
    assert isinstance(cause, HookTimeoutError)
    assert (cause.timeout, cause.of_chain) == (0.02, False)


@pytest.mark.parametrize("inside", [False, True])
async def test_an_around_that_the_budget_has_stopped_calls_nothing_any_more(inside: bool) -> None:
    async def clinging(call: Any, call_next: Any) -> Any:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return await call_next(call)  # too late, although its own timeout is far away

    tool, ran = Tool(), list[str]()

    async def inner(call: Any, call_next: Any) -> Any:
        ran.append("inner")
        return await call_next(call)

    hooks = [around(clinging, id="outer", timeout=60), *([around(inner, id="inner")] if inside else [])]
    outcome = await run(hooks, terminal=tool, budget=0.02)

    assert outcome.denied is not None
    assert statuses(outcome) == [("outer", "timeout")]
    assert (tool.calls, ran) == ([], [])


@for_each("budget", [0.02, math.inf, None])
async def test_the_shorter_of_timeout_and_budget_decides(budget: float | None) -> None:
    timeout = 60 if budget == 0.02 else 0.05
    outcome = await run([before(hang, timeout=timeout)], budget=budget)

    assert statuses(outcome) == [("before", "timeout")]
    assert outcome.refusal is not None
    assert outcome.refusal.__cause__ is not None
    cause = outcome.refusal.__cause__.__cause__
    assert isinstance(cause, HookTimeoutError)
    assert cause.timeout == (budget if budget == 0.02 else timeout)


async def test_the_budget_is_for_one_call_and_not_for_the_chain() -> None:
    chain = Chain([before(sleeping(0.2))], budget=1.0)

    for _ in range(6):
        assert (await lead(chain)).denied is None


async def test_the_budget_holds_where_hooks_have_no_limit_and_nobody_records() -> None:
    outcome = await run([before(hang)], budget=0.01, hook_timeout=math.inf, record=False)

    assert outcome.denied is not None
    assert outcome.executions == []


@for_each("budget", [0, -1, math.nan, "1", True, object(), 10**400])
def test_a_budget_that_makes_no_sense_is_refused(budget: Any) -> None:
    with pytest.raises(HookDefinitionError, match="budget"):
        Chain([], budget=budget)


@for_each("timeout", [0, -1, math.nan, "1", True, None, object()])
def test_a_hook_timeout_that_makes_no_sense_is_refused(timeout: Any) -> None:
    with pytest.raises(HookDefinitionError, match="hook_timeout"):
        Chain([], hook_timeout=timeout)


async def test_the_time_of_who_listens_to_a_failure_is_not_on_the_budget() -> None:
    def slow(sender: object, execution: HookExecution) -> None:
        if execution.hook_id == "broken":
            time.sleep(0.3)

    async def broken(call: Any, call_next: Any) -> Any:
        raise ValueError("broken")

    hooks = [around(broken, id="broken", on_error="open"), guard(lambda call: None, id="guard")]
    hook_executed.connect(slow)
    try:
        outcome = await run(hooks, budget=0.25)
    finally:
        hook_executed.disconnect(slow)

    assert outcome.denied is None
    assert statuses(outcome) == [("broken", "error"), ("guard", "ok")]


async def test_the_time_after_call_next_counts_once_where_a_filter_skips_the_hook_inside() -> None:
    async def slow_to_leave(call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        await anyio.sleep(0.3)
        return result

    skipped = around(through, tool="other/*", id="skipped")

    outcome = await run([around(slow_to_leave, timeout=10, id="slow"), skipped], budget=0.5)

    assert outcome.denied is None
    assert statuses(outcome) == [("slow", "ok")]


async def test_an_around_that_its_filter_skips_uses_none_of_the_budget() -> None:
    skipped = around(through, tool="other/*", id="skipped")

    outcome = await run([after(lambda call, result: None, id="after"), skipped], None, Tool(seconds=0.6), budget=0.5)

    assert outcome.denied is None
    assert statuses(outcome) == [("after", "ok")]
