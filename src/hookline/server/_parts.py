"""What a server is made of, for all of its routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hookline.delivery import EndpointSecrets, Outbox
from hookline.errors import StoreUnavailableError
from hookline.hooks import AnyHook
from hookline.registry import ExecutionLog, Registry
from hookline.server._callers import Req
from hookline.server._feed import Feed
from hookline.server._keys import KeyStore
from hookline.server._metrics import Metrics, OpenStreams
from hookline.server._problems import ApiError
from hookline.server._refusals import Refusals
from hookline.store import DeliveryLog, SqlStore, limit_waiting

__all__ = ["Parts", "StoreCheck", "parts_of"]

LONGEST_LOOK, LONGEST_WAIT = 2.0, 0.5
"""Seconds for all of a look, and for each of what others may hold."""


class StoreCheck:
    """Looks whether the database can be read and, on SQLite, written.

    Anybody may ask, and the write lock is there once: those who ask at the same time share one look.

    Args:
        store: The database.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._looking: asyncio.Task[dict[str, list[str]] | None] | None = None

    async def look(self) -> dict[str, list[str]] | None:
        """Find out whether the database can be used.

        Returns:
            `None` if it cannot; else the hooks that operations wait for, by operation.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> dict[str, list[str]] | None:
        try:
            with limit_waiting(LONGEST_WAIT):
                async with asyncio.timeout(LONGEST_LOOK):
                    await self._store.check()
                    return await self._store.missing_hooks()
        except (StoreUnavailableError, TimeoutError):
            return None


class Parts:
    """What a server is made of. Handlers get it by `parts_of(request)`.

    Args:
        store: Where everything is kept.
        registry: The hook definitions, if it has them.
        log: What hooks did, if it is kept.
        outbox: Told of deliveries that are to be made again.
        hooks: Hooks for the requests of everybody.

    Attributes:
        keys: The API keys, and who has sent a request.
        deliveries: What became of deliveries.
        store_check: Whether the database can be used.
        feed: Tells of operations as they change.
        streams: The streams that are open.
        metrics: What is counted.
        refusals: Attempts that were refused, on their way into the audit.
        closing: Set when streams are to end, since the server does.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        registry: Registry | None = None,
        log: ExecutionLog | None = None,
        outbox: Outbox | None = None,
        hooks: Sequence[AnyHook] = (),
    ) -> None:
        self.store = store
        self.outbox = outbox
        self.hooks = list(hooks)
        self.known_registry, self.known_log = registry, log
        self.keys = KeyStore(store)
        self.deliveries = DeliveryLog(store)
        self.store_check = StoreCheck(store)
        self.feed = Feed(store)
        self.closing = asyncio.Event()
        self.streams = OpenStreams()
        self.refusals = Refusals(store)
        self.metrics = Metrics(store, streams=self.streams, registry=registry, log=log)

    @property
    def registry(self) -> Registry:
        """The hook definitions.

        Raises:
            ApiError: 503, if this server has none.
        """
        if self.known_registry is None:
            raise ApiError(503, "no_registry", "This server has no registry of hook definitions.")
        return self.known_registry

    @property
    def secrets(self) -> EndpointSecrets:
        """The signing secrets of endpoints.

        Raises:
            ApiError: 503, if this server cannot decrypt them.
        """
        secrets = None if self.outbox is None else self.outbox.secrets
        if secrets is None or secrets.master is None:
            raise ApiError(503, "no_master_key", "This server has no master key, and so no secrets of endpoints.")
        return secrets

    @property
    def log(self) -> ExecutionLog:
        """What hooks did.

        Raises:
            ApiError: 503, if this server keeps no such log.
        """
        if self.known_log is None:
            raise ApiError(503, "no_log", "This server keeps no log of hook executions.")
        return self.known_log

    def wake_outbox(self) -> None:
        """Have deliveries made now that have just become due; a worker elsewhere finds them by itself."""
        if self.outbox is not None:
            self.outbox.wake()


def parts_of(request: Req) -> Parts:
    """Return the parts of the server that a request came to."""
    parts: Parts = request.app.state["parts"]
    return parts
