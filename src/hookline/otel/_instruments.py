"""Make the instruments of a meter provider once: an SDK keeps each forever, and warns of a second one."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter as Tally
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.metrics import (
    CallbackOptions,
    MeterProvider,
    NoOpMeterProvider,
    Observation,
    get_meter_provider,
)

from hookline.otel import _attributes as names
from hookline.otel._attributes import clean
from hookline.signals import DenialRateAlert, FallbackAlert, denial_rate_changed, fell_back_to_shadow

__all__ = ["SCOPE", "Failures", "Instruments", "ValueLimit", "instruments_of", "is_idle", "keep"]

logger = logging.getLogger("hookline.otel")


class Failures:
    """Counts and logs failures in the telemetry of one bundle.

    Args:
        bundle: Its id.
        instruments: Where they are counted.
    """

    def __init__(self, bundle: str, instruments: Instruments) -> None:
        self._bundle = bundle
        self._instruments = instruments
        self._logged: set[str] = set()

    def note(self, where: str, error: BaseException) -> None:
        """Count a failure in a callback, and log the first one of each callback."""
        with contextlib.suppress(Exception):
            attributes = {names.CALLBACK: where, names.ERROR_TYPE: clean(type(error).__name__)}
            self._instruments.counters["errors"].add(1, attributes)
        with contextlib.suppress(Exception):  # a handler of the log may be broken too
            if where not in self._logged:
                self._logged.add(where)
                logger.warning(
                    "Telemetry of %r failed in %s; the run continues, and further failures there are only counted",
                    self._bundle,
                    where,
                    exc_info=error,
                )

    def cut(self, why: str) -> None:
        """Count a span that was ended without its own event."""
        try:
            self._instruments.counters["truncated"].add(1, {names.SPAN_TRUNCATED: why})
        except Exception as error:
            self.note("truncated_spans", error)


MOST_POLICIES = 200
"""The most hooks that metrics of alerts name; further ones become `_OTHER`."""
SCOPE = "hookline"
"""Instrumentation scope of everything that this package emits."""


T = TypeVar("T")


class SpanTable(Protocol):
    """Anything with open spans to count."""

    def open_kinds(self) -> list[str]:
        """Return the kind of each open span."""
        ...


class HasLanes(Protocol):
    """Anything with lanes to measure."""

    def lane_lengths(self) -> list[int]:
        """Return how many events wait in each lane."""
        ...


class Instruments:
    """The histograms, counters and gauges of one meter provider."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)
        self._lock = threading.Lock()
        self._tables: WeakSet[SpanTable] = WeakSet()
        self._dispatchers: WeakSet[HasLanes] = WeakSet()
        self._known: dict[str, dict[str, str]] = {}
        self._kinds: set[str] = {names.INVOKE_AGENT}
        self.histograms: dict[str, Any] = {
            key: meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)
            for key, (name, unit, description, bounds) in names.HISTOGRAMS.items()
        }
        self.counters: dict[str, Any] = {
            key: meter.create_counter(name, unit, description)
            for key, (name, unit, description, _) in names.COUNTERS.items()
        }
        for (name, unit, description, _), observe in (
            (names.OPEN_SPANS, self._open_spans),
            (names.LANE_QUEUED, self._queued),
        ):
            meter.create_observable_up_down_counter(name, [observe], unit, description)
        self._policies = self.limit_values(names.HOOK_ID, MOST_POLICIES)
        # Alerts are of the process, not of a run; blinker holds the receivers weakly, so they end with the instruments.
        denial_rate_changed.connect(self._count_rate_alert)
        fell_back_to_shadow.connect(self._count_fallback)
        name, unit, description, _ = names.LANE_LENGTH
        meter.create_observable_gauge(name, [self._longest], unit, description)

    def observe_spans(self, table: SpanTable) -> None:
        """Count the open spans of a table, as long as it lives."""
        with self._lock:
            self._tables.add(table)

    def observe_lanes(self, dispatcher: HasLanes) -> None:
        """Measure the lanes of a dispatcher, as long as it lives."""
        with self._lock:
            self._dispatchers.add(dispatcher)

    def limit_values(self, attribute: str, limit: int) -> ValueLimit:
        """Return the limit on an attribute's values, shared by all bundles that use these instruments."""
        return ValueLimit(self._known.setdefault(attribute, {}), limit)

    def _count_rate_alert(self, _: object, alert: DenialRateAlert) -> None:
        change = "rise" if alert.share > alert.share_before else "fall"
        attributes = {names.HOOK_ID: self._policies(clean(alert.definition_id)), names.POLICY_CHANGE: change}
        self.counters["rate_alerts"].add(1, attributes)

    def _count_fallback(self, _: object, alert: FallbackAlert) -> None:
        attributes = {names.HOOK_ID: self._policies(clean(alert.definition_id)), names.POLICY_CAUSE: alert.cause}
        self.counters["fallbacks"].add(1, attributes)

    # Called in the exporter's thread.

    def _open_spans(self, options: CallbackOptions) -> Iterable[Observation]:
        kinds = Tally(kind for table in self._copy(self._tables) for kind in table.open_kinds())
        self._kinds.update(kinds)  # one that has ended is reported as 0: a back end would keep its last value
        return [Observation(kinds[kind], {names.SPAN_KIND: kind}) for kind in sorted(self._kinds)]

    def _queued(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sum(self._lengths()))]

    def _longest(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(max(self._lengths(), default=0))]

    def _lengths(self) -> list[int]:
        return [length for dispatcher in self._copy(self._dispatchers) for length in dispatcher.lane_lengths()]

    def _copy(self, members: WeakSet[T]) -> list[T]:
        with self._lock:
            return list(members)


_lock = threading.Lock()
_made: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()


def instruments_of(provider: MeterProvider | None) -> tuple[MeterProvider, Instruments]:
    """Return the instruments of a meter provider, by default the process's."""
    provider = provider or get_meter_provider()
    with _lock:
        try:
            found = _made.get(provider)
            if found is None:
                found = _made[provider] = Instruments(provider)
        except TypeError:  # it takes no weak references
            found = Instruments(provider)
    return provider, found


def is_idle(provider: MeterProvider) -> bool:
    """Whether measurements of a provider go nowhere.

    The API itself has but a provider that does nothing, and one that stands for the process's until there is one.
    """
    if isinstance(provider, NoOpMeterProvider):
        return True
    return _is_of_the_api(provider) and _is_of_the_api(get_meter_provider())  # the second reads the environment


def _is_of_the_api(provider: MeterProvider) -> bool:
    return type(provider).__module__.startswith("opentelemetry.metrics")


MOST_KEPT = 256
"""How many attribute dictionaries of one kind are kept for the next measurement."""

K = TypeVar("K")


def keep(kept: dict[K, T], key: K, value: T) -> T:
    """Keep a value for the next time, and forget all kept ones when they become too many."""
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[key] = value
    return value


class ValueLimit:
    """Limits the different values of a metric attribute: after the first so many, every new one becomes `_OTHER`.

    Every different value is a time series of its own, which a back end keeps and bills.
    """

    def __init__(self, known: dict[str, str], limit: int) -> None:
        self._known = known
        self._limit = limit

    def __call__(self, value: str) -> str:
        known = self._known.get(value)
        if known is None:
            if len(self._known) >= self._limit:
                return names.OTHER
            known = self._known[value] = value
        return known
