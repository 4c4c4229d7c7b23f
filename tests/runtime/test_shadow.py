"""Shadow bundles in runs: they judge on their lane, nobody waits for them, and nothing of the run depends on them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from hookline import (
    Agent,
    BeforeToolCall,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    OperationResult,
    ToolCall,
    ToolResult,
    tool,
)
from hookline.calls import Ask
from hookline.runtime import Approve, InMemoryStore, ScriptedModel, exec_agent, resume_agent
from hookline.signals import HookExecution, hook_executed

from .scenes import AT_ONCE, call, calls, says, tool_texts

pytestmark = pytest.mark.anyio


class Executions:
    """Keeps the records of a hook's executions."""

    def __init__(self) -> None:
        self.found: list[HookExecution] = []
        hook_executed.connect(self.receive)

    def receive(self, sender: object, execution: HookExecution) -> None:
        self.found.append(execution)

    def of(self, hook_id: str) -> list[tuple[str, str, str]]:
        return [(each.status, each.decision, each.reason) for each in self.found if each.hook_id == hook_id]


def payer(ran: list[int], *turns: Any) -> Agent:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return f"paid {amount}"

    return Agent(id="payer", model=ScriptedModel(turns), tools=[pay], retry=AT_ONCE)


async def execute(hooks: list[Any], ran: list[int]) -> OperationResult:
    turns = [calls(call("pay", amount=5)), says("done")]
    return await exec_agent(payer(ran, *turns), "go", hooks=hooks)


async def test_a_denial_in_the_shadow_is_recorded_and_the_tool_runs() -> None:
    shadow, executions, ran = Hooks("shadow", shadow=True), Executions(), list[int]()
    shadow.guard(ToolCall, id="limit")(lambda call: Deny("too much"))

    result = await execute([shadow], ran)

    assert (ran, tool_texts(result), result.reason) == ([5], ["paid 5"], "done")
    assert executions.of("limit") == [("shadow", "denied", "too much")]


async def test_nobody_waits_for_a_shadow_hook_that_hangs() -> None:
    shadow, ran = Hooks("shadow", shadow=True), list[int]()
    over = anyio.Event()

    @shadow.guard(ToolCall, timeout=30)
    async def hang(call: ToolCall) -> None:
        await over.wait()

    def answer(asked: ModelCall) -> ModelResponse:
        if asked.messages[-1].role != "tool":
            return calls(call("pay", amount=5))
        over.set()
        return says("done")

    agent = payer(ran)
    agent = Agent(id="payer", model=ScriptedModel(answer), tools=agent.tools)
    with anyio.fail_after(10):
        result = await exec_agent(agent, "go", hooks=[shadow])

    assert (ran, result.reason) == ([5], "done")


async def test_a_shadow_bundle_in_which_hooks_fail_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shadow, executions, ran = Hooks("shadow", shadow=True), Executions(), list[int]()

    @shadow.guard(ToolCall, id="broken")
    def broken(call: ToolCall) -> None:
        raise RuntimeError("broken")

    result = await execute([shadow], ran)

    assert (ran, result.reason) == ([5], "done")
    assert executions.of("broken") == [
        ("shadow", "denied", "the hook failed, and it fails closed: RuntimeError: broken")
    ]
    assert "broken" in caplog.text


async def test_a_question_in_the_shadow_is_asked_of_nobody() -> None:
    shadow, executions, ran = Hooks("shadow", shadow=True), Executions(), list[int]()
    shadow.guard(ToolCall, id="asks")(lambda call: Ask("May it?"))

    result = await execute([shadow], ran)

    assert (ran, result.reason, result.pending) == ([5], "done", [])
    assert executions.of("asks") == [("shadow", "asked", "May it?")]


