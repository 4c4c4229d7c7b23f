"""`DbosEngine` starts DBOS itself where it is given the address of a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from dbos import DBOS

from hookline import Agent, ModelResponse, exec_agent
from hookline.engines import DbosEngine, QueueOptions
from hookline.errors import HookUsageError
from hookline.runtime import ScriptedModel
from hookline.store import SqlStore, Worker
from tests.databases import Server
from tests.tables import for_each

pytestmark = pytest.mark.anyio

FAST: dict[str, QueueOptions] = {"hookline": {"polling_interval_sec": 0.1}}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    async with SqlStore(f"sqlite:///{tmp_path / 'store.db'}", lease_seconds=2) as store:
        yield store


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'dbos.db'}"


def agent(*answers: object) -> Agent:
    return Agent(id="worker", model=ScriptedModel(list(answers)))


async def test_a_process_without_a_worker_begins_operations_and_a_worker_runs_them(
    store: SqlStore, address: str
) -> None:
    async with DbosEngine(store, address) as caller, DbosEngine(store, address) as engine:
        results = []

        async def begin() -> None:
            results.append(await exec_agent(agent(), "Go", operation_id="op", store=store, engine=caller))

        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            with anyio.fail_after(60):
                while await store.operation("op") is None:
                    await anyio.sleep(0.01)
            async with Worker(store, [agent("done")], engine=engine):
                with anyio.fail_after(60):
                    while not results:
                        await anyio.sleep(0.01)
    assert results[0].output == "done"


async def test_a_worker_that_is_left_ends_its_segments_and_another_one_can_follow(
    store: SqlStore, address: str
) -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    async def answer(call: object) -> ModelResponse:
        begun.set()
        await go_on.wait()
        return ModelResponse(content="done")

    slow = Agent(id="worker", model=ScriptedModel(answer))

    async with DbosEngine(store, address, queues=FAST) as engine, anyio.create_task_group() as group:

        async def begin() -> None:
            await exec_agent(agent(), "Go", operation_id="op", store=store, engine=engine)

        async def work() -> None:
            async with Worker(store, [slow], engine=engine):
                await begun.wait()
            stored = await store.operation("op")
            assert stored is not None
            assert stored.status == "done"
            async with Worker(store, [agent("again")], engine=engine):
                assert (await exec_agent(agent(), "Go", store=store, engine=engine)).output == "again"
            group.cancel_scope.cancel()

        group.start_soon(begin)
        group.start_soon(work)
        with anyio.fail_after(60):
            await begun.wait()
            go_on.set()
            await anyio.sleep_forever()
    assert group.cancel_scope.cancel_called


async def test_a_worker_that_is_cancelled_while_its_segments_end_lets_them_go(store: SqlStore, address: str) -> None:
    begun = anyio.Event()

    async def answer(call: object) -> ModelResponse:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    slow = Agent(id="worker", model=ScriptedModel(answer))
    async with DbosEngine(store, address, queues=FAST) as engine, anyio.create_task_group() as group:

        async def begin() -> None:
            await exec_agent(agent(), "Go", operation_id="op", store=store, engine=engine)

        group.start_soon(begin)
        with anyio.CancelScope() as scope:
            async with Worker(store, [slow], engine=engine):
                with anyio.fail_after(60):
                    await begun.wait()
                scope.deadline = anyio.current_time() + 0.1
        assert scope.cancelled_caught

        with anyio.fail_after(60):
            async with Worker(store, [agent("done")], engine=engine):
                while (await store.operation("op")).status != "done":  # type: ignore[union-attr]
                    await anyio.sleep(0.01)


async def test_operations_run_once_a_lost_database_of_dbos_is_back(
    store: SqlStore, postgresql: Server, postgresql_url: str
) -> None:
    async with (
        DbosEngine(store, postgresql_url, queues=FAST) as engine,
        Worker(store, [agent("before", "after")], engine=engine),
    ):
        assert (await exec_agent(agent(), "Go", store=store, engine=engine)).output == "before"
        await anyio.to_thread.run_sync(postgresql.lose)
        try:
            with anyio.move_on_after(0.5):
                await exec_agent(agent(), "Go", operation_id="op", store=store, engine=engine)
        finally:
            await anyio.to_thread.run_sync(postgresql.recover)
        with anyio.fail_after(100):
            assert (await store.wait_until_stopped("op")).status == "done"


@for_each(
    "wrong, shown",
    [
        ("postgresql://me:secret@localhost:1/dbos", r"postgresql://me:\*\*\*@localhost:1/dbos"),
        ("sqlite:////no/such/folder/dbos.db", "sqlite:////no/such/folder/dbos.db"),
    ],
)
async def test_a_wrong_address_is_an_error(store: SqlStore, wrong: str, shown: str) -> None:
    engine = DbosEngine(store, wrong)
    with pytest.raises(HookUsageError, match=f"(?s)cannot open the system database of DBOS at {shown}: .*correct the"):
        await Worker(store, [agent()], engine=engine).__aenter__()


async def test_a_dbos_that_was_not_launched_is_an_error(store: SqlStore, address: str) -> None:
    dbos = DBOS(config={"name": "application", "system_database_url": address, "log_level": "ERROR"})
    try:
        engine = DbosEngine(store, dbos)
        with pytest.raises(HookUsageError, match=r"does not run: .* Call DBOS.launch\(\) before"):
            await Worker(store, [agent()], engine=engine).__aenter__()
        with pytest.raises(HookUsageError, match=r"does not run: .* Call DBOS.launch\(\) before"):
            await engine.begin("op", agent_id="worker")
    finally:
        await anyio.to_thread.run_sync(DBOS.destroy)
