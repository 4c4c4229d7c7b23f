"""Take the picture of the report that the docs show: `make images`."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import anyio
from playwright.sync_api import sync_playwright

from hookline import Model, ScriptedModel, tool
from hookline.evals import SuiteRun, SuiteRunner, ToolMocks, cases_of, judge
from hookline.evals.faults import FailedResult, FaultSpec
from hookline.evals.reports import write_report
from hookline.evals.suites import Expected, Task, UserSuite, asks, checks, says
from tests.browsers import FLAGS, find_chromium

TARGET = Path(__file__).parents[2] / "docs" / "images" / "report.png"
COMMAND = "hookline eval support.yaml --repeat 3 --seed 4 --report report.html"


@tool(in_thread=False)
def get_order(order: str) -> str:
    """Look up an order."""
    return f"Order {order}: two lamps, 84 EUR, delivered."


@tool(in_thread=False)
def refund(order: str, amount: float) -> str:
    """Refund an order."""
    return f"{amount:.2f} EUR are on their way."


def forgetful() -> Model:
    """Make a model that forgets to look the order up, one time in three."""
    looks = [asks("get_order", order="A-17"), asks("refund", order="A-17", amount=84.0), says("A-17 is refunded.")]
    return ScriptedModel(looks if next(turns) % 3 else looks[1:])


turns = itertools.count()


def mock_refunds(mocks: ToolMocks) -> None:
    """Answer every refund without a payment."""
    mocks.tool("refund", name="no money moves").template("{order} is refunded.")


def run_support() -> SuiteRun:
    """Run six tasks of a support agent three times each."""
    looked_up = Expected(calls=[("get_order", {"order": "A-17"}), ("refund", {"order": "A-17"})], args="superset")
    grades = ScriptedModel(lambda call: '{"reason": "It greets and answers in one sentence.", "grade": 5}')
    friendly = judge("The agent is friendly and brief.", model=grades, name="friendly")
    found = [asks("get_order", order="B-2"), says("Gladly! B-2 was delivered.")]
    tasks = [
        Task(id="refund-A-17", prompt="My lamps arrived broken. Refund A-17.", model=forgetful, mocks=mock_refunds,
             expected=looked_up, tags=["refunds"]),
        Task(id="refund-unknown", prompt="Refund my order.", script=[says("Which order is it about?")],
             checks=[checks.not_called("refund")], tags=["refunds"]),
        *(
            Task(id=f"track-{order}", prompt=f"Where is order {order}?", script=found,
                 checks=[checks.output_contains("delivered"), friendly], tags=["orders"])
            for order in ("B-2", "B-3", "C-1")
        ),
        Task(id="greeting", prompt="Hello!", script=[says("Hello! How can I help?")], checks=[friendly]),
    ]  # fmt: skip
    suite = UserSuite("support", tasks=tasks, tools=[get_order, refund])
    busy = FaultSpec(tool="get_order", fault=FailedResult("busy, try again"), name="busy", probability=0.1)
    runner = SuiteRunner(cases_of([suite]), repeat=3, faults=[busy], seed=4, concurrency=1, made_by=COMMAND)
    return anyio.run(runner.run)


def main(run: SuiteRun) -> None:
    """Write the report of a run and take its picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = write_report(Path(folder) / "report.html", [run])
        browser = playwright.chromium.launch(
            executable_path=find_chromium(os.environ, is_root=os.geteuid() == 0, folder=Path(".cache")).path,
            args=list(FLAGS),
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready] .detail .axis")
        page.screenshot(path=TARGET)
        browser.close()


if __name__ == "__main__":
    main(run_support())
