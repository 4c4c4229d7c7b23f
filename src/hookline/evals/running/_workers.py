"""Run tasks in worker processes: start them, hand out tasks, and go on when one dies.

The processes speak JSON lines. `Request`s go to a worker's standard input, and it answers with `Reply`s. A worker loads
the suites from their names, so that nothing of them is sent.
"""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from hookline._deadlines import runs_on_asyncio
from hookline.errors import HookUsageError
from hookline.evals.cassettes import RecordMode
from hookline.evals.errors import RunWriteError, WorkerError
from hookline.evals.faults import FaultSpec
from hookline.evals.running._results import Mode, TaskKey, TaskResult
from hookline.evals.running._run_files import format_line, parse_line
from hookline.evals.running._tasks import CRASH, TIMEOUT, TaskRun
from hookline.evals.running._time_limits import GRACE
from hookline.evals.trajectories import RecordedOperation
from hookline.runtime import ModelPause

__all__ = ["Reply", "Request", "WorkerPool", "WorkerSetup", "pack", "unpack"]

START = """\
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal; the first one decides
sys.path[:] = json.loads(sys.argv[1])
from hookline.evals.suites import serve_worker
serve_worker()
"""
"""The program of a worker."""

PING = 2.0
"""Seconds that a worker has to answer, if a task has not stopped in time. One that does not is held up by a task."""
LONGEST_LINE = 1 << 30

