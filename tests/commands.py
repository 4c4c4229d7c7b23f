"""`hookline` commands as processes of their own, forked from one that has imported what they need.

To start Python and to import a store takes most of the time of most commands. A forked command has an environment, a
folder, signals and standard streams of its own, and ends as Python does, but for taking apart what was imported.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import io
import os
import signal
import sys
import tempfile
import termios
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess
from types import TracebackType
from typing import NoReturn, Self

from tests.programs import CONTEXT, IMPORTED

__all__ = ["Command", "end_process", "enter_process", "run_command"]

CONTEXT.set_forkserver_preload(
    [
        *IMPORTED,
        *("jinja2", "opentelemetry.exporter.otlp.proto.http.trace_exporter", "rich", "uvicorn", "yaml"),
        *("hookline.cli.chat", "hookline.cli.eval", "hookline.cli.operate", "hookline.cli.trace._span_tree"),
        *("hookline.adapters.mcp", "hookline.evals.suites", "hookline.server"),
    ]
)


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
        streams = [
            Connection(os.dup(end if given is None else given))
            for given, end in zip((stdin, stdout, stderr), own, strict=True)
        ]
        os.close(read)
        os.close(spoken)
        self._process = CONTEXT.Process(
            target=_run_hookline,
            args=(arguments, streams, terminal, hears_ctrl_c, cwd or Path.cwd(), dict(environment or os.environ)),
            daemon=True,  # ended with pytest at the latest
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        for stream in streams:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.returncode is None:
            self.kill()
        self.wait()
        for file in (self.stdin, self.stdout, self._said):
            file.close()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; `None` while the command runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send the command a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End the command with SIGKILL."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command has ended, and return its exit code."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"{self.args} has not ended"
        return self._process.exitcode

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


def _run_hookline(
    arguments: tuple[str, ...],
    streams: list[Connection],
    terminal: bool,
    hears_ctrl_c: bool,
    cwd: Path,
    environment: dict[str, str],
) -> None:
    """Run the command line in this process, and end it."""
    enter_process([stream.fileno() for stream in streams], environment, cwd)
    for stream in streams:
        stream.close()
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
        warnings.simplefilter("error")
    if not hears_ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.argv = ["hookline", *arguments]
    end_process(_hookline)


def _hookline() -> None:
    from hookline.cli import main

    main()


def enter_process(streams: Sequence[int], environment: Mapping[str, str], folder: Path) -> None:
    """Give this process, which was forked, what Python starts with.

    Args:
        streams: The file descriptors of its standard input, output and error.
        environment: Its environment variables.
        folder: The folder that it runs in.
    """
    gc.freeze()  # what is imported is no garbage to look for at the end
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    encoding = environment.get("PYTHONIOENCODING")
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    output = open(1, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        output, encoding, line_buffering=output.isatty(), write_through=unbuffered
    )
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1)


def end_process(run: Callable[[], object]) -> NoReturn:
    """Run a program in this process, and end it as Python does."""
    code: int | str | None = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
