"""Read lines that a person types, with editing and history where the standard library has them."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence

from hookline.cli._exit_codes import was_terminated

try:
    import readline
except ImportError:  # Windows edits lines by itself
    readline = None  # type: ignore[assignment]

__all__ = ["Keyboard"]

PROMPT = "\001\x1b[1;36m\002> \001\x1b[0m\002"
"""With marks around what takes no room, which line editing counts by."""


class Keyboard:
    """Reads lines from a terminal or a pipe.

    Args:
        words: What the tab key completes at the beginning of a line.
        colours: Whether the prompt has one.

    Attributes:
        is_terminal: Whether a person can be asked.
    """

    def __init__(self, words: Sequence[str] = (), *, colours: bool = False) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._edits = readline is not None and self.is_terminal and sys.stdout.isatty()
        self._prompt = PROMPT if self._edits and colours else "> "
        self._words = words
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        if self._edits:
            readline.set_auto_history(False)  # a "y" is nothing to come back to
            readline.set_completer(self._complete)
            readline.set_completer_delims("")
            readline.parse_and_bind("tab: complete")

    def line(self) -> str:
        """Return the next line that a person says.

        Raises:
            EOFError: If there is no more.
            KeyboardInterrupt: If the person leaves (Ctrl-C where nothing was typed), or SIGTERM ends the program.
        """
        while True:
            try:
                said = self._read(self._prompt)
            except KeyboardInterrupt:
                if self._edits and readline.get_line_buffer() and not was_terminated():
                    continue  # as in a shell, it only drops what was typed
                raise
            if self._edits and said.strip():
                readline.add_history(said)
            return said

    def answer(self, question: str) -> str:
        """Return a person's answer to a question; what was typed before the question is dropped.

        Raises:
            EOFError: If there is nobody.
            KeyboardInterrupt: On Ctrl-C.
        """
        with contextlib.suppress(ImportError, OSError):
            import termios

            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        return self._read(question)

    def _read(self, prompt: str) -> str:
        if self.is_terminal and not sys.stdout.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        if self.is_terminal:
            try:
                return input(prompt)
            except (EOFError, KeyboardInterrupt):
                sys.stdout.write("\n")
                raise
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def _complete(self, text: str, state: int) -> str | None:
        found = [word for word in self._words if text and word.startswith(text)]
        return found[state] if state < len(found) else None
