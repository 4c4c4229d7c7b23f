"""A shadow hook whose rate of denials changes raises one alert: once for a change, never for a handful of calls."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.delivery import Outbox
from hookline.errors import HookUsageError
from hookline.registry import AlertSettings, ExecutionLog, HookDefinition, Registry
from hookline.registry._policy_watch import SETTLE, compare_shares
from hookline.signals import DenialRateAlert, denial_rate_changed
from hookline.store import DeliveryLog, SqlStore
from hookline.webhooks import ControlAnswer, Envelope, Webhook
from tests.tables import for_each

from .scenes import FACTORIES, definition
from .test_logs import execution, ran, tell

pytestmark = pytest.mark.anyio

WINDOW = 600
START = 1_800_000_000 // WINDOW * WINDOW
"""The start of the first window of these tests, years ahead of the clock."""
SETTINGS = AlertSettings(window=WINDOW, webhook=Webhook(url="local://alerts"))


class Clock:
    """The clock of the database, as the watches of this process see it."""

    def __init__(self) -> None:
        self.now = float(START)

    def end_window(self, nth: int) -> None:
        """Go to the moment at which a window is compared with the one before."""
        self.now = float(START + (nth + 1) * WINDOW + SETTLE + 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    async def now(_: SqlStore) -> float:
        return clock.now

    monkeypatch.setattr(SqlStore, "now", now)
    return clock


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def log(store: SqlStore) -> AsyncIterator[ExecutionLog]:
    async with ExecutionLog(store) as log:
        yield log


@pytest.fixture
async def registry(store: SqlStore, clock: Clock) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[FACTORIES], alerts=SETTINGS) as registry:
        yield registry


@pytest.fixture
def alerts() -> Any:
    found: list[DenialRateAlert] = []

    def note(_: object, alert: DenialRateAlert) -> None:
        found.append(alert)

    with denial_rate_changed.connected_to(note):
        yield found


async def judge(log: ExecutionLog, hook: HookDefinition, window: int, *, count: int, denied: int) -> None:
    """Log what a revision of a shadow hook decided in a window."""
    at = (START + window * WINDOW + 60) * 10**9
    denial: dict[str, Any] = {"decision": "denied", "error": "no", "reason": "no"}
    for nth in range(count):
        run = execution(hook.id, "shadow", revision=hook.revision, **(denial if nth < denied else {}))
        tell(ran(run, time_unix_nano=at, tenant_id=hook.tenant_id))
    assert await log.flush()


async def test_a_rate_that_changes_raises_one_alert_with_the_figures(
    registry: Registry, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    made = await registry.create(definition(mode="shadow"))
    for window, denied in enumerate([20, 20, 60, 100, 100, 100]):  # the change falls into the middle of a window
        await judge(log, made, window, count=200, denied=denied)
        clock.end_window(window)
        await registry.check_policies()
        await registry.check_policies()

    [alert] = alerts
    assert (alert.definition_id, alert.revision, alert.until) == (made.id, made.revision, START + 3 * WINDOW)
    assert (alert.denied_before, alert.count_before, alert.denied, alert.count) == (20, 200, 60, 200)
    assert (alert.share_before, alert.share) == (0.1, 0.3)
    assert alert.p_value < 0.0001


async def test_each_change_raises_its_alert(
    registry: Registry, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    made = await registry.create(definition(mode="shadow"))
    for window, denied in enumerate([20, 20, 100, 100, 100, 20, 20, 20]):
        await judge(log, made, window, count=200, denied=denied)
        clock.end_window(window)
        await registry.check_policies()

    assert [(each.denied_before, each.denied) for each in alerts] == [(20, 100), (100, 20)]


async def test_a_handful_of_calls_raises_none(
    registry: Registry, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    made = await registry.create(definition(mode="shadow"))
    for window, (count, denied) in enumerate([(99, 0), (99, 99), (200, 0), (99, 99), (0, 0), (99, 99)]):
        await judge(log, made, window, count=count, denied=denied)
        clock.end_window(window)
        await registry.check_policies()

    assert alerts == []


async def test_a_change_of_the_definition_is_no_change_of_its_rate(
    registry: Registry, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    made = await registry.create(definition(mode="shadow"))
    await judge(log, made, 0, count=200, denied=0)
    changed = await registry.update(made.id, {"config": {"reason": "another"}})
    await judge(log, changed, 1, count=200, denied=200)
    clock.end_window(1)

    await registry.check_policies()

    assert alerts == []


async def test_hooks_are_compared_one_by_one(
    registry: Registry, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    calm = await registry.create(definition(id="calm", name="calm", mode="shadow"))
    wild = await registry.create(definition(id="wild", name="wild", tenant_id="acme", mode="shadow"))
    for window, denied in enumerate([20, 120]):
        await judge(log, calm, window, count=200, denied=40)
        await judge(log, wild, window, count=200, denied=denied)
    clock.end_window(1)

    await registry.check_policies()

    assert [(each.definition_id, each.tenant_id) for each in alerts] == [("wild", "acme")]


async def test_a_change_raises_one_alert_in_all_processes_together(
    database_url: str, registry: Registry, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    made = await registry.create(definition(mode="shadow"))
    for window, denied in enumerate([20, 120]):
        await judge(log, made, window, count=200, denied=denied)
    clock.end_window(1)

    async with SqlStore(database_url) as second, Registry(second, modules=[FACTORIES], alerts=SETTINGS) as other:
        for _ in range(2):
            await asyncio.gather(registry.check_policies(), other.check_policies())
        deliveries = (await DeliveryLog(second).page()).items

    assert len(alerts) == 1
    assert [each.type for each in deliveries] == ["denialRateChanged"]


async def test_a_clock_that_jumps_back_repeats_no_alert(
    registry: Registry, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    made = await registry.create(definition(mode="shadow"))
    for window, denied in enumerate([20, 20, 120]):
        await judge(log, made, window, count=200, denied=denied)
    for window in (2, 1, 2, 1, 2):
        clock.end_window(window)
        await registry.check_policies()

    assert len(alerts) == 1


async def test_an_alert_is_delivered_signed_by_the_process_that_has_an_address(
    database_url: str, store: SqlStore, log: ExecutionLog, clock: Clock, alerts: list[DenialRateAlert]
) -> None:
    received: list[dict[str, Any]] = []

    async def receive(envelope: Envelope) -> ControlAnswer | None:
        received.append(msgspec.json.decode(envelope.payload))
        return None

    async with Registry(store, modules=[FACTORIES], alerts=AlertSettings(window=WINDOW)) as without:
        made = await without.create(definition(mode="shadow"))
        for window, denied in enumerate([20, 120]):
            await judge(log, made, window, count=200, denied=denied)
        clock.end_window(1)
        await without.check_policies()
        async with (
            SqlStore(database_url) as second,
            Outbox(second) as outbox,
            outbox.serve("alerts", receive),
            Registry(second, modules=[FACTORIES], alerts=SETTINGS) as named,
        ):
            await named.check_policies()
            await named.check_policies()
            await outbox.idle()

    assert len(alerts) == 1
    [body] = received
    assert body["type"] == "denialRateChanged"
    assert msgspec.convert(body, DenialRateAlert) == alerts[0]


@for_each(
    "fields",
    [
        {"window": 0},
        {"window": 59},
        {"window": 90},
        {"window": -60},
        {"window": 21_660},
        {"window": 600.0},
        {"window": math.nan},
        {"minimum": 0},
        {"minimum": 2.5},
        {"minimum": True},
        {"significance": 0},
        {"significance": 1},
        {"significance": math.nan},
        {"significance": -0.1},
        {"least_change": 1},
        {"least_change": -0.1},
        {"least_change": math.nan},
        {"webhook": Webhook(url="ftp://a.example/")},
        {"webhook": Webhook(url="https://a.example/", control=True)},
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError, match=next(iter(fields))):
        AlertSettings(**fields)


# The test itself.


def exact(before: int, count_before: int, after: int, count_after: int) -> float:
    """Fisher's exact test by whole numbers."""
    hits, total = before + after, count_before + count_after
    ways = [math.comb(count_before, each) * math.comb(count_after, hits - each) for each in range(hits + 1)]
    return sum(each for each in ways if each <= ways[before]) / math.comb(total, hits)


