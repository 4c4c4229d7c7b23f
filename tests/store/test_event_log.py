"""An `EventLog` keeps the events of runs that have no state in the store, numbered, in batches, and says what it drops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from hookline import Agent, BeforeStep, HookDispatcher, ModelResponse, OnComplete, ScriptedModel, exec_agent
from hookline.errors import HookUsageError, StoreOverloadedError, StoreUnavailableError
from hookline.events import EVENTS, decode
from hookline.store import EventLog, SqlStore
from tests.databases import administer
from tests.tables import for_each

from .records import entries, state
from .test_faults import TERMINATE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


def step(operation_id: str, number: int = 1) -> BeforeStep:
    return BeforeStep(operation_id=operation_id, step_index=number, tenant_id="t", time_unix_nano=number)


def hear(log: EventLog, event: BeforeStep) -> None:
    """As a dispatcher does it: the observer is a plain function."""
    next(hook for hook in log.observers if hook.type is type(event)).handler(event)


async def steps(store: SqlStore, operation_id: str) -> list[int]:
    found = await store.events_of(operation_id, limit=10_000)
    assert [entry.number for entry in found] == list(range(1, len(found) + 1))
    return [event.step_index for event in (decode(entry.wire) for entry in found) if isinstance(event, BeforeStep)]


async def test_all_events_of_a_run_are_kept_in_order(store: SqlStore) -> None:
    log = EventLog(store)
    agent = Agent(id="agent", model=ScriptedModel([ModelResponse(content="done")]))

    result = await exec_agent(agent, "go", hooks=[log])
    await log.flush()

    kept = [decode(entry.wire) for entry in await store.events_of(result.operation_id)]
    assert isinstance(kept[0], BeforeStep)
    assert isinstance(kept[-1], OnComplete)
    assert log.written == len(kept)
    assert log.dropped == 0
    assert {hook.type for hook in log.observers} == set(EVENTS.values())


async def test_numbers_go_on_for_each_operation_even_in_another_process(database_url: str) -> None:
    for first in (1, 4):
        async with SqlStore(database_url) as store:
            log = EventLog(store)
            for number in range(first, first + 3):
                hear(log, step("a", number))
                hear(log, step("b", number))

    async with SqlStore(database_url) as store:
        assert await steps(store, "a") == await steps(store, "b") == [1, 2, 3, 4, 5, 6]


async def test_two_processes_that_number_one_operation_leave_no_gap(database_url: str) -> None:
    async with SqlStore(database_url) as one, SqlStore(database_url) as two:
        logs = [EventLog(one), EventLog(two)]
        for number in range(1, 31):
            for log in logs:
                hear(log, step("op", number))
            await asyncio.sleep(0)
        await asyncio.gather(*(log.flush() for log in logs))

        assert sorted(await steps(one, "op")) == sorted([*range(1, 31)] * 2)


async def test_an_operation_whose_state_is_in_the_store_keeps_its_events_itself(store: SqlStore) -> None:
    log = EventLog(store)
    hear(log, step("op", 7))
    hear(log, step("other", 7))
    await log.flush()

    await store.commit(state("op", events=2), expected_version=None, entries=entries("op", 1, 2))
    hear(log, step("op", 8))
    await log.flush()

    assert await store.events_of("op") == entries("op", 1, 2)
    assert await steps(store, "other") == [7]
    assert log.dropped == 0


@pytest.mark.parametrize("overflow", ["drop", "refuse"])
async def test_what_does_not_fit_is_counted_and_told_of(
    store: SqlStore, overflow: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(store, max_queued=10, overflow=overflow)  # type: ignore[arg-type]
    refused = 0

    for number in range(1, 31):
        try:
            hear(log, step("op", number))
        except StoreOverloadedError:
            refused += 1
    await log.flush()

    assert await steps(store, "op") == list(range(1, 11))
    assert (log.written, log.dropped, refused) == (10, 20, 20 if overflow == "refuse" else 0)
    told = [record.getMessage() for record in caplog.records if "has dropped" in record.getMessage()]
    assert len(told) == 5
    assert "16 events so far: 10 events already wait to be written" in told[-1]
    hear(log, step("op", 11))
    await log.flush()
    assert len(await steps(store, "op")) == 11


async def test_what_was_heard_before_the_store_was_open_is_kept_too(database_url: str) -> None:
    store = SqlStore(database_url)
    log = EventLog(store)
    hear(log, step("op"))
    with pytest.raises(HookUsageError, match="not open"):
        await log.flush()

    async with store:
        await log.flush()
        assert await steps(store, "op") == [1]
        hear(log, step("op", 2))

    with pytest.raises(StoreUnavailableError, match="closed"):
        await log.flush()
    async with SqlStore(database_url) as again:
        assert await steps(again, "op") == [1, 2]


async def test_a_store_that_closes_at_once_has_written_what_was_heard(database_url: str) -> None:
    store = SqlStore(database_url)
    log = EventLog(store)
    hear(log, step("op"))

    async with store:
        pass

    assert (log.written, log.dropped) == (1, 0)


async def test_a_run_in_another_thread_is_heard(store: SqlStore) -> None:
    log = EventLog(store)

    def run() -> None:
        for number in range(1, 101):
            hear(log, step("op", number))

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join)
    await log.flush()

    assert await steps(store, "op") == list(range(1, 101))


async def test_an_operation_that_cannot_be_stored_takes_no_other_along(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(store)
    async with store.writing() as connection:
        if store.dialect == "postgresql":
            await connection.exec_driver_sql("ALTER TABLE events ADD CHECK (operation_id <> 'bad')")
        else:
            await connection.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.operation_id = 'bad' "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )

    for name in ("good", "bad", "better", "bad"):
        hear(log, step(name))
    await log.flush()

    assert await steps(store, "good") == await steps(store, "better") == [1]
    assert await steps(store, "bad") == []
    assert (log.written, log.dropped) == (2, 2)
    assert "those of operation 'bad' cannot be stored" in caplog.text


async def test_a_lost_connection_loses_and_doubles_nothing(postgresql_url: str) -> None:
    async with SqlStore(postgresql_url, pool_size=2) as store:
        log = EventLog(store)
        for number in range(1, 201):
            hear(log, step(f"op{number % 3}", number))
            if number % 20 == 0:
                await asyncio.to_thread(administer, postgresql_url, TERMINATE)
        await log.flush()

        assert sum([len(await steps(store, f"op{n}")) for n in range(3)]) == 200
        assert log.written == 200


async def test_a_batch_whose_answer_was_lost_is_not_written_again(store: SqlStore) -> None:
    log = EventLog(store)
    write, lost = log._write, 0

    async def write_and_lose(part: list[dict[str, object]]) -> None:
        nonlocal lost
        await write(part)
        lost += 1
        if lost < 3:
            raise StoreUnavailableError("the store", "the answer was lost")

    log._write = write_and_lose  # type: ignore[method-assign]
    for number in range(1, 6):
        hear(log, step("op", number))
    await log.flush()

    assert await steps(store, "op") == [1, 2, 3, 4, 5]
    assert log.written == 5


async def test_it_hears_what_a_dispatcher_is_told(store: SqlStore) -> None:
    log = EventLog(store)

    async with HookDispatcher() as dispatcher:
        for name in ("a", "b"):
            async with dispatcher.operation(name, [log]):
                dispatcher.dispatch(step(name))
        dispatcher.dispatch(step("c"))
    await log.flush()

    assert [await steps(store, name) for name in "abc"] == [[1], [1], []]


@for_each("options", [{"max_queued": 0}, {"max_queued": True}, {"overflow": "wait"}])
async def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(HookUsageError, match=f"`{next(iter(options))}`"):
        EventLog(SqlStore("sqlite://"), **options)  # type: ignore[arg-type]
