"""Hooks for a share of operations, for some agents, tags, tenants and environments: which run has them, and in which revision."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    Agent,
    Approve,
    HookDispatcher,
    ScriptedModel,
    ToolRequest,
    exec_agent,
    resume_agent,
    signals,
    tool,
)
from hookline._hook_scopes import HookScope, is_drawn
from hookline.errors import HookDefinitionError
from hookline.interceptors import Chain
from hookline.registry import DefinitionConflictError, DefinitionError, ExecutionLog, Registry
from hookline.runtime import AdapterRun, Capabilities, InMemoryStore
from hookline.store import SqlStore, Worker
from tests.tables import for_each

from .scenes import FACTORIES, definition, ids, pay

pytestmark = pytest.mark.anyio

HUNDRED_THOUSAND = [f"op_{nth:032x}" for nth in range(100_000)]
IDS = st.text(max_size=60)
TAGS = st.sampled_from(["vip", "eu", "refund"])
PERCENTAGES = st.integers(0, 10_000).map(lambda hundredths: hundredths / 100)


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with SqlStore("sqlite:///:memory:") as store, Registry(store, modules=[FACTORIES]) as registry:
        yield registry


@contextmanager
def executions() -> Iterator[list[signals.HookExecution]]:
    """Collect the records of hooks."""
    seen: list[signals.HookExecution] = []

    def keep(sender: object, execution: signals.HookExecution) -> None:
        seen.append(execution)

    with signals.hook_executed.connected_to(keep):
        yield seen


def payer(agent_id: str = "payer", *, calls: int = 1, sub_agents: list[Agent] | None = None) -> Agent:
    """An agent that pays as often as it is told; or that asks its one sub-agent to."""

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    name, toolset = ("pay", "local") if not sub_agents else (sub_agents[0].id, "agent")
    args = {} if not sub_agents else {"instruction": "go"}
    asked = [ToolRequest(name, args, toolset=toolset) for _ in range(calls)]
    return Agent(
        id=agent_id,
        model=ScriptedModel([*asked, "done"]),
        tools=[] if sub_agents else [pay],
        sub_agents=sub_agents or [],
    )


async def deciders(registry: Registry, agent: Agent, **options: Any) -> list[str]:
    """Run an agent, and return which hooks judged its calls, with their agents' operations all together."""
    with executions() as seen:
        await exec_agent(agent, "go", hooks=registry.hooks(options.get("tenant_id", "")), **options)
    return [each.hook_id for each in seen]


# The share.


@pytest.mark.parametrize("percent", [0.01, 1, 5, 12.5, 25, 50, 99, 99.99])
def test_the_share_of_a_hundred_thousand_operations_is_the_percentage_within_one_point(percent: float) -> None:
    drawn = sum(is_drawn("hook_1", each, percent) for each in HUNDRED_THOUSAND)

    assert abs(drawn / 1000 - percent) < 1
    assert drawn > 0


def test_a_share_of_nothing_and_a_share_of_everything_are_exact() -> None:
    assert not any(is_drawn("hook_1", each, 0) for each in HUNDRED_THOUSAND[:10_000])
    assert all(is_drawn("hook_1", each, 100) for each in HUNDRED_THOUSAND[:10_000])


def test_two_hooks_draw_independently_of_each_other() -> None:
    both = sum(is_drawn("hook_1", each, 50) and is_drawn("hook_2", each, 50) for each in HUNDRED_THOUSAND[:20_000])

    assert abs(both / 200 - 25) < 1.5


@given(key=IDS, operation_id=IDS, lower=PERCENTAGES, higher=PERCENTAGES)
def test_a_higher_percentage_only_adds_operations(key: str, operation_id: str, lower: float, higher: float) -> None:
    lower, higher = sorted((lower, higher))

    assert is_drawn(key, operation_id, lower) <= is_drawn(key, operation_id, higher)
    assert is_drawn(key, operation_id, lower) == is_drawn(key, operation_id, lower)


def test_the_draw_is_the_same_in_every_version() -> None:
    drawn = [each for each in range(40) if is_drawn("hook_1", f"op_{each}", 20)]

    assert drawn == [2, 9, 10, 11, 15, 21, 25, 26, 31]


# Which runs have it.


