"""What every store of budgets keeps to: the one in memory, and both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from sqlalchemy import update

from hookline import Agent, ScriptedModel, exec_agent
from hookline.budgets import Amounts, BudgetRequest, BudgetScope, BudgetStore, InMemoryBudgets
from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore
from hookline.store._tables import budget_reservations, budget_windows

from .scenes import request

pytestmark = pytest.mark.anyio

HOUR = 3600.0


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, new_database_url: Callable[[str], str]) -> AsyncIterator[BudgetStore]:
    if request.param == "memory":
        yield InMemoryBudgets()
        return
    async with SqlStore(new_database_url(request.param)) as store:
        yield store


async def end_leases(store: Any) -> None:
    """Let the leases of all reservations have ended, as if time had passed."""
    if isinstance(store, InMemoryBudgets):
        for each in store._reserved.values():
            each.lease_until = 0.0
        return
    async with store.writing() as connection:
        await connection.execute(update(budget_reservations).values(lease_until=0.0))


async def test_a_call_reserves_what_is_left_and_settles_for_what_it_took(store: BudgetStore) -> None:
    first = request(calls=6)
    reserved = await store.reserve_budget(first)
    refused = await store.reserve_budget(request(calls=5))
    settled = await store.settle_budget(first.id, Amounts(calls=2))
    following = await store.reserve_budget(request(calls=8))

    assert reserved.granted
    assert reserved.figures.reserved == Amounts(calls=6)
    assert not refused.granted
    assert refused.figures.reserved == Amounts(calls=6)
    assert settled is not None
    assert (settled.figures.used, settled.figures.reserved) == (Amounts(calls=2), Amounts())
    assert following.granted


async def test_a_call_that_alone_exceeds_the_limit_is_refused_and_leaves_nothing(store: BudgetStore) -> None:
    refused = await store.reserve_budget(request(calls=11))

    assert not refused.granted
    assert await store.budgets() == []


async def test_a_reservation_is_made_once_and_settled_once(store: BudgetStore) -> None:
    asked = request(calls=6)

    again = [await store.reserve_budget(asked) for _ in range(3)]
    settled = [await store.settle_budget(asked.id, Amounts(calls=1)) for _ in range(3)]

    assert [each.figures.reserved.calls for each in again] == [6, 6, 6]
    assert [each is None for each in settled] == [False, True, True]
    [figures] = await store.budgets()
    assert (figures.used.calls, figures.reserved.calls) == (1, 0)


async def test_a_reservation_that_ends_with_its_lease_counts_in_full_and_a_late_settlement_once(
    store: BudgetStore,
) -> None:
    asked = request(calls=6)
    await store.reserve_budget(asked)
    await end_leases(store)
    [ended] = await store.budgets()
    refused = await store.reserve_budget(request(calls=5))

    late = await store.settle_budget(asked.id, Amounts(calls=2))

    assert (ended.used.calls, ended.reserved.calls) == (6, 0)
    assert not refused.granted
    assert late is not None
    assert (late.figures.used.calls, late.figures.reserved.calls) == (2, 0)
    assert await store.settle_budget(asked.id, Amounts(calls=2)) is None


async def test_an_overrun_is_recorded_and_closes_the_window(store: BudgetStore) -> None:
    asked = request(calls=2)
    await store.reserve_budget(asked)

    settled = await store.settle_budget(asked.id, Amounts(calls=5))
    refused = await store.reserve_budget(request(calls=1))

    assert settled is not None
    assert settled.overrun == Amounts(calls=3)
    assert (settled.figures.used.calls, settled.figures.overrun.calls, settled.figures.closed) == (5, 3, True)
    assert not refused.granted
    assert refused.figures.closed


async def test_a_person_may_allow_a_call_beyond_the_limit_and_also_in_a_closed_window(store: BudgetStore) -> None:
    asked = request(calls=10)
    await store.reserve_budget(asked)
    await store.settle_budget(asked.id, Amounts(calls=11))

    allowed = await store.reserve_budget(request(calls=4, beyond=True))

    assert allowed.granted
    assert (allowed.figures.reserved.calls, allowed.figures.allowed.calls) == (4, 4)


async def test_a_window_warns_once(store: BudgetStore) -> None:
    answers = [await store.reserve_budget(request(calls=3, warn_at=0.6)) for _ in range(3)]

    assert [each.warns for each in answers] == [False, True, False]


async def test_a_reset_window_starts_again_but_for_the_calls_that_run(store: BudgetStore) -> None:
    ended, running, overrun = request(calls=2), request(calls=3), request(calls=1)
    await store.reserve_budget(ended)
    await end_leases(store)
    await store.reserve_budget(running)
    await store.reserve_budget(overrun)
    await store.settle_budget(overrun.id, Amounts(calls=4))
    [figures] = await store.budgets()

    before = await store.reset_budget(figures.id)

    assert before is not None
    assert (before.used.calls, before.closed) == (6, True)
    after = await store.budget_figures(figures.id)
    assert after is not None
    assert (after.used.calls, after.reserved.calls, after.overrun.calls, after.closed) == (0, 3, 0, False)
    assert await store.settle_budget(ended.id, Amounts(calls=2)) is None
    settled = await store.settle_budget(running.id, Amounts(calls=1))
    assert settled is not None
    assert (settled.figures.used.calls, settled.figures.reserved.calls) == (1, 0)
    assert await store.reset_budget("unknown") is None


async def test_tenants_and_keys_are_apart(store: BudgetStore) -> None:
    for tenant, key in (("a", "ann"), ("b", "ann"), ("a", "bob")):
        assert (await store.reserve_budget(request(calls=10, tenant=tenant, key=key))).granted

    assert [(each.scope.tenant_id, each.scope.key) for each in await store.budgets(tenant_id="a")] == [
        ("a", "bob"),
        ("a", "ann"),
    ]
    assert await store.budgets(budget_id="other") == []


async def test_a_request_for_nothing_only_reads(store: BudgetStore) -> None:
    read = await store.reserve_budget(request(calls=0))

    assert read.granted
    assert await store.budgets() == []


async def test_keys_of_any_text_are_kept(store: BudgetStore) -> None:
    for key in ("", "ä" * 2000, "a\0b", "x\ud800"):
        assert (await store.reserve_budget(request(calls=10, key=key))).granted
        assert not (await store.reserve_budget(request(calls=1, key=key))).granted


async def test_windows_that_ended_long_ago_are_pruned_and_those_that_still_count_are_kept(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        for window in ("1h", None):
            await store.reserve_budget(request(calls=1, window=window))
        async with store.writing() as connection:
            await connection.execute(update(budget_windows).values(updated_at=0.0))
            await connection.execute(
                update(budget_windows).where(budget_windows.c.window_kind == "1h").values(window_end=1.0)
            )

        await store.prune(3600)

        assert [each.window for each in await store.budgets()] == [None]


async def test_the_budget_of_an_operation_is_kept_while_the_operation_is_stored(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        for operation in ("stored", "gone"):
            scope = BudgetScope(budget_id="team", per="operation", key=operation)
            limits = Amounts(calls=5)
            asked = BudgetRequest(id=uuid4().hex, scope=scope, limits=limits, amounts=Amounts(calls=1))
            await store.reserve_budget(asked)
        await exec_agent(Agent(id="a", model=ScriptedModel([])), "hi", operation_id="stored", store=store)
        async with store.writing() as connection:
            await connection.execute(update(budget_windows).values(updated_at=0.0))

        await store.prune(3600)

        assert [each.scope.key for each in await store.budgets()] == ["stored"]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_clock_that_jumps_across_a_window_moves_no_call_to_another(
    database_url: str, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000 * HOUR + 1800

    async def read_clock(connection: object) -> float:
        return now

    monkeypatch.setattr("hookline.store._budgets.read_clock", read_clock)
    async with SqlStore(database_url) as store:
        asked = request(calls=6, window="1h")
        before = await store.reserve_budget(asked)
        now += jump
        elsewhere = await store.reserve_budget(request(calls=6, window="1h"))
        settled = await store.settle_budget(asked.id, Amounts(calls=5))
        now -= jump
        back = await store.reserve_budget(request(calls=6, window="1h"))

    assert (before.granted, elsewhere.granted, back.granted) == (True, True, False)
    assert settled is not None
    assert settled.figures.id == before.figures.id != elsewhere.figures.id
    assert (back.figures.used.calls, back.figures.reserved.calls) == (5, 0)


async def test_many_reservations_at_once_take_no_more_than_there_is(database_url: str) -> None:
    async with SqlStore(database_url) as store, SqlStore(database_url) as other:

        async def call(number: int) -> int:
            asked = request(calls=3, limits=100)
            mine = (store, other)[number % 2]
            if not (await mine.reserve_budget(asked)).granted:
                return 0
            await mine.settle_budget(asked.id, Amounts(calls=2))
            return 2

        used = sum(await asyncio.gather(*map(call, range(100))))

        [figures] = await store.budgets()
        assert used == figures.used.calls
        assert 66 <= used <= 100
        assert figures.reserved == Amounts()


async def test_a_store_that_is_closed_says_so(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        pass

    with pytest.raises(StoreUnavailableError):
        await store.reserve_budget(request(calls=1))


LIMITS = Amounts(nano_usd=1000, tokens=50, calls=20)
amounts = st.builds(Amounts, nano_usd=st.integers(0, 400), tokens=st.integers(0, 20), calls=st.integers(0, 6))


class BudgetLaw(RuleBasedStateMachine):
    """Whatever is reserved, settled, expired and reset in whatever order: no more is taken than was left."""

    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.make_store()
        self.used, self.overrun = Amounts(), Amounts()
        self.live: dict[str, Amounts] = {}
        self.ended: set[str] = set()
        self.closed = False

    def make_store(self) -> Any:
        return InMemoryBudgets()

    def teardown(self) -> None:
        self.runner.close()

    @property
    def taken(self) -> Amounts:
        return sum(self.live.values(), self.used)

    @rule(target=reservations, wanted=amounts, beyond=st.booleans())
    def reserve(self, wanted: Amounts, beyond: bool) -> str:
        scope = BudgetScope(budget_id="team", per="tenant")
        asked = BudgetRequest(id=uuid4().hex, scope=scope, limits=LIMITS, amounts=wanted, beyond=beyond)

        answer = self.runner.run(self.store.reserve_budget(asked))

        fits = not self.closed and (self.taken + wanted).fit(LIMITS)
        assert answer.granted == (fits or (beyond and bool(wanted)) or (not wanted and not self.closed))
        if answer.granted and wanted:
            self.live[asked.id] = wanted
        return asked.id

    @rule(reservation=reservations, used=st.none() | amounts)
    def settle(self, reservation: str, used: Amounts | None) -> None:
        settled = self.runner.run(self.store.settle_budget(reservation, used))

        assert (settled is None) == (reservation not in self.live)
        if settled is None:
            return
        reserved = self.live.pop(reservation)
        took = reserved if used is None else used
        overrun = took.beyond(reserved)
        self.ended.discard(reservation)
        self.used, self.overrun = self.used + took, self.overrun + overrun
        self.closed = self.closed or bool(overrun)

    @rule()
    def let_leases_end(self) -> None:
        self.runner.run(end_leases(self.store))
        self.ended |= set(self.live)

    @rule()
    def reset(self) -> None:
        for figures in self.runner.run(self.store.budgets()):
            self.runner.run(self.store.reset_budget(figures.id))
        for reservation in self.ended:
            self.live.pop(reservation)
        self.ended.clear()
        self.used = self.overrun = Amounts()
        self.closed = False

    @invariant()
    def no_more_is_taken_than_was_left(self) -> None:
        for figures in self.runner.run(self.store.budgets()):
            taken = figures.used + figures.reserved
            assert taken == self.taken
            assert figures.overrun == self.overrun
            assert figures.closed == self.closed
            assert figures.reserved == sum(
                (each for name, each in self.live.items() if name not in self.ended), Amounts()
            )
            assert (taken - figures.overrun - figures.allowed).fit(LIMITS)


class SqlBudgetLaw(BudgetLaw):
    def make_store(self) -> Any:
        store = SqlStore("sqlite:///:memory:")
        self.runner.run(store.__aenter__())
        return store

    def teardown(self) -> None:
        self.runner.run(self.store.aclose())
        super().teardown()


TestBudgetLaw = pytest.mark.hypothesis(BudgetLaw.TestCase)
TestBudgetLaw.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestSqlBudgetLaw = pytest.mark.hypothesis(SqlBudgetLaw.TestCase)
TestSqlBudgetLaw.settings = settings(max_examples=5, stateful_step_count=20, deadline=None)
