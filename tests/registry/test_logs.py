"""What hooks did is written down beside the run, found again by every filter, and kept from other tenants."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline import Agent, Chain, Deny, Hooks, ModelResponse, ScriptedModel, ToolCall, ToolResult, exec_agent
from hookline.calls import AgentCall
from hookline.errors import HookUsageError
from hookline.events import OnComplete
from hookline.registry import ExecutionLog, ExecutionRow, request_id
from hookline.signals import ChainRun, HookExecution, chain_ran, hook_executed
from hookline.store import SqlStore
from tests.databases import on_sqlite
from tests.tables import for_each

pytestmark = pytest.mark.anyio

TIME = 1_800_000_000 * 10**9


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def log(store: SqlStore) -> AsyncIterator[ExecutionLog]:
    async with ExecutionLog(store) as log:
        yield log


def execution(hook_id: str = "hook", status: Any = "ok", **fields: Any) -> HookExecution:
    fields = {"hook_type": "ToolCall", "operation_id": "op", "duration_ms": 1.0, "time_unix_nano": TIME} | fields
    return HookExecution(hook_id=hook_id, status=status, **fields)


def ran(*executions: HookExecution, **fields: Any) -> ChainRun:
    fields = {
        "point": "ToolCall",
        "operation_id": "op",
        "tenant_id": "t",
        "duration_ms": 1.0,
        "time_unix_nano": TIME,
        "executions": list(executions) or [execution()],
    } | fields
    return ChainRun(**fields)


def tell(*records: ChainRun) -> None:
    for record in records:
        chain_ran.send(None, ran=record)


async def found(log: ExecutionLog, tenant_id: str | None = None, limit: int = 1000, **which: Any) -> list[ExecutionRow]:
    """All that is found, page by page."""
    assert await log.flush()
    rows: list[ExecutionRow] = []
    cursor = None
    while True:
        page = await log.logs(tenant_id, cursor=cursor, limit=limit, **which)
        assert len(page.items) <= limit
        rows += page.items
        cursor = page.cursor
        if cursor is None:
            return rows


async def terminal(call: Any) -> ToolResult:
    return ToolResult(content="ran")


async def test_a_call_leaves_a_row_with_what_each_hook_did_and_who_denied_it(log: ExecutionLog) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, id="look")(lambda call: None)
    hooks.guard(ToolCall, id="stop")(lambda call: Deny("no"))
    call = ToolCall(tool_name="x", tenant_id="t", operation_id="op", step_index=3, tool_call_id="call_1")
    before = time.time()

    await Chain([hooks]).run(call, terminal)

    [row] = await found(log, "t")
    assert (row.operation_id, row.tenant_id, row.request_id, row.point) == ("op", "t", "op", "ToolCall")
    assert (row.status, row.denied_by, row.reason) == ("denied", "stop", "no")
    assert (row.step_index, row.tool_call_id) == (3, "call_1")
    assert [(run.hook_id, run.status, run.error) for run in row.executions] == [
        ("look", "ok", None),
        ("stop", "denied", "no"),
    ]
    assert before - 1 <= row.created_at <= time.time() + 1
    assert 0 <= sum(run.duration_ms for run in row.executions) <= row.duration_ms
    assert await log.log(row.id, "t") == await log.log(row.id, None) == row


async def test_a_run_of_an_agent_is_logged_with_the_request_that_caused_it(log: ExecutionLog) -> None:
    hooks = Hooks("h")
    hooks.before(AgentCall, id="in")(lambda call: None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="x")]))
    token = request_id.set("req-1")
    result = await exec_agent(agent, "hi", hooks=[hooks], tenant_id="t")
    request_id.reset(token)

    [row] = await found(log, "t")
    assert (row.operation_id, row.request_id, row.point) == (result.operation_id, "req-1", "AgentCall")


@on_sqlite
async def test_hooks_that_are_not_waited_for_disturb_neither_the_run_nor_the_log(log: ExecutionLog) -> None:
    hooks = Hooks("h")

    @hooks.before(AgentCall, id="slow", wait=False)
    async def slow(call: AgentCall) -> None:
        await asyncio.sleep(0.05)

    hooks.before(AgentCall, id="in")(lambda call: None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="x")]))

    result = await exec_agent(agent, "hi", hooks=[hooks], tenant_id="t")

    assert result.output == "x"
    [row] = await found(log, "t")
    assert "in" in {run.hook_id for run in row.executions}


async def test_what_no_tenant_may_see_of_another(log: ExecutionLog) -> None:
    tell(ran(tenant_id="a"), ran(tenant_id="b"), ran(tenant_id=""))

    [of_a] = await found(log, "a")
    assert [row.tenant_id for row in await found(log, "b")] == ["b"]
    assert [row.tenant_id for row in await found(log, "")] == [""]
    assert {row.tenant_id for row in await found(log, None)} == {"a", "b", ""}
    assert await log.log(of_a.id, "b") is None
    assert await log.log(of_a.id, "") is None
    for which in ({"hook_id": "hook"}, {"operation_id": "op"}, {"operation_id": "op", "hook_id": "hook"}):
        assert [row.tenant_id for row in await found(log, "a", **which)] == ["a"]


HOOK_IDS, POINTS, TENANTS, OPERATIONS = ("h", "i", "j"), ("ToolCall", "StepCall"), ("", "t", "u"), ("op", "ok")
STATUSES = ("ok", "error", "timeout", "denied", "mocked", "dropped")


@st.composite
def chain_runs(draw: st.DrawFn) -> ChainRun:
    # A hook has one revision in a call, and several hooks the same one if one change was about all of them.
    revisions = draw(st.fixed_dictionaries({name: st.sampled_from(REVISIONS) for name in HOOK_IDS}))
    ids = draw(st.lists(st.sampled_from(HOOK_IDS), min_size=1, max_size=3))
    executions = [execution(name, draw(st.sampled_from(STATUSES)), revision=revisions[name]) for name in ids]
    deniers = [each.hook_id for each in executions if each.status == "denied"]
    return ran(
        *executions,
        point=draw(st.sampled_from(POINTS)),
        tenant_id=draw(st.sampled_from(TENANTS)),
        operation_id=draw(st.sampled_from(OPERATIONS)),
        denied_by=deniers[0] if deniers else None,
        time_unix_nano=TIME + draw(st.integers(0, 20)) * 10**9,
    )


REVISIONS = (0, 1, 2)


def worst_of(row: ExecutionRow, hook_id: str) -> str:
    statuses = {run.status for run in row.executions if run.hook_id == hook_id}
    return next(status for status in ("denied", "error", "timeout", "dropped", "mocked", "ok") if status in statuses)


def applies(row: ExecutionRow, which: dict[str, Any]) -> bool:
    """What the filters mean, said once more."""
    hook_id, status, revision = which.get("hook_id"), which.get("status"), which.get("revision")
    hooks = {run.hook_id for run in row.executions if hook_id in (None, run.hook_id)}
    hooks &= {run.hook_id for run in row.executions if revision in (None, run.revision)}
    if not hooks:
        return False
    statuses = {row.status} if hook_id is revision is None else {worst_of(row, each) for each in hooks}
    if status is not None and status not in statuses:
        return False
    return (
        all(getattr(row, name) == which[name] for name in ("tenant_id", "point", "operation_id") if name in which)
        and row.created_at >= which.get("since", 0)
        and row.created_at < which.get("until", 1e12)
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(chain_runs(), max_size=30),
    which=st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "tenant_id": st.sampled_from(TENANTS),
                "hook_id": st.sampled_from(HOOK_IDS),
                "point": st.sampled_from(POINTS),
                "status": st.sampled_from(STATUSES),
                "operation_id": st.sampled_from(OPERATIONS),
                "revision": st.sampled_from((1, 2, 3)),
                "since": st.integers(0, 20).map(lambda second: TIME / 1e9 + second),
                "until": st.integers(0, 20).map(lambda second: TIME / 1e9 + second),
            },
        ),
        min_size=4,
        max_size=4,
    ),
    limit=st.integers(1, 40),
)
def test_every_page_shows_just_what_is_asked_for_newest_first(
    open_store: tuple[asyncio.Runner, SqlStore], records: list[ChainRun], which: list[dict[str, Any]], limit: int
) -> None:
    runner, store = open_store

    async def check() -> None:
        await emptied(store)
        async with ExecutionLog(store, retention_hours=1e6) as log:
            tell(*records)
            everything = await found(log)
            assert len(everything) == len(records)
            assert [row.id for row in everything] == sorted((row.id for row in everything), reverse=True)
            for each in which:
                expected = [row for row in everything if applies(row, each)]
                assert await found(log, **{"tenant_id": None, **each}, limit=limit) == expected

    runner.run(check())


@pytest.fixture
def open_store(database_url: str) -> Iterator[tuple[asyncio.Runner, SqlStore]]:
    """A store that stays open for all examples, and its loop."""
    with asyncio.Runner() as runner:
        store = SqlStore(database_url)
        runner.run(store.__aenter__())
        yield runner, store
        runner.run(store.aclose())


async def emptied(store: SqlStore) -> None:
    from sqlalchemy import delete

    from hookline.store._tables import execution_hooks, executions

    async with store.writing() as connection:
        await connection.execute(delete(executions))
        await connection.execute(delete(execution_hooks))


async def test_rows_that_end_in_the_same_microsecond_all_stay(log: ExecutionLog) -> None:
    tell(*(ran(operation_id=f"op{nth}") for nth in range(1000)))

    rows = await found(log, limit=7)

    assert len({row.id for row in rows}) == len(rows) == 1000
    assert log.dropped == 0


async def test_two_processes_that_pick_the_same_key_both_write(store: SqlStore) -> None:
    async with ExecutionLog(store) as one, ExecutionLog(store) as other:
        one._writer._spare, other._writer._spare = iter([5, 6]), iter([5, 6, 7, 8])  # type: ignore[assignment]
        tell(ran())
        assert await one.flush()
        assert await other.flush()

        assert len(await found(one)) == 2
        assert (one.dropped, other.dropped) == (0, 0)


@on_sqlite
async def test_observers_are_logged_on_request_only(store: SqlStore) -> None:
    hooks = Hooks("h")
    hooks.on(OnComplete, id="watch")(lambda event: None)
    hooks.before(AgentCall, id="in")(lambda call: None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="x")] * 2))
    async with ExecutionLog(store) as log:
        await exec_agent(agent, "hi", hooks=[hooks])
        assert [row.point for row in await found(log)] == ["AgentCall"]
        assert not hook_executed.receivers

    async with ExecutionLog(store, observers=True) as log:
        result = await exec_agent(agent, "hi", hooks=[hooks], tenant_id="t")
        rows = await found(log, operation_id=result.operation_id)
        assert sorted(row.point for row in rows) == ["AgentCall", "onComplete"]
        [row] = await found(log, "t", hook_id="watch")
        assert (row.point, row.status, len(row.executions)) == ("onComplete", "ok", 1)


@on_sqlite
async def test_an_interceptor_that_nobody_waits_for_is_kept_as_an_observer_is(store: SqlStore) -> None:
    hooks = Hooks("h")
    hooks.before(AgentCall, id="waits")(lambda call: None)
    hooks.before(AgentCall, id="beside", wait=False)(lambda call: None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="hello")] * 2))

    async with ExecutionLog(store) as log:
        await exec_agent(agent, "hi", hooks=[hooks], tenant_id="t")
        [row] = await found(log)
        assert [each.hook_id for each in row.executions] == ["waits"]

    async with ExecutionLog(store, observers=True) as log:
        await exec_agent(agent, "hi", hooks=[hooks], tenant_id="t")
        [row] = await found(log, "t", hook_id="beside")
        assert (row.point, row.status, len(row.executions)) == ("AgentCall", "ok", 1)


@on_sqlite
async def test_a_sample_thins_the_rows_and_not_the_statistics(store: SqlStore) -> None:
    def only_denials(record: ChainRun | HookExecution) -> bool:
        return isinstance(record, ChainRun) and record.denied_by is not None

    async with ExecutionLog(store, sample=only_denials) as log:
        now = time.time_ns()
        tell(*(ran(time_unix_nano=now) for _ in range(9)))
        tell(ran(execution(status="denied"), denied_by="hook", time_unix_nano=now))

        assert [row.status for row in await found(log)] == ["denied"]
        [statistic] = await log.statistics("t")
        assert (statistic.count, statistic.denied) == (10, 1)


@on_sqlite
async def test_a_sample_that_raises_costs_that_record_only(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    async with ExecutionLog(store, sample=lambda record: 1 / len(record.operation_id) > 0) as log:
        tell(ran(operation_id=""), ran(operation_id="x"))

        assert [row.operation_id for row in await found(log)] == ["x"]
        assert log.dropped == 1


@on_sqlite
async def test_what_does_not_fit_is_dropped_and_counted_and_told_once(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        async with ExecutionLog(store, max_queued=10) as log:
            tell(*(ran() for _ in range(25)))
            assert (log.queued, log.dropped) == (10, 15)

            assert len(await found(log)) == 10
            assert (log.queued, log.written, log.dropped) == (0, 10, 15)

    assert [record.getMessage() for record in caplog.records] == [
        "The log of hook executions has dropped 15 executions"
    ]


async def test_no_text_is_too_odd_or_too_long(log: ExecutionLog) -> None:
    for text in ("x" * 5_000_000, "nul \0 here", "lone \ud800 surrogate", "\N{PILE OF POO}" * 3000):
        token = request_id.set(text)
        names = {"point": text, "tenant_id": text, "operation_id": text, "denied_by": text, "tool_call_id": text}
        tell(ran(execution(hook_id=text, status="error", error=text), reason=text, **names))
        request_id.reset(token)

        [row] = await found(log, cut(text, 400))

        assert len(msgspec.json.encode(row)) < 40_000
        assert row.operation_id == row.request_id == row.denied_by == row.executions[0].hook_id == cut(text, 400)
        assert row.reason == row.executions[0].error == cut(text, 2000)
        assert await found(log, row.tenant_id, hook_id=row.executions[0].hook_id, point=row.point) == [row]
        assert [each.hook_id for each in await log.statistics(row.tenant_id)] == [cut(text, 400)]
    assert log.dropped == 0


def cut(text: str, longest: int) -> str:
    text = text.replace("\0", "\ufffd").replace("\ud800", "?")
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


async def test_no_duration_and_no_time_is_too_odd(store: SqlStore) -> None:
    async with ExecutionLog(store, retention_hours=1e9) as log:
        for number in (float("nan"), float("inf"), -1.0, 1e300):
            tell(ran(execution(duration_ms=number), duration_ms=number))
        await log.flush()
        assert sum(each.count for each in await log.statistics(None)) == 4
        for moment in (-(10**18), 0, 10**19, 10**30):
            tell(ran(time_unix_nano=moment))

        assert len(await found(log)) == 8
        await log.prune()
        rows = await found(log)

        assert (len(rows), log.dropped) == (8, 0)
        assert all(0 <= row.duration_ms <= 1e12 and 0 <= row.created_at < 5e9 for row in rows)


async def test_a_row_of_the_last_moment_is_found_whatever_its_key(store: SqlStore) -> None:
    async with ExecutionLog(store, retention_hours=1e9) as log:
        # More than there are keys in a microsecond, so that one of them is the highest of all.
        tell(*(ran(time_unix_nano=10**30, operation_id=f"op{nth}") for nth in range(2048)))

        assert len(await found(log)) + log.dropped == 2048
        assert log.dropped == 0


@on_sqlite
async def test_a_record_that_is_none_costs_no_other(log: ExecutionLog) -> None:
    tell(ran(operation_id="before"), ran(operation_id=7), ran(executions=None), ran(operation_id="after"))

    assert {row.operation_id for row in await found(log)} == {"before", "after"}
    assert log.dropped == 2


@on_sqlite
async def test_rows_come_by_themselves_soon(log: ExecutionLog) -> None:
    tell(ran())

    async with asyncio.timeout(20):
        while not (await log.logs("t")).items:
            await asyncio.sleep(0.01)


async def test_what_waits_is_written_when_the_log_is_left(store: SqlStore) -> None:
    async with ExecutionLog(store):
        tell(*(ran() for _ in range(1234)))

    reader = ExecutionLog(store)
    assert len(await found(reader)) == 1234
    assert not chain_ran.receivers


async def test_leaving_while_a_batch_is_written_writes_it_once(store: SqlStore) -> None:
    for _ in range(20):
        log = ExecutionLog(store)
        async with log:
            tell(*(ran(time_unix_nano=time.time_ns()) for _ in range(50)))
            writing = asyncio.create_task(log.flush())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
        assert (log.written, log.dropped) == (50, 0)

    reader = ExecutionLog(store)
    assert len(await found(reader)) == 1000
    assert (await reader.statistics(None))[0].count == 1000


@on_sqlite
async def test_a_log_is_opened_once_and_may_be_read_closed(store: SqlStore) -> None:
    log = ExecutionLog(store)
    assert (await log.logs(None)).items == []
    async with log:
        with pytest.raises(HookUsageError, match="already opened"):
            await log.__aenter__()
    await log.aclose()
    assert (await log.logs(None)).items == []


@for_each(
    "options",
    [
        {"max_queued": 0},
        {"max_queued": True},
        {"max_rows": 0},
        {"retention_hours": 0},
        {"retention_hours": float("nan")},
        {"retention_hours": "24"},
        {"sample": 0.5},
    ],
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError, match=next(iter(options))):
        ExecutionLog(SqlStore("sqlite:///:memory:"), **options)


@for_each(
    "which",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": True},
        {"cursor": "x"},
        {"cursor": "0" * 15 + "g"},
        {"cursor": "٣" * 16},
        {"cursor": ""},
        {"status": "bad"},
        {"since": float("nan")},
        {"until": "now"},
        {"since": True},
        {"revision": 0},
        {"revision": True},
        {"revision": "1"},
    ],
)
async def test_questions_that_make_no_sense_are_refused(which: dict[str, Any]) -> None:
    log = ExecutionLog(SqlStore("sqlite:///:memory:"))

    with pytest.raises(HookUsageError, match=r"`limit`|`status`|cursor|`revision`|A time must be"):
        await log.logs(None, **which)


async def test_a_time_may_lie_anywhere(log: ExecutionLog) -> None:
    tell(ran())

    for seconds in (float("inf"), -float("inf"), 1e30, -5, 0):
        assert len(await found(log, since=seconds)) == (seconds < 1e9)
        assert len(await found(log, until=seconds)) == (seconds > 1e9)
        assert len(await log.statistics(None, since=seconds)) == (seconds < 1e9)


async def test_an_id_that_is_none_is_not_found(log: ExecutionLog) -> None:
    for odd in ("", "x", "f" * 16, "0" * 16, "1' or 1"):
        assert await log.log(odd, None) is None
