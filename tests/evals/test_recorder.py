"""A recorder keeps what happened, and the time of every handler; one can ask it, wait for it and assert on it."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from dirty_equals import IsPartialDict, IsPositive
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    BeforeStep,
    BeforeToolCall,
    Hooks,
    ModelResponse,
    OnComplete,
    OnToolCallError,
    OperationResult,
    ScriptedModel,
    ToolRequest,
    ToolResult,
    Usage,
    exec_agent,
    tool,
)
from hookline.errors import HookUsageError
from hookline.evals import EventRecorder, RecordedOperation, TimedExecution
from hookline.evals.errors import EventWaitError, NotOneOperationError, UnseenEventError
from hookline.evals.matching import argument_differences
from hookline.evals.mocking._assertions import table
from hookline.events import EVENTS, Event
from hookline.signals import hook_executed

pytestmark = pytest.mark.anyio


async def run(*hooks: Hooks) -> OperationResult:
    @tool(in_thread=False)
    def look() -> str:
        return "seen"

    turns = [ModelResponse(tool_calls=[ToolRequest(tool_name="look", tool_call_id="t1")]), ModelResponse(content="end")]
    return await exec_agent(Agent(id="a", model=ScriptedModel(turns), tools=[look]), "go", hooks=hooks)


async def test_it_observes_all_sixteen_events() -> None:
    assert {hook.event for hook in EventRecorder().hooks.observers} == set(EVENTS.values())


async def test_it_keeps_the_events_of_a_run_in_order() -> None:
    recorder = EventRecorder()

    result = await run(recorder.hooks)

    assert [event.hook_type for event in recorder[result.operation_id].events] == [
        "beforeStep",
        "beforeToolCall",
        "afterToolCall",
        "afterStep",
        "beforeStep",
        "afterStep",
        "onComplete",
    ]


async def test_hook_time_is_the_sum_of_what_every_handler_took() -> None:
    other, executions = Hooks("other"), []
    other.on(BeforeStep)(lambda event: None)

    @other.on(AfterStep)
    async def queued(event: AfterStep) -> None:
        """An async one, which runs in its lane."""

    def keep(sender: object, execution: object) -> None:
        executions.append(execution)

    with EventRecorder() as recorder, hook_executed.connected_to(keep):
        result = await run(other, recorder.hooks)

    operation = recorder[result.operation_id]
    assert [timed.execution for timed in operation.executions] == executions
    assert len(executions) == 7 + 2 + 2
    assert operation.hook_time_ms == pytest.approx(sum(execution.duration_ms for execution in executions))
    assert operation.hook_time_ms > 0


async def test_outside_of_its_with_it_keeps_no_handler_runs_and_leaves_no_receiver() -> None:
    with EventRecorder() as recorder:
        pass

    result = await run(recorder.hooks)

    assert recorder[result.operation_id].executions == []
    assert not hook_executed.receivers


async def test_operations_that_it_did_not_observe_are_not_listed() -> None:
    other = Hooks("other")
    other.on(BeforeStep)(lambda event: None)

    with EventRecorder() as recorder:
        await run(other)
        seen = await run(recorder.hooks)

    assert list(recorder.operations) == [seen.operation_id]


async def test_equal_runs_have_equal_trajectories_and_others_do_not() -> None:
    recorder, mocked = EventRecorder(), Hooks("mock")
    mocked.on(BeforeToolCall)(lambda event: event.mock("something else"))

    first, second, third = [
        await run(recorder.hooks),
        await run(recorder.hooks),
        await run(recorder.hooks, mocked),
    ]

    trajectory = recorder[first.operation_id].trajectory
    assert trajectory.encode() == recorder[second.operation_id].trajectory.encode()
    assert trajectory.encode() != recorder[third.operation_id].trajectory.encode()
    assert (trajectory.output, trajectory.reason, len(trajectory.steps)) == ("end", "done", 2)
    assert trajectory.steps[0].results[0].content == "seen"


BANK = [
    ("bank", "get_iban", {"user": "ann"}),
    ("bank", "send", {"to": "ann", "amount": 5}),
    ("mail", "send", {"to": "ann", "text": "hi"}),
]


def bank_agent(calls: Sequence[tuple[str, str, dict[str, object]]] = BANK, agent_id: str = "clerk") -> Agent:
    turns = [
        ModelResponse(
            tool_calls=[ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=f"t{number}")],
            usage=Usage(input_tokens=10, output_tokens=1, cost_usd=0.01),
        )
        for number, (toolset, name, args) in enumerate(calls)
    ]
    return Agent(id=agent_id, model=ScriptedModel([*turns, ModelResponse(content="end")]), tools=[])


def answering(*failing: str) -> Hooks:
    hooks = Hooks("answers")

    @hooks.on(BeforeToolCall)
    def answer(event: BeforeToolCall) -> None:
        failed = event.tool_name in failing
        event.mock(ToolResult(content="no" if failed else "yes", success=not failed, metadata={"rule": "all"}))

    return hooks


async def recorded_bank(hooks: Sequence[Hooks] | None = None) -> RecordedOperation:
    recorder = EventRecorder()
    await exec_agent(bank_agent(), "go", hooks=[*([answering()] if hooks is None else hooks), recorder.hooks])
    return recorder.only


async def test_events_are_selected_by_class_tool_and_predicate() -> None:
    recorded = await recorded_bank()

    assert [event.tool_call_id for event in recorded.select(AfterToolCall)] == ["t0", "t1", "t2"]
    assert [event.toolset for event in recorded.select(AfterToolCall, tool="send")] == ["bank", "mail"]
    assert [event.tool_name for event in recorded.select(AfterToolCall, tool="bank/*")] == ["get_iban", "send"]
    assert [event.toolset for event in recorded.select(BeforeToolCall, tool="mail/send")] == ["mail"]
    assert [event.step_index for event in recorded.select(BeforeStep, where=lambda event: event.step_index > 1)] == [
        2,
        3,
    ]
    assert recorded.select(OnToolCallError) == []
    assert recorded.first(AfterToolCall, tool="send").toolset == "bank"
    assert recorded.last(AfterToolCall, tool="send").toolset == "mail"


async def test_an_event_that_there_is_not_is_told_with_those_that_there_are() -> None:
    recorded = await recorded_bank()

    with pytest.raises(UnseenEventError, match=r"There is no AfterToolCall of glob in operation 'op_") as caught:
        recorded.first(AfterToolCall, tool="glob")

    assert "AfterToolCall of bank/get_iban" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_a_tool_is_no_filter_for_events_without_one() -> None:
    recorded = await recorded_bank()

    with pytest.raises(HookUsageError, match="BeforeStep is not about a tool"):
        recorded.select(BeforeStep, tool="glob")
    with pytest.raises(HookUsageError, match="by their class"):
        recorded.select(ToolResult)  # type: ignore[type-var]


async def test_an_operation_is_found_by_id_or_because_it_is_the_only_one() -> None:
    recorder = EventRecorder()

    with pytest.raises(NotOneOperationError, match=r"hooks=\[recorder\.hooks\]"):
        _ = recorder.only
    await exec_agent(bank_agent([]), "go", operation_id="one", hooks=[recorder.hooks])
    assert recorder.only is recorder.of("one") is recorder["one"]
    await exec_agent(bank_agent([]), "go", operation_id="two", hooks=[recorder.hooks])
    with pytest.raises(NotOneOperationError, match=r"2 operations were recorded, not one\. There are: 'one', 'two'"):
        _ = recorder.only
    with pytest.raises(KeyError, match=r"No operation 'three' was recorded\. There are: 'one', 'two'"):
        recorder.of("three")


async def test_what_is_cleared_is_forgotten_and_recording_goes_on() -> None:
    recorder = EventRecorder()
    await exec_agent(bank_agent([]), "go", operation_id="one", hooks=[recorder.hooks])

    recorder.clear()

    assert (recorder.operations, recorder.events) == ({}, [])
    await exec_agent(bank_agent([]), "go", operation_id="two", hooks=[recorder.hooks])
    assert list(recorder.operations) == ["two"]


@pytest.mark.parametrize("inherit", [True, False])
async def test_sub_agents_are_recorded_where_that_is_asked_for(inherit: bool) -> None:
    guide = bank_agent([], "guide")
    asks = ToolRequest(toolset="agent", tool_name="guide", args={"instruction": "help"}, tool_call_id="s1")
    turns = [ModelResponse(tool_calls=[asks]), ModelResponse(content="end")]
    planner = Agent(id="planner", model=ScriptedModel(turns), sub_agents=[guide])
    recorder = EventRecorder(inherit=inherit)

    result = await exec_agent(planner, "go", hooks=[recorder.hooks])

    assert recorder.only.operation_id == result.operation_id
    parents = [operation.parent_operation_id for operation in recorder.operations.values()]
    assert parents == ([None, result.operation_id] if inherit else [None])


async def test_a_wait_for_what_has_happened_returns_at_once() -> None:
    recorder = EventRecorder()
    await exec_agent(bank_agent(), "go", hooks=[answering(), recorder.hooks])

    seen = await recorder.wait_for(AfterToolCall, tool="send", count=2, timeout=0)

    assert seen is recorder.only.last(AfterToolCall, tool="send")


async def test_every_waiter_wakes_for_its_own_event() -> None:
    recorder, found = EventRecorder(), {}

    async def wait(name: str, kind: type[Event], **query: Any) -> None:
        found[name] = await recorder.wait_for(kind, **query)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(wait, "second send", AfterToolCall, tool="send", count=2))
        tasks.start_soon(partial(wait, "the end", OnComplete, operation_id="two"))
        tasks.start_soon(partial(wait, "mail", BeforeToolCall, where=lambda event: "text" in event.args))
        await anyio.wait_all_tasks_blocked()
        assert found == {}
        await exec_agent(bank_agent(), "go", operation_id="one", hooks=[answering(), recorder.hooks])
        await exec_agent(bank_agent([]), "go", operation_id="two", hooks=[recorder.hooks])

    assert found["second send"] is recorder["one"].last(AfterToolCall, tool="send")
    assert found["the end"] is recorder["two"].last(OnComplete)
    assert found["mail"] is recorder["one"].last(BeforeToolCall)


async def test_a_wait_in_vain_tells_what_happened_instead() -> None:
    recorder = EventRecorder()
    await exec_agent(bank_agent(), "go", operation_id="one", hooks=[answering(), recorder.hooks])

    with pytest.raises(TimeoutError) as caught:
        await recorder.wait_for(AfterToolCall, operation_id="one", tool="mail/send", count=2, timeout=0.01)

    assert isinstance(caught.value, EventWaitError)
    first, *lines = str(pickle.loads(pickle.dumps(caught.value))).splitlines()
    assert first == "There was only 1 of 2 AfterToolCall of mail/send of operation 'one' within 0.01 s."
    assert '  one  BeforeToolCall of bank/get_iban {"user": "ann"}' in lines
    assert len(lines) == 1 + len(recorder.events)


async def test_a_wait_that_sees_nothing_says_that_no_run_has_the_recorder() -> None:
    with pytest.raises(TimeoutError, match=r"No event was seen at all: give `recorder\.hooks` to the run"):
        await EventRecorder().wait_for(AfterToolCall, timeout=0)


async def test_a_wait_that_was_cancelled_looks_at_no_event_any_more() -> None:
    recorder, asked = EventRecorder(), []

    with anyio.move_on_after(0.01):
        await recorder.wait_for(BeforeStep, where=asked.append, timeout=None)
    await exec_agent(bank_agent([]), "go", hooks=[recorder.hooks])

    assert asked == []


async def test_a_predicate_that_raises_is_the_waiters_problem_and_not_the_runs() -> None:
    recorder, raised = EventRecorder(), []

    async def wait() -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            await recorder.wait_for(BeforeStep, where=lambda event: 1 // event.step_index)
        raised.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        result = await exec_agent(bank_agent([]), "go", hooks=[recorder.hooks])

    assert (len(raised), result.reason, len(recorder.only.events)) == (1, "done", 3)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": True}, {"timeout": -1.0}, {"timeout": math.nan}])
async def test_a_wait_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        await EventRecorder().wait_for(BeforeStep, **wrong)


async def test_assertions_hold_for_what_was_called() -> None:
    recorded = await recorded_bank()

    recorded.assert_called("send", times=2)
    recorded.assert_called("bank/send", {"to": "ann", "amount": IsPositive})
    recorded.assert_called("send", IsPartialDict(amount=5), times=1)
    recorded.assert_called_once_with("get_iban", {"user": "ann"})
    recorded.assert_not_called("bank/delete")
    recorded.assert_called_before("get_iban", "*/send")
    recorded.assert_no_unmocked()


async def test_an_assertion_that_fails_shows_all_calls() -> None:
    recorded = await recorded_bank([answering("get_iban")])

    with pytest.raises(AssertionError) as caught:
        recorded.assert_called_once_with("bank/send", {"to": "ann", "amount": 6})

    assert str(caught.value).splitlines() == [
        'bank/send was not called with {"to": "ann", "amount": 6}. It was called once with other arguments; the nearest '
        "differs in amount: expected 6, got 5.",
        "Calls:",
        '  1  step 0  bank/get_iban  {"user": "ann"}              mocked by rule all, failed',
        '  2  step 1  bank/send      {"to": "ann", "amount": 5}   mocked by rule all',
        '  3  step 2  mail/send      {"to": "ann", "text": "hi"}  mocked by rule all',
    ]


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (lambda run: run.assert_called("sned"), "sned was not called. Did you mean send?"),
        (lambda run: run.assert_called("mail/*", times=2), "mail/* was called once, not twice."),
        (lambda run: run.assert_called("send", times=0), "send was called twice, not never."),
        (
            lambda run: run.assert_called("send", {"to": 1}, times=2),
            "was not called, not twice. It was called twice with",
        ),
        (lambda run: run.assert_not_called("bank/*"), "bank/* was called twice, not never."),
        (lambda run: run.assert_called_once_with("send", {}), "send was called twice, not once."),
        (
            lambda run: run.assert_called_before("send", "get_iban"),
            "first called after get_iban: call 2, after call 1.",
        ),
        (lambda run: run.assert_called_before("send", "*/send"), "are first called by the same call."),
        (
            lambda run: run.assert_called_before("get_iban", "got_iban"),
            "got_iban was not called. Did you mean get_iban?",
        ),
    ],
)
async def test_each_assertion_says_what_is_wrong(check: Callable[[RecordedOperation], None], told: str) -> None:
    recorded = await recorded_bank()

    with pytest.raises(AssertionError) as caught:
        check(recorded)

    assert told in str(caught.value).splitlines()[0]


async def test_a_call_that_no_mock_answered_is_named() -> None:
    recorded = await recorded_bank([])

    with pytest.raises(
        AssertionError, match="3 of 3 calls were not answered by a mock: bank/get_iban, bank/send, mail"
    ):
        recorded.assert_no_unmocked()


async def test_a_strict_refusal_is_no_mock() -> None:
    refusing = Hooks("strict")
    refusing.on(BeforeToolCall)(
        lambda event: event.mock(ToolResult(content="no rule", success=False, metadata={"unmocked": True}))
    )
    recorded = await recorded_bank([refusing])

    with pytest.raises(AssertionError, match="refused, since nothing answered it"):
        recorded.assert_no_unmocked()


async def test_an_assertion_about_nothing_at_all_says_so() -> None:
    recorder = EventRecorder()
    await exec_agent(bank_agent([]), "go", hooks=[recorder.hooks])

    with pytest.raises(AssertionError, match=r"^send was not called. No tool was called at all.$"):
        recorder.only.assert_called("send")


@pytest.mark.parametrize("wrong", [{"tool": ""}, {"tool": None}, {"tool": "send", "times": -1}])
async def test_an_assertion_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        RecordedOperation("one").assert_called(**wrong)


def test_of_very_many_calls_the_first_and_the_last_are_shown() -> None:
    seen = [
        BeforeToolCall(
            operation_id="one", toolset="t", tool_name="x", args={}, call_index=n, step_index=n, tool_call_id=f"{n}"
        )
        for n in range(1, 2001)
    ]

    lines = table(seen).splitlines()

    assert (lines[0].split()[:3], lines[40].strip(), lines[-1].split()[:3], len(lines)) == (
        ["1", "step", "1"],
        "… 1,950 more calls …",
        ["2000", "step", "2000"],
        51,
    )


@given(st.text("abcx", min_size=500, max_size=600), st.text("abcx", min_size=500, max_size=600), st.booleans())
@settings(max_examples=30, deadline=None)
def test_long_values_that_differ_never_look_the_same(one: str, other: str, nested: bool) -> None:
    lines = argument_differences({"a": {"b": one}} if nested else one, {"a": {"b": other}} if nested else other)

    if one == other:
        assert lines == []
    else:
        (line,) = lines
        expected, _, got = line.partition("expected ")[2].partition(", got ")
        assert expected != got
        assert len(line) < 160


async def test_an_execution_starts_when_its_handler_began() -> None:
    other = Hooks("other")
    other.on(BeforeStep)(lambda event: None)

    with EventRecorder() as recorder:
        await exec_agent(bank_agent(), "go", hooks=[other, recorder.hooks])

    for timed in recorder.only.executions:
        assert timed.started_unix_nano == timed.execution.time_unix_nano > 0
    old = TimedExecution(
        execution=structs.replace(recorder.only.executions[0].execution, time_unix_nano=0, duration_ms=2.0),
        ended_unix_nano=5_000_000,
    )
    assert old.started_unix_nano == 3_000_000
