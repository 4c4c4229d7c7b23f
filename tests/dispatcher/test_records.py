"""Records: one per handler run, sent by the dispatcher; and signals of operations that come and go."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from typing import Any

import anyio
import blinker
import pytest

from hookline import AfterToolCall, BeforeStep, BeforeToolCall, Hook, HookDispatcher, HookExecution, Hooks
from hookline.signals import hook_executed, operation_registered, operation_unregistered

from .samples import answered, asked, connected, for_ever, keep_busy, recorded, soon, step, turns, until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _every_receiver_is_disconnected_again() -> Any:
    yield
    for signal in (hook_executed, operation_registered, operation_unregistered):
        assert not signal.receivers


def hook(handler: Any, **changes: Any) -> Hook:
    return Hook(**{"id": "h", "type": BeforeStep, "handler": handler, **changes})


def handlers(*, is_async: bool) -> dict[str, Any]:
    def ok(event: Any) -> None:
        pass

    def error(event: Any) -> None:
        raise ValueError("bad")

    def mocked(event: Any) -> None:
        event.mock("x")

    def late(event: Any) -> None:
        event.mock("too late")

    def dressed(function: Any) -> Any:
        async def later(event: Any) -> None:
            await turns(1)
            function(event)

        return later if is_async else function

    return {
        name: dressed(function) for name, function in [("ok", ok), ("error", error), ("mocked", mocked), ("late", late)]
    }


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_every_run_of_a_handler_is_recorded_once(*, is_async: bool) -> None:
    of = handlers(is_async=is_async)
    async with HookDispatcher() as dispatcher:
        with recorded(dispatcher) as records:
            dispatcher.register("op", [hook(of["ok"], id="fine"), hook(of["error"], id="failing")])
            dispatcher.dispatch(step())
            dispatcher.dispatch(step())
            await dispatcher.unregister("op")

    assert [(each.hook_id, each.status) for each in records] == [("fine", "ok"), ("failing", "error")] * 2
    for record in records:
        assert isinstance(record, HookExecution)
        assert (record.hook_type, record.operation_id) == ("beforeStep", "op")
        assert type(record.hook_type) is str
        assert record.duration_ms >= 0
        assert (record.error is None) is (record.status == "ok")
    assert "bad" in (records[1].error or "")


@pytest.mark.parametrize("tool", [None, "*/search"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_the_special_dispatch_is_recorded_too(tool: str | None, *, is_async: bool) -> None:
    of = handlers(is_async=is_async)
    async with HookDispatcher() as dispatcher:
        dispatcher.register(
            "op", [hook(handler, id=name, type=BeforeToolCall, tool=tool) for name, handler in of.items()]
        )
        with recorded(dispatcher) as records:
            await dispatcher.dispatch_before_tool_call(asked())

    assert [(each.hook_id, each.status) for each in records] == [
        ("ok", "ok"),
        ("error", "error"),
        ("mocked", "mocked"),
        ("late", "ok"),
    ]
    assert {each.hook_type for each in records} == {"beforeToolCall"}


async def test_a_handler_that_mocks_and_then_raises_is_recorded_with_both() -> None:
    def both(event: BeforeToolCall) -> None:
        event.mock("x")
        raise ValueError("afterwards")

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(both, type=BeforeToolCall)])
        with recorded(dispatcher) as records:
            await dispatcher.dispatch_before_tool_call(asked())

    (record,) = records
    assert record.status == "mocked"
    assert "afterwards" in (record.error or "")


@pytest.mark.parametrize("kind", [BeforeStep, BeforeToolCall])
async def test_a_timeout_is_recorded(kind: Any) -> None:
    async def hang(event: Any) -> None:
        await for_ever()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(hang, type=kind, timeout=0.01)])
        with recorded(dispatcher) as records:
            if kind is BeforeStep:
                dispatcher.dispatch(step())
            else:
                await dispatcher.dispatch_before_tool_call(asked())
            await until(lambda: records)

    assert [each.status for each in records] == ["timeout"]
    assert records[0].duration_ms >= 5


async def test_a_plain_handler_that_overruns_its_timeout_is_told_apart() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: keep_busy(0.01), timeout=0.001)])
        with recorded(dispatcher) as records:
            dispatcher.dispatch(step())

    assert [each.status for each in records] == ["timeout"]


async def test_an_event_that_overflows_is_recorded_for_every_hook_that_misses_it() -> None:
    gate = anyio.Event()
    bundle = Hooks("bundle")

    async def wait(event: BeforeStep) -> None:
        await gate.wait()

    bundle.on(BeforeStep, id="one")(wait)
    bundle.on(BeforeStep, id="two")(wait)
    async with HookDispatcher(max_queued=1) as dispatcher, soon():
        dispatcher.register("op", [bundle])
        with recorded(dispatcher) as records:
            dispatcher.dispatch(step(index=0))
            await turns()
            dispatcher.dispatch(step(index=1))
            dispatcher.dispatch(step(index=2))

            assert [(each.hook_id, each.status, each.duration_ms) for each in records] == [
                ("one", "dropped", 0),
                ("two", "dropped", 0),
            ]
            assert records[0].error
            gate.set()
            await dispatcher.unregister("op")

    assert Counter((each.hook_id, each.status) for each in records) == {
        (name, status): count for name in ("one", "two") for status, count in (("ok", 2), ("dropped", 1))
    }


async def test_what_a_drain_cancels_is_recorded_as_dropped_exactly_once() -> None:
    bundle = Hooks("bundle")

    @bundle.on(BeforeStep, id="done")
    async def done(event: BeforeStep) -> None:
        pass

    @bundle.on(BeforeStep, id="hung")
    async def hang(event: BeforeStep) -> None:
        await for_ever()

    @bundle.on(BeforeStep, id="behind")
    async def behind(event: BeforeStep) -> None:
        pass

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle])
        with recorded(dispatcher) as records:
            dispatcher.dispatch(step())
            dispatcher.dispatch(step())
            await turns()
            await dispatcher.unregister("op", drain_timeout=0)
            await turns()

    assert Counter((each.hook_id, each.status) for each in records) == {
        ("done", "ok"): 1,
        ("hung", "dropped"): 2,
        ("behind", "dropped"): 2,
        ("done", "dropped"): 1,
    }


async def test_the_records_that_a_receiver_gets_that_came_late_name_no_hook_twice() -> None:
    bundle = Hooks("bundle")

    @bundle.on(BeforeStep, id="done")
    async def done(event: BeforeStep) -> None:
        await turns(1)

    @bundle.on(BeforeStep, id="hung")
    async def hang(event: BeforeStep) -> None:
        await for_ever()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step())
        await turns()
        with recorded(dispatcher) as records:
            await dispatcher.unregister("op", drain_timeout=0)

    assert [(each.hook_id, each.status) for each in records] == [("hung", "dropped")]


async def test_a_handlers_duration_is_its_own() -> None:
    gate = anyio.Event()

    async def slow(event: BeforeStep) -> None:
        await gate.wait()

    async def quick(event: BeforeStep) -> None:
        pass

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(slow, id="slow"), hook(quick, id="quick")])
        with recorded(dispatcher) as records:
            dispatcher.dispatch(step())
            await anyio.sleep(0.2)
            gate.set()
            await dispatcher.unregister("op")

    durations = {each.hook_id: each.duration_ms for each in records}
    assert durations["slow"] > 190
    assert durations["quick"] < durations["slow"] / 2


async def test_the_sender_is_the_dispatcher() -> None:
    senders: list[object] = []
    mine: list[HookExecution] = []

    def from_anyone(sender: object, execution: HookExecution) -> None:
        senders.append(sender)

    def from_the_first(sender: object, execution: HookExecution) -> None:
        mine.append(execution)

    async with HookDispatcher() as first, HookDispatcher() as second:
        with connected(hook_executed, from_anyone), connected(hook_executed, from_the_first, sender=first):
            for dispatcher in (first, second):
                dispatcher.register("op", [hook(lambda event: None)])
                dispatcher.dispatch(step())

        assert senders == [first, second]
        assert len(mine) == 1


async def test_a_filtered_handler_has_no_record() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: None, type=AfterToolCall, tool="*/pay")])
        dispatcher.register("op", [hook(lambda event: None, type=BeforeToolCall, tool="*/pay")])
        with recorded() as records:
            dispatcher.dispatch(answered())
            await dispatcher.dispatch_before_tool_call(asked())

    assert records == []


RECORDING = {"record", "record_dropped", "announce_execution", "announce_chain", "_announce", "described"}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_nothing_is_built_while_nobody_is_connected(*, is_async: bool) -> None:
    of = handlers(is_async=is_async)
    called: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        in_records = code.co_filename.endswith("hookline/execution/_handlers.py") and code.co_name in RECORDING
        if event == "call" and (in_records or code.co_filename.endswith("hookline/signals.py")):
            called.append(frame.f_code.co_name)

    async with HookDispatcher() as dispatcher:
        sys.setprofile(profile)
        try:
            dispatcher.register("op", [hook(of["ok"]), hook(of["mocked"], type=BeforeToolCall)])
            dispatcher.dispatch(step())
            await dispatcher.dispatch_before_tool_call(asked())
            await dispatcher.unregister("op")
        finally:
            sys.setprofile(None)

    assert called == []


async def test_a_receiver_that_is_gone_again_costs_and_gets_nothing() -> None:
    with recorded() as records:
        pass
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: None)])
        dispatcher.dispatch(step())

    assert records == []


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize("error", [ValueError("receiver"), _UnprintableError()], ids=lambda error: type(error).__name__)
async def test_a_receiver_that_raises_is_logged_and_harms_nobody(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def broken(sender: object, **keywords: object) -> None:
        raise error

    def fine(sender: object, **keywords: object) -> None:
        seen.append(keywords)

    async def work(event: BeforeStep) -> None:
        await turns(1)

    async with HookDispatcher() as dispatcher:
        for signal in (hook_executed, operation_registered, operation_unregistered):
            signal.connect(broken, weak=False)
            signal.connect(fine, weak=False)
        try:
            dispatcher.register("op", [hook(work), hook(lambda event: None), hook(work, type=BeforeToolCall)])
            dispatcher.dispatch(step())
            await dispatcher.dispatch_before_tool_call(asked())
            report = await dispatcher.unregister("op")
        finally:
            for signal in (hook_executed, operation_registered, operation_unregistered):
                signal.disconnect(broken)
                signal.disconnect(fine)

    assert report.delivered == 1
    assert len(seen) == 5
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 5


async def test_an_async_receiver_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def receiver(sender: object, **keywords: object) -> None:
        pytest.fail("nobody awaits it")

    async with HookDispatcher() as dispatcher:
        with connected(hook_executed, receiver), connected(operation_registered, receiver):
            dispatcher.register("op", [hook(lambda event: None)])
            dispatcher.dispatch(step())

    assert len(caplog.records) == 2
    assert "async" in caplog.text


async def test_a_receiver_may_disconnect_itself() -> None:
    seen: list[object] = []

    def once(sender: object, execution: HookExecution) -> None:
        seen.append(execution)
        hook_executed.disconnect(once)

    hook_executed.connect(once, weak=False)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: None)])
        dispatcher.dispatch(step())
        dispatcher.dispatch(step())

    assert len(seen) == 1


async def test_a_muted_signal_says_nothing() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: None)])
        with recorded() as records, hook_executed.muted():
            dispatcher.dispatch(step())

    assert records == []


async def test_a_receiver_connected_while_a_handler_runs_hears_of_the_next_one() -> None:
    gate, entered = anyio.Event(), anyio.Event()

    async def work(event: BeforeStep) -> None:
        entered.set()
        await gate.wait()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        dispatcher.dispatch(step())
        dispatcher.dispatch(step())
        await entered.wait()
        with recorded() as records:
            gate.set()
            await dispatcher.unregister("op")

    assert [each.status for each in records][-1] == "ok"


async def test_the_signals_are_blinker_signals() -> None:
    for signal in (hook_executed, operation_registered, operation_unregistered):
        assert isinstance(signal, blinker.Signal)


async def test_operations_that_come_and_go_are_announced_once() -> None:
    log: list[tuple[str, str]] = []

    def came(sender: object, operation_id: str) -> None:
        assert operation_id in sender.operations  # type: ignore[attr-defined]
        log.append(("came", operation_id))

    def went(sender: object, operation_id: str) -> None:
        assert operation_id not in sender.operations  # type: ignore[attr-defined]
        log.append(("went", operation_id))

    with connected(operation_registered, came), connected(operation_unregistered, went):
        async with HookDispatcher() as dispatcher:
            dispatcher.register("a", [])
            dispatcher.register("a", [hook(lambda event: None)])
            dispatcher.register("b", [])
            await dispatcher.unregister("a")
            await dispatcher.unregister("a")
            await dispatcher.unregister("unknown")
            dispatcher.register("a", [])

    assert log[:4] == [("came", "a"), ("came", "b"), ("went", "a"), ("came", "a")]
    assert sorted(log[4:]) == [("went", "a"), ("went", "b")]


async def test_a_refused_batch_announces_nothing() -> None:
    seen: list[object] = []
    with connected(operation_registered, lambda sender, **keywords: seen.append(keywords)):
        async with HookDispatcher() as dispatcher:
            with pytest.raises(ValueError):
                dispatcher.register("op", [hook(None)])

    assert seen == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_handlers_own_cancellation_is_recorded_as_its_error() -> None:
    async def careless(event: Any) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(careless), hook(careless, type=BeforeToolCall)])
        with recorded(dispatcher) as records:
            dispatcher.dispatch(step())
            await dispatcher.dispatch_before_tool_call(asked())
            await dispatcher.unregister("op")

    assert [each.status for each in records] == ["error", "error"]


async def test_an_id_is_the_hook_id_verbatim_also_when_it_is_not_unique() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: None, id="same"), hook(lambda event: None, id="same")])
        with recorded() as records:
            dispatcher.dispatch(step())

    assert [each.hook_id for each in records] == ["same", "same"]
