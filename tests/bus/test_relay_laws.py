"""Whatever order of commits, kills and failures of the bus: each name hears each event, in order, at least once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from hookline import BeforeStep, Hooks
from hookline.bus import BusUnavailableError, CommittedEvents, MemoryBus, heard_event_id, serve
from hookline.events import encode
from hookline.hooks import HookType
from hookline.relay import Relay, list_dead_letters, relay_status, replay, retry_dead_letters
from hookline.runtime import JournalEntry, OperationState, RemoteHearer
from hookline.store import SqlStore
from hookline.store._partitions import today
from hookline.store._tables import events, relay_queue
from tests.databases import *  # noqa: F403

pytestmark = pytest.mark.anyio

PATIENCE = 60.0
NAMES = ("ledger", "audit")


class BrokenBus(MemoryBus):
    """A bus that fails or forgets as it is told, and keeps nothing in mind of what it was told before.

    Attributes:
        plan: For each commit, whether it is kept, whether the failure comes before or after that.
    """

    plan: Any = itertools.repeat("kept")

    def _is_known(self, commit: CommittedEvents) -> bool:
        return False

    async def tell(self, commit: CommittedEvents) -> None:
        how = next(self.plan, "kept")
        if how == "away":
            raise BusUnavailableError("memory", "it is away")
        await super().tell(commit)
        if how == "answer lost":
            raise BusUnavailableError("memory", "its answer was lost")


async def commit(store: SqlStore, operation_id: str, first: int, last: int, version: int) -> None:
    """Store events of an operation that two names hear."""
    state = OperationState(
        operation_id=operation_id,
        agent_id="a",
        hearers=[RemoteHearer(name=name) for name in NAMES],
        events=last,
        version=version,
    )
    await store.commit(
        state, expected_version=None if version == 1 else version - 1, entries=entries(operation_id, first, last)
    )


def entries(operation_id: str, first: int, last: int) -> list[JournalEntry]:
    return [
        JournalEntry(
            number=number,
            type=HookType.BEFORE_STEP,
            time_unix_nano=number,
            wire=encode(BeforeStep(operation_id=operation_id, step_index=number)),
        )
        for number in range(first, last + 1)
    ]


@asynccontextmanager
async def hearing(bus: MemoryBus, name: str, heard: list[str]) -> AsyncIterator[None]:
    hooks = Hooks(name)

    @hooks.on(BeforeStep)
    async def note(event: BeforeStep) -> None:
        await asyncio.sleep(0)
        heard.append(heard_event_id())

    async with serve(bus, hooks):
        yield


async def wait_until(check: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await check():
            await asyncio.sleep(0.01)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(["a", "b", "c"]), st.integers(1, 4)),
        st.tuples(st.just("kill the relay"), st.booleans(), st.just(0)),
        st.tuples(st.just("kill a consumer"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("pause"), st.just(""), st.just(0)),
    ),
    min_size=1,
    max_size=15,
)


@pytest.mark.hypothesis
@settings(max_examples=15, deadline=None)
@given(steps=STEPS, plan=st.lists(st.sampled_from(["kept", "away", "answer lost"]), max_size=12))
def test_each_name_hears_each_event_in_order_at_least_once(steps: list[Any], plan: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookline.relay._relay.LONGEST_PAUSE", 0.05)  # a bus may be away twelve times
        asyncio.run(play(steps, plan))


class Killed(Relay):
    """A relay that can be killed after it has told commits and before it confirms them."""

    dies = False

    async def _confirm(self, told: Any) -> None:
        if self.dies:
            await asyncio.Event().wait()
        await super()._confirm(told)

    async def kill(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])


async def play(steps: list[Any], plan: list[str]) -> None:
    bus, versions, numbers = BrokenBus(), dict[str, int](), dict[str, int]()
    BrokenBus.plan = iter(plan)
    heard: dict[str, list[str]] = {name: [] for name in NAMES}
    async with SqlStore("sqlite:///:memory:") as store:
        relay = await Killed(store, bus, lease_seconds=0.05).__aenter__()
        members: dict[str, tuple[MemoryBus, Any]] = {}

        async def join(name: str) -> None:
            peer = bus.peer()
            context = hearing(peer, name, heard[name])
            await context.__aenter__()
            members[name] = (peer, context)

        for name in NAMES:
            await join(name)
        for kind, what, count in steps:
            if kind == "commit":
                versions[what] = versions.get(what, 0) + 1
                first = numbers.get(what, 0) + 1
                numbers[what] = first + count - 1
                await commit(store, what, first, numbers[what], versions[what])
            elif kind == "kill the relay":
                relay.dies = what
                await asyncio.sleep(0.02 if what else 0)
                await relay.kill()
                relay = await Killed(store, bus, lease_seconds=0.05).__aenter__()
            elif kind == "kill a consumer":
                members[what][0].kill()
                await join(what)
            else:
                await asyncio.sleep(0.02)
        expected = {f"{op}:{number}" for op, last in numbers.items() for number in range(1, last + 1)}

        async def is_done() -> bool:
            return all(expected <= set(each) for each in heard.values()) and (await relay_status(store)).waiting == 0

        await wait_until(is_done)
        await relay.__aexit__(None, None, None)
        for peer, _ in members.values():
            peer.kill()
    for each in heard.values():
        assert set(each) == expected
        for op in numbers:
            first_times = [int(one.partition(":")[2]) for one in dict.fromkeys(each) if one.startswith(f"{op}:")]
            assert first_times == sorted(first_times)


async def test_a_transaction_that_is_held_open_longer_than_later_ones_is_not_passed_over(postgresql_url: str) -> None:
    bus, heard = MemoryBus(), list[str]()
    async with (
        SqlStore(postgresql_url) as store,
        SqlStore(postgresql_url) as other,
        Relay(store, bus),
        hearing(bus, "ledger", heard),
    ):
        async with other.writing() as connection:
            # As a commit does: it takes the number of its row, and stays open.
            await commit_on(other, connection, "slow")
            await commit(store, "quick", 1, 2, 1)

            async def quick_is_heard() -> bool:
                return {"quick:1", "quick:2"} <= set(heard) and (await relay_status(store)).waiting == 0

            await wait_until(quick_is_heard)
            assert "slow:1" not in heard
        await commit(store, "later", 1, 1, 1)

        async def all_are_heard() -> bool:
            return {"slow:1", "later:1"} <= set(heard)

        await wait_until(all_are_heard)

    assert sorted(heard) == ["later:1", "quick:1", "quick:2", "slow:1"]


async def commit_on(store: SqlStore, connection: Any, operation_id: str) -> None:
    """Write a commit of one event in a transaction that stays open."""
    day = today(store.dialect)
    [entry] = entries(operation_id, 1, 1)
    row = {
        "operation_id": operation_id,
        "number": 1,
        "tenant_id": "",
        "type": str(entry.type),
        "time_unix_nano": 1,
        "wire": entry.wire,
        "day": day,
    }
    await connection.execute(insert(events), [row])
    queued = {"operation_id": operation_id, "first": 1, "number": 1, "tenant_id": "", "day": day}
    await connection.execute(
        insert(relay_queue).values(created_at=store.now_sql()), [{**queued, "hearers": '["ledger"]', "replay": ""}]
    )


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_both_databases_keep_dead_letters_replays_and_the_status(
    new_database_url: Callable[[str], str], dialect: str
) -> None:
    bus, hooks, heard = MemoryBus(), Hooks("ledger"), list[str]()
    broken = True

    @hooks.on(BeforeStep)
    async def note(event: BeforeStep) -> None:
        if broken and event.step_index == 2:
            raise ValueError("no")
        heard.append(heard_event_id())

    async def are_heard(ids: list[str]) -> bool:
        return len(heard) >= len(ids)

    async with SqlStore(new_database_url(dialect)) as store, Relay(store, bus), serve(bus, hooks, tries=1):
        await commit(store, "op", 1, 3, 1)
        await wait_until(lambda: are_heard(["op:1", "op:3"]))
        [letter] = await list_dead_letters(store, hearer="ledger", tenant_id="")
        assert (letter.operation_id, letter.number, letter.hook_id) == ("op", 2, "ledger.note")
        broken = False
        assert await retry_dead_letters(store, hearer="ledger") == 1
        await wait_until(lambda: are_heard(["op:1", "op:3", "op:2"]))
        assert heard == ["op:1", "op:3", "op:2"]
        assert await list_dead_letters(store) == []
        heard.clear()
        assert await replay(store, "ledger", since=0.0) == 3
        assert await replay(store, "ledger", operation_id="op", first=3) == 1
        await wait_until(lambda: are_heard(["op:1", "op:2", "op:3", "op:3"]))
        assert heard == ["op:1", "op:2", "op:3", "op:3"]

        async def nothing_waits() -> bool:
            return (await relay_status(store)).waiting == 0

        await wait_until(nothing_waits)
        status = await relay_status(store)
    assert status.told == 4
    assert status.told_at is not None
    assert status.problem is None


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
async def test_an_operation_with_commits_that_wait_is_not_pruned(
    new_database_url: Callable[[str], str], dialect: str
) -> None:
    async with SqlStore(new_database_url(dialect)) as store:
        state = OperationState(
            operation_id="op", agent_id="a", hearers=[RemoteHearer(name="x")], events=1, status="done"
        )
        await store.commit(state, expected_version=None, entries=entries("op", 1, 1))
        assert await store.prune(-10) == 0
        bus = MemoryBus()
        async with Relay(store, bus):

            async def nothing_waits() -> bool:
                return (await relay_status(store)).waiting == 0

            await wait_until(nothing_waits)
        assert await store.prune(-10) == 1
