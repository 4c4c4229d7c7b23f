"""One life of a segment for own runs and for those of other frameworks: at every write of the store, whatever fails."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hookline import (
    AfterCallAgent,
    AfterStep,
    AgentSession,
    Approve,
    BeforeCallAgent,
    BeforeStep,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    Message,
    ModelResponse,
    OnCallAgentError,
    OnComplete,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    exec_agent,
)
from hookline.errors import HookUsageError, OperationExistsError, StaleStateError
from hookline.instrumentation import Instrumentation, SegmentInfo
from hookline.runtime import AdapterRun, Capabilities, JournalEntry, OperationState, _lifecycle, interrupt, tool
from hookline.runtime._run import live
from tests.tables import for_each

from .durable import Disk, DyingStore
from .scenes import Recorder, agent_of, ask, call, calls, says

pytestmark = pytest.mark.anyio

DRIVES = Capabilities(framework="a framework", calls={ToolCall: frozenset({"before", "guard", "after", "around"})})


class Ledger(Instrumentation):
    """Counts the segments that began and ended."""

    def __init__(self) -> None:
        super().__init__("ledger")
        self.begun: list[str] = []
        self.ended: list[str] = []

    def begin(self, segment: SegmentInfo) -> tuple[Any, Hooks | None]:
        self.begun.append(segment.operation_id)
        return segment.operation_id, self

    def end(self, begun: Any) -> None:
        self.ended.append(begun)


class DiskFullError(Exception):
    """What a store may raise that says nothing of whether it can be reached."""


class Fault:
    """What happens at one write of a store: an error or a cancellation, before the write is made or after it."""

    def __init__(self, at: int, kind: str) -> None:
        self.at, self.kind, self.writes = at, kind, 0
        self.scope = anyio.CancelScope()

    async def around(self, write: Callable[[], Awaitable[None]]) -> None:
        self.writes += 1
        if self.writes != self.at:
            await write()
            return
        if self.kind.endswith("after"):
            await write()
        if self.kind.startswith("error"):
            raise DiskFullError
        self.scope.cancel()
        await anyio.lowlevel.checkpoint()


class FaultyMemory(InMemoryStore):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        async def write() -> None:
            await super(FaultyMemory, self).save(state, expected_version=expected_version)

        await self.fault.around(write)


class FaultyDisk(DyingStore):
    def __init__(self, fault: Fault) -> None:
        super().__init__(Disk())
        self.fault = fault

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        async def write() -> None:
            await super(FaultyDisk, self).commit(state, expected_version=expected_version, entries=entries)

        await self.fault.around(write)


@tool
async def add(number: int) -> int:
    await anyio.lowlevel.checkpoint()
    return number + 1


async def run_own(**given: Any) -> None:
    await exec_agent(agent_of(calls(call("add", number=1)), says(), tools=[add]), "go", operation_id="op", **given)


async def run_adapter(hooks: Sequence[Hooks], **given: Any) -> None:
    async def respond(_: Any) -> ModelResponse:
        await anyio.lowlevel.checkpoint()
        return says()

    async with AdapterRun(hooks, DRIVES, operation_id="op", **given) as run:
        run.begin_step()
        await run.call_tool(call("add", number=1), add.run)
        run.begin_step()
        await run.ask_model([Message(role="user", content="go")], respond)


WAYS: dict[str, Callable[..., Awaitable[None]]] = {"own": run_own, "adapter": run_adapter}
STORES: dict[str, Callable[[Fault], Any]] = {"volatile": FaultyMemory, "durable": FaultyDisk}


@for_each("kind", ["error before", "error after", "cancelled before", "cancelled after"])
@for_each("at", range(1, 8))
@for_each("store", STORES)
@for_each("way", WAYS)
async def test_a_segment_ends_once_and_leaves_nothing_behind_whatever_a_write_does(
    way: str, store: str, at: int, kind: str
) -> None:
    fault, seen, ledger, queued = Fault(at, kind), Recorder(), Ledger(), Hooks()
    kept = STORES[store](fault)
    heard: list[str] = []

    @queued.on(OnComplete)
    async def hear(event: OnComplete) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(event.reason)

    async with HookDispatcher() as dispatcher:
        with fault.scope, contextlib.suppress(DiskFullError):
            await WAYS[way](hooks=[seen.hooks, ledger, queued], dispatcher=dispatcher, store=kept)
        left = list(dispatcher.operations)

    told = Counter(type(event) for event in seen.events)
    assert told[BeforeStep] == told[AfterStep]
    assert told[OnComplete] == 1 or (not seen.events and at == 1)  # a claim that failed: nothing has begun
    assert len(heard) == told[OnComplete]
    assert ledger.begun == ledger.ended
    assert (left, live, interrupt("op")) == ([], {}, False)
    state = await kept.load("op")
    assert state is None or state.status != "running"


class StolenDisk(DyingStore):
    """A store in which somebody else goes on with the operation `op` from one of its writes on."""

    def __init__(self, at: int) -> None:
        super().__init__(Disk())
        self.at = at

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        if self.writes + 1 >= self.at and state.operation_id == "op":
            self.writes += 1
            raise StaleStateError("op", expected_version, 99)
        await super().commit(state, expected_version=expected_version, entries=entries)


WORK: dict[str, list[ToolRequest]] = {
    "a tool": [call("add", number=1)],
    "three tools": [call("add", f"t{n}", number=n) for n in range(3)],
    "a sub-agent": [ask("helper")],
    "a tool and a sub-agent": [call("add", number=1), ask("helper", "t2")],
}


@for_each("at", range(2, 8))
@for_each("intercepted", [False, True])
@for_each("work", WORK)
async def test_a_run_that_somebody_else_has_taken_over_is_left_to_them_wherever_a_write_finds_out(
    work: str, intercepted: bool, at: int
) -> None:
    store, seen, watch = StolenDisk(at), Recorder(), Hooks(inherit=True)
    if intercepted:
        watch.after(ToolCall)(lambda call, result: None)
        watch.after(SubAgentCall)(lambda call, result: None)
    helper = agent_of(calls(call("add", number=1)), says(), tools=[add], id="helper")
    agent = agent_of(calls(*WORK[work]), says(), tools=[add], sub_agents=[helper])

    result = await exec_agent(agent, "go", operation_id="op", store=store, hooks=[seen.hooks, watch])

    if store.writes < at:
        assert result.reason == "done"
        return
    assert isinstance(result.error, StaleStateError)
    assert store.disk.owners["op"] is None
    told = Counter(type(event) for event in seen.events if event.operation_id == "op")
    assert told[BeforeStep] == told[AfterStep]
    assert told[BeforeCallAgent] == told[AfterCallAgent] + told[OnCallAgentError] <= 1
    assert told[OnComplete] == 1


@pytest.mark.parametrize("when", ["as a tool runs", "as its end is stored"])
async def test_a_cancelled_run_whose_end_cannot_be_stored_in_time_is_left_to_others(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HangingDisk(DyingStore):
        async def commit(self, state: OperationState, **given: Any) -> None:
            if state.status != "running":
                scope.cancel()
                await anyio.sleep_forever()
            await super().commit(state, **given)

    @tool
    async def hang() -> str:
        scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(_lifecycle, "LAST_SAVE_SECONDS", 0.01)
    store, seen = HangingDisk(Disk()), Recorder()
    turns = [calls(call("hang"))] if when == "as a tool runs" else [says()]

    with anyio.CancelScope() as scope:
        await exec_agent(agent_of(*turns, tools=[hang]), "go", operation_id="op", store=store, hooks=[seen.hooks])

    assert (store.disk.state("op").status, store.disk.owners["op"]) == ("running", None)
    assert seen.names()[-1] == "onComplete"


@pytest.mark.parametrize("way", WAYS)
async def test_no_run_goes_without_interceptors_that_only_the_dispatcher_was_given(way: str) -> None:
    guards, ran = Hooks("guards"), Recorder()

    @guards.guard(ToolCall)
    def refuse(_: ToolCall) -> None:
        raise AssertionError("never asked")

    async with HookDispatcher() as dispatcher:
        dispatcher.register("op", [guards])

        with pytest.raises(HookUsageError, match=r"refuse.*were registered with the dispatcher"):
            await WAYS[way](hooks=[ran.hooks], dispatcher=dispatcher)

    assert (ran.events, live) == ([], {})


async def test_a_run_that_two_tasks_close_ends_once() -> None:
    class SlowDisk(FaultyDisk):
        async def commit(self, *args: Any, **given: Any) -> None:
            await super().commit(*args, **given)
            await anyio.lowlevel.checkpoint()

    seen = Recorder()

    async with HookDispatcher() as dispatcher:
        run = AdapterRun([seen.hooks], DRIVES, store=SlowDisk(Fault(0, "never")), dispatcher=dispatcher)
        await run.open()
        async with anyio.create_task_group() as group:
            group.start_soon(run.close)
            group.start_soon(run.close)

    assert seen.names() == ["onComplete"]


@for_each("store", STORES)
@for_each("way", WAYS)
async def test_a_run_whose_hooks_cannot_be_registered_is_not_left_running(way: str, store: str) -> None:
    class Broken(Ledger):
        def begin(self, segment: SegmentInfo) -> tuple[Any, Hooks | None]:
            raise ZeroDivisionError

    kept = STORES[store](Fault(0, "never"))

    with pytest.raises(ZeroDivisionError):
        await WAYS[way](hooks=[Broken()], store=kept)

    state = await kept.load("op")
    assert (live, interrupt("op")) == ({}, False)
    assert state is None or state.status == "interrupted"


async def test_a_task_whose_hooks_cannot_be_registered_at_its_resume_goes_on_waiting() -> None:
    class BrokenOnce(Ledger):
        broken = False

        def begin(self, segment: SegmentInfo) -> tuple[Any, Hooks | None]:
            if self.broken:
                self.broken = False
                raise ZeroDivisionError
            return super().begin(segment)

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    hooks = BrokenOnce()
    async with AgentSession(agent_of(calls(call("pay")), says(), tools=[pay]), hooks=[hooks]) as session:
        await session.run("Pay")

        hooks.broken = True
        with pytest.raises(ZeroDivisionError):
            await session.resume([Approve("t1")])
        result = await session.resume([Approve("t1")])

    assert result.reason == "done"


@for_each("inner", WAYS)
@for_each("outer", WAYS)
async def test_a_live_operation_cannot_be_started_again_whoever_runs_it(outer: str, inner: str) -> None:
    hooks, refused = Hooks(), []

    @hooks.before(ToolCall)
    async def start_again(_: ToolCall) -> None:
        if not refused:
            with pytest.raises(OperationExistsError):
                await WAYS[inner](hooks=[])
            refused.append(True)

    await WAYS[outer](hooks=[hooks])

    assert (refused, live) == ([True], {})
