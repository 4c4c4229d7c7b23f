"""`DeliveryLog`: what became of deliveries, and how to have them delivered again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from hookline.errors import HookUsageError
from hookline.store import DeliveryFilter, DeliveryLog
from hookline.store._delivery_log import _requeue
from hookline.store._tables import deliveries
from tests.store.records import grow
from tests.store.test_deliveries import A, B, Table, envelope, opened
from tests.tables import for_each

pytestmark = pytest.mark.anyio


async def ids(log: DeliveryLog, **which: Any) -> list[tuple[str, int | None]]:
    return [(each.operation_id, each.number) for each in (await log.page(DeliveryFilter(**which))).items]


async def settled(table: Table, *statuses: str) -> None:
    """Settle the deliveries one after another."""
    for status in statuses:
        run, *_ = await table.claim(limit=1)
        await table.settle(
            run[0], status=status, status_code=200 if status == "delivered" else 500, error=None, delay=300.0
        )


async def test_the_list_is_filtered_and_goes_page_by_page_from_the_newest(database_url: str) -> None:
    async with opened(database_url) as table:
        log = DeliveryLog(table.store)
        await table.put(*(envelope("one", number) for number in range(5)), envelope("two", 1, B, tenant="acme"))
        await settled(table, "delivered", "dead")

        assert await ids(log, tenant_id="acme") == [("two", 1)]
        assert await ids(log, endpoint=A, status="delivered") == [("one", 0)]
        assert await ids(log, operation_id="one", status="dead") == [("one", 1)]
        assert await ids(log, hook_id="nobody") == []
        assert await ids(log, since=table.now + 1) == []
        assert len(await ids(log, until=table.now + 1)) == 6
        seen, cursor = [], None
        while True:
            page = await log.page(DeliveryFilter(operation_id="one"), cursor=cursor, limit=2)
            seen += [each.number for each in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [4, 3, 2, 1, 0]


@for_each("cursor", ["x", "-1", "٣", "9" * 30, "1.5", ""])
async def test_a_cursor_of_another_list_is_refused(cursor: str) -> None:
    async with opened("sqlite:///:memory:") as table:
        with pytest.raises(HookUsageError, match="cursor"):
            await DeliveryLog(table.store).page(cursor=cursor)


async def test_counts_and_attempts_tell_what_happened(database_url: str) -> None:
    async with opened(database_url) as table:
        log = DeliveryLog(table.store)
        await table.put(*(envelope("one", number) for number in (1, 2, 3)), envelope("two", 1, tenant="acme"))
        await settled(table, "pending", "delivered")
        table.now += 301
        await settled(table, "delivered")

        assert await log.counts() == {"waiting": 1, "pending": 1, "delivered": 2, "dead": 0}
        assert await log.counts("acme") == {"waiting": 0, "pending": 0, "delivered": 1, "dead": 0}
        [done] = (await log.page(DeliveryFilter(status="delivered", operation_id="one"))).items
        attempts = await log.attempts(done.id)
        assert [(each.nth, each.status_code, each.worker) for each in attempts] == [(1, 500, "w"), (2, 200, "w")]
        assert (await log.delivery(done.id)) == done
        assert await log.payload(done.id) == b"{}"
        assert (await log.delivery("nobody"), await log.payload("nobody"), await log.attempts("nobody")) == (
            None,
            None,
            [],
        )


async def test_a_retry_takes_what_waits_and_what_was_given_up_but_not_what_was_delivered(database_url: str) -> None:
    async with opened(database_url) as table:
        log = DeliveryLog(table.store)
        await table.put(*(envelope(f"op{nth}", 1, tenant="acme") for nth in range(3)))
        await settled(table, "delivered", "dead", "pending")
        every = [each.id for each in (await log.page()).items]

        assert await log.retry(every, tenant_id="other") == 0
        assert await log.retry(every, tenant_id="acme") == 2
        table.now = await table.store.now()
        again = [run[0] for run in await table.claim()]
        assert {each.envelope.operation_id for each in again} == {"op1", "op2"}
        assert await log.retry(every) == 0
        with pytest.raises(HookUsageError):
            await log.retry("msg_1")


async def test_a_replay_delivers_again_in_order_with_the_same_ids_and_is_made_once(database_url: str) -> None:
    async with opened(database_url) as table:
        log = DeliveryLog(table.store)
        await table.put(*(envelope("one", number) for number in range(1, 1201)))
        for _ in range(3):
            [run] = await table.claim(longest=400)
            await table.settle(*run)

        assert await log.replay(DeliveryFilter(operation_id="two")) == 0
        assert await log.replay(DeliveryFilter(operation_id="one")) == 1200
        assert await log.replay(DeliveryFilter(operation_id="one", status="pending")) == 0
        table.now = await table.store.now()
        [run] = await table.claim(longest=3)
        assert [each.envelope.number for each in run] == [1, 2, 3]
        assert [each.envelope.id for each in run] == [envelope("one", number).id for number in (1, 2, 3)]


async def test_what_was_delivered_long_ago_is_forgotten_and_what_was_given_up_only_if_told(database_url: str) -> None:
    async with opened(database_url) as table:
        log = DeliveryLog(table.store)
        await table.put(*(envelope("one", number) for number in (1, 2, 3)))
        await settled(table, "delivered", "dead")
        [old] = (await log.page(DeliveryFilter(status="delivered"))).items

        assert await log.prune(1e12) == 0
        assert await log.prune(60) == 1
        assert await log.attempts(old.id) == []
        assert await log.prune(60, dead_too=True) == 1
        assert await ids(log) == [("one", 3)]


async def test_endpoints_are_disabled_and_enabled_by_hand(database_url: str) -> None:
    async with opened(database_url) as table:
        log = DeliveryLog(table.store)
        await log.disable("acme", A, "they asked for it")
        [endpoint] = await log.endpoints("acme")

        assert (endpoint.url, endpoint.reason) == (A, "they asked for it")
        assert await log.endpoints("other") == []
        assert await log.enable("acme", A)
        assert not await log.enable("acme", A)
        assert await log.endpoints() == []


@pytest.mark.parametrize("forgets", ["deliveries", "operations"])
async def test_what_is_replayed_while_it_is_forgotten_is_kept(postgresql_url: str, forgets: str) -> None:
    async with opened(postgresql_url) as table:
        store, log = table.store, DeliveryLog(table.store)
        await grow(store, "op", commits=1, each=0, status="done")
        await table.put(envelope("op", 1), envelope("op", 2, B))
        await settled(table, "dead", "dead")
        async with store.writing() as replaying, store.writing() as watching:
            await _requeue(replaying, deliveries.c.number == 2, now=table.now)
            pruned = log.prune(0, dead_too=True) if forgets == "deliveries" else store.prune(-60)
            forgetting = asyncio.create_task(pruned)
            waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            async with asyncio.timeout(10):
                while not (await watching.execute(waits)).scalar_one():
                    await asyncio.sleep(0.01)

        assert await forgetting == (1 if forgets == "deliveries" else 0)
        assert (await log.counts())["pending"] == 1
        assert (await store.operation("op")) is not None
