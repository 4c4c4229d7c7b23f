"""HTTP hooks of coding agents: the receiver gets what its host posts, and its answer is read as its host reads it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from hookline import Chain, Hook, ToolCall, ToolResult
from hookline.delivery import HookData, InProcess, KeyRing, Webhook, generate_key
from hookline.dispatcher._webhooks import control_interceptor
from hookline.errors import HookDefinitionError
from hookline.events import AfterToolCall, HookType, OnComplete
from hookline.hooks import check_hook
from hookline.interceptors import Outcome
from hookline.webhooks import payload_of
from tests.tables import for_each

from .receivers import Answer, Receiver, enormous, garbage, hang, ok, says_json, status

pytestmark = pytest.mark.anyio

SECRET = generate_key()
CALL = ToolCall(operation_id="op-1", tool_name="Bash", args={"command": "ls"}, tool_call_id="call-1")


async def judged(receiver: Receiver, call: ToolCall = CALL, **webhook: Any) -> Outcome:
    told = Webhook(**({"url": receiver.url, "control": True, "dialect": "claude"} | webhook))
    hook = HookData(id="judge", type=HookType.BEFORE_TOOL_CALL, webhook=told)
    carrier = InProcess(keys=KeyRing({"": [SECRET]}), allow_private=["127.0.0.0/8"])

    async def tool(call: ToolCall) -> ToolResult:
        return ToolResult(content=f"ran {json.dumps(call.args)}")

    try:
        return await Chain([control_interceptor(hook, carrier)]).run(call, tool)
    finally:
        await carrier.aclose()


def own(**fields: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}


async def test_the_receiver_gets_what_its_host_posts() -> None:
    async with Receiver([SECRET]) as receiver:
        receiver.says(says_json({}))
        assert (await judged(receiver)).denied is None

        [asked] = receiver.payloads
        assert asked.pop("cwd").startswith("/")
        assert asked == {
            "session_id": "op-1",
            "transcript_path": "",
            "hook_event_name": "PreToolUse",
            "permission_mode": "default",
            "tool_name": "Bash",
            "tool_input": {"command": "ls"},
            "tool_use_id": "call-1",
        }
        assert not receiver.unsigned


async def test_the_receiver_is_asked_about_the_tools_that_the_matcher_names() -> None:
    async with Receiver() as receiver:
        receiver.says(says_json({"decision": "block", "reason": "no"}))

        assert (await judged(receiver, matcher="Write|mcp__memory__.*")).denied is None
        assert receiver.payloads == []
        note = msgspec.structs.replace(CALL, toolset="memory", tool_name="add")
        assert (await judged(receiver, note, matcher="Write|mcp__memory__.*")).denied is not None


@pytest.mark.parametrize("decision", ["allow", "deny", "ask"])
async def test_context_comes_along_with_every_decision(decision: str) -> None:
    async with Receiver() as receiver:
        receiver.says(says_json(own(permissionDecision=decision, additionalContext="shells are logged")))

        outcome = await judged(receiver)

    assert [(each.hook_id, each.text) for each in outcome.context] == [("judge", "shells are logged")]


@pytest.mark.parametrize(
    ("answer", "denied", "asked", "stop", "ran"),
    [
        ({}, None, None, False, "ls"),
        ({"decision": "block", "reason": "no"}, "no", None, False, None),
        (own(permissionDecision="deny", permissionDecisionReason="no"), "no", None, False, None),
        (own(permissionDecision="allow", updatedInput={"command": "pwd"}), None, None, False, "pwd"),
        (own(permissionDecision="ask", permissionDecisionReason="may it?"), "may it?", "may it?", False, None),
        ({"continue": False, "stopReason": "enough"}, "enough", None, True, None),
        ({"shiny": 1, "systemMessage": "hello"}, None, None, False, "ls"),
    ],
)
async def test_the_answer_decides(
    answer: dict[str, Any], denied: str | None, asked: str | None, stop: bool, ran: str | None
) -> None:
    async with Receiver() as receiver:
        receiver.says(says_json(answer))
        outcome = await judged(receiver)

    assert (outcome.denied.reason if outcome.denied else None) == denied
    assert (outcome.asked.prompt if outcome.asked else None) == asked
    assert outcome.stop is stop
    assert (outcome.call.args["command"] if outcome.result else None) == ran


FAILURES: dict[str, Answer] = {
    "403": status(403),
    "500": status(500),
    "text": ok(body=b"all is well"),
    "text before JSON": ok(body=b'hi {"decision": "approve"}'),
    "half an object": ok(body=b'{"decision": "appr'),
    "an unknown decision": says_json({"decision": "perhaps"}),
    "garbage": garbage(),
    "too much": enormous(),
    "nothing": hang(),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_without_a_valid_answer_a_closed_hook_denies_and_an_open_one_lets_the_call_run(name: str) -> None:
    async with Receiver() as receiver:
        receiver.says(FAILURES[name])
        closed = await judged(receiver, timeout=0.3)
        opened = await judged(receiver, timeout=0.3, on_error="open")

    assert closed.denied is not None
    assert closed.result is None
    assert opened.result == ToolResult(content='ran {"command": "ls"}')


async def test_a_receiver_that_nobody_runs_denies_if_it_is_closed() -> None:
    async with Receiver() as receiver:
        gone = receiver.url.replace("127.0.0.1", "127.0.0.2")
        assert (await judged(receiver, url=gone, timeout=0.5)).denied is not None
        assert (await judged(receiver, url=gone, timeout=0.5, on_error="open")).denied is None


def after(**fields: Any) -> AfterToolCall:
    given = {
        "operation_id": "op", "toolset": "memory", "tool_name": "add", "args": {}, "call_index": 1, "step_index": 0,
        "tool_call_id": "c", "content": "stored", "success": True, "execution_time_ms": 12.4,
    }  # fmt: skip
    return AfterToolCall(**(given | fields))


def test_an_observer_is_told_of_what_its_matcher_names_and_its_host_would_have() -> None:
    webhook = Webhook(url="https://a.example", dialect="claude", matcher="mcp__memory__.*|Bash")
    hook = HookData(id="h", type=HookType.AFTER_TOOL_CALL, webhook=webhook)
    ended = {
        "operation_id": "op", "steps": 1, "llm_calls": 1, "tool_calls": 0, "total_tokens": 1, "cost_usd": 0.0,
        "duration_ms": 1.0, "last_assistant_content": "bye",
    }  # fmt: skip
    stop = HookData(
        id="s",
        type=HookType.ON_COMPLETE,
        webhook=Webhook(url="https://a.example", dialect="claude", host_event="Stop"),
    )

    assert hook.wants(after())
    assert hook.wants(after(toolset="local", tool_name="Bash"))
    assert not hook.wants(after(toolset="files"))
    assert not hook.wants(after(success=False))
    assert stop.wants(OnComplete(reason="done", **ended))
    assert not stop.wants(OnComplete(reason="error", **ended))


def test_the_payload_of_an_observer_is_the_hosts() -> None:
    webhook = Webhook(url="https://a.example", dialect="gemini")
    hook = HookData(id="h", type=HookType.AFTER_TOOL_CALL, webhook=webhook)

    payload = json.loads(payload_of(hook, msgspec.to_builtins(after())))

    assert (payload["hook_event_name"], payload["tool_name"]) == ("AfterTool", "mcp_memory_add")
    assert payload["tool_response"]["llmContent"] == "stored"


@for_each(
    "type, fields, words",
    [
        ("beforeStep", {}, "has no event at beforeStep"),
        ("beforeToolCall", {"matcher": "["}, "`matcher` cannot be used"),
        ("beforeToolCall", {"host_event": "Stop"}, "must be 'PreToolUse'"),
        ("beforeToolCall", {"body": {"team": "a"}}, "leave `body` out"),
        ("beforeToolCall", {"event_fields": ["args"]}, "leave `event_fields` out"),
        ("beforeToolCall", {"dialect": "hookline", "matcher": "Bash"}, "only for hooks of another dialect"),
        ("beforeHumanIntervention", {"host_event": "PermissionRequest"}, "cannot be 'PermissionRequest'"),
    ],
)
def test_a_webhook_that_could_never_work_is_refused(type: str, fields: dict[str, Any], words: str) -> None:  # noqa: A002
    webhook = {"url": "https://a.example", "dialect": "claude"} | fields

    with pytest.raises(HookDefinitionError, match=words.replace("`", ".")):
        check_hook(Hook(id="h", type=HookType(type), webhook=webhook), "h")
