"""Engines and buses that the contract accepts, and some with a fault that it must find."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager

import msgspec

from hookline.bus import CommittedEvents, NatsBus
from hookline.engines import DbosEngine, Segment, StoreEngine
from hookline.events import OnComplete, decode
from hookline.store import SqlStore, StoredOperation


def sound(store: SqlStore) -> StoreEngine:
    return StoreEngine(store)


def sound_dbos(store: SqlStore) -> DbosEngine:
    """Each process starts DBOS on the database that the test names."""
    return DbosEngine(store, os.environ["DBOS_ADDRESS"], queues={"hookline": {"polling_interval_sec": 0.1}})


class ServerBus(NatsBus):
    """Each process connects to the server that the test names."""

    def __init__(self) -> None:
        super().__init__(os.environ["NATS_ADDRESS"], prefix=os.environ["NATS_PREFIX"], partitions=3, ack_seconds=1.0)


class LosesCommits(ServerBus):
    """Says that it has kept the end of an operation, and has not."""

    async def tell(self, commit: CommittedEvents) -> None:
        last = decode(bytes(commit.events[-1]))
        if not isinstance(last, OnComplete) or last.reason != "done":
            await super().tell(commit)


class DisordersCommits(ServerBus):
    """Tells the first events of an operation after the second ones."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, CommittedEvents] = {}

    async def tell(self, commit: CommittedEvents) -> None:
        if commit.first == 1:
            self._held[commit.operation_id] = commit
            return
        await super().tell(commit)
        if (first := self._held.pop(commit.operation_id, None)) is not None:
            await super().tell(first)


class RenumbersCommits(ServerBus):
    """Tells the first events of an operation a second time, under other numbers."""

    async def tell(self, commit: CommittedEvents) -> None:
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


class LostBegin(FaultyEngine):
    """Never runs an operation that was begun."""

    def leaves_out(self, stored: StoredOperation) -> bool:
        return stored.steps == 0


class LostWake(FaultyEngine):
    """Never goes on with an operation that was woken after a pause."""

    def leaves_out(self, stored: StoredOperation) -> bool:
        return stored.status == "waiting_for_human"


class NoTakeover(FaultyEngine):
    """Never goes on with an operation whose process has died."""

    def leaves_out(self, stored: StoredOperation) -> bool:
        return stored.status == "running" and stored.owner is not None


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
        await self.store.commit(first, expected_version=state.version, entries=())
        await self.store.release(stored.operation_id)
