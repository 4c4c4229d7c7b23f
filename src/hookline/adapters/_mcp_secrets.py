"""What a server was given in confidence, and taking it out of every text that leaves the adapter."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import ValidationError

from hookline.adapters._mcp_settings import Settings

__all__ = ["REDACTED", "Secrets"]

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
