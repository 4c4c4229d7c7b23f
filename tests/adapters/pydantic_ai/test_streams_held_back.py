"""Streams of Pydantic AI that are held back until hooks have judged them are those that they would be without hooks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.usage import RequestUsage

from hookline import Deny, Hooks, ModelCall
from hookline import ModelResponse as Answer
from hookline.adapters.pydantic_ai import Hookline
from tests.tables import for_each

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


Piece = Any  # what the stream function of a model gives
TURNS: list[list[Piece]] = [
    [
        {0: DeltaThinkingPart(content="I ")},
        {0: DeltaThinkingPart(content="must look", signature="s")},
        {1: DeltaToolCall("look", tool_call_id="c1")},
        {1: DeltaToolCall(json_args='{"pla')},
        {1: DeltaToolCall(json_args='ce": "Oslo"}')},
    ],
    [
        {0: DeltaToolCall("final_result", tool_call_id="o1")},
        {0: DeltaToolCall(json_args='{"response": [1, 2')},
        {0: DeltaToolCall(json_args=", 3, 4")},
        {0: DeltaToolCall(json_args="]}")},
    ],
]


def agent_of(*turns: list[Piece], **options: Any) -> Agent[Any, Any]:
    """An agent whose model says these turns, piece by piece."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        for piece in turns[sum(isinstance(message, ModelResponse) for message in messages)]:
            yield piece
            await asyncio.sleep(0)

    agent = Agent(FunctionModel(stream_function=stream), **options)

    @agent.tool_plain
    def look(place: str) -> str:
        return f"It is cold in {place}."

    return agent


def passing(kind: str) -> list[Hookline]:
    """Hooks of a kind that change nothing."""
    hooks = Hooks(kind)
    if kind == "after":
        hooks.after(ModelCall)(lambda call, answer: None)
    elif kind == "around":

        @hooks.around(ModelCall)
        async def around(call: ModelCall, call_next: Any) -> Any:
            return await call_next(call)

    return [Hookline([hooks])]


def plain(value: object) -> str:
    """A value without its times and the ids of its run."""
    text = re.sub(r"datetime\.datetime\([^)]*\)", "a time", str(value))
    return re.sub(r"'[0-9a-f]{8}-[0-9a-f-]{27}'", "an id", text)


async def events_of(agent: Agent[Any, Any], given: list[Hookline]) -> list[str]:
    async with agent.run_stream_events("go", capabilities=given) as events:
        return [plain(event) async for event in events]


async def by_node(agent: Agent[Any, Any], given: list[Hookline]) -> list[str]:
    seen: list[str] = []
    async with agent.iter("go", capabilities=given) as steps:
        async for node in steps:
            if Agent.is_model_request_node(node):
                async with node.stream(steps.ctx) as stream:
                    seen += [plain((event, stream.response, stream.usage)) async for event in stream]
    return seen


async def outputs_of(agent: Agent[Any, Any], given: list[Hookline]) -> list[str]:
    async with agent.run_stream("go", capabilities=given) as result:
        seen = [plain((output, result.usage)) async for output in result.stream_output(debounce_by=None)]
        return [*seen, plain(result.all_messages())]


async def responses_of(agent: Agent[Any, Any], given: list[Hookline]) -> list[str]:
    async with agent.run_stream("go", capabilities=given) as result:
        seen = [plain((response, result.usage)) async for response in result.stream_response(debounce_by=None)]
        return [*seen, plain(await result.get_output())]


async def until_cancelled(agent: Agent[Any, Any], given: list[Hookline]) -> list[str]:
    seen: list[str] = []
    async with agent.run_stream("go", capabilities=given) as result:
        async for output in result.stream_output(debounce_by=None):
            seen.append(plain(output))
            await result.cancel()
        return [*seen, plain(result.response.state), plain(result.cancelled)]


Way = Callable[[Agent[Any, Any], list[Hookline]], Awaitable[list[str]]]
WAYS = pytest.mark.parametrize("way", [events_of, by_node, outputs_of, responses_of, until_cancelled])


@WAYS
@for_each("kind", ["after", "around"])
async def test_a_stream_that_hooks_leave_alone_comes_piece_by_piece_as_without_hooks(kind: str, way: Way) -> None:
    bare = await way(agent_of(*TURNS, output_type=list[int]), [])

    assert await way(agent_of(*TURNS, output_type=list[int]), passing(kind)) == bare


