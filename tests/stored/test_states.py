"""Operations whose states an earlier version has stored are read, resumed and recovered."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from hookline import (
    Approve,
    Deny,
    Hooks,
    InMemoryStore,
    ModelCall,
    ModelResponse,
    OnToolCallError,
    Reject,
    ToolCall,
    exec_agent,
    resume_agent,
)
from hookline.delivery import Envelope, InProcess
from hookline.dispatcher import HookDispatcher
from hookline.errors import HooklineError
from hookline.evals import Cassette, EventRecorder, read_events
from hookline.runtime import OperationState, recover_agent
from tests.runtime.durable import Disk, DyingStore

from . import bank
from .files import FILES, added_paths, read_json

pytestmark = pytest.mark.anyio

ADDED = {"$.agentVersion", "$.errorType", "$.errorMessage", "$.interceptors", "$.retryOf"}
"""Fields of states that 8ffe382 did not know."""
DECISIONS = [Approve("t3"), Reject("t4", "no", and_continue=True), Approve("t5")]


def stored_state(name: str) -> OperationState:
    return msgspec.json.decode((FILES / "states" / f"{name}.json").read_bytes(), type=OperationState)


async def store_with(name: str) -> InMemoryStore:
    store = InMemoryStore()
    state = stored_state(name)
    await store.save(msgspec.structs.replace(state), expected_version=None)
    return store


class Model:
    """Answer with a text, and keep what was asked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.calls: list[ModelCall] = []

    def __call__(self, call: ModelCall) -> ModelResponse:
        self.calls.append(call)
        return bank.turn(self.text)


@pytest.mark.parametrize("name", ["paused", "finished", "died"])
def test_a_state_is_written_again_as_it_was_read(name: str) -> None:
    written = msgspec.json.decode(msgspec.json.encode(stored_state(name)))

    assert added_paths(read_json(f"states/{name}.json"), written) == ADDED


def test_a_paused_state_is_read_with_everything_in_it() -> None:
    state = stored_state("paused")

    assert (state.operation_id, state.user_id, state.tenant_id, state.status) == (
        "op_paused",
        "ann",
        "acme",
        "waiting_for_human",
    )
    assert [message.role for message in state.messages] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert state.open_calls == state.messages[-1].tool_calls == bank.PAUSING[1].tool_calls
    assert [(each.tool_call_id, each.prompt) for each in state.pending] == [
        ("t3", ""),
        ("t4", ""),
        ("t5", "May I write that down?"),
    ]
    assert (state.usage.input_tokens, state.usage.output_tokens, state.usage.cost_usd) == (20, 10, 0.5)
    assert state.call_indices == {"local/balance": 1, "local/pay": 2, "local/note": 1}
    assert [hook.id for hook in state.hooks] == ["ledger"]
    assert state.hooks[0].webhook.body == {"team": "risk"}
    assert state.steering is not None
    assert (state.steering.metadata, state.steering.said_from) == ({"ticket": 7}, 2)
    assert state.steering.waiting["t4"].call_index == 2
    assert state.interceptors is None


async def test_a_paused_run_is_resumed_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    own, model = bank.Bank(), Model("Paid.")
    store, recorder = await store_with("paused"), EventRecorder()
    finished = read_json("states/finished.json")

    with caplog.at_level(logging.WARNING):
        result = await resume_agent(
            bank.banker(own, model), "op_paused", DECISIONS, hooks=[recorder.hooks, *bank.rules()], store=store
        )

    assert (result.reason, result.output) == ("done", "Paid.")
    assert (result.steps, result.tool_calls) == (finished["steps"], finished["toolCalls"]) == (4, 3)
    assert sorted(own.done) == ["note rent", "pay landlord 30"]  # both run at once
    told = {message.tool_call_id: message.content for message in result.messages if message.role == "tool"}
    assert told["t1"] == '{"account":"main","euros":40}'
    assert (told["t2"], told["t3"], told["t5"]) == ("It is due.", "paid 30 to landlord", "noted")
    assert told["t4"].endswith(": no")
    assert (result.usage.input_tokens, result.usage.cost_usd) == (30, 0.75)
    calls = recorder["op_paused"].calls
    assert sorted((call.tool_call_id, call.call_index) for call in calls) == [("t3", 1), ("t5", 1)]
    assert {(call.user_id, call.tenant_id) for call in calls} == {("ann", "acme")}
    assert [record.levelname for record in caplog.records if "did not list its interceptors" in record.message] == [
        "WARNING"
    ]


