"""Verdicts of one policy in the words of each coding agent, from recorded frames through the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hookline.hosts import HOSTS
from tests.hosts.installed import Installed, frames, installed

DENIED: dict[str, Any] = {
    "claude": lambda reason: {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    },
    "gemini": lambda reason: {"decision": "deny", "reason": reason},
    "cursor": lambda reason: {"permission": "deny", "user_message": reason, "agent_message": reason},
    "copilot": lambda reason: {"permissionDecision": "deny", "permissionDecisionReason": reason},
}
DENIED["codex"] = DENIED["claude"]
CHANGED: dict[str, Any] = {
    "claude": lambda args: {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": args}},
    "codex": lambda args: {
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": args}
    },
    "gemini": lambda args: {"hookSpecificOutput": {"hookEventName": "BeforeTool", "tool_input": args}},
    "cursor": lambda args: {"permission": "allow", "updated_input": args},
    "copilot": lambda args: {"permissionDecision": "allow", "modifiedArgs": args},
}


def _output(text: str) -> dict[str, Any]:
    """The result of the shell as Claude Code expects it; in another shape it is ignored."""
    return {"stdout": text, "stderr": "", "interrupted": False}


@pytest.fixture(scope="module", params=HOSTS)
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with installed(tmp_path_factory.mktemp("h"), request.param) as made:
        yield made


def test_a_session_without_a_denial_gets_no_answer_at_all(host: Installed) -> None:
    answers = [host.ask(event, frame) for event, frame in frames(host.host.name)]

    assert {tuple(each) for each in answers} == {(0, "", "")}


def test_a_denial_and_its_reason_are_written_in_the_hosts_words(host: Installed) -> None:
    answer = host.bash("deny this")

    assert (answer.code, answer.err) == (0, "")
    assert answer.json == DENIED[host.host.name]("not on my machine")


def test_changed_arguments_are_written_in_the_hosts_words(host: Installed) -> None:
    _, frame = host.shell("please change it")

    answer = host.bash("please change it")

    given = frame.get("toolArgs", frame.get("tool_input"))
    assert answer.json == CHANGED[host.host.name]({**given, "command": "echo changed"})


def test_a_hook_that_crashes_denies(host: Installed) -> None:
    answer = host.bash("crash now")

    assert answer.json == DENIED[host.host.name]("the hook failed, and it fails closed: RuntimeError: boom")


def test_a_hook_that_floods_denies_with_the_beginning_of_its_reason(host: Installed) -> None:
    answer = host.bash("flood it")

    assert len(answer.out) < 40_000
    assert "(50000000 characters)" in answer.out


def test_a_stop_also_denies_every_later_call_of_the_turn(host: Installed) -> None:
    first = host.bash("stop here", session="s-stop")
    second = host.bash("echo harmless", session="s-stop")

    assert "enough" in first.out
    assert "The run was stopped: enough" in second.out


def test_only_hosts_that_can_ask_are_told_to(host: Installed) -> None:
    answer = host.bash("ask first", session="s-ask")

    if host.host.name == "claude":
        assert answer.json["hookSpecificOutput"]["permissionDecision"] == "ask"
        assert answer.json["hookSpecificOutput"]["permissionDecisionReason"] == "May it run?"
    else:
        assert '"ask"' not in answer.out
        assert "deny" in answer.out
        assert "Nobody can be asked here" in answer.out


def test_an_event_that_is_no_json_denies_where_a_call_is_judged_and_says_nothing_elsewhere(host: Installed) -> None:
    judged = next(event for event in host.host.installed if host.host.judges(event))
    told = [event for event in host.host.installed if not host.host.judges(event)]

    for broken in (b"", b"nonsense", b"[1]", b'{"tool_name": 1', b"{}", b'{"a":' * 5000):
        assert "does not understand" in host.ask(judged, broken).out
    for event in told:
        assert host.ask(event, b"nonsense") == (0, "", "")


def test_half_of_a_surrogate_pair_is_no_obstacle(host: Installed) -> None:
    event, frame = host.shell("deny PLACE")

    answer = host.ask(event, json.dumps(frame).replace("PLACE", "\\ud83d").encode())

    assert "not on my machine" in answer.out


def test_a_prompt_that_hooks_deny_is_refused_where_the_host_can(host: Installed) -> None:
    name = host.host.name
    event, frame = next(each for each in frames(name) if "prompt" in each[1])

    answer = host.ask(event, {**frame, "prompt": "a bad prompt"})

    expected = {
        "claude": {"decision": "block", "reason": "ask something else"},
        "codex": {"decision": "block", "reason": "ask something else"},
        "gemini": {"decision": "deny", "reason": "ask something else"},
        "cursor": {"continue": False, "user_message": "ask something else"},
        "copilot": {"decision": "block", "reason": "ask something else"},
    }
    assert answer.json == expected[name]


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_an_agent_that_would_stop_goes_on_three_times_and_no_more(name: str, tmp_path: Any) -> None:
    prompt, stop = {"gemini": ("BeforeAgent", "AfterAgent")}.get(name, ("UserPromptSubmit", "Stop"))
    recorded = dict(reversed(frames(name)))  # the first of each event: the session's own agent's
    key = "prompt_response" if name == "gemini" else "last_assistant_message"

    with installed(tmp_path, name) as host:
        host.ask(prompt, recorded[prompt])
        answers = []
        for _ in range(5):
            answers.append(host.ask(stop, {**recorded[stop], key: "not finished"}).json)
            if name == "gemini" and answers[-1]:  # it tells what it goes on with as a prompt
                host.ask(prompt, {**recorded[prompt], "prompt": "Finish it."})

    decision = "deny" if name == "gemini" else "block"
    assert answers[:3] == [{"decision": decision, "reason": "Finish it."}] * 3
    assert answers[3:] == [{}, {}]


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "copilot"])
def test_a_result_that_hooks_change_replaces_the_one_that_the_model_reads(name: str, tmp_path: Any) -> None:
    other = {"gemini": ("BeforeTool", "AfterTool"), "copilot": ("preToolUse", "postToolUse")}
    before, after = other.get(name, ("PreToolUse", "PostToolUse"))
    recorded = [each for each in frames(name) if each[0] in (before, after)]

    with installed(tmp_path, name) as host:
        host.ask(*recorded[0])
        key = "toolResult" if name == "copilot" else "tool_response"
        answer = host.ask(after, {**recorded[1][1], key: "a secret"})

    expected: dict[str, Any] = {
        "claude": {"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": _output("hidden")}},
        "codex": {"decision": "block", "reason": "hidden"},
        "gemini": {"decision": "deny", "reason": "hidden"},
        "copilot": {"modifiedResult": {"resultType": "success", "textResultForLlm": "hidden"}},
    }
    assert answer.json == expected[name]


def test_claude_ends_the_turn_rather_than_show_a_result_that_it_cannot_replace(tmp_path: Any) -> None:
    policy = """
