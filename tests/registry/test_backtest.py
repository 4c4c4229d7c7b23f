"""What a policy would have decided about stored calls is what it decides in a run."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from sqlalchemy import select, update

from hookline import Agent, Hooks, ScriptedModel, ToolRequest, exec_agent
from hookline.calls import Ask, ToolCall
from hookline.errors import HookUsageError
from hookline.evals.errors import DataFileError
from hookline.registry import (
    Backtest,
    BacktestAgreement,
    CallLabel,
    DefinitionError,
    DefinitionNotFoundError,
    HookDefinition,
    Registry,
    read_call_labels,
)
from hookline.registry.past import PastJudge
from hookline.runtime import Approve, Reject, resume_agent
from hookline.signals import hook_executed
from hookline.store import SqlStore, _past_events, events, operations
from hookline.webhooks import ControlAnswer, Envelope, Webhook
from tests.databases import on_sqlite
from tests.registry.past_runs import CALLS_SEEN, MODULE, LiveVerdicts, pay, refund, run_random_agent, verdicts_in
from tests.tables import for_each

from .scenes import definition
from .test_revisions import commit_calls

pytestmark = pytest.mark.anyio

READ_AT_ONCE = (4000, 7)
"""How many events are read together: all of some operations, or not even those of one."""


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, modules=[MODULE]) as registry:
        yield registry


def made_by(handler: str, **fields: Any) -> HookDefinition:
    return definition(id="policy", handler=f"{MODULE}:{handler}", **fields)


# At which point of a stored tool call a hook judges it, and how, is the same Python for both databases, and the same
# events are read for each: PostgreSQL gives back the calls of runs that a hook has stopped (`enforce`) and of others.
@pytest.mark.parametrize(
    ("dialect", "point", "handler", "mode"),
    [
        ("sqlite", "ToolCall.guard", "policy", "enforce"),
        ("postgresql", "ToolCall.guard", "policy", "enforce"),
        ("sqlite", "ToolCall.guard", "policy", "shadow"),
        ("sqlite", "ToolCall.before", "steering", "shadow"),
        ("postgresql", "ToolCall.before", "steering", "shadow"),
        ("sqlite", "ToolCall.after", "policy", "shadow"),
        ("sqlite", "ToolCall.after", "policy", "enforce"),
    ],
)
async def test_verdicts_on_stored_calls_are_those_of_the_run(
    store: SqlStore,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    handler: str,
    mode: str,
) -> None:
    monkeypatch.setattr(_past_events, "MOST_OPERATIONS", 3)
    chance = random.Random(f"{point} {mode}")
    judged = made_by(handler, point=point, config={"seed": 3}, mode=mode)
    with LiveVerdicts("policy") as live:
        for nth in range(7):
            await run_random_agent(store, chance, registry._builder.build_new(judged), f"op{nth}", calls=12)

    wanted = {call: verdict for call, verdict in live.found.items() if verdict[0] != "passed"}
    assert len(wanted) > 5
    for read_at_once in READ_AT_ONCE:
        monkeypatch.setattr(_past_events, "MOST_EVENTS", read_at_once)
        found = await registry.backtest(judged, examples=10_000)

        assert verdicts_in(found) == wanted, read_at_once
        assert found.calls == len(live.found), read_at_once
        assert (found.operations, found.ended_by) == (7, "end"), read_at_once


async def test_nothing_happens_but_the_judging(
    store: SqlStore, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    await run_random_agent(store, random.Random(1), Hooks("none"), "op", calls=6)
    before = await dump(store)
    heard: list[object] = []
    caplog.clear()

    def hear(sender: object, execution: object) -> None:
        heard.append(execution)

    with hook_executed.connected_to(hear):
        crashed = await registry.backtest(made_by("crashing"))
        CALLS_SEEN.clear()
        seen = await registry.backtest(made_by("seeing", mode="shadow"))

    assert (crashed.failed, seen.passed) == (6, 6)
    assert [each.operation_id for each in CALLS_SEEN] == ["op"] * 6
    assert heard == []
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert await dump(store) == before


async def dump(store: SqlStore) -> list[Any]:
    async with store.reading() as connection:
        return [
            (await connection.execute(select(table).order_by(*table.primary_key.columns))).all()
            for table in operations.metadata.sorted_tables
        ]


@on_sqlite
async def test_hooks_begin_anew_with_each_operation(store: SqlStore, registry: Registry) -> None:
    for nth in range(3):
        await commit_calls(store, f"op{nth}", "acme", "bank/pay", "bank/read", "bank/pay", at=time.time_ns())

    found = await registry.backtest(made_by("first_of_its_kind"))

    assert (found.calls, found.passed, found.denied, found.failed) == (9, 3, 6, 0)


@on_sqlite
async def test_the_hooks_of_an_operation_are_freed_without_the_garbage_collector(registry: Registry) -> None:
    async with PastJudge(registry._builder, made_by("crashing"), allow_webhooks=False) as judge:
        chain = weakref.ref(judge.build_chain())

        assert chain() is None


async def test_calls_are_counted_by_tenant_and_tool_and_a_tenant_sees_its_own(
    store: SqlStore, registry: Registry
) -> None:
    now = time.time_ns()
    await commit_calls(store, "a1", "acme", "bank/pay", "bank/pay", "mail/send", at=now)
    await commit_calls(store, "g1", "globex", "bank/pay", "web/x", at=now)
    await commit_calls(store, "i1", "initech", "bank/pay", at=now)
    denied = definition(handler="deny-tools", config={"tools": ["bank/*"]}, except_tenants=["initech"])

    everything = await registry.backtest(denied)
    acme = await registry.backtest(denied, tenant_id="acme")
    own = await registry.backtest(msgspec.structs.replace(denied, tenant_id="globex", except_tenants=[]))
    one_tool = await registry.backtest(denied, tool="pay")

    assert counts(everything) == {
        ("acme", "bank/pay"): (2, 2),
        ("globex", "bank/pay"): (1, 1),
        ("acme", "mail/send"): (1, 0),
        ("globex", "web/x"): (1, 0),
    }
    assert counts(acme) == {("acme", "bank/pay"): (2, 2), ("acme", "mail/send"): (1, 0)}
    assert {each.tenant_id for each in acme.examples} == {"acme"}
    assert counts(own) == {("globex", "bank/pay"): (1, 1), ("globex", "web/x"): (1, 0)}
    assert counts(one_tool) == {("acme", "bank/pay"): (2, 2), ("globex", "bank/pay"): (1, 1)}
    assert everything.notes == [
        "Its before hook of ModelCall did not take part: the tools that models were offered are not stored."
    ]
    stored = await registry.create(definition(tenant_id="globex"))
    with pytest.raises(DefinitionNotFoundError):
        await registry.backtest(stored.id, tenant_id="acme")
    other = await registry.backtest(definition(tenant_id="globex"), tenant_id="acme")
    assert (other.calls, other.operations) == (0, 0)


def counts(found: Backtest) -> dict[tuple[str, str], tuple[int, int]]:
    return {(each.tenant_id, each.tool): (each.calls, each.denied) for each in found.groups}


@on_sqlite
async def test_a_tool_that_is_not_counted_still_takes_part_in_what_a_hook_counts(
    store: SqlStore, registry: Registry
) -> None:
    await commit_calls(store, "op", "acme", "bank/read", "bank/pay", at=time.time_ns())

    found = await registry.backtest(definition(handler="limit-calls", config={"n": 1}), tool="pay")

    assert (found.calls, found.denied) == (1, 1)


async def test_only_operations_of_the_time_and_the_agent_are_looked_at(store: SqlStore, registry: Registry) -> None:
    now = time.time()
    for age in (10, 5, 1):
        await commit_calls(store, f"op{age}", "acme", "bank/pay", at=time.time_ns())
        async with store.writing() as connection:
            its = operations.c.operation_id == f"op{age}"
            await connection.execute(update(operations).where(its).values(created_at=now - age * 86_400))

    async def which(**options: Any) -> set[str]:
        return {each.operation_id for each in (await registry.backtest(definition(), **options)).examples}

    assert await which() == {"op10", "op5", "op1"}
    assert await which(since=now - 7 * 86_400) == {"op5", "op1"}
    assert await which(since=now - 7 * 86_400, until=now - 2 * 86_400) == {"op5"}
    assert await which(agent_id="agent") == {"op10", "op5", "op1"}
    assert await which(agent_id="another") == set()
    assert await which(limit=2) == {"op5", "op1"}
    assert (await registry.backtest(definition(), limit=2)).ended_by == "limit"
    assert (await registry.backtest(definition(), limit=3)).ended_by == "end"


async def test_a_hook_that_crashes_and_events_that_cannot_be_read_are_counted(
    store: SqlStore, registry: Registry
) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", "bank/read", "bank/pay", at=time.time_ns())
    async with store.writing() as connection:
        third = (events.c.operation_id == "op") & (events.c.number == 3)
        await connection.execute(update(events).where(third).values(wire=b'{"type":"beforeToolCall","apiName":7}'))

    crashed = await registry.backtest(made_by("crashing"))
    opened = await registry.backtest(made_by("crashing", on_error="open"))

    assert (crashed.calls, crashed.failed, crashed.denied, crashed.unreadable) == (2, 2, 0, 1)
    assert (crashed.fails_closed, opened.fails_closed, opened.failed) == (True, False, 2)
    failed, _ = (each for each in crashed.examples if each.kind == "failed")
    assert "a field of another version" in failed.error
    [unreadable] = (each for each in crashed.examples if each.kind == "unreadable")
    assert (unreadable.operation_id, unreadable.number) == ("op", 3)
    assert unreadable.error


@on_sqlite
async def test_a_hook_that_takes_too_long_is_stopped_as_in_a_run(store: SqlStore, registry: Registry) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", "bank/pay", at=time.time_ns())

    found = await registry.backtest(made_by("hanging", timeout=0.01))

    assert (found.calls, found.failed, found.timeouts) == (2, 2, 2)


@on_sqlite
async def test_the_whole_ends_in_time_and_when_it_is_cancelled(store: SqlStore, registry: Registry) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", at=time.time_ns())

    found = await registry.backtest(made_by("hanging"), timeout=0.05)
    assert (found.calls, found.ended_by) == (0, "timeout")

    with anyio.move_on_after(0.05) as scope:
        await registry.backtest(made_by("hanging"))
    assert scope.cancelled_caught


@on_sqlite
async def test_others_get_their_turn_while_plain_hooks_judge(store: SqlStore, registry: Registry) -> None:
    await commit_calls(store, "op", "acme", *["bank/pay"] * 1000, at=time.time_ns())
    judging = asyncio.create_task(registry.backtest(made_by("seeing"), on_progress=None))
    turns = 0
    CALLS_SEEN.clear()
    while not judging.done():
        await asyncio.sleep(0)
        turns += 0 < len(CALLS_SEEN) < 1000

    assert (await judging).calls == 1000
    assert turns


@on_sqlite
async def test_people_who_decided_agree_or_not(store: SqlStore, registry: Registry) -> None:
    asking = Hooks("asking")
    asking.guard(ToolCall, tool="pay")(lambda call: Ask("May it?"))
    turns = [[ToolRequest("pay", {"amount": amount}) for amount in (1, 2, 3, 4)], "done"]
    agent = Agent(id="clerk", model=ScriptedModel(turns), tools=[pay, refund])
    paused = await exec_agent(agent, "go", operation_id="op", hooks=[asking], store=store)
    ids = [each.tool_call_id for each in paused.pending]
    answers = [Approve(ids[0]), Approve(ids[1]), *(Reject(each, "no", and_continue=True) for each in ids[2:])]
    await resume_agent(agent, "op", answers, hooks=[asking], store=store)
    denies = definition(handler="deny-text", config={"texts": ["nothing"]})

    everything = await registry.backtest(definition())
    nothing = await registry.backtest(denies)
    asked = await registry.backtest(definition(handler="require-approval", config={"tools": ["pay"]}))
    after = await registry.backtest(made_by("policy", point="ToolCall.after", config={"seed": 5}))

    assert everything.people == BacktestAgreement(compared=4, agreed=2, false_alarms=2)
    assert [each.tool_call_id for each in everything.examples if each.kind == "falseAlarm"] == ids[:2]
    assert nothing.people == BacktestAgreement(compared=4, agreed=2, misses=2)
    assert [(each.tool_call_id, each.on) for each in nothing.examples] == [(each, "person") for each in ids[2:]]
    assert asked.people == BacktestAgreement(compared=4, asked=4)
    assert after.people.compared == 2  # those that ran


@on_sqlite
async def test_labels_say_what_is_a_false_alarm_and_what_a_miss(
    store: SqlStore, registry: Registry, tmp_path: Path
) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", "bank/read", "mail/send", at=time.time_ns())
    file = tmp_path / "labels.csv"
    file.write_text(
        "operation,call,label,by\n"
        "op,c0,deny,ann\nop,c1,allow,ann\nop,c2,deny,ann\n"
        "op,c1,Allowed,bob\nop,c1,deny,eve\ngone,c0,deny,ann\nop,c9,,ann\n"
    )
    labels = list(read_call_labels(file))

    found = await registry.backtest(definition(tool="bank/*"), labels=labels)
    without = await registry.backtest(definition(tool="bank/*"))
    mail = await registry.backtest(definition(handler="deny-tools", config={"tools": ["bank/read"]}), labels=labels)

    assert labels[0] == CallLabel(operation="op", call="c0", allowed=False, by="ann")
    assert len(labels) == 6
    assert found.labels == BacktestAgreement(compared=2, agreed=1, false_alarms=1)
    assert found.notes == ["2 of 4 labels are of calls that were not judged."]
    assert without.labels is None
    assert mail.labels == BacktestAgreement(compared=3, false_alarms=1, misses=2)
    assert {(each.kind, each.tool_call_id) for each in mail.examples if each.on == "label"} == {
        ("falseAlarm", "c1"),
        ("miss", "c0"),
        ("miss", "c2"),
    }


@for_each(
    "row, problem",
    [
        ('{"operation": "op", "call": "c0"}', "a label has a 'label'"),
        ('{"operation": "op", "call": "c0", "label": "maybe"}', "`label` is allow or deny"),
        ('{"operation": "", "call": "c0", "label": "deny"}', "`operation` is a text"),
        ('{"operation": "op", "call": 7, "label": "deny"}', "`call` is a text"),
    ],
)
async def test_a_row_that_is_no_label_is_refused_with_its_line(tmp_path: Path, row: str, problem: str) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text('{"operation": "op", "call": "c0", "label": "deny"}\n' + row)

    with pytest.raises(DataFileError, match=problem) as caught:
        list(read_call_labels(file))
    assert "2" in str(caught.value)


@on_sqlite
@for_each(
    "fields, reason",
    [
        ({"point": "afterToolCall", "handler": "log"}, "it observes events"),
        ({"handler": "log"}, "decides nothing"),
        ({"point": "RequestCall.guard", "handler": "deny"}, "requests are not stored"),
        ({"point": "MemoryCall.before", "handler": "deny"}, "writes to memory are not stored"),
        (
            {"handler": "budget", "config": {"calls": 5, "per": "operation", "window": "1d"}},
            "sub-agents count with the run that called them",
        ),
        (
            {"handler": "budget", "config": {"calls": 5, "per": "user", "on_limit": "ask"}},
            "whether a person would have allowed",
        ),
        ({"point": "ToolCall.around", "handler": f"{MODULE}:wrapping"}, "an `around` runs code around the call"),
        ({"handler": f"{MODULE}:with_observer"}, "also observes events"),
        ({"handler": f"{MODULE}:with_request_hook"}, "also has a guard hook of RequestCall"),
        (
            {"point": "beforeToolCall", "webhook": Webhook(url="https://example.com/x", control=True)},
            "allow that with `allow_webhooks`",
        ),
    ],
)
async def test_a_hook_that_cannot_be_judged_backwards_is_refused_with_the_reason(
    registry: Registry, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DefinitionError, match=reason) as caught:
        await registry.backtest(definition(**fields))

    assert caught.value.code == "not_judged"


@on_sqlite
async def test_the_receiver_of_a_control_is_asked_if_that_is_allowed(store: SqlStore, registry: Registry) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", "bank/read", at=time.time_ns())
    asked: list[str] = []

    async def decide(envelope: Envelope) -> ControlAnswer:
        asked.append(msgspec.json.decode(envelope.payload)["apiName"])
        return ControlAnswer(decision="deny" if asked[-1] == "pay" else "allow", reason="no")

    control = definition(point="beforeToolCall", webhook=Webhook(url="local://judge", control=True))
    delivery = registry._builder.make_delivery()
    async with delivery.serve("judge", decide):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry._builder, "make_delivery", lambda: delivery)
            found = await registry.backtest(control, allow_webhooks=True)

    assert asked == ["pay", "read"]
    assert (found.calls, found.denied, found.passed) == (2, 1, 1)


async def test_calls_of_sub_agents_and_steps_are_judged(store: SqlStore, registry: Registry) -> None:
    helper = Agent(id="helper", model=ScriptedModel(["helped"]))
    turns: Sequence[Any] = [ToolRequest("helper", {"instruction": "rm -rf"}, toolset="agent"), "done"]
    boss = Agent(id="boss", model=ScriptedModel(turns), sub_agents=[helper])
    await exec_agent(boss, "go", operation_id="op", store=store)

    called = await registry.backtest(
        definition(point="SubAgentCall.guard", handler="deny-text", config={"texts": ["rm -rf"]})
    )
    steps = await registry.backtest(definition(point="StepCall.guard"))
    own_steps = await registry.backtest(definition(point="StepCall.guard", inherit=False))

    assert [(each.tool, each.denied) for each in called.groups] == [("agent/helper", 1)]
    assert (steps.operations, steps.denied) == (2, 3)
    assert own_steps.denied == 2  # the operation of the sub-agent does not inherit the hook


@on_sqlite
async def test_the_tenants_and_agents_of_a_hook_are_respected_and_its_percentage_is_not(
    store: SqlStore, registry: Registry
) -> None:
    for tenant in ("acme", "globex", "initech"):
        helper = Agent(id="helper", model=ScriptedModel([ToolRequest("pay", {"amount": 1}), "helped"]), tools=[pay])
        turns: Sequence[Any] = [ToolRequest("helper", {"instruction": "pay"}, toolset="agent"), "done"]
        boss = Agent(id=f"boss-{tenant}", model=ScriptedModel(turns), sub_agents=[helper])
        await exec_agent(boss, "go", store=store, tenant_id=tenant)

    async def judged(**fields: Any) -> set[tuple[str, str]]:
        found = await registry.backtest(definition(**fields))
        return {(each.tenant_id, each.agent_id) for each in found.examples}

    assert await judged(tenants=["acme", "initech"]) == {("acme", "helper"), ("initech", "helper")}
    assert await judged(agents=["boss-a*"]) == {("acme", "helper")}
    assert await judged(agents=["nobody"]) == set()
    low = await registry.backtest(definition(percent=0.01, environments=["staging"]))
    assert low.denied == 3
    assert low.notes == ["Operations of all environments were judged, as if the hook were for 100 % of them."]


@on_sqlite
async def test_progress_is_told_while_operations_are_read(store: SqlStore, registry: Registry) -> None:
    for nth in range(201):
        await commit_calls(store, f"op{nth}", "acme", "bank/pay", at=time.time_ns())
    told: list[tuple[int, int]] = []

    await registry.backtest(definition(), on_progress=lambda found: told.append((found.operations, found.calls)))

    assert told == [(0, 0), (100, 100), (200, 200)]


@on_sqlite
@for_each("wrong", [{"limit": 0}, {"limit": True}, {"timeout": 0.0}, {"examples": -1}, {"since": float("nan")}])
async def test_numbers_that_make_no_sense_are_refused(registry: Registry, wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        await registry.backtest(definition(), **wrong)
