"""Streams of Microsoft Agent Framework that hooks judge in parts."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    ResponseStream,
)
from msgspec.structs import replace

from hookline import AgentCall, Deny, Hooks, ModelCall, ModelResponse, TextParts
from hookline.adapters.agent_framework import HooklineMiddleware
from hookline.errors import RunStopped

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Streaming(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """A client that streams these pieces, each an update of its own; an exception is raised, and an event waited for."""

    def __init__(self, *pieces: Any) -> None:
        super().__init__()
        self.pieces, self.read, self.model = pieces, list[Any](), "streaming"

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **given: Any) -> Any:
        async def parts() -> Any:
            for piece in self.pieces:
                self.read.append(piece)
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, anyio.Event):
                    await piece.wait()
                    continue
                content = Content.from_text(piece) if isinstance(piece, str) else piece
                yield ChatResponseUpdate(role="assistant", contents=[content])

        return ResponseStream(parts(), finalizer=ChatResponse.from_updates)


def judging(judge: Any, **parts: Any) -> Hooks:
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(**{"max_chars": 1, **parts}), id="judge")
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


def deny_secret(response: ModelResponse) -> Deny | None:
    return Deny("a secret") if "4711" in response.content else None


async def read(client: Streaming, hooks: Hooks) -> tuple[list[str], Any]:
    stream = Agent(client=client).run("go", stream=True, middleware=[HooklineMiddleware([hooks])])
    texts = [update.text async for update in stream if update.text]
    return texts, await stream.get_final_response()


async def test_text_is_released_before_the_stream_ends() -> None:
    client, seen = Streaming("one ", "two ", "three"), list[tuple[str, int]]()
    stream = Agent(client=client).run("go", stream=True, middleware=[HooklineMiddleware([judging(lambda r: None)])])

    async for update in stream:
        if update.text:
            seen.append((update.text, len(client.read)))

    assert "".join(text for text, _ in seen) == "one two three"
    assert seen[0][0] == "one"
    assert seen[0][1] < 3
    assert (await stream.get_final_response()).text == "one two three"


async def test_nothing_is_given_after_a_denial() -> None:
    client = Streaming("the key is 47", "11 and", " more")

    stream = Agent(client=client).run(
        "go", stream=True, middleware=[HooklineMiddleware([judging(deny_secret, hold=3)])]
    )
    texts: list[str] = []

    with pytest.raises(RunStopped, match="a secret"):
        async for update in stream:
            if update.text:
                texts.append(update.text)  # noqa: PERF401  # what was read before the denial counts

    assert texts == ["the key is", "a secret"]
    assert client.read == ["the key is 47", "11 and"]


async def test_rewritten_text_is_given_rewritten_once() -> None:
    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    texts, response = await read(Streaming("the key is 47", "11, keep it ", "well"), judging(mask, hold=3))

    assert "".join(texts) == response.text == "the key is ****, keep it well"
    assert len(texts) > 1


async def test_what_is_not_text_waits_for_the_end() -> None:
    thought = Content.from_text_reasoning(text="hm")

    texts, response = await read(Streaming("a", thought, "b"), judging(lambda r: None))

    assert "".join(texts) == response.text.replace(" ", "") == "ab"


async def test_a_hook_of_the_run_holds_text_unless_it_says_that_it_does_not() -> None:
    for hold in (True, False):
        client, seen = Streaming("one", "two", "three"), list[int]()
        hooks = judging(lambda r: None)
        hooks.after(AgentCall, hold_text=hold)(lambda call, result: None)
        stream = Agent(client=client).run("go", stream=True, middleware=[HooklineMiddleware([hooks])])

        async for update in stream:
            if update.text:
                seen.append(len(client.read))

        assert (seen[0] < 3) is not hold


async def test_a_broken_stream_is_judged_to_its_end_and_raises() -> None:
    seen: list[str] = []

    with pytest.raises(ValueError, match="cut"):
        await read(
            Streaming("one", "tw", ValueError("cut")), judging(lambda r: seen.append(r.finish_reason), max_chars=3)
        )

    assert seen == ["incremental", "truncated"]


async def test_a_stream_that_stalls_is_judged_when_the_time_has_come() -> None:
    seen, texts = anyio.Event(), list[str]()
    hooks = judging(lambda r: None, max_chars=1000, max_seconds=0.05)
    stream = Agent(client=Streaming("one ", seen, "two")).run(
        "go", stream=True, middleware=[HooklineMiddleware([hooks])]
    )

    with anyio.fail_after(60):
        async for update in stream:
            if update.text:
                texts.append(update.text)
                seen.set()

    assert texts == ["one", " two"]


async def test_a_denial_of_a_stream_that_stalls_ends_it() -> None:
    client = Streaming("one ", anyio.Event(), "two")

    with anyio.fail_after(60), pytest.raises(RunStopped, match="no"):
        await read(client, judging(lambda r: Deny("no"), max_chars=1000, max_seconds=0.05))

    assert client.read[0] == "one "
    assert "two" not in client.read
