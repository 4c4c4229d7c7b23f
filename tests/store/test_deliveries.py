"""Deliveries in the tables: the first of a stream goes, the others wait for it, and nothing is claimed twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from hookline.events import HookType
from hookline.store import Breaker, SqlStore
from hookline.store._circuit_breaker import disable_endpoint, enable_endpoint
from hookline.store._deliveries import build_delivery_rows, insert_deliveries, settle_deliveries
from hookline.store._delivery_claims import (
    ClaimedDelivery,
    DeliveryOutcome,
    claim_deliveries,
    correct_due_times,
    extend_claims,
    has_due_deliveries,
    release_claims,
)
from hookline.store._tables import deliveries, endpoints, operations
from hookline.webhooks import Envelope, HookData, Webhook, delivery_id
from tests.store.records import state

pytestmark = pytest.mark.anyio

A, B = "https://a.example/in", "https://b.example/in"
START = 1_000_000.0


def envelope(operation: str, number: int, url: str = A, *, tenant: str = "", **webhook: Any) -> Envelope:
    hook = HookData(id="told", type=HookType.ON_COMPLETE, webhook=Webhook(url=url, **webhook))
    return Envelope(
        id=delivery_id(operation, number, url, 0),
        hook=hook,
        operation_id=operation,
        tenant_id=tenant,
        number=number,
        payload=b"{}",
    )


class Table:
    """The deliveries of a store, and a clock that is set by hand."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.now = START

    async def put(self, *envelopes: Envelope) -> None:
        async with self.store.writing() as connection:
            await insert_deliveries(connection, build_delivery_rows(envelopes), now=self.now)

    async def claim(self, worker: str = "w", **options: Any) -> list[list[ClaimedDelivery]]:
        options = {"lease_seconds": 60.0, "limit": 100, "each": 100} | options
        async with self.store.writing() as connection:
            return await claim_deliveries(connection, now=self.now, worker=worker, **options)

    async def numbers(self, worker: str = "w", **options: Any) -> list[tuple[str, int | None]]:
        """What is claimed: operations and numbers."""
        runs = await self.claim(worker, **options)
        return [(each.envelope.operation_id, each.envelope.number) for run in runs for each in run]

    async def settle(
        self, *claimed: ClaimedDelivery, status: str = "delivered", worker: str = "w", **fields: Any
    ) -> None:
        outcomes = [DeliveryOutcome(claimed=each, status=status, **fields) for each in claimed]  # type: ignore[arg-type]
        async with self.store.writing() as connection:
            await settle_deliveries(connection, outcomes, now=self.now, worker=worker, breaker=Breaker())

    async def column(self, name: str) -> list[Any]:
        async with self.store.reading() as connection:
            found = await connection.execute(select(deliveries.c[name]).order_by(deliveries.c.seq))
            return list(found.scalars())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Table]:
    async with SqlStore(url) as store:
        yield Table(store)


async def test_only_the_first_of_a_stream_is_claimed_and_streams_do_not_wait_for_each_other(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1), envelope("one", 2), envelope("two", 1), envelope("one", 1, B))

        assert await table.numbers() == [("one", 1), ("two", 1), ("one", 1)]
        assert await table.numbers() == []


async def test_the_next_of_a_stream_goes_when_the_one_before_is_delivered_or_given_up(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(*(envelope("one", number) for number in (1, 2, 3)))
        [[first]] = await table.claim()
        await table.settle(first)
        [[second]] = await table.claim()
        await table.settle(second, status="dead", error="http_error: no")

        assert await table.numbers() == [("one", 3)]
        assert await table.column("status") == ["delivered", "dead", "pending"]


async def test_one_that_failed_keeps_those_behind_it_waiting_until_it_is_due_again(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1), envelope("one", 2))
        [[first]] = await table.claim()
        await table.settle(first, status="pending", delay=300.0, error="timeout: no", failed=True)

        table.now += 299
        assert await table.claim() == []
        table.now += 2
        [[again]] = await table.claim()
        assert (again.envelope.number, again.attempts, again.envelope.id) == (1, 1, first.envelope.id)


