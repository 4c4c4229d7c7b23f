"""What a user says about an MCP server, checked before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from hookline._checks import shown
from hookline.errors import AgentDefinitionError

__all__ = ["Settings", "checked_settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is and how long it may take. Its `repr` shows nothing that may be secret.

    Attributes:
        name: The server's name, the `identifier` of its tools.
        command: The executable and its arguments; empty for a server that is reached by `url`.
        env: Environment variables beyond those that every server gets.
        cwd: The server's working directory; ours unless given.
        url: The endpoint of a server that runs elsewhere.
        headers: Sent with every request to `url`.
        timeout: Seconds that a call may take.
        start_timeout: Seconds from the start to the list of tools.
        stop_timeout: Seconds that a process may take to end by itself once nobody needs it.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    timeout: float = 60.0
    start_timeout: float = 30.0
    stop_timeout: float = 2.0

    @property
    def place(self) -> str:
        """Where the server is: its executable, or scheme and host. Arguments and paths may hold tokens."""
        if not self.url:
            return self.command[0]
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{host_of(parts)}"

    def __repr__(self) -> str:
        return f"{self.name!r}, {'url' if self.url else 'command'}={self.place!r}"


def host_of(parts: SplitResult) -> str:
    """Host and port, without a user and a password."""
    return parts.netloc.rpartition("@")[2]


def checked_settings(
    name: object,
    *,
    command: object,
    args: object,
    env: object,
    cwd: object,
    url: object,
    headers: object,
    timeouts: Mapping[str, object],
) -> Settings:
    """The settings of one server.

    Raises:
        AgentDefinitionError: If they cannot work. It names what is wrong, never a value of `env` or `headers`.
    """
    if not isinstance(name, str) or not name:
        raise AgentDefinitionError("MCP server", f"its name is a non-empty string; got {shown(name)}")
    where = f"MCP server {name!r}"
    if (command is None) == (url is None):
        raise AgentDefinitionError(where, "give either `command`, for a process to start, or `url`")
    for title, seconds in timeouts.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise AgentDefinitionError(where, f"`{title}` is a positive number of seconds; got {shown(seconds)}")
    if url is not None:
        _only(where, "url", {"args": args, "env": env, "cwd": cwd})
        return Settings(name=name, url=_url(where, url), headers=_texts(where, "headers", headers), **timeouts)  # type: ignore[arg-type]
    _only(where, "command", {"headers": headers})
    return Settings(
        name=name,
        command=_command(where, command, args),
        env=_texts(where, "env", env),
        cwd=None if cwd is None else _folder(where, cwd),
        **timeouts,  # type: ignore[arg-type]
    )


def _only(where: str, given: str, others: Mapping[str, object]) -> None:
    for title, value in others.items():
        if value not in (None, (), [], {}):
            raise AgentDefinitionError(where, f"`{title}` says nothing about a server that is given by `{given}`")


def _url(where: str, url: object) -> str:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url  # type: ignore[return-value]
    except ValueError:  # a port that is no number, a host in half of its brackets
        pass
    raise AgentDefinitionError(where, "`url` is the address of its endpoint, such as 'https://example.com/mcp'")


def _command(where: str, command: object, args: object) -> tuple[str, ...]:
    words: list[object] = []
    for title, given in (("command", command), ("args", args)):
        if title == "command" and isinstance(given, str | os.PathLike):
            words.append(os.fspath(given))
        elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
            words.extend(os.fspath(word) if isinstance(word, Path) else word for word in given)
        else:
            raise AgentDefinitionError(where, f"`{title}` is a list of strings")
    if not words or not words[0] or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise AgentDefinitionError(where, "`command` is an executable, `args` are strings, all without NUL characters")
    return tuple(words)  # type: ignore[arg-type]


def _texts(where: str, title: str, given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise AgentDefinitionError(where, f"`{title}` is a mapping of strings; got {type(given).__name__}")
    for key, value in given.items():
        if (
            not isinstance(key, str)
            or not isinstance(value, str)
            or "\0" in key + value
            or "=" in key * (title == "env")
        ):
            raise AgentDefinitionError(where, f"`{title}` is a mapping of strings; {shown(key)} cannot be used")
        if title == "headers" and not (key + value).isprintable():
            raise AgentDefinitionError(where, f"header {key!r} has characters that a header cannot have")
    return dict(given)


def _folder(where: str, cwd: object) -> str:
    if not isinstance(cwd, str | os.PathLike) or not os.fspath(cwd):
        raise AgentDefinitionError(where, f"`cwd` is a folder; got {shown(cwd)}")
    return str(os.fspath(cwd))
