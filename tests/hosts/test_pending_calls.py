"""A person is asked about a call: the question outlives the process that asked, and ends in a declared way."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from hookline import HookType, Reject
from hookline.hosts._pending_calls import FORGOTTEN_SECONDS, Question, reject_forgotten
from hookline.hosts._sessions import QuestionMoved, capabilities_of
from hookline.runtime import Approve, OperationState
from tests.hosts.in_process import LocalHost, until
from tests.hosts.installed import Ran, installed

pytestmark = pytest.mark.anyio

refuse = partial(Reject, reason="not today", and_continue=True)


@pytest.mark.parametrize("name", ["codex", "gemini", "copilot"])
async def test_an_approval_given_while_no_process_runs_lets_the_next_same_call_run_once(
    folder: Path, name: str
) -> None:
    async with LocalHost(folder, name) as old:
        refused = await old.ask(*old.shell("ask first"))
        asked = await old.waiting()
    async with LocalHost(folder, name) as new:
        await new.decide(asked, Approve)

        other = await new.ask(*new.shell("ask second"))
        approved = await new.ask(*new.shell("ask first"))
        again = await new.ask(*new.shell("ask first"))

        settled = await new.store.load(asked.operation_id)
    assert "May it run?" in str(refused)
    assert "May it run?" in str(other)
    assert approved == {}
    assert "May it run?" in str(again)
    assert settled is not None
    assert settled.status == "done"


async def test_a_refusal_reaches_the_next_same_call_in_another_process(folder: Path) -> None:
    async with LocalHost(folder, "codex") as old:
        await old.ask(*old.shell("ask first"))
        asked = await old.waiting()
        await old.decide(asked, refuse)
    async with LocalHost(folder, "codex") as new:
        answer = await new.ask(*new.shell("ask first"))

    assert "A person refused this call: not today" in str(answer)


async def test_a_question_belongs_to_its_session_and_its_sub_agent(folder: Path) -> None:
    async with LocalHost(folder, "codex") as old:
        await old.ask(*old.shell("ask first"))
        asked = await old.waiting()
    async with LocalHost(folder, "codex") as new:
        await new.decide(asked, Approve)

        elsewhere = await new.ask(*new.shell("ask first", session="s-2"))
        inside = await new.ask(*new.shell("ask first", agent_id="a-1", agent_type="default"))

    assert "May it run?" in str(elsewhere)
    assert "May it run?" in str(inside)


async def test_a_call_that_waits_moves_to_the_process_that_replaces_its_own(folder: Path) -> None:
    async with (
        LocalHost(folder, "codex", ask_seconds=15.0) as old,
        LocalHost(folder, "codex", ask_seconds=15.0) as new,
    ):
        moved = asyncio.ensure_future(old.ask(*old.shell("ask first")))
        asked = await old.waiting()
        old.resident.retire()
        with pytest.raises(QuestionMoved):
            await moved
        waits = asyncio.ensure_future(new.ask(*new.shell("ask first")))

        await new.decide(asked, Approve)

        assert await waits == {}
        assert [each.status for each in await new.operations() if each.pending] == []


async def test_what_was_stored_of_a_question_tells_no_arguments_that_hooks_hid(folder: Path) -> None:
    async with LocalHost(folder, "codex") as host:
        await host.ask(*host.shell("please change and ask", session="s-1"))
        await host.ask(*host.shell("ask for it"))
        asked = await host.waiting()

    assert asked.steering is not None
    assert "ask for it" not in str(asked.steering.metadata)


async def test_the_same_call_does_not_ask_twice_while_two_processes_run(folder: Path) -> None:
    async with LocalHost(folder, "codex") as old, LocalHost(folder, "codex") as new:
        await new.ask(*new.frame("UserPromptSubmit", session_id="s-1"))
        await old.ask(*old.shell("ask first"))
        await new.ask(*new.shell("ask first"))

        assert await new.waiting()


async def test_a_session_that_ends_in_another_process_rejects_its_questions(folder: Path) -> None:
    async with LocalHost(folder, "codex") as old:
        await old.ask(*old.shell("ask first"))
        asked = await old.waiting()
    async with LocalHost(folder, "codex") as new:
        await new.ask(*new.frame("SessionEnd", session_id="s-1"))

        assert await rejection_of(new, asked) == "The session ended."


async def test_a_person_who_answers_at_the_terminal_answers_a_question_of_another_process(folder: Path) -> None:
    async with LocalHost(folder, "claude") as old:
        await old.ask(*old.shell("ask first"))
        asked = await old.waiting()
    async with LocalHost(folder, "claude") as new:
        ran = {"tool_input": {"command": "ask first"}, "tool_use_id": "call ask first", "session_id": "s-1"}
        await new.ask(*new.frame("PostToolUse", **ran))

        decided = [each for each in await new.events(asked) if each.hook_type is HookType.AFTER_HUMAN_INTERVENTION]

    assert [each.action for each in decided] == ["approve"]


async def test_a_question_whose_session_never_returns_is_rejected(folder: Path) -> None:
    async with LocalHost(folder, "codex") as old:
        await old.ask(*old.shell("ask first"))
        asked = await old.waiting()
    async with LocalHost(folder, "codex") as new:
        capabilities = capabilities_of(new.host)
        await reject_forgotten(new.policy, "codex", capabilities, 0.0)
        kept = await new.waiting()
        await reject_forgotten(new.policy, "codex", capabilities, -FORGOTTEN_SECONDS - 1)

        assert kept.operation_id == asked.operation_id
        assert await rejection_of(new, asked) == "Nobody decided, and the session did not return."


async def test_the_time_for_a_person_passes_and_the_call_is_denied_with_the_way_to_approve_it(folder: Path) -> None:
    async with LocalHost(folder, "codex", ask_seconds=0.3) as host:
        answer = await host.ask(*host.shell("ask first"))
        asked = await host.waiting()

        assert f"hookline approvals approve {asked.operation_id}" in str(answer)


async def test_of_two_equal_calls_at_once_one_approval_lets_one_run(folder: Path) -> None:
    async with LocalHost(folder, "codex", ask_seconds=15.0) as host:
        both = [asyncio.create_task(host.ask(*host.shell("ask first", tool_use_id=f"call-{nth}"))) for nth in range(2)]
        await host.decide(await host.waiting(), Approve)
        [approved], others = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        await host.decide(await host.waiting(), refuse)
        [other] = others

        assert (await approved, "A person refused this call" in str(await other)) == ({}, True)


async def test_one_approval_lets_one_of_two_equal_calls_in_two_processes_run(folder: Path) -> None:
    async with LocalHost(folder, "codex", ask_seconds=15.0) as old, LocalHost(folder, "codex", ask_seconds=15.0) as new:
        first = asyncio.create_task(old.ask(*old.shell("ask first", tool_use_id="call-0")))
        asked = await old.waiting()
        second = asyncio.create_task(new.ask(*new.shell("ask first", tool_use_id="call-1")))
        await until(partial(both_wait, new, asked))
        await old.decide(asked, Approve)
        [approved], others = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        await old.decide(await old.waiting(), refuse)
        [other] = others

        assert (await approved, "A person refused this call" in str(await other)) == ({}, True)


async def both_wait(new: LocalHost, asked: OperationState) -> bool:
    """Whether a second process waits for the decision about a question of the first one."""
    return new.policy._decisions is not None and asked.operation_id in new.policy._decisions._waiting


async def test_an_approval_that_is_being_recorded_lets_no_second_call_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, answered = asyncio.Event(), asyncio.Event()
    record = Question._record

    async def record_slowly(question: Question, decision: Approve | Reject) -> None:
        if not used.is_set():
            used.set()
            await answered.wait()
        await record(question, decision)

    monkeypatch.setattr(Question, "_record", record_slowly)
    async with LocalHost(folder, "codex", ask_seconds=15.0) as host:
        first = asyncio.create_task(host.ask(*host.shell("ask first", tool_use_id="call-0")))
        await host.decide(await host.waiting(), Approve)
        await used.wait()
        second = await host.ask(*host.shell("ask first", tool_use_id="call-1"), seconds=4.0)
        answered.set()

        assert (await first, "May it run?" in str(second)) == ({}, True)


async def test_without_a_store_nobody_is_waited_for(folder: Path) -> None:
    async with LocalHost(folder, "codex", stored=False, ask_seconds=15.0) as host:
        answer = await host.ask(*host.shell("ask first"), seconds=1000.0)

    assert "Nobody can be asked here" in str(answer)


async def test_a_store_that_is_gone_denies_the_call_and_forgets_no_question(folder: Path) -> None:
    async with LocalHost(folder, "codex") as host:
        await host.ask(*host.shell("ask first"))
        asked = await host.waiting()
        await host.store.__aexit__(None, None, None)

        answer = await host.ask(*host.shell("ask first"))

        assert "So the call is denied" in str(answer)
    async with LocalHost(folder, "codex") as new:
        assert (await new.waiting()).operation_id == asked.operation_id


def test_a_call_that_waits_gets_its_decision_although_its_resident_process_is_killed(folder: Path) -> None:
    with installed(folder, "codex", store="sqlite:///hookline.db", ask_seconds=30.0) as host:
        under_way = host.start(*host.shell("ask first"))
        asked = asyncio.run(find_waiting(host.installation.folder))
        old = host.pid

        os.kill(old, signal.SIGKILL)
        asyncio.run(approve(host.installation.folder, asked))

        assert host.finish(under_way) == Ran(0, "", "")
        assert host.pid != old


async def find_waiting(folder: str) -> OperationState:
    async def exists() -> bool:
        return Path(folder, "hookline.db").exists()

    await until(exists)
    async with LocalHost(Path(folder), "codex") as reader:
        return await reader.waiting()


async def approve(folder: str, asked: OperationState) -> None:
    async with LocalHost(Path(folder), "codex") as reader:
        await reader.decide(asked, Approve)


async def rejection_of(host: LocalHost, asked: OperationState) -> str | None:
    """Return why the call of an operation was rejected."""
    decided = [each for each in await host.events(asked) if each.hook_type is HookType.AFTER_HUMAN_INTERVENTION]
    assert [each.action for each in decided] == ["rejectAndContinue"]
    reason: str | None = decided[0].rejection_reason
    return reason
