"""A store that is gone, slow or taken costs rows at worst, never a run; what is old is forgotten without a wait."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from hookline import Agent, Hooks, ModelResponse, ScriptedModel, exec_agent
from hookline.calls import AgentCall
from hookline.errors import StoreUnavailableError
from hookline.registry import ExecutionLog
from hookline.registry import _log as pruning
from hookline.store import SqlStore
from hookline.store._tables import execution_hooks, executions, statistics
from tests.databases import administer
from tests.programs import run_program

from .test_logs import execution, found, ran, tell

pytestmark = pytest.mark.anyio

WRITER = "tests.registry.log_writer"


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


async def count(store: SqlStore, table: Any) -> int:
    async with store.reading() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def run_agent() -> str | None:
    hooks = Hooks("h")
    hooks.before(AgentCall, id="in")(lambda call: None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="x")]))
    return (await exec_agent(agent, "hi", hooks=[hooks])).output


async def test_while_the_store_is_locked_runs_go_on_and_their_rows_are_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    with caplog.at_level(logging.WARNING, "hookline"):
        async with (
            SqlStore(f"sqlite:///{path}", retry_seconds=0.05) as store,
            ExecutionLog(store, max_queued=50) as log,
        ):
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                assert await run_agent() == "x"
                assert not await log.flush()
                tell(*(ran() for _ in range(100)))
                assert not await log.flush()
                assert await run_agent() == "x"
                assert (log.queued, log.dropped) == (51, 51)
                other.execute("ROLLBACK")

            assert len(await found(log)) == 51
            assert (log.queued, log.written, log.dropped) == (0, 51, 51)
            assert sum(each.count for each in await log.statistics(None)) == 51

    told = [record.getMessage() for record in caplog.records if "log of hook executions" in record.getMessage()]
    assert len([line for line in told if "cannot reach its store" in line]) == 1


async def test_a_store_that_stays_gone_costs_the_rows_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        async with SqlStore(f"sqlite:///{path}", retry_seconds=0.05) as store:
            async with ExecutionLog(store) as log:
                other.execute("BEGIN IMMEDIATE")
                assert await run_agent() == "x"
                tell(*(ran() for _ in range(9)))
            assert (log.queued, log.written, log.dropped) == (0, 0, 10)
            other.execute("ROLLBACK")

    assert "has dropped 10 executions" in caplog.text


async def test_a_closed_store_is_a_gone_one(database_url: str) -> None:
    store = SqlStore(database_url)
    await store.__aenter__()
    async with ExecutionLog(store) as log:
        await store.aclose()
        assert await run_agent() == "x"
        assert not await log.flush()
        with pytest.raises(StoreUnavailableError):
            await log.logs(None)
        with pytest.raises(StoreUnavailableError):
            await log.prune()

    assert (log.written, log.dropped) == (0, 1)


async def test_rows_that_the_database_refuses_are_dropped_and_the_next_ones_written(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with ExecutionLog(store) as log:
        async with store.writing() as connection:
            await connection.execute(text("ALTER TABLE execution_hooks RENAME TO elsewhere"))
        tell(ran())
        assert await log.flush()
        async with store.writing() as connection:
            await connection.execute(text("ALTER TABLE elsewhere RENAME TO execution_hooks"))
        tell(ran(operation_id="next"))

        assert [row.operation_id for row in await found(log)] == ["next"]
        assert (log.written, log.dropped) == (1, 1)
        assert (await log.statistics("t"))[0].count == 2
    assert "cannot be logged" in caplog.text


async def test_lost_connections_lose_and_double_no_row(postgresql_url: str) -> None:
    kills = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with (
        SqlStore(postgresql_url, retry_seconds=60) as store,
        ExecutionLog(store, max_queued=100_000) as log,
    ):
        killed = told = 0
        while killed < 10:
            tell(*(ran(time_unix_nano=time.time_ns()) for _ in range(300)))
            told += 300
            flushing = asyncio.create_task(log.flush())
            killed += int(str((await asyncio.to_thread(administer, postgresql_url, kills))[0]))
            await flushing

        async with asyncio.timeout(60):
            while not await log.flush():
                await asyncio.sleep(0.05)
        assert await count(store, executions) == await count(store, execution_hooks) == told
        assert (log.dropped, sum(each.count for each in await log.statistics(None))) == (0, told)


async def test_several_processes_write_one_log(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        async with (
            run_program(WRITER, database_url, 1000) as one,
            run_program(WRITER, database_url, 1000) as two,
            run_program(WRITER, database_url, 1000) as three,
        ):
            for each in (one, two, three):
                assert [await each.read_line(), await each.read_line()] == ["open", "1000 0"]
                assert await each.wait() == 0
        log = ExecutionLog(store)
        assert len(await found(log)) == 3000
        assert (await log.statistics("t"))[0].count == 3000
        assert sum(each.count for each in await log.statistics("t", by="minute")) == 3000


async def test_a_process_killed_while_it_writes_leaves_whole_batches(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        async with run_program(WRITER, database_url, 1_000_000) as child:
            assert await child.read_line() == "open"
            async with asyncio.timeout(60):
                while await count(store, executions) < 500:
                    await asyncio.sleep(0.01)
            child.kill()
            await child.wait()

        log = ExecutionLog(store)
        rows = len(await found(log))
        assert rows == await count(store, execution_hooks) >= 500
        assert len(await found(log, "t", hook_id="hook")) == rows
        assert (await log.statistics("t"))[0].count == rows


async def test_rows_are_forgotten_by_age(store: SqlStore) -> None:
    now = time.time_ns()
    async with ExecutionLog(store) as log:
        for hours in (0, 0.9, 1.1, 2, 50):
            tell(*(ran(time_unix_nano=now - int(hours * 3600e9)) for _ in range(150)))
        await log.flush()
    # One that is open forgets by itself too, and may be at some of the rows when it is asked to.
    log = ExecutionLog(store, retention_hours=1)

    await log.prune()

    assert len(await found(log)) == await count(store, execution_hooks) == 300
    assert await log.prune() == 0


async def test_rows_are_forgotten_by_number_the_oldest_first(store: SqlStore) -> None:
    now = time.time_ns()
    async with ExecutionLog(store) as log:
        tell(*(ran(operation_id=f"{nth}", time_unix_nano=now - nth * 10**6) for nth in range(1000)))
        await log.flush()
    log = ExecutionLog(store, max_rows=250)

    await log.prune()

    assert [row.operation_id for row in await found(log)] == [str(nth) for nth in range(250)]
    assert await count(store, execution_hooks) == 250
    assert (await log.statistics("t"))[0].count == 1000


async def test_sums_are_forgotten_too_those_of_minutes_first(store: SqlStore) -> None:
    now = time.time_ns()
    async with ExecutionLog(store) as log:
        for days in (0, 1, 29, 40):
            tell(ran(execution(), time_unix_nano=now - int(days * 86_400e9)))
        await log.flush()
    log = ExecutionLog(store, retention_hours=2)

    await log.prune()

    async with store.reading() as connection:
        query = select(statistics.c.seconds, func.count()).group_by(statistics.c.seconds)
        assert dict((await connection.execute(query)).all()) == {60: 1, 3600: 3}
    assert (await log.statistics("t"))[0].count == 3


async def test_two_processes_that_forget_at_once_do_not_disturb_each_other(store: SqlStore) -> None:
    async with ExecutionLog(store, retention_hours=1e6, max_queued=10**6) as log:
        tell(*(ran(time_unix_nano=time.time_ns() - 10**13 - nth * 10**6) for nth in range(3000)))
        tell(ran(time_unix_nano=time.time_ns()))
        await log.flush()
        others = [ExecutionLog(store, retention_hours=1) for _ in range(3)]

        await asyncio.gather(*(other.prune() for other in others))

        assert len(await found(log)) == await count(store, execution_hooks) == 1


async def test_others_write_while_much_is_forgotten(store: SqlStore) -> None:
    async with ExecutionLog(store, retention_hours=1e6, max_queued=10**6) as log:
        tell(*(ran(time_unix_nano=time.time_ns() - 10**13 - nth * 10**6) for nth in range(4000)))
        await log.flush()

        forgetting = asyncio.create_task(pruning.prune_log(store, retention_seconds=3600, max_rows=10**6))
        turns = 0
        while not forgetting.done():
            async with store.writing() as connection:
                await connection.execute(text("UPDATE workers SET started_at = started_at"))
            turns += 1
            await asyncio.sleep(0)

        await forgetting
        assert turns >= 4000 / pruning.BATCH_SIZE / 2
        assert await found(log) == []


async def test_an_open_log_forgets_by_itself(store: SqlStore) -> None:
    async with ExecutionLog(store, retention_hours=1e6) as log:
        tell(ran(time_unix_nano=time.time_ns() - 10**13))
        assert len(await found(log)) == 1

    async with ExecutionLog(store, retention_hours=1) as log, asyncio.timeout(20):
        while await found(log):
            await asyncio.sleep(0.01)
