"""A relay gives what its coroutine emits, whoever reads it and however often both really wait."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookline
from hookline.adapters._stepping import GeneratorBridge, emit
from tests.adapters.suspending import suspend

Reader = Callable[[AsyncIterator[Any]], Awaitable[list[Any]]]


async def by_loop(relay: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in relay]


async def by_next(relay: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(await anext(relay))
        except StopAsyncIteration:
            return found


async def by_next_with_default(relay: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    while (each := await anext(relay, None)) is not None:
        found.append(each)
    return found


async def by_tasks(relay: AsyncIterator[Any]) -> list[Any]:
    found: list[Any] = []
    while (each := await asyncio.wait_for(asyncio.create_task(pull(relay)), 60)) is not None:
        found.append(each)
    return found


async def pull(relay: AsyncIterator[Any]) -> Any:
    return await anext(relay, None)


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
        relay = GeneratorBridge(work())
        return await read(relay), relay.result

    if fails:
        with pytest.raises(KeyError):
            asyncio.run(play())
    else:
        assert asyncio.run(play()) == ([each for each in script if each != "wait"], "over")


def test_a_relay_that_is_over_stays_over() -> None:
    async def work() -> None:
        await emit(1)

    async def play() -> list[list[Any]]:
        relay = GeneratorBridge(work())
        return [await by_loop(relay), await by_loop(relay), await by_next_with_default(relay)]

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


def test_nothing_of_ours_calls_anext_with_a_default() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in Path(hookline.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "anext" and len(node.args) > 1
    ]

    assert found == [], "It awaits a custom awaitable anew at each suspension; catch StopAsyncIteration instead."
