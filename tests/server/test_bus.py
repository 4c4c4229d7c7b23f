"""A server with a bus says whether the bus is there, and how the questions of remote hooks ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hookline import Hooks, ToolCall
from hookline.bus import NatsBus
from hookline.registry import Registry
from tests.nats_servers import NatsServer
from tests.registry.scenes import pay
from tests.server.site import Site
from tests.server.test_page_guards import visitor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    yield nats
    nats.kill()


async def test_a_bus_that_is_away_is_said_in_health_and_metrics(
    new_database_url: Callable[[str], str], nats: NatsServer
) -> None:
    with Site(new_database_url("sqlite"), bus=NatsBus(nats.url)) as site:
        async with site.client() as client:
            before = (await client.get("/ready")).json()
            nats.kill()
            async with asyncio.timeout(60):
                while (await client.get("/ready")).json()["bus"]:
                    await asyncio.sleep(0.01)
            away = await client.get("/ready")
            metrics = (await client.get("/metrics")).text
            nats.start()
            async with asyncio.timeout(60):
                while not (await client.get("/ready")).json()["bus"]:
                    await asyncio.sleep(0.01)
            back = (await client.get("/metrics")).text

    assert (before["status"], before["bus"]) == ("ok", True)
    assert (away.status_code, away.json()["status"]) == (200, "degraded")
    assert "The bus is away" in away.json()["problems"][0]
    assert "hookline_bus_connected 0\n" in metrics
    assert "hookline_bus_connected 1\n" in back
    assert "hookline_bus_reconnects_total 1\n" in back


async def test_questions_of_the_process_are_counted_by_how_they_ended(
    new_database_url: Callable[[str], str], nats: NatsServer
) -> None:
    hooks = Hooks("payments")
    hooks.guard(ToolCall)(lambda call: None)
    bus = NatsBus(nats.url)

    async def ask(registry: Registry) -> None:
        await pay(registry.hooks())
        async with bus.serve(hooks):
            await pay(registry.hooks())

    with Site(new_database_url("sqlite"), bus=bus, page=True) as site:
        async with site.client() as client:
            made = await client.post(
                "/v1/hooks",
                json={"name": "Guard", "point": "ToolCall.before", "remote": {"name": "payments"}, "tenantId": ""},
            )
            assert made.status_code == 201, made.text
            observer = await client.post(
                "/v1/hooks",
                json={
                    "name": "Ledger",
                    "point": "afterToolCall",
                    "remote": {"name": "ledger", "events": ["onComplete"]},
                    "tenantId": "",
                },
            )
            assert observer.status_code == 201, observer.text
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(site.server.registry), site.loop))
            metrics = (await client.get("/metrics")).text
            settings = (await client.get("/v1/settings")).json()
        with visitor(site, site.admin) as person:
            page = person.get("/settings").text
            hook = person.get(f"/hooks/{made.json()['id']}").text
            observing = person.get(f"/hooks/{observer.json()['id']}").text

    assert "<dt>Remote</dt><dd><code>payments</code></dd>" in hook
    assert "<dt>Further events</dt><dd><code>onComplete</code>" in observing
    assert nats.url in page
    assert settings["system"]["wakeups"] == "nats"
    assert ">connected</span>" in page
    assert "Questions to payments: nobody serves it" in page
    assert 'hookline_bus_questions_total{name="payments",outcome="answered"} 1\n' in metrics
    assert 'hookline_bus_questions_total{name="payments",outcome="nobody"} 1\n' in metrics
    counts = "hookline_remote_decision_duration_seconds_count"
    assert counts + '{name="payments",outcome="answered"} 1\n' in metrics
    assert counts + '{name="payments",outcome="nobody"} 1\n' in metrics
    assert 'hookline_remote_decisions_pending{name="payments"} 0\n' in metrics
    assert "Remote decisions" in page


async def test_a_server_without_a_bus_has_none(new_database_url: Callable[[str], str]) -> None:
    with Site(new_database_url("sqlite")) as site:
        async with site.client() as client:
            ready = (await client.get("/ready")).json()
            metrics = (await client.get("/metrics")).text

    assert (ready["status"], ready["bus"]) == ("ok", None)
    assert "hookline_bus" not in metrics
