"""A server and commands on a bus: what one process changes, the others notice over NATS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hookline.bus import BusUnavailableError, NatsBus
from hookline.registry import Registry
from hookline.server import Server
from hookline.store import SqlStore
from tests.cli.operated import run
from tests.nats_servers import NatsServer

pytestmark = pytest.mark.anyio

DEFINITION = {"id": "stop", "name": "stop", "point": "ToolCall.guard", "handler": "deny"}


async def test_a_server_opens_its_bus_and_hears_changes_of_another_process_over_it(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    bus = NatsBus(nats_server.url, prefix=nats_prefix, net=(3600.0, 3600.0))
    async with Server(url, port=0, bus=bus) as server:
        assert bus.is_connected
        woken = asyncio.Event()
        async with (
            server.store.wakeups.woken("definitions", woken.set),
            NatsBus(nats_server.url, prefix=nats_prefix) as other_bus,
            SqlStore(url, wakeups=other_bus) as store,
            Registry(store) as registry,
        ):
            woken.clear()
            await registry.create(DEFINITION)
            await asyncio.wait_for(woken.wait(), 30)
    assert not bus.is_connected


async def test_a_server_whose_bus_is_away_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(BusUnavailableError, match=r"nats://127\.0\.0\.1:9"):
        async with Server(f"sqlite:///{tmp_path / 'store.db'}", port=0, bus=NatsBus("nats://127.0.0.1:9")):
            pass


async def test_a_command_wakes_up_the_processes_of_its_store_over_the_bus(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    woken = asyncio.Event()
    async with NatsBus(nats_server.url, prefix=nats_prefix, net=(3600.0, 3600.0)) as bus:
        async with SqlStore(url, wakeups=bus) as store, Registry(store) as registry:
            await registry.create(DEFINITION)
        async with bus.woken("definitions", woken.set):
            woken.clear()
            environment = {"HOOKLINE_BUS": nats_server.url, "HOOKLINE_BUS_PREFIX": nats_prefix}
            done = await asyncio.to_thread(run, "hooks", "disable", "stop", url=url, **environment)
            assert done.exit_code == 0, done.stderr
            await asyncio.wait_for(woken.wait(), 30)


async def test_a_command_works_while_the_bus_is_away_and_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with SqlStore(url) as store, Registry(store) as registry:
        await registry.create(DEFINITION)
        done = await asyncio.to_thread(
            run, "hooks", "disable", "stop", url=url, HOOKLINE_BUS="nats://me:secret@127.0.0.1:9"
        )
        assert done.exit_code == 0, done.stderr
        assert "cannot be reached" in done.stderr
        assert "some seconds later" in done.stderr
        assert "secret" not in done.stderr
        assert not (await registry.get("stop")).enabled
