"""An operation of a coding agent is interrupted: its calls are denied in the host's words, and it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hookline import HookType
from hookline.hosts import HOSTS, Moment
from hookline.hosts._abandoning import abandon_orphans
from hookline.hosts._sessions import capabilities_of
from hookline.runtime import OperationState
from tests.hosts import held
from tests.hosts.in_process import LocalHost, recorded, until

pytestmark = pytest.mark.anyio

NAMES = ("claude", "codex", "gemini", "cursor", "copilot")
REASON = "The run was stopped: Somebody interrupted it in hookline."
DENIED: dict[str, dict[str, Any]] = {
    "claude": {
        "continue": False,
        "stopReason": REASON.partition(": ")[2],
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": REASON,
        },
    },
    "gemini": {
        "continue": False,
        "stopReason": REASON.partition(": ")[2],
        "decision": "deny",
        "reason": REASON,
    },
    "cursor": {"permission": "deny", "user_message": REASON, "agent_message": REASON},
    "copilot": {"permissionDecision": "deny", "permissionDecisionReason": REASON},
}
DENIED["codex"] = {"hookSpecificOutput": DENIED["claude"]["hookSpecificOutput"]}


async def interrupt(host: LocalHost, state: OperationState) -> OperationState:
    """Interrupt an operation as the page does, and return it when it has ended."""
    await host.store.request_interrupt(state.operation_id, by="key:ada")
    return await ended(host, state)


async def ended(host: LocalHost, state: OperationState) -> OperationState:
    async def find() -> OperationState | None:
        found = await host.store.load(state.operation_id)
        return found if found is not None and found.status not in ("running", "waiting_for_human") else None

    return await until(find)


def prompt_of(host: LocalHost) -> tuple[str, dict[str, Any]]:
    """Return the frame of the first prompt."""
    return next(each for each in recorded(host.host.name, "s-1") if each[1].get("prompt"))


@pytest.mark.parametrize("name", NAMES)
async def test_the_operation_ends_at_once_with_all_later_calls_of_the_turn_and_the_next_prompt_begins_another(
    folder: Path, name: str
) -> None:
    async with LocalHost(folder, name) as host:
        await host.ask(*prompt_of(host))
        assert await host.ask(*host.shell("echo hi")) == {}
        state = await interrupt(host, (await host.operations())[0])

        answers = [await host.ask(*host.shell(f"echo {nth}")) for nth in range(2)]

        assert state.status == "interrupted"
        assert answers == [DENIED[name]] * 2
        assert len(await host.operations()) == 1

        assert await host.ask(*prompt_of(host)) == {}
        assert await host.ask(*host.shell("echo hi")) == {}
        assert [each.status for each in await host.operations()] == ["interrupted", "running"]


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
async def test_the_result_of_a_call_that_ran_meanwhile_comes_with_the_stop(folder: Path, name: str) -> None:
    before, after = {"gemini": ("BeforeTool", "AfterTool")}.get(name, ("PreToolUse", "PostToolUse"))
    async with LocalHost(folder, name) as host:
        await host.ask(*prompt_of(host))
        await host.ask(*host.frame(before, session_id="s-1"))
        await interrupt(host, (await host.operations())[0])

        answer = await host.ask(*host.frame(after, session_id="s-1"))

    assert answer == (
        {"decision": "block", "reason": REASON} if name == "codex" else {"continue": False, "stopReason": REASON}
    )


@pytest.mark.parametrize("name", NAMES)
async def test_an_interrupted_agent_stops_although_hooks_want_it_to_go_on(folder: Path, name: str) -> None:
    stop = next(event for event, moment in HOSTS[name].events.items() if moment is Moment.STOP)
    async with LocalHost(folder, name) as host:
        await host.ask(*prompt_of(host))
        await interrupt(host, (await host.operations())[0])

        event, frame = next(each for each in recorded(name, "s-1") if each[0] == stop)
        said = {"last_assistant_message": "not finished", "prompt_response": "not finished"}
        assert await host.ask(event, frame | said) == {}


async def test_a_prompt_that_claude_writes_itself_does_not_go_on_with_an_interrupted_turn(folder: Path) -> None:
    async with LocalHost(folder, "claude") as host:
        await host.ask(*prompt_of(host))
        await interrupt(host, (await host.operations())[0])
        event, frame = prompt_of(host)

        answer = await host.ask(event, frame | {"prompt": "<task-notification>done</task-notification>"})

        assert answer == {"decision": "block", "reason": REASON}


async def test_sub_agents_of_an_interrupted_session_are_denied_and_end_with_it(folder: Path) -> None:
    session = recorded("claude", "s-1")
    inside = next(nth for nth, (event, frame) in enumerate(session) if event == "PreToolUse" and "agent_id" in frame)
    async with LocalHost(folder, "claude") as host:
        for event, frame in session[:inside]:
            await host.ask(event, frame)
        main = next(each for each in await host.operations() if each.parent_operation_id is None)
        await interrupt(host, main)

        answers = [await host.ask(event, frame) for event, frame in session[inside:]]

        states = await host.operations()
    assert answers[0] == DENIED["claude"]
    assert {each.status for each in states} == {"interrupted"}
    assert len(states) == 2


async def test_a_sub_agent_that_is_interrupted_alone_leaves_its_caller_running(folder: Path) -> None:
    session = recorded("claude", "s-1")
    inside = next(nth for nth, (event, frame) in enumerate(session) if event == "PreToolUse" and "agent_id" in frame)
    async with LocalHost(folder, "claude") as host:
        for event, frame in session[:inside]:
            await host.ask(event, frame)
        child = next(each for each in await host.operations() if each.parent_operation_id is not None)
        await interrupt(host, child)

        denied = await host.ask(*session[inside])
        rest = [await host.ask(event, frame) for event, frame in session[inside + 3 :]]

        statuses = {each.agent_id: each.status for each in await host.operations()}
        main = next(each for each in await host.operations() if each.parent_operation_id is None)
        kinds = [each.hook_type for each in await host.events(main)]
    assert denied == DENIED["claude"]
    assert all(answer == {} for answer in rest)
    assert statuses == {"claude": "done", "general-purpose": "interrupted"}
    assert HookType.ON_CALL_AGENT_ERROR in kinds


async def test_a_call_that_waits_for_a_person_is_denied_when_its_session_is_interrupted(folder: Path) -> None:
    async with LocalHost(folder, "codex", ask_seconds=15.0) as host:
        await host.ask(*prompt_of(host))
        waits = asyncio.ensure_future(host.ask(*host.shell("ask first")))
        asked = await host.waiting()
        main = next(each for each in await host.operations() if each.parent_operation_id is None)

        await interrupt(host, main)

        assert await waits == DENIED["codex"]
        assert (await ended(host, asked)).status == "interrupted"


async def test_a_question_that_is_interrupted_alone_denies_its_call(folder: Path) -> None:
    async with LocalHost(folder, "codex", ask_seconds=15.0) as host:
        watching = asyncio.ensure_future(host.resident._watch_interrupts())
        await host.ask(*prompt_of(host))
        waits = asyncio.ensure_future(host.ask(*host.shell("ask first")))
        asked = await host.waiting()

        assert (await interrupt(host, asked)).status == "interrupted"
        assert "The question was withdrawn." in str(await waits)
        assert await host.ask(*host.shell("echo hi")) == {}
        watching.cancel()


async def test_a_question_of_a_process_that_is_gone_can_be_interrupted(folder: Path) -> None:
    async with LocalHost(folder, "codex") as old:
        await old.ask(*old.shell("ask first"))
        asked = await old.waiting()
    async with LocalHost(folder, "codex") as new:
        watching = asyncio.ensure_future(new.resident._watch_interrupts())

        assert (await interrupt(new, asked)).status == "interrupted"
        assert "May it run?" in str(await new.ask(*new.shell("ask first")))
        watching.cancel()


async def test_a_hook_that_still_runs_when_the_session_is_interrupted_lets_nothing_through(folder: Path) -> None:
    async with LocalHost(folder, "codex", hooks="tests.hosts.held:hooks") as host:
        await host.ask(*prompt_of(host))
        under_way = asyncio.ensure_future(host.ask(*host.shell("echo hi")))
        await asyncio.wait_for(held.entered.wait(), 10)

        await interrupt(host, (await host.operations())[0])
        held.go_on.set()

        assert await under_way == DENIED["codex"]


async def test_operations_of_a_process_that_died_end_and_those_of_others_are_left_alone(folder: Path) -> None:
    async with LocalHost(folder, "codex") as host:
        for name, framework, user in (("a", "Codex", host.policy.user_id), ("b", "", "ada"), ("c", "Codex", "ada")):
            state = OperationState(operation_id=name, agent_id="codex", framework=framework, user_id=user)
            await host.store.commit(state, expected_version=None, entries=())
            await host.store.release(name)

        await abandon_orphans(host.policy, "codex", capabilities_of(host.host).framework)

        assert {each.operation_id: each.status for each in await host.operations()} == {
            "a": "interrupted",
            "b": "running",
            "c": "running",
        }
