"""The forms in which a policy can be given: scripts, a control webhook, a policy of AGENT-HOOKS."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from agent_hooks import Verdict

from hookline.adapters.agent_hooks import PolicyHooks
from hookline.evals.verdicts import Form, Policy
from hookline.hooks import AnyHook
from hookline.registry import Registry
from tests.delivery.receivers import Received, Receiver, says_json

from .scripts import TIMEOUT, definition_of, write_dialect_script, write_script

__all__ = ["LOOPBACK", "agent_hooks_form", "control_form", "dialect_form", "http_hook_form", "script_form"]

LOOPBACK = ["127.0.0.0/8"]
"""The addresses of the receivers, which are private."""


@asynccontextmanager
async def registered(folder: Path, tenant_id: str) -> AsyncIterator[list[AnyHook]]:
    """Yield the hooks of the definitions that stand in a folder."""
    async with Registry(files=[folder / "hooks.yaml"], scripts=folder) as registry:
        yield [*registry.hooks(tenant_id)]


@asynccontextmanager
async def script_form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as a definition with a script."""
    with tempfile.TemporaryDirectory() as name:
        definition = write_script(Path(name), policy)
        async with registered(Path(name), definition["tenantId"]) as hooks:
            yield hooks


def dialect_form(dialect: str) -> Form:
    """Return the form of policies as scripts that people have for a coding agent.

    Args:
        dialect: The words of which coding agent they read and write.
    """

    @asynccontextmanager
    async def form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
        with tempfile.TemporaryDirectory() as name:
            definition = write_dialect_script(Path(name), policy, dialect)
            async with registered(Path(name), definition["tenantId"]) as hooks:
                yield hooks

    return form


@asynccontextmanager
async def control_form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as a definition with a control webhook, whose receiver answers on loopback."""

    def decide(event: Mapping[str, Any]) -> dict[str, Any]:
        facts = {
            "tool_name": event["apiName"],
            "args": event["args"],
            "user_id": event.get("userId"),
            "tenant_id": event.get("tenantId"),
            "agent_id": event.get("agentId"),
        }
        return answered(policy, facts["args"]) if policy.applies_to(facts) else {}

    async with received(policy, decide) as hooks:
        yield hooks


@asynccontextmanager
async def http_hook_form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as an HTTP hook that somebody has for Claude Code."""

    def decide(asked: Mapping[str, Any]) -> dict[str, Any]:
        facts = {
            "tool_name": asked["tool_name"],
            "args": asked["tool_input"],
            "user_id": policy.user_id,
            "tenant_id": policy.tenant_id,
            "agent_id": asked.get("agent_type"),
        }
        return answered_to_claude(policy, facts["args"]) if policy.applies_to(facts) else {}

    async with received(policy, decide, dialect="claude") as hooks:
        yield hooks


@asynccontextmanager
async def received(
    policy: Policy, decide: Callable[[Mapping[str, Any]], dict[str, Any]], **options: Any
) -> AsyncIterator[list[AnyHook]]:
    """Yield a control webhook whose receiver decides."""

    async def answer(request: Received, writer: Any) -> bool:
        if policy.act == "hang":
            await anyio.sleep_forever()
        return await says_json(decide(request.payload), 500 if policy.act == "fail" else 200)(request, writer)

    timeout = {"timeout": TIMEOUT} if policy.act in ("hang", "fail") else {}
    with tempfile.TemporaryDirectory() as name:
        async with Receiver() as receiver:
            receiver.says(answer)
            webhook = {"url": receiver.url, "control": True, "onError": policy.on_error, **timeout, **options}
            definition = definition_of(policy, point="beforeToolCall", webhook=webhook)
            (Path(name) / "hooks.yaml").write_text(json.dumps({"hooks": [definition]}))
            async with registered(Path(name), definition["tenantId"]) as hooks:
                yield hooks


def answered(policy: Policy, args: dict[str, Any]) -> dict[str, Any]:
    """Return what a receiver answers about a call."""
    if policy.act in ("deny", "stop"):
        return {"decision": "deny", "reason": policy.text, "stop": policy.act == "stop"}
    if policy.act == "ask":
        return {"decision": "ask", "reason": policy.text}
    if policy.act == "rewrite":
        return {"args": {**args, **policy.args}}
    if policy.act == "context":
        return {"additionalContext": policy.text}
    return {"decision": "answer", "result": policy.text} if policy.act == "answer" else {}


def answered_to_claude(policy: Policy, args: dict[str, Any]) -> dict[str, Any]:
    """Return what a receiver of Claude Code's hooks answers about a call."""
    if policy.act == "stop":
        return {"continue": False, "stopReason": policy.text}
    own: dict[str, Any] = {}
    if policy.act in ("deny", "ask"):
        own = {"permissionDecision": policy.act, "permissionDecisionReason": policy.text}
    if policy.act == "rewrite":
        own = {"updatedInput": {**args, **policy.args}}
    if policy.act == "context":
        own = {"additionalContext": policy.text}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}}


class ContractPolicy:
    """A policy of AGENT-HOOKS-0.1."""

    name = "policy"

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def intercept(self, context: dict[str, Any]) -> Verdict:
        policy, point = self.policy, context["interception_point"]
        if point != ("post_tool_call" if policy.act == "replace" else "pre_tool_call") or not self.applies_to(context):
            return Verdict.allow()
        if policy.act == "fail":
            raise RuntimeError("the policy is broken")
        if policy.act == "hang":
            await anyio.sleep_forever()
        if policy.act == "deny":
            return Verdict.deny(reason=policy.text)
        if policy.act == "ask":
            return Verdict.escalate(reason=policy.text)
        if policy.act == "context":
            return Verdict.warn(message=policy.text)
        if policy.act in ("rewrite", "replace"):
            changed = {**context["target"], **policy.args} if policy.act == "rewrite" else policy.text
            transform = {"path": "$target", "value": changed}
            return Verdict.from_wire({"decision": "transform", "reason": "changed", "transform": transform})
        return Verdict.allow()

    def applies_to(self, context: dict[str, Any]) -> bool:
        toolset, _, tool = context["tool_call"]["name"].rpartition("/")
        return toolset != "agent" and self.policy.applies_to(
            {
                "tool_name": tool,
                "args": context["tool_call"]["args"],
                "user_id": context["actor"]["id"],
                "tenant_id": context["tenant"]["id"],
                "agent_id": context["agent"]["id"],
            }
        )


@asynccontextmanager
async def agent_hooks_form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as `PolicyHooks`."""
    timeout = 0.02 if policy.act == "hang" else None
    given = ContractPolicy(policy)
    yield [PolicyHooks(given, id="policy", timeout=timeout, inherit=policy.inherit, tell_warnings=True)]
