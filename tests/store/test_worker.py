"""People decide, and workers go on: each operation with one of them, and with what was decided about that very pause."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from time import monotonic

import anyio
import pytest
from sqlalchemy import text

from hookline import (
    Agent,
    Approve,
    Hook,
    Hooks,
    ModelResponse,
    OnComplete,
    PendingTool,
    Reject,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import DecisionError, HookUsageError, OperationFinishedError, OperationNotFoundError
from hookline.runtime import AdapterRun, Capabilities
from hookline.store import SqlStore, Worker

pytestmark = pytest.mark.anyio


class Till:
    """Counts what was paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def agent(self, *amounts: int, agent_id: str = "payer") -> Agent:
        """Asks to pay each amount at once, and is done when it was told of each."""

        @tool(in_thread=False, needs_approval=True)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        def says(call: object) -> ModelResponse:
            told = [message.content for message in call.messages if message.role == "tool"]  # type: ignore[attr-defined]
            if told:
                return ModelResponse(content=" and ".join(told))
            return ModelResponse(
                tool_calls=[
                    ToolRequest(tool_name="pay", args={"amount": amount}, tool_call_id=f"t{nth}")
                    for nth, amount in enumerate(amounts)
                ]
            )

        return Agent(id=agent_id, model=ScriptedModel(says), tools=[pay])


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url, lease_seconds=2) as store:
        yield store


async def until(condition: Callable[[], object], within: float = 20.0) -> None:
    ends = monotonic() + within
    while not condition():
        assert monotonic() < ends
        await anyio.sleep(0.05)


async def status_of(store: SqlStore, operation_id: str, wanted: str, within: float = 20.0) -> None:
    ends = monotonic() + within
    while (state := await store.load(operation_id)) is None or state.status != wanted:
        assert monotonic() < ends, state and state.status
        await anyio.sleep(0.05)


async def test_an_operation_goes_on_once_all_that_it_waits_for_is_decided(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1, 2), "Pay", operation_id="op", store=store)
    async with Worker(store, [till.agent(1, 2)], poll_seconds=0.05):
        await store.decide("op", Approve("t0"), by="ann")
        assert await store.decided(["payer"]) == []
        await store.decide("op", Reject("t1", "too much", and_continue=True), by="ben")
        await status_of(store, "op", "done")
    state = await store.load("op")
    assert state is not None
    assert state.last_content.startswith("paid 1 and ")
    assert "too much" in state.last_content
    assert till.paid == [1]


async def test_a_rejection_that_stops_the_run_does_not_wait_for_the_others(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1, 2), "Pay", operation_id="op", store=store)
    await store.decide("op", Reject("t1"))
    async with Worker(store, [till.agent(1, 2)], poll_seconds=0.05):
        await status_of(store, "op", "interrupted")
    assert till.paid == []


async def test_two_workers_run_what_was_approved_once(store: SqlStore, database_url: str) -> None:
    till = Till()
    names = [f"op{n}" for n in range(20)]
    for name in names:
        await exec_agent(till.agent(1), "Pay", operation_id=name, store=store)
        await store.decide(name, Approve("t0"))
    async with (
        SqlStore(database_url, lease_seconds=2) as other,
        Worker(store, [till.agent(1)], poll_seconds=0.05),
        Worker(other, [till.agent(1)], poll_seconds=0.05),
    ):
        for name in names:
            await status_of(store, name, "done")
    assert till.paid == [1] * 20


async def test_a_decision_stays_while_others_are_taken_in_another_way(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1, 2), "Pay", operation_id="op", store=store)
    await store.decide("op", Reject("t0", and_continue=True))
    await resume_agent(till.agent(1, 2), "op", [Approve("t1")], store=store)  # it still waits for t0
    [(state, found)] = await store.decided(["payer"])
    assert (state.operation_id, found) == ("op", [Reject("t0", and_continue=True)])


