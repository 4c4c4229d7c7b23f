"""The web page: server time of each view with 10,000 operations, over that with 100, in SQLite and PostgreSQL.

Both servers run in this process, and are asked in turn by a client that has signed in, on loopback. The overview is
also measured while nothing of it is kept, which happens at most once in five seconds for all readers together.
"""

from __future__ import annotations

import contextlib
import random
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import aiohttp
import asyncpg
from sqlalchemy import insert

from benchmarks.harness import Row
from benchmarks.postgresql import PostgreSQL
from hookline.delivery import MasterKeys
from hookline.server import Server
from hookline.store import SqlStore, operations

SIZES = (100, 10_000)
ROUNDS = 20
RATIO_GOAL, MS_GOAL = 2.0, 300.0
DAYS = 7
BATCH_SIZE = 500
MASTER = MasterKeys(["QSBtYXN0ZXIga2V5IG9mIHRoZSBiZW5jaG1hcmtzISE="])


class View(NamedTuple):
    """A view of the page.

    Attributes:
        name: What is measured.
        path: Its address, below that of the page. `{id}` is the id of an operation.
        has_ratio: Whether its time may not depend on the number of operations.
        is_cold: Whether what the server keeps is dropped before each request.
    """

    name: str
    path: str
    has_ratio: bool = True
    is_cold: bool = False


VIEWS = (
    View("overview", "overview?range=7d"),
    View("overview, nothing kept", "overview?range=7d", has_ratio=False, is_cold=True),
    View("operations", "operations"),
    View("operations of a tenant", "operations?tenant=acme"),
    View("operations of an agent", "operations?agent=legal"),
    View("operations with errors", "operations?status=error"),
    View("costliest operations", "operations?sort=costliest"),
    View("longest of a tenant, 7 days", "operations?sort=longest&range=7d&tenant=acme"),
    View("operations by a text", "operations?q=refund"),
    View("operations by a text that none has", "operations?q=zzzz", has_ratio=False),
    View("operations by a tool", "operations?tool=pay"),
    View("operation", "operations/{id}"),
    View("approvals", "approvals"),
    View("hooks", "hooks"),
    View("executions", "logs"),
    View("statistics", "statistics"),
    View("deliveries", "deliveries"),
    View("endpoints", "endpoints"),
)
"""The views that are measured. A new view is a new line."""


async def bench(rounds: int) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, PostgreSQL() as postgresql:
        for dialect in ("SQLite", "PostgreSQL"):
            async with contextlib.AsyncExitStack() as stack:
                browsers = {}
                for size in SIZES:
                    url = f"sqlite:///{Path(folder) / f'{size}.db'}"
                    if dialect == "PostgreSQL":
                        url = await postgresql.new_database(f"page{size}")
                    browsers[size] = await stack.enter_async_context(browsing(url, size))
                for view in VIEWS:
                    rows += await measure(view, browsers, dialect)
    return rows


class Browser(NamedTuple):
    """A person who has signed in at a server.

    Attributes:
        web: The client.
        server: The server.
        operation_id: The id of one of its operations.
    """

    web: aiohttp.ClientSession
    server: Server
    operation_id: str

    async def ask(self, view: View) -> float:
        """Ask for a view, and return the milliseconds until it is there."""
        if view.is_cold:
            self.server._parts.summaries._kept.clear()
        began = perf_counter()
        async with self.web.get(f"/page/{view.path.format(id=self.operation_id)}") as answer:
            text = await answer.text()
        took = (perf_counter() - began) * 1e3
        assert answer.status == 200, text
        return took


async def measure(view: View, browsers: dict[int, Browser], dialect: str) -> list[Row]:
    """Measure a view with few operations and with many, in turn."""
    times: dict[int, list[float]] = {size: [] for size in browsers}
    for turn in range(ROUNDS + 2):
        for size, browser in browsers.items():
            took = await browser.ask(view)
            if turn >= 2:  # the first ones fill caches of templates and statements
                times[size].append(took)
    small, large = (times[size] for size in SIZES)
    case = f"{view.name} [{dialect}, operations={{:,}}]"
    ratio = statistics.median(large) / statistics.median(small)
    return [
        Row(case=case.format(SIZES[0]), value=statistics.median(small), unit="ms"),
        Row(case=case.format(SIZES[1]), value=statistics.median(large), unit="ms", at_most=MS_GOAL),
        Row(
            case=f"{view.name} [{dialect}]: many over few",
            value=ratio,
            unit="x",
            at_most=RATIO_GOAL if view.has_ratio else None,
        ),
    ]


@contextlib.asynccontextmanager
async def browsing(url: str, size: int) -> AsyncIterator[Browser]:
    """Fill a database, start a server on it, and sign in."""
    async with Server(url, port=0, rate_limit=None, master_key=MASTER) as server:
        operation_id = await fill(server.store, size)
        if server.store.dialect == "postgresql":  # as the server does by itself within a minute
            connection = await asyncpg.connect(url)
            await connection.execute("VACUUM ANALYZE operations")
            await connection.close()
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(server.address, cookie_jar=jar) as web:
            async with web.get("/page/sign-in") as answer:
                found = re.search(r'name="token" value="([^"]+)"', await answer.text())
            assert found is not None
            assert server.first_key is not None
            form = {"token": found[1], "key": str(server.first_key.key)}
            async with web.post("/page/sign-in", data=form, allow_redirects=False) as answer:
                assert answer.status == 303
            yield Browser(web, server, operation_id)


async def fill(store: SqlStore, size: int) -> str:
    """Write operations of the last days; return the id of one of them."""
    rows = operation_rows(size)
    async with store.writing() as connection:
        for start in range(0, size, BATCH_SIZE):
            await connection.execute(insert(operations), rows[start : start + BATCH_SIZE])
    return str(rows[0]["operation_id"])


def operation_rows(size: int) -> list[dict[str, Any]]:
    """Build rows of operations: 5 agents, 4 tenants, one in 100 running; 1.5 kB of state each."""
    chance, now = random.Random(7), time.time()
    statuses = ["done", "error", "interrupted", "max_steps", "running"]
    rows = []
    for number in range(size):
        began, took = now - chance.random() * DAYS * 86_400, chance.lognormvariate(8, 1)
        rows.append(
            {
                "operation_id": f"op_{chance.getrandbits(80):020x}",
                "agent_id": chance.choices(["support", "billing", "research", "triage", "legal"], [40, 20, 20, 15, 5])[
                    0
                ],
                "tenant_id": chance.choice(["acme", "globex", "initech", ""]),
                "user_id": f"user-{chance.randrange(50)}",
                "status": chance.choices(statuses, [90, 6, 2, 1, 1])[0],
                "version": 5,
                "write_id": "w",
                "format": 1,
                "state": b'{"x":"' + b"x" * 1500 + b'"}',
                "steps": chance.randrange(1, 12),
                "llm_calls": 3,
                "tool_calls": chance.randrange(9),
                "total_tokens": int(chance.lognormvariate(8, 1)),
                "cost_usd": chance.lognormvariate(-3, 1),
                "events": 0,
                "prompt": f"{chance.choice(['Refund order', 'Summarize the contract', 'Plan a trip to'])} {number}",
                "duration_ms": took,
                "created_at": began,
                "updated_at": began + took / 1000,
            }
        )
    return rows
