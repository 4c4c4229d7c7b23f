"""An independent oracle: OpenTelemetry's own library for generative AI emits the same operations by hand.

Whatever of the conventions is on its spans and metrics must be on ours, with the same value. Each difference is listed
here with its reason; one that is not listed fails, and so does one that is listed and no longer there.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.invocation import InferenceInvocation, LocalAgentInvocation, ToolInvocation
from opentelemetry.util.genai.types import (
    ContentCapturingMode,
    Error,
    FunctionToolDefinition,
    InputMessage,
    OutputMessage,
    ReasoningPart,
    TextPart,
    ToolCallRequestPart,
    ToolCallResponsePart,
)

from hookline import (
    Agent,
    AgentSession,
    Approve,
    Hooks,
    InMemoryStore,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    Tool,
    ToolResult,
    Usage,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.otel import MetricsHooks, TracingHooks

from .capture import RESOURCE
from .receiver import ask, call, calls, says

pytestmark = pytest.mark.anyio

JSON_ATTRIBUTES = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
    "gen_ai.tool.call.arguments",
)

Differences = dict[tuple[str, str], tuple[Any, Any]]
"""`(span, what differs) -> (ours, the oracle's)`; what one of them has not is `None`."""


class Side:
    """Providers of the SDK, and what came out of them: for our bundles or for the oracle."""

    def __init__(self) -> None:
        self.kept, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.kept))
        self.meters = MeterProvider([self.reader], RESOURCE, shutdown_on_exit=False)

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Spans of the conventions, in the order in which they began, as far as the conventions speak of them."""
        spans = sorted(self.kept.get_finished_spans(), key=lambda span: span.start_time or 0)
        return [shown(span) for span in spans if "gen_ai.operation.name" in (span.attributes or {})]

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: {
                "unit": metric.unit,
                "bounds": {tuple(point.explicit_bounds) for point in points_of(metric)},
                "series": sorted(
                    (sorted((point.attributes or {}).items()), point.count) for point in points_of(metric)
                ),
            }
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
            if not metric.name.startswith("hookline.")
        }


def points_of(metric: Any) -> list[HistogramDataPoint]:
    assert all(isinstance(point, HistogramDataPoint) for point in metric.data.data_points)
    return list(metric.data.data_points)


def shown(span: ReadableSpan) -> dict[str, Any]:
    found: dict[str, Any] = {"name": span.name, "kind": span.kind.name, "status": span.status.status_code.name}
    found["status.description"] = span.status.description
    for key, value in (span.attributes or {}).items():
        if key.startswith("gen_ai.") or key == "error.type":
            found[key] = json.loads(str(value)) if key in JSON_ATTRIBUTES else value
    return found


def differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Differences:
    assert [span["name"] for span in ours] == [span["name"] for span in theirs]
    return {
        (f"{at} {own['name']}", key): (own.get(key), other.get(key))
        for at, (own, other) in enumerate(zip(ours, theirs, strict=True))
        for key in own.keys() | other.keys()
        if without_nones(own.get(key)) != without_nones(other.get(key))
    }


