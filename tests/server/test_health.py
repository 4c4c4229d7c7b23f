from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest

from hookline.errors import StoreUnavailableError
from hookline.registry import Registry
from hookline.store import SqlStore
from hookline.store._database import limit_waiting
from tests.databases import Server, administer
from tests.registry.test_policy_alerts import fallback_alert, put, rate_alert
from tests.server.site import Site, delivery, operation
from tests.server.test_hooks import DENY, problem

pytestmark = pytest.mark.anyio


def path_of(url: str) -> str:
    """The file of a database."""
    return url.removeprefix("sqlite:///")


def overwrite(path: str) -> None:
    """Leave nothing of a file but its length."""
    with open(path, "r+b") as file:
        file.write(b"\0" * os.path.getsize(path))


async def test_a_server_whose_database_is_lost_says_so_and_runs_go_on(
    new_database_url: Callable[[str], str], postgresql: Server
) -> None:
    url = new_database_url("postgresql")
    with Site(url) as site:
        async with SqlStore(url, retry_seconds=0.2) as store, Registry(store) as elsewhere, site.client() as client:
            await client.post("/v1/hooks", json=DENY)
            async with asyncio.timeout(5):
                while not elsewhere.hooks("acme"):
                    await asyncio.sleep(0.01)
            assert (await client.get("/ready")).status_code == 200
            name = url.partition("?")[0].rpartition("/")[2]
            administer(postgresql.uri, f'DROP DATABASE "{name}" WITH (FORCE)')
            try:
                async with asyncio.timeout(10):
                    while (await client.get("/v1/hooks")).status_code != 503:
                        await asyncio.sleep(0.05)
                lost = await client.get("/v1/operations")
                written = await client.post("/v1/hooks", json={**DENY, "name": "b"})
                ready = await client.get("/ready")
                health = await client.get("/health")
                known = len(elsewhere.hooks("acme"))
            finally:
                administer(postgresql.uri, f'CREATE DATABASE "{name}"')

    for answer in (lost, written):
        problem(answer, 503, "store_unavailable")
        assert answer.headers["retry-after"] == "1"
        assert "postgres" not in answer.text
    assert (ready.status_code, ready.json()["status"], ready.json()["store"]) == (503, "unavailable", False)
    assert "The database cannot be read" in ready.json()["problems"][0]
    assert health.status_code == 200
    assert known == 1


async def test_ready_says_that_definitions_may_be_out_of_date_and_keeps_the_details_to_the_log(
    new_database_url: Callable[[str], str], tmp_path: Path
) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text("")
    with Site(new_database_url("sqlite"), files=[file]) as site:
        async with site.client("") as client:
            before = (await client.get("/ready")).json()
            file.write_text("broken = ")
            async with asyncio.timeout(20):
                while (ready := (await client.get("/ready")).json())["status"] == "ok":
                    await asyncio.sleep(0.01)

    assert (before["status"], before["problems"]) == ("ok", [])
    assert (ready["status"], len(ready["problems"])) == ("degraded", 1)
    assert "definitions may be out of date" in ready["problems"][0]
    assert str(tmp_path) not in str(ready)


async def test_a_file_that_another_process_holds_is_told_soon_and_by_ready(
    new_database_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.server._gate.WRITE_SECONDS", 0.3)
    url = new_database_url("sqlite")
    with Site(url) as site, closing(sqlite3.connect(path_of(url), isolation_level=None)) as other:
        async with site.client() as client:
            where = (await client.post("/v1/hooks", json=DENY)).headers["location"]
            other.execute("BEGIN EXCLUSIVE")
            since = monotonic()
            ready = await client.get("/ready")
            answers = await asyncio.gather(
                *(client.put(f"{where}/toggle", json={"enabled": False}) for _ in range(4)),
                client.post("/v1/hooks", json={**DENY, "name": "b"}, headers={"idempotency-key": "k"}),
            )
            took = monotonic() - since
            read = await client.get("/v1/hooks")
            other.execute("ROLLBACK")
            free = await client.get("/ready")
            again = await client.put(f"{where}/toggle", json={"enabled": False})

    for answer in answers:
        problem(answer, 503, "store_unavailable")
    assert took < 10  # one of them alone would wait that long, as runs do
    assert (ready.status_code, ready.json()["store"], read.status_code) == (503, False, 200)
    assert (free.status_code, again.status_code) == (200, 200)


async def test_runs_wait_for_a_file_when_requests_have_given_up(new_database_url: Callable[[str], str]) -> None:
    url = new_database_url("sqlite")
    loop = asyncio.get_running_loop()
    async with SqlStore(url) as store:
        with closing(sqlite3.connect(path_of(url), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with limit_waiting(0.01), pytest.raises(StoreUnavailableError):
                await store.check()
            loop.call_later(0.1, other.execute, "ROLLBACK")

            assert await store.load(await operation(store)) is not None


async def test_a_file_that_was_written_over_is_told_by_ready(new_database_url: Callable[[str], str]) -> None:
    url = new_database_url("sqlite")
    with Site(url) as site:
        async with site.client() as client:
            before = await client.get("/ready")
            for path in (path_of(url), f"{path_of(url)}-wal"):
                overwrite(path)
            after = await client.get("/ready")

    assert (before.status_code, after.status_code, after.json()["status"]) == (200, 503, "unavailable")


async def test_metrics_count_requests_by_route_and_what_the_store_has(site: Site, store: SqlStore) -> None:
    waiting = await operation(store)
    await delivery(store, "acme", "dead")
    await put(store, rate_alert("a", until=60), rate_alert("a", until=120), fallback_alert("b"))

    async with site.client() as client:
        await client.get(f"/v1/operations/{waiting}")
        await client.get("/v1/operations/nix")
        await client.get("/made-up/by/somebody")
        answer = await client.get("/metrics")

    lines = answer.text.splitlines()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'hookline_http_requests_total{method="GET",route="/v1/operations/{id}",status="200"} 1' in lines
    assert 'hookline_http_requests_total{method="GET",route="/v1/operations/{id}",status="404"} 1' in lines
    assert 'hookline_http_request_duration_seconds_count{method="GET",route="/v1/operations/{id}"} 2' in lines
    assert 'hookline_operations{status="waiting_for_human"} 1' in lines
    assert 'hookline_deliveries{status="dead"} 1' in lines
    assert 'hookline_policy_alerts_stored{kind="rate"} 2' in lines
    assert 'hookline_policy_alerts_stored{kind="fallback"} 1' in lines
    assert 'hookline_policy_alerts_total{kind="rate"} 0' in lines  # none of them was raised by this process
    assert "hookline_relay_running 0" in lines
    assert "hookline_relay_waiting_commits 0" in lines
    assert waiting not in answer.text
    assert "made-up" not in answer.text
