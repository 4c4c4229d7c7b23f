"""Runs with a real HTTP server for a provider, in one piece and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from hookline import (
    Agent,
    BeforeToolCall,
    Hooks,
    ModelCall,
    OperationResult,
    Tool,
    Usage,
    exec_agent,
    stream_agent,
    tool,
)
from hookline.adapters.models import PydanticModel
from tests.runtime.scenes import AT_ONCE, Recorder, assert_consistent, assert_order, tool_texts

from .provider import KEY, MODEL, Provider, answer_of, asked, chunk, function, refuses, says, streams, user

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"]),
    # Libraries leave generators of theirs open when a stream ends early, which Trio notes.
    pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning"),
]

ASKS = function("search", '{"query": "hooks"}', "c1")


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def provider(server: Provider) -> Provider:
    server.script()
    return server


@tool
async def search(query: str) -> str:
    """Search the web.

    Args:
        query: What for.
    """
    return f"3 results for {query}"


async def run(model: Any, *, streamed: bool, recorder: Recorder | None = None, **parts: Any) -> OperationResult:
    hooks = [*parts.pop("hooks", []), *([recorder.hooks] if recorder else [])]
    tokens: list[str] = parts.pop("tokens", [])
    agent = Agent(id="a", model=model, retry=AT_ONCE, **{"tools": [search], **parts})
    return await exec_agent(agent, "How many?", hooks=hooks, on_token=tokens.append if streamed else None)


async def test_a_run_with_a_tool_tells_the_provider_and_the_observers_everything_once(
    provider: Provider, streamed: bool
) -> None:
    provider.script(says(None, ASKS), says("Three of them.", pieces=["Three", " of", " them."]))
    recorder, tokens = Recorder(), []

    async with asked(provider) as model:
        result = await run(
            model, streamed=streamed, recorder=recorder, tokens=tokens, instructions="Be brief.", hooks=[Hooks("h")]
        )

    assert (result.reason, result.output, result.error) == ("done", "Three of them.", None)
    assert tokens == (["Three", " of", " them."] if streamed else [])
    assert (result.usage.input_tokens, result.usage.output_tokens) == (22, 14)
    assert recorder.names() == [
        *("beforeStep", "beforeToolCall", "afterToolCall", "afterStep"),
        *("beforeStep", "afterStep", "onComplete"),
    ]
    assert_order(recorder.events)
    assert_consistent(result.messages)
    first, second = provider.bodies
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
    ]
    assert second["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query":"hooks"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3 results for hooks"},
    ]
    (offered,) = first["tools"]
    assert offered["function"]["name"] == "search"
    assert offered["function"]["description"] == "Search the web."
    assert offered["function"]["parameters"]["properties"]["query"]["description"] == "What for."
    assert first["stream"] is streamed
    assert all(exchange.headers["authorization"] == f"Bearer {KEY}" for exchange in provider.exchanges)


async def test_an_answer_says_who_gave_it_and_what_it_used(provider: Provider, streamed: bool) -> None:
    provider.script(says("Hello", finish="length", reasoning_content="Let me think."))

    async with asked(provider) as model:
        response, pieces = await answer_of(model, user(), streamed=streamed)

    assert (response.content, pieces) == ("Hello", ["Hello"] if streamed else [])
    assert (response.reasoning, response.finish_reason) == ("Let me think.", "length")
    assert (response.model, response.response_id) == (MODEL, "chatcmpl-7")
    assert response.usage == Usage(input_tokens=11, output_tokens=7)


async def test_both_ways_of_asking_give_the_same_answer(provider: Provider, streamed: bool) -> None:
    provider.script(says("Both: ", ASKS, function("search", '{"query": "x"}', "c2"), pieces=["Bo", "th: "]))
    call = user()

    async with asked(provider) as model:
        first, _ = await answer_of(model, call, streamed=streamed)
        second, _ = await answer_of(model, call, streamed=not streamed)

    assert first == second
    assert [calling.args for calling in first.tool_calls] == [{"query": "hooks"}, {"query": "x"}]


async def test_settings_of_a_call_win_over_those_of_the_model(provider: Provider, streamed: bool) -> None:
    provider.script(says("ok"))
    hooks = Hooks("h")

    @hooks.before(ModelCall)
    def cooler(call: ModelCall) -> ModelCall:
        return msgspec.structs.replace(call, settings={"temperature": 0.25})

    async with asked(provider, settings={"temperature": 0.75, "max_tokens": 9}) as model:
        await run(model, streamed=streamed, hooks=[hooks])

    (body,) = provider.bodies
    assert (body["temperature"], body["max_completion_tokens"]) == (0.25, 9)


async def test_a_price_is_that_of_the_table(provider: Provider, streamed: bool) -> None:
    async with asked(provider) as model:
        provider.script(says("ok"))
        unknown, _ = await answer_of(model, user(), streamed=streamed)
        provider.script(says("ok", model="gpt-4o"))
        known, _ = await answer_of(model, user(), streamed=streamed)

    assert (unknown.usage.cost_usd, unknown.cost_known) == (0.0, False)
    assert known.cost_known
    assert known.usage.cost_usd == pytest.approx(11 * 2.5e-6 + 7 * 10e-6)


async def test_a_price_of_ones_own_takes_the_place_of_the_table(provider: Provider, streamed: bool) -> None:
    provider.script(says("ok"))

    async with asked(provider, price=lambda usage: usage.input_tokens * 2 + usage.output_tokens) as model:
        result = await run(model, streamed=streamed)

    assert result.usage.cost_usd == 29.0


async def test_an_answer_without_usage_costs_nothing(provider: Provider, streamed: bool) -> None:
    provider.script(says("ok", usage=None))

    async with asked(provider) as model:
        response, _ = await answer_of(model, user(), streamed=streamed)

    assert (response.content, response.usage) == ("ok", Usage())


async def test_a_tool_that_the_model_made_up_is_told_to_be_none(provider: Provider, streamed: bool) -> None:
    provider.script(says(None, function("find it!", "{}", "c1")), says("ok"))
    recorder = Recorder()

    async with asked(provider) as model:
        result = await run(model, streamed=streamed, recorder=recorder)

    assert result.reason == "done"
    assert "There is no tool 'local/find it!'" in tool_texts(result)[0]
    assert recorder.names().count("onToolCallError") == 1
    sent = provider.bodies[1]["messages"][1]["tool_calls"][0]["function"]["name"]
    assert sent.startswith("find_it_")


async def test_arguments_that_are_no_json_are_told_to_the_model(provider: Provider, streamed: bool) -> None:
    provider.script(says(None, function("search", '{"query": "ho', "c1")), says("sorry"))
    recorder = Recorder()

    async with asked(provider) as model:
        result = await run(model, streamed=streamed, recorder=recorder)

    assert (result.reason, result.output) == ("done", "sorry")
    assert "Invalid arguments for search: not JSON" in tool_texts(result)[0]
    assert recorder.names().count("beforeToolCall") == recorder.names().count("onToolCallError") == 1


async def test_two_calls_with_one_id_each_get_their_own_answer(provider: Provider, streamed: bool) -> None:
    twice = [function("search", f'{{"query": "{word}"}}', "same") for word in ("a", "b")]
    provider.script(says(None, *twice), says("ok"))
    recorder = Recorder()

    async with asked(provider) as model:
        result = await run(model, streamed=streamed, recorder=recorder)

    assert result.reason == "done"
    assert_order(recorder.events)
    _, asks, *answers = provider.bodies[1]["messages"]
    ids = [call["id"] for call in asks["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(answer["tool_call_id"], answer["content"]) for answer in answers] == [
        (ids[0], "3 results for a"),
        (ids[1], "3 results for b"),
    ]


async def test_a_call_without_an_id_is_answered_all_the_same(provider: Provider, streamed: bool) -> None:
    provider.script(says(None, function("search", '{"query": "a"}', "")), says("ok"))

    async with asked(provider) as model:
        result = await run(model, streamed=streamed)

    assert result.reason == "done"
    _, asks, answer = provider.bodies[1]["messages"]
    assert asks["tool_calls"][0]["id"] == answer["tool_call_id"] != ""


async def test_tools_of_one_name_from_two_places_are_told_apart(provider: Provider, streamed: bool) -> None:
    async def here(args: Any) -> str:
        return f"here {args}"

    async def there(args: Any) -> str:
        return f"there {args}"

    tools = [Tool(name="search", run=here), Tool(toolset="web.site", name="search", run=there)]

    def both(exchange: Any) -> None:
        names = [offer["function"]["name"] for offer in exchange.body["tools"]]
        says(None, *(function(name, "{}", f"c{place}") for place, name in enumerate(names)))(exchange)

    provider.script(both, says("ok"))
    recorder = Recorder()

    async with asked(provider) as model:
        result = await run(model, streamed=streamed, recorder=recorder, tools=tools)

    assert tool_texts(result) == ["here {}", "there {}"]
    called = {(event.toolset, event.tool_name) for event in recorder.of(BeforeToolCall)}
    assert called == {("local", "search"), ("web.site", "search")}


async def test_an_answer_of_ten_megabytes_arrives_whole(provider: Provider, streamed: bool) -> None:
    text = "0123456789abcdef" * 655_360
    provider.script(says(text, pieces=[text[:4_000_000], text[4_000_000:]]))

    async with asked(provider) as model:
        result = await run(model, streamed=streamed)

    assert result.reason == "done"
    assert result.output == text


async def test_the_text_of_a_run_can_be_iterated(provider: Provider, streamed: bool) -> None:
    provider.script(says("Hello you", pieces=["Hello", " you"]))

    async with asked(provider) as model, stream_agent(Agent(id="a", model=model), "Hi") as text:
        pieces = [piece async for piece in text]

    assert pieces == ["Hello", " you"]
    assert text.result.output == "Hello you"


async def test_the_test_model_of_pydantic_ai_calls_every_tool_and_answers(streamed: bool) -> None:
    recorder = Recorder()

    result = await run(PydanticModel(TestModel()), streamed=streamed, recorder=recorder)

    assert (result.reason, result.steps, result.tool_calls) == ("done", 2, 1)
    assert "3 results for" in result.output
    assert_order(recorder.events)


async def test_a_function_model_of_pydantic_ai_is_asked_and_streamed(streamed: bool) -> None:
    def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("search", {"query": "x"}, "c1")])

    async def pieces(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if len(messages) > 1:
            yield "do"
            yield "ne"
        else:
            yield {0: DeltaToolCall("search", '{"query": "x"}', tool_call_id="c1")}

    tokens: list[str] = []

    result = await run(PydanticModel(FunctionModel(whole, stream_function=pieces)), streamed=streamed, tokens=tokens)

    assert (result.output, tool_texts(result)) == ("done", ["3 results for x"])
    assert tokens == (["do", "ne"] if streamed else [])


async def test_a_model_that_is_busy_is_asked_again(provider: Provider, streamed: bool) -> None:
    provider.script(refuses(429, "slow down", Retry_After="0"), refuses(503), says("ok"))
    recorder = Recorder()

    async with asked(provider) as model:
        result = await run(model, streamed=streamed, recorder=recorder)

    assert (result.reason, result.output, len(provider.exchanges)) == ("done", "ok", 3)
    assert recorder.names() == ["beforeStep", "afterStep", "onComplete"]


async def test_a_stream_that_was_cut_before_anything_was_released_is_tried_again(
    provider: Provider, streamed: bool
) -> None:
    provider.script(streams(chunk({"content": "Hal"}), then=lambda exchange: exchange.cut()), says("Hello"))
    judge = Hooks("judge")
    judge.after(ModelCall)(lambda call, response: None)
    tokens: list[str] = []

    async with asked(provider) as model:
        result = await run(model, streamed=True, hooks=[judge], tokens=tokens)

    assert (result.reason, result.output, tokens) == ("done", "Hello", ["Hello"])
