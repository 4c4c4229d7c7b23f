"""What is known of sub-agents in the OpenAI Agents SDK, and how they end."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    RunConfig,
    function_tool,
    input_guardrail,
)
from agents.testing import ModelStep, ScriptedModel
from anyio.lowlevel import checkpoint
from opentelemetry.trace import StatusCode

from hookline import Deny, Hooks, ModelResponse, OnComplete, Respond, SubAgentCall
from hookline.adapters.openai_agents import HooklineRunner
from hookline.errors import RunStopped
from tests.otel.capture import Sink

from .stage import QUIET, Script, items_of
from .test_openai_agents import Recorder, calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _items(turn: ModelResponse, call: object) -> list[Any]:
    await checkpoint()
    return items_of(turn)


class Named(ScriptedModel):
    """Says, as the models of the SDK do, which model it is."""

    def __init__(self, model: str, *turns: ModelResponse) -> None:
        super().__init__([ModelStep.respond(functools.partial(_items, turn)) for turn in turns])
        self.model = model


ASKS, HANDS_OVER = calls("ask", "a1", "agent", instruction="how"), calls("transfer_to_worker", "h1")


def family() -> Agent[Any]:
    """An agent that calls one agent, then hands over to another."""
    worker = Agent(name="worker", model=Named("tiny", says("done")))
    called = Agent(name="called", model=Named("small", says("well")))
    model = Named("large", ASKS, HANDS_OVER)
    return Agent(name="boss", model=model, tools=[called.as_tool("ask", "Ask.")], handoffs=[worker])


async def test_each_agent_is_measured_and_traced_under_the_name_of_its_own_model() -> None:
    sink = Sink()

    await HooklineRunner([sink.tracing(), sink.metrics()]).run(family(), "go", run_config=QUIET)

    assert [span.name for span in sink.named("chat")] == ["chat large", "chat small", "chat large", "chat tiny"]
    asked = {span.name: span.attributes["gen_ai.request.model"] for span in sink.named("invoke_agent")}  # type: ignore[index]
    assert asked == {"invoke_agent boss": "large", "invoke_agent called": "small", "invoke_agent worker": "tiny"}
    durations = sink.points("gen_ai.client.operation.duration")
    assert {point.attributes.get("gen_ai.request.model") for point in durations} == {"large", "small", "tiny"}


@pytest.mark.parametrize("as_mapping", [False, True])
async def test_the_model_of_the_run_names_the_calls_of_all_its_agents(*, as_mapping: bool) -> None:
    sink, model = Sink(), Named("every", ASKS, says("well"), HANDS_OVER, says("done"))
    config: Any = {"tracing_disabled": True, "model": model}

    given = config if as_mapping else RunConfig(**config)
    await HooklineRunner([sink.tracing()]).run(family(), "go", run_config=given)

    assert {span.name for span in sink.named("chat")} == {"chat every"}
    assert {span.attributes["gen_ai.request.model"] for span in sink.named("invoke_agent")} == {"every"}  # type: ignore[index]


@function_tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("streams", [False, True])
async def test_too_many_turns_are_no_error_of_the_agent_that_took_over(*, streams: bool) -> None:
    sink, seen = Sink(), Recorder(inherit=True)
    worker = Agent(name="worker", model=Script([calls("look"), calls("look", "t2"), says("done")]), tools=[look])
    agent = Agent(name="boss", model=Script([HANDS_OVER]), handoffs=[worker])
    runner = HooklineRunner([seen.hooks, sink.tracing()])

    with pytest.raises(MaxTurnsExceeded):
        if not streams:
            await runner.run(agent, "go", max_turns=2, run_config=QUIET)
        else:
            async with runner.stream(agent, "go", max_turns=2, run_config=QUIET) as result:
                async for _ in result.stream_events():
                    pass

    assert [(each.agent_id, each.reason) for each in seen.of(OnComplete)] == [
        ("worker", "max_steps"), ("boss", "max_steps"),
    ]  # fmt: skip
    assert [span.name for span in sink.named("invoke_agent") if span.status.status_code is StatusCode.ERROR] == []


@pytest.mark.parametrize("reads", [False, True])
async def test_what_ends_a_stream_alone_ends_its_run(*, reads: bool) -> None:
    seen = Recorder()
    agent = Agent(name="boss", model=Script([calls("look"), says("done")]), tools=[look])

    with pytest.raises(MaxTurnsExceeded):
        async with HooklineRunner([seen.hooks]).stream(agent, "go", max_turns=1, run_config=QUIET) as result:
            if reads:
                async for _ in result.stream_events():
                    pass
            while not result.is_complete:
                await asyncio.sleep(0)

    assert [each.reason for each in seen.of(OnComplete)] == ["max_steps"]


async def test_a_guardrail_fails_a_streamed_run_too() -> None:
    @input_guardrail
    async def no(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    seen, agent = Recorder(), Agent(name="boss", model=Script([says("done")]), input_guardrails=[no])

    with pytest.raises(InputGuardrailTripwireTriggered):
        async with HooklineRunner([seen.hooks]).stream(agent, "go", run_config=QUIET) as result:
            async for _ in result.stream_events():
                pass

    failed = [(each.reason, each.error_type) for each in seen.of(OnComplete)]
    assert failed == [("error", "InputGuardrailTripwireTriggered")]


@pytest.mark.parametrize(("turns", "reason"), [(9, "done"), (1, "max_steps")])
async def test_an_agent_that_takes_over_in_a_streaming_tool_ends_with_it(turns: int, reason: str) -> None:
    seen = Recorder(inherit=True)

    async def shown(event: Any) -> None:
        pass

    worker = Agent(name="worker", model=Script([says("done")]))
    middle = Agent(name="middle", model=Script([HANDS_OVER]), handoffs=[worker])
    tool = middle.as_tool("ask", "Ask.", on_stream=shown, max_turns=turns)
    agent = Agent(name="boss", model=Script([ASKS, says("over")]), tools=[tool])

    await HooklineRunner([seen.hooks]).run(agent, "go", run_config=QUIET)

    assert [(each.agent_id, each.reason) for each in seen.of(OnComplete)] == [
        ("worker", reason), ("middle", reason), ("boss", "done"),
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [Respond("busy"), Deny("busy")])
async def test_a_handoff_that_a_hook_denies_or_answers_ends_the_run(answer: Respond | Deny) -> None:
    hooks, asked = Hooks("busy"), list[str]()
    hooks.before(SubAgentCall)(lambda call: answer)
    worker = Agent(name="worker", model=Script([says("done")], asked))
    agent = Agent(name="boss", model=Script([HANDS_OVER]), handoffs=[worker])

    with pytest.raises(RunStopped, match="busy"):
        await HooklineRunner([hooks]).run(agent, "go", run_config=QUIET)

    assert asked == []
