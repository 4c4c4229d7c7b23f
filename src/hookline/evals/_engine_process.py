"""A process of the contract of engines: it serves one agent, and kills itself at a place that it is told.

`python -m hookline.evals._engine_process ENGINE URL FOLDER LEASE_SECONDS`. In the folder, the file `ledger` gets a
line for whatever happens, and a file `kill-<operation>` has the place at which the process kills itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any, cast

from hookline.calls import ModelCall, ModelResponse, ToolCall, ToolRequest, ToolResult
from hookline.errors import HookUsageError
from hookline.events import EVENTS, AfterToolCall, Event, OnComplete
from hookline.hooks import Hooks
from hookline.runtime import Agent, Engine, tool
from hookline.store import SqlStore, Worker

__all__ = ["AGENT_ID", "Ledger", "open_engine"]

AGENT_ID = "contract"


class Ledger:
    """What happened in all processes of the contract, as lines of JSON in one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ledger"

    def write(self, kind: str, operation_id: str, what: str = "") -> None:
        """Add a line; a single write of a short line is atomic."""
        line = json.dumps({"kind": kind, "op": operation_id, "what": what, "pid": os.getpid(), "time": time()})
        with self.file.open("a") as file:
            file.write(f"{line}\n")

    def read(self, operation_id: str) -> list[dict[str, Any]]:
        """Read the lines of an operation, oldest first."""
        if not self.file.exists():
            return []
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if line["op"] == operation_id]

    def order_kill(self, operation_id: str, place: str) -> None:
        """Have the process that runs an operation kill itself at a place, once."""
        (self.folder / f"kill-{operation_id}").write_text(place)

    def kill_here(self, operation_id: str, place: str) -> None:
        """Kill this process if it was told to die at this place."""
        order = self.folder / f"kill-{operation_id}"
        if not order.exists() or order.read_text() != place:
            return
        order.unlink()
        self.write("killed", operation_id, place)
        os.kill(os.getpid(), signal.SIGKILL)


class ContractModel:
    """A streaming model that asks for a tool, then for one that a person approves, and then ends."""

    name, provider = "contract", "hookline"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def respond(self, call: ModelCall) -> ModelResponse:
        """Answer by the number of results in the conversation."""
        results = sum(message.role == "tool" for message in call.messages)
        self._ledger.kill_here(call.operation_id, "in a stream" if results == 1 else "-")
        requests = {0: ("work", "t1"), 1: ("pay", "t2")}
        if results not in requests:
            return ModelResponse(content="done")
        name, call_id = requests[results]
        return ModelResponse(tool_calls=[ToolRequest(name, {"operation": call.operation_id}, tool_call_id=call_id)])


def make_agent(ledger: Ledger) -> Agent:
    """Make the agent of the contract."""

    @tool(in_thread=False)
    async def work(operation: str) -> str:
        """Work."""
        ledger.write("tool", operation, "work")
        ledger.kill_here(operation, "in a tool")
        return "worked"

    @tool(in_thread=False, needs_approval=True)
    async def pay(operation: str) -> str:
        """Pay."""
        ledger.write("tool", operation, "pay")
        return "paid"

    return Agent(id=AGENT_ID, model=ContractModel(ledger), tools=[work, pay])


def make_hooks(ledger: Ledger) -> list[Hooks]:
    """Make the hooks: they write down what they hear, and kill the process."""
    hooks = Hooks("contract")

    @hooks.around(ToolCall)
    async def judge(call: ToolCall, call_next: Callable[[ToolCall], Any]) -> ToolResult:
        if call.tool_call_id == "t1":
            ledger.kill_here(call.operation_id, "in an around")
        return cast("ToolResult", await call_next(call))

    def listen(kind: str) -> Callable[[Event], None]:
        def write(event: Event) -> None:
            name = getattr(event, "tool_call_id", None) or getattr(event, "step_index", None)
            reason = event.reason if isinstance(event, OnComplete) else ""
            ledger.write(kind, event.operation_id, f"{event.hook_type} {name} {reason}".rstrip())

        return write

    for event_class in EVENTS.values():
        hooks.on(event_class, id="contract.at_once")(listen("heard"))
        hooks.on(event_class, id="contract.committed", heard="committed")(listen("committed"))

    @hooks.on(AfterToolCall)
    def die_after_tool(event: AfterToolCall) -> None:
        if event.tool_call_id == "t1":
            ledger.kill_here(event.operation_id, "after a tool")

    @hooks.on(OnComplete)
    def die_in_pause(event: OnComplete) -> None:
        if event.reason == "waiting_for_human":
            ledger.kill_here(event.operation_id, "in a pause")

    return [hooks]


@asynccontextmanager
async def open_engine(name: str, store: SqlStore) -> AsyncIterator[Engine]:
    """Make the engine that a test names as `module:function`; the function gets the store.

    The function returns the engine, or an async context manager that gives it.
    """
    module, _, function = name.partition(":")
    try:
        made = getattr(import_module(module), function)(store)
    except (ImportError, AttributeError, ValueError) as error:
        raise HookUsageError(f"An engine is named as 'module:function'; {name!r} cannot be loaded: {error}") from error
    manager = made if isinstance(made, AbstractAsyncContextManager) else nullcontext(made)
    async with manager as engine:
        yield engine


async def serve(engine_name: str, url: str, folder: Path, lease_seconds: float) -> None:
    """Serve the agent until the process is killed."""
    ledger = Ledger(folder)
    async with (
        SqlStore(url, lease_seconds=lease_seconds) as store,
        open_engine(engine_name, store) as engine,
        Worker(store, [make_agent(ledger)], hooks=make_hooks(ledger), engine=engine),
    ):
        ledger.write("serving", "")
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])))
