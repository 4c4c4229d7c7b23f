"""A crash opens no way past a person, a guard or a hook, and tells nobody anything twice."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from hookline import (
    Agent,
    Approve,
    Ask,
    Deny,
    Hooks,
    ModelResponse,
    Reject,
    ScriptedModel,
    StepCall,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.runtime import OperationResult, recover_agent
from tests.runtime.durable import Died, Disk, DyingStore
from tests.runtime.test_recovery import calling, check_events

pytestmark = pytest.mark.anyio


class Ledger:
    """What was paid, in all processes together."""

    def __init__(self, *, approval: bool = False, hangs_on: int | None = None) -> None:
        self.paid: list[int] = []
        self.approval, self.hangs_on = approval, hangs_on

    def agent(self, *amounts: int) -> Agent:
        @tool(in_thread=False, needs_approval=self.approval)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            if amount == self.hangs_on:
                await anyio.sleep(3600)
            return f"paid {amount}"

        def says(call: Any) -> ModelResponse:
            told = [message.content for message in call.messages if message.role == "tool"]
            if told:
                return ModelResponse(content=" / ".join(told))
            return ModelResponse(tool_calls=[calling(f"p{n}", "pay", amount=n) for n in amounts])

        return Agent(id="payer", model=ScriptedModel(says), tools=[pay])


async def dies(work: Callable[[DyingStore], Awaitable[object]], disk: Disk, at: int) -> None:
    """Let a process die right after its `at`-th write."""
    store = DyingStore(disk, dies_at=at, written=True)
    try:
        await work(store)
    except (Died, BaseExceptionGroup):
        pass
    assert store.dead, f"it ended after {store.writes} writes"


async def goes_on(agent: Agent, disk: Disk, *hooks: Hooks) -> OperationResult:
    """Another process recovers it, and the person approves whatever it asks."""
    store = DyingStore(disk)
    result = await recover_agent(agent, "op", hooks=hooks, store=store)
    check_events(disk.events_of("op"))
    return result


async def test_a_rejection_that_stops_the_run_stops_it_after_a_crash_too() -> None:
    for at in (1, 2):  # after the claim, and after hooks were told of the decision
        ledger, disk = Ledger(approval=True), Disk()
        await exec_agent(ledger.agent(1, 2), "Pay", operation_id="op", store=DyingStore(disk))
        await dies(lambda store: resume_agent(ledger.agent(1, 2), "op", [Reject("p1")], store=store), disk, at)  # noqa: B023
        result = await goes_on(ledger.agent(1, 2), disk)
        assert result.reason == "interrupted"
        assert ledger.paid == []
        kinds = [event["type"] for event in disk.events_of("op")]
        assert kinds.count("afterHumanIntervention") == kinds.count("onStopByHumanIntervention") == 1


async def test_what_a_person_has_approved_is_not_asked_again_after_a_crash() -> None:
    for at in (1, 2):
        ledger, disk = Ledger(approval=True), Disk()
        await exec_agent(ledger.agent(1), "Pay", operation_id="op", store=DyingStore(disk))
        await dies(lambda store: resume_agent(ledger.agent(1), "op", [Approve("p1")], store=store), disk, at)  # noqa: B023
        result = await goes_on(ledger.agent(1), disk)
        assert (result.reason, ledger.paid) == ("done", [1])
        kinds = [event["type"] for event in disk.events_of("op")]
        assert kinds.count("afterHumanIntervention") == 1
        assert kinds.count("onComplete") == 2


async def test_a_hook_that_was_not_heard_before_a_person_was_asked_is_heard_after_a_crash() -> None:
    def hooks() -> Hooks:
        bundle = Hooks("policy")
        bundle.before(ToolCall, priority=10)(lambda call: Ask("really?"))
        bundle.before(ToolCall, priority=20)(lambda call: Deny("never 2") if call.args["amount"] == 2 else None)
        return bundle

    ledger, disk = Ledger(), Disk()
    agent = ledger.agent(1, 2)
    await exec_agent(agent, "Pay", hooks=[hooks()], operation_id="op", store=DyingStore(disk))
    approvals = [Approve("p1"), Approve("p2")]
    await dies(lambda store: resume_agent(agent, "op", approvals, hooks=[hooks()], store=store), disk, 3)
    result = await goes_on(agent, disk, hooks())
    assert 2 not in ledger.paid
    assert "never 2" in result.output
    indices = [event["callIndex"] for event in disk.events_of("op") if event["type"] == "beforeToolCall"]
    assert sorted(indices) == [1, 2]


async def test_what_hooks_withhold_of_a_sub_agent_stays_withheld_after_a_crash() -> None:
    def hooks() -> Hooks:
        bundle = Hooks("redaction")

        @bundle.after(SubAgentCall)
        def redact(call: SubAgentCall, result: Any) -> Any:
            return type(result)(output="[redacted]")

        return bundle

    def parent() -> Agent:
        child = Agent(id="kid", model=ScriptedModel(lambda call: ModelResponse(content="SECRET")))

        def says(call: Any) -> ModelResponse:
            told = [message.content for message in call.messages if message.role == "tool"]
            if told:
                return ModelResponse(content=told[0])
            calls = [ToolRequest(toolset="agent", tool_name="kid", args={"instruction": "x"}, tool_call_id="a")]
            return ModelResponse(tool_calls=calls)

        return Agent(id="parent", model=ScriptedModel(says), sub_agents=[child])

    for at in range(3, 7):
        disk = Disk()
        await dies(
            lambda store: exec_agent(parent(), "Go", hooks=[hooks()], operation_id="op", store=store),
            disk,
            at,
        )
        result = await goes_on(parent(), disk, hooks())
        assert result.output == "[redacted]"


async def test_a_run_that_a_hook_has_stopped_is_not_taken_further_after_a_crash() -> None:
    def hooks() -> Hooks:
        bundle = Hooks("stop")
        bundle.guard(ToolCall)(lambda call: Deny("enough", stop=True) if call.args["amount"] == 1 else None)
        return bundle

    ledger, disk = Ledger(), Disk()
    agent = ledger.agent(1, 2)
    for at in (3, 4):
        ledger.paid.clear()
        disk = Disk()
        await dies(
            lambda store: exec_agent(agent, "Pay", hooks=[hooks()], operation_id="op", store=store),
            disk,
            at,
        )
        result = await goes_on(agent, disk, hooks())
        assert result.reason == "interrupted"
        assert result.denied is not None
        assert result.denied.reason == "enough"


async def test_hooks_of_a_step_that_was_not_let_begin_are_asked_after_a_crash() -> None:
    def hooks(*, frozen: bool) -> Hooks:
        bundle = Hooks("freeze")
        bundle.before(StepCall)(lambda call: Deny("frozen") if frozen else None)
        return bundle

    ledger, disk = Ledger(approval=True), Disk()
    agent = ledger.agent(1)
    await exec_agent(agent, "Pay", hooks=[hooks(frozen=False)], operation_id="op", store=DyingStore(disk))
    await dies(
        lambda store: resume_agent(agent, "op", [Approve("p1")], hooks=[hooks(frozen=True)], store=store), disk, 2
    )
    result = await goes_on(agent, disk, hooks(frozen=True))
    assert (result.reason, ledger.paid) == ("interrupted", [])


async def test_calls_keep_their_indices_and_count_once_over_a_crash() -> None:
    for at in (3, 4):
        ledger, disk = Ledger(), Disk()
        await dies(lambda store: exec_agent(ledger.agent(1, 2, 3), "Pay", operation_id="op", store=store), disk, at)  # noqa: B023
        result = await goes_on(ledger.agent(1, 2, 3), disk)
        assert result.tool_calls == 3
        indices = [event["callIndex"] for event in disk.events_of("op") if event["type"] == "beforeToolCall"]
        assert sorted(indices) == [1, 2, 3]


async def test_an_operation_that_nobody_wants_any_more_is_ended_with_all_that_had_begun() -> None:
    ledger, disk = Ledger(), Disk()
    await dies(lambda store: exec_agent(ledger.agent(1, 2), "Pay", operation_id="op", store=store), disk, 3)
    result = await recover_agent(ledger.agent(1, 2), "op", store=DyingStore(disk), abandon=True)
    assert result.reason == "interrupted"
    assert ledger.paid == []
    check_events(disk.events_of("op"))
    assert disk.state("op").status == "interrupted"


async def test_text_that_cannot_be_stored_is_escaped_rather_than_tried_for_ever() -> None:
    disk = Disk()
    half = "half \ud83d"
    turns = [
        ModelResponse(content=half, tool_calls=[calling("t\0" * 300, "say")]),
        ModelResponse(content=half, reasoning=half),
    ]

    @tool(in_thread=False)
    async def say() -> ToolResult:
        return ToolResult(content=half)

    agent = Agent(id="a", model=ScriptedModel(turns), tools=[say])
    result = await exec_agent(agent, "Hi", operation_id="op", store=DyingStore(disk))
    assert result.reason == "done"
    assert result.output == "half \\ud83d"
    check_events(disk.events_of("op"))
