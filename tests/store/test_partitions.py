"""Old days are dropped on PostgreSQL and deleted in batches on SQLite; what is needed stays, and nobody has to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text, update

from hookline.registry._log_rows import make_key
from hookline.store import DeliveryFilter, DeliveryLog, SqlStore
from hookline.store import _partitions as partitions
from hookline.store import _retention as retention
from hookline.store._database import translate_errors
from hookline.store._partitions import DAY, GIVEN_UP, KEPT, KEYS, find_partitions, make_partitions
from hookline.store._tables import attempts, deliveries, events, operations
from tests.store.records import entries, grow
from tests.store.test_deliveries import Table, envelope
from tests.store.test_deliveries_log import settled

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
TODAY = int(time.time() // DAY)


class Calendar:
    """The clock of this process, as the store sees it."""

    def __init__(self) -> None:
        self.days = 0

    def __call__(self) -> float:
        return time.time() + self.days * DAY


@pytest.fixture
def calendar(monkeypatch: pytest.MonkeyPatch) -> Calendar:
    calendar = Calendar()
    monkeypatch.setattr(partitions, "time", calendar)
    return calendar


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def postgresql_store(postgresql_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(postgresql_url) as store:
        yield store


async def age(store: SqlStore, operation_id: str, days: float) -> None:
    """Have an operation been written last some days ago."""
    its, ago = operations.c.operation_id == operation_id, days * DAY
    async with store.writing() as connection:
        await connection.execute(
            update(operations).where(its).values(updated_at=operations.c.updated_at - ago, created_at=time.time() - ago)
        )


async def days_of(store: SqlStore, table: str) -> list[int]:
    """The days that have a partition, from the present one."""
    async with store.reading() as connection:
        return sorted(day - TODAY for day in await find_partitions(connection, table))


async def count_rows(store: SqlStore, table: str) -> int:
    async with store.reading() as connection:
        return int((await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


async def numbers(store: SqlStore, operation_id: str) -> list[int]:
    return [entry.number for entry in await store.events_of(operation_id)]


async def test_a_store_that_opens_makes_the_partitions_of_the_next_days(postgresql_store: SqlStore) -> None:
    for table in ("events", "deliveries", "attempts"):
        assert await days_of(postgresql_store, table) == [0, 1, 2]
    for table in ("executions", "execution_hooks"):
        assert await days_of(postgresql_store, table) == [0, 1, 2]  # the first holds all days before, too


def test_the_days_of_executions_are_those_of_their_keys() -> None:
    assert make_key(DAY * 1_000_000) == KEYS


async def test_a_day_is_dropped_and_what_is_still_needed_stays(postgresql_store: SqlStore, calendar: Calendar) -> None:
    store = postgresql_store
    calendar.days = -40
    await make_partitions(store._database)
    await grow(store, "ended", commits=2, each=3, status="done")
    await grow(store, "lives", commits=2, each=3)
    await grow(store, "ended late", commits=1, each=2, status="done")
    await age(store, "ended", 39)
    await age(store, "lives", 39)
    assert -40 in await days_of(store, "events")
    calendar.days = 0

    assert await store.prune(30 * DAY) == 1

    assert await days_of(store, "events") == [0, 1, 2]
    assert (await numbers(store, "ended"), await store.operation("ended")) == ([], None)
    assert await numbers(store, "lives") == [1, 2, 3, 4, 5, 6]
    await grow(store, "lives", commits=1, each=2, status="done")
    assert await numbers(store, "lives") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert await numbers(store, "ended late") == [1, 2]
    await age(store, "lives", 31)
    assert await store.prune(30 * DAY) == 1
    assert await count_rows(store, "events") == 2


_runs = count()


@settings(max_examples=12, **SETTINGS)
@given(
    found=st.lists(
        st.tuples(
            st.integers(0, 5),  # days since it began
            st.sampled_from(["done", "running"]),
            st.floats(0, 5),  # days since it was written last
            st.booleans(),  # whether something is to be delivered
            st.integers(0, 4),
        ),
        max_size=6,
    ),
    older_than=st.sampled_from([0.0, DAY / 2, DAY, 2 * DAY, 3.5 * DAY]),
)
async def test_what_pruning_deletes_is_old_and_what_it_keeps_is_whole(
    store: SqlStore,
    calendar: Calendar,
    found: list[tuple[int, str, float, bool, int]],
    older_than: float,
) -> None:
    """The law, of both databases: nothing early, nothing in part, and at most a day late."""
    run = next(_runs)
    deletable, due = set(), set()
    for nth, (began, status, written, undelivered, size) in enumerate(found):
        name, ago = f"{run}-{nth}", min(written, began) * DAY
        calendar.days = -began
        await make_partitions(store._database)
        await grow(store, name, commits=1, each=size, status=status)
        await age(store, name, ago / DAY)
        if undelivered:
            await Table(store).put(envelope(name, 1))
        if status == "done" and not undelivered and ago >= older_than:
            deletable.add(name)
            if store.dialect == "sqlite" or older_than < DAY or (began - 1) * DAY >= older_than:
                due.add(name)
    calendar.days = 0

    deleted = await store.prune(older_than)

    left = {name for nth in range(len(found)) if await store.operation(name := f"{run}-{nth}")}
    gone = {f"{run}-{nth}" for nth in range(len(found))} - left
    assert due <= gone <= deletable
    assert len(gone) == deleted
    for nth, (*_, size) in enumerate(found):
        name = f"{run}-{nth}"
        assert await numbers(store, name) == (list(range(1, size + 1)) if name in left else [])
    async with store.writing() as connection:
        await connection.execute(text("DELETE FROM operations"))
        await connection.execute(text("DELETE FROM events"))
        await connection.execute(text("DELETE FROM deliveries"))


@pytest.mark.parametrize("days", [30, -30])
async def test_a_clock_that_jumps_loses_nothing_and_the_day_gets_its_partition_when_it_comes(
    postgresql_store: SqlStore, calendar: Calendar, days: int
) -> None:
    store = postgresql_store
    calendar.days = days
    await grow(store, "op", commits=2, each=3)
    assert await count_rows(store, "events_default") == 6
    calendar.days = 0
    await grow(store, "op", commits=1, each=1)
    await grow(store, "other", commits=1, each=1)
    calendar.days = days

    await make_partitions(store._database)

    assert days in await days_of(store, "events")
    assert await count_rows(store, "events_default") == 0
    assert await numbers(store, "op") == [1, 2, 3, 4, 5, 6, 7]
    assert await numbers(store, "other") == [1]


async def test_a_day_with_many_rows_in_the_default_partition_stays_there_and_is_pruned(
    postgresql_store: SqlStore, calendar: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgresql_store
    monkeypatch.setattr(partitions, "STRAYS", 5)
    calendar.days = -9
    await grow(store, "op", commits=1, each=6, status="done")
    await grow(store, "lives", commits=1, each=6)
    await age(store, "op", 9)

    await make_partitions(store._database)

    assert -9 not in await days_of(store, "events")
    assert await numbers(store, "op") == [1, 2, 3, 4, 5, 6]
    assert await store.prune(5 * DAY) == 1
    assert await numbers(store, "op") == []
    assert await numbers(store, "lives") == [1, 2, 3, 4, 5, 6]


async def test_two_processes_may_make_and_prune_the_same_days_at_once(postgresql_url: str, calendar: Calendar) -> None:
    async with SqlStore(postgresql_url) as one, SqlStore(postgresql_url) as other:
        for nth in range(40):
            calendar.days = -20 + nth % 4
            if nth < 4:
                await asyncio.gather(make_partitions(one._database), make_partitions(other._database))
            await grow(one, f"op{nth}", commits=1, each=5, status="done" if nth % 3 else "running")
            await age(one, f"op{nth}", 15)
        calendar.days = 0

        pruned = await asyncio.gather(one.prune(10 * DAY), other.prune(10 * DAY), one.prune(10 * DAY))

        assert sum(pruned) >= 26
        assert len((await one.operations()).items) == 14
        assert await count_rows(one, "events") == 14 * 5
        assert await days_of(one, "events") == [0, 1, 2]
        for nth in range(0, 40, 3):
            assert await numbers(other, f"op{nth}") == [1, 2, 3, 4, 5]


async def test_an_operation_goes_on_while_its_day_is_dropped(postgresql_store: SqlStore, calendar: Calendar) -> None:
    store = postgresql_store
    calendar.days = -20
    await make_partitions(store._database)
    for nth in range(6):
        await grow(store, f"op{nth}", commits=1, each=2)
    calendar.days = 0

    async def go_on(name: str) -> None:
        for _ in range(15):
            await grow(store, name, commits=1, each=2)
            found = await numbers(store, name)
            assert found == list(range(1, len(found) + 1))
            assert found

    await asyncio.gather(store.prune(10 * DAY), *(go_on(f"op{nth}") for nth in range(6)))

    await store.prune(10 * DAY)
    assert -20 not in await days_of(store, "events")
    for nth in range(6):
        assert await numbers(store, f"op{nth}") == list(range(1, 33))


async def test_a_drop_gives_way_to_a_reader_and_writers_do_not_wait_for_it(
    postgresql_store: SqlStore, calendar: Calendar, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = postgresql_store
    monkeypatch.setattr(partitions, "TRIES", 3)
    monkeypatch.setattr(partitions, "PAUSE", 0.01)
    calendar.days = -20
    await make_partitions(store._database)
    calendar.days = 0

    async with store.reading() as dump:
        await dump.execute(select(func.count()).select_from(events))
        pruning = asyncio.create_task(store.prune(10 * DAY))
        await grow(store, "op", commits=5, each=1)
        await pruning

    assert -20 in await days_of(store, "events")
    assert "in use for long" in caplog.text
    await store.prune(10 * DAY)
    assert -20 not in await days_of(store, "events")


async def test_events_of_an_event_log_are_kept_whatever_is_dropped(
    postgresql_store: SqlStore, calendar: Calendar
) -> None:
    store = postgresql_store
    calendar.days = -20
    await make_partitions(store._database)
    async with store.writing() as connection:
        for entry in entries("foreign", 1, 3):
            row = {"operation_id": "foreign", "tenant_id": "", "type": str(entry.type), "number": entry.number}
            await connection.execute(events.insert().values(**row, time_unix_nano=1, wire=entry.wire))
    calendar.days = 0

    await store.prune(0)

    assert await numbers(store, "foreign") == [1, 2, 3]


async def test_deliveries_are_dropped_with_the_day_and_those_given_up_stay(postgresql_store: SqlStore) -> None:
    store, log = postgresql_store, DeliveryLog(postgresql_store)
    table = Table(store)
    table.now = await store.now() - 9 * DAY
    for name in ("deliveries", "attempts"):
        await partitions._make_partition(store._database, name, TODAY - 9)
    await table.put(*(envelope(f"op{nth}", 1) for nth in range(4)))
    await settled(table, "delivered", "delivered", "dead")
    async with store.reading() as connection:
        days = (await connection.execute(select(deliveries.c.day).order_by(deliveries.c.seq))).scalars().all()
        tried = (await connection.execute(select(attempts.c.day).order_by(attempts.c.seq))).scalars().all()
    assert days == [TODAY - 9, TODAY - 9, GIVEN_UP, KEPT]
    assert tried == [TODAY - 9, TODAY - 9, GIVEN_UP]

    assert await log.prune(7 * DAY) == 2

    assert -9 not in await days_of(store, "deliveries")
    assert -9 not in await days_of(store, "attempts")
    assert (await log.counts(), await count_rows(store, "attempts")) == (
        {"waiting": 0, "pending": 1, "delivered": 0, "dead": 1},
        1,
    )
    assert await log.prune(7 * DAY, dead_too=True) == 1
    assert await count_rows(store, "attempts") == 0


async def test_a_replayed_delivery_returns_to_the_queue_with_its_attempts_and_outlives_its_day(
    postgresql_store: SqlStore,
) -> None:
    store, log = postgresql_store, DeliveryLog(postgresql_store)
    table = Table(store)
    table.now = await store.now() - 9 * DAY
    await partitions._make_partition(store._database, "deliveries", TODAY - 9)
    await table.put(envelope("op", 1))
    await settled(table, "pending")
    table.now += 301
    await settled(table, "delivered")
    [done] = (await log.page(DeliveryFilter())).items

    assert await log.replay(DeliveryFilter(operation_id="op")) == 1
    assert await log.prune(7 * DAY) == 0

    assert [each.nth for each in await log.attempts(done.id)] == [1, 2]
    table.now = await store.now()
    await settled(table, "delivered")
    assert [each.nth for each in await log.attempts(done.id)] == [1, 2, 1]
    assert await log.prune(7 * DAY) == 0


async def test_whoever_waits_for_a_delivery_that_is_settled_meanwhile_finds_it_gone(postgresql_store: SqlStore) -> None:
    table = Table(postgresql_store)
    await table.put(envelope("op", 1), envelope("op", 2))
    [[first]] = await table.claim(longest=1)

    async def put_more() -> None:
        for number in range(3, 40):
            with translate_errors("here"):
                await table.put(envelope("op", number))

    async def settle_all() -> None:
        claimed = first
        for _ in range(38):
            await table.settle(claimed)
            if [found := await table.claim(longest=1)] != [[]]:
                claimed = found[0][0]

    await asyncio.gather(put_more(), settle_all())

    statuses = await table.column("status")
    assert len(statuses) == 39
    assert statuses.count("pending") <= 1
    assert ("waiting" in statuses) <= ("pending" in statuses)


async def test_the_events_of_an_operation_are_read_from_one_of_ninety_partitions(
    postgresql_store: SqlStore, calendar: Calendar
) -> None:
    store = postgresql_store
    for ago in range(1, 90):
        await partitions._make_partition(store._database, "events", TODAY - ago)
    calendar.days = -87
    await grow(store, "op", commits=1, each=3)
    async with store.reading() as connection:
        assert len(await find_partitions(connection, "events")) >= 90
        query = select(events.c.wire).where(events.c.operation_id == "op", events.c.day == TODAY - 87)
        sql = str(query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True}))
        plan = "\n".join((await connection.execute(text(f"EXPLAIN {sql}"))).scalars())

    assert plan.count("Scan") == 1, plan
    assert await numbers(store, "op") == [1, 2, 3]


async def test_an_operation_with_many_events_is_deleted_in_steps_and_others_write_meanwhile(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EVENTS", {store.dialect: 10})
    await grow(store, "long", commits=1, each=95, status="done")
    for nth in range(5):
        await grow(store, f"op{nth}", commits=1, each=4, status="done")
    await grow(store, "lives", commits=1, each=4)
    await age(store, "long", 1)

    pruning = asyncio.create_task(store.prune(-60))
    writes = 0
    while not pruning.done():
        await grow(store, "lives", commits=1, each=1)
        writes += 1

    assert await pruning == 6
    assert writes > 3
    assert await numbers(store, "lives") == list(range(1, 5 + writes))
    assert await count_rows(store, "events") == 4 + writes


def test_names_of_partitions_are_those_of_their_days() -> None:
    assert partitions._parse_name("events", partitions.name_partition("events", TODAY)) == (TODAY, False)
    assert partitions._parse_name("executions", "executions_before_19700103") == (1, True)
    for other in ("events_default", "events_kept", "events_2026", "deliveries_20260101"):
        assert partitions._parse_name("events", other) is None
