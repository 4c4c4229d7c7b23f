"""A shop's tools, and a check of what it sold: what the suites beside this file test."""

from hookline import Tool, tool
from hookline.evals.suites import FinishedTask


def tools() -> list[Tool]:
    """The tools over a stock of their own; called once per task, so that no task sees another's orders."""
    stock = {"tea": 4, "milk": 0}

    @tool(in_thread=False)
    def price(item: str) -> str:
        """Look up a price."""
        return f"{item} costs {len(item)} EUR"

    @tool(in_thread=False)
    def order(item: str, count: int = 1) -> str:
        """Order something."""
        if stock.get(item, 0) < count:
            raise ValueError(f"only {stock.get(item, 0)} of {item} left")
        stock[item] -= count
        return f"ordered {count} {item}"

    @tool(in_thread=False)
    def pay(amount: float) -> str:
        """Pay with a real card."""
        return f"paid {amount} EUR"

    return [price, order, pay]


def says_what_was_ordered(task: FinishedTask) -> object:
    """Every item that was ordered is in the answer."""
    ordered = [str(call.args["item"]) for call in task.calls if call.tool_name == "order"]
    missing = [item for item in ordered if item not in task.output]
    return not missing or f"the answer does not name {', '.join(missing)}"
