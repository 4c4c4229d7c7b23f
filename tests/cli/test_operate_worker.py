"""`hookline worker`: runs operations of a store, drains when it is stopped, and leaves the rest to another one."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hookline import Agent, ScriptedModel, exec_agent
from hookline.engines import DbosEngine, Engine, StoreEngine
from hookline.registry import ExecutionLog, Registry
from hookline.store import SqlStore
from tests.cli.operated import database, run
from tests.commands import Command

pytestmark = pytest.mark.anyio

AGENTS = """
import asyncio
from pathlib import Path

from hookline import Agent, Deny, Hooks, ModelResponse, ScriptedModel, ToolCall, ToolRequest, tool

hooks = Hooks("limits")


@hooks.guard(ToolCall, tool="pay")
def limit(call):
    return Deny("too much") if call.args["amount"] > 100 else None


@tool(in_thread=False)
async def pay(amount: int) -> str:
    return f"paid {amount}"


@tool(in_thread=False)
async def refund(amount: int) -> str:
    return f"refunded {amount}"


@tool(in_thread=False)
async def hold(file: str) -> str:
    print("holding", flush=True)
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    return "held"


def say(call):
    orders = next(each.content for each in call.messages if each.role == "user").split(" then ")
    results = [each.content for each in call.messages if each.role == "tool"]
    if len(results) == len(orders):
        return ModelResponse(content=" ".join(results))
    name, _, value = orders[len(results)].partition(" ")
    args = {"file": value} if name == "hold" else {"amount": int(value)}
    return ModelResponse(tool_calls=[ToolRequest(name, args, tool_call_id=f"c{len(results)}")])


payer = Agent(id="payer", model=ScriptedModel(say), tools=[pay, refund, hold])
"""
NAMESAKE = Agent(id="payer", model=ScriptedModel([]))
"""The agent, as the process knows it that begins operations."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def working(folder: Path, *options: str) -> Iterator[Command]:
    """The command as a process, once it says that it runs operations."""
    (folder / "agents.py").write_text(AGENTS)
    environment = {**os.environ, "HOOKLINE_STORE": database(folder)}
    with Command("worker", "agents.py:payer", *options, cwd=folder, environment=environment) as process:
        assert "hookline runs operations of payer on" in process.stdout.readline()
        yield process


async def begin(store: SqlStore, prompt: str, engine: Engine | None = None, queue: str = "") -> str:
    """Begin an operation, and return its answer when it has ended."""
    engine = StoreEngine(store) if engine is None else engine
    result = await exec_agent(NAMESAKE, prompt, operation_id=prompt, store=store, engine=engine, queue=queue)
    return str(result.output)


