"""Arize Phoenix as a process of its own: started, asked, and stopped again whatever happens.

It is a tool of development only (Elastic License 2.0): nothing of it is imported, shipped or changed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
START_SECONDS = 180.0
"""The first start on a cold disk imports 850 MB of packages."""

STOP_SECONDS = 30.0
LOG_LINES = 30

OFFLINE = {
    "PHOENIX_HOST": HOST,
    "PHOENIX_SQL_DATABASE_URL": "sqlite:///:memory:",
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_AGENTS_DISABLE_BASH": "true",
    "PHOENIX_AGENTS_DISABLE_GITHUB": "true",
    "PHOENIX_AGENTS_DISABLE_WEB_ACCESS": "true",
}
"""It listens on this machine only, keeps everything in memory, and talks to nobody."""


class PhoenixError(Exception):
    """Phoenix did not start, or did not stop."""


class Phoenix:
    """A running Phoenix; a context manager.

    Args:
        command: Its `phoenix`.
        directory: An empty directory, for its files and its log.
    """

    def __init__(self, command: Path, directory: Path) -> None:
        self._command = command
        self._directory = directory
        self._log = directory / "phoenix.log"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        port, grpc_port = free_ports(2)
        self.url = f"http://{HOST}:{port}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PHOENIX_", "OTEL_"))}
        ports = {"PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(grpc_port)}
        own = {**OFFLINE, **ports, "PHOENIX_WORKING_DIR": str(self._directory)}
        with self._log.open("wb") as log:
            # A session of its own: a Ctrl-C in the terminal is for us, and we tell it once.
            self._process = subprocess.Popen(
                [self._command, "serve"],
                cwd=self._directory,
                env={**inherited, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_healthy(time.monotonic() + START_SECONDS)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise PhoenixError(f"Phoenix had ended by itself, with {self._process.returncode}.\n{self._tail()}")
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            raise PhoenixError(f"Phoenix was still running {STOP_SECONDS:g} s after SIGINT.\n{self._tail()}") from None

    def get(self, path: str) -> Any:
        """What its REST API answers."""
        with self._open(f"{self.url}{path}", timeout=30) as response:
            return json.load(response)

    def spans(self, project: str, wanted: int, seconds: float) -> list[dict[str, Any]]:
        """The spans of a project, once there are so many or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            found = self._all(f"/v1/projects/{project}/spans")
            if len(found) >= wanted or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def traces_of_session(self, project: str, session: str) -> list[str]:
        """The traces that belong to one conversation."""
        for found in self._all(f"/v1/projects/{project}/sessions"):
            if found["session_id"] == session:
                return [trace["trace_id"] for trace in found["traces"]]
        return []

    def _all(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            try:
                page = self.get(f"{path}?limit=100{cursor}")
            except urllib.error.HTTPError as error:
                if error.code == 404:  # the project is made with its first span
                    return found
                raise
            found += page["data"]
            if not page.get("next_cursor"):
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def _wait_until_healthy(self, deadline: float) -> None:
        assert self._process is not None
        while True:
            if self._process.poll() is not None:
                raise PhoenixError(f"Phoenix ended with {self._process.returncode} at its start.\n{self._tail()}")
            try:
                with self._open(f"{self.url}/healthz", timeout=5):
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise PhoenixError(f"Phoenix was not up after {START_SECONDS:g} s.\n{self._tail()}") from None
            time.sleep(0.2)

    def _kill(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(["Its last words:", *(f"  | {line}" for line in lines[-LOG_LINES:])])


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
