"""Nothing of an operation outlives it."""

from __future__ import annotations

import gc
import logging
import sys
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio.lowlevel
import pytest

from hookline import AfterToolCall, BeforeStep, BeforeToolCall, HookDispatcher, Hooks
from tests.tables import for_each

from .samples import answered, asked, for_ever, recorded, soon, step, turns, until

pytestmark = pytest.mark.anyio


async def left_behind(run: Callable[[str], Awaitable[None]]) -> int:
    """How many more blocks of memory are in use after a run than before it, when it was run twice already.

    Whatever is kept is one block at least, so that one object of each operation shows. A run is given the beginning of
    its operations' ids, so that what is kept by id does not take the place of what earlier runs have left.
    """
    await run("first")
    gc.collect()
    await run("second")  # caches of tracebacks and code lines, and free lists, take two rounds to fill
    gc.collect()
    before = sys.getallocatedblocks()
    await run("third")
    gc.collect()
    return sys.getallocatedblocks() - before


def closure_for(number: int, alive: weakref.WeakSet[Any]) -> Callable[[Any], None]:
    """A handler of one operation only, that holds something."""
    payload = [number] * 20

    def handler(event: Any) -> None:
        payload[0] = event.step_index

    alive.add(handler)
    return handler


async def test_a_thousand_operations_leave_nothing_behind() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    count = 1_000
    async with HookDispatcher() as dispatcher:

        async def run(name: str) -> None:
            for number in range(count):
                bundle = Hooks("bundle")
                bundle.on(BeforeStep)(closure_for(number, alive))
                dispatcher.register(f"{name}{number}", [bundle])
                dispatcher.dispatch(step(f"{name}{number}"))
                await dispatcher.unregister(f"{name}{number}")

        left = await left_behind(run)

        assert len(alive) == 0
        assert len(dispatcher.operations) == 0
        assert left < count / 10


async def test_operations_that_live_at_once_leave_nothing_behind() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    count = 1_000
    async with HookDispatcher() as dispatcher:

        async def run(name: str) -> None:
            for number in range(count):
                bundle = Hooks("bundle")
                bundle.on(BeforeStep)(closure_for(number, alive))
                bundle.on(BeforeToolCall)(closure_for(number, alive))
                dispatcher.register(f"{name}{number}", [bundle])
            assert len(dispatcher.operations) == count
            for number in range(count):
                await dispatcher.unregister(f"{name}{number}")

        left = await left_behind(run)

        assert len(alive) == 0
        assert len(dispatcher.operations) == 0
        assert left < count / 10


@for_each("fate", ["drained", "cancelled", "removed", "recorded", "failed"])
async def test_operations_with_queued_events_leave_nothing_behind(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Failures are formatted, and nobody keeps them.
    monkeypatch.setattr(logging.getLogger("hookline"), "filters", [lambda record: False])
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    count = 300

    def later(number: int) -> Any:
        payload = [number] * 20

        async def handler(event: Any) -> None:
            await turns(1)
            if fate == "cancelled":
                await for_ever()
            if fate == "failed":
                raise ValueError(payload)

        alive.add(handler)
        return handler

    async with HookDispatcher() as dispatcher:

        async def live(operation_id: str, number: int) -> None:
            bundle = Hooks("bundle")
            bundle.on(BeforeStep)(later(number))
            bundle.on(BeforeToolCall)(later(number))
            registration = dispatcher.register(operation_id, [bundle])
            dispatcher.dispatch(step(operation_id))
            dispatcher.dispatch(step(operation_id))
            if fate == "removed":
                registration.remove()
            if fate != "cancelled":
                await dispatcher.dispatch_before_tool_call(asked(operation_id))
            else:
                await turns(2)
            await dispatcher.unregister(operation_id, drain_timeout=0 if fate == "cancelled" else 5)

        async def run(name: str) -> None:
            for number in range(count):
                await live(f"{name}{number}", number)
            await turns()

        async def run_recorded(name: str) -> None:
            with recorded() as records:
                await run(name)
                assert len(records) == 3 * count

        left = await left_behind(run_recorded if fate == "recorded" else run)

        assert len(alive) == 0
        assert len(dispatcher.operations) == 0
        assert left < count / 2  # formatting tracebacks leaves some 50 blocks, however many there are


async def test_operations_that_share_a_bundle_cost_little_while_they_live() -> None:
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: None)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("warm up", [bundle])
        ids = [f"op{number}" for number in range(10_000)]
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for operation_id in ids:
                dispatcher.register(operation_id, [bundle])
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert (after - before) / len(ids) < 120  # 10,000 fill a table less than most numbers do


@contextmanager
def no_collections() -> Iterator[None]:
    """Keep the garbage collector from running, so that what a cycle keeps stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_no_cycle_keeps_an_operation_until_the_next_collection() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    async with HookDispatcher() as dispatcher:
        with no_collections():
            for number in range(100):
                bundle = Hooks("bundle")
                bundle.on(BeforeStep)(closure_for(number, alive))
                dispatcher.register("op", [bundle])
                dispatcher.dispatch(step())
                await dispatcher.unregister("op")
                del bundle

            assert len(alive) == 0


async def test_no_cycle_keeps_what_a_lane_has_run_after_the_drain() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    async with HookDispatcher() as dispatcher:
        with no_collections():
            for number in range(100):
                bundle, holds = Hooks("bundle"), closure_for(number, alive)

                async def work(event: BeforeStep, holds: Callable[[Any], None] = holds) -> None:
                    await turns(1)
                    holds(event)

                bundle.on(BeforeStep)(work)
                dispatcher.register("op", [bundle])
                dispatcher.dispatch(step())
                report = await dispatcher.unregister("op")
                assert report.delivered == 1
                del bundle, holds, work

            assert len(alive) == 0


async def test_an_event_is_not_kept_after_it_was_delivered() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    seen: list[str] = []
    bundle = Hooks("bundle")

    class Payload:
        pass

    @bundle.on(BeforeStep)
    async def work(event: BeforeStep) -> None:
        await turns(1)
        seen.append("x")

    bundle.on(AfterToolCall)(work)
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle])
        payload = Payload()
        alive.add(payload)
        dispatcher.dispatch(answered(args={"held": payload}))
        del payload
        await until(lambda: seen)
        await turns()
        gc.collect()

        assert len(alive) == 0
        assert list(dispatcher.operations) == ["op"]


async def test_the_dispatcher_itself_is_collected_after_it_was_left() -> None:
    bundle = Hooks("shared")

    @bundle.on(BeforeStep)
    async def work(event: BeforeStep) -> None:
        await turns(1)

    dispatcher = HookDispatcher()
    async with dispatcher:
        registration = dispatcher.register("op", [bundle])
        dispatcher.dispatch(step())
    gone = weakref.ref(dispatcher)
    del dispatcher, registration
    await turns()
    gc.collect()

    assert gone() is None


async def test_a_dispatcher_with_a_receiver_of_its_records_is_collected() -> None:
    with recorded():
        dispatcher = HookDispatcher()
        async with dispatcher, dispatcher.operation("op", [Hooks("bundle")]):
            dispatcher.dispatch(step())
        gone = weakref.ref(dispatcher)
        del dispatcher
        await anyio.lowlevel.checkpoint()
        gc.collect()

        assert gone() is None
