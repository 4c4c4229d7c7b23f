"""The table of section 1 of the contract, written out by hand, and events to go with it."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

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
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnError,
    OnStopByHumanIntervention,
    OnToolCallError,
    PendingTool,
    ToolOutcome,
    ToolRequest,
)

COMMON_KEYS = ["operationId", "timeUnixNano", "agentId", "userId", "tenantId", "parentOperationId", "tags"]
TOOL_KEYS = ["identifier", "apiName", "args", "callIndex", "stepIndex", "toolCallId"]

TABLE: dict[type[Event], tuple[str, list[str]]] = {
    BeforeStep: ("beforeStep", ["stepIndex"]),
    AfterStep: (
        "afterStep",
        [
            "stepIndex",
            "stepType",
            "content",
            "reasoning",
            "toolsCalling",
            "toolsResult",
            "shouldContinue",
            "executionTimeMs",
            "elapsedMs",
            "stepCostUsd",
            "totalCostUsd",
            "totalInputTokens",
            "totalOutputTokens",
            "totalSteps",
            "totalToolCalls",
        ],
    ),
    OnComplete: (
        "onComplete",
        [
            "reason",
            "steps",
            "llmCalls",
            "toolCalls",
            "totalTokens",
            "costUsd",
            "durationMs",
            "lastAssistantContent",
            "errorType",
            "errorMessage",
        ],
    ),
    OnError: ("onError", ["errorMessage", "errorType", "errorDetail", "stepIndex"]),
    BeforeToolCall: ("beforeToolCall", TOOL_KEYS),
    AfterToolCall: (
        "afterToolCall",
        [*TOOL_KEYS, "content", "success", "mocked", "answeredBy", "metadata", "executionTimeMs"],
    ),
    OnToolCallError: (
        "onToolCallError",
        [*TOOL_KEYS, "error", "errorType", "mocked", "answeredBy", "metadata", "executionTimeMs"],
    ),
    BeforeHumanIntervention: ("beforeHumanIntervention", ["stepIndex", "pendingTools"]),
    AfterHumanIntervention: ("afterHumanIntervention", ["action", "toolCallId", "rejectionReason"]),
    OnStopByHumanIntervention: ("onStopByHumanIntervention", ["toolCallId", "rejectionReason"]),
    BeforeCompact: ("beforeCompact", ["stepIndex", "messageCount", "tokenCount"]),
    AfterCompact: ("afterCompact", ["stepIndex", "groupId", "messagesBefore", "messagesAfter", "summary"]),
    OnCompactError: ("onCompactError", ["stepIndex", "tokenCount", "error"]),
    BeforeCallAgent: ("beforeCallAgent", ["calleeId", "instruction"]),
    AfterCallAgent: ("afterCallAgent", ["calleeId", "subOperationId", "threadId", "success"]),
    OnCallAgentError: ("onCallAgentError", ["calleeId", "error"]),
}

_text = st.text(max_size=20)
_optional_text = st.none() | _text
_count = st.integers(min_value=0, max_value=2**63)
_number = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_args = st.dictionaries(_text, _json, max_size=4)
_common = {
    "operation_id": _text,
    "time_unix_nano": st.integers(min_value=0, max_value=2**63 - 1),
    "agent_id": _text,
    "user_id": _text,
    "tenant_id": _text,
    "parent_operation_id": _optional_text,
}
_tool = {
    "toolset": _text,
    "tool_name": _text,
    "args": _args,
    "call_index": st.integers(1, 10**6),
    "step_index": _count,
    "tool_call_id": _text,
}
_answered = {
    "mocked": st.booleans(),
    "answered_by": _optional_text,
    "metadata": _args,
    "execution_time_ms": _number,
}
_tool_calling = st.builds(ToolRequest, toolset=_text, tool_name=_text, args=_args | _text, tool_call_id=_text)
_tool_outcome = st.builds(
    ToolOutcome, toolset=_text, tool_name=_text, tool_call_id=_text, content=_text, success=st.booleans()
)
_pending = st.builds(PendingTool, toolset=_text, tool_name=_text, tool_call_id=_text, args=_args)

_FIELDS: dict[type[Event], dict[str, st.SearchStrategy[Any]]] = {
    BeforeStep: {"step_index": _count},
    AfterStep: {
        "step_index": _count,
        "step_type": st.sampled_from(["call_llm", "call_tool", "request_human_approve"]),
        "content": _text,
        "reasoning": _text,
        "tools_calling": st.lists(_tool_calling, max_size=3),
        "tools_result": st.lists(_tool_outcome, max_size=3),
        "should_continue": st.booleans(),
        "execution_time_ms": _number,
        "elapsed_ms": _number,
        "step_cost_usd": _number,
        "total_cost_usd": _number,
        "total_input_tokens": _count,
        "total_output_tokens": _count,
        "total_steps": _count,
        "total_tool_calls": _count,
    },
    OnComplete: {
        "reason": st.sampled_from(["done", "error", "interrupted", "max_steps", "cost_limit", "waiting_for_human"]),
        "steps": _count,
        "llm_calls": _count,
        "tool_calls": _count,
        "total_tokens": _count,
        "cost_usd": _number,
        "duration_ms": _number,
        "last_assistant_content": _text,
        "error_type": _optional_text,
        "error_message": _optional_text,
    },
    OnError: {
        "error_message": _text,
        "error_type": _text,
        "error_detail": _text,
        "step_index": st.none() | _count,
    },
    BeforeToolCall: _tool,
    AfterToolCall: {**_tool, "content": _text, "success": st.booleans(), **_answered},
    OnToolCallError: {**_tool, "error": _text, "error_type": _text, **_answered},
    BeforeHumanIntervention: {"step_index": _count, "pending_tools": st.lists(_pending, max_size=3)},
    AfterHumanIntervention: {
        "action": st.sampled_from(["approve", "reject", "rejectAndContinue"]),
        "tool_call_id": _optional_text,
        "rejection_reason": _optional_text,
    },
    OnStopByHumanIntervention: {"tool_call_id": _optional_text, "rejection_reason": _optional_text},
    BeforeCompact: {"step_index": _count, "message_count": _count, "token_count": _count},
    AfterCompact: {
        "step_index": _count,
        "group_id": _text,
        "messages_before": _count,
        "messages_after": _count,
        "summary": _text,
    },
    OnCompactError: {"step_index": _count, "token_count": _count, "error": _text},
    BeforeCallAgent: {"callee_id": _text, "instruction": _text},
    AfterCallAgent: {"callee_id": _text, "sub_operation_id": _text, "thread_id": _text, "success": st.booleans()},
    OnCallAgentError: {"callee_id": _text, "error": _text},
}


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    """Any event of one class, every field set."""
    return st.builds(kind, **_common, **_FIELDS[kind])


EXAMPLES: dict[type[Event], dict[str, Any]] = {
    BeforeStep: {"step_index": 0},
    AfterStep: {
        "step_index": 0,
        "step_type": "call_tool",
        "content": "c",
        "reasoning": "r",
        "tools_calling": [ToolRequest(tool_name="search", args={"q": "x"}, tool_call_id="t1")],
        "tools_result": [
            ToolOutcome(toolset="local", tool_name="search", tool_call_id="t1", content="42", success=True)
        ],
        "should_continue": True,
        "execution_time_ms": 1.5,
        "elapsed_ms": 2.5,
        "step_cost_usd": 0.1,
        "total_cost_usd": 0.2,
        "total_input_tokens": 1,
        "total_output_tokens": 2,
        "total_steps": 1,
        "total_tool_calls": 1,
    },
    OnComplete: {
        "reason": "done",
        "steps": 1,
        "llm_calls": 1,
        "tool_calls": 0,
        "total_tokens": 3,
        "cost_usd": 0.1,
        "duration_ms": 4.0,
        "last_assistant_content": "bye",
    },
    OnError: {"error_message": "m", "error_type": "ValueError", "error_detail": "d"},
    BeforeToolCall: {
        "toolset": "local",
        "tool_name": "search",
        "args": {"q": {"deep": [1, {"x": 2}]}},
        "call_index": 1,
        "step_index": 0,
        "tool_call_id": "t1",
    },
    AfterToolCall: {
        "toolset": "local",
        "tool_name": "search",
        "args": {"q": {"deep": [1, {"x": 2}]}},
        "call_index": 1,
        "step_index": 0,
        "tool_call_id": "t1",
        "content": "42",
        "success": True,
        "metadata": {"rule": {"ids": [1]}},
    },
    OnToolCallError: {
        "toolset": "local",
        "tool_name": "search",
        "args": {"q": {"deep": [1, {"x": 2}]}},
        "call_index": 1,
        "step_index": 0,
        "tool_call_id": "t1",
        "error": "no",
        "error_type": "ValueError",
        "metadata": {"rule": {"ids": [1]}},
    },
    BeforeHumanIntervention: {
        "step_index": 0,
        "pending_tools": [PendingTool(toolset="local", tool_name="pay", tool_call_id="t1", args={"to": {"n": 1}})],
    },
    AfterHumanIntervention: {"action": "approve"},
    OnStopByHumanIntervention: {},
    BeforeCompact: {"step_index": 0, "message_count": 1, "token_count": 2},
    AfterCompact: {"step_index": 0, "group_id": "g", "messages_before": 2, "messages_after": 1, "summary": "s"},
    OnCompactError: {"step_index": 0, "token_count": 2, "error": "e"},
    BeforeCallAgent: {"callee_id": "a", "instruction": "i"},
    AfterCallAgent: {"callee_id": "a", "sub_operation_id": "s", "thread_id": "t", "success": True},
    OnCallAgentError: {"callee_id": "a", "error": "e"},
}


def example(kind: type[Event], **changes: Any) -> Any:
    """One plain event of a class, with only what it cannot do without."""
    return kind(**{"operation_id": "op", **copy.deepcopy(EXAMPLES[kind]), **changes})
