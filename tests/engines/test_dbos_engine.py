"""Operations that are begun on `DbosEngine` run from the queues of DBOS, wherever DBOS has left them."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import time
from typing import Any

import anyio
import anyio.to_thread
import pytest
from dbos import DBOS

from hookline import Agent, Approve, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.engines import DbosEngine, Engine, _dbos
from hookline.errors import HookUsageError, MissingExtraError
from hookline.runtime import OperationState
from hookline.store import SqlStore, Worker

pytestmark = pytest.mark.anyio

FAST: Any = {"polling_interval_sec": 0.1}
QUEUES: dict[str, Any] = {"hookline": FAST, "slow": FAST}


@pytest.fixture(scope="module")
def dbos_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The system database of DBOS."""
    return tmp_path_factory.mktemp("dbos") / "dbos.db"


@pytest.fixture(scope="module")
def dbos(dbos_file: Path) -> Iterator[DBOS]:
    """DBOS as an application has it, in its version 2."""
    instance = DBOS(
        config={
            "name": "application",
            "system_database_url": f"sqlite:///{dbos_file}",
            "application_version": "2",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    yield instance
    DBOS.destroy()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    async with SqlStore(f"sqlite:///{tmp_path / 'store.db'}", lease_seconds=2) as store:
        yield store


@pytest.fixture
def engine(store: SqlStore, dbos: DBOS) -> DbosEngine:
    return DbosEngine(store, dbos, queues=QUEUES)


@pytest.fixture
def own_queue(dbos: DBOS, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a queue of this test alone, into which DBOS does not look any more afterwards."""
    name: str = request.function.__name__
    yield name
    DBOS.delete_queue(name)


def answer_after(name: str, toolset: str | None = None) -> Any:
    """A model that calls a tool and is done once it has a result."""
    more = {} if toolset is None else {"toolset": toolset}
    request = ToolRequest(name, {"instruction": "Go"}, tool_call_id="t1", **more)

    def answer(call: Any) -> ModelResponse:
        if any(message.role == "tool" for message in call.messages):
            return ModelResponse(content="done")
        return ModelResponse(tool_calls=[request])

    return ScriptedModel(answer)


def agent(ran: list[object] | None = None, *, name: str = "worker", approval: bool = False) -> Agent:
    """An agent that calls one tool, which notes the workflow of DBOS that it is in, and is done."""

    @tool(in_thread=False, needs_approval=approval)
    async def work(instruction: str) -> str:
        if ran is not None:
            ran.append(DBOS.workflow_id)
        return "worked"

    return Agent(id=name, model=answer_after("work"), tools=[work])


async def workflows_of(operation_id: str) -> list[Any]:
    """The workflows of an operation, oldest first."""
    prefix = f"hookline:{operation_id}:"
    return await anyio.to_thread.run_sync(lambda: DBOS.list_workflows(workflow_id_prefix=prefix))


async def wait_for_statuses(operation_id: str, statuses: list[str]) -> list[Any]:
    with anyio.fail_after(60):
        while True:
            found = await workflows_of(operation_id)
            if [each.status for each in found] == statuses:
                return found
            await anyio.sleep(0.05)


async def is_done(store: SqlStore, operation_id: str) -> bool:
    stored = await store.operation(operation_id)
    assert stored is not None
    return stored.status == "done"


async def wait_until_done(store: SqlStore, operation_id: str) -> None:
    with anyio.fail_after(60):
        while not await is_done(store, operation_id):
            await anyio.sleep(0.05)


async def store_new(store: SqlStore, operation_id: str, *, agent_id: str = "worker") -> None:
    """Store an operation that no process runs, as `exec_agent` does before it calls the engine."""
    await store.commit(OperationState(operation_id=operation_id, agent_id=agent_id), expected_version=None, entries=())
    await store.release(operation_id)


async def test_a_workflow_runs_the_whole_segment(store: SqlStore, engine: DbosEngine) -> None:
    ran: list[object] = []
    async with Worker(store, [agent(ran)], engine=engine):
        result = await exec_agent(agent(), "Go", store=store, engine=engine, agent_version="3")
        (workflow,) = await wait_for_statuses(result.operation_id, ["SUCCESS"])
        steps = await anyio.to_thread.run_sync(DBOS.list_workflow_steps, workflow.workflow_id)

    assert isinstance(engine, Engine)
    assert (result.reason, result.output) == ("done", "done")
    assert ran == [None]  # what a tool calls is no step of the workflow, which DBOS would not call again in a replay
    assert steps == []
    assert workflow.attributes == {
        "operation_id": result.operation_id,
        "agent_id": "worker",
        "agent_version": "3",
        "queue": "hookline",
    }


async def test_a_decision_goes_on_from_the_queue_of_the_operation(store: SqlStore, engine: DbosEngine) -> None:
    async with Worker(store, [agent(approval=True)], engine=engine):
        result = await exec_agent(agent(), "Go", store=store, engine=engine, queue="slow")
        assert result.reason == "waiting_for_human"
        await store.decide(result.operation_id, Approve("t1"))
        await wait_until_done(store, result.operation_id)
        found = await wait_for_statuses(result.operation_id, ["SUCCESS", "SUCCESS"])

    assert [each.queue_name for each in found] == ["slow", "slow"]


async def test_an_interruption_ends_an_operation_in_a_pause(store: SqlStore, engine: DbosEngine) -> None:
    async with Worker(store, [agent(approval=True)], engine=engine):
        result = await exec_agent(agent(), "Go", store=store, engine=engine)
        await store.request_interrupt(result.operation_id)
        with anyio.fail_after(60):
            while (await store.operation(result.operation_id)).status != "interrupted":  # type: ignore[union-attr]
                await anyio.sleep(0.05)


async def test_a_sub_agent_runs_in_the_segment_of_its_caller(store: SqlStore, engine: DbosEngine) -> None:
    ran: list[object] = []
    child = agent(ran, name="child")
    caller = Agent(id="caller", model=answer_after("child", "agent"), sub_agents=[child])
    async with Worker(store, [caller, child], engine=engine):
        result = await exec_agent(caller, "Go", store=store, engine=engine)
        assert [each.status for each in await workflows_of(result.operation_id)] in (["PENDING"], ["SUCCESS"])

    assert (result.reason, ran) == ("done", [None])


async def test_a_limit_of_a_queue_holds(store: SqlStore, dbos: DBOS, own_queue: str) -> None:
    one: Any = {"global_concurrency": 1, "worker_concurrency": 1, **FAST}
    engine = DbosEngine(store, dbos, queues={own_queue: one})
    running, most = 0, 0

    @tool(in_thread=False)
    async def work(instruction: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.05)
        running -= 1
        return "worked"

    busy = Agent(id="worker", model=answer_after("work"), tools=[work])

    async def begin() -> None:
        assert (await exec_agent(busy, "Go", store=store, engine=engine, queue=own_queue)).reason == "done"

    async with Worker(store, [busy], engine=engine), anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(begin)
    assert most == 1


async def test_a_rate_limit_of_a_queue_holds_and_loses_nothing(
    store: SqlStore, dbos: DBOS, own_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An operation that waits for its turn must not be taken for one that nobody runs.
    for name in ("LOOK_SECONDS", "CLAIM_SECONDS", "STRANDED_SECONDS"):
        monkeypatch.setattr(_dbos, name, 0.05)
    rated: Any = {**FAST, "limiter": {"limit": 1, "period": 3600}}
    operations = ["rated1", "rated2"]
    engine = DbosEngine(store, dbos, queues={own_queue: rated, "hookline": FAST})
    async with Worker(store, [agent()], engine=engine):
        for operation_id in operations:
            await store_new(store, operation_id)
            await engine.begin(operation_id, agent_id="worker", queue=own_queue)
        with anyio.fail_after(60):
            while not [each for each in operations if await is_done(store, each)]:
                await anyio.sleep(0.05)
        for _ in range(2):
            await exec_agent(agent(), "Go", store=store, engine=engine)
        [waiting] = [each for each in operations if not await is_done(store, each)]
        assert [each.status for each in await workflows_of(waiting)] == ["ENQUEUED"]

    async with Worker(store, [agent()], engine=DbosEngine(store, dbos, queues={own_queue: FAST, "hookline": FAST})):
        await wait_until_done(store, waiting)
        await wait_for_statuses(waiting, ["SUCCESS"])


async def test_an_operation_that_is_woken_for_later_does_not_run_before(store: SqlStore, engine: DbosEngine) -> None:
    async def pause_and_decide(*, later: bool) -> str:
        operation_id = (await exec_agent(agent(), "Go", store=store, engine=engine)).operation_id
        if later:
            await engine.wake(operation_id, not_before=time() + 3600)
        await store.decide(operation_id, Approve("t1"))
        await engine.wake(operation_id, not_before=time() + 3600 if later else time() - 1)
        return operation_id

    async with Worker(store, [agent(approval=True)], engine=engine):
        postponed = await pause_and_decide(later=True)
        for _ in range(2):
            await wait_until_done(store, await pause_and_decide(later=False))
        assert not await is_done(store, postponed)
        assert len(await workflows_of(postponed)) == 1  # that of the segment before the pause

        await engine.wake(postponed)
        await wait_until_done(store, postponed)


async def test_an_operation_of_an_unknown_queue_runs_from_the_default_queue(
    store: SqlStore, engine: DbosEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dbos, "BEGIN_SECONDS", 0.1)
    async with Worker(store, [agent()], engine=engine):
        with pytest.raises(HookUsageError, match=r"DBOS has no queue 'fst'.*The operation op1 is stored"):
            await exec_agent(agent(), "Go", operation_id="op1", store=store, engine=engine, queue="fst")
        await wait_until_done(store, "op1")
        (workflow,) = await wait_for_statuses("op1", ["SUCCESS"])
    assert workflow.queue_name == "hookline"


async def test_an_operation_that_this_process_does_not_serve_waits_for_one_that_does(
    store: SqlStore, engine: DbosEngine
) -> None:
    async with Worker(store, [agent()], engine=engine):
        await store_new(store, "op2", agent_id="other")
        await engine.begin("op2", agent_id="other")
        (workflow,) = await wait_for_statuses("op2", ["SUCCESS"])
        assert workflow.output is False

        async with Worker(store, [agent(name="other")], engine=engine):
            await wait_until_done(store, "op2")


async def test_only_workers_of_a_version_run_its_operations(store: SqlStore, engine: DbosEngine) -> None:
    old: list[object] = []
    new: list[object] = []
    async with (
        Worker(store, [agent(old)], engine=engine, agent_versions=["1"]),
        Worker(store, [agent(new)], engine=engine, agent_versions=["1", "2"]),
    ):
        for _ in range(3):
            await exec_agent(agent(), "Go", store=store, engine=engine, agent_version="2")
    assert (len(old), len(new)) == (0, 3)


@pytest.mark.parametrize(
    ("status", "app_version"), [("PENDING", "2"), ("PENDING", "1"), ("ENQUEUED", "1"), ("CANCELLED", "1")]
)
async def test_a_workflow_that_nobody_runs_any_more_is_replaced(
    status: str,
    app_version: str,
    store: SqlStore,
    engine: DbosEngine,
    dbos_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_dbos, "CLAIM_SECONDS", 0.1)
    monkeypatch.setattr(_dbos, "STRANDED_SECONDS", 0.1)
    operation_id = f"{status}-{app_version}"
    await store_new(store, operation_id)
    options: Any = {
        "workflow_name": "hookline.run_segment",
        "workflow_id": f"hookline:{operation_id}:1.0",
        "queue_name": "slow",
        "app_version": "1",  # DBOS of this process does not claim it
        "attributes": {"queue": "slow"},
    }
    await anyio.to_thread.run_sync(lambda: DBOS.enqueue_workflow_with_options(options, operation_id))
    leave_workflow(dbos_file, operation_id, status, app_version)

    async with Worker(store, [agent()], engine=engine):
        await wait_until_done(store, operation_id)
        old, new = await wait_for_statuses(operation_id, ["CANCELLED", "SUCCESS"])
    assert (old.app_version, new.app_version, new.queue_name) == (app_version, "2", "slow")


def leave_workflow(file: Path, operation_id: str, status: str, app_version: str) -> None:
    """Leave the workflow of an operation as an executor does that is killed."""
    with sqlite3.connect(file, timeout=30) as connection:
        changed = connection.execute(
            "UPDATE workflow_status SET status = ?, application_version = ?, executor_id = 'dead' WHERE workflow_uuid = ?",
            (status, app_version, f"hookline:{operation_id}:1.0"),
        )
        assert changed.rowcount == 1
    connection.close()


async def test_a_workflow_of_an_operation_that_has_ended_takes_no_place_in_its_queue(
    store: SqlStore, engine: DbosEngine, dbos_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dbos, "SWEEP_SECONDS", 0.1)
    async with Worker(store, [agent()], engine=engine):
        await exec_agent(agent(), "Go", operation_id="ended", store=store, engine=engine)
        await wait_for_statuses("ended", ["SUCCESS"])
        leave_workflow(dbos_file, "ended", "PENDING", "2")
        await wait_for_statuses("ended", ["CANCELLED"])


async def test_one_engine_serves_in_a_process(store: SqlStore, engine: DbosEngine, dbos: DBOS) -> None:
    async with Worker(store, [agent()], engine=engine):
        with pytest.raises(HookUsageError, match="Another DbosEngine serves in this process"):
            await Worker(store, [agent()], engine=DbosEngine(store, dbos)).__aenter__()
    async with Worker(store, [agent()], engine=DbosEngine(store, dbos)):
        pass


async def test_a_closed_engine_is_refused(store: SqlStore, engine: DbosEngine) -> None:
    async with engine:
        pass
    with pytest.raises(HookUsageError, match="was closed"):
        await Worker(store, [agent()], engine=engine).__aenter__()
    with pytest.raises(HookUsageError, match="was closed"):
        await engine.begin("op", agent_id="worker")


async def test_wrong_arguments_are_refused(store: SqlStore, dbos: DBOS, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, problem in (
        ((object(), dbos), "`store` must be a SqlStore"),
        ((store, 1), "`dbos` must be the address"),
        ((store, DBOS), "`dbos` must be the address"),
        ((store, "mysql://u:secret@host/x"), r"'mysql://u:\*\*\*@host/x'"),
        ((store, "sqlite://"), "'sqlite:///file'"),
        ((store, "sqlite:///:memory:"), "'sqlite:///file'"),
        ((store, "postgresql://"), "'postgresql://...'"),
    ):
        with pytest.raises(HookUsageError, match=problem):
            DbosEngine(*arguments)  # type: ignore[arg-type]
    for options, problem in (
        ({"queues": ["fast"]}, "options of each queue"),
        ({"queues": {"fast": 3}}, "options of each queue"),
        ({"queues": {"fast": {"rate": 3}}}, "no option 'rate'"),
        ({"queues": {"fast": {"partition_concurrency": 1}}}, "Register a partitioned queue in DBOS yourself"),
        ({"queues": {"fast": {"global_concurrency": "many"}}}, "`global_concurrency` of queue 'fast' must be a whole"),
        ({"queues": {"fast": {"worker_concurrency": 0}}}, "a whole number above 0; got 0"),
        ({"queues": {"fast": {"limiter": {"limit": 5}}}}, "such as {'limit': 50, 'period': 60}"),
        ({"queues": {"fast": {"polling_interval_sec": True}}}, "a number of seconds above 0; got True"),
        ({"application_name": " "}, "`application_name` must be a name"),
    ):
        with pytest.raises(HookUsageError, match=problem):
            DbosEngine(store, dbos, **options)  # type: ignore[arg-type]
    wrong: Any = {"_dbos_mine": {}}
    with pytest.raises(HookUsageError, match=r"DBOS does not accept a queue: .*reserved"):
        await Worker(store, [agent()], engine=DbosEngine(store, dbos, queues=wrong)).__aenter__()

    monkeypatch.setitem(sys.modules, "dbos", None)
    with pytest.raises(MissingExtraError, match=r"DbosEngine needs an extra.*\[dbos\]"):
        DbosEngine(store, "sqlite:///dbos.db")


async def test_an_engine_of_an_address_says_that_the_process_has_a_dbos(
    store: SqlStore, dbos: DBOS, dbos_file: Path
) -> None:
    engine = DbosEngine(store, f"sqlite:///{dbos_file}")
    async with engine:
        with pytest.raises(HookUsageError, match="has a DBOS instance already"):
            await Worker(store, [agent()], engine=engine).__aenter__()
