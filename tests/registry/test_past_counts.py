"""Limits and budgets that count calls of several operations decide about the past as they do in runs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AfterStep,
    AfterToolCall,
    Agent,
    Approve,
    BeforeStep,
    BeforeToolCall,
    Deny,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    Reject,
    ScriptedModel,
    ToolRequest,
    Usage,
    exec_agent,
    resume_agent,
)
from hookline.budgets import BudgetChange, InMemoryBudgets
from hookline.calls import ToolCall, ToolResult
from hookline.events import encode
from hookline.interceptors import Chain, Denial
from hookline.registry import Backtest, HookDefinition, Registry
from hookline.registry.past import PastCall, PastTimeline, _timeline
from hookline.runtime import JournalEntry, ModelCallRecord, OperationState
from hookline.runtime._state import Steering
from hookline.signals import HookExecution, budget_changed, hook_executed
from hookline.store import SqlStore
from tests.databases import on_sqlite

from .past_runs import pay, refund
from .scenes import definition
from .test_revisions import commit_calls

pytestmark = pytest.mark.anyio
HOUR = 3600 * 10**9

POLICIES: Sequence[tuple[str, dict[str, Any]]] = [
    ("limit-calls", {"n": 3, "per": "tenant"}),
    ("limit-calls", {"n": 2, "per": 600}),
    ("limit-calls", {"n": 1, "per": 600.5, "tool": "bank/*"}),
    ("budget", {"calls": 3, "per": "tenant"}),
    ("budget", {"calls": 2, "per": "user", "window": "1h"}),
    ("budget", {"calls": 2, "per": "agent", "window": "1d", "zone": "Asia/Kathmandu"}),
    ("budget", {"calls": 1, "per": "tool", "window": "month", "on_limit": "stop"}),
]


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store) as registry:
        yield registry


def made_of(handler: str, config: dict[str, Any], **fields: Any) -> HookDefinition:
    return definition(id="policy", handler=handler, config=config, **fields)


class Made(NamedTuple):
    """A call of a schedule.

    Attributes:
        minutes: Minutes since the call before it.
        operation: Number of the operation; each even one is of another tenant than each odd one.
        tool: Toolset and name.
        is_refused: Whether another hook denies it, after the policy has judged it.
    """

    minutes: int
    operation: int
    tool: str
    is_refused: bool


schedules = st.lists(
    st.builds(
        Made,
        minutes=st.integers(1, 40),
        operation=st.integers(0, 4),
        tool=st.sampled_from(["bank/pay", "bank/read", "mail/send"]),
        is_refused=st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(POLICIES), schedules)
def test_counts_over_operations_decide_as_in_runs(policy: tuple[str, dict[str, Any]], schedule: list[Made]) -> None:
    async def run() -> None:
        async with SqlStore("sqlite:///:memory:") as store, Registry(store) as registry:
            judged = made_of(*policy)
            live = await run_schedule(store, registry, judged, schedule)

            found = await registry.backtest(judged, examples=1_000)

            assert (found.calls, found.not_judged) == (len(schedule), 0)
            assert {(each.operation_id, each.tool_call_id) for each in found.examples} == live
            assert found.denied == len(live)

    asyncio.run(run())


async def run_schedule(
    store: SqlStore, registry: Registry, policy: HookDefinition, schedule: Sequence[Made]
) -> set[tuple[str, str]]:
    """Judge calls with a clock that is set to the time of each, store them, and return those that are denied."""
    now = 1_700_000_000.0

    def read_clock() -> float:
        return now

    bundle = registry._builder.build_new(policy, budgets=InMemoryBudgets(read_clock), clock=read_clock)
    other = Hooks("other", priority=1000)
    other.guard(ToolCall)(lambda call: Deny("no") if call.metadata.get("refused") else None)
    chain = Chain([bundle, other])
    denied: set[tuple[str, str]] = set()
    rows: dict[int, list[JournalEntry]] = {}
    for nth, made in enumerate(schedule):
        now += 60 * made.minutes
        call = make_call(made, nth)

        async def tool(call: ToolCall) -> ToolResult:
            return ToolResult(content="did it")

        outcome = await chain.run(call, tool)
        by = outcome.denied.hook_id if outcome.denied is not None else None
        if by == "policy":
            denied.add((call.operation_id, call.tool_call_id))
        fields = {name: getattr(call, name) for name in BeforeToolCall.__struct_fields__ if hasattr(call, name)}
        fields["time_unix_nano"] = int(now * 1e9)
        ended = AfterToolCall(**fields, content="", success=by is None, answered_by=by)
        for event in (BeforeToolCall(**fields), ended):
            journal = rows.setdefault(made.operation, [])
            journal.append(
                JournalEntry(
                    number=len(journal) + 1, type=event.hook_type, time_unix_nano=int(now * 1e9), wire=encode(event)
                )
            )
    for operation, journal in rows.items():
        call = make_call(schedule[0]._replace(operation=operation), 0)
        state = OperationState(
            operation_id=call.operation_id,
            agent_id=call.agent_id,
            tenant_id=call.tenant_id,
            status="done",
            events=len(journal),
        )
        await store.commit(state, expected_version=None, entries=journal)
    return denied


def make_call(made: Made, nth: int) -> ToolCall:
    toolset, _, name = made.tool.partition("/")
    return ToolCall(
        operation_id=f"op{made.operation}",
        tenant_id=f"tenant{made.operation % 2}",
        agent_id=f"agent{made.operation % 3}",
        user_id=f"user{made.operation // 3}",
        toolset=toolset,
        tool_name=name,
        args={"nth": nth},
        tool_call_id=f"c{nth}",
        metadata={"refused": made.is_refused},
    )


class LiveDenials:
    """Notes which calls a hook has denied."""

    def __init__(self) -> None:
        self.judged: set[tuple[str, str]] = set()
        self.denied: set[tuple[str, str]] = set()

    def __call__(self, sender: object, execution: HookExecution) -> None:
        """Take the record of an execution."""
        if execution.hook_id == "policy" and execution.hook_type == "ToolCall":
            call = execution.operation_id, execution.tool_call_id or ""
            self.judged.add(call)
            if execution.decision == "denied":
                self.denied.add(call)


@pytest.mark.parametrize("policy", [POLICIES[0], ("budget", {"calls": 12, "per": "tenant"})], ids=["limit", "budget"])
async def test_calls_that_people_decide_about_count_when_they_run(
    store: SqlStore, registry: Registry, policy: tuple[str, dict[str, Any]]
) -> None:
    chance = random.Random(7)
    judged = made_of(policy[0], policy[1] | ({"n": 12} if "n" in policy[1] else {}))
    bundle = registry._builder.build_new(judged, budgets=InMemoryBudgets())
    live = LiveDenials()
    waiting: list[tuple[Agent, Any]] = []
    with hook_executed.connected_to(live):
        for nth in range(6):
            turns: list[Any] = [
                [ToolRequest(chance.choice(("pay", "refund")), {"amount": chance.choice((1, 8))}) for _ in range(2)]
                for _ in range(3)
            ]
            agent = Agent(id="clerk", model=ScriptedModel([*turns, "done"]), tools=[pay, refund])
            result = await exec_agent(
                agent, "go", operation_id=f"op{nth}", tenant_id="acme", store=store, hooks=[bundle]
            )
            waiting.append((agent, result))
        while waiting:  # the runs go on in another order than they began
            agent, result = waiting.pop(chance.randrange(len(waiting)))
            if result.reason != "waiting_for_human":
                continue
            answers = [
                Approve(each.tool_call_id)
                if chance.random() < 0.6
                else Reject(each.tool_call_id, "no", and_continue=True)
                for each in result.pending
            ]
            result = await resume_agent(agent, result.operation_id, answers, store=store, hooks=[bundle])
            waiting.append((agent, result))

    found = await registry.backtest(judged, examples=1_000)

    denied = {(each.operation_id, each.tool_call_id) for each in found.examples if each.kind == "denied"}
    assert live.denied
    assert denied == live.denied
    assert found.calls == len(live.judged)
    assert found.people.compared > 0


async def test_calls_of_other_agents_and_tools_take_part_in_the_counts(store: SqlStore, registry: Registry) -> None:
    begin = time.time_ns() - HOUR
    await commit_calls(store, "first", "acme", "bank/pay", "mail/send", at=begin)
    await commit_calls(store, "second", "acme", "bank/pay", "bank/pay", at=begin + 10**9)
    await commit_calls(store, "others", "globex", "bank/pay", at=begin + 2 * 10**9)
    limit = made_of("limit-calls", {"n": 3, "per": "tenant"})

    whole = await registry.backtest(limit)
    some = await registry.backtest(limit, tool="pay")
    none = await registry.backtest(limit, agent_id="nobody")

    assert (whole.calls, whole.denied, whole.operations) == (5, 1, 3)
    assert [(each.operation_id, each.tool_call_id) for each in whole.examples] == [("second", "c1")]
    assert any("in the order of time" in each for each in whole.notes)
    assert (some.calls, some.denied) == (4, 1)
    assert (none.calls, none.denied) == (0, 0)


async def test_a_limit_of_calls_takes_the_newest_operations(store: SqlStore, registry: Registry) -> None:
    begin = time.time_ns() - HOUR
    for nth in range(4):
        await commit_calls(store, f"op{nth}", "acme", "bank/pay", "bank/pay", at=begin + nth * 10**9)

    found = await registry.backtest(made_of("limit-calls", {"n": 1, "per": "tenant"}), limit=4)

    assert (found.calls, found.denied, found.ended_by) == (4, 3, "limit")
    assert {each.operation_id for each in found.examples} <= {"op2", "op3"}


async def test_events_that_cannot_be_read_are_said_to_be_missing_from_the_counts(
    store: SqlStore, registry: Registry
) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", at=time.time_ns() - HOUR)
    state = OperationState(operation_id="broken", agent_id="agent", tenant_id="acme", status="done", events=1)
    broken = JournalEntry(number=1, type="beforeToolCall", time_unix_nano=time.time_ns(), wire=b'{"type": "odd"}')
    await store.commit(state, expected_version=None, entries=[broken])

    found = await registry.backtest(made_of("limit-calls", {"n": 1, "per": 60}))

    assert (found.calls, found.unreadable) == (1, 1)
    assert any("missing from the counts" in each for each in found.notes)


@on_sqlite
async def test_budgets_that_judge_the_past_announce_nothing(
    store: SqlStore, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    await commit_calls(store, "op", "acme", "bank/pay", "bank/pay", "bank/pay", at=time.time_ns() - HOUR)
    heard: list[BudgetChange] = []

    def hear(sender: object, change: BudgetChange) -> None:
        heard.append(change)

    with budget_changed.connected_to(hear):
        for per in ("tenant", "operation"):
            found = await registry.backtest(made_of("budget", {"calls": 2, "per": per, "warn_at": 0.5}))
            assert found.denied == 1

    assert heard == []
    assert await store.budgets() == []
    assert [each for each in caplog.records if "budget" in each.getMessage()] == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
def test_a_timeline_gives_calls_in_the_order_of_time(times: list[int], written_at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch, PastTimeline() as timeline:
        patch.setattr(_timeline, "MOST_WAITING", written_at_once)
        for nth, at in enumerate(times):
            timeline.add(PastCall(call=ToolCall(toolset="bank", tool_name="pay", args={"nth": nth}), number=nth, at=at))

        found = [(each.at, each.past.number) for each in timeline.read()]

    assert found == sorted((at, nth) for nth, at in enumerate(times))


class Asked(NamedTuple):
    """A model call of a schedule.

    Attributes:
        operation: Number of the operation.
        minutes: Minutes after which it begins, since the end of the call before it in the operation.
        takes: How many minutes it takes.
        tokens: What it takes.
        fate: Whether the model answers or fails, or another hook denies the call after the policy has judged it.
    """

    operation: int
    minutes: int
    takes: int
    tokens: int
    fate: str


def make_conversations(seed: int) -> list[Asked]:
    """Make a schedule of which most calls overlap with others."""
    chance = random.Random(seed)
    return [
        Asked(
            operation=chance.randrange(5),
            minutes=chance.randint(1, 50),
            takes=chance.randint(1, 90),
            tokens=chance.randint(1, 60),
            fate=chance.choice(["answered"] * 6 + ["failed", "refused"]),
        )
        for _ in range(chance.randint(1, 25))
    ]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(
        [
            {"tokens": 100, "per": "tenant"},
            {"tokens": 70, "per": "tenant", "window": "1h"},
            {"cost_usd": 0.08, "reserve_usd": 0.03, "per": "user", "window": "1d"},
            {"tokens": 90, "cost_usd": 0.07, "reserve_usd": 0.02, "per": "agent", "warn_at": 0.5},
        ]
    ),
    st.integers(0, 10**6).map(make_conversations),
)
def test_a_budget_of_models_decides_as_in_runs_that_overlap(config: dict[str, Any], schedule: list[Asked]) -> None:
    async def run() -> None:
        async with SqlStore("sqlite:///:memory:") as store, Registry(store) as registry:
            reserve = {"reserve_tokens": 40} if "tokens" in config else {}
            judged = made_of("budget", config | reserve, point="ModelCall.guard")
            made, denied = await run_conversations(store, registry, judged, schedule)

            found = await registry.backtest(judged, examples=1_000)

            assert (found.calls, gaps_of(found)) == (made, [])
            assert {(each.operation_id, each.step_index) for each in found.examples} == denied

    asyncio.run(run())


def gaps_of(found: Backtest) -> list[str]:
    return [each.reason for each in found.gaps]


async def run_conversations(
    store: SqlStore, registry: Registry, policy: HookDefinition, schedule: Sequence[Asked]
) -> tuple[int, set[tuple[str, int | None]]]:
    """Ask models in operations that overlap, store them, and return the number of calls and those that were denied."""
    now = 0.0

    def read_clock() -> float:
        return now

    bundle = registry._builder.build_new(policy, budgets=InMemoryBudgets(read_clock), clock=read_clock)
    other = Hooks("other", priority=1000)
    other.guard(ModelCall)(lambda call: Deny("no") if call.metadata.get("refused") else None)
    chain = Chain([bundle, other])
    denied: set[tuple[str, int | None]] = set()
    stored: dict[int, list[tuple[float, Asked, bool]]] = {}
    queues = {nth: [each for each in schedule if each.operation == nth][::-1] for nth in range(5)}
    moments = [
        (1_700_000_000.0 + 60 * queue[-1].minutes + nth, nth, "begins") for nth, queue in queues.items() if queue
    ]
    heapify(moments)
    ends: dict[int, tuple[asyncio.Event, asyncio.Task[Any]]] = {}
    while moments:
        now, nth, what = heappop(moments)
        asked = queues[nth][-1]
        step = len(stored.setdefault(nth, []))
        if what == "begins":
            reached, ended = asyncio.Event(), asyncio.Event()

            async def ask(
                call: ModelCall, asked: Asked = asked, reached: asyncio.Event = reached, ended: asyncio.Event = ended
            ) -> ModelResponse:
                reached.set()
                await ended.wait()
                if asked.fate == "failed":
                    raise RuntimeError("overloaded")
                return ModelResponse(
                    usage=Usage(input_tokens=asked.tokens, cost_usd=asked.tokens / 1000), cost_known=True
                )

            call = ModelCall(**ids_of(nth), messages=[], step_index=step, metadata={"refused": asked.fate == "refused"})
            task = asyncio.ensure_future(chain.run(call, ask))
            waiting = asyncio.ensure_future(reached.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                ends[nth] = ended, task
                heappush(moments, (now + 60 * asked.takes, nth, "ends"))
                continue
            waiting.cancel()
            outcome = task.result()
            assert outcome.denied is not None
            if outcome.denied.hook_id == "policy":
                denied.add((f"op{nth}", step))
            stored[nth].append((now, asked, False))
            continue
        ended, task = ends.pop(nth)
        ended.set()
        await asyncio.wait([task])
        failed = task.exception() is not None
        stored[nth].append((now - 60 * asked.takes, asked, True))
        queues[nth].pop()
        if queues[nth] and not failed:
            heappush(moments, (now + 60 * queues[nth][-1].minutes, nth, "begins"))
    for nth, calls in stored.items():
        await store_operation(store, nth, calls)
    return sum(map(len, stored.values())), denied


def ids_of(nth: int) -> dict[str, Any]:
    return {
        "operation_id": f"op{nth}",
        "tenant_id": f"tenant{nth % 2}",
        "agent_id": f"agent{nth % 3}",
        "user_id": f"user{nth // 3}",
    }


async def store_operation(store: SqlStore, nth: int, calls: Sequence[tuple[float, Asked, bool]]) -> None:
    """Store an operation as a run does: its steps, its conversation and its model calls."""
    ids = ids_of(nth)
    messages = [Message(role="user", content="go")]
    rows: list[JournalEntry] = []
    made: list[ModelCallRecord] = []
    answered = False
    for step, (began, asked, reached) in enumerate(calls):
        answered = reached and asked.fate == "answered"
        wanted = [ToolRequest("pay", {}, tool_call_id=f"t{step}.0")] if answered else []
        ended = AfterStep(
            **ids,
            time_unix_nano=round(began * 1e9) + 1,
            step_index=step,
            step_type="call_tool",
            content="",
            reasoning="",
            tools_calling=wanted,
            tools_result=[],
            should_continue=answered,
            **dict.fromkeys(("execution_time_ms", "elapsed_ms", "step_cost_usd", "total_cost_usd"), 1.0),
            **dict.fromkeys(("total_input_tokens", "total_output_tokens", "total_steps", "total_tool_calls"), 1),
        )
        for event in (BeforeStep(**ids, time_unix_nano=round(began * 1e9), step_index=step), ended):
            rows.append(
                JournalEntry(
                    number=len(rows) + 1, type=event.hook_type, time_unix_nano=event.time_unix_nano, wire=encode(event)
                )
            )
        if answered:
            messages.append(Message(role="assistant", content="", tool_calls=wanted))
            messages.append(Message(role="tool", content="paid", tool_call_id=f"t{step}.0"))
        if reached:
            failed = asked.fate == "failed"
            record = ModelCallRecord(
                step_index=step,
                provider="",
                model="m",
                start_unix_nano=round(began * 1e9),
                duration_ms=asked.takes * 60e3,
                input_tokens=0 if failed else asked.tokens,
                cost_usd=0.0 if failed else asked.tokens / 1000,
                error_type="RuntimeError" if failed else None,
            )
            made.append(record)
    was_denied = not calls[-1][2]
    state = OperationState(
        **ids,
        status="interrupted" if was_denied else "max_steps" if answered else "error",
        messages=messages,
        steering=Steering(denied=Denial(hook_id="policy", reason="no")) if was_denied else None,
        events=len(rows),
    )
    await store.commit(state, expected_version=None, entries=rows)
    state = msgspec.structs.replace(state, version=2)
    await store.append(
        state,
        expected_version=1,
        entries=(),
        kept_messages=len(messages),
        kept_outcomes=frozenset(),
        model_calls=made,
    )
