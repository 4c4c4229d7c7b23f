"""Streams of a loop: passed on as they come, held where hooks may change them, and ended however they are left."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from hookline import AfterStep, Deny, Guide, Hooks, ModelCall, ModelResponse, OnComplete, Respond
from hookline.errors import HookUsageError, RunStopped
from tests.adapters.provider import Exchange
from tests.otel.capture import Sink
from tests.tables import for_each

from .conftest import Way
from .dialects import CHAT
from .stage import LoopStage, settled

HELLO = ModelResponse(content="hello world")


def watching() -> tuple[Hooks, list[Any]]:
    hooks, seen = Hooks("watch"), list[Any]()
    hooks.on(AfterStep)(seen.append)
    hooks.on(OnComplete)(seen.append)
    return hooks, seen


async def read(stream: Any) -> AsyncIterator[Any]:
    if hasattr(stream, "__aiter__"):
        async for event in stream:
            yield event
    else:
        for event in stream:
            yield event


def text_of(event: Any) -> str:
    """The text in an event of any of the three protocols."""
    if hasattr(event, "choices"):
        return "".join(choice.delta.content or "" for choice in event.choices)
    if event.type == "content_block_delta":
        return event.delta.text if event.delta.type == "text_delta" else ""
    return event.delta if event.type == "response.output_text.delta" else ""


@pytest.mark.anyio
async def test_text_passes_on_before_the_answer_is_whole(way: Way) -> None:
    gate = threading.Event()

    def pieces() -> Iterator[str]:
        yield "hello "
        assert gate.wait(20)
        yield "world"

    guard = Hooks("guard")
    guard.guard(ModelCall)(lambda call: None)
    hooks, seen = watching()
    way.provider.script(way.dialect.says(HELLO, pieces=pieces()))

    async with way.wrapped([guard, hooks]) as run:
        found = []
        async for event in read(await way.ask(run, stream=True)):
            found.append(text_of(event))
            if found[-1]:
                gate.set()
    assert "".join(found) == "hello world"
    assert [event.content for event in seen if isinstance(event, AfterStep)] == ["hello world"]
    assert seen[-1].reason == "done"
    assert seen[-1].llm_calls == 1


@pytest.mark.anyio
async def test_a_changed_answer_is_streamed_and_nothing_of_the_one_before(way: Way) -> None:
    shouts = Hooks("shouts")
    shouts.after(ModelCall)(lambda call, result: replace(result, content=result.content.upper()))
    way.provider.script(way.dialect.says(HELLO, pieces=["hello ", "world"]))

    async with way.wrapped([shouts]) as run:
        found = [text_of(event) async for event in read(await way.ask(run, stream=True))]
        assert "".join(found) == "HELLO WORLD"
        assert way.dialect.text(run.response) == "HELLO WORLD"


@pytest.mark.anyio
@for_each("streams", [False, True])
async def test_nothing_of_a_discarded_answer_is_seen(way: Way, *, streams: bool) -> None:
    manners, left = Hooks("manners"), ["be kind"]
    manners.after(ModelCall)(lambda call, answer: Guide(left.pop()) if left else None)
    hooks, seen = watching()
    kind = ModelResponse(content="dear world")
    pieces: list[dict[str, Any]] = [{"pieces": ["hello ", "world"]}, {"pieces": ["dear ", "world"]}]
    first, second = pieces if streams else ({}, {})
    way.provider.script(way.dialect.says(HELLO, **first), way.dialect.says(kind, **second))

    async with way.wrapped([manners, hooks]) as run:
        answer = await way.ask(run, **({"stream": True} if streams else {}))
        if streams:
            assert "".join([text_of(event) async for event in read(answer)]) == "dear world"
        assert way.dialect.text(run.response) == "dear world"
    assert "be kind" in str(way.provider.bodies[1])
    assert (seen[-1].llm_calls, seen[-1].steps, seen[-1].last_assistant_content) == (2, 1, "dear world")


@pytest.mark.anyio
async def test_an_answer_that_hooks_left_alone_is_streamed_as_it_came(way: Way) -> None:
    passes = Hooks("passes")
    passes.after(ModelCall)(lambda call, result: None)
    way.provider.script(way.dialect.says(HELLO, pieces=["hello ", "world"]))

    async with way.wrapped([passes]) as run:
        found = [text_of(event) async for event in read(await way.ask(run, stream=True))]
    assert [text for text in found if text] == ["hello ", "world"]


@pytest.mark.anyio
async def test_a_mocked_answer_is_streamed_without_a_request(way: Way) -> None:
    mocks = Hooks("mocks")
    mocks.before(ModelCall)(lambda call: Respond(ModelResponse(content="canned")))
    way.provider.script(way.dialect.says(HELLO))

    async with way.wrapped([mocks]) as run:
        found = [text_of(event) async for event in read(await way.ask(run, stream=True))]
    assert "".join(found) == "canned"
    assert way.provider.exchanges == []


@pytest.mark.anyio
async def test_a_denied_stream_raises_before_its_request(way: Way) -> None:
    denies = Hooks("denies")
    denies.guard(ModelCall, id="no")(lambda call: Deny("not today"))
    way.provider.script(way.dialect.says(HELLO))

    with pytest.raises(RunStopped, match="not today") as stopped:
        async with way.wrapped([denies]) as run:
            await way.ask(run, stream=True)
    assert stopped.value.hook_id == "no"
    assert way.provider.exchanges == []


@pytest.mark.anyio
async def test_a_stream_that_is_left_in_the_middle_ends_its_step_with_what_came(way: Way) -> None:
    gate = threading.Event()

    def pieces() -> Iterator[str]:
        yield "hello "
        gate.wait(20)
        yield "world"

    hooks, seen = watching()
    way.provider.script(way.dialect.says(HELLO, pieces=pieces()), way.dialect.says(HELLO))

    async with way.wrapped([hooks]) as run:
        stream = await way.ask(run, stream=True)
        async for event in read(stream):
            if text_of(event):
                break
        await settled(stream.close())
        gate.set()
        await way.ask(run)
    assert [event.content for event in seen if isinstance(event, AfterStep)] == ["hello ", "hello world"]
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["done"]


@pytest.mark.anyio
async def test_a_stream_that_nobody_reads_ends_with_the_next_call_or_the_block(way: Way) -> None:
    hooks, seen = watching()
    way.provider.script(way.dialect.says(HELLO))

    async with way.wrapped([hooks]) as run:
        unread = [await way.ask(run, stream=True)]
        unread.append(await way.ask(run, stream=True))
    assert all(stream.response.is_closed for stream in unread)
    assert [event.step_index for event in seen if isinstance(event, AfterStep)] == [0, 1]
    assert seen[-1].llm_calls == 2


@pytest.mark.anyio
async def test_an_exception_in_the_body_closes_the_stream(way: Way) -> None:
    hooks, seen = watching()
    way.provider.script(way.dialect.says(HELLO))

    with pytest.raises(KeyError):
        async with way.wrapped([hooks]) as run:
            stream = await way.ask(run, stream=True)
            async for _ in read(stream):
                raise KeyError("mine")
    assert stream.response.is_closed
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["error"]


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False], ids=["async"])
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_cancelled_stream_ends_its_run_once(way: Way) -> None:
    hooks, seen = watching()

    def hang(exchange: Exchange) -> None:
        exchange.begin()
        exchange.raw(b": nothing yet\n\n")
        exchange.wait_for_leave()

    way.provider.script(hang)
    reached = False

    with anyio.CancelScope() as scope:
        async with way.wrapped([hooks]) as run:
            stream = await way.ask(run, stream=True)
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_soon, scope)
                async for _ in read(stream):
                    pass
            reached = True
    assert scope.cancelled_caught
    assert not reached
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["interrupted"]
    assert stream.response.is_closed


async def cancel_soon(scope: anyio.CancelScope) -> None:
    await anyio.sleep(0.01)
    scope.cancel()


@pytest.mark.anyio
@for_each("held", [False, True], ids=["passed on", "held"])
async def test_a_connection_that_breaks_raises_what_the_client_raises(way: Way, held: bool) -> None:
    hooks, seen = watching()
    if held:
        hooks.after(ModelCall)(lambda call, result: None)

    def broken(exchange: Exchange) -> None:
        exchange.begin()
        exchange.raw(b": nothing yet\n\n")
        exchange.cut()

    way.provider.script(broken)

    with pytest.raises(Exception) as raised:
        async with way.wrapped([hooks]) as run:
            async for _ in read(await way.ask(run, stream=True)):
                pass
    assert not isinstance(raised.value, RunStopped)
    assert [event.reason for event in seen if isinstance(event, OnComplete)] == ["error"]
    assert seen[-1].llm_calls == 1


@pytest.mark.anyio
@pytest.mark.parametrize("first", [False, True], ids=["at first", "later"])
async def test_the_tools_of_a_stream_that_was_not_read_are_not_known(way: Way, first: bool) -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    asks = ModelResponse(content="let me see", tool_calls=[LoopStage.request("add", {"a": 1, "b": 2}, "c1")])
    way.provider.script(way.dialect.says(asks), way.dialect.says(asks))

    async with way.wrapped([], [add]) as run:
        if first:
            await way.ask(run)
            await settled(run.call_tools())
        stream = await way.ask(run, stream=True)
        with pytest.raises(HookUsageError, match="the stream of the answer was not read to its end"):
            await settled(run.call_tools())
        async for _ in read(stream):
            pass
        assert way.dialect.results(await settled(run.call_tools())) == ["3"]


@pytest.mark.anyio
async def test_the_tools_that_a_stream_asked_for_run(way: Way) -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    hooks, seen = watching()
    asks = ModelResponse(content="let me see", tool_calls=[LoopStage.request("add", {"a": 1, "b": 2}, "c1")])
    way.provider.script(way.dialect.says(asks, pieces=["let me see"]))

    async with way.wrapped([hooks], [add]) as run:
        async for _ in read(await way.ask(run, stream=True)):
            pass
        told = await settled(run.call_tools())
    assert way.dialect.results(told) == ["3"]
    (step,) = [event for event in seen if isinstance(event, AfterStep)]
    assert [call.tool_call_id for call in step.tools_calling] == ["c1"]


@pytest.mark.anyio
@for_each("held", [False, True], ids=["passed on", "held"])
async def test_the_stream_helpers_of_the_clients_give_their_final_answer(way: Way, held: bool) -> None:
    hooks, seen = watching()
    if held:
        hooks.after(ModelCall)(lambda call, result: replace(result, content=f"{result.content}!"))
    way.provider.script(way.dialect.says(HELLO, pieces=["hello ", "world"]))

    async with way.wrapped([hooks]) as run:
        resource = way.dialect.method(run.client).__self__
        request = way.dialect.request("model", [{"role": "user", "content": "go"}], [])
        manager = resource.stream(**request)
        if way.sync:
            with manager as stream:
                final = final_of(stream)()
        else:
            async with manager as stream:
                final = await final_of(stream)()
    assert way.dialect.text(final) == ("hello world!" if held else "hello world")
    assert [event.content for event in seen if isinstance(event, AfterStep)] == [way.dialect.text(final)]


@pytest.mark.anyio
async def test_an_answer_counts_although_its_connection_stays_open_after_the_last_event(way: Way) -> None:
    """The client of OpenAI drains a finished stream, and gives up on that after a tenth of a second."""
    if way.dialect.name != "chat":
        pytest.skip("the other streams of the clients are not drained")
    hooks, seen = watching()
    says = way.dialect.says(HELLO, pieces=["hello ", "world"])

    def say_without_the_last_chunk(exchange: Any) -> None:
        exchange.end = exchange.wait_for_leave
        says(exchange)

    way.provider.script(say_without_the_last_chunk)

    async with way.wrapped([hooks]) as run:
        async for _ in read(await way.ask(run, stream=True)):
            pass
    assert [event.content for event in seen if isinstance(event, AfterStep)] == ["hello world"]


def final_of(stream: Any) -> Any:
    names = ("get_final_completion", "get_final_response", "get_final_message")
    return next(getattr(stream, name) for name in names if hasattr(stream, name))


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False], ids=["async"])
async def test_streams_of_two_tasks_belong_to_one_step(provider: Any, sync: bool) -> None:
    way, (hooks, seen) = Way(CHAT, provider, sync=False), watching()
    barrier = threading.Barrier(2, timeout=20)

    def pieces() -> Iterator[str]:
        yield "hello "
        barrier.wait()
        yield "world"

    provider.script(lambda exchange: CHAT.says(HELLO, pieces=pieces())(exchange))

    async def consume(run: Any) -> None:
        async for _ in read(await way.ask(run, stream=True)):
            pass

    async with way.wrapped([hooks]) as run, anyio.create_task_group() as group:
        group.start_soon(consume, run)
        group.start_soon(consume, run)
    assert [event.step_index for event in seen if isinstance(event, AfterStep)] == [0]


@pytest.mark.anyio
async def test_the_span_of_a_streamed_answer_says_when_it_began_to_arrive(way: Way) -> None:
    sink = Sink()
    way.provider.script(way.dialect.says(HELLO, pieces=iter(["hello ", "world"])), way.dialect.says(HELLO))

    async with way.wrapped([sink.tracing(), sink.metrics()]) as run:
        async for _ in read(await way.ask(run, stream=True)):
            pass
        await way.ask(run)

    streamed, whole = [dict(span.attributes or {}) for span in sink.named("chat")]
    assert streamed["gen_ai.request.stream"] is True
    first: Any = streamed["gen_ai.response.time_to_first_chunk"]
    (point,) = sink.points("gen_ai.client.operation.time_to_first_chunk")
    (duration,) = sink.points("gen_ai.client.operation.duration")
    assert 0 < first == point.sum < duration.sum
    assert {"gen_ai.request.stream", "gen_ai.response.time_to_first_chunk"}.isdisjoint(whole)
