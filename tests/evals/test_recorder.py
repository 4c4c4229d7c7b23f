"""A recorder keeps what happened, and the time of every handler."""

from __future__ import annotations

import pytest

from hookline import (
    AfterStep,
    Agent,
    BeforeStep,
    BeforeToolCall,
    Hooks,
    ModelResponse,
    OperationResult,
    ScriptedModel,
    ToolCalling,
    exec_agent,
    tool,
)
from hookline.evals import EventRecorder
from hookline.events import EVENTS
from hookline.signals import hook_executed

pytestmark = pytest.mark.anyio


async def run(*hooks: Hooks) -> OperationResult:
    @tool(in_thread=False)
    def look() -> str:
        return "seen"

    turns = [ModelResponse(tool_calls=[ToolCalling(api_name="look", tool_call_id="t1")]), ModelResponse(content="end")]
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
