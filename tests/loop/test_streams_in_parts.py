"""Streams of a loop that hooks judge in parts."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from openai import AsyncOpenAI, OpenAI

from hookline import AfterStep, Deny, Guide, Hooks, ModelCall, ModelResponse, OnComplete, TextParts, ToolRequest
from hookline.budgets import InMemoryBudgets
from hookline.builtin import budget
from hookline.errors import RunStopped
from hookline.loop import wrap
from tests.adapters.provider import Exchange

from .conftest import Way
from .stage import settled
from .test_streams import read, text_of, watching

pytestmark = pytest.mark.anyio

SECRET = ModelResponse(content="the key is 4711, keep it well")
PIECES = ["the key is 47", "11, keep ", "it well"]


def judging(judge: Any, **parts: Any) -> Hooks:
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(**{"max_chars": 1, **parts}), id="judge")
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


async def test_text_is_released_before_the_answer_is_whole(way: Way) -> None:
    gate = threading.Event()

    def pieces() -> Iterator[str]:
        yield "hello "
        assert gate.wait(20)
        yield "world"

    hooks, seen = watching()
    way.provider.script(way.dialect.says(ModelResponse(content="hello world"), pieces=pieces()))

    async with way.wrapped([judging(lambda r: None), hooks]) as run:
        found = []
        async for event in read(await way.ask(run, stream=True)):
            found.append(text_of(event))
            if found[-1]:
                gate.set()
        assert way.dialect.text(run.response) == "hello world"
    assert "".join(found) == "hello world"
    assert [event.content for event in seen if isinstance(event, AfterStep)] == ["hello world"]


async def test_nothing_is_given_after_a_denial(way: Way) -> None:
    way.provider.script(way.dialect.says(SECRET, pieces=PIECES))
    found: list[str] = []
    hooks = judging(lambda r: Deny("a secret") if "4711" in r.content else None, hold=3)

    with pytest.raises(RunStopped, match="a secret"):
        async with way.wrapped([hooks]) as run:
            async for event in read(await way.ask(run, stream=True)):
                found.append(text_of(event))  # noqa: PERF401  # what was read before the denial counts

    assert "".join(found) == "the key is"


async def test_a_denial_of_the_whole_answer_withholds_the_rest(way: Way) -> None:
    way.provider.script(way.dialect.says(SECRET, pieces=PIECES))
    found: list[str] = []
    hooks = judging(lambda r: Deny("a secret") if r.finish_reason != "incremental" else None, hold=20)

    with pytest.raises(RunStopped, match="a secret"):
        async with way.wrapped([hooks]) as run:
            async for event in read(await way.ask(run, stream=True)):
                found.append(text_of(event))  # noqa: PERF401  # what was read before the denial counts

    assert "".join(found) == SECRET.content[:-20]


async def test_rewritten_text_is_given_rewritten_once(way: Way) -> None:
    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    way.provider.script(way.dialect.says(SECRET, pieces=PIECES))

    async with way.wrapped([judging(mask, hold=3)]) as run:
        found = [text_of(event) async for event in read(await way.ask(run, stream=True))]
        assert way.dialect.text(run.response) == "the key is ****, keep it well"

    assert "".join(found) == "the key is ****, keep it well"
    assert len([text for text in found if text]) > 1


async def test_tool_calls_are_given_when_the_whole_answer_was_judged(way: Way) -> None:
    call = ToolRequest(tool_name="look", args={"at": "x"}, tool_call_id="c1")
    way.provider.script(way.dialect.says(ModelResponse(content="I look", tool_calls=[call]), pieces=["I ", "look"]))
    seen: list[str] = []

    async with way.wrapped([judging(lambda r: seen.append(r.finish_reason))]) as run:
        events = []
        async for event in read(await way.ask(run, stream=True)):
            if "look" in repr(event) and "at" in repr(event) and "c1" in repr(event):
                assert seen[-1] != "incremental"
            events.append(event)
        assert [way.dialect.call_id(each) for each in way.dialect.calls(run.response)] == ["c1"]
    assert "".join(map(text_of, events)) == "I look"


async def test_an_answer_of_which_nothing_was_released_can_be_asked_for_again(way: Way) -> None:
    kind = ModelResponse(content="dear world")
    way.provider.script(
        way.dialect.says(ModelResponse(content="hello world"), pieces=["hello ", "world"]),
        way.dialect.says(kind, pieces=["dear ", "world"]),
    )
    hooks = judging(lambda r: Guide("be kind") if "hello" in r.content else None)

    async with way.wrapped([hooks]) as run:
        found = [text_of(event) async for event in read(await way.ask(run, stream=True))]
        assert way.dialect.text(run.response) == "dear world"

    assert "".join(found) == "dear world"


async def test_a_stream_that_is_left_early_ends_the_call(way: Way) -> None:
    way.provider.script(way.dialect.says(SECRET, pieces=PIECES))

    async with way.wrapped([judging(lambda r: None)]) as run:
        async for event in read(await way.ask(run, stream=True)):
            if text_of(event):
                break


async def test_the_tokens_that_a_cut_answer_has_reported_count(way: Way) -> None:
    way.provider.script(way.dialect.says(SECRET, pieces=PIECES))
    store = InMemoryBudgets()
    spending = budget(tokens=1000, reserve_tokens=300, per="user", store=store)
    hooks = judging(lambda r: Deny("a secret") if "4711" in r.content else None, hold=3)

    with pytest.raises(RunStopped, match="a secret"):
        async with way.wrapped([hooks, spending]) as run:
            async for _ in read(await way.ask(run, stream=True)):
                pass

    [figures] = await store.budgets()
    if way.dialect.name == "chat":
        assert figures.used.tokens == 300  # this protocol reports no tokens before the end: what was reserved counts
    else:
        assert 0 < figures.used.tokens < 300


async def test_a_budget_of_one_run_counts_the_cut_answer_of_a_sub_agent(way: Way) -> None:
    way.provider.script(
        way.dialect.says(ModelResponse(content="hello")),
        way.dialect.says(SECRET, pieces=PIECES),
        way.dialect.says(SECRET),
    )
    hooks = judging(lambda r: Deny("a secret") if "4711" in r.content else None, hold=3)
    begun, cut = 18, 5  # tokens of the first answer, and at least those of the one that was cut

    async with way.wrapped([budget(tokens=begun + cut)]) as run:
        await way.ask(run)
        with pytest.raises(RunStopped, match="a secret"):
            async with way.wrapped([hooks], parent=run) as sub_run:
                async for _ in read(await way.ask(sub_run, stream=True)):
                    pass
        with pytest.raises(RunStopped, match="tokens is used up") as stopped:
            await way.ask(run)

    spent = int(str(stopped.value).split(": ")[-1].split()[0])
    assert begun + cut < spent < 100


WAITS = {"max_chars": 1000, "max_seconds": 0.01}


async def test_text_is_released_after_some_time_while_the_model_sends_nothing(way: Way) -> None:
    gate = threading.Event()

    def pieces() -> Iterator[str]:
        yield "hello "
        assert gate.wait(30)
        yield "world"

    way.provider.script(way.dialect.says(ModelResponse(content="hello world"), pieces=pieces()))

    async with way.wrapped([judging(lambda r: None, **WAITS)]) as run:
        found = []
        async for event in read(await way.ask(run, stream=True)):
            found.append(text_of(event))
            if found[-1]:
                gate.set()
        assert way.dialect.text(run.response) == "hello world"
    assert [text for text in found if text] == ["hello ", "world"]


def stalls(way: Way, *pieces: str, then: Callable[[Exchange], None], got: list[Exchange]) -> Callable[[Exchange], None]:
    """Say some pieces, and then do something else than to say the rest."""

    def write(exchange: Exchange) -> Iterator[str]:
        yield from pieces
        then(exchange)

    def play(exchange: Exchange) -> None:
        got.append(exchange)
        way.dialect.says(SECRET, pieces=write(exchange))(exchange)

    return play


async def test_a_denial_ends_a_stream_that_stalls(way: Way) -> None:
    got: list[Exchange] = []
    way.provider.script(stalls(way, "the key is 4711", then=Exchange.wait_for_leave, got=got))
    found: list[str] = []

    with pytest.raises(RunStopped, match="a secret"):
        async with way.wrapped([judging(lambda r: Deny("a secret"), **WAITS)]) as run:
            async for event in read(await way.ask(run, stream=True)):
                found.append(text_of(event))  # noqa: PERF401  # what was read before the denial counts

    assert "".join(found) == ""
    assert got[0].left.wait(30)
    assert_nobody_reads()


async def test_a_stalled_stream_can_be_left(way: Way) -> None:
    got: list[Exchange] = []
    way.provider.script(stalls(way, "hello ", then=Exchange.wait_for_leave, got=got))
    hooks, seen = watching()

    async with way.wrapped([judging(lambda r: None, **WAITS), hooks]) as run:
        stream = await way.ask(run, stream=True)
        events = read(stream)
        async for event in events:
            if text_of(event):
                break
        await events.aclose()  # type: ignore[attr-defined]
        await settled(stream.close())

    assert got[0].left.wait(30)
    assert [event.content for event in seen if isinstance(event, AfterStep)] == ["hello "]
    assert_nobody_reads()


async def test_a_connection_that_breaks_while_text_waits_raises_what_the_client_raises(way: Way) -> None:
    gate, judged = threading.Event(), list[str]()

    def cut(exchange: Exchange) -> None:
        assert gate.wait(30)
        exchange.cut()
        raise ConnectionError  # so that nothing more is said

    def look(response: ModelResponse) -> None:
        judged.append(response.finish_reason)
        gate.set()

    way.provider.script(stalls(way, "hello ", then=cut, got=[]))

    with pytest.raises(Exception) as raised:
        async with way.wrapped([judging(look, **WAITS)]) as run:
            async for _ in read(await way.ask(run, stream=True)):
                pass

    assert type(raised.value).__name__ in {"APIConnectionError", "ReadError", "RemoteProtocolError"}
    assert judged[0] == "incremental"
    assert_nobody_reads()


@pytest.mark.parametrize("sync", [False], ids=["async"])
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_cancelled_stream_that_stalls_ends_its_run_once(way: Way) -> None:
    got: list[Exchange] = []
    way.provider.script(stalls(way, "hello ", then=Exchange.wait_for_leave, got=got))
    hooks, seen = watching()
    hooks.on(OnComplete)(seen.append)

    with anyio.CancelScope() as scope:
        async with way.wrapped([judging(lambda r: None, max_chars=1000, max_seconds=30), hooks]) as run:
            stream = await way.ask(run, stream=True)
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_when_read, run, scope)
                async for _ in read(stream):
                    pass

    assert scope.cancelled_caught
    assert got[0].left.wait(30)
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["interrupted"] * 2


async def cancel_when_read(run: Any, scope: anyio.CancelScope) -> None:
    """Cancel a scope when text waits in the stream of a run."""
    with anyio.fail_after(30):
        while not any(stream.parts.seconds_left() for stream in run._binding._streams):
            await anyio.sleep(0.01)
    scope.cancel()


@pytest.mark.parametrize("sync", [False], ids=["async"])
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # the client of OpenAI stops at the last event
async def test_text_of_a_stalled_stream_is_released_in_trio(way: Way) -> None:
    await test_text_is_released_after_some_time_while_the_model_sends_nothing(way)


async def test_hooks_that_judge_after_some_time_see_the_context_of_the_reader(way: Way) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="")
    gate, seen = threading.Event(), list[str]()

    def pieces() -> Iterator[str]:
        yield "hello "
        assert gate.wait(30)
        yield "world"

    def look(response: ModelResponse) -> None:
        seen.append(variable.get())
        gate.set()

    way.provider.script(way.dialect.says(ModelResponse(content="hello world"), pieces=pieces()))

    async with way.wrapped([judging(look, **WAITS)]) as run:
        token = variable.set("mine")
        async for _ in read(await way.ask(run, stream=True)):
            pass
        variable.reset(token)
    assert set(seen) == {"mine"}


class Cut(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """A body that comes in given chunks."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self.chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


