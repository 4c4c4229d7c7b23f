"""Commits that come at the same time share a transaction; each waits for its own and none harms another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from sqlalchemy import event, func, select, text

from hookline import Agent, Hooks, ModelResponse, OnComplete, ScriptedModel, exec_agent
from hookline.errors import HookUsageError, StaleStateError, StoreOverloadedError, StoreUnavailableError
from hookline.store import SqlStore
from hookline.store._commits import WORTH_A_GROUP
from hookline.store._tables import events, operations

from .records import entries, grow, state

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


class Writes:
    """Counts the statements by which a store writes events."""

    def __init__(self, store: SqlStore) -> None:
        self.count = 0
        for engine in store._database.engines:
            event.listen(engine, "before_cursor_execute", self.executed)

    def executed(self, connection: object, cursor: object, statement: str, *rest: object) -> None:
        self.count += statement.startswith("INSERT INTO events")


async def counts(store: SqlStore) -> tuple[int, int]:
    """How many events the operations speak of, and how many are stored."""
    async with store.reading() as connection:
        told = (await connection.execute(select(func.coalesce(func.sum(operations.c.events), 0)))).scalar_one()
        kept = (await connection.execute(select(func.count()).select_from(events))).scalar_one()
    return int(told), kept


async def test_commits_at_the_same_time_share_transactions(store: SqlStore) -> None:
    seen = Writes(store)

    async with asyncio.TaskGroup() as commits, store.writing() as connection:
        # All of them wait for this transaction, however quick the disk is.
        if store.dialect == "postgresql":
            await connection.execute(text("LOCK TABLE operations"))
        for each in (f"op{n}" for n in range(100)):
            new = state(each, 1, events=2)
            commits.create_task(store.commit(new, expected_version=None, entries=entries(each, 1, 2)))
        await anyio.wait_all_tasks_blocked()

    assert seen.count < 5
    await asyncio.gather(*(grow(store, f"op{n}", commits=2, each=2) for n in range(100)))
    assert await counts(store) == (600, 600)


async def test_a_commit_that_is_stale_fails_alone(store: SqlStore) -> None:
    await grow(store, "op", commits=1, each=1)

    outcomes = await asyncio.gather(
        grow(store, "a", commits=1, each=1),
        store.commit(state("op", 1, events=1), expected_version=None, entries=entries("op", 1, 1)),
        grow(store, "b", commits=1, each=1),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes[1:2]] == [StaleStateError]
    assert await counts(store) == (3, 3)


async def test_of_many_commits_on_one_version_exactly_one_wins(store: SqlStore) -> None:
    await store.save(state(), expected_version=None)

    outcomes = await asyncio.gather(
        *(
            store.commit(
                state(version=2, events=1, last_content=str(n)), expected_version=1, entries=entries("op", 1, 1)
            )
            for n in range(50)
        ),
        return_exceptions=True,
    )

    winners = [n for n, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert all(isinstance(outcome, StaleStateError) for outcome in outcomes if outcome is not None)
    loaded = await store.load("op")
    assert loaded is not None
    assert loaded.last_content == str(winners[0])
    assert await counts(store) == (1, 1)


async def test_of_many_stores_that_make_one_operation_exactly_one_wins(database_url: str) -> None:
    stores = [SqlStore(database_url, pool_size=2) for _ in range(6)]
    await asyncio.gather(*(store.__aenter__() for store in stores))

    for number in range(20):
        name = f"op{number}"
        outcomes = await asyncio.gather(
            *(
                store.commit(state(name, events=1), expected_version=None, entries=entries(name, 1, 1))
                for store in stores
            ),
            return_exceptions=True,
        )
        assert sum(outcome is None for outcome in outcomes) == 1
        assert all(isinstance(outcome, StaleStateError) for outcome in outcomes if outcome is not None), outcomes

    assert await counts(stores[0]) == (20, 20)
    await asyncio.gather(*(store.aclose() for store in stores))


async def test_a_commit_whose_caller_is_gone_before_its_turn_is_left_out(store: SqlStore) -> None:
    async with store.writing() if store.dialect == "sqlite" else lock(store):
        first = asyncio.create_task(store.save(state("first"), expected_version=None))
        await until(lambda: bool(store._commits._writing))
        second = asyncio.create_task(store.save(state("second"), expected_version=None))
        await until(lambda: bool(store._commits._waiting))
        second.cancel()
        await asyncio.wait([second])
    await first

    assert await store.load("second") is None
    await store.save(state("second"), expected_version=None)


async def test_what_is_read_comes_after_what_is_being_written_though_its_caller_is_gone(store: SqlStore) -> None:
    async with store.writing() if store.dialect == "sqlite" else lock(store):
        task = asyncio.create_task(store.save(state("op"), expected_version=None))
        await until(lambda: bool(store._commits._writing))
        task.cancel()
        await asyncio.wait([task])
        loading = asyncio.create_task(store.load("op"))
        await asyncio.sleep(0)

    assert await loading == state("op")


async def test_a_run_cancelled_while_its_first_commit_is_written_is_told_as_it_is_stored(store: SqlStore) -> None:
    heard: list[str] = []
    hooks = Hooks("heard")
    hooks.on(OnComplete)(lambda event: heard.append(event.reason))
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="done")]))
    async with store.writing() if store.dialect == "sqlite" else lock(store):
        task = asyncio.create_task(exec_agent(agent, "go", operation_id="op", store=store, hooks=[hooks]))
        await until(lambda: bool(store._commits._writing))
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])

    stored = await store.load("op")
    assert task.cancelled()
    assert stored is not None
    assert (stored.status, heard) == ("interrupted", ["interrupted"])
    assert [event.type for event in await store.events_of("op")] == ["onComplete"]


async def test_many_commits_are_written_beside_those_that_the_database_still_writes(store: SqlStore) -> None:
    def save(name: str) -> asyncio.Task[None]:
        return asyncio.create_task(store.save(state(name), expected_version=None))

    def written_now() -> list[str]:
        return [commit.operation_id for commit in store._commits._writing]

    async with store.writing() if store.dialect == "sqlite" else lock(store):
        first = save("first")
        await until(written_now)
        first.cancel()
        await asyncio.wait([first])
        again, few = save("first"), save("few")
        await anyio.wait_all_tasks_blocked()
        assert written_now() == ["first"]  # two commits are not worth a transaction of their own
        many = [save(f"many{number}") for number in range(WORTH_A_GROUP)]
        await anyio.wait_all_tasks_blocked()
        beside = {"few", *(f"many{number}" for number in range(WORTH_A_GROUP))}
        assert sorted(written_now()) == sorted({"first", *(beside if store.dialect == "postgresql" else ())})
    await asyncio.gather(few, *many)

    with pytest.raises(StaleStateError):  # it came after the first one, and so in a group after that
        await again
    assert await counts(store) == (0, 0)
    assert all([await store.load(name) for name in ("first", *sorted(beside))])


def lock(store: SqlStore) -> object:
    """Holds the table of operations, as another process may."""
    return Locked(store)


class Locked:
    def __init__(self, store: SqlStore) -> None:
        self._writing = store.writing()

    async def __aenter__(self) -> None:
        connection = await self._writing.__aenter__()
        await connection.exec_driver_sql("LOCK TABLE operations IN ACCESS EXCLUSIVE MODE")

    async def __aexit__(self, *error: object) -> None:
        await self._writing.__aexit__(None, None, None)


async def until(holds: object) -> None:
    async with asyncio.timeout(20):
        while not holds():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_a_full_queue_refuses_if_it_was_told_to(database_url: str) -> None:
    async with SqlStore(database_url, max_pending=3, overflow="refuse") as store:
        outcomes = await asyncio.gather(
            *(store.save(state(f"op{n}"), expected_version=None) for n in range(10)), return_exceptions=True
        )

        assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [StoreOverloadedError] * 7
        await store.save(state("later"), expected_version=None)
        assert len((await store.operations()).items) == 4


async def test_a_full_queue_lets_others_wait(database_url: str) -> None:
    async with SqlStore(database_url, max_pending=2) as store:
        await asyncio.gather(*(grow(store, f"op{n}", commits=2, each=1) for n in range(20)))

        assert await counts(store) == (40, 40)


async def test_closing_writes_what_waits_and_refuses_what_comes(database_url: str) -> None:
    store = SqlStore(database_url)
    await store.__aenter__()
    tasks = [asyncio.create_task(store.save(state(f"op{n}"), expected_version=None)) for n in range(20)]
    await asyncio.sleep(0)

    await store.aclose()

    assert await asyncio.gather(*tasks, return_exceptions=True) == [None] * 20
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.save(state("late"), expected_version=None)
    async with SqlStore(database_url) as store:
        assert len((await store.operations()).items) == 20


async def test_a_store_in_memory_keeps_everything_until_it_is_closed() -> None:
    async with SqlStore("sqlite:///:memory:") as store, SqlStore("sqlite:///:memory:") as other:
        await asyncio.gather(*(grow(store, f"op{n}", commits=3, each=2) for n in range(50)))
        for _ in range(5):
            task = asyncio.create_task(grow(store, "cut", commits=1, each=1))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        assert len(await store.events_of("op3")) == 6
        assert await other.load("op3") is None


async def test_a_cancelled_transaction_in_memory_loses_nothing_else() -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        await grow(store, "op", commits=1, each=3)
        begun = asyncio.Event()

        async def query() -> None:
            async with store.writing() as connection:
                begun.set()
                for _ in range(1000):
                    await connection.execute(select(func.count()).select_from(events))

        task = asyncio.create_task(query())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])

        assert len(await store.events_of("op")) == 3
        await grow(store, "op", commits=2, each=1)
        assert await counts(store) == (5, 5)


@pytest.mark.parametrize("place", [":memory:", "store.db"])
async def test_a_query_that_is_cancelled_with_rows_left_gives_its_lock_back(place: str, tmp_path: Path) -> None:
    begun, cancelled, kept = asyncio.Event(), threading.Event(), list[BaseException]()
    loop = asyncio.get_running_loop()

    def wait() -> int:
        loop.call_soon_threadsafe(begun.set)
        return cancelled.wait(30)

    async def query(store: SqlStore) -> None:
        async with store.writing() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            await driver.create_function("wait", 0, wait)
            try:
                await connection.exec_driver_sql("SELECT wait() FROM sqlite_master")
            except asyncio.CancelledError as error:
                kept.append(error)  # its traceback has the cursor, which Python would free some time later otherwise
                raise

    async with SqlStore(f"sqlite:///{place if place == ':memory:' else tmp_path / place}", retry_seconds=3.0) as store:
        task = asyncio.create_task(query(store))
        await begun.wait()
        task.cancel()
        cancelled.set()
        await asyncio.wait([task])

        await grow(store, "op", commits=1, each=3)
        assert len(await store.events_of("op")) == 3
    assert kept


async def test_a_store_whose_task_is_cancelled_writes_what_waits_and_closes(database_url: str) -> None:
    with anyio.CancelScope() as scope:
        async with SqlStore(database_url) as store:
            task = asyncio.create_task(store.save(state(), expected_version=None))
            await asyncio.sleep(0)
            scope.cancel()
            await anyio.sleep_forever()

    assert await asyncio.gather(task, return_exceptions=True) == [None]
    async with SqlStore(database_url) as again:
        assert await again.load("op") == state()
        assert await again.orphaned("op")


def test_another_event_loop_than_that_of_asyncio_is_refused() -> None:
    async def main() -> None:
        async with SqlStore("sqlite://"):
            pass

    with pytest.raises(HookUsageError, match="needs asyncio"):
        trio.run(main)


async def test_a_connection_that_is_in_use_when_its_store_closes_is_closed_too(database_url: str) -> None:
    closed: list[object] = []
    async with SqlStore(database_url) as store:
        event.listen(store._database._reader.sync_engine.pool, "close", lambda each, record: closed.append(each))
        async with store.reading() as connection:
            used = (await connection.get_raw_connection()).dbapi_connection
            await store.aclose()

    assert used in closed