async def test_a_decision_counts_until_its_operation_has_gone_on_and_is_kept(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1), "Pay", operation_id="op", store=store)
    await store.decide("op", Approve("t0"))
    await store.forget_decisions("op")  # as a worker does whose database was gone when it wanted to go on

    [(_, found)] = await store.decided(["payer"])
    assert found == [Approve("t0")]
    with pytest.raises(DecisionError, match="decided already"):
        await store.decide("op", Reject("t0"))
    async with Worker(store, [till.agent(1)], poll_seconds=0.05):
        await status_of(store, "op", "done")
    assert await store.decided(["payer"]) == []
    [kept] = await store.decisions_of("op")
    assert (kept.decision, kept.event_number) == ("approve", 6)
    assert till.paid == [1]


async def test_a_decision_is_about_one_pause_even_if_a_later_one_has_a_call_of_the_same_id(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1), "Pay", operation_id="op", store=store)
    await store.decide("op", Approve("t0"))
    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name="pay", args={"amount": 1000}, tool_call_id="t0")]),
        ModelResponse(content="done"),
    ]
    again = Agent(id="payer", model=ScriptedModel(turns), tools=till.agent(1).tools)
    await resume_agent(again, "op", [Approve("t0")], store=store)
    state = await store.load("op")
    assert state is not None
    assert (state.status, state.pending[0].args) == ("waiting_for_human", {"amount": 1000})
    assert await store.decided(["payer"]) == []
    await store.decide("op", Reject("t0"))


@pytest.mark.parametrize("again", [Approve("t0"), Reject("t0")])
async def test_who_decides_first_has_decided(store: SqlStore, again: Approve | Reject) -> None:
    await exec_agent(Till().agent(1), "Pay", operation_id="op", store=store)
    await store.decide("op", Approve("t0"))
    with pytest.raises(DecisionError, match="decided already"):
        await store.decide("op", again)


async def test_decisions_that_mean_nothing_are_refused(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1), "Pay", operation_id="op", store=store, tenant_id="acme")
    with pytest.raises(OperationNotFoundError):
        await store.decide("other", Approve("t0"))
    with pytest.raises(OperationNotFoundError):
        await store.decide("op", Approve("t0"), tenant_id="evil")
    with pytest.raises(DecisionError, match="not pending"):
        await store.decide("op", Approve("t9"), tenant_id="acme")
    await resume_agent(till.agent(1), "op", [Approve("t0")], store=store)
    with pytest.raises(OperationFinishedError):
        await store.decide("op", Approve("t0"))


async def test_a_worker_leaves_agents_that_it_does_not_know_to_others(store: SqlStore) -> None:
    till = Till()
    await exec_agent(till.agent(1, agent_id="stranger"), "Pay", operation_id="theirs", store=store)
    await exec_agent(till.agent(2), "Pay", operation_id="ours", store=store)
    for name in ("theirs", "ours"):
        await store.decide(name, Approve("t0"))
    async with Worker(store, [till.agent(2)], poll_seconds=0.05):
        await status_of(store, "ours", "done")
    assert till.paid == [2]


async def test_the_hooks_of_a_worker_are_in_the_way_of_what_it_goes_on_with(store: SqlStore) -> None:
    till = Till()
    hooks = Hooks("guards")
    seen: list[object] = []
    hooks.guard(ToolCall)(lambda call: seen.append(call.args["amount"]))
    await exec_agent(till.agent(3), "Pay", operation_id="op", store=store)
    await store.decide("op", Approve("t0"))
    async with Worker(store, [till.agent(3)], hooks=[hooks], poll_seconds=0.05):
        await status_of(store, "op", "done")
    assert seen == [3]


