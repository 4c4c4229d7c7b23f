"""What goes wrong inside of the telemetry, and what is lost: counted, told once, and never the run's business."""

from __future__ import annotations

import contextlib
import logging

from hookline.otel import _attributes as names
from hookline.otel._instruments import Instruments
from hookline.otel._text import clean

__all__ = ["Failures"]

logger = logging.getLogger("hookline.otel")


class Failures:
    """The failures of one bundle.

    Args:
        bundle: Its id.
        instruments: Where they are counted.
    """

    def __init__(self, bundle: str, instruments: Instruments) -> None:
        self._bundle = bundle
        self._instruments = instruments
        self._told: set[str] = set()

    def note(self, where: str, error: BaseException) -> None:
        """Something failed in a callback."""
        with contextlib.suppress(Exception):
            attributes = {names.CALLBACK: where, names.ERROR_TYPE: clean(type(error).__name__)}
            self._instruments.counters["errors"].add(1, attributes)
        with contextlib.suppress(Exception):  # a handler of the log may be broken too
            if where not in self._told:
                self._told.add(where)
                logger.warning(
                    "Telemetry of %r failed in %s; the run goes on, and further failures there are only counted",
                    self._bundle,
                    where,
                    exc_info=error,
                )

    def cut(self, why: str) -> None:
        """A span was ended whose own end did not come."""
        try:
            self._instruments.counters["truncated"].add(1, {names.SPAN_TRUNCATED: why})
        except Exception as error:
            self.note("truncated_spans", error)
