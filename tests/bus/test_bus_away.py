"""A NATS server goes away in the middle of a run, and comes back: decisions fail as declared, observers hear all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hookline import (
    AfterToolCall,
    Agent,
    BeforeToolCall,
    HookDispatcher,
    Hooks,
    ModelCall,
    OnComplete,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.bus import NatsBus, heard_event_id, remote
from hookline.relay import Relay, relay_status, replay
from hookline.store import RelayStatus, SqlStore
from tests.cli.operated import run
from tests.nats_servers import NatsServer
from tests.server.site import Site

pytestmark = pytest.mark.anyio

PATIENCE = 100.0
HEARD = (BeforeToolCall, AfterToolCall, OnComplete)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def open_site(url: str) -> AsyncIterator[Site]:
    """A server on a database, whose start does not hold up the event loop: a transaction of the relay may be open."""
    site = Site(url)
    await asyncio.to_thread(site.__enter__)
    try:
        yield site
    finally:
        await asyncio.to_thread(site.__exit__, None, None, None)


class Payments:
    """An agent that pays three times; the server is away for the second payment.

    Args:
        server: The server.
        buses: The buses of the run and of the process that decides.
        empty: Whether the server comes back without its files.
    """

    def __init__(self, server: NatsServer, *buses: NatsBus, empty: bool = False) -> None:
        self.paid: list[int] = []
        self._server, self._buses, self._empty = server, buses, empty

        @tool
        async def pay(nth: int) -> str:
            """Pay."""
            self.paid.append(nth)
            return "paid"

        async def turn(call: ModelCall) -> ToolRequest | str:
            nth = sum(each.role == "tool" for each in call.messages) + 1
            if nth == 2:
                await self._lose_server()
            if nth == 3:
                await self._bring_server_back()
            return ToolRequest("pay", {"nth": nth}) if nth <= 3 else "done"

        self.agent = Agent(id="clerk", model=ScriptedModel(turn), tools=[pay])

    async def _lose_server(self) -> None:
        self._server.kill()
        async with asyncio.timeout(PATIENCE):
            while any(bus.is_connected for bus in self._buses):
                await asyncio.sleep(0.01)

    async def _bring_server_back(self) -> None:
        if self._empty:
            self._server.lose_files()
        await asyncio.to_thread(self._server.start)
        async with asyncio.timeout(PATIENCE):
            while not all(bus.is_connected for bus in self._buses):
                await asyncio.sleep(0.01)


class Ledger:
    """Decides about all calls, and notes the ids of the events that it observes."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.hooks = Hooks("ledger")
        self.hooks.guard(ToolCall)(lambda call: None)
        for event in HEARD:
            self.hooks.on(event)(self._note)  # type: ignore[type-var]

    async def _note(self, event: Any) -> None:
        self.heard.append(heard_event_id())

    async def wait_for(self, ids: list[str]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not set(ids) <= set(self.heard):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(("on_error", "paid"), [("closed", [1, 3]), ("open", [1, 2, 3])])
async def test_a_decision_fails_as_declared_and_the_observer_hears_all_afterwards(
    tmp_path: Path, server: NatsServer, on_error: Any, paid: list[int]
) -> None:
    ledger = Ledger()
    async with (
        NatsBus(server.url, partitions=2, ack_seconds=1.0) as bus,
        NatsBus(server.url, partitions=2, ack_seconds=1.0) as elsewhere,
        SqlStore(f"sqlite:///{tmp_path}/db") as store,
        Relay(store, bus),
        elsewhere.serve(ledger.hooks),
        HookDispatcher() as dispatcher,
    ):
        payments = Payments(server, bus, elsewhere)
        hooks = [
            remote("ledger", observes=True, bus=bus, calls=(ToolCall,), deadline=5.0, on_error=on_error),
        ]
        result = await exec_agent(payments.agent, "pay", hooks=hooks, store=store, dispatcher=dispatcher)
        wanted = [
            f"{result.operation_id}:{each.number}"
            for each in await store.events_of(result.operation_id)
            if each.type in {kind.hook_type for kind in HEARD}
        ]
        await ledger.wait_for(wanted)

    assert result.reason == "done"
    assert payments.paid == paid
    assert list(dict.fromkeys(ledger.heard)) == wanted


async def test_a_run_goes_on_when_the_server_comes_back_without_its_files(tmp_path: Path, server: NatsServer) -> None:
    ledger = Ledger()
    async with (
        NatsBus(server.url, partitions=2) as bus,
        NatsBus(server.url, partitions=2) as elsewhere,
        SqlStore(f"sqlite:///{tmp_path}/db") as store,
        Relay(store, bus),
        elsewhere.serve(ledger.hooks),
        HookDispatcher() as dispatcher,
    ):
        payments = Payments(server, bus, elsewhere, empty=True)
        hooks = [remote("ledger", observes=True, bus=bus, calls=(ToolCall,), deadline=5.0)]
        result = await exec_agent(payments.agent, "pay", hooks=hooks, store=store, dispatcher=dispatcher)
        [last] = [each for each in await store.events_of(result.operation_id) if each.type == "onComplete"]
        await ledger.wait_for([f"{result.operation_id}:{last.number}"])

    assert payments.paid == [1, 3]


async def test_what_the_bus_has_lost_is_said_and_replayed(
    tmp_path: Path, server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    def payer() -> Agent:
        return Agent(id="clerk", model=ScriptedModel([ToolRequest("pay"), "done"]), tools=[pay])

    ledger, url = Ledger(), f"sqlite:///{tmp_path}/db"
    ledger.hooks = Hooks("ledger")
    ledger.hooks.on(OnComplete)(ledger._note)
    hooks = [remote("ledger", observes=True)]

    async def wait_for(store: SqlStore, check: Callable[[RelayStatus], bool]) -> RelayStatus:
        async with asyncio.timeout(PATIENCE):
            while not check(status := await relay_status(store)):
                await asyncio.sleep(0.02)
        return status

    async with (
        NatsBus(server.url, partitions=2) as bus,
        SqlStore(url) as store,
        Relay(store, bus, lease_seconds=0.6),
    ):
        async with NatsBus(server.url, partitions=2) as elsewhere, elsewhere.serve(ledger.hooks):
            first = await exec_agent(payer(), "pay", hooks=hooks, store=store)
            await wait_for(store, lambda status: status.depths == {"ledger": 0})
        second = await exec_agent(payer(), "pay", hooks=hooks, store=store)
        await wait_for(store, lambda status: status.depths.get("ledger", 0) > 0)
        server.kill()
        server.lose_files()
        await asyncio.to_thread(server.start)

        lost = (await wait_for(store, lambda status: bool(status.lost))).lost
        assert set(lost) == {"ledger"}
        assert f"hookline relay replay ledger --since {lost['ledger']:.0f}" in caplog.text
        shown = await asyncio.to_thread(run, "relay", "status", url=url)
        assert f"hookline relay replay ledger --since {lost['ledger']:.0f}" in " ".join(shown.stdout.split())
        async with open_site(url) as site, site.client() as client:
            degraded = (await client.get("/ready")).json()
            assert await replay(store, "ledger", since=lost["ledger"]) > 0
            ready = (await client.get("/ready")).json()
        async with NatsBus(server.url, partitions=2) as elsewhere, elsewhere.serve(ledger.hooks):
            last = [(await store.events_of(each.operation_id))[-1] for each in (first, second)]
            await ledger.wait_for(
                [f"{each.operation_id}:{event.number}" for each, event in zip((first, second), last, strict=True)]
            )

    assert degraded["status"] == "degraded"
    assert "hookline relay status" in degraded["problems"][0]
    assert ready["problems"] == []
