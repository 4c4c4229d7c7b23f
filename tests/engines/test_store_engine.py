"""Operations that are begun on an engine run in whatever process serves their agent and version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from hookline import (
    Agent,
    Approve,
    Deny,
    Hook,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    ModelResponse,
    OnComplete,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.engines import Engine, StoreEngine
from hookline.errors import HookUsageError, OperationExistsError, RunFailedError
from hookline.store import SqlStore, Worker

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url, lease_seconds=2) as store:
        yield store


def agent(ran: list[str] | None = None, *, says: str = "done", approval: bool = False) -> Agent:
    """An agent that calls one tool and is done."""

    @tool(in_thread=False, needs_approval=approval)
    async def work() -> str:
        if ran is not None:
            ran.append(says)
        return "worked"

    def answer(call: Any) -> ModelResponse:
        if any(message.role == "tool" for message in call.messages):
            return ModelResponse(content=says)
        return ModelResponse(tool_calls=[ToolRequest("work", tool_call_id="t1")])

    return Agent(id="worker", model=ScriptedModel(answer), tools=[work])


async def test_an_operation_runs_in_the_process_that_serves_it(store: SqlStore, database_url: str) -> None:
    ran: list[str] = []
    async with SqlStore(database_url) as other:
        engine = StoreEngine(other)
        async with Worker(other, [agent(ran)], engine=engine):
            result = await exec_agent(agent(), "Go", store=store, engine=StoreEngine(store), user_id="ann")

    assert (result.reason, result.output, ran) == ("done", "done", ["done"])
    assert result.messages[0].content == "Go"
    events = [entry.type for entry in await store.events_of(result.operation_id)]
    assert events.count("onComplete") == 1


async def test_a_pause_is_returned_and_its_decision_goes_on_in_a_worker(store: SqlStore) -> None:
    engine = StoreEngine(store)
    async with Worker(store, [agent(approval=True)], engine=engine):
        result = await exec_agent(agent(), "Go", store=store, engine=engine)
        await store.decide(result.operation_id, Approve("t1"))
        with anyio.fail_after(20):
            while (await store.load(result.operation_id)).status != "done":  # type: ignore[union-attr]
                await anyio.sleep(0.01)

    assert result.reason == "waiting_for_human"
    assert [call.tool_call_id for call in result.pending] == ["t1"]


async def test_an_error_is_in_the_result(store: SqlStore) -> None:
    engine = StoreEngine(store)
    broken = Agent(id="worker", model=ScriptedModel([ValueError("no")]))
    async with Worker(store, [broken], engine=engine):
        result = await exec_agent(agent(), "Go", store=store, engine=engine)

    assert result.reason == "error"
    with pytest.raises(RunFailedError, match="ValueError"):
        result.raise_for_error()


async def test_a_caller_that_is_cancelled_leaves_the_operation_to_the_worker(store: SqlStore) -> None:
    engine = StoreEngine(store)
    with anyio.move_on_after(5) as scope:

        async def give_up(operation_id: str, **more: object) -> None:
            scope.cancel()

        engine.begin = give_up  # type: ignore[method-assign]
        await exec_agent(agent(), "Go", operation_id="op", store=store, engine=engine)
    assert scope.cancelled_caught

    async with Worker(store, [agent()]):
        assert (await store.wait_until_stopped("op")).status == "done"


async def test_only_workers_of_a_version_run_its_operations(store: SqlStore, database_url: str) -> None:
    engine, ran = StoreEngine(store), []
    async with (
        SqlStore(database_url) as other,
        Worker(store, [agent(ran, says="old")], engine=engine, agent_versions=["1"]),
        Worker(other, [agent(ran, says="new")], agent_versions=["1", "2"]),
    ):
        for _ in range(5):
            result = await exec_agent(agent(), "Go", store=store, engine=engine, agent_version="2", tags=["vip"])
            assert result.output == "new"
        unversioned = await exec_agent(agent(), "Go", store=store, engine=engine)

    assert unversioned.reason == "done"
    assert ran[:5] == ["new"] * 5
    stored = await store.operation(result.operation_id)
    assert stored is not None
    assert (stored.agent_version, stored.tags) == ("2", ["vip"])


async def test_a_paused_operation_keeps_its_version(store: SqlStore) -> None:
    result = await exec_agent(agent(approval=True), "Go", store=store, agent_version="2")
    await store.decide(result.operation_id, Approve("t1"))
    async with Worker(store, [agent(approval=True)], agent_versions=["1"], poll_seconds=0.01) as worker:
        await worker._continue_operation(result.operation_id)
        assert await store.decided(["worker"], agent_versions=["", "1"]) == []
    async with Worker(store, [agent(approval=True)], agent_versions=["2"]):
        with anyio.fail_after(20):
            while (await store.load(result.operation_id)).status != "done":  # type: ignore[union-attr]
                await anyio.sleep(0.01)


async def test_a_worker_without_the_guards_of_the_agent_leaves_the_operation(store: SqlStore) -> None:
    rules = Hooks("rules")
    rules.guard(ToolCall, id="rules.no")(lambda call: Deny("no"))
    guarded = Agent(id="worker", model=ScriptedModel([]), hooks=[rules])
    engine, ran = StoreEngine(store), []
    async with Worker(store, [agent(ran)], engine=engine), anyio.create_task_group() as group:

        async def begin() -> None:
            await exec_agent(guarded, "Go", operation_id="op", store=store, engine=engine)

        group.start_soon(begin)
        with anyio.fail_after(20):
            while await store.missing_hooks() != {"op": ["rules.no"]}:
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert ran == []


async def test_webhooks_travel_with_the_operation(store: SqlStore) -> None:
    hook = Hook(id="end", type=OnComplete, webhook={"url": "https://example.org/hook"})
    engine = StoreEngine(store)
    async with Worker(store, [agent()], engine=engine):
        result = await exec_agent(agent(), "Go", store=store, engine=engine, hooks=[hook])
    state = await store.load(result.operation_id)
    assert state is not None
    assert [data.id for data in state.hooks] == ["end"]


async def test_an_id_is_begun_once(store: SqlStore) -> None:
    engine = StoreEngine(store)
    async with Worker(store, [agent()], engine=engine):
        await exec_agent(agent(), "Go", operation_id="op", store=store, engine=engine)
        with pytest.raises(OperationExistsError):
            await exec_agent(agent(), "Go", operation_id="op", store=store, engine=engine)


async def test_what_cannot_travel_is_refused_and_nothing_is_stored(store: SqlStore) -> None:
    engine, hooks = StoreEngine(store), Hooks("functions")
    hooks.on(OnComplete)(lambda event: None)
    async with HookDispatcher() as dispatcher:
        for given, problem in (
            ({"hooks": [hooks]}, "functions do not travel"),
            ({"dispatcher": dispatcher}, "`dispatcher` cannot be given"),
            ({"on_token": print}, "`on_token` cannot be given"),
            ({"engine": "dbos"}, "`begin`, `wake` and `serve`"),
            ({"store": InMemoryStore()}, "needs a durable store"),
            ({"store": None}, "needs a durable store"),
            ({"engine": None, "queue": "fast"}, "give it with `engine`"),
            ({"agent_version": 2}, "`agent_version` is a string"),
        ):
            arguments: dict[str, Any] = {"store": store, "engine": engine, **given}
            with pytest.raises(HookUsageError, match=problem):
                await exec_agent(agent(), "Go", **arguments)
    assert (await store.operations()).items == []


async def test_wrong_arguments_of_a_worker_are_refused(store: SqlStore) -> None:
    for given, problem in (
        ({"engine": object()}, "`begin`, `wake` and `serve`"),
        ({"engine": StoreEngine(store), "poll_seconds": 1}, "give it to the engine"),
        ({"agent_versions": "12"}, "list of strings"),
        ({"agent_versions": [1]}, "list of strings"),
    ):
        arguments: dict[str, Any] = given
        with pytest.raises(HookUsageError, match=problem):
            Worker(store, [agent()], **arguments)
    with pytest.raises(HookUsageError, match="poll_seconds"):
        StoreEngine(store, poll_seconds=0)
    assert isinstance(StoreEngine(store), Engine)
