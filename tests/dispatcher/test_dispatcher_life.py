"""Law 6 and the small print: gates, tenants, wrong times, several dispatchers."""

from __future__ import annotations

import gc
import inspect
import tracemalloc
import weakref
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args

import anyio
import pytest
from events.samples import example
from ids import without_address

from hookline import (
    AfterToolCall,
    BeforeStep,
    BeforeToolCall,
    DrainReport,
    Event,
    Hook,
    HookDispatcher,
    HooklineError,
    Hooks,
    HookType,
    OnComplete,
)
from hookline.errors import HookUsageError
from hookline.webhooks import ControlAnswer, Envelope, ServedBy
from tests.tables import for_each

from .samples import answered, asked, soon, step, turns

pytestmark = pytest.mark.anyio


def hook(handler: Any = lambda event: None, **changes: Any) -> Hook:
    return Hook(**{"id": "h", "type": BeforeStep, "handler": handler, **changes})


async def test_dispatching_for_an_unknown_operation_does_nothing() -> None:
    seen: list[object] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("other", [hook(seen.append)])

        dispatcher.dispatch(step("unknown"))

        assert seen == []
        assert list(dispatcher.operations) == ["other"]


@for_each("kind", get_args(Event), ids=lambda kind: kind.__name__)
@for_each("is_async", [False, True], ids=["sync", "async"])
async def test_has_hooks_by_class_by_hook_type_by_wire_name_and_for_any(kind: Any, *, is_async: bool) -> None:
    async def later(event: object) -> None:
        pass

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(later if is_async else print, type=kind)])

        for other in get_args(Event):
            for name in (other, other.hook_type, str(other.hook_type), HookType(other.hook_type)):
                assert dispatcher.has_hooks("op", name) is (other is kind)
                assert dispatcher.has_hooks("unknown", name) is False
        assert dispatcher.has_hooks("op") is True
        assert dispatcher.has_hooks("op", None) is True
        assert dispatcher.has_hooks("unknown") is False


@for_each("name", ["beforeLunch", "", 3, object, Hooks, [], step(), b"beforeStep", Event])
async def test_has_hooks_of_something_that_is_no_event_is_a_mistake(name: Any) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook()])

        with pytest.raises(HookUsageError):
            dispatcher.has_hooks("op", name)


@for_each("thing", [None, 3, "beforeStep", object(), Hooks("x"), BeforeStep], ids=without_address)
async def test_dispatching_something_that_is_no_event_is_a_mistake(thing: Any) -> None:
    async with HookDispatcher() as dispatcher:
        with pytest.raises(HookUsageError):
            dispatcher.dispatch(thing)


async def test_operations_is_a_live_collection() -> None:
    async with HookDispatcher() as dispatcher:
        live = dispatcher.operations
        assert isinstance(live, Collection)
        assert len(live) == 0

        dispatcher.register("a", [])
        dispatcher.register("b", [hook()])

        assert list(dispatcher.operations) == ["a", "b"]
        assert "a" in dispatcher.operations
        assert "c" not in dispatcher.operations
        await dispatcher.unregister("a")
        assert list(dispatcher.operations) == ["b"]
    assert len(dispatcher.operations) == 0


# --- tenants


@for_each("is_async", [False, True], ids=["sync", "async"])
@for_each("tool", [None, "*/search"])
async def test_observers_of_a_tenant_do_not_run_for_another_tenants_events(tool: str | None, *, is_async: bool) -> None:
    seen: list[tuple[str, str]] = []
    bundles = []
    for owner in ("", "me", "them"):
        bundle = Hooks(f"of {owner}", tenant_id=owner)

        def note(event: Any, owner: str = owner) -> None:
            seen.append((owner, event.tenant_id))

        async def note_later(event: Any, owner: str = owner) -> None:
            seen.append((owner, event.tenant_id))

        bundle.on(AfterToolCall, tool=tool)(note_later if is_async else note)
        bundles.append(bundle)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", bundles)
        for tenant in ("", "me", "them", "ME", "other"):
            dispatcher.dispatch(answered(tenant_id=tenant))
        report = await dispatcher.unregister("op")

    assert sorted(seen) == sorted(
        [("", tenant) for tenant in ("", "me", "them", "ME", "other")] + [("me", "me"), ("them", "them")]
    )
    assert report.delivered == (7 if is_async else 0)


# --- the wrong time


async def attempts(dispatcher: HookDispatcher) -> dict[str, bool]:
    """Which calls are refused."""

    async def operation() -> None:
        async with dispatcher.operation("op"):
            pass

    async def wrapped(call: Any) -> None:
        call()

    refused = {}
    for name, call in {
        "register": wrapped(lambda: dispatcher.register("op", [hook()])),
        "unregister": dispatcher.unregister("op"),
        "has_hooks": wrapped(lambda: dispatcher.has_hooks("op")),
        "has_hooks by class": wrapped(lambda: dispatcher.has_hooks("op", BeforeStep)),
        "has_hooks by name": wrapped(lambda: dispatcher.has_hooks("op", HookType.BEFORE_STEP)),
        "has_hooks special": wrapped(lambda: dispatcher.has_hooks("op", BeforeToolCall)),
        "dispatch": wrapped(lambda: dispatcher.dispatch(step())),
        "dispatch special": ask(dispatcher),
        "operation": operation(),
    }.items():
        try:
            await call
            refused[name] = False
        except HookUsageError:
            refused[name] = True
    return refused


