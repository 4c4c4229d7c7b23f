"""Each endpoint of each tenant has a secret of its own, which is encrypted where it is kept, and never sent unsigned."""

from __future__ import annotations

import asyncio
import base64
import logging
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select, update

from hookline.delivery import (
    EndpointSecrets,
    Envelope,
    KeyRing,
    MasterKeyError,
    MasterKeys,
    Outbox,
    Sender,
    WebhookVerificationError,
    generate_key,
    verify,
)
from hookline.delivery._endpoint_secrets import normalize_endpoint
from hookline.delivery._master_keys import generate_master_key, rotate_key_file, write_key_file
from hookline.errors import DeliveryError, HookUsageError
from hookline.store import SqlStore
from hookline.store._deliveries import build_delivery_rows, insert_deliveries
from hookline.store._migrate import SCRIPTS, VERSION_TABLE, downgrade
from hookline.store._tables import audit, deliveries, endpoint_secrets, master_keys
from tests.delivery.envelopes import envelope_to
from tests.delivery.receivers import Received, Receiver, says_json
from tests.store.faulty import Faults
from tests.tables import for_each

pytestmark = pytest.mark.anyio

ENVIRONMENT = generate_key()
MASTER = generate_master_key()
LOOPBACK = ["127.0.0.0/8"]


def envelope(tenant_id: str, url: str, delivery: str = "msg_1", **webhook: Any) -> Envelope:
    """A delivery of a hook of a tenant, for a run of that tenant."""
    made = envelope_to(url, delivery=delivery, **webhook)
    return msgspec.structs.replace(
        made, tenant_id=tenant_id, hook=msgspec.structs.replace(made.hook, tenant_id=tenant_id)
    )


def secrets_of(store: SqlStore, *keys: str, environment: str | None = None) -> EndpointSecrets:
    ring = KeyRing({"": [environment]} if environment else {})
    return EndpointSecrets(store, MasterKeys(keys or [MASTER]), environment=ring)


def outbox_of(store: SqlStore, *, keys: KeyRing | None = None, master: MasterKeys | None = None) -> Outbox:
    ring = KeyRing() if keys is None else keys
    return Outbox(store, keys=ring, master_key=master, allow_private=LOOPBACK, schedule=[0.0, *[0.05] * 9])


def is_by(request: Received, secret: str | None) -> bool:
    assert secret is not None
    try:
        verify(request.headers, request.body, [secret])
    except WebhookVerificationError:
        return False
    return True


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


async def test_a_receiver_can_verify_its_own_deliveries_and_no_other_s(store: SqlStore) -> None:
    secrets = secrets_of(store, environment=ENVIRONMENT)
    keys = KeyRing({"": [ENVIRONMENT]})
    async with Receiver() as one, Receiver() as two, outbox_of(store, keys=keys, master=secrets.master) as outbox:
        shown = {
            place: (await secrets.rotate(*place)).secret
            for place in (("acme", one.url), ("globex", two.url), ("globex", one.url), ("", two.url_of("/system")))
        }
        for nth, place in enumerate(shown):
            await outbox.publish([envelope(*place, delivery=f"msg_{nth}")])
        sent = [*await one.received(2), *await two.received(2)]

    by_id = {request.id: request for request in sent}
    for nth, place in enumerate(shown):
        for other, secret in shown.items():
            assert is_by(by_id[f"msg_{nth}"], secret) is (place == other)
        # That of the environment is the system's; no tenant has to know it.
        assert is_by(by_id[f"msg_{nth}"], ENVIRONMENT) is (place[0] == "")


async def test_a_hook_that_names_a_key_is_signed_with_that_of_the_environment(store: SqlStore) -> None:
    keys = KeyRing({"": [generate_key()], "billing": [ENVIRONMENT]})
    async with Receiver([ENVIRONMENT]) as receiver, outbox_of(store, keys=keys, master=MasterKeys([MASTER])) as outbox:
        await outbox.publish([envelope("", receiver.url, key="billing")])
        await receiver.received(1)

    assert receiver.unsigned == []
    assert await secrets_of(store).page(None) == []


