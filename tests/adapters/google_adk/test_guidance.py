"""`Guide` and `add_context` in Google ADK: streams, messages and results that are not text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from hookline import AgentCall, Guide, Hooks, ModelCall, ModelResponse, OnComplete, ToolCall, ToolRequest
from hookline.adapters.google_adk import hooked
from hookline.evals.adapter_contract import Scene

from .stage import Scripted, runner_of
from .test_google_adk import events_of

pytestmark = pytest.mark.anyio

PICTURE = types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Learning(Scripted):
    """Says `secret words` until it reads `be quiet`."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        told = "be quiet" in repr(llm_request.contents)
        self.scene = Scene(turns=[ModelResponse(content="quiet words" if told else "secret words")])
        async for response in super().generate_content_async(llm_request, stream):
            yield response


@pytest.mark.parametrize("mode", [StreamingMode.NONE, StreamingMode.SSE])
async def test_nothing_of_a_discarded_answer_is_in_an_event(mode: Any) -> None:
    hooks, ends = Hooks("manners"), list[Any]()
    hooks.after(ModelCall)(lambda call, answer: Guide("be quiet") if "secret" in answer.content else None)
    hooks.on(OnComplete)(ends.append)
    runner = runner_of(Scene(turns=[]), [])
    runner.app.root_agent.model = Learning()

    given = await events_of(hooked(runner, hooks=[hooks]), run_config=RunConfig(streaming_mode=mode))

    texts = [part.text for event in given if event.content for part in event.content.parts]
    assert texts == ["quiet words"]
    assert (ends[0].llm_calls, ends[0].steps, ends[0].last_assistant_content) == (2, 1, "quiet words")


async def test_the_result_of_a_tool_has_a_further_key() -> None:
    def look() -> dict[str, Any]:
        """Look."""
        return {"animal": "cat", "legs": 4}

    seen: list[Any] = []

    class Watching(Scripted):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            seen[:] = llm_request.contents
            async for response in super().generate_content_async(llm_request, stream):
                yield response

    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("cats bite"))
    turns = [ModelResponse(tool_calls=[ToolRequest("look", {}, tool_call_id="t1")]), ModelResponse(content="done")]
    scene = Scene(turns=turns, tools={"look": look})  # type: ignore[dict-item]
    runner = runner_of(scene, [])
    runner.app.root_agent.model = Watching(scene=scene)

    await events_of(hooked(runner, hooks=[hooks]))

    (result,) = [part.function_response.response for each in seen for part in each.parts if part.function_response]
    assert result == {"animal": "cat", "legs": 4, "context": "Context from hook 'hook': cats bite"}


async def test_a_message_keeps_its_parts_that_are_not_text() -> None:
    seen: list[Any] = []

    class Watching(Scripted):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            seen[:] = llm_request.contents
            async for response in super().generate_content_async(llm_request, stream):
                yield response

    hooks = Hooks("adding")
    hooks.before(AgentCall, id="hook")(lambda call: call.add_context("it is Tuesday"))
    scene = Scene(turns=[ModelResponse(content="done")])
    runner = runner_of(scene, [])
    runner.app.root_agent.model = Watching(scene=scene)
    message = types.Content(role="user", parts=[types.Part(text="go"), PICTURE])

    await events_of(hooked(runner, hooks=[hooks]), new_message=message)

    (asked,) = seen
    assert [(part.text, part.inline_data is not None) for part in asked.parts] == [
        ("go", False),
        (None, True),
        ("Context from hook 'hook': it is Tuesday", False),
    ]
