"""What a conversation becomes on its way to a provider, and back."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import anyio
import msgspec
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from hookline import Agent, Hooks, Message, ModelCall, Tool, ToolRequest, ToolSpec, exec_agent
from hookline.adapters.models import PydanticModel
from hookline.adapters.models._calls import cost_of
from hookline.adapters.models._messages import WireNames
from hookline.runtime import tool
from tests.tables import for_each

pytestmark = pytest.mark.anyio


class Listening:
    """A model of Pydantic AI that writes down what it is sent and answers with the given turns."""

    def __init__(self, *turns: ModelResponse) -> None:
        self.turns = list(turns)
        self.sent: list[list[ModelMessage]] = []
        self.offered: list[list[Any]] = []
        self.model = PydanticModel(FunctionModel(self.answer))

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.sent.append(messages)
        self.offered.append(info.function_tools)
        return self.turns.pop(0) if self.turns else ModelResponse([TextPart("ok")])


def calling(name: str, call_id: str, toolset: str = "local", **args: Any) -> ToolRequest:
    return ToolRequest(toolset=toolset, tool_name=name, args=args, tool_call_id=call_id)


def parts(messages: list[ModelMessage]) -> list[tuple[Any, ...]]:
    """The parts of a conversation in short."""
    told: list[tuple[Any, ...]] = []
    for message in messages:
        for part in message.parts:
            match part:
                case SystemPromptPart() | UserPromptPart() | TextPart() | ThinkingPart():
                    told.append((part.part_kind, part.content))
                case ToolCallPart():
                    told.append(("call", part.tool_name, part.args, part.tool_call_id))
                case ToolReturnPart():
                    told.append(("result", part.tool_name, part.content, part.tool_call_id))
    return told


async def sent(*messages: Message, tools: list[ToolSpec] | None = None) -> list[ModelMessage]:
    listening = Listening()
    await listening.model.respond(ModelCall(messages=list(messages), tools=tools or []))
    return listening.sent[0]


async def test_every_role_keeps_its_place() -> None:
    got = await sent(
        Message(role="system", content="Be brief."),
        Message(role="user", content="Find it"),
        Message(role="assistant", content="Looking.", tool_calls=[calling("search", "c1", query="x")]),
        Message(role="tool", content="ToolError: no network", tool_call_id="c1"),
        Message(role="assistant", content="There is no network."),
        Message(role="user", content="Again"),
    )

    assert parts(got) == [
        ("system-prompt", "Be brief."),
        ("user-prompt", "Find it"),
        ("text", "Looking."),
        ("call", "search", {"query": "x"}, "c1"),
        ("result", "search", "ToolError: no network", "c1"),
        ("text", "There is no network."),
        ("user-prompt", "Again"),
    ]
    assert [type(message) for message in got] == [ModelRequest, ModelResponse] * 2 + [ModelRequest]


async def test_a_call_without_a_result_gets_one() -> None:
    got = await sent(
        Message(role="user", content="Find it"),
        Message(role="assistant", content="", tool_calls=[calling("a", "c1"), calling("b", "c2")]),
        Message(role="tool", content="1", tool_call_id="c1"),
        Message(role="user", content="And?"),
        Message(role="assistant", content="", tool_calls=[calling("c", "c3")]),
    )

    assert [part for part in parts(got) if part[0] == "result"] == [
        ("result", "a", "1", "c1"),
        ("result", "b", "There is no result of this call.", "c2"),
        ("result", "c", "There is no result of this call.", "c3"),
    ]


async def test_a_result_without_a_call_is_told_as_text() -> None:
    got = await sent(
        Message(role="user", content="Go on"),
        Message(role="tool", content="42", tool_call_id="gone"),
        Message(role="tool", content="43"),
    )

    assert parts(got) == [
        ("user-prompt", "Go on"),
        ("user-prompt", "A tool gave this result: 42"),
        ("user-prompt", "A tool gave this result: 43"),
    ]


async def test_an_id_may_come_again_in_a_later_turn() -> None:
    got = await sent(
        Message(role="user", content="Go"),
        Message(role="assistant", content="", tool_calls=[calling("a", "call_0")]),
        Message(role="tool", content="1", tool_call_id="call_0"),
        Message(role="assistant", content="", tool_calls=[calling("b", "call_0")]),
        Message(role="tool", content="2", tool_call_id="call_0"),
    )

    assert [part[1:3] for part in parts(got) if part[0] == "result"] == [("a", "1"), ("b", "2")]


async def test_a_call_of_a_tool_that_is_offered_no_more_keeps_its_name() -> None:
    got = await sent(
        Message(role="user", content="Go"),
        Message(role="assistant", content="", tool_calls=[calling("find.it", "c1", toolset="web")]),
        Message(role="tool", content="1", tool_call_id="c1"),
        tools=[ToolSpec(name="other")],
    )
    offered = await sent(
        Message(role="user", content="Go"),
        Message(role="assistant", content="", tool_calls=[calling("find.it", "c1", toolset="web")]),
        Message(role="tool", content="1", tool_call_id="c1"),
        tools=[ToolSpec(toolset="web", name="find.it")],
    )

    assert parts(got) == parts(offered)
    (name,) = {part[1] for part in parts(got) if part[0] in ("call", "result")}
    assert re.fullmatch(r"web__find_it_[0-9a-f]{8}", name)


async def test_text_and_calls_of_an_answer_in_several_parts_are_joined() -> None:
    listening = Listening(
        ModelResponse([TextPart("One, "), ToolCallPart("a", '{"x": 1}', "c1"), TextPart("two."), ToolCallPart("b")])
    )

    response = await listening.model.respond(ModelCall(messages=[Message(role="user", content="Go")]))

    assert response.content == "One, two."
    assert [(each.tool_name, each.args) for each in response.tool_calls] == [("a", {"x": 1}), ("b", {})]
    assert response.tool_calls[1].tool_call_id


@for_each("text", ["{", "[1]", '"x"', "null", "NaN", '{"a": NaN}', "[" * 100_000])
async def test_arguments_that_are_no_object_come_as_the_model_wrote_them(text: str) -> None:
    listening = Listening(ModelResponse([ToolCallPart("a", text, "c1")]))

    response = await listening.model.respond(ModelCall(messages=[Message(role="user", content="Go")]))

    assert response.tool_calls[0].args == text


THOUGHTFUL = ModelResponse(
    [
        ThinkingPart("Let me think.", signature="S1GNED", provider_name="function"),
        TextPart("I will ", provider_name="function", provider_details={"thought_signature": "T3XT"}),
        TextPart("look."),
        ToolCallPart(
            "search",
            '{"query": "x"}',
            "c1",
            provider_name="function",
            provider_details={"thought_signature": "C4LL"},
        ),
    ],
    provider_name="function",
    provider_url="https://me:hunter22@example.test/v1",
)


@tool
async def search(query: str) -> str:
    """Search the web."""
    return "3 results"


async def test_signatures_go_back_to_the_model_that_gave_them() -> None:
    listening = Listening(THOUGHTFUL)

    result = await exec_agent(Agent(id="a", model=listening.model, tools=[search]), "Go")

    assert result.output == "ok"
    answered = listening.sent[1][1]
    assert isinstance(answered, ModelResponse)
    thought, first, second, call = answered.parts
    assert isinstance(thought, ThinkingPart)
    assert (thought.content, thought.signature) == ("Let me think.", "S1GNED")
    assert isinstance(first, TextPart)
    assert isinstance(second, TextPart)
    assert (first.content, first.provider_details) == ("I will ", {"thought_signature": "T3XT"})
    assert second.content == "look."
    assert isinstance(call, ToolCallPart)
    assert call.provider_details == {"thought_signature": "C4LL"}
    assert (call.tool_name, call.args, call.tool_call_id) == ("search", {"query": "x"}, "c1")


async def test_what_is_kept_for_the_model_is_plain_json_without_a_password() -> None:
    listening = Listening(THOUGHTFUL)

    response = await listening.model.respond(ModelCall(messages=[Message(role="user", content="Go")]))

    kept = msgspec.json.encode(response.details)
    assert msgspec.json.decode(kept) == response.details
    assert b"S1GNED" in kept
    assert b"hunter22" not in kept
    assert (response.reasoning, response.content) == ("Let me think.", "I will look.")


async def test_an_answer_of_text_and_calls_alone_leaves_nothing_to_keep() -> None:
    listening = Listening(ModelResponse([TextPart("a"), ToolCallPart("search", {"query": "x"}, "c1")]))

    response = await listening.model.respond(ModelCall(messages=[Message(role="user", content="Go")]))

    assert response.details == {}


@for_each(
    "changed",
    [
        {"content": "I will look again."},
        {"tool_calls": []},
        {"tool_calls": [calling("search", "c1", query="y")]},
        {"tool_calls": [calling("find", "c1", query="x")]},
        {"details": {"pydantic_ai": {"parts": 5, "digest": "x"}}},
        {"details": {"pydantic_ai": "nonsense"}},
        {"details": {"pydantic_ai": {}}},
        {"details": {"others": 1}},
    ],
)
async def test_signatures_of_an_answer_that_a_hook_has_changed_are_dropped(changed: dict[str, Any]) -> None:
    listening = Listening(THOUGHTFUL)
    hooks = Hooks("h")

    @hooks.before(ModelCall)
    def change(call: ModelCall) -> ModelCall | None:
        if call.step_index == 0:
            return None
        messages = [
            msgspec.structs.replace(message, **changed) if message.role == "assistant" else message
            for message in call.messages
        ]
        return msgspec.structs.replace(call, messages=messages)

    result = await exec_agent(Agent(id="a", model=listening.model, tools=[search]), "Go", hooks=[hooks])

    assert (result.reason, result.output) == ("done", "ok")
    told = listening.sent[1][1]
    assert not any(isinstance(part, ThinkingPart) for part in told.parts)
    assert not any(getattr(part, "provider_details", None) for part in told.parts)


async def test_a_changed_id_alone_leaves_signatures_as_they_are() -> None:
    twice = ModelResponse(
        [ThinkingPart("Hm.", signature="S1", provider_name="function")]
        + [ToolCallPart("search", {"query": word}, "same") for word in ("x", "y")],
        provider_name="function",
    )
    listening = Listening(twice)

    await exec_agent(Agent(id="a", model=listening.model, tools=[search]), "Go")

    told = listening.sent[1]
    calls = [part for part in told[1].parts if isinstance(part, ToolCallPart)]
    results = [part for part in told[2].parts if isinstance(part, ToolReturnPart)]
    assert isinstance(told[1].parts[0], ThinkingPart)
    assert [call.tool_call_id for call in calls] == [each.tool_call_id for each in results]
    assert len({call.tool_call_id for call in calls}) == 2


async def test_a_tool_without_a_schema_takes_an_object() -> None:
    async def run(args: Any) -> str:
        return "ok"

    listening = Listening()

    await exec_agent(Agent(id="a", model=listening.model, tools=[Tool(name="bare", run=run)]), "Go")

    (offered,) = listening.offered[0]
    assert offered.parameters_json_schema == {"type": "object", "properties": {}}


names = st.text(max_size=80) | st.sampled_from(["search", "web__search", "search_12345678", "agent", "ü"])
pairs = st.tuples(st.sampled_from(["local", "web", "web__", "agent", "a.b", ""]) | st.text(max_size=70), names)


@given(st.lists(pairs, unique=True, max_size=12), st.lists(pairs, max_size=6))
def test_names_on_the_wire_fit_are_unique_and_lead_back(offered: Any, called: Any) -> None:
    tools = [ToolSpec(toolset=toolset, name=name) for toolset, name in offered]
    history = [
        Message(
            role="assistant",
            content="",
            tool_calls=[calling(name, str(at), toolset) for at, (toolset, name) in enumerate(called)],
        )
    ]

    wire = WireNames(tools, history)

    every = {*offered, *called}
    sent_as = {pair: wire.wire_name(*pair) for pair in every}
    assert len(set(sent_as.values())) == len(every)
    for pair, name in sent_as.items():
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        assert wire.tool_identity(name) == pair
    again = WireNames(reversed(tools), history)
    assert {pair: again.wire_name(*pair) for pair in every} == sent_as


def test_a_name_that_nobody_offered_is_a_local_one() -> None:
    assert WireNames([ToolSpec(toolset="web", name="search")], []).tool_identity("search") == ("local", "search")


async def test_a_cancelled_wait_is_not_an_error_of_the_model() -> None:
    async def forever(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await anyio.sleep_forever()
        raise AssertionError

    model = PydanticModel(FunctionModel(forever))

    with anyio.move_on_after(0.02) as scope:
        await model.respond(ModelCall(messages=[Message(role="user", content="Go")]))

    assert scope.cancelled_caught


TABLE = sorted({(provider.id, model.id) for provider in get_snapshot().providers for model in provider.models})


@given(
    st.sampled_from(TABLE),
    st.integers(0, 10**7),
    st.integers(0, 10**6),
    st.sampled_from([0, 0, 700]),
    st.sampled_from([{}, {"service_tier": "default"}, {"service_tier": "priority"}, {"finish_reason": "stop"}]),
)
def test_a_price_is_what_the_table_says_however_often_it_is_asked(
    of: tuple[str, str], read: int, written: int, kept: int, details: dict[str, Any]
) -> None:
    usage = RequestUsage(input_tokens=read + kept, output_tokens=written, cache_read_tokens=kept)
    response = ModelResponse([], usage=usage, model_name=of[1], provider_name=of[0], provider_details=details)
    exact: float | None = None
    with suppress(LookupError, ValueError):
        exact = float(response.cost().total_price)

    expected = None if exact is None else pytest.approx(exact, rel=1e-9)
    assert cost_of(response, None) == expected
    assert cost_of(response, None) == expected
    more = ModelResponse([], usage=RequestUsage(input_tokens=9, output_tokens=4), model_name=of[1], provider_name=of[0])
    first = cost_of(more, None)
    assert cost_of(more, None) == (None if first is None else pytest.approx(first, rel=1e-9))
