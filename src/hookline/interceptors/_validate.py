"""Validate what hooks return: changed calls, changed results and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hookline._checks import quote
from hookline._readonly import NotStored
from hookline.calls import (
    AgentCall,
    AgentResult,
    Call,
    CompactResult,
    MemoryCall,
    MemoryResult,
    Message,
    ModelCall,
    ModelResponse,
    RequestCall,
    RequestResult,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolRequest,
    ToolResult,
    ToolSpec,
    Usage,
    as_tool_result,
)
from hookline.errors import HookUsageError
from hookline.execution import describe_failure

__all__ = ["check_changed", "check_result", "result_of"]

_TEXT: dict[type, str] = {AgentResult: "output", ModelResponse: "content", CompactResult: "summary"}
"""The field that a text answers."""

_FIELDS: dict[type, dict[str, type]] = {
    AgentCall: {"instructions": str},
    ModelCall: {"model": str},
    ToolCall: {"toolset": str, "tool_name": str},
    SubAgentCall: {"callee_id": str, "instruction": str},
    RequestCall: {"method": str, "path": str},
    MemoryCall: {"key": str},
    AgentResult: {"output": str, "reason": str},
    StepResult: {"should_continue": bool, "content": str},
    ModelResponse: {"content": str, "reasoning": str, "usage": Usage, "finish_reason": str},
    CompactResult: {"summary": str},
    RequestResult: {"status": int, "body": bytes},
    MemoryResult: {"stored": bool},
}
"""What structs do not check by themselves, and everything that comes later relies on."""

_ROLES = ("system", "user", "assistant", "tool")
_KEPT = ("operation_id", "agent_id", "user_id", "tenant_id", "tags")


def check_changed(changed: Call, call: Call) -> str | None:
    """Return what is wrong with a changed call, or `None`.

    Its `metadata` becomes the one that all hooks of the call share.
    """
    try:
        return _problem_with_change(changed, call)
    except Exception as error:
        return f"changed the call to something that cannot be used: {describe_failure(error)}"


def _problem_with_change(changed: Call, call: Call) -> str | None:
    for name in _KEPT if not isinstance(call, ToolCall) else (*_KEPT, "tool_call_id", "call_index", "step_index"):
        old, new = getattr(call, name), getattr(changed, name)
        if new.__class__ is not old.__class__ or new != old:
            return (
                f"changed `{name}` from {quote(old)} to {quote(new)}, which says whose call it is; change calls with "
                "msgspec.structs.replace, which keeps it"
            )
    problem = check_fields(changed)
    if problem is not None:
        return problem
    metadata: object = changed.metadata
    if metadata is not call.metadata:
        if not isinstance(metadata, Mapping):
            return f"changed `metadata` to {quote(metadata)}, which is no mapping"
        call.metadata.update(metadata)
        msgspec.structs.force_setattr(changed, "metadata", call.metadata)
    return None


def check_result(result: object) -> str | None:
    """Return what is wrong with the fields of a hook's result, or `None`."""
    if isinstance(result, ToolResult):
        try:
            as_tool_result(result)
        except HookUsageError as error:
            return f"gave a result that cannot be used: {error}"
        return None
    for name, kind in _FIELDS.get(type(result), {}).items():
        value = getattr(result, name)
        if value.__class__ is NotStored:
            continue
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            return f"gave a {type(result).__name__} whose `{name}` is {quote(value)}"
    if isinstance(result, ModelResponse) and not _all_are(result.tool_calls, ToolRequest, "tool_name"):
        return f"gave a ModelResponse whose `tool_calls` are {quote(result.tool_calls)}"
    usage: object = result.usage if isinstance(result, ModelResponse) else None
    if isinstance(usage, Usage) and not all(isinstance(each, int | float) for each in msgspec.structs.astuple(usage)):
        return f"gave a ModelResponse whose `usage` is {quote(usage)}"
    return None


def check_fields(call: Call) -> str | None:
    """Return what is wrong with the fields of a changed call, or `None`."""
    for name, kind in _FIELDS.get(type(call), {}).items():
        value = getattr(call, name)
        if not isinstance(value, kind) and value.__class__ is not NotStored:
            return f"changed `{name}` to {quote(value)}"
    messages = call.input if isinstance(call, AgentCall) else getattr(call, "messages", ())
    if messages.__class__ is not NotStored and not (
        _all_are(messages, Message, "content") and all(message.role in _ROLES for message in messages)
    ):
        return "changed the messages to something that holds no messages"
    tools = getattr(call, "tools", ())
    if tools.__class__ is not NotStored and not _all_are(tools, ToolSpec, "name"):
        return "changed `tools` to something that holds no tools"
    return None


def _all_are(values: object, kind: type, text: str) -> bool:
    return isinstance(values, Sequence) and all(
        isinstance(value, kind) and isinstance(getattr(value, text), str) for value in values
    )


def result_of(kind: type[msgspec.Struct], answer: object) -> Any:
    """Convert the answer of a `Respond` into a result, or the exception that counts as raised.

    Raises:
        HookUsageError: If such a call cannot be answered with it.
    """
    if kind is ToolResult:
        return as_tool_result(answer)
    if isinstance(answer, kind):
        problem = check_result(answer)
        if problem is not None:
            raise HookUsageError(f"The hook {problem}.")
        return answer
    if isinstance(answer, Exception):
        return answer
    if isinstance(answer, str) and kind in _TEXT:
        return kind(**{_TEXT[kind]: answer})
    if isinstance(answer, Mapping):
        try:
            return msgspec.convert(dict(answer), kind, builtin_types=(bytes,))
        except (msgspec.ValidationError, TypeError) as error:
            raise HookUsageError(f"These are not fields of a {kind.__name__}: {error}.") from error
    text = ", a str" if kind in _TEXT else ""
    raise HookUsageError(
        f"The answer to this call must be a {kind.__name__}{text}, a mapping of its fields, or an Exception instance; "
        f"got {type(answer).__name__}."
    )
