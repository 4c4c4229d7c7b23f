"""Somebody asks for the end of an operation, and whichever process runs it stops it at once, also a sub-agent's."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import anyio
import pytest
from sqlalchemy import event, text

from hookline import Agent, ModelResponse, ScriptedModel, ToolCall, ToolRequest, exec_agent, tool
from hookline.errors import OperationFinishedError, OperationNotFoundError
from hookline.hooks import Hooks
from hookline.runtime import OperationResult, let_go_when_cancelled
from hookline.store import SqlStore, Worker
from tests.programs import run_program

from .records import state
from .test_worker import Till, status_of

pytestmark = pytest.mark.anyio
WITHIN = 1.0
"""Seconds within which the process that runs an operation stops it."""


@tool(in_thread=False)
async def wait() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return ""


def asks(*requests: ToolRequest) -> ScriptedModel:
    return ScriptedModel([ModelResponse(tool_calls=list(requests)), ModelResponse(content="done")])


CHILD = Agent(id="child", model=asks(ToolRequest("wait")), tools=[wait])
PARENT = Agent(
    id="parent", model=asks(ToolRequest("child", {"instruction": "Wait"}, toolset="agent")), sub_agents=[CHILD]
)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url, lease_seconds=2) as store:
        yield store


async def running_child(store: SqlStore, parent: str) -> str:
    """The operation of the sub-agent, once its tool runs."""
    ends = monotonic() + 20
    while True:
        found = [each for each in (await store.operations()).items if each.parent_operation_id == parent]
        if found and (await store.load(found[0].operation_id) or state()).begun:
            return found[0].operation_id
        assert monotonic() < ends
        await anyio.sleep(0.01)


async def test_another_process_stops_an_operation_and_its_sub_agent_within_a_second(database_url: str) -> None:
    async with (
        run_program("tests.store.test_interrupts", database_url) as program,
        SqlStore(database_url) as store,
    ):
        child = await running_child(store, "op")

        asked = monotonic()
        found = await store.request_interrupt("op", by="key:ann")
        ended = await program.read_line()
        took = monotonic() - asked

        assert ended == "interrupted"
        assert took < WITHIN
        assert (found.interrupt_asked_by, found.status) == ("key:ann", "running")
        for each in ("op", child):
            stored = await store.operation(each)
            assert stored is not None
            assert (stored.status, stored.interrupt_asked_by) == ("interrupted", "key:ann")


async def test_the_first_of_two_people_counts_and_the_audit_log_names_that_one(store: SqlStore) -> None:
    await store.commit(state("op", tenant_id="acme"), expected_version=None, entries=())
    both = await asyncio.gather(*(store.request_interrupt("op", by=by) for by in ("key:ann", "key:ben")))
    assert len({(each.interrupt_asked_by, each.interrupt_asked_at) for each in both}) == 1
    async with store.reading() as connection:
        found = (await connection.execute(text("SELECT tenant_id, actor, action, target FROM audit"))).all()
    assert [tuple(row) for row in found] == [("acme", both[0].interrupt_asked_by, "operation.interrupt", "op")]


async def test_what_has_ended_or_belongs_to_another_tenant_is_not_interrupted(store: SqlStore) -> None:
    await store.commit(state("ended", status="done"), expected_version=None, entries=())
    await store.commit(state("theirs", tenant_id="globex"), expected_version=None, entries=())
    with pytest.raises(OperationFinishedError):
        await store.request_interrupt("ended")
    for name in ("theirs", "nothing", "\0"):
        with pytest.raises(OperationNotFoundError):
            await store.request_interrupt(name, tenant_id="acme")
    theirs = await store.operation("theirs")
    assert theirs is not None
    assert theirs.interrupt_asked_at is None


async def test_a_worker_ends_what_waits_for_a_person_without_its_hooks_and_without_a_step(store: SqlStore) -> None:
    till, guarded = Till(), Hooks("bank")
    guarded.guard(ToolCall, id="look")(lambda call: None)
    await exec_agent(till.agent(1), "Pay", operation_id="op", store=store, hooks=[guarded])
    waiting = await store.operation("op")
    async with Worker(store, [till.agent(1)]):
        await store.request_interrupt("op", by="key:ann")
        await status_of(store, "op", "interrupted")
    ended = await store.operation("op")
    assert not till.paid
    assert waiting is not None
    assert ended is not None
    assert ended.steps == waiting.steps
    assert [entry.type for entry in await store.events_of("op", after=waiting.events)] == ["onComplete"]


async def test_a_worker_ends_an_operation_whose_process_died_before_it_could_stop_it(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1), "Pay", operation_id="op", store=store)
    async with store.writing() as connection:
        await connection.execute(text("UPDATE operations SET status = 'running', owner = NULL"))
    await store.request_interrupt("op")
    async with Worker(store, [till.agent(1)]):
        await status_of(store, "op", "interrupted")
    assert not till.paid


async def test_where_no_wake_up_arrives_the_next_commit_tells(store: SqlStore, monkeypatch: Any) -> None:
    asked = anyio.Event()

    @tool(in_thread=False)
    async def ask() -> str:
        monkeypatch.setattr(store.wakeups, "wake", lambda topic: None)
        await store.request_interrupt("op")
        asked.set()
        return "asked"

    agent = Agent(id="a", model=asks(ToolRequest("ask")), tools=[ask])
    result: OperationResult = await exec_agent(agent, "Go", operation_id="op", store=store)
    assert asked.is_set()
    assert result.reason == "interrupted"


async def test_a_run_asks_the_database_for_interruptions_once_not_at_each_commit(store: SqlStore) -> None:
    statements: list[str] = []

    def note(*given: Any) -> None:
        statements.append(given[2])

    with contextlib.ExitStack() as stack:
        for engine in store._database.engines:
            event.listen(engine, "before_cursor_execute", note)
            stack.callback(event.remove, engine, "before_cursor_execute", note)
        calls = [ModelResponse(tool_calls=[ToolRequest("add", {"a": nth})]) for nth in range(10)]

        @tool(in_thread=False)
        async def add(a: int) -> int:
            return a

        agent = Agent(id="a", model=ScriptedModel([*calls, ModelResponse(content="done")]), tools=[add])
        assert (await exec_agent(agent, "Go", store=store)).reason == "done"

    looks = [each for each in statements if "interrupt_asked_at IS NOT NULL" in each]
    assert len(statements) > 40
    assert len(looks) <= 8  # one at the start, and at most four a second while the file of an SQLite database changes


async def main(url: str) -> None:
    async with SqlStore(url) as store:
        result = await exec_agent(PARENT, "Go", operation_id="op", store=store)
        print(result.reason, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))


async def test_an_interruption_that_the_store_tells_before_a_model_call_comes_before_it(database_url: str) -> None:
    asked: list[object] = []
    async with SqlStore(database_url) as here, SqlStore(database_url) as elsewhere:

        @tool(in_thread=False)
        async def look() -> str:
            await elsewhere.request_interrupt("op", by="ada")
            return "seen"

        def answer(call: object) -> ModelResponse:
            asked.append(call)
            return ModelResponse(tool_calls=[ToolRequest("look")])

        agent = Agent(id="a", model=ScriptedModel(answer), tools=[look])
        result = await exec_agent(agent, "Look.", operation_id="op", store=here)
        stored = await here.load("op")

    assert (result.reason, len(asked)) == ("interrupted", 1)
    assert (stored.llm_calls if stored else None) == 1


async def test_what_a_tool_returns_in_a_run_that_is_left_to_others_is_kept(database_url: str) -> None:
    begun = asyncio.Event()

    @tool(in_thread=False)
    async def book() -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "booked"

    async def run() -> None:
        let_go_when_cancelled.set(True)
        await exec_agent(
            Agent(id="a", model=asks(ToolRequest("book")), tools=[book]), "Book.", operation_id="op", store=store
        )

    async with SqlStore(database_url) as store:
        task = asyncio.create_task(run())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        stored = await store.load("op")

    assert task.cancelled()
    assert [message.content for message in (stored.messages if stored else ())][-1] == "booked"