async def test_a_run_has_the_hook_if_its_operation_is_in_the_share(registry: Registry) -> None:
    made = await registry.create(definition(percent=30))
    scope = HookScope(key=made.id, percent=30.0)

    for nth in range(20):
        expected = [made.id] if scope.includes(f"op{nth}", ["payer"], []) else []
        assert await deciders(registry, payer(), operation_id=f"op{nth}") == expected


async def test_a_hook_in_shadow_judges_its_share_and_denies_nothing(registry: Registry) -> None:
    made = await registry.create(definition(percent=50, mode="shadow"))

    seen = []
    for nth in range(20):
        with executions() as found:
            result = await exec_agent(payer(), "go", hooks=registry.hooks(), operation_id=f"op{nth}")
        assert result.messages[-2].content == "paid"
        seen += found

    assert {(each.status, each.decision) for each in seen} == {("shadow", "denied")}
    assert [each.operation_id for each in seen] == [
        f"op{nth}" for nth in range(20) if is_drawn(made.id, f"op{nth}", 50)
    ]


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_sub_agent_goes_with_the_operation_that_called_it(registry: Registry, depth: int) -> None:
    made = await registry.create(definition(percent=50, mode="shadow"))

    for nth in range(12):
        agent = payer("a0")
        for level in range(1, depth + 1):
            agent = payer(f"a{level}", sub_agents=[agent])
        judged = await deciders(registry, agent, operation_id=f"op{nth}")
        assert judged == ([made.id] if is_drawn(made.id, f"op{nth}", 50) else [])


@for_each(
    "globs, agent_id, callee, judged",
    [
        (["refund*"], "refund-eu", None, 1),
        (["refund*"], "support", None, 0),
        (["support", "refund-eu"], "refund-eu", None, 1),
        (["Refund*"], "refund-eu", None, 0),
        (["refund*"], "support", "refund-eu", 1),
        (["refund*"], "refund-eu", "bank", 1),
        (["refund*"], "support", "bank", 0),
    ],
)
async def test_a_hook_for_some_agents_is_for_them_and_for_the_agents_that_they_call(
    registry: Registry, globs: list[str], agent_id: str, callee: str | None, judged: int
) -> None:
    made = await registry.create(definition(agents=globs, mode="shadow"))
    agent = payer(agent_id, sub_agents=[payer(callee)] if callee else None)

    assert len(await deciders(registry, agent)) == judged
    await registry.delete(made.id)


@for_each("is_called", [False, True])
@for_each(
    "globs, tags, judged",
    [
        (["vip"], ["vip"], 1),
        (["vip"], ["other", "vip"], 1),
        (["refund", "vip"], ["vip"], 1),
        (["vip*"], ["vip-eu"], 1),
        (["vip"], ["vip-eu"], 0),
        (["VIP"], ["vip"], 0),
        (["vip"], [], 0),
        (["*"], [], 0),
    ],
)
async def test_a_hook_for_some_tags_is_for_operations_with_one_of_them_and_for_those_that_they_call(
    registry: Registry, globs: list[str], tags: list[str], judged: int, is_called: bool
) -> None:
    made = await registry.create(definition(operation_tags=globs, mode="shadow"))
    agent = payer("boss", sub_agents=[payer()]) if is_called else payer()

    assert len(await deciders(registry, agent, tags=tags)) == judged
    await registry.delete(made.id)


@given(globs=st.lists(TAGS, max_size=3), tags=st.lists(TAGS, max_size=3), percent=PERCENTAGES, operation_id=IDS)
def test_a_scope_includes_what_has_one_of_its_tags_and_is_in_its_share(
    globs: list[str], tags: list[str], percent: float, operation_id: str
) -> None:
    scope = HookScope(key="h", percent=percent, tags=tuple(globs))

    has_tag = not globs or bool({*globs} & {*tags})
    assert scope.includes(operation_id, ["a"], tags) == (has_tag and is_drawn("h", operation_id, percent))


async def test_a_run_that_waited_has_the_hooks_for_its_tags_when_it_is_resumed(
    registry: Registry, database_url: str
) -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    made = await registry.create(definition(operation_tags=["vip"], mode="shadow"))
    turns = [ToolRequest("pay", {}), ToolRequest("look", {}), "done"]
    async with SqlStore(database_url) as store:
        for tags, judged in ((["vip"], [made.id]), ([], [])):
            agent = Agent(id="a", model=ScriptedModel(turns), tools=[pay, look])
            paused = await exec_agent(agent, "go", hooks=registry.hooks(), store=store, tags=tags)
            decisions = [Approve(each.tool_call_id) for each in paused.pending]
            with executions() as seen:
                await resume_agent(agent, paused.operation_id, decisions, hooks=registry.hooks(), store=store)
            assert [each.hook_id for each in seen] == judged