@dataclass
class Watching(AbstractCapability[Any]):
    """A capability that needs a stream."""

    async def wrap_run_event_stream(self, ctx: Any, *, stream: Any) -> Any:
        async for event in stream:
            yield event


class OnlyWhole(Model):
    """A model that cannot stream."""

    model_name, system = "whole", "test"

    async def request(self, *given: Any, **options: Any) -> ModelResponse:
        raise NotImplementedError


@pytest.mark.parametrize("kind", ["before", "after", "around"])
async def test_a_model_that_cannot_stream_is_refused_in_the_words_of_the_framework(kind: str) -> None:
    agent = Agent(OnlyWhole(), capabilities=[Watching()])

    with pytest.raises(UserError, match="does not support streamed requests"):
        await agent.run("go", capabilities=passing(kind))


words = st.lists(st.text("ab ", min_size=1, max_size=3), min_size=1, max_size=4)
pieces_of_calls = st.lists(st.integers(1, 12), max_size=3).map(
    lambda cuts: [
        {7: DeltaToolCall("look", tool_call_id="c1")},
        *({7: DeltaToolCall(json_args=piece)} for piece in _cut(json.dumps({"place": "Oslo"}), cuts)),
    ]
)
thoughts = words.map(lambda given: [{3: DeltaThinkingPart(content=word)} for word in given])


def _cut(text: str, sizes: list[int]) -> list[str]:
    cut: list[str] = []
    for size in sizes:
        if len(text) > size:
            cut.append(text[:size])
            text = text[size:]
    return [*cut, text]


@settings(max_examples=25, deadline=None)
@given(first=st.tuples(thoughts | st.just([]), words | st.just([]), pieces_of_calls), last=words)
def test_a_held_stream_is_the_bare_stream(first: tuple[list[Any], ...], last: list[str]) -> None:
    turns = [[piece for pieces in first for piece in pieces], last]

    assert asyncio.run(by_node(agent_of(*turns), passing("after"))) == asyncio.run(by_node(agent_of(*turns), []))


class Corrected(StreamedResponse):
    """A stream that takes back what it has said: its first events are not in its answer."""

    said: list[ModelResponseStreamEvent]

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for event in self.said:
            await asyncio.sleep(0)
            self._parts_manager.apply_event(event)
            yield event

    async def close_stream(self) -> None:
        pass

    @property
    def usage(self) -> RequestUsage:
        return RequestUsage()

    @property
    def model_name(self) -> str:
        return "corrected"

    provider_name = provider_url = property(lambda self: None)  # type: ignore[assignment]

    @property
    def timestamp(self) -> datetime:
        return datetime.now(UTC)


class Correcting(WrapperModel):
    """A model whose streams are these events."""

    def __init__(self, *said: ModelResponseStreamEvent) -> None:
        super().__init__(FunctionModel(lambda messages, info: ModelResponse([])))
        self.said = said

    @asynccontextmanager
    async def request_stream(self, messages: Any, settings: Any, parameters: Any, run_context: Any = None) -> Any:
        if any(isinstance(message, ModelResponse) for message in messages):
            stream = Corrected(parameters)
            stream.said = [PartStartEvent(index=0, part=TextPart("done"))]
        else:
            stream = Corrected(parameters)
            stream.said = list(self.said)
        yield stream


@for_each("way", [events_of, by_node, outputs_of, responses_of])
@for_each(
    "said",
    [
        [
            PartStartEvent(index=0, part=TextPart("my secret")),
            PartStartEvent(index=0, part=TextPart("nothing")),
        ],
        [
            PartStartEvent(index=0, part=ToolCallPart("look", {"place": "secret"}, tool_call_id="c1")),
            PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta={"place": "Oslo"})),
        ],
    ],
    ids=["a part", "arguments"],
)
async def test_what_a_model_has_taken_back_is_not_streamed_unjudged(
    said: list[ModelResponseStreamEvent], way: Way
) -> None:
    hooks = Hooks("withholds")

    @hooks.after(ModelCall)
    def withhold(call: ModelCall, answer: Answer) -> Deny | None:
        return Deny("confidential") if "secret" in str(answer) else None

    agent = agent_of()
    agent.model = Correcting(*said)

    assert "secret" not in str(await way(agent, [Hookline([hooks])]))
