"""How often tools may be called."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    Approve,
    Deny,
    HookDispatcher,
    Hooks,
    OnComplete,
    SubAgentCall,
    ToolCall,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.builtin import _tools, deny_tools, limit_calls, require_approval
from hookline.calls import AgentResult, ToolResult
from hookline.errors import HookDefinitionError
from hookline.interceptors import Chain
from tests.tables import for_each

from .scenes import Clock, agent_of, asks, called, says, search, through, told

pytestmark = pytest.mark.anyio


def tallies_of(hooks: Hooks) -> Any:
    """What the bundle keeps: its guard is a method of what counts."""
    return next(hook.handler for hook in hooks.interceptors if hook.kind == "guard").__self__.kept  # type: ignore[attr-defined]


async def test_calls_beyond_the_limit_are_denied_and_the_run_goes_on() -> None:
    agent = agent_of(asks("search", query="a"), asks("search", query="b"), asks("search", query="c"), says())

    result = await exec_agent(agent, "hi", hooks=[limit_calls(2)])

    assert result.reason == "done"
    assert told(result) == [
        "found a",
        "found b",
        "the limit of 2 calls per operation is reached for tools that match *",
    ]


async def test_every_operation_counts_for_itself_and_leaves_nothing() -> None:
    hooks = limit_calls(1)

    for _ in range(3):
        result = await exec_agent(agent_of(asks("search", query="a"), says()), "hi", hooks=[hooks])
        assert told(result) == ["found a"]

    assert len(tallies_of(hooks)) == 0


async def test_a_call_that_another_guard_denies_does_not_count() -> None:
    agent = agent_of(asks("bash"), asks("search", query="a"), asks("search", query="b"), says())

    result = await exec_agent(agent, "hi", hooks=[limit_calls(1), deny_tools("bash")])

    assert told(result)[1] == "found a"
    assert "limit" in told(result)[2]


async def test_a_limit_per_tool_counts_each_tool_for_itself() -> None:
    agent = agent_of(asks("bash", "search"), asks("bash", "search"), says())

    result = await exec_agent(agent, "hi", hooks=[limit_calls(1, per="tool")])

    assert [text.startswith("the limit of 1 call of one tool per operation") for text in told(result)] == [
        False, False, True, True
    ]  # fmt: skip


async def test_a_limit_for_one_tool_leaves_the_others_alone() -> None:
    agent = agent_of(asks("bash", "bash", "search", "search"), says())

    result = await exec_agent(agent, "hi", hooks=[limit_calls(1, tool="bash")])

    assert sorted("limit" in text for text in told(result)[:2]) == [False, True]
    assert not any("limit" in text for text in told(result)[2:])


async def test_sub_agents_count_as_the_tools_that_the_model_sees_in_them() -> None:
    chain = Chain([limit_calls(1, tool="agent/*")])

    outcomes = [
        await through(chain, SubAgentCall(callee_id="helper", instruction=""), AgentResult(output="")) for _ in range(2)
    ]

    assert [outcome.denied is None for outcome in outcomes] == [True, False]


async def test_a_limit_per_tenant_holds_across_its_operations_and_for_no_other_tenant() -> None:
    hooks = limit_calls(2, per="tenant")

    texts = []
    for tenant in ("a", "a", "b", "a", "b"):
        agent = agent_of(asks("search", query=tenant), says())
        texts += told(await exec_agent(agent, "hi", hooks=[hooks], tenant_id=tenant))

    assert ["limit" in text for text in texts] == [False, False, False, True, False]


async def test_a_window_slides() -> None:
    clock = Clock()
    chain = Chain([limit_calls(2, per=10.0, clock=clock)])

    let_through = []
    for at in (0, 6, 9, 10, 15.9, 16, 16.1):
        clock.now = 100.0 + at
        let_through.append((await through(chain, called(tenant_id="a"))).denied is None)

    assert let_through == [True, True, False, True, False, True, False]


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 5), waits=st.lists(st.integers(0, 4), min_size=1, max_size=20), denied=st.sets(st.integers(0, 19))
)
def test_never_more_than_n_calls_run_however_they_overlap(n: int, waits: list[int], denied: set[int]) -> None:
    other = Hooks("other")

    @other.guard(ToolCall)
    async def slow(call: ToolCall) -> Deny | None:
        for _ in range(waits[call.step_index]):
            await anyio.lowlevel.checkpoint()
        return Deny("no") if call.step_index in denied else None

    ran: list[int] = []

    async def terminal(call: ToolCall) -> ToolResult:
        ran.append(call.step_index)
        await anyio.lowlevel.checkpoint()
        return ToolResult(content="")

    async def main() -> None:
        chain = Chain([limit_calls(n), other])
        async with anyio.create_task_group() as group:
            for index in range(len(waits)):
                group.start_soon(chain.run, called(step_index=index), terminal)

    anyio.run(main)

    wanted = [index for index in range(len(waits)) if index not in denied]
    assert len(ran) == min(n, len(wanted))


async def test_parallel_calls_of_one_step_share_the_limit() -> None:
    result = await exec_agent(agent_of(asks(*["search"] * 5), says()), "hi", hooks=[limit_calls(3)])

    assert sum(text.startswith("found") for text in told(result)) == 3


@pytest.mark.parametrize("who_asks", ["hook", "tool"])
async def test_a_call_that_waits_for_a_person_counts_once(who_asks: str) -> None:
    @tool(name="pay", needs_approval=who_asks == "tool")
    async def pay() -> str:
        """Pay."""
        return "paid"

    hooks = [limit_calls(2), *([require_approval("pay")] if who_asks == "hook" else [])]
    agent = agent_of(asks("pay"), asks("search", query="x"), asks("search", query="y"), says(), tools=[pay, search])

    paused = await exec_agent(agent, "hi", hooks=hooks)
    result = await resume_agent(agent, paused.operation_id, [Approve("t0")], hooks=hooks)

    assert paused.reason == "waiting_for_human"
    assert [text.startswith("the limit") for text in told(result)] == [False, False, True]
    assert len(tallies_of(hooks[0])) == 0


async def test_the_count_survives_a_pause() -> None:
    agent = agent_of(asks("search", query="x"), asks("bash"), says())
    hooks = [limit_calls(1), require_approval("bash")]

    paused = await exec_agent(agent, "hi", hooks=hooks)
    result = await resume_agent(agent, paused.operation_id, [Approve("t0")], hooks=hooks)

    assert "limit" in told(result)[1]


async def test_calls_with_the_same_id_in_different_steps_count_each() -> None:
    agent = agent_of(*[asks("search", id="same")] * 3, says())

    result = await exec_agent(agent, "hi", hooks=[limit_calls(1)])

    assert ["limit" in text for text in told(result)] == [False, True, True]


async def test_an_interrupted_run_leaves_nothing() -> None:
    hooks = limit_calls(5)

    @tool(name="stop")
    async def stop() -> str:
        """Stop."""
        interrupt("op-stop")
        await anyio.sleep_forever()
        return ""

    result = await exec_agent(agent_of(asks("stop"), tools=[stop]), "hi", hooks=[hooks], operation_id="op-stop")

    assert result.reason == "interrupted"
    assert len(tallies_of(hooks)) == 0


async def test_what_is_kept_is_bounded_where_nobody_says_that_an_operation_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_tools, "MOST", 3)
    hooks = limit_calls(1)
    chain = Chain([hooks])

    for index in range(10):
        await through(chain, called(operation_id=f"op-{index}"))

    assert len(tallies_of(hooks)) == 3
    assert (await through(chain, called(operation_id="op-9"))).denied is not None


async def test_a_completion_that_somebody_else_tells_counts_too() -> None:
    hooks = limit_calls(1)
    await through(Chain([hooks]), called(operation_id="op"))

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [hooks])
        for reason in ("waiting_for_human", "done"):
            dispatcher.dispatch(
                OnComplete(
                    operation_id="op",
                    reason=reason,
                    steps=1,
                    llm_calls=1,
                    tool_calls=1,
                    total_tokens=0,
                    cost_usd=0.0,
                    duration_ms=0.0,
                    last_assistant_content="",
                    error_type=None,
                    error_message=None,
                )
            )
            assert len(tallies_of(hooks)) == (1 if reason == "waiting_for_human" else 0)


@for_each(
    ("arguments", "message"),
    [
        ({"n": 0}, "`n` must be a whole number from 1"),
        ({"n": 1.5}, "`n` must be a whole number from 1"),
        ({"n": True}, "`n` must be a whole number from 1"),
        (
            {"n": 1, "per": "minute"},
            "`per` must be 'operation', 'tool', 'tenant', or a number of seconds; got 'minute'",
        ),
        ({"n": 1, "per": 0}, "`per` must be a number above 0"),
        ({"n": 1, "per": float("nan")}, "`per` must be a number above 0"),
        ({"n": 1, "per": None}, "`per` must be a number above 0"),
        ({"n": 1, "per": []}, "`per` must be a number above 0"),
        ({"n": 1, "tool": ""}, "name tools by globs"),
        ({"n": 1, "priority": 2000}, "`priority`"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HookDefinitionError, match=message):
        limit_calls(**arguments)
