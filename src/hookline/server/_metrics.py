"""Count requests and rows, and render the figures in Prometheus' text format.

`prometheus_client` is not used: its counters and histograms add `_created` series that can be switched off only for the
whole process, which may be that of another application, and for figures of our own it would only format the lines.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from time import monotonic

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.bus import BUCKETS, Bus, DurationHistogram, NatsBus, decision_figures
from hookline.registry import ALERT_KINDS, ExecutionLog, Registry
from hookline.server._callers import Req, caller_of
from hookline.server._problems import ApiError
from hookline.store import (
    DeliveryLog,
    RelayStatus,
    SqlStore,
    endpoints,
    operations,
    policy_alerts,
    read_relay_status,
)

__all__ = ["CONTENT_TYPE", "MOST_STREAMS", "Metrics", "OpenStreams"]

MOST_STREAMS = 20
"""Open streams of one API key in one process at most."""


class OpenStreams:
    """Counts the open streams of this process. A stream counts until its request ends, for whatever reason."""

    def __init__(self) -> None:
        self._by_key: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Number of open streams, all API keys together."""
        return self._by_key.total()

    def open(self, request: Req) -> None:
        """Count the response to a request as a stream.

        Raises:
            ApiError: 429, if the key of the request has `MOST_STREAMS` open already.
        """
        key_id = caller_of(request).key_id
        if self._by_key[key_id] >= MOST_STREAMS:
            detail = f"This API key has {MOST_STREAMS} open streams, which is the limit; close one first."
            raise ApiError(429, "streams", detail)
        self._by_key[key_id] += 1
        # The stream's own iterator cannot count down: one that is never started never ends.
        over: ExitStack = request.scope["state"]["hookline_over"]
        over.callback(self._close, key_id)

    def _close(self, key_id: str) -> None:
        self._by_key[key_id] -= 1
        if not self._by_key[key_id]:
            del self._by_key[key_id]


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNT_SECONDS = 10.0
"""Seconds for which counts of rows are cached, since counting costs more the more rows there are."""

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


class Metrics:
    """Counts requests, refusals and streams, and rows of the store.

    Args:
        store: The store whose rows are counted.
        streams: The open streams.
        registry: The registry of hook definitions, if there is one.
        log: The log of hook executions, if there is one.
    """

    def __init__(
        self, store: SqlStore, *, streams: OpenStreams, registry: Registry | None, log: ExecutionLog | None
    ) -> None:
        self._store, self._streams, self._registry, self._log = store, streams, registry, log
        self._requests: dict[tuple[str, str, int], int] = {}
        self._durations: dict[tuple[str, str], DurationHistogram] = {}
        self._refusals: dict[str, int] = {}
        self._counted: list[tuple[str, str, list[Sample]]] = []
        self._counted_at = -COUNT_SECONDS
        self._counting = asyncio.Lock()

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            method: Its method.
            route: The pattern of its path, never the path itself, which would make too many series.
            status: The status of the response.
            seconds: The duration of the request.
        """
        key = method, route, status
        self._requests[key] = self._requests.get(key, 0) + 1
        durations = self._durations.get((method, route))
        if durations is None:
            durations = self._durations[method, route] = DurationHistogram()
        durations.add(seconds)

    def note_refusal(self, code: str) -> None:
        """Count a request or a connection that was refused.

        Args:
            code: The code of the error.
        """
        self._refusals[code] = self._refusals.get(code, 0) + 1

    async def render(self) -> str:
        """Render all figures.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._counting:
            if monotonic() - self._counted_at > COUNT_SECONDS:
                self._counted = [*await self._count_rows()]
                self._counted_at = monotonic()
        return "".join(_format_families([*self._request_families(), *self._process_families(), *self._counted]))

    def _request_families(self) -> Iterator[tuple[str, str, list[Sample]]]:
        name = "hookline_http_requests_total"
        counts: list[Sample] = [
            (name, (("method", method), ("route", route), ("status", str(status))), float(count))
            for (method, route, status), count in sorted(self._requests.items())
        ]
        yield "counter", name, counts
        name = "hookline_http_refusals_total"
        refused: list[Sample] = [
            (name, (("code", code),), float(count)) for code, count in sorted(self._refusals.items())
        ]
        yield "counter", name, refused
        name = "hookline_http_request_duration_seconds"
        samples: list[Sample] = []
        for (method, route), durations in sorted(self._durations.items()):
            samples += _duration_samples(name, (("method", method), ("route", route)), durations)
        yield "histogram", name, samples

    def _process_families(self) -> Iterator[tuple[str, str, list[Sample]]]:
        yield _single_sample("gauge", "hookline_streams", self._streams.count)
        if self._registry is not None:
            yield _single_sample("gauge", "hookline_registry_problems", len(self._registry.problems))
            name = "hookline_policy_alerts_total"
            yield "counter", name, _labelled_samples(name, "kind", self._registry.raised_alerts)
        bus = self._store.wakeups
        if isinstance(bus, NatsBus):
            yield _single_sample("gauge", "hookline_bus_connected", bus.is_connected)
            yield _single_sample("counter", "hookline_bus_reconnects_total", bus.reconnects)
            name = "hookline_bus_questions_total"
            asked: list[Sample] = [
                (name, (("name", asked_name), ("outcome", outcome)), float(count))
                for (asked_name, outcome), count in sorted(bus.questions.items())
            ]
            yield "counter", name, asked
        if isinstance(bus, Bus):
            yield from _decision_families(bus)
        if self._log is not None:
            yield _single_sample("gauge", "hookline_log_queued", self._log.queued)
            yield _single_sample("counter", "hookline_log_written_total", self._log.written)
            yield _single_sample("counter", "hookline_log_dropped_total", self._log.dropped)

    async def _count_rows(self) -> list[tuple[str, str, list[Sample]]]:
        async def count(connection: AsyncConnection) -> tuple[dict[str, int], int, dict[str, int], RelayStatus]:
            by_status = select(operations.c.status, func.count()).group_by(operations.c.status)
            runs: dict[str, int] = {row[0]: row[1] for row in await connection.execute(by_status)}
            disabled = select(func.count()).where(endpoints.c.disabled_at.is_not(None))
            endpoints_disabled = (await connection.execute(disabled)).scalar_one()
            by_kind = select(policy_alerts.c.kind, func.count()).group_by(policy_alerts.c.kind)
            alerts = dict.fromkeys(ALERT_KINDS, 0) | {row[0]: row[1] for row in await connection.execute(by_kind)}
            relay = await read_relay_status(connection, now=self._store.now_sql())
            return runs, endpoints_disabled, alerts, relay

        runs, endpoints_disabled, alerts, relay = await self._store.read(count)
        sent = {str(status): count for status, count in (await DeliveryLog(self._store).counts()).items()}
        return [
            _status_samples("hookline_operations", runs),
            _status_samples("hookline_deliveries", sent),
            _single_sample("gauge", "hookline_endpoints_disabled", endpoints_disabled),
            (
                "gauge",
                "hookline_policy_alerts_stored",
                _labelled_samples("hookline_policy_alerts_stored", "kind", alerts),
            ),
            _single_sample("gauge", "hookline_relay_waiting_commits", relay.waiting),
            _single_sample("gauge", "hookline_relay_waiting_seconds", relay.waiting_seconds),
            _single_sample("counter", "hookline_relay_told_total", relay.told),
            _single_sample("gauge", "hookline_relay_running", relay.owner is not None),
            _named_samples("hookline_relay_unheard_commits", relay.depths),
            _named_samples("hookline_relay_dead_letters", relay.dead_letters),
            _named_samples("hookline_relay_lost", dict.fromkeys(relay.lost, 1)),
        ]


def _decision_families(bus: Bus) -> Iterator[tuple[str, str, list[Sample]]]:
    figures = sorted(decision_figures(bus).items())
    yield _named_samples("hookline_remote_decisions_pending", {name: each.pending for name, each in figures})
    name = "hookline_remote_decision_duration_seconds"
    yield (
        "histogram",
        name,
        [
            sample
            for asked_name, each in figures
            for outcome, durations in each.durations.items()
            for sample in _duration_samples(name, (("name", asked_name), ("outcome", outcome)), durations)
        ],
    )


def _duration_samples(name: str, labels: Labels, durations: DurationHistogram) -> Iterator[Sample]:
    total = 0
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], durations.counts, strict=True):
        total += count
        yield f"{name}_bucket", (*labels, ("le", bound)), float(total)
    yield f"{name}_sum", labels, durations.sum
    yield f"{name}_count", labels, total


def _single_sample(kind: str, name: str, value: float) -> tuple[str, str, list[Sample]]:
    return kind, name, [(name, (), value)]


def _named_samples(name: str, counts: Mapping[str, int]) -> tuple[str, str, list[Sample]]:
    return "gauge", name, [(name, (("name", each),), count) for each, count in sorted(counts.items())]


def _status_samples(name: str, counts: Mapping[str, int]) -> tuple[str, str, list[Sample]]:
    return "gauge", name, _labelled_samples(name, "status", counts)


def _labelled_samples(name: str, label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [(name, ((label, value),), count) for value, count in sorted(counts.items())]


def _format_families(families: Iterable[tuple[str, str, list[Sample]]]) -> Iterator[str]:
    for kind, name, samples in families:
        yield f"# TYPE {name} {kind}\n"
        for sample, labels, value in samples:
            shown = ",".join(f'{key}="{_escape_label(text)}"' for key, text in labels)
            yield f"{sample}{{{shown}}} {value:.17g}\n" if shown else f"{sample} {value:.17g}\n"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
