"""A person in the loop: pausing, deciding, and going on with the same operation, here or in another process."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from hookline import (
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    Agent,
    Approve,
    BeforeHumanIntervention,
    BeforeToolCall,
    HookDispatcher,
    HooklineError,
    InMemoryStore,
    ModelResponse,
    OnComplete,
    OnStopByHumanIntervention,
    OperationResult,
    Reject,
    ScriptedModel,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.errors import (
    DecisionError,
    HookDefinitionError,
    HookUsageError,
    OperationBusyError,
    OperationExistsError,
    OperationFinishedError,
    OperationMismatchError,
    OperationNotFoundError,
)
from hookline.runtime import OperationState
from tests.tables import for_each

from .scenes import (
    Hanging,
    Recorder,
    agent_of,
    assert_consistent,
    assert_order,
    call,
    calls,
    raw_call,
    says,
    told,
    tool_texts,
)

pytestmark = pytest.mark.anyio


class Shop:
    """An agent with one tool that needs approval and one that does not, and a store of its own."""

    def __init__(self, *turns: ModelResponse | Exception, id: str = "shop", **parts: Any) -> None:  # noqa: A002
        self.paid: list[Any] = []
        self.recorder = Recorder()
        self.store = InMemoryStore()

        @tool(needs_approval=True)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        @tool
        async def look() -> str:
            return "looked"

        self.tools = [pay, look]
        self.agent = agent_of(*turns, id=id, tools=self.tools, **parts)

    async def start(self, prompt: str = "buy", **given: Any) -> OperationResult:
        result = await exec_agent(
            self.agent, prompt, operation_id="op", hooks=[self.recorder.hooks], store=self.store, **given
        )
        assert_order(self.recorder.events)
        return result

    async def resume(self, *decisions: Approve | Reject) -> OperationResult:
        before = len(self.recorder.events)
        result = await resume_agent(self.agent, "op", list(decisions), hooks=[self.recorder.hooks], store=self.store)
        assert_order(self.recorder.events[before:], resumed=True)
        return result


def one_payment() -> Shop:
    return Shop(calls(call("pay", amount=5)), says("bought"))


def three_payments() -> Shop:
    asked = [call("pay", "a", amount=1), call("look", "b"), call("pay", "c", amount=3), call("pay", "d", amount=4)]
    return Shop(calls(*asked), says("bought"))


async def test_a_call_that_needs_approval_pauses_the_run_and_shows_what_would_run() -> None:
    shop = one_payment()

    result = await shop.start()

    assert result.reason == "waiting_for_human"
    assert [(each.tool_call_id, each.tool_name, each.args) for each in result.pending] == [("t1", "pay", {"amount": 5})]
    assert shop.paid == []
    (shown,) = shop.recorder.of(BeforeHumanIntervention)
    assert shown.pending_tools == result.pending
    assert shop.recorder.names() == ["beforeStep", "beforeHumanIntervention", "afterStep", "onComplete"]
    (step,) = shop.recorder.of(AfterStep)
    assert (step.step_type, step.should_continue) == ("request_human_approve", False)
    assert_consistent(result.messages, ["t1"])


async def test_an_approved_call_runs_in_place_of_the_model_call() -> None:
    shop = one_payment()
    await shop.start()

    result = await shop.resume(Approve("t1"))

    assert (result.reason, result.output, shop.paid) == ("done", "bought", [5])
    assert shop.recorder.names()[4:] == [
        *["beforeStep", "afterHumanIntervention", "beforeToolCall", "afterToolCall", "afterStep"],
        *["beforeStep", "afterStep", "onComplete"],
    ]
    decision = shop.recorder.of(AfterHumanIntervention)[0]
    assert (decision.action, decision.tool_call_id, decision.rejection_reason) == ("approve", "t1", None)
    assert shop.recorder.of(OnComplete)[-1].llm_calls == 2
    assert_consistent(result.messages)


async def test_a_plain_rejection_stops_the_run() -> None:
    shop = one_payment()
    await shop.start()

    result = await shop.resume(Reject("t1", "too dear"))

    assert (result.reason, shop.paid, result.pending) == ("interrupted", [], [])
    assert shop.recorder.names()[4:] == [
        *["beforeStep", "afterHumanIntervention", "onStopByHumanIntervention", "afterStep", "onComplete"]
    ]
    (stop,) = shop.recorder.of(OnStopByHumanIntervention)
    assert (stop.tool_call_id, stop.rejection_reason) == ("t1", "too dear")
    assert shop.recorder.of(AfterHumanIntervention)[0].action == "reject"
    assert "too dear" in tool_texts(result)[0]
    assert_consistent(result.messages)


async def test_a_plain_rejection_wins_over_approvals_given_with_it() -> None:
    shop = three_payments()
    await shop.start()

    result = await shop.resume(Approve("a"), Reject("c"), Approve("d"))

    assert (result.reason, shop.paid) == ("interrupted", [])
    assert len(shop.recorder.of(AfterHumanIntervention)) == 3
    assert len(shop.recorder.of(OnStopByHumanIntervention)) == 1
    assert told(result.messages)["b"] == "looked"
    assert_consistent(result.messages)


async def test_a_plain_rejection_wins_over_approvals_given_before_it() -> None:
    shop = three_payments()
    await shop.start()
    await shop.resume(Approve("a"))

    result = await shop.resume(Reject("d"))

    assert (result.reason, shop.paid) == ("interrupted", [])
    assert_consistent(result.messages)


async def test_a_rejection_that_continues_tells_the_model_and_goes_on() -> None:
    shop = one_payment()
    await shop.start()

    result = await shop.resume(Reject("t1", "too dear", and_continue=True))

    assert (result.reason, result.output, shop.paid) == ("done", "bought", [])
    assert "too dear" in tool_texts(result)[0]
    decision = shop.recorder.of(AfterHumanIntervention)[0]
    assert (decision.action, decision.rejection_reason) == ("rejectAndContinue", "too dear")
    assert not shop.recorder.of(BeforeToolCall)
    assert shop.recorder.of(AfterStep)[1].tools_result[0].success is False
    assert not shop.recorder.of(OnStopByHumanIntervention)


async def test_calls_that_need_nobody_run_before_the_pause_and_only_once() -> None:
    shop = three_payments()

    result = await shop.start()

    assert [event.tool_call_id for event in shop.recorder.of(BeforeToolCall)] == ["b"]
    assert [each.tool_call_id for each in result.pending] == ["a", "c", "d"]
    (step,) = shop.recorder.of(AfterStep)
    assert [each.tool_call_id for each in step.tools_calling] == ["a", "b", "c", "d"]
    assert [each.tool_call_id for each in step.tools_result] == ["b"]


async def test_several_calls_are_decided_one_by_one_and_run_when_the_last_is_decided() -> None:
    shop = three_payments()
    await shop.start()

    first = await shop.resume(Approve("d"))
    second = await shop.resume(Reject("a", and_continue=True))
    assert shop.paid == []
    last = await shop.resume(Approve("c"))

    assert [first.reason, second.reason, last.reason] == ["waiting_for_human", "waiting_for_human", "done"]
    assert [[each.tool_call_id for each in result.pending] for result in (first, second)] == [["a", "c"], ["c"]]
    assert shop.recorder.names()[6:14] == 2 * ["beforeStep", "afterHumanIntervention", "afterStep", "onComplete"]
    assert {step.step_type for step in shop.recorder.of(AfterStep)[:3]} == {"request_human_approve"}
    assert [event.reason for event in shop.recorder.of(OnComplete)[:3]] == 3 * ["waiting_for_human"]
    assert sorted(shop.paid) == [3, 4]


async def test_results_after_a_resume_keep_the_models_order() -> None:
    shop = three_payments()
    await shop.start()
    await shop.resume(Approve("d"))

    result = await shop.resume(Approve("c"), Reject("a", "no", and_continue=True))

    assert [message.tool_call_id for message in result.messages if message.role == "tool"] == ["a", "b", "c", "d"]
    texts = tool_texts(result)
    assert texts[1:] == ["looked", "paid 3", "paid 4"]
    assert_consistent(result.messages)
    step = shop.recorder.of(AfterStep)[2]
    assert [outcome.tool_call_id for outcome in step.tools_result] == ["a", "c", "d"]


async def test_before_tool_call_of_a_paused_call_fires_once_over_pause_and_resume() -> None:
    shop = three_payments()
    await shop.start()
    await shop.resume(Approve("a"))
    await shop.resume(Approve("c"), Approve("d"))

    asked = [event.tool_call_id for event in shop.recorder.of(BeforeToolCall)]

    assert sorted(asked) == ["a", "b", "c", "d"]
    assert sorted(event.tool_call_id for event in shop.recorder.of(AfterToolCall)) == ["a", "b", "c", "d"]


async def test_the_very_arguments_that_were_shown_are_what_runs() -> None:
    shop = Shop(calls(raw_call("pay", '{"amount": "5"}')), says())
    first = await shop.start()

    await shop.resume(Approve("t1"))

    assert first.pending[0].args == {"amount": "5"}
    assert shop.recorder.of(BeforeToolCall)[0].args == {"amount": "5"}
    assert shop.paid == [5]


async def test_what_is_shown_to_a_person_cannot_be_edited() -> None:
    shop = one_payment()
    first = await shop.start()

    with pytest.raises(TypeError):
        first.pending[0].args["amount"] = 1_000_000
    await shop.resume(Approve("t1"))

    assert shop.paid == [5]


async def test_a_model_that_reuses_the_arguments_it_sent_changes_nothing() -> None:
    args: dict[str, Any] = {"amount": 5}
    shop = Shop(calls(raw_call("pay", args)), says())
    await shop.start()

    args["amount"] = 1_000_000
    await shop.resume(Approve("t1"))

    assert shop.paid == [5]


async def test_counters_go_on_after_a_resume() -> None:
    turns = [
        calls(call("look", "l1"), call("pay", "p1", amount=1), tokens=10, cost=1.0),
        calls(call("look", "l2"), call("pay", "p2", amount=2), tokens=10, cost=1.0),
        says(tokens=10, cost=1.0),
    ]
    shop = Shop(*turns)
    await shop.start()
    await shop.resume(Approve("p1"))

    result = await shop.resume(Approve("p2"))

    assert [event.step_index for event in shop.recorder.of(AfterStep)] == [0, 1, 2, 3, 4]
    assert {event.tool_call_id: event.call_index for event in shop.recorder.of(BeforeToolCall)} == {
        "l1": 1,
        "p1": 1,
        "l2": 2,
        "p2": 2,
    }
    assert (result.steps, result.tool_calls, result.usage.input_tokens, result.usage.cost_usd) == (5, 4, 30, 3.0)
    end = shop.recorder.of(OnComplete)[-1]
    assert (end.steps, end.llm_calls, end.tool_calls, end.total_tokens, end.cost_usd) == (5, 3, 4, 30, 3.0)


async def test_user_tenant_and_parent_come_from_the_stored_state() -> None:
    shop = one_payment()
    await shop.start(user_id="ada", tenant_id="acme", parent_operation_id="above")

    await shop.resume(Approve("t1"))

    assert {(each.user_id, each.tenant_id, each.parent_operation_id) for each in shop.recorder.events} == {
        ("ada", "acme", "above")
    }


async def test_another_process_goes_on_from_the_encoded_state_with_a_fresh_agent() -> None:
    here = three_payments()
    await here.start()
    await here.resume(Approve("a"))
    saved = msgspec.json.encode(await here.store.load("op"))

    there = Shop(says("bought elsewhere"))
    await there.store.save(msgspec.json.decode(saved, type=OperationState), expected_version=None)
    result = await there.resume(Approve("c"), Reject("d", "dear", and_continue=True))

    assert (result.reason, result.output, sorted(there.paid), here.paid) == ("done", "bought elsewhere", [1, 3], [])
    assert [message.tool_call_id for message in result.messages if message.role == "tool"] == ["a", "b", "c", "d"]
    assert result.messages[0].content == "buy"
    assert_consistent(result.messages)
    assert sorted(event.call_index for event in there.recorder.of(BeforeToolCall)) == [1, 2]


@for_each(
    "other", [raw_call("look", None, "x"), raw_call("look", [1], "x"), raw_call("look", "é\ud800", "x")], ids=repr
)
async def test_a_paused_run_can_always_be_written_and_read_back_whatever_the_model_asked_beside(other: Any) -> None:
    shop = Shop(calls(call("pay", amount=5), other), says())

    result = await shop.start()

    if result.reason == "waiting_for_human":
        state = await shop.store.load("op")
        msgspec.json.decode(msgspec.json.encode(state), type=OperationState)
    assert_consistent(result.messages, ["t1"])


@pytest.mark.parametrize("limit", ["max_steps", "cost_limit"])
async def test_a_limit_reached_at_the_pause_ends_the_run_after_the_approved_call(limit: str) -> None:
    parts: dict[str, Any] = {"max_steps": 1} if limit == "max_steps" else {"cost_limit_usd": 1.0}
    shop = Shop(calls(call("pay", amount=5), cost=2.0), says(), **parts)
    first = await shop.start()

    result = await shop.resume(Approve("t1"))

    assert (first.reason, result.reason, shop.paid) == ("waiting_for_human", limit, [5])


async def test_an_approved_tool_that_raises_is_told_to_the_model() -> None:
    @tool(needs_approval=True)
    async def fail() -> str:
        raise ValueError("boom")

    store = InMemoryStore()
    agent = agent_of(calls(call("fail")), says("sorry"), tools=[fail])
    await exec_agent(agent, "go", operation_id="op", store=store)

    result = await resume_agent(agent, "op", [Approve("t1")], store=store)

    assert (result.reason, tool_texts(result)) == ("done", ["ValueError: boom"])


async def test_a_tool_that_is_gone_at_the_resume_is_told_to_the_model() -> None:
    shop = one_payment()
    await shop.start()
    shop.agent = agent_of(says("sorry"), id="shop")

    result = await shop.resume(Approve("t1"))

    assert result.reason == "done"
    assert "UnknownToolError" in tool_texts(result)[0]


async def test_an_approved_call_can_be_mocked() -> None:
    shop = one_payment()
    await shop.start()
    shop.recorder.hooks.on(BeforeToolCall)(lambda event: event.mock("faked"))

    result = await shop.resume(Approve("t1"))

    assert (shop.paid, tool_texts(result)) == ([], ["faked"])


# What must not be resumed, and is as it was afterwards.


async def still_resumable(shop: Shop, before: OperationState | None) -> None:
    assert await shop.store.load("op") == before
    result = await shop.resume(Approve("t1"))
    assert (result.reason, shop.paid) == ("done", [5])


@for_each(
    "decisions",
    [
        [],
        [Approve("t2")],
        [Approve("t1"), Approve("t1")],
        [Approve("t1"), Reject("t1")],
        [Approve("t1"), Approve("nowhere")],
        Approve("t1"),
        ["t1"],
        None,
        "t1",
        [None],
    ],
    ids=repr,
)
async def test_a_wrong_decision_changes_nothing(decisions: Any) -> None:
    shop = one_payment()
    await shop.start()
    before = await shop.store.load("op")
    events = len(shop.recorder.events)

    with pytest.raises(DecisionError, match="'t1'"):
        await resume_agent(shop.agent, "op", decisions, hooks=[shop.recorder.hooks], store=shop.store)

    assert len(shop.recorder.events) == events
    await still_resumable(shop, before)


async def test_a_call_cannot_be_decided_twice() -> None:
    shop = three_payments()
    await shop.start()
    await shop.resume(Approve("a"))

    with pytest.raises(DecisionError, match="'c'"):
        await shop.resume(Reject("a"))

    assert (await shop.resume(Approve("c"), Approve("d"))).reason == "done"


async def test_a_wrong_agent_changes_nothing() -> None:
    shop = one_payment()
    await shop.start()
    before = await shop.store.load("op")

    with pytest.raises(OperationMismatchError, match="'shop'"):
        await resume_agent(agent_of(says(), id="other"), "op", [Approve("t1")], store=shop.store)

    await still_resumable(shop, before)


async def test_wrong_hooks_change_nothing() -> None:
    shop = one_payment()
    await shop.start()
    before = await shop.store.load("op")

    with pytest.raises(HookDefinitionError):
        await resume_agent(shop.agent, "op", [Approve("t1")], store=shop.store, hooks=["nonsense"])  # type: ignore[list-item]

    await still_resumable(shop, before)


async def test_a_closed_dispatcher_changes_nothing() -> None:
    shop = one_payment()
    await shop.start()
    before = await shop.store.load("op")
    async with HookDispatcher() as dispatcher:
        pass

    with pytest.raises(HookUsageError):
        await resume_agent(shop.agent, "op", [Approve("t1")], store=shop.store, dispatcher=dispatcher)

    await still_resumable(shop, before)


async def test_an_unknown_operation_cannot_be_resumed() -> None:
    with pytest.raises(OperationNotFoundError, match="nowhere"):
        await resume_agent(agent_of(says()), "nowhere", [Approve("t1")])


async def test_a_finished_operation_cannot_be_resumed() -> None:
    shop = one_payment()
    await shop.start()
    await shop.resume(Approve("t1"))

    with pytest.raises(OperationFinishedError, match="done"):
        await shop.resume(Approve("t1"))


async def test_a_running_operation_cannot_be_resumed_or_started_again() -> None:
    hanging = Hanging()

    @tool
    async def hang() -> str:
        await hanging.forever()
        return ""

    store = InMemoryStore()
    agent = agent_of(calls(call("hang")), says(), tools=[hang])

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def start() -> None:
                await exec_agent(agent, "go", operation_id="busy", store=store)

            group.start_soon(start)
            await hanging.begun.wait()
            with pytest.raises(OperationBusyError):
                await resume_agent(agent, "busy", [Approve("t1")], store=store)
            with pytest.raises(OperationExistsError):
                await exec_agent(agent, "go", operation_id="busy", store=store)
            assert interrupt("busy")


async def test_an_operation_that_runs_in_another_process_cannot_be_resumed() -> None:
    shop = one_payment()
    await shop.store.save(OperationState(operation_id="op", agent_id="shop"), expected_version=None)

    with pytest.raises(OperationBusyError):
        await shop.resume(Approve("t1"))


class SlowStore(InMemoryStore):
    """A store with a round trip before and after each of its operations."""

    async def load(self, operation_id: str) -> OperationState | None:
        await anyio.lowlevel.checkpoint()
        found = await super().load(operation_id)
        await anyio.lowlevel.checkpoint()
        return found

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        await anyio.lowlevel.checkpoint()
        await super().save(state, expected_version=expected_version)
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("store", [InMemoryStore, SlowStore])
async def test_of_many_who_resume_at_once_exactly_one_wins(store: type[InMemoryStore]) -> None:
    shop = one_payment()
    shop.store = store()
    await shop.start()
    won: list[OperationResult] = []
    lost: list[HooklineError] = []

    async def resume() -> None:
        try:
            won.append(await resume_agent(shop.agent, "op", [Approve("t1")], store=shop.store))
        except HooklineError as error:
            lost.append(error)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(resume)

    assert (len(won), len(lost), shop.paid) == (1, 9, [5])
    assert {type(error) for error in lost} <= {OperationBusyError, OperationFinishedError}


async def test_a_paused_operation_cannot_be_started_again() -> None:
    shop = one_payment()
    await shop.start()
    before = await shop.store.load("op")

    with pytest.raises(OperationExistsError):
        await exec_agent(shop.agent, "again", operation_id="op", store=shop.store)

    await still_resumable(shop, before)


async def test_a_paused_operation_is_not_live() -> None:
    shop = one_payment()

    await shop.start()

    assert not interrupt("op")


@for_each("event", ["beforeStep", "afterHumanIntervention", "beforeToolCall", "afterToolCall"])
async def test_a_resumed_run_that_is_interrupted_answers_every_call(event: str) -> None:
    shop = three_payments()
    await shop.start()

    def stop(each: Any) -> None:
        if each.hook_type == event:
            interrupt("op")

    shop.recorder.reactions.append(stop)
    result = await shop.resume(Approve("a"), Approve("c"), Approve("d"))

    assert result.reason == "interrupted"
    assert_consistent(result.messages)


async def test_a_resumed_run_that_hangs_in_its_tool_can_be_interrupted() -> None:
    hanging = Hanging()

    @tool(needs_approval=True)
    async def hang() -> str:
        await hanging.forever()
        return ""

    store, recorder = InMemoryStore(), Recorder()
    agent = agent_of(calls(call("hang")), says(), tools=[hang])
    await exec_agent(agent, "go", operation_id="op", store=store)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await hanging.begun.wait()
                assert interrupt("op")

            group.start_soon(stop)
            result = await resume_agent(agent, "op", [Approve("t1")], store=store, hooks=[recorder.hooks])

    assert result.reason == "interrupted"
    assert_order(recorder.events, resumed=True)
    assert_consistent(result.messages)
    with pytest.raises(OperationFinishedError):
        await resume_agent(agent, "op", [Approve("t1")], store=store)


async def test_hooks_of_the_agent_and_of_the_resume_hear_the_resumed_segment() -> None:
    first, second, own = Recorder(), Recorder(), Recorder()
    shop = one_payment()
    agent = Agent(
        id="shop", model=ScriptedModel([calls(call("pay", amount=5)), says()]), tools=shop.tools, hooks=[own.hooks]
    )
    await exec_agent(agent, "go", operation_id="op", store=shop.store, hooks=[first.hooks])

    await resume_agent(agent, "op", [Approve("t1")], store=shop.store, hooks=[second.hooks])

    assert len(first.of(OnComplete)) == 1
    assert len(second.of(OnComplete)) == 1
    assert len(own.of(OnComplete)) == 2


class LateStore(InMemoryStore):
    """Its writes take longer than the rest of the run."""

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        if state.status == "waiting_for_human":
            await anyio.sleep(0.05)
        await super().save(state, expected_version=expected_version)


async def test_the_duration_that_was_reported_at_the_pause_does_not_go_back_at_the_resume() -> None:
    shop = one_payment()
    shop.store = LateStore()
    await shop.start()

    await shop.resume(Approve("t1"))

    paused, done = shop.recorder.of(OnComplete)
    assert paused.duration_ms <= done.duration_ms


async def test_the_resumed_step_shows_its_calls_as_the_model_asked_for_them() -> None:
    asked = raw_call("pay", '{"amount": "5"}')
    shop = Shop(calls(asked), says())
    await shop.start()

    await shop.resume(Approve("t1"))

    paused, resumed, _ = shop.recorder.of(AfterStep)
    assert paused.tools_calling == [asked]
    assert resumed.tools_calling == [asked]


async def test_a_step_that_a_person_stopped_is_no_model_call() -> None:
    shop = one_payment()
    await shop.start()

    await shop.resume(Reject("t1"))

    assert shop.recorder.of(AfterStep)[1].step_type != "call_llm"
