"""`Guide` and `add_context` in Strands: streams, blocks that are not text, messages of the user that stay one."""

from __future__ import annotations

from typing import Any

import pytest
from strands import Agent, tool

from hookline import AgentCall, Continue, Guide, Hooks, ModelCall, ModelResponse, ToolCall, ToolRequest
from hookline.adapters.strands import hooked

from .stage import Scripted

pytestmark = pytest.mark.anyio

PICTURE: Any = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Watching(Scripted):
    """Says its turns, or `secret words` until it reads `be quiet`; keeps the messages that it was given."""

    seen: list[Any]

    async def stream(self, messages: Any, *rest: Any, **given: Any) -> Any:
        self.seen = [dict(message) for message in messages]
        turns = self.turns
        if not turns:
            self.turns = [ModelResponse(content="quiet words" if "be quiet" in repr(messages) else "secret words")]
        async for event in super().stream(messages, *rest, **given):
            yield event
        self.turns = turns


def agent_of(*turns: ModelResponse, tools: Any = ()) -> tuple[Agent, Watching]:
    model = Watching(list(turns))
    return Agent(model=model, tools=list(tools), callback_handler=None), model


def manners() -> Hooks:
    hooks = Hooks("manners")
    hooks.after(ModelCall)(lambda call, answer: Guide("be quiet") if "secret" in answer.content else None)
    return hooks


async def test_nothing_of_a_discarded_answer_is_streamed_and_the_feedback_goes_into_the_users_message() -> None:
    agent, model = agent_of()

    events = [event async for event in hooked(agent, hooks=[manners()]).stream_async("go")]

    assert [event["data"] for event in events if "data" in event] == ["quiet words"]
    assert [event for event in events if "result" not in event and "secret" in repr(event.get("event"))] == []
    (asked,) = model.seen  # some models refuse two messages of the user in a row
    assert [block["text"] for block in asked["content"]] == ["go", "be quiet"]


async def test_a_tool_keeps_the_blocks_that_are_not_text() -> None:
    @tool(name="look")
    def look() -> Any:
        """Look."""
        return {"status": "success", "content": [{"text": "a cat"}, PICTURE]}

    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("cats bite"))
    turns = [ModelResponse(tool_calls=[ToolRequest("look", {}, tool_call_id="t1")]), ModelResponse(content="done")]
    agent, model = agent_of(*turns, tools=[look])

    await hooked(agent, hooks=[hooks]).invoke_async("go")

    (result,) = [block["toolResult"] for message in model.seen for block in message["content"] if "toolResult" in block]
    assert result["content"] == [{"text": "a cat"}, PICTURE, {"text": "Context from hook 'hook': cats bite"}]


@pytest.mark.parametrize(
    "prompt", [[{"text": "go"}, PICTURE], [{"role": "user", "content": [{"text": "go"}, PICTURE]}]]
)
async def test_a_prompt_keeps_the_blocks_that_are_not_text(prompt: Any) -> None:
    hooks = Hooks("adding")
    hooks.before(AgentCall, id="hook")(lambda call: call.add_context("it is Tuesday"))
    agent, model = agent_of(ModelResponse(content="done"))

    await hooked(agent, hooks=[hooks]).invoke_async(prompt)

    (asked,) = model.seen
    assert asked["content"] == [{"text": "go"}, PICTURE, {"text": "Context from hook 'hook': it is Tuesday"}]


async def test_a_continued_run_reads_what_is_added_before_and_after_it() -> None:
    hooks, left = Hooks("adding"), ["and then?"]
    hooks.before(AgentCall, id="in")(lambda call: call.add_context(f"part {len(left)}"))
    hooks.after(AgentCall, id="out")(lambda call, result: call.add_context("by the way"))
    hooks.after(AgentCall, id="more", priority=200)(lambda call, result: Continue(left.pop()) if left else None)
    agent, model = agent_of(ModelResponse(content="one"), ModelResponse(content="two"))

    await hooked(agent, hooks=[hooks]).invoke_async("go")

    said = ["".join(block["text"] for block in message["content"]) for message in model.seen]
    assert "part 1" in said[0]
    assert said[-1] == "and then?\n\nContext from hook 'out': by the way\n\nContext from hook 'in': part 0"