async def test_a_system_hook_for_some_tenants_is_only_for_them(registry: Registry) -> None:
    await registry.create(definition(id="eu", tenants=["acme", "globex"]))

    assert [ids(registry.hooks(tenant)) for tenant in ("acme", "globex", "initech", "")] == [["eu"], ["eu"], [], []]
    assert registry.tenants() == ["acme", "globex"]


@pytest.mark.parametrize(
    ("here", "wanted", "found"),
    [("staging", ["staging", "test"], ["h"]), ("production", ["staging"], []), ("", ["staging"], []), ("", [], ["h"])],
)
async def test_a_hook_for_some_environments_is_only_in_processes_of_that_name(
    here: str, wanted: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKLINE_ENVIRONMENT", here)
    async with SqlStore("sqlite:///:memory:") as store, Registry(store) as named_by_variable:
        await named_by_variable.create(definition(id="h", environments=wanted))
        await named_by_variable.create(definition(id="t", name="t", environments=wanted, tenant_id="acme"))
        async with Registry(store, environment=here) as named:
            for registry in (named, named_by_variable):
                assert registry.environment == here
                assert ids(registry.hooks()) == found
                assert ids(registry.hooks("acme")) == found + ["t"] * len(found)


async def test_the_run_of_an_adapter_has_the_hooks_that_are_for_it_and_hands_them_on(registry: Registry) -> None:
    made = await registry.create(
        definition(point="beforeStep", handler=f"{FACTORIES}:seeing", percent=50, inherit=True)
    )
    drives = Capabilities(framework="a loop")

    for nth in range(12):
        with executions() as seen:
            async with AdapterRun(registry.hooks(), drives, operation_id=f"op{nth}") as run:
                run.begin_step()
                async with AdapterRun((), drives, agent_id="child", parent=run) as child:
                    child.begin_step()
        expected = [made.id] * 2 if is_drawn(made.id, f"op{nth}", 50) else []
        assert [each.hook_id for each in seen] == expected


# Where no run selects them.


async def test_without_a_run_a_registry_selects_the_hooks_of_an_operation(registry: Registry) -> None:
    made = await registry.create(definition(percent=50, agents=["refund*"]))

    for nth in range(12):
        operation_id = f"op{nth}"
        expected = [made.id] if is_drawn(made.id, operation_id, 50) else []
        found = registry.hooks(operation_id=operation_id, agent_id="refund-eu")
        assert ids(found) == expected
        assert (await pay(found)).denied is not None if expected else not found
        assert registry.hooks(operation_id=operation_id, agent_id="support") == []


async def test_without_a_run_a_registry_selects_the_hooks_of_the_tags_of_an_operation(registry: Registry) -> None:
    made = await registry.create(definition(operation_tags=["vip*"]))

    assert ids(registry.hooks(operation_id="op", tags={"other", "vip-eu"})) == [made.id]
    assert registry.hooks(operation_id="op", tags={"other"}) == []
    assert registry.hooks(operation_id="op") == []


async def test_a_dispatcher_and_a_chain_refuse_a_hook_that_may_not_be_for_the_operation(registry: Registry) -> None:
    await registry.create(definition(percent=50))
    [guard] = registry.hooks()
    await registry.create(definition(name="w", point="afterStep", webhook={"url": "https://a.example/"}, percent=50))

    async with HookDispatcher() as dispatcher:
        for hooks in ([guard], registry.hooks(), [registry.hooks()[1]]):
            with pytest.raises(HookDefinitionError, match="only for some operations"):
                dispatcher.register("op", hooks)
    with pytest.raises(HookDefinitionError, match="outside of a run"):
        Chain([guard])


# The revision.


async def test_every_record_names_the_revision_with_which_the_run_began(registry: Registry) -> None:
    made = await registry.create(definition(mode="shadow"))
    revisions: list[int] = []

    @tool
    async def change() -> str:
        """Change the definition while the run goes on."""
        revisions.append((await registry.update(made.id, {"percent": 99 - len(revisions)})).revision)
        return "changed"

    asks = [ToolRequest("change", {}), ToolRequest("change", {}), "done"]
    agent = Agent(id="a", model=ScriptedModel(asks), tools=[change])
    with executions() as first:
        await exec_agent(agent, "go", hooks=registry.hooks(), operation_id="op")
    await registry.update(made.id, {"percent": 100})
    with executions() as second:
        await exec_agent(payer(), "go", hooks=registry.hooks())

    assert [each.revision for each in first] == [made.revision] * 2
    assert [each.revision for each in second] == [revisions[-1] + 1]


async def test_the_observers_of_a_definition_name_their_revision_and_other_hooks_name_none(registry: Registry) -> None:
    made = await registry.create(definition(point="beforeStep", handler=f"{FACTORIES}:seeing"))
    renamed = await registry.update(made.id, {"name": "another"})

    with executions() as seen:
        await exec_agent(Agent(id="a", model=ScriptedModel(["done"])), "go", hooks=registry.hooks())

    assert [each.revision for each in seen] == [renamed.revision] != [made.revision]
    assert signals.HookExecution(hook_id="h", hook_type="t", operation_id="o", status="ok", duration_ms=1).revision == 0


async def test_the_log_keeps_the_revision(registry: Registry, database_url: str) -> None:
    made = await registry.create(definition())
    async with SqlStore(database_url) as store, ExecutionLog(store) as log:
        await exec_agent(payer(), "go", hooks=registry.hooks())
        assert await log.flush()
        [row] = (await log.logs(None)).items

    assert [(each.hook_id, each.revision) for each in row.executions] == [(made.id, made.revision)]


async def test_a_sub_agent_has_the_revision_of_its_caller(registry: Registry) -> None:
    made = await registry.create(definition(point="beforeStep", handler=f"{FACTORIES}:seeing", inherit=True))
    drives = Capabilities(framework="a loop")

    with executions() as seen:
        async with AdapterRun(registry.hooks(), drives) as run:
            await registry.update(made.id, {"percent": 100, "description": "new"})
            # An adapter may give the hooks in force again; of one definition, the caller's revision holds.
            async with AdapterRun(registry.hooks(), drives, agent_id="child", parent=run) as child:
                child.begin_step()

    assert [each.revision for each in seen] == [made.revision]


async def test_a_run_that_is_resumed_has_the_revision_in_force_then(registry: Registry) -> None:
    made = await registry.create(definition(mode="shadow", percent=100))
    store = InMemoryStore()

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(id="a", model=ScriptedModel([ToolRequest("pay", {}), "done"]), tools=[pay])
    paused = await exec_agent(agent, "go", hooks=registry.hooks(), store=store)
    changed = await registry.update(made.id, {"mode": "enforce"})
    decisions = [Approve(each.tool_call_id) for each in paused.pending]
    with executions() as seen:
        await resume_agent(agent, paused.operation_id, decisions, hooks=registry.hooks(), store=store)

    assert [(each.revision, each.status) for each in seen] == [(changed.revision, "denied")]


@for_each("change, asked", [({"mode": "enforce"}, 1), ({"percent": 0.0}, 0), ({"name": "x"}, 0)])
async def test_a_control_that_was_changed_while_a_run_waited_takes_the_place_of_its_earlier_revision(
    change: dict[str, Any], asked: int, database_url: str
) -> None:
    webhook = {"url": "local://nobody", "control": True}

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async with SqlStore(database_url) as store, Registry(store) as registry:
        control = definition(point="beforeToolCall", webhook=webhook, mode="shadow")
        made = await registry.create(control)
        agent = Agent(id="a", model=ScriptedModel([ToolRequest("pay", {}), "done"]), tools=[pay])
        paused = await exec_agent(agent, "go", hooks=registry.hooks(), store=store)
        before = await store.load(paused.operation_id)
        await registry.update(made.id, change)
        decisions = [Approve(each.tool_call_id) for each in paused.pending]
        with executions() as seen:
            await resume_agent(agent, paused.operation_id, decisions, hooks=registry.hooks(), store=store)
        await registry.delete(made.id)

    assert before is not None
    assert [(each.id, each.revision, each.shadow) for each in before.hooks] == [(made.id, made.revision, True)]
    assert len([each for each in seen if each.status != "shadow"]) == asked


async def test_a_control_in_shadow_that_travels_with_a_run_stays_in_shadow(database_url: str) -> None:
    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async with SqlStore(database_url) as store, Registry(store) as registry:
        webhook = {"url": "local://nobody", "control": True}
        made = await registry.create(definition(point="beforeToolCall", webhook=webhook, mode="shadow", percent=100))
        agent = Agent(id="a", model=ScriptedModel([ToolRequest("pay", {}), "done"]), tools=[pay])
        paused = await exec_agent(agent, "go", hooks=registry.hooks(), store=store)
        decisions = [Approve(each.tool_call_id) for each in paused.pending]
        with executions() as seen:
            result = await resume_agent(agent, paused.operation_id, decisions, store=store)
        state = await store.load(paused.operation_id)

    assert (result.reason, result.denied) == ("done", None)
    assert [each for each in seen if each.status != "shadow"] == []
    assert state is not None
    assert [(each.id, each.revision, each.shadow) for each in state.hooks] == [(made.id, made.revision, True)]


@for_each("is_in_share", [True, False])
async def test_a_sub_agent_that_a_worker_resumes_goes_with_the_operation_that_called_it(
    is_in_share: bool, database_url: str
) -> None:
    paid: list[str] = []

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    root = next(f"op{nth}" for nth in range(99) if is_drawn("h", f"op{nth}", 50) is is_in_share)
    child = Agent(id="child", model=ScriptedModel([ToolRequest("pay", {}), "done"]), tools=[pay])
    asks = ToolRequest("child", {"instruction": "go"}, toolset="agent")
    parent = Agent(id="parent", model=ScriptedModel([asks, "done"]), sub_agents=[child])
    async with SqlStore(database_url) as store, Registry(store) as registry:
        await exec_agent(parent, "go", operation_id=root, store=store)
        [waiting] = [each for each in (await store.operations()).items if each.status == "waiting_for_human"]
        state = await store.load(waiting.operation_id)
        assert state is not None
        assert state.callers == [(root, "parent")]
        await registry.create(definition(id="h", percent=50, agents=["parent"]))
        for pending in state.pending:
            await store.decide(waiting.operation_id, Approve(pending.tool_call_id))
        async with Worker(store, [parent, child], hooks=registry.hooks):
            while (await store.operation(waiting.operation_id)).status == "waiting_for_human":  # type: ignore[union-attr]
                await anyio.sleep(0.01)
        await registry.delete("h")

    assert paid == ([] if is_in_share else ["paid"])


# What it would be for.


async def test_the_calls_that_a_hook_would_be_for_are_those_of_its_share_and_its_agents(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        for nth in range(10):
            await exec_agent(payer("refund-eu", calls=2), "go", operation_id=f"op{nth}", store=store)
        await exec_agent(payer("support", sub_agents=[payer("refund-us")]), "go", operation_id="called", store=store)
        await exec_agent(payer("other", calls=3), "go", operation_id="other", store=store)
        share = await registry.create(definition(percent=50, agents=["refund*"]))
        drawn = [nth for nth in range(10) if is_drawn(share.id, f"op{nth}", 50)]
        also = is_drawn(share.id, "called", 50)

        calls = await registry.matches(share.id)
        models = await registry.matches(msgspec.structs.replace(share, point="ModelCall.guard"))

    assert (calls.looked_at, calls.matched) == (24, 2 * len(drawn) + also)
    assert {each.operation_id for each in calls.calls if each.agent_id == "refund-eu"} == {f"op{nth}" for nth in drawn}
    assert {each.reason: each.count for each in calls.unmatched} == {
        "of operations that are not among the 50 %": 21 - calls.matched,
        "of other agents": 3,
    }
    assert (models.looked_at, models.matched) == (3 * 10 + 4 + 4, 3 * len(drawn) + 2 * also)


async def test_the_calls_that_a_hook_would_be_for_are_those_of_operations_with_its_tags(database_url: str) -> None:
    async with SqlStore(database_url) as store, Registry(store) as registry:
        await exec_agent(payer(calls=2), "go", operation_id="vip", tags=["vip", "eu"], store=store)
        boss = payer("boss", sub_agents=[payer()])
        await exec_agent(boss, "go", operation_id="called", tags=["vip"], store=store)
        await exec_agent(payer(calls=4), "go", tags=["other"], store=store)
        await exec_agent(payer(), "go", operation_id="plain", store=store)
        made = await registry.create(definition(operation_tags=["vip"]))

        calls = await registry.matches(made.id)
        of_stored = await registry.dry_run(made.id, {"operationId": "plain"})
        judged = await registry.backtest(made.id)

    assert (calls.looked_at, calls.matched) == (8, 3)
    assert {each.reason: each.count for each in calls.unmatched} == {
        "of operations with other tags": 4,
        "of operations without tags": 1,
    }
    assert of_stored.reason == "it is for operations tagged vip, and the operation has no tags"
    assert (judged.calls, judged.denied) == (3, 3)


async def test_a_dry_run_says_why_the_hook_is_not_for_the_tags_of_the_sample(registry: Registry) -> None:
    made = await registry.create(definition(operation_tags=["vip*", "eu"]))

    async def reason(**sample: Any) -> str:
        return (await registry.dry_run(made.id, sample)).reason

    assert not (await reason(tags=["other", "vip1"])).startswith("it is for")
    assert not (await reason()).startswith("it is for")
    assert (
        await reason(tags=["a", "b"]) == "it is for operations tagged vip* or eu, and the operation has the tags a, b"
    )
    assert await reason(tags=[]) == "it is for operations tagged vip* or eu, and the operation has no tags"


async def test_a_dry_run_says_why_the_hook_is_not_for_the_sample(registry: Registry) -> None:
    made = await registry.create(definition(percent=50, agents=["refund*"], tenants=["acme"]))
    inside, outside = (
        next(f"op{nth}" for nth in range(99) if is_drawn(made.id, f"op{nth}", 50) is wanted) for wanted in (True, False)
    )

    async def reason(**sample: str) -> str:
        found = await registry.dry_run(made.id, sample)
        assert found.outcome == ("skipped" if found.reason.startswith("it is for") else "denied")
        return found.reason

    assert await reason() == await reason(operationId=inside, agentId="refund-eu", tenantId="acme")
    assert await reason(agentId="x") == "it is for the agents refund*, and not for x"
    assert await reason(operation_id=outside) == f"it is for 50 % of operations, and {outside} is not one of them"
    assert await reason(operationId="child", parentOperationId=outside) == await reason(operationId=outside)
    assert await reason(tenantId="globex") == "it is for the tenants acme, and not for globex"


# The definition.


@for_each(
    "fields, path, problem",
    [
        ({"percent": -1}, "$.percent", "a number from 0 to 100"),
        ({"percent": 100.01}, "$.percent", "a number from 0 to 100"),
        ({"percent": math.nan}, "$.percent", "a number from 0 to 100"),
        ({"percent": math.inf}, "$.percent", "a number from 0 to 100"),
        ({"percent": "25"}, "$.percent", "a number from 0 to 100"),
        ({"percent": True}, "$.percent", "a number from 0 to 100"),
        ({"percent": None}, "$.percent", "a number from 0 to 100"),
        ({"percent": 0.001}, "$.percent", "at most two decimals"),
        ({"percent": 33.333}, "$.percent", "at most two decimals"),
        ({"agents": "refund*"}, "$.agents", "expected `array`"),
        ({"agents": [""]}, "$.agents[0]", "length >= 1"),
        ({"operationTags": "vip"}, "$.operationTags", "expected `array`"),
        ({"operationTags": ["x" * 101]}, "$.operationTags[0]", "length <= 100"),
        ({"operationTags": ["a\nb"]}, "$.operationTags[0]", "matching regex"),
        ({"environments": ["a\nb"]}, "$.environments[0]", "matching regex"),
        ({"tenants": ["acme"], "tenantId": "acme"}, "$.tenants", "only a system hook"),
        ({"tenants": ["acme"], "exceptTenants": ["globex"]}, "$.exceptTenants", "leaves out all others"),
        ({"point": "RequestCall.guard", "percent": 5}, "$.percent", "belongs to no operation"),
        ({"point": "RequestCall.guard", "agents": ["a"]}, "$.agents", "belongs to no operation"),
        ({"point": "RequestCall.guard", "operationTags": ["a"]}, "$.operationTags", "belongs to no operation"),
    ],
)
async def test_a_scope_that_makes_no_sense_is_refused(
    registry: Registry, fields: dict[str, Any], path: str, problem: str
) -> None:
    given = {"name": "n", "point": "ToolCall.guard", "handler": "deny"} | fields

    with pytest.raises(DefinitionError, match=problem) as caught:
        await registry.create(given)
    assert caught.value.path == path


@for_each("percent", [0, 0.01, 0.29, 8.2, 33.33, 57.6, 99.99, 100])
async def test_a_percentage_is_stored_as_it_was_given(registry: Registry, percent: float) -> None:
    made = await registry.create(definition(percent=percent))

    assert (await registry.get(made.id)).percent == percent
    scope = made.scope
    assert scope is None if percent == 100 else scope == HookScope(key=made.id, percent=float(percent))
    await registry.delete(made.id)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"percent": 25, "agents": ["refund*"]}, "25 % of operations of agents refund*"),
        ({"percent": 0.01}, "0.01 % of operations"),
        ({"percent": 5, "operation_tags": ["vip", "eu*"]}, "5 % of operations tagged vip, eu*"),
        ({"agents": list("abcde")}, "operations of agents a, b, c and 2 more"),
        ({"tenants": ["acme"], "environments": ["staging"]}, "operations for tenants acme in staging"),
    ],
)
async def test_a_definition_says_in_words_what_it_is_for(fields: dict[str, Any], told: str) -> None:
    assert definition(**fields).describe_scope() == told


async def test_a_change_of_the_percentage_shows_in_the_history_and_is_taken_back_in_one_step(
    registry: Registry,
) -> None:
    made = await registry.create(definition(percent=5, mode="shadow"), actor="ann")
    await registry.update(made.id, {"mode": "enforce", "percent": 25, "agents": ["refund*"]}, actor="bob")
    [changed, first] = (await registry.revisions(made.id)).items
    taken_back = await registry.revert(made.id, first.revision, actor="eve")

    assert changed.actor == "bob"
    assert [(each.field, each.old, each.new) for each in changed.changes] == [
        ("agents", [], ["refund*"]),
        ("percent", 5.0, 25.0),
        ("mode", "shadow", "enforce"),
    ]
    assert (taken_back.mode, taken_back.percent, taken_back.agents) == ("shadow", 5.0, [])


async def test_the_second_of_two_people_who_change_a_percentage_is_told_of_the_first(registry: Registry) -> None:
    made = await registry.create(definition(percent=5))
    first = await registry.update(made.id, {"percent": 10}, if_revision=made.revision, actor="ann")

    with pytest.raises(DefinitionConflictError, match="it was changed in the meantime") as caught:
        await registry.update(made.id, {"percent": 50}, if_revision=made.revision, actor="bob")

    assert caught.value.revision == first.revision
    assert (await registry.get(made.id)).percent == 10


