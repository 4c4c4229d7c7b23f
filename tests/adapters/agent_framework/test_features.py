"""What runs of Microsoft Agent Framework use besides tools: middleware that ends early, compaction while streaming."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentMiddleware,
    AgentResponse,
    AgentResponseUpdate,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionMiddleware,
    Message,
    MiddlewareTermination,
    ResponseStream,
    SummarizationStrategy,
    tool,
)
from msgspec.structs import replace
from pydantic import BaseModel

from hookline import AgentCall, Hooks, ModelCall, Respond
from hookline.adapters.agent_framework import HooklineMiddleware
from hookline.calls import AgentResult, ModelResponse
from hookline.evals.adapter_contract import Scene
from hookline.events import AfterCallAgent, AfterStep, AfterToolCall, OnComplete
from tests.otel.scenes import Scene as Traced
from tests.otel.scenes import attributes
from tests.tables import for_each

from .stage import Scripted, agent_of
from .test_agent_framework import DONE, EVENTS_OF_PLAIN, PLAIN, add, calls, listening, names, told

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TWO_PARTS = replace(calls("add", a=1, b=2), content="first")


def passing() -> Hooks:
    """A bundle that has model calls led, and changes nothing."""
    hooks = Hooks("passing")
    hooks.after(ModelCall)(lambda call, response: None)
    return hooks


def streamed(update: Any, whole: Any) -> ResponseStream[Any, Any]:
    async def updates() -> AsyncGenerator[Any, None]:
        yield update

    return ResponseStream(updates(), finalizer=whole)


class InOrder(list[ModelResponse]):
    """Turns one after the other, however much of the conversation a summary has taken away."""

    def __getitem__(self, _: Any) -> Any:
        return self.pop(0)


async def text_of(agent: Agent[Any], hooks: list[Any], middleware: list[Any], *, stream: bool) -> str:
    given = [HooklineMiddleware(hooks), *middleware] if hooks else middleware
    if not stream:
        return str((await agent.run("go", middleware=given)).text)
    return str((await agent.run("go", stream=True, middleware=given).get_final_response()).text)


class EndsRun(AgentMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        if context.stream:
            update = AgentResponseUpdate(role="assistant", contents=Message("assistant", ["cached"]).contents)
            context.result = streamed(update, AgentResponse.from_updates)
        else:
            context.result = AgentResponse(messages=[Message("assistant", ["cached"])])
        raise MiddlewareTermination("cached")


class EndsModelCall(ChatMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        if context.stream:
            update = ChatResponseUpdate(role="assistant", contents=Message("assistant", ["cached"]).contents)
            context.result = streamed(update, ChatResponse.from_updates)
        else:
            context.result = ChatResponse(messages=[Message("assistant", ["cached"])])
        raise MiddlewareTermination("cached")


class EndsAfterwards(AgentMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        await call_next()
        raise MiddlewareTermination("enough")


class SaysNothing(AgentMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        return


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_other_middleware_answers_is_done(*, stream: bool) -> None:
    hooks, seen = listening()

    assert await text_of(agent_of("a", PLAIN, []), [hooks], [EndsRun()], stream=stream) == "cached"

    (over,) = [event for event in seen if isinstance(event, OnComplete)]
    assert (names(seen), over.reason, over.last_assistant_content) == (["onComplete"], "done", "cached")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_other_middleware_ends_afterwards_has_run(*, stream: bool) -> None:
    hooks, seen = listening()

    assert await text_of(agent_of("a", PLAIN, []), [hooks], [EndsAfterwards()], stream=stream) == "done"
    assert names(seen) == EVENTS_OF_PLAIN


async def test_a_stream_for_which_other_middleware_has_no_result_is_empty() -> None:
    hooks, seen = listening()

    stream = agent_of("a", PLAIN, []).run("go", stream=True, middleware=[HooklineMiddleware([hooks]), SaysNothing()])

    assert [update async for update in stream] == []
    assert names(seen) == ["onComplete"]


@pytest.mark.parametrize("led", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_call_that_other_middleware_answers_is_heard(*, stream: bool, led: bool) -> None:
    hooks, seen = listening()
    bundles = [hooks, passing()] if led else [hooks]

    assert await text_of(agent_of("a", PLAIN, []), bundles, [EndsModelCall()], stream=stream) == "cached"

    (step,) = [event for event in seen if isinstance(event, AfterStep)]
    assert (names(seen), step.content) == (["beforeStep", "afterStep", "onComplete"], "cached")


@pytest.mark.parametrize("runs", [False, True])
async def test_a_tool_call_that_other_middleware_ends_has_its_result(*, runs: bool) -> None:
    class Ends(FunctionMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            if runs:
                await call_next()
            else:
                context.result = "stopped"
            raise MiddlewareTermination("enough")

    hooks, seen = listening()

    response = await agent_of("a", PLAIN, []).run("go", middleware=[HooklineMiddleware([hooks]), Ends()])
    bare = await agent_of("a", PLAIN, []).run("go", middleware=[Ends()])

    (after,) = [event for event in seen if isinstance(event, AfterToolCall)]
    assert (after.content, after.success) == ("3" if runs else "stopped", True)
    assert told(response) == told(bare)
    assert names(seen) == ["beforeStep", "beforeToolCall", "afterToolCall", "afterStep", "onComplete"]


async def test_a_sub_agent_that_its_middleware_answers_has_answered() -> None:
    hooks, seen = listening()
    child = agent_of("b", Scene(turns=[DONE]), [], middleware=[EndsRun()])
    turns = [calls("b", task="q"), DONE]

    response = await Agent(client=Scripted(turns), name="a", tools=[child.as_tool()]).run(
        "go", middleware=[HooklineMiddleware([hooks])]
    )

    assert (told(response), response.text) == (["cached"], "done")
    assert [event.success for event in seen if isinstance(event, AfterCallAgent)] == [True]


async def test_a_call_of_a_sub_agent_that_other_middleware_ends_has_its_result() -> None:
    class Ends(FunctionMiddleware):
        async def process(self, context: Any, call_next: Any) -> None:
            context.result = "stopped"
            raise MiddlewareTermination("enough")

    hooks, seen = listening()
    child = agent_of("b", Scene(turns=[DONE]), [])
    agent = Agent(client=Scripted([calls("b", task="q"), DONE]), name="a", tools=[child.as_tool()])

    await agent.run("go", middleware=[HooklineMiddleware([hooks]), Ends()])

    assert names(seen) == ["beforeStep", "beforeCallAgent", "afterCallAgent", "afterStep", "onComplete"]


@pytest.mark.parametrize("led", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_summarized_is_not_summarized_again(*, stream: bool, led: bool) -> None:
    summaries: list[str] = []

    def agent() -> Agent[Any]:
        summary = Scripted([ModelResponse(content="summary")], summaries)
        turns = InOrder([*(calls("add", f"t{number}", a=1, b=number) for number in range(3)), DONE])
        strategy = SummarizationStrategy(client=summary, target_count=2, threshold=1)
        tools = [tool(add, approval_mode="never_require")]
        return Agent(client=Scripted(turns), name="a", tools=tools, compaction_strategy=strategy)

    await text_of(agent(), [], [], stream=stream)
    bare, summaries[:] = list(summaries), []
    hooks, _ = listening()
    await text_of(agent(), [hooks, passing()] if led else [hooks], [], stream=stream)

    assert len(bare) == 2
    assert summaries == bare


class Answers(AgentMiddleware):
    async def process(self, context: Any, call_next: Any) -> None:
        message = Message("assistant", ["the secret"], author_name="a", message_id="m1")
        given: Any = {
            "response_id": "r1",
            "additional_properties": {"region": "eu"},
            "raw_representation": "the secret",
        }
        context.result = AgentResponse(messages=[message], usage_details={"input_token_count": 3}, **given)


async def test_a_response_keeps_what_a_hook_that_writes_its_text_does_not_know() -> None:
    hooks = Hooks("redact")
    hooks.after(AgentCall)(lambda call, result: replace(result, output="the ***"))

    response = await agent_of("a", PLAIN, []).run("go", middleware=[HooklineMiddleware([hooks]), Answers()])

    (message,) = response.messages
    assert (message.text, message.author_name, message.message_id) == ("the ***", "a", "m1")
    assert (response.response_id, response.additional_properties) == ("r1", {"region": "eu"})
    assert response.usage_details == {"input_token_count": 3}
    assert "secret" not in response.to_json() + str(response.raw_representation)


class SeesImages(ChatMiddleware):
    """Notes the images that the model is sent, inside of all hooks."""

    def __init__(self) -> None:
        self.images: list[str] = []

    async def process(self, context: Any, call_next: Any) -> None:
        self.images = [str(each.uri) for message in context.messages for each in message.contents if each.uri]
        await call_next()


async def test_a_hook_that_cuts_the_conversation_leaves_each_image_where_it_was() -> None:
    hooks, seen = Hooks("cuts"), SeesImages()
    hooks.before(ModelCall)(lambda call: replace(call, messages=call.messages[1:]))
    agent: Agent[Any] = Agent(client=Scripted([ModelResponse(content="a cat")]), middleware=[seen])
    prompt = [
        Message("user", [Content.from_uri(f"https://example.com/{name}.png", media_type="image/png")])
        for name in ("first", "second", "third")
    ]

    await agent.run(prompt, middleware=[HooklineMiddleware([hooks])])

    assert seen.images == ["https://example.com/second.png", "https://example.com/third.png"]


class Sum(BaseModel):
    value: int


@for_each("where", ["run", "agent"])
@for_each("kind", ["before", "after"])
@for_each("stream", [False, True])
async def test_the_value_of_a_response_is_read_from_what_a_hook_wrote(*, stream: bool, kind: str, where: str) -> None:
    hooks = Hooks("rewrites")
    if kind == "before":
        hooks.before(AgentCall)(lambda call: Respond(AgentResult(output='{"value": 2}')))
    else:
        hooks.after(AgentCall)(lambda call, result: replace(result, output='{"value": 2}'))
    options: Any = {"response_format": Sum}
    client = Scripted([ModelResponse(content='{"value": 1}')])
    agent: Agent[Any] = Agent(client=client, default_options=options if where == "agent" else None)

    given: Any = {"middleware": [HooklineMiddleware([hooks])], "options": options if where == "run" else None}
    response = await (
        agent.run("go", stream=True, **given).get_final_response() if stream else agent.run("go", **given)
    )

    assert response.value == Sum(value=2)


async def test_the_model_call_of_a_stream_that_is_left_ends_before_its_run() -> None:
    order: list[str] = []

    class Told(Scripted):
        def _inner_get_response(self, **given: Any) -> Any:
            async def parts() -> AsyncGenerator[Any, None]:
                try:
                    async for update in stream:
                        yield update
                finally:
                    order.append("model")

            stream = super()._inner_get_response(**given)
            return ResponseStream(parts(), finalizer=ChatResponse.from_updates)

    hooks = Hooks("watch")
    hooks.on(OnComplete)(lambda event: order.append(event.reason))
    stream = Agent(client=Told([TWO_PARTS])).run("go", stream=True, middleware=[HooklineMiddleware([hooks])])
    async for _ in stream:
        break
    await stream.close()

    assert order == ["model", "interrupted"]


async def test_the_span_of_a_model_call_whose_stream_is_left_ends_as_interrupted() -> None:
    with Traced() as traced:
        middleware = [HooklineMiddleware([traced.tracing()])]
        stream = Agent(client=Scripted([TWO_PARTS]), name="a").run("go", stream=True, middleware=middleware)
        async for _ in stream:
            break
        await stream.close()

        assert traced.tree() == ("invoke_agent a", ("agent_step", ("chat scripted",)))
        assert attributes(traced.one("chat scripted"))["hookline.outcome"] == "interrupted"
