"""Workers leave what they have no hooks for, show that in the store, and take what they have them for."""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import msgspec
import pytest
from sqlalchemy import text

from hookline import (
    Agent,
    Approve,
    Deny,
    Hooks,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.hooks import AnyHook, Interceptor
from hookline.store import SqlStore, Worker
from hookline.store._engine import StoreEngine, WorkWatch
from hookline.store._worker import HOOKS_SECONDS
from tests.tables import for_each

pytestmark = pytest.mark.anyio

STORED = Path(__file__).with_name("stored") / "by_8ffe382.sql"


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url, lease_seconds=2) as store:
        yield store


class Hour:
    """A clock that a test can put forward."""

    def __init__(self) -> None:
        self.forward = 0.0

    def __call__(self) -> float:
        return monotonic() + self.forward


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hour:
    clock = Hour()
    monkeypatch.setattr("hookline.store._engine.monotonic", clock)
    return clock


def rules(name: str = "rules", *, inherit: bool = False) -> Hooks:
    hooks = Hooks(name, inherit=inherit)
    hooks.guard(ToolCall, tool="*/wire", id=f"{name}.no_wire")(lambda call: Deny("no wires"))
    return hooks


wired: list[str] = []


def payer(hooks: Iterable[AnyHook] = (), **parts: Any) -> Agent:
    """Pays when a person has approved it, and then wires, which the rules forbid."""
    wired.clear()

    @tool(in_thread=False, needs_approval=True)
    async def pay(amount: int = 1) -> str:
        return "paid"

    @tool(in_thread=False)
    async def wire(amount: int = 1) -> str:
        wired.append("wired")
        return "wired"

    def says(call: Any) -> ModelResponse:
        told = [message.content for message in call.messages if message.role == "tool"]
        if len(told) == 2:
            return ModelResponse(content="; ".join(told))
        name, call_id = ("wire", "w1") if told else ("pay", "p1")
        return ModelResponse(tool_calls=[ToolRequest(tool_name=name, args={}, tool_call_id=call_id)])

    return Agent(id="payer", model=ScriptedModel(says), tools=[pay, wire], hooks=hooks, **parts)


async def paused(store: SqlStore, *hooks: AnyHook, operation_id: str = "op", agent: Agent | None = None) -> None:
    """An operation about which everything is decided."""
    await exec_agent(agent or payer(), "Pay", operation_id=operation_id, store=store, hooks=hooks)
    await store.decide(operation_id, Approve("p1"), by="ann")


async def ended(store: SqlStore, operation_id: str = "op") -> str:
    with anyio.fail_after(20):
        while (state := await store.load(operation_id)) is None or state.status in ("running", "waiting_for_human"):
            await anyio.sleep(0.05)
    return state.last_content


async def waiting(store: SqlStore, *missing: str, operation_id: str = "op") -> None:
    """Wait until the store shows what an operation waits for."""
    with anyio.fail_after(20):
        while (found := await store.operation(operation_id)) is None or found.missing_hooks != list(missing):
            await anyio.sleep(0.05)


async def looks(worker: Worker, times: int = 3) -> None:
    """Let a worker look for work that often."""
    await until_all_are_tried(worker)
    for _ in range(times):
        await watch_of(worker).start_available()
        await until_all_are_tried(worker)


def watch_of(worker: Worker) -> WorkWatch:
    assert isinstance(worker._engine, StoreEngine)
    [watch] = worker._engine._watches
    return watch


async def until_all_are_tried(worker: Worker) -> None:
    with anyio.fail_after(20):
        while watch_of(worker).running:
            await anyio.sleep(0.05)


