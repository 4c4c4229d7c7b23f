"""The report in a real browser: nothing overlaps, nothing is pushed out, and the filter finds what is folded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from hookline.evals import SuiteRun, compare
from hookline.evals.reports import write_report

WIDTHS = (1280, 800, 390, 320)
OVERLAPS = """() => [...document.querySelectorAll(".axis .track")].filter((track) => {
  const marks = [...track.children].map((each) => each.getBoundingClientRect()).filter((each) => each.width);
  return marks.some((each, index) => index && each.left < marks[index - 1].right);
}).map((track) => `${track.clientWidth} px: ${track.innerText}`)"""


@pytest.fixture(scope="module")
def report(browser: Any, real: SuiteRun, replayed: SuiteRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    few = [[each for each in run.results if each.suite in ("banking", "travel")] for run in (real, replayed)]
    runs = [replace(run, results=results) for run, results in zip((real, replayed), few, strict=True)]
    path: Path = write_report(tmp_path_factory.mktemp("page") / "r.html", runs, compare(*runs))
    page = browser.new_page()
    page.goto(path.as_uri())
    yield page
    page.close()


def test_the_labels_of_an_axis_never_touch(report: Any) -> None:
    report.get_by_role("button", name="Open all").click()

    for width in WIDTHS:
        report.set_viewport_size({"width": width, "height": 800})
        assert report.evaluate(OVERLAPS) == []
        assert report.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_no_figure_is_alone_in_its_row(report: Any) -> None:
    tops = "(figures) => figures.map((each) => Math.round(each.getBoundingClientRect().top))"

    for width in WIDTHS:
        report.set_viewport_size({"width": width, "height": 800})
        found = report.locator(".figures").first.locator("div").evaluate_all(tops)
        assert min(found.count(top) for top in found) > 1


def test_a_report_of_suites_that_passed_is_short_and_its_filter_opens_them(report: Any) -> None:
    report.set_viewport_size({"width": 1280, "height": 900})
    report.reload()
    task = report.locator(".task", has_text="user_task_3").first

    assert report.evaluate("document.documentElement.scrollHeight") < 1.5 * 900
    expect(task).to_be_hidden()
    report.get_by_label("Filter").fill("user_task_3")
    expect(task).to_be_visible()
