"""Keys that are rotated, the audit log that is searched, all endpoints and all decisions, over HTTP."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from sqlalchemy import insert, update

from hookline.runtime import Approve, Reject
from hookline.server import KeyStore
from hookline.store import SqlStore
from hookline.store._tables import api_keys, audit
from tests.server.site import Site, key, new_id, on_lasting_site, operation
from tests.server.test_hooks import problem

pytestmark = pytest.mark.anyio


@on_lasting_site
async def test_a_rotated_key_works_until_its_end_and_the_new_one_from_now_on(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    old = await key(store, tenant, ["operations:read"], expires_in_seconds=3600)
    its = old.split("_")[1]
    async with site.client() as admin, site.client(old) as before:
        lasting = await admin.post(f"/v1/keys/{its}/rotate", json={"overlapSeconds": 60})
        assert (await before.get("/v1/operations")).status_code == 200
        async with site.client(lasting.json()["key"]) as after:
            assert (await after.get("/v1/operations")).status_code == 200
        at_once = await admin.post(f"/v1/keys/{its}/rotate", json={"overlapSeconds": 0})
        problem(await admin.post(f"/v1/keys/{its}/rotate", json={}), 422, "invalid")
        listed = {each["id"]: each for each in (await admin.get(f"/v1/keys?tenantId={tenant}")).json()["items"]}
        entries = (await admin.get(f"/v1/audit?action=key.rotate&tenantId={tenant}")).json()["items"]

    assert at_once.json()["scopes"] == ["operations:read"]
    assert listed[its]["revokedAt"] is not None
    assert listed[its]["expiresAt"] - listed[its]["createdAt"] < 120
    new = listed[lasting.json()["id"]]
    assert new["expiresAt"] - new["createdAt"] == pytest.approx(3600)
    assert [(each["target"], each["detail"]["overlapSeconds"]) for each in entries] == [(its, 0), (its, 60)]


async def test_the_audit_log_is_searched_page_by_page_and_exported_whole(site: Site, store: SqlStore) -> None:
    rows = [
        {
            "tenant_id": "acme",
            "actor": "cli:ann" if n % 2 else "key:0123",
            "action": "approval.decide",
            "target": f"op-{n}",
            "detail": json.dumps({"tool": "bank/pay" if n % 100 == 0 else "bank/read"}).encode(),
            "created_at": 1000.0 + n,
        }
        for n in range(2500)
    ]
    async with store.writing() as connection:
        await connection.execute(insert(audit), rows)

    async with site.client() as admin:
        found: list[str] = []
        cursor = ""
        while cursor is not None:
            asked = f"text=PAY&tenantId=acme&limit=10&until=1e9{f'&cursor={cursor}' if cursor else ''}"
            page = (await admin.get(f"/v1/audit?{asked}")).json()
            found += [each["target"] for each in page["items"]]
            cursor = page["cursor"]
        by_ann = (await admin.get("/v1/audit?tenantId=acme&actor=cli:ann&since=3000&until=3005")).json()["items"]
        by_key = (await admin.get("/v1/audit?tenantId=acme&actor=0123&limit=1")).json()["items"]
        one = (await admin.get("/v1/audit?target=op-7")).json()["items"]
        table = await admin.get("/v1/audit.csv?tenantId=acme&until=1e9")
        lines = await admin.get("/v1/audit.jsonl?tenantId=acme&text=pay&until=1e9")

    assert found == [f"op-{n}" for n in range(2400, -1, -100)]
    assert [each["target"] for each in by_ann] == ["op-2003", "op-2001"]
    assert [each["actor"] for each in by_key] == ["key:0123"]
    assert [each["target"] for each in one] == ["op-7"]
    assert [row["target"] for row in csv.DictReader(io.StringIO(table.text))] == [
        f"op-{n}" for n in range(2499, -1, -1)
    ]
    assert [json.loads(line)["target"] for line in lines.text.splitlines()] == found


async def test_decisions_of_all_operations_are_found_by_who_what_and_why(site: Site, store: SqlStore) -> None:
    ids = [await operation(store, tenant, agent_id=f"agent-{n}") for n, tenant in enumerate(("acme", "globex", "acme"))]
    await store.decide(ids[0], Approve("call"), by="cli:ann")
    await store.decide(ids[1], Approve("call"), by="cli:ann")
    await store.decide(ids[2], Reject("call", reason="Not this month."), by="cli:bob")

    async with site.client() as admin, site.client(await key(store, "acme")) as acme:
        pages = [(await admin.get("/v1/decisions?limit=2")).json()]
        pages.append((await admin.get(f"/v1/decisions?limit=2&cursor={pages[0]['cursor']}")).json())

        async def find(query: str) -> list[str]:
            return [each["operationId"] for each in (await acme.get(f"/v1/decisions?{query}")).json()["items"]]

        assert [each["operationId"] for page in pages for each in page["items"]] == ids[::-1]
        assert pages[1]["cursor"] is None
        assert await find("") == [ids[2], ids[0]]
        assert await find("decidedBy=cli:ann") == [ids[0]]
        assert await find("text=bank/pay%20MONTH") == [ids[2]]
        assert await find("decision=approve") == [ids[0]]
        assert await find("agentId=agent-2") == [ids[2]]
        assert await find(f"operationId={ids[1]}") == []
        problem(await acme.get("/v1/decisions?tenantId=globex"), 404, "not_found")
        problem(await acme.get("/v1/decisions?cursor=zzz"), 422, "invalid")


async def test_keys_are_found_by_state_and_words_and_settings_name_the_database(site: Site, store: SqlStore) -> None:
    keys = KeyStore(store)
    made = [
        await keys.create(name=name, tenant_id="acme", scopes=["hooks:read"], expires_in_seconds=seconds)
        for name, seconds in (("Ann_100%", None), ("bob", None), ("carol", 1e-3))
    ]
    await keys.revoke(made[1].id, "acme")
    async with store.writing() as connection:
        for age, each in enumerate(reversed(made)):  # those of one millisecond have no order
            older = update(api_keys).where(api_keys.c.id == each.id)
            await connection.execute(older.values(created_at=api_keys.c.created_at - age))

    async def find(**wanted: Any) -> list[str]:
        return [each.name for each in await keys.newest("acme", limit=10, **wanted)]

    assert await find() == ["carol", "bob", "Ann_100%"]
    assert [await find(state=state) for state in ("active", "revoked", "expired")] == [["Ann_100%"], ["bob"], ["carol"]]
    assert [await find(text=text) for text in ("ANN", "_1", "0%", "%", "a_n", made[1].id)] == [
        ["Ann_100%"],
        ["Ann_100%"],
        ["Ann_100%"],
        ["Ann_100%"],
        [],
        ["bob"],
    ]
    async with site.client() as admin, site.client(await key(store, "acme")) as acme:
        system = (await admin.get("/v1/settings")).json()["system"]
        assert (await acme.get("/v1/settings")).json()["system"] is None
    assert system["store"] == store.name
    assert [each["isAlive"] for each in system["processes"]] == [True, True]
    assert system["wakeups"] == ("postgresql" if store.dialect == "postgresql" else "file")