T = TypeVar("T")


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker.

    Attributes:
        targets: The names or files of the suites.
        mode: Who answers tool calls.
        cassettes: The folder of the cassette files.
        faults: The faults to inject, packed.
        seed: Their seed.
        timeout: Seconds that a task may take.
        backend: The event loop: `"asyncio"` or `"trio"`.
        keep: Operations whose events the worker sends.
        tapes: The folder of the tapes.
        tape_mode: Their record mode.
        allow_repeats: Whether recordings answer calls that are made more often than they were recorded.
        choices: Names of the model and the agent of each `AgentChoice`; empty for the suites' own.
    """

    targets: list[str]
    mode: Mode
    cassettes: str | None
    faults: str = ""
    seed: int
    timeout: float | None
    backend: str = "asyncio"
    keep: int = 0
    choices: list[tuple[str | None, str | None]] = []
    tapes: str | None = None
    tape_mode: RecordMode | None = None
    allow_repeats: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line to a worker: one of its fields is given.

    Attributes:
        run: A task to run.
        pause: A model that its provider limits, and the seconds to wait.
        ping: Whether the worker has to answer with `pong`.
        stop: Whether it has to end.
    """

    run: TaskKey | None = None
    pause: tuple[str, float] | None = None
    ping: bool = False
    stop: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line from a worker.

    Attributes:
        ready: Whether it has loaded the suites.
        failed: The reason for which it could not.
        result: The result of a task.
        recorded: Its events, packed; empty if they are not kept.
        limited: A model that its provider limits, and the seconds to wait.
        pong: Whether this answers a ping.
    """

    ready: bool = False
    failed: str = ""
    result: TaskResult | None = None
    recorded: str = ""
    limited: tuple[str, float] | None = None
    pong: bool = False


def pack(value: object) -> str:
    """Return an object as text for a line between processes.

    Raises:
        Exception: If the object cannot be pickled.
    """
    return base64.b85encode(pickle.dumps(value)).decode()


def unpack(text: str) -> Any:
    """Return the object that another process of this run has packed."""
    return pickle.loads(base64.b85decode(text))


class WorkerPool:
    """Runs tasks in worker processes.

    When a process dies, each of the tasks that it was running is run once more, in a process that runs nothing else.
    One that dies then too has failed by its own fault.

    Args:
        setup: What every worker is told first.
        faults: The faults to inject.
        workers: The number of processes.
        concurrency: The number of tasks that run at the same time, at least one in each process.
        next_key: Returns the next task; `None` if there is none.
        give_back: Takes tasks back that have to run again.
        take: Takes the run of a task.
        fail: Takes a task that has no result: the task, the error, the reason of its end, and how long it took, in
            milliseconds.

    Raises:
        HookUsageError: If the faults cannot be sent to another process.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        *,
        faults: Sequence[FaultSpec],
        workers: int,
        concurrency: int,
        next_key: Callable[[], TaskKey | None],
        give_back: Callable[[list[TaskKey]], object],
        take: Callable[[TaskRun], object],
        fail: Callable[[TaskKey, str, str, float], object],
    ) -> None:
        try:
            packed = pack(list(faults))
        except Exception as error:
            problem = f"These faults cannot be sent to worker processes ({error}); leave `workers` out."
            raise HookUsageError(problem) from error
        self._setup = msgspec.structs.replace(setup, faults=packed)
        self._slots = [max(1, (concurrency + place) // workers) for place in range(workers)]
        self._next_key, self._give_back, self._take, self._fail = next_key, give_back, take, fail
        self._live: list[_Worker] = []
        self._paused = ModelPause()
        self._error: Exception | None = None

    async def run(self) -> None:
        """Run all tasks.

        Raises:
            WorkerError: If a worker cannot load the suites.
            RunWriteError: If a result cannot be written.
        """
        self._setup = msgspec.structs.replace(self._setup, backend="asyncio" if runs_on_asyncio() else "trio")
        async with anyio.create_task_group() as group:

            async def work(slots: int) -> None:
                try:
                    await _Lane(self, slots).run()
                except (WorkerError, RunWriteError) as error:  # alone, and not in the group that a task group makes
                    self._error = self._error or error
                    group.cancel_scope.cancel()

            for slots in self._slots:
                group.start_soon(work, slots)
        if self._error is not None:
            raise self._error

    @asynccontextmanager
    async def start_worker(self) -> AsyncIterator[_Worker]:
        """Start a process, and end it afterwards in any case."""
        command = [sys.executable, "-c", START, json.dumps(sys.path)]
        environment = {"PYTHONHASHSEED": "0", **os.environ}  # sets are in the same order in all processes
        with anyio.CancelScope(shield=True):  # else asyncio would not wait for the end of a process that it has started
            process = await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None, env=environment)
        worker = _Worker(process)
        self._live.append(worker)
        try:
            await worker.send(self._setup)
            reply = await worker.receive()
            if reply is None:
                await worker.end()
                raise WorkerError(f"it {worker.describe_end()} while it loaded them")
            if reply.failed:
                raise WorkerError(reply.failed)
            yield worker
        finally:
            self._live.remove(worker)
            with anyio.CancelScope(shield=True):
                await worker.end()

    async def pause(self, model: str, seconds: float, *, but: _Worker) -> None:
        """Let all other workers wait for a provider that limits one of them."""
        self._paused.extend(model, seconds)
        for worker in list(self._live):
            worker.deadlines = {key: deadline + seconds for key, deadline in worker.deadlines.items()}
            if worker is not but:
                await worker.send(Request(pause=(model, seconds)))


class _Worker:
    """One process.

    Attributes:
        deadlines: The tasks that it runs, and the times at which they have to be over.
        started: The tasks that it was given, and the times at which they were.
        answer_due: The time at which it has to have answered a ping; `None` if there was none.
    """

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.deadlines: dict[TaskKey, float] = {}
        self.started: dict[TaskKey, float] = {}
        self.answer_due: float | None = None
        self._input = process.stdin
        self._output = BufferedByteReceiveStream(process.stdout)

    async def send(self, message: WorkerSetup | Request) -> None:
        """Send a line. One to a process that has died is lost."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self._input.send(format_line(message))

    async def receive(self) -> Reply | None:
        """Return the next line; `None` if the process has died."""
        try:
            line = await self._output.receive_until(b"\n", LONGEST_LINE)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return None
        return parse_line(line, Reply)

    async def end(self) -> None:
        """End the process: ask it to if it runs nothing, or else kill it."""
        if not self.deadlines and self.process.returncode is None:
            await self.send(Request(stop=True))
            with anyio.move_on_after(GRACE):
                await self.process.wait()
        self.kill()
        await self.process.wait()
        await self._input.aclose()
        await self._output.aclose()

    def kill(self) -> None:
        """Kill the process."""
        if self.process.returncode is None:
            self.process.kill()

    def describe_end(self) -> str:
        """Say how the process ended: `was killed by SIGKILL`."""
        code = self.process.returncode
        if code is not None and code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"ended with exit code {code}"


class _Lane:
    """Keeps one process at work, and starts another one when it dies.

    Args:
        pool: The pool.
        slots: The number of tasks that the process runs at the same time.
    """

    def __init__(self, pool: WorkerPool, slots: int) -> None:
        self._pool = pool
        self._slots = slots
        self._suspects: deque[TaskKey] = deque()
        """Tasks that ran when a process died; they run again, one at a time."""
        self._alone: TaskKey | None = None

    async def run(self) -> None:
        """Run tasks until there are no more."""
        first = self._next()
        while first is not None:
            async with self._pool.start_worker() as worker:
                await self._start(worker, first)
                if await self._serve(worker):
                    return
            first = self._next()

    def _next(self) -> TaskKey | None:
        if self._suspects:
            self._alone = self._suspects.popleft()
            return self._alone
        self._alone = None
        return self._pool._next_key()

    async def _start(self, worker: _Worker, key: TaskKey) -> None:
        timeout = self._pool._setup.timeout
        now = anyio.current_time()
        paused = self._pool._paused.seconds_left
        worker.started[key] = now
        worker.deadlines[key] = math.inf if timeout is None else now + paused + timeout + GRACE
        await worker.send(Request(run=key))

    async def _serve(self, worker: _Worker) -> bool:
        """Hand tasks to a process; return whether there are no more, rather than that the process is dead."""
        while True:
            while self._alone not in worker.deadlines and len(worker.deadlines) < self._slots:
                if self._suspects and worker.deadlines:
                    break
                key = self._next()
                if key is None:
                    break
                await self._start(worker, key)
            if not worker.deadlines:
                return True
            due = min(worker.deadlines.values()) if worker.answer_due is None else worker.answer_due
            with anyio.CancelScope(deadline=due) as waiting:
                reply = await worker.receive()
            if waiting.cancelled_caught:
                if await self._is_held_up(worker):
                    self._stop_process(worker)
                    return False
            elif reply is None:
                await self._bury(worker)
                return False
            elif reply.failed:
                raise WorkerError(reply.failed)
            elif reply.limited is not None:
                await self._pool.pause(*reply.limited, but=worker)
            elif reply.result is not None:
                worker.deadlines.pop(reply.result.key, None)
                worker.started.pop(reply.result.key, None)
                recorded: RecordedOperation | None = unpack(reply.recorded) if reply.recorded else None
                self._pool._take(TaskRun(result=reply.result, recorded=recorded))
            elif reply.pong and self._stop_overdue(worker):
                return False

    async def _is_held_up(self, worker: _Worker) -> bool:
        """Whether a process has not answered in time. The first time that a task is overdue, it is asked to answer."""
        if worker.answer_due is not None:
            return True
        if _overdue(worker):  # else the limit of a provider has moved the deadlines
            worker.answer_due = anyio.current_time() + PING
            await worker.send(Request(ping=True))
        return False

    def _stop_process(self, worker: _Worker) -> None:
        """Kill a process that one of its tasks holds up."""
        worker.kill()
        lost = list(worker.deadlines)
        worker.deadlines.clear()
        if lost == [self._alone]:
            why = "it took too long and held up its process, which was killed"
            self._fail(worker, lost[0], why, TIMEOUT)
        else:  # nobody knows which task it is
            self._suspects.extend(lost)

    def _stop_overdue(self, worker: _Worker) -> bool:
        """Kill a process because of the tasks in it that do not stop; return whether there still are any."""
        worker.answer_due = None
        overdue = _overdue(worker)
        if not overdue:
            return False
        worker.kill()
        others = [key for key in worker.deadlines if key not in overdue]
        worker.deadlines.clear()
        self._pool._give_back(others)
        for key in overdue:
            why = (
                f"it took longer than {self._pool._setup.timeout:g} s and did not stop within {GRACE:g} s of being "
                "cancelled, so its process was killed"
            )
            self._fail(worker, key, why, TIMEOUT)
        return True

    async def _bury(self, worker: _Worker) -> None:
        """Decide what becomes of the tasks of a process that has died."""
        await worker.process.wait()
        lost = list(worker.deadlines)
        worker.deadlines.clear()
        if lost == [self._alone]:
            self._fail(worker, lost[0], f"the process that ran it alone {worker.describe_end()}", CRASH)
        else:
            self._suspects.extend(lost)

    def _fail(self, worker: _Worker, key: TaskKey, why: str, reason: str) -> None:
        self._pool._fail(key, why, reason, (anyio.current_time() - worker.started[key]) * 1e3)


def _overdue(worker: _Worker) -> list[TaskKey]:
    """Return the tasks of a process that should be over."""
    now = anyio.current_time()
    return [key for key, deadline in worker.deadlines.items() if deadline <= now]
