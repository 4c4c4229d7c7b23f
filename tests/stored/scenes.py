"""Runs whose policies and receivers keep what they are sent."""

from __future__ import annotations

from typing import Any

from agent_hooks import Verdict

from hookline import Agent, BeforeToolCall, Hook, OnComplete, exec_agent
from hookline.delivery import ControlAnswer, Envelope, InProcess
from hookline.dispatcher import HookDispatcher

from . import bank


class Notes:
    """A policy of AGENT-HOOKS that allows everything.

    Attributes:
        contexts: What it was asked, in order.
    """

    name = "notes"

    def __init__(self) -> None:
        self.contexts: list[dict[str, Any]] = []

    def intercept(self, context: dict[str, Any]) -> Any:
        """Note the context."""
        self.contexts.append(context)
        return Verdict.allow()

    async def watch(self, agent: Agent, hooks: Any) -> None:
        """Run an agent under the policy."""
        await exec_agent(
            agent, "What is due?", hooks=[hooks], operation_id="op_policy", user_id="ann", tenant_id="acme"
        )


async def send_events() -> dict[str, Any]:
    """Return what receivers in this process are sent of an event and of a control."""
    sent: dict[str, Any] = {}

    async def receive(envelope: Envelope) -> None:
        sent["delivery"] = envelope

    async def decide(envelope: Envelope) -> ControlAnswer:
        sent["control"] = envelope
        return ControlAnswer(decision="deny", reason="too much")

    delivery = InProcess()
    webhook = {"url": "local://observer", "body": {"team": "risk"}}
    observer = Hook(id="ledger", type=OnComplete, webhook=webhook)
    gate = {"url": "local://control", "control": True}
    control = Hook(id="gate", type=BeforeToolCall, webhook=gate, tool="*/pay")
    agent = bank.banker(bank.Bank(), [bank.PAUSING[1], bank.turn("done")])
    async with (
        delivery.serve("observer", receive),
        delivery.serve("control", decide),
        HookDispatcher(delivery=delivery) as dispatcher,
    ):
        await exec_agent(agent, "Pay.", hooks=[observer, control], operation_id="op_sent", dispatcher=dispatcher)
    await delivery.aclose()
    return sent