async def test_a_run_holds_what_waits_behind_the_first_up_to_its_length(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(*(envelope("one", number) for number in range(1, 6)), envelope("two", 1))

        assert await table.numbers(longest=3) == [("one", 1), ("one", 2), ("one", 3), ("two", 1)]
        assert await table.numbers("other", longest=3) == []


async def test_what_a_run_left_undone_is_claimed_by_whoever_comes_next(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(*(envelope("one", number) for number in (1, 2, 3)))
        [run] = await table.claim(longest=3)
        await table.settle(run[0])

        assert await table.numbers("other", longest=3) == [("one", 2), ("one", 3)]


async def test_a_claim_whose_worker_is_gone_is_claimed_again_after_the_lease(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1))
        await table.claim("gone")

        table.now += 59
        assert await table.claim("next") == []
        table.now += 2
        assert await table.numbers("next") == [("one", 1)]


async def test_a_claim_that_is_prolonged_stays_and_one_given_back_is_free_at_once(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1))
        [[held]] = await table.claim()
        table.now += 50
        async with table.store.writing() as connection:
            assert await extend_claims(connection, [held.seq], now=table.now, worker="w", lease_seconds=60) == {
                held.seq
            }
            assert await extend_claims(connection, [held.seq], now=table.now, worker="x", lease_seconds=60) == set()
        table.now += 50

        assert await table.claim("next") == []
        async with table.store.writing() as connection:
            await release_claims(connection, [held.seq], now=table.now, worker="w")
        assert await table.numbers("next") == [("one", 1)]


async def test_a_failure_that_comes_after_the_claim_ran_out_does_not_count_but_a_success_does(
    database_url: str,
) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1), envelope("two", 1))
        slow = [run[0] for run in await table.claim("slow")]
        table.now += 61
        quick = [run[0] for run in await table.claim("quick")]
        await table.settle(quick[0], status="pending", worker="quick", delay=5.0)
        await table.settle(slow[0], status="dead", worker="slow", error="timeout: no")
        await table.settle(quick[1], status="dead", worker="quick", error="timeout: no")
        await table.settle(slow[1], status="delivered", worker="slow")

        assert await table.column("status") == ["pending", "delivered"]
        assert await table.column("attempts") == [1, 2]


async def test_an_id_that_is_known_is_left_as_it_is(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1))
        [[first]] = await table.claim()
        await table.settle(first)
        await table.put(envelope("one", 1), envelope("one", 2), envelope("one", 2))

        assert await table.column("status") == ["delivered", "pending"]


async def test_endpoints_that_are_busy_or_left_alone_get_nothing_and_hold_nobody_up(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1), envelope("two", 1), envelope("one", 1, B))
        assert await table.numbers(busy=[A]) == [("one", 1)]
        runs = await table.claim()
        for run in runs:
            await table.settle(run[0], status="pending", delay=0.0, failed=True, pause=100.0)

        assert await table.claim() == []
        table.now += 59
        assert await table.claim() == []
        table.now += 42
        assert await table.numbers(busy=[B]) == [("one", 1), ("two", 1)]


async def test_one_endpoint_does_not_take_more_than_its_share_of_a_claim(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(*(envelope(f"op{nth}", 1) for nth in range(20)), envelope("op", 1, B))

        runs = await table.claim(each=3)

        assert [run[0].endpoint for run in runs] == [A, A, A, B]


async def test_the_tenants_of_one_address_do_not_share_its_failures(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1, tenant="acme"), envelope("two", 1, tenant="other"))
        [[acme]] = await table.claim(limit=1)
        await table.settle(acme, status="dead", error="gone: 410", gone=True)
        await table.put(envelope("three", 1, tenant="acme"))

        found = {run[0].envelope.operation_id: run[0].refused for run in await table.claim()}

        assert found == {"two": None, "three": "gone: 410"}


