"""Faults strike as they were told to, the same calls every time, and do what their names say."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterToolCall,
    Agent,
    BeforeToolCall,
    Hooks,
    ModelResponse,
    OnToolCallError,
    OperationResult,
    ScriptedModel,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.evals import MockedCall, RealClock, ToolMocks, VirtualClock
from hookline.evals.errors import FaultDefinitionError
from hookline.evals.faults import (
    DuplicatedResult,
    EmptyResult,
    FailedResult,
    Fault,
    FaultSpec,
    Latency,
    LogNormal,
    MalformedJson,
    Normal,
    Oversize,
    RaiseError,
    RateLimit,
    Timeout,
    TruncatedJson,
    Uniform,
    WrongSchema,
    draw_for,
    strikes,
)

pytestmark = pytest.mark.anyio

PARTS = {"seed": 7, "operation": "op", "tool": "local/search", "call_index": 1, "fault_index": 0}
SPOILERS: list[Any] = [
    TruncatedJson(),
    TruncatedJson(keep=0.5),
    MalformedJson(),
    WrongSchema(),
    Oversize(size_bytes=300),
    EmptyResult(),
    DuplicatedResult(),
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=4)


def call(call_index: int = 1, step_index: int = 0, tool_name: str = "search") -> BeforeToolCall:
    return BeforeToolCall(
        operation_id="op",
        toolset="local",
        tool_name=tool_name,
        args={},
        call_index=call_index,
        step_index=step_index,
        tool_call_id="t",
    )


def spoilt(fault: Any, content: str, seed: int = 0) -> str:
    return fault.change(ToolResult(content=content), random.Random(seed)).content


def parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class Teller:
    """A tool that counts how often it really runs, and what observers and the model were told of its calls."""

    def __init__(self, answer: str = '{"price": 3, "currency": "EUR"}') -> None:
        self.answer = answer
        self.runs = 0
        self.told: list[AfterToolCall | OnToolCallError] = []

    def hooks(self) -> Hooks:
        hooks = Hooks("teller")
        hooks.on(AfterToolCall)(self.told.append)
        hooks.on(OnToolCallError)(self.told.append)
        return hooks

    async def run(self, mocks: ToolMocks, steps: list[int], operation_id: str = "op") -> OperationResult:
        """Run an agent that makes so many calls in each of its steps."""

        @tool(in_thread=False)
        def search(what: str = "") -> str:
            self.runs += 1
            return self.answer

        turns = [
            ModelResponse(
                tool_calls=[
                    ToolRequest(tool_name="search", args={}, tool_call_id=f"c{step}.{place}") for place in range(calls)
                ]
            )
            for step, calls in enumerate(steps)
        ]
        agent = Agent(id="a", model=ScriptedModel([*turns, ModelResponse(content="done")]), tools=[search])
        return await exec_agent(agent, "go", operation_id=operation_id, hooks=[mocks, self.hooks()])


# When a fault strikes.


@given(st.permutations([(operation, index) for operation in ("a", "b", "c") for index in range(1, 6)]))
@settings(max_examples=30, deadline=None)
def test_the_same_call_is_struck_whatever_was_asked_before(order: list[tuple[str, int]]) -> None:
    def struck(operation: str, index: int) -> tuple[bool, float]:
        parts = {**PARTS, "operation": operation, "call_index": index}
        return strikes(0.5, **parts), draw_for(**parts).random()

    inorder = {key: struck(*key) for key in sorted(order)}

    assert {key: struck(*key) for key in order} == inorder


def test_another_process_with_another_hash_seed_strikes_the_same_calls() -> None:
    code = (
        "from hookline.evals.faults import strikes, draw_for\n"
        "parts = [dict(seed=7, operation=f'op-{n}', tool='local/süche', call_index=n, fault_index=1) for n in range(60)]\n"
        "print([strikes(0.3, **each) for each in parts], [draw_for(**each).random() for each in parts])\n"
    )

    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(answers) == 1
    assert "True" in answers.pop()


@pytest.mark.parametrize("probability", [0.01, 0.2, 0.5, 0.9])
def test_a_fault_strikes_about_as_often_as_its_probability_says(probability: float) -> None:
    struck = sum(strikes(probability, **{**PARTS, "call_index": index}) for index in range(1, 10_001))

    assert struck / 10_000 == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 10_000))


@pytest.mark.parametrize("part", ["seed", "operation", "call_index", "fault_index"])
def test_whether_a_call_is_struck_says_nothing_of_its_neighbour(part: str) -> None:
    def struck(number: int) -> bool:
        return strikes(0.5, **{**PARTS, part: f"op-{number}" if part == "operation" else number})

    same = sum(struck(number) == struck(number + 1) for number in range(10_000))

    assert same / 10_000 == pytest.approx(0.5, abs=0.02)


@given(st.text(max_size=4), st.text(max_size=4), st.integers(), st.integers(0, 99), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_probability_zero_never_strikes_and_one_always(
    operation: str, tool: str, seed: int, call_index: int, fault_index: int
) -> None:
    parts: dict[str, Any] = {"seed": seed, "operation": operation, "tool": tool}
    parts |= {"call_index": call_index, "fault_index": fault_index}

    assert not strikes(0.0, **parts)
    assert strikes(1.0, **parts)


def test_no_two_lists_of_parts_share_a_generator() -> None:
    texts = ["", "1", "11", " ", "1 1", "a", "aa", "a/b", "\ud800", "5 a"]
    parts = [
        {"seed": seed, "operation": operation, "tool": tool, "call_index": call_index, "fault_index": fault_index}
        for seed in (0, 1, 11)
        for operation in texts
        for tool in texts
        for call_index in (1, 11)
        for fault_index in (0, 1)
    ]

    assert len({draw_for(**each).random() for each in parts}) == len(parts)


async def test_parallel_operations_meet_the_same_faults_in_any_order() -> None:
    def mocks() -> ToolMocks:
        mocks = ToolMocks(seed=3)
        mocks.tool("*/search").returns('{"price": 3}')
        mocks.fault("*/search", RaiseError(ConnectionError("down")), probability=0.3)
        mocks.fault("*/search", TruncatedJson(), probability=0.3)
        return mocks

    async def outcomes(order: list[int], *, parallel: bool) -> dict[str, list[str]]:
        shared, told = mocks(), Teller()
        async with anyio.create_task_group() as group:
            for number in order:
                if parallel:
                    group.start_soon(told.run, shared, [2, 1], f"op-{number}")
                else:
                    await told.run(shared, [2, 1], f"op-{number}")
        found: dict[str, list[str]] = {}
        for event in told.told:
            what = event.error if isinstance(event, OnToolCallError) else event.content
            found.setdefault(event.operation_id, []).append(f"{event.call_index} {what}")
        return {operation: sorted(each) for operation, each in found.items()}

    together = await outcomes(list(range(20)), parallel=True)

    assert await outcomes(list(reversed(range(20))), parallel=False) == together
    assert len({str(each) for each in together.values()}) > 5


# What is refused.


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Timeout(-1), "Timeout: `seconds` is a number of seconds from 0"),
        (lambda: Timeout(math.nan), "got nan"),
        (lambda: Timeout(math.inf), "at most 1e+09; got inf"),
        (lambda: Timeout(True), "got True"),
        (lambda: Timeout("5"), "got '5'"),
        (lambda: Latency(-0.1), "Latency: `seconds`"),
        (lambda: Latency(None), "got None"),
        (lambda: Latency(Uniform(low=2, high=1)), "Uniform: `high` is not below `low`; got 2 and 1."),
        (lambda: Uniform(low=math.nan, high=1), "Uniform: `low`"),
        (lambda: Normal(mean=1, deviation=-1), "Normal: `deviation`"),
        (lambda: LogNormal(median=0, sigma=1), "LogNormal: `median` is a number of seconds above 0"),
        (lambda: LogNormal(median=1, sigma=11), "LogNormal: `sigma` is a number from 0 to 10; got 11."),
        (lambda: RateLimit(calls=0, per_seconds=1), "RateLimit: `calls` is a whole number from 1"),
        (lambda: RateLimit(calls=True, per_seconds=1), "got True"),
        (lambda: RateLimit(calls=1.5, per_seconds=1), "got 1.5"),
        (lambda: RateLimit(calls=1, per_seconds=0), "`per_seconds` is a number of seconds above 0"),
        (lambda: RateLimit(calls=1, per_seconds=1, raises="no"), "`raises` is True or False"),
        (lambda: RaiseError("down"), "RaiseError: `error` is an exception or a class of exceptions; got 'down'."),
        (lambda: RaiseError(KeyboardInterrupt), "got the class KeyboardInterrupt"),
        (lambda: RaiseError(UnicodeDecodeError), "cannot be made without arguments"),
        (lambda: FailedResult(b"no"), "FailedResult: `content` is text"),
        (lambda: TruncatedJson(keep=1), "TruncatedJson: `keep` is a number above 0 and below 1, or None; got 1."),
        (lambda: TruncatedJson(keep=math.nan), "got nan"),
        (lambda: Oversize(size_bytes=-1), "Oversize: `size_bytes`"),
        (lambda: Oversize(size_bytes=10**12), "from 1 to 1,073,741,824"),
        (lambda: Oversize(filler="ü"), "Oversize: `filler` is one ASCII character; got 'ü'."),
        (lambda: FaultSpec(tool="*", fault=EmptyResult(), probability=1.1), "`probability` is a number from 0 to 1"),
    ],
)
def test_a_fault_that_cannot_strike_is_refused_when_it_is_made(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(FaultDefinitionError) as caught:
        make()

    assert problem in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "fault", [*SPOILERS, Timeout(5), Latency(Uniform(low=0, high=1)), RateLimit(calls=1, per_seconds=9)]
)
def test_a_fault_cannot_be_changed_once_it_is_made(fault: Any) -> None:
    with pytest.raises(AttributeError):
        setattr(fault, fault.__struct_fields__[0] if fault.__struct_fields__ else "name", 1)


# Faults that answer in the tool's place.


@pytest.mark.parametrize("error", [ConnectionError("down"), ConnectionError])
async def test_a_raised_error_counts_as_raised_by_the_tool(error: Any) -> None:
    mocks, teller = ToolMocks(), Teller()
    mocks.fault("*/search", RaiseError(error), name="outage")

    await teller.run(mocks, [1])

    [event] = teller.told
    assert isinstance(event, OnToolCallError)
    assert event.error_type == "ConnectionError"
    assert event.error == ("down" if isinstance(error, Exception) else "ConnectionError")
    assert event.mocked
    assert event.metadata["fault"] == "outage"
    assert teller.runs == 0


async def test_a_failed_result_is_not_raised() -> None:
    mocks, teller = ToolMocks(), Teller()
    mocks.fault("*/search", FailedResult("No such thing."))

    await teller.run(mocks, [1])

    [event] = teller.told
    assert isinstance(event, AfterToolCall)
    assert (event.content, event.success, event.metadata["fault"]) == ("No such thing.", False, "failed_result")


async def test_a_timeout_passes_its_time_on_the_clock_and_counts_as_raised() -> None:
    clock, teller = VirtualClock(), Teller()
    mocks = ToolMocks(clock=clock)
    mocks.fault("*/search", Timeout(3600))
    seen: list[float] = []
    mocks.on(OnToolCallError)(lambda event: seen.append(clock.of(event.operation_id).now))

    await teller.run(mocks, [1, 2])

    assert [event.error for event in teller.told] == ["local/search did not answer within 3600 s."] * 3
    assert {getattr(event, "error_type", None) for event in teller.told} == {"TimeoutError"}
    assert [each.latency_ms for each in mocks.calls] == [3_600_000] * 3
    assert seen == [3600, 7200, 7200]


async def test_a_timeout_on_the_real_clock_can_be_cancelled() -> None:
    mocks, teller = ToolMocks(clock=RealClock()), Teller()
    mocks.fault("*/search", Timeout(3600))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(teller.run, mocks, [1])
            await anyio.wait_all_tasks_blocked()
            assert [each.fault for each in mocks.calls] == ["timeout"]
            group.cancel_scope.cancel()

    assert teller.runs == 0
    assert "TimeoutError" not in [getattr(event, "error_type", None) for event in teller.told]


async def test_a_rate_limit_lets_so_many_calls_through_and_says_when_to_come_back() -> None:
    mocks, teller = ToolMocks(), Teller()
    mocks.fault("*/search", RateLimit(calls=2, per_seconds=60))

    await teller.run(mocks, [1, 1, 1])

    first, second, third = teller.told
    assert teller.runs == 2
    assert isinstance(first, AfterToolCall)
    assert isinstance(second, AfterToolCall)
    assert isinstance(third, OnToolCallError)
    assert third.error_type == "RateLimitError"
    assert third.error == "local/search takes at most 2 calls in 60 s. Retry after 60.0 s."
    assert third.metadata["retry_after_s"] == 60
    assert [strike.call_index for strike in mocks.faults_struck] == [3]


async def test_each_operation_has_a_rate_limit_of_its_own() -> None:
    mocks, teller = ToolMocks(), Teller()
    mocks.fault("*/search", RateLimit(calls=2, per_seconds=60))

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(teller.run, mocks, [3], f"op-{number}")

    assert teller.runs == 10
    assert sorted(strike.operation_id for strike in mocks.faults_struck) == [f"op-{number}" for number in range(5)]


@given(
    calls=st.integers(1, 4),
    window=st.floats(0.001, 100, allow_nan=False),
    pauses=st.lists(st.floats(0, 60, allow_nan=False), max_size=20),
)
@settings(max_examples=30, deadline=None)
def test_no_window_holds_more_calls_than_allowed_and_waiting_always_helps(
    calls: int, window: float, pauses: list[float]
) -> None:
    limit, clock, passed = RateLimit(calls=calls, per_seconds=window), VirtualClock().of("op"), []

    for index, pause in enumerate(pauses):
        clock.advance(pause)
        refused = limit.strike(call(index + 1), random.Random(0), clock)
        if refused is not None:
            assert refused.metadata["retry_after_s"] <= window + 0.001
            clock.advance(refused.metadata["retry_after_s"])
            assert limit.strike(call(index + 1), random.Random(0), clock) is None
        passed.append(clock.now)

    assert all(late - early >= window - 1e-5 for early, late in zip(passed, passed[calls:], strict=False))


def test_two_tools_and_two_limits_have_budgets_of_their_own() -> None:
    clock, draw = VirtualClock().of("op"), random.Random(0)
    limit, equal = RateLimit(calls=1, per_seconds=60), RateLimit(calls=1, per_seconds=60)

    assert limit.strike(call(), draw, clock) is None
    assert limit.strike(call(tool_name="fetch"), draw, clock) is None
    assert equal.strike(call(), draw, clock) is None
    assert limit.strike(call(2), draw, clock) is not None


def test_a_rate_limit_that_does_not_raise_gives_a_failed_result() -> None:
    clock, limit = VirtualClock().of("op"), RateLimit(calls=1, per_seconds=2.5, raises=False)
    limit.strike(call(), random.Random(0), clock)
    refused = limit.strike(call(2), random.Random(0), clock)

    assert refused is not None
    assert (refused.success, refused.error_type) == (False, None)
    assert refused.content == "local/search takes at most 1 call in 2.5 s. Retry after 2.5 s."


# Faults that delay.


async def test_latency_delays_a_real_tool_and_leaves_its_answer() -> None:
    mocks, teller = ToolMocks(), Teller()
    mocks.fault("*/search", Latency(1.5))

    await teller.run(mocks, [1])

    [event] = teller.told
    assert isinstance(event, AfterToolCall)
    assert event.content == teller.answer
    assert teller.runs == 1
    assert mocks.calls[0].latency_ms == 1500


@given(
    st.integers(),
    st.sampled_from(
        [
            Uniform(low=0.0, high=0.2),
            Normal(mean=0.01, deviation=5.0),
            LogNormal(median=0.3, sigma=10.0),
            LogNormal(median=1e9, sigma=10.0),
            0.0,
            2,
        ]
    ),
)
@settings(max_examples=30, deadline=None)
def test_no_latency_is_negative_or_endless(seed: int, seconds: Any) -> None:
    assert 0 <= Latency(seconds).delay_s(random.Random(seed)) <= 1e9


@pytest.mark.parametrize(
    ("seconds", "median"),
    [(Uniform(low=1, high=3), 2), (Normal(mean=2, deviation=0.5), 2), (LogNormal(median=2, sigma=1), 2)],
)
def test_half_of_the_latencies_are_below_the_median(seconds: Any, median: float) -> None:
    drawn = [Latency(seconds).delay_s(draw_for(**{**PARTS, "call_index": index})) for index in range(2000)]

    assert sum(each < median for each in drawn) / 2000 == pytest.approx(0.5, abs=0.05)


# Faults that spoil an answer.


@given(objects | st.lists(json_values, max_size=4) | st.text(max_size=8), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_truncated_and_malformed_json_no_longer_parse(value: Any, seed: int) -> None:
    content = json.dumps(value, ensure_ascii=False)

    assert not parses(spoilt(TruncatedJson(), content, seed))
    assert content.startswith(spoilt(TruncatedJson(), content, seed))
    assert not parses(spoilt(TruncatedJson(keep=0.7), f" {content}\n", seed))
    assert not parses(spoilt(MalformedJson(), content, seed))


@given(st.text(min_size=1, max_size=30), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_any_text_is_changed_and_malformed_text_never_becomes_json(content: str, seed: int) -> None:
    assert len(spoilt(TruncatedJson(), content, seed)) < len(content)
    assert spoilt(MalformedJson(), content, seed) != content
    assert not parses(spoilt(MalformedJson(), content, seed))


@given(json_values, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_wrong_schema_is_a_json_object_of_another_shape(value: Any, seed: int) -> None:
    changed = json.loads(spoilt(WrongSchema(), json.dumps(value), seed))

    def shape(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: shape(each) for key, each in item.items()}
        return type(item).__name__

    assert isinstance(changed, dict)
    assert shape(changed) != shape(value)


def test_a_wrong_schema_loses_no_field_to_a_new_name() -> None:
    content = json.dumps({"new_id": 1, "id": 2, "user_id": 3, "userId": 4})

    for seed in range(50):
        assert len(json.loads(spoilt(WrongSchema(), content, seed))) == 4


@given(st.text(), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_an_oversize_answer_begins_like_the_answer_and_has_its_size(content: str, size: int) -> None:
    text = spoilt(Oversize(size_bytes=size, filler="x"), content)

    assert text.startswith(content)
    assert len(text.encode()) == max(size, len(content.encode()))


def test_json_that_is_padded_still_parses() -> None:
    assert json.loads(spoilt(Oversize(size_bytes=5000), '{"a": 1}')) == {"a": 1}


def test_an_answer_can_be_empty_or_come_twice() -> None:
    assert spoilt(EmptyResult(), "42") == ""
    assert spoilt(DuplicatedResult(), '{"a": 1}') == '{"a": 1}{"a": 1}'


@pytest.mark.parametrize("fault", SPOILERS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("content", ["", " ", "1", "[" * 100_000, "\ud800", "1" * 5000, "NaN", '{"a": 1, "a": 2}'])
def test_no_answer_is_too_odd_to_be_spoilt(fault: Any, content: str) -> None:
    assert isinstance(spoilt(fault, content), str)


@pytest.mark.parametrize("fault", SPOILERS, ids=lambda fault: fault.name)
def test_only_the_text_of_an_answer_is_spoilt(fault: Any) -> None:
    result = ToolResult(content='{"a_b": 1, "c": [2]}', success=False, metadata={"rule": "r"})

    changed = fault.change(result, random.Random(1))

    assert changed.content != result.content
    assert (changed.success, changed.error_type, changed.metadata) == (False, None, {"rule": "r"})
    assert fault.change(result, random.Random(1)) == changed


@pytest.mark.parametrize("fault", SPOILERS, ids=lambda fault: fault.name)
def test_what_a_tool_raised_is_not_spoilt(fault: Any) -> None:
    raised = ToolResult(content="down", success=False, error_type="ConnectionError")

    assert fault.change(raised, random.Random(1)) is raised


@pytest.mark.parametrize("mocked", [True, False])
@pytest.mark.parametrize("fault", [TruncatedJson(), MalformedJson(), EmptyResult()], ids=lambda fault: fault.name)
async def test_the_model_reads_the_spoilt_answer_of_a_mock_and_of_a_real_tool(fault: Fault, mocked: bool) -> None:
    mocks, teller = ToolMocks(), Teller()
    if mocked:
        mocks.tool("*/search").returns(teller.answer)
    mocks.fault("*/search", fault)

    result = await teller.run(mocks, [1])

    [told] = [message.content for message in result.messages if message.role == "tool"]
    assert told != teller.answer
    assert not parses(told)
    assert teller.runs == (0 if mocked else 1)
    assert [each.fault for each in mocks.calls] == [fault.name]


async def test_a_fault_of_ones_own_needs_no_base_class() -> None:
    class Shouting:
        name = "shouting"
        replaces = False

        def strike(self, call: object, draw: object, clock: object) -> None:
            raise AssertionError("never asked")

        def change(self, result: ToolResult, draw: object) -> ToolResult:
            return ToolResult(content=result.content.upper())

        def delay_s(self, draw: object) -> float:
            return 0.0

    mocks, teller = ToolMocks(), Teller("quiet")
    fault: Fault = Shouting()
    mocks.fault("*/search", fault)

    result = await teller.run(mocks, [1])

    assert result.messages[-2].content == "QUIET"
    assert isinstance(mocks.calls[0], MockedCall)
