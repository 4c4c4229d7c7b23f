"""Plots are SVG that a strict page may show, whatever the figures are."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.registry import Statistic
from hookline.registry._statistics import COUNTS
from hookline.server.page._plots import Series, align_spans, column_plot, percentile_plot, round_up
from hookline.server.page._templates import page_environment

FIGURES = st.floats(0, 1e9, allow_nan=False)


def statistic(**fields: float) -> Statistic:
    known = {**dict.fromkeys(COUNTS, 0), "count": 1, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0}
    return Statistic(**(known | fields))  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.text(max_size=5), FIGURES, FIGURES), max_size=80))
def test_whatever_is_plotted_stays_inside_of_the_picture(rows: list[tuple[str, float, float]]) -> None:
    labels = [label.translate(dict.fromkeys(range(32), "")).encode("utf-8", "ignore").decode() for label, _, _ in rows]
    series = [
        Series(name="ok", values=[value for _, value, _ in rows]),
        Series(name="failed", values=[value for _, _, value in rows]),
    ]

    plot = column_plot(labels, series, unit="runs", title="Runs", width=500)

    picture = ElementTree.fromstring(plot.replace("\ufffe", "").replace("\uffff", ""))
    for column in picture.iter("rect"):
        top, high = float(column.attrib["y"]), float(column.attrib["height"])
        assert top >= -1.5
        assert top + high <= 102.5
        assert float(column.attrib["x"]) <= 500


@given(st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False))
def test_the_top_of_an_axis_is_never_below_what_is_plotted(value: float) -> None:
    assert round_up(value) >= value


def test_a_label_is_no_markup() -> None:
    plot = column_plot(["<script>"], [Series(name="ok", values=[1])], unit="runs", title="<b>")

    assert "<script>" not in plot
    assert "<b>" not in plot
    assert "style=" not in plot


@pytest.mark.parametrize(("most", "ticks"), [(1, ["1"]), (2, ["1", "2"]), (5, ["5"]), (40, ["25", "50"])])
def test_an_axis_of_counts_names_no_parts_of_one(most: int, ticks: list[str]) -> None:
    plot = column_plot(["12:00"], [Series(name="ok", values=[most])], unit="runs", title="Runs", whole=True)

    named = [each.text for each in ElementTree.fromstring(plot).iter("text")]
    assert named == [*ticks, "12:00"]


@pytest.mark.parametrize(
    ("ms", "told"), [(0.0, "< 1 µs"), (0.0004, "< 1 µs"), (0.0025, "2.5 µs"), (3.0, "3.0 ms"), (None, "—")]
)
def test_what_took_a_time_took_more_than_none(ms: float | None, told: str) -> None:
    assert page_environment().filters["ms"](ms) == told


@given(FIGURES, FIGURES, FIGURES)
def test_the_marks_of_a_ladder_are_in_order(first: float, second: float, third: float) -> None:
    p50, p95, p99 = sorted([first, second, third])

    picture = ElementTree.fromstring(percentile_plot(statistic(p50_ms=p50, p95_ms=p95, p99_ms=p99), most=p99))

    circle = next(picture.iter("circle"))
    marks = [float(circle.attrib["cx"]), *(float(mark.attrib["x"]) + 1 for mark in picture.iter("rect"))]
    assert marks == sorted(marks)
    assert marks[0] >= 0
    assert marks[-1] <= 220


def test_minutes_without_runs_are_there_too() -> None:
    starts, known = align_spans([statistic(minute=540)], now=610.0, by="minute", count=3)

    assert starts == [480, 540, 600]
    assert [each is not None for each in known] == [False, True, False]
