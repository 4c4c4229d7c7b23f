"""`Outbox`: what is published is delivered, signed, in order, again and again until it is taken or given up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from hookline.delivery import KeyRing, MasterKeyError, Outbox, Sender, generate_key
from hookline.errors import DeliveryError, HookUsageError, StoreUnavailableError
from hookline.store import Breaker, DeliveryFilter, DeliveryLog, SqlStore
from hookline.webhooks import ControlAnswer, Envelope, delivery_id
from tests.databases import Server, administer
from tests.delivery.envelopes import envelope_to
from tests.delivery.receivers import Receiver, after, hang, hangs_up, ok, status
from tests.store.records import entries, hook, state
from tests.tables import for_each

pytestmark = pytest.mark.anyio

SECRET = generate_key()
QUICK = (0.0, *(0.05,) * 9)


@asynccontextmanager
async def opened(url: str = "sqlite:///:memory:") -> AsyncIterator[SqlStore]:
    async with SqlStore(url, durability="process") as store:
        yield store


def outbox(store: SqlStore, **options: Any) -> Outbox:
    if "sender" not in options:
        options = {"keys": KeyRing({"": [SECRET]}), "allow_private": ["127.0.0.0/8"]} | options
    options = {"schedule": QUICK} | options
    return Outbox(store, **options)


def told(operation: str, number: int, url: str, **webhook: Any) -> Envelope:
    envelope = envelope_to(url, delivery=delivery_id(operation, number, url, 0), **webhook)
    return msgspec.structs.replace(
        envelope, operation_id=operation, number=number, payload=msgspec.json.encode({"of": operation, "nth": number})
    )


async def until(condition: Callable[[], Awaitable[bool]], *, within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.01)


def in_order(payloads: Sequence[Any]) -> bool:
    """Whether each operation's first arrivals came in the order of their numbers."""
    seen: dict[str, int] = {}
    for payload in payloads:
        highest = seen.get(payload["of"], 0)
        if payload["nth"] > highest + 1:
            return False
        seen[payload["of"]] = max(highest, payload["nth"])
    return True


