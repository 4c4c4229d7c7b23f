"""Have Codex trust the installed hook: it skips a hook that nobody trusted, and says nothing about that.

Codex itself computes the hash that is trusted, and writes it: `codex app-server` is asked over its stdin and stdout.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from hookline.errors import HooklineError

__all__ = ["CodexError", "CodexHook", "list_codex_hooks", "trust_codex_hooks"]

SECONDS = 30.0


class CodexError(HooklineError):
    """Codex could not be asked about its hooks."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"Codex could not be asked to trust the hook: {self.problem}. Until it is trusted, Codex does not run it, "
            "and says nothing. Run `codex` and trust it there, or run `hookline host install codex` again."
        )


class CodexHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook as Codex lists it.

    Attributes:
        key: Codex's name for it.
        command: Its command line.
        source: The file that names it.
        hash: The hash that is to be trusted.
        trusted: Whether Codex runs it.
    """

    key: str
    command: str
    source: str
    hash: str
    trusted: bool


def list_codex_hooks(folder: Path, program: str = "codex") -> list[CodexHook]:
    """List the hooks of Codex in a folder, and whether it trusts them.

    Args:
        folder: The folder of a project.
        program: The program.

    Raises:
        CodexError: If Codex cannot be asked.
    """
    with _open_server(program, folder) as server:
        return _list(server, folder)


def trust_codex_hooks(folder: Path, command_part: str, program: str = "codex") -> list[CodexHook]:
    """Have Codex trust its hooks whose command has some text, and list them as it sees them then.

    Args:
        folder: The folder of a project.
        command_part: A text in the commands of the hooks to trust.
        program: The program.

    Raises:
        CodexError: If Codex cannot be asked, or does not trust them after all.
    """
    with _open_server(program, folder) as server:
        hooks = [each for each in _list(server, folder) if command_part in each.command]
        value = {each.key: {"trusted_hash": each.hash} for each in hooks if not each.trusted}
        if value:
            edit = {"keyPath": "hooks.state", "value": value, "mergeStrategy": "upsert"}
            server.call("config/batchWrite", {"edits": [edit]})
    with _open_server(program, folder) as server:  # another process: what the file says is what counts
        return [each for each in _list(server, folder) if command_part in each.command]


class _Server:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._next, self._kept = process, 0, b""
        self._end = time.monotonic() + SECONDS

    def call(self, method: str, params: dict[str, Any]) -> Any:
        self._next += 1
        self._send({"id": self._next, "method": method, "params": params})
        for line in self._lines():
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if message.get("id") == self._next and "method" not in message:
                if "error" in message:
                    raise CodexError(f"{method} failed: {message['error'].get('message', message['error'])}")
                return message.get("result")
        raise CodexError(f"it ended during {method}")

    def notify(self, method: str) -> None:
        self._send({"method": method})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise CodexError("it ended") from None

    def _lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while True:
            line, found, rest = self._kept.partition(b"\n")
            if found:
                self._kept = rest
                yield line
                continue
            left = self._end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise CodexError(f"it did not answer within {SECONDS:.0f} s")
            part = os.read(out, 65536)
            if not part:
                return
            self._kept += part


@contextmanager
def _open_server(program: str, folder: Path) -> Iterator[_Server]:
    found = shutil.which(program)
    if found is None:
        raise CodexError(f"there is no program {program!r} on the PATH")
    process = subprocess.Popen(
        [found, "app-server"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        server = _Server(process)
        server.call("initialize", {"clientInfo": {"name": "hookline", "title": "hookline", "version": "1"}})
        server.notify("initialized")
        yield server
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _list(server: _Server, folder: Path) -> list[CodexHook]:
    result = server.call("hooks/list", {"cwds": [str(folder)]})
    return [
        CodexHook(
            key=each.get("key", ""),
            command=each.get("command") or "",
            source=each.get("sourcePath") or "",
            hash=each.get("currentHash") or "",
            trusted=each.get("trustStatus") in ("trusted", "managed"),
        )
        for entry in (result or {}).get("data", [])
        for each in entry.get("hooks", [])
    ]
