"""Alerts of policies are counted in the meters of the process, by hook, and without a run."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from hookline.otel import MetricsHooks
from hookline.signals import DenialRateAlert, FallbackAlert, denial_rate_changed, fell_back_to_shadow


def rate_alert(definition_id: str, denied_before: int, denied: int) -> DenialRateAlert:
    return DenialRateAlert(
        definition_id=definition_id,
        name="a",
        tenant_id="",
        revision=1,
        window=60,
        until=120,
        denied_before=denied_before,
        count_before=200,
        denied=denied,
        count=200,
        p_value=0.0,
    )


def test_alerts_are_counted_by_hook() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    hooks = MetricsHooks(provider)
    fallback = FallbackAlert(
        definition_id="a",
        name="a",
        tenant_id="",
        revision=2,
        cause="failures",
        limit=0.1,
        window=300.0,
        failed=5,
        denied=0,
        count=20,
        time=1.0,
    )

    for alert in (rate_alert("a", 10, 90), rate_alert("a", 10, 90), rate_alert("b", 90, 10)):
        denial_rate_changed.send(None, alert=alert)
    fell_back_to_shadow.send(None, alert=fallback)

    data = reader.get_metrics_data()
    assert hooks.id == "metrics"
    assert data is not None
    points = {
        metric.name: {tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
    }
    assert points["hookline.policy.rate_alerts"] == {
        (("hookline.hook.id", "a"), ("hookline.policy.change", "rise")): 2,
        (("hookline.hook.id", "b"), ("hookline.policy.change", "fall")): 1,
    }
    assert points["hookline.policy.fallbacks"] == {
        (("hookline.hook.id", "a"), ("hookline.policy.cause", "failures")): 1
    }
