"""The settings of an MCP server, checked before anything is started, and the secrets in them."""

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

__all__ = ["REDACTED", "Secrets", "Settings", "check_settings"]

REDACTED = "[redacted]"

SHORTEST_SECRET = 4
"""Characters of the shortest secret; shorter values would be found in ordinary words."""

TOKEN_SEGMENT_LENGTH = 16
"""Characters from which a segment of a path counts as a token, as in the URLs of hosted servers."""

PLAIN_VALUES = {"true", "false", "none", "null", "info", "debug", "warning", "error", "utf-8", "utf8", "production"}
"""Common values of settings that are not secrets."""

LIBRARY_LOGGERS = ("httpx2", "mcp.client.streamable_http", "client", "mcp.shared.jsonrpc_dispatcher")
"""Loggers that write URLs and answers of servers. `client` is the logger of the session."""


class Secrets:
    """The values of one server's `env` and `headers`, and the tokens in its URL.

    Args:
        settings: The settings of the server.
    """

    def __init__(self, settings: Settings) -> None:
        words = {word for given in _secret_values(settings) for word in _spellings(given)}
        kept = sorted(filter(_is_secret, words), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None

    def clean(self, text: str) -> str:
        """Return the text with the secrets removed."""
        return self._pattern.sub(REDACTED, text) if self._pattern is not None else text

    @contextmanager
    def keep_out_of_logs(self) -> Iterator[None]:
        """Remove the secrets from the client library's log records while the block runs."""
        _open_secrets[self] += 1
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(_filter)
        try:
            yield
        finally:
            _open_secrets[self] -= 1
            if not _open_secrets[self]:
                del _open_secrets[self]
            if not _open_secrets:
                for name in LIBRARY_LOGGERS:
                    logging.getLogger(name).removeFilter(_filter)


def _secret_values(settings: Settings) -> Iterator[str]:
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
        yield base64.b64encode(unquote(user).encode()).decode()  # the form in which the HTTP client sends it
    if parts.query:
        yield parts.query
        yield from (value for _, value in parse_qsl(parts.query))
    yield parts.fragment
    yield from (segment for segment in parts.path.split("/") if len(segment) >= TOKEN_SEGMENT_LENGTH)


def _spellings(given: str) -> Iterator[str]:
    """Yield a secret in the forms in which servers write it: without escapes, in JSON, and line by line."""
    for word in (given, *given.splitlines()):
        yield word
        yield unquote(word)
        yield json.dumps(word)[1:-1]
        yield json.dumps(word, ensure_ascii=False)[1:-1]


def _is_secret(word: str) -> bool:
    return (
        len(word) >= SHORTEST_SECRET and word.lower() not in PLAIN_VALUES and not (word.isdecimal() and len(word) < 6)
    )


_open_secrets: Counter[Secrets] = Counter()


def _filter(record: logging.LogRecord) -> bool:
    """Remove the secrets of open servers from a log record.

    The traceback of an answer that could not be parsed is dropped: it quotes a truncated part of the answer, in which a
    secret would not be recognized.
    """
    written = record.getMessage()
    if record.exc_info and isinstance(record.exc_info[1], ValidationError):
        record.exc_info = None
    if record.exc_info:
        record.exc_text = record.exc_text or logging.Formatter().formatException(record.exc_info)
    message, trace = written, record.exc_text or ""
    for secrets in list(_open_secrets):
        message, trace = secrets.clean(message), secrets.clean(trace)
    if message != written:
        record.msg, record.args = message, ()
    if record.exc_text is not None and trace != record.exc_text:
        record.exc_info, record.exc_text = None, trace
    return True


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a server and its time limits. The `repr` shows nothing that may be secret.

    Attributes:
        name: The server's name, the `toolset` of its tools.
        command: The executable and its arguments; empty for a server that is reached by `url`.
        env: Environment variables beyond those that every server gets.
        cwd: The server's working directory; ours unless given.
        url: The endpoint of a server that runs elsewhere.
        headers: Headers of every request to `url`.
        timeout: Seconds that a call may take.
        start_timeout: Seconds from the start to the list of tools.
        stop_timeout: Seconds that a process may take to end by itself when it is no longer needed.
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
        """The executable of the server, or scheme and host of its URL. Arguments and paths may hold tokens."""
        if not self.url:
            return self.command[0]
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{host_of(parts)}"

    def __repr__(self) -> str:
        return f"{self.name!r}, {'url' if self.url else 'command'}={self.place!r}"


def host_of(parts: SplitResult) -> str:
    """Return host and port of a URL, without user and password."""
    return parts.netloc.rpartition("@")[2]


def check_settings(
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
    """Check and return the settings of one server.

    Raises:
        AgentDefinitionError: If the settings are invalid. It never shows a value of `env` or `headers`.
    """
    if not isinstance(name, str) or not name:
        raise AgentDefinitionError("MCP server", f"its name must be a non-empty string; got {quote(name)}")
    where = f"MCP server {name!r}"
    if (command is None) == (url is None):
        raise AgentDefinitionError(where, "pass either `command`, to start a process, or `url`")
    for title, seconds in timeouts.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise AgentDefinitionError(where, f"`{title}` must be a positive number of seconds; got {quote(seconds)}")
    if url is not None:
        _refuse_options(where, "url", {"args": args, "env": env, "cwd": cwd})
        return Settings(name=name, url=_url(where, url), headers=_texts(where, "headers", headers), **timeouts)  # type: ignore[arg-type]
    _refuse_options(where, "command", {"headers": headers})
    return Settings(
        name=name,
        command=_command(where, command, args),
        env=_texts(where, "env", env),
        cwd=None if cwd is None else _folder(where, cwd),
        **timeouts,  # type: ignore[arg-type]
    )


def _refuse_options(where: str, given: str, others: Mapping[str, object]) -> None:
    for title, value in others.items():
        if value not in (None, (), [], {}):
            raise AgentDefinitionError(where, f"`{title}` cannot be used together with `{given}`")


def _url(where: str, url: object) -> str:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url  # type: ignore[return-value]
    except ValueError:  # an invalid port, or a host with one bracket
        pass
    raise AgentDefinitionError(where, "`url` must be the address of an endpoint, such as 'https://example.com/mcp'")


def _command(where: str, command: object, args: object) -> tuple[str, ...]:
    words: list[object] = []
    for title, given in (("command", command), ("args", args)):
        if title == "command" and isinstance(given, str | os.PathLike):
            words.append(os.fspath(given))
        elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
            words.extend(os.fspath(word) if isinstance(word, Path) else word for word in given)
        else:
            raise AgentDefinitionError(where, f"`{title}` must be a list of strings")
    if not words or not words[0] or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise AgentDefinitionError(where, "`command` must be an executable and `args` strings, without NUL characters")
    return tuple(words)  # type: ignore[arg-type]


def _texts(where: str, title: str, given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise AgentDefinitionError(where, f"`{title}` must be a mapping of strings; got {type(given).__name__}")
    for key, value in given.items():
        if (
            not isinstance(key, str)
            or not isinstance(value, str)
            or "\0" in key + value
            or "=" in key * (title == "env")
        ):
            raise AgentDefinitionError(where, f"`{title}` must be a mapping of strings; {quote(key)} cannot be used")
        if title == "headers" and not (key + value).isprintable():
            raise AgentDefinitionError(where, f"header {key!r} has characters that a header cannot have")
    return dict(given)


def _folder(where: str, cwd: object) -> str:
    if not isinstance(cwd, str | os.PathLike) or not os.fspath(cwd):
        raise AgentDefinitionError(where, f"`cwd` must be a folder; got {quote(cwd)}")
    return str(os.fspath(cwd))