shares = st.integers(1, 60).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count)))


@given(shares, shares)
def test_small_samples_are_compared_exactly(one: tuple[int, int], two: tuple[int, int]) -> None:
    assert compare_shares(*one, *two) == pytest.approx(exact(*one, *two), rel=1e-6)


@given(shares, shares)
def test_neither_the_order_nor_what_is_called_a_hit_matters(one: tuple[int, int], two: tuple[int, int]) -> None:
    found = compare_shares(*one, *two)
    misses = [(count - hits, count) for hits, count in (one, two)]

    assert 0 <= found <= 1
    assert compare_shares(*two, *one) == pytest.approx(found, rel=1e-6)
    assert compare_shares(*misses[0], *misses[1]) == pytest.approx(found, rel=1e-6)


def test_equal_shares_do_not_differ_and_no_samples_say_nothing() -> None:
    assert compare_shares(10, 100, 20, 200) == pytest.approx(1.0)
    assert compare_shares(0, 0, 5, 10) == 1.0
    assert compare_shares(0, 1000, 0, 1000) == compare_shares(10**9, 10**9, 10**9, 10**9) == 1.0


def test_huge_samples_are_compared_at_once() -> None:
    began = time.process_time()
    assert compare_shares(100_000_000, 10**9, 100_500_000, 10**9) < 1e-6
    assert compare_shares(3, 10**9, 40, 10**9) < 1e-6
    assert time.process_time() - began < 5


@for_each("counts", [(-1, 2, 1, 2), (3, 2, 1, 2), (1, 2, 3, 2)])
def test_what_is_no_share_is_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="no shares"):
        compare_shares(*counts)


def draw(chance: random.Random, count: int, share: float, tries: int) -> list[int]:
    """Draw numbers of hits among `count` calls."""
    odds = [
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(each + 1)
            - math.lgamma(count - each + 1)
            + each * math.log(share)
            + (count - each) * math.log(1 - share)
        )
        for each in range(count + 1)
    ]
    return chance.choices(range(count + 1), weights=odds, k=tries)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("count", [100, 2000])
def test_a_rate_that_does_not_change_raises_false_alarms_at_most_as_often_as_stated(share: float, count: int) -> None:
    chance, level, tries = random.Random(25), 0.01, 10_000
    before, after = draw(chance, count, share, tries), draw(chance, count, share, tries)

    pairs = Counter(zip(before, after, strict=True))  # most are drawn many times
    alarms = sum(times for (one, two), times in pairs.items() if compare_shares(one, count, two, count) <= level)

    # 3 standard deviations above the level, for the chance of the simulation itself.
    assert alarms / tries <= level + 3 * math.sqrt(level * (1 - level) / tries)


def test_a_rate_that_doubles_is_found() -> None:
    chance, settings = random.Random(25), AlertSettings()
    before, after = draw(chance, 1000, 0.1, 500), draw(chance, 1000, 0.2, 500)

    found = [compare_shares(one, 1000, two, 1000) for one, two in zip(before, after, strict=True)]

    assert sum(each <= settings.significance for each in found) / 500 > 0.95
