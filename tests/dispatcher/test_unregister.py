"""Law 4: unregister removes first, then drains all lanes together, cancels the rest, and reports."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from typing import Any

import anyio
import pytest

from hookline import BeforeStep, DrainReport, Hook, HookDispatcher, Hooks
from tests.tables import for_each

from .samples import asked, for_ever, soon, step, turns, until

pytestmark = pytest.mark.anyio


def report(delivered: int, dropped: int) -> DrainReport:
    return DrainReport(delivered=delivered, dropped=dropped)


def hook(handler: Any, **changes: Any) -> Hook:
    return Hook(**{"id": "h", "type": BeforeStep, "handler": handler, **changes})


async def hang(event: BeforeStep) -> None:
    await for_ever()


async def test_an_unknown_operation_gives_an_empty_report() -> None:
    async with HookDispatcher() as dispatcher:
        assert await dispatcher.unregister("never") == report(0, 0)


async def test_an_operation_that_queued_nothing_gives_an_empty_report() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: None)])
        dispatcher.dispatch(step())

        assert await dispatcher.unregister("op") == report(0, 0)


async def test_unregister_waits_for_what_is_queued() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(3)
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(work)])
        for index in range(10):
            dispatcher.dispatch(step(index=index))

        assert await dispatcher.unregister("op") == report(10, 0)
        assert seen == list(range(10))


async def test_what_was_delivered_long_ago_still_counts() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        seen.append(1)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(work)])
        for index in range(3):
            dispatcher.dispatch(step())
            await until(lambda index=index: len(seen) == index + 1)
            await turns()

        assert await dispatcher.unregister("op") == report(3, 0)


async def test_counts_start_anew_with_each_registration_of_an_id() -> None:
    async def work(event: BeforeStep) -> None:
        pass

    async with HookDispatcher() as dispatcher:
        for _ in range(3):
            dispatcher.register("op", [hook(work)])
            dispatcher.dispatch(step())
            await turns()
            dispatcher.dispatch(step())

            assert await dispatcher.unregister("op") == report(2, 0)


async def test_the_operation_is_gone_before_the_drain_begins() -> None:
    gate = anyio.Event()
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await gate.wait()
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher, soon(), anyio.create_task_group() as group:
        dispatcher.register("op", [hook(work), hook(lambda event: seen.append(event.step_index))])
        dispatcher.dispatch(step(index=0))
        seen.clear()

        group.start_soon(dispatcher.unregister, "op")
        await turns()

        assert not dispatcher.operations
        assert not dispatcher.has_hooks("op")
        dispatcher.dispatch(step(index=1))
        assert await dispatcher.dispatch_before_tool_call(asked()) is None
        assert await dispatcher.unregister("op") == report(0, 0)
        gate.set()

    assert seen == [0]


async def test_hung_handlers_are_cancelled_and_reported() -> None:
    cancelled: list[str] = []
    bundles = [Hooks(name) for name in ("a", "b", "c")]

    async def work(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            cancelled.append("x")

    for bundle in bundles:
        bundle.on(BeforeStep)(work)
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", bundles)
        for index in range(4):
            dispatcher.dispatch(step(index=index))
        await turns()

        assert await dispatcher.unregister("op", drain_timeout=0.01) == report(0, 12)
        assert cancelled == ["x"] * 3


@for_each("drain_timeout", [0, 0.0, 0.001])
async def test_what_never_started_is_dropped(drain_timeout: float) -> None:
    seen: list[int] = []

    async def first_hangs(event: BeforeStep) -> None:
        seen.append(event.step_index)
        await for_ever()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(first_hangs)])
        for index in range(5):
            dispatcher.dispatch(step(index=index))

        assert await dispatcher.unregister("op", drain_timeout=drain_timeout) == report(0, 5)
        await turns()
        assert seen in ([], [0])


async def test_a_drain_timeout_of_zero_still_reports_what_was_delivered_before() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        seen.append(event.step_index)
        if event.step_index == 2:
            await for_ever()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        for index in range(5):
            dispatcher.dispatch(step(index=index))
        await until(lambda: seen == [0, 1, 2])

        assert await dispatcher.unregister("op", drain_timeout=0) == report(2, 3)


async def test_without_a_drain_limit_everything_is_delivered() -> None:
    async def work(event: BeforeStep) -> None:
        await turns(5)

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        for index in range(5):
            dispatcher.dispatch(step(index=index))

        assert await dispatcher.unregister("op", drain_timeout=math.inf) == report(5, 0)


async def test_lanes_are_drained_together_not_one_after_the_other() -> None:
    first_may_end = anyio.Event()
    first, second = Hooks("first"), Hooks("second")

    @first.on(BeforeStep)
    async def wait_for_the_other(event: BeforeStep) -> None:
        await first_may_end.wait()

    @second.on(BeforeStep)
    async def release(event: BeforeStep) -> None:
        await turns()
        first_may_end.set()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [first, second])
        dispatcher.dispatch(step())

        assert await dispatcher.unregister("op") == report(2, 0)


async def test_many_hung_lanes_share_one_drain_timeout() -> None:
    bundles = [Hooks(f"b{number}") for number in range(200)]
    for bundle in bundles:
        bundle.on(BeforeStep)(hang)
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", bundles)
        dispatcher.dispatch(step())

        assert await dispatcher.unregister("op", drain_timeout=0.05) == report(0, 200)


async def test_cancelled_handlers_have_cleaned_up_when_unregister_returns(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    async def work(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            with anyio.CancelScope(shield=True):
                await turns(5)
            log.append("clean")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        dispatcher.dispatch(step())
        await turns()

        await dispatcher.unregister("op", drain_timeout=0)

        assert log == ["clean"]
        assert "ignores its cancellation" not in caplog.text


async def test_a_handler_that_swallows_its_cancellation_counts_once() -> None:
    async def stubborn(event: BeforeStep) -> None:
        try:
            await for_ever()
        except anyio.get_cancelled_exc_class():
            pass

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(stubborn)])
        dispatcher.dispatch(step(index=0))
        dispatcher.dispatch(step(index=1))
        await turns()

        assert await dispatcher.unregister("op", drain_timeout=0) == report(0, 2)


async def test_a_handler_that_finishes_its_shielded_work_when_cancelled_counts_once() -> None:
    gate = anyio.Event()

    async def shielded(event: BeforeStep) -> None:
        with anyio.CancelScope(shield=True):
            await gate.wait()
            await turns(2)

    async with HookDispatcher() as dispatcher, soon(), anyio.create_task_group() as group:
        dispatcher.register("op", [hook(shielded)])
        dispatcher.dispatch(step())
        await turns()

        async def let_go() -> None:
            await anyio.sleep(0.02)
            gate.set()

        group.start_soon(let_go)
        result = await dispatcher.unregister("op", drain_timeout=0)

        assert result.delivered + result.dropped == 1


async def test_a_handler_that_raises_when_cancelled_counts_once_and_harms_nobody() -> None:
    async def untidy(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            raise ValueError("while cleaning up")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(untidy)])
        dispatcher.dispatch(step())
        await turns()

        assert await dispatcher.unregister("op", drain_timeout=0) == report(0, 1)
        await turns()


async def test_a_child_task_that_raises_when_cancelled_harms_nobody() -> None:
    async def untidy() -> None:
        try:
            await for_ever()
        finally:
            raise ValueError("while cleaning up")

    async def parent(event: BeforeStep) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever)
            group.start_soon(untidy)

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(parent)])
        dispatcher.dispatch(step())
        await turns()

        assert await dispatcher.unregister("op", drain_timeout=0) == report(0, 1)
        await turns()
        assert dispatcher.register("next", [hook(hang)])


async def test_after_a_swallowed_cancellation_no_further_handler_of_that_event_starts() -> None:
    started: list[str] = []
    bundle = Hooks("bundle")

    @bundle.on(BeforeStep)
    async def stubborn(event: BeforeStep) -> None:
        try:
            await for_ever()
        except anyio.get_cancelled_exc_class():
            pass

    @bundle.on(BeforeStep)
    async def behind(event: BeforeStep) -> None:
        started.append("behind")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step())
        await turns()
        await dispatcher.unregister("op", drain_timeout=0)
        await turns()

        assert started == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_handler_that_ignores_its_cancellation_is_left_behind_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = asyncio.Event()
    ended: list[str] = []

    async def deaf(event: BeforeStep) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.append("at last")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(deaf)])
        dispatcher.dispatch(step())
        await turns()

        assert await dispatcher.unregister("op", drain_timeout=0) == report(0, 1)
        assert "ignores its cancellation" in caplog.text
        assert ended == []
        release.set()
        await until(lambda: ended)


# --- unregister from inside of a handler


@pytest.mark.parametrize("drain_timeout", [5.0, math.inf])
async def test_a_handler_that_unregisters_its_own_operation_does_not_wait_for_itself(drain_timeout: float) -> None:
    results: list[DrainReport] = []
    log: list[str] = []
    bundle = Hooks("bundle")
    async with HookDispatcher() as dispatcher, soon():

        @bundle.on(BeforeStep)
        async def stop(event: BeforeStep) -> None:
            await turns(1)
            log.append(f"stop{event.step_index}")
            results.append(await dispatcher.unregister("op", drain_timeout=drain_timeout))

        @bundle.on(BeforeStep)
        async def behind(event: BeforeStep) -> None:
            await turns(1)
            log.append(f"behind{event.step_index}")

        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step(index=0))
        dispatcher.dispatch(step(index=1))
        dispatcher.dispatch(step(index=2))
        await until(lambda: "behind0" in log)
        await turns()

    assert log == ["stop0", "behind0"]
    assert results == [report(1, 2)]


@for_each("index", range(4))
async def test_the_event_whose_handler_unregisters_its_operation_counts_beside_those_before(index: int) -> None:
    results: list[DrainReport] = []
    async with HookDispatcher() as dispatcher, soon():

        async def stop(event: BeforeStep) -> None:
            await turns(event.step_index % 2)
            if event.step_index == index:
                results.append(await dispatcher.unregister("op"))

        dispatcher.register("op", [hook(stop)])
        for number in range(5):
            dispatcher.dispatch(step(index=number))
        await until(lambda: results)

    assert results == [report(index + 1, 4 - index)]


async def test_a_task_that_outlives_its_handler_waits_for_the_lane_as_anybody_else() -> None:
    log: list[Any] = []
    gate = anyio.Event()
    async with HookDispatcher() as dispatcher, soon(), anyio.create_task_group() as group:

        async def unregister() -> None:
            await gate.wait()
            log.append(await dispatcher.unregister("op"))

        async def work(event: BeforeStep) -> None:
            if event.step_index == 0:
                group.start_soon(unregister)
            else:
                gate.set()
                await turns()
            log.append(event.step_index)

        dispatcher.register("op", [hook(work)])
        for index in range(3):
            dispatcher.dispatch(step(index=index))
        await until(lambda: len(log) == 4)

    assert log == [0, 1, 2, report(3, 0)]


async def test_a_handler_that_unregisters_its_own_operation_waits_for_the_other_lanes() -> None:
    log: list[str] = []
    results: list[DrainReport] = []
    one, other = Hooks("one"), Hooks("other")
    async with HookDispatcher() as dispatcher, soon():

        @one.on(BeforeStep)
        async def stop(event: BeforeStep) -> None:
            results.append(await dispatcher.unregister("op"))
            log.append("stopped")

        @other.on(BeforeStep)
        async def slow(event: BeforeStep) -> None:
            await turns(20)
            log.append("other")

        dispatcher.register("op", [one, other])
        dispatcher.dispatch(step())
        await until(lambda: "stopped" in log)

    assert log == ["other", "stopped"]
    assert results == [report(2, 0)]


async def test_all_lanes_of_an_operation_may_unregister_it_at_once() -> None:
    results: list[DrainReport] = []
    async with HookDispatcher() as dispatcher, soon():

        async def stop(event: BeforeStep) -> None:
            results.append(await dispatcher.unregister("op"))

        bundles = [Hooks(f"b{number}") for number in range(3)]
        for bundle in bundles:
            bundle.on(BeforeStep)(stop)
        dispatcher.register("op", bundles)
        dispatcher.dispatch(step())
        await until(lambda: len(results) == 3)

    assert sorted((each.delivered, each.dropped) for each in results) == [(0, 0), (0, 0), (3, 0)]


async def test_a_handler_that_unregisters_within_a_child_task_waits_for_itself_no_longer_than_the_drain() -> None:
    ended: list[str] = []
    async with HookDispatcher() as dispatcher, soon():

        async def unregister() -> None:
            await dispatcher.unregister("op", drain_timeout=0.02)

        async def stop(event: BeforeStep) -> None:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(unregister)
            finally:
                ended.append("x")

        dispatcher.register("op", [hook(stop)])
        dispatcher.dispatch(step())

        await until(lambda: ended)
        assert not dispatcher.operations


async def test_a_plain_handler_may_have_its_operation_unregistered_by_a_task() -> None:
    results: list[DrainReport] = []
    async with HookDispatcher() as dispatcher, soon(), anyio.create_task_group() as group:

        async def unregister() -> None:
            results.append(await dispatcher.unregister("op"))

        async def work(event: BeforeStep) -> None:
            await turns(3)

        dispatcher.register("op", [hook(work), hook(lambda event: group.start_soon(unregister))])
        dispatcher.dispatch(step())
        await until(lambda: results)

    assert results == [report(1, 0)]


async def test_a_handler_of_a_tool_call_may_unregister_its_operation() -> None:
    log: list[str] = []
    async with HookDispatcher() as dispatcher, soon():

        async def stop(event: Any) -> None:
            await dispatcher.unregister("op")
            log.append("stopped")

        from hookline import BeforeToolCall

        dispatcher.register(
            "op",
            [hook(stop, type=BeforeToolCall), hook(lambda event: event.mock("behind"), type=BeforeToolCall)],
        )

        answer = await dispatcher.dispatch_before_tool_call(asked())

        assert answer is not None
        assert answer.content == "behind"
        assert await dispatcher.dispatch_before_tool_call(asked()) is None


# --- cancelled, repeated, overlapping


async def test_unregister_cancelled_in_the_middle_stops_the_handlers_and_lets_the_cancellation_through() -> None:
    log: list[str] = []

    async def work(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            log.append("cancelled")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        dispatcher.dispatch(step())
        await turns()

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel() -> None:
                    await turns()
                    scope.cancel()

                group.start_soon(cancel)
                await dispatcher.unregister("op", drain_timeout=math.inf)
                log.append("went on")

        await until(lambda: log)
        assert log == ["cancelled"]
        assert not dispatcher.operations
        assert await dispatcher.unregister("op") == report(0, 0)


async def test_unregister_cancelled_while_handlers_clean_up_waits_for_them_all_the_same() -> None:
    log: list[str] = []

    async def work(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await turns(5)
            log.append("clean")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        dispatcher.dispatch(step())
        await turns()

        with anyio.CancelScope() as scope:
            await dispatcher.unregister("op", drain_timeout=0)
            log.append("unregistered")
            await for_ever()

        assert scope.cancelled_caught
        assert log == ["clean", "unregistered"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_unregister_cancelled_by_its_task_stops_the_handlers() -> None:
    log: list[str] = []

    async def work(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            log.append("cancelled")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        dispatcher.dispatch(step())
        task = asyncio.ensure_future(dispatcher.unregister("op"))
        await turns()
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: log == ["cancelled"])


async def test_an_id_may_be_used_again_during_the_drain() -> None:
    gate = anyio.Event()
    log: list[str] = []
    results: list[DrainReport] = []
    bundle = Hooks("bundle")

    @bundle.on(BeforeStep)
    async def work(event: BeforeStep) -> None:
        if event.step_index == 0:
            await gate.wait()
        log.append(f"step{event.step_index}")

    async with HookDispatcher() as dispatcher, soon(), anyio.create_task_group() as group:

        async def drain() -> None:
            results.append(await dispatcher.unregister("op"))

        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step(index=0))
        group.start_soon(drain)
        await turns()

        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step(index=1))
        dispatcher.dispatch(step(index=2))
        await until(lambda: "step2" in log)
        assert results == []
        gate.set()
        await until(lambda: results)

        assert log == ["step1", "step2", "step0"]
        assert results == [report(1, 0)]
        assert list(dispatcher.operations) == ["op"]
        assert await dispatcher.unregister("op") == report(2, 0)


async def test_unregister_does_not_wait_for_other_operations() -> None:
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("hung", [hook(hang)])
        dispatcher.register("op", [hook(turns_once)])
        dispatcher.dispatch(step("hung"))
        dispatcher.dispatch(step("op"))

        assert await dispatcher.unregister("op") == report(1, 0)
        assert await dispatcher.unregister("hung", drain_timeout=0) == report(0, 1)


async def turns_once(event: BeforeStep) -> None:
    await turns(1)


async def test_two_operations_that_unregister_each_other_do_not_block_for_ever() -> None:
    async with HookDispatcher() as dispatcher, soon():

        async def stop(event: BeforeStep) -> None:
            other = "b" if event.operation_id == "a" else "a"
            await dispatcher.unregister(other, drain_timeout=0.02)

        for operation_id in "ab":
            dispatcher.register(operation_id, [hook(stop)])
        for operation_id in "ab":
            dispatcher.dispatch(step(operation_id))

        await until(lambda: not dispatcher.operations)

    assert not dispatcher.operations


async def test_after_unregister_nothing_of_the_operation_is_reachable() -> None:
    class Resource:
        pass

    held = Resource()
    gone = weakref.ref(held)

    async def make(dispatcher: HookDispatcher, resource: Any) -> None:
        async def work(event: BeforeStep) -> None:
            await turns(1)
            resource

        def work_at_once(event: BeforeStep) -> None:
            resource

        bundle = Hooks("bundle")
        bundle.on(BeforeStep)(work)
        dispatcher.register("op", [bundle, hook(work_at_once), hook(work)])

    async with HookDispatcher() as dispatcher:
        await make(dispatcher, held)
        dispatcher.dispatch(step())
        await dispatcher.unregister("op")
        await turns()

        del held
        gc.collect()
        assert gone() is None


async def test_a_dispatcher_keeps_nothing_of_a_removed_registration_alive() -> None:
    class Resource:
        def note(self, event: BeforeStep) -> None:
            pass

    resource = Resource()
    gone = weakref.ref(resource)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [])
        registration = dispatcher.register("op", [hook(resource.note)])
        registration.remove()

        del resource, registration
        gc.collect()
        assert gone() is None


# --- operation()


async def test_operation_registers_and_unregisters() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(2)
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher:
        async with dispatcher.operation("op", [hook(work)]) as registration:
            assert list(dispatcher.operations) == ["op"]
            assert registration.operation_id == "op"
            dispatcher.dispatch(step())

        assert seen == [0]
        assert not dispatcher.operations


async def test_operation_unregisters_after_an_error_and_lets_it_through() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(2)
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher:
        with pytest.raises(LookupError, match="mine"):
            async with dispatcher.operation("op", [hook(work)]):
                dispatcher.dispatch(step())
                raise LookupError("mine")

        assert seen == [0]
        assert not dispatcher.operations


async def test_operation_unregisters_and_drains_when_it_is_cancelled() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(5)
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher, soon():
        with anyio.CancelScope() as scope:
            async with dispatcher.operation("op", [hook(work)]):
                dispatcher.dispatch(step())
                scope.cancel()
                await for_ever()

        assert scope.cancelled_caught
        assert seen == [0]
        assert not dispatcher.operations


async def test_operation_drains_when_it_is_cancelled_together_with_its_dispatcher() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(5)
        seen.append(event.step_index)

    async with soon():
        with anyio.CancelScope() as scope:
            async with HookDispatcher() as dispatcher, dispatcher.operation("op", [hook(work)]):
                for index in range(2):
                    dispatcher.dispatch(step(index=index))
                scope.cancel()
                await for_ever()

    assert scope.cancelled_caught
    assert seen == [0, 1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_operation_unregisters_when_its_task_is_cancelled() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(5)
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher, soon():

        async def run() -> None:
            async with dispatcher.operation("op", [hook(work)]):
                dispatcher.dispatch(step())
                await for_ever()

        task = asyncio.ensure_future(run())
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert seen == [0]
        assert not dispatcher.operations


async def test_operation_with_bad_hooks_leaves_nothing_behind() -> None:
    from hookline.errors import HookDefinitionError

    async with HookDispatcher() as dispatcher:
        with pytest.raises(HookDefinitionError):
            async with dispatcher.operation("op", [hook(None)]):
                pytest.fail("entered")

        assert not dispatcher.operations


async def test_operation_may_be_unregistered_inside() -> None:
    async with HookDispatcher() as dispatcher, dispatcher.operation("op", [hook(turns_once)]):
        dispatcher.dispatch(step())
        assert await dispatcher.unregister("op") == report(1, 0)
