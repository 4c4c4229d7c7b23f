"""Streams of LangChain that hooks judge in parts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from msgspec.structs import replace
from pydantic import PrivateAttr

from hookline import Deny, Guide, Hooks, ModelCall, ModelResponse, TextParts
from hookline.adapters import hooked
from hookline.adapters.langchain import HooklineMiddleware
from hookline.budgets import InMemoryBudgets
from hookline.builtin import budget
from hookline.errors import RunStopped

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

GO: Any = {"messages": [("user", "go")]}


class Streaming(BaseChatModel):
    """A model that streams these pieces; an exception is raised, and an event waited for. It answers twice.

    A piece is a text, or a message.
    """

    _pieces: list[Any] = PrivateAttr()
    _read: list[Any] = PrivateAttr(default_factory=list)

    def __init__(self, *pieces: Any) -> None:
        super().__init__()
        self._pieces = list(pieces)

    @property
    def _llm_type(self) -> str:
        return "streaming"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **given: Any) -> ChatResult:
        text = "".join(each for each in self._pieces if isinstance(each, str))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    def _made(self, messages: Any) -> Iterator[Any]:
        if any(isinstance(each, AIMessage) for each in messages):
            yield ChatGenerationChunk(message=AIMessageChunk(content="done"))
            return
        for piece in self._pieces:
            self._read.append(piece)
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, anyio.Event | threading.Event):
                yield piece
                continue
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece) if isinstance(piece, str) else piece)

    def _stream(self, messages: Any, *given: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for piece in self._made(messages):
            if isinstance(piece, threading.Event):
                assert piece.wait(60)
                continue
            yield piece

    async def _astream(self, messages: Any, *given: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        for piece in self._made(messages):
            if isinstance(piece, anyio.Event):
                await piece.wait()
                continue
            yield piece


def agent_of(model: Streaming, hooks: Hooks, **options: Any) -> Any:
    middleware = [HooklineMiddleware(), *options.pop("middleware", ())]
    return hooked(create_agent(model, options.pop("tools", []), middleware=middleware, **options), hooks=[hooks])


def judging(judge: Any, **parts: Any) -> Hooks:
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(**{"max_chars": 1, **parts}), id="judge")
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


def deny_secret(response: ModelResponse) -> Deny | None:
    return Deny("a secret") if "4711" in response.content else None


def mask(response: ModelResponse) -> ModelResponse:
    return replace(response, content=response.content.replace("4711", "****"))


def release(model: Streaming) -> None:
    for piece in model._pieces:
        if isinstance(piece, anyio.Event | threading.Event):
            piece.set()


async def by_messages(agent: Any, model: Streaming, into: list[str]) -> None:
    async for message, _ in agent.astream(GO, stream_mode="messages"):
        if message.text:
            into.append(message.text)
            release(model)


async def by_events(agent: Any, model: Streaming, into: list[str]) -> None:
    async for event in agent.astream_events(GO, version="v2"):
        if event["event"] == "on_chat_model_stream" and event["data"]["chunk"].text:
            into.append(event["data"]["chunk"].text)
            release(model)


async def by_old_events(agent: Any, model: Streaming, into: list[str]) -> None:
    async for event in agent.astream_events(GO, version="v1"):
        if event["event"] == "on_chat_model_stream" and event["data"]["chunk"].text:
            into.append(event["data"]["chunk"].text)
            release(model)


async def by_newest_events(agent: Any, model: Streaming, into: list[str]) -> None:
    async for event in await agent.astream_events(GO, version="v3"):
        read_newest(event, model, into)


async def by_sync_newest_events(agent: Any, model: Streaming, into: list[str]) -> None:
    def read() -> None:
        for event in agent.stream_events(GO, version="v3"):
            read_newest(event, model, into)

    await asyncio.to_thread(read)


def read_newest(event: Any, model: Streaming, into: list[str]) -> None:
    data = event["params"]["data"][0] if event["method"] == "messages" else {}
    if isinstance(data, AIMessage):  # a whole message, of which no events were given
        into.append(data.text)
    elif data.get("event") == "content-block-delta" and data["delta"].get("text"):
        into.append(data["delta"]["text"])
        release(model)


async def by_sync_messages(agent: Any, model: Streaming, into: list[str]) -> None:
    def read() -> None:
        for message, _ in agent.stream(GO, stream_mode="messages"):
            if message.text:
                into.append(message.text)
                release(model)

    await asyncio.to_thread(read)


Way = Callable[[Any, Streaming, list[str]], Any]
ASYNC_WAYS: list[Way] = [by_messages, by_events, by_old_events, by_newest_events]
SYNC_WAYS: list[Way] = [by_sync_messages, by_sync_newest_events]
WAYS = pytest.mark.parametrize("way", [*ASYNC_WAYS, *SYNC_WAYS])
quiet = pytest.mark.filterwarnings("ignore:.*beta.*", "ignore:.*version='v1'", "ignore::DeprecationWarning")


def gate_of(way: Way) -> Any:
    return threading.Event() if way in SYNC_WAYS else anyio.Event()


@quiet
@WAYS
async def test_text_is_released_before_the_stream_ends(way: Way) -> None:
    model, texts = Streaming("one ", "two ", gate_of(way), "three"), list[str]()

    with anyio.fail_after(60):  # the model waits for the reader before it goes on
        await way(agent_of(model, judging(lambda r: None, hold=2)), model, texts)

    assert "".join(texts) == "one two three"
    assert texts[0] == "on"


@quiet
@WAYS
async def test_nothing_is_given_after_a_denial(way: Way) -> None:
    model, texts = Streaming("the key is 47", "11 and", " more"), list[str]()

    with pytest.raises(RunStopped, match="a secret"):
        await way(agent_of(model, judging(deny_secret, hold=3)), model, texts)

    assert texts[0] == "the key is"
    assert set(texts[1:]) <= {"a secret"}
    assert model._read == ["the key is 47", "11 and"]


@quiet
@WAYS
async def test_a_denial_of_the_whole_answer_withholds_what_is_held(way: Way) -> None:
    def judge(response: ModelResponse) -> Deny | None:
        return None if response.finish_reason == "incremental" else Deny("too short")

    model, texts = Streaming("one ", "two"), list[str]()

    with pytest.raises(RunStopped, match="too short"):
        await way(agent_of(model, judging(judge, hold=3)), model, texts)

    assert "".join(texts).removesuffix("too short") == "one "


@quiet
@WAYS
async def test_rewritten_text_is_given_rewritten_once(way: Way) -> None:
    model, texts = Streaming("the key is 47", "11, keep it ", "well"), list[str]()

    await way(agent_of(model, judging(mask, hold=3)), model, texts)

    assert "".join(texts) == "the key is ****, keep it well"
    assert len(texts) > 1


async def test_the_end_of_the_model_has_the_answer_as_hooks_left_it() -> None:
    model = Streaming("the key is 47", "11")

    events = [each async for each in agent_of(model, judging(mask, hold=3)).astream_events(GO, version="v2")]

    [end] = [each for each in events if each["event"] == "on_chat_model_end"]
    assert end["data"]["output"].text == "the key is ****"
    assert "4711" not in str(events)


CALL = AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(name="look", args="{}", id="c1", index=0)])


def look() -> str:
    """Look."""
    return "cold"


@pytest.mark.parametrize("judge", [lambda r: None, mask])
async def test_tool_calls_wait_for_the_end_and_run(judge: Any) -> None:
    model, seen = Streaming("I look at 4711. ", CALL), list[Any]()

    async for message, _ in agent_of(model, judging(judge, hold=4), tools=[look]).astream(GO, stream_mode="messages"):
        seen.append(message)

    assert [chunk["name"] for each in seen for chunk in getattr(each, "tool_call_chunks", ())] == ["look"]
    text = "".join(each.text for each in seen)
    assert text == ("I look at 4711. " if judge is not mask else "I look at ****. ") + "colddone"


async def test_blocks_of_text_are_released_in_parts_and_thoughts_hold_them() -> None:
    def block(text: str, **given: Any) -> AIMessageChunk:
        return AIMessageChunk(content=[{"type": "text", "text": text, "index": 0, **given}])

    gate = anyio.Event()
    model, texts = Streaming(block("one "), gate, block("two")), list[str]()
    with anyio.fail_after(60):
        await by_messages(agent_of(model, judging(lambda r: None)), model, texts)
    assert texts == ["one ", "two"]

    thought = AIMessageChunk(content=[{"type": "thinking", "thinking": "hm", "index": 1}])
    model, texts = Streaming(thought, block("one "), block("two")), list[str]()
    await by_messages(agent_of(model, judging(deny_secret)), model, texts)
    assert "".join(texts) == "one two"


@pytest.mark.parametrize("hold", [True, False])
async def test_a_guide_discards_an_answer_of_which_readers_have_nothing(hold: bool) -> None:
    asked: list[str] = []

    def judge(response: ModelResponse) -> Any:
        if response.finish_reason == "incremental":
            return None
        asked.append(response.content)
        return Guide("say more") if len(asked) == 1 else None

    model, texts = Streaming("one ", "two"), list[str]()
    agent = agent_of(model, judging(judge, hold=100 if hold else 0))
    if not hold:
        with pytest.raises(RunStopped, match="Guide"):
            await by_messages(agent, model, texts)
        assert "".join(texts).startswith("one two")
        return

    await by_messages(agent, model, texts)

    assert len(asked) == 2
    assert "".join(texts) == asked[1]


async def test_a_stream_that_stalls_is_judged_when_the_time_has_come() -> None:
    for way in (by_messages, by_events, by_newest_events):
        model, texts = Streaming("one ", anyio.Event(), "two"), list[str]()

        with anyio.fail_after(60):
            await way(agent_of(model, judging(lambda r: None, max_chars=99, max_seconds=0.05)), model, texts)

        assert texts == ["one ", "two"]


@quiet
@pytest.mark.parametrize("way", SYNC_WAYS)
async def test_a_sync_stream_that_stalls_is_judged_when_the_time_has_come(way: Way) -> None:
    model, texts = Streaming("one ", threading.Event(), "two"), list[str]()

    await way(agent_of(model, judging(lambda r: None, max_chars=99, max_seconds=0.05)), model, texts)

    assert texts == ["one ", "two"]


@quiet
@pytest.mark.parametrize("way", [by_messages, by_newest_events])
async def test_a_denial_of_a_stream_that_stalls_ends_it(way: Way) -> None:
    model, texts = Streaming("one ", anyio.Event(), "two"), list[str]()

    with anyio.fail_after(60), pytest.raises(RunStopped, match="no"):
        await way(agent_of(model, judging(lambda r: Deny("no"), max_chars=99, max_seconds=0.05)), model, texts)

    assert set(texts) <= {"no"}
    assert "two" not in model._read


@quiet
@WAYS
async def test_a_broken_stream_is_judged_to_its_end_and_raises(way: Way) -> None:
    seen, texts = list[str](), list[str]()
    model = Streaming("one", "tw", ValueError("cut"))

    with pytest.raises(ValueError, match="cut"):
        await way(agent_of(model, judging(lambda r: seen.append(r.finish_reason), max_chars=3)), model, texts)

    assert seen == ["incremental", "truncated"]
    assert texts == ["one"]


async def test_a_middleware_that_retries_does_not_undo_a_denial() -> None:
    retry = ModelRetryMiddleware(max_retries=2, initial_delay=0.0, on_failure="continue")
    model, texts = Streaming("the key is 4711", " and more"), list[str]()

    with pytest.raises(RunStopped, match="a secret"):
        await by_messages(agent_of(model, judging(deny_secret), middleware=[retry]), model, texts)

    assert set(texts) <= {"a secret"}
    assert " and more" not in model._read


async def test_another_model_within_the_call_is_held_whole() -> None:
    helper = Streaming("4711 of the helper")

    class Helper(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            await helper.ainvoke([("user", "Which tools?")])
            return await handler(request)

    model, texts = Streaming("one ", anyio.Event(), "two"), list[str]()

    with anyio.fail_after(60):
        await by_messages(agent_of(model, judging(deny_secret), middleware=[Helper()]), model, texts)

    assert helper._read
    assert texts == ["one ", "two"]


async def test_a_graph_of_ones_own_releases_parts() -> None:
    model, texts = Streaming("one ", anyio.Event(), "two"), list[str]()
    asking = HooklineMiddleware()
    graph = StateGraph(MessagesState)

    asked = asking.model(model)

    async def ask(state: Any) -> Any:
        return {"messages": [await asked.ainvoke(state["messages"])]}

    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_node("tools", asking.tool_node([look]))

    with anyio.fail_after(60):
        await by_messages(hooked(graph.compile(), hooks=[judging(deny_secret)]), model, texts)

    assert texts == ["one ", "two"]


LIFE_OF_A_MESSAGE = ["message-start", "content-block-start", "content-block-finish", "message-finish"]


async def messages_of(agent: Any, model: Streaming) -> list[Any]:
    """Read a stream of the newest version to its end, and return the events of its messages."""
    found: list[Any] = []
    async for event in await agent.astream_events(GO, version="v3"):
        if event["method"] == "messages":
            found.append(event["params"]["data"][0])
            release(model)
    return found


def texts_of(events: list[Any]) -> list[str]:
    return [each["delta"]["text"] for each in events if each["event"] == "content-block-delta"]


@quiet
@pytest.mark.parametrize("hold", [3, 100])
async def test_the_newest_streams_have_each_event_of_a_message_once(hold: int) -> None:
    model = Streaming("the key is 47", "11, keep it ", "well")

    events = await messages_of(agent_of(model, judging(lambda r: None, hold=hold)), model)

    assert [each["event"] for each in events if each["event"] != "content-block-delta"] == LIFE_OF_A_MESSAGE
    assert "".join(texts_of(events)) == events[-2]["content"]["text"] == "the key is 4711, keep it well"
    assert len(texts_of(events)) > (hold < 100)


@quiet
@pytest.mark.parametrize("hold", [3, 100])
async def test_the_newest_streams_have_a_rewritten_answer_once(hold: int) -> None:
    model = Streaming("the key is 47", "11, keep it ", "well")

    events = await messages_of(agent_of(model, judging(mask, hold=hold)), model)

    assert [each["event"] for each in events if each["event"] != "content-block-delta"] == LIFE_OF_A_MESSAGE
    assert "".join(texts_of(events)) == events[-2]["content"]["text"] == "the key is ****, keep it well"
    assert len(texts_of(events)) > (hold < 100)


@quiet
async def test_the_newest_streams_have_tool_calls_when_the_whole_answer_was_judged() -> None:
    judged: list[str] = []
    chunk = tool_call_chunk(name="look", args='{"at": "4711"}', id="c1", index=1)
    model = Streaming("I look", AIMessageChunk(content="", tool_call_chunks=[chunk]))

    def look(at: str) -> str:
        """Look."""
        return "nothing"

    def judge(response: ModelResponse) -> None:
        judged.append(response.finish_reason)

    agent = agent_of(model, judging(judge), tools=[look])
    async for event in await agent.astream_events(GO, version="v3"):
        data = event["params"]["data"][0] if event["method"] == "messages" else {}
        if data.get("event") == "content-block-finish" and data["content"]["type"] == "tool_call":
            assert judged[-1] != "incremental"
            assert data["content"]["args"] == {"at": "4711"}
            break
    else:
        pytest.fail("no tool call was streamed")


async def test_the_tokens_that_a_cut_answer_has_reported_count() -> None:
    used: Any = {"input_tokens": 40, "output_tokens": 1, "total_tokens": 41}
    store = InMemoryBudgets()
    spending = budget(tokens=1000, reserve_tokens=300, per="user", store=store)
    begun = AIMessageChunk(content="", usage_metadata=used)
    model, texts = Streaming(begun, "the key is ", "4711 and", " more"), list[str]()

    with pytest.raises(RunStopped, match="a secret"):
        await by_messages(hooked(agent_of(model, judging(deny_secret)), hooks=[spending]), model, texts)

    [figures] = await store.budgets()
    assert figures.used.tokens == 41
    assert texts[0] == "the key is "
