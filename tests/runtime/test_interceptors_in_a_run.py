"""What a hook's refusal or answer means in a run: which events still fire, what the model is told, how the run ends."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from hookline import (
    AfterCallAgent,
    AfterStep,
    AfterToolCall,
    Agent,
    AgentCall,
    Approve,
    Ask,
    BeforeCallAgent,
    BeforeToolCall,
    CompactCall,
    Continue,
    Deny,
    DrainReport,
    HookDispatcher,
    Hooks,
    MemoryCall,
    Message,
    ModelCall,
    OnCallAgentError,
    OnCompactError,
    OnToolCallError,
    Respond,
    ScriptedModel,
    StepCall,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolResult,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.errors import HookUsageError
from tests.tables import for_each

from .interception import (
    POINTS,
    JsonStore,
    World,
    after,
    around,
    before,
    contents,
    guard,
    pay,
    paying,
    replace,
    session_of,
    turns,
)
from .scenes import Recorder, agent_of, assert_consistent, assert_order, call, calls, raw_call, says, told

pytestmark = pytest.mark.anyio


async def play(agent: Any, *hooks: Any, prompt: Any = "go", **given: Any) -> tuple[Any, Recorder]:
    """Run it with a recorder; whatever happens, the order of events and the conversation hold."""
    recorder = Recorder(inherit=False)
    with anyio.fail_after(5):
        result = await exec_agent(agent, prompt, hooks=[recorder.hooks, *hooks], **given)
    assert_order(recorder.events)
    assert_consistent(result.messages, [pending.tool_call_id for pending in result.pending])
    return result, recorder


def no(*given: Any) -> Deny:
    return Deny("not today")


def stop(*given: Any) -> Deny:
    return Deny("enough", stop=True)


# A denied tool call.


async def test_a_denied_tool_call_reaches_the_model_as_a_failed_result_with_the_reason_and_the_run_goes_on() -> None:
    paid: list[Any] = []

    result, recorder = await play(paying(paid, calls(pay()), says()), guard(ToolCall, no))

    assert result.reason == "done"
    assert paid == []
    assert told(result.messages) == {"p1": "not today"}
    (outcome,) = recorder.of(AfterStep)[0].tools_result
    assert (outcome.content, outcome.success) == ("not today", False)
    assert result.denied is None


async def test_a_denied_tool_call_still_fires_its_pair_of_events() -> None:
    _, recorder = await play(paying([], calls(pay()), says()), guard(ToolCall, no, id="judge"))

    (asked,) = recorder.of(BeforeToolCall)
    (ended,) = recorder.of(AfterToolCall)
    assert not recorder.of(OnToolCallError)
    assert (asked.tool_name, asked.args, asked.call_index) == ("pay", {"amount": 5}, 1)
    assert (ended.content, ended.success, ended.mocked) == ("not today", False, False)


async def test_a_denied_tool_call_shows_observers_the_final_arguments() -> None:
    rewrite = before(ToolCall, lambda c: replace(c, args={"amount": 1}))

    _, recorder = await play(paying([], calls(pay(9)), says()), rewrite, guard(ToolCall, no))

    assert recorder.of(BeforeToolCall)[0].args == recorder.of(AfterToolCall)[0].args == {"amount": 1}
    assert recorder.of(AfterStep)[0].tools_calling[0].args == {"amount": 9}


async def test_an_observer_cannot_mock_a_call_that_was_denied() -> None:
    mocks, taken = Hooks("mocks"), []

    @mocks.on(BeforeToolCall)
    def fake(event: BeforeToolCall) -> None:
        taken.append(event.mock("permitted after all"))

    result, recorder = await play(paying([], calls(pay()), says()), guard(ToolCall, no), mocks)

    assert told(result.messages) == {"p1": "not today"}
    assert recorder.of(AfterToolCall)[0].content == "not today"
    assert taken == [False]  # "`mock` returns whether it was taken"


async def test_a_denial_that_stops_ends_the_run_and_says_by_whom() -> None:
    result, recorder = await play(paying([], calls(pay()), says("never")), guard(ToolCall, stop, id="judge"))

    assert result.reason == "interrupted"
    assert (result.denied.hook_id, result.denied.reason) == ("judge", "enough")
    assert told(result.messages) == {"p1": "enough"}
    assert recorder.completion.reason == "interrupted"
    assert not recorder.of(AfterStep)[-1].should_continue


async def test_a_denial_that_stops_lets_parallel_calls_finish_and_answers_those_that_wait() -> None:
    paid: list[Any] = []

    def judge(made: ToolCall) -> Any:
        if made.args.get("amount") == 1:
            return Deny("enough", stop=True)
        return Ask("sure?") if made.args.get("amount") == 2 else None

    agent = paying(paid, calls(pay(1, "a"), pay(2, "b"), call("look", "c")), says("never"))
    result, recorder = await play(agent, guard(ToolCall, judge))

    assert result.reason == "interrupted"
    assert paid == ["look"]
    assert result.pending == []
    assert list(told(result.messages)) == ["a", "b", "c"]
    assert told(result.messages)["c"] == "looked"
    assert recorder.completion.reason == "interrupted"


async def test_a_stop_after_a_tool_ran_ends_the_run_too() -> None:
    paid: list[Any] = []

    result, _ = await play(paying(paid, calls(pay()), says("never")), after(ToolCall, stop))

    assert paid == [5]
    assert result.reason == "interrupted"
    assert result.denied.reason == "enough"


async def test_a_result_that_was_withheld_is_told_as_such_and_shown_to_observers_as_it_was() -> None:
    result, recorder = await play(paying([], calls(pay()), says()), after(ToolCall, no, id="censor"))

    text = told(result.messages)["p1"]
    assert "ran" in text
    assert "'censor'" in text
    assert "not today" in text
    assert "paid 5" not in text
    (ended,) = recorder.of(AfterToolCall)
    assert (ended.content, ended.success) == ("paid 5", True)
    (outcome,) = recorder.of(AfterStep)[0].tools_result
    assert (outcome.content, outcome.success) == (text, False)


async def test_an_after_hook_that_fails_cannot_hide_that_the_tool_ran() -> None:
    """philschmid 9, Kibana 12: a failing after-hook hid a successful side effect."""

    def broken(made: ToolCall, result: ToolResult) -> None:
        raise KeyError("oops")

    paid: list[Any] = []
    result, recorder = await play(paying(paid, calls(pay()), says()), after(ToolCall, broken, id="broken"))

    assert result.reason == "done"
    assert paid == [5]
    assert "ran" in told(result.messages)["p1"]
    assert "'broken'" in told(result.messages)["p1"]
    assert recorder.of(AfterToolCall)[0].success


async def test_what_an_after_hook_made_of_a_result_is_what_the_model_is_told() -> None:
    """AGENT-33 F26: the result of a post-hook was ignored."""
    hook = after(ToolCall, lambda c, r: replace(r, content=r.content.upper()))

    result, recorder = await play(paying([], calls(pay()), says()), hook)

    assert told(result.messages) == {"p1": "PAID 5"}
    assert recorder.of(AfterToolCall)[0].content == "paid 5"
    assert recorder.of(AfterStep)[0].tools_result[0].content == "PAID 5"


async def test_an_after_hook_may_turn_a_failure_into_a_result() -> None:
    @tool
    async def flaky() -> str:
        raise OSError("down")

    hook = after(ToolCall, lambda c, r: ToolResult(content="cached") if r.error_type else None)

    result, recorder = await play(agent_of(calls(call("flaky")), says(), tools=[flaky]), hook)

    assert told(result.messages) == {"t1": "cached"}
    assert recorder.of(OnToolCallError)[0].error == "down"
    assert recorder.of(AfterStep)[0].tools_result[0].success


# The order around one tool call.


async def test_around_one_tool_call_come_way_in_guards_event_mock_or_tool_event_and_way_out() -> None:
    log: list[str] = []
    seen = Hooks("seen")

    @seen.around(ToolCall, priority=10)
    async def around_it(made: ToolCall, call_next: Any) -> Any:
        log.append("around in")
        result = await call_next(made)
        log.append("around out")
        return result

    seen.before(ToolCall)(lambda c: log.append("before"))
    seen.guard(ToolCall)(lambda c: log.append("guard"))
    seen.after(ToolCall)(lambda c, r: log.append("after"))
    seen.on(BeforeToolCall)(lambda e: log.append("beforeToolCall"))
    seen.on(AfterToolCall)(lambda e: log.append("afterToolCall"))

    @tool
    async def look() -> str:
        log.append("tool")
        return "looked"

    await play(agent_of(calls(call("look")), says(), tools=[look]), seen)

    order = ["around in", "before", "guard", "beforeToolCall", "tool", "afterToolCall", "after", "around out"]
    assert log == order


async def test_a_denied_call_fires_its_events_after_the_guards_and_its_step_goes_on() -> None:
    log: list[str] = []
    seen = Hooks("seen")
    seen.guard(ToolCall)(lambda c: log.append("guard") or Deny("no"))
    seen.on(BeforeToolCall)(lambda e: log.append("beforeToolCall"))
    seen.on(AfterToolCall)(lambda e: log.append("afterToolCall"))

    await play(paying([], calls(pay()), says()), seen)

    assert log == ["guard", "beforeToolCall", "afterToolCall"]


async def test_guards_judge_what_really_runs_whatever_the_order_of_registration() -> None:
    """philschmid 4: a guard registered before a rewriter judged `ls`, and the tool got `rm -rf /`."""
    ran: list[str] = []

    @tool
    async def bash(command: str) -> str:
        ran.append(command)
        return "ok"

    def no_rm(made: ToolCall) -> Any:
        return Deny("destructive") if "rm" in made.args["command"] else None

    async def worse(made: ToolCall, call_next: Any) -> Any:
        return await call_next(replace(made, args={"command": made.args["command"] + " -rf /"}))

    hooks = [
        guard(ToolCall, no_rm, priority=0),
        before(ToolCall, lambda c: replace(c, args={"command": "rm"}), priority=1000),
        around(ToolCall, worse, priority=1000),
    ]

    result, recorder = await play(agent_of(calls(call("bash", command="ls")), says(), tools=[bash]), *hooks)

    assert ran == []
    assert told(result.messages) == {"t1": "destructive"}
    assert recorder.of(BeforeToolCall)[0].args == {"command": "rm -rf /"}


# Answers.


async def test_an_answered_tool_call_fires_its_pair_of_events_as_mocked_and_says_by_whom() -> None:
    paid: list[Any] = []
    hook = before(ToolCall, lambda c: Respond({"content": "cached", "metadata": {"rule": 7}}), id="cache")

    result, recorder = await play(paying(paid, calls(pay()), says()), hook)

    assert paid == []
    assert told(result.messages) == {"p1": "cached"}
    (ended,) = recorder.of(AfterToolCall)
    assert (ended.mocked, ended.answered_by, ended.metadata) == (True, "cache", {"rule": 7})
    assert len(recorder.of(BeforeToolCall)) == 1


@for_each("reached", [False, True])
async def test_a_tool_call_was_answered_by_the_hook_that_kept_the_tool_from_running(*, reached: bool) -> None:
    paid: list[Any] = []

    async def replacing(made: ToolCall, call_next: Any) -> Respond:
        await call_next(made)
        return Respond("another")

    inner = around(ToolCall, lambda c, call_next: call_next(c) if reached else Respond("cached"), id="inner")
    outer = around(ToolCall, replacing, id="outer", priority=0)
    result, recorder = await play(paying(paid, calls(pay()), says()), inner, outer)

    assert told(result.messages) == {"p1": "another"}
    (ended,) = recorder.of(AfterToolCall)
    assert (ended.mocked, ended.answered_by) == ((False, None) if reached else (True, "inner"))
    assert bool(paid) is reached


async def test_an_exception_given_as_the_answer_of_a_tool_counts_as_raised_by_it() -> None:
    hook = before(ToolCall, lambda c: Respond(OSError("down")), id="fault")

    result, recorder = await play(paying([], calls(pay()), says()), hook)

    assert result.reason == "done"
    (failed,) = recorder.of(OnToolCallError)
    assert (failed.error, failed.error_type, failed.mocked, failed.answered_by) == ("down", "OSError", True, "fault")
    assert told(result.messages) == {"p1": "OSError: down"}


@pytest.mark.parametrize("kind", ["before", "around"])
async def test_an_exception_given_as_the_answer_of_a_sub_agent_is_told_to_the_model(kind: str) -> None:
    """Law 11: "`Respond(answer)` takes what `mock` takes"; section 5: a failed sub-agent gives `onCallAgentError`."""

    async def failing(made: Any, call_next: Any) -> Any:
        return Respond(OSError("down"))

    hook = (
        before(SubAgentCall, lambda c: Respond(OSError("down"))) if kind == "before" else around(SubAgentCall, failing)
    )

    result, recorder = await play(World(parallel=0).agent, hook)

    assert result.reason == "done"
    (failed,) = recorder.of(OnCallAgentError)
    assert failed.error == "down"
    assert "down" in recorder.of(AfterStep)[0].tools_result[0].content


async def test_an_exception_given_as_the_answer_of_a_model_ends_the_run_as_if_it_had_raised() -> None:
    result, recorder = await play(agent_of(says()), before(ModelCall, lambda c: Respond(OSError("down"))))

    assert result.reason == "error"
    assert recorder.completion.error_type == "OSError"


async def test_an_exception_given_as_the_answer_of_a_compaction_is_a_failed_compaction() -> None:
    result, recorder = await play(World().agent, before(CompactCall, lambda c: Respond(OSError("down"))))

    assert result.reason == "done"
    assert recorder.of(OnCompactError)[0].error == "down"


async def test_an_answered_sub_agent_fires_its_pair_of_events_and_does_not_run() -> None:
    world = World(parallel=0)

    result, recorder = await play(world.agent, before(SubAgentCall, lambda c: Respond("from the cache")))

    assert result.reason == "done"
    assert "child" not in world.ran
    assert recorder.of(BeforeCallAgent)[0].callee_id == "helper"
    assert recorder.of(AfterCallAgent)[0].success
    assert recorder.of(AfterStep)[0].tools_result[0].content == "from the cache"


async def test_an_answered_model_call_asks_no_model_and_counts_none() -> None:
    result, recorder = await play(agent_of(), before(ModelCall, lambda c: Respond("from the cache")))

    assert (result.reason, result.output) == ("done", "from the cache")
    assert recorder.completion.llm_calls == 0


async def test_an_answered_run_asks_no_model_and_has_a_conversation() -> None:
    result, recorder = await play(agent_of(instructions="be kind"), before(AgentCall, lambda c: Respond("cached")))

    assert (result.reason, result.output, result.steps) == ("done", "cached", 0)
    assert [(m.role, m.content) for m in result.messages] == [
        ("system", "be kind"),
        ("user", "go"),
        ("assistant", "cached"),
    ]
    assert recorder.completion.last_assistant_content == "cached"


async def test_an_answered_step_that_goes_on_is_followed_by_another() -> None:
    def once(made: StepCall) -> Any:
        return Respond(StepResult(should_continue=True, content="first")) if made.step_index == 0 else None

    result, _ = await play(agent_of(says("second")), before(StepCall, once))

    assert contents(result.messages) == ["go", "first", "second"]
    assert result.output == "second"


# Denials elsewhere.


@for_each("word", [Deny("not today"), Ask("not today")])
@for_each("point", ["AgentCall", "StepCall", "ModelCall"])
async def test_a_denied_run_step_or_model_call_ends_the_run_and_says_by_whom(point: str, word: Any) -> None:
    result, recorder = await play(agent_of(says("never")), guard(POINTS[point], lambda c: word, id="judge"))

    assert result.reason == "interrupted"
    assert (result.denied.hook_id, result.denied.reason) == ("judge", "not today")
    assert result.error is None
    assert result.output == ""
    assert result.pending == []
    assert recorder.completion.reason == "interrupted"
    assert recorder.completion.error_type is None


@pytest.mark.parametrize("word", [Deny("not today"), Ask("not today")])
async def test_a_denied_sub_agent_call_is_told_to_the_model_and_the_run_goes_on(word: Any) -> None:
    world = World(parallel=0)

    result, recorder = await play(world.agent, guard(SubAgentCall, lambda c: word))

    assert result.reason == "done"
    assert "child" not in world.ran
    assert len(recorder.of(BeforeCallAgent)) == 1
    assert recorder.of(OnCallAgentError)[0].error == "not today"
    assert not recorder.of(AfterCallAgent)
    (outcome,) = recorder.of(AfterStep)[0].tools_result
    assert (outcome.content, outcome.success) == ("not today", False)


async def test_a_denied_sub_agent_call_that_stops_ends_the_run() -> None:
    result, _ = await play(World(parallel=0).agent, guard(SubAgentCall, stop, id="judge"))

    assert result.reason == "interrupted"
    assert result.denied.hook_id == "judge"


async def test_an_answer_of_a_sub_agent_that_was_withheld_is_told_as_such() -> None:
    world = World(parallel=0)

    _, recorder = await play(world.agent, after(SubAgentCall, no, id="censor"))

    assert "child" in world.ran
    assert recorder.of(AfterCallAgent)[0].success
    (outcome,) = recorder.of(AfterStep)[0].tools_result
    assert not outcome.success
    assert "'censor'" in outcome.content
    assert "helped" not in outcome.content


@pytest.mark.parametrize("word", [Deny("not today"), Ask("not today")])
async def test_a_denied_compaction_is_a_failed_one_and_the_run_goes_on_with_all_its_messages(word: Any) -> None:
    world = World()

    result, recorder = await play(world.agent, guard(CompactCall, lambda c: word))

    assert result.reason == "done"
    assert "summary" not in world.ran
    assert "not today" in recorder.of(OnCompactError)[0].error
    assert len([message for message in result.messages if message.role == "tool"]) == 2


@for_each("point", ["AgentCall", "StepCall", "ModelCall"])
async def test_what_was_spent_on_an_answer_that_was_withheld_is_still_counted(point: str) -> None:
    """`usage`: "what its model calls used so far"; whether the answer may be seen does not change the bill."""
    result, recorder = await play(agent_of(says("secret", tokens=7, cost=0.5)), after(POINTS[point], no))

    assert result.reason == "interrupted"
    assert (result.usage.input_tokens, result.usage.cost_usd) == (7, 0.5)
    assert recorder.completion.total_tokens == 7
    assert recorder.completion.llm_calls == 1


@for_each("point", ["AgentCall", "StepCall", "ModelCall"])
async def test_an_answer_that_was_withheld_is_in_no_output_and_in_no_conversation(point: str) -> None:
    """`Deny`: "from an `after` hook, its result must not be seen"."""
    result, recorder = await play(agent_of(says("the secret")), after(POINTS[point], no))

    assert result.reason == "interrupted"
    assert "secret" not in result.output
    assert not [text for text in contents(result.messages) if "secret" in text]
    assert "secret" not in recorder.completion.last_assistant_content


async def test_a_model_error_is_counted_the_same_whether_hooks_look_on_or_not() -> None:
    counted = []
    for hooks in ([], [before(ModelCall, lambda c: None)]):
        _, recorder = await play(agent_of(ValueError("broke")), *hooks)
        counted.append(recorder.completion.llm_calls)

    assert counted[0] == counted[1]


async def test_hooks_of_another_tenant_change_nothing_at_all() -> None:
    theirs = Hooks("theirs", tenant_id="other")
    for point in POINTS.values():
        theirs.guard(point)(no)

    plain, without = await play(World(children=0).agent, tenant_id="ours")
    result, recorder = await play(World(children=0).agent, theirs, tenant_id="ours")

    assert result.messages == plain.messages
    assert recorder.names() == without.names()
    assert recorder.completion.tool_calls == without.completion.tool_calls


async def test_a_denied_run_does_not_touch_what_was_said_before_it() -> None:
    """The last assistant message may be one of the conversation that the run was given."""
    earlier = [Message(role="user", content="1+1?"), Message(role="assistant", content="2")]
    hooks = [guard(ModelCall, no), after(AgentCall, lambda c, r: replace(r, output="Sorry, I may not."))]

    result, _ = await play(agent_of(says()), *hooks, prompt=[*earlier, Message(role="user", content="more")])

    assert result.messages[: len(earlier)] == earlier
    assert result.output == "Sorry, I may not."


async def test_a_result_that_was_withheld_does_not_touch_what_was_said_before_it() -> None:
    earlier = [Message(role="user", content="1+1?"), Message(role="assistant", content="2")]

    result, _ = await play(
        agent_of(says()),
        guard(ModelCall, no),
        after(AgentCall, no),
        prompt=[*earlier, Message(role="user", content="x")],
    )

    assert result.messages[: len(earlier)] == earlier


async def test_a_step_that_hooks_see_knows_whether_another_follows() -> None:
    seen: list[bool] = []
    hook = after(StepCall, lambda c, r: seen.append(r.should_continue))

    _, recorder = await play(paying([], calls(pay()), max_steps=1), hook)

    assert seen == [event.should_continue for event in recorder.of(AfterStep)] == [False]


async def test_a_hook_may_end_the_run_after_a_step() -> None:
    hook = after(StepCall, lambda c, r: replace(r, should_continue=False))

    result, recorder = await play(paying([], calls(pay()), says("never")), hook)

    assert result.reason == "interrupted"
    assert told(result.messages) == {"p1": "paid 5"}
    assert not recorder.of(AfterStep)[0].should_continue


async def test_a_hook_may_make_a_finished_run_take_one_more_step() -> None:
    hook = after(StepCall, lambda c, r: replace(r, should_continue=True) if c.step_index == 0 else None)

    result, _ = await play(agent_of(says("one"), says("two")), hook)

    assert result.output == "two"
    assert result.steps == 2


# Law 8: an interrupted operation starts no further hook.


def interrupting(log: list[Any], how: str = "here") -> Any:
    def hook(*given: Any) -> Any:
        log.append("stop")
        operation_id = given[0].operation_id
        if how == "here":
            assert interrupt(operation_id)
        else:
            thread = threading.Thread(target=interrupt, args=(operation_id,))
            thread.start()
            thread.join(0.2)
            assert not thread.is_alive(), "`interrupt` in a thread waits for the event loop"

    return hook


@for_each("how", ["here", "thread"])
@for_each("kind", ["before", "guard", "after"])
@for_each("point", ["AgentCall", "StepCall", "ModelCall", "ToolCall", "SubAgentCall", "CompactCall"])
async def test_a_hook_that_interrupts_its_run_is_the_last_that_starts(point: str, kind: str, how: str) -> None:
    log: list[str] = []
    make = {"before": before, "guard": guard, "after": after}[kind]
    hooks = [
        make(POINTS[point], interrupting(log, how), priority=100 if kind != "after" else 900),
        *(
            hook(POINTS[name], lambda *_, n=name: log.append(f"after the stop: {n}"), priority=500)
            for name in ("StepCall", "ModelCall", "ToolCall", "SubAgentCall", "CompactCall")
            for hook in (before, guard, after)
            if name == point
        ),
        after(AgentCall, lambda c, r: log.append("after the stop: AgentCall"))
        if point != "AgentCall"
        else before(StepCall, lambda c: log.append("after the stop: StepCall")),
    ]

    result, _ = await play(World().agent, *hooks)

    assert result.reason == "interrupted"
    assert log[log.index("stop") :] == ["stop"]


@pytest.mark.parametrize("how", ["here", "thread"])
async def test_a_guard_that_interrupts_its_run_keeps_the_tool_from_starting(how: str) -> None:
    paid: list[Any] = []

    result, _ = await play(paying(paid, calls(pay()), says()), guard(ToolCall, interrupting([], how)))

    assert result.reason == "interrupted"
    assert paid == []


@for_each("point", ["ModelCall", "ToolCall", "StepCall", "AgentCall"])
async def test_a_hook_that_nobody_waits_for_does_not_start_after_an_interrupt(point: str) -> None:
    """Kibana 2: background hooks started even after an abort."""
    log: list[str] = []
    hooks = [
        guard(POINTS[point], interrupting(log)),
        before(POINTS[point], lambda c: log.append("too late"), wait=False),
    ]

    await play(paying([], calls(pay()), says()), *hooks)

    assert log == ["stop"]


@for_each("point", ["ModelCall", "ToolCall", "StepCall", "AgentCall"])
async def test_an_after_that_nobody_waits_for_does_not_start_after_an_interrupt(point: str) -> None:
    log: list[str] = []
    hooks = [
        after(POINTS[point], interrupting(log)),
        after(POINTS[point], lambda c, r: log.append("too late"), wait=False),
    ]

    await play(paying([], calls(pay()), says()), *hooks)

    assert log == ["stop"]


async def test_an_around_that_interrupts_before_it_lets_the_call_go_on_starts_nothing() -> None:
    log: list[str] = []

    async def stopping(made: Any, call_next: Any) -> Any:
        interrupt(made.operation_id)
        return await call_next(made)

    paid: list[Any] = []
    result, _ = await play(
        paying(paid, calls(pay()), says()),
        around(ToolCall, stopping, priority=0),
        before(ToolCall, lambda c: log.append("before")),
        guard(ToolCall, lambda c: log.append("guard")),
    )

    assert result.reason == "interrupted"
    assert log == []
    assert paid == []


async def test_a_hook_that_hangs_is_interrupted_at_once_and_nothing_follows() -> None:
    begun = anyio.Event()
    log: list[str] = []

    async def hanging(made: Any) -> None:
        begun.set()
        await anyio.sleep_forever()

    hooks = [
        guard(ToolCall, hanging),
        after(ToolCall, lambda c, r: log.append("after")),
        guard(ToolCall, lambda c: log.append("guard")),
    ]
    recorder = Recorder()
    paid: list[Any] = []
    results = []

    async def run() -> None:
        results.append(
            await exec_agent(paying(paid, calls(pay())), "go", hooks=[recorder.hooks, *hooks], operation_id="op")
        )

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await begun.wait()
            assert interrupt("op")

    assert results[0].reason == "interrupted"
    assert log == paid == []
    assert_order(recorder.events)
    assert_consistent(results[0].messages)


async def test_an_interrupt_of_the_parent_starts_no_further_hook_of_its_sub_agent() -> None:
    log: list[str] = []

    def stop_parent(made: Any) -> None:
        log.append("stop")
        assert interrupt("parent")

    child_hooks = [before(ModelCall, stop_parent), guard(ModelCall, lambda c: log.append("guard"))]
    world = World(parallel=0, child_hooks=child_hooks)

    result, _ = await play(world.agent, operation_id="parent")

    assert result.reason == "interrupted"
    assert log == ["stop"]


@pytest.mark.parametrize("how", ["denied", "answered"])
async def test_a_call_that_was_denied_or_answered_keeps_its_pair_of_events_when_it_is_interrupted(how: str) -> None:
    """Section 5: "`interrupt` ends a hanging model call or tool at once …; the tool keeps its pair of events"."""
    begun, slow = anyio.Event(), Hooks("slow")
    recorder = Recorder()

    @slow.on(BeforeToolCall, timeout=5)
    async def hanging(event: BeforeToolCall) -> None:
        begun.set()
        await anyio.sleep_forever()

    hook = guard(ToolCall, no) if how == "denied" else before(ToolCall, lambda c: Respond("cached"))

    async def run() -> None:
        await exec_agent(paying([], calls(pay()), says()), "go", hooks=[recorder.hooks, slow, hook], operation_id="op")

    with anyio.fail_after(4):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await begun.wait()
            assert interrupt("op")

    assert len(recorder.of(BeforeToolCall)) == 1
    assert_order(recorder.events)


async def test_an_interrupt_that_was_accepted_is_what_the_run_ends_with_in_the_hook_of_its_memory_too() -> None:
    accepted: list[bool] = []
    hook = guard(MemoryCall, lambda c: accepted.append(interrupt(c.operation_id)))

    async with session_of(agent_of(says())) as session:
        result = await session.run("go", hooks=[hook])

    assert accepted == [result.reason == "interrupted"]


# Hooks that nobody waits for.


async def test_hooks_nobody_waits_for_share_the_lane_of_their_bundle_with_its_async_observers_in_order() -> None:
    log: list[str] = []
    bundle = Hooks("bundle")

    def noting(text: str) -> Any:
        async def note(*given: Any) -> None:
            await turns(3)
            log.append(text)

        return note

    bundle.on(BeforeToolCall)(noting("observer mocks first"))
    bundle.before(ToolCall, wait=False)(noting("before"))
    bundle.on(AfterToolCall)(noting("afterToolCall"))
    bundle.after(ToolCall, wait=False)(noting("after"))
    bundle.on(AfterStep)(noting("afterStep"))

    await play(paying([], calls(pay()), says()), bundle)

    assert [text for text in log if text != "observer mocks first"] == [
        "before",
        "afterToolCall",
        "after",
        "afterStep",
        "afterStep",
    ]


async def test_a_hook_nobody_waits_for_gets_the_final_call_and_the_final_result() -> None:
    seen: list[Any] = []
    hooks = [
        before(ToolCall, lambda c: seen.append(c.args["amount"]), wait=False, priority=0),
        before(ToolCall, lambda c: replace(c, args={"amount": 8})),
        after(ToolCall, lambda c, r: seen.append((c.args["amount"], r.content)), wait=False, priority=1000),
        after(ToolCall, lambda c, r: replace(r, content="changed")),
    ]

    await play(paying([], calls(pay()), says()), *hooks)

    assert seen == [8, (8, "changed")]


class Reporting(HookDispatcher):
    """A dispatcher that keeps its reports."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[DrainReport] = []

    async def unregister(self, operation_id: str, *, drain_timeout: float = 5.0) -> DrainReport:
        self.reports.append(await super().unregister(operation_id, drain_timeout=drain_timeout))
        return self.reports[-1]


