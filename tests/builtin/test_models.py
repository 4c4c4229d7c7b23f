"""What a run may spend on its model, and how often a model is asked again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Approve, Deny, Hooks, ModelCall, ModelResponse, ToolCall, exec_agent, resume_agent
from hookline.builtin import budget, require_approval, retry
from hookline.errors import HookDefinitionError, TransientModelError
from hookline.interceptors import Chain
from tests.tables import for_each

from .scenes import agent_of, asks, says, through, told

pytestmark = pytest.mark.anyio


def purses_of(hooks: Hooks) -> Any:
    guard = next(hook.handler for hook in hooks.interceptors if hook.kind == "guard")
    cells = dict(zip(guard.__code__.co_freevars, guard.__closure__ or (), strict=True))  # type: ignore[attr-defined]
    return cells["purses"].cell_contents


async def test_a_run_ends_when_its_money_is_used_up() -> None:
    agent = agent_of(asks("search", cost=0.3), asks("search", cost=0.3), says("never"))

    result = await exec_agent(agent, "hi", hooks=[budget(cost_usd=0.5)])

    assert result.reason == "interrupted"
    assert result.denied is not None
    assert (result.denied.hook_id, result.denied.reason) == ("budget", "the budget of $0.5 is used up: $0.6 spent")
    assert len(told(result)) == 2


async def test_a_run_ends_when_its_tokens_are_used_up() -> None:
    agent = agent_of(asks("search", tokens=100), says("never"))

    result = await exec_agent(agent, "hi", hooks=[budget(tokens=100)])

    assert result.denied is not None
    assert result.denied.reason == "the budget of 100 tokens is used up: 100 spent"


async def test_a_run_within_its_budget_is_left_alone_and_leaves_nothing() -> None:
    hooks = budget(cost_usd=1.0, tokens=100)

    for _ in range(3):
        result = await exec_agent(agent_of(asks("search", cost=0.9, tokens=99), says("done")), "hi", hooks=[hooks])
        assert (result.reason, result.output) == ("done", "done")

    assert len(purses_of(hooks)) == 0


async def test_sub_agents_draw_on_the_budget_of_their_parent() -> None:
    hooks = budget(cost_usd=1.0)
    helper = agent_of(asks("search", cost=0.6), asks("search", cost=0.6), says("never"), id="helper")
    agent = agent_of(asks("agent/helper", cost=0.1), says("never"), sub_agents=[helper])

    result = await exec_agent(agent, "hi", hooks=[hooks])

    assert result.reason == "interrupted"
    assert "$1.3 spent" in (result.denied.reason if result.denied else "")
    assert "stopped early (interrupted)" in told(result)[0]
    assert len(purses_of(hooks)) == 0


async def test_what_was_spent_before_a_pause_stays_spent() -> None:
    hooks = [budget(tokens=10), require_approval("bash")]
    agent = agent_of(asks("bash", tokens=10), says("never"))

    paused = await exec_agent(agent, "hi", hooks=hooks)
    result = await resume_agent(agent, paused.operation_id, [Approve("t0")], hooks=hooks)

    assert result.reason == "interrupted"


async def test_an_answer_that_another_hook_withholds_was_paid_for() -> None:
    withholds = Hooks("withholds")

    @withholds.after(ModelCall)
    def withhold(call: ModelCall, response: ModelResponse) -> Deny:
        return Deny("no")

    chain = Chain([budget(cost_usd=1.0), withholds])

    await through(chain, ModelCall(messages=[], operation_id="op"), says(cost=2.0))
    outcome = await through(chain, ModelCall(messages=[], operation_id="op"), says())

    assert outcome.denied is not None
    assert outcome.denied.hook_id == "budget"


@settings(max_examples=50, deadline=None)
@given(limit=st.integers(1, 50), costs=st.lists(st.integers(0, 20), max_size=15))
def test_no_call_starts_once_the_budget_is_used_up(limit: int, costs: list[int]) -> None:
    import anyio

    async def main() -> int:
        chain, spent = Chain([budget(tokens=limit)]), 0
        for cost in costs:
            outcome = await through(chain, ModelCall(messages=[]), says(tokens=cost))
            assert (outcome.denied is not None) == (spent >= limit)
            spent += 0 if outcome.denied else cost
        return spent

    anyio.run(main)


async def test_a_model_is_asked_again_as_often_as_the_hook_says() -> None:
    busy = TransientModelError("busy")
    agent = agent_of(busy, busy, says("at last"))

    result = await exec_agent(agent, "hi", hooks=[retry(ModelCall, attempts=3, first_wait=0)])
    without = await exec_agent(agent_of(busy, says()), "hi")

    assert result.output == "at last"
    assert without.reason == "error"


async def test_a_model_that_stays_busy_fails_after_the_last_attempt() -> None:
    agent = agent_of(*[TransientModelError("busy")] * 3, says("never"))

    result = await exec_agent(agent, "hi", hooks=[retry(ModelCall, attempts=3, first_wait=0)])

    assert result.reason == "error"
    assert isinstance(result.error, TransientModelError)


async def test_any_other_failure_is_not_tried_again() -> None:
    agent = agent_of(ValueError("a bug"), says("never"))

    result = await exec_agent(agent, "hi", hooks=[retry(ModelCall, attempts=3, first_wait=0)])

    assert isinstance(result.error, ValueError)


@for_each(
    ("make", "arguments", "message"),
    [
        (budget, {}, "pass `cost_usd`, `tokens` or both"),
        (budget, {"cost_usd": 0}, "`cost_usd` must be a number above 0"),
        (budget, {"cost_usd": "1"}, "`cost_usd` must be a number above 0"),
        (budget, {"tokens": 0}, "`tokens` must be a whole number from 1"),
        (budget, {"tokens": 1.5}, "`tokens` must be a whole number from 1"),
        (retry, {"call": ToolCall}, "pass ModelCall; got <class 'hookline.calls.ToolCall'>"),
        (retry, {"call": ModelCall, "attempts": 0}, "`attempts` must be a whole number from 1"),
        (retry, {"call": ModelCall, "first_wait": -1}, "`first_wait` must be a number above 0"),
        (retry, {"call": ModelCall, "max_wait": float("inf")}, "`max_wait` must be a number above 0"),
        (retry, {"call": ModelCall, "jitter": 2}, "`jitter` must be from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HookDefinitionError, match=message):
        make(**arguments)
