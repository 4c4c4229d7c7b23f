"""`Guide` and `add_context` in LangChain: streams, contents that are not text, commands, continued runs."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command

from hookline import AgentCall, Continue, Guide, Hooks, ModelCall, ToolCall
from hookline.adapters.langchain import HooklineMiddleware, hooked

from .stage import Script
from .test_langchain import GO, calls, says
from .test_told_truly import Speaking

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Learning(Speaking):
    """Says `secret words` until it reads `be quiet`."""

    def turn(self, messages: Any) -> AIMessage:
        told = any("be quiet" in message.text for message in messages)
        return AIMessage("quiet words" if told else "secret words")


def manners() -> Hooks:
    hooks = Hooks("manners")
    hooks.after(ModelCall)(lambda call, answer: Guide("be quiet") if "secret" in answer.content else None)
    return hooks


@pytest.mark.parametrize("mode", ["messages", "updates", "values", "debug"])
async def test_nothing_of_a_discarded_answer_is_streamed(mode: Any) -> None:
    agent = create_agent(Learning(turns=[]), [], middleware=[HooklineMiddleware()])

    chunks = [chunk async for chunk in hooked(agent, hooks=[manners()]).astream(GO, stream_mode=mode)]

    assert ("quiet" in repr(chunks), "secret" in repr(chunks)) == (True, False)


@tool
def look() -> Any:
    """Look."""
    return [{"type": "text", "text": "a cat"}, {"type": "image", "base64": "AA==", "mime_type": "image/png"}]


@tool
def hand_over(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Hand over."""
    return Command(update={"messages": [ToolMessage("handed over", tool_call_id=tool_call_id)]})


@pytest.mark.parametrize(("made", "kept"), [(look, "image"), (hand_over, "handed over")])
async def test_a_tool_keeps_all_that_it_returned(made: Any, kept: str) -> None:
    hooks = Hooks("adding")
    hooks.before(ToolCall, id="hook")(lambda call: call.add_context("cats bite"))
    turns = [calls(made.name), says("done")]
    agent = create_agent(Script(turns=turns), [made], middleware=[HooklineMiddleware()])

    result = await hooked(agent, hooks=[hooks]).ainvoke(GO)

    (message,) = [each for each in result["messages"] if isinstance(each, ToolMessage)]
    assert kept in repr(message.content)
    assert message.text.endswith("Context from hook 'hook': cats bite")


async def test_a_continued_run_reads_what_is_added_before_and_after_it() -> None:
    hooks, left, asked = Hooks("adding"), ["and then?"], list[str]()
    hooks.before(AgentCall, id="in")(lambda call: call.add_context(f"part {len(left)}"))
    hooks.after(AgentCall, id="out")(lambda call, result: call.add_context("by the way"))
    hooks.after(AgentCall, id="more", priority=200)(lambda call, result: Continue(left.pop()) if left else None)
    agent = create_agent(Script(turns=[says("one")], asked=asked), [], middleware=[HooklineMiddleware()])

    result = await hooked(agent, hooks=[hooks]).ainvoke(GO)

    said = [message.text for message in result["messages"] if isinstance(message, HumanMessage)]
    assert said[1:] == [
        "Context from hook 'in': part 1",
        "and then?\n\nContext from hook 'out': by the way",
        "Context from hook 'in': part 0",
    ]
    assert "part 0" in asked[1]
