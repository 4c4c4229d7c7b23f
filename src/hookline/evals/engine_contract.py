"""The contract that every engine keeps: real processes on a real store, killed where it hurts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from time import monotonic, time
from typing import Any, Self, TypeVar

import msgspec

from hookline.bus import MemoryBus, remote
from hookline.errors import HookUsageError, OperationError
from hookline.evals._engine_process import (
    AGENT_ID,
    OBSERVERS,
    Ledger,
    describe_event,
    open_bus,
    open_engine,
    relay_to_observers,
)
from hookline.evals.adapter_contract import ContractError
from hookline.events import decode
from hookline.runtime import Agent, Approve, Engine, JournalEntry, ScriptedModel, exec_agent, new_operation_id
from hookline.store import LIVE, SqlStore

__all__ = ["KILL_PLACES", "EngineTrial", "KillOutcome", "check_engine"]

T = TypeVar("T", int, str)

KILL_PLACES = ("in a tool", "after a tool", "in a pause", "in an around", "in a stream")
"""The places at which the contract kills the process of an operation."""

START_SECONDS = 60.0
"""Seconds within which the processes begin to serve, which is not up to the engine."""
TICK = 0.05
"""Seconds between two looks at what other processes do."""
END_EVENTS = ("afterToolCall", "onToolCallError")
SIGNS_OF_A_RUN = ("tool", "heard", "committed")
"""Kinds of lines of the ledger that only the process writes that runs the operation."""


class KillOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an operation whose process was killed.

    Attributes:
        place: The place at which the process was killed; `""` if it was not.
        problem: Why the operation did not reach its end; `""` if it did. With a problem, it is not counted what remote
            observers heard.
        seconds: Seconds from the kill, or from the decision of a person after it, until another process went on; 0
            without a kill.
        tools_started_twice: Names of tools that started more than once.
        heard_twice: Events that a function heard more than once.
        contradictions: Calls of which the journal has two ends, or a function with `heard="committed"` heard two.
        lost: Numbers of events that the journal lacks.
        repeated: Numbers of events that the journal has more than once.
        observers_lost: Numbers of events of the journal that remote observers did not hear.
        observers_repeated: Numbers under which remote observers heard another event than that of the journal. The same
            event under the same number is a repetition that an observer knows by its id, and is not one of them.
        observers_disordered: Numbers of events that remote observers heard after a later one.
    """

    place: str
    problem: str = ""
    seconds: float = 0.0
    tools_started_twice: list[str] = []
    heard_twice: list[str] = []
    contradictions: list[str] = []
    lost: list[int] = []
    repeated: list[int] = []
    observers_lost: list[int] = []
    observers_repeated: list[int] = []
    observers_disordered: list[int] = []

    def check(self) -> None:
        """Check that the operation has ended, and that nothing was lost, repeated, or told in two ways.

        Raises:
            ContractError: For the first fault.
        """
        for found, what in (
            (self.tools_started_twice, "Tools that started twice."),
            (self.heard_twice, "Events that a function heard twice."),
            (self.problem, "What kept the operation from its end."),
            (self.lost, "Numbers of events that the journal lacks."),
            (self.repeated, "Numbers of events that the journal has twice."),
            (self.contradictions, "Calls of which the journal or heard='committed' has two ends."),
            (self.observers_repeated, "Numbers under which remote observers heard another event."),
            (self.observers_disordered, "Numbers of events that remote observers heard too late."),
            (self.observers_lost, "Numbers of events that remote observers did not hear."),
        ):
            if found:
                raise ContractError(what, "nothing", found if isinstance(found, str) else repr(found))


async def check_engine(
    engine: str,
    *,
    url: str,
    folder: Path,
    bus: str | None = None,
    lease_seconds: float = 1.0,
    places: Sequence[str] = KILL_PLACES,
    within: float = 60.0,
) -> list[KillOutcome]:
    """Check that an engine runs operations, and goes on with those of processes that are killed.

    Two processes serve an agent with the engine. One operation runs undisturbed; then, for each place, the process that
    runs an operation is killed there. Each operation must reach its end in the other process. No tool may start twice,
    no event may be numbered or heard twice, and no observer with `heard="committed"` may hear two stories of one call.
    A remote observer must hear each event of the journal once, in order, apart from repetitions that it knows by their
    ids.

    Args:
        engine: What makes the engine, as `"module:function"`, since each process makes its own. The function gets the
            `SqlStore`, and returns the engine or an async context manager that gives it.
        url: The address of an empty store that several processes can open.
        folder: A folder for notes of the processes.
        bus: What makes the bus of the remote observer, as `"module:function"`, since each process makes its own: the
            processes that are killed are also those that relay and hear. The function gets nothing, and returns the bus
            or an async context manager that gives it. `None` for a bus in memory, on which this process relays and
            hears.
        lease_seconds: The lease of these processes, and of their relays.
        places: Some of `KILL_PLACES`.
        within: Seconds within which an operation must end after each kill, and then be heard to its end.

    Returns:
        What each kill led to, in the order of `places`.

    Raises:
        ContractError: If the engine breaks the contract.
        HookUsageError: If the engine or the bus cannot be made.
    """
    outcomes = []
    async with EngineTrial(
        engine, url=url, folder=folder, bus=bus, lease_seconds=lease_seconds, within=within
    ) as trial:
        for place in ("", *places):
            outcome = await trial.run(place)
            outcome.check()
            if place:
                outcomes.append(outcome)
    return outcomes


