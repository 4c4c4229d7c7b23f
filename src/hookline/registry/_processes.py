"""One process per run of a script: fed, listened to, bounded in time and output, and ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import psutil

__all__ = ["Ended", "run_process"]

MARK = "HOOKLINE_SCRIPT_RUN"
"""The variable by which what a script has left behind is found, even if it has left its group and lost its parent."""
TICK = 0.005
"""Seconds between two looks at whether a process has ended: waiting for it would wait for its children's pipes too."""
SETTLING = 2.0
"""Seconds that what is killed has to be gone."""
CLOCK_SLACK = 2.0
"""Seconds by which the start of a process may seem too early: it is counted from a moment that is only estimated."""
CHUNK = 16 * 1024


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        exit_code: What it ended with; `None` if it was killed.
        stdout: What it wrote, up to a byte more than it may.
        stderr: The beginning of what it complained of.
        timed_out: Whether its time was over.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool


async def run_process(
    command: Sequence[str],
    document: bytes,
    *,
    environment: Mapping[str, str],
    timeout: float,
    most_output: int,
    most_complaints: int,
) -> Ended:
    """Run a program in an empty folder of its own and end it, with everything that it has started.

    Args:
        command: The program and its arguments.
        document: What it reads.
        environment: All the variables that it sees.
        timeout: Seconds after which it is ended.
        most_output: Bytes that it may write; with the next one it is ended.
        most_complaints: Bytes of its stderr that are kept.

    Raises:
        OSError: If it cannot be started.
    """
    mark, since = uuid4().hex, time.time() - CLOCK_SLACK
    folder = tempfile.mkdtemp(prefix="hookline-script-")
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={**environment, MARK: mark},
            start_new_session=sys.platform != "win32",  # a group of its own, which can be ended as a whole
        )
        talk = _Talk(process, most_output, most_complaints)
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                await talk.until_ended(document)
        except TimeoutError:
            timed_out = True
        finally:
            stopped = process.returncode is None
            await _to_the_end(_end(process, talk, mark, since))
    finally:
        await _to_the_end(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
    exit_code = None if stopped else process.returncode
    return Ended(exit_code, bytes(talk.stdout), bytes(talk.stderr), timed_out)


class _Talk:
    """What is said to a process and heard from it."""

    def __init__(self, process: asyncio.subprocess.Process, most_output: int, most_complaints: int) -> None:
        self.process = process
        self.stdout, self.stderr = bytearray(), bytearray()
        self.most_output, self.most_complaints = most_output, most_complaints
        self.too_much = False
        self._reading: list[asyncio.Task[None]] = []

    async def until_ended(self, document: bytes) -> None:
        """Say what there is to say, and listen until the process has ended or has said too much."""
        self._reading = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._hear_complaints()),
            asyncio.create_task(self._tell(document)),
        ]
        while self.process.returncode is None and not self.too_much:  # noqa: ASYNC110
            await asyncio.sleep(TICK)

    async def last_words(self) -> None:
        """Hear what is still in the pipes; nobody holds their other ends any more."""
        if self._reading:
            _, late = await asyncio.wait(self._reading, timeout=SETTLING)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)

    async def _tell(self, document: bytes) -> None:
        assert self.process.stdin is not None
        # A script need not read what it is told.
        with contextlib.suppress(OSError):
            self.process.stdin.write(document)
            await self.process.stdin.drain()
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(CHUNK):
            self.stdout += chunk
            if len(self.stdout) > self.most_output:
                del self.stdout[self.most_output + 1 :]
                self.too_much = True
                return

    async def _hear_complaints(self) -> None:
        assert self.process.stderr is not None
        while chunk := await self.process.stderr.read(CHUNK):
            self.stderr += chunk[: max(self.most_complaints - len(self.stderr), 0)]


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for something even where the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _end(process: asyncio.subprocess.Process, talk: _Talk, mark: str, since: float) -> None:
    """End a process and all that it has started, and hear the rest."""
    if process.returncode is None and sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(_kill_all, process.pid, mark, since)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLING):
            while process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(TICK)
    await talk.last_words()
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with contextlib.suppress(OSError):
            transport.close()


def _kill_all(pid: int, mark: str, since: float) -> None:
    """Kill a process and whoever comes from it, until nobody is left who could start another one.

    Args:
        pid: The process.
        mark: What its descendants have in their environment.
        since: When it was started at the earliest.
    """
    deadline = time.monotonic() + SETTLING
    while (victims := _offspring(pid, mark, since)) and time.monotonic() < deadline:
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        # Not `psutil.wait_procs`: it would collect the exit code of our own child, which asyncio waits for.
        for victim in victims:
            while _lives(victim) and time.monotonic() < deadline:
                time.sleep(TICK)


def _offspring(pid: int, mark: str, since: float) -> list[psutil.Process]:
    """The processes that live and come from a run: by their parents, by their session, or by their mark."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        if root.create_time() >= since:
            found = {each.pid: each for each in (root, *root.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.create_time() >= since and (_session(process.pid) == pid or process.environ().get(MARK) == mark):
                found[process.pid] = process
    return [each for each in found.values() if _lives(each)]


def _session(pid: int) -> int | None:
    return os.getsid(pid) if sys.platform != "win32" else None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