async def test_an_operation_that_nobody_can_go_on_with_is_logged_and_harms_no_other(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    till = Till()
    await exec_agent(till.agent(1), "Pay", operation_id="good", store=store)
    await store.decide("good", Approve("t0"))
    with caplog.at_level(logging.INFO, logger="hookline"):
        async with Worker(store, [till.agent(1)], poll_seconds=0.05) as worker:
            await worker._continue_operation("no such operation")
            await status_of(store, "good", "done")
    assert "no such operation" in caplog.text


async def test_an_operation_of_a_newer_version_and_those_of_strangers_keep_a_worker_from_nothing(
    store: SqlStore,
) -> None:
    till = Till()
    names = ["newer", "strange", "mine"]
    for name in names:
        agent = till.agent(1, agent_id="stranger" if name == "strange" else "payer")
        await exec_agent(agent, "Pay", operation_id=name, store=store)
        await store.decide(name, Approve("t0"))
    async with store.writing() as connection:
        await connection.execute(text("UPDATE operations SET format = 99 WHERE operation_id = 'newer'"))
        # Two whose process has died.
        await connection.execute(
            text("UPDATE operations SET status = 'running', owner = NULL WHERE operation_id IN ('newer', 'strange')")
        )
    assert await store.orphans() == ["strange"]
    assert await store.orphans(agent_ids=["payer"]) == []
    async with Worker(store, [till.agent(1)], poll_seconds=0.05):
        await status_of(store, "mine", "done")


async def test_what_ended_long_ago_is_forgotten_with_all_that_is_known_of_it(store: SqlStore) -> None:
    till = Till()
    for name in ("old", "waits"):
        await exec_agent(till.agent(1), "Pay", operation_id=name, store=store)
    await resume_agent(till.agent(1), "old", [Approve("t0")], store=store)
    assert await store.prune(3600) == 0
    assert await store.prune(0) == 1
    assert await store.load("old") is None
    assert await store.events_of("old") == []
    assert await store.load("waits") is not None
    assert await store.events_of("waits")


async def test_what_is_still_to_be_delivered_is_not_forgotten(store: SqlStore) -> None:
    hook = Hook(id="end", type=OnComplete, webhook={"url": "https://example.org/hook"})
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="done")]))
    await exec_agent(agent, "Hi", operation_id="op", hooks=[hook], store=store)
    assert await store.prune(0) == 0
    assert await store.load("op") is not None


async def test_a_worker_without_agents_is_refused(store: SqlStore) -> None:
    with pytest.raises(HookUsageError, match="needs at least one agent"):
        Worker(store, [])


async def test_operations_that_wait_for_further_decisions_hide_none_that_can_go_on(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline.store._decisions.BATCH_SIZE", 2)
    till = Till()
    for name, amounts in [("a", (1, 2)), ("b", (1, 2)), ("c", (1, 2)), ("d", (3,)), ("e", (4,))]:
        await exec_agent(till.agent(*amounts), "pay", store=store, operation_id=name)
        await store.decide(name, Approve("t0"))

    async def ready(limit: int) -> list[str]:
        return [state.operation_id for state, _ in await store.decided(["payer"], limit=limit)]

    assert await ready(1) == ["d"]
    assert await ready(10) == ["d", "e"]


async def test_a_worker_leaves_the_runs_of_other_frameworks_to_them(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline")
    capabilities = Capabilities(framework="a loop")
    pending = PendingTool(toolset="local", tool_name="pay", tool_call_id="t0", args={})
    async with AdapterRun((), capabilities, agent_id="payer", operation_id="op", store=store) as run:
        run.begin_step()
        run.pause([pending])
    await store.decide("op", Approve("t0"))

    till = Till()
    async with Worker(store, [till.agent(1)], poll_seconds=0.05):
        await until(lambda: "will retry operation" in caplog.text)

    assert not till.paid
    assert caplog.text.count("will retry operation op") == 1
    async with AdapterRun((), capabilities, agent_id="payer", operation_id="op", store=store) as run:
        run.decided([Approve("t0")])
    await status_of(store, "op", "done")
