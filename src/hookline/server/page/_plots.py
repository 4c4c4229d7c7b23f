"""Draw small plots as SVG, without scripts and style attributes, which the page's content security policy forbids."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from markupsafe import Markup, escape

from hookline.registry import Statistic

__all__ = [
    "Series",
    "align_spans",
    "column_plot",
    "legend_key",
    "line_key",
    "line_plot",
    "percentile_plot",
    "share_plot",
]

HEIGHT, LEFT, BOTTOM = 120, 40, 18
SHORTEST_TEXTURE = 3.0
STEPS = (1, 2, 5, 10)


def _texture(name: str, lines: str) -> str:
    return (
        f'<pattern id="texture-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path class="plot-texture" d="{lines}"/></pattern>'
    )


_textures = {
    "stopped": _texture("stopped", "M0 3H6"),
    "denied": _texture("denied", "M0 3H6"),
    "failed": _texture("failed", "M0 6L6 0M-1 1L1 -1M5 7L7 5M0 0L6 6M-1 5L1 7M5 -1L7 1"),
    "live": _texture("live", "M0 6L6 0M-1 1L1 -1M5 7L7 5"),
}
"""Lines over the colour of a series, so that it is known without colour. They are the same in all plots of a page."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One series of a stacked column plot.

    Attributes:
        name: The name of the series, which is also its CSS class.
        values: The value of each column.
    """

    name: str
    values: Sequence[float]


def align_spans(
    statistics: Sequence[Statistic], *, now: float, by: Literal["minute", "hour"], count: int
) -> tuple[list[int], list[Statistic | None]]:
    """Align statistics by minute or hour with the last minutes or hours.

    Args:
        statistics: Statistics by minute or hour.
        now: The present time, in unix seconds.
        by: Whether they are by minute or by hour.
        count: Number of minutes or hours.

    Returns:
        The start of each in unix seconds, and its statistic, if there is one.
    """
    length = 60 if by == "minute" else 3600
    known = {getattr(each, by): each for each in statistics}
    last = int(now // length) * length
    starts = [last - length * back for back in reversed(range(count))]
    return starts, [known.get(start) for start in starts]


def column_plot(
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    unit: str,
    title: str,
    width: int = 560,
    whole: bool = False,
    format_value: Callable[[float], str] = "{:g}".format,
    links: Sequence[str] = (),
) -> Markup:
    """Draw a stacked column plot.

    Args:
        labels: The label of each column.
        series: The series, from the bottom up.
        unit: The unit of the values, for screen readers.
        title: The title of the plot.
        width: The width in pixels of the plot itself.
        whole: Whether values are whole numbers, so that the axis has no fractions.
        format_value: Formats a value.
        links: The address behind each column, if there are any.
    """
    sums = [sum(each.values[place] for each in series) for place in range(len(labels))]
    top = round_up(max(sums, default=0))
    step = (width - LEFT) / max(len(labels), 1)
    parts = [_axis(top, width, whole=whole, format_value=format_value)]
    parts += [_textures[each.name] for each in series if each.name in _textures]
    for place, label in enumerate(labels):
        below = 0.0
        values = ", ".join(f"{format_value(each.values[place])} {each.name}" for each in series if each.values[place])
        if not values:
            continue
        # Not reached by the tabulator key: a table has the same links, and hundreds of stops help nobody.
        parts.append(f'<a href="{escape(links[place])}" tabindex="-1">' if links else "<g>")
        parts.append(f"<title>{escape(f'{label}: {values}')}</title>")
        for each in series:
            value = each.values[place]
            if value:
                high = max((HEIGHT - BOTTOM) * value / top, 1.0)
                y = HEIGHT - BOTTOM - below - high
                parts.append(
                    f'<rect class="plot-{escape(each.name)}" x="{LEFT + place * step:.1f}" y="{y:.1f}" '
                    f'width="{max(step - 1, 0.8):.1f}" height="{high:.1f}"/>'
                )
                if each.name in _textures and high >= SHORTEST_TEXTURE:
                    parts.append(
                        f'<rect fill="url(#texture-{escape(each.name)})" x="{LEFT + place * step:.1f}" y="{y:.1f}" '
                        f'width="{max(step - 1, 0.8):.1f}" height="{high:.1f}"/>'
                    )
                below += high
        parts.append("</a>" if links else "</g>")
    parts += _label_columns(labels, step, width)
    about = f"{title}: {sum(sums):g} {unit} in {len(labels)} columns, at most {max(sums, default=0):g} in one."
    # A picture must not contain links for those who cannot see it; a group may.
    return _wrap_svg(parts, width, HEIGHT, about, role="group" if links else "img")


def _label_columns(labels: Sequence[str], step: float, width: int) -> list[str]:
    """Draw the labels of the first, the middle and the last column."""
    parts = []
    for place in sorted({0, len(labels) // 2, len(labels) - 1}) if labels else ():
        anchor = "start" if place == 0 else "end" if place == len(labels) - 1 else "middle"
        x = width if anchor == "end" else LEFT + place * step
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{escape(labels[place])}</text>')
    return parts


def line_plot(
    labels: Sequence[str],
    lines: Sequence[tuple[str, Sequence[float | None]]],
    *,
    title: str,
    format_value: Callable[[float], str],
    width: int = 560,
) -> Markup:
    """Draw lines, which are interrupted where there is no value.

    Args:
        labels: The label of each place.
        lines: The name of each line, which is also its CSS class, and its values.
        title: The title of the plot.
        format_value: Formats a value.
        width: The width in pixels of the plot itself.
    """
    known = [value for _, values in lines for value in values if value is not None]
    top = round_up(max(known, default=0))
    step = (width - LEFT) / max(len(labels), 1)
    parts = [_axis(top, width, whole=False, format_value=format_value)]
    for name, values in lines:
        points = [
            None if value is None else (LEFT + (place + 0.5) * step, (HEIGHT - BOTTOM) * (1 - value / top))
            for place, value in enumerate(values)
        ]
        path, draws = "", False
        for point in points:
            if point is not None:
                path += f"{'L' if draws else 'M'}{point[0]:.1f} {point[1]:.1f}"
            draws = point is not None
        parts.append(f'<path class="plot-line plot-line-{escape(name)}" d="{path}" fill="none"/>')
        for point, label, value in zip(points, labels, values, strict=True):
            if point is not None and value is not None:
                told = escape(f"{label}: {name} {format_value(value)}")
                parts.append(
                    f'<circle class="plot-dot plot-line-{escape(name)}" cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2">'
                    f"<title>{told}</title></circle>"
                )
    parts += _label_columns(labels, step, width)
    about = f"{title}: at most {format_value(max(known))}." if known else f"{title}: no values."
    return _wrap_svg(parts, width, HEIGHT, about)


def share_plot(part: float, *, width: int = 96) -> Markup:
    """Draw a bar that is filled in part.

    Args:
        part: The fraction, from 0 to 1.
        width: The width in pixels.
    """
    filled = max(width * min(max(part, 0.0), 1.0), 1.0 if part > 0 else 0.0)
    return Markup(
        f'<svg class="plot share" viewBox="0 0 {width} 8" width="{width}" height="8" aria-hidden="true">'
        f'<rect class="plot-rest" width="{width}" height="8" rx="2"/>'
        f'<rect class="plot-cost" width="{filled:.1f}" height="8" rx="2"/></svg>'
    )


def legend_key(name: str) -> Markup:
    """Draw the key of a series for the legend, in its colour and texture."""
    texture = f'<rect width="12" height="12" fill="url(#texture-{escape(name)})"/>' if name in _textures else ""
    return Markup(
        f'<svg class="plot" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">{_textures.get(name, "")}'
        f'<rect class="plot-{escape(name)}" width="12" height="12"/>{texture}</svg>'
    )


def line_key(name: str) -> Markup:
    """Draw the key of a line for the legend, in its colour and dashes."""
    return Markup(
        f'<svg class="plot is-line" viewBox="0 0 22 12" width="22" height="12" aria-hidden="true">'
        f'<path class="plot-line plot-line-{escape(name)}" d="M0 6H22" fill="none"/></svg>'
    )


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


def _axis(top: float, width: int, *, whole: bool, format_value: Callable[[float], str] = "{:g}".format) -> str:
    lines = []
    for part in (0.0, 0.5, 1.0):
        if whole and not (top * part).is_integer():
            continue
        y = (HEIGHT - BOTTOM) * (1 - part)
        lines.append(f'<line class="plot-grid" x1="{LEFT}" y1="{y:.1f}" x2="{width}" y2="{y:.1f}"/>')
        if part:
            lines.append(
                f'<text x="{LEFT - 6}" y="{y + 9:.1f}" text-anchor="end">{escape(format_value(top * part))}</text>'
            )
    return "".join(lines)


def _wrap_svg(parts: Sequence[str], width: int, height: int, about: str, *, role: str = "img") -> Markup:
    # Texts from outside were escaped where they were inserted.
    return Markup(
        f'<svg class="plot" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="{role}" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )
