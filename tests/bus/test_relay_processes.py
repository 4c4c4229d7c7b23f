"""Observers that other processes serve, over a real NATS server, while these processes and the server are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from hookline import Agent, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.bus import CommittedEvents, NatsBus, remote
from hookline.relay import Relay, relay_status
from hookline.store import SqlStore
from tests.commands import Command
from tests.nats_servers import NatsServer

pytestmark = pytest.mark.anyio

PATIENCE = 100.0
OBSERVERS = """
import asyncio, os, sys
from hookline import AfterToolCall, Hooks
from hookline.bus import heard_event_id

hooks = Hooks("ledger")

@hooks.on(AfterToolCall)
async def book(event):
    with open("begun", "a") as file:
        file.write(heard_event_id() + "\\n")
    while os.path.exists("hold"):
        await asyncio.sleep(0.01)
    with open("booked", "a") as file:
        file.write(heard_event_id() + "\\n")
"""


@contextmanager
def serving(folder: Path, server: NatsServer, prefix: str) -> Iterator[Command]:
    (folder / "ledger.py").write_text(OBSERVERS)
    command = ["hooks", "serve", "ledger.py:hooks", "--bus", server.url, "--bus-prefix", prefix]
    with Command(*command, cwd=folder) as process:
        assert "hookline serves the hooks 'ledger'" in process.stdout.readline()
        yield process


async def lines(file: Path, count: int = 1) -> list[str]:
    """Return the lines of a file once it has so many different ones."""
    async with asyncio.timeout(PATIENCE):
        while not file.exists() or len(set(file.read_text().split())) < count:
            await asyncio.sleep(0.02)
    return file.read_text().split()


def payer() -> Agent:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    return Agent(id="payer", model=ScriptedModel([ToolRequest("pay", {"amount": 1}), "ok"]), tools=[pay])


async def test_a_process_that_is_stopped_finishes_its_event_and_the_next_one_does_not_hear_it_again(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str
) -> None:
    url = f"sqlite:///{tmp_path}/db"
    (tmp_path / "hold").touch()
    async with (
        NatsBus(nats_server.url, prefix=nats_prefix) as bus,
        SqlStore(url, wakeups=bus) as store,
        Relay(store, bus),
    ):
        with serving(tmp_path, nats_server, nats_prefix) as process:
            await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
            await lines(tmp_path / "begun")
            process.send_signal(signal.SIGTERM)
            (tmp_path / "hold").unlink()
            assert await asyncio.to_thread(process.wait, PATIENCE) == 128 + signal.SIGTERM
        first = await lines(tmp_path / "booked")
        # What the process has said last, the server takes note of a moment later. If the next commit was on its way when
        # the process stopped, the server waits for it, and others hear it then.
        stream = await bus._event_stream()
        with suppress(TimeoutError):
            async with asyncio.timeout(bus._ack_seconds):
                while any(each.num_ack_pending for each in await stream.consumers_info(bus._stream)):
                    await asyncio.sleep(0.02)
        with serving(tmp_path, nats_server, nats_prefix):
            await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
            await lines(tmp_path / "booked", 2)
            async with asyncio.timeout(PATIENCE):
                while (await bus.depths())["ledger"]:
                    await asyncio.sleep(0.05)
            booked = await lines(tmp_path / "booked", 2)

    assert len(first) == 1
    assert booked == list(dict.fromkeys(booked))


async def test_the_relay_is_a_process_that_another_one_follows_when_it_is_killed(
    tmp_path: Path, nats_server: NatsServer, nats_prefix: str
) -> None:
    url = f"sqlite:///{tmp_path}/db"
    command = ["relay", "run", "--store", url, "--bus", nats_server.url, "--bus-prefix", nats_prefix, "--lease", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOOKLINE")}
    with (
        Command(*command, cwd=tmp_path, environment=environment) as relay,
        serving(tmp_path, nats_server, nats_prefix),
    ):
        assert "hookline relays the events of" in relay.stdout.readline()
        async with NatsBus(nats_server.url, prefix=nats_prefix) as bus, SqlStore(url, wakeups=bus) as store:
            await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
            await lines(tmp_path / "booked")
            relay.kill()
            await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
            assert (await relay_status(store)).waiting > 0
            async with Relay(store, bus):
                booked = await lines(tmp_path / "booked", 2)

    assert booked == list(dict.fromkeys(booked))


async def test_commits_wait_while_the_server_is_away_and_are_told_when_it_is_back(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        url = f"sqlite:///{tmp_path}/db"
        async with NatsBus(server.url) as bus, SqlStore(url) as store, Relay(store, bus):
            with serving(tmp_path, server, "hookline"):
                await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
                await lines(tmp_path / "booked")
                server.kill()
                await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
                assert (await relay_status(store)).waiting > 0
                await asyncio.to_thread(server.start)
                await lines(tmp_path / "booked", 2)
    finally:
        server.kill()


async def test_commits_wait_while_the_stream_is_full(tmp_path: Path, nats_server: NatsServer, nats_prefix: str) -> None:
    async with (
        NatsBus(nats_server.url, prefix=nats_prefix) as bus,
        SqlStore(f"sqlite:///{tmp_path}/db") as store,
    ):
        first = CommittedEvents(operation_id="other", number=1, events=[msgspec.Raw(b"{}")])
        await bus.tell(first)
        jetstream = bus._client.jetstream()
        config = (await jetstream.stream_info(f"{nats_prefix}-events")).config
        config.max_msgs = 1
        await jetstream.update_stream(config)
        async with Relay(store, bus):
            await exec_agent(payer(), "pay", store=store, hooks=[remote("ledger", observes=True)])
            async with asyncio.timeout(PATIENCE):
                while "maximum messages exceeded" not in ((await relay_status(store)).problem or ""):
                    await asyncio.sleep(0.02)
            config.max_msgs = -1
            await jetstream.update_stream(config)
            async with asyncio.timeout(PATIENCE):
                while (await relay_status(store)).waiting:
                    await asyncio.sleep(0.02)
        assert (await relay_status(store)).problem is None
