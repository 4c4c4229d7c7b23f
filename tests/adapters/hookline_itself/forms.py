"""The forms in which a policy can be given: scripts, a control webhook, a policy of AGENT-HOOKS."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from agent_hooks import Verdict

from hookline.adapters.agent_hooks import PolicyHooks
from hookline.evals.verdicts import Form, Policy
from hookline.hooks import AnyHook
from hookline.registry import Registry
from tests.delivery.receivers import Received, Receiver, says_json

__all__ = ["LOOPBACK", "agent_hooks_form", "control_form", "dialect_form", "script_form"]

LOOPBACK = ["127.0.0.0/8"]
"""The addresses of the receivers, which are private."""

TIMEOUT = 0.2
"""The seconds that a policy which hangs may take: a process that starts needs some of them."""

SCRIPT = """\
import json
import sys
import time

asked = json.load(sys.stdin)
call, policy = asked["call"], asked["config"]
applies = (
    all(call["args"].get(name) == value for name, value in policy["when"].items())
    and policy["user_id"] in (None, call["userId"])
    and policy["agent_id"] in (None, call["agentId"])
)
act, text = policy["act"], policy["text"]
if not applies or act == "allow":
    pass
elif act == "fail":
    sys.exit("the policy is broken")
elif act == "hang":
    time.sleep(60)
elif act in ("deny", "stop"):
    print(json.dumps({"decision": "deny", "reason": text, "stop": act == "stop"}))
elif act == "ask":
    print(json.dumps({"decision": "ask", "reason": text}))
elif act == "context":
    print(json.dumps({"decision": "allow", "additionalContext": text}))
elif act == "rewrite":
    print(json.dumps({"decision": "allow", "args": {**call["args"], **policy["args"]}}))
else:
    print(json.dumps({"decision": "answer", "result": text}))
"""

DIALECT_SCRIPT = """\
import json
import sys
import time

policy, dialect = json.loads({policy!r}), {dialect!r}
asked = json.load(sys.stdin)
args = asked["toolArgs" if dialect == "copilot" else "tool_input"]
agent = asked.get("agentType" if dialect == "copilot" else "agent_type", "")
if any(args.get(name) != value for name, value in policy["when"].items()) or policy["agent_id"] not in (None, agent):
    sys.exit()
act, text, event = policy["act"], policy["text"], asked.get("hook_event_name")
if act == "fail":
    sys.exit("the policy is broken")
if act == "hang":
    time.sleep(60)
if act == "stop":
    answer = {{"continue": False, "stopReason": text}}
elif dialect == "claude":
    answer = {{"hookSpecificOutput": {{"hookEventName": event, **{{
        "allow": {{}},
        "deny": {{"permissionDecision": "deny", "permissionDecisionReason": text}},
        "ask": {{"permissionDecision": "ask", "permissionDecisionReason": text}},
        "rewrite": {{"updatedInput": {{**args, **policy["args"]}}}},
        "replace": {{"updatedToolOutput": text}},
        "context": {{"additionalContext": text}},
    }}[act]}}}}
elif dialect == "gemini":
    answer = {{
        "allow": {{}},
        "deny": {{"decision": "deny", "reason": text}},
        "ask": {{"decision": "ask", "reason": text}},
        "rewrite": {{"hookSpecificOutput": {{"hookEventName": event, "tool_input": {{**args, **policy["args"]}}}}}},
        "replace": {{"decision": "deny", "reason": text}},
        "context": {{"hookSpecificOutput": {{"hookEventName": event, "additionalContext": text}}}},
    }}[act]
else:
    answer = {{
        "allow": {{}},
        "deny": {{"permissionDecision": "deny", "permissionDecisionReason": text}},
        "ask": {{"permissionDecision": "ask", "permissionDecisionReason": text}},
        "rewrite": {{"modifiedArgs": {{**args, **policy["args"]}}}},
        "replace": {{"modifiedResult": {{"resultType": "success", "textResultForLlm": text}}}},
        "context": {{"additionalContext": text}},
    }}[act]
print(json.dumps(answer))
"""

KINDS = {"rewrite": "before", "answer": "before", "replace": "after"}
"""The kind of hook that an act needs; a guard for all others."""


def definition_of(policy: Policy, **runs: Any) -> dict[str, Any]:
    """Return a policy as a stored definition of the registry."""
    given = {"id": "policy", "name": "Policy", "tool": policy.tool, "tenantId": policy.tenant_id or "", **runs}
    return {key: value for key, value in {**given, "inherit": policy.inherit}.items() if value is not None}


@asynccontextmanager
async def defined(definition: dict[str, Any], folder: Path) -> AsyncIterator[list[AnyHook]]:
    """Yield the hooks of a definition that stands in a file."""
    (folder / "hooks.yaml").write_text(json.dumps({"hooks": [definition]}))
    async with Registry(files=[folder / "hooks.yaml"], scripts=folder) as registry:
        yield [*registry.hooks(definition["tenantId"])]


@asynccontextmanager
async def script_form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as a definition with a script."""
    async with scripted(policy, SCRIPT, config=msgspec.to_builtins(policy)) as hooks:
        yield hooks


def dialect_form(dialect: str) -> Form:
    """Return the form of policies as scripts that people have for a coding agent.

    Args:
        dialect: The words of which coding agent they read and write.
    """

    @asynccontextmanager
    async def form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
        script = DIALECT_SCRIPT.format(policy=json.dumps(msgspec.to_builtins(policy)), dialect=dialect)
        async with scripted(policy, script, dialect=dialect) as hooks:
            yield hooks

    return form


@asynccontextmanager
async def scripted(policy: Policy, text: str, **definition: Any) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as a definition with a script of a text."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "policy.py"
        script.write_text(f"#!{sys.executable} -IS\n{text}")
        script.chmod(0o700)
        given = definition_of(
            policy,
            point=f"ToolCall.{KINDS.get(policy.act, 'guard')}",
            script="policy.py",
            timeout=TIMEOUT if policy.act == "hang" else None,
            onError=policy.on_error,
            **definition,
        )
        async with defined(given, Path(name)) as hooks:
            yield hooks


@asynccontextmanager
async def control_form(policy: Policy) -> AsyncIterator[list[AnyHook]]:
    """Yield a policy as a definition with a control webhook, whose receiver answers on loopback."""

    async def answer(request: Received, writer: Any) -> bool:
        event = request.payload
        facts = {
            "tool_name": event["apiName"],
            "args": event["args"],
            "user_id": event.get("userId"),
            "tenant_id": event.get("tenantId"),
            "agent_id": event.get("agentId"),
        }
        if policy.act == "hang":
            await anyio.sleep_forever()
        found = answered(policy, facts["args"]) if policy.applies_to(facts) else {}
        return await says_json(found, 500 if policy.act == "fail" else 200)(request, writer)

    timeout = {"timeout": TIMEOUT} if policy.act in ("hang", "fail") else {}
    with tempfile.TemporaryDirectory() as name:
        async with Receiver() as receiver:
            receiver.says(answer)
            webhook = {"url": receiver.url, "control": True, "onError": policy.on_error, **timeout}
            async with defined(definition_of(policy, point="beforeToolCall", webhook=webhook), Path(name)) as hooks:
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
