"""Engines and buses that the contract accepts, and some with a fault that it must find."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from hookline.bus import CommittedEvents, NatsBus
from hookline.engines import DbosEngine, Segment, StoreEngine
from hookline.errors import StaleStateError
from hookline.events import OnComplete, decode
from hookline.store import SqlStore, StoredOperation

FAULT_FILE = "FAULT_FILE"
"""The environment variable that names a file with the present fault: processes are dear, and so serve several faults."""


def read_fault() -> str:
    return Path(os.environ[FAULT_FILE]).read_text()


def plant(fault: str) -> None:
    """Have all processes serve with a fault, or with none if it is empty."""
    file = Path(os.environ[FAULT_FILE])
    new = file.with_suffix(".new")
    new.write_text(fault)
    new.replace(file)  # nobody reads half of it


def sound(store: SqlStore) -> StoreEngine:
    return StoreEngine(store)


def sound_dbos(store: SqlStore) -> DbosEngine:
    """Each process starts DBOS on the database that the test names."""
    return DbosEngine(store, os.environ["DBOS_ADDRESS"], queues={"hookline": {"polling_interval_sec": 0.1}})


class ServerBus(NatsBus):
    """Each process connects to the server that the test names."""

    def __init__(self) -> None:
        super().__init__(os.environ["NATS_ADDRESS"], prefix=os.environ["NATS_PREFIX"], partitions=3, ack_seconds=1.0)


class FaultyBus(ServerBus):
    """Tells the events of each operation with the fault that the file says when its first ones are told."""

    def __init__(self) -> None:
        super().__init__()
        self._faults: dict[str, str] = {}
        self._held: dict[str, CommittedEvents] = {}

    async def tell(self, commit: CommittedEvents) -> None:
        match self._faults.setdefault(commit.operation_id, read_fault()):
            case "loses commits":
                await self._lose_the_end(commit)
            case "disorders commits":
                await self._swap_the_first(commit)
            case "renumbers commits":
                await self._repeat_the_first(commit)
            case _:
                await super().tell(commit)

    async def _lose_the_end(self, commit: CommittedEvents) -> None:
        """Say that the end of an operation is kept, although it is not."""
        last = decode(bytes(commit.events[-1]))
        if not isinstance(last, OnComplete) or last.reason != "done":
            await super().tell(commit)

    async def _swap_the_first(self, commit: CommittedEvents) -> None:
        """Tell the first events of an operation after the second ones."""
        if commit.first == 1:
            self._held[commit.operation_id] = commit
            return
        await super().tell(commit)
        if (first := self._held.pop(commit.operation_id, None)) is not None:
            await super().tell(first)

    async def _repeat_the_first(self, commit: CommittedEvents) -> None:
        """Tell the first events of an operation a second time, under other numbers."""
        await super().tell(commit)
        if commit.first == 1:
            await super().tell(msgspec.structs.replace(commit, number=commit.number + 1))


class FaultyEngine(StoreEngine):
    """Leaves out the segments of some operations."""

    def leaves_out(self, stored: StoredOperation) -> bool:
        return False

    async def prepare(self, stored: StoredOperation) -> None:
        pass

    def serve(
        self,
        agents: Collection[str],
        segment: Segment,
        *,
        concurrency: int,
        agent_versions: Collection[str] | None = None,
    ) -> AbstractAsyncContextManager[None]:
        async def faulty(operation_id: str) -> None:
            stored = await self.store.operation(operation_id)
            assert stored is not None
            if self.leaves_out(stored):
                await self.wake(operation_id, not_before=stored.updated_at + 3600)
                return
            await self.prepare(stored)
            await segment(operation_id)

        return super().serve(agents, faulty, concurrency=concurrency, agent_versions=agent_versions)


LEFT_OUT: dict[str, Callable[[StoredOperation], bool]] = {
    "never runs what was begun": lambda stored: stored.steps == 0,
    "never goes on after a pause": lambda stored: stored.status == "waiting_for_human",
    "never goes on after a kill": lambda stored: stored.status == "running" and stored.owner is not None,
}


class LeavesOut(FaultyEngine):
    """Leaves out the segments of the fault that the file says."""

    def leaves_out(self, stored: StoredOperation) -> bool:
        leaves_out = LEFT_OUT.get(read_fault())
        return leaves_out is not None and leaves_out(stored)


class Replay(FaultyEngine):
    """Runs an operation whose process has died from its beginning, as an engine does that replays code."""

    async def prepare(self, stored: StoredOperation) -> None:
        if stored.status != "running" or stored.owner is None:
            return
        state = await self.store.load(stored.operation_id)
        assert state is not None
        first = msgspec.structs.replace(
            state,
            messages=state.messages[:1],
            open_calls=[],
            outcomes={},
            call_indices={},
            steps=0,
            llm_calls=0,
            tool_calls=0,
            version=state.version + 1,
        )
        try:
            await self.store.commit(first, expected_version=state.version, entries=())
        except StaleStateError:  # two processes took it over, one after the lease of the other had lapsed
            return
        await self.store.release(stored.operation_id)
