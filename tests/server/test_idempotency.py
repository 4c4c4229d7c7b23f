from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select, update

from hookline.store import SqlStore
from hookline.store._tables import definitions, idempotency
from tests.server.site import Site, key, new_id, on_lasting_site
from tests.server.test_hooks import DENY, problem

pytestmark = pytest.mark.anyio


def named(name: str) -> dict[str, str]:
    return {"idempotency-key": name}


@on_lasting_site
async def test_the_same_request_gets_the_same_answer_and_is_done_once(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    async with site.client(await key(store, tenant)) as client:
        first = await client.post("/v1/hooks", json=DENY, headers=named("k"))
        second = await client.post("/v1/hooks", json=DENY, headers=named("k"))

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    for name in ("location", "etag", "content-type"):
        assert first.headers[name] == second.headers[name]
    async with store.reading() as connection:
        made = select(func.count()).where(definitions.c.tenant_id == tenant)
        assert (await connection.execute(made)).scalar_one() == 1


@on_lasting_site
async def test_of_many_at_once_one_is_done(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        answers = await asyncio.gather(
            *(
                client.post("/v1/keys", json={"name": "x", "scopes": ["hooks:read"]}, headers=named("k"))
                for _ in range(10)
            )
        )
        listed = (await client.get("/v1/keys")).json()["items"]

    assert {answer.status_code for answer in answers} <= {201, 409}
    assert [answer for answer in answers if answer.status_code == 201]
    assert len([each for each in listed if each["name"] == "x"]) == 1


@on_lasting_site
async def test_a_key_for_another_request_is_refused(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        await client.post("/v1/hooks", json=DENY, headers=named("k"))
        body = await client.post("/v1/hooks", json={**DENY, "name": "b"}, headers=named("k"))
        address = await client.post("/v1/keys", json=DENY, headers=named("k"))

    problem(body, 422, "idempotency_key")
    problem(address, 422, "idempotency_key")


@on_lasting_site
async def test_api_keys_do_not_share_their_names(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    async with site.client(await key(store, tenant)) as one, site.client(await key(store, tenant)) as two:
        first = await one.post("/v1/hooks", json=DENY, headers=named("k"))
        second = await two.post("/v1/hooks", json={**DENY, "name": "b"}, headers=named("k"))

    assert (first.status_code, second.status_code) == (201, 201)


@on_lasting_site
async def test_a_refused_request_may_be_corrected(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        wrong = await client.post("/v1/hooks", json=DENY | {"point": "x"}, headers=named("k"))
        right = await client.post("/v1/hooks", json=DENY, headers=named("k"))

    assert (wrong.status_code, right.status_code) == (422, 201)


@on_lasting_site
async def test_a_repeated_answer_shows_no_secret(site: Site, store: SqlStore) -> None:
    name = new_id("k")
    body = {"name": "x", "scopes": ["hooks:read"]}
    async with site.client(await key(store, new_id("tenant"))) as client:
        first = (await client.post("/v1/keys", json=body, headers=named(name))).json()
        second = (await client.post("/v1/keys", json=body, headers=named(name))).json()

    assert first | {"key": None} == second
    async with store.reading() as connection:
        kept = (
            await connection.execute(select(idempotency.c.body).where(idempotency.c.key.endswith(f":{name}")))
        ).scalar_one()
    assert first["key"].encode() not in kept


@on_lasting_site
async def test_a_request_whose_process_died_may_come_again(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        await client.post("/v1/hooks", json=DENY, headers=named("k"))
        async with store.writing() as connection:
            await connection.execute(update(idempotency).values(status_code=0))
        under_way = await client.post("/v1/hooks", json=DENY, headers=named("k"))
        async with store.writing() as connection:
            await connection.execute(update(idempotency).values(created_at=idempotency.c.created_at - 61))
        again = await client.post("/v1/hooks", json={**DENY, "name": "b"}, headers=named("k"))

    problem(under_way, 409, "under_way")
    assert again.status_code == 201


@on_lasting_site
async def test_what_was_kept_is_forgotten_after_a_day(site: Site, store: SqlStore) -> None:
    async with site.client(await key(store, new_id("tenant"))) as client:
        await client.post("/v1/hooks", json=DENY, headers=named("old"))
        async with store.writing() as connection:
            await connection.execute(update(idempotency).values(created_at=idempotency.c.created_at - 86_401))
        await client.post("/v1/hooks", json={**DENY, "name": "b"}, headers=named("new"))

    async with store.reading() as connection:
        kept = (await connection.execute(select(idempotency.c.key))).scalars().all()
    assert [each.rpartition(":")[2] for each in kept] == ["new"]


@pytest.mark.parametrize("name", ["", "x" * 201, "a b"])
async def test_what_is_no_idempotency_key_is_refused(lasting_site: Site, name: str) -> None:
    async with lasting_site.client() as client:
        problem(await client.post("/v1/hooks", json=DENY, headers=named(name)), 422, "idempotency_key")