async def test_a_run_waits_for_hooks_nobody_waits_for_before_it_returns_and_counts_them() -> None:
    log: list[str] = []

    async def slow(*given: Any) -> None:
        await turns(20)
        log.append("done")

    hooks = [after(AgentCall, slow, wait=False), before(ModelCall, slow, wait=False)]
    async with Reporting() as dispatcher:
        await exec_agent(agent_of(says()), "go", hooks=hooks, dispatcher=dispatcher)

    assert log == ["done", "done"]
    assert [(report.delivered, report.dropped) for report in dispatcher.reports] == [(2, 0)]


async def test_a_hook_nobody_waits_for_delays_nobody_and_is_dropped_at_the_end_if_it_hangs() -> None:
    log: list[str] = []

    async def hanging(*given: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    with anyio.fail_after(5):
        result, _ = await play(
            paying([], calls(pay()), says()), before(ModelCall, hanging, wait=False), drain_timeout=0.02
        )

    assert result.reason == "done"
    assert log == ["cancelled"]


@pytest.mark.parametrize("sync", [True, False])
async def test_a_hook_nobody_waits_for_that_fails_is_logged_and_harms_nobody(
    sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: Any) -> None:
        raise KeyError("broken in the background")

    async def broken_later(*given: Any) -> None:
        raise KeyError("broken in the background")

    handler = broken if sync else broken_later
    hooks = [
        make(point, handler, wait=False, id=f"{point.__name__}-hook")
        for point in POINTS.values()
        for make in (before, after)
    ]

    result, _ = await play(World().agent, *hooks)

    assert result.reason == "done"
    assert result.output == "all done"
    assert "broken in the background" in caplog.text


async def test_a_hook_nobody_waits_for_does_not_start_when_the_call_is_denied() -> None:
    log: list[str] = []
    hooks = [
        before(ToolCall, lambda c: log.append("before"), wait=False),
        after(ToolCall, lambda c, r: log.append("after"), wait=False),
        guard(ToolCall, no),
    ]

    await play(paying([], calls(pay()), says()), *hooks)

    assert log == []


# Denied on resume.


async def test_a_step_that_is_denied_on_resume_still_says_what_a_person_decided() -> None:
    """Section 1: `afterHumanIntervention`, "one per decision"; section 5: each exactly once, on every path."""
    store, recorder, paid = JsonStore(), Recorder(), []
    agent = paying(paid, calls(pay()), says(), needs_approval=True)
    await exec_agent(agent, "go", operation_id="op", store=store)

    result = await resume_agent(agent, "op", [Approve("p1")], hooks=[recorder.hooks, guard(StepCall, no)], store=store)

    assert result.reason == "interrupted"
    assert paid == []
    assert_consistent(result.messages)
    assert recorder.names().count("afterHumanIntervention") == 1


async def test_what_a_guard_asked_about_is_not_led_again_through_hooks_of_lower_priority() -> None:
    """A guard judges last, whatever its priority: every other hook had led the call before the person was asked."""
    store, paid, led = JsonStore(), [], []

    async def count(made: ToolCall, call_next: Any) -> Any:
        led.append(made.args["amount"])
        return await call_next(made)

    def ask(made: ToolCall) -> Ask:
        return Ask("pay?")

    hooks = [guard(ToolCall, ask, priority=1, id="asks"), around(ToolCall, count, priority=100, id="counts")]
    agent = paying(paid, calls(pay()), says("end"))
    await exec_agent(agent, "go", operation_id="op", store=store, hooks=hooks)

    result = await resume_agent(agent, "op", [Approve("p1")], hooks=hooks, store=store)

    assert (result.reason, paid, led) == ("done", [5], [5])


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_step_that_is_answered_on_resume_leaves_a_conversation_that_a_model_can_read(goes_on: bool) -> None:
    store, paid = JsonStore(), []
    agent = paying(paid, calls(pay()), says("end"), needs_approval=True)
    await exec_agent(agent, "go", operation_id="op", store=store)
    asked: list[Any] = []

    def answer(made: StepCall) -> Any:
        return Respond(StepResult(should_continue=goes_on, content="x")) if made.step_index == 1 else None

    result = await resume_agent(
        agent,
        "op",
        [Approve("p1")],
        hooks=[before(StepCall, answer), before(ModelCall, lambda c: asked.append(c.messages))],
        store=store,
    )

    assert result.reason == "done"
    assert paid == []
    assert_consistent(result.messages)
    for messages in asked:
        assert_consistent(messages)


async def test_a_run_that_is_answered_on_resume_keeps_its_conversation() -> None:
    store = JsonStore()
    agent = paying([], calls(pay(), content="I will pay"), says("end"), needs_approval=True, instructions="be kind")
    await exec_agent(agent, "go", operation_id="op", store=store)

    async def cached(made: AgentCall, call_next: Any) -> Any:
        return Respond("cached")

    result = await resume_agent(agent, "op", [Approve("p1")], hooks=[around(AgentCall, cached)], store=store)

    assert result.output == "cached"
    assert contents(result.messages)[:3] == ["be kind", "go", "I will pay"]
    assert_consistent(result.messages)


async def test_a_continue_of_a_hook_that_interrupts_starts_nothing() -> None:
    """philschmid 3: after `abort()` an injection restarted the agent."""

    def go_on(made: AgentCall, result: Any) -> Continue:
        assert interrupt(made.operation_id)
        return Continue("once more")

    result, recorder = await play(agent_of(says("one"), says("two")), after(AgentCall, go_on))

    assert result.reason == "interrupted"
    assert result.steps == 1
    assert contents(result.messages) == ["go", "one"]
    assert recorder.names().count("beforeStep") == 1


async def test_a_call_that_no_tool_can_take_is_judged_all_the_same() -> None:
    """AGENT-33 F29: denied and broken calls skipped the audit."""
    judged: list[Any] = []
    agent = paying([], calls(call("unknown", "u"), raw_call("pay", "{broken", "b")), says())

    await play(agent, guard(ToolCall, lambda c: judged.append((c.tool_name, dict(c.args)))))

    assert sorted(judged) == [("pay", {}), ("unknown", {})]


async def test_a_guard_that_was_only_registered_with_the_dispatcher_is_no_silent_permit() -> None:
    hooks = Hooks("safety")
    hooks.guard(ToolCall, id="no-tools")(lambda call: Deny("no"))
    asked: list[Any] = []
    agent = Agent(id="a", model=ScriptedModel(lambda call: asked.append(call) or says("never")))

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hooks])
        with pytest.raises(HookUsageError, match=r"no-tools.*hooks=\[\.\.\.\]"):
            await exec_agent(agent, "go", operation_id="op", dispatcher=dispatcher)
        await dispatcher.unregister("op")
        result = await exec_agent(agent, "go", operation_id="op", dispatcher=dispatcher, hooks=[hooks])

    assert result.reason == "done"
    assert len(asked) == 1
