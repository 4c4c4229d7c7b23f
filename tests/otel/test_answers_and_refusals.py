"""Which hook answered or refused, wherever that was; and what telemetry leaves alone."""

from __future__ import annotations

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, get_current_span

from hookline import (
    Agent,
    AgentCall,
    AgentResult,
    AgentSession,
    Approve,
    CompactCall,
    Compaction,
    CompactResult,
    Deny,
    Hooks,
    InMemoryStore,
    MemoryCall,
    Message,
    ModelCall,
    ModelResponse,
    Respond,
    ScriptedModel,
    StepCall,
    StepResult,
    SubAgentCall,
    ToolRequest,
    Usage,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.otel import TracingHooks
from tests.tables import for_each

from .capture import Sink

pytestmark = pytest.mark.anyio


def long_talk() -> list[Message]:
    return [Message(role="user", content=f"{number} {'x' * 100}") for number in range(4)]


async def keep_short(messages: list[Message]) -> str:
    return "short"


def planner() -> Agent:
    helper = Agent(id="helper", model=ScriptedModel([ModelResponse(content="helped")]))
    asks = ToolRequest(toolset="agent", tool_name="helper", tool_call_id="c1", args={"instruction": "Help"})
    turns = [ModelResponse(tool_calls=[asks], usage=Usage(input_tokens=99)), ModelResponse(content="done")]
    return Agent(
        id="planner",
        model=ScriptedModel(turns),
        sub_agents=[helper],
        compaction=Compaction(max_tokens=10, summarize=keep_short),
    )


@for_each(
    ("call", "answer"),
    [
        (AgentCall, AgentResult(output="mine")),
        (StepCall, StepResult(should_continue=False, content="mine")),
        (ModelCall, ModelResponse(content="mine")),
        (SubAgentCall, AgentResult(output="mine")),
        (CompactCall, CompactResult(summary="mine")),
    ],
)
async def test_who_answered_a_call_stands_in_the_trace(call, answer):
    sink, hooks = Sink(), Hooks("hooks")
    hooks.before(call, id="the-stand-in")(lambda _: Respond(answer))

    result = await exec_agent(planner(), long_talk(), hooks=[sink.tracing(), hooks])

    told = [event for span in sink.spans for event in span.events if event.name == "hookline.answered"]
    assert result.reason == "done"
    assert {
        (event.attributes["hookline.answer.hook_id"], event.attributes["hookline.answer.call"]) for event in told
    } == {("the-stand-in", call.__name__)}
    assert all(span.status.is_unset for span in sink.spans)


async def test_who_refused_a_write_to_memory_stands_at_the_root():
    sink, hooks = Sink(), Hooks("hooks")
    hooks.guard(MemoryCall, id="the-censor")(lambda _: Deny("private"))

    agent = Agent(id="talker", model=ScriptedModel([ModelResponse(content="hello")]))
    async with AgentSession(agent, hooks=[sink.tracing(), hooks], store=InMemoryStore()) as session:
        await session.run("Hi")

    (event,) = sink.one("invoke_agent").events
    assert (event.name, event.attributes["hookline.denial.hook_id"]) == ("hookline.denied", "the-censor")
    assert "hookline.denial.reason" not in event.attributes


@pytest.mark.parametrize("provider", [NoOpTracerProvider(), None])
async def test_a_tracer_that_does_nothing_leaves_the_current_span_of_the_application_alone(provider):
    application = TracerProvider(shutdown_on_exit=False).get_tracer("application")

    @tool(in_thread=False)
    def look() -> str:
        get_current_span().set_attribute("looked", True)
        return "seen"

    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name="look", tool_call_id="t1")]),
        ModelResponse(content="done"),
    ]
    agent = Agent(id="looker", model=ScriptedModel(turns), tools=[look])
    store = Kept()
    with application.start_as_current_span("request") as request:
        await exec_agent(agent, "Look", hooks=[TracingHooks(provider)], store=store)

    assert request.attributes == {"looked": True}
    assert store.traceparents == {()}


async def test_nor_does_it_where_a_run_goes_on_in_the_trace_of_its_first_segment():
    application = TracerProvider(shutdown_on_exit=False).get_tracer("application")

    @tool(in_thread=False, needs_approval=True)
    def look() -> str:
        get_current_span().set_attribute("looked", True)
        return "seen"

    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name="look", tool_call_id="t1")]),
        ModelResponse(content="done"),
    ]
    agent, store = Agent(id="looker", model=ScriptedModel(turns), tools=[look]), InMemoryStore()
    paused = await exec_agent(agent, "Look", hooks=[Sink().tracing()], store=store)
    silent = TracingHooks(NoOpTracerProvider(), resume="same_trace")
    with application.start_as_current_span("request") as request:
        result = await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[silent], store=store)

    assert result.reason == "done"
    assert request.attributes == {"looked": True}


class Kept(InMemoryStore):
    """Notes which `traceparent`s were ever stored."""

    def __init__(self) -> None:
        super().__init__()
        self.traceparents: set[tuple[str, ...]] = set()

    async def save(self, state, *, expected_version):
        self.traceparents.add(tuple(state.traceparents))
        await super().save(state, expected_version=expected_version)


async def test_content_that_cannot_be_read_is_left_out_and_the_rest_of_the_run_is_there():
    sink = Sink()
    strange = Message(role="user", content="Hi")
    msgspec.structs.force_setattr(strange, "tool_calls", None)

    agent = Agent(id="talker", model=ScriptedModel([ModelResponse(content="hello")]))
    await exec_agent(agent, [strange], hooks=[sink.tracing(capture_content=True)])

    assert {span.name for span in sink.spans} == {"invoke_agent talker", "agent_step", "chat scripted"}
    assert "gen_ai.input.messages" not in sink.one("chat").attributes
    assert "gen_ai.output.messages" in sink.one("chat").attributes
