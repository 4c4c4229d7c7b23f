"""A NATS server of a benchmark's own, on a port and in a folder that are gone afterwards."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

__all__ = ["NatsServer"]


class NatsServer:
    """A NATS server, while the context is open.

    Attributes:
        url: Its URL.
    """

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="hookline-nats-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{port}"
        program = Path(sys.executable).with_name("nats-server")
        command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", self._folder]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > ends:
                    raise
                time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
