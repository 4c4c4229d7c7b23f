"""Streams of the OpenAI Agents SDK that hooks judge in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from agents import Agent, Model, ModelBehaviorError
from agents.testing import assistant_message
from msgspec.structs import replace
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputMessage,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)

from hookline import Deny, Hooks, ModelCall, ModelResponse, TextParts
from hookline.adapters import hooked
from hookline.errors import RunStopped

from .stage import QUIET

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def response_of(text: str) -> Response:
    return Response(
        id="r1", created_at=0, model="m", object="response", output=[assistant_message(text)], parallel_tool_calls=True,
        tool_choice="auto", tools=[],
    )  # fmt: skip


class Streaming(Model):
    """A model that streams these pieces, as the Responses API does.

    Args:
        pieces: The pieces.
        fails: Whether the stream fails after them.
        seen: What it waits for before the last piece.
    """

    def __init__(self, *pieces: str, fails: bool = False, seen: anyio.Event | None = None) -> None:
        self.pieces, self.fails, self.seen, self.read = pieces, fails, seen, list[str]()

    async def get_response(self, *given: Any, **options: Any) -> Any:
        raise AssertionError

    async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        item = ResponseOutputMessage(id="m", type="message", role="assistant", status="in_progress", content=[])
        yield ResponseOutputItemAddedEvent(
            item=item, output_index=0, sequence_number=0, type="response.output_item.added"
        )
        place: Any = {"item_id": "m", "content_index": 0, "output_index": 0, "logprobs": [], "sequence_number": 1}
        for piece in self.pieces:
            if self.seen is not None and piece is self.pieces[-1]:
                await self.seen.wait()
            self.read.append(piece)
            yield ResponseTextDeltaEvent(delta=piece, type="response.output_text.delta", **place)
        text = "".join(self.pieces)
        if self.fails:
            yield ResponseFailedEvent(response=response_of(text), sequence_number=9, type="response.failed")
            return
        yield ResponseTextDoneEvent(text=text, type="response.output_text.done", **place)
        yield ResponseCompletedEvent(response=response_of(text), sequence_number=9, type="response.completed")


def judging(judge: Any, **parts: Any) -> Hooks:
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(**{"max_chars": 1, **parts}), id="judge")
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


async def read(model: Streaming, hooks: Hooks, into: list[Any]) -> Any:
    """Read a stream; return the run's result."""
    result = hooked(Agent(name="a", model=model), hooks=[hooks]).run_streamed("go", run_config=QUIET)
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            into.append(event.data)
            if model.seen is not None and event.data.type == "response.output_text.delta":
                model.seen.set()
    return result


def deltas(events: list[Any]) -> list[str]:
    return [event.delta for event in events if event.type == "response.output_text.delta"]


def kinds(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("response.") for event in events]


async def test_text_is_released_before_the_stream_ends_and_all_events_come_in_order() -> None:
    events: list[Any] = []
    model = Streaming("one ", "two ", "three", seen=anyio.Event())

    with anyio.fail_after(30):  # the model waits for the reader before it goes on
        result = await read(model, judging(lambda r: None, hold=2), events)

    assert "".join(deltas(events)) == result.final_output == "one two three"
    first, *texts, done, completed = kinds(events)
    assert (first, set(texts), done, completed) == (
        "output_item.added",
        {"output_text.delta"},
        "output_text.done",
        "completed",
    )


async def test_nothing_is_given_after_a_denial() -> None:
    events: list[Any] = []
    model = Streaming("the key is 47", "11 and", " more")

    with pytest.raises(RunStopped, match="a secret"):
        await read(model, judging(lambda r: Deny("a secret") if "4711" in r.content else None, hold=3), events)

    assert deltas(events) == ["the key is"]
    assert model.read == ["the key is 47", "11 and"]
    assert kinds(events)[-1] == "output_text.delta"


async def test_rewritten_text_is_given_rewritten_once() -> None:
    events: list[Any] = []

    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    result = await read(Streaming("the key is 47", "11, keep it ", "well"), judging(mask, hold=3), events)

    assert "".join(deltas(events)) == result.final_output == "the key is ****, keep it well"
    assert len(deltas(events)) > 1
    assert all("4711" not in repr(event) for event in events)


async def test_a_stream_that_fails_gives_nothing_that_was_not_judged() -> None:
    events: list[Any] = []
    seen: list[str] = []

    with pytest.raises(ModelBehaviorError):
        await read(
            Streaming("one", "tw", fails=True), judging(lambda r: seen.append(r.finish_reason), max_chars=3), events
        )

    assert deltas(events) == ["one"]
    assert seen == ["incremental", "truncated"]
    assert all("onetw" not in repr(event) for event in events)


async def test_a_stream_that_stalls_is_judged_when_the_time_has_come() -> None:
    events: list[Any] = []
    model = Streaming("one ", "two", seen=anyio.Event())

    with anyio.fail_after(60):  # the model waits for the reader before it goes on
        result = await read(model, judging(lambda r: None, max_chars=1000, max_seconds=0.05), events)

    assert deltas(events) == ["one ", "two"]
    assert result.final_output == "one two"


async def test_a_denial_of_a_stream_that_stalls_ends_it() -> None:
    events: list[Any] = []
    model = Streaming("one ", "two", seen=anyio.Event())

    with anyio.fail_after(60), pytest.raises(RunStopped, match="no"):
        await read(model, judging(lambda r: Deny("no"), max_chars=1000, max_seconds=0.05), events)

    assert deltas(events) == []
    assert model.read == ["one "]
