"""Runs whose policies, receivers and scripts keep what they are sent, and what the HTTP API says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
from agent_hooks import Verdict

from hookline import (
    Agent,
    BeforeToolCall,
    Chain,
    Deny,
    Hook,
    Hooks,
    OnComplete,
    ToolCall,
    ToolResult,
    exec_agent,
)
from hookline.delivery import ControlAnswer, Envelope, InProcess
from hookline.dispatcher import HookDispatcher
from hookline.registry import Registry
from hookline.server import create_app
from hookline.store import SqlStore

from . import bank
from .samples import tool_call


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


SCRIPT_POINTS = ["ToolCall.before", "ToolCall.after", "SubAgentCall.guard", "StepCall.before", "afterToolCall"]
"""The points at which a script is run."""


async def run_scripts(folder: Path) -> dict[str, Any]:
    """Return what scripts read at each of the points, in a run with one call of a tool and one of a sub-agent.

    Args:
        folder: Takes the scripts, and what they read.
    """
    write_scripts(folder)
    async with Registry(scripts=folder, files=[folder / "hooks.yaml"]) as registry:
        agent = bank.banker(bank.Bank(), [bank.PAUSING[0], bank.turn("Nothing is due.")])
        await exec_agent(
            agent, "What is due?", hooks=registry.hooks("acme"), operation_id="op_script", tenant_id="acme"
        )
    return {point: msgspec.json.decode((folder / f"{point}.json").read_bytes()) for point in SCRIPT_POINTS}


def write_scripts(folder: Path) -> None:
    """Write the scripts that keep what they read, and the definitions that name them."""
    hooks = []
    for point in SCRIPT_POINTS:
        script = folder / f"{point}.sh"
        # The first document of a point is kept: later ones of the same run have its form too.
        script.write_text(
            f"#!/bin/sh\nif [ -e '{folder}/{point}.json' ]; then cat; else cat > '{folder}/{point}.json'; fi >&2\n"
        )
        script.chmod(0o755)
        hooks.append({"id": f"at-{point}", "name": point, "point": point, "script": script.name, "config": {"most": 3}})
    (folder / "hooks.yaml").write_bytes(msgspec.json.encode({"hooks": hooks}))


async def refuse_and_rewrite() -> None:
    """Lead a call through two hooks of which the second one refuses it."""
    hooks = Hooks("rules")

    @hooks.before(ToolCall, id="trim")
    def trim(call: ToolCall) -> ToolCall:
        return call.with_args(to="Bob")

    @hooks.guard(ToolCall, id="limit")
    def refuse(call: ToolCall) -> Deny:
        return Deny(f"not to {call.args['to']}")

    async def run(call: ToolCall) -> ToolResult:
        raise AssertionError("a call ran although it was refused")

    requested = tool_call("bank", "pay", args={"to": " Bob "}, tool_call_id="t1", step_index=2)
    await Chain([hooks]).run(requested, run)


async def describe_api() -> dict[str, Any]:
    """Return the description of the HTTP API that its server gives."""
    async with SqlStore("sqlite://") as store:
        app = create_app(store)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            answer = await client.get("/schema/openapi.json")
    described: dict[str, Any] = answer.raise_for_status().json()
    return described
