"""One value of every kind that is written as JSON, built by wire names so that it does not depend on Python's.

`make.py` writes these values with the code of an earlier commit; the tests compare what is read back with them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from hookline import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    Message,
    ModelResponse,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnStopByHumanIntervention,
    OnToolCallError,
    PendingTool,
    ToolCall,
    ToolOutcome,
    ToolResult,
    Usage,
)
from hookline import ToolRequest as Request
from hookline.delivery import ControlAnswer, HookData, Webhook
from hookline.events import EVENTS
from hookline.runtime import Approve, Reject

T = TypeVar("T", bound=msgspec.Struct)

COMMON = {
    "operationId": "op_1",
    "timeUnixNano": 1_790_000_000_000_000_001,
    "agentId": "banker",
    "userId": "ann",
    "tenantId": "acme",
    "parentOperationId": "op_0",
}
TOOL = {"identifier": "bank", "apiName": "pay", "toolCallId": "t1"}
CALL = {**TOOL, "args": {"to": "Bö ☂", "amounts": [1, 2.5, None, True, {"deep": []}]}, "callIndex": 2, "stepIndex": 1}


def from_wire(kind: type[T], **fields: Any) -> T:
    """Build a struct from its fields under their names on the wire.

    Args:
        kind: The class.
        fields: Values by wire name; a name that the class does not know is an error.
    """
    names = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    return kind(**{names[name]: value for name, value in fields.items()})


def request(tool: str, tool_call_id: str, /, toolset: str = "local", **args: Any) -> Request:
    """Return a model's request to call a tool."""
    return from_wire(Request, identifier=toolset, apiName=tool, args=args, toolCallId=tool_call_id)


def tool_call(toolset: str, tool: str, **fields: Any) -> ToolCall:
    """Return a call of a tool; its fields are named here alone."""
    return ToolCall(toolset=toolset, tool_name=tool, operation_id="op", tenant_id="acme", **fields)


def event(kind: type[Event], **fields: Any) -> Event:
    """Return an event with the fields that all events share."""
    return from_wire(kind, **COMMON, **fields)


REQUESTED = request("pay", "t1", toolset="bank", to="Bob")
RAW = from_wire(Request, apiName="pay", args='{"to": ', toolCallId="t2")
OUTCOME = from_wire(ToolOutcome, **TOOL, content="paid", success=True)
PENDING = from_wire(PendingTool, **TOOL, args={"to": "Bob"})
ASKED = from_wire(PendingTool, **TOOL, args={}, prompt="Really?")
ANSWER = {"mocked": True, "answeredBy": "tape", "metadata": {"rule": "r1", "n": [1]}, "executionTimeMs": 1.5}

EVENTS_MADE: list[Event] = [
    event(BeforeStep, stepIndex=0),
    event(
        AfterStep,
        stepIndex=0,
        stepType="call_tool",
        content="I pay.",
        reasoning="It is due.",
        toolsCalling=[REQUESTED, RAW],
        toolsResult=[OUTCOME],
        shouldContinue=True,
        executionTimeMs=12.5,
        elapsedMs=20.25,
        stepCostUsd=0.001,
        totalCostUsd=0.5,
        totalInputTokens=10,
        totalOutputTokens=20,
        totalSteps=1,
        totalToolCalls=2,
    ),
    event(
        OnComplete,
        reason="error",
        steps=3,
        llmCalls=4,
        toolCalls=5,
        totalTokens=30,
        costUsd=0.5,
        durationMs=99.5,
        lastAssistantContent="I pay.",
        errorType="ValueError",
        errorMessage="no such account",
    ),
    event(OnError, errorMessage="no such account", errorType="ValueError", errorDetail="Traceback …", stepIndex=2),
    event(BeforeToolCall, **CALL),
    event(AfterToolCall, **CALL, **ANSWER, content="paid", success=True),
    event(OnToolCallError, **CALL, **ANSWER, error="no such account", errorType="ValueError"),
    event(BeforeHumanIntervention, stepIndex=1, pendingTools=[PENDING, ASKED]),
    event(AfterHumanIntervention, action="rejectAndContinue", toolCallId="t1", rejectionReason="too much"),
    event(OnStopByHumanIntervention, toolCallId="t1", rejectionReason="too much"),
    event(BeforeCompact, stepIndex=1, messageCount=9, tokenCount=4000),
    event(AfterCompact, stepIndex=1, groupId="g1", messagesBefore=9, messagesAfter=3, summary="They talked."),
    event(OnCompactError, stepIndex=1, tokenCount=4000, error="no summary"),
    event(BeforeCallAgent, calleeId="auditor", instruction="Audit it."),
    event(AfterCallAgent, calleeId="auditor", subOperationId="op_2", threadId="th_2", success=True),
    event(OnCallAgentError, calleeId="auditor", error="it did not answer"),
]
assert [each.hook_type for each in EVENTS_MADE] == list(EVENTS), "one event of each kind, in their order"

WEBHOOK = from_wire(
    Webhook,
    url="https://hooks.example/in",
    body={"team": "payments"},
    eventFields=["operationId", "apiName"],
    headers={"x-team": "${TEAM}"},
    allowedEnvVars=["TEAM"],
    timeout=2.5,
    fallback="none",
    key="main",
)
CONTROL = Webhook(url="https://hooks.example/control", control=True, on_error="open")
OBSERVED = from_wire(HookData, id="ledger", type="afterToolCall", tool="bank/*", webhook=WEBHOOK, tenantId="acme")
CONTROLLED = from_wire(HookData, id="gate", type="beforeToolCall", webhook=CONTROL)

RECORDS: dict[str, msgspec.Struct] = {
    "ToolRequest": REQUESTED,
    "ToolRequest with the text of a model": RAW,
    "ToolOutcome": OUTCOME,
    "PendingTool": PENDING,
    "PendingTool with a prompt": ASKED,
    "ToolResult": ToolResult(content="down", success=False, error_type="ConnectionError", metadata={"rule": "r1"}),
    "Message": from_wire(
        Message, role="assistant", content="I pay.", toolCalls=[REQUESTED], details={"signature": "s"}
    ),
    "Message of a tool": from_wire(Message, role="tool", content="paid", toolCallId="t1"),
    "Usage": from_wire(Usage, inputTokens=3, outputTokens=4, costUsd=0.25),
    "ModelResponse": ModelResponse(
        content="I pay.",
        tool_calls=[REQUESTED],
        reasoning="It is due.",
        usage=from_wire(Usage, inputTokens=3, outputTokens=4, costUsd=0.25),
        finish_reason="tools",
        model="m-1",
        response_id="r-1",
        details={"signature": "s"},
    ),
    "Approve": from_wire(Approve, toolCallId="t1"),
    "Reject": from_wire(Reject, toolCallId="t1", reason="too much", andContinue=True),
    "Webhook": WEBHOOK,
    "HookData": OBSERVED,
    "HookData of a control": CONTROLLED,
    "ControlAnswer": ControlAnswer(decision="allow", args={"amount": 1}),
    "ControlAnswer that denies": ControlAnswer(decision="deny", reason="too much", stop=True),
    "ControlAnswer with a result": ControlAnswer(decision="answer", result={"content": "paid", "success": False}),
}
"""Values by the name of their kind in the contract."""
