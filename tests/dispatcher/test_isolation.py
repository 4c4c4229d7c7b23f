"""Law 5: what goes wrong in a handler stays there; cancellation of the agent and `BaseException`s never do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

from hookline import BeforeCompact, BeforeStep, BeforeToolCall, Deny, Hook, HookDispatcher, Hooks
from tests.tables import for_each

from .samples import asked, for_ever, soon, step, turns, until

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Silent(Exception):
    def __str__(self) -> str:
        return ""


class Fatal(BaseException):
    """Something that nobody may swallow."""


def hook(handler: Any, **changes: Any) -> Hook:
    return Hook(**{"id": "the hook", "type": BeforeStep, "handler": handler, **changes})


def raising(error: BaseException) -> Callable[[Any], None]:
    def handler(event: Any) -> None:
        raise error

    return handler


def raising_later(error: BaseException, suspends: int = 1) -> Callable[[Any], Awaitable[None]]:
    async def handler(event: Any) -> None:
        await turns(suspends)
        raise error

    return handler


FAILURES = [ValueError("bad"), Unprintable(), Silent(), ExceptionGroup("both", [ValueError(), KeyError()]), StopIteration(), StopAsyncIteration(), TimeoutError(), AttributeError("operation_id"), KeyError(BeforeStep), RecursionError()]  # fmt: skip


@for_each("error", FAILURES, ids=lambda error: type(error).__name__)
@for_each("alone", [True, False], ids=["alone", "among others"])
async def test_an_exception_of_a_plain_handler_is_logged_and_the_next_runs(
    error: Exception, caplog: pytest.LogCaptureFixture, *, alone: bool
) -> None:
    seen: list[str] = []
    others = [] if alone else [hook(lambda event: seen.append("next"))]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(raising(error)), *others])

        dispatcher.dispatch(step())

    assert seen == ([] if alone else ["next"])
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("hookline", logging.ERROR)
    for word in ("the hook", "beforeStep", "op", type(error).__name__):
        assert word in record.getMessage()


@for_each("error", FAILURES, ids=lambda error: type(error).__name__)
@for_each("suspends", [0, 2])
async def test_an_exception_of_an_async_handler_is_logged_and_the_next_runs(
    error: Exception, suspends: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def following(event: BeforeStep) -> None:
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(raising_later(error, suspends)), hook(following)])
        for index in range(2):
            dispatcher.dispatch(step(index=index))
        report = await dispatcher.unregister("op")

    assert seen == [0, 1]
    assert (report.delivered, report.dropped) == (2, 0)
    assert len([record for record in caplog.records if "the hook" in record.getMessage()]) == 2


@for_each("error", FAILURES, ids=lambda error: type(error).__name__)
@for_each("is_async", [False, True], ids=["sync", "async"])
async def test_an_exception_in_the_special_dispatch_is_logged_and_the_next_runs(
    error: Exception, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    failing = (raising_later if is_async else raising)(error)
    async with HookDispatcher() as dispatcher:
        dispatcher.register(
            "op",
            [hook(failing, type=BeforeToolCall), hook(lambda event: event.mock("next"), type=BeforeToolCall)],
        )

        answer = await dispatcher.dispatch_before_tool_call(asked())

    assert answer is not None
    assert answer.content == "next"
    assert len(caplog.records) == 1


# --- what handlers return


class Awaitful:
    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


class Junk:
    """Everything about it raises."""

    def _no(self, *args: object) -> Any:
        raise RuntimeError("junk")

    __bool__ = __eq__ = __hash__ = __str__ = __repr__ = __len__ = __iter__ = __call__ = _no  # type: ignore[assignment]


@for_each("value", [0, 7, 1.5, False, True, object(), [], b"text", {1}, Junk(), NotImplemented, Deny, (n for n in "x")], ids=lambda value: type(value).__name__)  # fmt: skip
@for_each("is_async", [False, True], ids=["sync", "async"])
async def test_a_value_that_a_handler_returns_means_nothing(
    value: object, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    def at_once(event: object) -> object:
        return value

    async def later(event: object) -> object:
        return value

    handler = later if is_async else at_once
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(handler), hook(handler), hook(handler, type=BeforeToolCall)])

        dispatcher.dispatch(step())
        assert await dispatcher.dispatch_before_tool_call(asked()) is None
        await dispatcher.unregister("op")

    assert caplog.records == []


@for_each("alone", [True, False], ids=["alone", "among others"])
@for_each("make", [lambda: turns(1), Awaitful], ids=["coroutine", "awaitable"])
async def test_a_plain_handler_that_returns_an_awaitable_is_a_logged_mistake(
    make: Any, caplog: pytest.LogCaptureFixture, *, alone: bool
) -> None:
    seen: list[str] = []
    others = [] if alone else [hook(lambda event: seen.append("next"))]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: make()), *others])

        dispatcher.dispatch(step())

    assert len(caplog.records) == 1
    assert "async def" in caplog.text
    assert seen == ([] if alone else ["next"])


async def test_a_plain_handler_of_a_tool_call_that_returns_a_coroutine_is_a_logged_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(lambda event: turns(1), type=BeforeToolCall)])

        assert await dispatcher.dispatch_before_tool_call(asked()) is None

    assert "async def" in caplog.text


# --- timeouts


async def test_an_async_handler_that_hangs_is_cancelled_after_its_timeout_and_the_next_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    async def hang(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            log.append("cancelled")

    async def following(event: BeforeStep) -> None:
        log.append("next")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(hang, timeout=0.01), hook(following)])
        for _ in range(2):
            dispatcher.dispatch(step())
        report = await dispatcher.unregister("op")

    assert log == ["cancelled", "next"] * 2
    assert (report.delivered, report.dropped) == (2, 0)
    assert "timeout of 0.01 s" in caplog.text


async def test_the_default_timeout_is_the_dispatchers() -> None:
    async with HookDispatcher(hook_timeout=0.01) as dispatcher, soon():
        dispatcher.register("op", [hook(lambda_async(for_ever)), hook(lambda_async(for_ever), type=BeforeToolCall)])
        dispatcher.dispatch(step())

        assert await dispatcher.dispatch_before_tool_call(asked()) is None
        report = await dispatcher.unregister("op", drain_timeout=math.inf)

    assert report.delivered == 1


def lambda_async(function: Callable[[], Awaitable[object]]) -> Callable[[Any], Awaitable[None]]:
    async def handler(event: Any) -> None:
        await function()

    return handler


@for_each("timeout", [math.inf, 60, 1e300])
async def test_a_longer_timeout_of_the_hook_beats_the_dispatchers(timeout: float) -> None:
    seen: list[str] = []

    async def slow(event: BeforeStep) -> None:
        await anyio.sleep(0.03)
        seen.append("ended")

    async with HookDispatcher(hook_timeout=0.01) as dispatcher, soon():
        dispatcher.register("op", [hook(slow, timeout=timeout), hook(slow, timeout=timeout, type=BeforeToolCall)])
        dispatcher.dispatch(step())
        await dispatcher.dispatch_before_tool_call(asked())
        await dispatcher.unregister("op")

    assert seen == ["ended", "ended"]


async def test_no_timeout_of_one_handler_is_left_for_the_next() -> None:
    log: list[str] = []

    def sleeping(name: str, seconds: float) -> Any:
        async def handler(event: BeforeStep) -> None:
            try:
                await anyio.sleep(seconds)
                log.append(name)
            except anyio.get_cancelled_exc_class():
                log.append(f"{name} cancelled")
                raise

        return handler

    bundle = Hooks("bundle")
    bundle.on(BeforeStep, timeout=0.25)(sleeping("quick", 0))
    bundle.on(BeforeStep, timeout=5)(sleeping("slow", 0.3))
    bundle.on(BeforeStep, timeout=0.01)(sleeping("late", 60))
    bundle.on(BeforeStep, timeout=math.inf)(sleeping("free", 0.03))
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle])
        for _ in range(2):
            dispatcher.dispatch(step())
        await dispatcher.unregister("op", drain_timeout=math.inf)

    assert log == ["quick", "slow", "late cancelled", "free"] * 2


async def test_a_timeout_of_a_handler_inside_of_it_is_its_own_affair(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def careful(event: Any) -> None:
        with anyio.move_on_after(0.01):
            await for_ever()
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.01):
                await for_ever()
        seen.append(event.hook_type)

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(careful), hook(careful, type=BeforeToolCall)])
        dispatcher.dispatch(step())
        await dispatcher.dispatch_before_tool_call(asked())
        await dispatcher.unregister("op")

    assert sorted(seen) == ["beforeStep", "beforeToolCall"]
    assert caplog.records == []


async def test_a_handler_that_swallows_its_timeout_delays_nothing_but_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    async def stubborn(event: Any) -> None:
        try:
            await for_ever()
        except anyio.get_cancelled_exc_class():
            log.append("swallowed")

    async def following(event: Any) -> None:
        await turns(2)
        log.append("next")

    async with HookDispatcher() as dispatcher, soon():
        for kind in (BeforeStep, BeforeToolCall):
            dispatcher.register("op", [hook(stubborn, type=kind, timeout=0.01), hook(following, type=kind)])
        dispatcher.dispatch(step())
        report = await dispatcher.unregister("op")
        assert (report.delivered, report.dropped) == (1, 0)
        assert log == ["swallowed", "next"]
        dispatcher.register("op", [hook(stubborn, type=BeforeToolCall, timeout=0.01)])
        await dispatcher.dispatch_before_tool_call(asked())
        await turns()


# --- cancellation of its own


@ASYNCIO
@for_each("suspends", [0, 1])
@for_each("timeout", [None, math.inf, 5])
async def test_a_cancelled_future_that_a_handler_awaits_is_the_handlers_failure(
    suspends: int, timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def careless(event: Any) -> None:
        await turns(suspends)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def following(event: Any) -> None:
        seen.append(event.hook_type)

    async with HookDispatcher() as dispatcher, soon():
        for kind in (BeforeStep, BeforeToolCall):
            dispatcher.register("op", [hook(careless, type=kind, timeout=timeout), hook(following, type=kind)])
        dispatcher.dispatch(step())
        dispatcher.dispatch(step())
        await dispatcher.dispatch_before_tool_call(asked())
        report = await dispatcher.unregister("op")

    assert sorted(seen) == ["beforeStep", "beforeStep", "beforeToolCall"]
    assert (report.delivered, report.dropped) == (2, 0)
    assert caplog.text.count("without having been cancelled") == 3


# --- cancellation of the agent


@for_each("timeout", [None, 5, math.inf])
@for_each("tool", [None, "*/search"], ids=["every tool", "filtered"])
@for_each("swallows", [False, True, "raises"], ids=["passes on", "swallows", "raises another"])
async def test_the_agents_scope_is_cancelled_in_the_special_dispatch(
    timeout: float | None, tool: str | None, swallows: Any
) -> None:
    log: list[str] = []
    entered = anyio.Event()

    async def wait(event: BeforeToolCall) -> None:
        entered.set()
        try:
            await for_ever()
        except anyio.get_cancelled_exc_class():
            log.append("cancelled")
            if swallows == "raises":
                raise ValueError("instead") from None
            if not swallows:
                raise

    async with HookDispatcher() as dispatcher, soon(), anyio.create_task_group() as group:
        dispatcher.register("op", [hook(wait, type=BeforeToolCall, timeout=timeout, tool=tool)])

        async def agent() -> None:
            await dispatcher.dispatch_before_tool_call(asked())
            await anyio.lowlevel.checkpoint()
            log.append("went on")

        group.start_soon(agent)
        await entered.wait()
        group.cancel_scope.cancel()

    assert log == ["cancelled"]


@ASYNCIO
@for_each("tool", [None, "*/search"], ids=["every tool", "filtered"])
@for_each(
    ("timeout", "swallows"),
    # With math.inf nothing stands between the agent and the handler, so nobody notices what the handler swallows.
    [(None, False), (5, False), (math.inf, False), (None, True), (5, True), (None, "raises"), (5, "raises")],
)
@for_each("heard", [False, True], ids=["unheard", "recorded"])
async def test_the_agents_task_is_cancelled_in_the_special_dispatch(
    timeout: float | None, tool: str | None, swallows: Any, *, heard: bool
) -> None:
    from contextlib import nullcontext

    from .samples import recorded

    log: list[str] = []
    entered = asyncio.Event()

    async def wait(event: BeforeToolCall) -> None:
        entered.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            log.append("cancelled")
            if swallows == "raises":
                raise ValueError("instead") from None
            if not swallows:
                raise

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register(
            "op",
            [
                hook(wait, type=BeforeToolCall, timeout=timeout, tool=tool),
                hook(lambda event: log.append("next handler"), type=BeforeToolCall),
            ],
        )

        async def agent() -> None:
            await dispatcher.dispatch_before_tool_call(asked())
            log.append("went on")

        with recorded() if heard else nullcontext():
            task = asyncio.ensure_future(agent())
            await entered.wait()
            task.cancel()
            await asyncio.wait([task])

    assert task.cancelled()
    assert log == ["cancelled"]


@ASYNCIO
async def test_an_agent_cancelled_at_the_moment_of_a_timeout_is_cancelled() -> None:
    log: list[str] = []

    async def wait(event: BeforeToolCall) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            task.cancel()
            raise

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(wait, type=BeforeToolCall, timeout=0.01)])

        async def agent() -> None:
            await dispatcher.dispatch_before_tool_call(asked())
            await turns(1)
            log.append("went on")

        task = asyncio.ensure_future(agent())
        await asyncio.wait([task])

    assert task.cancelled()
    assert log == []


@ASYNCIO
async def test_a_timeout_leaves_no_cancellation_in_the_agents_task() -> None:
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(lambda_async(for_ever), type=BeforeToolCall, timeout=0.01)])

        for _ in range(2):
            await dispatcher.dispatch_before_tool_call(asked())

        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        async with asyncio.timeout(5):
            await turns()


async def test_an_agent_that_is_cancelled_does_not_take_its_queued_events_along() -> None:
    seen: list[str] = []

    async def work(event: BeforeStep) -> None:
        await turns(5)
        seen.append("delivered")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        with anyio.CancelScope() as scope:
            dispatcher.dispatch(step())
            scope.cancel()
            await for_ever()

        await until(lambda: seen)


async def test_a_dispatch_in_a_cancelled_scope_is_delivered_all_the_same() -> None:
    seen: list[str] = []

    async def work(event: BeforeStep) -> None:
        await turns(5)
        seen.append("delivered")

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(work)])
        with anyio.CancelScope() as scope:
            scope.cancel()
            dispatcher.dispatch(step())

        await until(lambda: seen)


# --- BaseException


@for_each("error", [Fatal("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=lambda error: type(error).__name__)  # fmt: skip
@for_each("alone", [True, False], ids=["alone", "among others"])
async def test_a_base_exception_of_a_plain_handler_reaches_the_caller(error: BaseException, *, alone: bool) -> None:
    others = [] if alone else [hook(lambda event: None)]
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(raising(error)), hook(raising(error), type=BeforeToolCall), *others])

        with pytest.raises(type(error)):
            dispatcher.dispatch(step())
        with pytest.raises(type(error)):
            await dispatcher.dispatch_before_tool_call(asked())
        assert list(dispatcher.operations) == ["op"]


@for_each("error", [Fatal("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=lambda error: type(error).__name__)  # fmt: skip
@for_each("suspends", [0, 1])
async def test_a_base_exception_of_an_async_handler_of_a_tool_call_reaches_the_caller(
    error: BaseException, suspends: int
) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(raising_later(error, suspends), type=BeforeToolCall)])

        with pytest.raises(type(error)):
            await dispatcher.dispatch_before_tool_call(asked())


@for_each("error", [Fatal("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=lambda error: type(error).__name__)  # fmt: skip
@for_each("suspends", [0, 1])
async def test_a_base_exception_in_a_lane_ends_the_dispatchers_async_with(error: BaseException, suspends: int) -> None:
    log: list[str] = []
    with pytest.raises(type(error)) as caught:
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [hook(raising_later(error, suspends))])
            dispatcher.dispatch(step())
            await for_ever()
            log.append("went on")

    assert caught.value is error
    assert log == []


async def test_a_base_exception_in_a_lane_cancels_the_other_lanes() -> None:
    log: list[str] = []

    async def hang(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            log.append("cancelled")

    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(hang)
    with pytest.raises(Fatal):
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [bundle, hook(raising_later(Fatal(), 3))])
            dispatcher.dispatch(step())
            await for_ever()

    assert log == ["cancelled"]


async def test_a_base_exception_during_the_last_drain_is_raised() -> None:
    with pytest.raises(Fatal):
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [hook(raising_later(Fatal(), 3))])
            dispatcher.dispatch(step())


async def test_a_base_exception_during_unregister_is_raised() -> None:
    log: list[str] = []
    with pytest.raises(Fatal):
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [hook(raising_later(Fatal(), 3))])
            dispatcher.dispatch(step())
            await dispatcher.unregister("op")
            await anyio.lowlevel.checkpoint()
            log.append("went on")

    assert log == []


@ASYNCIO
@for_each("how_many", [1, 3])
@for_each("body", ["waits", "raises in its finally", "swallows"])
async def test_a_base_exception_in_a_lane_leaves_the_task_uncancelled(how_many: int, body: str) -> None:
    bundles = [Hooks(f"b{number}") for number in range(how_many)]
    for bundle in bundles:
        bundle.on(BeforeStep)(raising_later(Fatal(), 0))
    with pytest.raises(BaseException) as caught:
        async with HookDispatcher() as dispatcher:
            dispatcher.register("op", bundles)
            dispatcher.dispatch(step())
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                if body == "waits":
                    raise
                if body == "raises in its finally":
                    raise LookupError("of the agent") from None
    cancelling = asyncio.current_task().cancelling()  # type: ignore[union-attr]
    while asyncio.current_task().cancelling():  # type: ignore[union-attr]
        asyncio.current_task().uncancel()  # type: ignore[union-attr]

    assert isinstance(caught.value, Fatal | BaseExceptionGroup)
    assert cancelling == 0


@pytest.mark.parametrize("when", ["at once", "when it is cancelled"])
async def test_base_exceptions_of_several_lanes_are_raised_as_a_group(when: str) -> None:
    errors = [Fatal("first"), Fatal("second")]

    async def follow(event: BeforeStep) -> None:
        try:
            if when == "when it is cancelled":
                await for_ever()
        finally:
            raise errors[1]

    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(follow)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [bundle, hook(raising_later(errors[0], 0 if when == "at once" else 1))])
            dispatcher.dispatch(step())
            await for_ever()

    assert len(caught.value.exceptions) == 2
    assert set(caught.value.exceptions) == set(errors)


@ASYNCIO
async def test_leaving_after_a_base_exception_takes_a_few_turns_of_the_event_loop() -> None:
    turn = 0

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    with pytest.raises(Fatal):
        async with HookDispatcher() as dispatcher:
            dispatcher.register("op", [hook(raising_later(Fatal(), 0))])
            dispatcher.dispatch(step())
            with contextlib.suppress(asyncio.CancelledError):
                await for_ever()
    counting.cancel()

    assert turn < 20


@ASYNCIO
@pytest.mark.parametrize("body", ["passes on", "swallows", "raises another"])
async def test_a_cancellation_by_somebody_else_is_not_taken_back_with_that_of_a_base_exception(body: str) -> None:
    log: list[str] = []

    async def agent() -> None:
        with contextlib.suppress(Fatal):
            async with HookDispatcher() as dispatcher:
                dispatcher.register("op", [hook(raising_later(Fatal(), 0))])
                dispatcher.dispatch(step())
                try:
                    await for_ever()
                except asyncio.CancelledError:
                    task.cancel()
                    if body == "passes on":
                        raise
                    if body == "raises another":
                        raise LookupError("of the agent") from None
        log.append("left")
        await turns(1)
        log.append("went on")

    task = asyncio.create_task(agent())
    await asyncio.wait([task])

    assert task.cancelled()
    assert log == ["left"]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_cancelled_handler_with_a_trio_nursery_harms_nobody() -> None:
    import trio

    async def parent(event: BeforeStep) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)

    async with soon(), HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(parent)])
        dispatcher.register("late", [hook(parent, timeout=0.01)])
        dispatcher.dispatch(step())
        dispatcher.dispatch(step("late"))
        await turns()
        report = await dispatcher.unregister("op", drain_timeout=0)
        late = await dispatcher.unregister("late")
        await turns()

        assert (report.delivered, report.dropped) == (0, 1)
        assert (late.delivered, late.dropped) == (1, 0)


@ASYNCIO
async def test_a_cancelled_handler_with_an_asyncio_task_group_harms_nobody() -> None:
    async def child() -> None:
        try:
            await for_ever()
        finally:
            raise ValueError("while cleaning up")

    async def parent(event: BeforeStep) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            await for_ever()

    async with soon(), HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(parent)])
        dispatcher.register("late", [hook(parent, timeout=0.01)])
        dispatcher.dispatch(step())
        dispatcher.dispatch(step("late"))
        await turns()
        report = await dispatcher.unregister("op", drain_timeout=0)
        late = await dispatcher.unregister("late")

        assert (report.delivered, report.dropped) == (0, 1)
        assert (late.delivered, late.dropped) == (1, 0)


async def test_the_log_of_a_lane_that_ended_names_the_handler_that_ended_it(caplog: pytest.LogCaptureFixture) -> None:
    async def suspends(event: BeforeStep) -> None:
        await turns(1)

    bundle = Hooks("bundle")
    bundle.on(BeforeStep, id="innocent")(suspends)
    bundle.on(BeforeCompact, id="guilty")(raising_later(Fatal(), 0))
    with pytest.raises(Fatal):
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [bundle])
            dispatcher.dispatch(step())
            dispatcher.dispatch(BeforeCompact(operation_id="op", step_index=0, message_count=1, token_count=1))
            await for_ever()

    assert "innocent" not in caplog.text


# --- leaving the dispatcher


async def test_a_clean_exit_drains_what_nobody_unregistered() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(3)
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher:
        for number in range(3):
            dispatcher.register(f"op{number}", [hook(work)])
            dispatcher.dispatch(step(f"op{number}", number))

    assert sorted(seen) == [0, 1, 2]


async def test_an_exit_by_an_exception_cancels_what_is_queued_and_lets_it_through() -> None:
    log: list[str] = []

    async def hang(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            log.append("cancelled")

    with pytest.raises(LookupError, match="mine"):
        async with soon(), HookDispatcher() as dispatcher:
            dispatcher.register("op", [hook(hang)])
            dispatcher.dispatch(step())
            dispatcher.dispatch(step())
            await turns()
            raise LookupError("mine")

    assert log == ["cancelled"]


async def test_an_exit_by_cancellation_cancels_what_is_queued() -> None:
    log: list[str] = []

    async def hang(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            log.append("cancelled")

    async with soon():
        with anyio.CancelScope() as scope:
            async with HookDispatcher() as dispatcher:
                dispatcher.register("op", [hook(hang)])
                dispatcher.dispatch(step())
                await turns()
                scope.cancel()
                await for_ever()

    assert scope.cancelled_caught
    assert log == ["cancelled"]


async def test_a_clean_exit_may_be_cancelled_while_it_drains() -> None:
    log: list[str] = []

    async def hang(event: BeforeStep) -> None:
        try:
            await for_ever()
        finally:
            log.append("cancelled")

    async with soon():
        with anyio.move_on_after(0.02) as scope:
            async with HookDispatcher() as dispatcher:
                dispatcher.register("op", [hook(hang)])
                dispatcher.dispatch(step())

        await until(lambda: log)
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})])
async def test_a_clean_exit_waits_for_five_seconds() -> None:
    took: list[float] = []

    async def hang(event: BeforeStep) -> None:
        began = trio.current_time()
        try:
            await trio.sleep(86_400)
        finally:
            took.append(trio.current_time() - began)

    async with HookDispatcher(hook_timeout=math.inf) as dispatcher:
        dispatcher.register("op", [hook(hang)])
        dispatcher.dispatch(step())

    assert took == pytest.approx([5])


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})])
async def test_a_handler_has_one_second_to_clean_up_before_it_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def deaf(event: BeforeStep) -> None:
        with anyio.CancelScope(shield=True):
            await trio.sleep(86_400)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(deaf)])
        dispatcher.dispatch(step())
        await turns()
        began = trio.current_time()
        await dispatcher.unregister("op", drain_timeout=0)
        took = trio.current_time() - began

    assert took == pytest.approx(1)
    assert caplog.text.count("ignores its cancellation") == 1


@ASYNCIO
async def test_leaving_does_not_wait_again_for_a_handler_that_was_left_behind() -> None:
    release = asyncio.Event()

    async def deaf(event: BeforeStep) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with anyio.move_on_after(1.6) as scope:
        async with HookDispatcher() as dispatcher:
            dispatcher.register("op", [hook(deaf)])
            dispatcher.dispatch(step())
            await turns()
            await dispatcher.unregister("op", drain_timeout=0)
    release.set()
    await turns()

    assert not scope.cancelled_caught
