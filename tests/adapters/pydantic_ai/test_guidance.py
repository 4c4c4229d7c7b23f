"""`Guide` and `add_context` in Pydantic AI: streams, prompts and results that are not text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ToolReturn
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from hookline import AgentCall, Guide, Hooks, ModelCall, OnComplete, ToolCall
from hookline.adapters.pydantic_ai import hooked

pytestmark = pytest.mark.anyio

PICTURE = BinaryContent(data=b"\x89PNG", media_type="image/png")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def prompts(messages: list[ModelMessage]) -> list[Any]:
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    return [part.content for request in requests for part in request.parts if isinstance(part, UserPromptPart)]


def words(messages: list[ModelMessage]) -> str:
    """`secret words` until it reads `be quiet`."""
    return "quiet words" if "be quiet" in repr(prompts(messages)) else "secret words"


def learning() -> Agent[Any, str]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(words(messages))])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for word in words(messages).split(" "):
            yield word

    return Agent(FunctionModel(answer, stream_function=stream))


def manners(ends: list[Any]) -> Hooks:
    hooks = Hooks("manners")
    hooks.after(ModelCall)(lambda call, answer: Guide("be quiet") if "secret" in answer.content else None)
    hooks.on(OnComplete)(ends.append)
    return hooks


async def test_nothing_of_a_discarded_answer_is_streamed() -> None:
    ends: list[Any] = []
    async with hooked(learning(), hooks=[manners(ends)]).run_stream("go") as result:
        texts = [text async for text in result.stream_text(delta=True, debounce_by=None)]

    assert "".join(texts) == "quietwords"
    assert ends[0].llm_calls == 2


async def test_a_run_has_the_answer_that_was_not_discarded() -> None:
    ends: list[Any] = []

    result = await hooked(learning(), hooks=[manners(ends)]).run("go")

    assert result.output == "quiet words"
    assert (ends[0].llm_calls, ends[0].steps) == (2, 1)


@pytest.mark.parametrize("wrapped", [False, True], ids=["value", "ToolReturn"])
async def test_a_tool_keeps_what_is_not_text(*, wrapped: bool) -> None:
    seen: list[ModelMessage] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen[:] = messages
        asked = len(messages) > 1
        return ModelResponse(parts=[TextPart("done") if asked else ToolCallPart("look", {}, tool_call_id="t1")])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def look() -> Any:
        return ToolReturn(["a cat", PICTURE], metadata={"breed": "tabby"}) if wrapped else ["a cat", PICTURE]

    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("cats bite"))
    await hooked(agent, hooks=[hooks]).run("go")

    requests = [message for message in seen if isinstance(message, ModelRequest)]
    (part,) = [part for request in requests for part in request.parts if isinstance(part, ToolReturnPart)]
    assert part.content == ["a cat", PICTURE, "Context from hook 'hook': cats bite"]
    assert part.metadata == ({"breed": "tabby"} if wrapped else None)


async def test_a_prompt_keeps_what_is_not_text() -> None:
    seen: list[ModelMessage] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen[:] = messages
        return ModelResponse(parts=[TextPart("done")])

    hooks = Hooks("adding")
    hooks.before(AgentCall, id="hook")(lambda call: call.add_context("it is Tuesday"))
    await hooked(Agent(FunctionModel(answer)), hooks=[hooks]).run(["what is this?", PICTURE])

    assert prompts(seen) == [["what is this?", PICTURE, "Context from hook 'hook': it is Tuesday"]]
