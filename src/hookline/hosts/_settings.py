"""Name the hook in the settings of a coding agent, and take it out again; entries of others are left as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError
from hookline.hosts._hosts import Host
from hookline.hosts._installation import Installation
from hookline.hosts._jsonc import JsonDocument, JsonSyntaxError

__all__ = ["SettingsError", "add_hook", "find_hook", "remove_hook"]


class SettingsError(HooklineError):
    """The settings of a coding agent cannot be read or changed."""

    def __init__(self, path: str, problem: str, line: int | None = None) -> None:
        super().__init__(path, problem, line)
        self.path, self.problem, self.line = path, problem, line

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}. Nothing was changed."


def add_hook(installation: Installation) -> list[str]:
    """Name the hook for each event, in place of what was there of it; return the events.

    Raises:
        SettingsError: If the file is broken, or cannot be written.
    """
    host, path = installation.find_host(), Path(installation.settings)
    document = _read(path)
    try:
        _remove(document, installation)
        for event in host.installed:
            document.add(_entry(host, installation, event), "hooks", event, None)
        if host.shape in ("list", "bash") and document.find("version") is None:
            document.add(1, "version")
    except JsonSyntaxError as error:
        raise SettingsError(str(path), error.problem, error.line) from None
    _write(path, document.text)
    return list(host.installed)


def remove_hook(installation: Installation) -> bool:
    """Take the hook out of the settings; return whether it was there.

    Raises:
        SettingsError: If the file is broken, or cannot be written.
    """
    path = Path(installation.settings)
    if not path.exists():
        return False
    document = _read(path)
    found = _remove(document, installation)
    if found:
        if document.value in ({}, {"version": 1}) and _is_whole(document.text):
            path.unlink()
        else:
            _write(path, document.text)
    return found


def find_hook(installation: Installation) -> list[str]:
    """Return the events for which the settings name the hook as it is installed now.

    Raises:
        SettingsError: If the file is broken.
    """
    path = Path(installation.settings)
    if not path.exists():
        return []
    document = _read(path)
    return [
        event
        for event, position, nth in _places(document, installation)
        if _command_at(document, event, position, nth) == installation.command(event)
    ]


def _entry(host: Host, installation: Installation, event: str) -> dict[str, Any]:
    """Return what the settings hold for one event, in the host's shape."""
    command = installation.command(event)
    seconds = installation.timeout(event)
    timeout = round(seconds * 1000) if host.milliseconds else round(seconds)
    if host.shape == "list":
        closed = {"failClosed": True} if host.judges(event) else {}
        return {"command": command, "timeout": timeout, **closed}
    if host.shape == "bash":
        return {"type": "command", "bash": command, "timeoutSec": timeout}
    return {"hooks": [{"type": "command", "command": command, "timeout": timeout}]}


def _remove(document: JsonDocument, installation: Installation) -> bool:
    found = False
    for event, position, nth in reversed(list(_places(document, installation))):
        path = ("hooks", event, position)
        handlers = document.find(*path, "hooks")
        if nth is None or len(handlers) == 1:
            document.remove(*path)
        else:
            document.remove(*path, "hooks", nth)
        found = True
    return found


def _places(document: JsonDocument, installation: Installation) -> Iterator[tuple[str, int, int | None]]:
    """Yield where the settings name the hook: the event, the entry, and the handler in it."""
    events = document.find("hooks")
    if not isinstance(events, Mapping):
        return
    for event, entries in events.items():
        for position, entry in enumerate(entries if isinstance(entries, list) else ()):
            if not isinstance(entry, Mapping):
                continue
            handlers = entry.get("hooks")
            if isinstance(handlers, list):
                for nth, handler in enumerate(handlers):
                    if isinstance(handler, Mapping) and _is_own(handler, installation):
                        yield event, position, nth
            elif _is_own(entry, installation):
                yield event, position, None


def _is_own(handler: Mapping[str, Any], installation: Installation) -> bool:
    command = handler.get("command", handler.get("bash"))
    return isinstance(command, str) and str(installation.path) in command and "hook.py" in command


def _command_at(document: JsonDocument, event: str, position: int, nth: int | None) -> Any:
    entry = (
        document.find("hooks", event, position)
        if nth is None
        else document.find("hooks", event, position, "hooks", nth)
    )
    return entry.get("command", entry.get("bash"))


def _read(path: Path) -> JsonDocument:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return JsonDocument(text)
    except JsonSyntaxError as error:
        raise SettingsError(str(path), f"it is no valid JSON: {error.problem}", error.line) from None
    except UnicodeDecodeError:
        raise SettingsError(str(path), "it is no UTF-8 text") from None
    except OSError as error:
        raise SettingsError(str(path), error.strerror or str(error)) from None


def _is_whole(text: str) -> bool:
    """Whether a text has no comment that somebody would miss."""
    return "/" not in text


def _write(path: Path, text: str) -> None:
    """Write a file at once and whole, with the mode that it had; a link goes on leading to its file."""
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        if target.exists():
            unfinished.chmod(target.stat().st_mode & 0o7777)
        unfinished.replace(target)
    except OSError as error:
        raise SettingsError(str(path), error.strerror or str(error)) from None
