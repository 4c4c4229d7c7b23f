"""Agents that call agents: a child is an operation of its own, its three events are the parent's."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline import (
    AfterCallAgent,
    AfterStep,
    Agent,
    Approve,
    BeforeCallAgent,
    BeforeStep,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    ModelCall,
    ModelResponse,
    OnCallAgentError,
    OnComplete,
    OnError,
    ScriptedModel,
    exec_agent,
    resume_agent,
    tool,
)
from tests.tables import for_each

from .scenes import Recorder, agent_of, ask, assert_consistent, assert_order, call, calls, raw_call, says, tool_texts

pytestmark = pytest.mark.anyio


def assert_every_order(recorder: Recorder) -> None:
    for events in recorder.by_operation().values():
        assert_order(events)


async def test_a_sub_agent_is_a_full_operation_with_its_parents_id_user_and_tenant() -> None:
    recorder = Recorder()
    agent = agent_of(
        calls(ask("child", instruction="find it")), says(), sub_agents=[agent_of(says("found"), id="child")]
    )

    result = await exec_agent(
        agent,
        "go",
        operation_id="parent",
        user_id="ada",
        tenant_id="acme",
        hooks=[recorder.hooks],
        store=InMemoryStore(),
    )

    assert tool_texts(result) == ["found"]
    (after,) = recorder.of(AfterCallAgent)
    assert recorder.names(after.sub_operation_id) == ["beforeStep", "afterStep", "onComplete"]
    for event in recorder.by_operation()[after.sub_operation_id]:
        assert (event.agent_id, event.user_id, event.tenant_id) == ("child", "ada", "acme")
        assert event.parent_operation_id == "parent"
    assert_every_order(recorder)


async def test_the_three_events_fire_on_the_parent_and_the_tool_events_do_not() -> None:
    recorder = Recorder(inherit=False)
    agent = agent_of(
        calls(ask("child", instruction="find it")), says(), sub_agents=[agent_of(says("found"), id="child")]
    )

    result = await exec_agent(agent, "go", hooks=[recorder.hooks])

    assert recorder.names() == [
        *["beforeStep", "beforeCallAgent", "afterCallAgent", "afterStep"],
        *["beforeStep", "afterStep", "onComplete"],
    ]
    (before,), (after,) = recorder.of(BeforeCallAgent), recorder.of(AfterCallAgent)
    assert (before.operation_id, before.callee_id, before.instruction) == (result.operation_id, "child", "find it")
    assert (after.operation_id, after.callee_id, after.success) == (result.operation_id, "child", True)
    assert after.sub_operation_id not in ("", result.operation_id)
    step = recorder.of(AfterStep)[0]
    assert step.step_type == "call_tool"
    assert (step.tools_result[0].toolset, step.tools_result[0].tool_name) == ("agent", "child")


async def test_after_call_agent_fires_when_the_child_has_completed() -> None:
    recorder = Recorder()
    agent = agent_of(calls(ask("child")), says(), sub_agents=[agent_of(says("found"), id="child")])

    await exec_agent(agent, "go", hooks=[recorder.hooks])

    kinds = [type(event) for event in recorder.events]
    assert kinds.index(BeforeCallAgent) < kinds.index(OnComplete) < kinds.index(AfterCallAgent)


async def test_only_bundles_that_inherit_go_along_and_the_childs_own_hooks_are_its_own() -> None:
    staying, going, own = Recorder(inherit=False), Recorder(inherit=True), Recorder(inherit=False)
    grandchild = agent_of(says("deep"), id="grandchild")
    child = agent_of(calls(ask("grandchild")), says(), id="child", sub_agents=[grandchild], hooks=[own.hooks])
    agent = agent_of(calls(ask("child")), says(), sub_agents=[child])

    await exec_agent(agent, "go", hooks=[staying.hooks, going.hooks])

    assert {event.agent_id for event in staying.events} == {"tester"}
    assert {event.agent_id for event in own.events} == {"child"}
    assert {event.agent_id for event in going.events} == {"tester", "child", "grandchild"}
    assert len(going.of(OnComplete)) == 3


async def test_a_bundle_that_child_and_parent_share_hears_the_child_once() -> None:
    recorder = Recorder(inherit=True)
    child = agent_of(says(), id="child", hooks=[recorder.hooks])
    agent = agent_of(calls(ask("child")), says(), sub_agents=[child], hooks=[recorder.hooks])

    await exec_agent(agent, "go")

    assert len(recorder.of(OnComplete)) == 2
    assert_every_order(recorder)


async def test_a_child_that_ends_with_an_error_is_told_to_the_model_and_the_run_goes_on() -> None:
    recorder = Recorder()
    agent = agent_of(calls(ask("child")), says("sorry"), sub_agents=[agent_of(ValueError("child broke"), id="child")])

    result = await exec_agent(agent, "go", operation_id="p", hooks=[recorder.hooks], store=InMemoryStore())

    assert (result.reason, result.output) == ("done", "sorry")
    assert "child broke" in tool_texts(result)[0]
    (error,) = recorder.of(OnCallAgentError)
    assert (error.operation_id, error.callee_id, error.error) == ("p", "child", "child broke")
    assert not recorder.of(AfterCallAgent)
    assert recorder.of(OnError)[0].agent_id == "child"
    assert recorder.of(AfterStep, "p")[0].tools_result[0].success is False
    assert_every_order(recorder)


@pytest.mark.parametrize("reason", ["max_steps", "cost_limit"])
async def test_success_is_that_the_childs_reason_was_done(reason: str) -> None:
    recorder = Recorder()

    @tool
    async def work() -> str:
        return ""

    limits: dict[str, Any] = {"max_steps": 1} if reason == "max_steps" else {"cost_limit_usd": 0.5}
    child = agent_of(calls(call("work"), content="half", cost=1.0), says(), id="child", tools=[work], **limits)

    result = await exec_agent(agent_of(calls(ask("child")), says(), sub_agents=[child]), "go", hooks=[recorder.hooks])

    assert result.reason == "done"
    assert recorder.of(AfterCallAgent)[0].success is False
    assert reason in tool_texts(result)[0]


async def test_a_child_that_waits_for_a_person_does_not_stop_its_parent_and_can_be_resumed() -> None:
    recorder, store = Recorder(), InMemoryStore()
    paid: list[int] = []

    @tool(needs_approval=True)
    async def pay() -> str:
        paid.append(1)
        return "paid"

    child = agent_of(calls(call("pay")), says("bought"), id="child", tools=[pay])
    agent = agent_of(calls(ask("child")), says("went on"), sub_agents=[child])

    result = await exec_agent(agent, "go", hooks=[recorder.hooks], store=store)

    assert (result.reason, result.output) == ("done", "went on")
    (after,) = recorder.of(AfterCallAgent)
    assert after.success is False
    assert after.sub_operation_id in tool_texts(result)[0]
    resumed = await resume_agent(child, after.sub_operation_id, [Approve("t1")], store=store, hooks=[recorder.hooks])
    assert (resumed.reason, paid) == ("done", [1])
    assert recorder.of(OnComplete, after.sub_operation_id)[-1].parent_operation_id == result.operation_id


async def test_children_may_have_children() -> None:
    recorder = Recorder()
    grandchild = agent_of(says("deep"), id="grandchild")
    child = agent_of(calls(ask("grandchild")), says("middle"), id="child", sub_agents=[grandchild])
    agent = agent_of(calls(ask("child")), says("top"), sub_agents=[child])

    result = await exec_agent(agent, "go", operation_id="top", hooks=[recorder.hooks], store=InMemoryStore())

    assert result.output == "top"
    ids = {event.agent_id: event.operation_id for event in recorder.events}
    parents = {event.agent_id: event.parent_operation_id for event in recorder.events}
    assert parents == {"tester": None, "child": "top", "grandchild": ids["child"]}
    assert_every_order(recorder)


async def test_parallel_sub_agents_and_tools_overlap_and_their_answers_keep_the_models_order() -> None:
    recorder = Recorder()
    here = {name: anyio.Event() for name in ("a", "b", "tool")}

    async def meet(name: str) -> str:
        here[name].set()
        for event in here.values():
            await event.wait()
        return name

    async def respond(about: ModelCall) -> ModelResponse:
        name = about.messages[-1].content
        await meet(name)
        return says(f"from {name}")

    @tool
    async def work() -> str:
        return await meet("tool")

    child = Agent(id="child", model=ScriptedModel(respond))  # type: ignore[arg-type]
    turn = calls(ask("child", "1", "a"), call("work", "2"), ask("child", "3", "b"))
    with anyio.fail_after(10):
        result = await exec_agent(
            agent_of(turn, says(), sub_agents=[child], tools=[work]), "go", hooks=[recorder.hooks]
        )

    assert tool_texts(result) == ["from a", "tool", "from b"]
    assert_every_order(recorder)
    assert_consistent(result.messages)


async def test_mocks_never_see_a_call_of_a_sub_agent() -> None:
    asked: list[BeforeToolCall] = []
    hooks = Hooks("mocks", inherit=True)

    @hooks.on(BeforeToolCall)
    def answer(event: BeforeToolCall) -> None:
        asked.append(event)
        event.mock("faked")

    agent = agent_of(calls(ask("child")), says(), sub_agents=[agent_of(says("real"), id="child")])

    result = await exec_agent(agent, "go", hooks=[hooks])

    assert tool_texts(result) == ["real"]
    assert asked == []


@for_each("args", ["{broken", "[]", {}, {"instruction": 5}, {"other": "x"}])
async def test_a_call_of_a_sub_agent_without_an_instruction_is_told_to_the_model(args: Any) -> None:
    recorder = Recorder()
    asked = raw_call("agent/child", args)
    agent = agent_of(calls(asked), says(), sub_agents=[agent_of(says("real"), id="child")])

    result = await exec_agent(agent, "go", hooks=[recorder.hooks])

    assert result.reason == "done"
    assert len(recorder.of(BeforeCallAgent)) == len(recorder.of(OnCallAgentError)) == 1
    assert len(recorder.by_operation()) == 1
    assert_every_order(recorder)


async def test_an_unknown_sub_agent_is_an_unknown_tool() -> None:
    recorder = Recorder()

    result = await exec_agent(agent_of(calls(ask("nobody")), says()), "go", hooks=[recorder.hooks])

    assert "UnknownToolError" in tool_texts(result)[0]
    assert recorder.of(BeforeToolCall)[0].toolset == "agent"


async def test_the_model_is_offered_its_sub_agents_as_tools_with_an_instruction() -> None:
    offered: list[ModelCall] = []

    def respond(about: ModelCall) -> ModelResponse:
        offered.append(about)
        return says()

    agent = Agent(id="a", model=ScriptedModel(respond), sub_agents=[agent_of(says(), id="child")])
    await exec_agent(agent, "go")

    (spec,) = offered[0].tools
    assert (spec.toolset, spec.name) == ("agent", "child")
    assert spec.schema["required"] == ["instruction"]


async def test_a_child_runs_on_its_parents_dispatcher_and_leaves_nothing_there() -> None:
    recorder = Recorder()
    live: list[int] = []
    async with HookDispatcher() as dispatcher:
        recorder.reactions.append(lambda event: live.append(len(dispatcher.operations)))
        agent = agent_of(calls(ask("child")), says(), sub_agents=[agent_of(says(), id="child")])

        await exec_agent(agent, "go", hooks=[recorder.hooks], dispatcher=dispatcher)

        assert not dispatcher.operations
    assert max(live) == 2


async def test_the_childs_usage_and_steps_are_its_own() -> None:
    recorder = Recorder()
    child = agent_of(says(tokens=7, cost=1.0), id="child")
    result = await exec_agent(agent_of(calls(ask("child")), says(), sub_agents=[child]), "go", hooks=[recorder.hooks])

    assert (result.usage.input_tokens, result.steps) == (0, 2)
    ends = {event.agent_id: event for event in recorder.of(OnComplete)}
    assert (ends["child"].total_tokens, ends["child"].steps) == (7, 1)
    assert len(recorder.of(BeforeStep)) == 3
