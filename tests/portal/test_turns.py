"""What the event loop of a portal runs without a turn is what its turns would run."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import Context, ContextVar

import pytest

from hookline.execution import open_portal, run_in_caller


@pytest.fixture(autouse=True)
def used_before() -> None:
    """Use the event loop once, since the first use takes turns."""
    with open_portal() as portal:
        portal.run(asyncio.sleep, 0)


@pytest.fixture(params=["none", "timer", "thread", "generator"])
def wait_before(request: pytest.FixtureRequest) -> Callable[[], object]:
    """What has asked the event loop for a turn before."""
    seen: list[int] = []

    async def numbers() -> AsyncIterator[int]:
        yield 1

    async def iterate() -> None:
        seen.extend([each async for each in numbers()])

    def wait() -> object:
        loop = asyncio.get_running_loop()
        if request.param == "timer":
            return loop.call_later(60, seen.append, 1).cancel
        if request.param == "thread":
            thread = threading.Thread(target=loop.call_soon_threadsafe, args=(seen.append, 1))
            thread.start()
            thread.join()
        return loop.create_task(iterate()) if request.param == "generator" else None

    return wait


def test_callbacks_run_in_their_order_unless_they_are_cancelled(wait_before: Callable[[], object]) -> None:
    order: list[int] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(order.append, 1)
        loop.call_soon(order.append, 2).cancel()
        kept = wait_before()
        loop.call_soon(order.append, 3)
        loop.call_soon(order.append, 4)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del kept

    with open_portal() as portal:
        portal.run(work)

    assert order == [1, 3, 4]


def test_a_callback_that_fails_is_reported_and_delays_nothing(wait_before: Callable[[], object]) -> None:
    reported: list[object] = []

    async def work() -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        loop.call_soon(int, "none")
        kept = wait_before()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del kept
        return "done"

    with open_portal() as portal:
        assert portal.run(work) == "done"
    assert [type(each) for each in reported] == [ValueError]


def test_a_callback_sees_the_event_loop_that_runs_it() -> None:
    async def work() -> list[bool]:
        loop = asyncio.get_running_loop()
        found: list[bool] = []
        loop.call_soon(lambda: found.append(asyncio.get_running_loop() is loop and loop.is_running()))
        with pytest.raises(RuntimeError, match="already running"):
            loop.run_forever()
        await asyncio.sleep(0)
        return found

    with open_portal() as portal:
        assert portal.run(work) == [True]


def test_what_a_coroutine_sets_it_finds_after_it_waited_even_if_its_context_was_empty() -> None:
    variable: ContextVar[str] = ContextVar("variable")

    async def work() -> str:
        variable.set("set")
        await run_in_caller(int)
        return variable.get("lost")

    with open_portal() as portal:
        assert Context().run(portal.run, work) == "set"


def test_a_timer_rings_though_the_first_call_waited_for_nothing() -> None:
    rang = threading.Event()

    async def begin() -> None:
        asyncio.get_running_loop().call_later(0.01, rang.set)

    with open_portal() as portal:
        portal.run(begin)
        portal.run(asyncio.sleep, 0.02)

        assert rang.is_set()


def test_a_callback_of_another_thread_runs_with_the_next_call() -> None:
    ran: list[str] = []

    async def own_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with open_portal() as portal:
        loop = portal.run(own_loop)
        loop.call_soon_threadsafe(ran.append, "callback")
        portal.run(own_loop)

        assert ran == ["callback"]


def test_a_file_that_is_ready_is_read_with_the_next_call() -> None:
    ours, theirs = socket.socketpair()
    received: list[bytes] = []

    async def watch() -> None:
        asyncio.get_running_loop().add_reader(ours, lambda: received.append(ours.recv(10)))

    async def unwatch() -> None:
        await asyncio.sleep(0)
        asyncio.get_running_loop().remove_reader(ours)

    with ours, theirs, open_portal() as portal:
        portal.run(watch)
        theirs.send(b"word")
        portal.run(unwatch)

    assert received == [b"word"]


def test_an_async_generator_that_was_left_is_closed_in_the_event_loop() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def leave() -> None:
        async for _ in numbers():
            break

    async def wait() -> None:
        while not closed:
            await asyncio.sleep(0)

    with open_portal() as portal:
        portal.run(leave)
        portal.run(asyncio.wait_for, wait(), 30)

    assert closed == [True]


def test_a_callback_that_is_left_over_runs_before_the_portal_is_used_again() -> None:
    ran: list[str] = []

    async def leave() -> None:
        asyncio.get_running_loop().call_soon(ran.append, "left")
        await run_in_caller(int)

    with open_portal() as portal:
        portal.run(leave)
    with open_portal() as portal:
        portal.run(asyncio.sleep, 0)

    assert ran == ["left"]
