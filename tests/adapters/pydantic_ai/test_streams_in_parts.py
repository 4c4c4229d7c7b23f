"""Streams of Pydantic AI that hooks judge in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.messages import ModelResponse as TheirResponse
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from hookline import AgentCall, Deny, Guide, Hooks, ModelCall, ModelResponse, TextParts
from hookline.adapters import hooked
from hookline.budgets import InMemoryBudgets
from hookline.builtin import budget
from hookline.errors import RunStopped

from .test_streams_held_back import TURNS, agent_of, by_node, outputs_of, plain, responses_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Streaming:
    """An agent whose model streams these pieces; an exception is raised, and an event waited for.

    Attributes:
        read: The pieces that were read.
    """

    def __init__(self, *pieces: Any, hooks: Hooks) -> None:
        self.pieces, self.read = pieces, list[Any]()
        self.agent = hooked(Agent(FunctionModel(stream_function=self.stream)), hooks=[hooks])

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for piece in self.pieces:
            self.read.append(piece)
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, anyio.Event):
                await piece.wait()
                continue
            yield piece

    async def texts(self, into: list[str]) -> str:
        """Read the text, and return the output; an event among the pieces is set by the first text."""
        with anyio.fail_after(60):
            async with self.agent.run_stream("go") as result:
                async for text in result.stream_text(delta=True, debounce_by=None):
                    into.append(text)
                    for piece in self.pieces:
                        if isinstance(piece, anyio.Event):
                            piece.set()
                return str(await result.get_output())


def judging(judge: Any, **parts: Any) -> Hooks:
    hooks = Hooks("judge")

    @hooks.after(ModelCall, parts=TextParts(**{"max_chars": 1, **parts}), id="judge")
    def look(call: ModelCall, response: ModelResponse) -> Any:
        return judge(response)

    return hooks


def deny_secret(response: ModelResponse) -> Deny | None:
    return Deny("a secret") if "4711" in response.content else None


async def test_text_is_released_before_the_stream_ends() -> None:
    texts = list[str]()
    run = Streaming("one ", "two ", anyio.Event(), "three", hooks=judging(lambda r: None, hold=2))

    output = await run.texts(texts)  # the model waits for the reader before it goes on

    assert "".join(texts) == output == "one two three"
    assert texts[0] == "on"


async def test_nothing_is_given_after_a_denial() -> None:
    texts = list[str]()
    run = Streaming("the key is 47", "11 and", " more", hooks=judging(deny_secret, hold=3))

    with pytest.raises(RunStopped, match="a secret"):
        await run.texts(texts)

    assert texts == ["the key is"]
    assert run.read == ["the key is 47", "11 and"]


async def test_a_denial_of_the_whole_answer_withholds_what_is_held() -> None:
    def judge(response: ModelResponse) -> Deny | None:
        return Deny("too short") if response.finish_reason not in ("incremental",) else None

    texts = list[str]()

    with pytest.raises(RunStopped, match="too short"):
        await Streaming("one ", "two", hooks=judging(judge, hold=3)).texts(texts)

    assert "".join(texts) == "one "


async def test_rewritten_text_is_given_rewritten_once() -> None:
    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    texts = list[str]()

    output = await Streaming("the key is 47", "11, keep it ", "well", hooks=judging(mask, hold=3)).texts(texts)

    assert "".join(texts) == output == "the key is ****, keep it well"
    assert len(texts) > 1


@pytest.mark.parametrize("way", [by_node, outputs_of, responses_of])
async def test_readers_never_see_a_state_of_the_answer_that_was_not_judged(way: Any) -> None:
    def judge(response: ModelResponse) -> Deny | None:
        return Deny("a secret") if "secret" in response.content else None

    seen: list[str] = []
    agent = agent_of(["all is well, but ", "the secr", "et is", " out"])

    with pytest.raises(RunStopped, match="a secret"):
        seen += await way(agent, [hooked(agent, hooks=[judging(judge, hold=5)])._capability])

    assert "secr" not in str(seen)


async def test_thoughts_and_tool_calls_wait_for_the_end_and_come_as_without_hooks() -> None:
    pieces = [["Let me look. ", *TURNS[0]], ["It is ", "cold."]]
    capability = hooked(agent_of(), hooks=[judging(lambda r: None)])._capability

    bare, judged = await by_node(agent_of(*pieces), []), await by_node(agent_of(*pieces), [capability])

    assert judged[-1] == bare[-1]
    assert {each for each in bare if "PartEndEvent" in each} <= set(judged)


async def test_text_after_a_thought_waits_for_the_end() -> None:
    texts = list[str]()
    run = Streaming({0: DeltaThinkingPart(content="hm")}, "a", "b", hooks=judging(lambda r: None))

    assert await run.texts(texts) == "".join(texts) == "ab"


async def test_a_rewritten_answer_keeps_its_tool_calls() -> None:
    def mask(response: ModelResponse) -> ModelResponse:
        return replace(response, content=response.content.replace("4711", "****"))

    call = [{1: DeltaToolCall("look", tool_call_id="c1")}, {1: DeltaToolCall(json_args='{"place": "Oslo"}')}]
    agent = agent_of(["I look at 4711 ", "now.", *call], ["It is cold."])
    kinds: list[str] = []
    async with hooked(agent, hooks=[judging(mask, hold=4)]).run_stream_events("go") as events:
        async for event in events:
            kinds.append(type(event).__name__)
            shown = plain(event)
            assert "4711" not in shown

    assert "FunctionToolCallEvent" in kinds
    assert kinds[-1] == "AgentRunResultEvent"


@pytest.mark.parametrize("hold", [True, False])
async def test_a_guide_discards_an_answer_of_which_readers_have_nothing(hold: bool) -> None:
    asked: list[str] = []

    def judge(response: ModelResponse) -> Any:
        if response.finish_reason != "incremental":
            asked.append(response.content)
        return Guide("say more") if len(asked) == 1 and response.finish_reason != "incremental" else None

    texts = list[str]()
    run = Streaming("one ", "two", hooks=judging(judge, hold=100 if hold else 0))
    if not hold:
        with pytest.raises(RunStopped, match="Guide"):
            await run.texts(texts)
        assert "".join(texts) == "one two"
        return

    assert await run.texts(texts) == "".join(texts) == "one two"
    assert len(asked) == 2


async def test_a_stream_that_stalls_is_judged_when_the_time_has_come() -> None:
    texts = list[str]()
    run = Streaming("one ", anyio.Event(), "two", hooks=judging(lambda r: None, max_chars=1000, max_seconds=0.05))

    assert await run.texts(texts) == "one two"
    assert texts == ["one ", "two"]


async def test_a_denial_of_a_stream_that_stalls_ends_it() -> None:
    texts = list[str]()
    run = Streaming("one ", anyio.Event(), "two", hooks=judging(lambda r: Deny("no"), max_chars=99, max_seconds=0.05))

    with pytest.raises(RunStopped, match="no"):
        await run.texts(texts)

    assert texts == []
    assert "two" not in run.read


async def test_a_broken_stream_is_judged_to_its_end_and_raises() -> None:
    seen, texts = list[str](), list[str]()
    hooks = judging(lambda r: seen.append(r.finish_reason), max_chars=3)

    with pytest.raises(ValueError, match="cut"):
        await Streaming("one", "tw", ValueError("cut"), hooks=hooks).texts(texts)

    assert seen == ["incremental", "truncated"]
    assert texts == ["one"]


async def test_a_reader_who_leaves_ends_the_run() -> None:
    run = Streaming("one ", "two ", "three", hooks=judging(lambda r: None))

    with anyio.fail_after(60):
        async with run.agent.run_stream("go") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                await result.cancel()
        assert result.cancelled

    assert isinstance(result.response, TheirResponse)
    assert result.response.state == "interrupted"


async def test_a_hook_of_the_run_does_not_hold_text() -> None:
    hooks, texts = judging(lambda r: None), list[str]()
    hooks.after(AgentCall)(lambda call, result: None)

    await Streaming("one ", anyio.Event(), "two", hooks=hooks).texts(texts)

    assert texts == ["one ", "two"]


async def test_the_tokens_that_a_cut_answer_has_reported_count() -> None:
    store = InMemoryBudgets()
    spending = budget(tokens=1000, reserve_tokens=300, per="user", store=store)
    run = Streaming("the key is ", "4711 and", " more", hooks=judging(deny_secret))
    run.agent = hooked(run.agent, hooks=[spending])

    with pytest.raises(RunStopped, match="a secret"):
        await run.texts([])

    [figures] = await store.budgets()
    assert 0 < figures.used.tokens < 300  # the model of the test counts while it writes
