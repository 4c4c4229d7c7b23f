"""`dispatch_before_tool_call`: the one dispatch that is awaited and may be answered."""

from __future__ import annotations

import collections
import contextvars
import logging
import math
from collections import Counter
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import BeforeStep, BeforeToolCall, Hook, HookDispatcher, Hooks, ToolResult, encode
from hookline.errors import HooklineError, HookUsageError
from tests.tables import for_each

from .samples import answered, asked, for_ever, soon, step, turns

pytestmark = pytest.mark.anyio

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


def hook(handler: Any, **changes: Any) -> Hook:
    return Hook(**{"id": "h", "type": BeforeToolCall, "handler": handler, **changes})


def mocking(answer: object, *, is_async: bool = False, taken: list[bool] | None = None) -> Any:
    def mock(event: BeforeToolCall) -> None:
        outcome = event.mock(answer)
        if taken is not None:
            taken.append(outcome)

    async def mock_later(event: BeforeToolCall) -> None:
        await turns(1)
        mock(event)

    return mock_later if is_async else mock


BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


async def test_nobody_registered_gives_none() -> None:
    async with HookDispatcher() as dispatcher:
        assert await dispatcher.dispatch_before_tool_call(asked("unknown")) is None
        dispatcher.register("op", [])
        assert await dispatcher.dispatch_before_tool_call(asked()) is None


@BOTH
async def test_no_mock_gives_none(*, is_async: bool) -> None:
    seen: list[BeforeToolCall] = []

    async def look(event: BeforeToolCall) -> None:
        seen.append(event)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(look if is_async else seen.append)])

        assert await dispatcher.dispatch_before_tool_call(event := asked()) is None

        assert seen == [event]
        assert not event.mocked
        assert event.answered_by is None


ANSWERS: dict[str, tuple[object, ToolResult]] = {
    "text": ("42", ToolResult(content="42")),
    "empty text": ("", ToolResult(content="")),
    "result": (ToolResult(content="r", success=False), ToolResult(content="r", success=False)),
    "result that raised": (
        ToolResult(content="r", success=False, error_type="E"),
        ToolResult(content="r", success=False, error_type="E"),
    ),
    "mapping": ({"content": "m"}, ToolResult(content="m")),
    "full mapping": (
        {"content": "m", "success": False, "metadata": {"rule": {"n": [1]}}},
        ToolResult(content="m", success=False, metadata={"rule": {"n": [1]}}),
    ),
    "mapping proxy": (MappingProxyType({"content": "m"}), ToolResult(content="m")),
    "ordered dict": (collections.OrderedDict(content=""), ToolResult(content="")),
    "exception": (ValueError("bad"), ToolResult(content="bad", success=False, error_type="ValueError")),
    "silent exception": (KeyError(), ToolResult(content="KeyError", success=False, error_type="KeyError")),
}


@BOTH
@for_each("name", ANSWERS)
async def test_a_mock_is_the_answer(name: str, *, is_async: bool) -> None:
    given_answer, expected = ANSWERS[name]
    taken: list[bool] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mocking(given_answer, is_async=is_async, taken=taken), id="mocker")])

        answer = await dispatcher.dispatch_before_tool_call(event := asked())

        assert answer == expected
        assert isinstance(answer, ToolResult)
        assert taken == [True]
        assert event.mocked
        assert event.answered_by == "mocker"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_a_mock_by_an_exception_without_words_names_its_class() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mocking(Unprintable()))])

        answer = await dispatcher.dispatch_before_tool_call(asked())

    assert answer == ToolResult(content="Unprintable", success=False, error_type="Unprintable")


WRONG: dict[str, object] = {
    "None": None,
    "int": 3,
    "bool": True,
    "bytes": b"42",
    "list": ["42"],
    "exception class": ValueError,
    "base exception": KeyboardInterrupt(),
    "object": object(),
    "empty mapping": {},
    "mapping without content": {"success": True},
    "mapping with an unknown key": {"content": "x", "extra": 1},
    "mapping with error_type": {"content": "x", "error_type": "E"},
    "mapping with odd keys": {1: 2, "content": "x"},
    "content of no text": {"content": 3},
    "content None": {"content": None},
    "success of no bool": {"content": "x", "success": "yes"},
    "success 1": {"content": "x", "success": 1},
    "success None": {"content": "x", "success": None},
    "metadata None": {"content": "x", "metadata": None},
    "metadata list": {"content": "x", "metadata": []},
    "result of no text": ToolResult(content=3),  # type: ignore[arg-type]
    "result with odd success": ToolResult(content="x", success=None),  # type: ignore[arg-type]
    "result with odd error_type": ToolResult(content="x", error_type=3),  # type: ignore[arg-type]
    "result with odd metadata": ToolResult(content="x", metadata=None),  # type: ignore[arg-type]
}


