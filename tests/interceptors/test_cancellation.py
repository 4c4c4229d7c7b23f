"""What cancels the caller goes on through the chain: nothing further starts, nothing is left, and a record says so."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from time import perf_counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline.calls import ToolResult
from hookline.interceptors import Chain
from tests.tables import for_each

from .calls import SECOND, Tool, after, around, before, guard, hook, keep_busy, recorded, tool_call, turns, until

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
KINDS = ["before", "guard", "around", "after"]
OPTIONS = pytest.mark.parametrize("options", [{}, {"record": False, "hook_timeout": math.inf}], ids=["timed", "bare"])


async def through(call: Any, call_next: Any) -> Any:
    return await call_next(call)


async def cancelled_inside(chain: Chain, entered: list[str], terminal: Any) -> bool:
    """Run a chain and cancel it from outside once somebody is in it; whether it came out as cancelled."""
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def work() -> None:
                with scope:
                    await chain.run(tool_call(), terminal)
                    entered.append("came back")

            group.start_soon(work)
            await until(lambda: entered)
            scope.cancel()
    return scope.cancelled_caught and "came back" not in entered


def hanging(entered: list[str], log: list[str]) -> Any:
    async def handler(*args: Any) -> None:
        entered.append("in")
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    return handler


@for_each("kind", KINDS)
@for_each("on_error", ["open", "closed"])
@OPTIONS
async def test_a_cancellation_in_a_hook_goes_on_and_leaves_a_record(kind: str, on_error: str, options: Any) -> None:
    entered: list[str] = []
    log: list[str] = []
    hooks = [
        around(through, id="outer", priority=0),
        hook(kind, hanging(entered, log), id="hung", on_error=on_error),
        after(lambda call, result: log.append("after"), priority=1),
    ]
    tool = Tool()

    with recorded() as records:
        assert await cancelled_inside(Chain(hooks, **options), entered, tool)

    assert log == ["cancelled"]
    assert len(tool.calls) == (kind == "after")
    assert ("hung", "dropped") in [(each.hook_id, each.status) for each in records]
    assert "outer" in [each.hook_id for each in records]


@for_each("on_error", ["open", "closed"])
@OPTIONS
async def test_a_cancellation_in_the_terminal_is_nobodys_failure(on_error: str, options: Any) -> None:
    entered: list[str] = []
    log: list[str] = []
    hooks = [
        around(through, on_error=on_error),
        around(through, on_error=on_error),
        after(lambda *args: log.append("after")),
    ]

    with recorded() as records:
        assert await cancelled_inside(Chain(hooks, **options), entered, hanging(entered, log))

    assert log == ["cancelled"]
    assert all(each.status in ("ok", "dropped") for each in records)
    assert len(records) == 2


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_a_cancellation_reaches_background_hooks(kind: str) -> None:
    entered: list[str] = []
    log: list[str] = []
    hooks = [hook(kind, hanging(entered, log), id="hung", wait=False)]

    with recorded() as records:
        assert await cancelled_inside(Chain(hooks), entered, Tool())

    assert log == ["cancelled"]
    assert [(each.hook_id, each.status) for each in records] == [("hung", "dropped")]


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_the_record_of_a_background_hook_that_was_cancelled_says_when_and_how_long_it_ran(kind: str) -> None:
    entered: list[str] = []
    took: list[float] = []

    async def hung(*args: Any) -> None:
        began = perf_counter()
        entered.append("in")
        keep_busy(0.01)
        try:
            await anyio.sleep_forever()
        finally:
            took.append(perf_counter() - began)

    began, wall = perf_counter(), time.time_ns()
    with recorded() as records:
        assert await cancelled_inside(Chain([hook(kind, hung, wait=False)]), entered, Tool())

    assert [each.status for each in records] == ["dropped"]
    assert took[0] * 1e3 <= records[0].duration_ms <= (perf_counter() - began) * 1e3
    assert wall - SECOND <= records[0].time_unix_nano <= time.time_ns() + SECOND


async def test_background_hooks_do_not_start_after_a_cancellation() -> None:
    entered: list[str] = []
    log: list[str] = []
    hooks = [
        before(lambda call: log.append("before"), wait=False),
        after(lambda call, result: log.append("after"), wait=False),
        guard(hanging(entered, log)),
    ]

    assert await cancelled_inside(Chain(hooks), entered, Tool())
    await turns()

    assert log == ["cancelled"]


SWALLOWING = [*((kind, "its own work") for kind in KINDS), ("around", "call_next")]


@for_each(("kind", "where"), SWALLOWING)
@for_each("says", ["none", "result", "error"])
@OPTIONS
async def test_a_hook_that_swallows_the_callers_cancellation_does_not_keep_the_call_going(
    kind: str, where: str, says: str, options: Any
) -> None:
    entered: list[str] = []
    log: list[str] = []

    async def stubborn(*args: Any) -> Any:
        try:
            if where == "call_next":
                await args[1](args[0])
            entered.append("in")
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if says == "error":
                raise ValueError from None
        return ToolResult(content="x") if says == "result" and kind in ("around", "after") else None

    async def terminal(call: Any) -> Any:
        log.append("terminal")
        if where == "call_next":
            entered.append("in")
            await anyio.sleep_forever()
        return ToolResult(content="work")

    hooks = [
        hook(kind, stubborn, priority=500, on_error="open"),
        guard(lambda call: log.append("further in"), priority=999),
        after(lambda call, result: log.append("further out"), priority=1),
    ]
    assert await cancelled_inside(Chain(hooks, **options), entered, terminal)

    ran_before = kind == "after" or where == "call_next"
    assert log == (["further in", "terminal"] if ran_before else [])


@for_each("says", ["none", "result", "error"])
@OPTIONS
async def test_nor_does_it_in_a_chain_of_nothing_but_arounds(says: str, options: Any) -> None:
    entered: list[str] = []
    log: list[str] = []

    async def stubborn(call: Any, call_next: Any) -> Any:
        try:
            return await call_next(call)
        except anyio.get_cancelled_exc_class():
            if says == "error":
                raise ValueError from None
        return ToolResult(content="x") if says == "result" else None

    async def outer(call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        log.append("went on")
        return result

    async def terminal(call: Any) -> Any:
        entered.append("in")
        await anyio.sleep_forever()

    hooks = [around(outer, priority=1), around(stubborn, priority=2, on_error="open")]
    assert await cancelled_inside(Chain(hooks, **options), entered, terminal)
    assert log == []


@ASYNCIO
@pytest.mark.parametrize(("kind", "where"), SWALLOWING)
async def test_a_hook_that_swallows_a_plain_asyncio_cancel_does_not_keep_the_call_going(kind: str, where: str) -> None:
    entered: list[str] = []

    async def stubborn(*args: Any) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            if where == "call_next":
                await args[1](args[0])
            entered.append("in")
            await asyncio.sleep(60)

    async def terminal(call: Any) -> Any:
        if where == "call_next":
            entered.append("in")
            await asyncio.sleep(60)
        return ToolResult(content="work")

    task = asyncio.create_task(Chain([hook(kind, stubborn, on_error="open")]).run(tool_call(), terminal))
    await until(lambda: entered)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)


@ASYNCIO
@pytest.mark.parametrize("kind", KINDS)
async def test_a_plain_asyncio_cancel_ends_the_run_once_and_for_all(kind: str) -> None:
    entered: list[str] = []
    log: list[str] = []
    task = asyncio.create_task(Chain([hook(kind, hanging(entered, log))]).run(tool_call(), Tool()))
    await until(lambda: entered)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["cancelled"]
    assert task.cancelled()


@ASYNCIO
async def test_a_timeout_around_the_whole_run_is_the_callers_own() -> None:
    entered: list[str] = []
    log: list[str] = []

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Chain([around(through), before(hanging(entered, log))]).run(tool_call(), Tool())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Chain([around(through), before(hanging(entered, log))]).run(tool_call(), Tool()), 0.01)

    assert log == ["cancelled"] * 2
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@ASYNCIO
async def test_a_cancel_and_a_timeout_at_once_are_a_cancel() -> None:
    entered: list[str] = []

    async def slow_to_die(call: Any) -> None:
        entered.append("in")
        try:
            await asyncio.sleep(60)
        finally:
            entered.append("dying")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)

    tool = Tool()
    task = asyncio.create_task(Chain([before(slow_to_die, timeout=0.01, on_error="open")]).run(tool_call(), tool))
    await until(lambda: "dying" in entered)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)

    assert tool.calls == []


async def test_a_cancelled_run_leaves_the_chain_fit_for_the_next() -> None:
    entered: list[str] = []
    log: list[str] = []
    hung = True

    async def sometimes(call: Any) -> None:
        if hung:
            await hanging(entered, log)(call)

    chain = Chain([before(sometimes), around(through)])
    assert await cancelled_inside(chain, entered, Tool())
    hung = False
    with anyio.fail_after(5):
        outcome = await chain.run(tool_call(), Tool())

    assert outcome.unwrap().content == "result"


@for_each("kind", KINDS)
async def test_a_hook_may_clean_up_when_it_is_cancelled(kind: str) -> None:
    entered: list[str] = []
    log: list[str] = []

    async def tidy(*args: Any) -> None:
        entered.append("in")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
                log.append("clean")

    assert await cancelled_inside(Chain([hook(kind, tidy)]), entered, Tool())

    assert log == ["clean"]


@ASYNCIO
@pytest.mark.parametrize("background", [False, True])
async def test_no_task_is_left_after_a_cancellation(*, background: bool) -> None:
    entered: list[str] = []
    log: list[str] = []

    async def elsewhere(call: Any, call_next: Any) -> Any:
        return await asyncio.wait_for(call_next(call), 60)

    hooks = [around(elsewhere), around(elsewhere)]
    if background:
        hooks.append(before(hanging([], log), wait=False))
    before_tasks = asyncio.all_tasks()
    assert await cancelled_inside(Chain(hooks), entered, hanging(entered, log))
    await turns()

    assert asyncio.all_tasks() <= before_tasks
    assert log == ["cancelled"] * (1 + background)


async def test_a_coroutine_that_is_closed_in_the_middle_closes_its_hook() -> None:
    log: list[str] = []

    async def hung(call: Any) -> None:
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            log.append("closed")

    coroutine = Chain([before(hung)], record=False, hook_timeout=math.inf).run(tool_call(), Tool())
    coroutine.send(None)
    coroutine.close()

    assert log == ["closed"]
