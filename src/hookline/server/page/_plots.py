"""Draw small plots as SVG, without scripts and style attributes, which the page's content security policy forbids."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec
from markupsafe import Markup, escape

from hookline.registry import Statistic

__all__ = ["Series", "align_minutes", "column_plot", "percentile_plot"]

HEIGHT, LEFT, BOTTOM = 120, 40, 18
STEPS = (1, 2, 5, 10)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One series of a stacked column plot.

    Attributes:
        name: The name of the series, which is also its CSS class.
        values: The value of each column.
    """

    name: str
    values: Sequence[float]


def align_minutes(
    statistics: Sequence[Statistic], *, now: float, count: int = 60
) -> tuple[list[int], list[Statistic | None]]:
    """Align statistics by minute with the last minutes.

    Args:
        statistics: Statistics by minute.
        now: The present time, in unix seconds.
        count: Number of minutes.

    Returns:
        The start of each minute in unix seconds, and its statistic, if there is one.
    """
    known = {each.minute: each for each in statistics}
    last = int(now // 60) * 60
    starts = [last - 60 * back for back in reversed(range(count))]
    return starts, [known.get(start) for start in starts]


def column_plot(
    labels: Sequence[str], series: Sequence[Series], *, unit: str, title: str, width: int = 560, whole: bool = False
) -> Markup:
    """Draw a stacked column plot.

    Args:
        labels: The label of each column.
        series: The series, from the bottom up.
        unit: The unit of the values, for screen readers.
        title: The title of the plot.
        width: The width in pixels of the plot itself.
        whole: Whether values are whole numbers, so that the axis has no fractions.
    """
    sums = [sum(each.values[place] for each in series) for place in range(len(labels))]
    top = round_up(max(sums, default=0))
    step = (width - LEFT) / max(len(labels), 1)
    parts = [_axis(top, width, whole=whole)]
    for place, label in enumerate(labels):
        below = 0.0
        values = ", ".join(f"{each.values[place]:g} {each.name}" for each in series if each.values[place])
        if not values:
            continue
        parts.append(f"<g><title>{escape(f'{label}: {values}')}</title>")
        for each in series:
            value = each.values[place]
            if value:
                high = max((HEIGHT - BOTTOM) * value / top, 1.0)
                y = HEIGHT - BOTTOM - below - high
                parts.append(
                    f'<rect class="plot-{escape(each.name)}" x="{LEFT + place * step:.1f}" y="{y:.1f}" '
                    f'width="{max(step - 1, 0.8):.1f}" height="{high:.1f}"/>'
                )
                below += high
        parts.append("</g>")
    for place in sorted({0, len(labels) // 2, len(labels) - 1}) if labels else ():
        anchor = "start" if place == 0 else "end" if place == len(labels) - 1 else "middle"
        x = width if anchor == "end" else LEFT + place * step
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{escape(labels[place])}</text>')
    about = f"{title}: {sum(sums):g} {unit} in {len(labels)} columns, at most {max(sums, default=0):g} in one."
    return _wrap_svg(parts, width, HEIGHT, about)


def percentile_plot(statistic: Statistic, *, most: float, width: int = 220) -> Markup:
    """Draw the p50, p95 and p99 of a hook's durations on a logarithmic scale.

    Args:
        statistic: The statistic of the hook.
        most: The end of the scale, in milliseconds.
        width: The width in pixels.
    """
    scale = math.log10(max(most, 0.01) * 1e3 + 1)

    def x(ms: float) -> float:
        return 2 + (width - 4) * min(math.log10(ms * 1e3 + 1) / scale, 1.0)

    p50, p95, p99 = x(statistic.p50_ms), x(statistic.p95_ms), x(statistic.p99_ms)
    parts = [
        f'<line class="plot-rail" x1="0" y1="8" x2="{width}" y2="8"/>',
        f'<line class="plot-span" x1="{p50:.1f}" y1="8" x2="{p99:.1f}" y2="8"/>',
        f'<circle class="plot-p50" cx="{p50:.1f}" cy="8" r="3.5"/>',
        f'<rect class="plot-p95" x="{p95 - 1:.1f}" y="3" width="2" height="10"/>',
        f'<rect class="plot-p99" x="{p99 - 1:.1f}" y="2" width="2" height="12"/>',
    ]
    about = f"p50 {statistic.p50_ms:g} ms, p95 {statistic.p95_ms:g} ms, p99 {statistic.p99_ms:g} ms"
    return _wrap_svg(parts, width, 16, about)


def round_up(value: float) -> float:
    """Return the next round number (1, 2, 5 or 10 times a power of ten)."""
    if value <= 0:
        return 1.0
    value = max(value, sys.float_info.min)  # there is no power of ten below a denormal number
    power = 10.0 ** math.floor(math.log10(value))
    return next(float(step * power) for step in STEPS if step * power >= value)


def _axis(top: float, width: int, *, whole: bool) -> str:
    lines = []
    for part in (0.0, 0.5, 1.0):
        if whole and not (top * part).is_integer():
            continue
        y = (HEIGHT - BOTTOM) * (1 - part)
        lines.append(f'<line class="plot-grid" x1="{LEFT}" y1="{y:.1f}" x2="{width}" y2="{y:.1f}"/>')
        if part:
            lines.append(f'<text x="{LEFT - 6}" y="{y + 9:.1f}" text-anchor="end">{top * part:g}</text>')
    return "".join(lines)


def _wrap_svg(parts: Sequence[str], width: int, height: int, about: str) -> Markup:
    # Texts from outside were escaped where they were inserted.
    return Markup(
        f'<svg class="plot" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )
