"""A coroutine that a framework runs step by step does what it would do if it were awaited."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline
from hookline.execution import GeneratorBridge, SteppedCall, emit
from tests.adapters.suspending import suspend

Reader = Callable[[AsyncIterator[Any]], Awaitable[list[Any]]]


async def by_loop(bridge: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in bridge]


async def by_next(bridge: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(await anext(bridge))
        except StopAsyncIteration:
            return found


async def by_next_with_default(bridge: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    while (each := await anext(bridge, None)) is not None:
        found.append(each)
    return found


async def by_tasks(bridge: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    while (each := await asyncio.wait_for(asyncio.create_task(pull(bridge)), 60)) is not None:
        found.append(each)
    return found


async def pull(bridge: AsyncIterator[Any]) -> Any:
    return await anext(bridge, None)


@pytest.mark.parametrize("read", [by_loop, by_next, by_next_with_default, by_tasks])
@given(script=st.lists(st.one_of(st.integers(0, 9), st.just("wait")), max_size=12), fails=st.booleans())
def test_every_reader_gets_what_was_emitted_in_order_and_the_error_at_its_place(
    read: Reader, script: list[Any], fails: bool
) -> None:
    async def work() -> str:
        for each in script:
            if each == "wait":
                await suspend()
            else:
                await emit(each)
        if fails:
            raise KeyError("broken")
        return "over"

    async def play() -> tuple[list[Any], str]:
        bridge = GeneratorBridge(work())
        return await read(bridge), bridge.result

    if fails:
        with pytest.raises(KeyError):
            asyncio.run(play())
    else:
        assert asyncio.run(play()) == ([each for each in script if each != "wait"], "over")


def test_a_bridge_that_has_ended_stays_ended() -> None:
    async def work() -> None:
        await emit(1)

    async def play() -> list[list[Any]]:
        bridge = GeneratorBridge(work())
        return [await by_loop(bridge), await by_loop(bridge), await by_next_with_default(bridge)]

    assert asyncio.run(play()) == [[1], [], []]


def test_a_cancellation_while_it_waits_reaches_the_coroutine() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def play() -> None:
        task = asyncio.create_task(pull(GeneratorBridge(work())))
        await suspend()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(play())
    assert seen == ["cancelled"]


current: ContextVar[str] = ContextVar("current", default="consumer")


def test_every_step_of_a_bridge_sees_and_sets_the_variables_of_its_context() -> None:
    seen: list[str] = []

    async def work() -> None:
        current.set("work")
        for _ in range(3):
            await suspend()
            await emit(current.get())

    async def play() -> None:
        async for value in GeneratorBridge(work(), copy_context()):
            seen.extend([value, current.get()])

    asyncio.run(play())
    assert seen == ["work", "consumer"] * 3


def test_an_error_thrown_into_a_bridge_is_raised_where_it_emitted_last() -> None:
    async def work() -> str:
        try:
            await emit(1)
        except KeyError:
            await suspend()
            await emit(2)
        return "over"

    async def play() -> tuple[list[Any], str]:
        bridge = GeneratorBridge(work())
        return [await anext(bridge), await bridge.athrow(KeyError("thrown")), *(await by_loop(bridge))], bridge.result

    assert asyncio.run(play()) == ([1, 2], "over")


class Layer(Exception):
    """Raised by a hook or by the work of a test."""


def layered(
    layers: list[str], log: list[str], work: Callable[[int], Awaitable[int]]
) -> Callable[[int], Awaitable[int]]:
    """Wrap the work as hooks do: each layer may wait, answer in its place, fail, recover from an error or call it."""
    if not layers:
        return work
    kind, inner = layers[0], layered(layers[1:], log, work)

    async def layer(given: int) -> int:
        log.append(f"enter {kind}")
        if kind == "answer":
            return 100
        if kind == "fail before":
            raise Layer(kind)
        if kind == "wait":
            await suspend()
        try:
            found = await inner(given + 1)
        except Layer:
            log.append(f"failed {kind}")
            if kind != "recover":
                raise
            found = 200
        if kind == "fail after":
            raise Layer(kind)
        return found * 2

    return layer


LAYERS = st.lists(st.sampled_from(["call", "wait", "answer", "recover", "fail before", "fail after"]), max_size=5)


@given(layers=LAYERS, fails=st.booleans())
def test_a_stepped_call_does_what_its_hooks_do_when_they_are_awaited(layers: list[str], fails: bool) -> None:
    async def outcome_of(call: Awaitable[int]) -> object:
        try:
            return await call
        except Layer as error:
            return str(error)

    async def awaited(log: list[str]) -> object:
        async def work(given: int) -> int:
            log.append(f"work {given}")
            if fails:
                raise Layer("work")
            return given

        return await outcome_of(layered(layers, log, work)(1))

    async def stepped(log: list[str]) -> object:
        open_calls: set[SteppedCall] = set()
        call = SteppedCall(open_calls)

        async def run() -> int:
            if not await call.begin(layered(layers, log, call.work)(1)):
                return int(call.result)
            assert open_calls == {call}
            log.append(f"work {call.given}")
            return int(await (call.end(error=Layer("work")) if fails else call.end(call.given)))

        outcome = await outcome_of(run())
        assert open_calls == set()
        return outcome

    logs: tuple[list[str], list[str]] = [], []

    assert asyncio.run(awaited(logs[0])) == asyncio.run(stepped(logs[1]))
    assert logs[0] == logs[1]


def test_nothing_of_ours_calls_anext_with_a_default() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in Path(hookline.__file__).parent.rglob("*.py")
        if "anext(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "anext" and len(node.args) > 1
    ]

    assert found == [], "It awaits a custom awaitable anew at each suspension; catch StopAsyncIteration instead."
