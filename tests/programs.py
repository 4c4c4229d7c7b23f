"""Programs of tests as processes of their own, forked from one that has imported hookline already.

A test may kill a program, stop it or let it race others, as it may do with any process. To start Python and to import a
store takes more time than most of these programs run, so that one process does it for all of them.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tests.forks import Fork

__all__ = ["Program", "run_program"]


class Program:
    """A running program."""

    def __init__(self, process: Fork, stdin: int, stdout: asyncio.StreamReader) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; `None` while the program runs."""
        return self._process.returncode

    async def read_line(self) -> str:
        """Read a line that the program writes, without its end; `""` once the program has ended."""
        return (await asyncio.wait_for(self._stdout.readline(), 60)).decode().strip()

    def write_line(self, line: object) -> None:
        """Write a line to the standard input of the program."""
        os.write(self._stdin, f"{line}\n".encode())

    def kill(self) -> None:
        """End the program with SIGKILL."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait until the program has ended, and return its exit code."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._process, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process)
        return self._process.wait()

    async def stop(self) -> None:
        """Kill the program if it still runs, and wait for its end."""
        self.kill()
        await self.wait()


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
    stdin, writer = os.pipe()
    reader, stdout = os.pipe()
    given = [str(each) for each in arguments]

    def start() -> Fork:
        return Fork("hookline", _run, module, given, streams=(stdin, stdout, 2), environment=environment)

    starting = asyncio.create_task(asyncio.to_thread(start))  # the first one waits until all is imported
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        (await starting).close()
        os.close(writer)
        os.close(reader)
        raise
    finally:
        os.close(stdin)
        os.close(stdout)
    stream = asyncio.StreamReader()
    pipe = os.fdopen(reader, "rb")
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    program = Program(process, writer, stream)
    try:
        yield program
    finally:
        await program.stop()
        process.close()
        os.close(writer)
        await stream.read()


def _run(module: str, arguments: list[str]) -> None:
    """Run a module in this process."""
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
