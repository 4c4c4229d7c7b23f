"""Several sub-agents at once: told apart as far as the events of each coding agent allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookline import HookType
from tests.hosts.in_process import LocalHost, recorded

pytestmark = pytest.mark.anyio

Frame = tuple[str, dict[str, Any]]


class Sub:
    """The frames of a sub-agent of Copilot CLI, as version 1.0.102 sends them."""

    def __init__(self, name: str, parent: str = "s-1") -> None:
        self.name, self.task = name, f"task of {name}"
        self._common = {"timestamp": 1, "cwd": "/p"}
        self._ids = {"sessionId": name, "agentId": name, "agentType": "general-purpose", "parentAgentId": parent}
        self._caller = parent

    def start(self) -> Frame:
        args = {"description": "help", "prompt": self.task, "agent_type": "general-purpose"}
        caller = {"sessionId": self._caller}
        if self._caller != "s-1":
            caller |= {"agentId": self._caller, "agentType": "general-purpose", "parentAgentId": "s-1"}
        return "preToolUse", {**self._common, **caller, "toolName": "task", "toolArgs": args}

    def begin(self) -> Frame:
        return "userPromptSubmitted", {**self._common, **self._ids, "prompt": self.task}

    def call(self, command: str = "") -> Frame:
        args = {"command": command or f"echo {self.name}", "description": "run"}
        return "preToolUse", {**self._common, **self._ids, "toolName": "bash", "toolArgs": args}

    def end(self) -> Frame:
        own = self._ids | {"sessionId": self._caller, "response": f"done by {self.name}"}
        return "subagentStop", {**self._common, **own, "agentName": "general-purpose", "stopReason": "end_turn"}

    def finish(self) -> Frame:
        _, frame = self.start()
        result = {"resultType": "success", "textResultForLlm": f"done by {self.name}"}
        return "postToolUse", {**frame, "toolResult": result}


async def commands_by_agent(host: LocalHost) -> dict[str, tuple[str | None, list[str]]]:
    """Return the parent and the commands of each operation of the session, by its first prompt."""
    found = {}
    for state in await host.operations("s-1"):
        calls = [each for each in await host.events(state) if each.hook_type is HookType.BEFORE_TOOL_CALL]
        found[state.messages[0].content] = (state.parent_operation_id, [each.args["command"] for each in calls])
    return found


async def test_sub_agents_of_copilot_that_run_at_once_are_told_apart(folder: Path) -> None:
    one, two = Sub("one"), Sub("two")
    async with LocalHost(folder, "copilot") as host:
        await host.ask(*host.frame("userPromptSubmitted", sessionId="s-1", prompt="go"))
        # In the order in which the program sends them: the second begins first.
        for event, frame in (one.start(), two.start(), two.begin(), one.begin(), two.call(), one.call()):
            assert await host.ask(event, frame) == {}
        denied = await host.ask(*one.call("deny this"))
        for event, frame in (two.end(), one.end(), one.finish(), two.finish()):
            await host.ask(event, frame)
        await host.ask(*host.frame("sessionEnd", sessionId="s-1"))

        found = await commands_by_agent(host)
        main = next(each for each in await host.operations("s-1") if each.parent_operation_id is None)
    assert denied["permissionDecision"] == "deny"
    assert found == {
        "go": (None, []),
        "task of one": (main.operation_id, ["echo one", "deny this"]),
        "task of two": (main.operation_id, ["echo two"]),
    }
    assert {each.status for each in [main]} == {"done"}


async def test_a_sub_agent_of_a_sub_agent_of_copilot_belongs_to_the_session(folder: Path) -> None:
    outer, inner = Sub("outer"), Sub("inner", parent="outer")
    async with LocalHost(folder, "copilot") as host:
        await host.ask(*host.frame("userPromptSubmitted", sessionId="s-1", prompt="go"))
        for event, frame in (outer.start(), outer.begin(), inner.start(), inner.begin(), inner.call()):
            await host.ask(event, frame)

        found = await commands_by_agent(host)
        ids = {each.messages[0].content: each.operation_id for each in await host.operations("s-1")}
    assert found["task of inner"] == (ids["task of outer"], ["echo inner"])
    assert found["task of outer"][0] == ids["go"]


async def test_sub_agents_of_claude_that_begin_in_another_order_change_places_when_they_end(folder: Path) -> None:
    def start(name: str) -> Frame:
        args = {"description": "help", "prompt": f"task of {name}", "subagent_type": "general-purpose"}
        return host.frame("PreToolUse", session_id="s-1", tool_name="Agent", tool_input=args, tool_use_id=name)

    def finish(name: str) -> Frame:
        _, frame = start(name)
        return "PostToolUse", {**frame, "tool_response": {"agentId": f"id-{name}", "content": f"done by {name}"}}

    def inside(event: str, name: str) -> Frame:
        return host.frame(event, session_id="s-1", agent_id=f"id-{name}", agent_type="general-purpose")

    async with LocalHost(folder, "claude") as host:
        await host.ask(*host.frame("UserPromptSubmit", session_id="s-1", prompt="go"))
        for event, frame in (
            *(start("one"), start("two"), inside("SubagentStart", "two"), inside("SubagentStart", "one")),
            *(inside("SubagentStop", "two"), finish("two"), inside("SubagentStop", "one"), finish("one")),
        ):
            assert await host.ask(event, frame) == {}
        await host.ask(*host.frame("SessionEnd", session_id="s-1"))

        states = await host.operations("s-1")
    assert [each.status for each in states] == ["done"] * 3


async def test_one_sub_agent_of_gemini_is_told_from_its_caller_and_several_count_for_it(folder: Path) -> None:
    session = recorded("gemini", "s-1")
    spawns = next(each for each in session if each[1].get("tool_name") == "invoke_agent")

    def start(name: str) -> Frame:
        return spawns[0], {**spawns[1], "tool_input": {"agent_name": "generalist", "prompt": f"task of {name}"}}

    async with LocalHost(folder, "gemini") as host:
        await host.ask(*host.frame("BeforeAgent", session_id="s-1", prompt="go"))
        await host.ask(*start("one"))
        await host.ask(*host.shell("echo one"))
        await host.ask(*start("two"))
        await host.ask(*host.shell("echo either"))
        denied = await host.ask(*host.shell("deny either"))

        found = await commands_by_agent(host)
    assert {name: commands for name, (_, commands) in found.items()} == {
        "go": ["echo either", "deny either"],
        "task of one": ["echo one"],
        "task of two": [],
    }
    assert denied["decision"] == "deny"
