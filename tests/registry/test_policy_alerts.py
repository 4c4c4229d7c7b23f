"""Alerts of policies are kept for all processes, listed newest first, and deleted when they are old."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hookline.errors import HookUsageError
from hookline.registry import ExecutionLog, HookDefinition, PolicyAlert, Registry
from hookline.registry._policy_alerts import write_alert
from hookline.signals import DenialRateAlert, FallbackAlert
from hookline.store import SqlStore

from .scenes import FACTORIES, definition
from .test_fallback import DENIALS, judge

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[FACTORIES]) as registry:
        yield registry


def rate_alert(hook_id: str = "a", tenant_id: str = "", revision: int = 1, until: int = 900) -> DenialRateAlert:
    figures: dict[str, Any] = {"denied_before": 10, "count_before": 100, "denied": 50, "count": 100, "p_value": 1e-9}
    return DenialRateAlert(
        definition_id=hook_id, name="A", tenant_id=tenant_id, revision=revision, window=900, until=until, **figures
    )


def fallback_alert(hook_id: str = "a", tenant_id: str = "", revision: int = 2) -> FallbackAlert:
    return FallbackAlert(
        definition_id=hook_id,
        name="A",
        tenant_id=tenant_id,
        revision=revision,
        cause="denials",
        limit=0.2,
        window=300,
        failed=0,
        denied=5,
        count=10,
        time=900,
    )


async def put(store: SqlStore, *alerts: DenialRateAlert | FallbackAlert, ago: float = 0.0) -> None:
    """Write alerts as if they had been raised some seconds ago."""
    now = time.time() - ago
    async with store.writing() as connection:
        for alert in alerts:
            assert await write_alert(connection, alert, until=getattr(alert, "until", int(now)), now=now)


def ids(found: list[PolicyAlert]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.alert.tenant_id, each.alert.definition_id) for each in found]


async def test_a_fallback_is_listed_with_its_figures_by_every_process(
    database_url: str, store: SqlStore, registry: Registry
) -> None:
    before = time.time()
    async with ExecutionLog(store) as log:
        made: HookDefinition = await registry.create(definition(shadow_above=DENIALS))
        await judge(log, made, ok=7, denied=3)
        await registry.check_policies()

    async with SqlStore(database_url) as second:
        [found] = (await Registry(second).alerts()).items
    assert (found.kind, found.alert.definition_id) == ("fallback", made.id)
    assert before - 5 <= found.created_at <= time.time() + 5
    assert (
        found.message
        == found.alert.describe()
        == ("It denied 30.00% of calls (3 of 10) within 300 s; the limit is 20.00%.")
    )
    assert dict(registry.raised_alerts) == {"fallback": 1, "rate": 0}


async def test_they_are_filtered_by_tenant_hook_and_time(store: SqlStore, registry: Registry) -> None:
    await put(store, rate_alert("a", "acme"), ago=3600)
    await put(store, rate_alert("a", "other"), fallback_alert("s"), ago=60)
    await put(store, fallback_alert("b", "acme"))

    assert ids((await registry.alerts("acme")).items) == [("fallback", "acme", "b"), ("rate", "acme", "a")]
    assert ids((await registry.alerts("")).items) == [("fallback", "", "s")]
    assert len((await registry.alerts()).items) == 4
    assert ids((await registry.alerts(hook_id="a", since=time.time() - 600)).items) == [("rate", "other", "a")]
    assert (await registry.alerts("acme", hook_id="s")).items == []
    for wrong in ({"limit": 0}, {"since": "now"}, {"cursor": "x"}):
        with pytest.raises(HookUsageError):
            await registry.alerts(**wrong)  # type: ignore[arg-type]


async def test_pages_have_every_alert_once_even_those_of_one_moment(store: SqlStore, registry: Registry) -> None:
    await put(store, *(rate_alert("a", "t", until=nth * 60) for nth in range(7)))
    await put(store, *(rate_alert(hook_id, "t", revision=5) for hook_id in "bcd"), ago=10)

    found: list[PolicyAlert] = []
    cursor = None
    while True:
        page = await registry.alerts("t", cursor=cursor, limit=3)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            break

    assert len(found) == len({(each.alert.definition_id, each.alert.until) for each in found}) == 10  # type: ignore[union-attr]
    assert sorted(found, key=lambda each: -each.created_at) == found


async def test_old_ones_are_deleted_with_the_log(store: SqlStore, registry: Registry) -> None:
    day = 86_400
    await put(store, rate_alert("new"))
    await put(store, rate_alert("month"), ago=29 * day)
    await put(store, rate_alert("old"), ago=31 * day)

    await ExecutionLog(store, retention_hours=24 * 60).prune()
    assert len((await registry.alerts()).items) == 3
    await ExecutionLog(store).prune()
    assert [each.alert.definition_id for each in (await registry.alerts()).items] == ["new", "month"]


async def test_a_registry_without_a_store_has_no_alerts() -> None:
    async with Registry() as registry:
        assert dict(registry.raised_alerts) == {"fallback": 0, "rate": 0}
        with pytest.raises(HookUsageError, match="no store"):
            await registry.alerts()
