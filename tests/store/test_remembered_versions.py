"""A process does not read again what it wrote last; what another one has written since is noticed all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, update

from hookline import Agent, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.errors import StaleStateError
from hookline.store import SqlStore
from hookline.store import _commits as commits
from hookline.store._tables import events, operations

from .records import entries, grow, state

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

Step = tuple[int, Literal["commit", "commit of an older version", "interrupt", "delete"]]


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[list[SqlStore]]:
    """Two stores on one database, as two processes have them."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(SqlStore(database_url)) for _ in range(2)]


async def commit(store: SqlStore, operation_id: str, follows: int) -> bool:
    """Commit the next version with one event; returns whether it was written."""
    its = state(operation_id, follows + 1, events=follows + 1)
    new = entries(operation_id, follows + 1, follows + 1)
    try:
        await store.commit(its, expected_version=follows or None, entries=new)
    except StaleStateError:
        return False
    return True


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from(["commit", "commit", "commit of an older version", "interrupt", "delete"]),
        ),
        max_size=12,
    )
)
async def test_of_two_processes_each_follows_what_is_stored_and_leaves_no_trace_otherwise(
    steps: list[Step], stores: list[SqlStore]
) -> None:
    name, version = uuid4().hex, 0
    for which, step in steps:
        store = stores[which]
        if step == "commit":
            assert await commit(store, name, version)
            version += 1
        elif step == "commit of an older version" and version:
            assert not await commit(store, name, version - 1)
        elif step == "interrupt" and version:
            await stores[1 - which].request_interrupt(name)
        elif step == "delete":
            async with stores[1 - which].writing() as connection:
                await connection.execute(delete(operations).where(operations.c.operation_id == name))
                await connection.execute(delete(events).where(events.c.operation_id == name))
            assert not version or not await commit(store, name, version)
            version = 0

        found = await store.load(name)
        assert (found.version if found else 0) == version
        assert await store.events_of(name) == entries(name, 1, version)


async def test_a_commit_after_a_commit_of_this_process_reads_nothing(store: SqlStore) -> None:
    await grow(store, "op", commits=2, each=1)
    statements: list[str] = []

    def note(*given: Any) -> None:
        statements.append(given[2])

    for engine in store._database.engines:
        event.listen(engine, "before_cursor_execute", note)
    assert await commit(store, "op", 2)

    assert [each.split()[0] for each in statements if "write_id" in each] == ["UPDATE"]


class SilentWakeups:
    """Wakes nobody, as if every wake-up were lost."""

    def wake(self, topic: str) -> None:
        pass

    @asynccontextmanager
    async def woken(self, topic: str, call: Callable[[], None]) -> AsyncIterator[None]:
        yield

    async def aclose(self) -> None:
        pass


async def test_the_next_commit_notices_an_interruption_whose_wake_up_was_lost(database_url: str) -> None:
    async with SqlStore(database_url, wakeups=SilentWakeups()) as mine, SqlStore(database_url) as other:
        asked = 0

        @tool(in_thread=False)
        async def ask() -> None:
            nonlocal asked
            asked += 1
            if asked == 2:
                await other.request_interrupt("op")

        agent = Agent(
            id="agent", model=ScriptedModel([*(ToolRequest("ask", {}) for _ in range(5)), "Done."]), tools=[ask]
        )
        result = await exec_agent(agent, "Go", operation_id="op", store=mine)

    assert result.reason == "interrupted"
    assert asked == 2


async def test_the_events_of_a_commit_follow_those_that_were_moved_to_another_day(store: SqlStore) -> None:
    await grow(store, "op", commits=2, each=1)
    async with store.writing() as connection:
        for table in (operations, events):
            await connection.execute(update(table).where(table.c.operation_id == "op").values(day=0))
    assert await commit(store, "op", 2)

    assert await store.events_of("op") == entries("op", 1, 3)


async def test_a_process_remembers_a_limited_number_of_operations(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MOST_REMEMBERED", 3)
    names = [f"op{nth}" for nth in range(5)]
    for name in names:
        await grow(store, name, commits=2, each=1)
    assert [*store._commit_writer._last_written] == names[2:]

    for name in names:
        assert await commit(store, name, 2)
    await grow(store, "op4", commits=1, each=1, status="done")
    assert "op4" not in store._commit_writer._last_written


async def test_processes_that_have_written_one_of_two_operations_each_lock_both_in_one_order(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqlStore(postgresql_url) as one, SqlStore(postgresql_url) as other:
        for nth in range(20):
            names = f"a{nth}", f"b{nth}"
            for store, name in zip((one, other), names, strict=True):
                await store.commit(state(name, 1), expected_version=None, entries=[])
            outcomes = await asyncio.gather(
                *(
                    store.commit(state(name, 2), expected_version=1, entries=[])
                    for store in (one, other)
                    for name in names
                ),
                return_exceptions=True,
            )
            assert sum(isinstance(each, StaleStateError) for each in outcomes) == 2

    assert "will be retried" not in caplog.text


async def test_the_columns_of_an_operation_say_what_its_state_says(store: SqlStore) -> None:
    await store.commit(state("op", 1), expected_version=None, entries=[])
    changed = msgspec.structs.replace(state("op", 2), agent_id="another")

    await store.commit(changed, expected_version=1, entries=[])

    assert [each.operation_id for each in (await store.operations(agent_id="another")).items] == ["op"]