async def test_what_is_published_arrives_once_signed_and_in_order(database_url: str) -> None:
    async with opened(database_url) as store, Receiver([SECRET]) as receiver:
        envelopes = [told(f"op{nth % 5}", nth // 5 + 1, receiver.url) for nth in range(100)]
        async with outbox(store) as box:
            await box.publish(envelopes)
            await box.idle()

        assert sorted(receiver.ids) == sorted(each.id for each in envelopes)
        assert receiver.unsigned == []
        assert in_order(receiver.payloads)
        assert (await DeliveryLog(store).counts())["delivered"] == 100


async def test_what_a_commit_stores_is_delivered_at_once() -> None:
    async with opened() as store, Receiver([SECRET]) as receiver, outbox(store):
        await store.commit(
            state("op", events=3, hooks=[hook("told", receiver.url)]),
            expected_version=None,
            entries=entries("op", 1, 3),
        )
        await receiver.received(3)

        assert [payload["stepIndex"] for payload in receiver.payloads] == [1, 2, 3]
        assert {payload["hookId"] for payload in receiver.payloads} == {"told"}


async def test_what_is_not_taken_comes_again_with_the_same_id_and_the_next_wait() -> None:
    async with opened() as store, Receiver([SECRET]) as receiver, outbox(store) as box:
        receiver.says(status(500), hangs_up(), status(302, location="/elsewhere"), ok())
        await box.publish([told("op", number, receiver.url) for number in (1, 2)])
        await receiver.received(5)
        await box.idle()

        assert [payload["nth"] for payload in receiver.payloads] == [1, 1, 1, 1, 2]
        assert len(set(receiver.ids)) == 2
        [second, first] = (await DeliveryLog(store).page()).items
        assert (first.attempts, first.status, second.attempts) == (4, "delivered", 1)
        attempts = await DeliveryLog(store).attempts(first.id)
        assert [(each.nth, each.status_code) for each in attempts] == [(1, 500), (2, None), (3, 302), (4, 200)]


async def test_a_receiver_that_hangs_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.delivery._outbox.GRACE", 0.05)
    async with opened() as store, Receiver() as hung, Receiver() as fast:
        hung.says(hang())
        async with outbox(store, concurrency=20, per_endpoint=4) as box:
            await box.publish([told(f"hung{nth}", 1, hung.url) for nth in range(100)])
            await hung.received(4)
            await box.publish([told(f"fast{nth}", 1, fast.url) for nth in range(200)])
            await fast.received(200)

            assert len(hung.requests) == 4


async def test_retry_after_is_honoured_by_the_delivery_and_for_its_endpoint(database_url: str) -> None:
    async with opened(database_url) as store, Receiver() as receiver, outbox(store) as box:
        receiver.says(status(503, retry_after="600"), ok())
        await box.publish([told("op", 1, receiver.url)])
        await box.idle()
        await box.publish([told("other", 1, receiver.url)])
        await box.idle()

        assert len(receiver.requests) == 1
        [endpoint] = await DeliveryLog(store).endpoints()
        delivery = await DeliveryLog(store).delivery(receiver.ids[0])
        assert delivery is not None
        assert endpoint.closed_until is not None
        now = await store.now()
        assert 590 < endpoint.closed_until - now <= 600
        assert 590 < delivery.next_attempt_at - now <= 600


async def test_a_receiver_that_is_gone_gets_nothing_more_until_it_is_enabled(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database_url) as store, Receiver() as receiver, outbox(store) as box:
        log = DeliveryLog(store)
        receiver.says(status(410), ok())
        await box.publish([told("op", number, receiver.url) for number in (1, 2, 3)])
        await box.idle()
        await box.publish([told("new", 1, receiver.url)])
        await box.idle()

        assert (len(receiver.requests), (await log.counts())["dead"]) == (1, 4)
        assert all("gone" in (each.last_error or "") for each in (await log.page()).items)
        assert await log.enable("", receiver.url)
        assert await log.replay(DeliveryFilter(status="dead")) == 4
        await box.idle()
        assert [payload["of"] for payload in receiver.payloads].count("op") == 4
        assert in_order(receiver.payloads)
        assert (await log.counts())["delivered"] == 4


async def test_after_the_last_attempt_a_delivery_is_kept_and_what_the_operation_was_for_fails_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened() as store, Receiver() as receiver:
        receiver.says(status(500))
        await store.commit(state("op"), expected_version=None, entries=())
        async with outbox(store, schedule=(0.0, 0.02, 0.02), breaker=Breaker(failures=99)) as box:
            await box.publish([told("op", 1, receiver.url, fallback="none"), told("op", 2, receiver.url)])
            await until(lambda: dead(store, 2))

        assert receiver.ids.count(delivery_id("op", 1, receiver.url, 0)) == 3
        [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "given up after 3 attempts: http_error" in record.getMessage()
        async with store.reading() as connection:
            [failed] = (await connection.execute(text("SELECT failed_delivery FROM operations"))).scalars()
        assert "answered 500" in failed


async def dead(store: SqlStore, count: int) -> bool:
    return (await DeliveryLog(store).counts())["dead"] == count


async def test_what_fails_an_operation_waits_for_its_commit_before_it_locks_any_delivery(postgresql_url: str) -> None:
    async with opened(postgresql_url) as store:
        asked, go = asyncio.Event(), asyncio.Event()

        async def fail(_: Envelope) -> None:
            asked.set()
            await go.wait()
            raise ValueError("no")

        async def is_waiting_for_a_lock() -> bool:
            async with store.reading() as connection:
                return bool((await connection.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted"))).first())

        async with outbox(store, schedule=(0.0,)) as box, box.serve("jobs", fail):
            await store.commit(state("op"), expected_version=None, entries=[])
            await box.publish([told("op", 1, "local://jobs", fallback="none")])
            await asyncio.wait_for(asked.wait(), 10)
            async with store.writing() as connection:  # as a commit does: the operation first, then its deliveries
                await connection.execute(text("SELECT 1 FROM operations FOR UPDATE"))
                go.set()
                await until(is_waiting_for_a_lock)
                await connection.execute(text("SELECT 1 FROM deliveries FOR SHARE NOWAIT"))
            await until(lambda: dead(store, 1))


async def test_a_key_that_is_rotated_between_attempts_signs_the_next_one() -> None:
    new = generate_key()
    keys = KeyRing({"": [SECRET]})
    async with opened() as store, Receiver() as receiver:
        receiver.says(status(500), ok())
        async with outbox(store, keys=keys, schedule=(0.0, 3600.0)) as box:
            await box.publish([told("op", 1, receiver.url)])
            await box.idle()
            keys.rotate("", new, keep=0)
            assert await DeliveryLog(store).retry(receiver.ids) == 1
            await receiver.received(2)

        first, second = receiver.requests
        assert (first.signed_by(SECRET), first.signed_by(new)) == (True, False)
        assert (second.signed_by(SECRET), second.signed_by(new)) == (False, True)
        assert first.id == second.id


async def test_without_a_key_nothing_is_sent_and_the_delivery_waits_for_one() -> None:
    async with opened() as store, Receiver() as receiver:
        async with outbox(store, keys=KeyRing(), schedule=(0.0, 3600.0)) as box:
            await box.publish([told("op", 1, receiver.url)])
            await box.idle()

        [delivery] = (await DeliveryLog(store).page()).items
        assert (receiver.requests, delivery.status) == ([], "pending")
        assert (delivery.last_error or "").startswith("configuration:")
        assert await DeliveryLog(store).endpoints() == []


async def test_an_endpoint_that_fails_again_and_again_is_tried_with_one_delivery_at_a_time() -> None:
    async with opened() as store, Receiver() as receiver:
        receiver.says(status(500))
        breaker = Breaker(failures=3, pause=0.1, longest_pause=0.1)
        async with outbox(store, breaker=breaker, per_endpoint=3, schedule=(0.0, 0.001)) as box:
            await box.publish([told(f"op{nth}", 1, receiver.url) for nth in range(30)])
            await receiver.received(5)
            before = len(receiver.requests)
            receiver.says(ok())
            await until(lambda: nothing_left(store))

        assert before <= 6
        assert (await DeliveryLog(store).endpoints())[0].failures == 0


async def nothing_left(store: SqlStore) -> bool:
    counts = await DeliveryLog(store).counts()
    return counts["pending"] + counts["waiting"] == 0


async def test_a_function_in_a_process_takes_what_is_for_its_name_once_it_is_served() -> None:
    taken: list[str] = []

    async def take(envelope: Envelope) -> None:
        taken.append(envelope.id)
        if len(taken) == 1:
            raise ValueError("not yet")

    async with opened() as store, outbox(store) as box:
        await box.publish([told("op", 1, "local://jobs"), told("op", 2, "local://jobs")])
        await box.idle()
        assert taken == []
        async with box.serve("jobs", take):
            await until(lambda: nothing_left(store))

        assert len(taken) == 3
        assert taken[0] == taken[1]


@pytest.mark.parametrize(
    "raised",
    [TimeoutError("its own database"), StoreUnavailableError("theirs", "it is down"), MasterKeyError("not here")],
    ids=lambda error: type(error).__name__,
)
async def test_a_function_that_fails_as_the_reading_of_a_secret_does_is_given_up_like_any_other(
    raised: Exception,
) -> None:
    calls: list[str] = []

    async def fail(envelope: Envelope) -> None:
        calls.append(envelope.id)
        raise raised

    async with opened() as store, outbox(store, schedule=(0.0, 0.02)) as box, box.serve("jobs", fail):
        await box.publish([told("op", 1, "local://jobs")])
        await until(lambda: dead(store, 1))

        assert len(calls) == 2
        assert len(await DeliveryLog(store).attempts(calls[0])) == 2


async def test_a_control_is_asked_at_once_over_http_and_in_the_process() -> None:
    async def answer(envelope: Envelope) -> ControlAnswer:
        return ControlAnswer(decision="deny", reason="no")

    async with opened() as store, Receiver() as receiver:
        receiver.says(ok('{"decision": "deny", "reason": "far"}'))
        box = outbox(store)
        async with box.serve("guard", answer):
            near = await box.request(told("op", 1, "local://guard", control=True), timeout=5)
        far = await box.request(told("op", 1, receiver.url, control=True), timeout=5)
        with pytest.raises(DeliveryError):
            await box.request(told("op", 1, "local://guard", control=True), timeout=5)
        await box.aclose()

        assert (near.reason, far.reason) == ("no", "far")


async def test_publishing_twice_delivers_once() -> None:
    async with opened() as store, Receiver() as receiver, outbox(store) as box:
        envelopes = [told("op", number, receiver.url) for number in (1, 2, 3)]
        await box.publish(envelopes)
        await box.publish(envelopes)
        await box.publish([])
        await box.idle()

        assert receiver.ids == [each.id for each in envelopes]


async def test_what_a_database_does_not_take_is_refused_with_its_reason(postgresql_url: str) -> None:
    unlike = "".join(map(chr, range(0x4E00, 0x4E00 + 400)))  # an index of PostgreSQL holds 2,704 bytes
    long = f"http://127.0.0.1/{random.Random(1).randbytes(980).hex()}"
    async with opened(postgresql_url) as store:
        with pytest.raises(HookUsageError, match="rejects these deliveries"):
            await outbox(store).publish([msgspec.structs.replace(told("op", 1, long), tenant_id=unlike)])


async def test_a_worker_that_stops_finishes_what_is_under_way_and_frees_the_rest() -> None:
    async with opened() as store, Receiver() as receiver:
        go = asyncio.Event()
        receiver.says(after(go, ok()))
        async with outbox(store, per_endpoint=2) as box:
            await box.publish([told(f"op{nth}", 1, receiver.url) for nth in range(10)])
            await receiver.received(2)
            asyncio.get_running_loop().call_later(0.1, go.set)

        counts = await DeliveryLog(store).counts()
        assert (counts["delivered"], counts["pending"], len(receiver.requests)) == (2, 8, 2)
        async with outbox(store) as box:
            await box.idle()
        assert len(receiver.requests) == len(set(receiver.ids)) == 10


async def test_what_hangs_when_a_worker_stops_is_given_back_without_counting_as_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hookline.delivery._outbox.GRACE", 0.05)
    async with opened() as store, Receiver() as receiver:
        receiver.says(hang())
        async with outbox(store) as box:
            await box.publish([told("op", 1, receiver.url), told("op", 2, receiver.url)])
            await receiver.received(1)

        [second, first] = (await DeliveryLog(store).page()).items
        assert (first.status, first.attempts, first.claimed_by) == ("pending", 0, None)
        assert (second.status, second.attempts) == ("waiting", 0)


async def test_workers_on_one_store_share_the_work_without_repeats(database_url: str) -> None:
    async with opened(database_url) as one, opened(database_url) as two, Receiver([SECRET]) as receiver:
        await outbox(one).publish([told(f"op{nth % 30}", nth // 30 + 1, receiver.url) for nth in range(300)])
        async with outbox(one) as first, outbox(two) as second:
            await until(lambda: nothing_left(one))
            await first.idle()
            await second.idle()

        assert len(receiver.ids) == len(set(receiver.ids)) == 300
        assert in_order(receiver.payloads)


async def test_a_long_attempt_keeps_its_claim_beyond_the_lease() -> None:
    async with opened() as store, Receiver() as receiver:
        go = asyncio.Event()
        receiver.says(after(go, ok()))
        async with outbox(store, lease_seconds=1.0) as first, outbox(store, lease_seconds=1.0):
            await first.publish([told("op", 1, receiver.url)])
            await receiver.received(1)
            await asyncio.sleep(2.0)
            go.set()
            await until(lambda: nothing_left(store))

        assert len(receiver.requests) == 1


async def test_a_store_that_is_gone_for_a_while_stops_deliveries_and_loses_none(
    postgresql: Server, postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = postgresql_url.rpartition("?")[0].rpartition("/")[2]
    async with SqlStore(postgresql_url) as store, Receiver([SECRET]) as receiver:
        store._database.retry_seconds = 0.3  # once it is open, since to connect may take longer
        async with outbox(store) as box:
            envelopes = [told(f"op{nth % 10}", nth // 10 + 1, receiver.url) for nth in range(500)]
            await box.publish(envelopes)
            await receiver.received(50)
            administer(
                postgresql.uri,
                f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false',
                f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'",
            )
            await until(lambda: said(caplog, "Deliveries stop until the store"))
            administer(postgresql.uri, f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
            await until(lambda: said(caplog, "The store can be reached again"), within=20)
            await until(lambda: nothing_left(store), within=20)

        assert set(receiver.ids) == {each.id for each in envelopes}
        assert in_order(receiver.payloads)


async def said(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return any(words in record.getMessage() for record in caplog.records)


@for_each(
    "options",
    [
        {"schedule": ()},
        {"schedule": (5.0,)},
        {"schedule": (0.0, -1.0)},
        {"schedule": (0.0, float("nan"))},
        {"schedule": "soon"},
        {"schedule": 3},
        {"jitter": 1.0},
        {"jitter": "some"},
        {"per_endpoint": 0},
        {"concurrency": True},
        {"lease_seconds": 0},
        {"lease_seconds": 1e9},
        {"keys": "whsec_x"},
        {"breaker": 3},
    ],
)
async def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    async with opened() as store:
        with pytest.raises((HookUsageError, ValueError)):
            outbox(store, **options)


async def test_an_outbox_is_opened_once_and_needs_a_store_in_a_database() -> None:
    with pytest.raises(HookUsageError, match="SqlStore"):
        Outbox(object())  # type: ignore[arg-type]
    async with opened() as store, outbox(store) as box:
        with pytest.raises(HookUsageError, match="already running"):
            await box.__aenter__()


async def test_a_sender_that_was_given_is_not_closed() -> None:
    async with opened() as store, Receiver([SECRET]) as receiver:
        async with Sender(KeyRing({"": [SECRET]}), allow_private=["127.0.0.0/8"]) as sender:
            async with outbox(store, sender=sender) as box:
                await box.publish([told("op", 1, receiver.url)])
                await box.idle()
            await sender.send(told("op", 2, receiver.url))

        assert len(receiver.requests) == 2
        assert SECRET not in repr(box)


@pytest.mark.parametrize(
    "odd",
    [{"problem": "no\0text"}, {"problem": "no\ud800text"}, {"status_code": 10**30}, {"retry_after": "soon"}],
    ids=["nul", "surrogate", "status", "wait"],
)
async def test_a_function_that_fails_oddly_keeps_no_other_delivery_back(database_url: str, odd: dict[str, Any]) -> None:
    async def fails(envelope: Envelope) -> None:
        raise DeliveryError(envelope.hook.id, "http_error", odd.get("problem", "no"), **odd_fields)

    odd_fields = {name: value for name, value in odd.items() if name != "problem"}
    async with opened(database_url) as store, Receiver([SECRET]) as receiver:
        async with outbox(store, schedule=[0.0]) as box, box.serve("odd", fails):
            await box.publish([told("odd", 1, "local://odd"), told("good", 1, receiver.url)])
            async with asyncio.timeout(10):
                await box.idle()

        assert [payload["of"] for payload in receiver.payloads] == ["good"]
        assert await DeliveryLog(store).counts() == {"waiting": 0, "pending": 0, "delivered": 1, "dead": 1}


async def test_a_delivery_that_a_newer_version_wrote_is_left_to_others_and_holds_nobody_up(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database_url) as store, Receiver([SECRET]) as receiver:
        ours, theirs = told("ours", 1, receiver.url), [told("theirs", nth, receiver.url) for nth in (1, 2)]
        box = outbox(store)
        await box.publish([*theirs, ours])
        newer = b'{"id":"told","type":"onComplete","webhook":{"url":"http://127.0.0.1/","ofTomorrow":1}}'
        await change(store, "UPDATE deliveries SET hook = :hook WHERE id = :id", hook=newer, id=theirs[0].id)
        async with asyncio.timeout(10), box:
            await receiver.received(1)
            await box.idle()

        assert receiver.ids == [ours.id]
        left = await DeliveryLog(store).delivery(theirs[0].id)
        assert left is not None
        assert (left.status, left.attempts, left.claimed_by) == ("pending", 0, None)
        assert f"Delivery {theirs[0].id} is postponed for" in caplog.text
        hook = msgspec.json.encode(theirs[0].hook)
        soon = "UPDATE deliveries SET hook = :hook, next_attempt_at = 0 WHERE id = :id"
        await change(store, soon, hook=hook, id=theirs[0].id)
        async with asyncio.timeout(10), outbox(store):
            await receiver.received(3)
        assert receiver.ids == [ours.id, *(each.id for each in theirs)]


async def test_what_waits_behind_a_delivery_that_cannot_be_read_is_not_sent_before_it(database_url: str) -> None:
    async with opened(database_url) as store, Receiver([SECRET]) as receiver:
        told_of = [told("op", nth, receiver.url) for nth in (1, 2, 3)]
        box = outbox(store)
        await box.publish(told_of)
        await change(store, "UPDATE deliveries SET hook = :hook WHERE id = :id", hook=b"{}", id=told_of[1].id)
        async with asyncio.timeout(10), box:
            await receiver.received(1)
            await box.idle()

        assert receiver.ids == [told_of[0].id]
        assert await DeliveryLog(store).counts() == {"waiting": 1, "pending": 1, "delivered": 1, "dead": 0}


@pytest.mark.parametrize("name", ["\ud800", "a\0", "b\u00e9ll", "a b", "a/b", "a?b", "\x7f"])
async def test_a_name_that_no_address_can_have_is_not_served(name: str) -> None:
    async def take(envelope: Envelope) -> None:
        """Nothing comes."""

    async with opened() as store:
        with pytest.raises(HookUsageError, match="needs a name"):
            async with outbox(store).serve(name, take):
                """It is refused before."""


@pytest.mark.parametrize("url", ["LOCAL://bell", "Local://bell/of/the/door"])
async def test_the_scheme_of_a_name_may_be_written_in_capitals(url: str) -> None:
    taken: list[str] = []

    async def take(envelope: Envelope) -> None:
        taken.append(envelope.id)

    async with opened() as store, outbox(store) as box, box.serve("bell", take):
        await box.publish([told("op", 1, url)])
        await box.idle()

        assert taken == [told("op", 1, url).id]


async def test_connections_are_let_go_of_even_if_closing_is_cancelled() -> None:
    async with opened() as store, Receiver() as receiver:
        box = outbox(store)
        await box.__aenter__()
        await box.publish([told("op", 1, receiver.url)])
        await box.idle()
        closing = asyncio.create_task(box.aclose())
        await asyncio.sleep(0)
        closing.cancel()

        with pytest.raises(asyncio.CancelledError):
            await closing

        async def closed() -> bool:
            return receiver.open == 0

        await until(closed)


async def change(store: SqlStore, statement: str, **values: Any) -> None:
    async with store.writing() as connection:
        await connection.execute(text(statement), values)