class EngineTrial:
    """Processes that serve an agent with an engine, which are killed and replaced; use it with `async with`.

    `check_engine` is for tests; a trial counts all faults instead of ending at the first one.

    Args:
        engine: As of `check_engine`.
        url: As of `check_engine`.
        folder: As of `check_engine`.
        bus: As of `check_engine`.
        lease_seconds: As of `check_engine`.
        within: As of `check_engine`.
    """

    def __init__(
        self,
        engine: str,
        *,
        url: str,
        folder: Path,
        bus: str | None = None,
        lease_seconds: float = 1.0,
        within: float = 60.0,
    ) -> None:
        self._engine_name, self._bus_name = engine, bus
        self._url, self._lease_seconds, self._within = url, lease_seconds, within
        self._ledger = Ledger(folder, "trial")
        self._stack = AsyncExitStack()
        self._store: SqlStore
        self._engine: Engine
        self._processes: _Processes

    async def __aenter__(self) -> Self:
        """Open the store, and start the processes.

        Raises:
            HookUsageError: If the engine or the bus cannot be made.
        """
        async with AsyncExitStack() as stack:
            self._store = await stack.enter_async_context(SqlStore(self._url, lease_seconds=self._lease_seconds))
            self._engine = await stack.enter_async_context(open_engine(self._engine_name, self._store))
            if self._bus_name is None:
                relaying = relay_to_observers(self._store, MemoryBus(), self._ledger, self._lease_seconds)
                await stack.enter_async_context(relaying)
            else:
                async with open_bus(self._bus_name):
                    pass  # what is wrong with it is an error here, and not in another process
            arguments = [self._engine_name, self._url, str(self._ledger.folder), str(self._lease_seconds)]
            self._processes = await stack.enter_async_context(
                _serving([*arguments, self._bus_name or ""], self._ledger)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Kill the processes."""
        await self._stack.aclose()

    async def run(self, place: str = "") -> KillOutcome:
        """Run an operation to its end, and kill the process that runs it.

        Args:
            place: One of `KILL_PLACES`; `""` for no kill.

        Returns:
            What happened to the operation, with all faults.

        Raises:
            ContractError: If the processes do not start.
            HookUsageError: If there is no such place.
        """
        if place not in ("", *KILL_PLACES):
            raise HookUsageError(f"There is no place {place!r:.100} for a kill; there are {', '.join(KILL_PLACES)}.")
        await self._processes.fill()
        operation_id = new_operation_id()
        if place:
            self._ledger.order_kill(operation_id, place)
        problem = await self._run_to_end(operation_id)
        journal = await self._store.events_of(operation_id)
        if not problem:
            await self._wait_for_observers(operation_id, journal)
        lines = self._ledger.read(operation_id)
        if place and not problem and not any(line["kind"] == "killed" for line in lines):
            problem = "the process was not killed"
        return _judge(place, problem, lines, journal)

    async def _run_to_end(self, operation_id: str) -> str:
        """Begin an operation, approve what it asks for, and wait for its end.

        Returns:
            Why it does not end well; `""` if it does.
        """
        store, ends = self._store, monotonic() + self._within
        try:
            async with asyncio.timeout(self._within):
                status = await self._begin(operation_id)
        except TimeoutError:
            return f"it was begun, and does not run within {self._within:g} s"
        except OperationError as error:
            return f"it was begun, and its caller gets {type(error).__name__}: {error}"
        if status != "waiting_for_human":
            return f"its first segment has the reason {status!r}, not 'waiting_for_human'"
        await store.decide(operation_id, Approve("t2"))
        self._ledger.write("decided", operation_id)
        await self._engine.wake(operation_id)
        while (stored := await store.operation(operation_id)) is None or stored.status in LIVE:
            if monotonic() > ends:
                return f"it was decided and woken, and does not end within {self._within:g} s"
            await asyncio.sleep(TICK)
        return "" if stored.status == "done" else f"it has ended with the reason {stored.status!r}, not 'done'"

    async def _begin(self, operation_id: str) -> str:
        """Begin an operation, and return its status when it does not run any more.

        A process that is killed when it has just stored a pause wakes nobody, and who waits for the operation notices
        it some seconds later. So this looks into the store itself.
        """
        agent, observers = Agent(id=AGENT_ID, model=ScriptedModel([])), [remote(OBSERVERS, observes=True)]
        caller = asyncio.create_task(
            exec_agent(agent, "Go", operation_id=operation_id, store=self._store, engine=self._engine, hooks=observers)
        )
        try:
            while (stored := await self._store.operation(operation_id)) is None or stored.status == "running":
                if caller.done():
                    return caller.result().reason
                await asyncio.sleep(TICK)
        finally:
            caller.cancel()
            await asyncio.wait([caller])
        return stored.status

    async def _wait_for_observers(self, operation_id: str, journal: Sequence[JournalEntry]) -> None:
        """Wait until remote observers have heard all of a journal, or the time is over."""
        ends, missing = monotonic() + self._within, {entry.number for entry in journal}
        while missing and monotonic() < ends:
            await asyncio.sleep(TICK)
            missing -= {number for number, _ in _find_observed(self._ledger.read(operation_id))}


class _Processes:
    """The processes that serve the agent; those that were killed are replaced."""

    def __init__(self, arguments: Sequence[str], ledger: Ledger) -> None:
        self._arguments, self._ledger = arguments, ledger
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._names = map(str, count(1))

    async def fill(self) -> None:
        """Start processes until two serve."""
        self._running = {name: each for name, each in self._running.items() if each.returncode is None}
        while len(self._running) < 2:
            name = next(self._names)
            self._running[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "hookline.evals._engine_process",
                name,
                *self._arguments,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        ends = monotonic() + START_SECONDS
        while set(self._running) - {line["process"] for line in self._ledger.read("")}:
            if monotonic() > ends:
                raise ContractError(
                    "The processes that serve the agent.", f"they begin within {START_SECONDS:g} s", "no"
                )
            if any(each.returncode is not None for each in self._running.values()):
                raise ContractError("The processes that serve the agent.", "they run", "one has ended")
            await asyncio.sleep(TICK)

    async def stop(self) -> None:
        """Kill all processes."""
        for each in self._running.values():
            if each.returncode is None:
                each.kill()
            await each.wait()


@asynccontextmanager
async def _serving(arguments: Sequence[str], ledger: Ledger) -> AsyncIterator[_Processes]:
    processes = _Processes(arguments, ledger)
    try:
        yield processes
    finally:
        await processes.stop()


def _judge(place: str, problem: str, lines: Sequence[dict[str, Any]], journal: Sequence[JournalEntry]) -> KillOutcome:
    """Find out what happened to an operation in all processes."""
    texts = {kind: [line["what"] for line in lines if line["kind"] == kind] for kind in SIGNS_OF_A_RUN}
    numbers = [entry.number for entry in journal]
    stories = {entry.number: describe_event(decode(entry.wire)) for entry in journal}
    observed = [] if problem else _find_observed(lines)
    first_heard = list(dict.fromkeys(number for number, _ in observed))
    return KillOutcome(
        place=place,
        problem=problem,
        seconds=_takeover_seconds(lines),
        tools_started_twice=_find_repeated(texts["tool"]),
        heard_twice=[*_find_repeated(texts["heard"]), *_find_repeated(texts["committed"])],
        contradictions=sorted({*_find_ended_twice(texts["committed"]), *_find_ended_twice(stories.values())}),
        lost=sorted(set(range(1, max(numbers, default=0) + 1)) - set(numbers)),
        repeated=_find_repeated(numbers),
        observers_lost=[] if problem else sorted(set(numbers) - set(first_heard)),
        observers_repeated=sorted({number for number, text in observed if stories.get(number) != text}),
        observers_disordered=[each for nth, each in enumerate(first_heard) if each < max(first_heard[: nth + 1])],
    )


def _find_ended_twice(texts: Iterable[str]) -> list[str]:
    """Return the calls of tools of which events tell two ends."""
    return _find_repeated(words[1] for words in map(str.split, texts) if words[0] in END_EVENTS)


def _find_observed(lines: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return the numbers and the events that remote observers heard, in order, with repetitions."""
    words = [line["what"].partition(" ") for line in lines if line["kind"] == "observed"]
    return [(int(number), text) for number, _, text in words]


def _find_repeated(found: Iterable[T]) -> list[T]:
    return sorted(each for each, count in Counter(found).items() if count > 1)


def _takeover_seconds(lines: Sequence[dict[str, Any]]) -> float:
    """Return the seconds until another process ran the operation after a kill; 0 without a kill."""
    kill = next((line for line in lines if line["kind"] == "killed"), None)
    if kill is None:
        return 0.0
    began = float(kill["time"])
    for line in lines[lines.index(kill) + 1 :]:
        if line["kind"] == "decided":
            began = float(line["time"]) if kill["what"] == "in a pause" else began
        elif line["kind"] in SIGNS_OF_A_RUN and line["process"] != kill["process"]:
            return float(line["time"]) - began
    return time() - began
