"""One record per call that was led through interceptors, for whoever listens."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hookline import Agent, Chain, Deny, Hooks, ModelResponse, ScriptedModel, ToolCall, ToolResult, exec_agent
from hookline.calls import AgentCall, Ask
from hookline.signals import ChainRun, HookExecution, chain_ran, hook_executed

from .calls import SECOND, keep_busy

pytestmark = pytest.mark.anyio


@pytest.fixture
def ran() -> Iterator[list[ChainRun]]:
    records: list[ChainRun] = []

    def receive(sender: object, ran: ChainRun) -> None:
        records.append(ran)

    chain_ran.connect(receive)
    yield records
    chain_ran.disconnect(receive)


async def terminal(call: Any) -> ToolResult:
    return ToolResult(content="ran")


async def test_a_record_names_the_hooks_in_order_and_who_denied(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, id="look")(lambda call: None)
    hooks.guard(ToolCall, id="stop")(lambda call: Deny("no"))
    await Chain([hooks], record=False).run(ToolCall(tool_name="x", tenant_id="t", operation_id="op"), terminal)
    [record] = ran
    assert (record.point, record.operation_id, record.tenant_id) == ("ToolCall", "op", "t")
    assert [(each.hook_id, each.status, each.tenant_id) for each in record.executions] == [
        ("look", "ok", "t"),
        ("stop", "denied", "t"),
    ]
    assert (record.denied_by, record.reason) == ("stop", "no")


async def test_a_record_of_a_call_about_which_a_person_is_asked_names_nobody_who_denied(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.guard(ToolCall, id="asks")(lambda call: Ask("may it?"))

    await Chain([hooks]).run(ToolCall(tool_name="x"), terminal)

    [record] = ran
    assert [(each.hook_id, each.status, each.decision) for each in record.executions] == [("asks", "denied", "asked")]
    assert (record.denied_by, record.reason) == (None, None)


async def test_a_record_says_when_the_first_hook_began_and_how_long_all_of_it_took(ran: list[ChainRun]) -> None:
    took: list[float] = []
    hooks = Hooks("h")
    hooks.before(ToolCall)(lambda call: None)

    async def busy(call: Any) -> ToolResult:
        began = time.perf_counter()
        keep_busy(0.02)
        took.append(time.perf_counter() - began)
        return ToolResult(content="ran")

    began, wall = time.perf_counter(), time.time_ns()
    await Chain([hooks]).run(ToolCall(tool_name="x"), busy)

    [record] = ran
    assert took[0] * 1e3 <= record.duration_ms <= (time.perf_counter() - began) * 1e3
    assert wall - SECOND <= record.time_unix_nano <= time.time_ns() + SECOND


async def test_a_terminal_that_raises_leaves_a_record_too(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, id="look")(lambda call: None)

    async def broken(call: Any) -> ToolResult:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Chain([hooks]).run(ToolCall(tool_name="x"), broken)
    assert [[each.hook_id for each in record.executions] for record in ran] == [["look"]]


@pytest.mark.parametrize("raises", [False, True])
async def test_who_begins_to_listen_during_a_call_changes_nothing(raises: bool) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, id="look")(lambda call: None)

    def receive(sender: object, ran: ChainRun) -> None:
        pass

    async def connecting(call: Any) -> ToolResult:
        chain_ran.connect(receive)
        if raises:
            raise KeyError("x")
        return ToolResult(content="ran")

    try:
        if raises:
            with pytest.raises(KeyError):
                await Chain([hooks]).run(ToolCall(tool_name="x"), connecting)
        else:
            outcome = await Chain([hooks]).run(ToolCall(tool_name="x"), connecting)
            assert outcome.result.content == "ran"
    finally:
        chain_ran.disconnect(receive)


async def test_a_record_is_left_when_who_listens_to_single_hooks_goes_away_meanwhile(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, id="look")(lambda call: None)

    def receive(sender: object, execution: HookExecution) -> None:
        pass

    async def leaving(call: Any) -> ToolResult:
        hook_executed.disconnect(receive)
        return ToolResult(content="ran")

    hook_executed.connect(receive)
    await Chain([hooks]).run(ToolCall(tool_name="x"), leaving)

    assert [[each.hook_id for each in record.executions] for record in ran] == [["look"]]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_hook_that_is_left_running_has_the_time_that_it_took_so_far(ran: list[ChainRun]) -> None:
    hooks, begun, may_end, left = Hooks("h"), asyncio.Event(), asyncio.Event(), list[asyncio.Future[object]]()

    @hooks.around(ToolCall, id="outer", priority=1)
    async def outer(call: ToolCall, call_next: Any) -> object:
        left.append(asyncio.ensure_future(call_next(call)))
        return await asyncio.shield(left[0])

    @hooks.around(ToolCall, id="inner", priority=2)
    async def inner(call: ToolCall, call_next: Any) -> object:
        begun.set()
        await may_end.wait()
        return await call_next(call)

    running = asyncio.ensure_future(Chain([hooks]).run(ToolCall(tool_name="x"), terminal))
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    may_end.set()
    await asyncio.wait(left)

    [record] = ran
    assert [each.hook_id for each in record.executions] == ["outer", "inner"]
    assert all(0 <= each.duration_ms < 60_000 for each in record.executions)


async def test_a_call_that_no_hook_met_leaves_none(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(ToolCall, tool="*/other")(lambda call: None)
    await Chain([hooks]).run(ToolCall(tool_name="x"), terminal)
    assert ran == []


async def test_a_run_leaves_one_for_each_of_its_calls(ran: list[ChainRun]) -> None:
    hooks = Hooks("h")
    hooks.before(AgentCall, id="in")(lambda call: None)
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="x")]))
    result = await exec_agent(agent, "hi", hooks=[hooks], tenant_id="t")
    assert [(record.point, record.operation_id, record.tenant_id) for record in ran] == [
        ("AgentCall", result.operation_id, "t")
    ]
