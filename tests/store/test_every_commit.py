"""Whichever commit fails, all goes on once the database does: nothing is stuck, nothing is lost, nothing is there twice."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import get_ident

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

import hookline
from hookline import Agent, Approve, BeforeStep, Hook, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.delivery import KeyRing, Outbox
from hookline.errors import HooklineError, StoreUnavailableError
from hookline.store import SqlStore, Worker
from hookline.store._database import after_commit
from hookline.store._tables import deliveries, events, operations
from hookline.webhooks import Envelope

from .faulty import Fault, Faults
from .records import state

pytestmark = pytest.mark.anyio

COMMITS = 20
"""Those of a scene, and some with which the outbox looks for more."""
STEP = 3
"""Each fault of each database cuts every third commit, all together every one; `make soak` has each cut every one."""
FAULTS: tuple[tuple[str, Fault], ...] = (
    ("sqlite", "refused"),
    ("postgresql", "refused"),
    ("sqlite", "answer lost"),
    ("postgresql", "answer lost"),
    ("sqlite", "full"),
)


def agent_of(name: str) -> Agent:
    """Looks something up, then asks a person, then is done."""

    @tool(in_thread=False)
    async def look() -> str:
        return "seen"

    @tool(in_thread=False, needs_approval=True)
    async def pay() -> str:
        return "paid"

    def says(call: object) -> ModelResponse:
        told = [message.content for message in call.messages if message.role == "tool"]  # type: ignore[attr-defined]
        if len(told) == 2:
            return ModelResponse(content="done")
        return ModelResponse(
            tool_calls=[ToolRequest(tool_name=("look", "pay")[len(told)], args={}, tool_call_id=f"t{len(told)}")]
        )

    hook = Hook(id="told", type=BeforeStep, webhook={"url": "local://told"})
    return Agent(id=name, model=ScriptedModel(says), tools=[look, pay], hooks=[hook])


async def scene(store: SqlStore, name: str) -> None:
    """One operation from its start to its end, the person's decision included; who asks, asks again after an error."""
    agent = agent_of("payer")
    while await store.load(name) is None:
        try:
            await exec_agent(agent, "Pay", operation_id=name, store=store)
        except HooklineError:
            await asyncio.sleep(0.01)
    while (found := await store.load(name)) is None or found.status != "done":
        if found is not None and found.status == "waiting_for_human":
            for each in found.pending:
                try:
                    await store.decide(name, Approve(each.tool_call_id))
                except HooklineError:
                    continue
        await asyncio.sleep(0.01)


async def renewing(store: SqlStore) -> None:
    """The lease as it is renewed in a store that has a short one; a short one would end on a busy machine."""
    while True:
        await asyncio.sleep(0.01)
        try:
            if store._lease.abandoned:  # else the count of commits would be the clock's
                await store._lease.renew()
        except StoreUnavailableError:
            continue


@pytest.mark.parametrize(
    ("dialect", "fault", "commits"),
    [
        *((*each, range(1 + nth % STEP, COMMITS + 1, STEP)) for nth, each in enumerate(FAULTS)),
        *(pytest.param(*each, range(1, COMMITS + 1), marks=pytest.mark.soak) for each in FAULTS),
    ],
    ids=lambda given: f"every {given.step}" if isinstance(given, range) else given,
)
async def test_whichever_commit_fails_nothing_is_stuck_lost_or_doubled(
    new_database_url: Callable[[str], str], dialect: str, fault: Fault, commits: range
) -> None:
    taken: Counter[str] = Counter()

    async def told(envelope: Envelope) -> None:
        taken[envelope.id] += 1

    async with SqlStore(new_database_url(dialect), lease_seconds=600) as store:
        store._database.retry_seconds = 0.2  # once it is open, since to connect may take longer
        faults = Faults(store, fault)
        outbox = Outbox(store, keys=KeyRing(), schedule=[0.0] * 20)
        async with (
            outbox,
            outbox.serve("told", told),
            Worker(store, [agent_of("payer")], poll_seconds=0.1),
        ):
            lease = asyncio.create_task(renewing(store))
            try:
                names = [f"op{nth}" for nth in commits]
                hits = 0
                for nth, name in zip(commits, names, strict=True):
                    # One alone, and an outage that outlasts the first tries to mend it, in turn.
                    faults.at(nth, 1 if nth % 2 else 4)
                    async with asyncio.timeout(300):
                        await scene(store, name)
                        await outbox.idle()
                    hits += faults.hits > 0
            finally:
                lease.cancel()
        assert hits > len(commits) / 2

        async with store.reading() as connection:
            owners = (await connection.execute(select(operations.c.operation_id, operations.c.events))).all()
            kept = (await connection.execute(select(events.c.operation_id, events.c.number))).all()
            rows = (await connection.execute(select(deliveries.c.id, deliveries.c.status))).all()
    assert sorted(row.operation_id for row in owners) == sorted(names)
    assert Counter(row.operation_id for row in kept) == {row.operation_id: row.events for row in owners}
    assert {row.status for row in rows} == {"delivered"}
    assert set(taken) == {row.id for row in rows}


