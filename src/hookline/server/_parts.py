"""`ServerParts`: the store, registry, log and other objects that the routes of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from hookline.delivery import EndpointSecrets, Outbox
from hookline.errors import HookUsageError, StoreUnavailableError
from hookline.hooks import AnyHook
from hookline.registry import ExecutionLog, Registry
from hookline.runtime import Agent
from hookline.server._backtests import RunningBacktests
from hookline.server._callers import Req
from hookline.server._feed import OperationFeed
from hookline.server._keys import KeyStore
from hookline.server._metrics import Metrics, OpenStreams
from hookline.server._operation_summaries import OperationSummaries
from hookline.server._problems import ApiError
from hookline.server._refusals import Refusals
from hookline.server._settings import ServerSettings
from hookline.store import DeliveryLog, SqlStore, limit_waiting, read_losses

__all__ = ["ServerParts", "StoreCheck", "parts_of"]

CHECK_SECONDS, LOCK_SECONDS = 2.0, 0.5
"""Seconds that a check of the store may take, and that it waits for a connection or a lock."""


TRACE_ID = "{trace_id}"


def check_trace_url(template: str | None) -> str | None:
    """Return the template of the addresses of traces, if it is one.

    Raises:
        HookUsageError: If it is no address, or does not contain `{trace_id}`.
    """
    if template is None:
        return None
    if isinstance(template, str) and TRACE_ID in template and template.isprintable() and " " not in template:
        try:
            parts = urlsplit(template)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme in ("http", "https") and parts.hostname and TRACE_ID not in parts.netloc:
            return template
    raise HookUsageError(
        "`trace_url` must be an http or https address that contains {trace_id} behind its host, such as "
        f"'https://traces.example.com/trace/{{trace_id}}'; got {template!r:.200}."
    )


class StoreCheck:
    """Checks whether the database can be read and, on SQLite, written.

    Concurrent callers share one check, since anybody may ask (`/ready`) and the check takes the write lock.

    Args:
        store: The store to check.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._checking: asyncio.Task[dict[str, list[str]] | None] | None = None
        self.bus_has_lost = False
        """Whether the last check found that the bus has lost events that remote observers had not heard."""

    async def check(self) -> dict[str, list[str]] | None:
        """Check the database.

        Returns:
            `None` if it cannot be used; else the ids of hooks that operations wait for, by operation.
        """
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_once())
        return await asyncio.shield(self._checking)

    async def _check_once(self) -> dict[str, list[str]] | None:
        try:
            with limit_waiting(LOCK_SECONDS):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._store.check()
                    self.bus_has_lost = bool(await self._store.read(read_losses))
                    return await self._store.missing_hooks()
        except (StoreUnavailableError, TimeoutError):
            return None


class ServerParts:
    """The objects that the routes of a server share. Handlers get them with `parts_of(request)`.

    Args:
        store: The store.
        registry: The registry of hook definitions, if there is one.
        log: The log of hook executions, if there is one.
        outbox: The outbox, whose signing secrets the server administers.
        hooks: Hooks for all requests.
        agents: The agents whose operations this process runs.
        trace_url: The address of a trace in your tracing system, with `{trace_id}` in it.

    Attributes:
        agents: The agents whose operations this process runs, by id.
        keys: The API keys.
        deliveries: The log of deliveries.
        store_check: Checks whether the database can be used.
        feed: Streams operations as they change.
        summaries: Sums up operations.
        streams: The open streams.
        backtests: The backtests that run.
        metrics: The metrics.
        settings: What the server was configured with, for people who administer it.
        refusals: Refused attempts that wait to be written into the audit log.
        closing: Set when the server stops, so that streams end.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        registry: Registry | None = None,
        log: ExecutionLog | None = None,
        outbox: Outbox | None = None,
        hooks: Sequence[AnyHook] = (),
        agents: Sequence[Agent] = (),
        trace_url: str | None = None,
    ) -> None:
        self.store = store
        self.agents = {agent.id: agent for agent in agents}
        self.trace_url = check_trace_url(trace_url)
        self.outbox = outbox
        self.hooks = list(hooks)
        self.known_registry, self.known_log = registry, log
        self.keys = KeyStore(store)
        self.deliveries = DeliveryLog(store)
        self.store_check = StoreCheck(store)
        self.feed = OperationFeed(store)
        self.summaries = OperationSummaries(store)
        self.closing = asyncio.Event()
        self.streams = OpenStreams()
        self.backtests = RunningBacktests()
        self.refusals = Refusals(store)
        self.settings = ServerSettings()
        self.metrics = Metrics(store, streams=self.streams, registry=registry, log=log)

    @property
    def registry(self) -> Registry:
        """The registry of hook definitions.

        Raises:
            ApiError: 503, if this server has no registry.
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
            raise ApiError(
                503,
                "no_master_key",
                "This server has no master key, so it cannot use the signing secrets of endpoints.",
            )
        return secrets

    @property
    def log(self) -> ExecutionLog:
        """The log of hook executions.

        Raises:
            ApiError: 503, if this server has no log.
        """
        if self.known_log is None:
            raise ApiError(503, "no_log", "This server has no log of hook executions.")
        return self.known_log


def parts_of(request: Req) -> ServerParts:
    """Return the parts of the server that handles a request."""
    parts: ServerParts = request.app.state["parts"]
    return parts
