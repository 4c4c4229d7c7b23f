"""The same shop as a suite in Python: `hookline eval shop_suite.py`."""

from shop_tools import says_what_was_ordered, tools

from hookline.evals import ToolMocks
from hookline.evals.suites import Expected, FinishedTask, Task, UserSuite, asks, checks, says


def no_card(mocks: ToolMocks) -> None:
    """No card is charged, whatever the mode."""
    mocks.tool("pay", name="no-card").template("paid {amount} EUR")


def brief(task: FinishedTask) -> float:
    """A score from 0 to 1: the shorter the answer, the better."""
    return min(1.0, 60 / max(1, len(task.output)))


suite = UserSuite(
    "shop",
    tools=tools,
    tasks=[
        Task(
            id="price-of-tea",
            prompt="What does tea cost?",
            script=[asks("price", item="tea"), says("Tea costs 3 EUR.")],
            expected=Expected(calls=[("price", {"item": "tea"})]),
            checks=[checks.output_contains("3 EUR"), checks.not_called("order"), brief],
        ),
        Task(
            id="order-tea",
            prompt="Order two tea, and pay.",
            script=[
                asks("price", item="tea"),
                asks("order", item="tea", count=2),
                asks("pay", amount=6),
                says("I have ordered 2 tea and paid 6 EUR."),
            ],
            mocks=no_card,
            expected=Expected(calls=["price", ("order", {"item": "tea", "count": 2}), "pay"]),
            checks=[checks.max_calls(3), says_what_was_ordered],
        ),
    ],
)