async def test_a_rotation_signs_with_both_until_the_overlap_is_over(store: SqlStore) -> None:
    secrets = secrets_of(store)
    async with Receiver() as receiver, outbox_of(store, master=secrets.master) as outbox:
        old = await secrets.rotate("acme", receiver.url)
        new = await secrets.rotate("acme", receiver.url, overlap_seconds=3600)
        await outbox.publish([envelope("acme", receiver.url, "msg_1")])
        [during] = await receiver.received(1)
        async with store.writing() as connection:
            past = update(endpoint_secrets).where(endpoint_secrets.c.id == old.id)
            await connection.execute(past.values(expires_at=store.now_sql() - 1))
        last = await secrets.rotate("acme", receiver.url, overlap_seconds=3600)
        await asyncio.sleep(0.6)  # for how long what was read counts
        await outbox.publish([envelope("acme", receiver.url, "msg_2")])
        after = (await receiver.received(2))[1]

    assert [is_by(during, each.secret) for each in (old, new)] == [True, True]
    assert len(during.headers["webhook-signature"].split(" ")) == 2
    assert [is_by(after, each.secret) for each in (old, new, last)] == [False, True, True]


async def test_a_revoked_secret_signs_nothing_after_a_second_in_any_process(store: SqlStore, database_url: str) -> None:
    secrets = secrets_of(store)
    async with SqlStore(database_url) as elsewhere, Receiver() as receiver:
        first = await secrets.rotate("acme", receiver.url)
        second = await secrets.rotate("acme", receiver.url)
        async with outbox_of(elsewhere, master=MasterKeys([MASTER])) as outbox:
            await outbox.publish([envelope("acme", receiver.url, "msg_1")])
            await receiver.received(1)
            assert not await secrets.revoke(second.id, "globex")
            assert await secrets.revoke(second.id, "acme")
            assert not await secrets.revoke(second.id, "acme")
            await asyncio.sleep(0.6)
            await outbox.publish([envelope("acme", receiver.url, "msg_2")])
            before, after = await receiver.received(2)

    assert [is_by(before, each.secret) for each in (first, second)] == [True, True]
    assert [is_by(after, each.secret) for each in (first, second)] == [True, False]


async def test_processes_that_send_for_the_first_time_at_once_make_one_secret(
    new_database_url: Callable[[str], str], dialect: str
) -> None:
    url = new_database_url(dialect)
    stores = [SqlStore(url) for _ in range(4)]
    hook = envelope("acme", "https://acme.example/in").hook
    for store in stores:
        await store.__aenter__()
    try:
        rings = await asyncio.gather(*(secrets_of(store).ring_of(hook) for store in stores for _ in range(3)))
        found = await secrets_of(stores[0]).page("acme")
    finally:
        for store in stores:
            await store.aclose()

    assert len(found) == 1
    assert not found[0].shown
    assert len({ring.signatures(b"text") for ring, _ in rings}) == 1


