"""The report in a real browser: tasks are drawn when they are looked at, found by words, and nothing is pushed out."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from playwright.sync_api import expect

from hookline.evals import SuiteRun, compare, record
from hookline.evals.reports import write_report
from hookline.evals.suites import checks
from tests.axe import SCRIPT, find_serious

from .shop import ask_for_tea, run_suite
from .test_report import HostileSuite

WIDTHS = (1280, 800, 390, 320)
OVERLAPS = """() => [...document.querySelectorAll(".axis .track")].filter((track) => {
  const marks = [...track.children].map((each) => each.getBoundingClientRect()).filter((each) => each.width);
  return marks.some((each, index) => index && each.left < marks[index - 1].right);
}).map((track) => `${track.clientWidth} px: ${track.innerText}`)"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def make_run(function: Callable[[], SuiteRun]) -> SuiteRun:
    """Make a run in a thread of its own, since Playwright runs an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


class Shown:
    """A report in a browser, with everything that the console said."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append("a dialog"), dialog.dismiss()))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def report(browser: Any, real: SuiteRun, replayed: SuiteRun, folder: Path) -> Iterator[Shown]:
    few = [[each for each in run.results if each.suite in ("banking", "travel")] for run in (real, replayed)]
    runs = [replace(run, results=results) for run, results in zip((real, replayed), few, strict=True)]
    shown = Shown(browser, write_report(folder / "pair.html", runs, compare(*runs)))
    yield shown
    shown.page.close()


@pytest.fixture(scope="module")
def many(browser: Any, folder: Path) -> Iterator[Shown]:
    run = make_run(lambda: run_suite([ask_for_tea(checks=[checks.output_contains("EUR")])]))
    [one] = run.results
    results = [
        msgspec.structs.replace(
            one,
            task_id=f"tea-{number:03}",
            cost_usd=number / 100,
            tags=["eu" if number % 2 else "us"],
            utility=number % 50 != 7,
        )
        for number in range(400)
    ]
    shown = Shown(browser, write_report(folder / "many.html", [replace(run, results=results)]))
    yield shown
    shown.page.close()


def test_a_task_is_opened_by_keyboard_and_shows_calls_with_arguments_and_results(report: Shown) -> None:
    page = report.page
    task = page.locator("details.task").filter(has_text="user_task_3").first

    task.locator("summary").first.focus()
    page.keyboard.press("Enter")
    call = task.locator("details.line").filter(has_text="banking/send_money").first
    call.locator("summary").focus()
    page.keyboard.press("Enter")

    expect(call.locator("dd").first).to_contain_text('"recipient"')
    expect(call).to_contain_text("by the real tool")
    expect(task.locator(".side")).to_have_count(2)
    assert report.problems == []


def test_the_labels_of_an_axis_never_touch_and_nothing_is_pushed_out(report: Shown) -> None:
    page = report.page
    for task in page.locator("details.task").all()[:3]:
        task.evaluate("(task) => { task.open = true; }")
    expect(page.locator(".axis").nth(5)).to_be_attached()  # the page lets no string be evaluated again and again

    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate(TOO_WIDE) == 0
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious(report: Shown, scheme: Any, width: int) -> None:
    page = report.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.reload()
    page.locator("details.task summary").first.click()
    page.locator("details.line summary").first.click()

    page.evaluate(SCRIPT)
    assert find_serious(page) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_rows_are_drawn_as_they_are_scrolled_to(many: Shown) -> None:
    page = many.page
    page.reload()
    rows = page.locator("details.task")
    before = rows.count()

    page.evaluate("document.getElementById('more').scrollIntoView()")
    expect(rows.nth(before)).to_be_attached()

    assert before < 400
    expect(page.locator("#count")).to_have_text("400 tasks")


def test_the_filter_finds_tasks_that_are_not_drawn_by_text_result_and_tag(many: Shown) -> None:
    page = many.page
    page.reload()
    rows = page.locator("details.task")

    page.get_by_label("Filter").fill("tea-39")
    expect(page.locator("#count")).to_have_text("10 of 400 tasks")
    expect(rows).to_have_count(10)
    page.get_by_label("Tag").select_option("us")
    expect(page.locator("#count")).to_have_text("5 of 400 tasks")
    page.get_by_label("Filter").fill("")
    page.get_by_label("Result").select_option("not passed")
    expect(page.locator("#nothing")).to_be_visible()
    page.get_by_label("Tag").select_option("eu")
    expect(rows).to_have_count(8)
    assert many.problems == []


def test_tasks_are_put_in_order(many: Shown) -> None:
    page = many.page
    page.reload()
    first = page.locator("details.task .name").first

    expect(first).to_have_text("tea-007")
    page.get_by_label("Order").select_option("highest cost")
    expect(first).to_have_text("tea-399")


def test_a_link_to_a_task_opens_it(browser: Any, many: Shown, folder: Path) -> None:
    page = browser.new_page()
    page.goto(f"{(folder / 'many.html').as_uri()}#shop/tea-350")
    page.wait_for_selector("html[data-ready]")

    expect(page.locator("details.task[open] .name")).to_have_text("tea-350")
    expect(page.locator("details.task[open]")).to_be_in_viewport()
    page.close()


def test_a_printed_page_has_a_row_for_every_task_and_no_controls(many: Shown) -> None:
    page = many.page
    page.reload()

    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    expect(page.locator("details.task")).to_have_count(400)
    expect(page.locator("#controls")).to_be_hidden()
    page.emulate_media(media="screen")


def test_hostile_texts_are_shown_and_do_nothing(browser: Any, folder: Path) -> None:
    suite = HostileSuite()
    run = make_run(lambda: anyio.run(partial(record, [(suite, task_id) for task_id in suite.select()])))
    shown = Shown(browser, write_report(folder / "hostile.html", [run]))

    expect(shown.page.locator(".detail .asked")).to_contain_text("<script>alert('pwned')</script>")
    expect(shown.page.locator(".detail .said")).to_contain_text("{{ 7 * 7 }}")
    for line in shown.page.locator("details.line").all():
        line.evaluate("(line) => { line.open = true; }")
    for width in WIDTHS:
        shown.page.set_viewport_size({"width": width, "height": 800})
        assert shown.page.evaluate(TOO_WIDE) == 0
    assert shown.page.locator("main img").count() == 0
    assert shown.problems == []
    shown.page.close()


def test_a_detail_that_was_damaged_says_so_and_leaves_the_others(browser: Any, folder: Path) -> None:
    path = write_report(folder / "damaged.html", [make_run(lambda: run_suite([ask_for_tea()]))])
    text = path.read_text(encoding="utf-8")
    head, mark, rest = text.partition('id="chunk-0">')
    spoilt = base64.b64encode(b"not deflated").decode()
    path.write_text(head + mark + spoilt + rest[rest.index("</script>") :], encoding="utf-8")

    shown = Shown(browser, path)

    expect(shown.page.locator(".detail .no")).to_contain_text("The detail of this task cannot be shown")
    shown.page.close()
