from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hookline.registry import Registry
from hookline.store import SqlStore
from tests.databases import Server, administer
from tests.server.site import Site, delivery, operation
from tests.server.test_hooks import DENY, problem

pytestmark = pytest.mark.anyio


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
    assert health.status_code == 200
    assert known == 1


async def test_metrics_count_requests_by_route_and_what_the_store_has(site: Site, store: SqlStore) -> None:
    waiting = await operation(store)
    await delivery(store, "acme", "dead")

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
    assert waiting not in answer.text
    assert "made-up" not in answer.text
