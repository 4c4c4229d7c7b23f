"""A hook that is installed for a coding agent in a project of its own, with its real client and resident process."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hookline.hosts import HOSTS, Installation, Scope, ask_status, install_hook, make_installation, stop_resident
from tests.forks import forking_python

FORKING = Path(__file__).parent / "forking"
"""The folder of what makes a resident process a fork."""
FRAMES = Path(__file__).parent / "frames"
POLICY = Path(__file__).with_name("policy.py").read_text()


class Ran(NamedTuple):
    """What the installed command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out) if self.out else {}


class Installed:
    """An installed hook: `ask` runs its command as the coding agent does."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.host = HOSTS[installation.host]

    def environment(self) -> dict[str, str]:
        """The environment that the coding agent hands over, with keys that nobody must see again."""
        return {**os.environ, "ANTHROPIC_API_KEY": "sk-very-secret", "CLAUDECODE": "1"}

    def start(self, event: str, frame: dict[str, Any] | bytes) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.installation.command(event)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
        )
        assert process.stdin is not None
        process.stdin.write(frame if isinstance(frame, bytes) else json.dumps(frame).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def finish(self, process: subprocess.Popen[bytes]) -> Ran:
        out, err = process.communicate(timeout=60)
        return Ran(process.returncode, out.decode(), err.decode())

    def ask(self, event: str, frame: dict[str, Any] | bytes) -> Ran:
        return self.finish(self.start(event, frame))

    def bash(self, command: str, *, session: str = "s-1", call: str = "", **more: Any) -> Ran:
        """Ask about a call of the shell."""
        event, frame = self.shell(command, session=session, call=call, **more)
        return self.ask(event, frame)

    def shell(self, command: str, *, session: str = "s-1", call: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
        """Return the recorded frame before a call of the shell, with another command."""
        event, frame = next(each for each in frames(self.host.name) if self.host.judges(each[0]))
        key = "toolArgs" if "toolArgs" in frame else "tool_input"
        session_key = next(each for each in ("session_id", "sessionId", "conversation_id") if each in frame)
        call = call or f"call-{command}"
        changes = {key: {**frame[key], "command": command}, session_key: session, **more}
        return event, {**frame, **({"tool_use_id": call} if "tool_use_id" in frame else {}), **changes}

    @property
    def pid(self) -> int:
        status = ask_status(self.installation, 20)
        assert status is not None
        return status.pid

    @property
    def log(self) -> str:
        path = Path(self.installation.sockets) / f"{self.installation.key}.log"
        return path.read_text() if path.exists() else ""


@functools.cache
def frames(host: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the frames that a coding agent was seen, or is documented, to send: events and what stands on stdin."""
    found = [json.loads(line) for line in (FRAMES / f"{host}.jsonl").read_text().splitlines()]
    return tuple(
        (each["event"], each["frame"]) if "frame" in each else (each["hook_event_name"], each) for each in found
    )


@contextmanager
def installed(
    folder: Path, host: str = "claude", policy: str = POLICY, *, forked: bool = True, **options: Any
) -> Iterator[Installed]:
    """Install a policy for a coding agent; its resident process has ended afterwards.

    Args:
        folder: An empty folder, for the project and the settings of the user.
        host: The coding agent.
        policy: The code of the policy.
        forked: Whether the resident process is a fork of one that has imported hookline, which takes longer than all
            that most of them do.
        options: Those of the installation.
    """
    project = folder / f"a project of {host}"
    project.mkdir(parents=True, exist_ok=True)
    (project / "policy.py").write_text(policy)
    changed = ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "HOOKLINE_FORKING_PYTHON", "PYTHONPATH")
    before = {name: os.environ.get(name) for name in changed}
    runtime = tempfile.mkdtemp(prefix="hl-")  # short, as the path of a socket must be
    os.environ["XDG_CONFIG_HOME"], os.environ["XDG_RUNTIME_DIR"] = str(folder / "config"), runtime
    if forked:
        os.environ["HOOKLINE_FORKING_PYTHON"] = forking_python("hookline")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FORKING), before["PYTHONPATH"])))
    given: dict[str, Any] = {"hooks": ["policy.py:hooks"], "environment": ["PYTHONPATH", "XDG_CONFIG_HOME"], **options}
    known = set(sys.modules)
    try:
        made = make_installation(host, scope=Scope.PROJECT, project=project, **given)
        install_hook(made)
        for name in set(sys.modules) - known:
            if name == "policy":
                del sys.modules[name]
        found = Installed(made)
        try:
            yield found
        finally:
            end_resident(made)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(runtime, ignore_errors=True)


def end_resident(made: Installation) -> None:
    """End a resident process, and wait until it has."""
    try:
        status = ask_status(made, 5)
    except TimeoutError:
        return
    if status is None:
        return
    stop_resident(made, 5)
    wait_for_end(status.pid)


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, and kill it if it does not."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if not alive(pid):
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} did not end")


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second, if it ends between opening the file and reading it
        return False
