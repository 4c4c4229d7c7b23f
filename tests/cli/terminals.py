"""A program in a real pseudo-terminal, which is typed into and looked at as a person does it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.commands import Command

CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""What moves the cursor, sets colours, and tells a terminal how pasted text is to be marked."""

DEADLINE = 100.0
"""Seconds until a text counts as missing: much longer than anything takes."""


class Terminal:
    """`hookline ARGS` in a terminal of its own; on leaving it is ended, if it has not ended by itself."""

    def __init__(self, *args: str, cwd: Path, columns: int = 100, **environment: str) -> None:
        self.raw = b""
        self._seen = 0
        self._own, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        sizes = {"COLUMNS", "LINES", "NO_COLOR"}
        kept = {key: value for key, value in os.environ.items() if key not in sizes}
        self.process = Command(
            *args,
            stdin=child,
            stdout=child,
            stderr=child,
            terminal=True,
            cwd=cwd,
            environment={**kept, "TERM": "xterm-256color", **environment},
        )
        os.close(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.__exit__(kind, error, trace)
        os.close(self._own)

    @property
    def text(self) -> str:
        """All that was shown, without colours."""
        return CODES.sub("", self.raw.decode(errors="replace")).replace("\r\n", "\n")

    def until(self, text: str) -> str:
        """Read until a text is shown.

        Returns:
            What was shown since the last time, that text included.
        """
        end = time.monotonic() + DEADLINE
        while text not in self.text[self._seen :]:
            assert self._read(end - time.monotonic()), f"{text!r} was not shown; this was:\n{self.text[self._seen :]}"
        begin, self._seen = self._seen, self.text.index(text, self._seen) + len(text)
        return self.text[begin : self._seen]

    def type(self, text: str) -> None:
        """Type a line, and wait until it can be seen: what is typed before a program reads it can get lost."""
        self.press(text)
        self.until(text)
        self.press("\r")

    def press(self, keys: str) -> None:
        """Press keys; "\\x03" is Ctrl-C, "\\x04" Ctrl-D."""
        os.write(self._own, keys.encode())

    def say(self, text: str) -> None:
        """Type a line at the prompt."""
        self.until("> ")
        self.type(text)

    def ended(self) -> int:
        """Read until the program has ended; its exit code."""
        end = time.monotonic() + DEADLINE
        while self._read(end - time.monotonic()):
            pass
        if time.monotonic() < end:
            return self.process.wait(timeout=1 + end - time.monotonic())
        self.process.send_signal(signal.SIGUSR1)  # it says what each of its threads does
        while self._read(1.0):
            pass
        raise AssertionError(f"{self.process.args} has not ended:\n{self.text}")

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._own], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            read = os.read(self._own, 65536)
        except OSError:  # what Linux gives where others give nothing: nobody has the terminal open any more
            read = b""
        self.raw += read
        return bool(read)
