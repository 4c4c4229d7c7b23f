"""Spans of a model's library in streamed runs: they are in their step, and all end, also where a reader leaves early."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.function import FunctionModel

from hookline import Agent, ModelCall, ModelResponse
from hookline.adapters.agent_framework import HooklineMiddleware as AgentFrameworkMiddleware
from hookline.adapters.langchain import HooklineMiddleware, hooked
from hookline.adapters.openai_agents import HooklineRunner
from hookline.adapters.pydantic_ai import Hookline
from hookline.otel import TracingHooks
from hookline.runtime import stream_agent
from tests.adapters.suspending import suspend
from tests.adapters.traces import BUNDLES, THEIRS, Library
from tests.tables import for_each

pytestmark = pytest.mark.anyio

PIECES = ("Hel", "lo")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def said(library: Library) -> AsyncIterator[str]:
    """What a model's library streams, inside of a span of its own."""
    with library.tracer.start_as_current_span(THEIRS):
        for piece in PIECES:
            await suspend()
            yield piece


async def stream_hookline(library: Library, hooks: list[Any], *, whole: bool) -> None:
    class Streaming:
        name, provider = "streaming", "tests"

        async def respond(self, call: ModelCall) -> ModelResponse:
            raise AssertionError("it was to be streamed")

        async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
            async for piece in said(library):
                yield piece
            yield ModelResponse(content="".join(PIECES))

    async with stream_agent(Agent(id="alpha", model=Streaming()), "go", hooks=hooks, release="incremental") as run:
        async for _ in run:
            if not whole:
                break


async def stream_pydantic_ai(library: Library, hooks: list[Any], *, whole: bool) -> None:
    def answer(messages: Any, info: Any) -> AsyncIterator[str]:
        return said(library)

    agent = PydanticAgent(FunctionModel(stream_function=answer), name="alpha")
    async with agent.run_stream("go", capabilities=[Hookline(hooks)]) as run:
        async for _ in run.stream_text(delta=True, debounce_by=None):
            if not whole:
                break


async def stream_openai_agents(library: Library, hooks: list[Any], *, whole: bool) -> None:
    from agents import Agent as OpenAIAgent
    from agents import Model, RunConfig
    from openai.types.responses import (
        Response,
        ResponseCompletedEvent,
        ResponseOutputMessage,
        ResponseOutputText,
        ResponseTextDeltaEvent,
    )

    class Streaming(Model):
        async def get_response(self, *given: Any, **options: Any) -> Any:
            raise AssertionError("it was to be streamed")

        async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
            place: Any = {"content_index": 0, "item_id": "m", "output_index": 0, "sequence_number": 0, "logprobs": []}
            async for piece in said(library):
                yield ResponseTextDeltaEvent(type="response.output_text.delta", delta=piece, **place)
            text = ResponseOutputText(text="".join(PIECES), type="output_text", annotations=[])
            message = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
            response = Response(
                id="r",
                created_at=0,
                model="m",
                object="response",
                output=[message],
                tool_choice="none",
                tools=[],
                parallel_tool_calls=False,
            )
            yield ResponseCompletedEvent(type="response.completed", sequence_number=1, response=response)

    agent = OpenAIAgent(name="alpha", model=Streaming())
    run = HooklineRunner(hooks).run_streamed(agent, "go", run_config=RunConfig(tracing_disabled=True))
    events = run.stream_events()
    async for event in events:
        if not whole and event.type == "raw_response_event":
            run.cancel()
    assert run.is_complete


async def stream_langchain(library: Library, hooks: list[Any], *, whole: bool) -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.outputs import ChatGenerationChunk

    class Streaming(GenericFakeChatModel):
        async def _astream(self, *given: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
            async for piece in said(library):
                yield ChatGenerationChunk(message=AIMessageChunk(piece))

    agent: Any = create_agent(Streaming(messages=iter([])), middleware=[HooklineMiddleware()], name="alpha")
    pieces = hooked(agent, hooks=hooks).astream({"messages": [("user", "go")]}, stream_mode="messages")
    async for _ in pieces:
        if not whole:
            break
    await pieces.aclose()


async def stream_agent_framework(library: Library, hooks: list[Any], *, whole: bool) -> None:
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

    class Streaming(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
        def _inner_get_response(self, **given: Any) -> Any:
            async def updates() -> AsyncIterator[ChatResponseUpdate]:
                async for piece in said(library):
                    yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(piece)])

            return ResponseStream(updates(), finalizer=lambda found: ChatResponse.from_updates(found))

    run: Any = Agent(Streaming(), name="alpha").run("go", stream=True, middleware=[AgentFrameworkMiddleware(hooks)])
    async for _ in run:
        if not whole:
            break
    await run.close()


Stream = Callable[..., Awaitable[None]]
STREAMS: dict[str, Stream] = {
    "hookline": stream_hookline,
    "Pydantic AI": stream_pydantic_ai,
    "OpenAI Agents": stream_openai_agents,
    "LangChain": stream_langchain,
    "Agent Framework": stream_agent_framework,
}


@for_each("whole", [True, False], ids=["read to its end", "left early"])
@for_each("model_spans", [True, False], ids=["chat spans", "no chat spans"])
@for_each("bundles", BUNDLES)
@for_each("framework", STREAMS)
async def test_spans_of_a_stream_are_in_its_step_and_all_end(
    framework: str, bundles: str, model_spans: bool, whole: bool
) -> None:
    library = Library()
    hooks = BUNDLES[bundles](TracingHooks(library.provider, model_spans=model_spans))

    await STREAMS[framework](library, hooks, whole=whole)

    model = ["chat"] if model_spans else []
    path = ["invoke_agent", "agent_step", *model, THEIRS]
    assert sorted(paths(library)) == [path[:length] for length in range(1, len(path) + 1)]


@for_each("whole", [True, False], ids=["read to its end", "left early"])
@for_each("framework", STREAMS)
async def test_the_span_of_a_streamed_answer_says_when_it_began_to_arrive(framework: str, whole: bool) -> None:
    library = Library()

    await STREAMS[framework](library, [TracingHooks(library.provider)], whole=whole)

    (chat,) = [span for span in library.kept.get_finished_spans() if span.name.startswith("chat")]
    attributes = dict(chat.attributes or {})
    assert attributes["gen_ai.request.stream"] is True
    assert chat.start_time is not None
    assert chat.end_time is not None
    first: Any = attributes["gen_ai.response.time_to_first_chunk"]
    assert 0 < first <= (chat.end_time - chat.start_time) / 1e9


async def test_an_answer_that_langchain_does_not_stream_is_not_said_to_be_streamed() -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    library = Library()
    agent: Any = create_agent(
        GenericFakeChatModel(messages=iter(["Hello"])), middleware=[HooklineMiddleware()], name="alpha"
    )

    await hooked(agent, hooks=[TracingHooks(library.provider)]).ainvoke({"messages": [("user", "go")]})

    (chat,) = [span for span in library.kept.get_finished_spans() if span.name.startswith("chat")]
    assert "gen_ai.request.stream" not in (chat.attributes or {})
    assert "gen_ai.response.time_to_first_chunk" not in (chat.attributes or {})


def paths(library: Library) -> list[list[str]]:
    """The spans that have ended: of each its kind, after those that it is in."""
    ended = {span.context.span_id: span for span in library.kept.get_finished_spans()}

    def path(span: ReadableSpan) -> list[str]:
        kind = str((span.attributes or {}).get("gen_ai.operation.name", span.name))
        return [*([] if span.parent is None else path(ended[span.parent.span_id])), kind]

    return [path(span) for span in ended.values()]
