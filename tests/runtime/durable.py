"""A store that keeps what happened, in memory, and whose process can die at any of its writes."""

from collections.abc import Collection, Sequence

import msgspec

from hookline.errors import StaleStateError
from hookline.runtime import DurableStore, JournalEntry, ModelCallRecord, OperationState


class Died(BaseException):
    """The process is gone."""


class Disk:
    """What outlives processes: states as JSON, events by number."""

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        self.owners: dict[str, object] = {}
        self.events: dict[tuple[str, int], JournalEntry] = {}
        self.model_calls: dict[str, list[ModelCallRecord]] = {}

    def events_of(self, operation_id: str) -> list[dict[str, object]]:
        found = sorted((number, entry) for (owner, number), entry in self.events.items() if owner == operation_id)
        assert [number for number, _ in found] == list(range(1, len(found) + 1))
        return [msgspec.json.decode(entry.wire) for _, entry in found]

    def state(self, operation_id: str) -> OperationState:
        return msgspec.json.decode(self.states[operation_id], type=OperationState)


class DyingStore(DurableStore):
    """One process's view of the disk. It dies at its `dies_at`-th write, before or after that is on the disk."""

    def __init__(self, disk: Disk, *, dies_at: int | None = None, written: bool = False) -> None:
        self.disk, self.dies_at, self.written = disk, dies_at, written
        self.writes, self.dead = 0, False

    async def load(self, operation_id: str) -> OperationState | None:
        self._alive()
        return self.disk.state(operation_id) if operation_id in self.disk.states else None

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        self._alive()
        self.writes += 1
        if self.writes == self.dies_at and not self.written:
            self._die()
        known = await self.load(state.operation_id)
        found = known.version if known else None
        if found != expected_version:
            raise StaleStateError(state.operation_id, expected_version, found)
        self.disk.states[state.operation_id] = msgspec.json.encode(state)
        self.disk.owners[state.operation_id] = self if state.status == "running" else None
        for entry in entries:
            assert (state.operation_id, entry.number) not in self.disk.events, "an event was numbered twice"
            self.disk.events[state.operation_id, entry.number] = entry
        if self.writes == self.dies_at:
            self._die()

    async def append(
        self,
        state: OperationState,
        *,
        expected_version: int,
        entries: Sequence[JournalEntry],
        kept_messages: int,
        kept_outcomes: Collection[str],
        model_calls: Sequence[ModelCallRecord] = (),
    ) -> None:
        if known := await self.load(state.operation_id):
            outcomes = {name: (known if name in kept_outcomes else state).outcomes[name] for name in state.outcomes}
            messages = [*known.messages[:kept_messages], *state.messages[kept_messages:]]
            joined = msgspec.structs.replace(state, messages=messages, outcomes=outcomes)
            assert msgspec.json.encode(joined) == msgspec.json.encode(state), "what was said to be stored is not"
        await self.commit(state, expected_version=expected_version, entries=entries)
        self.disk.model_calls.setdefault(state.operation_id, []).extend(model_calls)

    async def orphaned(self, operation_id: str) -> bool:
        self._alive()
        if self.disk.state(operation_id).status != "running":
            return False
        owner = self.disk.owners[operation_id]
        return not isinstance(owner, DyingStore) or owner.dead

    async def release(self, operation_id: str) -> None:
        self._alive()
        if self.disk.owners.get(operation_id) is self:
            self.disk.owners[operation_id] = None

    async def children(self, operation_id: str) -> list[OperationState]:
        self._alive()
        states = [self.disk.state(name) for name in self.disk.states]
        return [state for state in states if state.parent_operation_id == operation_id and state.status == "running"]

    def _alive(self) -> None:
        if self.dead:
            raise Died

    def _die(self) -> None:
        self.dead = True
        raise Died
