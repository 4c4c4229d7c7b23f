"""Databases that are locked, full, gone for a while or changed by two processes at once: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore
from hookline.store._tables import deliveries, events, operations
from tests.databases import Server, administer
from tests.programs import run_program

from .records import entries, grow, state

pytestmark = pytest.mark.anyio

CHILD = "tests.store.child"


async def assert_states_and_events_agree(store: SqlStore) -> int:
    """Every operation has the events that its state counts, each with its delivery. How many operations there are."""
    async with store.reading() as connection:
        counted = select(events.c.operation_id, func.count(), func.max(events.c.number)).group_by(events.c.operation_id)
        kept = {name: (count, last) for name, count, last in await connection.execute(counted)}
        counted = select(deliveries.c.operation_id, func.count()).group_by(deliveries.c.operation_id)
        made = {name: count for name, count in await connection.execute(counted)}  # noqa: C416
        told = dict((await connection.execute(select(operations.c.operation_id, operations.c.events))).all())
    assert {name: (count, count) for name, count in told.items() if count} == kept
    assert not made or made == {name: count for name, count in told.items() if count}
    for name in list(told)[:5]:
        loaded = await store.load(name)
        assert loaded is not None
        assert loaded.events == told[name]
    return len(told)


async def test_of_two_processes_that_write_one_version_exactly_one_wins(database_url: str) -> None:
    async with (
        SqlStore(database_url) as store,
        run_program(CHILD, "race", database_url) as one,
        run_program(CHILD, "race", database_url) as two,
    ):
        for version in range(20):
            assert [await one.read_line(), await two.read_line()] == ["ready", "ready"]
            one.write_line(version)
            two.write_line(version)
            assert sorted([await one.read_line(), await two.read_line()]) == ["lost", "won"]

        assert sum([int(await one.read_line()), int(await two.read_line())]) == 20
        assert await store.events_of("op") == entries("op", 1, 20)


async def test_a_process_killed_while_it_writes_leaves_whole_commits_and_orphans(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        for _ in range(3):
            async with run_program(CHILD, "write", database_url) as process:
                assert await process.read_line() == "writing"
                before = await written(store)
                async with asyncio.timeout(30):
                    while await written(store) < before + 300:
                        await asyncio.sleep(0.01)
                process.kill()
                await process.wait()
            await assert_states_and_events_agree(store)

        assert await assert_states_and_events_agree(store) == 60
        async with asyncio.timeout(30):
            while len(await store.orphans()) < 60:
                await asyncio.sleep(0.05)
        for name in (await store.orphans())[:5]:
            await grow(store, name, commits=1, each=1)
            assert not await store.orphaned(name)


async def written(store: SqlStore) -> int:
    async with store.reading() as connection:
        return int((await connection.execute(select(func.count()).select_from(events))).scalar_one())


async def test_backends_terminated_in_mid_transaction_lose_and_double_nothing(postgresql_url: str) -> None:
    async with SqlStore(postgresql_url, pool_size=3, retry_seconds=60) as store:
        killed = 0

        async def one(name: str) -> int:
            commits = 0
            while killed < 10:
                await grow(store, name, commits=1, each=3)
                commits += 1
            return commits

        growing = [asyncio.create_task(one(f"op{n}")) for n in range(20)]
        while killed < 10:
            killed += int(str((await asyncio.to_thread(administer, postgresql_url, TERMINATE))[0]))
        commits = sum(await asyncio.gather(*growing))

        assert await assert_states_and_events_agree(store) == 20
        assert await written(store) == commits * 3


TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@asynccontextmanager
async def over_tcp(url: str) -> AsyncIterator[str]:
    """The address of a database that is reached through a socket of the file system, over TCP."""
    address = make_url(url)
    [path] = Path(str(address.query["host"])).glob(".s.PGSQL.*[0-9]")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_unix_connection(path)
        await asyncio.gather(pump(reader, forth), pump(back, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"postgresql://{address.username}@127.0.0.1:{server.sockets[0].getsockname()[1]}/{address.database}"
    finally:
        server.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system cannot be told how long silence may be")
async def test_the_system_ends_a_connection_to_a_server_that_has_fallen_silent(postgresql_url: str) -> None:
    async with over_tcp(postgresql_url) as url, SqlStore(url, retry_seconds=6) as store:
        async with store.reading() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            peer = driver._transport.get_extra_info("socket")

            assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            silence = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            wait, each, count = (
                peer.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert 0 < silence <= 6000
            assert wait + each * count <= 6
        await grow(store, "op", commits=2, each=1)


async def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(postgresql_url: str) -> None:
    async with SqlStore(postgresql_url) as store:
        write, lost = store._commits._write, 0

        async def write_and_lose(commits: object) -> list[Exception | None]:
            nonlocal lost
            outcomes = await write(commits)  # type: ignore[arg-type]
            if lost < 2:
                lost += 1
                raise StoreUnavailableError("the store", "the answer was lost") from ConnectionResetError()
            return outcomes

        store._commits._write = write_and_lose
        await asyncio.gather(*(grow(store, f"op{n}", commits=2, each=2) for n in range(5)))

        assert lost == 2
        assert await assert_states_and_events_agree(store) == 5
        assert await written(store) == 20


async def test_a_server_that_crashes_and_comes_back_loses_and_doubles_nothing(
    postgresql_url: str, postgresql: Server
) -> None:
    async with SqlStore(postgresql_url, retry_seconds=60) as store:
        growing = asyncio.gather(*(grow(store, f"op{n}", commits=30, each=3) for n in range(20)))
        while await written(store) < 200:
            await asyncio.sleep(0.01)
        assert not growing.done()

        await asyncio.to_thread(postgresql.crash)
        await growing

        assert await assert_states_and_events_agree(store) == 20
        assert await written(store) == 20 * 30 * 3


async def test_a_server_that_is_gone_for_too_long_is_told_of_and_used_again_when_it_is_back(
    postgresql_url: str, postgresql: Server
) -> None:
    name = postgresql_url.split("?")[0].rsplit("/", 1)[1]
    async with SqlStore(postgresql_url, retry_seconds=0.5) as store:
        await store.save(state(), expected_version=None)
        administer(postgresql.uri, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        administer(postgresql.uri, TERMINATE.replace("current_database()", f"'{name}'"))
        try:
            for action in (store.save(state(version=2), expected_version=1), store.load("op"), store.now()):
                with pytest.raises(StoreUnavailableError, match="not currently accepting connections"):
                    await action
        finally:
            administer(postgresql.uri, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')

        await store.save(state(version=2), expected_version=1)
        assert await store.load("op") == state(version=2)


async def test_a_file_that_another_process_locks_is_waited_for_and_then_told_of(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with SqlStore(f"sqlite:///{file}", retry_seconds=0.3) as store:
        await store.save(state(), expected_version=None)
        async with run_program(CHILD, "hold", str(file)) as process:
            assert await process.read_line() == "locked"

            with pytest.raises(StoreUnavailableError, match="another process holds its write lock"):
                await store.commit(state(version=2, events=1), expected_version=1, entries=entries("op", 1, 1))
            assert await store.load("op") == state()

            process.write_line("let go")
            assert await process.read_line() == "free"

        await store.commit(state(version=2, events=1), expected_version=1, entries=entries("op", 1, 1))
        assert await store.load("op") == state(version=2, events=1)


async def test_a_lock_that_ends_in_time_is_not_noticed(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    async with (
        SqlStore(f"sqlite:///{file}", retry_seconds=30) as store,
        run_program(CHILD, "hold", str(file)) as process,
    ):
        assert await process.read_line() == "locked"
        saving = asyncio.gather(*(grow(store, f"op{n}", commits=2, each=2) for n in range(5)))
        await asyncio.sleep(0.1)
        assert not saving.done()

        process.write_line("let go")
        await saving

        assert await assert_states_and_events_agree(store) == 5


async def limit_pages(store: SqlStore, more: int) -> None:
    """Let the file of a store grow by so many pages."""

    async def limit(connection: AsyncConnection) -> None:
        pages = (await connection.execute(text("PRAGMA page_count"))).scalar_one()
        await connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + more}")

    await store._database.write(limit)


async def test_a_full_disk_is_told_of_and_later_all_goes_on(tmp_path: Path) -> None:
    async with SqlStore(f"sqlite:///{tmp_path}/store.db") as store:
        await grow(store, "op", commits=1, each=1)
        await limit_pages(store, 10)

        outcomes = await asyncio.gather(
            *(store.save(state(f"big{n}", last_content="x" * 50_000), expected_version=None) for n in range(10)),
            return_exceptions=True,
        )
        assert all(isinstance(outcome, StoreUnavailableError) for outcome in outcomes)
        assert "the disk is full" in str(outcomes[0])
        assert "big" not in str(outcomes[0])
        assert await assert_states_and_events_agree(store) == 1

        await limit_pages(store, 1_000_000)
        await store.save(state("big", last_content="x" * 50_000), expected_version=None)
        await grow(store, "op", commits=1, each=1)
        assert await assert_states_and_events_agree(store) == 2


async def test_errors_of_a_database_show_nothing_of_what_was_to_be_written(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        async with store.writing() as connection:
            await connection.exec_driver_sql("DROP TABLE events")

        with pytest.raises(Exception, match="events") as caught:
            await store.commit(
                state(last_content="secret-of-a-user", user_id="secret-user", events=1),
                expected_version=None,
                entries=entries("op", 1, 1),
            )

        told: BaseException | None = caught.value
        while told is not None:
            assert "secret" not in str(told)
            told = told.__cause__
        assert await store.load("op") is None
