"""Servers that do everything wrong: a run that cannot start says why, and a call that cannot be answered is a failure."""

from __future__ import annotations

import pickle
from pathlib import Path

import anyio
import pytest

from adapters.mcp_servers import alive, everything_read, raw, started
from hookline import AfterToolCall, Agent, Hooks, ModelResponse, OnComplete, ScriptedModel, ToolRequest, exec_agent
from hookline.adapters.mcp import McpServer, McpServerError, McpStartError, McpToolsError, mcp_server
from hookline.runtime import OperationResult

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"
SHORT = 0.4


@pytest.mark.parametrize(
    ("mode", "error", "said"),
    [
        ("exits", McpStartError, ["could not be started", "exit code 5", "cannot start with [redacted]"]),
        ("slow", McpStartError, ["was not ready within 0.4 s"]),
        ("never lists", McpStartError, ["within 0.4 s"]),
        ("other version", McpStartError, ["1999-01-01"]),
        ("exits when asked for tools", McpToolsError, ["exit code 7", "out of tools"]),
        ("unwilling", McpToolsError, ["no tools for [redacted]"]),
        ("no list", McpToolsError, ["not a list of tools"]),
        ("no tools", McpToolsError, ["lists no tools"]),
        ("twice", McpToolsError, ["lists 'a' more than once"]),
        ("nameless", McpToolsError, ["without a name"]),
        ("circle", McpToolsError, ["cycle"]),
    ],
)
async def test_a_server_that_cannot_be_used_ends_the_run_with_an_error_that_says_why(
    mode: str, error: type[McpServerError], said: list[str], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    timeout = SHORT if said[0].endswith("0.4 s") else 20.0
    server = raw(mode, notes, env={"RAW_KEY": KEY}, start_timeout=timeout)
    ends: list[OnComplete] = []
    hooks = Hooks("ends")
    hooks.on(OnComplete)(ends.append)

    result = await exec_agent(Agent(id="a", model=ScriptedModel([]), tools=[server]), "Go", hooks=[hooks])

    assert result.reason == "error"
    assert type(result.error) is error
    assert str(result.error).startswith("MCP server 'raw' ")
    assert all(part in str(result.error) for part in said), str(result.error)
    assert KEY not in repr(result) + str(ends) + repr(result.error)
    assert str(pickle.loads(pickle.dumps(result.error))) == str(result.error)
    assert [event.reason for event in ends] == ["error"]
    assert not any(alive(pid) for pid in started(notes)) if notes.exists() else mode == "slow"


async def test_a_command_that_is_not_there_ends_the_run_with_an_error(tmp_path: Path) -> None:
    for server in (mcp_server("x", command="no-such-program"), raw(cwd=tmp_path / "nowhere"), raw(cwd=__file__)):
        with pytest.raises(McpStartError, match="could not be started"):
            async with server.open():
                pass


async def called(server: McpServer, *modes: str) -> tuple[OperationResult, list[AfterToolCall]]:
    """A run that makes a call in each mode, all in one step, and then goes on."""
    heard: list[AfterToolCall] = []
    hooks = Hooks("ears")
    hooks.on(AfterToolCall)(heard.append)
    callings = [ToolRequest(toolset="raw", tool_name="act", args={"mode": m}, tool_call_id=m) for m in modes]
    model = ScriptedModel([ModelResponse(tool_calls=callings), ModelResponse(content="went on")])
    result = await exec_agent(Agent(id="a", model=model, tools=[server]), "Go", hooks=[hooks])
    return result, heard


async def test_calls_that_are_answered_wrongly_are_failed_results_and_the_run_goes_on() -> None:
    wrong = {
        "hangs": ("timeout", "did not answer within 0.4 s"),
        "wrong ids": ("timeout", "did not answer within 0.4 s"),
        "no result": ("invalid", "not a tool result"),
        "no json-rpc": ("invalid", "not a JSON-RPC response"),
        "bad utf-8": ("invalid", "not a JSON-RPC response"),
        "error": ("refused", "refused the call: not with [redacted]"),
        "tool error": (None, "not with [redacted]"),
    }

    result, heard = await called(raw(env={"RAW_KEY": KEY}, timeout=SHORT), *wrong, "empty", "answers twice", "good")

    assert (result.reason, result.output) == ("done", "went on")
    by_mode = {event.tool_call_id: event for event in heard}
    for mode, (kind, said) in wrong.items():
        assert not by_mode[mode].success
        assert said in by_mode[mode].content
        assert by_mode[mode].metadata == ({"mcp_fault": kind} if kind else {})
    assert [by_mode[mode].success for mode in ("empty", "answers twice", "good")] == [True, True, True]
    assert KEY not in str(heard) + repr(result)


@pytest.mark.parametrize(
    ("mode", "kind", "said"),
    [
        ("sleeps", "timeout", "did not answer within 0.1 s"),
        ("flood", "timeout", "did not answer within 0.1 s"),
        ("chatter", "timeout", "did not answer within 0.1 s"),
        ("dies", "ended", "cannot go on with [redacted]"),
        ("half", "ended", "exit code 0"),
        ("endless line", "ended", "a line of more than 64 MiB"),
    ],
)
async def test_a_server_that_breaks_fails_its_call_only_and_is_ended(
    mode: str, kind: str, said: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    timeout = 0.1 if kind == "timeout" else 20.0

    result, (event,) = await called(raw("good", notes, env={"RAW_KEY": KEY}, timeout=timeout, stop_timeout=0.05), mode)

    assert (result.reason, result.output) == ("done", "went on")
    assert not event.success
    assert said in event.content
    assert event.metadata == {"mcp_fault": kind}
    assert KEY not in str(event) + repr(result)
    assert not any(alive(pid) for pid in started(notes))


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with raw("hangs", notes, timeout=0.1).open() as (act, _):
        await act.run({})

    assert notes.read_text().splitlines()[1:] == ["call act {}", "cancelled"]


@pytest.mark.parametrize("mode", ["garbage", "pages"])
async def test_what_is_odd_but_can_be_understood_is_no_fault(mode: str) -> None:
    async with raw(mode).open() as tools:
        results = [await tools[0].run({"a": 2**80}) for _ in range(3)]

    assert [tool.name for tool in tools] == (["page0", "page1", "page2"] if mode == "pages" else ["act", "look"])
    assert all(result.success for result in results)
    assert str(2**80) in results[0].content


async def test_ten_megabytes_are_a_result() -> None:
    async with raw("large").open() as (act, _):
        result = await act.run({})

    assert result.content == "ä" * 5_000_000


async def test_arguments_that_json_has_not_fail_their_call_only() -> None:
    wrong = [{"a": float("nan")}, {"a": "\ud800"}, {"a": object()}, {"a": {3}}]

    async with raw().open() as (act, _):
        failed = [await act.run(args) for args in wrong]
        then = await act.run({})

    assert all("the arguments are not JSON" in result.content for result in failed)
    assert then.success


async def test_a_server_that_has_gone_between_two_calls_is_started_again(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with raw("leaves", notes).open() as (act, _):
        first = await act.run({})
        with anyio.fail_after(10):
            while alive(started(notes)[0]):
                await anyio.sleep(0.001)
        await everything_read()
        second = await act.run({})

    assert (first.success, second.success) == (True, True)
    assert len(started(notes)) == 2
    assert not any(alive(pid) for pid in started(notes))


async def test_one_that_does_not_start_again_fails_each_call(tmp_path: Path) -> None:
    async with raw("exits the second time", tmp_path / "notes").open() as (act, _):
        results = [await act.run({}) for _ in range(3)]

    assert [result.metadata["mcp_fault"] for result in results] == ["ended", "start", "start"]
    assert "exit code 6" in results[1].content


async def test_a_tool_that_has_gone_in_the_middle_of_a_run_fails_its_calls() -> None:
    async with raw("changes").open() as (act, _):
        results = [await act.run({}) for _ in range(2)]

    assert [result.success for result in results] == [True, False]
    assert "Unknown tool: act" in results[1].content


async def test_tools_that_have_changed_are_listed_again_for_the_next_run() -> None:
    async with raw("changes") as server:
        async with server.open() as tools:
            await tools[0].run({})
        await anyio.wait_all_tasks_blocked()
        async with server.open() as later:
            pass

    assert [tool.name for tool in later] == ["other"]


async def test_tools_that_could_not_be_listed_once_are_listed_again() -> None:
    async with raw("changes and refuses") as server:
        async with server.open() as tools:
            await tools[0].run({})
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(McpToolsError, match="not now"):
            async with server.open():
                pass
        async with server.open() as later:
            pass

    assert [tool.name for tool in later] == ["other"]


@pytest.mark.parametrize("given", [{"tools": ["a*", "nothing"]}, {"needs_approval": ["nothing"]}])
async def test_a_glob_that_matches_no_tool_is_an_error(given: dict[str, list[str]]) -> None:
    with pytest.raises(McpToolsError, match=r"has no tool that matches 'nothing' in .* It has \['act', 'look'\]"):
        async with raw(**given).open():
            pass
