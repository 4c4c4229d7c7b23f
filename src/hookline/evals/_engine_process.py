"""A process of the contract of engines: it serves one agent, and kills itself at a place that it is told.

`python -m hookline.evals._engine_process PROCESS ENGINE URL FOLDER LEASE_SECONDS BUS`. In the folder, the file `ledger`
gets a line for whatever happens, which names PROCESS, and a file `kill-<operation>` has the place at which the process
kills itself. With a bus, the process also relays events, and hears those of all processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any, cast

from hookline.bus import Bus, heard_event_id, serve
from hookline.calls import ModelCall, ModelResponse, ToolCall, ToolRequest, ToolResult
from hookline.errors import HookUsageError
from hookline.events import EVENTS, AfterToolCall, Event, OnComplete
from hookline.hooks import Hooks
from hookline.relay import Relay
from hookline.runtime import Agent, Engine, tool
from hookline.store import SqlStore, Worker

__all__ = ["AGENT_ID", "OBSERVERS", "Ledger", "describe_event", "open_bus", "open_engine", "relay_to_observers"]

AGENT_ID = "contract"
OBSERVERS = "contract-observers"
"""The name under which remote observers are served."""


class Ledger:
    """What happened in all processes of the contract, as lines of JSON in one file.

    Args:
        folder: The folder of the file.
        process: The name of the process that writes.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self.folder, self.process = folder, process
        self.file = folder / "ledger"

    def write(self, kind: str, operation_id: str, what: str = "") -> None:
        """Add a line; a single write of a short line is atomic."""
        line = json.dumps({"kind": kind, "op": operation_id, "what": what, "process": self.process, "time": time()})
        with self.file.open("a") as file:
            file.write(f"{line}\n")

    def read(self, operation_id: str) -> list[dict[str, Any]]:
        """Read the lines of an operation, oldest first."""
        if not self.file.exists():
            return []
        of_operation = f'"op": {json.dumps(operation_id)},'  # decoding each line takes a while in a long file
        return [json.loads(line) for line in self.file.read_text().splitlines() if of_operation in line]

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


def describe_event(event: Event) -> str:
    """Return a text that no two events of an operation of the contract share."""
    name = getattr(event, "tool_call_id", None) or getattr(event, "step_index", None)
    reason = event.reason if isinstance(event, OnComplete) else ""
    return f"{event.hook_type} {name} {reason}".rstrip()


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
        return lambda event: ledger.write(kind, event.operation_id, describe_event(event))

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


def make_observers(ledger: Ledger) -> Hooks:
    """Make the remote observers: they write down what they hear, and its number."""
    hooks = Hooks(OBSERVERS)

    def write(event: Event) -> None:
        number = heard_event_id().rpartition(":")[2]
        ledger.write("observed", event.operation_id, f"{number} {describe_event(event)}")

    for event_class in EVENTS.values():
        hooks.on(event_class, id=f"{OBSERVERS}.write")(write)
    return hooks


@asynccontextmanager
async def relay_to_observers(store: SqlStore, bus: Bus, ledger: Ledger, lease_seconds: float) -> AsyncIterator[None]:
    """Relay the events of a store, and hear them, while the context is open."""
    async with serve(bus, make_observers(ledger)), Relay(store, bus, lease_seconds=lease_seconds):
        yield


@asynccontextmanager
async def open_engine(name: str, store: SqlStore) -> AsyncIterator[Engine]:
    """Make the engine that a test names as `module:function`; the function gets the store.

    The function returns the engine, or an async context manager that gives it.

    Raises:
        HookUsageError: If it cannot be made.
    """
    async with _as_context(_make("An engine", name, store)) as engine:
        yield engine


@asynccontextmanager
async def open_bus(name: str) -> AsyncIterator[Bus]:
    """Make the bus that a test names as `module:function`.

    The function returns the bus, or an async context manager that gives it; a bus that is one is opened.

    Raises:
        HookUsageError: If it cannot be made.
    """
    async with _as_context(_make("A bus", name)) as bus:
        if not isinstance(bus, Bus):
            raise HookUsageError(f"{name!r} must make a bus, such as a NatsBus; it makes {type(bus).__name__}.")
        yield bus


def _make(what: str, name: str, *arguments: object) -> Any:
    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)(*arguments)
    except (ImportError, AttributeError, ValueError) as error:
        raise HookUsageError(f"{what} is named as 'module:function'; {name!r} cannot be loaded: {error}") from error


def _as_context(made: Any) -> AbstractAsyncContextManager[Any]:
    return made if isinstance(made, AbstractAsyncContextManager) else nullcontext(made)


async def serve_agent(ledger: Ledger, engine_name: str, url: str, lease_seconds: float, bus_name: str) -> None:
    """Serve the agent until the process is killed."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(SqlStore(url, lease_seconds=lease_seconds))
        if bus_name:
            bus = await stack.enter_async_context(open_bus(bus_name))
            await stack.enter_async_context(relay_to_observers(store, bus, ledger, lease_seconds))
        engine = await stack.enter_async_context(open_engine(engine_name, store))
        await stack.enter_async_context(Worker(store, [make_agent(ledger)], hooks=make_hooks(ledger), engine=engine))
        ledger.write("serving", "")
        await asyncio.sleep(3600)


if __name__ == "__main__":
    _, name, engine, address, notes, lease, bus_name = sys.argv
    asyncio.run(serve_agent(Ledger(Path(notes), name), engine, address, float(lease), bus_name))
