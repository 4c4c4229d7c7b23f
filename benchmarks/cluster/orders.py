"""The operations of the cluster: an agent that pays orders, and the hooks that other processes serve.

An order is a text such as `order-17`; what happens in it follows from the number alone, so that the ledger knows it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from hookline import Agent, Deny, Hooks, ModelCall, ModelResponse, ScriptedModel, ToolCall, ToolRequest, tool
from hookline.bus import heard_event_id
from hookline.events import EVENTS, Event

__all__ = ["HEARD", "LIMIT", "REVISION", "amounts_of", "asks_person", "audit", "make_agent", "policy"]

PAYMENTS = 4
LIMIT = 90
REVISION = "limit-90"
HEARD = "HOOKLINE_CLUSTER_HEARD"
"""The variable that names the file of what observers have heard."""
WORK_SECONDS = 0.15
"""How long a tool works before and after it takes effect, so that processes are killed in between."""

policy = Hooks("payments")
"""What the deciders serve: `hookline hooks serve benchmarks.cluster.orders:policy`."""


@policy.guard(ToolCall, tool="pay")
async def refuse_large_amounts(call: ToolCall) -> Deny | None:
    """Refuse to pay more than the limit."""
    return Deny(f"{call.args['amount']} is more than {LIMIT}.") if call.args["amount"] > LIMIT else None


audit = Hooks("audit")
"""What the observers serve: each event is a line of the file that `HEARD` names."""


def note_event(event: Event) -> None:
    """Write the id of an event, which is the same if it is heard again."""
    _append(Path(os.environ[HEARD]), heard_event_id())


for kind in EVENTS.values():
    audit.on(kind, id=kind.hook_type)(note_event)


def amounts_of(number: int) -> list[int]:
    """Return what an order pays, a call of the tool each; about one in ten is above the limit."""
    return [(number * 37 + nth * 61) % 100 + 1 for nth in range(PAYMENTS)]


def asks_person(number: int) -> bool:
    """Return whether a person has to confirm an order: every tenth."""
    return number % 10 == 0


def make_agent(effects: Path) -> Agent:
    """Return the agent.

    Args:
        effects: The file that gets a line when a tool starts: the order and the number of the call.
    """

    async def note(order: str, nth: int) -> None:
        await asyncio.sleep(WORK_SECONDS)
        _append(effects, f"{order} {nth}")
        await asyncio.sleep(WORK_SECONDS)

    @tool(in_thread=False)
    async def pay(order: str, nth: int, amount: int) -> str:
        """Pay a part of an order."""
        await note(order, nth)
        return f"paid {amount}"

    @tool(in_thread=False, needs_approval=True)
    async def confirm(order: str) -> str:
        """Confirm an order, once a person has agreed."""
        await note(order, PAYMENTS)
        return "confirmed"

    return Agent(id="clerk", model=ScriptedModel(say), tools=[pay, confirm])


async def say(call: ModelCall) -> ModelResponse:
    """Answer as the model: pay part after part, then confirm."""
    order = next(each.content for each in call.messages if each.role == "user")
    number, done = int(order.rpartition("-")[2]), sum(each.role == "tool" for each in call.messages)
    if done < PAYMENTS:
        args = {"order": order, "nth": done, "amount": amounts_of(number)[done]}
        return ModelResponse(tool_calls=[ToolRequest("pay", args, tool_call_id=f"pay-{done}")])
    if done == PAYMENTS and asks_person(number):
        return ModelResponse(tool_calls=[ToolRequest("confirm", {"order": order}, tool_call_id="confirm")])
    return ModelResponse(content="The order is paid.")


def _append(path: Path, line: str) -> None:
    """Append a line to a file of several processes; a short line is written whole or not at all."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)