async def test_an_operation_is_forgotten_only_once_that_is_written(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        store._database.retry_seconds = 0.1  # once it is open, since to connect may take longer
        await store.save(state(), expected_version=None)
        Faults(store, "refused").at(1, 2)
        for let_go in (partial(store.release, "op"), store._lease.renew):
            with pytest.raises(StoreUnavailableError):
                await let_go()
        assert not await store.orphaned("op")

        await store._lease.renew()

        assert await store.orphaned("op")


async def test_an_operation_that_this_process_takes_up_again_is_not_taken_from_it(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        store._database.retry_seconds = 0.1  # once it is open, since to connect may take longer
        await store.save(state(), expected_version=None)
        Faults(store, "answer lost").at(1)
        with pytest.raises(StoreUnavailableError):
            await store.release("op")
        assert await store.orphaned("op")

        await store.save(state(version=2), expected_version=1)
        await store._lease.renew()

        assert not await store.orphaned("op")


async def test_what_follows_a_commit_happens_after_it_or_not_at_all(database_url: str) -> None:
    done: list[str] = []
    async with SqlStore(database_url) as store:
        async with store.writing() as connection:
            after_commit(connection, lambda: done.append("committed"))
            assert done == []
        assert done == ["committed"]

        Faults(store, "refused").at(1)
        with pytest.raises(StoreUnavailableError):
            async with store.writing() as connection:
                after_commit(connection, lambda: done.append("refused"))
        with pytest.raises(ZeroDivisionError):
            async with store.writing() as connection:
                after_commit(connection, lambda: done.append("raised"))
                raise ZeroDivisionError
        async with store.writing():
            pass
    assert done == ["committed"]


async def test_what_follows_a_whole_transaction_happens_in_the_thread_of_the_loop(database_url: str) -> None:
    threads: list[int] = []

    async def work(connection: AsyncConnection) -> None:
        after_commit(connection, lambda: threads.append(get_ident()))

    async with SqlStore(database_url) as store:
        await store._database.write(work)
        assert threads == [get_ident()]

        Faults(store, "refused").at(1)
        with pytest.raises(StoreUnavailableError):
            await store._database.write(work)
    assert len(threads) == 1


CHANGING = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "update"}
NOTED_BEFORE = {("_event_log.py", "_sent")}
"""What must be known before a commit: that it may have been written although its answer was lost."""


def test_nothing_that_a_process_remembers_is_changed_inside_of_a_transaction() -> None:
    """The rule of `after_commit`, for all code that is handed a connection or opens a transaction."""
    found = []
    for file in sorted(Path(hookline.__file__).parent.rglob("*.py")):
        code = file.read_text()
        if "writing" not in code and "AsyncConnection" not in code:
            continue
        for block in transactions(ast.parse(code)):
            for name, line in changes_of_self(block):
                if (file.name, name) not in NOTED_BEFORE:
                    found.append(f"{file.name}:{line} changes self.{name}")
    assert found == []


def transactions(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """What is inside of transactions that write: bodies of `writing()`, and functions that are given a connection."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            names = {call.func.attr if isinstance(call.func, ast.Attribute) else "" for call in calls}
            if "writing" in names:
                yield node.body
        elif isinstance(node, ast.AsyncFunctionDef) and any(
            getattr(each.annotation, "id", "") == "AsyncConnection" for each in node.args.args
        ):
            yield node.body


def changes_of_self(block: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Assignments to attributes of `self`, and calls that change what they hold."""
    for node in (inner for statement in block for inner in ast.walk(statement)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            targets = [node.func.value]
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
                    yield each.attr, each.lineno
