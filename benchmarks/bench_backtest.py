"""Judging the past: its time beside reading, decoding and judging the same calls by hand, and its verdicts.

Each stored operation has ten calls of a tool, and ten model calls with a conversation. By hand means: the same rows
through the same driver, each decoded, and `Chain.run` of the same guard on calls that were made before, with records.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from time import time, time_ns
from typing import Any

import msgspec
from sqlalchemy import insert, select

from benchmarks.harness import Row, interleave, statement
from benchmarks.postgresql import PostgreSQL
from hookline import (
    AfterStep,
    BeforeStep,
    BeforeToolCall,
    Deny,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    ToolCall,
    ToolRequest,
    ToolResult,
)
from hookline.events import decode, encode, tool_event_fields
from hookline.interceptors import Chain
from hookline.registry import HookDefinition, Registry
from hookline.runtime import JournalEntry, ModelCallRecord, OperationState
from hookline.store import SqlStore, events, operations
from hookline.store._tables import model_calls, state_rows
from tests.registry import past_conversations
from tests.registry.past_conversations import LiveDecisions, decisions_in, run_random_conversation
from tests.registry.past_runs import MODULE, LiveVerdicts, run_random_agent, verdicts_in

OPERATIONS, CALLS = 200, 10
OLD_OPERATIONS = 20_000
"""Operations that began too early to be looked at."""
JUDGED = 10_000
"""Calls of tools whose verdicts are compared."""
JUDGED_QUESTIONS = 2_000
"""Model calls and runs whose verdicts are compared."""
LONG = 2_000
"""Model calls of a long conversation."""
BATCH = 5_000
"""Operations that are copied in one transaction."""
YEAR = 365 * 86_400.0
GUARD = HookDefinition(name="limit", point="ToolCall.guard", handler=f"{__name__}:make_guard")


MODEL_GUARD = HookDefinition(name="words", point="ModelCall.guard", handler=f"{__name__}:make_model_guard")


def make_model_guard() -> Any:
    """Deny model calls whose newest message has a word."""

    def judge(call: ModelCall) -> Deny | None:
        return Deny("no") if "900" in call.messages[-1].content else None

    return judge


def make_guard() -> Any:
    """Deny payments that are too large."""

    def limit(call: ToolCall) -> Deny | None:
        return Deny("too much") if call.args["amount"] > 900 else None

    return limit


async def bench(rounds: int) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, PostgreSQL() as server:
        for name, few, many in (
            ("sqlite", f"sqlite:///{Path(folder) / 'few.db'}", f"sqlite:///{Path(folder) / 'many.db'}"),
            ("postgresql", await server.new_database("few"), await server.new_database("many")),
        ):
            rows += await time_beside_reading(name, few, many, rounds)
        for name, url in (
            ("sqlite", f"sqlite:///{Path(folder) / 'models.db'}"),
            ("postgresql", await server.new_database("models")),
        ):
            rows += await time_model_calls(name, url, rounds)
        rows.append(await count_other_verdicts(f"sqlite:///{Path(folder) / 'verdicts.db'}"))
        rows.append(await count_other_model_verdicts(f"sqlite:///{Path(folder) / 'model_verdicts.db'}"))
    return rows


async def time_beside_reading(name: str, few: str, many: str, rounds: int) -> list[Row]:
    """Time a backtest in a store with nothing else, and in one that also has operations that are not looked at."""
    async with (
        SqlStore(few) as store,
        Registry(store, modules=[__name__]) as registry,
        SqlStore(many) as full_store,
        Registry(full_store, modules=[__name__]) as full_registry,
    ):
        await fill(store)
        await fill(full_store)
        await add_old_operations(full_store)
        since = time() - 3600
        ours, by_hand = f"backtest [{name}]", f"read, decode, Chain.run [{name}]"
        in_full = f"backtest [{name}, {OLD_OPERATIONS:,} older operations]"
        cases = {
            ours: statement("await judge(registry, since)", judge=judge, registry=registry, since=since, unroll=1),
            in_full: statement(
                "await judge(registry, since)", judge=judge, registry=full_registry, since=since, unroll=1
            ),
            by_hand: statement("await judge(store, since)", judge=judge_by_hand, store=store, since=since, unroll=1),
        }
        samples = await interleave(cases, rounds, times=1)
        return [
            samples.row(by_hand),
            samples.row(ours, by_hand, at_most=2.0),
            samples.row(in_full, ours, at_most=1.3),
        ]


async def judge(registry: Registry, since: float) -> None:
    found = await registry.backtest(GUARD, since=since)
    assert (found.calls, found.operations) == (OPERATIONS * CALLS, OPERATIONS)


READY: list[ToolCall] = []
CHAIN: list[Chain] = []


async def judge_by_hand(store: SqlStore, since: float) -> None:
    """Do the least that judging stored calls takes."""

    async def terminal(call: ToolCall) -> ToolResult:
        return RESULT

    if not READY:
        READY.extend(
            ToolCall(operation_id="op", toolset="bank", tool_name="pay", args={"amount": nth % 1000, "to": "ann"})
            for nth in range(OPERATIONS * CALLS)
        )
        hooks = Hooks("limit")
        hooks.guard(ToolCall)(make_guard())
        CHAIN.append(Chain([hooks], record=True))
    async with store.reading() as connection:
        newest = select(operations.c.operation_id).where(operations.c.created_at >= since)
        ids = list((await connection.execute(newest)).scalars())
        query = select(events.c.operation_id, events.c.number, events.c.type, events.c.wire)
        query = query.where(events.c.operation_id.in_(ids), events.c.type == "beforeToolCall")
        rows = (await connection.execute(query.order_by(events.c.operation_id, events.c.number))).all()
    for row in rows:
        decode(row.wire)
    chain = CHAIN[0]
    for call in READY:
        await chain.run(call, terminal)


RESULT = ToolResult(content="paid")


async def fill(store: SqlStore) -> None:
    """Store operations with their events, as runs store them."""
    for nth in range(OPERATIONS):
        operation_id = f"op_{nth}"
        rows: list[JournalEntry] = []
        for index in range(CALLS):
            call = ToolCall(
                operation_id=operation_id,
                agent_id="clerk",
                tenant_id="acme",
                toolset="bank",
                tool_name="pay",
                args={
                    "amount": (nth * CALLS + index) % 1000,
                    "to": "ann",
                    "why": "a book for all of us",
                },
                tool_call_id=f"t{index}.0",
                call_index=index + 1,
                step_index=index,
            )
            event = BeforeToolCall(
                operation_id=operation_id, agent_id="clerk", tenant_id="acme", **tool_event_fields(call)
            )
            rows.append(
                JournalEntry(number=len(rows) + 1, type=event.hook_type, time_unix_nano=time_ns(), wire=encode(event))
            )
        state = OperationState(
            operation_id=operation_id, agent_id="clerk", tenant_id="acme", status="done", events=len(rows)
        )
        await store.commit(state, expected_version=None, entries=rows)


async def add_old_operations(store: SqlStore) -> None:
    """Copy an operation and its events many times, as if they were a year old."""
    async with store.reading() as connection:
        one = dict((await connection.execute(select(operations).limit(1))).mappings().one())
        its = select(events).where(events.c.operation_id == one["operation_id"]).limit(2)
        wire = [dict(row) for row in (await connection.execute(its)).mappings()]
    for first in range(0, OLD_OPERATIONS, BATCH):
        names = [f"old_{nth}" for nth in range(first, first + BATCH)]
        async with store.writing() as connection:
            await connection.execute(
                insert(operations), [one | {"operation_id": name, "created_at": time() - YEAR} for name in names]
            )
            await connection.execute(insert(events), [row | {"operation_id": name} for name in names for row in wire])
    async with store.writing() as connection:
        await connection.exec_driver_sql("ANALYZE")


async def count_other_verdicts(url: str) -> Row:
    """Judge random calls of agents as they happen and afterwards, and count those that are judged differently."""
    chance, wrong, made = random.Random(25), 0, 0
    async with SqlStore(url) as store, Registry(store, modules=[MODULE]) as registry:
        for point, handler, mode in (
            ("ToolCall.guard", "policy", "enforce"),
            ("ToolCall.before", "steering", "shadow"),
            ("ToolCall.after", "policy", "shadow"),
        ):
            policy = HookDefinition(
                id="policy", name="policy", point=point, handler=f"{MODULE}:{handler}", config={"seed": 3}, mode=mode
            )
            began = await store.now()
            with LiveVerdicts("policy") as live:
                while len(live.found) < JUDGED / 3:
                    made += 1
                    hooks = registry._builder.build_new(policy)
                    await run_random_agent(store, chance, hooks, f"op{made}", calls=40)
            found = await registry.backtest(policy, since=began, examples=JUDGED)
            judged = verdicts_in(found)
            wrong += sum(judged.get(call, ("passed", "")) != verdict for call, verdict in live.found.items())
            wrong += len(judged.keys() - live.found.keys()) + abs(found.calls - len(live.found))
    return Row(
        case=f"calls that are judged differently afterwards, of {JUDGED:,}", value=wrong, unit="calls", at_most=0
    )


READY_MODEL_CALLS: list[ModelCall] = []
MODEL_CHAIN: list[Chain] = []
_decode_state = msgspec.json.Decoder(OperationState).decode
_decode_message = msgspec.json.Decoder(Message).decode


async def time_model_calls(name: str, url: str, rounds: int) -> list[Row]:
    """Time a backtest of model calls, in short conversations and in a long one."""
    async with SqlStore(url) as store, Registry(store, modules=[__name__]) as registry:
        await store_conversation(store, "long", LONG)
        for nth in range(OPERATIONS):
            await store_conversation(store, f"op_{nth}", CALLS)
        async with store.writing() as connection:
            await connection.execute(
                operations.update().where(operations.c.operation_id == "long").values(created_at=time() - YEAR)
            )
        since = time() - 3600
        ours, by_hand = f"backtest of models [{name}]", f"read, decode, Chain.run of models [{name}]"
        in_long = f"backtest of models [{name}, {2 * LONG:,} messages]"
        cases = {
            ours: statement(
                "await judge(registry, since)", judge=judge_models, registry=registry, since=since, unroll=1
            ),
            in_long: statement(
                "await judge(registry, since)", judge=judge_long, registry=registry, since=since, unroll=1
            ),
            by_hand: statement(
                "await judge(store, since)", judge=judge_models_by_hand, store=store, since=since, unroll=1
            ),
        }
        samples = await interleave(cases, rounds, times=1)
        return [
            samples.row(by_hand),
            samples.row(ours, by_hand, at_most=2.0),
            # As many calls, each with a hundred times as many messages.
            samples.row(in_long, ours, at_most=2.0),
        ]


async def judge_models(registry: Registry, since: float) -> None:
    found = await registry.backtest(MODEL_GUARD, since=since)
    assert (found.calls, found.operations, found.not_judged) == (OPERATIONS * CALLS, OPERATIONS, 0)


async def judge_long(registry: Registry, since: float) -> None:
    found = await registry.backtest(MODEL_GUARD, until=since)
    assert (found.calls, found.operations, found.not_judged) == (LONG, 1, 0)


async def judge_models_by_hand(store: SqlStore, since: float) -> None:
    """Do the least that judging stored model calls takes."""

    async def terminal(call: ModelCall) -> ModelResponse:
        return ANSWER

    if not READY_MODEL_CALLS:
        said = [Message(role="user", content=f"word {nth}") for nth in range(2 * CALLS)]
        READY_MODEL_CALLS.extend(
            ModelCall(operation_id="op", messages=said[: 1 + 2 * (nth % CALLS)]) for nth in range(OPERATIONS * CALLS)
        )
        hooks = Hooks("words")
        hooks.guard(ModelCall)(make_model_guard())
        MODEL_CHAIN.append(Chain([hooks], record=True))
    async with store.reading() as connection:
        newest = select(operations.c.operation_id).where(operations.c.created_at >= since)
        ids = list((await connection.execute(newest)).scalars())
        query = select(events.c.operation_id, events.c.number, events.c.type, events.c.wire)
        query = query.where(events.c.operation_id.in_(ids), events.c.type.in_(("beforeStep", "afterStep")))
        steps = (await connection.execute(query.order_by(events.c.operation_id, events.c.number))).all()
        heads = select(operations.c.operation_id, operations.c.state, operations.c.layout)
        states = (await connection.execute(heads.where(operations.c.operation_id.in_(ids)))).all()
        bodies = select(state_rows.c.operation_id, state_rows.c.number, state_rows.c.kind, state_rows.c.body)
        messages = (await connection.execute(bodies.where(state_rows.c.operation_id.in_(ids)))).all()
        asked = select(model_calls).where(model_calls.c.operation_id.in_(ids))
        (await connection.execute(asked)).all()
    for row in steps:
        decode(row.wire)
    for row in states:
        _decode_state(row.state)
        msgspec.json.decode(row.layout)
    for row in messages:
        _decode_message(row.body)
    chain = MODEL_CHAIN[0]
    for call in READY_MODEL_CALLS:
        await chain.run(call, terminal)


ANSWER = ModelResponse(content="fine")


async def store_conversation(store: SqlStore, operation_id: str, calls: int) -> None:
    """Store an operation whose model was asked some times, as runs store it."""
    messages = [Message(role="user", content="Buy books for all of us.")]
    rows: list[JournalEntry] = []
    asked: list[ModelCallRecord] = []
    common: dict[str, Any] = {"operation_id": operation_id, "agent_id": "clerk", "tenant_id": "acme"}
    for index in range(calls):
        wanted = ToolRequest("pay", {"amount": index, "to": "ann"}, tool_call_id=f"t{index}.0")
        ended = AfterStep(
            **common,
            step_index=index,
            step_type="call_tool",
            content="I pay for the next book now.",
            reasoning="",
            tools_calling=[wanted],
            tools_result=[],
            should_continue=index < calls - 1,
            **dict.fromkeys(("execution_time_ms", "elapsed_ms", "step_cost_usd", "total_cost_usd"), 1.0),
            **dict.fromkeys(("total_input_tokens", "total_output_tokens", "total_steps", "total_tool_calls"), 1),
        )
        for event in (BeforeStep(**common, step_index=index), ended):
            rows.append(
                JournalEntry(number=len(rows) + 1, type=event.hook_type, time_unix_nano=time_ns(), wire=encode(event))
            )
        messages.append(Message(role="assistant", content=ended.content, tool_calls=[wanted]))
        messages.append(Message(role="tool", content=f"paid {index}", tool_call_id=wanted.tool_call_id))
        asked.append(
            ModelCallRecord(step_index=index, provider="", model="m", start_unix_nano=time_ns(), duration_ms=1.0)
        )
    state = OperationState(**common, status="max_steps", messages=messages, events=len(rows))
    await store.commit(state, expected_version=None, entries=rows)
    state = msgspec.structs.replace(state, version=2)
    kept = len(messages)
    await store.append(
        state, expected_version=1, entries=(), kept_messages=kept, kept_outcomes=frozenset(), model_calls=asked
    )


async def count_other_model_verdicts(url: str) -> Row:
    """Judge random model calls as they happen and afterwards, and count those that are judged differently."""
    chance, wrong, made = random.Random(26), 0, 0
    module = past_conversations.MODULE
    async with SqlStore(url) as store, Registry(store, modules=[module]) as registry:
        for point, mode in (
            ("ModelCall.guard", "enforce"),
            ("ModelCall.before", "shadow"),
            ("ModelCall.after", "shadow"),
            ("AgentCall.guard", "enforce"),
        ):
            policy = HookDefinition(
                id="policy",
                name="policy",
                point=point,
                handler=f"{module}:judging",
                config={"seed": 3},
                mode=mode,
                inherit=True,
            )
            began = await store.now()
            with LiveDecisions("policy", point.partition(".")[0]) as live:
                while live.calls < JUDGED_QUESTIONS / 4:
                    made += 1
                    hooks = registry._builder.build_new(policy)
                    await run_random_conversation(store, chance, hooks, f"op{made}", steps=12)
            found = await registry.backtest(policy, since=began, examples=JUDGED_QUESTIONS)
            past = decisions_in(found)
            missing = (live.found - past).total()
            wrong += (past - live.found).total() + max(0, missing - found.not_judged)
            wrong += abs(live.calls - found.calls - found.not_judged)
    return Row(
        case=f"model calls and runs that are judged differently afterwards, of {JUDGED_QUESTIONS:,}",
        value=wrong,
        unit="calls",
        at_most=0,
    )
