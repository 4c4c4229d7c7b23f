"""Streams of Strands that hooks judge in parts."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

pytest.importorskip("strands")

from msgspec.structs import replace
from strands import Agent
from strands.models import Model

from hookline import Deny, Hooks, ModelCall, ModelResponse, TextParts
from hookline.adapters import hooked
from hookline.errors import RunStopped

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class Streaming(Model):
    """A model that streams these pieces; an exception is raised, and an event waited for."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = pieces

    def update_config(self, **given: Any) -> None:
        pass

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *args: Any, **given: Any) -> Any:
        yield {}

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **given: Any) -> Any:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, anyio.Event):
                await piece.wait()
                continue
            yield {"contentBlockDelta": {"delta": {"text": piece}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}
        usage = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def judging(judge: Any, **parts: Any) -> Hooks:
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(**{"max_chars": 1, **parts}), id="judge")
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


async def read(hooks: Hooks, *pieces: Any, into: list[Any]) -> Any:
    """Read a run, and return its result; an event among the pieces is set by the first text."""
    result = None
    async for event in hooked(Agent(model=Streaming(*pieces), callback_handler=None), hooks=[hooks]).stream_async("go"):
        into.append(event)
        result = event.get("result", result)
        for piece in pieces:
            if isinstance(piece, anyio.Event) and "data" in event:
                piece.set()
    return result


def texts(events: list[Any]) -> list[str]:
    return [event["data"] for event in events if "data" in event]


def raw_texts(events: list[Any]) -> list[str]:
    deltas = [
        event["event"]["contentBlockDelta"]["delta"]
        for event in events
        if "contentBlockDelta" in event.get("event", {})
    ]
    return [delta["text"] for delta in deltas]


async def test_text_is_released_before_the_stream_ends() -> None:
    seen: list[Any] = []

    with anyio.fail_after(30):  # the model waits for the reader before it goes on
        result = await read(judging(lambda r: None, hold=2), "one ", "two ", anyio.Event(), "three", into=seen)

    assert texts(seen) == raw_texts(seen) == ["on", "e tw", "o thr", "ee"]
    assert str(result).strip() == "one two three"
    kinds = [next(iter(event["event"])) for event in seen if "event" in event]
    assert kinds[:2] == ["messageStart", "contentBlockStart"]
    assert kinds[-3:] == ["contentBlockStop", "messageStop", "metadata"]


async def test_nothing_is_given_after_a_denial() -> None:
    seen: list[Any] = []
    hooks = judging(lambda r: Deny("a secret") if "4711" in r.content else None, hold=3)

    with pytest.raises(RunStopped, match="a secret"):
        await read(hooks, "the key is 47", "11 and", " more", into=seen)

    assert raw_texts(seen) == ["the key is"]
    assert [text for text in texts(seen) if text != "a secret"] == ["the key is"]


async def test_rewritten_text_is_given_rewritten_once() -> None:
    seen: list[Any] = []

    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    result = await read(judging(mask, hold=3), "the key is 47", "11, keep it ", "well", into=seen)

    assert "".join(texts(seen)) == str(result).strip() == "the key is ****, keep it well"
    assert len(texts(seen)) > 1


async def test_a_broken_stream_is_judged_to_its_end_and_raises() -> None:
    judged: list[str] = []
    seen: list[Any] = []

    with pytest.raises(ValueError, match="cut"):
        await read(
            judging(lambda r: judged.append(r.finish_reason), max_chars=3), "one", "tw", ValueError("cut"), into=seen
        )

    assert judged == ["incremental", "truncated"]
    assert texts(seen) == ["one"]


async def test_a_stream_that_stalls_is_judged_when_the_time_has_come() -> None:
    hooks, events = judging(lambda r: None, max_chars=1000, max_seconds=0.05), list[Any]()

    with anyio.fail_after(60):
        result = await read(hooks, "one ", anyio.Event(), "two", into=events)

    assert [event["data"] for event in events if "data" in event] == ["one ", "two"]
    assert str(result).strip() == "one two"


async def test_a_denial_of_a_stream_that_stalls_ends_it() -> None:
    hooks, events = judging(lambda r: Deny("no"), max_chars=1000, max_seconds=0.05), list[Any]()

    with anyio.fail_after(60), pytest.raises(RunStopped, match="no"):
        await read(hooks, "one ", anyio.Event(), "two", into=events)

    assert [event["data"] for event in events if "data" in event] == ["no"]
