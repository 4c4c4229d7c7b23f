"""A run of another framework: the same events, hooks and counts as in a run of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest

from hookline import (
    Agent,
    AgentCall,
    Ask,
    BeforeStep,
    BeforeToolCall,
    Deny,
    Hook,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    OnComplete,
    ScriptedModel,
    StepCall,
    ToolCall,
    ToolResult,
    exec_agent,
    interrupt,
    tool,
)
from hookline.errors import HookUsageError, OperationExistsError, RunStopped, UnsupportedHookError
from hookline.events import HookType
from hookline.hooks import AnyHook
from hookline.runtime import KINDS, AdapterRun, Approve, Capabilities, Reject

from .scenes import Recorder, call, calls

pytestmark = pytest.mark.anyio

DRIVES = Capabilities(framework="a loop", calls={ToolCall: KINDS, ModelCall: KINDS, AgentCall: KINDS}, asks=True)


async def loop(
    turns: Sequence[ModelResponse], tools: Mapping[str, Any], hooks: Sequence[AnyHook] = (), **given: Any
) -> str:
    """A framework: its loop is its own, and says to a `AdapterRun` what happens."""
    script, said = list(turns), ""
    messages = [Message(role="user", content="go")]

    async def ask(final: ModelCall) -> ModelResponse:
        return script.pop(0)

    async with AdapterRun(hooks, DRIVES, agent_id="a", model="m", **given) as run:
        while True:
            run.begin_step()
            response = await run.ask_model(messages, ask)
            if response is None:
                return "denied"
            said = response.content
            messages.append(Message(role="assistant", content=said, tool_calls=response.tool_calls))
            for calling in response.tool_calls:

                async def work(args: Mapping[str, Any], name: str = calling.tool_name) -> ToolResult:
                    return ToolResult(content=str(await tools[name](**args)))

                done = await run.call_tool(calling, work)
                if done.asked is not None:
                    run.pause()
                    return "waits"
                if done.stop is not None:
                    return "stopped"
                told = done.result.content
                messages.append(Message(role="tool", content=told, tool_call_id=calling.tool_call_id))
            run.end_step(should_continue=bool(response.tool_calls))
            if not response.tool_calls:
                return said


async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def fail() -> int:
    """Fail."""
    raise ValueError("broken")


TURNS = [calls(call("add", a=1, b=2), content="let me see"), calls(call("fail", "t2")), ModelResponse(content="done")]
TOOLS = {"add": add, "fail": fail}
NOT_COMPARED = {"operation_id", "time_unix_nano", "execution_time_ms", "elapsed_ms", "duration_ms"}


def fields(recorder: Recorder) -> list[dict[str, Any]]:
    return [
        {"kind": event.hook_type}
        | {name: getattr(event, name) for name in event.__struct_fields__ if name not in NOT_COMPARED}
        for event in recorder.events
    ]


async def test_its_events_are_those_of_a_run_of_our_own() -> None:
    ours, theirs = Recorder(), Recorder()

    await exec_agent(
        Agent(id="a", model=ScriptedModel(TURNS, name="m"), tools=[tool(add), tool(fail)]), "go", hooks=[ours.hooks]
    )
    await loop(TURNS, TOOLS, [theirs.hooks])

    assert fields(theirs) == fields(ours)


async def test_mocks_guards_and_rewriters_do_what_they_do_in_ours() -> None:
    hooks, seen = Hooks("all"), Recorder()
    hooks.on(BeforeToolCall, tool="*/fail")(lambda event: event.mock("mended"))
    hooks.before(ToolCall, tool="*/add")(lambda call: call.with_args(a=40))
    told: list[str] = []
    hooks.after(ToolCall)(lambda call, result: told.append(result.content))

    await loop(TURNS, TOOLS, [hooks, seen.hooks])

    assert told == ["42", "mended"]
    assert "onToolCallError" not in seen.names()


async def test_a_denied_tool_call_is_told_and_does_not_run() -> None:
    hooks, seen = Hooks("guard"), Recorder()
    hooks.guard(ToolCall, tool="*/fail")(lambda call: Deny("not that"))

    assert await loop(TURNS, TOOLS, [hooks, seen.hooks]) == "done"
    assert [event.content for event in seen.events if event.hook_type == HookType.AFTER_TOOL_CALL] == ["3", "not that"]


async def test_a_denied_model_call_interrupts_it() -> None:
    hooks, ends = Hooks("guard"), Recorder()
    hooks.guard(ModelCall)(lambda call: Deny("no"))

    assert await loop(TURNS, TOOLS, [hooks, ends.hooks]) == "denied"
    assert ends.of(OnComplete)[0].reason == "interrupted"


async def test_a_person_is_asked_and_the_run_goes_on_under_its_id() -> None:
    hooks, seen = Hooks("guard"), Recorder()
    hooks.guard(ToolCall, tool="*/add")(lambda call: Ask("may I?"))

    assert await loop(TURNS, TOOLS, [hooks, seen.hooks], operation_id="op") == "waits"
    async with AdapterRun([hooks, seen.hooks], DRIVES, agent_id="a", operation_id="op") as run:
        run.begin_step()
        run.decided([Approve("t1")])
        done = await run.call_tool(call("add", a=1, b=2), lambda args: _three(), approved=True)
        run.end_step(should_continue=False)

    assert done.result.content == "3"
    assert seen.names() == [
        "beforeStep",
        "beforeHumanIntervention",
        "afterStep",
        "onComplete",
        "beforeStep",
        "afterHumanIntervention",
        "beforeToolCall",
        "afterToolCall",
        "afterStep",
        "onComplete",
    ]
    assert [event.step_index for event in seen.events if event.hook_type == HookType.BEFORE_STEP] == [0, 1]


async def _three() -> ToolResult:
    return ToolResult(content="3")


async def test_a_rejection_stops_it() -> None:
    seen = Recorder()
    async with AdapterRun([seen.hooks], DRIVES) as run:
        run.begin_step()
        run.decided([Reject("t1", reason="no")])
        run.finish("interrupted")

    assert "onStopByHumanIntervention" in seen.names()


async def test_a_rejection_that_leaves_the_block_by_its_error_is_an_interruption() -> None:
    seen = Recorder()

    with pytest.raises(RunStopped, match="no"):
        async with AdapterRun([seen.hooks], DRIVES) as run:
            run.begin_step()
            run.decided([Reject("t1", reason="no")])
            run.raise_if_stopped()

    assert [event.reason for event in seen.of(OnComplete)] == ["interrupted"]
    assert "onError" not in seen.names()


async def test_an_error_of_the_framework_is_its_own() -> None:
    seen = Recorder()

    with pytest.raises(KeyError):
        async with AdapterRun([seen.hooks], DRIVES):
            raise KeyError("theirs")

    assert seen.names() == ["onComplete", "onError"]


async def test_an_interrupt_ends_it() -> None:
    seen = Recorder()
    async with anyio.create_task_group() as group:

        async def run() -> None:
            async with AdapterRun([seen.hooks], DRIVES, operation_id="op"):
                group.start_soon(_interrupt)
                await anyio.sleep_forever()

        async def _interrupt() -> None:
            assert interrupt("op")

        group.start_soon(run)

    assert seen.of(OnComplete)[0].reason == "interrupted"


async def test_two_of_one_id_do_not_run_at_once() -> None:
    async with AdapterRun([], DRIVES, operation_id="op"):
        with pytest.raises(OperationExistsError):
            await AdapterRun([], DRIVES, operation_id="op").open()


async def test_children_inherit_on_request() -> None:
    theirs, own = Recorder(inherit=True), Recorder(inherit=False)
    async with AdapterRun([theirs.hooks, own.hooks], DRIVES, operation_id="parent") as parent:

        async def work(instruction: str, child: str) -> str:
            async with AdapterRun([], DRIVES, operation_id=child, parent=parent) as run:
                run.begin_step()
            return "answer"

        done = await parent.call_agent("child", "do it", work)

    assert done.output == "answer"
    assert own.names() == ["beforeCallAgent", "afterCallAgent", "onComplete"]
    assert theirs.names() == [
        "beforeCallAgent", "beforeStep", "afterStep", "onComplete", "afterCallAgent", "onComplete",
    ]  # fmt: skip


async def test_hooks_that_would_never_be_called_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("steps")
    hooks.before(StepCall)(lambda call: None)
    few = Capabilities(framework="little", events=frozenset({HookType.ON_COMPLETE}))

    with pytest.raises(UnsupportedHookError, match=r"a loop cannot drive before\(StepCall\)"):
        AdapterRun([hooks], DRIVES)
    with pytest.raises(UnsupportedHookError, match="little cannot drive beforeStep"):
        AdapterRun([Recorder().hooks], few)
    AdapterRun([hooks], DRIVES, best_effort=True)
    assert "would never be called" in caplog.text


@pytest.mark.parametrize("spelled", [BeforeStep, HookType.BEFORE_STEP, "beforeStep"])
async def test_a_hook_that_would_never_be_called_is_refused_however_its_event_is_spelled(spelled: Any) -> None:
    few = Capabilities(framework="little", events=frozenset({HookType.ON_COMPLETE}))

    with pytest.raises(UnsupportedHookError, match="little cannot drive beforeStep"):
        AdapterRun([Hook(id="steps", type=spelled, handler=lambda event: None)], few)


async def test_before_it_is_open_it_says_so() -> None:
    with pytest.raises(HookUsageError, match="not open"):
        AdapterRun([], DRIVES).begin_step()


async def test_where_nobody_can_be_asked_a_question_is_a_denial() -> None:
    hooks, seen = Hooks("guard"), Recorder()
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    silent = Capabilities(framework="a server", calls={ToolCall: KINDS})

    async with AdapterRun([hooks, seen.hooks], silent) as run:
        done = await run.call_tool(call("add", a=1, b=2), lambda args: _three())

    assert (done.ran, done.result.success, done.result.content) == (False, False, "Nobody can be asked here: may I?")
    assert seen.names() == ["beforeStep", "beforeToolCall", "afterToolCall", "afterStep", "onComplete"]


async def test_a_run_in_which_something_is_raised_after_its_last_words_is_not_done() -> None:
    seen = Recorder()

    with pytest.raises(ValueError, match="late"):
        async with AdapterRun([seen.hooks], DRIVES) as run:
            run.finish("done", "bye")
            raise ValueError("late")
    async with AdapterRun([seen.hooks], DRIVES) as run:
        run.finish("done", "bye")
        interrupt(run.operation_id)
        await anyio.sleep_forever()

    assert [event.reason for event in seen.events if isinstance(event, OnComplete)] == ["error", "interrupted"]
