"""Small plots as SVG, without a script and without a style attribute, so that a strict page may show them."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec
from markupsafe import Markup, escape

from hookline.registry import Statistic

__all__ = ["Series", "columns", "ladder", "minutes"]

HEIGHT, LEFT, BOTTOM = 120, 40, 18
STEPS = (1, 2, 5, 10)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that are drawn on top of each other.

    Attributes:
        name: What they are; also the class that colours them.
        values: One for each column.
    """

    name: str
    values: Sequence[float]


def minutes(
    statistics: Sequence[Statistic], *, now: float, count: int = 60
) -> tuple[list[int], list[Statistic | None]]:
    """The last minutes, with what there is of each.

    Args:
        statistics: By minutes.
        now: The time, in seconds since 1970.
        count: How many minutes.

    Returns:
        When each begins, in seconds since 1970, and what is known of it.
    """
    known = {each.minute: each for each in statistics}
    last = int(now // 60) * 60
    starts = [last - 60 * back for back in reversed(range(count))]
    return starts, [known.get(start) for start in starts]


def columns(
    labels: Sequence[str], series: Sequence[Series], *, unit: str, title: str, width: int = 560, whole: bool = False
) -> Markup:
    """Columns side by side, of series on top of each other.

    Args:
        labels: What each column is.
        series: From the bottom up.
        unit: What is counted, for those who hear the plot instead of seeing it.
        title: What is plotted.
        width: In pixels of the plot itself.
        whole: Whether what is counted has no parts, so that the axis is to name none.
    """
    sums = [sum(each.values[place] for each in series) for place in range(len(labels))]
    top = ceiling(max(sums, default=0))
    step = (width - LEFT) / max(len(labels), 1)
    parts = [_axis(top, width, whole=whole)]
    for place, label in enumerate(labels):
        below = 0.0
        told = ", ".join(f"{each.values[place]:g} {each.name}" for each in series if each.values[place])
        if not told:
            continue
        parts.append(f"<g><title>{escape(f'{label}: {told}')}</title>")
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
    return _svg(parts, width, HEIGHT, about)


def ladder(statistic: Statistic, *, most: float, width: int = 220) -> Markup:
    """Where half, 95 % and 99 % of the durations of a hook end, on a logarithmic scale.

    Args:
        statistic: Of the hook.
        most: The greatest duration on the scale, in milliseconds.
        width: In pixels.
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
    about = (
        f"Half below {statistic.p50_ms:g} ms, 95 % below {statistic.p95_ms:g} ms, 99 % below {statistic.p99_ms:g} ms"
    )
    return _svg(parts, width, 16, about)


def ceiling(value: float) -> float:
    """The next round number."""
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


def _svg(parts: Sequence[str], width: int, height: int, about: str) -> Markup:
    # What comes from elsewhere was escaped where it was put in.
    return Markup(
        f'<svg class="plot" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )
