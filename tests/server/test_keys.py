from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest
from sqlalchemy import select, text

from hookline.server import SCOPES, KeyStore
from hookline.store import SqlStore
from hookline.store._tables import api_keys
from tests.server.site import Site, key, new_id, on_lasting_site
from tests.server.test_hooks import problem

pytestmark = pytest.mark.anyio


@on_lasting_site
async def test_a_key_is_shown_once_and_stored_nowhere(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    async with site.client() as admin:
        made = await admin.post("/v1/keys", json={"name": "ci", "scopes": ["hooks:read"], "tenantId": tenant})
        listed = await admin.get(f"/v1/keys?tenantId={tenant}")

    secret = made.json()["key"].split("_", 2)[2]
    assert made.status_code == 201
    assert listed.json()["items"][0] | {"key": made.json()["key"]} == made.json()
    assert secret not in listed.text
    async with store.reading() as connection:
        for table in ("api_keys", "audit", "idempotency"):
            rows = (await connection.execute(text(f"SELECT * FROM {table}"))).all()
            assert secret not in repr(rows)


async def test_of_several_processes_one_makes_the_first_key(database_url: str) -> None:
    async with SqlStore(database_url) as one, SqlStore(database_url) as two:
        made = await asyncio.gather(*(KeyStore(store).create_first() for store in (one, two) * 5))

        assert sum(each is not None for each in made) == 1
        async with one.reading() as connection:
            assert len((await connection.execute(select(api_keys))).all()) == 1


async def test_a_server_that_is_started_again_makes_no_other_first_key(new_database_url: Callable[[str], str]) -> None:
    url = new_database_url("sqlite")
    with Site(url) as site:
        admin = site.admin
    with Site(url) as again:
        assert again.admin == ""
        async with again.client(admin) as client:
            assert (await client.get("/v1/keys")).status_code == 200


@on_lasting_site
async def test_a_revoked_key_ends_within_a_second_in_every_process(site: Site, store: SqlStore) -> None:
    token = await key(store, "acme", ["hooks:read"])
    with Site(site.url) as elsewhere:
        async with site.client() as admin, site.client(token) as here, elsewhere.client(token) as there:
            for client in (here, there):
                assert (await client.get("/v1/hooks")).status_code == 200
            await admin.delete(f"/v1/keys/{token.split('_')[1]}")
            since = monotonic()
            while (await there.get("/v1/hooks")).status_code == 200:
                assert monotonic() - since < 5
            took = monotonic() - since
            problem(await here.get("/v1/hooks"), 401, "key")

    assert took < 1.0


async def test_a_key_ends_when_its_time_is_over(sqlite_site: Site) -> None:
    async with sqlite_site.client() as admin:
        body = {"name": "short", "scopes": ["hooks:read"], "expiresInSeconds": 0.3}
        made = (await admin.post("/v1/keys", json=body)).json()["key"]
    async with sqlite_site.client(made) as client:
        assert (await client.get("/v1/hooks")).status_code == 200
        async with asyncio.timeout(5):
            while (await client.get("/v1/hooks")).status_code == 200:
                await asyncio.sleep(0.01)
        problem(await client.get("/v1/hooks"), 401, "key")


@pytest.mark.parametrize(
    "header",
    [
        pytest.param("", id="empty"),
        pytest.param("Bearer", id="no-key"),
        pytest.param("Bearer hk_0000000000000000_" + "A" * 43, id="unknown"),
        pytest.param("Bearer hk_x_y", id="no-shape"),
        pytest.param("Basic aGs6aGs=", id="other-scheme"),
        pytest.param("Bearer " + "\xff" * 300, id="no-ascii"),
    ],
)
async def test_what_is_no_key_is_refused_with_a_challenge(lasting_site: Site, header: str) -> None:
    async with lasting_site.client("") as client:
        answer = await client.get("/v1/hooks", headers={"authorization": header.encode("latin-1")})  # type: ignore[dict-item]

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer ")


async def test_a_key_with_another_secret_is_refused(lasting_site: Site) -> None:
    wrong = lasting_site.admin[:-4] + ("AAAA" if not lasting_site.admin.endswith("AAAA") else "BBBB")
    async with lasting_site.client() as admin, lasting_site.client(wrong) as client:
        assert (await admin.get("/v1/hooks")).status_code == 200
        problem(await client.get("/v1/hooks"), 401, "key")


async def test_two_keys_in_one_request_are_none(lasting_site: Site) -> None:
    async with lasting_site.client("") as client:
        lines = [("authorization", f"Bearer {lasting_site.admin}")] * 2
        problem(await client.get("/v1/hooks", headers=lines), 401, "no_key")  # type: ignore[arg-type]


async def test_a_key_gives_no_more_than_it_allows_itself(lasting_site: Site) -> None:
    async with lasting_site.client() as admin:
        body = {"name": "boss", "scopes": ["hooks:admin", "hooks:read"], "tenantId": "acme"}
        boss = (await admin.post("/v1/keys", json=body)).json()["key"]
    async with lasting_site.client(boss) as client:
        more = await client.post("/v1/keys", json={"name": "x", "scopes": ["hooks:manage"]})
        same = await client.post("/v1/keys", json={"name": "x", "scopes": ["hooks:read"]})
        system = await client.post("/v1/keys", json={"name": "x", "scopes": ["hooks:read"], "tenantId": ""})
        other = await client.post("/v1/keys", json={"name": "x", "scopes": ["hooks:read"], "tenantId": "globex"})

    problem(more, 403, "scope")
    assert (same.status_code, same.json()["tenantId"]) == (201, "acme")
    problem(system, 404, "not_found")
    problem(other, 404, "not_found")


@on_lasting_site
async def test_a_key_makes_none_that_outlasts_it(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    lasting, ending = await key(store, tenant), await key(store, tenant, expires_in_seconds=3600)
    async with site.client(ending) as client, site.client(lasting) as other:
        ends = {each["id"]: each.get("expiresAt") for each in (await client.get("/v1/keys")).json()["items"]}
        same, early, late = [
            await client.post("/v1/keys", json={"name": "x", "scopes": ["hooks:read"], **asked})
            for asked in ({}, {"expiresInSeconds": 60}, {"expiresInSeconds": 3600})
        ]
        endless = await other.post("/v1/keys", json={"name": "x", "scopes": ["hooks:read"]})

    end = ends[ending.split("_")[1]]
    assert end is not None
    assert (same.status_code, same.json()["expiresAt"]) == (201, end)
    assert (early.status_code, early.json()["expiresAt"] < end) == (201, True)
    assert "outlast" in problem(late, 403, "scope")["detail"]
    assert (endless.status_code, endless.json()["expiresAt"]) == (201, None)


@on_lasting_site
async def test_a_key_of_the_system_without_admin_changes_nothing_of_it(site: Site, store: SqlStore) -> None:
    scopes = [scope for scope in SCOPES if scope != "hooks:admin"]
    body = {"name": new_id("name"), "point": "ToolCall.guard", "handler": "deny"}
    async with site.client() as admin, site.client(await key(store, "", scopes)) as reader:
        where = (await admin.post("/v1/hooks", json=body)).headers["location"]
        seen = await reader.get(where)
        changed = await reader.patch(where, json={"priority": 1})
        made = await reader.post("/v1/hooks", json={**body, "name": new_id("name")})

    assert seen.status_code == 200
    problem(changed, 403, "scope")
    problem(made, 403, "scope")


async def test_who_did_what_is_in_the_audit(site: Site, store: SqlStore) -> None:
    async with site.client() as admin:
        made = (await admin.post("/v1/keys", json={"name": "ci", "scopes": ["hooks:read"], "tenantId": "acme"})).json()
        await admin.delete(f"/v1/keys/{made['id']}")
        await admin.delete(f"/v1/keys/{made['id']}")
        entries = (await admin.get("/v1/audit?tenantId=acme")).json()["items"]
        first = await admin.get("/v1/audit?limit=2")
        rest = await admin.get(first.links["next"]["url"])

    me = f"key:{site.admin.split('_')[1]}"
    assert [(each["actor"], each["action"], each["target"]) for each in entries] == [
        (me, "key.revoke", made["id"]),
        (me, "key.create", made["id"]),
    ]
    assert [each["action"] for each in (*first.json()["items"], *rest.json()["items"])] == [
        "key.revoke",
        "key.create",
        "key.create",
    ]


async def test_when_a_key_was_used_last_is_noted(sqlite_site: Site) -> None:
    async with sqlite_site.client() as admin, asyncio.timeout(10):
        while (await admin.get("/v1/keys")).json()["items"][0]["lastUsedAt"] is None:
            await asyncio.sleep(0.01)
