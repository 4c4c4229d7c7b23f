"""Tools that come from elsewhere: opened for each run, closed at its end, whatever the run comes to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from hookline import (
    Agent,
    AgentSession,
    Approve,
    BeforeToolCall,
    Deny,
    Hooks,
    ModelResponse,
    ScriptedModel,
    Tool,
    ToolCall,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.errors import AgentDefinitionError

from .scenes import Recorder, ask, call, calls

pytestmark = pytest.mark.anyio


class Shelf:
    """A source that says when it is opened and closed."""

    toolset = "shelf"

    def __init__(self, *, fails: str = "", needs_approval: bool = False, gives: Any = None) -> None:
        self.log: list[str] = []
        self.fails, self.needs_approval, self.gives = fails, needs_approval, gives

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        self.log.append("open")
        await anyio.lowlevel.checkpoint()
        if self.fails == "open":
            raise ConnectionError("no shelf")
        yield self.gives or [self.tool()]
        self.log.append("close")
        if self.fails == "close":
            raise ConnectionError("it is stuck")

    def tool(self) -> Tool:
        async def take(args: Any) -> str:
            self.log.append(f"take {args['what']}")
            if args["what"] == "forever":
                await anyio.sleep_forever()
            return f"here is {args['what']}"

        return Tool(
            toolset="shelf",
            name="take",
            schema={"type": "object", "properties": {"what": {"type": "string"}}},
            run=take,
            needs_approval=self.needs_approval,
        )


def taking(shelf: Any, what: str = "tea", **more: Any) -> Agent:
    turns = [calls(call("take", what=what)), ModelResponse(content="done")]
    return Agent(id="a", model=ScriptedModel(turns), tools=[shelf], **more)


async def test_its_tools_are_offered_and_called_as_any_others() -> None:
    shelf, offered = Shelf(), []
    hooks = Hooks("seen")
    hooks.before(ToolCall)(lambda call: offered.append(f"{call.toolset}/{call.tool_name}"))

    result = await exec_agent(taking(shelf), "go", hooks=[hooks])

    assert shelf.log == ["open", "take tea", "close"]
    assert [message.content for message in result.messages if message.role == "tool"] == ["here is tea"]
    assert offered == ["shelf/take"]


async def test_its_calls_can_be_mocked_and_denied() -> None:
    shelf, hooks, guard = Shelf(), Hooks("mock"), Hooks("guard")
    hooks.on(BeforeToolCall, tool="shelf/*")(lambda event: event.mock("mocked"))
    guard.guard(ToolCall, tool="shelf/*")(lambda call: Deny("no"))

    mocked = await exec_agent(taking(shelf), "go", hooks=[hooks])
    denied = await exec_agent(taking(shelf), "go", hooks=[guard])

    assert shelf.log == ["open", "close"] * 2
    assert [run.messages[-2].content for run in (mocked, denied)] == ["mocked", "no"]


async def test_one_that_cannot_be_opened_ends_the_run_with_its_error() -> None:
    events = Recorder()

    result = await exec_agent(taking(Shelf(fails="open")), "go", hooks=[events.hooks])

    assert isinstance(result.error, ConnectionError)
    assert events.names() == ["onComplete", "onError"]


async def test_one_that_cannot_be_closed_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    result = await exec_agent(taking(Shelf(fails="close")), "go")

    assert result.reason == "done"
    assert "'shelf' could not be closed" in caplog.text


@pytest.mark.parametrize("gives", [["a tool?"], [print]])
async def test_one_that_gives_something_else_than_tools_is_told_so(gives: Any) -> None:
    result = await exec_agent(taking(Shelf(gives=gives)), "go")

    assert isinstance(result.error, AgentDefinitionError)
    assert "'shelf'" in str(result.error)


async def test_two_tools_of_one_name_are_refused_when_the_run_begins() -> None:
    shelf = Shelf()
    result = await exec_agent(
        Agent(id="a", model=ScriptedModel([ModelResponse(content="done")]), tools=[shelf, shelf.tool()]), "go"
    )

    assert isinstance(result.error, AgentDefinitionError)
    assert shelf.log == ["open", "close"]


async def test_an_interrupted_run_closes_it() -> None:
    shelf = Shelf()
    hooks = Hooks("stop")
    hooks.on(BeforeToolCall)(lambda event: interrupt(event.operation_id))

    result = await exec_agent(taking(shelf, "forever"), "go", hooks=[hooks])

    assert result.reason == "interrupted"
    assert shelf.log[-1] == "close"


async def test_a_cancelled_run_closes_it() -> None:
    shelf = Shelf()
    hooks = Hooks("stop")

    with anyio.CancelScope() as scope:
        hooks.on(BeforeToolCall)(lambda event: scope.cancel())
        await exec_agent(taking(shelf, "forever"), "go", hooks=[hooks])

    assert shelf.log[-1] == "close"


async def test_a_pause_closes_it_and_the_resumed_run_opens_it_again() -> None:
    shelf = Shelf(needs_approval=True)
    agent = taking(shelf)

    first = await exec_agent(agent, "go", operation_id="op")
    assert (first.reason, shelf.log) == ("waiting_for_human", ["open", "close"])

    second = await resume_agent(agent, "op", [Approve("t1")])
    assert (second.reason, shelf.log[2:]) == ("done", ["open", "take tea", "close"])


async def test_a_session_opens_it_once() -> None:
    shelf = Shelf()
    turns = [calls(call("take", what="tea")), ModelResponse(content="one"), ModelResponse(content="two")]

    async with AgentSession(Agent(id="a", model=ScriptedModel(turns), tools=[shelf])) as session:
        await session.run("first")
        await session.run("second")
        assert shelf.log == ["open", "take tea"]

    assert shelf.log == ["open", "take tea", "close"]


async def test_sub_agents_open_their_own() -> None:
    shelf = Shelf()
    turns = [calls(ask("a")), ModelResponse(content="done")]

    await exec_agent(Agent(id="boss", model=ScriptedModel(turns), sub_agents=[taking(shelf)]), "go")

    assert shelf.log == ["open", "take tea", "close"]


async def test_an_agent_shows_its_sources_and_its_own_tools() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    shelf = Shelf()
    agent = Agent(id="a", model=ScriptedModel([]), tools=[shelf, add])

    assert agent.sources == (shelf,)
    assert [spec.name for spec in agent.specs] == ["add"]
