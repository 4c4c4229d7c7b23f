"""Sums over what hooks did are those of all that happened, whoever wrote them and however they are asked for."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    Agent,
    Ask,
    Chain,
    Deny,
    Hooks,
    ScriptedModel,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.errors import HookUsageError
from hookline.events import AfterToolCall
from hookline.registry import ExecutionLog, Grouping, Statistic
from hookline.registry._statistics import COUNTS, HookTotals, duration_step, step_middle
from hookline.store import SqlStore
from hookline.store._tables import grouped_statistics, statistics

from .test_logs import execution, ran, tell, terminal
from .test_logs_faults import count

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def log(store: SqlStore) -> AsyncIterator[ExecutionLog]:
    async with ExecutionLog(store) as log:
        yield log


GROUPED: tuple[Grouping, ...] = ("hook", "agent", "tool", "agent,tool")


def counts(found: list[Statistic], field: str) -> dict[Any, tuple[int, ...]]:
    return {getattr(each, field): (each.count, each.errors, each.denied, each.timeouts, each.dropped) for each in found}


async def test_they_are_added_up_by_hooks_points_tenants_and_minutes(log: ExecutionLog) -> None:
    now = time.time_ns()
    fields = {"time_unix_nano": now}
    tell(
        ran(execution("a"), execution("b", "denied"), **fields),
        ran(execution("a", "error"), execution("a", "timeout"), execution("c", "dropped"), **fields),
        ran(execution("a", "mocked"), point="StepCall", **fields),
        ran(execution("a"), tenant_id="other", **fields),
    )
    await log.flush()

    assert counts(await log.statistics("t"), "hook_id") == {
        "a": (4, 1, 0, 1, 0),
        "b": (1, 0, 1, 0, 0),
        "c": (0, 0, 0, 0, 1),
    }
    assert counts(await log.statistics("t", by="point"), "point") == {
        "ToolCall": (4, 1, 1, 1, 1),
        "StepCall": (1, 0, 0, 0, 0),
    }
    assert counts(await log.statistics(None, by="tenant"), "tenant_id") == {
        "t": (5, 1, 1, 1, 1),
        "other": (1, 0, 0, 0, 0),
    }
    assert counts(await log.statistics("t", by="tenant", hook_id="a", point="ToolCall"), "tenant_id") == {
        "t": (3, 1, 0, 1, 0)
    }
    [minute] = await log.statistics("t", by="minute")
    assert minute.minute is not None
    assert minute.minute % 60 == 0
    assert minute.minute <= now / 1e9 + 1 < minute.minute + 62
    assert await log.statistics("nobody") == []


async def test_decisions_are_told_apart_for_enforced_and_for_shadow_hooks(log: ExecutionLog) -> None:
    now = time.time_ns()
    decisions: list[tuple[str, dict[str, Any]]] = [
        ("denied", {"decision": "denied", "error": "no", "reason": "no"}),
        ("denied", {"decision": "asked", "error": "sure?", "reason": "sure?"}),
        ("mocked", {"decision": "mocked"}),
        ("ok", {"decision": "changed"}),
        ("ok", {"decision": "continued", "reason": "go on"}),
        ("error", {"decision": "denied", "error": "KeyError: 'a'", "reason": "the hook failed: KeyError: 'a'"}),
        ("ok", {}),
    ]
    for status, fields in decisions:
        tell(ran(execution("a", status, **fields), time_unix_nano=now))
        tell(ran(execution("a", "shadow", **fields), time_unix_nano=now))
    tell(ran(execution("a", "shadow", error="KeyError: 'a'"), time_unix_nano=now))
    await log.flush()

    [found] = await log.statistics("t")
    names = ("denied", "asked", "mocked", "changed", "continued")
    assert (found.count, found.shadow) == (15, 8)
    assert [getattr(found, name) for name in names] == [1, 1, 1, 1, 1]
    assert [getattr(found, f"shadow_{name}") for name in names] == [1, 1, 1, 1, 1]
    assert (found.errors, found.timeouts, found.shadow_failed) == (1, 0, 2)


async def test_they_are_added_up_by_agents_and_by_tools(log: ExecutionLog) -> None:
    now = time.time_ns()
    refund, look = {"agent_id": "clerk", "tool": "bank/refund"}, {"agent_id": "clerk", "tool": "local/look"}
    no = {"decision": "denied", "error": "no", "reason": "no"}
    tell(
        ran(execution("a", "denied", **no), execution("b"), time_unix_nano=now, **refund),
        ran(execution("a", "shadow", **no), time_unix_nano=now, **refund),
        ran(execution("a"), time_unix_nano=now, **look),
        ran(execution("a"), time_unix_nano=now, point="ModelCall", agent_id="clerk"),
        ran(execution("a"), time_unix_nano=now, tenant_id="other", agent_id="guard", tool="local/look"),
        ran(execution("a"), time_unix_nano=now),
    )
    await log.flush()

    assert counts(await log.statistics("t", by="tool"), "tool") == {
        "bank/refund": (3, 0, 1, 0, 0),
        "local/look": (1, 0, 0, 0, 0),
    }
    [refunds, looks] = await log.statistics("t", by="tool", hook_id="a")
    assert (refunds.tool, refunds.count, refunds.denied, refunds.shadow, refunds.shadow_denied) == (
        *("bank/refund", 2, 1),
        *(1, 1),
    )
    assert (looks.tool, looks.count, looks.shadow_denied) == ("local/look", 1, 0)
    assert counts(await log.statistics("t", by="agent"), "agent_id") == {
        "clerk": (5, 0, 1, 0, 0),
        "": (1, 0, 0, 0, 0),
    }
    assert counts(await log.statistics(None, by="agent", point="ModelCall"), "agent_id") == {
        "clerk": (1, 0, 0, 0, 0),
    }
    assert {each.agent_id for each in await log.statistics("other", by="agent")} == {"guard"}
    pairs = await log.statistics(None, by="agent,tool", hook_id="a")
    assert [(each.agent_id, each.tool, each.count, each.denied, each.shadow_denied) for each in pairs] == [
        ("clerk", "bank/refund", 2, 1, 1),
        ("clerk", "local/look", 1, 0, 0),
        ("guard", "local/look", 1, 0, 0),
    ]


async def test_names_of_agents_and_tools_stay_apart_in_their_pairs(log: ExecutionLog) -> None:
    now = time.time_ns()
    given = [
        ("", "a/b"),
        ("a", "\x1fb"),
        ("a\x1f", "b"),
        ("a", "b"),
        ("ü" * 300, "☃" * 300),
        ("*", "b"),
        ("n\0", "\ud800"),
    ]
    for nth, (agent_id, tool_name) in enumerate(given):
        tell(*(ran(time_unix_nano=now, agent_id=agent_id, tool=tool_name) for _ in range(nth + 1)))
    await log.flush()

    found = {each.count: (each.agent_id, each.tool) for each in await log.statistics("t", by="agent,tool")}

    assert found == {
        1: ("", "a/b"),
        2: ("a", "\ufffdb"),
        3: ("a\ufffd", "b"),
        4: ("a", "b"),
        5: (f"{'ü' * 98}…", f"{'☃' * 98}…"),
        6: ("*", "b"),
        7: ("n\ufffd", "?"),
    }


async def test_pairs_beyond_a_number_are_counted_together(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.registry._statistics.MOST_PAIRS", 2)
    async with ExecutionLog(store) as log:
        now = time.time_ns()
        tell(*(ran(time_unix_nano=now, agent_id=f"agent{nth}", tool="x/y") for nth in range(5)))
        await log.flush()
        found = await log.statistics("t", by="agent,tool")

    assert [(each.agent_id, each.tool, each.count) for each in found] == [
        ("*", "*", 3),
        ("agent0", "x/y", 1),
        ("agent1", "x/y", 1),
    ]


async def test_calls_events_and_sub_agents_of_a_run_are_counted_for_their_agent_and_tool(store: SqlStore) -> None:
    @tool
    async def pay(amount: int) -> str:
        """Pay somebody."""
        return "paid"

    hooks = Hooks("h")
    hooks.guard(ToolCall, id="guard")(lambda call: None)
    hooks.after(ToolCall, id="after", wait=False)(lambda call, result: None)
    hooks.before(SubAgentCall, id="calls")(lambda call: None)
    hooks.on(AfterToolCall, id="hears")(lambda event: None)
    shadow = Hooks("shadow", shadow=True)
    shadow.guard(ToolCall, id="shadow")(lambda call: Deny("no"))
    helper = Agent(id="helper", model=ScriptedModel(["ok"]))
    turns = [ToolRequest("pay", {"amount": 1}), ToolRequest("helper", {"instruction": "x"}, toolset="agent"), "done"]
    agent = Agent(id="boss", model=ScriptedModel(turns), tools=[pay], sub_agents=[helper])
    async with ExecutionLog(store, observers=True) as log:
        await exec_agent(agent, "go", hooks=[hooks, shadow])
        await log.flush()

        for id_, tool_name in {
            **dict.fromkeys(("guard", "after", "hears", "shadow"), "local/pay"),
            "calls": "agent/helper",
        }.items():
            found = await log.statistics(None, by="tool", hook_id=id_)
            assert [(each.tool, each.count) for each in found] == [(tool_name, 1)], id_
            found = await log.statistics(None, by="agent", hook_id=id_)
            assert [(each.agent_id, each.count) for each in found] == [("boss", 1)], id_
        [row] = (await log.logs(None, hook_id="guard")).items

    assert (row.agent_id, row.tool) == ("boss", "local/pay")


async def test_agents_and_tools_beyond_a_number_are_counted_together(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.registry._statistics.MOST_NAMES", 3)
    async with ExecutionLog(store) as log:
        for _ in range(2):
            now = time.time_ns()
            tell(*(ran(time_unix_nano=now, agent_id=f"agent{nth}", tool="x" * 300) for nth in range(5)))
            await log.flush()
        found = await log.statistics("t", by="agent")

        assert {each.agent_id: each.count for each in found} in (
            {"agent0": 2, "agent1": 2, "agent2": 2, "*": 4},
            {f"agent{nth}": 2 for nth in range(3)} | {"*": 4},
        )
        assert [each.count for each in await log.statistics("t", by="tool")] == [10]
        assert await count(store, grouped_statistics) <= 2 * (4 + 1 + 5)


async def test_groups_add_up_to_the_same_as_hooks_and_are_pruned_with_the_hours(log: ExecutionLog) -> None:
    now, chance, told = int(time.time()) // 3600 * 3600 + 60, random.Random(4), 0
    for _ in range(300):
        at = now - chance.randrange(40) * 86_400
        status = chance.choice(("ok", "error", "denied", "timeout", "dropped"))
        told += status != "dropped"
        names = {"agent_id": chance.choice("AB"), "tool": chance.choice(("x/1", "x/2"))}
        tell(ran(execution(chance.choice("ab"), status), time_unix_nano=at * 10**9, **names))
    await log.flush()
    await log.prune()  # else the log might do it by itself between two of the queries

    for since in (None, now - 86_400 * 3):
        sums = [
            {name: sum(getattr(each, name) for each in found) for name in COUNTS}
            for found in [await log.statistics("t", since=since, by=by) for by in GROUPED]
        ]
        assert sums[0] == sums[1] == sums[2] == sums[3]
    left = [sum(each.count for each in await log.statistics("t", by=by)) for by in GROUPED]
    assert left[0] == left[1] == left[2] == left[3]
    assert 0 < left[0] < told


async def test_a_real_denial_in_the_shadow_counts_as_one_and_a_failure_as_a_failure(log: ExecutionLog) -> None:
    def fail(call: ToolCall) -> None:
        raise KeyError("a")

    shadow = Hooks("shadow", shadow=True)
    shadow.guard(ToolCall, id="denies")(lambda call: Deny("no"))
    shadow.guard(ToolCall, id="asks")(lambda call: Ask("sure?"))
    failing = Hooks("failing", shadow=True)
    failing.guard(ToolCall, id="fails")(fail)
    for bundle in (shadow, failing):
        await Chain([bundle]).run(ToolCall(operation_id="op", toolset="bank", tool_name="pay"), terminal)
    await log.flush()

    found = {each.hook_id: each for each in await log.statistics(None)}
    assert {
        id_: (one.shadow, one.shadow_denied, one.shadow_asked, one.shadow_failed) for id_, one in found.items()
    } == {"denies": (1, 1, 0, 0), "asks": (1, 0, 1, 0), "fails": (1, 0, 0, 1)}


async def test_the_busiest_hook_comes_first_and_minutes_in_order(log: ExecutionLog) -> None:
    now = time.time_ns()
    for minutes, hook_id in ((0, "a"), (30, "b"), (1, "b"), (2, "b"), (3, "c"), (50, "c")):
        tell(ran(execution(hook_id), time_unix_nano=now - minutes * 60 * 10**9))
    await log.flush()

    assert [each.hook_id for each in await log.statistics("t")] == ["b", "c", "a"]
    minutes = [each.minute for each in await log.statistics("t", by="minute")]
    assert len(minutes) == 6
    assert minutes == sorted(minutes)


async def test_since_is_exact_to_the_minute_within_the_log_and_to_the_hour_before(log: ExecutionLog) -> None:
    now = int(time.time()) // 3600 * 3600 + 1800
    for minutes in range(200):
        tell(ran(time_unix_nano=(now - minutes * 60) * 10**9))
    tell(ran(time_unix_nano=(now - 100 * 3600) * 10**9))
    await log.flush()

    async def since(seconds: float) -> int:
        return sum(each.count for each in await log.statistics("t", since=now - seconds))

    assert await since(0) == 1
    assert await since(59) == 2
    assert [await since(minutes * 60) for minutes in (5, 29, 30, 31, 90, 199)] == [6, 30, 31, 32, 91, 200]
    assert await since(99 * 3600) == 200
    assert await since(100 * 3600 - 60) == await since(100 * 3600) == 201
    assert sum(each.count for each in await log.statistics("t")) == 201
    assert sum(each.count for each in await log.statistics("t", by="minute", since=now - 600)) == 11


async def test_the_sums_of_hours_are_those_of_their_minutes(log: ExecutionLog) -> None:
    now, chance = int(time.time()), random.Random(3)
    statuses = ("ok", "ok", "error", "denied", "timeout", "dropped")
    for _ in range(400):
        at = now - chance.randrange(20 * 3600)
        its = execution(chance.choice("ab"), chance.choice(statuses), duration_ms=chance.random() * 9)
        tell(ran(its, time_unix_nano=at * 10**9, point=chance.choice(("ToolCall", "StepCall"))))
    await log.flush()

    for which in ({}, {"hook_id": "a"}, {"point": "StepCall"}, {"hook_id": "b", "point": "ToolCall"}):
        first = (now - 30 * 3600) // 3600 * 3600
        minutes = await log.statistics("t", since=first, by="minute", **which)
        hours = await log.statistics("t", since=first, by="hour", **which)
        added: Counter[tuple[int, str]] = Counter()
        for each in minutes:
            assert each.minute is not None
            added.update({(each.minute // 3600 * 3600, name): getattr(each, name) for name in COUNTS})
        starts = [each.hour for each in hours]
        assert starts == sorted({start for start, _ in added})
        assert {(each.hour, name): getattr(each, name) for each in hours for name in COUNTS} == dict(added)
        assert all(each.p50_ms <= each.p95_ms <= each.p99_ms <= 9.5 for each in hours)
        assert all(each.minute is None and each.hook_id is None for each in hours)


async def test_hours_go_back_a_day_and_minutes_an_hour_unless_a_time_is_given(log: ExecutionLog) -> None:
    now = int(time.time()) // 3600 * 3600 + 1800
    for hours in range(40):
        tell(ran(time_unix_nano=(now - hours * 3600) * 10**9))
    await log.flush()

    by_hour = await log.statistics("t", by="hour")
    by_minute = await log.statistics("t", by="minute")
    week = await log.statistics("t", by="hour", since=now - 7 * 86_400)

    # The hour of the beginning is whole, and the clock may be in the next hour by now.
    assert len(by_hour) in (24, 25)
    assert by_hour[-1].hour == now // 3600 * 3600
    assert len(by_minute) <= 2
    assert [each.count for each in week] == [1] * 40


@given(st.lists(st.floats(1e-6, 1e8), min_size=1, max_size=200))
def test_percentiles_are_exact_to_five_percent(durations: list[float]) -> None:
    total = HookTotals(count=len(durations), durations=Counter(map(duration_step, durations)))

    for part in (0.5, 0.95, 0.99):
        exact = sorted(durations)[math.ceil(part * len(durations)) - 1]
        assert total.percentile(part) == pytest.approx(exact, rel=0.05)


@given(st.floats(0, 1e12))
def test_a_step_holds_what_is_near_its_middle(duration: float) -> None:
    step = duration_step(duration)

    assert 0 <= step <= 500
    assert step_middle(step) == pytest.approx(duration, rel=0.05, abs=1e-6)


async def test_writing_again_and_again_and_from_several_processes_adds_up(store: SqlStore) -> None:
    for _ in range(3):
        async with ExecutionLog(store) as log:
            now = time.time_ns()
            for _ in range(20):
                tell(ran(time_unix_nano=now))
                await log.flush()

    [statistic] = await log.statistics("t")
    assert statistic.count == 60
    assert await count(store, statistics) <= 3 * 4


async def test_sums_that_memory_does_not_keep_add_up_as_well(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.registry._statistics.MOST_SUMS", 5)
    async with ExecutionLog(store) as log:
        for nth in range(60):
            tell(ran(execution(f"hook{nth % 6}"), time_unix_nano=time.time_ns()))
            await log.flush()

        assert {each.count for each in await log.statistics("t")} == {10}


async def test_they_cost_the_same_however_many_rows_there_are(store: SqlStore) -> None:
    async with ExecutionLog(store, max_queued=10**6) as log:
        kept = []
        for _ in range(2):
            now = time.time_ns()
            tell(*(ran(execution(f"hook{nth % 3}"), time_unix_nano=now - nth * 1000) for nth in range(3000)))
            await log.flush()
            kept.append(await count(store, statistics))

    assert kept[0] <= 3 * 2
    assert kept[1] <= 3 * 4


async def test_reading_many_sums_leaves_the_loop_to_others(store: SqlStore) -> None:
    async with ExecutionLog(store, max_queued=10**6) as log:
        now = time.time_ns()
        tell(*(ran(execution(f"hook{nth}"), time_unix_nano=now - nth * 1000) for nth in range(5000)))
        await log.flush()

        reading = asyncio.create_task(log.statistics("t"))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1

    assert len(await reading) == 5000
    assert turns >= 10


async def test_questions_that_make_no_sense_are_refused(log: ExecutionLog) -> None:
    for which in ({"by": "week"}, {"since": math.nan}, {"since": "now"}):
        with pytest.raises(HookUsageError):
            await log.statistics(None, **which)  # type: ignore[arg-type]
