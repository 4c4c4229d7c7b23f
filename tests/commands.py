"""`hookline` commands as processes of their own, forked from one that has imported what they need.

To start Python and to import a store takes most of the time of most commands. A forked command has an environment, a
folder, signals and standard streams of its own, and ends as Python does, but for taking apart what was imported.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
import termios
import warnings
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from types import TracebackType
from typing import Self

from tests.forks import Fork

__all__ = ["Command", "run_command"]


class Command:
    """`hookline ARGUMENTS` as a process; on leaving it is killed, if it has not ended by itself.

    Args:
        arguments: The arguments of the command line.
        stdin: The file descriptor of its standard input; by default a pipe that `stdin` writes to.
        stdout: That of its standard output; by default a pipe that `stdout` reads.
        stderr: That of its standard error; by default a file, which `communicate` reads.
        terminal: Whether its standard input becomes its controlling terminal, and a warning is an error.
        hears_ctrl_c: Whether it is not started with SIGINT ignored, as a script starts what runs in the background.
        cwd: The folder that it runs in; by default that of this process.
        environment: Its environment variables; by default those of this process.
    """

    def __init__(
        self,
        *arguments: str,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        terminal: bool = False,
        hears_ctrl_c: bool = True,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.args = arguments
        read, write = os.pipe()
        heard, spoken = os.pipe()
        self.stdin, self.stdout, self._said = open(write, "w"), open(heard), tempfile.TemporaryFile("w+")  # noqa: SIM115
        own = (read, spoken, self._said.fileno())
        given = (stdin, stdout, stderr)
        self._process = Fork(
            "hookline",
            _run_hookline,
            *(arguments, terminal, hears_ctrl_c),
            streams=tuple(end if each is None else each for each, end in zip(given, own, strict=True)),
            environment=environment,
            folder=cwd,
        )
        self.pid = self._process.pid
        os.close(read)
        os.close(spoken)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.returncode is None:
            self.kill()
        self.wait()
        self._process.close()
        for file in (self.stdin, self.stdout, self._said):
            file.close()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; `None` while the command runs."""
        return self._process.returncode

    def send_signal(self, number: int) -> None:
        """Send the command a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End the command with SIGKILL."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command has ended, and return its exit code."""
        return self._process.wait(timeout)

    def communicate(self, text: str = "", timeout: float | None = 100) -> tuple[str, str]:
        """Write to the standard input of the command, and wait for its end.

        Returns:
            What is left of its output, and all that it said on stderr.
        """
        if not self.stdin.closed:
            self.stdin.write(text)
            self.stdin.close()
        rest = self.stdout.read()
        self.wait(timeout)
        return rest, self.said()

    def said(self) -> str:
        """Read all that the command said on stderr."""
        self._said.seek(0)
        return self._said.read()


def run_command(
    *arguments: str,
    stdout: int | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> CompletedProcess[str]:
    """Run `hookline ARGUMENTS` in a process of its own, and wait for its end."""
    with Command(*arguments, stdout=stdout, cwd=cwd, environment=environment) as command:
        rest, said = command.communicate()
        return CompletedProcess(arguments, command.wait(), rest, said)


def _run_hookline(arguments: tuple[str, ...], terminal: bool, hears_ctrl_c: bool) -> None:
    """Run the command line in this process."""
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
        warnings.simplefilter("error")
    if not hears_ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.argv = ["hookline", *arguments]
    from hookline.cli import main

    main()
