"""Programs of tests as processes of their own, forked from one that has imported hookline already.

A test may kill a program, stop it or let it race others, as it may do with any process. To start Python and to import a
store takes more time than most of these programs run, so that one process per pytest process does it for all of them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

__all__ = ["CONTEXT", "IMPORTED", "Program", "run_program"]

IMPORTED = [
    *("aiosqlite", "asyncpg", "opentelemetry.sdk.trace"),
    *("hookline.builtin", "hookline.delivery", "hookline.otel", "hookline.registry", "hookline.store"),
]
"""What is imported before the first program is forked."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(IMPORTED)


class Program:
    """A running program."""

    def __init__(self, process: BaseProcess, stdin: Connection, stdout: asyncio.StreamReader) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; `None` while the program runs."""
        return self._process.exitcode

    async def read_line(self) -> str:
        """Read a line that the program writes, without its end; `""` once the program has ended."""
        return (await asyncio.wait_for(self._stdout.readline(), 60)).decode().strip()

    def write_line(self, line: object) -> None:
        """Write a line to the standard input of the program."""
        os.write(self._stdin.fileno(), f"{line}\n".encode())

    def kill(self) -> None:
        """End the program with SIGKILL."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait until the program has ended, and return its exit code."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    async def stop(self) -> None:
        """Kill the program if it still runs, and wait for its end."""
        if self.returncode is None:
            self.kill()
        await self.wait()
        self._stdin.close()
        await self._stdout.read()


@asynccontextmanager
async def run_program(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """Run a module as `python -m module arguments` would, in a process of its own; kill it at the end.

    Args:
        module: The module, such as `"tests.store.child"`.
        arguments: The arguments of its command line.
        environment: The environment variables; by default those of this process.
    """
    stdin, writer = CONTEXT.Pipe(duplex=False)
    reader, stdout = CONTEXT.Pipe(duplex=False)
    given = [str(each) for each in arguments]
    process = CONTEXT.Process(
        target=_run,
        args=(module, given, dict(environment or os.environ), stdin, stdout),
        daemon=True,  # ended with pytest at the latest, if the caller is cancelled while it starts
    )
    await asyncio.to_thread(process.start)  # the first one waits until all is imported
    stdin.close()
    stdout.close()
    stream = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(reader.fileno()), "rb")
    reader.close()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    program = Program(process, writer, stream)
    try:
        yield program
    finally:
        await program.stop()


def _run(module: str, arguments: list[str], environment: dict[str, str], stdin: Connection, stdout: Connection) -> None:
    """Run a module in this process, with the pipes as its standard input and output."""
    os.dup2(stdin.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    stdin.close()
    stdout.close()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
