"""Streams of Google ADK that hooks judge in parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

pytest.importorskip("google.adk")

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from msgspec.structs import replace

from hookline import Deny, Hooks, ModelCall, ModelResponse, OnComplete, TextParts
from hookline.adapters.google_adk import hooked
from hookline.errors import RunStopped

from .stage import user

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"),
]


def content_of(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])


class Streaming(BaseLlm):
    """A model that streams these pieces; an exception is raised, and an event waited for."""

    model: str = "streaming"
    pieces: list[Any]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, anyio.Event):
                await piece.wait()
                continue
            yield LlmResponse(partial=True, content=content_of(piece))
        yield LlmResponse(content=content_of("".join(each for each in self.pieces if isinstance(each, str))))


def judging(judge: Any, **parts: Any) -> Hooks:
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(**{"max_chars": 1, **parts}), id="judge")
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


async def read(
    hooks: Hooks, *pieces: Any, into: list[tuple[str, bool]], kind: type[LlmAgent] = LlmAgent, **options: Any
) -> None:
    """Read a run: each text with whether it is partial; an event among the pieces is set by the first text."""
    model = Streaming(pieces=list(pieces))
    runner = InMemoryRunner(agent=kind(name="a", model=model, **options), app_name="app")
    await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")
    stream = hooked(runner, hooks=[hooks]).run_async(
        user_id="ann",
        session_id="s",
        new_message=user("go"),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    )
    async for event in stream:
        parts = event.content.parts if event.content is not None else ()
        into.extend((part.text, bool(event.partial)) for part in parts)
        for piece in pieces:
            if into and isinstance(piece, anyio.Event):
                piece.set()


async def test_text_is_released_before_the_stream_ends() -> None:
    seen: list[Any] = []

    with anyio.fail_after(30):  # the model waits for the reader before it goes on
        await read(judging(lambda r: None, hold=2), "one ", "two ", anyio.Event(), "three", into=seen)

    assert seen == [
        ("on", True),
        ("e tw", True),
        ("o thr", True),
        ("one two three", False),
    ]


async def test_nothing_is_given_after_a_denial() -> None:
    seen: list[Any] = []
    hooks = judging(lambda r: Deny("a secret") if "4711" in r.content else None, hold=3)

    with pytest.raises(RunStopped, match="a secret"):
        await read(hooks, "the key is 47", "11 and", " more", into=seen)

    assert [text for text, _ in seen] == ["the key is"]


async def test_rewritten_text_is_given_rewritten() -> None:
    seen: list[Any] = []

    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    await read(judging(mask, hold=3), "the key is 47", "11, keep it ", "well", into=seen)

    parts = "".join(text for text, partial in seen if partial)
    assert "the key is ****, keep it well".startswith(parts)
    assert len(parts) > 20
    assert [text for text, partial in seen if not partial] == ["the key is ****, keep it well"]


async def test_a_broken_stream_is_judged_to_its_end_and_raises() -> None:
    judged: list[str] = []
    seen: list[Any] = []

    with pytest.raises(ValueError, match="cut"):
        await read(
            judging(lambda r: judged.append(r.finish_reason), max_chars=3), "one", "tw", ValueError("cut"), into=seen
        )

    assert judged == ["incremental", "truncated"]
    assert [text for text, _ in seen] == ["one"]


async def test_text_is_released_after_some_time_while_the_model_sends_nothing() -> None:
    seen: list[Any] = []
    hooks = judging(lambda r: None, max_chars=1000, max_seconds=0.01)

    with anyio.fail_after(30):  # the model waits for the reader before it goes on
        await read(hooks, "one ", "two ", anyio.Event(), "three", into=seen)

    assert "".join(text for text, partial in seen if partial).startswith("one two ")
    assert seen[-1] == ("one two three", False)


async def test_a_denial_ends_a_stream_that_stalls() -> None:
    seen: list[Any] = []
    judged: list[str] = []

    def deny(response: ModelResponse) -> Deny:
        judged.append(response.content)
        return Deny("a secret")

    with anyio.fail_after(30), pytest.raises(RunStopped, match="a secret"):
        await read(judging(deny, max_chars=1000, max_seconds=0.01), "the key", anyio.Event(), " is", into=seen)

    assert judged == ["the key"]
    assert [text for text, partial in seen if partial] == []


async def test_a_stalled_stream_can_be_left() -> None:
    stalled = anyio.Event()
    hooks = judging(lambda r: None, max_chars=1000, max_seconds=0.01)
    ends: list[str] = []
    hooks.on(OnComplete)(lambda event: ends.append(event.reason))
    model = Streaming(pieces=["one ", stalled, "two"])
    runner = InMemoryRunner(agent=LlmAgent(name="a", model=model), app_name="app")
    await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")

    with anyio.fail_after(30):
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        asked = {"user_id": "ann", "session_id": "s", "new_message": user("go"), "run_config": config}
        async with aclosing(hooked(runner, hooks=[hooks]).run_async(**asked)) as events:
            async for event in events:
                assert event.content.parts[0].text == "one "
                break

    assert ends == ["interrupted"]


async def test_hooks_that_judge_whole_answers_still_hold_all_parts() -> None:
    seen: list[Any] = []
    hooks = Hooks("whole")
    hooks.after(ModelCall)(lambda call, response: None)

    await read(hooks, "one ", "two", into=seen)

    assert seen == [("one two", False)]


async def test_an_agent_with_a_model_method_of_its_own_holds_its_stream_whole() -> None:
    class Own(LlmAgent):
        async def canonical_model_async(self, ctx: Any) -> BaseLlm:
            return self.canonical_model

    seen: list[Any] = []

    await read(judging(lambda r: None), "one ", "two", into=seen, kind=Own)

    assert seen == [("one two", False)]


async def test_callbacks_get_the_parts_that_hooks_let_pass() -> None:
    heard: list[str] = []
    seen: list[Any] = []

    def hear(callback_context: Any, llm_response: LlmResponse) -> None:
        if llm_response.partial:
            heard.append(llm_response.content.parts[0].text)

    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    hooks = judging(mask, hold=3)

    await read(hooks, "the key is 47", "11, keep it ", "well", into=seen, after_model_callback=hear)

    assert heard == [text for text, partial in seen if partial]
    assert "".join(heard).startswith("the key is ****")
