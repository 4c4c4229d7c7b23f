"""The tags of an operation: checked, seen by hooks, inherited by sub-agents, and kept when it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from hookline import (
    Agent,
    AgentSession,
    Approve,
    BeforeStep,
    Event,
    Hooks,
    InMemoryStore,
    Message,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    stream_agent,
    tool,
)
from hookline.errors import HookUsageError
from hookline.events import EVENTS, decode, encode
from hookline.instrumentation import Instrumentation, SegmentInfo
from hookline.runtime import KINDS, AdapterRun, Capabilities, OperationState, make_retry, recover_agent
from tests.tables import for_each

from .durable import Died, Disk, DyingStore

pytestmark = pytest.mark.anyio

DRIVES = Capabilities(framework="a loop", calls={ToolCall: KINDS}, asks=True)


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def payer(**fields: Any) -> Agent:
    return Agent(id="payer", model=ScriptedModel([ToolRequest("pay", {}), "done"]), tools=[pay], **fields)


class Seen(Instrumentation):
    """Note the tags of all that hooks and instrumentation are told."""

    def __init__(self) -> None:
        super().__init__("seen", inherit=True)
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.events: list[tuple[str, tuple[str, ...]]] = []
        self.segments: list[tuple[str, ...]] = []
        self.guard(ToolCall)(self._judge)
        for event in EVENTS.values():
            self.on(event)(self._note)

    def _judge(self, call: ToolCall) -> None:
        self.calls.append((call.agent_id, call.tags))

    def _note(self, event: Event) -> None:
        self.events.append((event.agent_id, event.tags))

    def begin(self, segment: SegmentInfo) -> tuple[Any, Hooks | None]:
        self.segments.append(segment.tags)
        return None, self


async def test_hooks_and_instrumentation_read_the_tags_of_a_run() -> None:
    seen = Seen()
    store = InMemoryStore()

    paused = await exec_agent(payer(), "go", hooks=[seen], tags=["vip", "refund", "vip"], store=store)
    await resume_agent(
        payer(), paused.operation_id, [Approve(paused.pending[0].tool_call_id)], hooks=[seen], store=store
    )

    assert {tags for _, tags in (*seen.calls, *seen.events)} == {("vip", "refund")}
    assert set(seen.segments) == {("vip", "refund")}
    assert seen.calls


async def test_a_sub_agent_has_the_tags_of_its_caller() -> None:
    seen = Seen()
    child = Agent(id="child", model=ScriptedModel(["done"]))
    asks = ToolRequest("child", {"instruction": "go"}, toolset="agent")
    parent = Agent(id="parent", model=ScriptedModel([asks, "done"]), sub_agents=[child])

    await exec_agent(parent, "go", hooks=[seen], tags={"vip"})

    assert {agent for agent, _ in seen.events} == {"parent", "child"}
    assert {tags for _, tags in seen.events} == {("vip",)}


async def test_a_run_that_names_a_live_run_as_its_parent_adds_its_tags_to_those_of_the_parent() -> None:
    seen = Seen()
    inner = Agent(id="inner", model=ScriptedModel(["done"]))

    @tool
    async def delegate(ctx: Any = None) -> str:
        """Delegate."""
        result = await exec_agent(inner, "go", hooks=[seen], parent_operation_id="outer", tags=["own"])
        return result.output

    outer = Agent(id="outer", model=ScriptedModel([ToolRequest("delegate", {}), "done"]), tools=[delegate])
    await exec_agent(outer, "go", operation_id="outer", tags=["given"])

    assert {tags for _, tags in seen.events} == {("given", "own")}


async def test_a_session_gives_its_tags_and_those_of_the_task_to_each_operation() -> None:
    seen = Seen()
    agent = Agent(id="a", model=ScriptedModel(["one", "two"]))

    async with AgentSession(agent, hooks=[seen], tags=["chat"]) as session:
        await session.run("first", tags=["first"])
        await session.run("second")

    assert [tags for _, tags in dict.fromkeys(seen.events)] == [("chat", "first"), ("chat",)]


async def test_a_stream_has_tags() -> None:
    seen = Seen()

    async with stream_agent(Agent(id="a", model=ScriptedModel(["one"])), "go", hooks=[seen], tags=["s"]) as stream:
        assert [piece async for piece in stream] == ["one"]

    assert {tags for _, tags in seen.events} == {("s",)}


async def test_an_adapter_run_adds_its_tags_to_those_of_its_parent() -> None:
    async with (
        AdapterRun([], DRIVES, tags=["given"]) as parent,
        AdapterRun([], DRIVES, parent=parent, tags=["own", "given"]) as child,
    ):
        assert child.run.tags == ("given", "own")


async def test_a_paused_adapter_run_keeps_its_tags_when_it_is_resumed() -> None:
    store = InMemoryStore()
    await store.save(
        OperationState(operation_id="op", agent_id="agent", tags=["kept"], status="waiting_for_human"),
        expected_version=None,
    )

    async with AdapterRun([], DRIVES, operation_id="op", store=store) as run:
        assert run.run.tags == ("kept",)


async def test_a_recovered_run_and_a_retry_have_the_tags_of_the_operation() -> None:
    disk, seen = Disk(), Seen()
    agent = Agent(id="a", model=ScriptedModel(["one", "two"]))
    with pytest.raises(Died):
        await exec_agent(agent, "go", operation_id="op", tags=["kept"], store=DyingStore(disk, dies_at=2))

    await recover_agent(agent, "op", store=DyingStore(disk), hooks=[seen])
    state = disk.state("op")

    assert state.tags == ["kept"]
    assert {tags for _, tags in seen.events} == {("kept",)}
    assert make_retry(agent, state, [Message(role="user", content="go")], "again").tags == ["kept"]


async def test_a_state_without_tags_is_written_without_the_field() -> None:
    disk = Disk()

    await exec_agent(Agent(id="a", model=ScriptedModel(["one"])), "go", operation_id="op", store=DyingStore(disk))

    assert b'"tags"' not in disk.states["op"]


@for_each(
    ("tags", "problem"),
    [
        ("vip", "collection of strings"),
        (7, "collection of strings"),
        ((each for each in ["vip"]), "collection of strings"),
        ([""], "1 to 100 printable characters"),
        (["x" * 101], "1 to 100 printable characters"),
        (["a\nb"], "1 to 100 printable characters"),
        (["\ud800"], "1 to 100 printable characters"),
        ([b"vip"], "1 to 100 printable characters"),
        ([f"t{nth}" for nth in range(21)], "at most 20 tags"),
    ],
)
async def test_tags_that_cannot_be_are_refused(tags: Any, problem: str) -> None:
    agent = Agent(id="a", model=ScriptedModel(["one"]))

    with pytest.raises(HookUsageError, match=problem):
        await exec_agent(agent, "go", tags=tags)
    with pytest.raises(HookUsageError, match=problem):
        AgentSession(agent, tags=tags)
    with pytest.raises(HookUsageError, match=problem):
        AdapterRun([], DRIVES, tags=tags)


async def test_tags_that_are_too_many_with_those_of_the_parent_are_refused() -> None:
    async with AdapterRun([], DRIVES, tags=[f"t{nth}" for nth in range(20)]) as parent:
        AdapterRun([], DRIVES, parent=parent, tags=["t0"])
        with pytest.raises(HookUsageError, match="at most 20 tags"):
            AdapterRun([], DRIVES, parent=parent, tags=["further"])


def test_tags_of_an_event_are_an_array_on_the_wire() -> None:
    event = BeforeStep(operation_id="op", step_index=0, tags=("b", "a"))

    wire = encode(event)

    assert b'"tags":["b","a"]' in wire
    assert decode(wire) == event
