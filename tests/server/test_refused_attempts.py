"""The audit has attempts that were refused, with their address, and a flood of them takes few rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.errors import StoreUnavailableError
from hookline.server import KeyStore
from hookline.server._audit import read_audit
from hookline.server._refusals import KINDS, Attempt, Refusals
from hookline.store import SqlStore
from tests.server.site import Site, key
from tests.server.test_hooks import DENY

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path_factory.mktemp('audited') / 's.db'}", page=True) as site:
        yield site


@pytest.fixture
async def store(site: Site) -> AsyncIterator[SqlStore]:
    async with SqlStore(site.url) as store:
        yield store


async def rows(site: Site, key: str | None = None) -> list[dict[str, Any]]:
    """The refused attempts that a key is shown, once all are written."""
    written = asyncio.run_coroutine_threadsafe(site.server._parts.refusals.flush(), site.loop)
    await asyncio.wrap_future(written)
    async with site.client(key) as client:
        items: list[dict[str, Any]] = (await client.get("/v1/audit?limit=1000")).json()["items"]
    return [each for each in items if each["action"].endswith(".refused")]


async def test_wrong_keys_missing_scopes_and_failed_sign_ins_are_in_the_audit(site: Site, store: SqlStore) -> None:
    reader = await key(store, "acme", ["hooks:read"])
    revoked = await KeyStore(store).create(name="old", tenant_id="acme", scopes=["hooks:read"])
    await KeyStore(store).revoke(revoked.id, None)
    for token, method, path in (
        ("hk_no", "GET", "/v1//operations/"),
        (revoked.key, "GET", "/v1/hooks"),
        (reader, "POST", "/v1/hooks"),
        (reader, "GET", "/v1/operations"),
        ("", "GET", "/v1/hooks"),
    ):
        async with site.client(token) as client:
            await client.request(method, path, json=DENY if method == "POST" else None)
    async with site.client("") as client:
        form = (await client.get("/page/sign-in")).text
        token = form.partition('name="token" value="')[2].partition('"')[0]
        await client.post("/page/sign-in", data={"token": token, "key": "hk_wrong"})

    found = await rows(site)

    told = {(each["tenantId"], each["actor"], each["action"], each["target"], each["detail"]["code"]) for each in found}
    id = reader.split("_")[1]  # noqa: A001
    assert told == {
        ("", "address:127.0.0.1", "request.refused", "GET /v1/operations", "key"),
        ("", "address:127.0.0.1", "sign_in.refused", "POST /page/sign-in", "key"),
        ("acme", f"key:{id}", "request.refused", "POST /v1/hooks", "scope"),
    }
    counts = {(each["action"], each["detail"]["code"]): each["detail"]["count"] for each in found}
    assert counts["request.refused", "scope"] == counts["request.refused", "key"] == 2
    assert all(each["detail"]["address"] == "127.0.0.1" for each in found)
    assert "hk_" not in str(found)


async def test_a_tenant_reads_what_was_refused_to_its_keys_and_no_more(site: Site, store: SqlStore) -> None:
    admin, reader = await key(store, "globex", ["hooks:admin"]), await key(store, "globex", ["hooks:read"])
    for token in (reader, "hk_no"):
        async with site.client(token) as client:
            await client.get("/v1/keys")

    found = await rows(site, admin)

    assert [(each["tenantId"], each["actor"]) for each in found] == [("globex", f"key:{reader.split('_')[1]}")]


def attempt(number: int, code: str = "key") -> Attempt:
    address = f"10.0.{number // 250}.{number % 250}"
    return Attempt(
        tenant_id="", actor=f"address:{address}", action="request.refused", code=code, status=401, address=address
    )


async def counted(store: SqlStore) -> list[int]:
    items = (await read_audit(store, None, cursor=None, limit=1000)).items
    return [each.detail["count"] for each in items]


async def test_a_flood_from_many_addresses_takes_few_rows_and_loses_no_attempt(tmp_path: Any) -> None:
    async with SqlStore(f"sqlite:///{tmp_path / 's.db'}") as store:
        refusals = Refusals(store)
        for number in range(20_000):
            refusals.add(attempt(number % 2_000), "GET /")
        await refusals.aclose()
        counts = await counted(store)

    assert len(counts) == KINDS + 1
    assert sum(counts) == 20_000


async def test_a_flood_that_goes_on_for_an_hour_takes_few_rows(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("hookline.server._refusals.monotonic", lambda: now)
    async with SqlStore(f"sqlite:///{tmp_path / 's.db'}") as store:
        refusals = Refusals(store)
        for second in range(0, 3600, 20):
            now = float(second)
            for number in range(200):
                refusals.add(attempt(number), "GET /")
            await refusals.flush(now=now)
        await refusals.aclose()
        counts = await counted(store)

    assert len(counts) <= 8 * (KINDS + 1)
    assert sum(counts) == 180 * 200


async def test_attempts_wait_while_the_database_is_lost(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object) -> None:
        raise StoreUnavailableError("store", "lost")

    async with SqlStore(f"sqlite:///{tmp_path / 's.db'}") as store:
        refusals = Refusals(store)
        refusals.add(attempt(1), "GET /")
        with monkeypatch.context() as patch:
            patch.setattr(refusals, "_write", lost)
            await refusals.flush()
        refusals.add(attempt(1), "GET /")
        await refusals.aclose()

        assert await counted(store) == [2]


@settings(max_examples=30, deadline=None)
@given(
    notes=st.lists(st.tuples(st.integers(0, 3 * KINDS), st.sampled_from(["key", "scope"]), st.booleans()), max_size=200)
)
async def test_every_attempt_is_counted_once(notes: list[tuple[int, str, bool]]) -> None:
    written: list[int] = []

    async def write(found: list[tuple[Attempt, str, int]]) -> None:
        written.extend(count for _, _, count in found)

    refusals = Refusals(None)  # type: ignore[arg-type]
    refusals._write = write  # type: ignore[method-assign]
    for number, code, flushes in notes:
        refusals.add(attempt(number, code), "GET /")
        if flushes:
            await refusals.flush()
    await refusals.aclose()

    assert sum(written) == len(notes)
    assert all(written)
