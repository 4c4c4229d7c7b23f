"""A run of another framework: the same events, hooks and counts as in a run of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec
import pytest

import hookline.calls as calls_module
from hookline import (
    Agent,
    AgentCall,
    Ask,
    BeforeStep,
    BeforeToolCall,
    Continue,
    Deny,
    Guide,
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
    Usage,
    exec_agent,
    interrupt,
    tool,
)
from hookline.errors import HookUsageError, OperationExistsError, RunStopped, UnsupportedHookError
from hookline.events import HookType
from hookline.hooks import AnyHook
from hookline.runtime import KINDS, AdapterRun, Approve, Capabilities, Reject
from tests.tables import for_each

from .scenes import Recorder, call, calls

pytestmark = pytest.mark.anyio

DRIVES = Capabilities(framework="a loop", calls={ToolCall: KINDS, ModelCall: KINDS, AgentCall: KINDS}, asks=True)
ABLE = msgspec.structs.replace(DRIVES, adds_context=frozenset({ToolCall, AgentCall}), guides=True)


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


def adds(call: Any, *rest: Any) -> None:
    call.add_context("text")


def adds_in_a_function_of_its_own(call: AgentCall) -> None:
    def add() -> None:
        call.add_context("text")

    add()


def guides(call: ModelCall, answer: ModelResponse) -> Guide | None:
    return Guide("again")


def says_that_it_guides(call: ModelCall, answer: ModelResponse) -> Guide | None:
    return None


@for_each(
    ("kind", "call", "handler", "what"),
    [
        ("before", AgentCall, adds, "AgentCall.add_context"),
        ("after", AgentCall, adds, "AgentCall.add_context"),
        ("guard", AgentCall, adds_in_a_function_of_its_own, "AgentCall.add_context"),
        ("after", ModelCall, guides, "Guide"),
        ("after", ModelCall, says_that_it_guides, "Guide"),
    ],
)
async def test_what_a_framework_cannot_tell_its_model_is_refused_at_attach(
    kind: str, call: Any, handler: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks("hooks")
    getattr(hooks, kind)(call, id="hook")(handler)

    with pytest.raises(UnsupportedHookError) as refused:
        AdapterRun([hooks], DRIVES)
    assert {what, "hook", "a loop"} <= {refused.value.what, refused.value.hook_id, refused.value.framework}
    AdapterRun([hooks], DRIVES, best_effort=True)
    assert what in caplog.text
    AdapterRun([hooks], ABLE)


async def test_what_a_framework_cannot_tell_its_model_fails_the_hook_where_nobody_could_see_it_before() -> None:
    hooks = Hooks("hooks")
    hooks.after(ModelCall, id="hook")(lambda call, answer: vars(calls_module)["Gui" + "de"]("again"))

    assert await loop([ModelResponse(content="one")], {}, [hooks]) == "denied"

    hooks = Hooks("hooks")
    hooks.before(AgentCall, id="hook")(lambda call: getattr(call, "add_" + "context")("text"))
    async with AdapterRun([hooks], DRIVES) as run:

        async def work(call: AgentCall) -> str:
            raise AssertionError

        done = await run.lead_run([Message(role="user", content="go")], work)
    assert done.denied is not None
    assert "not supported by the framework" in done.denied.reason


async def test_a_framework_is_told_what_hooks_add_to_a_call_and_whether_that_is_all_that_changed() -> None:
    hooks = Hooks("hooks")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("in EUR"))
    hooks.after(ToolCall, tool="changed")(lambda call, result: ToolResult(content="other"))
    added, done = "Context from hook 'hook': in EUR", dict[str, Any]()

    async def pay(args: Mapping[str, Any]) -> ToolResult:
        return ToolResult(content="paid")

    async def fail(args: Mapping[str, Any]) -> ToolResult:
        raise ValueError("no money")

    async with AdapterRun([hooks], DRIVES) as run:
        run.begin_step()
        for name, work in (("pay", pay), ("changed", pay), ("fail", fail)):
            done[name] = await run.call_tool(call(name, name), work)

    assert (done["pay"].result.content, done["pay"].added, done["pay"].changed) == (f"paid\n\n{added}", added, True)
    assert (done["changed"].result.content, done["changed"].added) == (f"other\n\n{added}", "")
    assert (done["fail"].result.content, done["fail"].error) == (f"ValueError: no money\n\n{added}", None)


async def test_a_framework_gets_what_hooks_add_to_a_run_with_its_input_and_with_the_next_one() -> None:
    hooks = Hooks("hooks")
    hooks.before(AgentCall, id="in")(lambda call: call.add_context("it is Tuesday"))
    hooks.after(AgentCall, id="out")(lambda call, result: call.add_context("by the way"))
    hooks.after(AgentCall, id="more", priority=200)(lambda call, result: Continue("and then?"))
    given: list[list[str]] = []

    async def work(call: AgentCall) -> str:
        given.append([message.content for message in call.input])
        return "one"

    async with AdapterRun([hooks], ABLE) as run:
        done = await run.lead_run([Message(role="user", content="go")], work)

    assert given == [["go", "Context from hook 'in': it is Tuesday"]]
    assert done.continues == ("and then?", "Context from hook 'out': by the way")


async def test_a_framework_is_asked_again_with_the_feedback_of_hooks() -> None:
    left, given = ["again"], list[list[str]]()
    recorder, hooks = Recorder(), Hooks("hooks")
    hooks.after(ModelCall)(lambda call, answer: Guide(left.pop()) if left else None)
    answers = [calls(call("pay"), content="one", tokens=3), ModelResponse(content="two", usage=Usage(input_tokens=4))]

    async def ask(final: ModelCall) -> ModelResponse:
        given.append([message.content for message in final.messages])
        return answers[len(given) - 1]

    async with AdapterRun([hooks, recorder.hooks], ABLE) as run:
        run.begin_step()
        response = await run.ask_model([Message(role="user", content="go")], ask)

    assert response == answers[1]
    assert given == [["go"], ["go", "again"]]
    assert (recorder.completion.llm_calls, recorder.completion.total_tokens, recorder.completion.steps) == (2, 7, 1)


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


@for_each("spelled", [BeforeStep, HookType.BEFORE_STEP, "beforeStep"])
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
