"""Processes that die, hang or are cut off delay a fenced change by their lease at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hookline.registry import FenceError, Registry
from hookline.store import SqlStore
from hookline.wakeups import PollingWakeups
from tests.databases import Server, administer
from tests.programs import Program, run_program

from .scenes import FACTORIES, definition, until
from .test_fences import COUNTING, REFUSE, at, members, open_registry, results, run

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def member(url: str, *, lease: float, what: str = "living") -> AsyncIterator[Program]:
    async with run_program("tests.registry.fence_member", url, lease, what) as program:
        assert await program.read_line() == "ready"
        yield program


async def test_a_process_that_is_killed_while_a_change_waits_delays_it_by_its_lease(database_url: str) -> None:
    async with SqlStore(database_url) as store, open_registry(store) as registry:
        await registry.create(definition(**COUNTING))
        async with member(database_url, lease=2.0, what="stuck") as other:
            change = asyncio.create_task(registry.update("limit", REFUSE, fence=True))
            await until(lambda: registry.hooks()[1].revision > 1)  # type: ignore[union-attr]
            assert not change.done()
            other.kill()

            await asyncio.wait_for(change, 60)

            assert len(await members(store)) == 1


async def test_processes_that_live_confirm_without_a_wait_for_their_lease(database_url: str) -> None:
    async with (
        SqlStore(database_url) as store,
        open_registry(store, fence_timeout=300.0) as registry,
        member(database_url, lease=600.0),
        member(database_url, lease=600.0),
    ):
        await registry.create(definition(**COUNTING))
        assert len(await members(store)) == 3

        await asyncio.wait_for(registry.update("limit", REFUSE, fence=True), 100)

        assert len(await members(store)) == 3


async def test_a_process_whose_lease_is_longer_than_the_wait_is_named(database_url: str) -> None:
    async with (
        SqlStore(database_url) as store,
        open_registry(store, fence_timeout=1.0) as registry,
        member(database_url, lease=600.0, what="stuck") as other,
    ):
        await registry.create(definition(**COUNTING))

        with pytest.raises(FenceError) as failure:
            await registry.update("limit", REFUSE, fence=True)

        assert [f"-{other.pid}-" in name for name in failure.value.members] == [True]
        assert (await registry.get("limit")).config == {"most": 0}


async def test_a_lost_wake_up_delays_a_change_by_a_third_of_the_lease(database_url: str) -> None:
    deaf = PollingWakeups(3600)
    async with (
        SqlStore(database_url, wakeups=deaf) as store,
        Registry(store, modules=[FACTORIES], lease_seconds=3.0) as registry,
        SqlStore(database_url) as other_store,
        Registry(other_store, modules=[FACTORIES]) as changing,
    ):
        await changing.create(definition(**COUNTING))
        await registry.refresh()

        # It returns only because the process looks without a wake-up whenever it renews its lease.
        await asyncio.wait_for(changing.update("limit", REFUSE, fence=True), 50)

        assert (await registry.get("limit")).config == {"most": 0}
        assert registry.hooks()[1].revision == (await changing.get("limit")).revision  # type: ignore[union-attr]


async def test_a_process_that_is_cut_off_denies_when_its_lease_has_ended(
    postgresql_url: str, postgresql: Server
) -> None:
    name = postgresql_url.split("?")[0].rsplit("/", 1)[1]
    terminate = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"
    async with (
        SqlStore(postgresql_url, retry_seconds=1.0) as store,
        open_registry(store, lease_seconds=1.5) as registry,
    ):
        await registry.create(definition(**COUNTING))

        async def cut_off() -> None:
            administer(postgresql.uri, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            administer(postgresql.uri, terminate)
            await until(lambda: registry._fence.is_lost, seconds=60)

        async def connect() -> None:
            administer(postgresql.uri, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
            await until(lambda: not registry._fence.is_lost, seconds=60)

        try:
            result = await run(registry, at(1, cut_off))
            assert [text.startswith("paid") for text in results(result)] == [True, False, False]
            assert any("lease" in problem for problem in registry.problems)
        finally:
            await connect()

        result = await run(registry, at(0, connect))
        assert results(result) == ["paid 1", "paid 2", "paid 3"]
        await until(lambda: not any("lease" in problem for problem in registry.problems))
