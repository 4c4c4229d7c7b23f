"""`Guide` and `add_context` in Microsoft Agent Framework: streams, contents that are not text, continued runs."""

from __future__ import annotations

from typing import Any

import pytest
from agent_framework import Agent, Content, tool

from hookline import AgentCall, Continue, Guide, Hooks, ModelCall, ModelResponse, ToolCall, ToolRequest
from hookline.adapters.agent_framework import hooked
from hookline.evals.adapter_contract import Scene

from .stage import Scripted, agent_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Learning(Scripted):
    """Says `secret words` until it reads `be quiet`."""

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **given: Any) -> Any:
        told = any("be quiet" in (message.text or "") for message in messages)
        self.turns = [ModelResponse(content="quiet words" if told else "secret words")]
        return super()._inner_get_response(messages=messages, stream=stream, options=options, **given)


def manners() -> Hooks:
    hooks = Hooks("manners")
    hooks.after(ModelCall)(lambda call, answer: Guide("be quiet") if "secret" in answer.content else None)
    return hooks


async def test_nothing_of_a_discarded_answer_is_streamed() -> None:
    stream = hooked(Agent(client=Learning([])), hooks=[manners()]).run("go", stream=True)

    texts = [update.text async for update in stream if update.text]

    assert texts == ["quiet words"]
    assert (await stream.get_final_response()).text == "quiet words"


async def test_a_tool_keeps_the_contents_that_are_not_text() -> None:
    picture = Content.from_data(data=b"\x89PNG", media_type="image/png")
    seen: list[Any] = []

    @tool(name="look")
    def look() -> list[Content]:
        return [Content.from_text("a cat"), picture]

    class Watching(Scripted):
        def _inner_get_response(self, *, messages: Any, **given: Any) -> Any:
            seen.append(messages)
            return super()._inner_get_response(messages=messages, **given)

    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("cats bite"))
    turns = [ModelResponse(tool_calls=[ToolRequest("look", {}, tool_call_id="t1")]), ModelResponse(content="done")]
    await hooked(Agent(client=Watching(turns), tools=[look]), hooks=[hooks]).run("go")

    (result,) = [each for message in seen[-1] for each in message.contents if each.type == "function_result"]
    kinds = [(each.type, each.text) for each in result.items]
    assert ("data", None) in kinds
    assert ("text", "Context from hook 'hook': cats bite") in kinds


async def test_a_continued_run_reads_what_is_added_before_and_after_it() -> None:
    hooks, left, asked = Hooks("adding"), ["and then?"], list[str]()
    hooks.before(AgentCall, id="in")(lambda call: call.add_context(f"about {call.input[-1].content[:2]}"))
    hooks.after(AgentCall, id="out")(lambda call, result: call.add_context("by the way"))
    hooks.after(AgentCall, id="more", priority=200)(lambda call, result: Continue(left.pop()) if left else None)
    scene = Scene(turns=[ModelResponse(content="one"), ModelResponse(content="two")])

    response = await hooked(agent_of("a", scene, asked), hooks=[hooks]).run("go")

    assert response.text == "two"
    assert "Context from hook 'in': about go" in asked[0]
    assert "and then?\n\nContext from hook 'out': by the way" in asked[1]
    assert "Context from hook 'in': about an" in asked[1]