async def ask(dispatcher: HookDispatcher) -> None:
    await dispatcher.dispatch_before_tool_call(asked())


async def test_everything_is_refused_before_entering_and_after_leaving() -> None:
    dispatcher = HookDispatcher()

    before = await attempts(dispatcher)
    async with dispatcher:
        inside = await attempts(dispatcher)
    after = await attempts(dispatcher)

    assert all(before.values()), before
    assert not any(inside.values()), inside
    assert all(after.values()), after


async def test_everything_is_refused_after_leaving_by_an_exception() -> None:
    dispatcher = HookDispatcher()
    with pytest.raises(LookupError):
        async with dispatcher:
            dispatcher.register("op", [hook()])
            raise LookupError

    assert all((await attempts(dispatcher)).values())
    assert not dispatcher.operations


async def test_a_dispatcher_cannot_be_entered_twice() -> None:
    async with HookDispatcher() as dispatcher:
        with pytest.raises(HookUsageError):
            async with dispatcher:
                pytest.fail("entered twice")
        dispatcher.register("op", [hook()])
        assert dispatcher.has_hooks("op")
    with pytest.raises(HookUsageError):
        async with dispatcher:
            pytest.fail("entered again")


async def test_operations_may_be_read_before_entering() -> None:
    assert list(HookDispatcher().operations) == []


async def test_a_usage_error_is_a_hookline_error() -> None:
    assert issubclass(HookUsageError, HooklineError)


async def test_a_handler_that_dispatches_while_its_operation_drains_harms_nobody() -> None:
    log: list[str] = []
    async with HookDispatcher() as dispatcher, soon():

        async def work(event: BeforeStep) -> None:
            await turns(3)
            dispatcher.dispatch(step(index=1))
            log.append("dispatched")

        dispatcher.register("op", [hook(work)])
        dispatcher.dispatch(step())
        report = await dispatcher.unregister("op")

    assert log == ["dispatched"]
    assert (report.delivered, report.dropped) == (1, 0)


# --- several dispatchers


async def test_two_dispatchers_share_a_bundle_and_nothing_else() -> None:
    gate = anyio.Event()
    log: list[tuple[str, int]] = []
    bundle = Hooks("shared")

    @bundle.on(BeforeStep)
    async def work(event: BeforeStep) -> None:
        if event.user_id == "first":
            await gate.wait()
        log.append((event.user_id, event.step_index))

    bundle.on(BeforeToolCall)(lambda event: event.mock(event.user_id) and None)
    async with HookDispatcher() as first, HookDispatcher(max_queued=1) as second, soon():
        first.register("op", [bundle])
        second.register("op", [bundle])
        for index in range(3):
            first.dispatch(step(user_id="first", index=index))
        second.dispatch(step(user_id="second"))

        assert (await second.unregister("op")).delivered == 1
        assert log == [("second", 0)]
        assert list(first.operations) == ["op"]
        assert not second.operations
        gate.set()
        report = await first.unregister("op")
        assert (report.delivered, report.dropped) == (3, 0)
        for dispatcher, name in ((first, "a"), (second, "b")):
            dispatcher.register("op", [bundle])
            answer = await dispatcher.dispatch_before_tool_call(asked(user_id=name))
            assert answer is not None
            assert answer.content == name


async def test_one_dispatcher_may_be_left_while_the_other_goes_on() -> None:
    seen: list[str] = []
    bundle = Hooks("shared")
    bundle.on(BeforeStep)(lambda event: seen.append("x"))
    async with HookDispatcher() as outer:
        outer.register("op", [bundle])
        async with HookDispatcher() as inner:
            inner.register("op", [bundle])
        outer.dispatch(step())

    assert seen == ["x"]


async def test_a_dispatcher_works_in_every_task_of_its_loop() -> None:
    seen: list[int] = []

    async def work(event: BeforeStep) -> None:
        await turns(1)
        seen.append(event.step_index)

    async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:

        async def agent(number: int) -> None:
            with anyio.CancelScope() as scope:
                dispatcher.register(f"op{number}", [hook(work)])
                dispatcher.dispatch(step(f"op{number}", number))
                scope.cancel()
            with anyio.CancelScope(shield=True):
                await dispatcher.unregister(f"op{number}")

        for number in range(20):
            group.start_soon(agent, number)

    assert sorted(seen) == list(range(20))


async def test_events_of_every_kind_reach_their_handlers() -> None:

    seen: list[str] = []
    bundle = Hooks("bundle")
    for kind in get_args(Event):
        bundle.on(kind)(lambda event: seen.append(event.hook_type))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])

        for kind in get_args(Event):
            if kind is BeforeToolCall:
                await dispatcher.dispatch_before_tool_call(example(kind))
            else:
                dispatcher.dispatch(example(kind))

    assert seen == [kind.hook_type for kind in get_args(Event)]


