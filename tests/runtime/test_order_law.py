"""The order of events, exactly once, whatever the model, the tools, the people and the cancellations do."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import (
    AfterHumanIntervention,
    AfterStep,
    Agent,
    Approve,
    BeforeHumanIntervention,
    BeforeToolCall,
    Compaction,
    HookDispatcher,
    InMemoryStore,
    Message,
    ModelResponse,
    OnComplete,
    Reject,
    ScriptedModel,
    ToolRequest,
    ToolResult,
    TransientModelError,
    Usage,
    encode,
    exec_agent,
    interrupt,
    resume_agent,
    tool,
)
from hookline.runtime import DurableStore, OperationStore
from hookline.runtime._journal import NO_JOURNAL, Journal, NullJournal

from .durable import Disk, DyingStore
from .scenes import AT_ONCE, Recorder, assert_consistent, assert_order, call, says

TOOLS = ["good", "failing", "raising", "cancelling", "strict", "threaded", "unknown", "approved", "judged", "hanging"]
AGENTS = ["helper", "broken", "stopped", "waiting"]
MOCKS = ["", "mocked", {"content": "no", "success": False}, KeyError("mock"), ToolResult(content="x", error_type="E")]

kinds = st.sampled_from([*TOOLS[:-1], *AGENTS, "text", "array", "hanging"])
turns = st.one_of(
    st.lists(kinds, min_size=1, max_size=4),
    st.lists(st.sampled_from(["approved", "judged", "good", "raising"]), min_size=1, max_size=4),
    st.sampled_from(["error", "junk", "none", "transient", "transient"]),
)
plans = st.fixed_dictionaries(
    {
        "turns": st.lists(turns, max_size=4),
        "tokens": st.lists(st.integers(0, 20), min_size=6, max_size=6),
        "decisions": st.lists(st.sampled_from(["approve", "approve", "reject", "continue"]), min_size=1, max_size=5),
        "together": st.lists(st.integers(1, 3), min_size=1, max_size=4),
        "mocks": st.dictionaries(st.integers(0, 8), st.sampled_from(MOCKS), max_size=3),
        "stop_at": st.one_of(st.none(), st.integers(0, 25)),
        "stop_by": st.sampled_from(["interrupt", "cancel"]),
        "compaction": st.sampled_from([None, "works", "fails", "junk"]),
        "max_steps": st.sampled_from([50, 50, 2, 1]),
        "cost_limit_usd": st.sampled_from([None, None, 2.5]),
    }
)

PAUSED: dict[str, Any] = {
    "turns": [["approved", "good"]],
    "tokens": [0] * 6,
    "decisions": ["approve"],
    "together": [1],
    "mocks": {},
    "stop_at": None,
    "stop_by": "interrupt",
    "compaction": None,
    "max_steps": 50,
    "cost_limit_usd": None,
}


class Scene:
    """One random run, played to its end, every law checked on the way."""

    def __init__(self, plan: dict[str, Any], store: OperationStore | None = None) -> None:
        self.plan = plan
        self.recorder = Recorder()
        self.ran: Counter[str] = Counter()
        self.asked = 0
        self.stopped = False
        self.store = store or InMemoryStore()
        self.results: list[tuple[Any, ...]] = []
        self.recorder.reactions.append(self.react)

    # The world of the run.

    def react(self, event: Any) -> None:
        if isinstance(event, BeforeToolCall) and event.operation_id == "run":
            mock = self.plan["mocks"].get(len(self.recorder.of(BeforeToolCall, "run")))
            if mock is not None:
                event.mock(mock)
        # A durable store writes a decision before anything follows from it: an interrupt at that moment wins.
        being_written = isinstance(self.store, DurableStore) and isinstance(event, AfterHumanIntervention)
        if len(self.recorder.events) - 1 == self.plan["stop_at"] and not being_written:
            self.stop()

    def stop(self) -> None:
        self.stopped = True
        if self.plan["stop_by"] == "cancel":
            self.scope.cancel()
        else:
            interrupt("run")

    def agent(self) -> Agent:
        async def good(key: str) -> str:
            self.ran[key] += 1
            await anyio.lowlevel.checkpoint()
            return "fine"

        async def failing(key: str) -> ToolResult:
            self.ran[key] += 1
            return ToolResult(content="no", success=False)

        async def raising(key: str) -> str:
            self.ran[key] += 1
            raise RuntimeError("boom")

        async def cancelling(key: str) -> str:
            self.ran[key] += 1
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                raise RuntimeError("trio lets nobody make a Cancelled") from None
            raise asyncio.CancelledError

        async def strict(key: str, number: int) -> str:
            raise AssertionError("never reached: the model leaves `number` out")

        def threaded(key: str) -> str:
            self.ran[key] += 1
            return "fine"

        async def approved(key: str) -> str:
            self.ran[key] += 1
            return "fine"

        async def hanging(key: str) -> str:
            self.ran[key] += 1
            self.stop()
            await anyio.sleep_forever()
            raise AssertionError

        async def asks_nicely(call: Any) -> bool:
            await anyio.lowlevel.checkpoint()
            raise RuntimeError("cannot say")

        def stop_self(call: Any) -> ModelResponse:
            interrupt(call.operation_id)
            return ModelResponse(tool_calls=[ToolRequest(tool_name="good", args={"key": "child"}, tool_call_id="c")])

        tools = [good, failing, raising, cancelling, strict, threaded, hanging]
        children = [
            Agent(id="helper", model=ScriptedModel(lambda _: says("helped"))),
            Agent(id="broken", model=ScriptedModel([])),
            Agent(id="stopped", model=ScriptedModel(stop_self), tools=[good], max_steps=5),
            Agent(
                id="waiting",
                model=ScriptedModel(lambda _: ModelResponse(tool_calls=[call("approved", "w", key="child")])),
                tools=[tool(approved, needs_approval=True)],
            ),
        ]
        return Agent(
            id="tester",
            model=ScriptedModel(self.respond),
            tools=[
                *tools,
                tool(approved, needs_approval=True),
                tool(approved, name="judged", needs_approval=asks_nicely),
            ],
            sub_agents=children,
            compaction=self.compaction(),
            retry=AT_ONCE,
            max_steps=self.plan["max_steps"],
            cost_limit_usd=self.plan["cost_limit_usd"],
        )

    def compaction(self) -> Compaction | None:
        kind = self.plan["compaction"]

        async def summarize(messages: list[Message]) -> Any:
            await anyio.lowlevel.checkpoint()
            if kind == "fails":
                raise RuntimeError("no summary")
            return "short" if kind == "works" else 42

        return Compaction(max_tokens=10, summarize=summarize) if kind else None

    def respond(self, call: Any) -> Any:
        assert_consistent(call.messages)
        at, self.asked = self.asked, self.asked + 1
        usage = Usage(input_tokens=self.plan["tokens"][at % 6], cost_usd=1.0)
        if at >= len(self.plan["turns"]):
            return ModelResponse(content="the end", usage=usage)
        turn = self.plan["turns"][at]
        if turn == "error":
            raise ValueError("model broke")
        if turn == "transient":
            raise TransientModelError("again")
        if turn in ("junk", "none"):
            return None if turn == "none" else {"content": "hello"}
        return ModelResponse(
            content=f"turn {at}", usage=usage, tool_calls=[self.calling(at, n, kind) for n, kind in enumerate(turn)]
        )

    def calling(self, at: int, n: int, kind: str) -> ToolRequest:
        key = f"{at}.{n}"
        if kind in AGENTS:
            return call(kind, key, toolset="agent", instruction="help")
        if kind == "text":
            return ToolRequest(tool_name="good", args="{broken", tool_call_id=key)
        if kind == "array":
            return ToolRequest(tool_name="good", args="[1]", tool_call_id=key)
        return call(kind, key, key=key)

    # Playing it.

    async def play(self) -> None:
        with anyio.fail_after(20):
            async with HookDispatcher() as self.dispatcher:
                first, resumed, decided = 0, False, 0
                while True:
                    result = None
                    self.scope = anyio.CancelScope()
                    with self.scope:
                        result = await self.segment(resumed)
                    self.check(first, result, resumed)
                    if result is None or result.reason != "waiting_for_human" or self.stopped:
                        return
                    first, resumed = len(self.recorder.events), True
                    self.pending = [pending.tool_call_id for pending in result.pending]
                    decided += 1
                    self.round = decided

    async def segment(self, resumed: bool) -> Any:
        given = {"hooks": [self.recorder.hooks], "dispatcher": self.dispatcher, "store": self.store}
        if not resumed:
            self.tested = self.agent()
            return await exec_agent(self.tested, "go", operation_id="run", **given)
        size = self.plan["together"][self.round % len(self.plan["together"])]
        decisions: list[Approve | Reject] = []
        for pending in self.pending[-size:]:
            kind = self.plan["decisions"][(self.round + len(decisions)) % len(self.plan["decisions"])]
            decisions.append(
                Approve(pending) if kind == "approve" else Reject(pending, "no", and_continue=kind == "continue")
            )
        state = await self.store.load("run")
        assert msgspec.json.decode(msgspec.json.encode(state), type=type(state)) == state
        return await resume_agent(self.tested, "run", decisions, **given)

    def check(self, first: int, result: Any, resumed: bool) -> None:
        segment = self.recorder.events[first:]
        operations: dict[str, list[Any]] = {}
        for event in segment:
            operations.setdefault(event.operation_id, []).append(event)
        for name, events in operations.items():
            assert_order(events, resumed=resumed and name == "run")
        for event in segment:
            assert event.parent_operation_id == (None if event.operation_id == "run" else "run")
        (end,) = [event for event in operations["run"] if isinstance(event, OnComplete)]
        assert end.reason == (result.reason if result is not None else "interrupted")
        assert not self.dispatcher.operations
        assert not interrupt("run")

        for name in self.recorder.by_operation():
            asked = self.recorder.of(BeforeToolCall, name)
            indices = Counter((event.toolset, event.tool_name, event.call_index) for event in asked)
            assert all(count == 1 for count in indices.values()), "a call index was shared"
            assert all(event.call_index >= 1 for event in asked)
            assert len({event.tool_call_id for event in asked}) == len(asked) or name != "run"
        assert all(count == 1 for key, count in self.ran.items() if key != "child"), "a tool ran twice"

        steps = self.recorder.of(AfterStep, "run")
        for field in ("total_steps", "total_cost_usd", "total_input_tokens", "total_tool_calls", "elapsed_ms"):
            values = [getattr(step, field) for step in steps]
            assert values == sorted(values), f"{field} went back"
        for field in ("steps", "llm_calls", "tool_calls", "total_tokens"):
            values = [getattr(event, field) for event in self.recorder.of(OnComplete, "run")]
            assert values == sorted(values), f"{field} went back"
        for step in steps:
            wanted = [calling.tool_call_id for calling in step.tools_calling]
            told = [outcome.tool_call_id for outcome in step.tools_result]
            assert told == [each for each in wanted if each in told], "results out of the model's order"
        if result is not None:
            self.results.append((result.reason, result.output, result.steps, result.tool_calls, result.usage))
            waiting = [pending.tool_call_id for pending in result.pending]
            assert bool(waiting) == (result.reason == "waiting_for_human")
            shown = self.recorder.of(BeforeHumanIntervention, "run")[-1].pending_tools if waiting else []
            assert_consistent(result.messages, [pending.tool_call_id for pending in shown])
            assert set(waiting) <= {pending.tool_call_id for pending in shown}
            assert result.steps == end.steps
            assert result.tool_calls == end.tool_calls


STORES = {"volatile": InMemoryStore, "durable": lambda: DyingStore(Disk())}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(plan=plans)
@example(plan=PAUSED)
@example(plan={**PAUSED, "stop_at": 6})
@example(plan={**PAUSED, "stop_at": 6, "stop_by": "cancel"})
@example(plan={**PAUSED, "turns": [["hanging", "hanging", "good"]], "stop_by": "cancel"})
@settings(max_examples=60, deadline=None, database=None)
def test_every_random_run_keeps_the_order_of_events_and_leaves_nothing_behind(
    backend: str, store: str, plan: dict[str, Any]
) -> None:
    async def main() -> None:
        await Scene(plan, STORES[store]()).play()

    anyio.run(main, backend=backend)


CHANGING = ("Id", "Nano", "Ms", "Detail")


def facts_of(event: Any) -> str:
    """What an event says, without ids of operations, times and tracebacks, which differ from run to run."""
    fields = json.loads(encode(event))
    same = {name: value for name, value in fields.items() if name == "toolCallId" or not name.endswith(CHANGING)}
    return re.sub(r"op_[0-9a-f]{32}", "op", json.dumps(same, sort_keys=True))


@given(plan=plans.filter(lambda plan: not any("hanging" in turn for turn in plan["turns"])))
@example(plan=PAUSED)
@example(plan={**PAUSED, "turns": [["good", "good", "helper"], ["approved", "waiting", "raising"]]})
@settings(max_examples=60, deadline=None, database=None)
def test_every_random_run_on_a_durable_store_comes_to_the_same_as_one_in_memory(plan: dict[str, Any]) -> None:
    # Which of several parallel calls a mock or an interrupt meets depends on how they overlap.
    plan = {**plan, "mocks": {}, "stop_at": None}
    volatile, durable = Scene(plan), Scene(plan, DyingStore(Disk()))

    anyio.run(volatile.play)
    anyio.run(durable.play)

    assert durable.results == volatile.results
    assert Counter(map(facts_of, durable.recorder.events)) == Counter(map(facts_of, volatile.recorder.events))


def test_the_journal_that_volatile_runs_share_stays_as_it_was() -> None:
    before = dict(vars(NO_JOURNAL))

    anyio.run(Scene({**PAUSED, "turns": [["good", "helper", "waiting"], ["approved"]]}).play)

    assert vars(NO_JOURNAL) == before
    assert (NO_JOURNAL.entries, NO_JOURNAL.begun, NO_JOURNAL.taking) == ([], {}, [])


def test_the_journal_of_volatile_runs_takes_no_note_of_anything() -> None:
    noting = {name for name in vars(Journal) if not name.startswith("_")} - {"emit", "ask_observers"}

    assert noting <= set(vars(NullJournal))
