"""A hook of a coding agent reads what its host would have sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline.dialects import DIALECTS, HOST_EVENTS, build_question, events_at, find_event, host_tool_name
from hookline.registry import POINTS, build_sample
from hookline.webhooks import to_camel
from tests.tables import for_each

NONE = "\u2013"
"""How the reference says that a host has no such event."""
BASH = {"operationId": "op", "identifier": "local", "apiName": "Bash", "args": {"command": "ls"}, "toolCallId": "t1"}
NOTE = BASH | {"identifier": "my_memory", "apiName": "add_note"}


def document(dialect: str, point: str, wire: dict[str, Any], result: dict[str, Any] | None = None, **more: Any) -> Any:
    return build_question(DIALECTS[dialect], point, wire, result, cwd="/home/me", **more).document


def test_claude_and_codex_read_the_same_keys() -> None:
    expected = {
        "session_id": "op",
        "transcript_path": "",
        "cwd": "/home/me",
        "hook_event_name": "PreToolUse",
        "permission_mode": "default",
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
        "tool_use_id": "t1",
    }

    assert document("claude", "ToolCall.before", BASH) == document("codex", "ToolCall.before", BASH) == expected


def test_gemini_reads_its_own_names_and_a_time() -> None:
    asked = document("gemini", "ToolCall.before", NOTE)

    assert asked.pop("timestamp").endswith("Z")
    assert asked == {
        "session_id": "op",
        "transcript_path": "",
        "cwd": "/home/me",
        "hook_event_name": "BeforeTool",
        "tool_name": "mcp_my_memory_add_note",
        "tool_input": {"command": "ls"},
        "mcp_context": {"server_name": "my_memory", "tool_name": "add_note"},
    }


def test_copilot_reads_camel_case_and_no_event() -> None:
    asked = document("copilot", "ToolCall.after", BASH, {"content": "a.txt", "success": True})

    assert isinstance(asked.pop("timestamp"), int)
    assert asked == {
        "sessionId": "op",
        "transcriptPath": "",
        "cwd": "/home/me",
        "toolName": "Bash",
        "toolArgs": {"command": "ls"},
        "toolResult": {"resultType": "success", "textResultForLlm": "a.txt"},
    }


def test_tools_of_servers_are_named_as_the_host_names_them() -> None:
    assert host_tool_name(DIALECTS["claude"], "memory", "add") == "mcp__memory__add"
    assert host_tool_name(DIALECTS["gemini"], "memory", "add") == "mcp_memory_add"
    assert host_tool_name(DIALECTS["claude"], "local", "Bash") == "Bash"
    assert host_tool_name(DIALECTS["claude"], "claude_code", "Bash") == "Bash"


def test_the_result_of_a_tool_and_its_failure_are_two_events_in_claude_and_one_in_codex_and_gemini() -> None:
    failed = {"content": "boom", "success": False}

    assert document("claude", "ToolCall.after", BASH, {"content": "a"})["tool_response"] == "a"
    failure = document("claude", "ToolCall.after", BASH, failed)
    assert (failure["hook_event_name"], failure["error"]) == ("PostToolUseFailure", "boom")
    assert document("codex", "ToolCall.after", BASH, failed)["tool_response"] == "boom"
    assert document("gemini", "ToolCall.after", BASH, failed)["tool_response"] == {
        "llmContent": "boom",
        "returnDisplay": "boom",
    }


@pytest.mark.parametrize("point", ["beforeToolCall", "ToolCall.before", "ToolCall.guard"])
def test_a_tool_call_of_a_sub_agent_belongs_to_the_session_of_its_parent(point: str) -> None:
    asked = document("claude", point, BASH | {"parentOperationId": "top", "agentId": "coder"})

    assert (asked["session_id"], asked["agent_id"], asked["agent_type"]) == ("top", "op", "coder")


def test_copilot_names_a_sub_agent_in_its_own_keys() -> None:
    asked = document("copilot", "ToolCall.before", BASH | {"parentOperationId": "top", "agentId": "coder"})
    started = document("copilot", "SubAgentCall.before", {"operationId": "op", "calleeId": "coder", "instruction": ""})

    assert (asked["sessionId"], asked["agentId"], asked["agentType"]) == ("top", "op", "coder")
    assert (started["agentType"], started["agentName"]) == ("coder", "coder")


def test_the_prompt_is_what_users_wrote() -> None:
    wire = {"operationId": "op", "input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}

    assert document("claude", "AgentCall.before", wire)["prompt"] == "a\n\nb"
    stopped = document("gemini", "AgentCall.after", wire, {"output": "done", "reason": "done"}, stop_hook_active=True)
    assert (stopped["prompt"], stopped["prompt_response"], stopped["stop_hook_active"]) == ("a\n\nb", "done", True)


@for_each("dialect", DIALECTS)
@for_each("name", POINTS)
def test_every_point_with_an_event_has_a_question_that_is_json(dialect: str, name: str) -> None:
    point = POINTS[name]
    for event in events_at(DIALECTS[dialect], name):
        sample = build_sample(point, {}, "")
        wire = msgspec.to_builtins(sample.subject, enc_hook=str)
        wire = {to_camel(key): value for key, value in wire.items()}
        result = None if sample.result is None else msgspec.to_builtins(sample.result, enc_hook=str)
        question = build_question(DIALECTS[dialect], name, wire, result, host_event=event.name)
        msgspec.json.encode(question.document)
        assert question.event is event
        assert (question.subject != "") <= (event.subject != "")


def test_what_a_matcher_is_compared_with_depends_on_the_event() -> None:
    claude = DIALECTS["claude"]
    delegate = {"operationId": "op", "calleeId": "coder", "instruction": "write"}

    assert build_question(claude, "ToolCall.before", NOTE).subject == "mcp__my_memory__add_note"
    assert build_question(claude, "SubAgentCall.before", delegate).subject == "coder"
    assert build_question(claude, "SubAgentCall.before", delegate, host_event="PreToolUse").subject == "Agent"
    assert build_question(claude, "CompactCall.before", {"operationId": "op"}).subject == "auto"
    assert build_question(claude, "AgentCall.before", {"operationId": "op", "input": []}).subject == ""


def test_the_table_speaks_of_points_and_events_that_exist() -> None:
    for event in HOST_EVENTS.values():
        assert event.points <= set(POINTS)
        assert not event.observer or POINTS[event.observer].event is not None
    for dialect in DIALECTS.values():
        assert set(dialect.events) <= set(HOST_EVENTS)


def test_the_reference_has_every_event_with_its_points_and_names() -> None:
    page = Path(__file__).parents[2] / "docs/reference/hook-dialects.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith('| `"')]

    for event in HOST_EVENTS.values():
        row = next(row for row in rows if row.startswith(f'| `"{event.name}"`'))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        for name, cell in (("gemini", cells[1]), ("copilot", cells[2])):
            assert cell.strip('`"') == DIALECTS[name].events.get(event.name, NONE)
        assert ("not in Codex" in cells[0]) is (event.name not in DIALECTS["codex"].events)
        assert set(re.findall(r"[A-Za-z]+(?:\.\w+)?", cells[3])) >= {event.point, *event.others}
        assert cells[4].strip("`") == (event.observer or NONE)


def test_an_event_is_found_by_the_hosts_name_and_by_claudes() -> None:
    found = find_event(DIALECTS["gemini"], "BeforeTool")
    assert found is HOST_EVENTS["PreToolUse"] is find_event(DIALECTS["gemini"], "PreToolUse")
    assert find_event(DIALECTS["codex"], "PostToolUseFailure") is None
    assert find_event(DIALECTS["claude"], "WorktreeCreate") is None
