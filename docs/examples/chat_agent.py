"""A clerk of a small bank, to be tried with `hookline chat chat_agent.py`. Its model is a script: it needs no key.

It understands "balance", "pay Ada 50", "rob the bank" and "thanks".
"""

import re

from hookline import Agent, Ask, Deny, Hooks, ModelCall, ModelResponse, ScriptedModel, ToolCall, ToolRequest, tool

ledger = {"Ada": 20, "Bob": 0, "you": 1000}


@tool
async def balance(account: str = "you") -> str:
    """Look up how much somebody has."""
    return f"{account}: {ledger[account]} EUR"


@tool(needs_approval=True)
async def pay(to: str, amount: int) -> str:
    """Pay somebody out of your account."""
    ledger["you"] -= amount
    ledger[to] += amount
    return f"paid {amount} EUR to {to}"


@tool
async def rob() -> str:
    """Take everything."""
    return "robbed"


rules = Hooks("rules")


@rules.guard(ToolCall, tool="*/rob")
def no_robbery(call: ToolCall) -> Deny:
    return Deny("this is a respectable bank")


@rules.guard(ToolCall, tool="*/pay")
def second_look(call: ToolCall) -> Ask | None:
    return Ask("That is more than half of what you have. Really?") if call.args["amount"] > 500 else None


def answer(call: ModelCall) -> ModelResponse:
    last = call.messages[-1]
    if last.role == "tool":
        told = [message.content for message in call.messages[call_for(call) :] if message.role == "tool"]
        return ModelResponse(content="Here is what came of it:\n" + "\n".join(f"- {line}" for line in told))
    text = last.content.lower()
    if "balance" in text:
        return asks(("balance", {}), ("balance", {"account": "Ada"}))
    if payment := re.search(r"pay (\w+) (\d+)", text):
        return asks(("pay", {"to": payment[1].title(), "amount": int(payment[2])}))
    if "rob" in text:
        return asks(("rob", {}))
    if "thank" in text:
        return ModelResponse(content="You are welcome. It was a pleasure to do business with you.")
    return ModelResponse(content='I understand "balance", "pay Ada 50", "rob the bank" and "thanks".')


def asks(*calls: tuple[str, dict[str, object]]) -> ModelResponse:
    return ModelResponse(
        tool_calls=[
            ToolRequest(tool_name=name, args=args, tool_call_id=f"{name}_{number}")
            for number, (name, args) in enumerate(calls, start=1)
        ]
    )


def call_for(call: ModelCall) -> int:
    """Where the last question of the user is in the conversation."""
    return max(index for index, message in enumerate(call.messages) if message.role == "user")


agent = Agent(id="clerk", model=ScriptedModel(answer), tools=[balance, pay, rob], hooks=[rules])
