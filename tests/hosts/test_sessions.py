"""Sessions of coding agents are operations like all others: in the store, with steps, calls, approvals and sub-agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hookline import Approve, HookType, Reject, decode
from hookline.registry import Registry
from hookline.runtime import OperationState
from hookline.store import SqlStore
from tests.hosts.in_process import recorded as replay
from tests.hosts.installed import Installed, Ran, end_resident, installed

T = TypeVar("T")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Installed]:
    name, ask_seconds = request.param
    with installed(tmp_path_factory.mktemp("h"), name, store="sqlite:///hookline.db", ask_seconds=ask_seconds) as made:
        yield made


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    """A session of the test's own."""
    return f"s-{request.node.name}"


def hosts(*names: str, ask_seconds: float = 0.0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "host", [(name, ask_seconds) for name in names], indirect=True, ids=names, scope="module"
    )


@hosts("claude", "codex", "gemini")
def test_a_session_is_an_operation_with_its_steps_calls_and_sub_agents(host: Installed, session: str) -> None:
    for event, frame in recorded(host, session):
        assert host.ask(event, frame) == Ran(0, "", "")

    found = operations(host, session)
    main = next(each for each in found if each.parent_operation_id is None)
    child = next(each for each in found if each.parent_operation_id is not None)
    events, inner = events_of(host, main), events_of(host, child)
    kinds = [each.hook_type for each in events]
    assert len(found) == 2
    assert (main.status, main.agent_id, child.status) == ("done", host.host.name, "done")
    assert child.parent_operation_id == main.operation_id
    assert commands(events)[:2] == ["echo hi", "exit 3"]
    assert commands(inner) == ["echo sub"]
    assert kinds.count(HookType.BEFORE_CALL_AGENT) == kinds.count(HookType.AFTER_CALL_AGENT) == 1
    assert kinds[-1] is HookType.ON_COMPLETE
    assert main.last_content == "All done."
    if host.host.name == "claude":
        failed = [each for each in events if each.hook_type is HookType.ON_TOOL_CALL_ERROR]
        assert [each.error for each in failed] == ["Exit code 3"]


@hosts("claude", "codex", "gemini")
def test_a_denial_holds_in_a_sub_agent(host: Installed, session: str) -> None:
    answers = []
    for event, frame in recorded(host, session):
        args = frame.get("tool_input", {})
        if args.get("command") == "echo sub":
            frame = {**frame, "tool_input": {**args, "command": "deny sub"}}
        answers.append((frame.get("tool_input", {}).get("command"), host.ask(event, frame).out))

    denied = [out for command, out in answers if command == "deny sub"]
    assert "not on my machine" in denied[0]
    assert all(out == "" for command, out in answers if command != "deny sub")
    child = next(each for each in operations(host, session) if each.parent_operation_id)
    assert commands(events_of(host, child))[:1] == ["deny sub"]


@hosts("claude", "codex", "gemini")
def test_a_sub_agent_that_hooks_deny_does_not_start(host: Installed, session: str) -> None:
    event, frame = next(each for each in recorded(host, session) if each[1].get("tool_name") in host.host.spawns)
    field = "message" if host.host.name == "codex" else "prompt"

    answer = host.ask(event, {**frame, "tool_input": {**frame["tool_input"], field: "a forbidden task"}})

    assert "no such help" in answer.out


@hosts("claude")
def test_a_session_that_outlives_the_process_goes_on_as_another_operation(host: Installed, session: str) -> None:
    host.ask(*recorded(host, session)[1])
    end_resident(host.installation)
    host.ask(*recorded(host, session)[1])

    assert sorted(each.status for each in operations(host, session)) == ["interrupted", "running"]


@hosts("codex", "gemini", "copilot")
def test_a_call_is_refused_until_a_person_has_approved_it_and_then_the_same_call_runs_once(
    host: Installed, session: str
) -> None:
    first = host.bash("ask first", session=session, call="call-1")
    waiting = waiting_of(host, session)["ask first"]
    asked = waiting.pending[0]

    again = host.bash("ask first", session=session, call="call-2")
    decide(host, waiting.operation_id, Approve(asked.tool_call_id))
    approved = host.bash("ask first", session=session, call="call-3")
    once_more = host.bash("ask first", session=session, call="call-4")

    assert f"hookline approvals approve {waiting.operation_id}" in first.out
    assert "May it run?" in again.out
    assert approved == Ran(0, "", "")
    assert "May it run?" in once_more.out
    assert asked.prompt == "May it run?"
    states = {each.operation_id: each for each in operations(host, session)}
    assert states[waiting.operation_id].status == "done"


