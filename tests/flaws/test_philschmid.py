"""What went wrong in philschmid's agents, and does not here."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from interceptors.calls import Tool, after, around, before, guard, replace, run, statuses, with_args
from runtime.interception import Answering, contents, pay, paying, session_of
from runtime.scenes import Recorder, agent_of, calls, says, tool_texts

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    AgentCall,
    BeforeStep,
    Continue,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    ToolCall,
    exec_agent,
    interrupt,
)
from tests.tables import for_each

pytestmark = pytest.mark.anyio


def listening(asked: list[list[str]], *answers: str, **parts: Any) -> Agent:
    """An agent that says these, and notes what its model was asked."""
    left = list(answers)

    async def answer(made: ModelCall) -> Any:
        asked.append(contents(made.messages))
        return says(left.pop(0))

    return Agent(id="listener", model=Answering(answer), **parts)


async def test_no_hook_for_the_start_of_an_interaction_is_declared_and_never_called() -> None:
    """philschmid 1: `onInteractionStart` was declared, and never emitted."""
    started: list[Any] = []
    hooks = Hooks("h")
    hooks.before(ModelCall)(lambda call: started.append(("model", call.step_index)))
    hooks.on(BeforeStep)(lambda event: started.append(("step", event.step_index)))

    await exec_agent(paying([], calls(pay()), says()), "go", hooks=[hooks])

    assert started == [("step", 0), ("model", 0), ("step", 1), ("model", 1)]


async def test_a_follow_up_does_not_send_the_first_message_again() -> None:
    """philschmid 2: an injection sent the first message again: FIRST, FIRST, FOLLOW."""
    asked: list[list[str]] = []
    hooks = Hooks("h")
    hooks.after(AgentCall)(lambda call, result: Continue("FOLLOW") if result.output == "one" else None)

    await exec_agent(listening(asked, "one", "two"), "FIRST", hooks=[hooks])

    assert asked == [["FIRST"], ["FIRST", "one", "FOLLOW"]]


@for_each("where", [BeforeStep, AfterStep, AgentCall])
async def test_a_follow_up_does_not_start_an_aborted_agent_again(where: Any) -> None:
    """philschmid 3: after `abort()`, an injection started the agent again."""
    asked: list[list[str]] = []
    hooks = Hooks("h")

    @hooks.after(AgentCall)
    def goes_on(call: AgentCall, result: Any) -> Continue:
        if where is AgentCall:
            assert interrupt(call.operation_id)
        return Continue("again")

    if where is not AgentCall:
        hooks.on(where)(lambda event: interrupt(event.operation_id))
    result = await exec_agent(listening(asked, "one", "two"), "go", hooks=[hooks])

    assert result.reason == "interrupted"
    assert len(asked) == (0 if where is BeforeStep else 1)


async def test_a_guard_before_a_rewriting_hook_does_not_judge_the_old_arguments() -> None:
    """philschmid 4: a guard judged `ls`, then a later hook rewrote it, and the tool got `rm -rf /`."""
    judged: list[str] = []

    def judge(call: ToolCall) -> Deny | None:
        judged.append(call.args["q"])
        return Deny("destructive") if call.args["q"].startswith("rm") else None

    async def rewrites(call: ToolCall, call_next: Any) -> Any:
        return await call_next(with_args(call, q="rm -rf /"))

    for rewriter in (before(lambda call: with_args(call, q="rm -rf /")), around(rewrites, priority=900)):
        tool = Tool()
        outcome = await run([guard(judge, priority=0), rewriter], None, tool)
        assert (outcome.denied is not None, tool.calls) == (True, [])
    assert judged == ["rm -rf /"] * 2


async def test_changing_some_arguments_does_not_drop_the_rest() -> None:
    """philschmid 5: partial arguments took the place of all of them."""
    tool = Tool()
    hooks = [before(lambda call: call.with_args(limit=3)), before(lambda call: replace(call, tool_name="find"))]

    await run(hooks, None, tool)

    (ran,) = tool.calls
    assert (ran.args, ran.tool_name, ran.tool_call_id) == ({"q": "x", "limit": 3}, "find", "t1")


@for_each("answer", [{}, {"arguments": {"q": "y"}}, {"allow": False}, False, True, "", 0], ids=repr)
async def test_an_answer_without_a_verdict_does_not_block_without_a_reason(answer: Any) -> None:
    """philschmid 6: a missing `allow` blocked, and no reason was given."""
    outcome = await run([before(lambda call: answer, id="unclear")])

    assert outcome.denied is not None
    assert outcome.denied.hook_id == "unclear"
    assert type(answer).__name__ in outcome.denied.reason or repr(answer) in outcome.denied.reason
    assert statuses(outcome) == [("unclear", "error")]


async def test_filtering_the_tools_does_not_make_each_call_fire_twice() -> None:
    """philschmid 7: filtering `event.tools` wrapped the tools twice, so that each call fired twice."""
    paid: list[Any] = []
    fired: list[str] = []
    hooks, recorder = Hooks("h"), Recorder()
    hooks.before(AgentCall)(lambda call: replace(call, tools=[spec for spec in call.tools if spec.name == "pay"]))
    hooks.before(ToolCall)(lambda call: fired.append("before"))
    hooks.after(ToolCall)(lambda call, result: fired.append("after"))

    await exec_agent(paying(paid, calls(pay(5)), says()), "go", hooks=[hooks, recorder.hooks])

    names = recorder.names()
    assert (paid, fired, names.count("beforeToolCall"), names.count("afterToolCall")) == (
        [5],
        ["before", "after"],
        1,
        1,
    )


async def test_the_start_of_a_run_does_not_hide_its_real_input() -> None:
    """philschmid 8: the input of the start event was always empty."""
    shown: list[Any] = []
    hooks = Hooks("h")
    hooks.before(AgentCall)(lambda call: shown.append(contents(call.input)))
    agent = agent_of(says(), says(), hooks=[hooks])

    async with session_of(agent) as session:
        await session.run("first")
        await session.run("second")

    assert shown == [["first"], ["second"]]


async def test_an_error_of_an_after_hook_does_not_hide_a_side_effect_that_succeeded() -> None:
    """philschmid 9: an error of the after hook hid that the tool had done its work."""
    hooks, recorder = Hooks("h"), Recorder()

    @hooks.after(ToolCall, id="late")
    def fails(call: ToolCall, result: Any) -> None:
        raise OSError("no disk")

    result = await exec_agent(paying([], calls(pay(5)), says()), "go", hooks=[hooks, recorder.hooks])

    (event,) = recorder.of(AfterToolCall)
    assert (event.success, event.content) == (True, "paid 5")
    assert [text.split(",")[0] for text in tool_texts(result)] == ["The tool ran"]


@pytest.mark.parametrize("end", ["at the limit", "by an error"])
async def test_the_end_is_not_unobserved_at_the_limit_of_follow_ups_or_after_an_error(end: str) -> None:
    """philschmid 10: the last end was not observed once the limit was reached, and no end at all on an error."""
    ends: list[str] = []
    hooks, recorder = Hooks("h"), Recorder()

    @hooks.after(AgentCall)
    def goes_on(call: AgentCall, result: Any) -> Continue:
        ends.append(result.output)
        return Continue("more")

    last = says("three") if end == "at the limit" else OSError("no line")
    agent = agent_of(says("one"), says("two"), last, says("never"), max_continues=2)
    result = await exec_agent(agent, "go", hooks=[hooks, recorder.hooks])

    assert ends == ["one", "two", "three"][: 3 if end == "at the limit" else 2]
    assert recorder.completion.reason == result.reason == ("done" if end == "at the limit" else "error")


async def test_a_handler_added_during_a_call_does_not_run_in_it() -> None:
    """philschmid 11: the list was live, so that a handler added during an emit ran in it."""
    ran: list[str] = []
    hooks, late = Hooks("h"), Recorder()

    @hooks.on(BeforeStep)
    def adds(event: BeforeStep) -> None:
        hooks.on(BeforeStep)(lambda event: ran.append("added to the bundle"))
        dispatcher.register("op", [late.hooks])

    @hooks.before(ToolCall)
    def adds_more(call: ToolCall) -> None:
        hooks.before(ToolCall)(lambda call: ran.append("added to the chain"))

    agent = paying([], calls(pay()), hooks=[hooks])
    async with HookDispatcher() as dispatcher:
        await exec_agent(agent, "go", dispatcher=dispatcher, operation_id="op")

    assert (ran, late.names()[0]) == ([], "beforeToolCall")


async def test_one_handler_can_be_taken_away_without_the_others() -> None:
    """philschmid 12: one handler could not be removed; there were no ids, priorities, timeouts, no signal."""
    heard: list[str] = []
    one, two = Hooks("one", priority=20), Hooks("two")
    one.on(BeforeStep, id="first")(lambda event: heard.append("one"))
    two.on(BeforeStep, id="second", timeout=1.0)(lambda event: heard.append("two"))

    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [one])
        dispatcher.register("op", [two])
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))
        registration.remove()
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=1))

    assert heard == ["one", "two", "two"]


async def test_observers_do_not_depend_on_somebody_who_reads() -> None:
    """philschmid 13: observers stood still unless somebody drained the stream."""
    recorder = Recorder()
    unread = Hooks("unread")
    ended = anyio.Event()

    @unread.on(AfterStep)
    async def hangs(event: AfterStep) -> None:
        await anyio.sleep_forever()

    unread.on(OnComplete)(lambda event: ended.set())
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: exec_agent(paying([], calls(pay()), says()), "go", hooks=[unread, recorder.hooks]))
            await ended.wait()
            group.cancel_scope.cancel()

    assert recorder.names().count("afterStep") == 2
    assert recorder.completion.reason == "done"


@pytest.mark.parametrize("fails", ["the start", "the model"])
async def test_a_start_that_failed_does_not_lose_the_message_and_is_not_marked_as_done(fails: str) -> None:
    """philschmid 14: a start that failed lost the message, and did not come again."""
    asked: list[list[str]] = []
    started: list[str] = []
    hooks = Hooks("h")

    @hooks.before(AgentCall if fails == "the start" else ModelCall)
    def start(call: Any) -> None:
        started.append("start")
        if len(started) == 1:
            raise OSError("no disk")

    async with session_of(listening(asked, "fine"), hooks=[hooks]) as session:
        first = await session.run("FIRST")
        second = await session.run("SECOND")

    assert (first.reason, second.reason, started) == ("interrupted", "done", ["start"] * 2)
    assert first.messages[-1].content == "FIRST", "the caller has it"
    # What a hook failed to judge is read by no model: neither then nor in the next task.
    assert asked[0] == (["SECOND"] if fails == "the start" else ["FIRST", "SECOND"])


async def test_no_figure_at_the_end_counts_something_else_or_is_never_set() -> None:
    """philschmid 15: `interactionCount` counted turns, and `filesModified` was never set."""
    recorder = Recorder()
    turns = [calls(pay(call_id="p1"), pay(call_id="p2"), tokens=3, cost=0.25), says("fine", tokens=4, cost=0.5)]

    await exec_agent(paying([], *turns), "go", hooks=[recorder.hooks])

    end = recorder.completion
    assert (end.steps, end.llm_calls, end.tool_calls, end.total_tokens, end.cost_usd) == (2, 2, 2, 7, 0.75)
    assert (end.reason, end.last_assistant_content, end.error_type) == ("done", "fine", None)
    assert end.duration_ms > 0


@for_each("kind", ["before", "guard", "after"])
async def test_an_empty_answer_and_none_do_not_mean_different_things_by_accident(kind: str) -> None:
    """philschmid 16: `{}` blocked where `undefined` allowed, and elsewhere neither did."""
    make = {"before": before, "guard": guard, "after": after}[kind]

    nothing = await run([make(lambda *args: None)])
    empty = await run([make(lambda *args: {})])

    assert (nothing.denied, nothing.result) == (None, Tool().answer)
    assert empty.denied is not None
    assert statuses(nothing) + statuses(empty) == [(kind, "ok"), (kind, "error")]
