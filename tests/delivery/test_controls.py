"""Controls: what a receiver may answer, and what becomes of a tool call."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    Agent,
    BeforeToolCall,
    Chain,
    Hook,
    HookDispatcher,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    ToolResult,
    exec_agent,
    tool,
)
from hookline.delivery import ControlAnswer, HookData, InProcess, KeyRing, Sender, Webhook, generate_key
from hookline.delivery._control_answers import check_answer, read_answer
from hookline.dispatcher._webhooks import control_interceptor
from hookline.errors import DeliveryError
from hookline.events import HookType
from hookline.interceptors import Outcome

from .envelopes import envelope_to
from .receivers import Answer, Receiver, enormous, garbage, hang, ok, says_json, status

pytestmark = pytest.mark.anyio

SECRET = generate_key()
CALL = ToolCall(operation_id="op-1", tenant_id="t", tool_name="bash", args={"command": "ls"}, tool_call_id="call-1")


def delivery() -> InProcess:
    return InProcess(keys=KeyRing({"": [SECRET]}), allow_private=["127.0.0.0/8"])


async def judged(receiver: Receiver, call: ToolCall = CALL, **webhook: Any) -> Outcome:
    """What becomes of a call that the receiver is asked about."""
    told = Webhook(url=receiver.url, control=True, **webhook)
    hook = HookData(id="judge", type=HookType.BEFORE_TOOL_CALL, tool="*/bash", webhook=told)
    carrier = delivery()

    async def bash(call: ToolCall) -> ToolResult:
        return ToolResult(content=f"ran {json.dumps(call.args)}")

    try:
        return await Chain([control_interceptor(hook, carrier)]).run(call, bash)
    finally:
        await carrier.aclose()


class TestAnswers:
    async def test_nothing_against_it_lets_the_call_happen(self) -> None:
        async with Receiver([SECRET]) as receiver:
            receiver.says(says_json({}))
            outcome = await judged(receiver)

            assert outcome.result.content == 'ran {"command": "ls"}'
            [asked] = receiver.payloads
            assert (asked["type"], asked["hookId"], asked["apiName"]) == ("beforeToolCall", "judge", "bash")
            assert (asked["args"], asked["toolCallId"], asked["tenantId"]) == ({"command": "ls"}, "call-1", "t")
            assert not receiver.unsigned

    async def test_changed_arguments_are_those_that_run(self) -> None:
        async with Receiver() as receiver:
            receiver.says(says_json({"decision": "allow", "args": {"command": "pwd"}}))
            outcome = await judged(receiver)

            assert outcome.result.content == 'ran {"command": "pwd"}'

    @pytest.mark.parametrize("result", ["mocked", {"content": "mocked", "success": False, "metadata": {"rule": 1}}])
    async def test_an_answer_stands_for_the_tool(self, result: Any) -> None:
        async with Receiver() as receiver:
            receiver.says(says_json({"decision": "answer", "result": result}))
            outcome = await judged(receiver)

            assert outcome.result.content == "mocked"
            assert outcome.result.success is isinstance(result, str)

    async def test_a_denial_keeps_the_tool_from_running(self) -> None:
        async with Receiver() as receiver:
            receiver.says(says_json({"decision": "deny", "reason": "no shells", "stop": True}))
            outcome = await judged(receiver)

            assert (outcome.denied.reason, outcome.denied.hook_id, outcome.stop) == ("no shells", "judge", True)

    async def test_a_person_is_asked(self) -> None:
        async with Receiver() as receiver:
            receiver.says(says_json({"decision": "ask", "reason": "May it?"}))
            outcome = await judged(receiver)

            assert outcome.asked.prompt == "May it?"

    @pytest.mark.parametrize(
        "answer",
        [
            {},
            {"decision": "deny", "reason": "no shells"},
            {"decision": "answer", "result": "mocked"},
            {"decision": "ask", "reason": "May it?"},
            {"args": {"command": "pwd"}},
        ],
    )
    async def test_context_comes_along_with_every_decision(self, answer: dict[str, Any]) -> None:
        async with Receiver() as receiver:
            receiver.says(says_json({**answer, "additionalContext": "shells are logged"}))
            outcome = await judged(receiver)

            assert [(each.hook_id, each.text) for each in outcome.context] == [("judge", "shells are logged")]

    async def test_context_of_lobehub_s_form_is_read_too(self) -> None:
        async with Receiver() as receiver:
            specific = {"permissionDecision": "deny", "permissionDecisionReason": "no", "additionalContext": "ask Ann"}
            receiver.says(says_json({"hookSpecificOutput": specific}))
            outcome = await judged(receiver)

            assert outcome.denied.reason == "no"
            assert [each.text for each in outcome.context] == ["ask Ann"]

    async def test_the_model_reads_the_context_of_a_control_in_a_run(self) -> None:
        @tool(in_thread=False)
        def bash(command: str) -> str:
            return f"ran {command}"

        turns = [ToolRequest("bash", {"command": "ls"}), "done"]
        agent = Agent(id="a", model=ScriptedModel(turns), tools=[bash])
        carrier = delivery()
        async with Receiver([SECRET]) as receiver, HookDispatcher(delivery=carrier) as dispatcher:
            receiver.says(says_json({"additionalContext": "shells are logged"}))
            hook = Hook(id="judge", type=BeforeToolCall, webhook={"url": receiver.url, "control": True})
            result = await exec_agent(agent, "go", hooks=[hook], dispatcher=dispatcher)
            await carrier.aclose()

        (text,) = [message.content for message in result.messages if message.role == "tool"]
        assert text == "ran ls\n\nContext from hook 'judge': shells are logged"

    async def test_a_tool_that_it_is_not_for_is_not_asked_about(self) -> None:
        async with Receiver() as receiver:
            call = ToolCall(tool_name="search")

            assert (await judged(receiver, call)).result.content == "ran {}"
            assert receiver.requests == []

    async def test_a_receiver_learns_how_long_it_may_think(self) -> None:
        async with Receiver() as receiver:
            receiver.says(says_json({}))
            before = time.time()
            await judged(receiver, timeout=20.0)

            deadline = int(receiver.requests[0].headers["hookline-deadline"]) / 1e3
            assert before + 15 < deadline <= time.time() + 20


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ok(), id="empty"),
        pytest.param(status(204), id="no-content"),
        pytest.param(ok("yes"), id="no-json"),
        pytest.param(ok(b"\xff\xfe"), id="no-text"),
        pytest.param(garbage(), id="garbage"),
        pytest.param(hang(), id="hangs"),
        pytest.param(enormous(), id="enormous"),
        pytest.param(ok("[" * 50_000), id="nested"),
        pytest.param(status(403, body='{"decision": "allow"}'), id="refused"),
        pytest.param(status(410), id="gone"),
        pytest.param(status(302, location="/other", body="{}"), id="redirects"),
        pytest.param(status(200, body="{}", content_encoding="gzip"), id="compressed"),
        pytest.param(says_json({"decision": "Deny"}), id="misspelt"),
        pytest.param(says_json({"decison": "deny"}), id="misspelt-key"),
    ],
)
class TestFailures:
    async def test_closed_denies_the_call(self, answer: Answer) -> None:
        async with Receiver() as receiver:
            receiver.says(answer)
            outcome = await judged(receiver, timeout=0.5)

            assert outcome.result is None
            assert outcome.denied.hook_id == "judge"
            assert isinstance(outcome.refusal.__cause__.__cause__, DeliveryError)

    async def test_open_goes_on_without_it(self, answer: Answer) -> None:
        async with Receiver() as receiver:
            receiver.says(answer)
            outcome = await judged(receiver, timeout=0.5, on_error="open")

            assert outcome.result.content == 'ran {"command": "ls"}'


async def test_a_control_that_is_away_for_a_moment_is_asked_again_with_the_same_id() -> None:
    async with Receiver() as receiver:
        receiver.says(status(503), status(429, retry_after="0"), says_json({"decision": "deny", "reason": "no"}))
        outcome = await judged(receiver)

        assert outcome.denied.reason == "no"
        assert len(set(receiver.ids)) == 1
        assert len(receiver.ids) == 3


KEYS = st.sampled_from(["decision", "reason", "args", "result", "stop", "hookSpecificOutput", "permissionDecision"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.sampled_from(["allow", "deny", "answer"]) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS | st.text(), inner),
)


class TestReading:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({}, ControlAnswer()),
            ({"decision": "allow", "reason": "fine"}, ControlAnswer(reason="fine")),
            ({"args": {}}, ControlAnswer(args={})),
            ({"decision": "deny", "stop": True}, ControlAnswer(decision="deny", stop=True)),
            ({"decision": "answer", "result": ""}, ControlAnswer(decision="answer", result="")),
            ({"decision": "deny", "args": None, "result": None}, ControlAnswer(decision="deny")),
            (
                {"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "no"}},
                ControlAnswer(decision="deny", reason="no"),
            ),
            (
                {
                    "hookSpecificOutput": {
                        "hookEventName": "beforeToolCall",
                        "permissionDecision": "allow",
                        "updatedInput": {"a": 1},
                        "additionalContext": "only EUR",
                    }
                },
                ControlAnswer(args={"a": 1}, additional_context="only EUR"),
            ),
            ({"additionalContext": "only EUR"}, ControlAnswer(additional_context="only EUR")),
            (
                {"decision": "deny", "reason": "no", "additionalContext": "ask Ann"},
                ControlAnswer(decision="deny", reason="no", additional_context="ask Ann"),
            ),
            (
                {"hookSpecificOutput": {"permissionDecision": "allow", "additionalContext": None}},
                ControlAnswer(),
            ),
        ],
    )
    def test_a_proper_answer_is_understood(self, given: Any, expected: ControlAnswer) -> None:
        assert read_answer("judge", json.dumps(given).encode()) == expected

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ([], "must be a JSON object"),
            (None, "must be a JSON object"),
            ("allow", "must be a JSON object"),
            ({"decision": "block"}, "decision"),
            ({"decision": None}, "decision"),
            ({"decision": ["deny"]}, "decision"),
            ({"reason": 3}, "reason"),
            ({"reason": "no way"}, "no `decision`"),
            ({"reason": "no way", "args": {}}, "no `decision`"),
            ({"args": []}, "args"),
            ({"args": "ls"}, "args"),
            ({"decision": "deny", "args": {}}, "only allowed with 'allow'"),
            ({"decision": "ask", "args": {}}, "only allowed with 'allow'"),
            ({"decision": "answer", "result": "x", "args": {}}, "only allowed with 'allow'"),
            ({"decision": "answer"}, "result"),
            ({"decision": "answer", "result": {}}, "result"),
            ({"decision": "answer", "result": {"content": 3}}, "result"),
            ({"decision": "answer", "result": {"content": "x", "more": 1}}, "result"),
            ({"result": "x"}, "only allowed with 'answer'"),
            ({"decision": "allow", "stop": True}, "only allowed with 'deny'"),
            ({"stop": "yes", "decision": "deny"}, "stop"),
            ({"additionalContext": 3}, "additionalContext"),
            ({"additionalContext": None}, "additionalContext"),
            ({"decision": "guide", "reason": "again"}, "decision"),
            ({"hookSpecificOutput": {"permissionDecision": "deny", "additionalContext": ["x"]}}, "additionalContext"),
            ({"ok": True}, "unknown key 'ok'"),
            ({"Decision": "deny"}, "unknown key 'Decision'"),
            ({"hookSpecificOutput": None}, "must be the only key"),
            ({"hookSpecificOutput": {}}, "permissionDecision"),
            ({"hookSpecificOutput": {"permissionDecision": "ask"}}, "permissionDecision"),
            ({"hookSpecificOutput": {"permissionDecision": "allow"}, "decision": "deny"}, "must be the only key"),
            ({"hookSpecificOutput": {"permissionDecision": "allow", "other": 1}}, "must be the only key"),
            ({"hookSpecificOutput": {"permissionDecision": "deny", "updatedInput": {}}}, "only allowed with 'allow'"),
            ({"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": []}}, "args"),
            ({"hookSpecificOutput": {"permissionDecision": "allow", "hookEventName": "onComplete"}}, "hookEventName"),
        ],
    )
    def test_what_is_not_understood_is_no_answer(self, given: Any, problem: str) -> None:
        with pytest.raises(DeliveryError, match=problem) as caught:
            read_answer("judge", json.dumps(given).encode())
        assert (caught.value.code, caught.value.hook_id) == ("invalid_response", "judge")

    @given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
    def test_whatever_comes_is_an_answer_or_none(self, body: bytes) -> None:
        answer = None
        with contextlib.suppress(DeliveryError):
            answer = read_answer("judge", body)

        assert answer is None or check_answer("judge", answer) is answer

    @pytest.mark.parametrize(
        "given",
        [
            True,
            {"decision": "allow"},
            ControlAnswer(decision="no"),  # type: ignore[arg-type]
            ControlAnswer(args=[]),  # type: ignore[arg-type]
            ControlAnswer(decision="answer"),
            ControlAnswer(decision="answer", result=3),  # type: ignore[arg-type]
            ControlAnswer(decision="deny", args={}),
            ControlAnswer(decision="ask", reason=None),  # type: ignore[arg-type]
            ControlAnswer(additional_context=None),  # type: ignore[arg-type]
        ],
    )
    def test_an_answer_of_a_function_is_checked_too(self, given: Any) -> None:
        with pytest.raises(DeliveryError, match="the answer is invalid"):
            check_answer("judge", given)


async def test_a_sender_does_not_ask_twice() -> None:
    async with Receiver() as receiver, Sender(KeyRing({"": [SECRET]}), allow_private=["127.0.0.0/8"]) as sender:
        receiver.says(status(503, retry_after="3"))
        with pytest.raises(DeliveryError) as caught:
            await sender.ask(envelope_to(receiver.url, control=True), 5.0)

        assert (caught.value.status_code, caught.value.retry_after, len(receiver.requests)) == (503, 3.0, 1)