async def test_an_observer_of_a_shadow_bundle_answers_nothing() -> None:
    shadow, executions, ran = Hooks("shadow", shadow=True), Executions(), list[int]()
    accepted: list[bool] = []

    @shadow.on(BeforeToolCall, id="mocks")
    def mock(event: BeforeToolCall) -> None:
        accepted.append(event.mock("mine"))

    @shadow.on(BeforeToolCall, id="denies")
    async def deny(event: BeforeToolCall) -> Any:
        return Deny("no")

    @shadow.on(BeforeToolCall, id="looks")
    def look(event: BeforeToolCall) -> None:
        pass

    result = await execute([shadow], ran)

    assert (ran, tool_texts(result), accepted) == ([5], ["paid 5"], [False])
    assert executions.of("mocks") == [("shadow", "mocked", "")]
    assert executions.of("denies") == [("shadow", "denied", "no")]
    assert executions.of("looks") == [("ok", "", "")]


async def test_an_observer_of_a_shadow_bundle_sees_what_others_answered() -> None:
    shadow, ran, seen = Hooks("shadow", shadow=True), list[int](), list[Any]()
    mocks = Hooks("mocks")

    @mocks.on(BeforeToolCall)
    def mock(event: BeforeToolCall) -> None:
        event.mock("theirs")

    shadow.on(BeforeToolCall)(lambda event: seen.append((event.mocked, event.mock("mine"))))

    result = await execute([mocks, shadow], ran)

    assert (ran, tool_texts(result), seen) == ([], ["theirs"], [(True, False)])


async def test_sub_agents_inherit_a_shadow_bundle_as_a_shadow_bundle() -> None:
    shadow, executions, ran = Hooks("shadow", shadow=True, inherit=True), Executions(), list[int]()
    shadow.guard(ToolCall, tool="pay", id="limit")(lambda call: Deny("too much"))
    inner = payer(ran, calls(call("pay", amount=5)), says("paid"))
    outer = Agent(
        id="outer",
        model=ScriptedModel([calls(call("payer", toolset="agent", instruction="pay")), says("done")]),
        sub_agents=[inner],
        retry=AT_ONCE,
    )

    result = await exec_agent(outer, "go", hooks=[shadow])

    assert (ran, result.reason) == ([5], "done")
    assert executions.of("limit") == [("shadow", "denied", "too much")]


async def test_a_resumed_run_needs_no_shadow_bundle_and_an_approved_call_is_judged_once_by_each() -> None:
    store, executions, ran = InMemoryStore(), Executions(), list[int]()
    shadow, asking = Hooks("shadow", shadow=True), Hooks("asking")
    asking.guard(ToolCall, id="asks", priority=500)(lambda call: Ask("May it?"))
    shadow.guard(ToolCall, id="outer", priority=1)(lambda call: Deny("no"))
    shadow.guard(ToolCall, id="inner", priority=900)(lambda call: Deny("no"))
    shadow.after(ToolCall, id="later")(lambda call, result: ToolResult(content="hidden"))
    agent = payer(ran, calls(call("pay", amount=5)), says("done"))

    paused = await exec_agent(agent, "go", hooks=[shadow, asking], store=store)
    assert [executions.of(each) for each in ("outer", "inner")] == [[("shadow", "denied", "no")], []]

    result = await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[shadow, asking], store=store)

    assert (ran, tool_texts(result)) == ([5], ["paid 5"])
    for each in ("outer", "inner"):
        assert executions.of(each) == [("shadow", "denied", "no")]
    assert executions.of("later") == [("shadow", "changed", "")]


async def test_a_resume_without_the_shadow_bundle_is_no_error() -> None:
    store, ran = InMemoryStore(), list[int]()
    shadow, asking = Hooks("shadow", shadow=True), Hooks("asking")
    asking.guard(ToolCall)(lambda call: Ask("May it?"))
    shadow.guard(ToolCall)(lambda call: Deny("no"))
    agent = payer(ran, calls(call("pay", amount=5)), says("done"))

    paused = await exec_agent(agent, "go", hooks=[shadow, asking], store=store)
    result = await resume_agent(agent, paused.operation_id, [Approve("t1")], hooks=[asking], store=store)

    assert (ran, result.reason) == ([5], "done")
