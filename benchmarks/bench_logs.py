"""The log of hook executions: pages of a thousand rows and of a million, rows written, and what a run pays for it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter, perf_counter_ns, time_ns
from typing import Any

from sqlalchemy import insert

from benchmarks.harness import Row, Samples, Timer, interleave
from hookline import (
    Agent,
    Chain,
    HookDispatcher,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.registry import ExecutionLog
from hookline.registry._log_rows import build_row, execution_hook_rows, execution_row
from hookline.registry._statistics import StatisticsBuffer, write_grouped_statistics, write_statistics
from hookline.signals import ChainRun, HookExecution, chain_ran
from hookline.store import SqlStore
from hookline.store._tables import execution_hooks, executions

SIZES = (1_000, 1_000_000)
PAGES, BLOCKS = 100, 5
"""Pages of each filter that are read for a p99, and how many of those make a median."""
FLAT = 1.5
TOGETHER = 5000
PAGE = 10
"""Rows of a page: every filter finds so many among a thousand, so that no full page is compared with a short one."""
TENANTS, HOOKS = 4, 4
AGENTS, TOOLS = 3, 10
POINTS = ("ToolCall", "ModelCall", "StepCall")
STATUSES = ("ok",) * 6 + ("denied", "denied", "error", "error")
FILTERS: dict[str, dict[str, Any]] = {
    "no filter": {},
    "tenant": {"tenant_id": "tenant 3"},
    "point": {"point": "ToolCall"},
    "status": {"status": "denied"},
    "hook": {"hook_id": "hook 2"},
    "operation": {"operation_id": "op 3"},
    "tenant, point": {"tenant_id": "tenant 3", "point": "ToolCall"},
    "tenant, status": {"tenant_id": "tenant 3", "status": "error"},
    "tenant, point, status": {"tenant_id": "tenant 3", "point": "ToolCall", "status": "error"},
    "tenant, hook": {"tenant_id": "tenant 3", "hook_id": "hook 2"},
    "tenant, hook, status": {"tenant_id": "tenant 3", "hook_id": "hook 2", "status": "denied"},
    "revision": {"revision": 3},
    "tenant, revision, status": {"tenant_id": "tenant 3", "revision": 3, "status": "denied"},
    "nothing found": {"tenant_id": "nobody", "point": "ToolCall", "status": "error"},
}


async def bench(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        urls = {size: f"sqlite:///{Path(folder) / f'{size}.db'}" for size in SIZES}
        rows = [*await pages(urls), *await written(f"sqlite:///{Path(folder) / 'written.db'}")]
        return [*rows, *await runs(f"sqlite:///{Path(folder) / 'runs.db'}", rounds)]


async def pages(urls: dict[int, str]) -> list[Row]:
    """The p99 of a page by filter and size, and of the statistics, interleaved."""
    stores = {size: SqlStore(url, durability="process") for size, url in urls.items()}
    for size, store in stores.items():
        await store.__aenter__()
        await fill(store, size)
    logs = {size: ExecutionLog(store) for size, store in stores.items()}
    asked: dict[str, Callable[[ExecutionLog], Awaitable[object]]] = {
        f"p99 of a page [{name}": partial(page, which=which) for name, which in FILTERS.items()
    }
    asked["p99 of a tenant's statistics ["] = lambda log: log.statistics("tenant 3")
    asked["p99 of a tenant's statistics by tool ["] = lambda log: log.statistics("tenant 3", by="tool")
    asked["p99 of a hook's statistics by agent ["] = lambda log: log.statistics(
        "tenant 3", hook_id="hook 2", by="agent"
    )
    samples: dict[str, list[float]] = {}
    for _ in range(BLOCKS):
        taken: dict[str, list[float]] = {}
        for _ in range(PAGES):
            for (name, ask), size in product(asked.items(), random.sample(SIZES, len(SIZES))):
                began = perf_counter_ns()
                await ask(logs[size])
                taken.setdefault(case_of(name, size), []).append(perf_counter_ns() - began)
        for case, values in taken.items():
            samples.setdefault(case, []).append(sorted(values)[int(len(values) * 0.99)])
    for store in stores.values():
        await store.aclose()
    found, (first, last) = Samples(samples), SIZES
    rows = []
    for name in asked:
        rows.append(found.row(case_of(name, first)))
        goal = FLAT if "page" in name else None
        rows.append(found.row(case_of(name, last), case_of(name, first), at_most=goal))
    return rows


def case_of(name: str, size: int) -> str:
    return f"{name}{'' if name.endswith('[') else ', '}rows={size:,}]"


async def page(log: ExecutionLog, which: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"tenant_id": None, **which}
    await log.logs(**arguments, limit=PAGE)


async def fill(store: SqlStore, count: int) -> None:
    """Rows as a day leaves them, of several tenants and hooks."""
    now, chance, sums = time_ns(), random.Random(5), StatisticsBuffer()
    step = 86_000_000_000_000 // count
    for start in range(0, count, TOGETHER):
        rows = []
        for nth in range(start, min(count, start + TOGETHER)):
            rows.append(build_row(made(chance, nth, now - (count - nth) * step), "", nth))
            sums.add(rows[-1])
        async with store.writing() as connection:
            await connection.execute(insert(executions), [execution_row(row) for row in rows])
            await connection.execute(
                insert(execution_hooks), [place for row in rows for place in execution_hook_rows(row)]
            )
    for write, added_up in (
        (write_statistics, sums.changed_rows()),
        (write_grouped_statistics, sums.changed_group_rows()),
    ):
        for start in range(0, len(added_up), TOGETHER):
            async with store.writing() as connection:
                await write(connection, added_up[start : start + TOGETHER])


def made(chance: random.Random, nth: int, time_unix_nano: int) -> ChainRun:
    """A record of a call that met two hooks."""
    point, status, tenant = chance.choice(POINTS), chance.choice(STATUSES), f"tenant {chance.randrange(TENANTS)}"
    ran = [chance.randrange(HOOKS) for _ in range(2)]
    executions = [
        HookExecution(
            hook_id=f"hook {hook}",
            revision=hook + 1,
            hook_type=point,
            operation_id=f"op {nth // 20}",
            status=status if last else "ok",
            duration_ms=chance.expovariate(1.0),
            time_unix_nano=time_unix_nano,
            tenant_id=tenant,
        )
        for hook, last in zip(ran, (False, True), strict=True)
    ]
    return ChainRun(
        point=point,
        operation_id=f"op {nth // 20}",
        tenant_id=tenant,
        executions=executions,
        denied_by=executions[1].hook_id if status == "denied" else None,
        reason="not today" if status == "denied" else None,
        duration_ms=2.0,
        time_unix_nano=time_unix_nano,
        agent_id=f"agent {chance.randrange(AGENTS)}",
        tool=f"local/tool {chance.randrange(TOOLS)}" if point == "ToolCall" else "",
    )


async def written(url: str) -> list[Row]:
    """Rows per second, as fast as they go."""
    rows = []
    for durability in ("machine", "process"):
        async with (
            SqlStore(url.replace("written", durability), durability=durability) as store,  # type: ignore[arg-type]
            ExecutionLog(store, max_queued=1_000_000) as log,
        ):
            records = [made(random.Random(nth), nth, time_ns()) for nth in range(20_000)]
            began = perf_counter()
            for record in records:
                chain_ran.send(None, ran=record)
            await log.flush()
            case = f"rows written per second [durability={durability}]"
            rows.append(Row(case=case, value=round(log.written / (perf_counter() - began)), unit="rows/s"))
    return rows


async def runs(url: str, rounds: int) -> list[Row]:
    """A call through three guards, and a run with two such calls: with nobody listening, with a list, with a log."""
    cases = {}
    async with SqlStore(url) as store, ExecutionLog(store, max_queued=1_000_000) as log:
        chain_ran.disconnect(log._chain_ran)
        await log.prune()
        for name, listening in (("nobody listens", silent), ("a list of records", listed), ("a log", logged)):
            cases[f"a call through 3 guards [{name}]"] = timed_call(log, listening)
            cases[f"a run of 3 steps, 3 guards [{name}]"] = timed_run(log, listening)
        samples = await interleave(cases, rounds)
        assert not log.dropped
    rows = []
    for what in ("a call through 3 guards", "a run of 3 steps, 3 guards"):
        rows.append(samples.row(f"{what} [nobody listens]"))
        rows.append(samples.row(f"{what} [a list of records]", f"{what} [nobody listens]"))
        rows.append(samples.row(f"{what} [a log]", f"{what} [a list of records]"))
    return rows


@asynccontextmanager
async def silent(log: ExecutionLog) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def listed(log: ExecutionLog) -> AsyncIterator[None]:
    records: list[ChainRun] = []

    def receive(_: object, ran: ChainRun) -> None:
        records.append(ran)

    with chain_ran.connected_to(receive):
        yield


@asynccontextmanager
async def logged(log: ExecutionLog) -> AsyncIterator[None]:
    with chain_ran.connected_to(log._chain_ran):
        yield
    await log.flush()


Listening = Callable[[ExecutionLog], AbstractAsyncContextManager[None]]


def timed_call(log: ExecutionLog, listening: Listening) -> Timer:
    chain = Chain(guards(), record=False)
    call = ToolCall(tool_name="search", tenant_id="tenant", operation_id="op")

    async def timer(times: int) -> float:
        async with listening(log):
            started = perf_counter_ns()
            for _ in range(times):
                await chain.run(call, answer)
            return perf_counter_ns() - started

    return timer


def timed_run(log: ExecutionLog, listening: Listening) -> Timer:
    hooks = guards()
    agent = Agent(id="searcher", model=ScriptedModel(play), tools=[search])

    async def timer(times: int) -> float:
        async with HookDispatcher() as dispatcher, listening(log):
            started = perf_counter_ns()
            for _ in range(times):
                await exec_agent(agent, "How many?", hooks=hooks, dispatcher=dispatcher)
            return perf_counter_ns() - started

    return timer


def guards() -> list[Hooks]:
    bundle = Hooks("guards")
    for nth in range(3):
        bundle.guard(ToolCall, id=f"guard {nth}")(allow)
    return [bundle]


async def allow(call: ToolCall) -> None:
    pass


async def answer(call: ToolCall) -> ToolResult:
    return ToolResult(content="42 results")


def play(call: ModelCall) -> ModelResponse:
    if sum(message.role == "tool" for message in call.messages) == 2:
        return ModelResponse(content="42 results")
    return ModelResponse(tool_calls=[ToolRequest(tool_name="search", args={"query": "hooks"}, tool_call_id="call_1")])


@tool
async def search(query: str) -> str:
    """Search the web."""
    return query
