"""`Guide` and `add_context` in the OpenAI Agents SDK: streams, outputs that are not text, sessions, continued runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, SQLiteSession, ToolOutputImage, ToolOutputText, function_tool
from agents.stream_events import RawResponsesStreamEvent

from hookline import AgentCall, Continue, Guide, Hooks, ModelCall, ToolCall, ToolRequest
from hookline.adapters.openai_agents import HooklineRunner, hooked
from hookline.calls import ModelResponse as Answer
from hookline.evals.adapter_contract import Scene

from .stage import QUIET, Script, agent_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Learning(Script):
    """Says `secret words` until it reads `be quiet`."""

    def turn(self, given: Any) -> Answer:
        return Answer(content="quiet words" if "be quiet" in json.dumps(given) else "secret words")


def manners() -> Hooks:
    hooks = Hooks("manners")
    hooks.after(ModelCall)(lambda call, answer: Guide("be quiet") if "secret" in answer.content else None)
    return hooks


async def test_nothing_of_a_discarded_answer_is_streamed() -> None:
    agent = Agent(name="a", model=Learning([]))
    events: list[Any] = []

    async with HooklineRunner([manners()]).stream(agent, "go", run_config=QUIET) as result:
        events = [event async for event in result.stream_events()]

    raw = [event for event in events if isinstance(event, RawResponsesStreamEvent)]
    assert "secret" not in repr(events)
    assert [event.data.delta for event in raw if event.data.type == "response.output_text.delta"] == ["quiet", "words"]
    assert result.final_output == "quiet words"


async def test_a_tool_keeps_the_outputs_that_are_not_text() -> None:
    async def look() -> list[Any]:
        return [ToolOutputText(text="a cat"), ToolOutputImage(image_url="data:image/png;base64,AA==")]

    asked: list[str] = []
    turns = [Answer(tool_calls=[ToolRequest("look", {}, tool_call_id="t1")]), Answer(content="done")]
    agent = Agent(name="a", model=Script(turns, asked), tools=[function_tool(look)])
    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("cats bite"))

    await hooked(agent, hooks=[hooks]).run("go", run_config=QUIET)

    (output,) = [item["output"] for item in json.loads(asked[-1]) if item.get("type") == "function_call_output"]
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_text"]
    assert output[-1]["text"] == "Context from hook 'hook': cats bite"


async def test_a_run_with_a_session_reads_what_is_added_to_it() -> None:
    asked: list[str] = []
    hooks = Hooks("adding")
    hooks.before(AgentCall, id="in")(lambda call: call.add_context("it is Tuesday"))
    agent, session = agent_of(Scene(turns=[Answer(content="one")]), asked), SQLiteSession("s")

    result = await hooked(agent, hooks=[hooks]).run("go", session=session, run_config=QUIET)

    assert result.final_output == "one"
    assert [item["content"] for item in json.loads(asked[0])] == ["go", "Context from hook 'in': it is Tuesday"]


async def test_a_continued_run_reads_what_is_added_before_and_after_it() -> None:
    hooks, left, asked = Hooks("adding"), ["and then?"], list[str]()
    hooks.before(AgentCall, id="in")(lambda call: call.add_context(f"part {len(left)}"))
    hooks.after(AgentCall, id="out")(lambda call, result: call.add_context("by the way"))
    hooks.after(AgentCall, id="more", priority=200)(lambda call, result: Continue(left.pop()) if left else None)

    await hooked(agent_of(Scene(turns=[Answer(content="one")]), asked), hooks=[hooks]).run("go", run_config=QUIET)

    said = [[item["content"] for item in json.loads(each) if item.get("role") == "user"] for each in asked]
    assert said[0] == ["go", "Context from hook 'in': part 1"]
    assert said[1][-2:] == ["and then?\n\nContext from hook 'out': by the way", "Context from hook 'in': part 0"]