@BOTH
@for_each("name", WRONG)
async def test_anything_else_is_a_usage_error_in_that_handler_and_the_next_one_still_runs(
    name: str, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    raised: list[BaseException] = []

    async def wrong_later(event: BeforeToolCall) -> None:
        wrong(event)

    def wrong(event: BeforeToolCall) -> None:
        try:
            event.mock(WRONG[name])
        except BaseException as error:
            raised.append(error)
            raise

    async with HookDispatcher() as dispatcher:
        dispatcher.register(
            "op", [hook(wrong_later if is_async else wrong, id="wrong"), hook(mocking("right"), id="right")]
        )

        answer = await dispatcher.dispatch_before_tool_call(event := asked())

        assert answer == ToolResult(content="right")
        assert event.answered_by == "right"
        assert [type(error) for error in raised] == [HookUsageError]
        assert "'wrong'" in caplog.text


@BOTH
async def test_a_wrong_answer_after_a_mock_is_still_an_error(
    caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mocking("first", is_async=is_async)), hook(mocking(3, is_async=is_async))])

        answer = await dispatcher.dispatch_before_tool_call(asked())

    assert answer == ToolResult(content="first")
    assert "HookUsageError" in caplog.text


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.tuples(st.booleans(), st.sampled_from(["", "mock", "mock twice", "mock, raise", "raise"])), max_size=6),
    bundles=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    backend=st.sampled_from(["asyncio", "trio"]),
)  # fmt: skip
def test_every_handler_is_asked_exactly_once_in_order_and_the_first_mock_wins(
    shape: list[tuple[bool, str]], bundles: list[int], backend: str
) -> None:
    async def main() -> None:
        log: list[int] = []
        taken: list[tuple[int, bool]] = []
        saw: list[bool] = []

        def make(number: int, what: str, *, is_async: bool) -> Any:
            def act(event: BeforeToolCall) -> None:
                log.append(number)
                saw.append(event.mocked)
                mocks = 2 if "twice" in what else 1 if "mock" in what else 0
                taken.extend((number, event.mock(str(number))) for _ in range(mocks))
                if "raise" in what:
                    raise ValueError("after that")

            async def act_later(event: BeforeToolCall) -> None:
                await turns(number % 3)
                act(event)

            return act_later if is_async else act

        async with HookDispatcher() as dispatcher:
            batch: list[Hooks | Hook] = []
            for number, (is_async, what) in enumerate(shape):
                handler = make(number, what, is_async=is_async)
                if bundles[number]:
                    bundle = Hooks(f"b{number}")
                    bundle.on(BeforeToolCall, id=f"id{number}", tool=[None, None, "*/search"][bundles[number]])(handler)
                    batch.append(bundle)
                else:
                    batch.append(hook(handler, id=f"id{number}"))
            dispatcher.register("op", batch[:3])
            dispatcher.register("op", batch[3:])

            answer = await dispatcher.dispatch_before_tool_call(event := asked())

            first = next((number for number, (_, what) in enumerate(shape) if "mock" in what), None)
            assert log == list(range(len(shape)))
            assert saw == [first is not None and number > first for number in range(len(shape))]
            assert [number for number, was_taken in taken if was_taken] == ([] if first is None else [first])
            assert answer == (None if first is None else ToolResult(content=str(first)))
            assert event.answered_by == (None if first is None else f"id{first}")

    logging.getLogger("hookline").disabled = True
    try:
        anyio.run(main, backend=backend)
    finally:
        logging.getLogger("hookline").disabled = False


async def test_a_later_handler_sees_that_it_is_mocked_and_by_whom() -> None:
    seen: list[Any] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register(
            "op",
            [
                hook(lambda event: seen.append((event.mocked, event.answered_by))),
                hook(mocking("x"), id="mocker"),
                hook(lambda event: seen.append((event.mocked, event.answered_by))),
            ],
        )

        await dispatcher.dispatch_before_tool_call(asked())

    assert seen == [(False, None), (True, "mocker")]


@BOTH
async def test_a_handler_that_mocks_and_then_raises_still_counts(*, is_async: bool) -> None:
    def mock(event: BeforeToolCall) -> None:
        event.mock("counts")
        raise ValueError("afterwards")

    async def mock_later(event: BeforeToolCall) -> None:
        mock(event)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mock_later if is_async else mock)])

        assert await dispatcher.dispatch_before_tool_call(asked()) == ToolResult(content="counts")


