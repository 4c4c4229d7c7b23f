"""The tools of a loop: how they run, and what the model is told."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline import (
    AfterStep,
    AfterToolCall,
    BeforeToolCall,
    Deny,
    Event,
    Hooks,
    ModelResponse,
    OnComplete,
    OnToolCallError,
    ToolCall,
    ToolRequest,
    tool,
)
from hookline.errors import HookUsageError, RunStopped
from hookline.runtime import interrupt
from tests.adapters.provider import function, says

from .conftest import Way
from .dialects import CHAT, MESSAGES
from .stage import settled


def asks(*requests: ToolRequest) -> ModelResponse:
    return ModelResponse(content="let me see", tool_calls=list(requests))


DONE = ModelResponse(content="done")


async def told(way: Way, *requests: ToolRequest, tools: Any, hooks: Any = ()) -> list[str]:
    way.provider.script(way.dialect.says(asks(*requests)), way.dialect.says(DONE))
    async with way.wrapped(hooks, tools) as run:
        return way.dialect.results(await way.loop(run))


@pytest.mark.anyio
async def test_arguments_are_coerced_and_results_become_text(way: Way) -> None:
    def double(n: int) -> dict[str, int]:
        return {"twice": n * 2}

    assert await told(way, ToolRequest("double", {"n": "4"}, tool_call_id="c1"), tools=[double]) == ['{"twice":8}']


@pytest.mark.anyio
async def test_what_cannot_run_is_told_to_the_model(way: Way) -> None:
    def fail() -> None:
        raise ValueError("broken")

    found = await told(
        way,
        ToolRequest("fail", tool_call_id="c1"),
        ToolRequest("nothing", tool_call_id="c2"),
        ToolRequest("fail", {"x": 1}, tool_call_id="c3"),
        tools={"fail": fail},
    )
    assert found == [
        "ValueError: broken",
        "UnknownToolError: There is no tool 'local/nothing'. Tools: local/fail.",
        "ToolArgumentsError: Invalid arguments for fail: unknown 'x'; it takes nothing",
    ]


@pytest.mark.anyio
async def test_two_calls_with_one_id_both_run(way: Way) -> None:
    def echo(text: str) -> str:
        return text

    requests = [ToolRequest("echo", {"text": text}, tool_call_id="same") for text in ("one", "two")]
    assert await told(way, *requests, tools=[echo]) == ["one", "two"]


@pytest.mark.anyio
async def test_arguments_that_are_no_json_are_told_to_the_model(provider: Any, sync: bool) -> None:
    way = Way(CHAT, provider, sync=sync)
    provider.script(says(None, function("echo", '{"text": ', "c1")), says("done"))

    async with way.wrapped((), {"echo": lambda text: text}) as run:
        (result,) = CHAT.results(await way.loop(run))
    assert result.startswith("ToolArgumentsError: Invalid arguments for echo: not JSON")


@pytest.mark.anyio
async def test_a_failed_result_is_marked_for_anthropic(provider: Any, sync: bool) -> None:
    way = Way(MESSAGES, provider, sync=sync)
    provider.script(MESSAGES.says(asks(ToolRequest("nothing", tool_call_id="c1"))))

    async with way.wrapped() as run:
        (message,) = await settled(run.call_tools(await way.ask(run)))
    assert message["role"] == "user"
    assert message["content"][0]["is_error"] is True


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False], ids=["async"])
async def test_async_tools_of_one_answer_overlap(way: Way) -> None:
    inside, most = 0, 0

    async def wait(n: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.sleep(0.01)
        inside -= 1
        return n

    requests = [ToolRequest("wait", {"n": n}, tool_call_id=f"c{n}") for n in range(3)]
    assert await told(way, *requests, tools=[wait]) == ["0", "1", "2"]
    assert most == 3


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [True], ids=["sync"])
async def test_plain_tools_of_a_sync_loop_run_in_the_thread_of_the_caller(way: Way) -> None:
    database = sqlite3.connect(":memory:")  # refuses every other thread
    here = threading.local()
    here.name = "mine"

    def look_up() -> str:
        return f"{here.name} {database.execute('select 1').fetchone()[0]}"

    assert await told(way, ToolRequest("look_up", tool_call_id="c1"), tools=[tool(look_up)]) == ["mine 1"]
    database.close()


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [True, "alone"], ids=["sync", "alone"])
@pytest.mark.filterwarnings("error")
async def test_a_plain_tool_of_a_sync_loop_that_returns_an_awaitable_is_told_to_the_model(way: Way) -> None:
    async def late() -> str:
        return "late"

    def soon() -> Any:
        return late()

    assert await told(way, ToolRequest("soon", tool_call_id="c1"), tools=[soon]) == [
        "HookUsageError: This tool is a plain function that returned an awaitable. Make it an `async def`."
    ]


def observers(*events: type[Event], is_async: bool) -> tuple[Hooks, list[Any]]:
    """Return plain observers, and the events that they saw; beside them an async one if the run is to need a task."""
    hooks, seen = Hooks("watch"), list[Any]()
    for event in events:
        hooks.on(event)(seen.append)
    if is_async:

        @hooks.on(AfterStep, id="async")
        async def wait(event: AfterStep) -> None:
            await anyio.lowlevel.checkpoint()

    return hooks, seen


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [True, "alone"], ids=["sync", "alone"])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_ctrl_c_in_a_tool_ends_a_sync_run(way: Way, is_async: bool) -> None:
    watch, seen = observers(OnToolCallError, OnComplete, is_async=is_async)

    def press() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await told(way, ToolRequest("press", tool_call_id="c1"), tools=[press], hooks=[watch])
    failed, ended = seen
    assert (failed.error_type, ended.reason) == ("Interrupted", "interrupted")
    assert "hookline-portal" not in {each.name for each in threading.enumerate()}


@pytest.mark.anyio
@pytest.mark.parametrize("sync", ["alone"])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_a_plain_tool_that_interrupts_its_run_ends_it(way: Way, is_async: bool) -> None:
    watch, seen = observers(BeforeToolCall, AfterToolCall, OnComplete, is_async=is_async)
    watch.after(ToolCall)(lambda call, result: None)

    def stop() -> str:
        assert interrupt(seen[0].operation_id)
        return "stopped"

    with pytest.raises(RunStopped, match="interrupted"):
        await told(way, ToolRequest("stop", tool_call_id="c1"), tools=[stop], hooks=[watch])
    _, after, ended = seen
    assert (after.content, ended.reason) == ("stopped", "interrupted")
    assert "hookline-portal" not in {each.name for each in threading.enumerate()}


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [True], ids=["sync"])
async def test_a_hook_that_exits_ends_a_sync_run(way: Way) -> None:
    exits = Hooks("exits")

    @exits.guard(ToolCall)
    def leave(call: ToolCall) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await told(way, ToolRequest("echo", tool_call_id="c1"), tools={"echo": lambda: ""}, hooks=[exits])
    assert "hookline-portal" not in {each.name for each in threading.enumerate()}


@pytest.mark.anyio
async def test_a_denial_that_stops_ends_the_run(way: Way) -> None:
    denies = Hooks("denies")
    denies.guard(ToolCall, id="no")(lambda call: Deny("enough", stop=True))

    with pytest.raises(RunStopped, match="enough") as stopped:
        await told(way, ToolRequest("echo", tool_call_id="c1"), tools={"echo": lambda: ""}, hooks=[denies])
    assert stopped.value.hook_id == "no"


@pytest.mark.anyio
async def test_the_calls_of_an_answer_run_once(way: Way) -> None:
    ran: list[int] = []
    way.provider.script(way.dialect.says(asks(ToolRequest("count", tool_call_id="c1"))))

    async with way.wrapped((), {"count": lambda: ran.append(1)}) as run:
        response = await way.ask(run)
        await settled(run.call_tools(response))
        with pytest.raises(HookUsageError, match="has run already"):
            await settled(run.call_tools(response))
    assert ran == [1]


@pytest.mark.anyio
async def test_one_call_may_run_alone(way: Way) -> None:
    way.provider.script(way.dialect.says(asks(ToolRequest("one", tool_call_id="c1"))))

    async with way.wrapped((), {"one": lambda: "1"}) as run:
        (call,) = way.dialect.calls(await way.ask(run))
        result = await settled(run.call_tool(call))
    assert "1" in (result.get("content"), result.get("output"))


@pytest.mark.anyio
async def test_the_schemas_of_the_tools_are_those_that_the_client_takes(way: Way) -> None:
    def search(query: str) -> str:
        """Search the web."""
        return query

    way.provider.script(way.dialect.says(DONE))

    async with way.wrapped((), [search]) as run:
        await way.ask(run, tools=way.dialect.tools(run))
    (sent,) = way.provider.bodies[0]["tools"]
    described = sent.get("function", sent)
    assert (described["name"], described["description"]) == ("search", "Search the web.")
    schema = described.get("parameters") or described["input_schema"]
    assert schema["properties"] == {"query": {"type": "string"}}
