"""The processes of servers: how long they live, who shares them, and that none is ever left behind."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from adapters.mcp_servers import alive, raw, started
from hookline import Agent, AgentSession, BeforeToolCall, Hooks, ModelResponse, ScriptedModel, ToolRequest, exec_agent
from hookline.adapters.mcp import McpServer
from hookline.errors import HookUsageError
from hookline.runtime import interrupt

pytestmark = pytest.mark.anyio


def agent(server: McpServer, calls: int = 1) -> Agent:
    calling = [ToolRequest(toolset="raw", tool_name="act", tool_call_id=f"t{n}") for n in range(calls)]
    return Agent(id="a", model=ScriptedModel([ModelResponse(tool_calls=calling), ModelResponse()]), tools=[server])


async def gone(notes: Path) -> bool:
    """Whether every process that was noted ends."""
    with anyio.move_on_after(5):
        while any(alive(pid) for pid in started(notes)):
            await anyio.sleep(0.005)
        return True
    return False


async def until(notes: Path, line: str) -> None:
    with anyio.fail_after(10):
        while not notes.exists() or line not in notes.read_text():
            await anyio.sleep(0.005)


async def test_each_run_has_a_process_of_its_own(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    server = raw(notes=notes)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(exec_agent, agent(server), "Go")

    assert len(started(notes)) == 3
    assert not any(alive(pid) for pid in started(notes))


async def test_runs_share_a_server_that_is_kept_open(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    results = []

    async def go(server: McpServer) -> None:
        results.append(await exec_agent(agent(server, calls=5), "Go"))

    async with raw(notes=notes) as server:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(go, server)
        (pid,) = started(notes)
        assert alive(pid)

    assert [result.reason for result in results] == ["done"] * 5
    assert not alive(pid)
    await exec_agent(agent(server), "Go")
    assert len(started(notes)) == 2


async def test_a_session_keeps_its_server_from_task_to_task(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    model = ScriptedModel(
        [ModelResponse(tool_calls=[ToolRequest(tool_name="act", tool_call_id="t")]), ModelResponse()] * 2
    )
    async with AgentSession(Agent(id="a", model=model, tools=[raw(notes=notes)])) as session:
        assert [(await session.run("Go")).reason for _ in range(2)] == ["done", "done"]

    assert len(started(notes)) == 1
    assert not any(alive(pid) for pid in started(notes))


async def test_a_server_is_kept_open_once() -> None:
    async with raw() as server:
        with pytest.raises(HookUsageError, match="already open"):
            async with server:
                pass
        async with server.open() as tools:
            assert (await tools[0].run({})).success

    async with server, server.open() as tools:
        assert (await tools[0].run({})).success


async def test_a_run_on_another_event_loop_has_a_process_of_its_own(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    async with raw(notes=notes) as server:
        result = await anyio.to_thread.run_sync(anyio.run, exec_agent, agent(server), "Go")

    assert result.reason == "done", result.error
    assert len(started(notes)) == 2


async def test_calls_fail_once_their_server_is_closed() -> None:
    async with raw() as server:
        opening = server.open()
        tools = await opening.__aenter__()
    result = await tools[0].run({})
    await opening.__aexit__(None, None, None)

    assert "is closed" in result.content


@pytest.mark.parametrize("mode", ["hangs", "sleeps", "flood"])
async def test_an_interrupted_run_returns_at_once_and_leaves_no_process(mode: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    async with anyio.create_task_group() as group:
        results = []

        async def go() -> None:
            server = raw(mode, notes, stop_timeout=600)
            results.append(await exec_agent(agent(server), "Go", operation_id=f"stopped {mode}"))

        group.start_soon(go)
        await until(notes, "call")
        with anyio.fail_after(5):
            assert interrupt(f"stopped {mode}")
            while not results:
                await anyio.sleep(0.001)

    assert results[0].reason == "interrupted"
    assert await gone(notes)


@pytest.mark.parametrize("mode", ["slow", "hangs", "never lists"])
async def test_a_cancelled_run_leaves_no_process(mode: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(exec_agent, agent(raw(mode, notes, stop_timeout=600)), "Go")
            await until(notes, "call" if mode == "hangs" else "start")
            group.cancel_scope.cancel()

    assert await gone(notes)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_process_whose_start_is_cancelled_is_waited_for(backend: str) -> None:
    async def open_it(steps: int) -> None:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()

            group.start_soon(cancel)
            async with raw().open():
                pass

    for steps in range(15):
        anyio.run(open_it, steps, backend=backend)
        gc.collect()  # a process that nobody waited for warns when it is forgotten


async def test_a_failing_body_gets_its_own_error_back(tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    with pytest.raises(KeyError, match="mine"):
        async with raw(notes=notes).open():
            raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"):
        async with raw(notes=notes):
            raise KeyError("mine")

    assert not any(alive(pid) for pid in started(notes))


@pytest.mark.parametrize("mode", ["family", "stubborn"])
async def test_a_server_ends_with_its_children_however_much_it_resists(mode: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"

    async with raw(mode, notes, stop_timeout=0.1).open():
        assert alive(started(notes)[0])

    assert await gone(notes)


async def test_parallel_calls_overlap_and_each_gets_its_own_answer() -> None:
    results: dict[int, Any] = {}

    async with raw(notes=None).open() as (act, _), anyio.create_task_group() as group:

        async def call(number: int) -> None:
            results[number] = await act.run({"number": number})

        for number in range(50):
            group.start_soon(call, number)

    assert all(f'{{"number": {number}}}' in result.content for number, result in results.items())
    assert len(results) == 50


async def test_a_cancelled_run_tells_a_server_that_is_kept_open(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    hooks = Hooks("impatient")
    heard: list[str] = []
    hooks.on(BeforeToolCall)(lambda event: heard.append(event.toolset))

    async with raw("hangs", notes) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(exec_agent, agent(server), "Go", hooks=[hooks]))
            await until(notes, "call")
            group.cancel_scope.cancel()
        await until(notes, "cancelled")  # the server goes on, and knows

    assert heard == ["raw"]


async def test_what_a_server_writes_to_stderr_does_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    async with raw("dies").open() as (act, _):
        result = await act.run({})

    assert "cannot go on with None" in result.content
    assert capfd.readouterr() == ("", "")


async def test_a_server_gets_only_the_environment_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "ours")
    async with raw("environment", env={"MINE": "ä=1"}).open() as (act, _):
        result = await act.run({})

    assert "OPENAI_API_KEY" not in result.content
    assert '"MINE": "\\u00e4=1"' in result.content
    assert '"PATH"' in result.content