@pytest.mark.parametrize("tool", [None, "*/search"])
async def test_a_handler_that_mocks_and_then_hangs_still_counts(tool: str | None) -> None:
    async def mock(event: BeforeToolCall) -> None:
        event.mock("counts")
        await for_ever()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(mock, timeout=0.01, tool=tool)])

        assert await dispatcher.dispatch_before_tool_call(asked()) == ToolResult(content="counts")


@pytest.mark.parametrize("tool", [None, "*/search"])
async def test_a_hung_handler_is_cut_short_and_the_next_one_is_asked(
    tool: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(event: BeforeToolCall) -> None:
        await for_ever()

    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [hook(hang, timeout=0.01, tool=tool, id="hung"), hook(mocking("next"))])

        assert await dispatcher.dispatch_before_tool_call(asked()) == ToolResult(content="next")
    assert "'hung'" in caplog.text
    assert "timeout of 0.01 s" in caplog.text


@BOTH
async def test_a_mock_after_the_dispatch_is_refused(*, is_async: bool) -> None:
    kept: list[BeforeToolCall] = []

    async def keep(event: BeforeToolCall) -> None:
        kept.append(event)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(keep if is_async else kept.append)])

        assert await dispatcher.dispatch_before_tool_call(asked()) is None

        assert kept[0].mock("too late") is False
        assert not kept[0].mocked


async def test_a_task_that_a_handler_left_behind_mocks_in_vain() -> None:
    taken: list[bool] = []
    async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:

        async def mock_too_late(event: BeforeToolCall) -> None:
            await turns(5)
            taken.append(event.mock("too late"))

        dispatcher.register("op", [hook(lambda event: group.start_soon(mock_too_late, event))])

        assert await dispatcher.dispatch_before_tool_call(asked()) is None

    assert taken == [False]


async def test_the_same_event_may_be_dispatched_twice_and_is_asked_anew() -> None:
    rounds: list[bool] = []

    def mock_once(event: BeforeToolCall) -> None:
        rounds.append(event.mocked)
        if len(rounds) == 1:
            event.mock("first round")

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mock_once)])
        event = asked()

        assert await dispatcher.dispatch_before_tool_call(event) == ToolResult(content="first round")
        assert await dispatcher.dispatch_before_tool_call(event) is None
        assert rounds == [False, False]
        assert not event.mocked
        assert event.answered_by is None


async def test_a_second_dispatch_to_nobody_does_not_repeat_the_first_answer() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mocking("x"))])
        event = asked()
        await dispatcher.dispatch_before_tool_call(event)
        await dispatcher.unregister("op")

        assert await dispatcher.dispatch_before_tool_call(event) is None


async def test_the_handlers_are_those_registered_when_the_dispatch_began() -> None:
    log: list[str] = []
    async with HookDispatcher() as dispatcher:

        async def change(event: BeforeToolCall) -> None:
            log.append("first")
            removed.remove()
            dispatcher.register("op", [hook(lambda event: log.append("new"))])
            await turns(1)

        dispatcher.register("op", [hook(change)])
        removed = dispatcher.register("op", [hook(lambda event: log.append("removed"))])

        await dispatcher.dispatch_before_tool_call(asked())

        assert log == ["first", "removed"]
        log.clear()
        await dispatcher.dispatch_before_tool_call(asked())
        assert log == ["first", "new"]


async def test_the_special_dispatch_does_not_wait_for_the_lanes() -> None:
    bundle = Hooks("bundle")

    @bundle.on(BeforeStep)
    async def hang(event: BeforeStep) -> None:
        await for_ever()

    bundle.on(BeforeToolCall)(mocking("at once", is_async=True))
    async with HookDispatcher() as dispatcher, soon():
        dispatcher.register("op", [bundle])
        dispatcher.dispatch(step())
        await turns()

        assert await dispatcher.dispatch_before_tool_call(asked()) == ToolResult(content="at once")
        await dispatcher.unregister("op", drain_timeout=0)


async def test_handlers_run_one_at_a_time_and_the_agent_waits_for_the_last() -> None:
    log: list[str] = []

    def slow(name: str) -> Any:
        async def handler(event: BeforeToolCall) -> None:
            log.append(f"{name} in")
            await turns(3)
            log.append(f"{name} out")

        return handler

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(slow("a")), hook(slow("b"))])

        await dispatcher.dispatch_before_tool_call(asked())

        assert log == ["a in", "a out", "b in", "b out"]


async def test_the_wrong_dispatch_is_refused_and_asks_nobody() -> None:
    asked_handlers: list[object] = []
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(asked_handlers.append)])

        with pytest.raises(HookUsageError, match="dispatch_before_tool_call"):
            dispatcher.dispatch(asked())
        with pytest.raises(HookUsageError):
            dispatcher.dispatch(asked("unknown"))
        for other in (step(), answered(), None, "beforeToolCall"):
            with pytest.raises(HooklineError):
                await dispatcher.dispatch_before_tool_call(other)  # type: ignore[arg-type]

        assert asked_handlers == []


