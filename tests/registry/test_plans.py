"""A plan says what storing definitions would change, and is carried out as it is or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from hookline.calls import ToolCall
from hookline.interceptors import Chain
from hookline.registry import DefinitionConflictError, DefinitionError, QuotaError, Registry
from hookline.registry._definition import read_definition
from hookline.registry._plans import make_plan
from hookline.store import SqlStore
from hookline.store._tables import audit
from tests.databases import on_sqlite

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store) as registry:
        yield registry


def hook(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "point": "ToolCall.guard", "handler": "deny", **fields}


@on_sqlite
async def test_a_plan_names_each_change_with_its_fields_and_changes_nothing(registry: Registry) -> None:
    await registry.apply([hook("same"), hook("changed", config={"reason": "no"}), hook("off"), hook("gone")])
    before = (await registry.list()).items

    plan = await registry.plan(
        [
            hook("new"),
            hook("changed", config={"reason": "never"}, priority=7),
            hook("same"),
            hook("off", enabled=False),
        ],
        prune=True,
    )

    assert [(each.action, each.definition.name) for each in plan.changes] == [
        ("delete", "gone"),
        ("create", "new"),
        ("update", "changed"),
        ("disable", "off"),
    ]
    assert {(each.field, each.old, each.new) for each in plan.changes[2].changes} == {
        ("priority", 100, 7),
        ("config.reason", "no", "never"),
    }
    assert (await registry.list()).items == before


@on_sqlite
async def test_a_plan_has_the_fields_of_a_rollout(registry: Registry) -> None:
    await registry.apply([hook("a", mode="shadow", percent=10)])

    plan = await registry.plan(
        [hook("a", percent=50, agents=["refund*"], operation_tags=["vip"], environments=["production"])]
    )

    (change,) = plan.changes
    assert {each.field: (each.old, each.new) for each in change.changes} == {
        "mode": ("shadow", "enforce"),
        "percent": (10, 50),
        "agents": ([], ["refund*"]),
        "operationTags": ([], ["vip"]),
        "environments": ([], ["production"]),
    }


async def test_a_plan_is_carried_out_as_it_was_shown(registry: Registry) -> None:
    await registry.apply([hook("a"), hook("b"), hook("gone")])
    plan = await registry.plan([hook("new"), hook("b", enabled=False), hook("a")], prune=True)

    stored = await registry.apply_plan(plan, actor="cli:ann", file="policies/hooks.toml")

    assert [each.id for each in stored] == [each.id for each in plan.definitions]
    assert {each.name: each.enabled for each in (await registry.list()).items} == {"a": True, "b": False, "new": True}
    assert [each.action for each in (await registry.revisions(stored[1].id)).items] == ["disable", "create"]


async def test_the_audit_says_who_and_which_file(registry: Registry, store: SqlStore) -> None:
    plan = await registry.plan([hook("a")])

    await registry.apply_plan(plan, actor="cli:ann", file="policies/hooks.toml")

    async with store.reading() as connection:
        (row,) = await connection.execute(select(audit.c.actor, audit.c.action, audit.c.detail))
    detail = row.detail if isinstance(row.detail, dict) else msgspec.json.decode(row.detail)
    assert (row.actor, row.action, detail["file"]) == ("cli:ann", "definition.create", "policies/hooks.toml")


async def test_a_definition_names_the_file_that_it_was_applied_from_until_it_is_changed_otherwise(
    registry: Registry, store: SqlStore
) -> None:
    long = "policies/" * 100 + "hooks.toml"
    [made] = await registry.apply_plan(await registry.plan([hook("a")]), file="policies/hooks.toml")
    [far] = await registry.apply_plan(await registry.plan([hook("b")]), file=long)
    [other] = await registry.apply_plan(await registry.plan([hook("c")]))

    assert (made.source, made.applied_file, made.is_stored) == (
        *("apply:policies/hooks.toml", "policies/hooks.toml"),
        True,
    )
    assert (len(far.source), far.applied_file) == (400, long[-394:])
    assert (other.source, other.applied_file) == ("api", "")
    async with Registry(store) as elsewhere:
        assert (await elsewhere.get(made.id)).source == made.source
        assert (await elsewhere.plan([hook("a")])).changes == []
    assert (await registry.update(made.id, {"priority": 3})).source == "api"
    again = await registry.apply_plan(await registry.plan([hook("a", priority=4)]), file="hooks.toml")
    assert again[0].source == "apply:hooks.toml"
    await registry.delete(made.id)
    assert {each.id for each in (await registry.list()).items} == {far.id, other.id}


async def test_a_second_plan_is_empty_and_makes_no_revision(registry: Registry) -> None:
    wanted = [hook("a", timeout=5, config={"reason": "no", "stop": False}), hook("b", tags=["x"], enabled=False)]
    first = await registry.apply_plan(await registry.plan(wanted, tenant_id="acme"))

    again = await registry.plan(wanted, tenant_id="acme", prune=True)

    assert again.changes == []
    assert await registry.apply_plan(again) == first
    assert [len((await registry.revisions(each.id, "acme")).items) for each in first] == [1, 1]


async def change(registry: Registry, definition_id: str) -> None:
    await registry.update(definition_id, {"priority": 3})


async def remove(registry: Registry, definition_id: str) -> None:
    await registry.delete(definition_id)


@pytest.mark.parametrize(("meanwhile", "word"), [(change, "changed"), (remove, "deleted")])
@pytest.mark.parametrize("named", [True, False], ids=["changed-by-the-plan", "kept-by-the-plan"])
@on_sqlite
async def test_a_plan_that_is_out_of_date_changes_nothing(
    registry: Registry, meanwhile: Any, word: str, named: bool
) -> None:
    (stored, _) = await registry.apply([hook("a", id="a"), hook("b", id="b")])
    plan = await registry.plan([hook("a", id="a", priority=5 if named else 100), hook("b", id="b", priority=6)])
    await meanwhile(registry, stored.id)
    before = (await registry.list()).items

    with pytest.raises(DefinitionConflictError, match=f"it was {word} since the plan was made, so nothing was stored"):
        await registry.apply_plan(plan)

    assert (await registry.list()).items == before


async def test_a_definition_that_a_pruning_plan_has_not_seen_is_not_deleted(registry: Registry) -> None:
    plan = await registry.plan([hook("a")], prune=True)
    await registry.create(hook("late"))

    with pytest.raises(DefinitionConflictError, match="it was created since the plan was made"):
        await registry.apply_plan(plan)

    assert [each.name for each in (await registry.list()).items] == ["late"]


async def test_of_two_who_apply_at_once_one_succeeds(database_url: str) -> None:
    async with (
        SqlStore(database_url) as one,
        SqlStore(database_url) as two,
        Registry(one) as first,
        Registry(two) as second,
    ):
        await first.apply([hook("a")])
        plans = [await each.plan([hook("a", priority=nth)]) for nth, each in enumerate((first, second))]

        outcomes = await asyncio.gather(
            *(each.apply_plan(plan) for each, plan in zip((first, second), plans, strict=True)), return_exceptions=True
        )

        assert sorted(type(each).__name__ for each in outcomes) == ["DefinitionConflictError", "list"]


@on_sqlite
async def test_what_cannot_be_stored_cannot_be_planned(store: SqlStore) -> None:
    async with Registry(store, quota=1) as registry:
        with pytest.raises(QuotaError):
            await registry.plan([hook("a"), hook("b")], tenant_id="acme")
        with pytest.raises(DefinitionError) as caught:
            await registry.plan([hook("a"), hook("a", point="nowhere")])
        await registry.create(hook("mine", id="taken"))
        with pytest.raises(DefinitionConflictError):
            await registry.plan([hook("b", id="taken")], tenant_id="acme")

    assert caught.value.path == "$[1].point"


async def test_stored_hooks_of_one_priority_run_in_the_order_of_the_list(registry: Registry) -> None:
    names = ["zeta", "alpha", "mu", "beta", "omega"]

    await registry.apply_plan(await registry.plan([hook(name) for name in names]))

    assert Chain(registry.hooks()).order(ToolCall) == [each.id for each in (await registry.list()).items]
    assert [each.name for each in (await registry.list()).items] == names


hooks = st.builds(
    lambda name, priority, enabled, reason: hook(name, priority=priority, enabled=enabled, config={"reason": reason}),
    st.sampled_from("abcdef"),
    st.sampled_from([10, 100]),
    st.booleans(),
    st.sampled_from(["no", "never"]),
)
unlike = st.lists(hooks, unique_by=lambda each: each["name"], max_size=5)


@settings(max_examples=200, deadline=None)
@given(stored=unlike, wanted=unlike, prune=st.booleans())
def test_carrying_out_a_plan_leaves_nothing_to_plan(
    stored: list[dict[str, Any]], wanted: list[dict[str, Any]], prune: bool
) -> None:
    own = {each["name"]: msgspec.structs.replace(read_definition(each), id=each["name"], revision=1) for each in stored}
    given_ = [read_definition(each) for each in wanted]

    plan = make_plan(given_, own, tenant_id="", prune=prune)
    for each in plan.changes:
        if each.action == "delete":
            del own[each.definition.id]
        else:
            assert each.revision == (own[each.definition.id].revision if each.definition.id in own else 0)
            own[each.definition.id] = msgspec.structs.replace(each.definition, revision=2)
    again = make_plan(given_, own, tenant_id="", prune=prune)

    assert again.changes == []
    assert {each["name"] for each in wanted} <= {each.name for each in own.values()}
    assert not prune or len(own) == len(wanted)
