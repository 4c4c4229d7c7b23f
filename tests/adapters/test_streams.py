"""A stream whose values come from a task of its own ends with that task, however its reader leaves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hookline.adapters._streams import stream_values

Emit = Callable[[Any], Awaitable[None]]
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_values_come_in_order_and_no_faster_than_they_are_read() -> None:
    sent: list[int] = []

    async def work(emit: Emit) -> None:
        for number in range(3):
            sent.append(number)
            await emit(number)

    ahead = [len(sent) - value async for value in stream_values(work)]

    assert sent == [0, 1, 2]
    assert max(ahead) <= 2


async def test_an_error_of_the_work_comes_behind_its_values() -> None:
    async def work(emit: Emit) -> None:
        await emit("first")
        raise ValueError("broken")

    stream = stream_values(work)

    assert await anext(stream) == "first"
    with pytest.raises(ValueError, match="broken"):
        await anext(stream)


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_reader_that_is_cancelled_again_and_again_leaves_no_work_behind(times: int) -> None:
    reading, may_end = asyncio.Event(), asyncio.Event()
    order: list[str] = []

    async def work(emit: Emit) -> None:
        try:
            await emit("first")
            reading.set()
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            order.append("work")

    async def reader() -> None:
        try:
            _ = [value async for value in stream_values(work)]
        finally:
            order.append("reader")

    task = asyncio.create_task(reader())
    await reading.wait()
    for _ in range(times):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert order == ["work", "reader"]


async def test_a_stream_may_be_closed_in_another_task() -> None:
    ended: list[bool] = []

    async def work(emit: Emit) -> None:
        try:
            while True:
                await emit("again")
        finally:
            ended.append(True)

    stream = stream_values(work)
    assert await anext(stream) == "again"
    await asyncio.create_task(stream.aclose())

    assert ended == [True]


async def test_an_error_behind_a_closed_stream_is_not_logged_as_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def work(emit: Emit) -> None:
        try:
            await emit("first")
            await emit("second")
        finally:
            raise ValueError("while it cleaned up")

    stream = stream_values(work)
    assert await anext(stream) == "first"
    await stream.aclose()
    del stream
    gc.collect()

    assert caplog.text == ""
