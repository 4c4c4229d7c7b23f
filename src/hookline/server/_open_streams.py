"""How many streams are open, and how many a key may have open."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from hookline.server._access import Req, caller_of
from hookline.server._problems import ApiError

__all__ = ["MOST_STREAMS", "OpenStreams"]

MOST_STREAMS = 20
"""Of a key, in a process."""


class OpenStreams:
    """Counts the streams of a process. One counts until its request is over, whatever has ended it."""

    def __init__(self) -> None:
        self._by_key: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Those of all keys."""
        return self._by_key.total()

    def open(self, request: Req) -> None:
        """Count the answer to a request as a stream.

        Raises:
            ApiError: 429, if the key of the request has as many as it may have.
        """
        key_id = caller_of(request).key_id
        if self._by_key[key_id] >= MOST_STREAMS:
            detail = f"The key has {MOST_STREAMS} streams open at this server, as many as it may have; close one first."
            raise ApiError(429, "streams", detail)
        self._by_key[key_id] += 1
        # What a stream is made of cannot count down: an iterator that nobody begins is never ended.
        over: ExitStack = request.scope["state"]["hookline_over"]
        over.callback(self._close, key_id)

    def _close(self, key_id: str) -> None:
        self._by_key[key_id] -= 1
        if not self._by_key[key_id]:
            del self._by_key[key_id]
