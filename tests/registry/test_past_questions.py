"""What a policy would have decided about stored model calls, runs and sub-agents is what it decides in a run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from hookline import Agent, AgentSession, ModelResponse, ScriptedModel, ToolRequest, Usage, exec_agent
from hookline.registry import Backtest, HookDefinition, Registry
from hookline.runtime import AdapterRun, Capabilities, Compaction
from hookline.signals import HookExecution, hook_executed
from hookline.store import SqlStore, _past_conversations, _past_events, events, operations
from tests.databases import on_sqlite

from .past_conversations import MODULE, LiveDecisions, decisions_in, run_random_conversation, shorten
from .past_runs import pay
from .scenes import definition
from .test_backtest import READ_AT_ONCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[MODULE]) as registry:
        yield registry


def made_by(handler: str, *, id: str = "policy", **fields: Any) -> HookDefinition:  # noqa: A002
    return definition(id=id, handler=f"{MODULE}:{handler}", **fields)


def gaps(found: Backtest) -> dict[str, int]:
    return {each.reason: each.calls for each in found.gaps}


IN_SHADOW = (
    *("ModelCall.before", "ModelCall.after", "AgentCall.after", "SubAgentCall.after"),
    *("StepCall.after", "CompactCall.guard", "CompactCall.after"),
)


# Which events are read depends on the kind of the call and, for two of them, on the point. All of these are read from
# both databases; at which other points a hook judges a call, and how, is the same Python for both. Hooks in the shadow
# change nothing, so that all of them judge the same runs.
@pytest.mark.parametrize(
    ("dialect", "points", "mode"),
    [
        ("sqlite", IN_SHADOW, "shadow"),
        ("postgresql", IN_SHADOW, "shadow"),
        ("sqlite", ("ModelCall.guard",), "enforce"),
        ("sqlite", ("AgentCall.guard",), "enforce"),
        ("postgresql", ("AgentCall.guard",), "enforce"),
    ],
)
async def test_verdicts_on_the_past_are_those_of_the_run(
    store: SqlStore, registry: Registry, monkeypatch: pytest.MonkeyPatch, points: Sequence[str], mode: str
) -> None:
    monkeypatch.setattr(_past_events, "MOST_OPERATIONS", 3)
    chance = random.Random(f"{points} {mode}")
    policies = {
        point: made_by("judging", id=point, point=point, config={"seed": 3}, mode=mode, inherit=True)
        for point in points
    }
    lives = {point: LiveDecisions(point, point.partition(".")[0]) for point in points}
    with ExitStack() as listening:
        for live in lives.values():
            listening.enter_context(live)
        for nth in range(10):
            hooks = [registry._builder.build_new(policy) for policy in policies.values()]
            await run_random_conversation(store, chance, hooks, f"op{nth}", steps=6)

    for read_at_once, point in product(READ_AT_ONCE, points):
        monkeypatch.setattr(_past_events, "MOST_EVENTS", read_at_once)
        monkeypatch.setattr(_past_conversations, "MOST_MESSAGES", read_at_once)
        found, live = await registry.backtest(policies[point], examples=10_000), lives[point]

        past = decisions_in(found)
        assert past <= live.found, (point, read_at_once)
        assert found.calls > 0, (point, read_at_once)
        assert (live.found - past).total() <= found.not_judged, (point, read_at_once, gaps(found))
        assert live.calls <= found.calls + found.not_judged, (point, read_at_once, gaps(found))


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(
        [("ModelCall.guard", "enforce"), ("ModelCall.before", "shadow"), ("AgentCall.guard", "enforce")],
    ),
    st.integers(1, 12),
)
def test_whatever_runs_did_the_verdicts_are_the_same(seed: int, where: tuple[str, str], steps: int) -> None:
    point, mode = where

    async def run() -> None:
        async with SqlStore("sqlite:///:memory:") as store, Registry(store, modules=[MODULE]) as registry:
            chance = random.Random(seed)
            judged = made_by("judging", point=point, config={"seed": seed}, mode=mode, inherit=True)
            with LiveDecisions("policy", point.partition(".")[0]) as live:
                for nth in range(3):
                    hooks = registry._builder.build_new(judged)
                    await run_random_conversation(store, chance, [hooks], f"op{nth}", steps=steps)
            found = await registry.backtest(judged, examples=10_000)
            past = decisions_in(found)
            assert past <= live.found
            assert live.calls == found.calls + found.not_judged, gaps(found)
            if not found.not_judged:
                assert past == live.found

    asyncio.run(run())


def make_forgetful_agent(chance: random.Random) -> Agent:
    """Make an agent that pays in each step, and whose conversation is compacted every few steps."""
    turns = [
        ModelResponse(content=f"step {nth}", tool_calls=[ToolRequest("pay", {"amount": chance.randrange(1, 9)})])
        for nth in range(12)
    ]
    return Agent(
        id="clerk",
        model=ScriptedModel([*turns, "done"]),
        tools=[pay],
        instructions="Be kind.",
        compaction=Compaction(max_tokens=30, summarize=shorten, keep_last=2),
    )


async def test_model_calls_before_a_summary_are_judged_with_the_messages_of_their_time(
    store: SqlStore, registry: Registry
) -> None:
    policies = {
        point: made_by("judging", id=point, point=point, config={"seed": 4}, mode="shadow")
        for point in ("ModelCall.guard", "ModelCall.after")
    }
    lives = {point: LiveDecisions(point, "ModelCall") for point in policies}
    with ExitStack() as listening:
        for live in lives.values():
            listening.enter_context(live)
        for nth in range(3):
            hooks = [registry._builder.build_new(policy) for policy in policies.values()]
            await exec_agent(
                make_forgetful_agent(random.Random(nth)), "go", operation_id=f"op{nth}", store=store, hooks=hooks
            )
    async with store.reading() as connection:
        query = select(events.c.operation_id).where(events.c.type == "afterCompact")
        assert len((await connection.execute(query)).all()) > 6

    for point, policy in policies.items():
        found, live = await registry.backtest(policy, examples=10_000), lives[point]

        assert gaps(found) == {}, point
        assert found.calls == live.calls == 39, point
        assert decisions_in(found) == live.found, point
        assert live.found, point


async def test_model_calls_before_a_summary_are_not_judged_if_their_messages_are_deleted(
    store: SqlStore, registry: Registry
) -> None:
    await exec_agent(make_forgetful_agent(random.Random(1)), "go", operation_id="op", store=store)
    async with store.writing() as connection:
        [layout] = (await connection.execute(select(operations.c.layout))).scalars()
        older = msgspec.json.encode(msgspec.json.decode(layout)[:6])  # as versions before wrote it
        await connection.execute(update(operations).values(layout=older))

    found = await registry.backtest(made_by("judging", point="ModelCall.guard", config={"seed": 4}))

    assert found.calls + found.not_judged == 13
    assert gaps(found) == {"A summary has replaced the messages of the time.": found.not_judged}
    assert found.calls > 0


@on_sqlite
async def test_hooks_with_a_state_and_hooks_that_answer_decide_as_in_the_run(
    store: SqlStore, registry: Registry
) -> None:
    chance = random.Random(5)
    config = {"seed": 1, "changes": True, "counts": True}
    judged = made_by("judging", point="ModelCall.before", config=config, inherit=False)
    with LiveDecisions("policy", "ModelCall") as live:
        for nth in range(8):
            hooks = registry._builder.build_new(judged)
            await run_random_conversation(store, chance, [hooks], f"op{nth}", steps=9, guided=False, compacted=False)

    found = await registry.backtest(judged, examples=1000)

    assert {verdict for _, _, verdict, _ in live.found} >= {"denied", "mocked", "failed"}
    assert decisions_in(found) == live.found
    assert (found.calls, found.not_judged) == (live.calls, 0)


@on_sqlite
async def test_hooks_of_tools_see_what_models_were_asked_before(store: SqlStore, registry: Registry) -> None:
    chance = random.Random(2)
    judged = made_by("together", point="ToolCall.guard", config={"seed": 1})
    live: dict[str, str] = {}

    def hear(sender: object, execution: HookExecution) -> None:
        if execution.hook_type == "ToolCall" and execution.hook_id == "policy" and execution.decision == "denied":
            live.setdefault(f"{execution.operation_id} {execution.tool_call_id}", execution.reason)

    with hook_executed.connected_to(hear):
        for nth in range(6):
            hooks = registry._builder.build_new(judged)
            await run_random_conversation(store, chance, [hooks], f"op{nth}", steps=5, guided=False, compacted=False)

    found = await registry.backtest(judged, examples=1000)

    past = {f"{each.operation_id} {each.tool_call_id}": each.reason for each in found.examples if each.kind == "denied"}
    assert len(live) > 3
    assert past == live


@on_sqlite
async def test_a_hook_that_uses_what_is_not_stored_sees_no_default(store: SqlStore, registry: Registry) -> None:
    await exec_agent(Agent(id="a", model=ScriptedModel(["hello"])), "hi", store=store)

    for (point, field), quiet in product(
        [
            ("ModelCall.guard", "settings"),
            ("ModelCall.before", "tools"),
            ("ModelCall.after", "finish_reason"),
            ("ModelCall.after", "response_id"),
            ("ModelCall.after", "cost_known"),
            ("AgentCall.guard", "tools"),
        ],
        [False, True],
    ):
        found = await registry.backtest(made_by("reading", point=point, config={"field": field, "quiet": quiet}))

        holder = "ModelResponse" if point.endswith("after") else point.partition(".")[0]
        reason = f"The hook uses `{holder}.{field}`, which no store keeps."
        assert gaps(found) == {reason: 1}, (point, field, quiet)
        assert (found.calls, found.failed, found.not_judged) == (0, 0, 1), (point, field, quiet)


@on_sqlite
async def test_a_hook_sees_the_other_fields(store: SqlStore, registry: Registry) -> None:
    await exec_agent(Agent(id="a", model=ScriptedModel(["hello"])), "hi", store=store)

    for field in ("messages", "model", "step_index", "user_id"):
        found = await registry.backtest(made_by("reading", point="ModelCall.guard", config={"field": field}))

        assert (found.passed, found.not_judged) == (1, 0), field


@on_sqlite
async def test_a_changed_call_is_counted_with_what_was_asked(store: SqlStore, registry: Registry) -> None:
    await exec_agent(Agent(id="a", model=ScriptedModel(["hello"])), "hi", store=store, operation_id="op")

    found = await registry.backtest(made_by("rewriting", point="ModelCall.before"))
    redacted = await registry.backtest(
        definition(point="ModelCall.after", handler="redact", config={"patterns": ["email"]})
    )

    assert found.changed == 1
    [example] = found.examples
    assert (example.call, example.step_index, example.text, example.tool) == ("ModelCall", 0, "hi", "")
    assert (redacted.calls, redacted.passed, redacted.not_judged) == (2, 2, 0)  # the model call and the run


async def test_a_budget_of_an_operation_is_judged_by_what_its_calls_took(store: SqlStore, registry: Registry) -> None:
    turns = [
        ModelResponse(tool_calls=[ToolRequest("pay", {"amount": nth})], usage=Usage(input_tokens=30, cost_usd=0.01))
        for nth in range(1, 5)
    ]
    agent = Agent(id="a", model=ScriptedModel([*turns, "done"]), tools=[pay])
    await exec_agent(agent, "hi", store=store, operation_id="op")

    async def denied(**config: Any) -> list[int | None]:
        found = await registry.backtest(definition(point="ModelCall.guard", handler="budget", config=config))
        assert found.not_judged == 0, gaps(found)
        return [each.step_index for each in found.examples if each.kind == "denied"]

    assert await denied(tokens=60) == [2, 3, 4]
    assert await denied(cost_usd=0.03) == [3, 4]
    assert await denied(tokens=100, per="operation", reserve_tokens=40) == [3, 4]
    assert await denied(cost_usd=0.05, per="operation", reserve_usd=0.02) == [4]
    unpriced = await registry.backtest(
        definition(point="ModelCall.guard", handler="budget", config={"tokens": 100, "per": "operation"})
    )
    assert unpriced.calls == 0
    assert gaps(unpriced) == {
        "The hook uses `ModelCall.settings`, which no store keeps.": 1,
        "The budget misses a call of the operation that could not be judged.": 4,
    }


async def test_a_budget_is_not_judged_beyond_the_call_of_a_sub_agent(store: SqlStore, registry: Registry) -> None:
    helper = Agent(id="helper", model=ScriptedModel(["helped"]))
    turns: list[Any] = [ToolRequest("helper", {"instruction": "help"}, toolset="agent"), "done"]
    boss = Agent(id="boss", model=ScriptedModel(turns), sub_agents=[helper])
    await exec_agent(boss, "go", operation_id="op", store=store)

    found = await registry.backtest(definition(point="ModelCall.guard", handler="budget", config={"tokens": 5}))

    assert (found.calls, found.passed) == (1, 1)
    assert gaps(found) == {"A sub-agent spends of the same budget, and operations are judged one by one.": 2}


async def test_runs_of_other_frameworks_and_broken_states_are_counted(store: SqlStore, registry: Registry) -> None:
    async with AdapterRun([], Capabilities(framework="other"), store=store, operation_id="other") as run:
        run.begin_step()
        run.asked_model(ModelResponse(content="hello"))
    await exec_agent(Agent(id="a", model=ScriptedModel(["hello"])), "hi", store=store, operation_id="broken")
    async with store.writing() as connection:
        its = operations.c.operation_id == "broken"
        await connection.execute(update(operations).where(its).values(state=b"{"))

    found = await registry.backtest(definition(point="ModelCall.guard"))

    assert (found.calls, found.operations) == (0, 2)
    assert gaps(found) == {
        "Another framework keeps the conversation of the run.": 1,
        "The state of the operation cannot be read by this version of hookline.": 1,
    }


async def test_a_session_judges_the_input_of_each_task(store: SqlStore, registry: Registry) -> None:
    agent = Agent(id="a", model=ScriptedModel(["one", "two"]), instructions="Be kind.")
    async with AgentSession(agent, store=store) as session:
        await session.run("first")
        await session.run("second")

    found = await registry.backtest(definition(point="AgentCall.guard"))
    models = await registry.backtest(definition(point="ModelCall.guard"))

    assert sorted(each.text for each in found.examples) == ["first", "second"]
    assert (found.not_judged, models.denied, models.not_judged) == (0, 2, 0)