async def test_an_endpoint_that_fails_is_left_alone_for_longer_and_longer_until_it_takes_one(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(*(envelope(f"op{nth}", 1) for nth in range(20)))
        runs = await table.claim()
        async with table.store.writing() as connection:
            outcomes = [DeliveryOutcome(claimed=run[0], status="pending", failed=True) for run in runs]
            await settle_deliveries(connection, outcomes, now=table.now, worker="w", breaker=Breaker())

        assert await table.claim() == []
        table.now += 5.1
        [[trial]] = await table.claim(limit=1)
        assert trial.failures == 5
        await table.settle(trial, status="pending", failed=True)
        table.now += 9.9
        assert await table.claim() == []
        table.now += 0.2
        [[trial]] = await table.claim(limit=1)
        await table.settle(trial)
        assert len(await table.claim()) == 19


async def test_a_disabled_endpoint_has_its_deliveries_refused_until_it_is_enabled(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1), envelope("two", 1))
        [[later]] = await table.claim(limit=1)
        await table.settle(later, status="pending", delay=500.0, failed=True)
        async with table.store.writing() as connection:
            await disable_endpoint(connection, "", A, reason="moved", now=table.now)
        assert [run[0].refused for run in await table.claim()] == ["moved", "moved"]
        async with table.store.writing() as connection:
            assert await enable_endpoint(connection, "", A)
        await table.put(envelope("three", 1))

        assert [run[0].refused for run in await table.claim()] == [None]