def without_nones(value: Any) -> Any:
    """Message parts of the oracle spell out what they do not have."""
    if isinstance(value, dict):
        return {key: without_nones(each) for key, each in value.items() if each is not None}
    return [without_nones(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def ours() -> Side:
    return Side()


@pytest.fixture
def theirs() -> Side:
    return Side()


@pytest.fixture(params=[False, True], ids=["without content", "with content"])
def content(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    mode = ContentCapturingMode.SPAN_ONLY if request.param else ContentCapturingMode.NO_CONTENT
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", mode.name)
    return request.param


def bundles(side: Side, **options: Any) -> list[Hooks]:
    return [TracingHooks(side.tracers, meter_provider=side.meters, **options), MetricsHooks(side.meters)]


class ByHand:
    """What somebody writes who instruments the same run with OpenTelemetry's library."""

    def __init__(self, side: Side) -> None:
        self.handler = TelemetryHandler(
            side.tracers, side.meters, instrumentation_scope_name="by-hand", instrumentation_scope_version="1"
        )

    def agent(self, name: str, *, conversation_id: str | None = None) -> LocalAgentInvocation:
        return self.handler.invoke_local_agent(request_model="large", agent_name=name, conversation_id=conversation_id)

    def chat(self) -> InferenceInvocation:
        return self.handler.inference("elsewhere", request_model="large")

    def tool(self, name: str, call_id: str, agent: str, arguments: Any = None) -> ToolInvocation:
        invocation = self.handler.tool(name, tool_type="function", agent_name=agent)
        invocation.tool_call_id, invocation.arguments = call_id, arguments
        return invocation


class LargeModel(ScriptedModel):
    provider = "elsewhere"

    def __init__(self, *turns: ModelResponse | Exception) -> None:
        super().__init__(list(turns), name="large")


@tool
def look_up(item: str) -> str:
    """How much of it there is.

    Args:
        item: What it is called.
    """
    return f"{item}: 3 left"


@tool
async def break_down() -> str:
    raise LookupError("no database")


@tool
async def complain() -> ToolResult:
    return ToolResult(content="none left", success=False)


def definition(each: Tool) -> FunctionToolDefinition:
    return FunctionToolDefinition(name=each.name, description=each.description, parameters=each.schema)


def text(role: str, words: str) -> InputMessage:
    return InputMessage(role=role, parts=[TextPart(content=words)])


def request(call_id: str, name: str, **arguments: Any) -> ToolCallRequestPart:
    return ToolCallRequestPart(arguments=arguments, name=name, id=call_id)


def response(call_id: str, words: str) -> InputMessage:
    return InputMessage(role="tool", parts=[ToolCallResponsePart(response=words, id=call_id)])


# A run that goes well, with one tool call that does not.


SETTINGS = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 100, "seed": 7, "stop_sequences": ["END"], "top_k": 40}


def with_settings() -> Hooks:
    hooks = Hooks("settings")

    @hooks.before(ModelCall)
    def put(call: ModelCall) -> ModelCall:
        return msgspec.structs.replace(call, settings=SETTINGS)

    return hooks


async def our_shop(side: Side) -> None:
    first = calls(call("look_up", "t1", item="tea"), read=20, wrote=5)
    second = calls(call("break_down", "t2"), read=30, wrote=6)
    third = calls(call("complain", "t3"), read=40, wrote=7)
    last = ModelResponse(
        content="3",
        reasoning="easy",
        usage=Usage(input_tokens=50, output_tokens=8),
        model="large-2026-11",
        response_id="r4",
    )
    agent = Agent(
        id="shop",
        instructions="Be brief.",
        tools=[look_up, break_down, complain],
        model=LargeModel(first, second, third, last),
    )
    await exec_agent(agent, "How much tea?", hooks=[*bundles(side), with_settings()])


def their_chat(
    chat: InferenceInvocation, said: list[InputMessage], answer: OutputMessage, read: int, wrote: int
) -> None:
    chat.temperature, chat.top_p, chat.top_k, chat.max_tokens, chat.seed = 0.5, 0.9, 40, 100, 7
    chat.stop_sequences = ["END"]
    chat.system_instruction = [TextPart(content="Be brief.")]
    chat.tool_definitions = [definition(each) for each in (look_up, break_down, complain)]
    chat.input_messages, chat.output_messages = list(said), [answer]
    assert answer.finish_reason is not None
    chat.finish_reasons = [answer.finish_reason]
    chat.input_tokens, chat.output_tokens = read, wrote


def their_shop(side: Side) -> None:
    by_hand, said = ByHand(side), [text("user", "How much tea?")]
    tools: list[tuple[str, str, dict[str, Any], str]] = [
        ("t1", "look_up", {"item": "tea"}, "tea: 3 left"),
        ("t2", "break_down", {}, "LookupError: no database"),
        ("t3", "complain", {}, "none left"),
    ]
    with by_hand.agent("shop") as agent:
        agent.system_instruction = [TextPart(content="Be brief.")]
        agent.tool_definitions = [definition(each) for each in (look_up, break_down, complain)]
        agent.input_messages = list(said)
        for at, (call_id, name, arguments, result) in enumerate(tools):
            answer = OutputMessage("assistant", [request(call_id, name, **arguments)], "tool_calls")
            with by_hand.chat() as chat:
                their_chat(chat, said, answer, 20 + 10 * at, 5 + at)
            invocation = by_hand.tool(name, call_id, "shop", arguments)
            if name == "look_up":
                invocation.tool_description, invocation.tool_result = look_up.description, result
                invocation.stop()
            elif name == "complain":
                invocation.tool_result = result
                invocation.fail(Error(message=None, type="tool_error"))
            else:
                invocation.fail(LookupError("no database"))
            said += [InputMessage("assistant", list(answer.parts)), response(call_id, result)]
        last = OutputMessage("assistant", [ReasoningPart(content="easy"), TextPart(content="3")], "stop")
        with by_hand.chat() as chat:
            their_chat(chat, said, last, 50, 8)
            chat.response_model_name, chat.response_id = "large-2026-11", "r4"
        agent.output_messages = [OutputMessage("assistant", [TextPart(content="3")], "stop")]
        agent.finish_reasons = ["stop"]


async def test_a_run_with_tools_is_described_as_by_the_oracle(ours: Side, theirs: Side, content: bool) -> None:
    await our_shop(ours)
    their_shop(theirs)

    listed: Differences = {}
    if not content:
        # An exception's message may quote what the model wrote; the oracle exports it although content is off.
        listed["4 execute_tool break_down", "status.description"] = (None, "no database")
    assert differences(ours.spans, theirs.spans) == listed
    assert len(ours.spans) == 8


async def test_a_run_with_tools_is_measured_as_by_the_oracle(ours: Side, theirs: Side) -> None:
    await our_shop(ours)
    their_shop(theirs)

    found, expected = ours.metrics, theirs.metrics
    # The conventions have these two; the oracle does not emit them yet.
    further = {"gen_ai.invoke_agent.inference_calls", "gen_ai.invoke_agent.tool_calls"}
    assert found.keys() - expected.keys() == further
    assert {name: found[name] for name in expected} == expected
    assert {found[name]["unit"] for name in further} == {"{inference_call}", "{tool_call}"}


# Runs that fail, for which both name the class of the exception.


class Unreachable(Exception):
    """Of a module, unlike the exceptions that Python brings along."""


@pytest.mark.parametrize("error", [TimeoutError("of the model"), Unreachable("of the model")], ids=["builtin", "own"])
async def test_a_model_that_fails_is_described_and_measured_as_by_the_oracle(
    ours: Side, theirs: Side, content: bool, error: Exception
) -> None:
    agent = Agent(id="shop", model=LargeModel(error))

    await exec_agent(agent, "go", hooks=bundles(ours))
    by_hand = ByHand(theirs)
    invocation, chat = by_hand.agent("shop"), by_hand.chat()
    invocation.input_messages = chat.input_messages = [text("user", "go")]
    chat.fail(error)
    invocation.fail(error)

    spans = ["0 invoke_agent shop", "1 chat large"]
    listed: Differences = {}
    if not content:
        # As above: the text of an exception is content.
        listed |= {(span, "status.description"): (None, "of the model") for span in spans}
    own, other = type(error).__name__, f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    if own != other:
        # Events carry the bare name of the class (`OnError.error_type`), also on the wire and in other runtimes; spans
        # and metrics say the same.
        listed |= {(span, "error.type"): (own, other) for span in spans}
    assert differences(ours.spans, theirs.spans) == listed
    for name in ("gen_ai.client.operation.duration", "gen_ai.invoke_agent.duration"):
        (((attributes, count)),) = theirs.metrics[name]["series"]
        expected = [(key, own if key == "error.type" else value) for key, value in attributes]
        assert ours.metrics[name]["series"] == [(expected, count)]
    assert "gen_ai.client.token.usage" not in ours.metrics.keys() | theirs.metrics.keys()


# Usage.


@pytest.mark.parametrize(("read", "wrote"), [(5, 0), (0, 5), (5, 5)])
async def test_tokens_of_a_model_that_reports_them_are_described_and_measured_as_by_the_oracle(
    ours: Side, theirs: Side, read: int, wrote: int
) -> None:
    await exec_agent(Agent(id="shop", model=LargeModel(says(read=read, wrote=wrote))), "go", hooks=bundles(ours))
    with ByHand(theirs).agent("shop") as agent, ByHand(theirs).chat() as chat:
        chat.finish_reasons = agent.finish_reasons = ["stop"]
        chat.input_tokens, chat.output_tokens = read, wrote

    assert differences(ours.spans, theirs.spans) == {}
    assert ours.metrics["gen_ai.client.token.usage"] == theirs.metrics["gen_ai.client.token.usage"]


async def test_tokens_on_the_agents_span_are_those_of_the_oracle_where_they_are_asked_for(
    ours: Side, theirs: Side
) -> None:
    turns = calls(call("look_up", "t1", item="tea"), read=5, wrote=6), says(read=7, wrote=8)
    agent = Agent(id="shop", model=LargeModel(*turns), tools=[look_up])

    await exec_agent(agent, "go", hooks=bundles(ours, aggregate_usage="gen_ai"))
    with ByHand(theirs).agent("shop") as invocation:
        invocation.finish_reasons = ["stop"]
        invocation.input_tokens, invocation.output_tokens = 12, 14

    own = [span for span in ours.spans if span["name"] == "invoke_agent shop"]
    assert differences(own, theirs.spans) == {}


# Conversations and sub-agents.


async def test_a_task_of_a_session_and_its_sub_agent_are_described_as_by_the_oracle(ours: Side, theirs: Side) -> None:
    helper = Agent(id="helper", model=LargeModel(says()))
    agent = Agent(id="shop", model=LargeModel(calls(ask("helper")), says()), sub_agents=[helper])

    async with AgentSession(agent, hooks=bundles(ours), session_id="talk-1") as session:
        await session.run("go")
    by_hand = ByHand(theirs)
    with by_hand.agent("shop", conversation_id="talk-1") as outer:
        with by_hand.chat() as chat:
            chat.finish_reasons = ["tool_calls"]
        with by_hand.agent("helper") as inner:
            inner.finish_reasons = ["stop"]
            with by_hand.chat() as chat:
                chat.finish_reasons = ["stop"]
        with by_hand.chat() as chat:
            chat.finish_reasons = ["stop"]
        outer.finish_reasons = ["stop"]

    assert differences(ours.spans, theirs.spans) == {}
    assert len(ours.spans) == 5
    assert ours.metrics["gen_ai.invoke_agent.duration"] == theirs.metrics["gen_ai.invoke_agent.duration"]


async def test_a_task_that_is_resumed_outside_of_its_session_is_described_as_by_the_oracle(
    ours: Side, theirs: Side
) -> None:
    pay, store = tool(lambda: "paid", name="pay", needs_approval=True), InMemoryStore()
    agent = Agent(id="shop", model=LargeModel(calls(call("pay")), says()), tools=[pay])

    async with AgentSession(agent, session_id="talk-1", store=store) as session:
        paused = await session.run("go")
        await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=bundles(ours), store=store)
    by_hand = ByHand(theirs)
    with by_hand.agent("shop", conversation_id="talk-1") as invocation:
        by_hand.tool("pay", "t1", "shop").stop()
        with by_hand.chat() as chat:
            chat.finish_reasons = invocation.finish_reasons = ["stop"]

    assert differences(ours.spans, theirs.spans) == {}


async def test_where_the_model_and_the_agent_have_no_name_of_their_own_both_name_the_operation_only(
    ours: Side, theirs: Side
) -> None:
    class Nameless:
        name = provider = ""

        async def respond(self, call: ModelCall) -> ModelResponse:
            return says()

    await exec_agent(Agent(id="shop", model=Nameless()), "go", hooks=bundles(ours))
    handler = ByHand(theirs).handler
    with handler.invoke_local_agent(agent_name="shop") as agent, handler.inference("_OTHER") as chat:
        agent.finish_reasons = chat.finish_reasons = ["stop"]

    assert differences(ours.spans, theirs.spans) == {}
    for name in ("gen_ai.client.operation.duration", "gen_ai.invoke_agent.duration"):
        assert ours.metrics[name] == theirs.metrics[name]
