"""The contract that every engine keeps: real processes on a real store, killed where it hurts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, time

import msgspec

from hookline.evals._engine_process import AGENT_ID, Ledger, open_engine
from hookline.evals.adapter_contract import ContractError
from hookline.runtime import Agent, Approve, Engine, ScriptedModel, exec_agent, new_operation_id
from hookline.store import SqlStore

__all__ = ["KILL_PLACES", "Takeover", "check_engine"]

KILL_PLACES = ("in a tool", "after a tool", "in a pause", "in an around", "in a stream")
"""The places at which the contract kills the process of an operation."""

START_SECONDS = 60.0
"""Seconds within which the processes begin to serve, which is not up to the engine."""
TICK = 0.05
"""Seconds between two looks at what other processes do."""


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took until another process went on with an operation.

    Attributes:
        place: The place at which the process was killed.
        seconds: Seconds from the kill, or from the decision of a person after it, until another process went on.
    """

    place: str
    seconds: float


async def check_engine(
    engine: str,
    *,
    url: str,
    folder: Path,
    lease_seconds: float = 1.0,
    places: Sequence[str] = KILL_PLACES,
    within: float = 60.0,
) -> list[Takeover]:
    """Check that an engine runs operations, and goes on with those of processes that are killed.

    Two processes serve an agent with the engine. One operation runs undisturbed; then, for each place, the process that
    runs an operation is killed there. Each operation must reach its end in the other process. No tool may start twice,
    no event may be numbered or heard twice, and no observer with `heard="committed"` may hear two stories of one call.

    Args:
        engine: What makes the engine, as `"module:function"`, since each process makes its own. The function gets the
            `SqlStore`, and returns the engine or an async context manager that gives it.
        url: The address of an empty store that several processes can open.
        folder: A folder for notes of the processes.
        lease_seconds: The lease of these processes.
        places: Some of `KILL_PLACES`.
        within: Seconds within which an operation must end after each kill.

    Returns:
        How long each takeover took.

    Raises:
        ContractError: If the engine breaks the contract.
        HookUsageError: If the engine cannot be made.
    """
    ledger, found = Ledger(folder), []
    async with (
        SqlStore(url, lease_seconds=lease_seconds) as store,
        open_engine(engine, store) as own,
        _serving(engine, url, ledger, lease_seconds) as processes,
    ):
        for place in ("", *places):
            await processes.fill()
            operation_id = new_operation_id()
            if place:
                ledger.order_kill(operation_id, place)
            await _run_to_end(store, own, operation_id, ledger, within)
            await _check_story(store, operation_id, ledger, killed=bool(place))
            if place:
                found.append(Takeover(place=place, seconds=_takeover_seconds(ledger.read(operation_id))))
    return found


class _Processes:
    """The processes that serve the agent; those that were killed are replaced."""

    def __init__(self, arguments: Sequence[str], ledger: Ledger) -> None:
        self._arguments, self._ledger = arguments, ledger
        self._running: list[asyncio.subprocess.Process] = []

    async def fill(self) -> None:
        """Start processes until two serve."""
        self._running = [each for each in self._running if each.returncode is None]
        while len(self._running) < 2:
            self._running.append(
                await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "hookline.evals._engine_process",
                    *self._arguments,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )
            )
        ends = monotonic() + START_SECONDS
        while {each.pid for each in self._running} - {line["pid"] for line in self._ledger.read("")}:
            _check_time(ends, "The processes that serve the agent begin.", START_SECONDS)
            if any(each.returncode is not None for each in self._running):
                raise ContractError("The processes that serve the agent.", "they run", "one has ended")
            await asyncio.sleep(TICK)

    async def stop(self) -> None:
        """Kill all processes."""
        for each in self._running:
            if each.returncode is None:
                each.kill()
            await each.wait()


@asynccontextmanager
async def _serving(engine: str, url: str, ledger: Ledger, lease_seconds: float) -> AsyncIterator[_Processes]:
    processes = _Processes([engine, url, str(ledger.folder), str(lease_seconds)], ledger)
    try:
        yield processes
    finally:
        await processes.stop()


async def _run_to_end(store: SqlStore, engine: Engine, operation_id: str, ledger: Ledger, within: float) -> None:
    """Begin an operation, approve what it asks for, and wait for its end."""
    agent = Agent(id=AGENT_ID, model=ScriptedModel([]))
    ends = monotonic() + within
    try:
        async with asyncio.timeout(within):
            result = await exec_agent(agent, "Go", operation_id=operation_id, store=store, engine=engine)
    except TimeoutError:
        raise ContractError("An operation that was begun.", f"it runs within {within:g} s", "it does not run") from None
    if result.reason != "waiting_for_human":
        raise ContractError("The reason of the first segment.", "'waiting_for_human'", repr(result.reason))
    await store.decide(operation_id, Approve("t2"))
    ledger.write("decided", operation_id)
    await engine.wake(operation_id)
    while (stored := await store.operation(operation_id)) is None or stored.status in ("running", "waiting_for_human"):
        _check_time(ends, "An operation that was decided and woken ends.", within)
        await asyncio.sleep(TICK)
    if stored.status != "done":
        raise ContractError("The reason of the operation.", "'done'", repr(stored.status))


def _check_time(ends: float, what: str, within: float) -> None:
    if monotonic() > ends:
        raise ContractError(what, f"within {within:g} s", "later, or never")


async def _check_story(store: SqlStore, operation_id: str, ledger: Ledger, *, killed: bool) -> None:
    """Check what happened to an operation in all processes."""
    lines = ledger.read(operation_id)
    if killed and not any(line["kind"] == "killed" for line in lines):
        raise ContractError("The kill of a process.", "it happened", "it did not")
    for kind, what in (
        ("tool", "Tools that started twice."),
        ("heard", "Events that a function heard twice."),
        ("committed", "Events that a function with heard='committed' heard twice."),
    ):
        times = Counter(line["what"] for line in lines if line["kind"] == kind)
        if twice := sorted(name for name, count in times.items() if count > 1):
            raise ContractError(what, "[]", repr(twice))
    entries = await store.events_of(operation_id)
    if (numbers := [entry.number for entry in entries]) != list(range(1, len(entries) + 1)):
        raise ContractError("The numbers of the events.", "each number once, in order", repr(numbers))
    committed = [line["what"].split() for line in lines if line["kind"] == "committed"]
    ended = Counter(words[1] for words in committed if words[0] in ("afterToolCall", "onToolCallError"))
    if stories := sorted(name for name, count in ended.items() if count > 1):
        raise ContractError("Calls of which a function with heard='committed' heard two ends.", "[]", repr(stories))


def _takeover_seconds(lines: Sequence[dict[str, object]]) -> float:
    """Return the seconds until another process did something after a kill."""
    kill = next(line for line in lines if line["kind"] == "killed")
    at = lines.index(kill)
    began = float(str(kill["time"]))
    for line in lines[at + 1 :]:
        if line["kind"] == "decided":
            began = float(str(line["time"])) if kill["what"] == "in a pause" else began
        elif line["pid"] != kill["pid"]:
            return float(str(line["time"])) - began
    return time() - began
