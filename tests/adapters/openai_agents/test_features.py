"""What runs of the OpenAI Agents SDK come back to after a pause, and how those end that were handed over."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, Handoff, RunContextWrapper, RunState, ToolCallOutputItem, function_tool
from pydantic import BaseModel

from hookline import (
    AfterHumanIntervention,
    BeforeHumanIntervention,
    Deny,
    Hooks,
    ModelResponse,
    OnComplete,
    ToolCall,
)
from hookline.adapters.openai_agents import HooklineRunner
from hookline.errors import RunStopped
from hookline.runtime import Approve

from .stage import QUIET, Script
from .test_openai_agents import Recorder, calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Purse(dict[str, int]):
    def spend(self, amount: int) -> None:
        self["left"] -= amount


class Account:
    def __init__(self) -> None:
        self.left = 10

    def spend(self, amount: int) -> None:
        self.left -= amount


class Found(BaseModel):
    price: int


@function_tool(needs_approval=True)
async def pay(context: RunContextWrapper[Any], amount: int) -> str:
    """Pay."""
    if context.context is not None:
        context.context.spend(amount)
    return "paid"


def payer(name: str = "payer", **given: Any) -> Agent[Any]:
    turns = [calls("pay", "p1", amount=1), calls("pay", "p2", amount=2), says("done")]
    return Agent(name=name, model=Script(turns), tools=[pay], **given)


async def approved(agent: Agent[Any], state: RunState[Any], runner: HooklineRunner) -> Any:
    result = await runner.run(agent, state, run_config=QUIET)
    while result.interruptions:
        state = result.to_state()
        state.approve(result.interruptions[0])
        result = await runner.run(agent, state, run_config=QUIET)
    return result


@pytest.mark.parametrize("context", [Purse(left=10), Account()])
@pytest.mark.parametrize("text", [False, True])
async def test_tools_after_a_pause_have_the_context_that_was_given(context: Any, *, text: bool) -> None:
    agent, runner = payer(), HooklineRunner([])

    result = await runner.run(agent, "go", context=context, run_config=QUIET)
    state = result.to_state()
    if text:
        kept = state.to_json(context_serializer=lambda _: {})
        state = await RunState.from_json(agent, kept, context_override=context)
    before = dict(context) if isinstance(context, Purse) else vars(context).copy()
    state.approve(state.get_interruptions()[0])
    result = await approved(agent, state, runner)

    after = dict(context) if isinstance(context, Purse) else vars(context)
    assert result.context_wrapper.context is context
    assert (before["left"] - after["left"], result.final_output) == (3, "done")


async def test_an_agent_to_which_only_a_function_leads_goes_on_after_a_pause() -> None:
    worker = payer("worker")

    async def lead(context: RunContextWrapper[Any], text: str) -> Agent[Any]:
        return worker

    nothing = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    to_worker: Handoff[Any, Any] = Handoff(
        tool_name="to_worker", tool_description="", input_json_schema=nothing, on_invoke_handoff=lead,
        agent_name="worker",
    )  # fmt: skip
    agent = Agent(name="triage", model=Script([calls("to_worker")]), handoffs=[to_worker])
    runner = HooklineRunner([])

    result = await runner.run(agent, "go", run_config=QUIET)
    state = result.to_state()
    state.approve(result.interruptions[0])

    assert (await approved(agent, state, runner)).final_output == "done"


async def test_what_tools_gave_before_a_pause_is_still_of_its_type_after_it() -> None:
    @function_tool
    async def find() -> Found:
        return Found(price=3)

    turns = [calls("find", "f1"), calls("pay", "p1", amount=1), says("done")]
    agent, runner = Agent(name="payer", model=Script(turns), tools=[find, pay]), HooklineRunner([])

    result = await runner.run(agent, "go", run_config=QUIET)
    state = result.to_state()
    state.approve(result.interruptions[0])
    result = await approved(agent, state, runner)

    outputs = [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    assert outputs == [Found(price=3), "paid"]


@pytest.mark.parametrize("which", ["first", "handoff", "tool"])
async def test_an_agent_that_was_changed_while_it_waited_goes_on_as_it_is_now(which: str) -> None:
    worker, runner = payer("worker"), HooklineRunner([])
    agent = worker
    if which == "handoff":
        agent = Agent(name="triage", model=Script([calls("transfer_to_worker")]), handoffs=[worker])
    elif which == "tool":
        turns = [calls("ask", "a1", "agent", instruction="pay"), says("over")]
        agent = Agent(name="boss", model=Script(turns), tools=[worker.as_tool("ask", "Ask.")])

    result = await runner.run(agent, "go", run_config=QUIET)
    state = result.to_state()
    state.approve(result.interruptions[0])
    worker.model = Script([calls("pay", "p1", amount=1), says("changed")])
    result = await approved(agent, state, runner)

    outputs = [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    assert "changed" in [result.final_output, *outputs]


async def test_a_tool_that_was_changed_while_it_waited_runs_as_it_is_now() -> None:
    @function_tool(needs_approval=True, name_override="pay")
    async def asked(amount: int) -> str:
        return "old"

    @function_tool(name_override="pay")
    async def other(amount: int) -> str:
        return "new"

    agent = Agent(name="payer", model=Script([calls("pay", "p1", amount=1), says("done")]), tools=[asked])
    runner = HooklineRunner([])

    result = await runner.run(agent, "go", run_config=QUIET)
    state = result.to_state()
    state.approve(result.interruptions[0])
    asked.on_invoke_tool = other.on_invoke_tool
    result = await runner.run(agent, state, run_config=QUIET)

    assert [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)] == ["new"]


async def test_a_run_that_was_handed_over_tells_that_it_waits() -> None:
    seen = Recorder()
    triage = Agent(name="triage", model=Script([calls("transfer_to_payer")]), handoffs=[payer()])
    runner = HooklineRunner([seen.hooks], operation_id="handed")

    result = await runner.run(triage, "go", run_config=QUIET)
    assert seen.names() == [
        "beforeStep", "beforeCallAgent", "onCallAgentError", "beforeHumanIntervention", "afterStep", "onComplete",
    ]  # fmt: skip
    await runner.resume(triage, result.to_state(), [Approve("p1")], run_config=QUIET)

    asked = [call.tool_call_id for event in seen.of(BeforeHumanIntervention) for call in event.pending_tools]
    assert asked == ["p1", "p2"]
    assert [event.tool_call_id for event in seen.of(AfterHumanIntervention)] == ["p1"]
    assert [event.reason for event in seen.of(OnComplete)] == ["waiting_for_human", "waiting_for_human"]


async def test_a_streaming_tool_tells_what_was_decided_about_its_agent() -> None:
    async def shown(event: Any) -> None:
        pass

    seen = Recorder(inherit=True)
    turns = [calls("ask", "a1", "agent", instruction="pay"), says("over")]
    agent = Agent(name="boss", model=Script(turns), tools=[payer().as_tool("ask", "Ask.", on_stream=shown)])
    runner = HooklineRunner([seen.hooks], operation_id="streaming tool")

    result = await runner.run(agent, "go", run_config=QUIET)
    await runner.resume(agent, result.to_state(), [Approve("p1")], run_config=QUIET)

    told = [(event.agent_id, event.action, event.tool_call_id) for event in seen.of(AfterHumanIntervention)]
    assert told == [("payer", "approve", "p1")]


async def test_a_stop_is_heeded_by_the_agent_that_takes_over() -> None:
    seen, stops = Recorder(inherit=True), Hooks("stops")
    stops.guard(ToolCall)(lambda call: Deny("enough", stop=True))
    asked: list[str] = []
    both = ModelResponse(tool_calls=[*calls("look").tool_calls, *calls("transfer_to_worker", "t2").tool_calls])
    worker = Agent(name="worker", model=Script([says("done")], asked))

    @function_tool
    async def look() -> str:
        return "seen"

    triage = Agent(name="triage", model=Script([both]), tools=[look], handoffs=[worker])

    with pytest.raises(RunStopped, match="enough"):
        await HooklineRunner([seen.hooks, stops]).run(triage, "go", run_config=QUIET)

    assert asked == []
    assert [event.reason for event in seen.of(OnComplete)] == ["interrupted", "interrupted"]
