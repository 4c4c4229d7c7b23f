"""Hooks of `AgentCall` act for the sub-agents of coding agents, as far as the events of each of them allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookline import AfterCallAgent, OnCallAgentError
from hookline.hosts import Moment
from tests.hosts.in_process import LocalHost

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
TASKS = {"claude": ("Agent", "prompt"), "codex": ("spawn_agent", "message"), "gemini": ("invoke_agent", "prompt")}
TASKS |= {"copilot": ("task", "prompt"), "cursor": ("Task", "prompt")}


class SubAgent:
    """Sends the frames of one sub-agent, and reads the answers."""

    def __init__(self, folder: Path, name: str) -> None:
        self.host = LocalHost(folder, name, hooks="tests.hosts.agent_policy:hooks")
        self.name, (self.tool, self.field) = name, TASKS[name]
        self.ids = {"agent_id": "a-1", "agent_type": "clerk"}
        if name == "copilot":
            self.ids = {"sessionId": "a-1", "agentId": "a-1", "agentType": "clerk", "parentAgentId": "s-1"}

    def event(self, moment: Moment) -> str:
        return next(event for event in self.host.host.installed if self.host.host.events[event] is moment)

    def ids_of_session(self) -> Json:
        return {{"copilot": "sessionId", "cursor": "conversation_id"}.get(self.name, "session_id"): "s-1"}

    async def send(self, moment: Moment, *, inside: bool = False, **fields: Any) -> Json:
        event, frame = self.host.frame(self.event(moment), **self.ids_of_session())
        return await self.host.ask(event, {**frame, **fields, **(self.ids if inside else {})})

    def spawning(self, task: str) -> Json:
        args = {self.field: task, "subagent_type": "clerk", "agent_type": "clerk", "agent_name": "clerk"}
        names = ("toolName", "toolArgs") if self.name == "copilot" else ("tool_name", "tool_input")
        return {names[0]: self.tool, names[1]: args, "tool_use_id": "spawn"}

    async def spawn(self, task: str) -> Json:
        await self.send(Moment.PROMPT, prompt="go")
        return await self.send(Moment.BEFORE_TOOL, **self.spawning(task))

    async def stop(self, text: str) -> Json:
        if self.name == "gemini":
            return {}
        return await self.send(Moment.AGENT_STOP, inside=True, last_assistant_message=text, response=text)

    async def finish(self, task: str, text: str) -> Json:
        key = {"copilot": "toolResult", "cursor": "tool_output"}.get(self.name, "tool_response")
        result: Any = {"resultType": "success", "textResultForLlm": text} if self.name == "copilot" else text
        if self.name == "claude":
            result = {"status": "completed", "agentId": "a-1", "content": [{"type": "text", "text": text}]}
        return await self.send(Moment.AFTER_TOOL, **self.spawning(task), **{key: result})

    async def statuses(self) -> list[str]:
        return [each.status for each in await self.host.operations()]


def text_of_denial(answer: Json) -> str:
    own = answer.get("hookSpecificOutput", answer)
    assert "deny" in (own.get("permissionDecision"), answer.get("decision"), answer.get("permission"))
    return str(own.get("permissionDecisionReason") or answer.get("reason") or answer.get("agent_message"))


def task_of(sub: SubAgent, answer: Json) -> str:
    own = answer.get("hookSpecificOutput", answer)
    keys = ("updatedInput", "tool_input", "modifiedArgs", "updated_input")
    return str(next(own[key] for key in keys if key in own)[sub.field])


@pytest.mark.parametrize("name", TASKS)
async def test_a_sub_agent_that_hooks_deny_does_not_start(name: str, folder: Path) -> None:
    sub = SubAgent(folder, name)
    async with sub.host:
        answer = await sub.spawn("deny this")
        await sub.send(Moment.SESSION_END)

        states = await sub.host.operations()
        events = [event for state in states for event in await sub.host.events(state)]
    assert text_of_denial(answer) == "no such work"
    assert sorted(state.status for state in states) == ["done", "interrupted"]
    assert [event.error for event in events if isinstance(event, OnCallAgentError)] == ["no such work"]
    assert not [event for event in events if isinstance(event, AfterCallAgent)]


@pytest.mark.parametrize("name", TASKS)
async def test_a_sub_agent_in_whose_place_hooks_answer_does_not_start(name: str, folder: Path) -> None:
    sub = SubAgent(folder, name)
    async with sub.host:
        answer = await sub.spawn("answer this")

    assert text_of_denial(answer).endswith("The answer was: I know that already")


@pytest.mark.parametrize("name", TASKS)
async def test_a_sub_agent_gets_the_task_that_hooks_have_changed(name: str, folder: Path) -> None:
    sub = SubAgent(folder, name)
    async with sub.host:
        answer = await sub.spawn("change this")

    assert task_of(sub, answer) == "another task"


@pytest.mark.parametrize("name", ["claude", "codex"])
async def test_a_sub_agent_reads_what_hooks_add_when_it_starts_and_only_then(name: str, folder: Path) -> None:
    sub = SubAgent(folder, name)
    async with sub.host:
        spawned = await sub.spawn("needs context")
        first = await sub.send(Moment.AGENT_START, inside=True)
        second = await sub.send(Moment.PROMPT, inside=True, prompt="needs context") if name == "codex" else {}

    assert spawned == second == {}
    assert first["hookSpecificOutput"]["additionalContext"].endswith("The build is frozen.")


async def test_a_sub_agent_of_copilot_reads_what_hooks_add_with_its_prompt(folder: Path) -> None:
    sub = SubAgent(folder, "copilot")
    async with sub.host:
        assert await sub.spawn("needs context") == {}
        answer = await sub.send(Moment.PROMPT, inside=True, prompt="needs context")

    assert answer["additionalContext"].endswith("The build is frozen.")


@pytest.mark.parametrize("name", ["gemini", "cursor"])
async def test_a_sub_agent_without_an_event_of_its_own_reads_what_hooks_add_in_its_task(
    name: str, folder: Path
) -> None:
    sub = SubAgent(folder, name)
    async with sub.host:
        answer = await sub.spawn("needs context")

    assert task_of(sub, answer).startswith("needs context\n\n")
    assert task_of(sub, answer).endswith("The build is frozen.")


@pytest.mark.parametrize("name", ["claude", "codex"])
async def test_a_sub_agent_that_would_stop_goes_on_three_times_and_no_more(name: str, folder: Path) -> None:
    sub = SubAgent(folder, name)
    async with sub.host:
        await sub.spawn("work")
        await sub.send(Moment.AGENT_START, inside=True)
        answers = [await sub.stop("go on") for _ in range(5)]

    assert answers == [{"decision": "block", "reason": "Finish it."}] * 3 + [{}] * 2


@pytest.mark.parametrize(("said", "read"), [("a rude answer", "kind words"), ("a secret", "withheld")])
@pytest.mark.parametrize("name", ["claude", "gemini", "copilot"])
async def test_the_caller_reads_the_answer_that_hooks_left(name: str, said: str, read: str, folder: Path) -> None:
    sub = SubAgent(folder, name)
    async with sub.host:
        await sub.spawn("work")
        if name == "claude":
            await sub.send(Moment.AGENT_START, inside=True)
        if name == "copilot":
            await sub.send(Moment.PROMPT, inside=True, prompt="work")
        stopped = await sub.stop(said)
        answer = await sub.finish("work", said)
        await sub.send(Moment.SESSION_END)

    assert stopped == {}
    expected: Json = {
        "claude": {"status": "completed", "agentId": "a-1", "content": [{"type": "text", "text": read}]},
        "copilot": {"resultType": "success", "textResultForLlm": read},
        "gemini": read,
    }
    replaced = answer.get("hookSpecificOutput", {}).get("updatedToolOutput") or answer.get("modifiedResult")
    assert (replaced or answer["reason"]) == expected[name]


async def test_a_sub_agent_of_gemini_has_its_answer_from_the_call_that_started_it(folder: Path) -> None:
    sub = SubAgent(folder, "gemini")
    async with sub.host:
        await sub.spawn("work")
        assert await sub.finish("work", "all done") == {}
        await sub.send(Moment.SESSION_END)

        assert await sub.statuses() == ["done", "done"]
        child = next(each for each in await sub.host.operations() if each.parent_operation_id is not None)
    assert child.messages[-1].content == "all done"