@hosts("codex", "gemini")
def test_a_person_who_refuses_is_quoted_and_a_plain_refusal_ends_the_turn(host: Installed, session: str) -> None:
    host.bash("ask one", session=session, call="call-1")
    host.bash("ask two", session=session, call="call-2")
    waiting = waiting_of(host, session)
    for command, goes_on in (("ask one", True), ("ask two", False)):
        call = waiting[command].pending[0].tool_call_id
        decide(host, waiting[command].operation_id, Reject(call, reason="not today", and_continue=goes_on))

    one, two = (host.bash(each, session=session, call=f"again {each}") for each in ("ask one", "ask two"))

    assert "A person refused this call: not today" in one.out
    assert "A person refused this call: not today" in two.out
    assert "The run was stopped" in host.bash("echo hi", session=session, call="call-5").out


@hosts("codex", "claude", ask_seconds=30.0)
def test_a_call_waits_for_the_decision_of_a_person_elsewhere(host: Installed, session: str) -> None:
    under_way = host.start(*host.shell("ask first", session=session))
    database = Path(host.installation.folder, "hookline.db")
    wait_until(database.exists)
    waiting = wait_until(lambda: waiting_of(host, session).get("ask first"))

    decide(host, waiting.operation_id, Approve(waiting.pending[0].tool_call_id))

    assert host.finish(under_way) == Ran(0, "", "")


@hosts("claude")
def test_what_the_person_in_front_of_claude_decides_is_recorded(host: Installed, session: str) -> None:
    host.ask(*recorded(host, session)[1])
    for call in ("approved", "refused"):
        assert '"ask"' in host.bash(f"ask {call}", session=session, call=call).out
    ran = next(frame for event, frame in recorded(host, session) if event == "PostToolUse")

    host.ask("PostToolUse", {**ran, "tool_input": {"command": "ask approved"}, "tool_use_id": "approved"})
    host.ask(*recorded(host, session)[-2])

    events = [event for each in operations(host, session) for event in events_of(host, each)]
    decided = [each for each in events if each.hook_type is HookType.AFTER_HUMAN_INTERVENTION]
    assert {each.tool_call_id: each.action for each in decided} == {
        "approved": "approve",
        "refused": "rejectAndContinue",
    }


@hosts("claude")
def test_definitions_of_the_store_hold_as_well(host: Installed, session: str) -> None:
    definition = {"name": "no reading", "point": "ToolCall.guard", "handler": "deny", "tool": "Read"}
    event, frame = host.shell("", session=session, tool_name="Read")
    assert host.ask(event, frame) == Ran(0, "", "")

    async def create(store: SqlStore) -> None:
        async with Registry(store) as registry:
            await registry.create(definition)

    read(host, create)

    assert "deny" in wait_until(lambda: host.ask(event, {**frame, "session_id": f"s-{time.monotonic()}"}).out)


# Reading the store.


def read(host: Installed, query: Callable[[SqlStore], Awaitable[T]]) -> T:
    async def run() -> T:
        async with SqlStore(host.installation.store) as store:
            return await query(store)

    return asyncio.run(run())


def recorded(host: Installed, session: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the recorded frames of a host as those of another session."""
    return replay(host.host.name, session)


def operations(host: Installed, session: str) -> list[OperationState]:
    """Return the states of all operations of a session."""

    async def load(store: SqlStore) -> list[OperationState]:
        found = [await store.load(each.operation_id) for each in (await store.operations()).items]
        return [each for each in found if each is not None and each.conversation_id == session]

    return read(host, load)


def waiting_of(host: Installed, session: str) -> dict[str, OperationState]:
    """Return the operations of a session that wait for a person, by the commands that they are about."""
    waiting = [each for each in operations(host, session) if each.status == "waiting_for_human"]
    return {each.pending[0].args["command"]: each for each in waiting}


def events_of(host: Installed, state: OperationState) -> list[Any]:
    return [decode(each.wire) for each in read(host, lambda store: store.events_of(state.operation_id))]


def decide(host: Installed, operation_id: str, decision: Approve | Reject) -> None:
    read(host, lambda store: store.decide(operation_id, decision, by="key:ada"))


def commands(events: list[Any]) -> list[str]:
    return [each.args.get("command", "") for each in events if each.hook_type is HookType.BEFORE_TOOL_CALL]


def wait_until(found: Callable[[], T | None]) -> T:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen")
