"""Definitions are stored, changed and switched while agents run, each tenant's for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select, update

from hookline import Agent, ModelResponse, OperationResult, ScriptedModel, ToolRequest, exec_agent
from hookline.calls import ToolCall
from hookline.delivery import KeyRing, generate_key
from hookline.errors import HookUsageError
from hookline.hooks import Hook, Hooks
from hookline.interceptors import Chain
from hookline.registry import (
    DefinitionConflictError,
    DefinitionError,
    DefinitionNotFoundError,
    HookDefinition,
    QuotaError,
    Registry,
)
from hookline.store import SqlStore
from hookline.store._tables import audit, definitions
from tests.databases import on_sqlite
from tests.tables import for_each

from .scenes import FACTORIES, PAY, definition, ids, pay

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[FACTORIES], quota=3) as registry:
        yield registry


async def audited(store: SqlStore) -> list[tuple[str, str, str, dict[str, Any]]]:
    async with store.reading() as connection:
        rows = await connection.execute(select(audit).order_by(audit.c.seq))
        return [(row.tenant_id, row.actor, row.action, msgspec.json.decode(row.detail)) for row in rows]


async def test_a_definition_gets_an_id_a_revision_and_times(registry: Registry) -> None:
    first = await registry.create(definition(name="one", config={"reason": "r"}))
    second = await registry.create({"name": "two", "point": "ToolCall.guard", "handler": "deny", "tenantId": "acme"})

    assert first.id.startswith("hook_")
    assert len(first.id) == 17
    assert (first.source, first.problem, first.created_at) == ("api", "", first.updated_at)
    assert 0 < first.revision < second.revision
    assert await registry.get(first.id) == first
    assert await registry.get(second.id, "acme") == second


@on_sqlite
async def test_hooks_of_the_system_run_for_every_tenant_and_before_those_of_the_tenant(registry: Registry) -> None:
    for tenant, name in (("acme", "theirs"), ("", "ours"), ("acme", "first"), ("other", "others")):
        await registry.create(
            definition(
                id=f"{name}-id", name=name, tenant_id=tenant, handler="log", priority=10 if name == "first" else 100
            )
        )

    assert ids(registry.hooks("acme")) == ["ours-id", "first-id", "theirs-id"]
    assert ids(registry.hooks("other")) == ["ours-id", "others-id"]
    assert ids(registry.hooks("unknown")) == ids(registry.hooks()) == ["ours-id"]
    order = Chain(registry.hooks("acme")).order(ToolCall, tenant_id="acme")
    assert order == ["ours-id", "first-id", "theirs-id"]


async def test_what_is_switched_off_is_not_in_the_next_run(registry: Registry) -> None:
    stored = await registry.create(definition(handler=f"{FACTORIES}:say"))
    running = registry.hooks()

    off = await registry.set_enabled(stored.id, False, actor="ann")

    assert (await pay(registry.hooks())).denied is None
    assert (await pay(running)).denied is not None
    assert off.revision > stored.revision
    await registry.set_enabled(stored.id, True)
    assert (await pay(registry.hooks())).denied is not None


async def test_every_change_takes_effect_in_the_next_run(registry: Registry) -> None:
    stored = await registry.create(definition(handler=f"{FACTORIES}:say", config={"text": "a"}))

    async def reason() -> tuple[str, str] | None:
        denied = (await pay(registry.hooks())).denied
        return None if denied is None else (denied.hook_id, denied.reason)

    assert await reason() == (stored.id, "a")
    await registry.update(stored.id, {"name": "renamed", "config": {"text": "b"}})
    assert await reason() == (stored.id, "b")
    await registry.update(stored.id, {"tool": "*/other"})
    assert await reason() is None
    await registry.update(stored.id, {"tool": None, "priority": 3, "point": "ToolCall.before"})
    assert await reason() == (stored.id, "b")
    bundle = registry.hooks()[0]
    assert isinstance(bundle, Hooks)
    assert (bundle.interceptors[0].kind, bundle.interceptors[0].priority) == ("before", 3)
    await registry.delete(stored.id)
    assert await reason() is None


@on_sqlite
async def test_what_a_hook_has_counted_survives_the_changes_of_others(registry: Registry) -> None:
    await registry.create(definition(handler=f"{FACTORIES}:counting", config={"most": 2}))
    other = await registry.create(definition(name="other", handler="log"))

    assert (await pay(registry.hooks())).denied is None
    await registry.update(other.id, {"description": "changed"})
    assert (await pay(registry.hooks())).denied is None
    await registry.delete(other.id)
    assert (await pay(registry.hooks())).denied is not None


@on_sqlite
async def test_an_update_is_checked_as_a_new_definition_is(registry: Registry) -> None:
    stored = await registry.create(definition(handler=f"{FACTORIES}:say"))

    for changed, code in (
        ({"timeout": -3}, "invalid"),
        ({"config": {"nothing": 1}}, "config_refused"),
        ({"handler": "os:system"}, "handler_not_allowed"),
        ({"point": "nowhere"}, "invalid"),
        ({"revision": 5}, "read_only"),
        ({"tenant_id": "acme"}, "read_only"),
        ({"source": "x"}, "read_only"),
        ({"id": "x"}, "read_only"),
        ({"createdAt": 5}, "read_only"),
        ({"unknown": 5}, "invalid"),
    ):
        with pytest.raises(DefinitionError) as refused:
            await registry.update(stored.id, changed)
        assert refused.value.code == code, changed

    assert await registry.get(stored.id) == stored


async def test_a_tenant_sees_its_own_and_the_systems_and_changes_only_its_own(registry: Registry) -> None:
    ours = await registry.create(definition(name="ours", handler="log"))
    theirs = await registry.create(definition(name="theirs", handler="log", tenant_id="acme"))
    others = await registry.create(definition(name="others", handler="log", tenant_id="other"))

    assert [each.name for each in (await registry.list("acme")).items] == ["ours", "theirs"]
    assert [each.name for each in (await registry.list()).items] == ["ours", "theirs", "others"]
    assert await registry.get(ours.id, "acme") == ours
    with pytest.raises(DefinitionNotFoundError):
        await registry.get(others.id, "acme")
    for seen, error in ((others, DefinitionNotFoundError), (ours, DefinitionError)):
        with pytest.raises(error):
            await registry.update(seen.id, {"name": "x"}, tenant_id="acme")
        with pytest.raises(error):
            await registry.set_enabled(seen.id, False, tenant_id="acme")
        with pytest.raises(error):
            await registry.delete(seen.id, tenant_id="acme")
    with pytest.raises(DefinitionNotFoundError):
        await registry.dry_run(others.id, {}, tenant_id="acme")
    assert (await registry.update(theirs.id, {"name": "mine"}, tenant_id="acme")).name == "mine"
    assert (await registry.update(theirs.id, {"name": "admins"})).tenant_id == "acme"
    assert await registry.get(others.id) == others


async def test_two_tenants_may_use_one_id_and_learn_nothing_of_each_other(registry: Registry) -> None:
    mine = await registry.create(definition(id="same", handler="log", tenant_id="acme"))
    other = await registry.create(definition(id="same", handler="log", tenant_id="other", description="other's"))

    assert await registry.get("same", "acme") == mine
    await registry.set_enabled("same", False, tenant_id="acme")
    assert await registry.get("same", "other") == other
    with pytest.raises(DefinitionConflictError, match="name the tenant"):
        await registry.get("same")
    with pytest.raises(DefinitionConflictError, match="several tenants"):
        await registry.delete("same")


async def test_an_id_or_a_name_that_is_taken_is_a_conflict(registry: Registry) -> None:
    await registry.create(definition(id="one", name="one", handler="log"))
    mine = await registry.create(definition(id="mine", name="one", handler="log", tenant_id="acme"))

    for taken in (
        definition(id="one", name="x", handler="log"),
        definition(id="one", name="x", handler="log", tenant_id="acme"),
        definition(id="mine", name="x", handler="log", tenant_id="acme"),
        definition(name="one", handler="log"),
        definition(name="one", handler="log", tenant_id="acme"),
    ):
        with pytest.raises(DefinitionConflictError):
            await registry.create(taken)
    await registry.create(definition(name="one", handler="log", point="ToolCall.before"))
    second = await registry.create(definition(name="two", handler="log", tenant_id="acme"))
    with pytest.raises(DefinitionConflictError, match="another name"):
        await registry.update(second.id, {"name": "one"})
    await registry.update(mine.id, {"name": "one"})


async def test_a_change_of_what_somebody_else_has_changed_is_refused(registry: Registry) -> None:
    first = await registry.create(definition(handler="log"))
    second = await registry.update(first.id, {"priority": 5}, if_revision=first.revision)

    for late in (
        registry.update(first.id, {"priority": 6}, if_revision=first.revision),
        registry.set_enabled(first.id, False, if_revision=first.revision),
        registry.delete(first.id, if_revision=first.revision),
    ):
        with pytest.raises(DefinitionConflictError) as refused:
            await late
        assert refused.value.revision == second.revision
    assert await registry.get(first.id) == second
    await registry.delete(first.id, if_revision=second.revision)


async def test_the_quota_is_each_tenants_own_and_the_system_has_none(registry: Registry) -> None:
    for number in range(5):
        await registry.create(definition(name=f"{number}", handler="log"))
    for tenant in ("acme", "other"):
        for number in range(3):
            await registry.create(definition(name=f"{number}", handler="log", tenant_id=tenant))
        with pytest.raises(QuotaError) as refused:
            await registry.create(definition(name="more", handler="log", tenant_id=tenant))
        assert (refused.value.tenant_id, refused.value.quota) == (tenant, 3)

    page = await registry.list("acme")
    await registry.delete(page.items[-1].id, tenant_id="acme")
    await registry.create(definition(name="more", handler="log", tenant_id="acme"))


async def test_of_two_that_reach_the_quota_at_the_same_time_one_is_refused(store: SqlStore, database_url: str) -> None:
    async with (
        SqlStore(database_url) as second,
        Registry(store, quota=5) as one,
        Registry(second, quota=5) as other,
    ):
        outcomes = await asyncio.gather(
            *(
                each.create(definition(name=f"{number}-{id(each)}", handler="log", tenant_id="acme"))
                for number in range(6)
                for each in (one, other)
            ),
            return_exceptions=True,
        )

        assert sum(isinstance(each, HookDefinition) for each in outcomes) == 5
        assert sum(isinstance(each, QuotaError) for each in outcomes) == 7
        await one.refresh()
        assert len((await one.list("acme")).items) == 5


async def test_many_definitions_are_stored_together_or_not_at_all(registry: Registry, store: SqlStore) -> None:
    kept = await registry.create(definition(id="kept", name="kept", handler="log", tenant_id="acme"))
    before = await audited(store)
    good = [{"name": f"{n}", "point": "afterStep", "handler": "log"} for n in range(2)]

    for bad, error in (
        ({"name": "bad", "point": "afterStep", "handler": "os:system"}, DefinitionError),
        ({"name": "bad", "point": "afterStep"}, DefinitionError),
        ({"name": "0", "point": "afterStep", "handler": "log"}, DefinitionConflictError),
        ({"name": "bad", "point": "afterStep", "handler": "log", "tenantId": "other"}, DefinitionError),
        ({"name": "fourth", "point": "afterStep", "handler": "log"}, QuotaError),
    ):
        with pytest.raises(error) as refused:
            await registry.apply([*good, bad], tenant_id="acme")
        if isinstance(refused.value, DefinitionError):
            assert refused.value.path.startswith("$[2]")

    assert (await registry.list("acme")).items == [kept]
    assert await audited(store) == before
    stored = await registry.apply(
        [*good, {"id": "kept", "name": "new name", "point": "afterStep", "handler": "log"}], tenant_id="acme"
    )
    assert [each.name for each in stored] == ["0", "1", "new name"]
    assert len({each.revision for each in stored}) == 1
    again = await registry.apply(stored[:2], tenant_id="acme", prune=True)
    assert again == stored[:2]
    assert {each.id for each in (await registry.list("acme")).items} == {each.id for each in stored[:2]}


async def test_names_may_be_exchanged_in_one_change(registry: Registry) -> None:
    one, two = [await registry.create(definition(name=name, handler="log")) for name in ("one", "two")]

    await registry.apply([msgspec.structs.replace(one, name="two"), msgspec.structs.replace(two, name="one")])

    assert [(await registry.get(each.id)).name for each in (one, two)] == ["two", "one"]


async def test_every_change_is_audited_without_what_may_be_secret(registry: Registry, store: SqlStore) -> None:
    stored = await registry.create(definition(name="n", config={"reason": "s3cret"}, tenant_id="acme"), actor="key:1")
    await registry.update(stored.id, {"config": {"reason": "s3cret2"}, "priority": 3}, actor="key:2")
    await registry.set_enabled(stored.id, False, actor="key:3")
    await registry.set_enabled(stored.id, True, actor="key:3")
    await registry.delete(stored.id, actor="key:4")

    rows = await audited(store)
    assert [row[:3] for row in rows] == [
        ("acme", "key:1", "definition.create"),
        ("acme", "key:2", "definition.update"),
        ("acme", "key:3", "definition.disable"),
        ("acme", "key:3", "definition.enable"),
        ("acme", "key:4", "definition.delete"),
    ]
    assert rows[1][3]["changed"] == ["priority", "config"]
    assert "s3cret" not in str(rows)


@on_sqlite
async def test_the_list_comes_in_parts_that_fit_together(registry: Registry) -> None:
    await registry.apply([definition(name=f"{number}", handler="log", enabled=number % 2 == 0) for number in range(25)])
    await registry.create(definition(name="theirs", handler="log", tenant_id="acme", point="afterStep"))

    seen: list[str] = []
    cursor = None
    for _ in range(4):
        page = await registry.list("acme", cursor=cursor, limit=8)
        seen.extend(each.id for each in page.items)
        cursor = page.cursor
    assert cursor is None
    assert len(seen) == len(set(seen)) == 26
    assert [each.name for each in (await registry.list("acme", point="afterStep")).items] == ["theirs"]
    half = await registry.list(enabled=False, limit=12)
    assert len(half.items) == 12
    assert half.cursor is None
    for wrong in ({"limit": 0}, {"limit": 1001}, {"limit": True}, {"cursor": "nonsense"}, {"cursor": "e30="}):
        with pytest.raises(HookUsageError):
            await registry.list(**wrong)


@on_sqlite
async def test_a_definition_is_found_by_words_of_what_people_call_it_and_of_what_it_runs(registry: Registry) -> None:
    wanted = definition(
        name="Refunds need a person",
        description="Everything above 100 EUR.",
        handler="deny",
        tool="shop/refund",
        tags=["money"],
    )
    await registry.apply([wanted, *(definition(name=f"{number}", handler="log") for number in range(5))])

    for text in ("REFUND person", "money", "shop/", "deny", "above 100", "refund money"):
        assert [each.name for each in (await registry.list(text=text)).items] == ["Refunds need a person"], text
        assert (await registry.list(text=f"{text} nowhere")).items == [], text
    assert len((await registry.list(text=" ")).items) == 6


@on_sqlite
async def test_a_webhook_becomes_a_hook_with_the_id_of_the_definition(registry: Registry) -> None:
    stored = await registry.create(
        definition(point="afterToolCall", webhook={"url": "https://a.example/x"}, tool="bank/*", tenant_id="acme")
    )

    hook = registry.hooks("acme")[0]

    assert isinstance(hook, Hook)
    assert (hook.id, hook.event.__name__, hook.tool) == (stored.id, "AfterToolCall", "bank/*")


@on_sqlite
@for_each(
    "webhook, path",
    [
        ({"url": "https://a.example", "headers": {"x": "${HOME}"}, "allowed_env_vars": ["HOME"]}, "allowedEnvVars"),
        ({"url": "https://a.example", "key": "of-somebody-else"}, "key"),
        ({"url": "local://internal"}, "url"),
        ({"url": "LOCAL://internal"}, "url"),
    ],
)
async def test_a_webhook_of_a_tenant_cannot_reach_into_the_process(
    registry: Registry, webhook: dict[str, Any], path: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        await registry.create({"name": "n", "point": "afterStep", "webhook": webhook, "tenantId": "acme"})

    assert (refused.value.code, refused.value.path) == ("webhook_refused", f"$.webhook.{path}")


@on_sqlite
async def test_the_operator_says_which_variables_headers_may_name(store: SqlStore) -> None:
    webhook = {"url": "https://a.example", "headers": {"x": "${TOKEN}"}, "allowed_env_vars": ["TOKEN"]}
    async with Registry(store, webhook_env=["TOKEN"]) as registry:
        stored = await registry.create({"name": "n", "point": "afterStep", "webhook": webhook})
        with pytest.raises(DefinitionError, match="only a system hook may send environment variables"):
            await registry.create({"name": "n", "point": "afterStep", "webhook": webhook, "tenantId": "acme"})

    assert stored.webhook is not None


@on_sqlite
@for_each(
    "webhook, missing",
    [
        ({"url": "https://a.example"}, "HOOKLINE_WEBHOOK_KEY,"),
        ({"url": "https://a.example", "key": "billing"}, "HOOKLINE_WEBHOOK_KEY_BILLING,"),
        ({"url": "local://here"}, ""),
        ({"url": "LOCAL://here"}, ""),
    ],
)
async def test_a_webhook_that_no_key_of_the_process_signs_says_so(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, webhook: dict[str, Any], missing: str
) -> None:
    for name in ("HOOKLINE_WEBHOOK_KEY", "HOOKLINE_WEBHOOK_KEY_BILLING"):
        monkeypatch.delenv(name, raising=False)
    async with Registry(store) as registry:
        stored = await registry.create({"id": "told", "name": "n", "point": "afterStep", "webhook": webhook})

        assert missing in stored.problem
        assert bool(stored.problem) is bool(missing)
        assert ids(registry.hooks()) == ["told"]  # others may deliver what it queues
    async with Registry(store, keys=KeyRing({"": [generate_key()], "billing": [generate_key()]})) as signing:
        assert (await signing.get("told")).problem == ""
    monkeypatch.setenv("HOOKLINE_WEBHOOK_KEY", generate_key())
    monkeypatch.setenv("HOOKLINE_WEBHOOK_KEY_BILLING", generate_key())
    async with Registry(store) as configured:
        assert (await configured.get("told")).problem == ""
        await configured.delete("told")


@on_sqlite
@for_each("kind, on_error", product(["before", "guard", "after", "around"], ["closed", "open"]))
async def test_a_handler_that_has_vanished_denies_the_calls_of_its_hook_or_is_left_out(
    store: SqlStore, kind: str, on_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Registry(store, modules=[FACTORIES]) as before:
        handler = {"after": "unlike", "around": "seeing"}.get(kind, "say")
        stored = await before.create(
            definition(
                point=f"ToolCall.{kind}",
                handler=f"{FACTORIES}:{handler}",
                config={"word": "x"} if kind == "after" else {},
                on_error=on_error,
                tool="bank/*",
            )
        )

    async with Registry(store) as after:
        outcomes = [await pay(after.hooks()) for _ in range(3)]
        shown = await after.get(stored.id)
        listed = (await after.list()).items

    assert "there is no handler" in shown.problem
    assert listed == [shown]
    assert len([each for each in caplog.records if stored.id in each.message]) == 1
    if on_error == "open":
        assert all(outcome.denied is None for outcome in outcomes)
    else:
        assert all(outcome.denied is not None and outcome.denied.hook_id == stored.id for outcome in outcomes)
        other = await pay(after.hooks(), ToolCall(toolset="shop", tool_name="list"))
        assert other.denied is None
    async with Registry(store) as last:
        await last.delete(stored.id)


@on_sqlite
async def test_of_what_has_vanished_all_may_be_changed_that_does_not_touch_it(store: SqlStore) -> None:
    async with Registry(store, modules=[FACTORIES]) as before:
        stored = await before.create(definition(handler=f"{FACTORIES}:say", config={"text": "no"}))

    async with Registry(store) as after:
        for changes in ({"priority": 7}, {"name": "b", "tags": ["c"]}, {"enabled": False}, {"config": {"text": "no"}}):
            changed = await after.update(stored.id, changes)
        for changes in ({"config": {"text": "yes"}}, {"point": "ToolCall.before"}, {"handler": "gone"}):
            with pytest.raises(DefinitionError) as refused:
                await after.update(stored.id, changes)
            assert refused.value.code == "handler_not_allowed"
        assert (changed.priority, changed.name, changed.enabled, changed.config) == (7, "b", False, {"text": "no"})
        assert changed.problem
        assert (await after.update(stored.id, {"handler": "deny", "config": {}})).problem == ""
        with pytest.raises(DefinitionError):
            await after.update(stored.id, {"priority": 5000})


@on_sqlite
async def test_no_change_breaks_what_works(registry: Registry) -> None:
    stored = await registry.create(definition(handler="deny-tools", config={"tools": ["*/pay"]}))

    with pytest.raises(DefinitionError, match="are set in `config`"):
        await registry.update(stored.id, {"tool": "*/pay"})


@on_sqlite
async def test_an_observer_whose_handler_has_vanished_is_left_out(store: SqlStore) -> None:
    async with Registry(store, modules=[FACTORIES]) as before:
        await before.create(definition(point="afterStep", handler=f"{FACTORIES}:seeing"))

    async with Registry(store) as after:
        assert after.hooks() == []
        assert (await after.list()).items[0].problem


async def test_what_another_version_has_written_is_shown_and_fails_closed(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with Registry(store) as registry:
        stored = await registry.create(definition(handler="log"))
        async with store.writing() as connection:
            await connection.execute(update(definitions).values(definition=b'{"of": "the future"}', revision=99))
            await connection.exec_driver_sql("UPDATE revisions SET revision = 99")
        await registry.refresh()

        assert "newer version" in (await registry.get(stored.id)).problem
        with pytest.raises(DefinitionError):
            await registry.update(stored.id, {"priority": 7})
        assert (await pay(registry.hooks())).denied is not None
        await registry.set_enabled(stored.id, False)
        assert (await pay(registry.hooks())).denied is None
        await registry.delete(stored.id)
        assert (await registry.list()).items == []


async def test_a_registry_without_a_store_refuses_changes() -> None:
    async with Registry() as registry:
        assert registry.hooks("acme") == []
        with pytest.raises(HookUsageError, match="store"):
            await registry.create(definition())


@for_each(
    "wrong",
    [
        {"quota": -1},
        {"quota": True},
        {"refresh_seconds": 0},
        {"refresh_seconds": float("inf")},
        {"scripts": "/nowhere"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        Registry(**wrong)


@on_sqlite
async def test_a_registry_is_opened_once(store: SqlStore) -> None:
    async with Registry(store) as registry:
        with pytest.raises(HookUsageError, match="already opened"):
            await registry.__aenter__()


async def test_what_is_restored_from_a_copy_is_read_anew(registry: Registry, store: SqlStore) -> None:
    kept = await registry.create(definition(name="kept", handler="log"))
    await registry.create(definition(name="lost", handler="log"))

    async with store.writing() as connection:
        await connection.execute(definitions.delete().where(definitions.c.id != kept.id))
        await connection.exec_driver_sql(f"UPDATE revisions SET revision = {kept.revision}")
    await registry.refresh()

    assert (await registry.list()).items == [kept]


async def test_definitions_stored_behind_its_back_are_seen_with_the_next_revision(
    registry: Registry, store: SqlStore
) -> None:
    """Nobody wakes the registry."""
    stored = await registry.create(definition(name="one", handler="log"))
    copy = msgspec.structs.replace(stored, id="copy", name="two", revision=stored.revision + 1)
    async with store.writing() as connection:
        await connection.execute(
            insert(definitions).values(
                tenant_id="",
                id="copy",
                name="two",
                point=copy.point,
                enabled=True,
                priority=100,
                definition=msgspec.json.encode(copy),
                source="api",
                revision=copy.revision,
                created_at=1.0,
                updated_at=1.0,
            )
        )
        await connection.exec_driver_sql("UPDATE revisions SET revision = revision + 1")

    await registry.refresh()
    assert len(registry.hooks()) == 2


@on_sqlite
async def test_a_tenant_that_nobody_knows_costs_no_memory(registry: Registry) -> None:
    for number in range(100):
        registry.hooks(f"unknown{number}")
        await registry.list(f"unknown{number}")

    assert len(registry._snapshot._hooks) <= 1
    assert len(registry._snapshot._lists) <= 1


@on_sqlite
async def test_the_hooks_that_are_handed_out_are_the_callers_own(registry: Registry) -> None:
    await registry.create(definition())

    registry.hooks().clear()

    assert len(registry.hooks()) == 1
    assert (await pay(registry.hooks("acme"), msgspec.structs.replace(PAY, tenant_id="acme"))).denied is not None


async def test_a_registry_that_was_never_open_gives_no_hooks_rather_than_none() -> None:
    with pytest.raises(HookUsageError, match="not open"):
        Registry().hooks("acme")


@for_each("wrong", ["a\x00b", "\ud800", "a/b", "x" * 5000, ""])
async def test_an_id_that_cannot_be_one_is_not_found(registry: Registry, wrong: str) -> None:
    for asked in (
        registry.get(wrong),
        registry.update(wrong, {"priority": 1}),
        registry.set_enabled(wrong, False, tenant_id=wrong),
        registry.delete(wrong, tenant_id="acme"),
    ):
        with pytest.raises(DefinitionNotFoundError):
            await asked


@for_each("wrong", ["a\x00b", "\ud800", "x" * 500, None, 3])
async def test_definitions_are_not_stored_for_what_cannot_be_a_tenant(registry: Registry, wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        await registry.apply([], tenant_id=wrong, prune=True)
    with pytest.raises(DefinitionError):
        await registry.create({"name": "n", "point": "afterStep", "handler": "log", "tenantId": wrong})


async def test_wrong_kinds_of_changes_are_refused(registry: Registry) -> None:
    stored = await registry.create(definition(handler="log"))

    for refused in (
        registry.update(stored.id, [("name", "x")]),  # type: ignore[arg-type]
        registry.update(stored.id, {3: 4}),  # type: ignore[dict-item]
        registry.update(stored.id, {"tags": ["\ud800"]}),
        registry.update(stored.id, {"config": {"reason": object()}}),
        registry.set_enabled(stored.id, 1),  # type: ignore[arg-type]
        registry.apply(["text"]),  # type: ignore[list-item]
    ):
        with pytest.raises(DefinitionError):
            await refused
    assert (await registry.list()).items == [stored]


async def test_agents_are_run_with_the_hooks_that_are_enabled_then(registry: Registry, store: SqlStore) -> None:
    seen: list[str] = []

    def pay(amount: int) -> str:
        """Pay somebody."""
        seen.append(f"paid {amount}")
        return "paid"

    async def run(tenant_id: str) -> OperationResult:
        calling = ToolRequest(tool_name="pay", args={"amount": 3}, tool_call_id="t1")
        model = ScriptedModel([ModelResponse(tool_calls=[calling]), ModelResponse(content="done")])
        agent = Agent(id="a", model=model, tools=[pay])
        hooks = registry.hooks(tenant_id)
        return await exec_agent(agent, "go", hooks=hooks, tenant_id=tenant_id, store=store)

    everyone = await registry.create(definition(name="all", handler="deny-text", config={"texts": ["nothing"]}))
    theirs = await registry.create(definition(name="no payments", tenant_id="acme"))
    assert (await run("acme")).reason == "done"
    assert seen == []
    await run("other")
    assert seen == ["paid 3"]
    await registry.set_enabled(theirs.id, False)
    await run("acme")
    assert seen == ["paid 3"] * 2
    await registry.update(everyone.id, {"handler": "deny", "config": {}})
    await run("acme")
    await run("other")
    assert seen == ["paid 3"] * 2


@on_sqlite
@for_each("tool", ["bank*", "?ay", "[ab]ash"])
async def test_a_glob_without_a_slash_is_told_of_once_with_both_meanings(
    registry: Registry, caplog: pytest.LogCaptureFixture, tool: str
) -> None:
    stored = await registry.create(definition(tool=tool))
    await registry.update(stored.id, {"name": "renamed"})

    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert f"'*/{tool}'" in record.getMessage()
    assert f"'{tool}/*'" in record.getMessage()
    assert stored.id in record.getMessage()
    await registry.delete(stored.id)
    caplog.clear()


@on_sqlite
@for_each("tool", ["*", "bash", "bank/*", None])
async def test_a_filter_that_can_mean_one_thing_only_is_not_told_of(
    registry: Registry, caplog: pytest.LogCaptureFixture, tool: str | None
) -> None:
    stored = await registry.create(definition(tool=tool))

    assert caplog.records == []
    await registry.delete(stored.id)


@on_sqlite
async def test_a_stored_guard_is_about_a_tool_wherever_it_comes_from(registry: Registry) -> None:
    await registry.create(definition(tool="pay"))

    assert (await pay(registry.hooks())).denied is not None
    assert (await pay(registry.hooks(), ToolCall(toolset="pay", tool_name="list", args={}))).denied is None