async def test_an_operation_id_may_look_like_anything() -> None:
    seen: list[str] = []
    async with HookDispatcher() as dispatcher:
        for operation_id in ("beforeStep", "None", " ", "ünï/cödé\n", "x" * 10_000):
            dispatcher.register(operation_id, [hook(lambda event: seen.append(event.operation_id))])
            dispatcher.dispatch(step(operation_id))
            assert seen.pop() == operation_id
            await dispatcher.unregister(operation_id)

        assert not dispatcher.has_hooks("beforeStep", OnComplete)


# --- what it gives back, and what it takes


def test_a_drain_report_is_read_only_and_names_its_counts() -> None:
    report = DrainReport(delivered=1, dropped=2)

    with pytest.raises(AttributeError):
        report.delivered = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        DrainReport(1, 2)  # type: ignore[misc]


async def test_two_registrations_of_one_bundle_are_not_the_same() -> None:
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: None)
    async with HookDispatcher() as dispatcher:
        first, second = dispatcher.register("op", [bundle]), dispatcher.register("op", [bundle])

        assert first != second


async def test_the_collector_need_not_look_at_operations_that_are_idle() -> None:
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: None)
    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [bundle])
        report = await dispatcher.unregister("op")

        assert not gc.is_tracked(registration)
        assert not gc.is_tracked(report)


def test_the_limits_are_those_that_the_reference_names() -> None:
    dispatcher = HookDispatcher()

    assert (dispatcher.hook_timeout, dispatcher.max_queued, dispatcher.chain_budget) == (30.0, 10_000, None)


@for_each(("peak", "live"), [(2048, 255), (1025, 128), (1024, None)])
async def test_tables_shrink_once_fewer_than_an_eighth_of_their_operations_are_live(
    peak: int, live: int | None
) -> None:
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: None)
    shrunk = []
    async with HookDispatcher() as dispatcher:
        tracemalloc.start()
        try:
            for number in range(peak + 1):
                dispatcher.register(str(number), [bundle])
            before = tracemalloc.get_traced_memory()[0]
            for number in range(peak + 1):
                await dispatcher.unregister(str(number))
                after = tracemalloc.get_traced_memory()[0]
                if before - after > 20_000:  # two tables of so many take 36,000 bytes each and more, an operation 200
                    shrunk.append(len(dispatcher.operations))
                before = after
        finally:
            tracemalloc.stop()

    assert shrunk[:1] == ([] if live is None else [live])


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_dispatcher_gives_back_the_memory_of_operations_that_are_gone(rounds: int) -> None:
    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(lambda event: None)
    async with HookDispatcher() as dispatcher:
        await dispatcher.unregister("unknown")
        dispatcher.register("first", [bundle])
        await dispatcher.unregister("first")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(rounds):
                for number in range(4000):
                    dispatcher.register(str(number), [bundle])
                for number in range(4000):
                    await dispatcher.unregister(str(number))
            left = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()

    assert left < 60_000  # the tables of so many take 150,000 bytes each


async def test_a_dispatcher_that_was_left_keeps_no_handler_of_its_operations() -> None:
    def handler(event: BeforeStep) -> None: ...

    bundle = Hooks("bundle")
    bundle.on(BeforeStep)(handler)
    gone = weakref.ref(handler)
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [bundle])
    del bundle, handler
    gc.collect()

    assert gone() is None
    assert dispatcher.max_queued == 10_000  # it is still there


async def test_an_operation_id_may_be_of_a_class_of_ones_own() -> None:
    class OperationId(str):
        __slots__ = ()

    async with HookDispatcher() as dispatcher:
        dispatcher.register(OperationId("op"), [])

        assert list(dispatcher.operations) == ["op"]


class Posted:
    """Takes envelopes, and keeps them."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        self.envelopes.extend(envelopes)

    async def request(self, envelope: Envelope, *, timeout: float) -> ControlAnswer:
        raise NotImplementedError

    def serve(self, name: str, handler: ServedBy) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    async def aclose(self) -> None: ...


async def test_a_hook_that_is_data_is_carried_by_the_delivery_that_the_dispatcher_was_given() -> None:
    posted = Posted()
    hook = Hook(id="far", type=BeforeStep, webhook={"url": "https://example.org/far"})
    async with HookDispatcher(delivery=posted) as dispatcher:
        dispatcher.register("op", [hook])
        dispatcher.dispatch(example(BeforeStep))
        await dispatcher.unregister("op")

        assert dispatcher.delivery is posted
    assert [(envelope.hook.id, envelope.operation_id) for envelope in posted.envelopes] == [("far", "op")]


def test_options_go_by_keyword_and_operations_drain_for_five_seconds() -> None:
    with pytest.raises(TypeError):
        HookDispatcher(30.0)  # type: ignore[misc]

    drain_timeout = inspect.signature(HookDispatcher.unregister).parameters["drain_timeout"]

    assert (drain_timeout.kind, drain_timeout.default) == (inspect.Parameter.KEYWORD_ONLY, 5.0)