def stream_of(pieces: list[str]) -> bytes:
    """Return the bytes of a streamed answer of chat completions."""
    deltas: list[Any] = [*({"content": piece} for piece in pieces), {}]
    events = [{"id": "c", "choices": [{"index": 0, "delta": each}]} for each in deltas]
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events) + b"data: [DONE]\n\n"


def read_cut(chunks: list[bytes], hooks: Hooks, *, sync: bool) -> tuple[str, bool]:
    """Return the text that a loop gets of a stream, and whether it was denied."""
    found: list[str] = []
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Cut(chunks))
    )
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}

    def read_sync() -> None:
        http = httpx2.Client(transport=transport)
        with OpenAI(api_key="none", http_client=http) as client, wrap(client, hooks=[hooks]) as run:
            found.extend(map(text_of, run.client.chat.completions.create(**asked)))

    async def read_async() -> None:
        http = httpx2.AsyncClient(transport=transport)
        async with AsyncOpenAI(api_key="none", http_client=http) as client, wrap(client, hooks=[hooks]) as run:
            async for event in await run.client.chat.completions.create(**asked):
                found.append(text_of(event))  # noqa: PERF401  # what was read before the denial counts

    try:
        if sync:
            read_sync()
        else:
            anyio.run(read_async)
    except RunStopped:
        return "".join(found), True
    return "".join(found), False


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(["é ", "471", "1"]), max_size=8),
    cuts=st.lists(st.floats(0, 1), min_size=6, max_size=12),
    most=st.integers(1, 6),
    seconds=st.sampled_from([None, 0.0001, 5]),
    sync=st.booleans(),
)
def test_law_of_any_cut_of_the_bytes_only_judged_text_is_given(
    pieces: list[str], cuts: list[float], most: int, seconds: float | None, sync: bool
) -> None:
    data, text = stream_of(pieces), "".join(pieces)
    places = sorted({0, len(data), *(int(cut * len(data)) for cut in cuts)})
    chunks = [data[start:end] for start, end in itertools.pairwise(places)]
    hooks = judging(lambda r: Deny("x") if "4711" in r.content else None, hold=3, max_chars=most, max_seconds=seconds)

    found, denied = read_cut(chunks, hooks, sync=sync)

    assert denied is ("4711" in text)
    assert text.partition("4711")[0].startswith(found)
    assert denied or found == text


def assert_nobody_reads() -> None:
    """Hold that no thread is left that waits for a model."""
    for thread in threading.enumerate():
        if thread.name == "hookline-read":
            thread.join(30)
            assert not thread.is_alive()
