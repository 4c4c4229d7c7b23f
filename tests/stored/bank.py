"""A bank's agent: what the stored files were made with, and what the tests go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hookline import (
    Agent,
    AgentCall,
    Ask,
    Hook,
    Hooks,
    ModelResponse,
    OnStopByHumanIntervention,
    ScriptedModel,
    SubAgentCall,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    tool,
)

from .samples import Request, request

INSTRUCTIONS = "Be brief, and pay nobody twice."
DEEP: dict[str, Any] = {}
for _ in range(40):
    DEEP = {"in": DEEP}
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
LETTER = "Dear Ann,\n\n  you owe us:\t3 €\n- rent\n- light # both\n\nYours\n"


def turn(content: str, *requests: Request, tokens: int = 10, cost_usd: float = 0.25) -> ModelResponse:
    """Return what a model says in one turn."""
    usage = Usage(input_tokens=tokens, output_tokens=tokens // 2, cost_usd=cost_usd)
    return ModelResponse(content=content, tool_calls=list(requests), usage=usage)


# A run that pauses.


class Bank:
    """Tools that note what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tools(self) -> list[Tool]:
        """Return the tools: `pay` needs a person, `note` is asked about by a hook."""

        @tool
        async def balance(account: str) -> dict[str, Any]:
            """Look up a balance."""
            return {"account": account, "euros": 40}

        @tool(needs_approval=True)
        async def pay(to: str, amount: float) -> str:
            """Pay somebody."""
            self.done.append(f"pay {to} {amount:g}")
            return f"paid {amount:g} to {to}"

        @tool
        async def note(text: str) -> str:
            """Write a note."""
            self.done.append(f"note {text}")
            return "noted"

        return [balance, pay, note]


PAUSING = [
    turn(
        "Let me look.",
        request("balance", "t1", account="main"),
        request("auditor", "t2", toolset="agent", instruction="Is the rent due?"),
    ),
    turn(
        "I pay both, and write it down.",
        request("pay", "t3", to="landlord", amount=30),
        request("pay", "t4", to="Mallory", amount=9),
        request("note", "t5", text="rent"),
    ),
]


def banker(bank: Bank, script: Sequence[ModelResponse] | Any) -> Agent:
    """Return the agent, with a sub-agent that answers once."""
    auditor = Agent(id="auditor", model=ScriptedModel([turn("It is due.", tokens=4, cost_usd=0.5)]))
    model = ScriptedModel(script)
    return Agent(id="banker", model=model, tools=bank.tools(), sub_agents=[auditor], instructions="Be brief.")


def rules() -> list[Hooks | Hook]:
    """Return hooks that steer the run, and one that travels with it."""
    hooks = Hooks("rules")

    @hooks.before(AgentCall)
    def instruct(call: AgentCall) -> AgentCall:
        call.metadata["ticket"] = 7
        tools = [msgspec.structs.replace(each, description=f"{each.description} (bank)") for each in call.tools]
        return msgspec.structs.replace(call, instructions=INSTRUCTIONS, tools=tools)

    @hooks.guard(ToolCall, tool="*/note")
    def ask(call: ToolCall) -> Ask:
        return Ask("May I write that down?")

    @hooks.before(SubAgentCall)
    def watch(call: SubAgentCall) -> None:
        pass

    url = "local://ledger"
    return [hooks, Hook(id="ledger", type=OnStopByHumanIntervention, webhook={"url": url, "body": {"team": "risk"}})]


# A run whose tool calls are recorded.

RECORDED = [
    turn("", request("login", "t1", user="ann", password=SECRET)),
    turn("", request("letter", "t2", number=1)),
    turn("", request("letter", "t3", number=1)),
    turn("", request("letter", "t4", number=2)),
    turn("", request("odd", "t5", values=[None, True, 1, 2.5, "yes", "1", "", {"a b": {}, "ü": DEEP}], text=LETTER)),
    turn("", request("broken", "t6"), request("refused", "t7", why="a: b")),
    turn("", request("clerk", "t8", toolset="agent", instruction="Read letter 1.")),
    turn("done"),
]


def recorded_agent(*, real: bool, script: Sequence[ModelResponse] = RECORDED) -> Agent:
    """Return an agent whose tools raise `AssertionError`, unless they are real."""
    letters = 0

    def run() -> None:
        assert real, "a tool ran although its answer was recorded"

    @tool
    async def login(user: str, password: str) -> ToolResult:
        """Log in."""
        run()
        return ToolResult(content=f"welcome {user}, your key is {SECRET}", metadata={"session": [1, None]})

    @tool
    async def letter(number: int) -> str:
        """Read a letter."""
        nonlocal letters
        run()
        letters += 1
        return f"{LETTER}{number} ({letters})"

    @tool
    async def odd(values: list[Any], text: str) -> dict[str, Any]:
        """Return what it is given."""
        run()
        return {"values": values, "text": text}

    @tool
    async def broken() -> str:
        """Raise."""
        run()
        raise ConnectionError("the line is down")

    @tool
    async def refused(why: str) -> ToolResult:
        """Fail."""
        run()
        return ToolResult(content=f"refused: {why}", success=False)

    reading = [turn("", request("letter", "u1", number=1)), turn("read")]
    clerk = Agent(id="clerk", model=ScriptedModel(reading), tools=[letter])
    tools = [login, letter, odd, broken, refused]
    return Agent(id="reader", model=ScriptedModel(script), tools=tools, sub_agents=[clerk])
