"""The HTTP API: requests per second of one process, their latency by the size of the log, and a person's decision.

Server and client are processes of their own, on loopback: 32 connections that are kept open, each with one request
under way. Requests are counted per second of processor time that the server takes, so that others on the machine matter
less.
Two servers, one with a small log and one with a large one, are asked in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter

import aiohttp

from benchmarks.bench_logs import FLAT, SIZES, fill
from benchmarks.harness import Row
from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.server import SCOPES, KeyStore
from hookline.store import SqlStore, Worker

CONNECTIONS = 32
SECONDS = 2.0
ENOUGH = 5_000
PAGES, BLOCKS = 100, 5
FILTERED = "/v1/hooks/logs?tenantId=tenant%203&hookId=hook%202&limit=10"
PATHS = {"list of 50 definitions": "/v1/hooks", "filtered log page": FILTERED, "statistics": "/v1/hooks/stats?by=hook"}
PROGRAM = """
import sys
from hookline.server import Server, serve
serve(lambda: Server(sys.argv[1], port=0, page=False, rate_limit=None))
"""


async def bench(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            clients: dict[int, aiohttp.ClientSession] = {}
            rows: list[Row] = []
            for size in SIZES:
                url = f"sqlite:///{Path(folder) / f'{size}.db'}"
                store = await stack.enter_async_context(SqlStore(url, durability="process"))
                await fill(store, size)
                made = await KeyStore(store).create(name="bench", tenant_id="", scopes=SCOPES)
                address, pid = await stack.enter_async_context(serving(url))
                headers = {"authorization": f"Bearer {made.key}"}
                web = await stack.enter_async_context(aiohttp.ClientSession(address, headers=headers))
                clients[size] = web
                where = await definitions(web)
                if size == SIZES[0]:
                    rows += await throughput(address, str(made.key), where, pid)
                    rows.append(await decision(store, web, rounds))
            return [*rows, *await latencies(clients)]


async def definitions(web: aiohttp.ClientSession) -> str:
    """Have fifty of them; gives the address of the last one."""
    for nth in range(50):
        body = {"name": f"hook {nth}", "point": "ToolCall.guard", "handler": "deny", "tags": ["x", "y"]}
        async with web.post("/v1/hooks", json=body) as answer:
            where = answer.headers["location"]
    return where


async def latencies(clients: dict[int, aiohttp.ClientSession]) -> list[Row]:
    """The p99 of what is read, by the size of the log."""
    found: dict[str, dict[int, list[float]]] = {name: {size: [] for size in clients} for name in PATHS}
    for _ in range(BLOCKS):
        for name, path in PATHS.items():
            for size, web in clients.items():
                found[name][size].append(await p99(web, path, PAGES))
    rows = []
    for name, by_size in found.items():
        small = f"p99 of a {name} [log rows={SIZES[0]:,}]"
        for size, values in by_size.items():
            ratio = statistics.median(a / b for a, b in zip(values, by_size[SIZES[0]], strict=True))
            goal = FLAT if size == SIZES[-1] else None
            case = f"p99 of a {name} [log rows={size:,}]"
            against = small if size == SIZES[-1] else ""
            rows.append(
                Row(case=case, value=statistics.median(values), unit="ms", against=against, ratio=ratio, at_most=goal)
            )
    return rows


async def throughput(address: str, key: str, where: str, pid: int) -> list[Row]:
    """How many requests the server answers."""
    rows = []
    for name, path, goal in (("a definition", where, ENOUGH), ("50 definitions", "/v1/hooks", None)):
        count, seconds, processor = await load(address, key, path, pid)
        rows.append(
            Row(case=f"GET {name}, per second of processor", value=round(count / processor), unit="/s", at_least=goal)
        )
        rows.append(Row(case=f"GET {name}, per second", value=round(count / seconds), unit="/s"))
    return rows


async def decision(store: SqlStore, web: aiohttp.ClientSession, rounds: int) -> Row:
    """From a person's decision until the operation is done, in another process."""

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        return "paid"

    call = ToolRequest(tool_name="pay", args={"amount": 3}, tool_call_id="call")
    took = []
    for _ in range(max(3, rounds)):
        model = ScriptedModel([ModelResponse(tool_calls=[call]), ModelResponse(content="done")])
        agent = Agent(id="banker", model=model, tools=[pay])
        waiting = await exec_agent(agent, "pay", store=store, tenant_id="acme")
        address = f"/v1/operations/{waiting.operation_id}"
        async with Worker(store, [agent], poll_seconds=0.02):
            began = perf_counter()
            body = {"toolCallId": "call", "decision": "approve"}
            async with web.post(f"{address}/decisions", json=body) as answer:
                assert answer.status == 200
            while True:
                async with web.get(address) as answer:
                    if (await answer.json())["status"] == "done":
                        break
            took.append((perf_counter() - began) * 1e3)
    return Row(case="approval, from decision to done [poll=20 ms]", value=statistics.median(took), unit="ms")


async def p99(web: aiohttp.ClientSession, path: str, count: int) -> float:
    took = []
    for _ in range(count):
        began = perf_counter()
        async with web.get(path) as answer:
            assert answer.status == 200
            await answer.read()
        took.append((perf_counter() - began) * 1e3)
    return sorted(took)[int(len(took) * 0.99)]


class Asking(asyncio.Protocol):
    """A connection that sends its next request when the answer to the last one is there."""

    def __init__(self, request: bytes) -> None:
        self.request, self.count, self.got = request, 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.got += data
        head = self.got.find(b"\r\n\r\n")
        if head < 0:
            return
        length = int(self.got[:head].lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(self.got) < head + 4 + length:
            return
        assert self.got.startswith(b"HTTP/1.1 200"), self.got[:200]
        self.got, self.count = b"", self.count + 1
        self.transport.write(self.request)  # type: ignore[attr-defined]


async def load(address: str, key: str, path: str, pid: int) -> tuple[int, float, float]:
    """Requests that were answered, in how many seconds, and how many of the processor."""
    host, port = address.removeprefix("http://").split(":")
    request = f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(lambda: Asking(request), host, int(port)) for _ in range(CONNECTIONS)]
    await asyncio.sleep(0.5)
    counted, began, used = sum(asking.count for _, asking in pairs), perf_counter(), processor_time(pid)
    await asyncio.sleep(SECONDS)
    count, seconds = sum(asking.count for _, asking in pairs) - counted, perf_counter() - began
    for transport, _ in pairs:
        transport.abort()
    return count, seconds, processor_time(pid) - used


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def serving(url: str) -> AsyncIterator[tuple[str, int]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, url), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = ""
        while "listens on" not in line:
            line = (await process.stdout.readline()).decode()
            assert line, "the server has ended"
        yield line.split()[-1], process.pid
    finally:
        process.terminate()
        await process.wait()