async def test_it_runs_operations_with_its_hooks_and_those_of_the_store_and_lets_them_end(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with SqlStore(database(tmp_path)) as store:
        async with Registry(store) as registry:
            definition = {"id": "stop", "name": "stop", "point": "ToolCall.guard", "handler": "deny", "tool": "refund"}
            await registry.create({**definition, "config": {"reason": "Nobody refunds."}})
        with working(tmp_path, "--hooks", "agents.py:hooks") as process:
            assert await begin(store, "pay 7") == "paid 7"
            assert "too much" in await begin(store, "pay 700")
            assert "Nobody refunds." in await begin(store, "refund 7")
            held = asyncio.create_task(begin(store, f"hold {flag}"))
            assert await asyncio.to_thread(process.stdout.readline) == "holding\n"
            process.send_signal(signal.SIGTERM)
            flag.touch()
            assert await held == "held"
            _, problems = await asyncio.to_thread(process.communicate)
        assert (process.returncode, problems) == (0, "")
        rows = (await ExecutionLog(store).logs(None)).items
        denied = {(row.operation_id, row.denied_by) for row in rows}
        assert denied >= {("pay 700", "limits.limit"), ("refund 7", "stop")}


async def test_what_does_not_end_in_time_is_continued_by_another_worker(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with SqlStore(database(tmp_path)) as store:
        with working(tmp_path, "--drain", "0") as process:
            held = asyncio.create_task(begin(store, f"hold {flag}"))
            assert await asyncio.to_thread(process.stdout.readline) == "holding\n"
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        flag.touch()
        with working(tmp_path):
            answer = await held
    assert "held" not in answer  # the tool was cut: it is told so, and not run again


async def test_with_a_lease_it_takes_part_in_changes_of_hooks_in_running_operations(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with SqlStore(database(tmp_path)) as store, Registry(store) as registry:
        definition = {"id": "stop", "name": "stop", "point": "ToolCall.guard", "handler": "deny", "tool": "pay"}
        await registry.create({**definition, "config": {"reason": "Nobody refunds."}})
        with working(tmp_path, "--lease", "60") as process:
            held = asyncio.create_task(begin(store, f"hold {flag} then refund 7"))
            assert await asyncio.to_thread(process.stdout.readline) == "holding\n"
            await asyncio.wait_for(registry.update("stop", {"tool": "refund"}, fence=True), 60)
            flag.touch()
            assert await held == "held Nobody refunds."


QUEUES = """
[hookline]
polling_interval_sec = 0.1

[fast]
polling_interval_sec = 0.1
"""


async def test_it_runs_operations_from_the_queues_of_dbos_and_lets_them_end(tmp_path: Path) -> None:
    flag, dbos = tmp_path / "flag", f"sqlite:///{tmp_path / 'dbos.db'}"
    (tmp_path / "queues.toml").write_text(QUEUES)
    options = ("--dbos", dbos, "--dbos-queues", "queues.toml", "--dbos-name", "payments")
    async with (
        SqlStore(database(tmp_path)) as store,
        DbosEngine(store, dbos, queues={"fast": {}}, application_name="payments") as engine,
    ):
        with working(tmp_path, *options) as process:
            assert await begin(store, "pay 7", engine, "fast") == "paid 7"
            held = asyncio.create_task(begin(store, f"hold {flag}", engine))
            assert await asyncio.to_thread(process.stdout.readline) == "holding\n"
            process.send_signal(signal.SIGTERM)
            flag.touch()
            assert await held == "held"
            await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        assert await workflows(tmp_path / "dbos.db") == [
            ("hookline:pay 7:1.0", "fast", "SUCCESS", "payments"),
            (f"hookline:hold {flag}:1.0", "hookline", "SUCCESS", "payments"),
        ]


async def workflows(file: Path) -> list[tuple[str, ...]]:
    """Return the id, the queue, the status and the application of each workflow, oldest first."""
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute(
            "SELECT workflow_uuid, queue_name, status, application_name FROM workflow_status ORDER BY created_at"
        )
        return rows.fetchall()


def test_a_worker_on_dbos_says_what_is_wrong_and_creates_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dbos_agents.py").write_text(AGENTS)
    (tmp_path / "queues.toml").write_text("[fast\n")
    (tmp_path / "rates.toml").write_text("[fast]\nrate = 3\n")
    for options, problem in (
        (("--dbos-queues", "queues.toml"), "give --dbos URL too"),
        (("--dbos-name", "payments"), "give --dbos URL too"),
        (("--dbos", "mysql://me:secret@host/x"), "'mysql://me:***@host/x'"),
        (("--dbos", "sqlite:///dbos.db", "--dbos-queues", "queues.toml"), "cannot be read from queues.toml"),
        (("--dbos", "sqlite:///dbos.db", "--dbos-queues", "rates.toml"), "no option 'rate'"),
    ):
        refused = run("worker", "dbos_agents.py:payer", *options, url=database(tmp_path))
        assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.stderr

    monkeypatch.setitem(sys.modules, "dbos", None)
    refused = run("worker", "dbos_agents.py:payer", "--dbos", "sqlite:///dbos.db", url=database(tmp_path))
    assert "DbosEngine needs an extra" in refused.stderr
    assert list(tmp_path.glob("*.db*")) == []


async def test_a_worker_that_nobody_has_forked_runs_an_operation(tmp_path: Path) -> None:
    """The others are forked from a process that has imported what they need, and would hide an import that is missing."""
    (tmp_path / "agents.py").write_text(AGENTS)
    async with SqlStore(database(tmp_path)) as store:
        command = [sys.executable, "-c", "from hookline.cli import main; main()", "worker", "agents.py:payer"]
        environment = {**os.environ, "HOOKLINE_STORE": database(tmp_path)}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert b"hookline runs operations of payer on" in await process.stdout.readline()
            assert await begin(store, "pay 7") == "paid 7"
            process.send_signal(signal.SIGTERM)
            _, problems = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert (process.returncode, problems) == (0, b"")
