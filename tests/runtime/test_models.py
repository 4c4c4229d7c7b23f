"""Models: what they are asked, what they may answer, when they are asked again, and the limits of a run."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline import (
    AfterCompact,
    AfterStep,
    Agent,
    BeforeCompact,
    Compaction,
    Message,
    ModelCall,
    ModelResponse,
    OnCompactError,
    OnComplete,
    OnError,
    TransientModelError,
    Usage,
    exec_agent,
    tool,
)
from hookline.runtime import ModelRetry
from tests.tables import for_each

from .scenes import AT_ONCE, Recorder, agent_of, assert_consistent, assert_order, call, calls, says, tool_texts

pytestmark = pytest.mark.anyio


@tool
async def work(n: int = 0) -> str:
    return f"worked {n}"


class Asked:
    """A model that remembers what it was asked, and answers from a script."""

    name = "asked"
    provider = "tests"

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.asked: list[ModelCall] = []

    async def respond(self, about: ModelCall) -> ModelResponse:
        self.asked.append(about)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn

    def roles(self, at: int) -> list[str]:
        return [message.role for message in self.asked[at].messages]


async def test_a_model_is_asked_with_the_conversation_the_tools_and_its_name() -> None:
    model = Asked(calls(call("work", n=1), content="let me see"), says())

    result = await exec_agent(Agent(id="a", model=model, tools=[work], instructions="Be kind."), "hé 世界")

    first, second = model.asked
    assert [(message.role, message.content) for message in first.messages] == [
        ("system", "Be kind."),
        ("user", "hé 世界"),
    ]
    assert [spec.name for spec in first.tools] == ["work"]
    assert (first.model, first.operation_id) == ("asked", result.operation_id)
    assert model.roles(1) == ["system", "user", "assistant", "tool"]
    assert second.messages[2].content == "let me see"
    assert result.messages[-1].content == "done"


async def test_a_conversation_goes_on_and_the_instructions_stand_in_it_once() -> None:
    model = Asked(says("one"), says("two"))
    agent = Agent(id="a", model=model, instructions="Be kind.")
    first = await exec_agent(agent, "hello")

    second = await exec_agent(agent, [*first.messages, Message(role="user", content="again")])

    assert [message.role for message in second.messages] == ["system", "user", "assistant", "user", "assistant"]


async def test_a_model_that_edits_what_it_is_given_changes_nothing() -> None:
    class Rude(Asked):
        async def respond(self, about: ModelCall) -> ModelResponse:
            answer = await super().respond(about)
            about.messages.clear()
            return answer

    result = await exec_agent(Agent(id="a", model=Rude(calls(call("work")), says()), tools=[work]), "go")

    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


@for_each(
    "error", [ValueError("no"), KeyError(), TimeoutError(), ExceptionGroup("g", [OSError()]), RuntimeError("世界")]
)
async def test_a_model_that_raises_ends_the_run_and_is_not_asked_again(error: Exception) -> None:
    recorder = Recorder()
    model = Asked(error, says())

    result = await exec_agent(Agent(id="a", model=model, retry=AT_ONCE), "go", hooks=[recorder.hooks])

    assert (result.reason, result.error, len(model.asked)) == ("error", error, 1)
    assert recorder.names() == ["beforeStep", "afterStep", "onComplete", "onError"]
    end, told = recorder.completion, recorder.of(OnError)[0]
    assert end.error_type == told.error_type == type(error).__name__
    assert end.error_message == told.error_message
    assert isinstance(told.error_message, str)
    assert type(error).__name__ in told.error_detail
    assert told.step_index == 0


class UnprintableJunk:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@for_each(
    "junk",
    [
        None,
        "text",
        {"content": "x"},
        42,
        Message(role="assistant", content="x"),
        ModelResponse(content=None),  # type: ignore[arg-type]
        ModelResponse(tool_calls=None),  # type: ignore[arg-type]
        ModelResponse(tool_calls=["work"]),  # type: ignore[list-item]
        ModelResponse(tool_calls=[{"tool_name": "work"}]),  # type: ignore[list-item]
        ModelResponse(usage=None),  # type: ignore[arg-type]
        ModelResponse(usage=Usage(input_tokens=None)),  # type: ignore[arg-type]
        ModelResponse(usage=Usage(input_tokens=float("nan"))),  # type: ignore[arg-type]
        ModelResponse(usage=Usage(output_tokens="3")),  # type: ignore[arg-type]
        ModelResponse(usage=Usage(cost_usd="much")),  # type: ignore[arg-type]
        ModelResponse(usage=Usage(cost_usd=float("nan"))),
        ModelResponse(usage=Usage(cost_usd=float("inf"))),
        ModelResponse(tool_calls=[call("work", None)]),  # type: ignore[arg-type]
        UnprintableJunk(),
    ],
    ids=lambda junk: repr(junk) if type(junk) is not UnprintableJunk else "no repr",
)
async def test_a_junk_answer_ends_the_run_with_an_error_or_does_no_harm(junk: Any) -> None:
    recorder = Recorder()

    result = await exec_agent(Agent(id="a", model=Asked(junk, says()), tools=[work]), "go", hooks=[recorder.hooks])

    assert result.reason == "error" or junk.tool_calls
    if result.reason == "error":
        assert recorder.of(OnError)[0].error_type == "ModelAnswerError"
    assert_order(recorder.events)
    assert_consistent(result.messages)


async def test_a_model_that_answers_without_being_async_is_understood() -> None:
    class Plain(Asked):
        def respond(self, about: ModelCall) -> ModelResponse:  # type: ignore[override]
            return says("plain")

    assert (await exec_agent(Agent(id="a", model=Plain()), "go")).output == "plain"


async def test_a_script_that_is_over_ends_the_run_with_an_error_that_says_so() -> None:
    result = await exec_agent(agent_of(), "go")

    assert result.reason == "error"
    assert "script" in str(result.error)


# Asking again.


async def test_only_a_transient_error_is_asked_again_within_the_same_step() -> None:
    recorder = Recorder()
    model = Asked(TransientModelError("busy"), TransientModelError("busy"), says("at last"))

    result = await exec_agent(Agent(id="a", model=model, retry=AT_ONCE), "go", hooks=[recorder.hooks])

    assert (result.reason, result.output, len(model.asked)) == ("done", "at last", 3)
    assert recorder.names() == ["beforeStep", "afterStep", "onComplete"]
    assert model.asked[0] == model.asked[2]


async def test_after_the_last_attempt_the_run_ends_with_the_transient_error() -> None:
    model = Asked(*(TransientModelError(f"busy {n}") for n in range(9)))

    result = await exec_agent(Agent(id="a", model=model, retry=ModelRetry(attempts=3, first_wait=0.0)), "go")

    assert (result.reason, len(model.asked)) == ("error", 3)
    assert isinstance(result.error, TransientModelError)
    assert str(result.error) == "busy 2"


def test_waits_grow_up_to_a_limit_are_jittered_and_give_way_to_what_the_provider_asks() -> None:
    retry = ModelRetry(first_wait=1.0, max_wait=5.0, jitter=0.5)
    plain = TransientModelError("busy")

    for attempt, longest in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (60, 5.0)]:
        waits = [retry.wait(attempt, plain) for _ in range(50)]
        assert all(longest / 2 <= wait <= longest for wait in waits)
        assert len(set(waits)) > 1
    assert retry.wait(1, TransientModelError("busy", retry_after=7.5)) == 7.5
    assert retry.wait(1, TransientModelError("busy", retry_after=-1)) == 0.0


async def test_a_retry_after_of_nothing_asks_again_at_once() -> None:
    model = Asked(TransientModelError("busy", retry_after=0.0), says())

    with anyio.fail_after(5):
        result = await exec_agent(Agent(id="a", model=model, retry=ModelRetry(first_wait=3600, max_wait=3600)), "go")

    assert result.reason == "done"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_error_of_the_models_own_is_an_error_of_the_model() -> None:
    import asyncio

    class Confused(Asked):
        async def respond(self, about: ModelCall) -> ModelResponse:
            raise asyncio.CancelledError

    recorder = Recorder()
    result = await exec_agent(Agent(id="a", model=Confused()), "go", hooks=[recorder.hooks])

    assert result.reason == "error"
    assert_order(recorder.events)


# Limits.


async def test_max_steps_ends_the_run_after_so_many_steps() -> None:
    recorder = Recorder()
    model = Asked(*(calls(call("work")) for _ in range(9)))

    result = await exec_agent(Agent(id="a", model=model, tools=[work], max_steps=3), "go", hooks=[recorder.hooks])

    assert (result.reason, result.steps, len(model.asked)) == ("max_steps", 3, 3)
    assert [step.should_continue for step in recorder.of(AfterStep)] == [True, True, False]
    assert result.error is None
    assert_consistent(result.messages)
    assert_order(recorder.events)


async def test_an_answer_in_the_last_step_allowed_is_done() -> None:
    result = await exec_agent(agent_of(calls(call("work")), says(), tools=[work], max_steps=2), "go")

    assert (result.reason, result.steps) == ("done", 2)


@for_each(("cost", "steps"), [(0.5, 2), (1.0, 1), (5.0, 1), (0.4, 3)])
async def test_the_cost_limit_ends_the_run_when_it_is_reached(cost: float, steps: int) -> None:
    recorder = Recorder()
    agent = agent_of(*(calls(call("work"), cost=cost) for _ in range(9)), tools=[work], cost_limit_usd=1.0)

    result = await exec_agent(agent, "go", hooks=[recorder.hooks])

    assert (result.reason, result.steps) == ("cost_limit", steps)
    assert recorder.completion.reason == "cost_limit"
    assert result.usage.cost_usd >= 1.0


async def test_an_answer_that_costs_too_much_is_done_all_the_same() -> None:
    assert (await exec_agent(agent_of(says(cost=99.0), cost_limit_usd=1.0), "go")).reason == "done"


# What the events say of it.


async def test_after_step_has_the_steps_own_figures_and_the_totals() -> None:
    recorder = Recorder()

    def turn(response: ModelResponse, reads: int, writes: int, cost: float) -> ModelResponse:
        usage = Usage(input_tokens=reads, output_tokens=writes, cost_usd=cost)
        return ModelResponse(content=response.content, tool_calls=response.tool_calls, reasoning="hm", usage=usage)

    turns = [
        turn(calls(call("work", "a"), call("work", "b"), content="first"), 10, 1, 0.25),
        turn(says("end"), 20, 2, 0.5),
    ]

    result = await exec_agent(agent_of(*turns, tools=[work]), "go", hooks=[recorder.hooks])

    one, two = recorder.of(AfterStep)
    assert (one.step_type, one.content, one.reasoning, one.should_continue) == ("call_tool", "first", "hm", True)
    assert (two.step_type, two.content, two.should_continue) == ("call_llm", "end", False)
    assert (one.step_cost_usd, one.total_cost_usd, two.step_cost_usd, two.total_cost_usd) == (0.25, 0.25, 0.5, 0.75)
    assert (one.total_input_tokens, one.total_output_tokens) == (10, 1)
    assert (two.total_input_tokens, two.total_output_tokens) == (30, 3)
    assert (one.total_steps, two.total_steps, one.total_tool_calls, two.total_tool_calls) == (1, 2, 2, 2)
    assert 0 <= one.execution_time_ms <= one.elapsed_ms <= two.elapsed_ms
    end = recorder.completion
    assert (end.steps, end.llm_calls, end.tool_calls, end.total_tokens, end.cost_usd) == (2, 2, 2, 33, 0.75)
    assert end.last_assistant_content == "end"
    assert end.duration_ms >= two.elapsed_ms
    assert (end.error_type, end.error_message) == (None, None)
    assert result.usage == Usage(input_tokens=30, output_tokens=3, cost_usd=0.75)


async def test_counters_count_whoever_listens() -> None:
    silent = await exec_agent(agent_of(calls(call("work"), tokens=3), says(tokens=4), tools=[work]), "go")

    assert (silent.steps, silent.tool_calls, silent.usage.input_tokens) == (2, 1, 7)


# Compaction.


def compacting(*turns: Any, summarize: Any, max_tokens: int = 10, keep_last: int = 1) -> tuple[Agent, Asked]:
    model = Asked(*turns)
    policy = Compaction(max_tokens=max_tokens, summarize=summarize, keep_last=keep_last)
    return Agent(id="a", model=model, tools=[work], instructions="Be kind.", compaction=policy), model


async def short(messages: list[Message]) -> str:
    await anyio.lowlevel.checkpoint()
    return "SHORT"


async def test_compaction_happens_before_the_model_call_after_the_threshold_was_reported() -> None:
    recorder = Recorder()
    summarised: list[list[Message]] = []

    async def summarize(messages: list[Message]) -> str:
        summarised.append(messages)
        return "SHORT"

    agent, model = compacting(
        calls(call("work", "a", n=1), tokens=10),
        calls(call("work", "b", n=2), tokens=11),
        calls(call("work", "c", n=3), tokens=5),
        says(tokens=5),
        summarize=summarize,
    )
    result = await exec_agent(agent, "question", hooks=[recorder.hooks])

    (before,), (after,) = recorder.of(BeforeCompact), recorder.of(AfterCompact)
    assert (before.step_index, before.message_count, before.token_count) == (2, 6, 11)
    assert (after.step_index, after.messages_before, after.summary) == (2, 6, "SHORT")
    assert after.messages_after == len(model.asked[2].messages)
    assert after.group_id
    assert [message.role for message in summarised[0]] == ["assistant", "tool"]
    assert summarised[0][1].content == "worked 1"
    texts = [message.content for message in model.asked[2].messages]
    assert "question" in texts
    assert "worked 1" not in texts
    assert "worked 2" in texts
    assert any("SHORT" in text for text in texts)
    assert model.asked[2].messages[0].content == "Be kind."
    assert_consistent(model.asked[2].messages)
    assert_consistent(result.messages)
    assert_order(recorder.events)


@for_each("keep_last", [0, 1, 2, 3, 9])
async def test_keep_last_counts_exchanges_and_leaves_no_tool_result_alone(keep_last: int) -> None:
    turns = [calls(call("work", f"{n}a", n=n), call("work", f"{n}b", n=n)) for n in range(4)]
    agent, model = compacting(
        *turns[:3],
        calls(call("work", "3a", n=3), tokens=100),
        says(),
        summarize=short,
        keep_last=keep_last,
        max_tokens=99,
    )

    result = await exec_agent(agent, "question")

    asked = model.asked[-1].messages
    assert_consistent(asked)
    assert sum(message.role == "assistant" for message in asked) == min(keep_last, 4)
    assert any(message.content == "question" for message in asked)
    assert result.reason == "done"


async def test_tokens_are_estimated_where_the_model_reports_none() -> None:
    recorder = Recorder()
    agent, _ = compacting(
        calls(call("work", "a"), content="x" * 4000), calls(call("work", "b")), says(), summarize=short, max_tokens=500
    )

    await exec_agent(agent, "go", hooks=[recorder.hooks])

    (before,) = recorder.of(BeforeCompact)
    assert before.token_count > 500
    assert before.step_index == 2


async def test_the_newest_user_message_is_never_removed_and_older_ones_may_be() -> None:
    history = [
        Message(role="user", content="old question"),
        Message(role="assistant", content="old answer"),
        Message(role="user", content="new question " + "x" * 4000),
    ]
    agent, model = compacting(says(), summarize=short, keep_last=0)

    await exec_agent(agent, history)

    texts = [message.content for message in model.asked[0].messages]
    assert history[2].content in texts
    assert "old question" not in texts
    assert "old answer" not in texts


async def test_where_nothing_can_be_removed_there_is_no_compaction() -> None:
    recorder = Recorder()
    agent, _ = compacting(says(), summarize=short)

    result = await exec_agent(agent, "x" * 10_000, hooks=[recorder.hooks])

    assert result.reason == "done"
    assert recorder.names() == ["beforeStep", "afterStep", "onComplete"]


async def failing(messages: list[Message]) -> str:
    raise RuntimeError("no summary today")


async def junk(messages: list[Message]) -> Any:
    return {"summary": "x"}


async def nothing(messages: list[Message]) -> Any:
    return None


def not_async(messages: list[Message]) -> Any:
    return 42


@for_each("summarize", [failing, junk, nothing, not_async])
async def test_a_failing_or_junk_summary_is_never_fatal(summarize: Any) -> None:
    recorder = Recorder()
    turns = [calls(call("work", f"t{n}"), tokens=50) for n in range(3)]
    agent, _ = compacting(*turns, says(), summarize=summarize)

    result = await exec_agent(agent, "go", hooks=[recorder.hooks])

    assert result.reason == "done"
    assert len(recorder.of(BeforeCompact)) == len(recorder.of(OnCompactError)) == 2
    assert recorder.of(OnCompactError)[0].token_count == 50
    assert recorder.of(OnCompactError)[0].error
    assert not recorder.of(AfterCompact)
    assert tool_texts(result) == 3 * ["worked 0"]
    assert_order(recorder.events)


async def test_the_summariser_cannot_harm_the_conversation() -> None:
    async def rude(messages: list[Message]) -> str:
        messages.clear()
        raise RuntimeError("and goodbye")

    agent, _ = compacting(
        calls(call("work", "a"), tokens=50), calls(call("work", "b"), tokens=50), says(), summarize=rude
    )

    result = await exec_agent(agent, "go")

    assert len(tool_texts(result)) == 2
    assert_consistent(result.messages)


async def test_a_long_run_can_be_compacted_again_and_again() -> None:
    recorder = Recorder()
    turns = [calls(call("work", f"t{n}", n=n), tokens=50) for n in range(12)]
    agent, model = compacting(*turns, says(), summarize=short)

    result = await exec_agent(agent, "question", hooks=[recorder.hooks])

    assert result.reason == "done"
    assert len(recorder.of(AfterCompact)) == 11
    assert max(len(asked.messages) for asked in model.asked) <= 7
    assert all(any(message.content == "question" for message in asked.messages) for asked in model.asked)
    for asked in model.asked:
        assert_consistent(asked.messages)
    assert recorder.of(OnComplete)[0].reason == "done"
