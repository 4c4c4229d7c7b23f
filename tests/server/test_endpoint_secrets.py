"""Signing secrets over HTTP: shown once, of known endpoints only, seen by their tenant only, noted in the audit."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from hookline.delivery import EndpointSecrets, KeyRing, MasterKeyError, MasterKeys
from hookline.delivery._master_keys import MASTER_KEY, generate_master_key
from hookline.server import Server
from hookline.store import SqlStore
from tests.server.site import MASTER, Site, key
from tests.server.test_hooks import problem

pytestmark = pytest.mark.anyio

URL = "https://acme.example/in"
HOOK = {"name": "told", "point": "onComplete", "webhook": {"url": URL}}


async def test_a_secret_is_shown_once_and_stored_nowhere_as_it_is(site: Site, store: SqlStore) -> None:
    named = {"Idempotency-Key": "k"}
    async with site.client(await key(store, "acme")) as acme:
        assert (await acme.post("/v1/hooks", json=HOOK)).status_code == 201
        first = await acme.post("/v1/endpoints/secrets", json={"url": URL}, headers=named)
        again = await acme.post("/v1/endpoints/secrets", json={"url": URL}, headers=named)
        second = await acme.post("/v1/endpoints/secrets", json={"url": "HTTPS://Acme.example/in", "overlapSeconds": 60})
        listed = await acme.get("/v1/endpoints/secrets", params={"url": URL})
        audit = await acme.get("/v1/audit")
        revoked = await acme.delete(f"/v1/endpoints/secrets/{first.json()['id']}")
        left = await acme.get("/v1/endpoints/secrets")

    secrets = [first.json()["secret"], second.json()["secret"]]
    assert all(each.startswith("whsec_") for each in secrets)
    assert again.json() == first.json() | {"secret": None}
    assert [each["id"] for each in listed.json()] == [second.json()["id"], first.json()["id"]]
    assert listed.json()[1]["expiresAt"] <= second.json()["createdAt"] + 60
    assert [each["action"] for each in audit.json()["items"]][:2] == ["endpoint.secret.rotate"] * 2
    assert revoked.status_code == 204
    assert [each["id"] for each in left.json()] == [second.json()["id"]]
    async with store.reading() as connection:
        for table in ("endpoint_secrets", "audit", "idempotency", "definitions"):
            rows = repr((await connection.execute(text(f"SELECT * FROM {table}"))).all())
            assert not any(each.removeprefix("whsec_") in rows + listed.text + audit.text for each in secrets)


async def test_only_endpoints_of_the_tenant_get_secrets(site: Site, store: SqlStore) -> None:
    async with site.client() as admin, site.client(await key(store, "globex")) as globex:
        await admin.post("/v1/hooks", json=HOOK | {"tenantId": "acme"})
        await admin.post("/v1/hooks", json=HOOK | {"webhook": {"url": "https://system.example/in"}})
        made = await admin.post("/v1/endpoints/secrets", json={"url": URL, "tenantId": "acme"})

        for body in ({"url": URL}, {"url": URL, "tenantId": "acme"}, {"url": "https://system.example/in"}):
            problem(await globex.post("/v1/endpoints/secrets", json=body), 404, "not_found")
        for url in ("local://x", "ftp://x", "https://x\n", "x"):
            problem(await admin.post("/v1/endpoints/secrets", json={"url": url}), 422, "invalid")
        problem(await globex.delete(f"/v1/endpoints/secrets/{made.json()['id']}"), 404, "not_found")
        assert (await globex.get("/v1/endpoints/secrets")).json() == []
        assert [each["tenantId"] for each in (await admin.get("/v1/endpoints/secrets")).json()] == ["acme"]


async def test_two_servers_on_one_database_sign_with_the_same_secret(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        with Site(database_url) as one, Site(database_url) as two:
            async with one.client(await key(store, "acme")) as here:
                await here.post("/v1/hooks", json=HOOK)
                made = (await here.post("/v1/endpoints/secrets", json={"url": URL})).json()
            async with two.client(await key(store, "acme")) as there:
                listed = (await there.get("/v1/endpoints/secrets")).json()

    assert [each["id"] for each in listed] == [made["id"]]


async def test_a_server_makes_its_master_key_beside_an_sqlite_file_and_needs_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MASTER_KEY, raising=False)
    url, file = f"sqlite:///{tmp_path}/a.db", tmp_path / "hookline.key"
    for _ in range(2):
        async with Server(url, port=0, page=False) as server:
            assert server.outbox.secrets is not None
            await server.outbox.secrets.rotate("acme", URL)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    held = file.read_text().strip()
    file.unlink()
    with pytest.raises(MasterKeyError, match="does not exist; restore it"):
        await Server(url, port=0, page=False).__aenter__()
    assert not file.exists()
    monkeypatch.setenv(MASTER_KEY, generate_master_key())
    with pytest.raises(MasterKeyError, match="the database uses the master key") as refused:
        await Server(url, port=0, page=False).__aenter__()
    assert os.environ[MASTER_KEY] not in str(refused.value)

    monkeypatch.setenv(MASTER_KEY, held)
    async with Server(url, port=0, page=False) as server, SqlStore(url) as store:
        secrets = EndpointSecrets(store, MasterKeys([held]), environment=KeyRing())
        assert len(await secrets.page("acme")) == 2


async def test_a_server_on_postgresql_without_a_master_key_does_not_start(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MASTER_KEY, raising=False)

    with pytest.raises(MasterKeyError, match="a server on PostgreSQL needs a master key"):
        await Server(postgresql_url, port=0, page=False).__aenter__()
    async with Server(postgresql_url, port=0, page=False, master_key=MASTER):
        pass


async def test_a_server_in_memory_needs_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(MASTER_KEY, raising=False)
    monkeypatch.chdir(tmp_path)

    async with Server("sqlite:///:memory:", port=0, page=False):
        assert list(tmp_path.iterdir()) == []


async def test_an_application_without_a_master_key_says_so(
    new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    from hookline.server import create_app

    async with SqlStore(new_database_url("sqlite")) as store:
        token = await key(store, "acme")
        transport = httpx.ASGITransport(create_app(store, page=False))  # type: ignore[arg-type]
        async with httpx.AsyncClient(
            transport=transport, base_url="http://x", headers={"authorization": f"Bearer {token}"}
        ) as client:
            problem(await client.get("/v1/endpoints/secrets"), 503, "no_master_key")
