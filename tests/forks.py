"""Processes of tests that are forked from one that has imported what they need.

To start Python and to import hookline takes more time than most of these processes work. A kind of process has one
server for a run of pytest, which all workers of xdist share. It starts with the first request, runs a function that
imports, and forks. A forked process is killed when the one that asked for it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import io
import marshal
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.temporary import short_folder

__all__ = [
    "Fork",
    "end_servers",
    "fork_python",
    "fork_xdist_workers",
    "forking_python",
    "servers_folder",
    "share_servers",
]

PREPARE = "tests.preloaded:import_{kind}"
KINDS = ("engines", "hookline", "libraries", "models", "pytest")
LAUNCHER = """\
#!{python} -IS
import _socket, marshal, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the forked process
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
arguments = [{executable} or sys.argv[0], *sys.argv[1:]]
request = marshal.dumps(("tests.forks:run_python", (arguments,), dict(os.environ), os.getcwd()))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
server.sendmsg([len(request).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(request)
for number in range(3):
    os.close(number)  # the pipes are those of the forked process alone
server.recv(4)  # its id
code = int.from_bytes(server.recv(4) or b"\\0\\0\\0\\1", "big", signed=True)
if code < 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Fork:
    """A process that is forked from the server of its kind.

    Args:
        kind: The kind, one of `KINDS`.
        run: A function of a module.
        arguments: What it is called with: strings, numbers, and tuples of them.
        streams: The file descriptors of its standard input, output and error.
        environment: Its environment variables; by default those of this process.
        folder: The folder that it runs in; by default that of this process.
    """

    def __init__(
        self,
        kind: str,
        run: Callable[..., object],
        *arguments: object,
        streams: tuple[int, int, int],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._code: int | None = None
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(servers_folder() / kind))
        place = str(folder or Path.cwd())
        request = marshal.dumps(
            (f"{run.__module__}:{run.__qualname__}", arguments, dict(environment or os.environ), place)
        )
        socket.send_fds(self._line, [len(request).to_bytes(4, "big")], streams)
        self._line.sendall(request)
        self.pid = self._receive()

    def fileno(self) -> int:
        """Return the file descriptor that can be read once the process has ended."""
        return self._line.fileno()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; `None` while the process runs."""
        if self._code is None and self._has_ended(0):
            self._code = self._receive()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code."""
        if self._code is None:
            assert self._has_ended(timeout), "the process has not ended"
            self._code = self._receive()
        return self._code

    def kill(self) -> None:
        """End the process with SIGKILL, if it has not ended by itself."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its server is about to say so
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process if it still runs."""
        self._line.close()

    def _has_ended(self, timeout: float | None) -> bool:
        ended = select.poll()
        ended.register(self._line, select.POLLIN)
        return bool(ended.poll(None if timeout is None else timeout * 1000))

    def _receive(self) -> int:
        number = self._line.recv(4)
        assert number, "the server of the forked process has ended"
        return int.from_bytes(number, "big", signed=True)


@functools.cache
def forking_python(kind: str) -> str:
    """Return the path of an executable that asks for a fork, which does what Python does with the same arguments.

    Some of what is tested starts Python itself: a worker of `hookline eval` imports the client of a provider for 1.5 CPU
    seconds, and works for 0.1. The executable hands its arguments, environment, folder and standard streams on, and
    ends as the forked process does, which has it as its own `sys.executable`. The server has imported all by then.
    """
    with contextlib.closing(Fork(kind, os.getpid, streams=(0, 1, 2))) as first:
        first.wait()
    return _write_launcher(f"python-{kind}", kind, executable=None)


@contextlib.contextmanager
def fork_python(kind: str) -> Iterator[None]:
    """Let processes of `sys.executable` be forks until the block ends."""
    before, sys.executable = sys.executable, forking_python(kind)
    try:
        yield
    finally:
        sys.executable = before


def fork_xdist_workers(specs: Iterable[Any]) -> None:
    """Let the workers of xdist be forks of a process that has imported the libraries, which takes longer than all else."""
    launcher = _write_launcher("python-of-xdist", "libraries", executable=sys.executable)
    for spec in specs:
        if spec.popen:
            spec.python = shlex.quote(launcher)


def _write_launcher(name: str, kind: str, *, executable: str | None) -> str:
    path = servers_folder() / name
    if not path.exists():
        unfinished = path.with_name(f"{name}-{os.getpid()}")
        address = str(servers_folder() / kind)
        unfinished.write_text(LAUNCHER.format(python=sys.executable, address=address, executable=repr(executable)))
        unfinished.chmod(0o755)
        unfinished.replace(path)  # all workers of xdist write the same
    return str(path)


class Servers:
    """The servers of a run of pytest.

    Attributes:
        folder: The folder of their sockets.
    """

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="forks-", dir=short_folder())
        self.folder = Path(self._temporary.name)
        alive, self._kept = os.pipe()
        listeners = {kind: socket.socket(socket.AF_UNIX) for kind in KINDS}
        for kind, listener in listeners.items():
            listener.bind(str(self.folder / kind))
            listener.listen(100)
        numbers = {kind: listener.fileno() for kind, listener in listeners.items()}
        program = (
            f"import sys; sys.path = {sys.path}; from tests.forks import start_servers as s; s({numbers}, {alive})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, pass_fds=[alive, *numbers.values()]
        )
        for listener in listeners.values():
            listener.close()
        os.close(alive)

    def end(self) -> None:
        """End the servers once the processes that they have forked have ended."""
        os.close(self._kept)
        self._process.kill()
        self._process.wait()
        self._temporary.cleanup()


_own: list[Servers] = []
_shared: list[Path] = []


def servers_folder() -> Path:
    """Return the folder of the servers, which are started unless this process shares those of another one."""
    if _shared:
        return _shared[0]
    if not _own:
        _own.append(Servers())
    return _own[0].folder


def share_servers(folder: str) -> None:
    """Use the servers of another process from now on."""
    _shared[:] = [Path(folder)]


def end_servers() -> None:
    """End the servers that this process has started."""
    while _own:
        _own.pop().end()


def start_servers(numbers: dict[str, int], alive: int) -> None:
    """Start the server of each kind at its first request, until the process that asked for them ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    listeners = {socket.socket(fileno=number): kind for kind, number in numbers.items()}
    while alive not in (ready := select.select([*listeners, alive], [], [])[0]):
        for listener in ready:
            kind = listeners.pop(listener)
            if not os.fork():
                for other in listeners:
                    other.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _serve(kind, listener, alive)
                os._exit(0)
            listener.close()


def _serve(kind: str, listener: socket.socket, alive: int) -> None:
    """Fork for each request, until the run has ended and all processes have."""
    gc.disable()
    _function(PREPARE.format(kind=kind))()
    gc.enable()
    gc.freeze()
    waiting: list[socket.socket | int] = [listener, alive]
    asked: dict[socket.socket | int, int] = {}
    forked: dict[socket.socket | int, tuple[int, socket.socket]] = {}
    while waiting or forked:
        for ready in select.select([*waiting, *asked, *forked], [], [])[0]:
            if ready is listener:
                line, _ = listener.accept()
                if pid := _fork(line, [*waiting, *asked, *forked]):
                    asked[line] = pid
                    forked[os.pidfd_open(pid)] = pid, line
            elif ready == alive:
                waiting.clear()
            elif ready in asked:  # the one that asked has ended
                os.kill(asked.pop(ready), signal.SIGKILL)
            else:
                pid, line = forked.pop(ready)
                os.close(ready)
                asked.pop(line, None)
                _, status = os.waitpid(pid, 0)
                _send(line, os.waitstatus_to_exitcode(status))
                line.close()


def _fork(line: socket.socket, others: list[socket.socket | int]) -> int | None:
    """Fork the process that is asked for, and return its id; `None` if the one that asked ended meanwhile."""
    try:
        head, streams, _, _ = socket.recv_fds(line, 4, 3)
        with line.makefile("rb") as file:
            run, arguments, environment, folder = marshal.loads(file.read(int.from_bytes(head, "big")))
    except (EOFError, OSError):
        line.close()
        return None
    pid = os.fork()
    if not pid:
        line.close()
        for each in others:
            os.close(each if isinstance(each, int) else each.detach())
        _enter_process(streams, environment, folder)
        _end_process(lambda: _function(run)(*arguments))
    for stream in streams:
        os.close(stream)
    _send(line, pid)
    return pid


def _enter_process(streams: list[int], environment: dict[str, str], folder: str) -> None:
    """Give this process, which was forked, what Python starts with."""
    gc.freeze()  # what is imported is no garbage to look for at the end
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
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


def _end_process(run: Callable[[], object]) -> NoReturn:
    """Run a program in this process, and end it as Python does."""
    code: int | str | None = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _send(line: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the one that asked may have ended
        line.send(number.to_bytes(4, "big", signed=True))


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def run_python(arguments: list[str]) -> None:
    """Run a program as `PYTHON [-P] [-u] -c PROGRAM …`, `… -m MODULE …` or `… FILE …` does."""
    sys.executable, *rest = arguments
    while rest[0] in ("-P", "-u"):
        del rest[0]
    if rest[0].startswith("-m"):
        rest[:1] = ["-m", *filter(None, [rest[0][2:]])]
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    main = sys.modules["__main__"] = ModuleType("__main__")
    match rest:
        case ["-c", program, *_]:
            sys.argv, sys.path[:0] = ["-c", *rest[2:]], ["", *path]
            exec(compile(program, "<string>", "exec"), vars(main))
        case ["-m", module, *_]:
            sys.argv, sys.path[:0] = ["-m", *rest[2:]], ["", *path]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [file, *_] if not file.startswith("-"):
            sys.argv, sys.path[:0] = rest, [str(Path(file).absolute().parent), *path]
            runpy.run_path(file, run_name="__main__")
        case _:
            raise ValueError(f"{rest[0]} is not an option that a forked Python knows")
