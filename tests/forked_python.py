"""A Python whose processes are forked from one that has imported what they need.

Some of what is tested starts Python itself: a worker of `hookline eval` imports the client of a provider for 1.5 CPU
seconds, and works for 0.1. Here `sys.executable` is a launcher that hands its arguments, environment, folder and
standard streams to a server, which forks. The launcher ends as the forked process does, which is killed when the
launcher is, and has the launcher as its own `sys.executable`.
"""

from __future__ import annotations

import gc
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from tests.commands import end_process, enter_process
from tests.programs import CONTEXT

__all__ = ["fork_python"]

LAUNCHER = """\
#!{python} -IS
import _socket, marshal, os, signal, sys
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
request = marshal.dumps((sys.argv, dict(os.environ), os.getcwd()))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
server.sendmsg([len(request).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(request)
for number in range(3):
    os.close(number)  # the pipes are those of the forked process alone
code = int.from_bytes(server.recv(4) or b"\x01", "big", signed=True)
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def fork_python(prepare: Callable[[], object]) -> Iterator[str]:
    """Serve forks of a process, and give the path of the executable that asks for them.

    Args:
        prepare: A function of a module that imports in the server what the forked processes need.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address, launcher = f"{folder}/server", Path(folder, "python")
        listener.bind(address)
        listener.listen(100)
        launcher.write_text(LAUNCHER.format(python=sys.executable, address=address))
        launcher.chmod(0o755)
        server = CONTEXT.Process(target=_serve, args=(listener, prepare), daemon=True)
        server.start()
        try:
            yield str(launcher)
        finally:
            server.kill()
            server.join()


def _serve(listener: socket.socket, prepare: Callable[[], object]) -> None:
    """Fork for each launcher that connects, until the process of pytest ends."""
    prepare()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    pytest = parent_process()
    assert pytest is not None
    while pytest.sentinel not in select.select([listener, pytest.sentinel], [], [])[0]:
        launcher, _ = listener.accept()
        if not os.fork():
            listener.close()
            _guard(launcher)
        launcher.close()


def _guard(launcher: socket.socket) -> None:
    """Fork the process that a launcher asks for, and let the two end together."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(launcher, 4, 3)
    with launcher.makefile("rb") as file:
        arguments, environment, folder = marshal.loads(file.read(int.from_bytes(size, "big")))
    process = os.fork()
    if not process:
        launcher.close()
        enter_process(streams, environment, Path(folder))
        for stream in streams:
            os.close(stream)
        end_process(lambda: _run_python(arguments))
    for stream in streams:
        os.close(stream)
    if launcher in select.select([launcher, os.pidfd_open(process)], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    try:
        launcher.send(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
    finally:
        os._exit(0)


def _run_python(arguments: list[str]) -> None:
    """Run a program as `PYTHON [-u] -c PROGRAM …` or `PYTHON [-u] -m MODULE …` does."""
    sys.executable, *rest = arguments
    if rest[0] == "-u":
        del rest[0]
    first = rest.pop(0)
    option, program = first[:2], first[2:] or rest.pop(0)
    sys.argv = [option, *rest]
    sys.path[:0] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif option == "-c":
        main: dict[str, Any] = vars(sys.modules["__main__"])
        exec(compile(program, "<string>", "exec"), main)
    else:
        raise ValueError(f"{option} is not an option that a forked Python knows")
