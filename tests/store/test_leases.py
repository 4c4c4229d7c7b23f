"""A running operation belongs to the process that wrote it, as long as that gives signs of life."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import delete, select, update

from hookline import Agent, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.errors import StaleStateError
from hookline.store import SqlStore
from hookline.store._tables import operations, workers

from .records import state

pytestmark = pytest.mark.anyio


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # type: ignore[misc]
            await asyncio.sleep(0.02)


async def test_a_running_operation_is_its_process_s_own_until_that_closes(database_url: str) -> None:
    async with SqlStore(database_url) as other:
        async with SqlStore(database_url) as store:
            await store.save(state("running"), expected_version=None)
            await store.save(state("waiting", status="waiting_for_human"), expected_version=None)
            await store.save(state("done", status="done"), expected_version=None)
            assert not await other.orphaned("running")
            assert await other.orphans() == []

        assert await other.orphaned("running")
        assert await other.orphans() == ["running"]
        for name in ("waiting", "done", "unknown"):
            assert not await other.orphaned(name)


async def test_an_operation_is_an_orphan_once_the_lease_of_its_process_is_over(database_url: str) -> None:
    async with SqlStore(database_url) as other, SqlStore(database_url, lease_seconds=3600) as store:
        await store.save(state(), expected_version=None)
        assert not await other.orphaned("op")

        await die(store)

        assert await other.orphaned("op")


async def die(store: SqlStore) -> None:
    """Let the lease of a store have run out, as if its process had been dead for long."""
    async with store.writing() as connection:
        mine = workers.c.worker_id == store.worker_id
        await connection.execute(update(workers).where(mine).values(alive_until=store.now_sql() - 0.001))


async def test_a_lease_is_renewed_while_the_process_lives(database_url: str) -> None:
    async with SqlStore(database_url, lease_seconds=2) as store:
        await store.save(state(), expected_version=None)
        first = await alive_until(store)

        async def renewed() -> bool:
            return await alive_until(store) > first

        await until(renewed)
        assert not await store.orphaned("op")


async def test_a_run_that_another_process_has_taken_over_ends_here_and_is_no_failure_of_the_operation(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    taken_over, ran = asyncio.Event(), 0

    @tool
    async def look() -> str:
        nonlocal ran
        ran += 1
        await taken_over.wait()
        return "seen"

    agent = Agent(id="agent", model=ScriptedModel([ToolRequest("look"), "done"]), tools=[look])
    async with SqlStore(database_url) as here, SqlStore(database_url) as there:
        run = asyncio.create_task(exec_agent(agent, "go", operation_id="op", store=here))

        async def under_way() -> bool:
            return ran > 0

        await until(under_way)
        found = await there.load("op")
        assert found is not None
        theirs = msgspec.structs.replace(found, version=found.version + 1)
        await there.save(theirs, expected_version=found.version)
        taken_over.set()
        left = await run
        stored = await there.load("op")
        orphaned = await here.orphaned("op")

    assert (left.reason, type(left.error)) == ("error", StaleStateError)
    assert (stored, orphaned, ran) == (theirs, False, 1)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Operation op cannot continue here and is left to other processes"
    ]


async def alive_until(store: SqlStore) -> float:
    async with store.reading() as connection:
        mine = workers.c.worker_id == store.worker_id
        return float((await connection.execute(select(workers.c.alive_until).where(mine))).scalar_one())


async def test_a_lease_that_somebody_removed_is_taken_anew(database_url: str) -> None:
    async with SqlStore(database_url, lease_seconds=1.5) as store:
        await store.save(state(), expected_version=None)
        async with store.writing() as connection:
            await connection.execute(delete(workers))
        assert await store.orphaned("op")

        async def owned() -> bool:
            return not await store.orphaned("op")

        await until(owned)


async def test_who_writes_an_orphan_owns_it(database_url: str) -> None:
    async with SqlStore(database_url) as store, SqlStore(database_url) as other:
        await store.save(state(), expected_version=None)
        await die(store)
        assert await store.orphaned("op")

        await other.save(state(version=2), expected_version=1)

        assert not await store.orphaned("op")
        found = await store.operation("op")
        assert found is not None
        assert found.owner == other.worker_id


async def test_what_is_released_is_an_orphan_but_only_the_owner_can_release_it(database_url: str) -> None:
    async with SqlStore(database_url) as store, SqlStore(database_url) as other:
        await store.save(state(), expected_version=None)

        await other.release("op")
        assert not await store.orphaned("op")
        await store.release("op")
        assert await other.orphaned("op")
        await store.release("unknown")


async def test_orphans_are_the_roots_that_were_written_longest_ago(database_url: str) -> None:
    async with SqlStore(database_url) as other:
        async with SqlStore(database_url) as store:
            await store.save(state("root"), expected_version=None)
            await store.save(state("child", parent_operation_id="root"), expected_version=None)
            await store.save(state("grandchild", parent_operation_id="child"), expected_version=None)
            await store.save(state("over", status="done"), expected_version=None)
            await store.save(state("left", parent_operation_id="over"), expected_version=None)
            await store.save(state("lost", parent_operation_id="unknown"), expected_version=None)
            async with store.writing() as connection:
                for number, name in enumerate(("lost", "root", "left", "child", "grandchild")):
                    its = operations.c.operation_id == name
                    await connection.execute(update(operations).where(its).values(updated_at=float(number)))

        assert await other.orphans() == ["lost", "root", "left"]
        assert await other.orphans(2) == ["lost", "root"]


async def test_rows_of_processes_long_dead_are_removed(database_url: str) -> None:
    async with SqlStore(database_url, lease_seconds=5) as store, store.writing() as connection:
        await connection.execute(
            workers.insert(),
            [
                {"worker_id": "long ago", "alive_until": 1.0, "started_at": 0.0},
                {
                    "worker_id": "just now",
                    "alive_until": await store.now() if store.dialect != "sqlite" else 4e9,
                    "started_at": 0.0,
                },
            ],
        )

    async with SqlStore(database_url, lease_seconds=5) as store, store.reading() as connection:
        found = set((await connection.execute(select(workers.c.worker_id))).scalars())
    assert found == {"just now", store.worker_id}


async def test_a_lease_that_cannot_be_renewed_is_told_of_and_tried_again(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqlStore(database_url, lease_seconds=0.3, retry_seconds=0.2) as store:
        async with store.writing() as connection:
            await connection.exec_driver_sql("ALTER TABLE workers RENAME TO gone")

        async def told() -> bool:
            return "could not be renewed" in caplog.text

        await until(told)
        async with store.writing() as connection:
            await connection.exec_driver_sql("ALTER TABLE gone RENAME TO workers")
        first = await alive_until(store)

        async def renewed() -> bool:
            return await alive_until(store) > first

        await until(renewed)


async def test_orphans_are_the_running_operations_whose_owner_is_none_or_dead(database_url: str) -> None:
    dice = random.Random(21)
    async with SqlStore(database_url) as store, SqlStore(database_url) as other:
        owners = [None, store.worker_id, other.worker_id, *(f"dead{number}" for number in range(5))]
        given = {
            f"op{number}": (dice.choice(["running", "done", "waiting_for_human"]), dice.choice(owners))
            for number in range(100)
        }
        for operation_id, (status, owner) in given.items():
            await store.save(state(operation_id), expected_version=None)
            row = operations.c.operation_id == operation_id
            async with store.writing() as connection:
                await connection.execute(update(operations).where(row).values(status=status, owner=owner))

        alive = (store.worker_id, other.worker_id)
        orphaned = [each for each, (status, owner) in given.items() if status == "running" and owner not in alive]
        assert await store.orphans(limit=1000) == orphaned
        assert await store.orphans(limit=3) == orphaned[:3]
        assert await store.orphans(limit=1000, exclude=orphaned[:5]) == orphaned[5:]
        assert await store.orphans(agent_ids=["another"]) == []
