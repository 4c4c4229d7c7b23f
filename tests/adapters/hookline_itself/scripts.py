"""Policies as scripts: their texts, and the files that a registry reads them from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from hookline.evals.verdicts import Policy

__all__ = ["TIMEOUT", "definition_of", "write_dialect_script", "write_script"]

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


def write_script(folder: Path, policy: Policy) -> dict[str, Any]:
    """Write a policy as a script into a folder, and its definition into the file `hooks.yaml`; return the definition.

    Args:
        folder: The folder.
        policy: The policy.
    """
    return write_files(folder, policy, SCRIPT, config=msgspec.to_builtins(policy))


def write_dialect_script(folder: Path, policy: Policy, dialect: str) -> dict[str, Any]:
    """Write a policy as a script that people have for a coding agent; return its definition.

    Args:
        folder: The folder.
        policy: The policy.
        dialect: The words of which coding agent the script reads and writes.
    """
    text = DIALECT_SCRIPT.format(policy=json.dumps(msgspec.to_builtins(policy)), dialect=dialect)
    return write_files(folder, policy, text, dialect=dialect)


def write_files(folder: Path, policy: Policy, text: str, **runs: Any) -> dict[str, Any]:
    script = folder / "policy.py"
    script.write_text(f"#!{sys.executable} -IS\n{text}")
    script.chmod(0o700)
    definition = definition_of(
        policy,
        point=f"ToolCall.{KINDS.get(policy.act, 'guard')}",
        script="policy.py",
        timeout=TIMEOUT if policy.act == "hang" else None,
        onError=policy.on_error,
        **runs,
    )
    (folder / "hooks.yaml").write_text(json.dumps({"hooks": [definition]}))
    return definition
