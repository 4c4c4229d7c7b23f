"""Every bus keeps the contract, and the contract notices faults that real buses have had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hookline.bus import CommittedEvents, MemoryBus, NobodyServesError, Watcher
from hookline.bus._memory import _Progress, call_until_heard
from hookline.evals.bus_contract import BUS_CONTRACT, BusClause, BusContractError, check_bus_contract
from tests.nats_servers import NatsServer

from .stages import MemoryStage, NatsStage

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("clause", BUS_CONTRACT, ids=str)
async def test_a_bus_in_memory_keeps(clause: BusClause) -> None:
    await clause.check(MemoryStage())


@pytest.mark.parametrize("clause", BUS_CONTRACT, ids=str)
async def test_a_bus_over_nats_keeps(clause: BusClause, nats_server: NatsServer, nats_prefix: str) -> None:
    async with NatsStage(nats_server, nats_prefix) as stage:
        await clause.check(stage)


class ConfirmsAll(MemoryBus):
    """Two processes fetch from one queue, and what one confirms also confirms what the other had fetched before."""

    async def _hear_queue(self, nth: int, progress: Any, handler: Any) -> None:
        fetched = progress.__dict__.setdefault("fetched", {})
        queue = self._shared.queues[nth]
        while True:
            told = self._shared.told
            while (at := fetched.get(nth, 0)) < len(queue):
                fetched[nth] = at + 1
                try:
                    await handler(queue[at])
                except asyncio.CancelledError:
                    if progress.heard[nth] <= at:
                        fetched[nth] = at
                    raise
                progress.heard[nth] = max(progress.heard[nth], at + 1)
            await told.wait()


class KeepsTwice(MemoryBus):
    """A commit that is told again is another one."""

    def _is_known(self, commit: CommittedEvents) -> bool:
        return False


class NeverGivesUp(MemoryBus):
    """A question has no deadline."""

    async def ask(self, name: str, question: bytes, *, deadline: float) -> bytes:
        return await super().ask(name, question, deadline=3600)


class DropsUnheard(MemoryBus):
    """What wakes nobody is dropped."""

    async def tell(self, commit: CommittedEvents) -> None:
        if any(bus._hearing for bus in self._shared.buses):
            await super().tell(commit)


class HearsLatestFirst(MemoryBus):
    """The commits that wait are heard from the latest to the earliest."""

    async def _hear_next(self, queue: list[CommittedEvents], nth: int, progress: _Progress, handler: Any) -> None:
        waiting = queue[progress.heard[nth] :]
        for commit in reversed(waiting):
            await call_until_heard(handler, commit)
        progress.heard[nth] += len(waiting)


class MissesPresentValues(MemoryBus):
    """A watcher is called only with what changes later."""

    @asynccontextmanager
    async def watch(self, prefix: str, call: Watcher) -> AsyncIterator[None]:
        entered: list[bool] = []
        async with super().watch(prefix, lambda key, value: call(key, value) if entered else None):
            entered.append(True)
            yield


class KeepsExpiredValues(MemoryBus):
    """A value stays when the process that should put it again is gone."""

    async def put(self, key: str, value: bytes, *, seconds: float | None = None) -> None:
        await super().put(key, value)


FAULTS = {
    ConfirmsAll: "what a killed process was hearing is heard by another",
    KeepsTwice: "a commit that is told again is heard once",
    NeverGivesUp: "a question ends at its deadline",
    DropsUnheard: "what was told while nobody listened is heard",
    HearsLatestFirst: "commits of an operation are heard in order",
    MissesPresentValues: "a watcher sees the values and each change in order",
    KeepsExpiredValues: "a value expires unless it is put again",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_the_contract_notices(fault: type[MemoryBus]) -> None:
    [clause] = [each for each in BUS_CONTRACT if each.name == FAULTS[fault]]

    with pytest.raises(BusContractError):
        await clause.check(MemoryStage(fault, patience=1.0))


async def test_a_broken_clause_is_named() -> None:
    with pytest.raises(BusContractError) as caught:
        await check_bus_contract(lambda: MemoryStage(KeepsTwice, patience=30.0))

    assert caught.value.__notes__ == ["This is the clause 'a commit that is told again is heard once' of the contract."]


async def test_a_killed_process_serves_nobody_any_more() -> None:
    bus = MemoryBus()
    other = bus.peer()
    async with other.answer("guard", lambda question: asyncio.sleep(0, question)):
        other.kill()
        with pytest.raises(NobodyServesError, match="'guard'"):
            await bus.ask("guard", b"?", deadline=10)