async def test_counters_of_a_handler_go_on_when_its_percentage_is_raised(registry: Registry) -> None:
    made = await registry.create(definition(handler=f"{FACTORIES}:counting", config={"most": 1}))
    assert (await pay(registry.hooks())).denied is None
    await registry.update(made.id, {"percent": 99.99})
    await registry.update(made.id, {"percent": 100})

    assert (await pay(registry.hooks())).denied is not None


async def test_where_its_handler_is_gone_a_hook_denies_in_its_share_and_says_why() -> None:
    async with (
        SqlStore("sqlite:///:memory:") as store,
        Registry(store, modules=[FACTORIES]) as has_it,
        Registry(store) as lacks_it,
    ):
        made = await has_it.create(definition(handler=f"{FACTORIES}:say", percent=50))
        opened = await has_it.create(definition(name="open", handler=f"{FACTORIES}:say", on_error="open"))
        await lacks_it.refresh()

        assert [(await each.get(made.id)).problem != "" for each in (has_it, lacks_it)] == [False, True]
        assert ids(lacks_it.hooks()) == [made.id]
        assert (await lacks_it.get(opened.id)).problem
        for nth in range(12):
            with executions() as seen:
                await exec_agent(payer(), "go", hooks=lacks_it.hooks(), operation_id=f"op{nth}")
            denied = [(made.id, "denied", made.revision)] if is_drawn(made.id, f"op{nth}", 50) else []
            assert [(each.hook_id, each.status, each.revision) for each in seen] == denied


async def test_a_definition_without_a_scope_is_stored_as_earlier_versions_can_read_it(registry: Registry) -> None:
    from hookline.registry._revisions import encode_definition

    plain = msgspec.json.decode(encode_definition(await registry.create(definition())))

    assert not {"percent", "agents", "operationTags", "tenants", "environments", "mode"} & set(plain)
