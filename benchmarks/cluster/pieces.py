"""The processes of the cluster: each is started, killed without a warning, and started again."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Piece"]

ROOT = Path(__file__).parents[2]
STARTING = 60.0
"""Seconds that a process may take to say that it is ready."""


class Piece:
    """A process of the cluster.

    Args:
        name: What it is called in the output, such as `worker 1`.
        command: The arguments of the Python interpreter.
        ready: What the process prints once it is ready.
        log: The file that gets what the process prints on stderr.
        environment: Further environment variables.

    Attributes:
        is_ready: Whether the process runs and has said so.
        kills: How often it was killed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        ready: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.is_ready, self.kills = name, False, 0
        self._command, self._ready, self._log = command, ready, log
        self._environment = {**os.environ, **(environment or {})}
        self._process: Process | None = None
        self._output = ""
        self._reading: asyncio.Task[None] | None = None

    @property
    def output(self) -> str:
        """What the process that runs has printed on stdout."""
        return self._output

    async def start(self) -> None:
        """Start the process, and wait until it is ready.

        Raises:
            RuntimeError: If it ended, or said nothing in time.
        """
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *self._command, cwd=ROOT, stdin=DEVNULL, stdout=PIPE, stderr=log, env=self._environment
            )
        self._output = ""
        said = asyncio.Event()
        self._reading = asyncio.create_task(self._read(self._process, said))
        try:
            async with asyncio.timeout(STARTING):
                await said.wait()
        except TimeoutError:
            raise RuntimeError(f"{self.name} did not start within {STARTING:g} s; its log is {self._log}") from None
        if self._process.returncode is not None:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}; its log is {self._log}")
        self.is_ready = True

    async def _read(self, process: Process, said: asyncio.Event) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._output += line.decode()
            if self._ready in line.decode():
                said.set()
        await process.wait()
        said.set()

    async def kill(self) -> None:
        """Kill the process; nothing in it can notice."""
        self.is_ready = False
        self.kills += 1
        await self.stop()

    async def stop(self) -> None:
        """End the process, if it runs."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            await self._reading
        self._process = None