@pytest.mark.parametrize("wrong", [None, generate_master_key()], ids=["missing", "wrong"])
async def test_without_the_master_key_deliveries_wait_and_are_sent_once_it_is_there(
    store: SqlStore, wrong: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HOOKLINE_MASTER_KEY", raising=False)
    secrets = secrets_of(store)
    keys = KeyRing({"": [ENVIRONMENT]})
    async with Receiver() as receiver:
        secret = (await secrets.rotate("acme", receiver.url)).secret
        places = (receiver.url, receiver.url_of("/never-made"))
        async with outbox_of(store, keys=keys, master=MasterKeys([wrong]) if wrong else None) as outbox:
            await outbox.publish([envelope("acme", url, f"msg_{nth}") for nth, url in enumerate(places)])
            await waiting(store, 2)
            await outbox.idle()
        assert receiver.requests == []
        assert caplog.text.count("Deliveries wait for their signing secrets") == 1

        async with store.writing() as connection:
            await connection.execute(update(deliveries).values(next_attempt_at=0))
        async with outbox_of(store, keys=keys, master=secrets.master) as outbox:
            sent = await receiver.received(2)
            await outbox.idle()
        async with store.reading() as connection:
            rows = (await connection.execute(select(deliveries.c.status, deliveries.c.attempts))).all()

    assert {tuple(row) for row in rows} == {("delivered", 1)}
    assert is_by(next(each for each in sent if each.id == "msg_0"), secret)
    assert not any(is_by(each, ENVIRONMENT) for each in sent)


async def waiting(store: SqlStore, count: int) -> None:
    async with asyncio.timeout(10):
        while True:
            async with store.reading() as connection:
                rows = (await connection.execute(select(deliveries.c.last_error, deliveries.c.status))).all()
            if sum("master key" in (row.last_error or "") for row in rows) == count:
                assert {row.status for row in rows} == {"pending"}
                return
            await asyncio.sleep(0.01)


async def test_the_key_of_another_database_is_refused_and_changes_nothing(store: SqlStore) -> None:
    await secrets_of(store).open()
    other = secrets_of(store, generate_master_key())

    for refused in (other.open(), other.rotate("acme", "https://acme.example"), other.rewrap()):
        with pytest.raises(MasterKeyError, match="the database uses the master key"):
            await refused
    assert await secrets_of(store).page(None) == []


async def test_a_secret_cannot_be_moved_to_another_endpoint_in_the_database(store: SqlStore) -> None:
    secrets = secrets_of(store)
    await secrets.rotate("globex", "https://globex.example/in")
    async with store.writing() as connection:
        await connection.execute(update(endpoint_secrets).values(tenant_id="acme", endpoint="https://acme.example/in"))

    with pytest.raises(MasterKeyError, match="belongs to another endpoint"):
        await secrets.ring_of(envelope("acme", "https://acme.example/in").hook)


async def test_a_new_master_key_opens_what_was_encrypted_under_the_old_one(store: SqlStore) -> None:
    new = generate_master_key()
    made = await secrets_of(store).rotate("acme", "https://acme.example/in")
    async with store.reading() as connection:
        before = (await connection.execute(select(endpoint_secrets.c.sealed))).scalar_one()

    assert await secrets_of(store, new, MASTER).rewrap(actor="ann") == 1

    ring, name = await secrets_of(store, new).ring_of(envelope("acme", "https://acme.example/in").hook)
    assert ring.signatures(b"text", name) == KeyRing({"": [made.secret or ""]}).signatures(b"text")
    async with store.reading() as connection:
        assert (await connection.execute(select(endpoint_secrets.c.sealed))).scalar_one() != before
    with pytest.raises(MasterKeyError):
        await secrets_of(store, MASTER).open()


async def test_a_process_that_reads_its_master_key_from_a_file_follows_a_rotation(
    store: SqlStore, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "hookline.key"
    running = EndpointSecrets(store, MasterKeys.in_file(file), environment=KeyRing())
    await running.open()
    master, new = rotate_key_file(file)
    async with SqlStore(database_url) as elsewhere:
        await EndpointSecrets(elsewhere, master, environment=KeyRing()).rewrap()
    write_key_file(file, new)

    await running.rotate("acme", "https://acme.example/in")
    await running.ring_of(envelope("acme", "https://acme.example/in").hook)

    assert file.read_text().split() == [new]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_rotation_whose_commit_fails_changes_nothing(store: SqlStore) -> None:
    secrets = secrets_of(store)
    made = await secrets.rotate("acme", "https://acme.example/in")
    faults = Faults(store, "refused")
    for change in (
        lambda: secrets.rotate("acme", "https://acme.example/in"),
        lambda: secrets.revoke(made.id),
        lambda: secrets_of(store, generate_master_key(), MASTER).rewrap(),
    ):
        faults.at(1)
        with pytest.raises(Exception, match="cannot be used now"):
            await change()

    assert [each.id for each in await secrets.page("acme")] == [made.id]
    ring, name = await secrets_of(store).ring_of(envelope("acme", "https://acme.example/in").hook)
    assert ring.signatures(b"x", name) == KeyRing({"": [made.secret or ""]}).signatures(b"x")


async def test_the_answer_of_a_control_is_verified_with_the_secret_of_its_endpoint(store: SqlStore) -> None:
    secrets = secrets_of(store)
    sender = Sender(KeyRing(), allow_private=LOOPBACK, signed_answers=True, secrets=secrets)
    async with Receiver() as unsigned, sender:
        unsigned.says(says_json({"decision": "allow"}))
        with pytest.raises(DeliveryError, match="no valid signature"):
            await sender.ask(envelope("acme", unsigned.url, control=True), 5.0)
    shown = {
        tenant: (await secrets.rotate(tenant, "https://a.example/in")).secret or "" for tenant in ("acme", "globex")
    }
    ring, _ = await secrets.ring_of(envelope("acme", "https://a.example/in").hook)
    assert ring.accepts(b"text", KeyRing({"": [shown["acme"]]}).signatures(b"text"))
    assert not ring.accepts(b"text", KeyRing({"": [shown["globex"]]}).signatures(b"text"))


async def test_no_secret_is_in_the_database_the_log_or_a_repr(
    store: SqlStore, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    secrets = secrets_of(store)
    made = await secrets.rotate("acme", "https://acme.example/in", actor="ann")
    assert made.secret is not None
    raw = base64.b64decode(made.secret.removeprefix("whsec_"))

    async with store.reading() as connection:
        rows = (await connection.execute(select(endpoint_secrets))).all()
        noted = (await connection.execute(select(audit.c.action, audit.c.detail, audit.c.actor))).all()
    shown = repr([made, secrets, secrets.master, await secrets.page("acme"), noted]) + caplog.text
    assert made.secret not in shown
    assert MASTER not in shown
    assert all(raw not in bytes(row.sealed) and made.secret.encode() not in bytes(row.sealed) for row in rows)
    assert [(row.action, row.actor) for row in noted] == [("endpoint.secret.rotate", "ann")]


async def test_old_secrets_go_when_there_are_too_many(store: SqlStore) -> None:
    secrets = secrets_of(store)
    made = [await secrets.rotate("acme", "https://acme.example/in") for _ in range(8)]

    assert {each.id for each in await secrets.page("acme")} == {each.id for each in made[-5:]}


@for_each(
    "url, overlap",
    [("local://told", 1.0), ("ftp://a.example", 1.0), ("https://a.example/\0", 1.0), ("https://a.example", -1.0)],
)
async def test_what_makes_no_sense_is_refused(url: str, overlap: float) -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        with pytest.raises(HookUsageError):
            await secrets_of(store).rotate("acme", url, overlap_seconds=overlap)


@given(
    st.from_regex(
        r"\A[hH]ttps?://[a-zA-Z]{1,8}(\.[a-z]{2})?(:80|:443|:1)?(/[a-zA-Z]{0,3})?(\?[a-z]{1,2})?(#[a-z]{0,2})?\Z"
    )
)
@settings(max_examples=100, deadline=None)
def test_the_normal_form_of_an_address_is_its_own_normal_form(url: str) -> None:
    assert normalize_endpoint(normalize_endpoint(url)) == normalize_endpoint(url)
    assert normalize_endpoint(url) == normalize_endpoint(url.partition("#")[0])


def test_addresses_that_are_the_same_are_one_endpoint_and_others_are_not() -> None:
    same = ["https://A.example", "HTTPS://a.example:443/", "https://a.example/#x"]
    others = ["http://a.example/", "https://a.example/x", "https://a.example/?x", "https://a.example:80/"]

    assert {normalize_endpoint(each) for each in same} == {"https://a.example/"}
    assert len({normalize_endpoint(each) for each in (*same, *others)}) == 1 + len(others)


@for_each("bad", ["", "short", "x" * 44, f"{MASTER}AAAA"])
def test_a_master_key_that_is_none_is_refused_without_being_shown(bad: str, tmp_path: Path) -> None:
    with pytest.raises(MasterKeyError) as refused:
        MasterKeys([bad])
    assert not bad or bad not in str(refused.value)


def test_of_processes_that_make_the_file_of_the_key_at_once_all_have_the_same(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: MasterKeys.in_file(tmp_path / "hookline.key").ids, range(16)))

    assert len(set(made)) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["hookline.key"]


async def test_what_was_queued_before_the_migration_is_signed_for_its_old_receiver_and_its_new_one(
    database_url: str,
) -> None:
    async with Receiver() as receiver:
        queued = [envelope("acme", receiver.url, "msg_old"), envelope("", receiver.url_of("/system"), "msg_system")]
        async with SqlStore(database_url) as store, store.writing() as connection:
            await insert_deliveries(connection, build_delivery_rows(queued), now=store.now_sql())
            await connection.run_sync(downgraded)
        async with SqlStore(database_url) as store:
            keys = KeyRing({"": [ENVIRONMENT]})
            [legacy] = await secrets_of(store).page(None)
            assert (legacy.tenant_id, legacy.url, legacy.source) == ("acme", receiver.url, "environment")
            secret = (await secrets_of(store).rotate("acme", receiver.url)).secret
            async with outbox_of(store, keys=keys, master=MasterKeys([MASTER])) as outbox:
                sent = {each.id: each for each in await receiver.received(2)}
                assert [is_by(sent["msg_old"], each) for each in (ENVIRONMENT, secret)] == [True, True]
                assert [is_by(sent["msg_system"], each) for each in (ENVIRONMENT, secret)] == [True, False]

                assert await secrets_of(store).revoke(legacy.id, "acme")
                await asyncio.sleep(0.6)
                await outbox.publish([envelope("acme", receiver.url, "msg_new")])
                after = (await receiver.received(3))[2]
    assert [is_by(after, each) for each in (ENVIRONMENT, secret)] == [False, True]


def downgraded(connection: Connection) -> None:
    """Take the tables back to what they were before endpoints had secrets."""
    downgrade(connection, "the store", "0004_endpoint_secrets")
    endpoint_secrets.drop(connection)
    master_keys.drop(connection)
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    command.stamp(config, "0003_missing_hooks", purge=True)