async def test_concurrent_dispatches_of_different_events_do_not_mix() -> None:
    seen: Counter[str] = Counter()

    async def answer(event: BeforeToolCall) -> None:
        seen[event.tool_call_id] += 1
        await turns(int(event.tool_call_id) % 5)
        if int(event.tool_call_id) % 2:
            assert event.mock(f"answer {event.tool_call_id}")
        await turns(2)

    async def check(event: BeforeToolCall) -> None:
        await turns(1)
        assert event.mocked == bool(int(event.tool_call_id) % 2)

    results: dict[int, Any] = {}
    async with HookDispatcher() as dispatcher, soon(), anyio.create_task_group() as group:
        dispatcher.register("op", [hook(answer), hook(check)])

        async def call(number: int) -> None:
            event = asked(tool_call_id=str(number), call_index=number)
            results[number] = await dispatcher.dispatch_before_tool_call(event)

        for number in range(50):
            group.start_soon(call, number)

    assert results == {n: ToolResult(content=f"answer {n}") if n % 2 else None for n in range(50)}
    assert set(seen.values()) == {1}


@for_each("pattern", ["*/pay", "remote/*", "local", "sear"])
async def test_a_filter_that_does_not_match_is_not_asked(pattern: str) -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mocking("no"), tool=pattern), hook(mocking("yes"), tool="*/search", id="yes")])

        assert await dispatcher.dispatch_before_tool_call(event := asked()) == ToolResult(content="yes")
        assert event.answered_by == "yes"


@BOTH
async def test_a_handler_of_another_tenant_is_not_asked(*, is_async: bool) -> None:
    mine, theirs, everybodys = Hooks("mine", tenant_id="me"), Hooks("theirs", tenant_id="them"), Hooks("all")
    for bundle in (theirs, mine, everybodys):
        bundle.on(BeforeToolCall, id=bundle.id)(mocking(bundle.id, is_async=is_async))
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [theirs, mine, everybodys])

        for tenant, expected in (("me", "mine"), ("them", "theirs"), ("", "all"), ("other", "all")):
            answer = await dispatcher.dispatch_before_tool_call(event := asked(tenant_id=tenant))
            assert answer == ToolResult(content=expected)
            assert event.answered_by == expected


async def test_a_handler_cannot_change_the_arguments_that_the_next_one_and_the_tool_see() -> None:
    given_args = {"q": {"deep": [1]}}
    seen: list[Any] = []

    def meddle(event: BeforeToolCall) -> None:
        event.args["q"]["deep"].append(2)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(meddle), hook(lambda event: seen.append(dict(event.args)))])

        await dispatcher.dispatch_before_tool_call(asked(args=given_args))

    assert seen == [{"q": {"deep": [1]}}]
    assert given_args == {"q": {"deep": [1]}}


async def test_the_metadata_of_an_answer_cannot_be_changed_afterwards() -> None:
    given_metadata = {"rule": {"ids": [1]}}
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mocking({"content": "x", "metadata": given_metadata}))])

        answer = await dispatcher.dispatch_before_tool_call(asked())
        given_metadata["rule"]["ids"].append(2)

    assert answer is not None
    assert answer.metadata == {"rule": {"ids": [1]}}


async def test_a_mocked_event_encodes_as_if_it_were_not() -> None:
    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(mocking("x"))])
        event = asked()
        before = encode(event)

        await dispatcher.dispatch_before_tool_call(event)

        assert encode(event) == before


async def test_the_special_dispatch_runs_in_the_agents_task() -> None:
    tasks: list[int] = []

    async def look(event: BeforeToolCall) -> None:
        await turns(1)
        tasks.append(anyio.get_current_task().id)

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hook(look), hook(look, timeout=math.inf), hook(look, tool="*/search")])

        await dispatcher.dispatch_before_tool_call(asked())

        assert set(tasks) == {anyio.get_current_task().id}


async def test_a_handler_may_make_another_special_dispatch() -> None:
    async with HookDispatcher() as dispatcher:

        async def ask_again(event: BeforeToolCall) -> None:
            if event.call_index == 1:
                inner = await dispatcher.dispatch_before_tool_call(asked(call_index=2))
                assert inner is not None
                event.mock(f"outer of {inner.content}")
            else:
                event.mock("inner")

        dispatcher.register("op", [hook(ask_again)])

        assert await dispatcher.dispatch_before_tool_call(asked()) == ToolResult(content="outer of inner")
