"""A run may be held to limits; what it did too much of is told in sentences."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterStep,
    Agent,
    BeforeToolCall,
    Hooks,
    ModelResponse,
    ScriptedModel,
    ToolRequest,
    Usage,
    exec_agent,
)
from hookline.errors import HookUsageError
from hookline.evals import EventRecorder, Limits, RecordedOperation

pytestmark = pytest.mark.anyio

SEARCH, AGAIN, SEND = ("web", "search", {"q": "tea"}), ("web", "search", {"q": "tea"}), ("mail", "send", {"to": "ann"})


async def recorded(*calls: tuple[str, str, dict[str, str]]) -> RecordedOperation:
    answers, recorder = Hooks("answers"), EventRecorder()
    answers.on(BeforeToolCall)(lambda event: event.mock("yes"))
    usage = Usage(input_tokens=100, output_tokens=10, cost_usd=0.02)
    turns = [
        ModelResponse(
            tool_calls=[ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=f"t{number}")],
            usage=usage,
        )
        for number, (toolset, name, args) in enumerate(calls)
    ]
    agent = Agent(id="a", model=ScriptedModel([*turns, ModelResponse(content="end", usage=usage)]))
    await exec_agent(agent, "go", hooks=[answers, recorder.hooks])
    return recorder.only


async def test_a_run_within_its_limits_is_content() -> None:
    run = await recorded(SEARCH, SEND)

    limits = Limits(
        max_calls=2,
        max_steps=3,
        max_cost_usd=0.06,
        max_tokens=330,
        max_calls_per_tool={"search": 1, "mail/send": 1, "*": 2, "never": 0},
        no_repeated_call=True,
    )
    assert limits.check(run) == []
    limits.assert_met(run)
    assert Limits().check(run) == []


async def test_each_limit_that_is_passed_is_a_sentence() -> None:
    run = await recorded(SEARCH, SEND, AGAIN)

    limits = Limits(
        max_calls=2,
        max_steps=1,
        max_cost_usd=0.05,
        max_tokens=400,
        max_calls_per_tool={"search": 1, "mail/*": 0},
        no_repeated_call=True,
    )
    assert limits.check(run) == [
        "There were 3 tool calls; at most 2 are allowed.",
        "There were 4 steps; at most 1 is allowed.",
        "There were 440 tokens; at most 400 are allowed.",
        "It cost 0.08 USD; at most 0.05 USD are allowed.",
        "There were 2 calls of search; at most 1 is allowed.",
        "There was 1 call of mail/*; at most 0 are allowed.",
        'web/search was called 2 times with {"q":"tea"}; no call may be repeated.',
    ]


async def test_a_failed_assertion_shows_the_calls() -> None:
    run = await recorded(SEARCH, SEND)

    with pytest.raises(AssertionError) as caught:
        Limits(max_calls=1).assert_met(run)

    assert str(caught.value).splitlines() == [
        "There were 2 tool calls; at most 1 is allowed.",
        "Calls:",
        '  1  step 0  web/search  {"q": "tea"}',
        '  2  step 1  mail/send   {"to": "ann"}',
    ]


async def test_a_run_that_has_not_ended_has_used_what_its_steps_did() -> None:
    run, unfinished = await recorded(SEARCH), RecordedOperation("cut short")
    unfinished.events += run.events[: run.events.index(run.first(AfterStep)) + 1]

    assert Limits(max_tokens=110, max_cost_usd=0.02, max_steps=1).check(unfinished) == []
    assert len(Limits(max_tokens=109, max_cost_usd=0.01, max_steps=0).check(unfinished)) == 3


def test_an_operation_without_events_is_within_every_limit() -> None:
    assert Limits(max_calls=0, max_steps=0, max_cost_usd=0, max_tokens=0).check(RecordedOperation("none")) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_calls": -1},
        {"max_calls": 1.5},
        {"max_steps": True},
        {"max_tokens": "many"},
        {"max_cost_usd": -0.1},
        {"max_cost_usd": math.nan},
        {"max_cost_usd": math.inf},
        {"max_calls_per_tool": ["search"]},
        {"max_calls_per_tool": {"search": -1}},
        {"max_calls_per_tool": {"search": None}},
        {"max_calls_per_tool": {"": 1}},
        {"no_repeated_call": 1},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError, match=next(iter(wrong))):
        Limits(**wrong)


@given(st.lists(st.sampled_from(["a/x", "a/y", "b/x"]), max_size=6), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_law_a_limit_is_passed_if_and_only_if_there_are_more(paths: list[str], limit: int) -> None:
    run = RecordedOperation("one")
    for number, path in enumerate(paths):
        toolset, name = path.split("/")
        event = BeforeToolCall(
            operation_id="one",
            toolset=toolset,
            tool_name=name,
            args={},
            call_index=paths[: number + 1].count(path),
            step_index=0,
            tool_call_id=f"t{number}",
        )
        run.events.append(event)

    assert bool(Limits(max_calls=limit).check(run)) == (len(paths) > limit)
    assert bool(Limits(max_calls_per_tool={"x": limit}).check(run)) == (sum(map(paths.count, ("a/x", "b/x"))) > limit)
    assert bool(Limits(no_repeated_call=True).check(run)) == (len(set(paths)) < len(paths))
