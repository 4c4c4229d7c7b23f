"""A fenced change takes effect in operations that are running, and in every process before it returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import Any

import pytest
from sqlalchemy import delete, select

from hookline import Agent, OperationResult, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.calls import ModelCall, ToolCall, ToolResult
from hookline.errors import HookUsageError, StoreUnavailableError
from hookline.interceptors import Fence, boot_time
from hookline.registry import DefinitionNotFoundError, FenceError, Registry
from hookline.registry._fencing import FenceMember
from hookline.runtime import AdapterRun, Capabilities
from hookline.signals import HookExecution
from hookline.store import SqlStore, registry_members
from hookline.wakeups import PollingWakeups
from tests.databases import on_sqlite

from .scenes import FACTORIES, definition, ids, until
from .test_rollout import executions

pytestmark = pytest.mark.anyio

LEASE = 30.0
COUNTING = {"id": "limit", "handler": f"{FACTORIES}:counting", "config": {"most": 1000}}
REFUSE = {"config": {"most": 0}}


def open_registry(store: SqlStore, **options: Any) -> Registry:
    return Registry(store, modules=[FACTORIES], **{"lease_seconds": LEASE, **options})


@pytest.fixture
async def registry(database_url: str) -> AsyncIterator[Registry]:
    async with SqlStore(database_url) as store, open_registry(store) as registry:
        yield registry


async def run(
    registry: Registry,
    during: Callable[[int], Awaitable[object]],
    *,
    calls: int = 3,
    tenant_id: str = "",
    **options: Any,
) -> OperationResult:
    """Run an agent that calls a tool so often; the tool does something with the number of the call, from 1."""
    number = 0

    @tool
    async def pay() -> str:
        """Pay."""
        nonlocal number
        number += 1
        await during(number)
        return f"paid {number}"

    asked = [ToolRequest("pay", {}) for _ in range(calls)]
    agent = Agent(id="payer", model=ScriptedModel([*asked, "done"]), tools=[pay], **options)
    return await exec_agent(agent, "go", hooks=[*registry.hooks(tenant_id)], tenant_id=tenant_id)


def results(result: OperationResult) -> list[str]:
    return [message.content for message in result.messages if message.role == "tool"]


def at(which: int, change: Callable[[], Awaitable[object]]) -> Callable[[int], Awaitable[object]]:
    """Do something in one of the calls."""

    async def during(number: int) -> None:
        if number == which:
            await change()

    return during


def revisions(seen: list[HookExecution], hook_id: str = "limit") -> list[int]:
    return [each.revision for each in seen if each.hook_id == hook_id]


@pytest.mark.parametrize("fence", [True, False])
async def test_an_operation_that_is_running_follows_a_fenced_change_and_no_other(
    registry: Registry, fence: bool
) -> None:
    first = await registry.create(definition(**COUNTING))

    with executions() as seen:
        result = await run(registry, at(1, lambda: registry.update("limit", REFUSE, fence=fence)))

    second = (await registry.get("limit")).revision
    assert revisions(seen) == [first.revision, *[second if fence else first.revision] * 2]
    assert [text.startswith("paid") for text in results(result)] == [True, not fence, not fence]


@pytest.mark.parametrize("how", ["disable", "delete", "shadow", "tool", "apply"])
@on_sqlite
async def test_a_hook_that_a_fenced_change_takes_away_judges_no_further_call(registry: Registry, how: str) -> None:
    await registry.create(definition(**COUNTING, name="limit"))
    await registry.update("limit", {"config": {"most": 1}})
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "disable": lambda: registry.set_enabled("limit", False, fence=True),
        "delete": lambda: registry.delete("limit", fence=True),
        "shadow": lambda: registry.update("limit", {"mode": "shadow"}, fence=True),
        "tool": lambda: registry.update("limit", {"tool": "other"}, fence=True),
        "apply": lambda: registry.apply([], prune=True, fence=True),
    }

    result = await run(registry, at(1, changes[how]))

    assert results(result) == ["paid 1", "paid 2", "paid 3"]


@pytest.mark.parametrize("how", ["create", "enable", "revert"])
@on_sqlite
async def test_a_hook_that_a_fenced_change_brings_judges_the_next_call(registry: Registry, how: str) -> None:
    refusing = definition(**COUNTING | REFUSE)
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "create": lambda: registry.create(refusing, fence=True),
        "enable": lambda: registry.set_enabled("limit", True, fence=True),
    }
    if how != "create":
        stored = await registry.create(refusing)
        changes["revert"] = lambda: registry.revert("limit", stored.revision, fence=True)
        await (registry.set_enabled("limit", False) if how == "enable" else registry.delete("limit"))

    result = await run(registry, at(1, changes[how]))

    assert [text.startswith("paid") for text in results(result)] == [True, False, False]


@pytest.mark.parametrize("fence", [True, False])
@on_sqlite
async def test_hooks_run_in_a_new_order_in_running_operations_if_it_is_fenced(registry: Registry, fence: bool) -> None:
    for name in ("a", "b"):
        await registry.create(definition(**COUNTING | {"id": name, "name": name}))

    with executions() as seen:
        await run(registry, at(1, lambda: registry.reorder("ToolCall.guard", ["b", "a"], fence=fence)), calls=2)

    assert [each.hook_id for each in seen] == ["a", "b", *(["b", "a"] if fence else ["a", "b"])]


@pytest.mark.parametrize("changed", [True, False])
@on_sqlite
async def test_a_fenced_change_puts_no_hook_of_a_tenant_before_those_of_the_system(
    registry: Registry, changed: bool
) -> None:
    await registry.create(definition(**COUNTING | {"id": "system", "name": "system", "priority": 10}))
    for tenant in ("", "acme"):  # hooks without a priority
        webhook = {"url": "https://acme.example/in"}
        await registry.create(
            definition(name="hears", point="beforeToolCall", tool="other", webhook=webhook, tenant_id=tenant)
        )
    own = {"id": "own", "name": "own", "tenant_id": "acme", "percent": 100, "agents": ["payer"]}
    await registry.create(definition(**COUNTING | own | {"config": {"most": 2}}))

    async def change() -> None:
        if changed:
            await registry.update("own", {"description": "only of the next run"})
        await registry.update("system", {"priority": 500}, fence=True)

    with executions() as seen:
        result = await run(registry, at(1, change), tenant_id="acme")

    assert [each.hook_id for each in seen] == ["system", "own"] * 3
    assert [text.startswith("paid") for text in results(result)] == [True, True, False]  # it has counted on


@on_sqlite
async def test_a_tenant_is_not_concerned_by_the_fenced_change_of_another(registry: Registry) -> None:
    await registry.create(definition(**COUNTING, tenant_id="acme"))

    result = await run(
        registry,
        at(1, lambda: registry.create(definition(tenant_id="other"), fence=True)),
        tenant_id="acme",
    )

    assert results(result) == ["paid 1", "paid 2", "paid 3"]


@on_sqlite
async def test_the_result_of_a_call_that_is_running_is_judged_by_the_new_revision_alone(registry: Registry) -> None:
    word = {"handler": f"{FACTORIES}:unlike", "point": "ToolCall.after"}
    first = await registry.create(definition(id="word", **word, config={"word": "old"}))

    async def change() -> None:
        await registry.update("word", {"config": {"word": "new"}}, fence=True)

    with executions() as seen:
        result = await run(registry, at(2, change))

    assert results(result) == ["old", "new", "new"]
    second = (await registry.get("word")).revision
    assert revisions(seen, "word") == [first.revision, second, second]


@on_sqlite
async def test_a_fenced_change_waits_for_a_guard_that_is_judging(registry: Registry) -> None:
    await registry.create(definition(id="limit", handler=f"{FACTORIES}:slow"))
    judging, judged = slow_guard()
    running = asyncio.create_task(run(registry, at(0, asyncio.sleep), calls=1))
    await asyncio.wait_for(judging.wait(), 30)

    change = asyncio.create_task(registry.update("limit", {"enabled": False}, fence=True))
    await until(lambda: registry.hooks()[1:] == [])
    done, _ = await asyncio.wait([change], timeout=0.3)
    assert not done
    judged.set()

    await change
    assert results(await running) == ["paid 1"]


def slow_guard() -> tuple[asyncio.Event, asyncio.Event]:
    factories = import_module(FACTORIES)
    factories.JUDGING[:] = [asyncio.Event(), asyncio.Event()]
    judging, judged = factories.JUDGING
    return judging, judged


async def test_a_guard_that_hangs_has_the_change_fail_with_the_name_of_its_process(database_url: str) -> None:
    async with SqlStore(database_url) as store, open_registry(store, fence_timeout=0.5) as registry:
        await registry.create(definition(id="limit", handler=f"{FACTORIES}:slow"))
        judging, judged = slow_guard()
        running = asyncio.create_task(run(registry, at(0, asyncio.sleep), calls=1))
        await asyncio.wait_for(judging.wait(), 30)

        with pytest.raises(FenceError) as failure:
            await registry.set_enabled("limit", False, fence=True)

        stored = await registry.get("limit")
        assert failure.value.revision == stored.revision
        assert not stored.enabled
        assert failure.value.members == tuple(await members(store))
        assert failure.value.members[0] in str(failure.value)
        assert "stays in force" in str(failure.value)
        judged.set()
        await running


async def members(store: SqlStore) -> list[str]:
    async with store.reading() as connection:
        return list((await connection.execute(select(registry_members.c.member_id))).scalars())


async def test_a_call_inside_of_an_around_of_the_old_revision_is_waited_for(database_url: str) -> None:
    async with SqlStore(database_url) as store, open_registry(store, fence_timeout=0.3) as registry:
        await registry.create(definition(id="wrap", point="ToolCall.around", handler=f"{FACTORIES}:wrapping"))
        failures: list[BaseException] = []

        async def change() -> None:
            with pytest.raises(FenceError) as failure:
                await registry.update("wrap", {"config": {"word": "new"}}, fence=True)
            failures.append(failure.value)

        result = await run(registry, at(1, change))

        assert len(failures) == 1
        assert results(result) == ["old paid 1", "new paid 2", "new paid 3"]


@on_sqlite
async def test_sub_agents_follow_a_fenced_change_of_a_hook_that_they_inherit(registry: Registry) -> None:
    await registry.create(definition(**COUNTING))
    await registry.create(definition(id="own", name="own", inherit=False, handler=f"{FACTORIES}:say", tool="other"))
    changes: list[object] = []

    @tool
    async def pay() -> str:
        """Pay."""
        if not changes:
            changes.append(await registry.update("own", {"tool": "*"}, fence=True))
        elif len(changes) == 1:
            changes.append(await registry.update("limit", REFUSE, fence=True))
        return "paid"

    child = Agent(id="child", model=ScriptedModel([*[ToolRequest("pay", {})] * 3, "done"]), tools=[pay])
    ask = ToolRequest("child", {"instruction": "go"}, toolset="agent")
    parent = Agent(id="parent", model=ScriptedModel([ask, "done"]), sub_agents=[child])

    with executions() as seen:
        await exec_agent(parent, "go", hooks=[*registry.hooks()])

    # `own` is not inherited, so that it does not come to the sub-agent by its change.
    assert len(changes) == 2
    limit = (await registry.get("limit")).revision
    of_child = [each for each in seen if each.hook_type == "ToolCall"]
    assert {each.hook_id for each in of_child} == {"limit"}
    assert [each.decision for each in of_child] == ["", "", "denied"]
    assert [each.revision == limit for each in of_child] == [False, False, True]


async def test_a_change_without_a_process_that_takes_part_is_refused_with_a_fence(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store, modules=[FACTORIES]) as registry:
        stored = await registry.create(definition(**COUNTING))

        with pytest.raises(HookUsageError, match="lease_seconds"):
            await registry.update("limit", REFUSE, fence=True)
        with pytest.raises(HookUsageError):
            await registry.delete("limit", fence=True)

        assert await registry.get("limit") == stored
        assert ids(registry.hooks()) == ["limit"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "10"])
async def test_a_lease_must_be_a_number_of_seconds(seconds: Any) -> None:
    async with SqlStore("sqlite:///:memory:") as store:
        with pytest.raises(HookUsageError, match="lease_seconds"):
            Registry(store, lease_seconds=seconds)
        with pytest.raises(HookUsageError, match="fence_timeout"):
            Registry(store, fence_timeout=seconds)
    with pytest.raises(HookUsageError, match="store"):
        Registry(lease_seconds=5)


async def test_a_process_that_does_not_take_part_can_make_a_fenced_change(database_url: str) -> None:
    async with (
        SqlStore(database_url) as store,
        open_registry(store) as running,
        SqlStore(database_url) as other_store,
        Registry(other_store, modules=[FACTORIES]) as changing,
    ):
        await running.create(definition(**COUNTING))

        result = await run(running, at(1, lambda: changing.update("limit", REFUSE, fence=True)))

        assert [text.startswith("paid") for text in results(result)] == [True, False, False]


async def test_nobody_waits_for_a_process_without_a_lease_and_its_running_operations_keep_their_hooks(
    database_url: str,
) -> None:
    async with (
        SqlStore(database_url) as store,
        open_registry(store) as member,
        SqlStore(database_url) as other_store,
        Registry(other_store, modules=[FACTORIES]) as without_lease,
    ):
        await member.create(definition(**COUNTING))
        await without_lease.refresh()

        before = await run(without_lease, at(1, lambda: member.update("limit", REFUSE, fence=True)))
        await without_lease.refresh()
        after = await run(without_lease, at(0, asyncio.sleep))

        assert results(before) == ["paid 1", "paid 2", "paid 3"]
        assert [text.startswith("paid") for text in results(after)] == [False] * 3


async def test_two_fenced_changes_at_once_both_take_effect(database_url: str) -> None:
    async with (
        SqlStore(database_url) as store,
        open_registry(store) as one,
        SqlStore(database_url) as other_store,
        open_registry(other_store) as other,
    ):
        for name in ("a", "b"):
            await one.create(definition(**COUNTING | {"id": name, "name": name}))

        async def change() -> None:
            await asyncio.gather(
                one.update("a", {"config": {"most": 5}}, fence=True), other.set_enabled("b", False, fence=True)
            )

        with executions() as seen:
            await run(one, at(1, change))

        assert len(revisions(seen, "a")) == 3
        assert len(revisions(seen, "b")) == 1
        assert set(revisions(seen, "a")[1:]) == {(await one.get("a")).revision}


async def test_a_process_that_loses_its_lease_denies_until_it_has_looked_again(registry: Registry) -> None:
    await registry.create(definition(**COUNTING))
    fence = registry._fence

    async def lose() -> None:
        fence.valid_until = boot_time()

    async def renew(number: int) -> None:
        if number == 1:
            await lose()

    with executions() as seen:
        result = await run(registry, renew)

    assert results(result)[0] == "paid 1"  # a guard has judged it before
    assert all("lease" in text for text in results(result)[1:])
    assert [each.decision for each in seen if each.hook_id == "limit"] == ["", "denied", "denied"]


async def test_a_process_that_others_did_not_wait_for_begins_anew_with_the_present_definitions(
    database_url: str,
) -> None:
    async with (
        SqlStore(database_url, wakeups=PollingWakeups(3600)) as store,
        open_registry(store, lease_seconds=1.5) as cut_off,
        SqlStore(database_url) as other_store,
        open_registry(other_store) as other,
    ):
        await other.create(definition(**COUNTING))
        await cut_off.refresh()
        first = set(await members(store))

        async def change() -> None:
            async with other_store.writing() as connection:  # as who makes a fenced change does after its lease
                mine = registry_members.c.member_id == cut_off._member.member_id  # type: ignore[union-attr]
                await connection.execute(delete(registry_members).where(mine))
            assert len(await members(store)) == 1
            await other.update("limit", REFUSE, fence=True)
            await until(lambda: cut_off._fence.epoch == 2)

        result = await run(cut_off, at(1, change))

        assert set(await members(store)) == first
        assert [text.startswith("paid") for text in results(result)] == [True, False, False]


async def test_the_clock_of_the_machine_does_not_matter_to_a_lease(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registry.create(definition(**COUNTING))
    now = time.time

    for jump in (86_400.0, -86_400.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: now() + jump)
        result = await run(registry, at(1, lambda: registry.update("limit", {"priority": 5}, fence=True)))
        assert results(result) == ["paid 1", "paid 2", "paid 3"]


@on_sqlite
async def test_operations_that_outlive_their_registry_are_denied(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        registry = open_registry(store)
        await registry.__aenter__()
        await registry.create(definition(**COUNTING))

        result = await run(registry, at(1, lambda: registry.__aexit__(None, None, None)))

        assert [text.startswith("paid") for text in results(result)] == [True, False, False]
        assert await members(store) == []


@on_sqlite
async def test_a_fence_is_a_boolean_and_nothing_is_changed_otherwise(registry: Registry) -> None:
    stored = await registry.create(definition(**COUNTING))

    for wrong in ("no", 1, None):
        with pytest.raises(HookUsageError, match="`fence` must be True or False"):
            await registry.update("limit", REFUSE, fence=wrong)  # type: ignore[arg-type]

    assert await registry.get("limit") == stored


async def test_a_definition_that_is_gone_cannot_be_changed_with_a_fence(registry: Registry) -> None:
    with pytest.raises(DefinitionNotFoundError):
        await registry.update("gone", REFUSE, fence=True)


async def test_a_process_that_was_not_waited_for_does_not_judge_before_it_has_read_the_changes(
    database_url: str,
) -> None:
    failures: list[str] = []
    is_broken = False

    async def read() -> None:
        if is_broken:
            failures.append("read")
            raise StoreUnavailableError("the store", "it cannot be read")

    fence = Fence(lambda tenant_id: [])
    async with SqlStore(database_url) as store:
        member = FenceMember(store, fence, 0.6, read, lambda problem: None)
        await member.join()
        assert not fence.is_lost
        is_broken = True
        async with store.writing() as connection:
            await connection.execute(delete(registry_members))
        member.start()
        try:
            await until(lambda: len(failures) > 3)
            assert fence.is_lost
            assert fence.epoch == 1
            is_broken = False
            await until(lambda: not fence.is_lost)
            assert fence.epoch == 2
        finally:
            await member.leave()


@on_sqlite
async def test_an_operation_of_another_framework_follows_a_fenced_change(registry: Registry) -> None:
    drives = Capabilities(framework="a loop", calls={ToolCall: frozenset({"guard"})})

    async def pay(args: object) -> ToolResult:
        return ToolResult(content="paid")

    async with AdapterRun(registry.hooks(), drives) as run:
        run.begin_step()
        one = await run.call_tool(ToolRequest("pay", {}, tool_call_id="1"), pay)
        await registry.create(definition(**COUNTING | REFUSE), fence=True)
        two = await run.call_tool(ToolRequest("pay", {}, tool_call_id="2"), pay)
        run.end_step(should_continue=False)
        assert run.leads(ToolCall)
        assert not run.leads(ModelCall)

    assert (one.result.content, one.ran, two.ran) == ("paid", True, False)