from msgspec.structs import replace

from hookline import Hooks, ToolCall

hooks = Hooks("policy")
hooks.after(ToolCall)(lambda call, result: replace(result, content="hidden"))
"""
    read, mcp = ({"tool_name": name, "tool_input": {}} for name in ("Read", "mcp__notes__read"))
    recorded = [each for each in frames("claude") if each[0] in ("PreToolUse", "PostToolUse")]

    with installed(tmp_path, policy=policy) as host:
        answers = []
        for changes in (read, mcp):
            host.ask("PreToolUse", {**recorded[0][1], **changes})
            answers.append(host.ask("PostToolUse", {**recorded[1][1], **changes, "tool_response": "a secret"}).json)

    assert answers[0]["continue"] is False
    assert "cannot show" in answers[0]["stopReason"]
    assert "continue" not in answers[1]
    assert {each["hookSpecificOutput"]["updatedToolOutput"] for each in answers} == {"hidden"}


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_context_that_hooks_add_to_a_prompt_and_to_a_result_reaches_the_model(name: str, tmp_path: Any) -> None:
    policy = """
from hookline import AgentCall, Hooks, ToolCall

hooks = Hooks("policy")
hooks.before(AgentCall)(lambda call: call.add_context("The build is frozen."))
hooks.guard(ToolCall)(lambda call: call.add_context("Mind the freeze."))
"""
    prompt, before, after = {"gemini": ("BeforeAgent", "BeforeTool", "AfterTool")}.get(
        name, ("UserPromptSubmit", "PreToolUse", "PostToolUse")
    )
    recorded = dict(reversed(frames(name)))  # the first of each event: the session's own agent's

    with installed(tmp_path, name, policy=policy) as host:
        asked = host.ask(prompt, recorded[prompt]).json
        call = next(each for each in frames(name) if each[0] == before)
        host.ask(*call)
        told = host.ask(after, next(each for each in frames(name) if each[0] == after)[1]).json

    assert asked["hookSpecificOutput"]["hookEventName"] == prompt
    assert "The build is frozen." in asked["hookSpecificOutput"]["additionalContext"]
    assert told["hookSpecificOutput"]["hookEventName"] == after
    assert "Mind the freeze." in told["hookSpecificOutput"]["additionalContext"]
