"""A customer service agent and a judge. Both models are played by rules, so that the suite runs offline."""

import re

from hookline import Agent, ModelCall, ScriptedModel, ToolRequest, tool


@tool(in_thread=False)
def get_order(order: str) -> str:
    """Look up an order."""
    return f"Order {order} is on its way."


@tool(in_thread=False)
def refund(order: str) -> str:
    """Give the money back. The suite mocks it."""
    raise AssertionError("money was moved")


def answer(call: ModelCall) -> str | ToolRequest:
    """Look the order up, try again if that fails, refund it if asked to, and say what happened."""
    asked = " ".join(message.content for message in call.messages if message.role == "user")
    read = [message.content for message in call.messages if message.role == "tool"]
    order = re.search(r"[A-C]-\d", asked)
    if order is None:
        return "Gladly! Which order is it about?"
    if not read or "busy" in read[-1]:
        return ToolRequest("get_order", {"order": order[0]})
    if "refund" in asked and "refunded" not in read[-1]:
        return ToolRequest("refund", {"order": order[0]})
    return f"Gladly! {read[-1]}"


agent = Agent(id="support", model=ScriptedModel(answer), tools=[get_order, refund])
judge = ScriptedModel(lambda call: f'{{"grade": {5 if "Gladly" in call.messages[-1].content else 1}}}')
