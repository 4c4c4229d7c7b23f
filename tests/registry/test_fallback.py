"""A hook beyond its limits is put into shadow mode: once, by whichever process sees it, never against a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from hookline.registry import (
    FALLBACK_ACTOR,
    DefinitionError,
    DefinitionFileError,
    ExecutionLog,
    HookDefinition,
    Registry,
    ShadowLimits,
)
from hookline.registry._definition import read_definition
from hookline.registry._policy_watch import HookCounts, find_breach
from hookline.signals import FallbackAlert, fell_back_to_shadow
from hookline.store import SqlStore
from hookline.store._tables import audit
from tests.databases import on_sqlite
from tests.tables import for_each

from .scenes import FACTORIES, definition, pay
from .test_logs import execution, ran, tell

pytestmark = pytest.mark.anyio

DENIALS = {"denials": 0.2, "minimum": 10}


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def log(store: SqlStore) -> AsyncIterator[ExecutionLog]:
    async with ExecutionLog(store) as log:
        yield log


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[FACTORIES]) as registry:
        yield registry


@pytest.fixture
def alerts() -> Any:
    found: list[FallbackAlert] = []

    def note(_: object, alert: FallbackAlert) -> None:
        found.append(alert)

    with fell_back_to_shadow.connected_to(note):
        yield found


async def judge(log: ExecutionLog, hook: HookDefinition, *, ago: float = 0.0, **counts: int) -> None:
    """Log executions of a revision of a hook, as many of each status as `counts` says."""
    at = int((time.time() - ago) * 1e9)
    for status, count in counts.items():
        fields: dict[str, Any] = {"decision": "denied", "error": "no", "reason": "no"} if status == "denied" else {}
        runs = [execution(hook.id, status, revision=hook.revision, **fields) for _ in range(count)]
        tell(*(ran(each, time_unix_nano=at, tenant_id=hook.tenant_id) for each in runs))
    assert await log.flush()


async def test_a_hook_that_denies_too_much_goes_into_the_shadow_with_who_and_why(
    store: SqlStore, registry: Registry, log: ExecutionLog, alerts: list[FallbackAlert]
) -> None:
    made = await registry.create(definition(shadow_above=DENIALS))
    for _ in range(3):
        assert (await pay(registry.hooks())).denied is not None
    await judge(log, made, ok=7)

    await registry.check_policies()

    found = await registry.get(made.id)
    assert found.mode == "shadow"
    assert (await pay(registry.hooks())).denied is None
    [alert] = alerts
    assert (alert.cause, alert.denied, alert.count, alert.limit) == ("denials", 3, 10, 0.2)
    assert alert.revision == found.revision > made.revision
    [newest, _] = (await registry.revisions(made.id)).items
    assert (newest.action, newest.actor) == ("fallback", FALLBACK_ACTOR)
    assert [(each.field, each.old, each.new) for each in newest.changes] == [("mode", "enforce", "shadow")]
    async with store.reading() as connection:
        entries = (await connection.execute(select(audit).order_by(audit.c.seq.desc()).limit(1))).one()
    assert (entries.action, entries.actor, entries.target) == ("definition.fallback", FALLBACK_ACTOR, made.id)
    assert "30.00% of calls (3 of 10)" in msgspec.json.decode(entries.detail)["why"]


@on_sqlite
@for_each(
    "limits, counts, falls",
    [
        ({"denials": 0.2}, {"ok": 16, "denied": 4}, False),  # the limit itself is allowed
        ({"denials": 0.2}, {"ok": 15, "denied": 5}, True),
        ({"denials": 0.2}, {"denied": 19}, False),  # below the minimum of 20
        ({"denials": 0.2}, {"shadow": 30, "ok": 10, "denied": 9}, False),  # shadow executions do not count
        ({"denials": 0}, {"ok": 19}, False),
        ({"denials": 0}, {"ok": 19, "denied": 1}, True),
        ({"failures": 0.05}, {"ok": 19, "error": 1}, False),
        ({"failures": 0.05}, {"ok": 18, "error": 1, "timeout": 1}, True),
        ({"failures": 0.05}, {"ok": 10, "denied": 10}, False),
        ({"failures": 0.5, "denials": 0.2}, {"ok": 10, "error": 4, "denied": 6}, True),
        ({"denials": 0.2, "minimum": 1}, {"denied": 1}, True),
    ],
)
async def test_it_goes_by_the_limits_that_it_names(
    registry: Registry, log: ExecutionLog, limits: dict[str, Any], counts: dict[str, int], falls: bool
) -> None:
    made = await registry.create(definition(shadow_above=limits))
    await judge(log, made, **counts)

    await registry.check_policies()

    assert (await registry.get(made.id)).mode == ("shadow" if falls else "enforce")
    await registry.delete(made.id)


async def test_only_the_window_counts(registry: Registry, log: ExecutionLog) -> None:
    made = await registry.create(definition(shadow_above=DENIALS | {"window": 120}))
    await judge(log, made, ago=240, denied=50)

    await registry.check_policies()
    assert (await registry.get(made.id)).mode == "enforce"

    await judge(log, made, ago=60, denied=50)
    await registry.check_policies()
    assert (await registry.get(made.id)).mode == "shadow"


@on_sqlite
async def test_it_never_fights_a_person_who_enforces_the_hook_again(
    registry: Registry, log: ExecutionLog, alerts: list[FallbackAlert]
) -> None:
    made = await registry.create(definition(shadow_above=DENIALS))
    await judge(log, made, denied=50)
    await registry.check_policies()

    again = await registry.update(made.id, {"mode": "enforce"}, actor="ann")
    # Runs that began before go on with the revision that they began with.
    await judge(log, made, denied=50)
    await registry.check_policies()
    assert (await registry.get(made.id)).mode == "enforce"
    assert len(alerts) == 1

    await judge(log, again, denied=50)
    await registry.check_policies()
    assert (await registry.get(made.id)).mode == "shadow"
    assert len(alerts) == 2


async def test_what_several_processes_count_is_added_up_and_changed_once(
    database_url: str, registry: Registry, alerts: list[FallbackAlert]
) -> None:
    made = await registry.create(definition(shadow_above=DENIALS))
    async with SqlStore(database_url) as second, SqlStore(database_url) as third:
        for store in (second, third):
            async with ExecutionLog(store) as log:
                await judge(log, made, denied=6)
        async with Registry(second, modules=[FACTORIES]) as here, Registry(third, modules=[FACTORIES]) as there:
            processes = (registry, here, there)
            await asyncio.gather(*(each.check_policies() for each in processes))
            await asyncio.gather(*(each.check_policies() for each in processes))

            assert [(await each.get(made.id)).mode for each in processes] == ["shadow"] * 3
    assert [each.action for each in (await registry.revisions(made.id)).items] == ["fallback", "create"]
    assert len(alerts) == 1


async def test_a_change_of_a_person_at_the_same_time_is_kept(registry: Registry, log: ExecutionLog) -> None:
    made = await registry.create(definition(shadow_above=DENIALS))
    await judge(log, made, denied=50)

    changes = (registry.update(made.id, {"description": f"{nth}"}) for nth in range(3))
    await asyncio.gather(registry.check_policies(), *changes)

    found = (await registry.revisions(made.id)).items
    assert len({each.revision for each in found}) == len(found)
    assert (await registry.get(made.id)).description in {"0", "1", "2"}
    assert [each.action for each in found].count("fallback") <= 1
    for each in found:
        if each.action == "fallback":
            assert [change.field for change in each.changes] == ["mode"]


async def test_a_hook_of_a_tenant_counts_that_tenant_alone_and_one_of_the_system_all(
    registry: Registry, log: ExecutionLog
) -> None:
    own = await registry.create(definition(id="own", tenant_id="acme", shadow_above=DENIALS))
    system = await registry.create(definition(id="system", shadow_above=DENIALS))
    at = time.time_ns()
    for hook in (own, system):
        for tenant in ("other", "third"):
            denial = execution(hook.id, "denied", decision="denied", revision=hook.revision)
            tell(*[ran(denial, tenant_id=tenant, time_unix_nano=at)] * 5)
    await log.flush()

    await registry.check_policies()

    assert (await registry.get("own", "acme")).mode == "enforce"
    assert (await registry.get("system")).mode == "shadow"


@on_sqlite
async def test_a_disabled_hook_and_one_in_the_shadow_are_left_alone(registry: Registry, log: ExecutionLog) -> None:
    off = await registry.create(definition(id="off", name="off", shadow_above=DENIALS, enabled=False))
    shadow = await registry.create(definition(id="shadow", name="shadow", shadow_above=DENIALS, mode="shadow"))
    for hook in (off, shadow):
        await judge(log, hook, denied=50)

    await registry.check_policies()

    assert [each.action for each in (await registry.revisions("off")).items] == ["create"]
    assert [each.action for each in (await registry.revisions("shadow")).items] == ["create"]


@pytest.mark.parametrize("hours", [-30, 30])
@on_sqlite
async def test_a_clock_that_jumps_neither_repeats_nor_loses_a_fallback(
    registry: Registry, log: ExecutionLog, alerts: list[FallbackAlert], hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await registry.create(definition(shadow_above=DENIALS))
    await judge(log, made, denied=50)
    real = SqlStore.now

    async def jumped(store: SqlStore) -> float:
        return await real(store) + hours * 3600

    with monkeypatch.context() as patched:
        patched.setattr(SqlStore, "now", jumped)
        await registry.check_policies()
        await registry.check_policies()
        first = len(alerts)
    await registry.check_policies()

    # A clock in the past counts all calls of the revision; for one in the future, they are too old until it is back.
    assert first == (1 if hours < 0 else 0)
    assert len(alerts) == 1
    assert (await registry.get(made.id)).mode == "shadow"


@for_each(
    "limits, path",
    [
        ({}, "$.shadowAbove"),
        ({"failures": None, "denials": None}, "$.shadowAbove"),
        ({"denials": 1}, "$.shadowAbove.denials"),
        ({"denials": 1.5}, "$.shadowAbove.denials"),
        ({"denials": -0.1}, "$.shadowAbove.denials"),
        ({"denials": float("nan")}, "$.shadowAbove.denials"),
        ({"failures": float("inf")}, "$.shadowAbove.failures"),
        ({"failures": True}, "$.shadowAbove.failures"),
        ({"failures": "5 %"}, "$.shadowAbove.failures"),
        ({"failures": 0.1, "window": 0}, "$.shadowAbove.window"),
        ({"failures": 0.1, "window": 59}, "$.shadowAbove.window"),
        ({"failures": 0.1, "window": 86_401}, "$.shadowAbove.window"),
        ({"failures": 0.1, "window": float("nan")}, "$.shadowAbove.window"),
        ({"failures": 0.1, "minimum": 0}, "$.shadowAbove.minimum"),
        ({"failures": 0.1, "minimum": 2.5}, "$.shadowAbove.minimum"),
        ({"failures": 0.1, "rate": 1}, "$.shadowAbove.rate"),
    ],
)
def test_limits_that_mean_nothing_are_refused(limits: dict[str, Any], path: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        read_definition({"name": "a", "point": "ToolCall.guard", "handler": "deny", "shadow_above": limits})

    assert caught.value.path == path


@on_sqlite
async def test_an_observer_has_no_limits(registry: Registry) -> None:
    with pytest.raises(DefinitionError, match="only observes") as caught:
        await registry.create(definition(point="afterStep", handler="log", shadow_above=DENIALS))

    assert caught.value.path == "$.shadowAbove"


async def test_a_hook_in_a_file_has_no_limits_as_its_mode_stands_there(tmp_path: Any) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(
        '[[hooks]]\nname = "a"\npoint = "ToolCall.guard"\nhandler = "deny"\nshadow_above = { denials = 0.2 }\n'
    )

    with pytest.raises(DefinitionFileError, match="cannot change the mode of a hook in a file"):
        async with Registry(files=[file]):
            pass


@on_sqlite
async def test_limits_are_changed_and_removed_like_any_field(registry: Registry) -> None:
    made = await registry.create(definition(shadow_above=DENIALS))
    changed = await registry.update(made.id, {"shadowAbove": {"failures": 0.05, "window": 600}})
    removed = await registry.update(made.id, {"shadow_above": None})

    assert changed.shadow_above == ShadowLimits(failures=0.05, window=600)
    assert removed.shadow_above is None


@given(
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 50),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_a_limit_is_passed_by_more_of_the_same_and_never_below_the_minimum(
    limit: float, minimum: int, count: int, denied: int
) -> None:
    denied = min(denied, count)
    limits = ShadowLimits(denials=limit, minimum=minimum)

    found = find_breach(limits, HookCounts(count=count, denied=denied))

    assert (found is not None) == (count >= minimum and denied / max(count, 1) > limit)
    if found is not None and denied < count:
        assert find_breach(limits, HookCounts(count=count, denied=denied + 1)) == found
