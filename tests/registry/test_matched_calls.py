"""The calls that a hook is for are counted right, and what was read of them is kept for a while, once and not for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from fnmatch import fnmatchcase

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.registry import POINTS, CallMatches, HookDefinition
from hookline.registry._matched_calls import MOST_KEPT, SHOWN_CALLS, RecentCalls
from hookline.store import SqlStore
from tests.databases import on_sqlite

from .scenes import definition
from .test_revisions import commit_calls

pytestmark = pytest.mark.anyio

TOOLS = ("bank/pay", "bank/read", "mail/send", "mail/read", "web/x")
TENANTS = ("acme", "globex", "initech")


class Clock:
    """The clock of what is kept. Each look at it takes as long as `step`."""

    def __init__(self) -> None:
        self.now, self.step = 1000.0, 1.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class CountingStore(SqlStore):
    """A store that counts its readings."""

    readings = 0

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        self.readings += 1
        return super().reading()


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[CountingStore]:
    async with CountingStore(database_url) as store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("hookline.registry._matched_calls.monotonic", clock)
    return clock


async def test_counts_are_those_of_all_calls_whatever_the_hook_is_for(store: CountingStore) -> None:
    chance, now, made = random.Random(7), time.time_ns() - 10**12, []
    for nth in range(60):
        tenant, tools = chance.choice(TENANTS), chance.choices(TOOLS, k=chance.randrange(1, 6))
        await commit_calls(store, f"op{nth}", tenant, *tools, at=now + nth * 1000)
        made += [(tenant, tool, f"op{nth}") for tool in tools]
    recent = RecentCalls(store)

    for glob in (None, "bank/*", "*/read", "pay", "*a*/*", "nobody/*"):
        for excepted in ([], ["acme"], ["acme", "initech"], list(TENANTS)):
            for caller in (None, *TENANTS, "nobody"):
                system = definition(tool=glob, except_tenants=excepted)
                check(await recent.match(system, caller), system, [each for each in made if caller in (None, each[0])])
        for tenant in TENANTS:
            own = definition(tool=glob, tenant_id=tenant)
            for caller in (None, tenant):
                check(await recent.match(own, caller), own, [each for each in made if each[0] == tenant])


def check(found: CallMatches, wanted: HookDefinition, seen: list[tuple[str, str, str]]) -> None:
    glob = wanted.tool or "*"
    is_for = [tool for tool in TOOLS if fnmatchcase(tool if "/" in glob or glob == "*" else tool.split("/")[1], glob)]
    matched = [each for each in seen if each[1] in is_for and each[0] not in wanted.except_tenants]
    assert (found.looked_at, found.matched, found.is_complete) == (len(seen), len(matched), True)
    counts = Counter(tool for _, tool, _ in seen)
    assert {each.tool: (each.count, each.matches) for each in found.tools} == {
        tool: (count, tool in is_for) for tool, count in counts.items()
    }
    assert len(found.calls) == min(len(matched), SHOWN_CALLS)
    assert {(each.tenant_id, each.tool, each.operation_id) for each in found.calls} <= set(matched)
    assert [each.at for each in found.calls] == sorted((each.at for each in found.calls), reverse=True)


async def test_the_shown_calls_are_the_newest_ones_also_of_what_is_called_seldom(store: CountingStore) -> None:
    now = time.time_ns() - 10**12
    await commit_calls(store, "seldom", "acme", "bank/pay", at=now)
    await commit_calls(store, "often", "globex", *["bank/read"] * 200, at=now + 10**9)
    recent = RecentCalls(store)

    everything = await recent.match(definition(), None)
    seldom = await recent.match(definition(tool="bank/pay"), None)
    without = await recent.match(definition(except_tenants=["globex"]), None)

    assert {each.operation_id for each in everything.calls} == {"often"}
    assert max(each.at for each in everything.calls) == pytest.approx(now / 1e9 + 1, abs=1e-3)
    assert [each.operation_id for each in seldom.calls] == ["seldom"]
    assert [each.operation_id for each in without.calls] == ["seldom"]


@on_sqlite
async def test_what_was_read_is_kept_for_twenty_times_as_long_as_reading_took(
    store: CountingStore, clock: Clock
) -> None:
    recent, now = RecentCalls(store), time.time_ns() - 10**12
    await commit_calls(store, "first", "acme", "bank/pay", at=now)
    clock.step = 2.0
    assert (await recent.match(definition(), None)).matched == 1
    clock.step = 0.0
    await commit_calls(store, "second", "acme", "bank/pay", "bank/read", at=now)
    store.readings = 0

    clock.now += 39.9
    kept = [(await recent.match(definition(tool=tool), None)).matched for tool in (None, "pay", "read")]
    assert store.readings == 0
    clock.now += 0.2
    fresh = [(await recent.match(definition(tool=tool), None)).matched for tool in (None, "pay", "read")]

    assert kept == [1, 1, 0]
    assert fresh == [3, 2, 1]
    assert store.readings == 1


@on_sqlite
async def test_what_is_too_old_is_dropped_as_soon_as_anything_is_asked(store: CountingStore, clock: Clock) -> None:
    recent = RecentCalls(store)
    for tenant in TENANTS:
        await recent.match(definition(), tenant)
    assert len(recent._kept) == len(TENANTS)

    clock.now += 1000
    await recent.match(definition(point="ModelCall.guard"), "acme")

    assert list(recent._kept) == [("ModelCall.guard", "acme", False)]


@on_sqlite
async def test_many_tenants_and_points_do_not_fill_the_memory(store: CountingStore, clock: Clock) -> None:
    recent = RecentCalls(store)

    for nth in range(40):
        for point in list(POINTS)[:4]:
            clock.step *= 0.9  # so that none is too old before there are too many
            await recent.match(definition(point=point, handler="log"), f"tenant{nth}")
            assert len(recent._kept) <= MOST_KEPT

    assert len(recent._kept) == MOST_KEPT
    assert recent._locks == {}
    store.readings = 0
    await recent.match(definition(point=list(POINTS)[3], handler="log"), "tenant39")
    assert store.readings == 0


@on_sqlite
async def test_those_who_ask_at_once_share_one_reading(store: CountingStore, clock: Clock) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", at=time.time_ns() - 10**12)
    recent = RecentCalls(store)
    store.readings = 0

    found = await asyncio.gather(*(recent.match(definition(), tenant) for tenant in (None, "acme", "globex") * 10))

    assert [each.matched for each in found] == [1, 1, 0] * 10
    assert store.readings == 3
    assert recent._locks == {}


class SlowStore(CountingStore):
    """A store whose readings wait until they may begin."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.may_read, self.waits = asyncio.Event(), asyncio.Event()

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        self.readings += 1
        return self._read(super(CountingStore, self).reading())

    @asynccontextmanager
    async def _read(self, opened: AbstractAsyncContextManager[AsyncConnection]) -> AsyncIterator[AsyncConnection]:
        self.waits.set()
        await self.may_read.wait()
        async with opened as connection:
            yield connection


@on_sqlite
async def test_one_who_goes_away_leaves_the_answer_to_the_others(database_url: str, clock: Clock) -> None:
    async with SqlStore(database_url) as other:
        await commit_calls(other, "op", "acme", "bank/pay", at=time.time_ns() - 10**12)
    async with SlowStore(database_url) as store:
        recent = RecentCalls(store)
        first, second = (asyncio.create_task(recent.match(definition(), None)) for _ in range(2))
        await store.waits.wait()

        first.cancel()
        store.may_read.set()

        assert (await second).matched == 1
        assert first.cancelled() or first.cancelling()
    assert recent._locks == {}
