"""`Continue`: a finished run goes on with what hooks say, so often and no oftener, and never once it was stopped."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from hookline import (
    AfterStep,
    AgentCall,
    AgentResult,
    Approve,
    BeforeStep,
    Continue,
    Deny,
    ModelCall,
    OnComplete,
    Respond,
    ToolCall,
    exec_agent,
    interrupt,
    resume_agent,
)
from tests.tables import for_each

from .interception import JsonStore, Probe, after, around, before, contents, guard, pay, paying, replace, session_of
from .scenes import Recorder, agent_of, assert_consistent, assert_order, call, calls, says

pytestmark = pytest.mark.anyio


def go_on(*inputs: str) -> Any:
    """An `after(AgentCall)` that continues with these, one after the other."""
    left = list(inputs)
    return after(AgentCall, lambda made, result: Continue(left.pop(0)) if left else None)


async def play(agent: Any, *hooks: Any) -> tuple[Any, Recorder]:
    recorder = Recorder()
    with anyio.fail_after(5):
        result = await exec_agent(agent, "go", hooks=[recorder.hooks, *hooks])
    assert_consistent(result.messages)
    return result, recorder


def assert_order_of_parts(events: list[Any]) -> None:
    """As `assert_order` for each part of a continued run: a hook continues it after a step that nothing was to follow."""
    parts: list[list[Any]] = [[]]
    for event in events:
        ended = parts[-1] and isinstance(parts[-1][-1], AfterStep) and not parts[-1][-1].should_continue
        if ended and isinstance(event, BeforeStep):
            assert event.step_index == parts[-1][-1].step_index + 1
            parts.append([])
        parts[-1].append(event)
    (end,) = [event for event in events if isinstance(event, OnComplete)]
    for part in parts:
        assert_order(part if part[-1] is end else [*part, end])


async def test_a_continued_run_goes_on_with_the_conversation_and_never_repeats_its_first_message() -> None:
    """philschmid 2: an injection re-sent the first message (FIRST, FIRST, FOLLOW)."""
    asked: list[list[str]] = []
    hooks = [go_on("and then?"), before(ModelCall, lambda c: asked.append(contents(c.messages)))]

    result, recorder = await play(agent_of(says("one"), says("two"), instructions="be kind"), *hooks)

    assert asked == [["be kind", "go"], ["be kind", "go", "one", "and then?"]]
    assert contents(result.messages) == ["be kind", "go", "one", "and then?", "two"]
    assert (result.reason, result.output, result.steps) == ("done", "two", 2)
    assert len(recorder.of(OnComplete)) == 1


async def test_inputs_of_several_hooks_are_joined_by_a_blank_line_in_the_order_in_which_the_hooks_ran() -> None:
    once: list[Any] = []

    def only_first(text: str) -> Any:
        return lambda made, result: Continue(text) if result.output == "one" else once.append(text)

    hooks = [after(AgentCall, only_first("outer"), priority=1), after(AgentCall, only_first("inner"), priority=2)]

    result, _ = await play(agent_of(says("one"), says("two")), *hooks)

    assert contents(result.messages) == ["go", "one", "inner\n\nouter", "two"]


async def test_empty_inputs_are_ignored() -> None:
    result, _ = await play(
        agent_of(says("one")), after(AgentCall, lambda c, r: Continue("")), after(AgentCall, lambda c, r: Continue(""))
    )

    assert contents(result.messages) == ["go", "one"]
    assert result.reason == "done"


async def test_an_empty_input_adds_nothing_to_another() -> None:
    hooks = [go_on("more"), after(AgentCall, lambda c, r: Continue(""))]

    result, _ = await play(agent_of(says("one"), says("two")), *hooks)

    assert contents(result.messages) == ["go", "one", "more", "two"]


@for_each("limit", [0, 1, 3])
async def test_a_run_is_continued_at_most_so_often(limit: int) -> None:
    probe = Probe()
    agent = agent_of(*(says(str(n)) for n in range(10)), max_continues=limit)

    result, _ = await play(agent, after(AgentCall, lambda c, r: Continue("more")), probe.hooks)

    assert result.reason == "done"
    assert result.output == str(limit)
    assert probe.counts("AgentCall")["after"] == limit + 1


async def test_each_continuation_shows_the_hooks_only_its_own_input() -> None:
    seen: list[list[str]] = []

    await play(
        agent_of(says("one"), says("two"), says("three")),
        go_on("second", "third"),
        before(AgentCall, lambda c: seen.append(contents(c.input))),
    )

    assert seen == [["go"], ["second"], ["third"]]


async def test_a_hook_may_rewrite_the_input_of_a_continuation() -> None:
    def louder(made: AgentCall) -> AgentCall:
        return replace(made, input=[replace(message, content=message.content.upper()) for message in made.input])

    result, _ = await play(agent_of(says("one"), says("two")), go_on("more"), before(AgentCall, louder))

    assert contents(result.messages) == ["GO", "one", "MORE", "two"]


async def test_a_continuation_that_is_denied_ends_the_run_and_keeps_what_was_said() -> None:
    def judge(made: AgentCall) -> Any:
        return Deny("that will do") if made.input[0].content == "more" else None

    result, _ = await play(agent_of(says("one"), says("never")), go_on("more"), guard(AgentCall, judge))

    assert result.reason == "interrupted"
    assert result.denied.reason == "that will do"
    assert "one" in contents(result.messages)
    assert result.steps == 1
    assert result.output == "one"  # "what it said last, if it did not finish"


async def test_a_run_that_reached_its_last_step_is_not_continued() -> None:
    result, _ = await play(
        paying([], calls(pay()), says("never"), max_steps=1), after(AgentCall, lambda c, r: Continue("more"))
    )

    assert result.reason == "max_steps"
    assert "more" not in contents(result.messages)
    assert result.steps == 1


async def test_a_finished_run_whose_steps_are_used_up_is_not_continued_beyond_them() -> None:
    result, _ = await play(agent_of(says("one"), says("never"), max_steps=1), go_on("more"))

    assert result.steps == 1
    assert contents(result.messages) == ["go", "one"]


async def test_a_run_that_reached_its_cost_limit_is_not_continued() -> None:
    result, _ = await play(agent_of(says("one", cost=2.0), says("never"), cost_limit_usd=1.0), go_on("more"))

    assert result.steps == 1
    assert contents(result.messages) == ["go", "one"]


@pytest.mark.parametrize("denied", ["ModelCall", "ToolCall"])
async def test_a_run_that_was_denied_is_not_continued(denied: str) -> None:
    hook = (
        guard(ModelCall, lambda c: Deny("no"))
        if denied == "ModelCall"
        else guard(ToolCall, lambda c: Deny("no", stop=True))
    )

    result, _ = await play(paying([], calls(pay()), says("never")), hook, go_on("more"))

    assert result.reason == "interrupted"
    assert "more" not in contents(result.messages)


async def test_a_run_whose_result_was_withheld_is_not_continued() -> None:
    """A denial is sticky: a Continue of an inner hook does not outlive it."""
    hooks = [
        after(AgentCall, lambda c, r: Deny("no"), priority=1),
        after(AgentCall, lambda c, r: Continue("more"), priority=2),
    ]

    result, _ = await play(agent_of(says("one"), says("never")), *hooks)

    assert result.reason == "interrupted"
    assert result.steps == 1
    assert "more" not in contents(result.messages)


async def test_a_run_that_was_interrupted_is_not_continued() -> None:
    """philschmid 3: after `abort()` an injection restarted the agent."""
    result, _ = await play(
        paying([], calls(pay()), says("never")),
        after(ToolCall, lambda c, r: interrupt(c.operation_id) and None),
        after(AgentCall, lambda c, r: Continue("more")),
    )

    assert result.reason == "interrupted"
    assert "more" not in contents(result.messages)


async def test_a_model_error_is_not_continued() -> None:
    result, _ = await play(agent_of(ValueError("broke")), after(AgentCall, lambda c, r: Continue("more")))

    assert result.reason == "error"


async def test_a_paused_run_is_continued_only_at_its_true_end() -> None:
    paid: list[Any] = []
    store = JsonStore()
    hooks = [after(AgentCall, lambda c, r: Continue("more") if r.output == "one" else None)]
    paused = await exec_agent(
        paying(paid, calls(pay()), needs_approval=True), "go", hooks=hooks, operation_id="op", store=store
    )
    assert paused.reason == "waiting_for_human"

    result = await resume_agent(
        paying(paid, says("one"), says("two"), needs_approval=True), "op", [Approve("p1")], hooks=hooks, store=store
    )

    assert (result.reason, result.output) == ("done", "two")
    assert contents(result.messages)[-3:] == ["one", "more", "two"]
    assert_consistent(result.messages)


async def test_continuations_are_counted_over_pauses() -> None:
    store = JsonStore()
    always = [after(AgentCall, lambda c, r: Continue("more"))]

    def anew(*turns: Any) -> Any:
        return paying([], *turns, needs_approval=True, max_continues=1)

    first = await exec_agent(anew(says("one"), calls(pay())), "go", hooks=always, operation_id="op", store=store)
    assert first.reason == "waiting_for_human"

    result = await resume_agent(anew(says("two"), says("never")), "op", [Approve("p1")], hooks=always, store=store)

    assert (result.reason, result.output) == ("done", "two")


async def test_an_answered_run_may_be_continued_too() -> None:
    def cached(made: AgentCall) -> Any:
        return Respond("cached") if made.input[0].content == "go" else None

    result, _ = await play(agent_of(says("real")), go_on("more"), before(AgentCall, cached, priority=900))

    assert contents(result.messages) == ["go", "cached", "more", "real"]


async def test_steps_events_and_counters_go_on_over_continuations() -> None:
    agent = paying(
        [], calls(pay(), tokens=1), says("one", tokens=2), calls(pay(6, "p2"), tokens=4), says("two", tokens=8)
    )

    result, recorder = await play(agent, go_on("more"))

    assert_order_of_parts(recorder.events)
    assert (result.steps, result.usage.input_tokens, result.tool_calls) == (4, 15, 2)
    assert [event.call_index for event in recorder.events if event.hook_type == "beforeToolCall"] == [1, 2]


async def test_a_continue_from_a_hook_that_is_no_after_of_a_run_is_a_wrong_answer() -> None:
    paid: list[Any] = []

    result, _ = await play(paying(paid, calls(pay()), says()), after(ToolCall, lambda c, r: Continue("more")))

    assert result.reason == "done"
    assert "more" not in contents(result.messages)


async def test_an_around_that_changes_the_output_after_a_continue_is_seen_in_the_conversation() -> None:
    async def marking(made: AgentCall, call_next: Any) -> AgentResult:
        result = await call_next(made)
        return replace(result, output=f"<{result.output}>")

    result, _ = await play(agent_of(says("one"), says("two")), go_on("more"), around(AgentCall, marking))

    assert contents(result.messages) == ["go", "<one>", "more", "<two>"]
    assert result.output == "<two>"


async def test_a_session_remembers_a_continued_task_whole_and_goes_on_from_there() -> None:
    asked: list[list[str]] = []

    async with session_of(agent_of(says("one"), says("two"), says("three"), instructions="be kind")) as session:
        await session.run("go", hooks=[go_on("more")])
        await session.run("next", hooks=[before(ModelCall, lambda c: asked.append(contents(c.messages)))])

    assert asked == [["be kind", "go", "one", "more", "two", "next"]]


async def test_tools_of_a_continuation_run_like_any_other() -> None:
    paid: list[Any] = []

    result, recorder = await play(paying(paid, says("one"), calls(call("look", "l")), says("two")), go_on("more"))

    assert paid == ["look"]
    assert result.output == "two"
    assert_order_of_parts(recorder.events)