async def test_local_deliveries_wait_for_a_process_that_serves_their_name(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(envelope("one", 1, "local://jobs/of/mine"), envelope("two", 1, "local://jobs_"))
        async with table.store.reading() as connection:
            assert not await has_due_deliveries(connection, now=table.now, served=["job"])
            assert await has_due_deliveries(connection, now=table.now, served=["jobs"])

        assert await table.numbers(served=["job"]) == []
        assert await table.numbers(served=["jobs"]) == [("one", 1)]


async def test_a_clock_that_was_wrong_for_a_while_holds_nothing_up(database_url: str) -> None:
    async with opened(database_url) as table:
        table.now += 1e9
        await table.put(envelope("late", 1), envelope("claimed", 1))
        [first, _] = await table.claim()
        await table.settle(first[0], status="pending", delay=5.0, failed=True, pause=9.0)
        table.now = START
        assert await table.claim() == []

        async with table.store.writing() as connection:
            assert await correct_due_times(connection, now=table.now, longest_delay=90_000.0) == 2

        assert len(await table.claim()) == 2


async def test_giving_up_what_an_operation_is_for_marks_the_operation(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.store.commit(state("one"), expected_version=None, entries=())
        await table.put(envelope("one", 1, fallback="none"), envelope("one", 1, B))
        runs = await table.claim()
        for run in runs:
            await table.settle(run[0], status="dead", error="http_error: a.example answered 500")

        async with table.store.reading() as connection:
            failed = (await connection.execute(select(operations.c.failed_delivery))).scalar()
        assert failed == "Hook 'told': http_error: a.example answered 500"


async def test_a_long_queue_behind_one_delivery_is_not_looked_through(database_url: str) -> None:
    async with opened(database_url) as table:
        await table.put(*(envelope("one", number) for number in range(3000)), envelope("two", 1))

        assert await table.numbers() == [("one", 0), ("two", 1)]
        assert (await table.column("status")).count("waiting") == 2999


async def test_what_is_put_in_while_the_one_before_is_settled_is_not_forgotten(postgresql_url: str) -> None:
    async with opened(postgresql_url) as table:
        for nth in range(3):
            await table.put(envelope(f"op{nth}", 1))
            [[first]] = await table.claim()
            put_in, may_end = asyncio.Event(), asyncio.Event()

            async def put(nth: int = nth, put_in: asyncio.Event = put_in, may_end: asyncio.Event = may_end) -> None:
                async with table.store.writing() as connection:
                    await insert_deliveries(connection, build_delivery_rows([envelope(f"op{nth}", 2)]), now=table.now)
                    put_in.set()
                    await may_end.wait()

            putting = asyncio.create_task(put())
            await put_in.wait()
            settling = asyncio.create_task(table.settle(first))
            await asyncio.wait([settling], timeout=0.3)
            may_end.set()
            await asyncio.gather(putting, settling)

            [[second]] = await table.claim()
            assert second.envelope.number == 2
            await table.settle(second)


async def test_workers_that_claim_at_the_same_time_share_without_overlap(postgresql_url: str) -> None:
    async with opened(postgresql_url) as table:
        await table.put(*(envelope(f"op{nth}", 1, f"https://{nth % 7}.example") for nth in range(150)))
        seen: list[int] = []

        async def work(name: str) -> None:
            misses = 0
            while misses < 5:
                runs = await table.claim(name, limit=10, each=5)
                misses = 0 if runs else misses + 1
                for [one] in runs:
                    seen.append(one.seq)
                    await table.settle(one, worker=name)

        await asyncio.gather(*(work(f"w{nth}") for nth in range(6)))

        assert len(seen) == len(set(seen)) == 150
        assert set(await table.column("status")) == {"delivered"}


@pytest.mark.parametrize("worker", ["steady"])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 3)),
            st.tuples(st.just("claim"), st.integers(1, 3), st.integers(1, 4)),
            st.tuples(st.just("settle"), st.sampled_from(["delivered", "pending", "dead", "lost"]), st.integers(0, 3)),
            st.tuples(st.just("wait"), st.sampled_from([1.0, 30.0, 61.0]), st.just(0)),
        ),
        max_size=25,
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_happens_each_stream_ends_in_order_and_nothing_is_stuck(worker: str, steps: list[Any]) -> None:
    """Runs are claimed, partly done, lost; the first settlement of each delivery comes in the order of its stream."""
    async with opened("sqlite:///:memory:") as table:
        held: list[list[ClaimedDelivery]] = []
        put: dict[str, int] = defaultdict(int)
        settled: dict[str, list[int]] = defaultdict(list)

        async def play(action: str, first: Any, second: int) -> None:
            if action == "put":
                operation = f"op{first}"
                await table.put(*(envelope(operation, put[operation] + nth) for nth in range(1, second + 1)))
                put[operation] += second
            elif action == "claim":
                held.extend(await table.claim(limit=first, longest=second))
            elif action == "wait":
                table.now += first
            elif held:
                run = held.pop(second % len(held))
                outcomes = [
                    DeliveryOutcome(claimed=one, status="delivered" if first == "pending" else first)
                    for one in run[:-1]
                ] + [DeliveryOutcome(claimed=run[-1], status=first)]
                if first == "lost":
                    return
                async with table.store.writing() as connection:
                    await settle_deliveries(connection, outcomes, now=table.now, worker="w", breaker=Breaker())
                for outcome in outcomes:
                    number = outcome.claimed.envelope.number
                    assert number is not None
                    if outcome.status != "pending" and number not in settled[outcome.claimed.envelope.operation_id]:
                        settled[outcome.claimed.envelope.operation_id].append(number)

        for step in steps:
            await play(*step)
        table.now += 100_000
        for _ in range(200):
            runs = await table.claim(longest=4)
            if not runs:
                break
            held[:] = runs
            while held:
                await play("settle", "delivered", 0)

        assert settled == {operation: list(range(1, count + 1)) for operation, count in put.items()}
        assert not {"pending", "waiting"} & set(await table.column("status"))
        async with table.store.reading() as connection:
            assert (await connection.execute(select(endpoints.c.disabled_at))).all() in ([], [(None,)])
