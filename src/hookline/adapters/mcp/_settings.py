"""What a user says about an MCP server, checked before anything is started."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec
from pydantic import ValidationError

from hookline._checks import quote
from hookline.errors import AgentDefinitionError

__all__ = ["REDACTED", "Secrets", "Settings", "checked_settings"]

REDACTED = "[redacted]"

SHORTEST = 4
"""Characters below which a value is no secret, but would be found in every other word."""

LONG_SEGMENT = 16
"""Characters from which a part of a path is taken for a token, as hosted servers have them in their addresses."""

PLAIN = {"true", "false", "none", "null", "info", "debug", "warning", "error", "utf-8", "utf8", "production"}
"""Values of settings that are no secrets either."""

LIBRARY_LOGGERS = ("httpx2", "mcp.client.streamable_http", "client", "mcp.shared.jsonrpc_dispatcher")
"""Those that write addresses, and what servers answer. `client` is that of the session."""


class Secrets:
    """The values of `env` and `headers`, and the tokens in the URL of one server.

    Args:
        settings: The server's.
    """

    def __init__(self, settings: Settings) -> None:
        words = {word for given in _given(settings) for word in _spelt(given)}
        kept = sorted(filter(_is_secret, words), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None

    def clean(self, text: str) -> str:
        """The text without them."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None else text

    @contextmanager
    def kept_out_of_logs(self) -> Iterator[None]:
        """While this is open, what the client library logs is without them too."""
        _live[self] += 1
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(_filter)
        try:
            yield
        finally:
            _live[self] -= 1
            if not _live[self]:
                del _live[self]
            if not _live:
                for name in LIBRARY_LOGGERS:
                    logging.getLogger(name).removeFilter(_filter)


def _given(settings: Settings) -> Iterator[str]:
    for value in (*settings.env.values(), *settings.headers.values()):
        yield value
        yield value.rpartition(" ")[2]  # "Bearer abc"
    if not settings.url:
        return
    parts = urlsplit(settings.url)
    user = parts.netloc.rpartition("@")[0]
    if user:
        yield user
        yield parts.password or ""
        yield base64.b64encode(unquote(user).encode()).decode()  # as the HTTP client sends it
    if parts.query:
        yield parts.query
        yield from (value for _, value in parse_qsl(parts.query))
    yield parts.fragment
    yield from (segment for segment in parts.path.split("/") if len(segment) >= LONG_SEGMENT)


def _spelt(given: str) -> Iterator[str]:
    """A secret in the ways in which servers write it: also without escapes, in JSON, and line by line."""
    for word in (given, *given.splitlines()):
        yield word
        yield unquote(word)
        yield json.dumps(word)[1:-1]
        yield json.dumps(word, ensure_ascii=False)[1:-1]


def _is_secret(word: str) -> bool:
    return len(word) >= SHORTEST and word.lower() not in PLAIN and not (word.isdecimal() and len(word) < 6)


_live: Counter[Secrets] = Counter()


def _filter(record: logging.LogRecord) -> bool:
    """Rewrite a record that holds a secret of an open server.

    The trace of an answer that could not be parsed quotes it, cut in the middle of whatever stands there: it goes.
    """
    written = record.getMessage()
    if record.exc_info and isinstance(record.exc_info[1], ValidationError):
        record.exc_info = None
    if record.exc_info:
        record.exc_text = record.exc_text or logging.Formatter().formatException(record.exc_info)
    told, trace = written, record.exc_text or ""
    for secrets in list(_live):
        told, trace = secrets.clean(told), secrets.clean(trace)
    if told != written:
        record.msg, record.args = told, ()
    if record.exc_text is not None and trace != record.exc_text:
        record.exc_info, record.exc_text = None, trace
    return True


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is and how long it may take. Its `repr` shows nothing that may be secret.

    Attributes:
        name: The server's name, the `toolset` of its tools.
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
        raise AgentDefinitionError("MCP server", f"its name is a non-empty string; got {quote(name)}")
    where = f"MCP server {name!r}"
    if (command is None) == (url is None):
        raise AgentDefinitionError(where, "give either `command`, for a process to start, or `url`")
    for title, seconds in timeouts.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise AgentDefinitionError(where, f"`{title}` is a positive number of seconds; got {quote(seconds)}")
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
            raise AgentDefinitionError(where, f"`{title}` is a mapping of strings; {quote(key)} cannot be used")
        if title == "headers" and not (key + value).isprintable():
            raise AgentDefinitionError(where, f"header {key!r} has characters that a header cannot have")
    return dict(given)


def _folder(where: str, cwd: object) -> str:
    if not isinstance(cwd, str | os.PathLike) or not os.fspath(cwd):
        raise AgentDefinitionError(where, f"`cwd` is a folder; got {quote(cwd)}")
    return str(os.fspath(cwd))