async def test_a_worker_without_the_hooks_leaves_the_operation_and_its_decisions_and_shows_what_is_missing(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    await paused(store, rules(), rules("more"))
    before_it = await store.load("op")

    async with Worker(store, [payer()], hooks=[rules("more")], poll_seconds=0.05):
        await waiting(store, "rules.no_wire")

    assert await store.load("op") == before_it
    assert [found for _, found in await store.decided(["payer"])] == [[Approve("p1")]]
    assert await store.missing_hooks() == {"op": ["rules.no_wire"]}
    [record] = [record for record in caplog.records if "waits for hooks" in record.message]
    assert record.levelno == logging.ERROR
    assert "'rules.no_wire' (guard ToolCall)" in record.message


async def test_of_two_workers_the_one_with_the_hooks_takes_it_and_nothing_is_missing_any_more(
    store: SqlStore, database_url: str
) -> None:
    await paused(store, rules())
    async with SqlStore(database_url, lease_seconds=2) as other, Worker(store, [payer()], poll_seconds=0.05):
        await waiting(store, "rules.no_wire")
        async with Worker(other, [payer()], hooks=[rules()], poll_seconds=0.05):
            said = await ended(store)

    assert (said, wired) == ("paid; no wires", [])
    found = await store.operation("op")
    assert found is not None
    assert found.missing_hooks == []
    assert await store.missing_hooks() == {}


async def test_of_many_operations_that_two_workers_share_each_runs_once_and_none_unguarded(
    store: SqlStore, database_url: str
) -> None:
    names = [f"op{nth}" for nth in range(12)]
    for name in names:
        await paused(store, rules(), operation_id=name)

    async with (
        SqlStore(database_url, lease_seconds=2) as other,
        Worker(store, [payer()], poll_seconds=0.05),
        Worker(other, [payer()], hooks=[rules()], poll_seconds=0.05),
    ):
        assert [await ended(store, name) for name in names] == ["paid; no wires"] * 12
    assert await store.missing_hooks() == {}
    assert wired == []


async def test_a_worker_looks_again_after_a_minute_and_logs_once(
    store: SqlStore, clock: Hour, caplog: pytest.LogCaptureFixture
) -> None:
    await paused(store, rules())
    given: list[AnyHook] = []
    async with Worker(store, [payer()], hooks=lambda tenant_id: given, poll_seconds=3600) as worker:
        await waiting(store, "rules.no_wire")
        clock.forward += HOOKS_SECONDS + 1
        await looks(worker)
        given.append(rules())
        await looks(worker)

        assert (await store.operation("op")).status == "waiting_for_human"  # type: ignore[union-attr]
        clock.forward += HOOKS_SECONDS + 1
        await looks(worker, 1)

        assert await ended(store) == "paid; no wires"
    assert len([record for record in caplog.records if "waits for hooks" in record.message]) == 1


async def test_every_worker_tells_once_of_every_operation(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("one", "two"):
        await paused(store, rules(), operation_id=name)
    for _ in range(2):
        async with Worker(store, [payer()], poll_seconds=3600) as worker:
            await looks(worker)
        logged = [record.args[0] for record in caplog.records if "waits for hooks" in record.message]  # type: ignore[index]
        assert sorted(logged) == ["one", "two"]
        caplog.clear()


async def test_an_operation_whose_process_has_died_waits_for_hooks_too(store: SqlStore) -> None:
    await paused(store, rules())
    state = await store.load("op")
    assert state is not None
    began = msgspec.structs.replace(state, status="running", version=state.version + 1)
    await store.commit(began, expected_version=state.version, entries=())
    await store.release("op")

    async with Worker(store, [payer()], poll_seconds=0.05):
        await waiting(store, "rules.no_wire")

    assert await store.orphans() == ["op"]


async def test_a_worker_that_may_miss_hooks_goes_on_with_a_warning(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    await paused(store, rules())

    async with Worker(store, [payer()], poll_seconds=0.05, allow_missing_hooks=True):
        assert await ended(store) == "paid; wired"

    assert [record.levelname for record in caplog.records if "continues without" in record.message] == ["WARNING"]


@for_each("case", ["agent's", "passed", "one of two of the same id"])
async def test_a_worker_compares_what_the_agent_and_the_run_were_given(store: SqlStore, case: str) -> None:
    twins = [Interceptor(id="twin", call=ToolCall, kind="guard", handler=lambda call: None) for _ in range(2)]
    own, passed = rules("own"), rules("passed")
    await paused(store, passed, *twins, operation_id=case, agent=payer([own]))
    left = {
        "agent's": ([], [passed, *twins], "own.no_wire"),
        "passed": ([own], twins, "passed.no_wire"),
        "one of two of the same id": ([own], [passed, twins[0]], "twin"),
    }
    agents, hooks, missing = left[case]

    async with Worker(store, [payer(agents)], hooks=hooks, poll_seconds=0.05):
        await waiting(store, missing, operation_id=case)
    async with Worker(store, [payer([own])], hooks=[passed, *twins], poll_seconds=0.05):
        assert await ended(store, case) == "paid; no wires"


async def test_what_waits_for_hooks_hides_nothing_that_can_go_on(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.store._decisions.BATCH_SIZE", 2)
    names = [f"a{nth}" for nth in range(5)]
    for name in names:
        await paused(store, rules(), operation_id=name)
    await paused(store, operation_id="z")

    found = await store.decided(["payer"], limit=1, exclude=names)

    assert [state.operation_id for state, _ in found] == ["z"]


async def test_what_is_noted_late_of_an_operation_that_has_gone_on_is_not_shown(store: SqlStore) -> None:
    await paused(store, rules())
    known = await store.operation("op")
    assert known is not None
    async with Worker(store, [payer()], hooks=[rules()], poll_seconds=0.05):
        await ended(store)

    await store.note_missing_hooks("op", ["rules.no_wire"], version=known.version)

    assert (await store.operation("op")).missing_hooks == []  # type: ignore[union-attr]


async def test_ids_that_a_database_does_not_take_are_noted_all_the_same(store: SqlStore) -> None:
    await paused(store)
    known = await store.operation("op")
    assert known is not None

    await store.note_missing_hooks("op", ["a\0b", "half \ud83d", '☎, "quoted"'], version=known.version)

    assert await store.missing_hooks() == {"op": ["a?b", "half ?", '☎, "quoted"']}


# Sub-agents.


@pytest.mark.parametrize("knows_caller", [True, False])
async def test_a_sub_agent_that_waits_has_the_hooks_that_its_callers_agent_hands_on(
    store: SqlStore, knows_caller: bool
) -> None:
    def boss() -> Agent:
        calling = ToolRequest(toolset="agent", tool_name="payer", args={"instruction": "pay"}, tool_call_id="c1")
        turns = itertools.chain([ModelResponse(tool_calls=[calling])], itertools.repeat(ModelResponse(content="done")))
        return Agent(
            id="boss",
            model=ScriptedModel(lambda call: next(turns)),
            sub_agents=[payer()],
            hooks=[rules("handed", inherit=True), rules("kept")],
        )

    await exec_agent(boss(), "go", operation_id="op", store=store)
    [child] = [each for each in (await store.operations()).items if each.parent_operation_id == "op"]
    await store.decide(child.operation_id, Approve("p1"))

    async with Worker(store, [boss() if knows_caller else payer()], poll_seconds=0.05):
        if knows_caller:
            assert await ended(store, child.operation_id) == "paid; no wires"
        else:
            await waiting(store, "handed.no_wire", operation_id=child.operation_id)


async def test_an_operation_that_only_names_another_as_its_parent_is_handed_nothing_on(store: SqlStore) -> None:
    boss = Agent(id="boss", model=ScriptedModel([ModelResponse(content="done")]), hooks=[rules("handed", inherit=True)])
    await exec_agent(boss, "go", operation_id="parent", store=store)
    await exec_agent(payer(), "Pay", operation_id="op", store=store, parent_operation_id="parent")
    await store.decide("op", Approve("p1"))

    async with Worker(store, [payer(), boss], poll_seconds=0.05):
        assert await ended(store) == "paid; wired"


# Stored by an earlier version.


@pytest.fixture
def earlier(tmp_path: Path) -> str:
    """A database that commit 8ffe382 has written: one operation that waits, one that is decided, one that died."""
    file = tmp_path / "earlier.db"
    with sqlite3.connect(file) as connection:
        connection.executescript(STORED.read_text())
    connection.close()
    return f"sqlite:///{file}"


async def test_operations_of_an_earlier_version_go_on_with_one_warning_each(
    earlier: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqlStore(earlier) as store:
        assert [each.missing_hooks for each in (await store.operations()).items] == [[], [], []]
        await store.decide("waits", Approve("p1"))
        async with Worker(store, [payer()], hooks=[rules()], poll_seconds=0.05):
            said = [await ended(store, name) for name in ("waits", "decided")]
        state = await store.load("waits")

    assert said == ["paid; no wires"] * 2
    assert state is not None
    assert [key.id for key in state.interceptors or []] == ["rules.no_wire"]
    told = [record for record in caplog.records if "did not list its interceptors" in record.message]
    assert sorted((record.levelname, record.args[0]) for record in told) == [  # type: ignore[index]
        ("WARNING", "decided"),
        ("WARNING", "died"),
        ("WARNING", "waits"),
    ]


async def test_a_version_that_does_not_know_the_list_leaves_states_that_have_one(store: SqlStore) -> None:
    """It would go on unguarded, and drop the list. What it reads is the layout's number."""
    await paused(store, rules())
    async with store.reading() as connection:
        layout = (await connection.execute(text("SELECT format FROM operations"))).scalar_one()

    assert layout > 2
