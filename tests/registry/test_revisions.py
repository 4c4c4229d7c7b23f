"""Every change of a definition is kept, can be taken back, and says who made it; orders and left-out tenants hold."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.events import AfterToolCall, BeforeToolCall, encode
from hookline.registry import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionNotFoundError,
    HookDefinition,
    QuotaError,
    Registry,
)
from hookline.registry._order import assign_priorities
from hookline.registry._revisions import KEPT_REVISIONS
from hookline.registry._snapshot import running_order
from hookline.runtime import JournalEntry, OperationState
from hookline.store import SqlStore, downgrade_store

from .scenes import definition, ids

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_every_change_is_a_revision_with_its_author_and_what_differs(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        made = await registry.create(definition(name="one", config={"reason": "No."}), actor="ann")
        await registry.update(made.id, {"config": {"reason": "Never."}, "priority": 7}, actor="bob")
        await registry.set_enabled(made.id, False, actor="cat")
        await registry.apply([definition(name="one", description="x")], actor="dan")
        await registry.delete(made.id, actor="eve")

        found = (await registry.revisions(made.id)).items
        first = await registry.revisions(made.id, limit=2)
        second = await registry.revisions(made.id, limit=2, cursor=first.cursor)

    assert [(each.action, each.actor) for each in found] == [
        ("delete", "eve"),
        ("update", "dan"),
        ("disable", "cat"),
        ("update", "bob"),
        ("create", "ann"),
    ]
    assert [(each.field, each.old, each.new) for each in found[3].changes] == [
        ("priority", 100, 7),
        ("config.reason", "No.", "Never."),
    ]
    assert found[0].changes == found[4].changes == []
    assert [*first.items, *second.items] == found[:4]


async def test_a_definition_goes_back_and_a_deleted_one_comes_back(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store, quota=1) as registry:
        made = await registry.create(definition(name="one", priority=5, tenant_id="acme"))
        await registry.update(made.id, {"priority": 6})
        with pytest.raises(DefinitionConflictError):
            await registry.revert(made.id, made.revision, if_revision=made.revision)
        with pytest.raises(DefinitionError, match="cannot be restored"):
            await registry.revert(made.id, 10**6)

        back = await registry.revert(made.id, made.revision, tenant_id="acme", actor="ann")
        await registry.delete(made.id)
        [gone] = (await registry.deleted("acme")).items
        other = await registry.create(definition(name="two", tenant_id="acme"))
        with pytest.raises(QuotaError):
            await registry.revert(made.id, gone.revision)
        await registry.delete(other.id)
        again = await registry.revert(made.id, gone.revision)

        assert (back.priority, again.priority, again.id) == (5, 5, made.id)
        assert [each.id for each in (await registry.deleted()).items] == [other.id]
        assert (await registry.revisions(made.id)).items[0].restored == gone.revision
        with pytest.raises(DefinitionNotFoundError):
            await registry.revisions(made.id, "globex")
        with pytest.raises(DefinitionNotFoundError):
            await registry.revert(made.id, gone.revision, tenant_id="globex")


async def test_the_newest_revisions_are_kept_and_a_change_that_fails_leaves_none(
    new_database_url: Callable[[str], str],
) -> None:
    async with SqlStore(new_database_url("sqlite")) as store, Registry(store) as registry:
        made = await registry.create(definition(name="one"))
        for nth in range(KEPT_REVISIONS + 5):
            await registry.update(made.id, {"priority": nth})
        with pytest.raises(DefinitionError):
            await registry.update(made.id, {"priority": 2000})

        found = (await registry.revisions(made.id, limit=1000)).items

    assert len(found) == KEPT_REVISIONS
    assert found[0].definition.priority == KEPT_REVISIONS + 4


async def test_what_was_stored_before_there_were_revisions_is_the_first_one(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        made = await registry.create(definition(name="one", except_tenants=["acme"]))
    await downgrade_store(database_url, "0007_partitions")

    async with SqlStore(database_url) as store, Registry(store) as registry:
        await registry.update(made.id, {"priority": 7}, actor="ann")
        found = (await registry.revisions(made.id)).items

    assert [(each.action, each.actor) for each in found] == [("update", "ann"), ("keep", "")]
    assert [each.field for each in found[0].changes] == ["priority"]
    assert found[1].definition.except_tenants == []


async def test_a_system_hook_leaves_out_the_tenants_that_it_names(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry, Registry(store) as elsewhere:
        made = await registry.create(definition(id="all", name="one", except_tenants=["acme"]))
        await registry.create(definition(id="own", name="two", tenant_id="acme"))
        await elsewhere.refresh()
        for each in (registry, elsewhere):
            assert ids(each.hooks("acme")) == ["own"]
            assert ids(each.hooks("globex")) == ids(each.hooks()) == ["all"]
        assert registry.tenants() == ["acme"]

        hook = registry.hooks("globex")[0]
        await registry.update(made.id, {"except_tenants": []})

        assert ids(registry.hooks("acme")) == ["all", "own"]
        handler = registry.hooks("globex")[0].interceptors[0].handler  # type: ignore[union-attr]
        assert handler is hook.interceptors[0].handler  # type: ignore[union-attr]
        with pytest.raises(DefinitionError, match="only a system hook"):
            await registry.update("own", {"except_tenants": ["globex"]})


async def test_an_order_is_stored_at_once_and_a_stale_one_is_refused(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        made = [await registry.create(definition(id=name, name=name)) for name in "abcd"]
        await registry.create(definition(id="else", name="e", point="ModelCall.guard"))
        seen = {each.id: each.revision for each in made}

        ordered = await registry.reorder("ToolCall.guard", ["d", "a", "b", "c"], if_revisions=seen, actor="ann")
        assert ids(registry.hooks())[:1] == ["d"]
        assert [each for each in ids(registry.hooks()) if each != "else"] == ["d", "a", "b", "c"]
        assert len({each.revision for each in ordered if each.revision not in seen.values()}) == 1
        for stale, revisions in ((["a", "b", "c", "d"], seen), (["a", "b", "c"], {}), (["a", "b", "c", "x"], {})):
            with pytest.raises(DefinitionConflictError):
                await registry.reorder("ToolCall.guard", stale, if_revisions=revisions)

        assert [each.action for each in (await registry.revisions("d")).items] == ["reorder", "create"]
        attempts = [registry.reorder("ToolCall.guard", random.sample("abcd", 4)) for _ in range(5)]
        orders = await asyncio.gather(*attempts)
        assert [each for each in ids(registry.hooks()) if each != "else"] in [[e.id for e in order] for order in orders]


PLACED = st.tuples(
    st.integers(0, 1000) | st.sampled_from([0, 100, 1000]), st.integers(0, 3), st.sampled_from(["api"] * 8 + ["f.toml"])
)


@given(st.lists(PLACED, max_size=8), st.randoms())
def test_whatever_order_is_wanted_the_priorities_give_it_or_it_is_refused(
    placed: list[tuple[int, int, str]], chance: random.Random
) -> None:
    wanted = [
        HookDefinition(
            id=f"h{nth}", name="h", point="onError", handler="log", priority=priority, created_at=at, source=source
        )
        for nth, (priority, at, source) in enumerate(placed)
    ]
    chance.shuffle(wanted)

    try:
        chosen = assign_priorities(wanted)
    except DefinitionError:
        assert any(each.source != "api" for each in wanted)
        return

    ordered = [msgspec.structs.replace(each, priority=chosen.get(each.id, each.priority)) for each in wanted]
    assert sorted(ordered, key=running_order) == ordered
    assert all(0 <= each.priority <= 1000 for each in ordered)
    assert not {each.id for each in wanted if each.source != "api"} & set(chosen)
    assert chosen == {} or sorted(wanted, key=running_order) != wanted


async def commit_calls(store: SqlStore, operation_id: str, tenant_id: str, *tools: str, at: int) -> None:
    rows: list[JournalEntry] = []
    for nth, tool in enumerate(tools):
        toolset, _, name = tool.partition("/")
        common: dict[str, Any] = {
            "operation_id": operation_id,
            "tenant_id": tenant_id,
            "agent_id": "agent",
            "time_unix_nano": at + nth,
            "toolset": toolset,
            "tool_name": name,
            "args": {"n": nth},
            "call_index": 1,
            "step_index": 0,
            "tool_call_id": f"c{nth}",
        }
        for event in (BeforeToolCall(**common), AfterToolCall(**common, content=f"got {nth}", success=True)):
            number, at_nano = len(rows) + 1, event.time_unix_nano
            rows.append(JournalEntry(number=number, type=event.hook_type, time_unix_nano=at_nano, wire=encode(event)))
    state = OperationState(
        operation_id=operation_id,
        agent_id="agent",
        tenant_id=tenant_id,
        status="done",
        version=1,
        events=len(rows),
        llm_calls=2,
    )
    await store.commit(state, expected_version=None, entries=rows)


async def test_the_calls_that_a_definition_is_for_are_counted_and_can_be_samples(database_url: str) -> None:
    now = time.time_ns()
    async with SqlStore(database_url) as store, Registry(store) as registry:
        await commit_calls(store, "new", "acme", "bank/pay", "bank/pay", "mail/send", at=now - 10**9)
        await commit_calls(store, "old", "acme", "bank/pay", at=now - 2 * 86_400 * 10**9)
        await commit_calls(store, "other", "globex", "bank/pay", at=now - 10**9)

        system = await registry.matches(definition(tool="bank/*", except_tenants=["globex"]))
        own = await registry.matches(definition(tool="pay", tenant_id="acme"))
        asking = definition(handler="require-approval", config={"tools": ["send"]})
        narrowed = await registry.matches(asking, tenant_id="acme")
        models = await registry.matches(definition(point="ModelCall.guard"), tenant_id="acme")
        requests = await registry.matches(definition(point="RequestCall.guard"))
        spoken = {"url": "https://a.example", "control": True, "dialect": "claude", "matcher": "mcp__mail__.*"}
        matched = await registry.matches({"name": "a", "point": "beforeToolCall", "webhook": spoken}, tenant_id="acme")
        call = own.calls[0]
        after = definition(point="ToolCall.after", handler="log")
        sample = await registry.stored_sample(after, call.operation_id, call.number, tenant_id="acme")
        tried = await registry.dry_run(after, sample)
        for operation_id, number, tenant in (
            ("other", 1, "acme"),
            ("new", 2, "acme"),
            ("new", 99, None),
            ("x", 1, None),
        ):
            with pytest.raises(DefinitionError):
                await registry.stored_sample(definition(), operation_id, number, tenant_id=tenant)

    assert (system.looked_at, system.matched, system.is_complete) == (4, 2, True)
    assert (own.looked_at, own.matched) == (3, 2)
    assert {each.tool: (each.count, each.matches) for each in own.tools} == {
        "bank/pay": (2, True),
        "mail/send": (1, False),
    }
    assert (narrowed.matched, narrowed.calls[0].tool) == (1, "mail/send")
    assert (matched.matched, matched.calls[0].tool) == (1, "mail/send")
    assert models.matched == 4
    assert not requests.counted
    assert (call.operation_id, call.number) == ("new", 3)
    assert (sample["apiName"], sample["args"], sample["result"]) == (
        "pay",
        {"n": 1},
        {"content": "got 1", "success": True},
    )
    assert tried.outcome == "passed"
