"""`Outage`: since when the database cannot be reached, as this process has seen it."""

from __future__ import annotations

from time import monotonic, time

__all__ = ["Outage"]

CACHED_SECONDS = 1.0
"""Seconds after a failure for which a request may succeed without the database, since keys and sessions are cached."""


class Outage:
    """The present outage of the database.

    Attributes:
        since: When a request has first failed, in unix seconds; `None` while the database works.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self._failed_at = 0.0

    def begin(self) -> None:
        """Note that the database could not be reached."""
        self._failed_at = monotonic()
        if self.since is None:
            self.since = time()

    def end(self) -> None:
        """Note that a request was admitted, which needs the database or what it has said within a second."""
        if self.since is not None and monotonic() - self._failed_at > CACHED_SECONDS:
            self.since = None
