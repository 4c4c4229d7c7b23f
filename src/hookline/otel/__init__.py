"""OpenTelemetry for runs: spans, metrics, and log records with the trace and operation that they are from."""

from hookline.otel import _attributes as attributes
from hookline.otel._attributes import MOCK_PROVENANCE as MOCK_PROVENANCE
from hookline.otel._logs import RunContextFilter
from hookline.otel._metrics import MetricsHooks
from hookline.otel._tracing import TracingHooks

__all__ = ["MetricsHooks", "RunContextFilter", "TracingHooks", "attributes"]
