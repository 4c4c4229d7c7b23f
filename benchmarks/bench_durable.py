"""Operations in a database: events written, runs stored, resumed and recovered, webhooks signed and delivered.

Figures per second are absolute, so they depend on the machine and its disk. PostgreSQL is a real server of the
benchmark's own, with its own defaults, on this machine.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import msgspec
from sqlalchemy import Engine, event

from benchmarks.harness import Row, Samples, interleave, statement
from benchmarks.postgresql import PostgreSQL
from benchmarks.receivers import Receivers, receiving
from hookline import (
    Agent,
    Approve,
    HookDispatcher,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.calls import Message
from hookline.delivery import KeyRing, Outbox, generate_key, sign, verify
from hookline.events import AfterToolCall, HookType, encode
from hookline.runtime import InMemoryStore, JournalEntry, OperationState, recover_agent
from hookline.store import SqlStore
from hookline.webhooks import Envelope, HookData, Webhook

TOGETHER = 5
"""Events in one commit, as a step with a tool makes them."""
EVENTS_GOAL, DELIVERIES_GOAL = 10_000, 1_000
FEW_CALLS, MANY_CALLS = 30, 100
WRITTEN_GOAL, GROWTH_GOAL = 3.0, 3.6
SAMPLES, OPERATIONS, COMMITS = 5, 500, 8
STEPS = 2
CROWD = 50
PAUSED = 200
FAST, DELIVERIES, IN_A_STREAM = 8, 4_000, 10
HUNG_SECONDS = 2.0
"""For how long an attempt at the hung receiver waits: longer than what is measured."""
NOT_SLOWED = 0.9
PAIRS = 10
"""Times that deliveries are measured alone and beside a hung receiver, by turns: one measure varies by a fifth."""

ASKS = ModelResponse(tool_calls=[ToolRequest(tool_name="search", args={"query": "hooks"}, tool_call_id="call_1")])
ANSWERS = ModelResponse(content="42 results")

NewUrl = Callable[[], Awaitable[str]]
"""Makes an empty database and gives its URL."""


@tool
async def search(query: str) -> str:
    """Search the web."""
    return query


async def bench(rounds: int) -> list[Row]:
    rows = await signing(rounds)
    with PostgreSQL() as server, tempfile.TemporaryDirectory() as folder, receiving() as receivers:
        made = iter(range(1_000_000))

        async def sqlite() -> str:
            return f"sqlite:///{Path(folder) / f'store{next(made)}.db'}"

        async def postgresql() -> str:
            return await server.new_database(f"bench{next(made)}")

        databases: dict[str, NewUrl] = {"sqlite": sqlite, "postgresql": postgresql}
        for name, new_url in databases.items():
            rows += await written_states(name, new_url)
        for name, new_url in databases.items():
            rows += await persisted(name, new_url)
        rows += await stored_runs(rounds, sqlite, postgresql)
        for name, new_url in databases.items():
            rows += await latencies(name, new_url)
        for name, new_url in databases.items():
            rows += await delivered(name, new_url, receivers)
    return rows


async def written_states(database: str, new_url: NewUrl) -> list[Row]:
    """Bytes of state that a run writes in all, beside the size of its last state; how they grow with the run."""
    rows, written = [], {}
    async with SqlStore(await new_url()) as store:
        for calls in (FEW_CALLS, MANY_CALLS):
            with counted_state_bytes() as count:
                await exec_agent(make_reader(calls), "Read all.", operation_id=f"op-{calls}", store=store)
            state = await store.load(f"op-{calls}")
            written[calls] = count[0]
            rows.append(
                Row(
                    case=f"state written / its final size [{database}, tool calls={calls}]",
                    value=count[0] / len(msgspec.json.encode(state)),
                    unit="x",
                    at_most=WRITTEN_GOAL if calls == MANY_CALLS else None,
                )
            )
    growth = written[MANY_CALLS] / written[FEW_CALLS]
    case = f"state written, {FEW_CALLS} to {MANY_CALLS} tool calls [{database}]"
    return [*rows, Row(case=case, value=growth, unit="x", at_most=GROWTH_GOAL)]


def make_reader(calls: int) -> Agent:
    """An agent that makes some tool calls, one in each step, with results of 4 KB."""
    turns = [ToolRequest("read", {"page": page}) for page in range(calls)]
    return Agent(id="reader", model=ScriptedModel([*turns, "Read."]), tools=[read], max_steps=calls + 1)


@tool
async def read(page: int) -> str:
    """Read a page of 4 KB."""
    return f"{page:4096d}"


def size_of(value: object) -> int:
    """Bytes of a parameter, which may be an array of many rows."""
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return len(value) if isinstance(value, bytes | memoryview | str) else 0


@contextmanager
def counted_state_bytes() -> Iterator[list[int]]:
    """Count the bytes of the parameters with which rows of operations and of their states are written."""
    count = [0]

    def add(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        # PostgreSQL inserts into several tables with one statement, an array for each column.
        for arrays in re.findall(r"INSERT INTO (?:operations|state_rows) [^$]*unnest\(([^)]*)\)", statement):
            count[0] += sum(size_of(parameters[int(place) - 1]) for place in re.findall(r"\$(\d+)", arrays))
        if re.match(r"(INSERT INTO|UPDATE) (operations|state_rows)\b", statement) and "unnest(" not in statement:
            count[0] += sum(map(size_of, parameters))

    event.listen(Engine, "before_cursor_execute", add)
    try:
        yield count
    finally:
        event.remove(Engine, "before_cursor_execute", add)


async def persisted(database: str, new_url: NewUrl) -> list[Row]:
    """Events per second that many operations write at the same time."""
    rows = []
    kinds = {"": {}, ", durability='process'": {"durability": "process"}} if database == "sqlite" else {"": {}}
    for kind, options in kinds.items():
        async with SqlStore(await new_url(), **options) as store:  # type: ignore[arg-type]
            for operations in (1, 10, 100, OPERATIONS):
                rates = [await write(store, f"{operations}-{nth}", operations) for nth in range(SAMPLES)]
                rows.append(
                    Row(
                        case=f"events written [{database}{kind}, operations={operations}]",
                        value=statistics.median(rates),
                        unit="/s",
                        at_least=EVENTS_GOAL if operations == OPERATIONS else None,
                    )
                )
    return rows


async def write(store: SqlStore, name: str, operations: int) -> float:
    """Have operations commit events, and say how many that were per second."""
    commits = [commits_of(f"{name}-{nth}") for nth in range(operations)]

    async def live(states: Sequence[tuple[OperationState, list[JournalEntry]]]) -> None:
        (first, entries), *others = states
        await store.commit(first, expected_version=None, entries=entries)
        for state, entries in others:
            kept = len(state.messages) - 1
            await store.append(
                state, expected_version=state.version - 1, entries=entries, kept_messages=kept, kept_outcomes=()
            )

    began = perf_counter()
    await asyncio.gather(*map(live, commits))
    return operations * COMMITS * TOGETHER / (perf_counter() - began)


def commits_of(operation_id: str) -> list[tuple[OperationState, list[JournalEntry]]]:
    """What an operation writes, one commit after another; its conversation grows with it."""
    event = AfterToolCall(
        operation_id=operation_id,
        time_unix_nano=1_700_000_000_000_000_000,
        agent_id="searcher",
        toolset="local",
        tool_name="search",
        args={"query": "hooks"},
        call_index=1,
        step_index=0,
        tool_call_id="call_1",
        content="result " * 20,
        success=True,
    )
    wire = encode(event)
    commits = []
    for version in range(1, COMMITS + 1):
        numbers = range((version - 1) * TOGETHER + 1, version * TOGETHER + 1)
        entries = [
            JournalEntry(number=number, type=event.hook_type, time_unix_nano=event.time_unix_nano, wire=wire)
            for number in numbers
        ]
        state = OperationState(
            operation_id=operation_id,
            agent_id="searcher",
            messages=[Message(role="user", content="How many? " * 10)] * version,
            events=numbers[-1],
            version=version,
        )
        commits.append((state, entries))
    return commits


async def stored_runs(rounds: int, sqlite: NewUrl, postgresql: NewUrl) -> list[Row]:
    """What a store adds to a run of two steps with one tool, alone and in a crowd."""
    agent = Agent(id="searcher", model=ScriptedModel(play), tools=[search])
    bare, *durable = names = [
        "InMemoryStore",
        "sqlite in memory",
        "sqlite, durability='process'",
        "sqlite",
        "postgresql",
    ]
    async with AsyncExitStack() as stack:
        open_store = stack.enter_async_context
        stores = [
            InMemoryStore(),
            await open_store(SqlStore("sqlite:///:memory:")),
            await open_store(SqlStore(await sqlite(), durability="process")),
            await open_store(SqlStore(await sqlite())),
            await open_store(SqlStore(await postgresql())),
        ]
        dispatcher = await open_store(HookDispatcher())
        alone, crowded = {}, {}
        for name, store in zip(names, stores, strict=True):
            given = {"exec_agent": exec_agent, "agent": agent, "store": store, "dispatcher": dispatcher}
            run = "exec_agent(agent, 'How many?', store=store, dispatcher=dispatcher)"
            alone[name] = statement(f"await {run}", unroll=1, **given)
            crowded[name] = statement(
                f"await gather(*({run} for _ in range({CROWD})))", unroll=1, gather=asyncio.gather, **given
            )
        rows = added(await interleave(alone, rounds, times=10), bare, durable, 1)
        rows += added(await interleave(crowded, max(3, rounds // 5), times=2), bare, durable, CROWD)
    return rows


def added(samples: Samples, bare: str, durable: Sequence[str], runs: int) -> list[Row]:
    """A run on each store, and what a step of it costs more than in memory."""
    rows = []
    for name in (bare, *durable):
        case = f"exec_agent [{name}, runs={runs}]"
        samples.derive(case, lambda taken: taken / runs, name)
        rows.append(samples.row(case))
        if name != bare:
            step = f"added to a step [{name}, runs={runs}]"
            samples.derive(step, lambda own, least: (own - least) / runs / STEPS, name, bare)
            rows.append(samples.row(step))
    return rows


async def latencies(database: str, new_url: NewUrl) -> list[Row]:
    """From a stored operation to its first model call, in a store that has never seen it."""
    url = await new_url()
    called: dict[str, int] = {}

    async def resumed(call: ModelCall) -> ModelResponse:
        called.setdefault(call.operation_id, perf_counter_ns())
        return ANSWERS

    agent = Agent(id="searcher", model=ScriptedModel(resumed), tools=[search])
    paused = await pause(url)
    left = await leave(url)
    taken: dict[str, list[int]] = {"resume": [], "recovery": []}
    async with SqlStore(url) as store, HookDispatcher() as dispatcher:
        for name in paused:
            began = perf_counter_ns()
            await resume_agent(asking(agent), name, [Approve("call_1")], store=store, dispatcher=dispatcher)
            taken["resume"].append(called[name] - began)
        for name in left:
            began = perf_counter_ns()
            await recover_agent(agent, name, store=store, dispatcher=dispatcher)
            taken["recovery"].append(called[name] - began)
    return [
        Row(case=f"{what} to the first model call [{database}, p{percent}]", value=percentile(values, percent))
        for what, values in taken.items()
        for percent in (50, 99)
    ]


def asking(agent: Agent) -> Agent:
    """The same agent, whose tool needs approval."""
    return Agent(id=agent.id, model=agent.model, tools=[tool(search.function, needs_approval=True)])


async def pause(url: str) -> list[str]:
    """Have operations wait for a person, and let go of the store."""
    agent = asking(Agent(id="searcher", model=ScriptedModel(play)))
    names = [f"paused{nth}" for nth in range(PAUSED)]
    async with SqlStore(url) as store:
        for name in names:
            result = await exec_agent(agent, "How many?", operation_id=name, store=store)
            assert result.reason == "waiting_for_human", result
    return names


async def leave(url: str) -> list[str]:
    """Leave operations behind in the middle of their second model call, as a process does that dies."""
    hanging = 0

    async def hang(call: ModelCall) -> ModelResponse:
        nonlocal hanging
        if call.messages[-1].role != "tool":
            return ASKS
        hanging += 1
        await asyncio.Event().wait()
        return ANSWERS

    agent = Agent(id="searcher", model=ScriptedModel(hang), tools=[search])
    names = [f"left{nth}" for nth in range(PAUSED)]
    store = await SqlStore(url).__aenter__()
    runs = [asyncio.create_task(exec_agent(agent, "How many?", operation_id=name, store=store)) for name in names]
    while hanging < len(runs):
        await asyncio.sleep(0.01)
    await store.aclose()  # from here on nothing more of them is written
    for run in runs:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run
    return names


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def delivered(database: str, new_url: NewUrl, receivers: Receivers) -> list[Row]:
    """Webhooks per second, where all receivers are fast and where one of them hangs."""
    alone: list[float] = []
    beside: list[float] = []
    for nth in range(PAIRS):
        pair = [(alone, False), (beside, True)]
        for rates, hung in pair if nth % 2 else reversed(pair):
            rates.append(await deliver(await new_url(), receivers, hung=hung))
    case = f"webhooks delivered [{database}, receivers={FAST}]"
    with_hung = f"webhooks delivered [{database}, receivers={FAST}, one hung beside]"
    return [
        Row(case=case, value=statistics.median(alone), unit="/s", at_least=DELIVERIES_GOAL),
        Row(case=with_hung, value=statistics.median(beside), unit="/s", at_least=DELIVERIES_GOAL),
        Row(
            case=with_hung,
            value=statistics.median(beside),
            unit="/s",
            against=case,
            ratio=statistics.median(beside) / statistics.median(alone),
            at_least=NOT_SLOWED,
        ),
    ]


async def deliver(url: str, receivers: Receivers, *, hung: bool) -> float:
    """Deliver what is stored; fast receivers alone count."""
    before = receivers.answered
    async with SqlStore(url) as store, outbox_on(store) as outbox:
        for start in range(0, DELIVERIES, 1000):
            await outbox.publish(envelopes(start, 1000, lambda stream: receivers.url(f"fast/{stream % FAST}")))
        if hung:
            await outbox.publish(envelopes(DELIVERIES, DELIVERIES // FAST, lambda _: receivers.url("hung")))
        began = perf_counter()
        async with outbox:
            while receivers.answered - before < DELIVERIES:
                await asyncio.sleep(0.002)
            taken = perf_counter() - began
    return DELIVERIES / taken


@asynccontextmanager
async def outbox_on(store: SqlStore) -> AsyncIterator[Outbox]:
    outbox = Outbox(store, keys=KeyRing({"": [generate_key()]}), allow_private=["127.0.0.0/8"])
    try:
        yield outbox
    finally:
        await outbox.aclose()


def envelopes(start: int, count: int, url_of: Callable[[int], str]) -> list[Envelope]:
    made = []
    for nth in range(start, start + count):
        stream = nth // IN_A_STREAM
        webhook = Webhook(url=url_of(stream), timeout=HUNG_SECONDS)
        made.append(
            Envelope(
                id=f"msg_{nth}",
                hook=HookData(id="bench", type=HookType.AFTER_TOOL_CALL, webhook=webhook),
                operation_id=f"op{stream}",
                number=nth % IN_A_STREAM + 1,
                payload=body_of(500),
            )
        )
    return made


def body_of(size: int) -> bytes:
    return b'{"type":"afterToolCall","content":"' + b"x" * (size - 37) + b'"}'


async def signing(rounds: int) -> list[Row]:
    """Signatures, held against the bare HMAC of the same text."""
    key, other = generate_key(), generate_key()
    rings = {"": KeyRing({"": [key]}), ", two keys": KeyRing({"": [key, other]})}
    cases, rows = {}, []
    for size in (500, 20_000):
        body = body_of(size)
        text, raw = b"msg_1.1700000000." + body, b"k" * 32
        bare = f"hmac.digest [bytes={size}]"
        cases[bare] = statement("digest(raw, text, 'sha256')", digest=hmac.digest, raw=raw, text=text)
        for kind, ring in rings.items():
            given = {"body": body, "ring": ring}
            cases[f"sign [bytes={size}{kind}]"] = statement("sign('msg_1', 1700000000, body, ring)", sign=sign, **given)
        headers = sign("msg_1", 1_700_000_000, body, rings[""])
        cases[f"verify [bytes={size}]"] = statement(
            "verify(headers, body, ring, now=1700000000)", verify=verify, headers=headers, body=body, ring=rings[""]
        )
    samples = await interleave(cases, rounds)
    for size in (500, 20_000):
        bare = f"hmac.digest [bytes={size}]"
        rows.append(samples.row(bare))
        rows += [samples.row(case, bare) for case in cases if f"bytes={size}" in case and case != bare]
    return rows


async def play(call: ModelCall) -> ModelResponse:
    return ANSWERS if call.messages[-1].role == "tool" else ASKS
