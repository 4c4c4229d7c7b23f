"""Stores wake those who wait for a change in other processes, and find by the slow net what a lost wake-up told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic

import msgspec
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline import Approve, exec_agent
from hookline.delivery import KeyRing, Outbox, generate_key
from hookline.errors import HookUsageError
from hookline.registry import Registry
from hookline.store import (
    DELIVERIES,
    OPERATIONS,
    SqlStore,
    Worker,
    build_delivery_rows,
    claim_deliveries,
    events_topic,
    insert_deliveries,
    read_clock,
)
from hookline.wakeups import FileWakeups, PollingWakeups, PostgresWakeups
from hookline.webhooks import Envelope
from tests.programs import run_program
from tests.store.records import grow, hook
from tests.store.test_worker import Till, status_of

pytestmark = pytest.mark.anyio


async def heard(event: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await event.wait()
    event.clear()


class DeafWakeups:
    """Loses everything but what its slow net finds."""

    def __init__(self, seconds: float) -> None:
        self._net = PollingWakeups(seconds)

    def wake(self, topic: str) -> None:
        pass

    def woken(self, topic: str, call: Callable[[], None]) -> AbstractAsyncContextManager[None]:
        return self._net.woken(topic, call)

    async def aclose(self) -> None:
        pass


async def test_a_commit_of_another_process_wakes_who_waits_for_it(database_url: str) -> None:
    operations, deliveries, events = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with (
        run_program("tests.wakeups.children", database_url) as other,
        SqlStore(database_url) as store,
        store.wakeups.woken(OPERATIONS, operations.set),
        store.wakeups.woken(DELIVERIES, deliveries.set),
        store.wakeups.woken(events_topic("op3"), events.set),
    ):
        assert await other.read_line() == "ready"
        for number in range(1, 4):
            operations.clear()
            deliveries.clear()
            events.clear()
            other.write_line(f"op{number}")
            await heard(operations)
            await heard(deliveries)
        await heard(events)
        assert [each.number for each in await store.events_of("op3")] == [1]


async def test_a_decision_in_one_store_is_carried_out_by_a_worker_of_another(database_url: str) -> None:
    till = Till()
    async with SqlStore(database_url) as store, SqlStore(database_url) as other, Worker(other, [till.agent(1)]):
        for number in range(5):
            name = f"op{number}"
            await exec_agent(till.agent(1), "Pay", operation_id=name, store=store)
            await store.decide(name, Approve("t0"))
            await status_of(store, name, "done", within=9)  # the slow net would need ten seconds or more
    assert till.paid == [1] * 5


async def test_a_decision_whose_wakeup_is_lost_is_found_by_the_slow_net(database_url: str) -> None:
    till = Till()
    async with (
        SqlStore(database_url, wakeups=DeafWakeups(0.05)) as store,
        Worker(store, [till.agent(1)]),
    ):
        await exec_agent(till.agent(1), "Pay", operation_id="op", store=store)
        await store.decide("op", Approve("t0"))
        await status_of(store, "op", "done")
    assert till.paid == [1]


async def test_a_released_operation_is_taken_at_once(database_url: str) -> None:
    till = Till()
    async with SqlStore(database_url) as store, SqlStore(database_url) as other, Worker(other, [till.agent(1)]):
        await exec_agent(till.agent(1), "Pay", operation_id="op", store=store)
        paused = await store.load("op")
        assert paused is not None
        running = msgspec.structs.replace(paused, status="running", version=paused.version + 1)
        await store.commit(running, expected_version=paused.version, entries=[])
        await store.release("op")
        async with asyncio.timeout(9):  # the slow net would need ten seconds or more
            while (seen := await store.load("op")) is None or seen.version == running.version:
                await asyncio.sleep(0.01)


async def test_a_worker_takes_over_when_a_lease_ends_though_nobody_wakes_it(database_url: str) -> None:
    till = Till()
    deaf = DeafWakeups(3600)
    async with SqlStore(database_url, lease_seconds=1.5, wakeups=deaf) as dying:
        await grow(dying, "op", commits=1, each=1)
        for task in dying._tasks[1:]:
            task.cancel()  # it renews its lease no more, as if it were dead
        agent = till.agent(1, agent_id="agent")
        async with SqlStore(database_url, wakeups=deaf) as store, Worker(store, [agent]):
            async with asyncio.timeout(1.5 + 3):  # the promised bound
                while (seen := await store.operation("op")) is None or seen.version == 1:
                    await asyncio.sleep(0.02)


async def test_a_definition_reaches_a_registry_of_another_store_without_polling(database_url: str) -> None:
    async with (
        SqlStore(database_url) as store,
        SqlStore(database_url) as other,
        Registry(store) as here,
        Registry(other, refresh_seconds=3600) as there,
    ):
        for number in range(3):
            await here.create({"name": f"log{number}", "point": "afterStep", "handler": "log"})
            async with asyncio.timeout(9):
                while len(there.hooks()) != number + 1:
                    await asyncio.sleep(0.01)


async def test_each_database_gets_the_wakeups_that_suit_it(database_url: str, dialect: str) -> None:
    store = SqlStore(database_url)
    assert type(store.wakeups) is (PostgresWakeups if dialect == "postgresql" else FileWakeups)
    assert type(SqlStore("sqlite:///:memory:").wakeups) is FileWakeups


async def test_a_store_uses_the_wakeups_that_it_is_given_and_leaves_them_open(database_url: str) -> None:
    woken = asyncio.Event()
    given = PollingWakeups(3600)
    async with given.woken(OPERATIONS, woken.set):
        async with SqlStore(database_url, wakeups=given) as store:
            assert store.wakeups is given
            await grow(store, "op", commits=1, each=1)
            await heard(woken)
        assert not woken.is_set()  # closing it would have called its listeners


async def test_what_cannot_wake_is_refused() -> None:
    with pytest.raises(HookUsageError, match="`wakeups`"):
        SqlStore("sqlite:///:memory:", wakeups=7)  # type: ignore[arg-type]


async def test_an_idle_process_queries_nothing(database_url: str) -> None:
    begun: list[str] = []
    async with (
        SqlStore(database_url) as store,
        Registry(store, refresh_seconds=0.01),
        Outbox(store, keys=KeyRing({"": [generate_key()]})) as outbox,
        Worker(store, [Till().agent(1)]),
    ):
        await outbox.idle()
        await asyncio.sleep(0.5)  # the last of what they do when they begin, and PostgreSQL's first notification
        for engine in store._database.engines:
            event.listen(engine, "begin", lambda _: begun.append("begin"))
        await asyncio.sleep(1.5)
        idle = len(begun)
        await grow(store, "op", commits=1, each=1)
    assert idle == 0  # it was twelve
    assert begun


async def test_a_delivery_is_tried_again_when_it_falls_due_though_nobody_wakes_the_outbox(database_url: str) -> None:
    tried: list[float] = []

    async def fail(envelope: Envelope) -> None:
        tried.append(monotonic())
        raise RuntimeError("not yet")

    async with SqlStore(database_url, wakeups=DeafWakeups(3600)) as store:
        keys = KeyRing({"": [generate_key()]})
        outbox = Outbox(store, keys=keys, schedule=(0.0, 0.2, 0.4), jitter=0.0)
        hook_ = hook("h", "local://receiver")
        await outbox.publish([Envelope(id="msg_1", hook=hook_, operation_id="op", payload=b"{}")])
        async with outbox, outbox.serve("receiver", fail), asyncio.timeout(20):
            while len(tried) < 3:
                await asyncio.sleep(0.01)
    assert tried[1] - tried[0] >= 0.2
    assert tried[2] - tried[1] >= 0.4


async def test_a_claim_of_a_killed_process_is_taken_over_when_it_ends(database_url: str) -> None:
    taken = asyncio.Event()

    async def take(envelope: Envelope) -> None:
        taken.set()

    async with SqlStore(database_url, wakeups=DeafWakeups(3600)) as store:
        rows = build_delivery_rows(
            [Envelope(id="msg_1", hook=hook("h", "local://receiver"), operation_id="op", payload=b"{}")]
        )
        async with store.writing() as connection:
            await insert_deliveries(connection, rows, now=store.now_sql())
        async with store.writing() as connection:
            claimed = await claim_deliveries(
                connection,
                now=await read_clock(connection),
                worker="dead",
                lease_seconds=0.8,
                limit=1,
                each=1,
                served=["receiver"],
            )
        outbox = Outbox(store, keys=KeyRing({"": [generate_key()]}))
        async with outbox, outbox.serve("receiver", take):
            assert not taken.is_set()
            await heard(taken)
    assert len(claimed) == 1


async def test_what_falls_due_as_the_clock_jumps_is_found_by_the_slow_net(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = asyncio.Event()

    async def take(envelope: Envelope) -> None:
        taken.set()

    async with SqlStore(database_url, wakeups=DeafWakeups(0.05)) as store:
        rows = build_delivery_rows(
            [Envelope(id="msg_1", hook=hook("h", "local://receiver"), operation_id="op", payload=b"{}")]
        )
        async with store.writing() as connection:
            await insert_deliveries(connection, rows, now=await read_clock(connection) + 600)
        outbox = Outbox(store, keys=KeyRing({"": [generate_key()]}))
        async with outbox, outbox.serve("receiver", take):
            await asyncio.sleep(0.2)
            assert not taken.is_set()

            async def read_later(connection: AsyncConnection) -> float:
                return await read_clock(connection) + 900

            monkeypatch.setattr("hookline.delivery._outbox.read_clock", read_later)
            await heard(taken)
