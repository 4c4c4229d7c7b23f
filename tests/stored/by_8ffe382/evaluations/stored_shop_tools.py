"""The tools of the suite in this folder, and a check of it."""

from hookline import Tool, tool
from hookline.evals.suites import FinishedTask


def tools() -> list[Tool]:
    """Return the tools over a stock of their own."""
    stock = {"tea": 4, "milk": 0}

    @tool(in_thread=False)
    def price(item: str) -> str:
        """Look up a price."""
        return f"{item} costs {len(item)} EUR"

    @tool(in_thread=False)
    def order(item: str, count: int = 1) -> str:
        """Order something."""
        stock[item] -= count
        return f"ordered {count} {item}"

    @tool(in_thread=False)
    def pay(amount: float) -> str:
        """Pay with a real card."""
        return f"paid {amount} EUR"

    return [price, order, pay]


def says_what_was_ordered(task: FinishedTask) -> object:
    """Every item that was ordered is in the answer."""
    missing = [
        call.args["item"] for call in task.calls if "count" in call.args and call.args["item"] not in task.output
    ]
    return not missing or f"the answer does not name {missing}"


def nothing_failed(task: FinishedTask) -> object:
    """No tool call failed."""
    return task.recorded.failed == 0 or "a tool call failed"