async def test_what_hooks_made_of_the_agent_still_holds_after_the_pause() -> None:
    model = Model("Paid.")

    await resume_agent(bank.banker(bank.Bank(), model), "op_paused", DECISIONS, store=await store_with("paused"))

    (asked,) = model.calls
    assert asked.messages[0].content == bank.INSTRUCTIONS
    assert [tool.name for tool in asked.tools] == ["balance", "pay", "note", "auditor"]
    assert all(tool.description.endswith("(bank)") for tool in asked.tools)


async def test_guards_judge_what_a_person_approved_before_the_upgrade() -> None:
    own, hooks = bank.Bank(), Hooks("late")

    @hooks.guard(ToolCall, tool="pay")
    def refuse(call: ToolCall) -> Deny:
        return Deny("the account is closed")

    result = await resume_agent(
        bank.banker(own, Model("Nothing.")), "op_paused", DECISIONS, hooks=[hooks], store=await store_with("paused")
    )

    assert own.done == ["note rent"]
    assert "the account is closed" in [message.content for message in result.messages]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # deliveries need it
async def test_a_stop_is_delivered_to_the_hook_that_travelled() -> None:
    delivery, received = InProcess(), list[Any]()

    async def receive(envelope: Envelope) -> None:
        received.append(msgspec.json.decode(envelope.payload))

    async with delivery.serve("ledger", receive), HookDispatcher(delivery=delivery) as dispatcher:
        result = await resume_agent(
            bank.banker(bank.Bank(), Model("never")),
            "op_paused",
            [Reject("t3", "no")],
            store=await store_with("paused"),
            dispatcher=dispatcher,
        )

    assert result.reason == "interrupted"
    assert [(body["type"], body["toolCallId"], body["team"], body["hookId"]) for body in received] == [
        ("onStopByHumanIntervention", "t3", "risk", "ledger")
    ]


async def test_a_finished_run_is_not_resumed() -> None:
    store = await store_with("finished")

    with pytest.raises(HooklineError, match="op_paused"):
        await resume_agent(bank.banker(bank.Bank(), Model("never")), "op_paused", DECISIONS, store=store)

    assert stored_state("finished").status == "done"


async def test_a_run_whose_process_died_is_recovered() -> None:
    """Its tool had begun, so it is reported as failed; its sub-agent had not, so it is called."""
    disk, recorder = Disk(), EventRecorder()
    disk.states["op_died"] = (FILES / "states" / "died.json").read_bytes()
    disk.owners["op_died"] = None

    result = await recover_agent(
        bank.banker(bank.Bank(), Model("Nothing is due.")), "op_died", store=DyingStore(disk), hooks=[recorder.hooks]
    )

    assert (result.reason, result.output) == ("done", "Nothing is due.")
    lost = recorder["op_died"].first(OnToolCallError)
    assert (lost.tool_call_id, lost.call_index, lost.error_type) == ("t1", 1, "ProcessDied")
    assert [message.content for message in result.messages if message.tool_call_id == "t2"] == ["It is due."]
    assert disk.state("op_died").status == "done"


# Events.


def test_stored_events_tell_what_happened() -> None:
    events = read_events(FILES / "states" / "events.jsonl")

    of_run = [event for event in events if event.operation_id == "op_paused"]
    assert [event.hook_type.value for event in of_run[:4]] == [
        "beforeStep",
        "beforeToolCall",
        "afterToolCall",
        "beforeCallAgent",
    ]
    assert [event.reason for event in of_run if event.hook_type == "onComplete"] == ["waiting_for_human", "done"]
    assert {event.parent_operation_id for event in events if event not in of_run} == {"op_paused"}


async def test_stored_events_answer_the_calls_of_a_new_run() -> None:
    cassette = Cassette.of_events("events", read_events(FILES / "states" / "events.jsonl"))
    own: Any = bank.Bank()
    script = [bank.turn("", bank.request("pay", "x1", to="landlord", amount=30)), bank.turn("done")]
    agent = bank.banker(own, script)
    asked = await exec_agent(
        agent, "Pay.", hooks=[cassette.player()], operation_id="op_new", store=(store := InMemoryStore())
    )

    result = await resume_agent(agent, "op_new", [Approve("x1")], hooks=[cassette.player()], store=store)

    assert asked.reason == "waiting_for_human"
    assert own.done == []
    assert [message.content for message in result.messages if message.role == "tool"] == ["paid 30 to landlord"]
